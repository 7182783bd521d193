/* SPDX-License-Identifier: Apache-2.0 */
/* READ, WRITE, COMMIT. Data stays in pages: a READ's reply holds those of the cache, a WRITE's were filled
 * from the socket at the place that its offset asks for. */
#include "protocols/nfs/nfs3.h"
#include "runtime/error.h"
#include "volume/change.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- READ ---- */

/* Who may execute a file may read it, and so may its owner, since he had it open: the server cannot tell. */
MUST_CHECK static bool may_read_all_the_same(struct nfs3_op *op) may_yield
{
    uint32_t granted;
    struct fs_attr a;
    int err = fs_access(op->fs, &op->rq, op->ino, FS_MAY_EXECUTE, &granted, &a);
    if (err != 0 || (a.mode & S_IFMT) != S_IFREG)
        return false;
    return a.uid == op->rq.cred.uid || (granted & FS_MAY_EXECUTE);
}

int nfs3_read(struct nfs3_op *op)
{
    struct nfs_call *call = op->call;
    uint64_t offset = xdr_u64(op->in);
    uint32_t count = xdr_u32(op->in), len = 0;
    struct fs_attr a;
    bool eof = false;
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    count = MIN(count, NFS_TRANSFER_MAX);
    a.ino = 0;
    int err = 0;
    struct nfs_payload *p = nfs_call_payload(call);
    if (p == NULL) {
        err = ERR_NO_MEMORY;
    } else if (count == 0 || offset > INT64_MAX) { /* nothing to be read: is it a file, and ends it there? */
        err = fs_getattr(op->fs, &op->rq, op->ino, op->generation, &a);
        if (err == 0 && (a.mode & S_IFMT) != S_IFREG)
            err = (a.mode & S_IFMT) == S_IFDIR ? ERR_FS_IS_DIRECTORY : ERR_FS_INVALID;
        eof = err == 0 && offset >= a.size;
    } else {
        uint32_t piece = fs_piece_len(offset, count);
        err = fs_read(op->fs, &op->rq, op->ino, offset, piece, &p->vec, &len, &eof, &a);
        if (err == ERR_FS_ACCESS && may_read_all_the_same(op)) {
            op->rq.cred.trusted = true;
            err = fs_read(op->fs, &op->rq, op->ino, offset, piece, &p->vec, &len, &eof, &a);
        }
    }
    if (len == 0 && p != NULL) {
        page_vec_put(&p->vec); /* of this reactor, wherever the call goes back to */
        p->vec.run_count = p->vec.blocks = 0;
    }
    call->payload[0] = p;
    bool ok = nfs3_begin(op, err);
    nfs3_put_post(op, &a);
    if (!ok)
        return RPC_SUCCESS;
    assert(len <= count);
    xdr_put_u32(op->out, len);
    xdr_put_bool(op->out, eof);
    xdr_put_u32(op->out, len);
    call->payload_len = len;
    call->payload_skip = (uint32_t)(offset % BLOCK_SIZE);
    counter_add(&op->export->read_bytes, len);
    return RPC_SUCCESS;
}

/* ---- WRITE ---- */

struct write {
    uint64_t offset;
    uint32_t len;
    uint32_t done;
    struct fs_wcc wcc;
};

/* Pages of this reactor with the same bytes. */
MUST_CHECK static int copy_here(const struct page_vec *from, struct page_vec *ret)
{
    ret->run_count = ret->blocks = 0;
    for (uint32_t i = 0; i < from->run_count; i++) {
        struct page *page;
        int err = page_alloc(from->runs[i].count, &page);
        if (err != 0) {
            page_vec_put(ret);
            return err;
        }
        memcpy(page->data, from->runs[i].page->data, from->runs[i].count * (size_t)BLOCK_SIZE);
        ret->runs[ret->run_count++] = (struct page_run){page, from->runs[i].count};
        ret->blocks += from->runs[i].count;
    }
    return 0;
}

MUST_CHECK static int write_pages(struct nfs3_op *op, struct write *w, const struct page_vec *v, uint32_t len)
    may_yield
{
    struct fs_wcc wcc = {.has_before = false};
    uint64_t at;
    int err = fs_write(op->fs, &op->rq, op->ino, w->offset + w->done, len, v, 0, &at, &wcc);
    if (err == ERR_FS_ACCESS && nfs3_is_owner(op)) /* he had it open */
        err = fs_write(op->fs, &op->rq, op->ino, w->offset + w->done, len, v, FS_WRITE_OPEN, &at, &wcc);
    if (w->done == 0) {
        w->wcc = wcc;
    } else if (wcc.has_after) {
        w->wcc.has_after = true;
        w->wcc.after = wcc.after;
    }
    if (err == 0)
        w->done += len;
    return err;
}

MUST_CHECK static int write_piece(struct nfs3_op *op, struct write *w, const struct nfs_payload *p,
                                  uint32_t len) may_yield
{
    if (!op->call->foreign)
        return write_pages(op, w, &p->vec, len);
    struct nfs_payload *here = nfs_call_payload(op->call);
    if (here == NULL)
        return ERR_NO_MEMORY;
    int err = copy_here(&p->vec, &here->vec);
    if (err == 0) {
        err = write_pages(op, w, &here->vec, len);
        page_vec_put(&here->vec);
    }
    free(here);
    return err;
}

MUST_CHECK static int write_all(struct nfs3_op *op, struct write *w) may_yield
{
    struct nfs_call *call = op->call;
    if (call->no_memory)
        return ERR_NO_MEMORY;
    if (w->offset > INT64_MAX)
        return ERR_FS_TOO_BIG;
    if (w->len == 0) {
        int err = fs_getattr(op->fs, &op->rq, op->ino, op->generation, &w->wcc.after);
        w->wcc.has_after = err == 0;
        if (err == 0 && (w->wcc.after.mode & S_IFMT) != S_IFREG)
            err = ERR_FS_INVALID;
        return err;
    }
    uint32_t first = fs_piece_len(w->offset, w->len);
    int err = write_piece(op, w, call->payload[0], first);
    if (err != 0 || first == w->len)
        return err;
    err = write_piece(op, w, call->payload[1], w->len - first);
    return w->done > 0 ? 0 : err; /* less than asked is a success, too */
}

int nfs3_write(struct nfs3_op *op)
{
    struct write w = {.offset = xdr_u64(op->in)};
    uint32_t count = xdr_u32(op->in), stable = xdr_enum(op->in, NFS3_FILE_SYNC);
    w.len = xdr_u32(op->in);
    if (op->in->bad || w.len > NFS_TRANSFER_MAX)
        return RPC_GARBAGE_ARGUMENTS;
    assert(w.len == 0 || w.offset > INT64_MAX || op->call->no_memory || op->call->payload[0] != NULL);
    op->rq.durable = stable != NFS3_UNSTABLE;
    int err = count == w.len ? write_all(op, &w) : ERR_FS_INVALID;
    bool ok = nfs3_begin(op, err);
    nfs3_put_wcc(op, &w.wcc);
    if (!ok)
        return RPC_SUCCESS;
    xdr_put_u32(op->out, w.done);
    xdr_put_u32(op->out, stable == NFS3_UNSTABLE ? NFS3_UNSTABLE : NFS3_FILE_SYNC);
    xdr_put_u64(op->out, volume_verifier(fs_volume(op->fs)));
    counter_add(&op->export->write_bytes, w.done);
    return RPC_SUCCESS;
}

int nfs3_commit(struct nfs3_op *op)
{
    struct fs_wcc wcc = {.has_before = false};
    xdr_u64(op->in); /* offset and count: all of it is committed together */
    xdr_u32(op->in);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    bool ok = nfs3_begin(op, fs_commit(op->fs, &op->rq, op->ino, &wcc));
    nfs3_put_wcc(op, &wcc);
    if (ok)
        xdr_put_u64(op->out, volume_verifier(fs_volume(op->fs)));
    return RPC_SUCCESS;
}
