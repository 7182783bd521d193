/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The duplicate request cache: what was answered lately to calls that must not be run twice. A client that
 * lost its connection sends them again, with the same xid, over a new one.
 *
 *      (unknown) --begin--> BUSY --end, keep--> DONE --oldest, or too old--> (unknown)
 *                             +----end, not keep-----------------------------^
 *
 * A call that meets itself BUSY is dropped when it came over the same connection (its reply is on the way),
 * else it waits for the end and is answered like the first. Slots that are BUSY are never given away.
 * Replies of earlier runs are the file system's (fs_reply_find).
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/checksum.h"
#include "runtime/error.h"

#include <stdlib.h>

#define SLOTS      1024u
#define BUCKETS    2048u
#define AGE_MAX    (300 * NSEC_PER_SEC)
#define RESULT_MAX (NFS_CALL_OUT - 4 - RPC_REPLY_HEAD)

struct reply_key {
    uint8_t client[16];
    uint32_t xid, procedure, checksum;
};

struct nfs_reply_slot {
    struct list link; /* struct nfs_replies.order while it is not busy */
    struct nfs_reply_slot *next;
    struct reply_key key;
    bool known, busy;
    const struct nfs_connection *connection; /* only compared */
    struct waitq done;
    uint64_t when_ns;
    uint32_t len;
    uint8_t results[RESULT_MAX];
};

struct nfs_replies {
    struct list order; /* of those not busy, the oldest first */
    struct nfs_reply_slot *buckets[BUCKETS];
    struct nfs_reply_slot slots[SLOTS];
};

int nfs_replies_new(struct nfs_replies **ret)
{
    struct nfs_replies *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ERR_NO_MEMORY;
    list_init(&r->order);
    for (uint32_t i = 0; i < SLOTS; i++) {
        waitq_init(&r->slots[i].done);
        list_append(&r->order, &r->slots[i].link);
    }
    *ret = r;
    return 0;
}

void nfs_replies_free(struct nfs_replies *r)
{
    free(r);
}

static struct nfs_reply_slot **bucket_of(struct nfs_replies *r, const struct reply_key *k)
{
    return &r->buckets[hash64(k, sizeof(*k), 0) % BUCKETS];
}

static struct nfs_reply_slot *slot_find(struct nfs_replies *r, const struct reply_key *k)
{
    struct nfs_reply_slot *s = *bucket_of(r, k);
    while (s != NULL && memcmp(&s->key, k, sizeof(*k)) != 0)
        s = s->next;
    return s;
}

static void slot_forget(struct nfs_replies *r, struct nfs_reply_slot *s)
{
    struct nfs_reply_slot **at = bucket_of(r, &s->key);
    assert(s->known && !s->busy);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->known = false;
}

static struct nfs_reply_slot *slot_take(struct nfs_replies *r, const struct reply_key *k)
{
    struct list *l = list_pop(&r->order);
    if (l == NULL)
        return NULL;
    struct nfs_reply_slot *s = CONTAINER_OF(l, struct nfs_reply_slot, link);
    if (s->known)
        slot_forget(r, s);
    s->key = *k;
    s->known = s->busy = true;
    struct nfs_reply_slot **bucket = bucket_of(r, k);
    s->next = *bucket;
    *bucket = s;
    return s;
}

enum nfs_reply_state nfs_reply_begin(struct nfs_shard *shard, struct nfs_call *call, uint32_t checksum,
                                     struct nfs_reply_slot **ret_slot)
{
    struct nfs_replies *r = shard->replies;
    struct reply_key k = {.xid = call->header.xid, .procedure = call->header.procedure, .checksum = checksum};
    memcpy(k.client, call->peer->address, sizeof(k.client));
    struct nfs_reply_slot *s;
    bool counted = false;
    while ((s = slot_find(r, &k)) != NULL) {
        if (!s->busy && reactor_now_ns() - s->when_ns > AGE_MAX) {
            slot_forget(r, s); /* a client that counts its calls from the start again */
            list_remove(&s->link);
            list_prepend(&r->order, &s->link);
            continue;
        }
        if (!counted)
            counter_add(&shard->duplicates, 1);
        counted = true;
        if (!s->busy) {
            uint8_t *p = xdr_room(&call->out, s->len);
            assert(p != NULL);
            memcpy(p, s->results, s->len);
            return NFS_REPLY_DONE;
        }
        if (s->connection == call->connection || waitq_wait(&s->done, DEADLINE_NEVER) != 0)
            return NFS_REPLY_DROP;
    }
    s = slot_take(r, &k);
    if (s != NULL)
        s->connection = call->connection;
    *ret_slot = s;
    return NFS_REPLY_NEW;
}

void nfs_reply_end(struct nfs_shard *shard, struct nfs_reply_slot *s, const struct nfs_call *call, bool keep)
{
    struct nfs_replies *r = shard->replies;
    if (s == NULL)
        return;
    assert(s->known && s->busy);
    s->busy = false;
    s->connection = NULL;
    s->len = call->out.len - call->results_at;
    s->when_ns = reactor_now_ns();
    if (keep && s->len <= RESULT_MAX) {
        memcpy(s->results, call->out.data + call->results_at, s->len);
        list_append(&r->order, &s->link);
    } else {
        slot_forget(r, s);
        list_prepend(&r->order, &s->link);
    }
    waitq_wake_all(&s->done);
}
