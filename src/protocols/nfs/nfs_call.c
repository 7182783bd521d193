/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call: from the bytes of its record to the bytes of its reply. Calls come from a pool of their shard and
 * are plain memory, so that one may be run on another reactor while its own waits (nfs_call_on); pages never
 * cross: payload is copied there, in the one case where a client uses file systems of several reactors over
 * one connection.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"

#include <stdlib.h>

/* ---- Pools ---- */

struct nfs_call *nfs_call_new(struct nfs_shard *shard, struct nfs_connection *c, const struct nfs_peer *peer)
{
    struct list *l = list_pop(&shard->free_calls);
    struct nfs_call *call;
    if (l != NULL) {
        shard->free_call_count--;
        call = CONTAINER_OF(l, struct nfs_call, link);
    } else {
        call = malloc(sizeof(*call));
        if (call == NULL)
            return NULL;
    }
    list_init(&call->link);
    call->server = shard->server;
    call->shard = shard;
    call->connection = c;
    call->peer = peer;
    call->program = NULL;
    call->procedure = NULL;
    call->out = xdr_into(call->reply, sizeof(call->reply));
    call->admitted = false;
    call->reserved = 0;
    call->foreign = false;
    call->no_memory = false;
    call->in_len = 0;
    call->whole = false;
    call->big_in = call->big_out = NULL;
    call->payload[0] = call->payload[1] = NULL;
    call->payload_skip = call->payload_len = 0;
    return call;
}

void nfs_payload_free(struct nfs_shard *shard, struct nfs_payload *p)
{
    page_vec_put(&p->vec);
    free(p->copied);
    if (shard->free_payload_count == NFS_FREE_PAYLOADS) {
        free(p);
        return;
    }
    list_prepend(&shard->free_payloads, &p->link);
    shard->free_payload_count++;
}

void nfs_call_free(struct nfs_call *call)
{
    struct nfs_shard *shard = call->shard;
    assert(shard->reactor == reactor_current() && !call->foreign && !call->admitted);
    for (int i = 0; i < 2; i++) {
        if (call->payload[i] != NULL)
            nfs_payload_free(shard, call->payload[i]);
    }
    free(call->big_in);
    free(call->big_out);
    if (shard->free_call_count == NFS_FREE_CALLS) {
        free(call);
        return;
    }
    list_prepend(&shard->free_calls, &call->link);
    shard->free_call_count++;
}

struct nfs_payload *nfs_call_payload(struct nfs_call *call)
{
    struct nfs_shard *shard = call->shard;
    struct list *l = call->foreign ? NULL : list_pop(&shard->free_payloads);
    struct nfs_payload *p;
    if (l != NULL) {
        shard->free_payload_count--;
        p = CONTAINER_OF(l, struct nfs_payload, link);
    } else {
        p = malloc(sizeof(*p));
        if (p == NULL)
            return NULL;
    }
    list_init(&p->link);
    p->vec.run_count = p->vec.blocks = 0;
    p->copied = NULL;
    return p;
}

/* ---- The reply ---- */

static void reply_begin(struct nfs_call *call)
{
    call->out.len = 0;
    call->out.full = false;
    xdr_put_u32(&call->out, 0); /* the mark */
}

void nfs_call_fail(struct nfs_call *call, enum rpc_accept status)
{
    assert(status != RPC_SUCCESS);
    reply_begin(call);
    call->payload_len = 0;
    rpc_reply_accept(&call->out, call->header.xid, status);
}

bool nfs_call_room(struct nfs_call *call, uint32_t bytes)
{
    struct xdr_out *o = &call->out;
    if (bytes <= o->capacity - o->len)
        return true;
    assert(call->big_out == NULL);
    uint8_t *big = malloc(o->len + bytes);
    if (big == NULL)
        return false;
    memcpy(big, o->data, o->len);
    call->big_out = o->data = big;
    o->capacity = o->len + bytes;
    return true;
}

uint32_t nfs_call_finish(struct nfs_call *call)
{
    uint32_t len = call->out.len + call->payload_len + XDR_PAD(call->payload_len);
    assert(call->out.len % 4 == 0 && !call->out.full);
    xdr_set_u32(&call->out, 0, (len - 4) | RPC_FRAGMENT_LAST);
    return len;
}

/* ---- Finding the procedure ---- */

static const struct rpc_program *find_program(const struct nfs_call *call)
{
    const struct nfs_server *s = call->server;
    for (uint32_t i = 0; i < s->program_count; i++) {
        const struct rpc_program *p = s->programs[i];
        if (p->number == call->header.program)
            return call->connection != NULL || p->datagrams ? p : NULL;
    }
    return NULL;
}

static bool find_procedure(struct nfs_call *call)
{
    const struct rpc_header *h = &call->header;
    const struct rpc_program *p = find_program(call);
    if (p == NULL) {
        nfs_call_fail(call, RPC_PROGRAM_UNAVAILABLE);
        return false;
    }
    if (h->version < p->low || h->version > p->high) {
        rpc_reply_program_mismatch(&call->out, h->xid, p->low, p->high);
        return false;
    }
    const struct rpc_version *v = &p->versions[h->version - p->low];
    if (h->procedure >= v->count || v->procedures[h->procedure].name == NULL) {
        nfs_call_fail(call, RPC_PROCEDURE_UNAVAILABLE);
        return false;
    }
    /* The null procedure is for asking whether anybody is there: it answers everybody. */
    if (h->credential.flavor > RPC_AUTH_SYS && h->procedure != 0) {
        rpc_reply_auth_error(&call->out, h->xid, RPC_AUTH_TOOWEAK);
        return false;
    }
    call->program = p;
    call->procedure = &v->procedures[h->procedure];
    return true;
}

bool nfs_call_begin(struct nfs_call *call, const uint8_t *record, uint32_t len)
{
    enum rpc_auth_error auth;
    call->args = xdr_over(record, len);
    reply_begin(call);
    switch (rpc_header_decode(&call->args, &call->header, &auth)) {
    case RPC_RUN:
        break;
    case RPC_IGNORE:
        call->out.len = 0;
        return false;
    case RPC_BAD_VERSION:
        rpc_reply_mismatch(&call->out, call->header.xid);
        return false;
    case RPC_BAD_AUTH:
        rpc_reply_auth_error(&call->out, call->header.xid, auth);
        return false;
    case RPC_BAD_ARGUMENTS:
        nfs_call_fail(call, RPC_GARBAGE_ARGUMENTS);
        return false;
    }
    if (!find_procedure(call))
        return false;
    rpc_reply_accept(&call->out, call->header.xid, RPC_SUCCESS);
    call->results_at = call->out.len;
    return true;
}

/* ---- Running ---- */

bool nfs_call_run(struct nfs_call *call)
{
    int accept = call->procedure->run(call);
    assert(!call->foreign);
    if (accept == NFS_CALL_DROP)
        return false;
    if (accept == RPC_SUCCESS && call->out.full)
        accept = RPC_SYSTEM_ERROR;
    if (accept != RPC_SUCCESS)
        nfs_call_fail(call, (enum rpc_accept)accept);
    return true;
}

int nfs_call_on(struct nfs_call *call, struct nfs_shard *shard, int (*fn)(void *arg), void *arg)
{
    if (shard == call->shard)
        return fn(arg);
    call->foreign = true;
    int r = reactor_call(shard->reactor, fn, arg);
    call->foreign = false;
    return r;
}
