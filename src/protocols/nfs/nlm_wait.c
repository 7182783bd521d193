/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks that clients wait for. Each has a fiber on its file system's reactor, which waits in fs_lock_set()
 * and then calls the client: NLM_GRANTED. A client that cannot be called polls (it asks again now and then);
 * when it neither confirms nor asks, the lock is given back, so that one that has gone does not keep it for
 * ever.
 *
 * An export may be taken away while somebody waits. So the wait is made of short ones, and the export is held
 * only within each.
 */
#include "protocols/nfs/nlm.h"

#include "protocols/nfs/nfs3.h"
#include "protocols/nfs/rpc_client.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define SLICE_NS      (1 * NSEC_PER_SEC)
#define CALL_NS       (4 * NSEC_PER_SEC)
#define CALLS         8u /* before the client is given up */
#define CALL_PAUSE_NS (5 * NSEC_PER_SEC)

static bool same_lock(const struct fs_lock *a, const struct fs_lock *b)
{
    return a->start == b->start && a->len == b->len && a->exclusive == b->exclusive &&
           a->owner_len == b->owner_len && a->client_len == b->client_len &&
           memcmp(a->owner, b->owner, a->owner_len) == 0 && memcmp(a->client, b->client, a->client_len) == 0;
}

struct nlm_wait *nlm_wait_find(struct nfs_shard *shard, uint64_t ino, const struct fs_lock *l)
{
    LIST_FOREACH (&shard->lock_waits, it) {
        struct nlm_wait *w = CONTAINER_OF(it, struct nlm_wait, link);
        if (w->ino == ino && !w->cancelled && same_lock(&w->lock, l))
            return w;
    }
    return NULL;
}

void nlm_wait_cancel(struct nlm_wait *w)
{
    w->cancelled = true;
    if (w->fiber != NULL)
        fiber_cancel(w->fiber);
}

/* One slice. ERR_TIMEOUT: somebody still has it. */
static int wait_once(struct nlm_wait *w) may_yield
{
    struct fs_lock conflict;
    struct nfs_export *e = nfs_export_hold(w->shard, w->export_tag);
    if (e == NULL || e->fs == NULL) {
        if (e != NULL)
            nfs_export_release(e);
        return ERR_FS_STALE;
    }
    int r = fs_lock_set(e->fs, &w->rq, w->ino, &w->lock, false, reactor_now_ns() + SLICE_NS, &conflict);
    nfs_export_release(e);
    return r == ERR_FS_LOCKED ? ERR_TIMEOUT : r;
}

static void give_back(struct nlm_wait *w) may_yield
{
    struct nfs_export *e = nfs_export_hold(w->shard, w->export_tag);
    int r = e != NULL && e->fs != NULL ? fs_lock_clear(e->fs, &w->rq, w->ino, &w->lock) : 0;
    if (e != NULL)
        nfs_export_release(e);
    if (r < 0)
        LOG_WARNING("a lock of %s that it does not know of could not be given back: %s", w->ip,
                    error_text(r));
}

/* 0: the client knows. ERR_DENIED: it does not want it any more. */
static int tell_once(struct nlm_wait *w) may_yield
{
    uint8_t args[3 * NLM_NETOBJ_MAX], reply[RPC_CLIENT_MAX];
    struct xdr_out o = xdr_into(args, sizeof(args));
    struct xdr x;
    xdr_put_opaque(&o, w->cookie, w->cookie_len);
    xdr_put_bool(&o, w->lock.exclusive);
    xdr_put_opaque(&o, w->caller, (uint32_t)strlen(w->caller));
    xdr_put_opaque(&o, w->handle, sizeof(w->handle));
    xdr_put_opaque(&o, w->oh, w->oh_len);
    xdr_put_u32(&o, w->svid);
    xdr_put_u64(&o, w->lock.start);
    xdr_put_u64(&o, w->lock.len);
    assert(!o.full);
    int r = rpc_client_call(w->ip, 0, RPC_PROGRAM_NLM, NLM4_VERSION, NLM4_GRANTED, o.data, o.len,
                            reactor_now_ns() + CALL_NS, reply, &x);
    if (r != 0)
        return r;
    uint32_t len;
    (void)xdr_opaque(&x, NLM_NETOBJ_MAX, &len);
    uint32_t status = xdr_u32(&x);
    if (x.bad)
        return ERR_PROTOCOL;
    return status == NLM4_LOCK_GRANTED ? 0 : ERR_DENIED;
}

static void tell(struct nlm_wait *w) may_yield
{
    int r = ERR_TIMEOUT;
    w->granted = true;
    for (uint32_t i = 0; i < CALLS && !w->confirmed && r != 0 && r != ERR_DENIED; i++) {
        if (i > 0 && fiber_sleep(CALL_PAUSE_NS) != 0)
            break;
        r = w->confirmed ? 0 : tell_once(w);
    }
    if (r == 0 || w->confirmed)
        return;
    fiber_shield();
    give_back(w);
    fiber_unshield();
}

static void wait_main(void *arg) may_yield
{
    struct nlm_wait *w = arg;
    struct nfs_shard *shard = w->shard;
    int r = ERR_TIMEOUT;
    w->fiber = fiber_self();
    while (r == ERR_TIMEOUT && !w->cancelled)
        r = wait_once(w);
    if (r == 0 && w->cancelled && !w->confirmed) {
        fiber_shield();
        give_back(w); /* granted just as the client gave up */
        fiber_unshield();
    } else if (r == 0 && !w->cancelled) {
        tell(w);
    }
    list_remove(&w->link);
    shard->lock_wait_count--;
    waitq_wake_all(&shard->lock_wait_ended);
    free(w);
}

int nlm_wait_begin(struct nfs_shard *shard, struct nfs_export *e, uint64_t ino, const struct fs_request *rq,
                   const struct fs_lock *l, const struct nlm_args *a, const struct nfs_peer *peer)
{
    if (nlm_wait_find(shard, ino, l) != NULL)
        return 0;
    if (shard->lock_wait_count >= NLM_WAITS_MAX ||
        a->cookie_len > sizeof(((struct nlm_wait *)NULL)->cookie) ||
        a->handle_len != sizeof(struct nfs_handle) || a->caller_len > FS_LOCK_CLIENT_MAX || peer->local)
        return ERR_FS_NO_LOCKS;
    struct nlm_wait *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return ERR_NO_MEMORY;
    w->shard = shard;
    w->export_tag = e->tag;
    w->ino = ino;
    w->rq = *rq;
    w->rq.reply = NULL;
    w->lock = *l;
    w->svid = a->svid;
    memcpy(w->cookie, a->cookie, a->cookie_len);
    w->cookie_len = a->cookie_len;
    memcpy(w->handle, a->handle, sizeof(w->handle));
    memcpy(w->oh, a->oh, a->oh_len);
    w->oh_len = a->oh_len;
    memcpy(w->caller, a->caller, a->caller_len);
    memcpy(w->ip, peer->ip, sizeof(w->ip));
    list_append(&shard->lock_waits, &w->link);
    shard->lock_wait_count++;
    int r = fiber_spawn("lock wait", wait_main, w);
    if (r != 0) {
        list_remove(&w->link);
        shard->lock_wait_count--;
        free(w);
    }
    return r;
}

void nlm_wait_end_all(struct nfs_shard *shard, uint32_t export_tag)
{
    for (;;) {
        uint32_t left = 0;
        LIST_FOREACH (&shard->lock_waits, it) {
            struct nlm_wait *w = CONTAINER_OF(it, struct nlm_wait, link);
            if (export_tag != 0 && w->export_tag != export_tag)
                continue;
            left++;
            if (!w->cancelled)
                nlm_wait_cancel(w);
        }
        if (left == 0)
            return;
        (void)waitq_wait(&shard->lock_wait_ended, DEADLINE_NEVER);
    }
}
