/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of a connection
 *
 * Leading. One fiber at a time reads the stream: the leader. It takes a call off the buffer and runs it
 * itself, on the spot. Most calls are served from the cache and never wait, so that a batch of them that came
 * with one system call is run without a single switch of fibers. For those that do wait, the leader gives its
 * role up before it runs a call (yield_lead) and makes sure that a follower is in the run queue: if the call
 * waits, the follower runs, finds the role free and leads on; if not, the old leader takes the role back, and
 * the follower later finds it taken and ends. So replies go out in the order in which they are ready.
 *
 *      leader --call--> runs it --role still free--> leader
 *                          |
 *                          +----role taken, or closing--> ends
 *      follower ----role free--> leader
 *               ----role taken-> ends
 *
 * Sending. Replies gather in a queue; a writer fiber is started with the first one. It runs behind all fibers
 * that are ready at that moment, so that what they answer goes out with the same system call. The data of a
 * READ is sent from the pages of the cache: nothing is copied here.
 *
 * Limits. A call is admitted before its payload is received and before it is run, and its bytes are counted
 * until its reply was sent, per connection and per shard. A client that does not read its replies fills its
 * own account, and is then read from no more. If clients that stand still hold so much of the shard's account
 * that others must wait, they are disconnected, one by one.
 *
 * Moving. A connection begins at home. With its first call that names a file system of another reactor it
 * goes there: the leader waits until it is alone, takes the stream off this reactor and begins there anew,
 * with the call in its hand (carried). Calls for file systems of yet other reactors are run there one by one
 * (nfs_call_on); when such calls are all that comes, the connection moves again.
 *
 * Ending. closing: nothing more is read; each call under way ends, its reply is sent. broken: sending failed;
 * replies are dropped. Whoever puts the last reference closes the stream.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define SEND_IOV       512u
#define SEND_BYTES     (1 * MIB)
#define ADMIT_POLL     (500 * NSEC_PER_MSEC)
#define FOREIGN_STREAK 64u
#define CALL_IOV_MAX   (PAGE_VEC_MAX + PAGE_VEC_MAX / ZERO_BLOCKS + 4)
#define ZERO_BLOCKS    16u

static_assert(SEND_IOV >= CALL_IOV_MAX, "each reply fits into one vector");

static const uint8_t zeroes[ZERO_BLOCKS * BLOCK_SIZE];

/* ---- References ---- */

static void connection_get(struct nfs_connection *c)
{
    assert(c->refs > 0 && c->refs < UINT32_MAX);
    c->refs++;
}

static void connection_put(struct nfs_connection *c) may_yield
{
    assert(c->refs > 0);
    if (--c->refs > 0) {
        waitq_wake_all(&c->room); /* the leader may wait to be alone */
        return;
    }
    struct nfs_shard *shard = c->shard;
    assert(c->closing && c->leader == NULL && !c->writing && c->carried == NULL);
    assert(list_empty(&c->out) && c->requests == 0 && c->admitted_bytes == 0);
    if (c->stream != NULL) {
        fiber_shield(); /* its fiber may have been cancelled, closing must go on */
        stream_close(c->stream);
        fiber_unshield();
        __atomic_fetch_sub(&shard->server->connections, 1, __ATOMIC_RELAXED);
    }
    nfs_receive_free_buffer(c);
    list_remove(&c->link);
    free(c);
    waitq_wake_all(&shard->left);
}

/* ---- Ends of calls ---- */

static void call_end(struct nfs_connection *c, struct nfs_call *call)
{
    struct nfs_shard *s = c->shard;
    if (call->admitted) {
        assert(c->requests > 0);
        assert(c->admitted_bytes >= call->reserved && s->admitted_bytes >= call->reserved);
        c->requests--;
        c->admitted_bytes -= call->reserved;
        s->admitted_bytes -= call->reserved;
        call->admitted = false;
        waitq_wake_all(&c->room);
        waitq_wake_all(&s->room);
    }
    nfs_call_free(call);
}

static void drop_queue(struct nfs_connection *c, struct list *queue)
{
    for (struct list *l; (l = list_pop(queue)) != NULL;) {
        struct nfs_call *call = CONTAINER_OF(l, struct nfs_call, link);
        c->out_bytes -= call->out.len + call->payload_len;
        call_end(c, call);
    }
    waitq_wake_all(&c->room);
}

void nfs_connection_break(struct nfs_connection *c)
{
    c->closing = true;
    if (c->broken)
        return;
    c->broken = true;
    if (c->stream != NULL)
        stream_shutdown(c->stream);
    drop_queue(c, &c->out);
}

/* ---- Sending ---- */

/* The reply as a vector. Data begins payload_skip bytes into its first page. */
static uint32_t call_vector(const struct nfs_call *call, struct iovec *iov)
{
    static const uint8_t padding[4];
    uint32_t n = 0, left = call->payload_len, skip = call->payload_skip;
    iov[n++] = (struct iovec){call->out.data, call->out.len};
    if (left == 0)
        return n;
    const struct nfs_payload *p = call->payload[0];
    if (p->copied != NULL) {
        iov[n++] = (struct iovec){p->copied, left};
        left = 0;
    }
    for (uint32_t i = 0; left > 0; i++) {
        assert(i < p->vec.run_count);
        const struct page_run *r = &p->vec.runs[i];
        uint32_t len = MIN(left, r->count * BLOCK_SIZE - skip);
        left -= len;
        for (uint32_t part; r->page == NULL && len > 0; len -= part) {
            part = MIN(len, (uint32_t)sizeof(zeroes));
            iov[n++] = (struct iovec){(void *)(uintptr_t)zeroes, part};
        }
        if (len > 0)
            iov[n++] = (struct iovec){r->page->data + skip, len};
        skip = 0;
    }
    if (XDR_PAD(call->payload_len) != 0)
        iov[n++] = (struct iovec){(void *)(uintptr_t)padding, XDR_PAD(call->payload_len)};
    assert(n <= CALL_IOV_MAX);
    return n;
}

/* Moves calls from the queue to `sending` while they fit. */
static uint32_t gather(struct nfs_connection *c, struct list *sending, struct iovec *iov, uint64_t *ret_bytes)
{
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (!list_empty(&c->out) && bytes < SEND_BYTES) {
        struct nfs_call *call = CONTAINER_OF(c->out.next, struct nfs_call, link);
        uint32_t need = call->payload_len == 0 ? 1 : CALL_IOV_MAX;
        if (call->payload_len != 0 && call->payload_len <= 16 * BLOCK_SIZE)
            need = 16 + 4; /* blocks at an unaligned offset, head, padding */
        if (need > SEND_IOV - count)
            break;
        count += call_vector(call, iov + count);
        bytes += call->out.len + call->payload_len;
        list_remove(&call->link);
        list_append(sending, &call->link);
    }
    assert(count > 0);
    *ret_bytes = bytes;
    return count;
}

static void connection_write(void *arg) may_yield
{
    struct nfs_connection *c = arg;
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
            c->bytes_out += bytes;
        drop_queue(c, &sending);
        if (err != 0)
            nfs_connection_break(c);
    }
    c->writing = false;
    connection_put(c);
}

/* Takes the call: sends its reply, or drops it if the connection is broken. */
static void reply(struct nfs_connection *c, struct nfs_call *call)
{
    if (call->out.len == 0 || c->broken) {
        call_end(c, call);
        return;
    }
    nfs_call_finish(call);
    c->out_bytes += call->out.len + call->payload_len;
    list_append(&c->out, &call->link);
    if (c->writing)
        return;
    c->writing = true;
    connection_get(c);
    if (fiber_spawn("nfs writer", connection_write, c) != 0) {
        c->writing = false;
        c->refs--; /* the caller has one */
        nfs_connection_break(c);
    }
}

/* ---- Admission ---- */

/* Of the clients that have not moved for long, the one that holds most makes room. */
static void evict_stalled(struct nfs_shard *s)
{
    uint64_t now = reactor_now_ns(), limit = s->server->limits.stall_ns;
    struct nfs_connection *victim = NULL;
    LIST_FOREACH (&s->connections, l) {
        struct nfs_connection *c = CONTAINER_OF(l, struct nfs_connection, link);
        uint64_t since = c->send_since_ns != 0 ? c->send_since_ns : c->receive_since_ns;
        if (since == 0 || now - since < limit || c->broken)
            continue;
        if (victim == NULL || c->admitted_bytes > victim->admitted_bytes)
            victim = c;
    }
    if (victim == NULL)
        return;
    counter_add(&s->evicted, 1);
    LOG_WARNING("nfs: client %s disconnected: it does not move and holds %llu bytes that others wait for",
                stream_peer(victim->stream), (unsigned long long)victim->admitted_bytes);
    nfs_connection_break(victim);
}

/* A connection's own limits. One call is always admitted; beyond it a connection may hold no more than what
 * is still free in the shard. So a few greedy ones cannot take everything: N of them end at one part each of
 * N + 1, and the last part is for newcomers. */
static bool connection_has_room(const struct nfs_connection *c, uint64_t bytes)
{
    const struct nfs_limits *l = &c->shard->server->limits;
    uint64_t taken = c->shard->admitted_bytes, wanted = c->admitted_bytes + bytes;
    if (c->requests == 0)
        return true;
    return c->requests < l->requests && wanted <= l->connection_bytes && taken < l->reactor_bytes &&
           wanted <= l->reactor_bytes - taken;
}

MUST_CHECK static int admit(struct nfs_connection *c, struct nfs_call *call, uint64_t payload) may_yield
{
    struct nfs_shard *s = c->shard;
    uint64_t bytes = NFS_CALL_COST + payload;
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
    call->admitted = true;
    call->reserved = bytes;
    c->requests++;
    c->admitted_bytes += bytes;
    s->admitted_bytes += bytes;
    return 0;
}

/* ---- Moving ---- */

struct move {
    struct nfs_connection_start start;
    int handle;
    bool attached;
};

static int move_there(void *arg) may_yield
{
    struct move *m = arg;
    int err = stream_attach(m->handle, &m->start.stream);
    if (err != 0)
        return err;
    if (m->start.carried != NULL)
        m->start.carried->shard = m->start.shard; /* it is memory without pages: it may go along */
    err = nfs_connection_begin(&m->start);
    if (err != 0) {
        fiber_shield();
        stream_close(m->start.stream);
        fiber_unshield();
    }
    return err;
}

/* Brings the connection to that shard, with the call. ERR_UNSUPPORTED: it cannot, and goes on here. Else it
 * is gone from here: ERR_CLOSED. */
MUST_CHECK static int move_to(struct nfs_connection *c, struct nfs_shard *shard, struct nfs_call *call)
    may_yield
{
    while (c->refs > 1 && !c->closing) {
        int err = waitq_wait(&c->room, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    if (c->closing)
        return ERR_CLOSED;
    assert(c->requests == 0 && list_empty(&c->out) && !c->writing && !call->admitted);
    struct move m = {.start = {.shard = shard,
                               .record = c->record,
                               .carried = call,
                               .leftover_len = c->end - c->start,
                               .ops = c->ops,
                               .bytes_in = c->bytes_in,
                               .bytes_out = c->bytes_out}};
    uint8_t *leftover = malloc(m.start.leftover_len + 1); /* pages do not leave their reactor */
    if (leftover == NULL)
        return ERR_UNSUPPORTED;
    memcpy(leftover, c->buffer->data + c->start, m.start.leftover_len);
    m.start.leftover = leftover;
    int err = stream_detach(c->stream, &m.handle);
    if (err == 0) {
        c->stream = NULL;
        c->closing = true;
        fiber_shield();
        err = reactor_call(shard->reactor, move_there, &m);
        fiber_unshield();
        if (err != 0) {
            call->shard = c->shard;
            call->connection = c;
            __atomic_fetch_sub(&shard->server->connections, 1, __ATOMIC_RELAXED);
            call_end(c, call);
        }
        err = ERR_CLOSED;
    }
    free(leftover);
    return err;
}

/* Where is this call to be run? ERR_CLOSED: it has gone, and the connection with it. */
MUST_CHECK static int settle(struct nfs_connection *c, struct nfs_call *call) may_yield
{
    struct nfs_shard *best = call->program->place != NULL ? call->program->place(call) : NULL;
    if (best == NULL)
        return 0;
    if (best == c->shard) {
        c->settled = true;
        c->foreign_streak = 0;
        return 0;
    }
    if (c->settled && ++c->foreign_streak < FOREIGN_STREAK)
        return 0;
    c->foreign_streak = 0;
    int err = move_to(c, best, call);
    if (err == ERR_UNSUPPORTED) {
        c->settled = true;
        err = 0;
    }
    return err;
}

/* ---- Leading ---- */

static void follow(void *arg) may_yield;

/* Lets another fiber read on, so that the caller may wait in a call. */
static void yield_lead(struct nfs_connection *c)
{
    assert(c->leader == fiber_self());
    c->leader = NULL;
    if (c->follower_pending || c->closing)
        return;
    /* Without a follower the calls behind wait for this one: slower, not wrong. */
    if (fiber_spawn("nfs reader", follow, c) == 0) {
        c->follower_pending = true;
        connection_get(c);
    }
}

/* True: this fiber leads (again). */
static bool take_lead(struct nfs_connection *c)
{
    if (c->closing || c->leader != NULL)
        return c->leader == fiber_self() && !c->closing;
    c->leader = fiber_self();
    return true;
}

/* The data of a WRITE, whose head has been decoded so far that the program is known. */
MUST_CHECK static int receive_write(struct nfs_connection *c, struct nfs_call *call) may_yield
{
    struct xdr x = call->args;
    uint32_t handle_len;
    xdr_opaque(&x, NFS3_HANDLE_MAX, &handle_len);
    uint64_t offset = xdr_u64(&x);
    xdr_u32(&x);
    xdr_u32(&x);
    uint32_t len = xdr_u32(&x);
    int err = 0;
    if (x.bad || len > NFS_TRANSFER_MAX || offset > INT64_MAX)
        len = 0; /* the procedure finds that out itself */
    err = admit(c, call, len);
    if (err == 0 && len > 0)
        err = nfs_receive_payload(c, call, x.at, offset, len);
    else if (err == 0)
        err = nfs_receive_discard(c, call);
    if (err == ERR_NO_MEMORY) {
        call->no_memory = true;
        err = 0;
    }
    if (err == ERR_OUT_OF_RANGE) { /* there is less data than it says */
        call->procedure = NULL;
        nfs_call_fail(call, RPC_GARBAGE_ARGUMENTS);
        err = 0;
    }
    return err;
}

/* All of the call that is still on the stream. Afterwards call->procedure NULL: it is answered already. */
MUST_CHECK static int receive_call(struct nfs_connection *c, struct nfs_call *call) may_yield
{
    if (call->procedure != NULL && call->procedure->payload)
        return receive_write(c, call);
    if (call->procedure == NULL) {
        int err = nfs_receive_discard(c, call);
        return err != 0 ? err : admit(c, call, 0);
    }
    int err = nfs_receive_rest(c, call);
    if (err == ERR_OUT_OF_RANGE) {
        call->procedure = NULL;
        nfs_call_fail(call, RPC_GARBAGE_ARGUMENTS);
        err = 0;
    }
    c->bulk = false;
    uint64_t cost = 0;
    if (err == 0 && call->procedure != NULL && call->procedure->cost != NULL)
        cost = call->procedure->cost(call);
    return err != 0 ? err : admit(c, call, cost);
}

/* Runs a call whose head is in its place. Errors end the reading; the call is gone. */
MUST_CHECK static int lead_call(struct nfs_connection *c, struct nfs_call *call, bool carried) may_yield
{
    int err = 0;
    if (!carried) {
        if (!nfs_call_begin(call, call->in, call->in_len))
            call->procedure = NULL;
        else
            err = settle(c, call);
        if (err == ERR_CLOSED && c->stream == NULL)
            return err; /* moved, the call with it */
    }
    if (err == 0)
        err = receive_call(c, call);
    if (err != 0) {
        call_end(c, call);
        return err;
    }
    c->ops++;
    c->active_ns = reactor_now_ns();
    if (call->procedure == NULL) {
        reply(c, call);
        return 0;
    }
    yield_lead(c);
    if (nfs_call_run(call))
        reply(c, call);
    else
        call_end(c, call);
    return 0;
}

/* One call. Errors end the reading. */
MUST_CHECK static int lead_one(struct nfs_connection *c) may_yield
{
    struct nfs_call *call = c->carried;
    if (call != NULL) {
        c->carried = NULL;
        return lead_call(c, call, true);
    }
    if (c->start == c->end) { /* so that one who says nothing holds no call */
        int err = nfs_receive_fill(c);
        if (err != 0)
            return err;
    }
    call = nfs_call_new(c->shard, c, &c->peer);
    if (call == NULL)
        return ERR_NO_MEMORY;
    int err = nfs_receive_head(c, call);
    if (err != 0) {
        call_end(c, call);
        return err;
    }
    return lead_call(c, call, false);
}

static void lead(struct nfs_connection *c) may_yield
{
    while (take_lead(c)) {
        int err = lead_one(c);
        if (err != 0)
            c->closing = true;
        if (err == ERR_PROTOCOL)
            LOG_DEBUG("nfs: client %s disconnected: a record is longer than allowed", c->peer.ip);
    }
    if (c->leader == fiber_self())
        c->leader = NULL;
    if (c->carried != NULL && c->leader == NULL) { /* drained before its first turn */
        struct nfs_call *call = c->carried;
        c->carried = NULL;
        call_end(c, call);
    }
    connection_put(c);
}

static void follow(void *arg) may_yield
{
    struct nfs_connection *c = arg;
    c->follower_pending = false;
    lead(c);
}

static void lead_first(void *arg) may_yield
{
    lead(arg);
}

/* ---- Life ---- */

void nfs_connection_drain(struct nfs_connection *c)
{
    c->closing = true;
    if (c->leader != NULL)
        fiber_cancel(c->leader); /* it waits for the stream, for room or for memory */
    waitq_wake_all(&c->room);
}

/* Those that never asked for anything are in front of all others. */
static uint64_t idle_rank(const struct nfs_connection *c)
{
    return c->ops == 0 ? c->active_ns / 2 : UINT64_MAX / 2 + c->active_ns / 2;
}

static struct nfs_connection *idlest(const struct nfs_shard *shard)
{
    struct nfs_connection *victim = NULL;
    LIST_FOREACH (&shard->connections, l) {
        struct nfs_connection *c = CONTAINER_OF(l, struct nfs_connection, link);
        if (c->closing || c->requests > 0)
            continue;
        if (victim == NULL || idle_rank(c) < idle_rank(victim))
            victim = c;
    }
    return victim;
}

uint64_t nfs_connection_idle_rank(const struct nfs_shard *shard)
{
    const struct nfs_connection *c = idlest(shard);
    return c != NULL ? idle_rank(c) : UINT64_MAX;
}

bool nfs_connection_evict_idle(struct nfs_shard *shard)
{
    struct nfs_connection *victim = idlest(shard);
    if (victim == NULL)
        return false;
    counter_add(&shard->evicted, 1);
    nfs_connection_break(victim);
    return true;
}

MUST_CHECK static int connection_new(const struct nfs_connection_start *o, struct nfs_connection **ret)
{
    struct nfs_connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->shard = o->shard;
    c->buffer_pages =
        o->leftover_len > NFS_BUFFER_PAGES * BLOCK_SIZE ? NFS_BUFFER_PAGES_BIG : NFS_BUFFER_PAGES;
    assert(o->leftover_len <= c->buffer_pages * BLOCK_SIZE);
    int err = page_alloc(c->buffer_pages, &c->buffer);
    if (err != 0) {
        free(c);
        return err;
    }
    c->shard->big_buffers += c->buffer_pages == NFS_BUFFER_PAGES_BIG;
    if (o->leftover_len > 0)
        memcpy(c->buffer->data, o->leftover, o->leftover_len);
    c->end = o->leftover_len;
    c->record = o->record;
    c->refs = 1;
    c->ops = o->ops;
    c->bytes_in = o->bytes_in;
    c->bytes_out = o->bytes_out;
    c->active_ns = reactor_now_ns();
    list_init(&c->out);
    waitq_init(&c->room);
    *ret = c;
    return 0;
}

int nfs_connection_begin(const struct nfs_connection_start *o)
{
    struct nfs_shard *shard = o->shard;
    struct nfs_connection *c;
    assert(shard->reactor == reactor_current());
    if (shard->server->stopping)
        return ERR_SHUTDOWN;
    int err = connection_new(o, &c);
    if (err != 0)
        return err;
    c->stream = o->stream;
    nfs_peer_init(&c->peer, stream_peer(c->stream), stream_peer_ip(c->stream));
    err = fiber_spawn("nfs reader", lead_first, c);
    if (err != 0) {
        nfs_receive_free_buffer(c);
        free(c);
        return err;
    }
    if (o->carried != NULL) {
        c->settled = true;
        c->carried = o->carried;
        c->carried->connection = c;
        c->carried->peer = &c->peer;
    }
    list_append(&shard->connections, &c->link);
    return 0;
}
