/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFS version 3: from a call to a procedure. The handle that begins the arguments names export and file; it
 * is verified, the client is compared with the export's rules, the credentials are squashed; then the
 * procedure runs on the file system's reactor.
 *
 * Calls that must not be run twice are looked up among the replies of this run (nfs_drc.c), then among those
 * that the file system has logged with the operations themselves: a client that asks again after the server
 * was killed is told what had happened.
 */
#include "protocols/nfs/nfs3.h"
#include "runtime/checksum.h"
#include "runtime/error.h"

#include <stdlib.h>

#define CLIENT_CHECK (1 * NSEC_PER_SEC)

struct nfs3_procedure {
    int (*run)(struct nfs3_op *op); /* may yield */
    uint8_t failure_words; /* of FALSE, behind the status of a failure that was found before it ran */
    bool once;             /* must not be run twice */
};

static const struct nfs3_procedure procedures[NFS3_PROC_COUNT] = {
    [NFS3_GETATTR] = {nfs3_getattr, 0, false},
    [NFS3_SETATTR] = {nfs3_setattr, 2, true},
    [NFS3_LOOKUP] = {nfs3_lookup, 1, false},
    [NFS3_ACCESS] = {nfs3_access, 1, false},
    [NFS3_READLINK] = {nfs3_readlink, 1, false},
    [NFS3_READ] = {nfs3_read, 1, false},
    [NFS3_WRITE] = {nfs3_write, 2, false},
    [NFS3_CREATE] = {nfs3_create, 2, true},
    [NFS3_MKDIR] = {nfs3_mkdir, 2, true},
    [NFS3_SYMLINK] = {nfs3_symlink, 2, true},
    [NFS3_MKNOD] = {nfs3_mknod, 2, true},
    [NFS3_REMOVE] = {nfs3_remove, 2, true},
    [NFS3_RMDIR] = {nfs3_rmdir, 2, true},
    [NFS3_RENAME] = {nfs3_rename, 4, true},
    [NFS3_LINK] = {nfs3_link, 3, true},
    [NFS3_READDIR] = {nfs3_readdir, 1, false},
    [NFS3_READDIRPLUS] = {nfs3_readdirplus, 1, false},
    [NFS3_FSSTAT] = {nfs3_fsstat, 1, false},
    [NFS3_FSINFO] = {nfs3_fsinfo, 1, false},
    [NFS3_PATHCONF] = {nfs3_pathconf, 1, false},
    [NFS3_COMMIT] = {nfs3_commit, 2, false},
};

/* ---- On the file system's reactor ---- */

/* The client's number in the statistics. One that was asked for lately is believed; numbers of clients that
 * were idle long are given to others. */
static uint32_t client_index(const struct nfs3_op *op)
{
    struct nfs_connection *c = op->call->connection;
    const char *name = op->call->peer->local ? "local" : op->call->peer->ip;
    if (op->call->foreign || c == NULL)
        return fs_client(op->fs, name);
    uint64_t now = reactor_now_ns();
    if (c->client_tag != op->export->tag || now >= c->client_until_ns) {
        c->client_index = fs_client(op->fs, name);
        c->client_tag = op->export->tag;
        c->client_until_ns = now + CLIENT_CHECK;
    }
    return c->client_index;
}

/* What a READ found, out of this reactor's pages. */
static void payload_copy(struct nfs3_op *op)
{
    struct nfs_call *call = op->call;
    struct nfs_payload *p = call->payload[0];
    uint32_t done = 0, skip = call->payload_skip;
    p->copied = malloc(call->payload_len);
    for (uint32_t i = 0; p->copied != NULL && done < call->payload_len; i++) {
        const struct page_run *r = &p->vec.runs[i];
        uint32_t n = MIN(call->payload_len - done, r->count * BLOCK_SIZE - skip);
        if (r->page != NULL)
            memcpy(p->copied + done, r->page->data + skip, n);
        else
            memset(p->copied + done, 0, n);
        done += n;
        skip = 0;
    }
    page_vec_put(&p->vec);
    p->vec.run_count = p->vec.blocks = 0;
    if (p->copied != NULL)
        return;
    call->payload_len = 0;
    call->out.len = call->results_at;
    nfs3_begin(op, ERR_NO_MEMORY);
    nfs3_put_post(op, NULL);
}

static int run_once(struct nfs3_op *op, const struct nfs3_procedure *p) may_yield
{
    struct nfs_shard *shard = op->export->shard;
    struct nfs_reply_slot *slot;
    uint32_t checksum = crc32c(0, op->call->args.at, xdr_left(&op->call->args));
    switch (nfs_reply_begin(shard, op->call, checksum, &slot)) {
    case NFS_REPLY_DONE:
        return RPC_SUCCESS;
    case NFS_REPLY_DROP:
        return NFS_CALL_DROP;
    case NFS_REPLY_NEW:
        break;
    }
    op->reply_key = (struct fs_reply_key){
        .xid = op->call->header.xid, .procedure = op->call->header.procedure, .checksum = checksum};
    memcpy(op->reply_key.client, op->call->peer->address, sizeof(op->reply_key.client));
    op->rq.reply = &op->reply_key;
    op->is_again = fs_reply_find(op->fs, &op->reply_key, &op->again) == 0;
    if (op->is_again)
        counter_add(&shard->duplicates, 1);
    int accept = p->run(op);
    nfs_reply_end(shard, slot, op->call, accept == RPC_SUCCESS && op->status != NFS3ERR_JUKEBOX);
    return accept;
}

static int run_there(void *arg) may_yield
{
    struct nfs3_op *op = arg;
    uint32_t number = op->call->header.procedure;
    const struct nfs3_procedure *p = &procedures[number];
    struct nfs_export *e = op->export;
    op->rq.client = client_index(op);
    int accept = p->once ? run_once(op, p) : p->run(op);
    counter_add(&e->ops, 1);
    counter_add(&e->shard->ops[number], 1);
    if (accept != RPC_SUCCESS || op->status != NFS3_OK) {
        counter_add(&e->error_count, 1);
        counter_add(&e->shard->errors[number], 1);
    }
    if (op->call->foreign && op->call->payload_len > 0)
        payload_copy(op);
    return accept;
}

/* ---- On the connection's ---- */

static int fail(struct nfs_call *call, enum nfs3_status status)
{
    call->out.len = call->results_at;
    xdr_put_u32(&call->out, status);
    for (uint32_t i = 0; i < procedures[call->header.procedure].failure_words; i++)
        xdr_put_bool(&call->out, false);
    return RPC_SUCCESS;
}

/* May the holder of this handle use it here? The export is held, whatever the answer. */
static enum nfs3_status admit(const struct nfs_call *call, const struct nfs_export *e,
                              const struct nfs_handle_fields *f, const void *handle)
{
    if (!nfs_export_visible(e, call->peer))
        return NFS3ERR_STALE; /* as if there were no such export */
    if (e->fs == NULL)
        return NFS3ERR_JUKEBOX;
    if (f->volume_tag != e->volume_tag)
        return NFS3ERR_STALE;
    if (!nfs_handle_verify(&e->key, handle))
        return NFS3ERR_BADHANDLE;
    return nfs_export_port_allowed(e, call->peer) ? NFS3_OK : NFS3ERR_PERM;
}

enum nfs3_status nfs3_admit(struct nfs_call *call, const void *handle, uint32_t len,
                            struct nfs_export **ret_export, struct nfs_handle_fields *ret_fields)
{
    enum nfs3_status status = NFS3ERR_BADHANDLE;
    *ret_export = NULL;
    if (nfs_handle_parse(handle, len, ret_fields)) {
        *ret_export = nfs_export_hold(call->shard, ret_fields->export_tag);
        status = *ret_export != NULL ? admit(call, *ret_export, ret_fields, handle) : NFS3ERR_STALE;
    }
    if (status == NFS3ERR_BADHANDLE || status == NFS3ERR_STALE)
        counter_add(&call->shard->bad_handles, 1);
    return status;
}

static int nfs3_run(struct nfs_call *call) may_yield
{
    struct nfs_handle_fields f;
    uint32_t len;
    struct xdr x = call->args;
    const uint8_t *handle = xdr_opaque(&x, NFS3_HANDLE_MAX, &len);
    if (handle == NULL)
        return RPC_GARBAGE_ARGUMENTS;
    struct nfs_export *e;
    enum nfs3_status status = nfs3_admit(call, handle, len, &e, &f);
    int accept;
    if (status == NFS3_OK) {
        struct nfs3_op op;
        op.call = call;
        op.export = e;
        op.fs = e->fs;
        op.ino = f.ino;
        op.generation = f.generation;
        op.in = &x;
        op.out = &call->out;
        op.status = NFS3_OK;
        op.is_again = false;
        op.rq.durable = true;
        op.rq.read_only = e->read_only;
        op.rq.reply = NULL;
        nfs_export_cred(e, &call->header.credential, &op.rq.cred);
        accept = nfs_call_on(call, e->shard, run_there, &op);
        if (accept < 0)
            accept = fail(call, NFS3ERR_JUKEBOX); /* it never got there */
    } else {
        accept = fail(call, status);
    }
    if (e != NULL)
        nfs_export_release(e);
    return accept;
}

static int nfs3_null(struct nfs_call *call)
{
    (void)call;
    return RPC_SUCCESS;
}

/* ---- Before it is run ---- */

static struct nfs_shard *nfs3_place(struct nfs_call *call)
{
    struct nfs_handle_fields f;
    uint32_t len;
    struct xdr x = call->args;
    const uint8_t *handle = xdr_opaque(&x, NFS3_HANDLE_MAX, &len);
    if (call->header.procedure == NFS3_NULL || handle == NULL || !nfs_handle_parse(handle, len, &f))
        return NULL;
    struct nfs_export *e = nfs_export_hold(call->shard, f.export_tag);
    if (e == NULL)
        return NULL;
    struct nfs_shard *shard = e->fs != NULL && nfs_handle_verify(&e->key, handle) ? e->shard : NULL;
    nfs_export_release(e);
    return shard;
}

/* Bytes of data that a READ asks for: offset, count. */
static uint64_t read_cost(const struct nfs_call *call)
{
    uint32_t len;
    struct xdr x = call->args;
    xdr_opaque(&x, NFS3_HANDLE_MAX, &len);
    xdr_u64(&x);
    return MIN(xdr_u32(&x), NFS_TRANSFER_MAX);
}

/* cookie, verifier, count; or dircount and maxcount. */
static uint64_t readdir_cost(const struct nfs_call *call)
{
    uint32_t len;
    struct xdr x = call->args;
    xdr_opaque(&x, NFS3_HANDLE_MAX, &len);
    xdr_u64(&x);
    xdr_u64(&x);
    uint32_t count = xdr_u32(&x);
    if (call->header.procedure == NFS3_READDIRPLUS)
        count = xdr_u32(&x);
    return MIN(count, NFS_READDIR_MAX);
}

static uint64_t readlink_cost(const struct nfs_call *call)
{
    (void)call;
    return FS_SYMLINK_MAX;
}

static const struct rpc_procedure nfs3_procedures[NFS3_PROC_COUNT] = {
    [NFS3_NULL] = {"NULL", nfs3_null},
    [NFS3_GETATTR] = {"GETATTR", nfs3_run},
    [NFS3_SETATTR] = {"SETATTR", nfs3_run},
    [NFS3_LOOKUP] = {"LOOKUP", nfs3_run},
    [NFS3_ACCESS] = {"ACCESS", nfs3_run},
    [NFS3_READLINK] = {"READLINK", nfs3_run, readlink_cost},
    [NFS3_READ] = {"READ", nfs3_run, read_cost},
    [NFS3_WRITE] = {"WRITE", nfs3_run, NULL, true},
    [NFS3_CREATE] = {"CREATE", nfs3_run},
    [NFS3_MKDIR] = {"MKDIR", nfs3_run},
    [NFS3_SYMLINK] = {"SYMLINK", nfs3_run},
    [NFS3_MKNOD] = {"MKNOD", nfs3_run},
    [NFS3_REMOVE] = {"REMOVE", nfs3_run},
    [NFS3_RMDIR] = {"RMDIR", nfs3_run},
    [NFS3_RENAME] = {"RENAME", nfs3_run},
    [NFS3_LINK] = {"LINK", nfs3_run},
    [NFS3_READDIR] = {"READDIR", nfs3_run, readdir_cost},
    [NFS3_READDIRPLUS] = {"READDIRPLUS", nfs3_run, readdir_cost},
    [NFS3_FSSTAT] = {"FSSTAT", nfs3_run},
    [NFS3_FSINFO] = {"FSINFO", nfs3_run},
    [NFS3_PATHCONF] = {"PATHCONF", nfs3_run},
    [NFS3_COMMIT] = {"COMMIT", nfs3_run},
};
static const struct rpc_version nfs3_versions[] = {{nfs3_procedures, NFS3_PROC_COUNT}};
const struct rpc_program nfs3_program = {
    .name = "nfs",
    .number = RPC_PROGRAM_NFS,
    .low = NFS3_VERSION,
    .high = NFS3_VERSION,
    .versions = nfs3_versions,
    .place = nfs3_place,
};
