/* SPDX-License-Identifier: Apache-2.0 */
#include "loop_world.h"

#include "runtime/error.h"
#include "runtime/list.h"

#include <stdio.h>
#include <stdlib.h>

struct loop_pipe {
    uint32_t ends; /* streams that refer to it */
    bool closed;
    size_t capacity, start, len;
    struct waitq changed;
    uint8_t data[];
};

struct loop_stream {
    struct stream base;
    struct list link; /* a listener's backlog */
    struct loop_pipe *in, *out;
    bool accepted; /* the server's end */
    bool shut;
};

struct loop_listener {
    struct listener base;
    struct list link, backlog;
    struct waitq changed;
    bool closed, accepting;
};

static struct loop_world *world_of(struct reactor *r)
{
    return reactor_world_ctx(r);
}

/* ---- Pipes ---- */

static struct loop_pipe *pipe_new(size_t capacity)
{
    struct loop_pipe *p = calloc(1, sizeof(*p) + capacity);
    assert(p != NULL);
    p->capacity = capacity;
    p->ends = 2;
    waitq_init(&p->changed);
    return p;
}

static void pipe_close(struct loop_pipe *p)
{
    p->closed = true;
    waitq_wake_all(&p->changed);
}

static void pipe_put(struct loop_pipe *p)
{
    pipe_close(p);
    if (--p->ends == 0)
        free(p);
}

static size_t pipe_get(struct loop_pipe *p, uint8_t *to, size_t len)
{
    size_t done = 0;
    while (done < len && p->len > 0) {
        size_t n = MIN(MIN(len - done, p->len), p->capacity - p->start);
        memcpy(to + done, p->data + p->start, n);
        p->start = (p->start + n) % p->capacity;
        p->len -= n;
        done += n;
    }
    return done;
}

static size_t pipe_put_bytes(struct loop_pipe *p, const uint8_t *from, size_t len)
{
    size_t done = 0;
    while (done < len && p->len < p->capacity) {
        size_t at = (p->start + p->len) % p->capacity;
        size_t n = MIN(MIN(len - done, p->capacity - p->len), p->capacity - at);
        memcpy(p->data + at, from + done, n);
        p->len += n;
        done += n;
    }
    return done;
}

/* ---- Streams ---- */

static struct loop_stream *stream_new(struct reactor *r, struct loop_pipe *in, struct loop_pipe *out,
                                      const char *ip)
{
    struct loop_stream *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    s->base.reactor = r;
    s->base.ops = &loop_world_ops;
    if (ip[0] == '\0')
        snprintf(s->base.peer, sizeof(s->base.peer), "unix:");
    else
        snprintf(s->base.peer, sizeof(s->base.peer), "tcp:%s:1", ip);
    snprintf(s->base.peer_ip, sizeof(s->base.peer_ip), "%s", ip);
    s->in = in;
    s->out = out;
    list_init(&s->link);
    world_of(r)->streams++;
    return s;
}

static may_yield int loop_recvv(struct stream *stream, const struct iovec *iov, uint32_t n,
                                uint64_t deadline_ns, size_t *ret_len)
{
    struct loop_stream *s = CONTAINER_OF(stream, struct loop_stream, base);
    struct loop_pipe *p = s->in;
    struct loop_world *w = world_of(stream->reactor);
    while (p->len == 0 || s->shut) {
        if (p->closed || s->shut)
            return ERR_CLOSED;
        int err = waitq_wait(&p->changed, deadline_ns);
        if (err != 0)
            return err;
    }
    size_t total = 0, max = w->recv_max != 0 && s->accepted ? w->recv_max : SIZE_MAX;
    for (uint32_t i = 0; i < n; i++) {
        size_t want = MIN(iov[i].iov_len, max - total);
        size_t got = pipe_get(p, iov[i].iov_base, want);
        total += got;
        if (got < want)
            break;
    }
    waitq_wake_all(&p->changed);
    *ret_len = total;
    return 0;
}

static may_yield int loop_sendv(struct stream *stream, struct iovec *iov, uint32_t n, uint64_t deadline_ns)
{
    struct loop_stream *s = CONTAINER_OF(stream, struct loop_stream, base);
    struct loop_pipe *p = s->out;
    world_of(stream->reactor)->sends++;
    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 0; k < iov[i].iov_len;) {
            if (p->closed || s->shut)
                return ERR_CLOSED;
            if (p->len == p->capacity) {
                waitq_wake_all(&p->changed);
                int err = waitq_wait(&p->changed, deadline_ns);
                if (err != 0)
                    return err;
                continue;
            }
            k += pipe_put_bytes(p, (const uint8_t *)iov[i].iov_base + k, iov[i].iov_len - k);
        }
    }
    waitq_wake_all(&p->changed);
    return 0;
}

static void loop_shutdown(struct stream *stream)
{
    struct loop_stream *s = CONTAINER_OF(stream, struct loop_stream, base);
    s->shut = true;
    pipe_close(s->in);
    pipe_close(s->out);
}

static void loop_close(struct stream *stream)
{
    struct loop_stream *s = CONTAINER_OF(stream, struct loop_stream, base);
    struct loop_world *w = world_of(stream->reactor);
    pipe_put(s->in);
    pipe_put(s->out);
    assert(w->streams > 0);
    w->streams--;
    free(s);
}

static int loop_connect(struct reactor *r, const char *address, uint64_t deadline_ns, struct stream **ret)
{
    struct loop_world *w = world_of(r);
    (void)deadline_ns;
    LIST_FOREACH (&w->listeners, link) {
        struct loop_listener *l = CONTAINER_OF(link, struct loop_listener, link);
        if (strcmp(l->base.address, address) != 0)
            continue;
        struct loop_pipe *up = pipe_new(w->pipe_bytes), *down = pipe_new(w->pipe_bytes);
        struct loop_stream *there = stream_new(r, up, down, w->peer_ip);
        there->accepted = true;
        list_append(&l->backlog, &there->link);
        waitq_wake_all(&l->changed);
        *ret = &stream_new(r, down, up, "127.0.0.1")->base;
        return 0;
    }
    return ERR_SYS(ECONNREFUSED);
}

/* ---- Listeners ---- */

static int loop_listen(struct reactor *r, const char *address, struct listener **ret)
{
    struct loop_listener *l = calloc(1, sizeof(*l));
    assert(l != NULL);
    l->base.reactor = r;
    l->base.ops = &loop_world_ops;
    snprintf(l->base.address, sizeof(l->base.address), "%s", address);
    list_init(&l->backlog);
    waitq_init(&l->changed);
    list_append(&world_of(r)->listeners, &l->link);
    *ret = &l->base;
    return 0;
}

static may_yield int loop_accept(struct listener *listener, struct stream **ret)
{
    struct loop_listener *l = CONTAINER_OF(listener, struct loop_listener, base);
    struct loop_world *w = world_of(listener->reactor);
    int err = 0;
    while (err == 0 && list_empty(&l->backlog))
        err = waitq_wait(&l->changed, DEADLINE_NEVER);
    if (err == 0 && w->accept_error != 0) {
        err = w->accept_error;
        w->accept_error = 0;
    }
    if (err != 0)
        return err;
    *ret = &CONTAINER_OF(list_pop(&l->backlog), struct loop_stream, link)->base;
    return 0;
}

static void loop_listener_close(struct listener *listener)
{
    struct loop_listener *l = CONTAINER_OF(listener, struct loop_listener, base);
    for (struct list *link; (link = list_pop(&l->backlog)) != NULL;)
        loop_close(&CONTAINER_OF(link, struct loop_stream, link)->base);
    list_remove(&l->link);
    free(l);
}

/* ---- Datagrams ---- */

struct loop_socket {
    struct datagram_socket base;
    struct list link, inbox;
    struct waitq changed;
};
struct loop_datagram {
    struct list link;
    char from[WORLD_ADDRESS_SIZE];
    size_t len;
    uint8_t data[];
};

static int loop_datagram_open(struct reactor *r, const char *address, struct datagram_socket **ret)
{
    struct loop_world *w = world_of(r);
    LIST_FOREACH (&w->sockets, l) {
        if (strcmp(CONTAINER_OF(l, struct loop_socket, link)->base.address, address) == 0)
            return ERR_SYS(EADDRINUSE);
    }
    struct loop_socket *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    s->base.reactor = r;
    snprintf(s->base.address, sizeof(s->base.address), "%s", address);
    list_init(&s->inbox);
    waitq_init(&s->changed);
    list_append(&w->sockets, &s->link);
    *ret = &s->base;
    return 0;
}

static void loop_datagram_close(struct datagram_socket *d)
{
    struct loop_socket *s = CONTAINER_OF(d, struct loop_socket, base);
    for (struct list *l; (l = list_pop(&s->inbox)) != NULL;)
        free(CONTAINER_OF(l, struct loop_datagram, link));
    list_remove(&s->link);
    free(s);
}

static may_yield int loop_datagram_recv(struct datagram_socket *d, void *buf, size_t size,
                                        uint64_t deadline_ns, size_t *ret_len, char *from)
{
    struct loop_socket *s = CONTAINER_OF(d, struct loop_socket, base);
    int err = 0;
    while (err == 0 && list_empty(&s->inbox))
        err = waitq_wait(&s->changed, deadline_ns);
    if (err != 0)
        return err;
    struct loop_datagram *g = CONTAINER_OF(list_pop(&s->inbox), struct loop_datagram, link);
    *ret_len = MIN(g->len, size);
    memcpy(buf, g->data, *ret_len);
    memcpy(from, g->from, sizeof(g->from));
    free(g);
    return 0;
}

static int loop_datagram_send(struct datagram_socket *d, const char *to, const void *buf, size_t len)
{
    struct loop_world *w = world_of(d->reactor);
    if (w->lose > 0) {
        w->lose--;
        return 0;
    }
    LIST_FOREACH (&w->sockets, l) {
        struct loop_socket *s = CONTAINER_OF(l, struct loop_socket, link);
        if (strcmp(s->base.address, to) != 0)
            continue;
        struct loop_datagram *g = calloc(1, sizeof(*g) + len);
        assert(g != NULL);
        snprintf(g->from, sizeof(g->from), "%s", d->address);
        g->len = len;
        memcpy(g->data, buf, len);
        list_append(&s->inbox, &g->link);
        waitq_wake_all(&s->changed);
    }
    return 0;
}

/* ---- The world ---- */

static uint64_t loop_now_ns(struct reactor *r)
{
    return test_world_ops.now_ns(r);
}
static void loop_random(struct reactor *r, void *buf, size_t len)
{
    test_world_ops.random(r, buf, len);
}
static void loop_wait(struct reactor *r, uint64_t deadline_ns)
{
    test_world_ops.wait(r, deadline_ns);
}
static void loop_wake(struct reactor *r)
{
    test_world_ops.wake(r);
}
static uint32_t loop_pick(struct reactor *r, uint32_t ready_count)
{
    return test_world_ops.pick(r, ready_count);
}

const struct world_ops loop_world_ops = {
    .name = "loop",
    .now_ns = loop_now_ns,
    .wall_ns = loop_now_ns,
    .random = loop_random,
    .wait = loop_wait,
    .wake = loop_wake,
    .pick = loop_pick,
    .listener_open = loop_listen,
    .listener_close = loop_listener_close,
    .listener_accept = loop_accept,
    .stream_connect = loop_connect,
    .stream_recvv = loop_recvv,
    .stream_sendv = loop_sendv,
    .stream_shutdown = loop_shutdown,
    .stream_close = loop_close,
    .datagram_open = loop_datagram_open,
    .datagram_close = loop_datagram_close,
    .datagram_recv = loop_datagram_recv,
    .datagram_send = loop_datagram_send,
};

void loop_world_init(struct loop_world *w)
{
    memset(w, 0, sizeof(*w));
    test_world_init(&w->base);
    list_init(&w->listeners);
    list_init(&w->sockets);
    w->peer_ip = "127.0.0.1";
    w->pipe_bytes = 64 * KIB;
}

void loop_world_done(struct loop_world *w)
{
    assert(list_empty(&w->listeners) && list_empty(&w->sockets));
    test_world_done(&w->base);
}

void loop_run(struct loop_world *w, uint64_t memory_bytes, void (*fn)(void *arg), void *arg)
{
    struct memory_budget budget = {.limit_bytes = memory_bytes};
    struct reactor_options o = {
        .world = &loop_world_ops, .world_ctx = w, .budget = &budget, .chunk_bytes = MIB};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    assert(err == 0);
    err = reactor_spawn(r, "test", fn, arg);
    assert(err == 0);
    reactor_stop(r);
    err = reactor_run(r);
    assert(err == 0);
    memory_check(reactor_memory(r));
    uint64_t used, held;
    memory_usage(reactor_memory(r), &used, &held);
    assert(used == 0);
    assert(w->streams == 0);
    reactor_free(r);
}
