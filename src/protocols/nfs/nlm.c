/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NLM version 4: byte-range locks and DOS shares of NFSv3 clients.
 *
 * Locks are items of the file system, durable before the answer, so they are there again after a restart of
 * the server: a client that claims its own again is told that it has it, and nobody can take it meanwhile. A
 * client that restarted says so through NSM (nsm.c), and its locks go.
 *
 * An owner is (client, svid, oh). The client is known by its address and the name that it gives itself:
 * several clients may stand behind one address.
 */
#include "protocols/nfs/nlm.h"

#include "protocols/nfs/nfs3.h"
#include "protocols/nfs/rpc_client.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdio.h>

#define RESULT_TIMEOUT (5 * NSEC_PER_SEC)

/* ---- Arguments ---- */

static void get_netobj(struct xdr *x, const uint8_t **ret, uint32_t *ret_len)
{
    *ret = xdr_opaque(x, NLM_NETOBJ_MAX, ret_len);
}

static void get_alock(struct xdr *x, struct nlm_args *a)
{
    a->caller = (const char *)xdr_opaque(x, NLM_NAME_MAX, &a->caller_len);
    get_netobj(x, &a->handle, &a->handle_len);
    get_netobj(x, &a->oh, &a->oh_len);
    a->svid = xdr_u32(x);
    a->offset = xdr_u64(x);
    a->len = xdr_u64(x);
}

/* Of TEST, LOCK, CANCEL, UNLOCK and their like. */
static bool args_get(struct xdr *x, uint32_t procedure, struct nlm_args *a)
{
    *a = (struct nlm_args){0};
    get_netobj(x, &a->cookie, &a->cookie_len);
    switch (procedure) {
    case NLM4_LOCK:
    case NLM4_NM_LOCK:
    case NLM4_CANCEL:
        a->block = xdr_bool(x);
        a->exclusive = xdr_bool(x);
        break;
    case NLM4_TEST:
        a->exclusive = xdr_bool(x);
        break;
    default:
        break;
    }
    get_alock(x, a);
    if (procedure == NLM4_LOCK || procedure == NLM4_NM_LOCK) {
        a->reclaim = xdr_bool(x);
        (void)xdr_u32(x); /* its NSM state: its own business */
    }
    return !x->bad;
}

static bool share_get(struct xdr *x, struct nlm_args *a)
{
    *a = (struct nlm_args){0};
    get_netobj(x, &a->cookie, &a->cookie_len);
    a->caller = (const char *)xdr_opaque(x, NLM_NAME_MAX, &a->caller_len);
    get_netobj(x, &a->handle, &a->handle_len);
    get_netobj(x, &a->oh, &a->oh_len);
    a->deny = xdr_enum(x, NLM_DENY_BOTH);
    a->access = xdr_enum(x, NLM_ACCESS_BOTH);
    a->reclaim = xdr_bool(x);
    return !x->bad;
}

/* False: longer than we keep. */
static bool client_name(const struct nfs_peer *peer, const char *caller, uint32_t len,
                        char out[FS_LOCK_CLIENT_MAX + 1], uint32_t *ret_len)
{
    int n = snprintf(out, FS_LOCK_CLIENT_MAX + 1, "%s/%.*s", peer->ip, (int)len, caller);
    if (n < 0 || n > (int)FS_LOCK_CLIENT_MAX || memchr(caller, 0, len) != NULL)
        return false;
    *ret_len = (uint32_t)n;
    return true;
}

static int lock_of(const struct nlm_args *a, const struct nfs_peer *peer, struct fs_lock *ret)
{
    struct be32 svid = be32_make(a->svid);
    *ret = (struct fs_lock){
        .exclusive = a->exclusive, .protocol = FS_LOCK_NLM, .pid = a->svid, .start = a->offset};
    if (a->oh_len > FS_LOCK_OWNER_MAX - sizeof(svid) ||
        !client_name(peer, a->caller, a->caller_len, ret->client, &ret->client_len))
        return ERR_FS_NO_LOCKS;
    memcpy(ret->owner, &svid, sizeof(svid));
    memcpy(ret->owner + sizeof(svid), a->oh, a->oh_len);
    ret->owner_len = (uint32_t)sizeof(svid) + a->oh_len;
    if (a->offset >= FS_SIZE_MAX)
        return ERR_FS_TOO_BIG;
    /* 0, and whatever goes beyond the largest file, is "to the end". */
    ret->len = a->len > FS_SIZE_MAX - a->offset ? 0 : a->len;
    return 0;
}

static enum nlm4_status status_of(int err)
{
    switch (err) {
    case 0:
        return NLM4_LOCK_GRANTED;
    case ERR_FS_LOCKED:
    case ERR_FS_BUSY:
        return NLM4_DENIED;
    case ERR_FS_DEADLOCK:
        return NLM4_DEADLCK;
    case ERR_FS_GRACE:
        return NLM4_DENIED_GRACE_PERIOD;
    case ERR_FS_STALE:
    case ERR_FS_BAD_HANDLE:
        return NLM4_STALE_FH;
    case ERR_FS_TOO_BIG:
        return NLM4_FBIG;
    case ERR_FS_READ_ONLY:
        return NLM4_ROFS;
    case ERR_FS_NO_LOCKS:
    case ERR_NO_MEMORY:
        return NLM4_DENIED_NOLOCKS;
    default:
        return error_errno(err) == ENOSPC ? NLM4_DENIED_NOLOCKS : NLM4_FAILED;
    }
}

/* ---- One request, on the file system's reactor ---- */

struct nlm_op {
    struct nfs_call *call;
    struct nfs_export *export;
    uint32_t procedure;
    const struct nlm_args *args;
    uint64_t ino;
    struct fs_request rq;
    struct fs_lock lock;
    struct fs_lock conflict; /* of TEST */
    enum nlm4_status status;
};

static int op_lock(struct nlm_op *op) may_yield
{
    struct fs_lock conflict;
    struct nlm_wait *w = nlm_wait_find(op->export->shard, op->ino, &op->lock);
    int r = fs_lock_set(op->export->fs, &op->rq, op->ino, &op->lock, op->args->reclaim, 0, &conflict);
    if (r == 0 && w != NULL && (w = nlm_wait_find(op->export->shard, op->ino, &op->lock)) != NULL) {
        w->confirmed = true; /* it has it, and knows: nobody needs to wait or to tell it */
        nlm_wait_cancel(w);
    }
    if (r != ERR_FS_LOCKED || !op->args->block)
        return r;
    r = nlm_wait_begin(op->export->shard, op->export, op->ino, &op->rq, &op->lock, op->args, op->call->peer);
    if (r == 0)
        op->status = NLM4_BLOCKED;
    return r;
}

static int op_cancel(struct nlm_op *op)
{
    struct nlm_wait *w = nlm_wait_find(op->export->shard, op->ino, &op->lock);
    if (w == NULL || w->granted)
        return ERR_FS_LOCKED; /* too late: it has it, and will unlock it */
    nlm_wait_cancel(w);
    return 0;
}

static int op_here(void *arg) may_yield
{
    struct nlm_op *op = arg;
    struct fs *fs = op->export->fs;
    int r;
    op->rq.client = fs_client(fs, op->call->peer->local ? "local" : op->call->peer->ip);
    switch (op->procedure) {
    case NLM4_TEST:
        r = fs_lock_test(fs, &op->rq, op->ino, &op->lock, &op->conflict);
        break;
    case NLM4_LOCK:
    case NLM4_NM_LOCK:
        r = op_lock(op);
        break;
    case NLM4_CANCEL:
        r = op_cancel(op);
        break;
    default:
        r = fs_lock_clear(fs, &op->rq, op->ino, &op->lock);
    }
    if (op->status != NLM4_BLOCKED)
        op->status = status_of(r);
    return 0;
}

/* Finds the file, and does it there. */
static void op_run(struct nlm_op *op) may_yield
{
    struct nfs_call *call = op->call;
    struct nfs_handle_fields f;
    enum nfs3_status status = nfs3_admit(call, op->args->handle, op->args->handle_len, &op->export, &f);
    if (status == NFS3_OK) {
        op->ino = f.ino;
        op->rq = (struct fs_request){.durable = true};
        nfs_export_cred(op->export, &call->header.credential, &op->rq.cred);
        int r = lock_of(op->args, call->peer, &op->lock);
        if (r == 0)
            r = nfs_call_on(call, op->export->shard, op_here, op);
        if (r != 0)
            op->status = status_of(r);
    } else {
        op->status = status == NFS3ERR_JUKEBOX ? NLM4_DENIED_GRACE_PERIOD
                     : status == NFS3ERR_PERM  ? NLM4_DENIED
                                               : NLM4_STALE_FH;
    }
    if (op->export != NULL)
        nfs_export_release(op->export);
}

/* ---- Results ---- */

static void put_result(struct xdr_out *o, const struct nlm_op *op)
{
    xdr_put_opaque(o, op->args->cookie, op->args->cookie_len);
    xdr_put_u32(o, op->status);
    if (op->procedure != NLM4_TEST || op->status != NLM4_DENIED)
        return;
    const struct fs_lock *l = &op->conflict;
    uint32_t skip = l->protocol == FS_LOCK_NLM ? MIN(4u, l->owner_len) : 0;
    xdr_put_bool(o, l->exclusive);
    xdr_put_u32(o, l->pid);
    xdr_put_opaque(o, l->owner + skip, l->owner_len - skip);
    xdr_put_u64(o, l->start);
    xdr_put_u64(o, l->len);
}

static int nlm_run(struct nfs_call *call) may_yield
{
    struct nlm_args a;
    struct nlm_op op = {.call = call, .procedure = call->header.procedure, .args = &a};
    if (!args_get(&call->args, op.procedure, &a))
        return RPC_GARBAGE_ARGUMENTS;
    op_run(&op);
    if (!nfs_call_room(call, 2 * NLM_NETOBJ_MAX + 64))
        return RPC_SYSTEM_ERROR;
    put_result(&call->out, &op);
    return RPC_SUCCESS;
}

/* The answer is a call to the client's lock manager. */
static int nlm_run_message(struct nfs_call *call) may_yield
{
    struct nlm_args a;
    struct nlm_op op = {
        .call = call, .procedure = call->header.procedure - (NLM4_TEST_MSG - NLM4_TEST), .args = &a};
    uint8_t result[2 * NLM_NETOBJ_MAX + 64], reply[RPC_CLIENT_MAX];
    struct xdr_out o = xdr_into(result, sizeof(result));
    struct xdr x;
    if (!args_get(&call->args, op.procedure, &a))
        return RPC_GARBAGE_ARGUMENTS;
    op_run(&op);
    put_result(&o, &op);
    if (o.full || call->peer->local)
        return RPC_SUCCESS;
    /* A client that cannot be called asks again; its request was done, and is the same the second time. */
    int r = rpc_client_call(call->peer->ip, 0, RPC_PROGRAM_NLM, NLM4_VERSION,
                            op.procedure + (NLM4_TEST_RES - NLM4_TEST), o.data, o.len,
                            reactor_now_ns() + RESULT_TIMEOUT, reply, &x);
    if (r != 0)
        LOG_DEBUG("nlm: %s could not be told a result: %s", call->peer->ip, error_text(r));
    return RPC_SUCCESS;
}

/* Answers to what we never ask that way. */
static int nlm_ignore(struct nfs_call *call)
{
    (void)call;
    return RPC_SUCCESS;
}

/* ---- Shares: kept as locks of the whole file would lie in the way of byte ranges, so they are opens with
 * share modes ---- */

static int nlm_share(struct nfs_call *call) may_yield
{
    struct nlm_args a;
    if (!share_get(&call->args, &a))
        return RPC_GARBAGE_ARGUMENTS;
    if (!nfs_call_room(call, NLM_NETOBJ_MAX + 64))
        return RPC_SYSTEM_ERROR;
    /* Shares of DOS clients are not kept: a lock manager that has none says so with this status. */
    xdr_put_opaque(&call->out, a.cookie, a.cookie_len);
    xdr_put_u32(&call->out, NLM4_DENIED_NOLOCKS);
    xdr_put_u32(&call->out, 0);
    return RPC_SUCCESS;
}

/* ---- A client that starts anew ---- */

static int nlm_free_all(struct nfs_call *call) may_yield
{
    uint32_t len;
    const char *name = (const char *)xdr_opaque(&call->args, NLM_NAME_MAX, &len);
    (void)xdr_u32(&call->args);
    if (call->args.bad)
        return RPC_GARBAGE_ARGUMENTS;
    nsm_client_restarted(call, name, len);
    return RPC_SUCCESS;
}

/* ---- The program ---- */

static struct nfs_shard *nlm_place(struct nfs_call *call)
{
    (void)call;
    return NULL; /* locks are few: where the client's files are, its connection is */
}

static const struct rpc_procedure nlm4_procedures[NLM4_PROC_COUNT] = {
    [NLM4_NULL] = {"NULL", nlm_ignore},
    [NLM4_TEST] = {"TEST", nlm_run},
    [NLM4_LOCK] = {"LOCK", nlm_run},
    [NLM4_CANCEL] = {"CANCEL", nlm_run},
    [NLM4_UNLOCK] = {"UNLOCK", nlm_run},
    [NLM4_TEST_MSG] = {"TEST_MSG", nlm_run_message},
    [NLM4_LOCK_MSG] = {"LOCK_MSG", nlm_run_message},
    [NLM4_CANCEL_MSG] = {"CANCEL_MSG", nlm_run_message},
    [NLM4_UNLOCK_MSG] = {"UNLOCK_MSG", nlm_run_message},
    [NLM4_GRANTED_RES] = {"GRANTED_RES", nlm_ignore},
    [NLM4_SHARE] = {"SHARE", nlm_share},
    [NLM4_UNSHARE] = {"UNSHARE", nlm_share},
    [NLM4_NM_LOCK] = {"NM_LOCK", nlm_run},
    [NLM4_FREE_ALL] = {"FREE_ALL", nlm_free_all},
};
static const struct rpc_version nlm_versions[] = {{nlm4_procedures, NLM4_PROC_COUNT}};
const struct rpc_program nlm_program = {
    .name = "nlockmgr",
    .number = RPC_PROGRAM_NLM,
    .low = NLM4_VERSION,
    .high = NLM4_VERSION,
    .versions = nlm_versions,
    .place = nlm_place,
};
