/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of a connection
 *
 * Leading. One fiber at a time reads the stream: the leader. It takes a request off the buffer and runs it
 * itself, on the spot. Most requests are served from the cache and never wait, so that a batch of them that
 * came with one system call is run without a single switch of fibers. For those that do wait, the leader
 * gives its role up before it runs a request (nbd_connection_yield_lead) and makes sure that a follower is in
 * the run queue: if the request waits, the follower runs, finds the role free and leads on; if not, the old
 * leader takes the role back, and the follower later finds it taken and ends.
 *
 *      leader --request--> runs it --role still free--> leader
 *                             |
 *                             +----role taken, or closing--> ends
 *      follower ----role free--> leader
 *               ----role taken-> ends
 *
 * Sending. Messages gather in a queue; a writer fiber is started with the first one. It runs behind all
 * fibers that are ready at that moment, so that what they answer goes out with the same system call. The
 * vectors point into the pages of the cache: no payload is copied here.
 *
 * Limits. A request is admitted before it is begun, and its bytes are counted until its reply was sent, per
 * connection and per shard. A client that does not read its replies fills its own account, and is then read
 * from no more. If clients that stand still hold so much of the shard's account that others must wait, they
 * are disconnected, one by one. A connection waits only for its own requests to end (room), or, with none
 * under way, for the shard's.
 *
 * Ending. closing: nothing more is read; each request under way ends, its reply is sent. broken: sending
 * failed; replies are dropped. Whoever puts the last reference closes the stream.
 */
#include "protocols/nbd/nbd_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define SEND_IOV      512u
#define SEND_BYTES    (1 * MIB)
#define ADMIT_POLL    (500 * NSEC_PER_MSEC)
#define PAGES_TIMEOUT (60 * NSEC_PER_SEC)
#define PAGES_RETRY   (5 * NSEC_PER_MSEC)
#define START_TIMEOUT (5 * NSEC_PER_SEC)

static_assert(SEND_IOV >= NBD_MESSAGE_IOV, "each message fits into one vector");

/* ---- References ---- */

void nbd_connection_get(struct nbd_connection *c)
{
    assert(c->refs > 0 && c->refs < UINT32_MAX);
    c->refs++;
}

static void connection_free_buffer(struct nbd_connection *c)
{
    page_put(c->buffer, c->buffer_pages);
    if (c->buffer_pages == NBD_BUFFER_PAGES_BIG)
        c->shard->big_buffers--;
}

void nbd_connection_put(struct nbd_connection *c)
{
    assert(c->refs > 0);
    if (--c->refs > 0)
        return;
    assert(c->closing && c->leader == NULL && !c->writing);
    assert(list_empty(&c->out) && c->requests == 0 && c->admitted_bytes == 0);
    fiber_shield(); /* its fiber may have been cancelled, closing must go on */
    stream_close(c->stream);
    fiber_unshield();
    connection_free_buffer(c);
    struct nbd_export *e = c->export;
    list_remove(&c->shard_link);
    list_remove(&c->export_link);
    __atomic_fetch_sub(&c->shard->server->connections, 1, __ATOMIC_RELAXED);
    e->clients--;
    block_close(c->device);
    waitq_wake_all(&e->left);
    free(c);
}

/* ---- Messages ---- */

struct nbd_message *nbd_connection_message(struct nbd_connection *c)
{
    struct nbd_shard *s = c->shard;
    struct list *l = list_pop(&s->free_messages);
    struct nbd_message *m;
    if (l != NULL) {
        s->free_message_count--;
        m = CONTAINER_OF(l, struct nbd_message, link);
    } else {
        m = malloc(sizeof(*m)); /* most of it is never touched */
        if (m == NULL) {
            nbd_connection_break(c);
            return NULL;
        }
    }
    nbd_message_init(m);
    return m;
}

void nbd_connection_end_request(struct nbd_connection *c, uint64_t reserved)
{
    struct nbd_shard *s = c->shard;
    assert(c->requests > 0);
    assert(c->admitted_bytes >= reserved && s->admitted_bytes >= reserved);
    c->requests--;
    c->admitted_bytes -= reserved;
    s->admitted_bytes -= reserved;
    waitq_wake_all(&c->room);
    waitq_wake_all(&s->room);
}

void nbd_connection_drop(struct nbd_connection *c, struct nbd_message *m)
{
    struct nbd_shard *s = c->shard;
    nbd_message_done(m);
    if (m->last)
        nbd_connection_end_request(c, m->reserved);
    if (s->free_message_count == NBD_FREE_MESSAGES) {
        free(m);
        return;
    }
    list_prepend(&s->free_messages, &m->link);
    s->free_message_count++;
}

/* ---- Sending ---- */

static void drop_queue(struct nbd_connection *c, struct list *queue)
{
    for (struct list *l; (l = list_pop(queue)) != NULL;) {
        struct nbd_message *m = CONTAINER_OF(l, struct nbd_message, link);
        c->out_bytes -= m->bytes;
        nbd_connection_drop(c, m);
    }
    waitq_wake_all(&c->room);
}

void nbd_connection_break(struct nbd_connection *c)
{
    c->closing = true;
    if (c->broken)
        return;
    c->broken = true;
    stream_shutdown(c->stream);
    drop_queue(c, &c->out);
}

/* Moves messages from the queue to `sending` while they fit. */
static uint32_t gather(struct nbd_connection *c, struct list *sending, struct iovec *iov, uint64_t *ret_bytes)
{
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (!list_empty(&c->out) && bytes < SEND_BYTES) {
        struct nbd_message *m = CONTAINER_OF(c->out.next, struct nbd_message, link);
        if (m->iov_count > SEND_IOV - count)
            break;
        memcpy(iov + count, m->iov, m->iov_count * sizeof(*iov));
        count += m->iov_count;
        bytes += m->bytes;
        list_remove(&m->link);
        list_append(sending, &m->link);
    }
    assert(count > 0);
    *ret_bytes = bytes;
    return count;
}

static void connection_write(void *arg) may_yield
{
    struct nbd_connection *c = arg;
    struct iovec iov[SEND_IOV];
    struct list sending;
    list_init(&sending);
    while (!list_empty(&c->out)) {
        uint64_t bytes;
        uint32_t count = gather(c, &sending, iov, &bytes);
        c->send_since_ns = reactor_now_ns();
        int err = stream_sendv(c->stream, iov, count, DEADLINE_NEVER);
        c->send_since_ns = 0;
        if (err == 0)
            counter_add(&c->export->bytes_out, bytes);
        drop_queue(c, &sending);
        if (err != 0)
            nbd_connection_break(c);
    }
    c->writing = false;
    nbd_connection_put(c);
}

void nbd_connection_send(struct nbd_connection *c, struct nbd_message *m)
{
    assert(m->iov_count > 0 && list_empty(&m->link));
    c->out_bytes += m->bytes;
    list_append(&c->out, &m->link);
    if (c->broken) {
        drop_queue(c, &c->out);
        return;
    }
    if (c->writing)
        return;
    c->writing = true;
    nbd_connection_get(c);
    if (fiber_spawn("nbd writer", connection_write, c) != 0) {
        c->writing = false;
        c->refs--; /* the caller has one */
        nbd_connection_break(c);
    }
}

/* ---- Receiving ---- */

/* The buffer is empty: makes it a big one if the traffic asks for it and the shard has one. */
static void buffer_grow(struct nbd_connection *c)
{
    struct page *big;
    assert(c->start == c->end);
    if (c->buffer_pages == NBD_BUFFER_PAGES_BIG || c->shard->big_buffers == NBD_BUFFERS_BIG)
        return;
    if (page_alloc(NBD_BUFFER_PAGES_BIG, &big) != 0)
        return;
    connection_free_buffer(c);
    c->buffer = big;
    c->buffer_pages = NBD_BUFFER_PAGES_BIG;
    c->shard->big_buffers++;
}

/* Receives into the vector, whose last element is the free part of the buffer. */
MUST_CHECK static int receive(struct nbd_connection *c, const struct iovec *iov, uint32_t count,
                              size_t *ret_len) may_yield
{
    size_t n;
    int err = stream_recvv(c->stream, iov, count, DEADLINE_NEVER, &n);
    if (err != 0)
        return err;
    counter_add(&c->export->bytes_in, n);
    *ret_len = n;
    return c->closing ? ERR_CLOSED : 0;
}

/* At least `want` bytes in the buffer. */
MUST_CHECK static int buffer_fill(struct nbd_connection *c, size_t want) may_yield
{
    size_t size = c->buffer_pages * BLOCK_SIZE;
    assert(want <= size);
    while (c->end - c->start < want) {
        if (c->start == c->end) {
            c->start = c->end = 0;
        } else if (size - c->start < want) {
            memmove(c->buffer->data, c->buffer->data + c->start, c->end - c->start);
            c->end -= c->start;
            c->start = 0;
        }
        size_t room = size - c->end, n;
        if (c->bulk)
            room = MIN(room, NBD_BULK_WINDOW);
        struct iovec iov = {c->buffer->data + c->end, room};
        int err = receive(c, &iov, 1, &n);
        if (err != 0)
            return err;
        c->end += n;
        c->crowded = n == room && !c->bulk;
    }
    return 0;
}

MUST_CHECK static int pages_try(uint32_t blocks, struct page_vec *v)
{
    v->run_count = 0;
    v->blocks = 0;
    uint32_t n = blocks;
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

static void iov_advance(struct iovec *iov, uint32_t *at, size_t n)
{
    while (n > 0) {
        size_t step = MIN(n, iov[*at].iov_len);
        iov[*at].iov_base = (char *)iov[*at].iov_base + step;
        iov[*at].iov_len -= step;
        n -= step;
        if (iov[*at].iov_len == 0)
            (*at)++;
    }
}

/* Copies what the buffer has; returns how much that was. */
static size_t take_buffered(struct nbd_connection *c, struct iovec *iov, uint32_t *at, size_t len)
{
    size_t have = MIN(len, c->end - c->start);
    for (size_t left = have; left > 0;) {
        size_t n = MIN(left, iov[*at].iov_len);
        memcpy(iov[*at].iov_base, c->buffer->data + c->start, n);
        c->start += n;
        left -= n;
        iov_advance(iov, at, n);
    }
    return have;
}

int nbd_connection_receive(struct nbd_connection *c, uint64_t offset, uint32_t len, struct page_vec *ret)
{
    int err = pages_get(block_span(offset, len), ret);
    if (err != 0)
        return err == ERR_CANCELLED ? err : ERR_NO_MEMORY;
    struct iovec iov[PAGE_VEC_MAX + 1];
    uint32_t count = 0, at = 0, skip = (uint32_t)(offset % BLOCK_SIZE);
    uint64_t left = len;
    for (uint32_t i = 0; i < ret->run_count; i++) {
        size_t n = MIN(left, (uint64_t)ret->runs[i].count * BLOCK_SIZE - skip);
        iov[count++] = (struct iovec){ret->runs[i].page->data + skip, n};
        left -= n;
        skip = 0;
    }
    assert(left == 0);
    left = len - take_buffered(c, iov, &at, len);
    c->bulk = len >= NBD_BULK;
    c->receive_since_ns = reactor_now_ns();
    while (left > 0) {
        assert(c->start == c->end);
        c->start = c->end = 0;
        size_t room = c->bulk ? NBD_BULK_WINDOW : c->buffer_pages * BLOCK_SIZE, n;
        iov[count] = (struct iovec){c->buffer->data, room};
        err = receive(c, iov + at, count + 1 - at, &n);
        if (err != 0)
            break;
        c->receive_since_ns = reactor_now_ns();
        c->end = n > left ? n - left : 0;
        c->crowded = c->end == room && !c->bulk;
        iov_advance(iov, &at, MIN(n, left));
        left -= MIN(n, left);
    }
    c->receive_since_ns = 0;
    if (err != 0)
        page_vec_put(ret);
    return err;
}

int nbd_connection_discard(struct nbd_connection *c, uint64_t len)
{
    while (len > 0) {
        if (c->start == c->end) {
            int err = buffer_fill(c, 1);
            if (err != 0)
                return err;
        }
        size_t n = (size_t)MIN(len, c->end - c->start);
        c->start += n;
        len -= n;
    }
    return 0;
}

/* ---- Admission ---- */

/* Of the clients that have not moved for long, the one that holds most makes room. */
static void evict_stalled(struct nbd_shard *s)
{
    uint64_t now = reactor_now_ns(), limit = s->server->limits.stall_ns;
    struct nbd_connection *victim = NULL;
    LIST_FOREACH (&s->connections, l) {
        struct nbd_connection *c = CONTAINER_OF(l, struct nbd_connection, shard_link);
        uint64_t since = c->send_since_ns != 0 ? c->send_since_ns : c->receive_since_ns;
        if (since == 0 || now - since < limit || c->broken)
            continue;
        if (victim == NULL || c->admitted_bytes > victim->admitted_bytes)
            victim = c;
    }
    if (victim == NULL)
        return;
    counter_add(&s->evicted, 1);
    LOG_WARNING(
        "nbd: client %s of %s disconnected: it does not move and holds %llu bytes that others wait for",
        stream_peer(victim->stream), victim->export->name, (unsigned long long)victim->admitted_bytes);
    nbd_connection_break(victim);
}

/* A connection's own limits. One request is always admitted; beyond it a connection may hold no more than
 * what is still free in the shard. So a few greedy ones cannot take everything: N of them end at one part
 * each of N + 1, and the last part is for newcomers. */
static bool connection_has_room(const struct nbd_connection *c, uint64_t bytes)
{
    const struct nbd_limits *l = &c->shard->server->limits;
    uint64_t taken = c->shard->admitted_bytes, wanted = c->admitted_bytes + bytes;
    if (c->requests == 0)
        return true;
    return c->requests < l->requests && wanted <= l->connection_bytes && taken < l->reactor_bytes &&
           wanted <= l->reactor_bytes - taken;
}

MUST_CHECK static int admit(struct nbd_connection *c, uint64_t bytes) may_yield
{
    struct nbd_shard *s = c->shard;
    int err = 0;
    while (err == 0 && !connection_has_room(c, bytes))
        err = c->closing ? ERR_CLOSED : waitq_wait(&c->room, DEADLINE_NEVER);
    while (err == 0 && s->admitted_bytes + bytes > s->server->limits.reactor_bytes) {
        evict_stalled(s);
        err = c->closing ? ERR_CLOSED : waitq_wait(&s->room, reactor_now_ns() + ADMIT_POLL);
        if (err == ERR_TIMEOUT)
            err = 0;
    }
    if (err != 0)
        return err;
    c->requests++;
    c->admitted_bytes += bytes;
    s->admitted_bytes += bytes;
    return 0;
}

/* ---- Leading ---- */

static void follow(void *arg) may_yield;

void nbd_connection_yield_lead(struct nbd_connection *c)
{
    assert(c->leader == fiber_self());
    c->leader = NULL;
    if (c->follower_pending || c->closing)
        return;
    /* Without a follower the requests behind wait for this one: slower, not wrong. */
    if (fiber_spawn("nbd reader", follow, c) == 0) {
        c->follower_pending = true;
        nbd_connection_get(c);
    }
}

/* True: this fiber leads (again). */
static bool take_lead(struct nbd_connection *c)
{
    if (c->closing || c->leader != NULL)
        return c->leader == fiber_self() && !c->closing;
    c->leader = fiber_self();
    return true;
}

/* One request. Errors end the reading. */
MUST_CHECK static int lead_one(struct nbd_connection *c) may_yield
{
    struct nbd_request q;
    if (c->start == c->end && c->crowded)
        buffer_grow(c);
    int err = buffer_fill(c, sizeof(struct nbd_request_header));
    if (err != 0)
        return err;
    if (!nbd_request_decode(c->buffer->data + c->start, &q))
        return ERR_PROTOCOL;
    c->start += sizeof(struct nbd_request_header);
    if (q.type == NBD_CMD_DISC)
        return ERR_CLOSED;
    if (q.type != NBD_CMD_WRITE)
        c->bulk = false;
    uint64_t cost = nbd_command_cost(&q, &c->session);
    err = admit(c, cost);
    if (err != 0)
        return err;
    counter_add(&c->export->requests, 1);
    nbd_command_run(c, &q, cost);
    return 0;
}

static void lead(struct nbd_connection *c) may_yield
{
    while (take_lead(c)) {
        int err = lead_one(c);
        if (err != 0)
            c->closing = true;
    }
    if (c->leader == fiber_self())
        c->leader = NULL;
    nbd_connection_put(c);
}

static void follow(void *arg) may_yield
{
    struct nbd_connection *c = arg;
    c->follower_pending = false;
    lead(c);
}

static void lead_first(void *arg) may_yield
{
    lead(arg);
}

/* ---- Life ---- */

void nbd_connection_drain(struct nbd_connection *c)
{
    c->closing = true;
    if (c->leader != NULL)
        fiber_cancel(c->leader); /* it waits for the stream, for room or for memory */
    waitq_wake_all(&c->room);
}

MUST_CHECK static int connection_new(struct nbd_shard *shard, const void *leftover, size_t leftover_len,
                                     struct nbd_connection **ret) may_yield
{
    struct nbd_connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->buffer_pages = leftover_len > NBD_BUFFER_PAGES * BLOCK_SIZE ? NBD_BUFFER_PAGES_BIG : NBD_BUFFER_PAGES;
    assert(leftover_len <= c->buffer_pages * BLOCK_SIZE);
    uint64_t until = reactor_now_ns() + START_TIMEOUT;
    int err = page_alloc(c->buffer_pages, &c->buffer);
    while (err == ERR_NO_MEMORY && reactor_now_ns() < until) {
        err = fiber_sleep(PAGES_RETRY); /* the client was told that it may begin */
        if (err == 0)
            err = page_alloc(c->buffer_pages, &c->buffer);
    }
    if (err != 0) {
        free(c);
        return err;
    }
    shard->big_buffers += c->buffer_pages == NBD_BUFFER_PAGES_BIG;
    if (leftover_len > 0)
        memcpy(c->buffer->data, leftover, leftover_len);
    c->end = leftover_len;
    c->shard = shard;
    c->refs = 1;
    list_init(&c->out);
    waitq_init(&c->room);
    *ret = c;
    return 0;
}

int nbd_connection_start(struct nbd_shard *shard, struct nbd_export *e, const struct nbd_session *session,
                         struct stream *stream, const void *leftover, size_t leftover_len)
{
    assert(shard->reactor == reactor_current() && e->shard == shard);
    struct nbd_connection *c;
    int err = connection_new(shard, leftover, leftover_len, &c);
    if (err != 0)
        return err;
    c->export = e;
    c->device = e->device;
    c->session = *session;
    c->stream = stream;
    err = fiber_spawn("nbd reader", lead_first, c);
    if (err != 0) {
        connection_free_buffer(c);
        free(c);
        return err;
    }
    list_append(&shard->connections, &c->shard_link);
    list_append(&e->connections, &c->export_link);
    e->clients++;
    block_open(c->device);
    __atomic_fetch_add(&shard->server->connections, 1, __ATOMIC_RELAXED);
    return 0;
}
