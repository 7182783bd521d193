/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the stream to records. What is received lies in the connection's buffer; a record's head is copied out
 * of it into the call (some hundred bytes), so that the buffer is free for the next while the call waits. The
 * payload of a WRITE goes into fresh pages at the place in the first page that the file offset asks for: what
 * is in the buffer already by one copy, the rest straight from the socket.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"

#include <stdlib.h>

#define PAGES_TIMEOUT (20 * NSEC_PER_SEC)
#define PAGES_RETRY   (5 * NSEC_PER_MSEC)
#define PAYLOAD_IOV   (PAGE_VEC_MAX + 2)

/* ---- The buffer ---- */

void nfs_receive_free_buffer(struct nfs_connection *c)
{
    page_put(c->buffer, c->buffer_pages);
    if (c->buffer_pages == NFS_BUFFER_PAGES_BIG)
        c->shard->big_buffers--;
}

/* The buffer is empty: makes it a big one if the shard has one. */
void nfs_receive_grow(struct nfs_connection *c)
{
    struct page *big;
    assert(c->start == c->end);
    if (c->buffer_pages == NFS_BUFFER_PAGES_BIG || c->shard->big_buffers == NFS_BUFFERS_BIG)
        return;
    if (page_alloc(NFS_BUFFER_PAGES_BIG, &big) != 0)
        return;
    nfs_receive_free_buffer(c);
    c->buffer = big;
    c->buffer_pages = NFS_BUFFER_PAGES_BIG;
    c->shard->big_buffers++;
}

/* Receives into the vector, whose last element is the free part of the buffer. */
MUST_CHECK static int receive(struct nfs_connection *c, const struct iovec *iov, uint32_t count,
                              size_t *ret_len) may_yield
{
    size_t n;
    int err = stream_recvv(c->stream, iov, count, DEADLINE_NEVER, &n);
    if (err != 0)
        return err;
    c->bytes_in += n;
    *ret_len = n;
    return c->closing ? ERR_CLOSED : 0;
}

/* The buffer is empty: some bytes into it. */
int nfs_receive_fill(struct nfs_connection *c)
{
    assert(c->start == c->end);
    if (c->crowded)
        nfs_receive_grow(c);
    c->start = c->end = 0;
    size_t room = c->buffer_pages * BLOCK_SIZE, n;
    if (c->bulk)
        room = MIN(room, NFS_BULK_WINDOW);
    struct iovec iov = {c->buffer->data, room};
    int err = receive(c, &iov, 1, &n);
    if (err != 0)
        return err;
    c->end = n;
    c->crowded = n == room && !c->bulk;
    return 0;
}

/* ---- Records ---- */

/* Up to max bytes of the record (to NULL: they are dropped); *ret_end: it has ended. */
MUST_CHECK static int take(struct nfs_connection *c, uint8_t *to, size_t max, size_t *ret_len, bool *ret_end)
    may_yield
{
    size_t done = 0;
    *ret_end = false;
    for (;;) {
        size_t skip, bytes;
        enum rpc_record_verdict v =
            rpc_record_step(&c->record, c->buffer->data + c->start, c->end - c->start, &skip, &bytes);
        c->start += skip;
        if (v == RPC_RECORD_BAD)
            return ERR_PROTOCOL;
        if (v == RPC_RECORD_END) {
            *ret_end = true;
            break;
        }
        if (v == RPC_RECORD_MORE) {
            if (done == max && c->record.left > 0)
                break;
            int err = nfs_receive_fill(c);
            if (err != 0)
                return err;
            continue;
        }
        if (done == max)
            break;
        bytes = MIN(bytes, max - done);
        if (to != NULL)
            memcpy(to + done, c->buffer->data + c->start, bytes);
        rpc_record_take(&c->record, bytes);
        c->start += bytes;
        done += bytes;
    }
    *ret_len = done;
    return 0;
}

int nfs_receive_head(struct nfs_connection *c, struct nfs_call *call)
{
    size_t n;
    int err = take(c, call->in, sizeof(call->in), &n, &call->whole);
    if (err != 0)
        return err;
    call->in_len = (uint32_t)n;
    return 0;
}

int nfs_receive_discard(struct nfs_connection *c, struct nfs_call *call)
{
    while (!call->whole) {
        size_t n;
        int err = take(c, NULL, SIZE_MAX, &n, &call->whole);
        if (err != 0)
            return err;
    }
    return 0;
}

int nfs_receive_rest(struct nfs_connection *c, struct nfs_call *call)
{
    size_t n;
    if (call->whole)
        return 0;
    call->big_in = malloc(NFS_CALL_IN_MAX);
    if (call->big_in == NULL) {
        int err = nfs_receive_discard(c, call);
        return err != 0 ? err : ERR_OUT_OF_RANGE;
    }
    memcpy(call->big_in, call->in, call->in_len);
    int err = take(c, call->big_in + call->in_len, NFS_CALL_IN_MAX - call->in_len, &n, &call->whole);
    if (err != 0)
        return err;
    size_t done = (size_t)(call->args.at - call->in);
    call->in_len += (uint32_t)n;
    call->args = xdr_over(call->big_in + done, call->in_len - done);
    if (call->whole)
        return 0;
    err = nfs_receive_discard(c, call);
    return err != 0 ? err : ERR_OUT_OF_RANGE;
}

/* ---- Payload ---- */

MUST_CHECK static int pages_try(uint32_t blocks, struct page_vec *v)
{
    uint32_t n = blocks;
    v->run_count = v->blocks = 0;
    while (v->blocks < blocks) {
        struct page *p;
        n = MIN(n, blocks - v->blocks);
        int err = page_alloc(n, &p);
        if (err == 0) {
            v->runs[v->run_count++] = (struct page_run){p, n};
            v->blocks += n;
        } else if (n > 1) {
            n = DIV_ROUND_UP(n, 2); /* memory may be there, only not in one run */
        } else {
            page_vec_put(v);
            v->run_count = v->blocks = 0;
            return err;
        }
    }
    return 0;
}

/* Waits without holding any: somebody else may need just these. */
MUST_CHECK static int pages_get(uint32_t blocks, struct page_vec *v) may_yield
{
    uint64_t until = reactor_now_ns() + PAGES_TIMEOUT;
    for (;;) {
        int err = pages_try(blocks, v);
        if (err == 0 || reactor_now_ns() >= until)
            return err;
        err = fiber_sleep(PAGES_RETRY);
        if (err != 0)
            return err;
    }
}

/* Pages for the whole payload, and where in them it goes. */
MUST_CHECK static int payload_prepare(struct nfs_call *call, uint64_t offset, uint32_t len, struct iovec *iov,
                                      uint32_t *ret_count) may_yield
{
    uint32_t first = fs_piece_len(offset, len), skip = (uint32_t)(offset % BLOCK_SIZE), count = 0;
    call->payload_skip = skip;
    for (int i = 0; i < 2 && len > 0; i++) {
        uint32_t part = i == 0 ? first : len;
        struct nfs_payload *p = nfs_call_payload(call);
        if (p == NULL)
            return ERR_NO_MEMORY;
        call->payload[i] = p;
        int err = pages_get(DIV_ROUND_UP(skip + part, BLOCK_SIZE), &p->vec);
        if (err != 0)
            return err == ERR_CANCELLED ? err : ERR_NO_MEMORY;
        len -= part;
        for (uint32_t k = 0; k < p->vec.run_count; k++) {
            uint32_t n = MIN(part, p->vec.runs[k].count * BLOCK_SIZE - skip);
            assert(count < PAYLOAD_IOV);
            iov[count++] = (struct iovec){p->vec.runs[k].page->data + skip, n};
            part -= n;
            skip = 0;
        }
        assert(part == 0);
    }
    *ret_count = count;
    return 0;
}

/* A place in a vector that is being filled. */
struct fill {
    struct iovec *iov;
    uint32_t at, count;
    size_t left;
};

static void fill_advance(struct fill *f, size_t n)
{
    f->left -= n;
    while (n > 0) {
        size_t step = MIN(n, f->iov[f->at].iov_len);
        f->iov[f->at].iov_base = (char *)f->iov[f->at].iov_base + step;
        f->iov[f->at].iov_len -= step;
        n -= step;
        if (f->iov[f->at].iov_len == 0)
            f->at++;
    }
}

static void fill_copy(struct fill *f, const uint8_t *from, size_t len)
{
    assert(len <= f->left);
    while (len > 0) {
        size_t n = MIN(len, f->iov[f->at].iov_len);
        memcpy(f->iov[f->at].iov_base, from, n);
        fill_advance(f, n);
        from += n;
        len -= n;
    }
}

/* The buffer is empty, the fragment goes on: receives up to its end straight into place, and what comes
 * behind into the buffer. */
MUST_CHECK static int fill_direct(struct nfs_connection *c, struct fill *f) may_yield
{
    struct iovec iov[PAYLOAD_IOV];
    uint32_t count = 0;
    size_t limit = MIN(f->left, (size_t)c->record.left), left = limit, n;
    for (uint32_t i = f->at; left > 0; i++) {
        iov[count] = f->iov[i];
        iov[count].iov_len = MIN(iov[count].iov_len, left);
        left -= iov[count++].iov_len;
    }
    size_t room = c->bulk ? NFS_BULK_WINDOW : c->buffer_pages * BLOCK_SIZE;
    c->start = c->end = 0;
    assert(count < PAYLOAD_IOV);
    iov[count++] = (struct iovec){c->buffer->data, room};
    c->receive_since_ns = reactor_now_ns();
    int err = receive(c, iov, count, &n);
    c->receive_since_ns = 0;
    if (err != 0)
        return err;
    size_t placed = MIN(n, limit);
    rpc_record_take(&c->record, placed);
    fill_advance(f, placed);
    c->end = n - placed;
    c->crowded = c->end == room && !c->bulk;
    return 0;
}

/* Until the payload is there or the record has ended. */
MUST_CHECK static int fill_all(struct nfs_connection *c, struct nfs_call *call, struct fill *f) may_yield
{
    while (f->left > 0) {
        size_t skip, bytes;
        enum rpc_record_verdict v =
            rpc_record_step(&c->record, c->buffer->data + c->start, c->end - c->start, &skip, &bytes);
        int err = 0;
        c->start += skip;
        switch (v) {
        case RPC_RECORD_BYTES:
            bytes = MIN(bytes, f->left);
            fill_copy(f, c->buffer->data + c->start, bytes);
            rpc_record_take(&c->record, bytes);
            c->start += bytes;
            break;
        case RPC_RECORD_MORE:
            err = c->record.left > 0 ? fill_direct(c, f) : nfs_receive_fill(c);
            break;
        case RPC_RECORD_END:
            call->whole = true;
            return ERR_OUT_OF_RANGE;
        case RPC_RECORD_BAD:
            return ERR_PROTOCOL;
        }
        if (err != 0)
            return err;
    }
    return 0;
}

int nfs_receive_payload(struct nfs_connection *c, struct nfs_call *call, const uint8_t *at, uint64_t offset,
                        uint32_t len)
{
    struct iovec iov[PAYLOAD_IOV];
    struct fill f = {.iov = iov, .left = len};
    size_t have = MIN((size_t)len, (size_t)(call->in + call->in_len - at));
    assert(at >= call->in && at <= call->in + call->in_len && len > 0);
    if (have < len && call->whole)
        return ERR_OUT_OF_RANGE;
    int err = payload_prepare(call, offset, len, iov, &f.count);
    if (err == ERR_NO_MEMORY) {
        int lost = nfs_receive_discard(c, call);
        return lost != 0 ? lost : err;
    }
    if (err != 0)
        return err;
    c->bulk = len >= NFS_BULK;
    fill_copy(&f, at, have);
    if (!call->whole) {
        err = fill_all(c, call, &f);
        if (err == 0)
            err = nfs_receive_discard(c, call); /* padding */
    }
    return err;
}
