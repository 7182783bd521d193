/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nbd/nbd_message.h"
#include "runtime/error.h"

static const uint8_t zeroes[NBD_HOLE_BLOCKS * BLOCK_SIZE];

/* ---- Requests ---- */

bool nbd_request_decode(const uint8_t *bytes, struct nbd_request *ret)
{
    struct nbd_request_header h;
    memcpy(&h, bytes, sizeof(h));
    if (be32_get(h.magic) != NBD_MAGIC_REQUEST)
        return false;
    memcpy(ret->cookie, h.cookie, sizeof(ret->cookie));
    ret->type = be16_get(h.type);
    ret->flags = be16_get(h.flags);
    ret->offset = be64_get(h.offset);
    ret->len = be32_get(h.len);
    return true;
}

static uint32_t request_range(const struct nbd_request *q, const struct nbd_session *s)
{
    if (q->offset > s->size_bytes || q->len > s->size_bytes - q->offset)
        return q->type == NBD_CMD_WRITE || q->type == NBD_CMD_WRITE_ZEROES ? NBD_ENOSPC : NBD_EINVAL;
    return 0;
}

uint32_t nbd_request_check(const struct nbd_request *q, const struct nbd_session *s)
{
    uint32_t flags = NBD_CMD_FLAG_FUA; /* is valid everywhere, and without meaning where nothing is written */
    bool changes = false;
    switch (q->type) {
    case NBD_CMD_READ:
        flags |= s->structured ? NBD_CMD_FLAG_DF : 0;
        break;
    case NBD_CMD_WRITE:
    case NBD_CMD_TRIM:
        changes = true;
        break;
    case NBD_CMD_WRITE_ZEROES:
        flags |= NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO;
        changes = true;
        break;
    case NBD_CMD_BLOCK_STATUS:
        flags |= NBD_CMD_FLAG_REQ_ONE;
        if (!s->structured || !s->allocation || q->len == 0)
            return NBD_EINVAL;
        break;
    case NBD_CMD_FLUSH:
        return q->flags & ~flags || q->offset != 0 || q->len != 0 ? NBD_EINVAL : 0;
    case NBD_CMD_CACHE:
        break;
    default:
        return NBD_EINVAL;
    }
    if (q->flags & ~flags)
        return NBD_EINVAL;
    if (changes && s->read_only)
        return NBD_EPERM;
    if ((q->type == NBD_CMD_READ || q->type == NBD_CMD_WRITE) && q->len > NBD_REQUEST_MAX)
        return NBD_EINVAL;
    return request_range(q, s);
}

uint32_t nbd_error_number(int err)
{
    switch (error_errno(err)) {
    case 0:
        return 0;
    case EPERM:
    case EACCES:
    case EROFS:
        return NBD_EPERM;
    case ENOMEM:
    case EAGAIN:
        return NBD_ENOMEM;
    case EINVAL:
        return NBD_EINVAL;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return NBD_ENOSPC;
    case EOVERFLOW:
        return NBD_EOVERFLOW;
    case EOPNOTSUPP:
        return NBD_ENOTSUP;
    case ESHUTDOWN:
    case ECANCELED:
        return NBD_ESHUTDOWN;
    default:
        return NBD_EIO;
    }
}

/* ---- Messages ---- */

void nbd_message_init(struct nbd_message *m)
{
    list_init(&m->link);
    m->reserved = 0;
    m->last = false;
    m->holds_pages = false;
    m->bytes = 0;
    m->iov_count = 0;
    m->header_count = 0;
}

void nbd_message_done(struct nbd_message *m)
{
    if (m->holds_pages)
        page_vec_put(&m->vec);
    m->holds_pages = false;
}

static void add_iov(struct nbd_message *m, const void *data, size_t len)
{
    assert(m->iov_count < NBD_MESSAGE_IOV);
    m->iov[m->iov_count++] = (struct iovec){(void *)(uintptr_t)data, len};
    m->bytes += len;
}

static void *add_header(struct nbd_message *m, size_t len)
{
    assert(m->header_count < NBD_MESSAGE_HEADERS && len <= sizeof(m->headers[0]));
    void *h = m->headers[m->header_count++];
    add_iov(m, h, len);
    return h;
}

static struct nbd_chunk_header chunk_header(const struct nbd_request *q, uint16_t type, uint32_t len,
                                            bool done)
{
    struct nbd_chunk_header h = {be32_make(NBD_MAGIC_STRUCTURED), be16_make(done ? NBD_REPLY_FLAG_DONE : 0),
                                 be16_make(type), .len = be32_make(len)};
    memcpy(h.cookie, q->cookie, sizeof(h.cookie));
    return h;
}

static void add_simple(struct nbd_message *m, const struct nbd_request *q, uint32_t wire_error)
{
    struct nbd_simple_reply *r = add_header(m, sizeof(*r));
    r->magic = be32_make(NBD_MAGIC_SIMPLE);
    r->error = be32_make(wire_error);
    memcpy(r->cookie, q->cookie, sizeof(r->cookie));
}

static void add_error_chunk(struct nbd_message *m, const struct nbd_request *q, uint32_t wire_error,
                            const char *text)
{
    size_t len = MIN(strlen(text), sizeof(m->text) - sizeof(struct nbd_error_chunk));
    struct nbd_error_chunk c = {
        .header = chunk_header(q, NBD_REPLY_TYPE_ERROR, (uint32_t)(sizeof(c) - sizeof(c.header) + len), true),
        .error = be32_make(wire_error),
        .text_len = be16_make((uint16_t)len),
    };
    memcpy(m->text, &c, sizeof(c));
    memcpy(m->text + sizeof(c), text, len);
    add_iov(m, m->text, sizeof(c) + len);
}

void nbd_message_reply(struct nbd_message *m, const struct nbd_request *q, const struct nbd_session *s,
                       uint32_t wire_error, const char *text)
{
    m->last = true;
    if (!s->structured || (wire_error == 0 && q->type != NBD_CMD_READ)) {
        add_simple(m, q, wire_error);
    } else if (wire_error == 0) {
        struct nbd_chunk_header *h = add_header(m, sizeof(*h));
        *h = chunk_header(q, NBD_REPLY_TYPE_NONE, 0, true);
    } else {
        add_error_chunk(m, q, wire_error, text);
    }
}

void nbd_message_read_header(struct nbd_message *m, const struct nbd_request *q, bool structured)
{
    assert(q->len > 0);
    if (!structured) {
        add_simple(m, q, 0);
        return;
    }
    struct nbd_offset_data *h = add_header(m, sizeof(*h));
    h->header = chunk_header(q, NBD_REPLY_TYPE_OFFSET_DATA, (uint32_t)sizeof(h->offset) + q->len, true);
    h->offset = be64_make(q->offset);
}

/* Bytes [skip, skip + len) of a run. */
static void add_run(struct nbd_message *m, const struct page_run *run, uint32_t skip, uint32_t len)
{
    assert(len > 0 && skip + len <= run->count * BLOCK_SIZE);
    if (run->page != NULL) {
        add_iov(m, run->page->data + skip, len);
        return;
    }
    for (uint32_t n; len > 0; len -= n) {
        n = MIN(len, (uint32_t)sizeof(zeroes));
        add_iov(m, zeroes, n);
    }
}

/* Where a walk over the runs of a vector stands. */
struct run_walk {
    const struct page_vec *vec;
    uint32_t run;
    uint32_t skip; /* bytes of it that are behind */
    uint32_t left; /* bytes of the range still to come, this run's included */
};

static uint32_t walk_here(const struct run_walk *w)
{
    return MIN(w->vec->runs[w->run].count * BLOCK_SIZE - w->skip, w->left);
}

static void walk_next(struct run_walk *w)
{
    w->left -= walk_here(w);
    w->skip = 0;
    w->run++;
}

static struct run_walk walk_begin(const struct nbd_message *m, uint64_t offset, uint32_t len)
{
    assert(m->holds_pages && m->vec.blocks == block_span(offset, len));
    return (struct run_walk){.vec = &m->vec, .skip = (uint32_t)(offset % BLOCK_SIZE), .left = len};
}

void nbd_message_read_data(struct nbd_message *m, uint64_t offset, uint32_t len)
{
    for (struct run_walk w = walk_begin(m, offset, len); w.left > 0; walk_next(&w))
        add_run(m, &m->vec.runs[w.run], w.skip, walk_here(&w));
}

/* A hole is worth a chunk of its own if it is long, or all there is. */
static bool walk_at_hole(const struct run_walk *w)
{
    const struct page_run *r = &w->vec->runs[w->run];
    return r->page == NULL && (walk_here(w) >= NBD_HOLE_BLOCKS * BLOCK_SIZE || w->vec->run_count == 1);
}

void nbd_message_read_chunks(struct nbd_message *m, const struct nbd_request *q, uint64_t offset,
                             uint32_t len, bool done)
{
    struct run_walk w = walk_begin(m, offset, len);
    m->last = done;
    while (w.left > 0) {
        uint64_t at = offset + (len - w.left);
        if (walk_at_hole(&w)) {
            uint32_t n = walk_here(&w);
            walk_next(&w);
            struct nbd_offset_hole *h = add_header(m, sizeof(*h));
            h->header = chunk_header(q, NBD_REPLY_TYPE_OFFSET_HOLE, sizeof(h->offset) + sizeof(h->len),
                                     done && w.left == 0);
            h->offset = be64_make(at);
            h->len = be32_make(n);
            continue;
        }
        struct nbd_offset_data *h = add_header(m, sizeof(*h));
        for (; w.left > 0 && !walk_at_hole(&w); walk_next(&w))
            add_run(m, &m->vec.runs[w.run], w.skip, walk_here(&w));
        uint32_t n = (uint32_t)(offset + (len - w.left) - at);
        h->header =
            chunk_header(q, NBD_REPLY_TYPE_OFFSET_DATA, (uint32_t)sizeof(h->offset) + n, done && w.left == 0);
        h->offset = be64_make(at);
    }
}

/* ---- Block status ---- */

static struct nbd_status_extent *status_extent(struct nbd_message *m, uint32_t i)
{
    return (struct nbd_status_extent *)(m->status + sizeof(struct nbd_status_chunk)) + i;
}

bool nbd_message_status_add(struct nbd_message *m, uint64_t len, uint32_t flags)
{
    assert(len > 0 && len <= UINT32_MAX);
    if (m->header_count > 0) {
        struct nbd_status_extent *before = status_extent(m, m->header_count - 1);
        if (be32_get(before->flags) == flags) {
            assert(be32_get(before->len) + len <= UINT32_MAX);
            before->len = be32_make((uint32_t)(be32_get(before->len) + len));
            return true;
        }
    }
    if (m->header_count == NBD_STATUS_MAX)
        return false;
    *status_extent(m, m->header_count++) =
        (struct nbd_status_extent){be32_make((uint32_t)len), be32_make(flags)};
    return true;
}

void nbd_message_status_finish(struct nbd_message *m, const struct nbd_request *q)
{
    assert(m->header_count > 0);
    uint32_t len = m->header_count * (uint32_t)sizeof(struct nbd_status_extent);
    struct nbd_status_chunk c = {
        .header = chunk_header(q, NBD_REPLY_TYPE_BLOCK_STATUS, (uint32_t)sizeof(c.context) + len, true),
        .context = be32_make(NBD_CONTEXT_ALLOCATION),
    };
    memcpy(m->status, &c, sizeof(c));
    add_iov(m, m->status, sizeof(c) + len);
    m->last = true;
}
