/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Greeters: connections in the handshake, at home. Each has a deadline, and their number has a limit at which
 * the oldest goes: whoever opens thousands of connections and leaves them standing displaces only himself.
 */
#include "protocols/nbd/nbd_handshake.h"
#include "protocols/nbd/nbd_server_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/tls.h"

#include <stdlib.h>

#define BUFFER_PAGES     1u
#define BUFFER_PAGES_BIG 9u /* the longest option */
#define HANDOVER_MAX     (BUFFER_PAGES_BIG * BLOCK_SIZE)

static_assert(BUFFER_PAGES_BIG * BLOCK_SIZE >= NBD_OPTION_MAX + sizeof(struct nbd_option), "fits an option");
static_assert(BUFFER_PAGES_BIG <= NBD_BUFFER_PAGES_BIG, "what is left over fits into a connection's buffer");

struct greeter {
    struct list link;
    struct nbd_server *server;
    enum nbd_tls_mode tls;
    struct tls_context *tls_context;
    struct stream *stream;
    uint64_t deadline_ns;
    struct nbd_handshake handshake;
    struct nbd_handshake_env env;
    struct page *buffer;
    uint32_t buffer_pages;
    size_t start, end;
};

/* ---- What the handshake may know of exports ---- */

static bool visible(const struct greeter *g, const struct nbd_export *e)
{
    return network_list_allows(&e->acl, stream_peer_ip(g->stream));
}

static struct nbd_export *find(const struct greeter *g, const char *name, size_t len)
{
    struct nbd_export *e = nbd_server_find(g->server, name, len);
    if (e != NULL)
        return visible(g, e) ? e : NULL;
    if (len > 0)
        return NULL;
    LIST_FOREACH (&g->server->exports, l) /* the default export: the only one there is */
    {
        struct nbd_export *o = CONTAINER_OF(l, struct nbd_export, link);
        if (!visible(g, o))
            continue;
        if (e != NULL)
            return NULL;
        e = o;
    }
    return e;
}

static void describe(const struct nbd_export *e, struct nbd_export_info *ret)
{
    memcpy(ret->name, e->name, sizeof(ret->name));
    memcpy(ret->description, e->description, sizeof(ret->description));
    ret->read_only = e->read_only;
    ret->size_bytes = 0;
}

struct size_query {
    struct block_device *device;
    uint64_t size_bytes;
};

static int query_size(void *arg)
{
    struct size_query *q = arg;
    q->size_bytes = block_size_bytes(q->device);
    return 0;
}

static int lookup(void *ctx, const char *name, size_t len, struct nbd_export_info *ret) may_yield
{
    struct greeter *g = ctx;
    struct nbd_server *s = g->server;
    if (s->stopping)
        return ERR_SHUTDOWN;
    struct nbd_export *e = find(g, name, len);
    if (e == NULL)
        return ERR_NOT_FOUND;
    if (__atomic_load_n(&s->connections, __ATOMIC_RELAXED) >= s->limits.connections) {
        s->refused++;
        return ERR_TOO_MANY_CLIENTS;
    }
    struct size_query q = {.device = e->device};
    nbd_export_hold(e);
    int err = reactor_call(e->shard->reactor, query_size, &q);
    if (err == 0) {
        describe(e, ret);
        ret->size_bytes = q.size_bytes;
    }
    nbd_export_release(e);
    return err;
}

static int list(void *ctx, uint32_t index, struct nbd_export_info *ret)
{
    struct greeter *g = ctx;
    LIST_FOREACH (&g->server->exports, l) {
        struct nbd_export *e = CONTAINER_OF(l, struct nbd_export, link);
        if (!visible(g, e) || index-- > 0)
            continue;
        describe(e, ret);
        return 0;
    }
    return ERR_NOT_FOUND;
}

/* ---- Handing over ---- */

struct hand_over {
    struct nbd_export *export;
    struct nbd_session session;
    struct stream *stream; /* NULL: only the handle, a plain stream comes of it */
    bool detached;         /* handle counts; the stream, if there is one, is of TLS */
    int handle;
    uint8_t *leftover;
    size_t leftover_len;
};

/* At the shard. */
static int hand_over_there(void *arg) may_yield
{
    struct hand_over *h = arg;
    struct stream *stream = h->stream;
    int err = 0;
    if (h->detached)
        err = stream != NULL ? tls_attach(stream, h->handle) : stream_attach(h->handle, &stream);
    if (err != 0)
        return err;
    err =
        nbd_connection_start(h->export->shard, h->export, &h->session, stream, h->leftover, h->leftover_len);
    if (err != 0) {
        fiber_shield();
        stream_close(stream);
        fiber_unshield();
    }
    return err;
}

/* After GO. The stream is gone afterwards, whatever the result. */
static int hand_over(struct greeter *g) may_yield
{
    const struct nbd_export_info *chosen = &g->handshake.chosen;
    struct nbd_export *e = nbd_server_find(g->server, chosen->name, strlen(chosen->name));
    if (e == NULL || g->server->stopping)
        return ERR_NOT_FOUND; /* removed in the meantime */
    struct hand_over h = {
        .export = e,
        .session = {.size_bytes = chosen->size_bytes,
                    .read_only = e->read_only,
                    .structured = g->handshake.structured,
                    .allocation = g->handshake.allocation},
        .leftover_len = g->end - g->start,
    };
    assert(h.leftover_len <= HANDOVER_MAX);
    if (h.leftover_len > 0) {
        h.leftover = malloc(h.leftover_len); /* pages do not leave their reactor */
        if (h.leftover == NULL)
            return ERR_NO_MEMORY;
        memcpy(h.leftover, g->buffer->data + g->start, h.leftover_len);
    }
    nbd_export_hold(e);
    int err = 0;
    h.detached = e->shard->reactor != g->server->home;
    h.stream = h.detached && !g->handshake.tls_active ? NULL : g->stream;
    if (h.detached)
        err = h.stream != NULL ? tls_detach(g->stream, &h.handle) : stream_detach(g->stream, &h.handle);
    if (err == 0) {
        g->stream = NULL;
        err = reactor_call(e->shard->reactor, hand_over_there, &h);
    }
    nbd_export_release(e);
    free(h.leftover);
    return err;
}

/* ---- The dialogue ---- */

MUST_CHECK static int greeter_send(struct greeter *g) may_yield
{
    struct nbd_out *o = &g->handshake.out;
    if (o->len == 0)
        return 0;
    int err = stream_send_all(g->stream, o->data, o->len, g->deadline_ns);
    o->len = 0;
    return err;
}

/* Room for `need` bytes from start on, and at least one more from the stream. */
MUST_CHECK static int greeter_receive(struct greeter *g, size_t need) may_yield
{
    size_t size = g->buffer_pages * BLOCK_SIZE;
    if (need > size) {
        struct page *big;
        int err = page_alloc(BUFFER_PAGES_BIG, &big);
        if (err != 0)
            return err;
        memcpy(big->data, g->buffer->data + g->start, g->end - g->start);
        page_put(g->buffer, g->buffer_pages);
        g->buffer = big;
        g->buffer_pages = BUFFER_PAGES_BIG;
        g->end -= g->start;
        g->start = 0;
        size = g->buffer_pages * BLOCK_SIZE;
    } else if (need > size - g->start) {
        memmove(g->buffer->data, g->buffer->data + g->start, g->end - g->start);
        g->end -= g->start;
        g->start = 0;
    }
    assert(g->end < size);
    size_t n;
    struct iovec iov = {g->buffer->data + g->end, size - g->end};
    int err = stream_recvv(g->stream, &iov, 1, g->deadline_ns, &n);
    if (err == 0)
        g->end += n;
    return err;
}

MUST_CHECK static int greeter_start_tls(struct greeter *g) may_yield
{
    if (g->start != g->end)
        return ERR_PROTOCOL; /* what came in the clear behind the request must not count as protected */
    struct stream *protected;
    int err = tls_accept(g->tls_context, g->stream, g->deadline_ns, &protected);
    if (err == 0)
        g->stream = protected;
    return err;
}

MUST_CHECK static int greeter_talk(struct greeter *g) may_yield
{
    struct nbd_handshake *hs = &g->handshake;
    for (;;) {
        size_t consumed;
        int err = greeter_send(g);
        if (err != 0)
            return err;
        enum nbd_handshake_verdict v =
            nbd_handshake_step(hs, g->buffer->data + g->start, g->end - g->start, &consumed);
        g->start += consumed;
        switch (v) {
        case NBD_HANDSHAKE_MORE:
            err = greeter_receive(g, hs->need);
            break;
        case NBD_HANDSHAKE_AGAIN:
            break;
        case NBD_HANDSHAKE_STARTTLS:
            err = greeter_send(g);
            if (err == 0)
                err = greeter_start_tls(g);
            if (err == 0)
                nbd_handshake_tls_started(hs);
            break;
        case NBD_HANDSHAKE_GO:
            err = greeter_send(g);
            return err != 0 ? err : hand_over(g);
        case NBD_HANDSHAKE_CLOSE:
            return greeter_send(g);
        }
        if (err != 0)
            return err;
    }
}

static void greeter_run(void *arg) may_yield
{
    struct greeter *g = arg;
    struct nbd_server *s = g->server;
    int err = greeter_talk(g);
    if (err == ERR_TIMEOUT)
        s->timed_out++;
    if (err != 0 && err != ERR_CLOSED && err != ERR_TIMEOUT)
        LOG_DEBUG("nbd: handshake ended: %s", error_text(err));
    if (g->stream != NULL) {
        fiber_shield();
        stream_close(g->stream);
        fiber_unshield();
    }
    nbd_handshake_done(&g->handshake);
    page_put(g->buffer, g->buffer_pages);
    list_remove(&g->link);
    s->greeter_count--;
    waitq_wake_all(&s->greeters_changed);
    free(g);
}

/* ---- Life ---- */

void nbd_greeter_evict_oldest(struct nbd_server *s)
{
    LIST_FOREACH_SAFE (&s->greeters, l) {
        struct greeter *g = CONTAINER_OF(l, struct greeter, link);
        if (g->stream == NULL || g->deadline_ns == 0)
            continue; /* it is leaving already */
        g->deadline_ns = 0;
        s->evicted++;
        stream_shutdown(g->stream);
        return;
    }
}

void nbd_greeter_shutdown_all(struct nbd_server *s)
{
    LIST_FOREACH_SAFE (&s->greeters, l) {
        struct greeter *g = CONTAINER_OF(l, struct greeter, link);
        if (g->stream != NULL)
            stream_shutdown(g->stream);
    }
}

static struct greeter *greeter_new(struct nbd_server *s, const struct nbd_listener *l, struct stream *stream)
{
    struct greeter *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return NULL;
    if (page_alloc(BUFFER_PAGES, &g->buffer) != 0) {
        free(g);
        return NULL;
    }
    g->buffer_pages = BUFFER_PAGES;
    g->server = s;
    g->tls = l->tls;
    g->tls_context = l->tls_context;
    g->stream = stream;
    g->deadline_ns = reactor_now_ns() + s->limits.handshake_ns;
    g->env = (struct nbd_handshake_env){.ctx = g, .lookup = lookup, .list = list};
    nbd_handshake_init(&g->handshake, &g->env, g->tls);
    return g;
}

static void greeter_free(struct greeter *g)
{
    nbd_handshake_done(&g->handshake);
    page_put(g->buffer, g->buffer_pages);
    free(g);
}

void nbd_greeter_start(struct nbd_server *s, const struct nbd_listener *l, struct stream *stream)
{
    if (s->greeter_count >= s->limits.handshakes)
        nbd_greeter_evict_oldest(s);
    struct greeter *g = greeter_new(s, l, stream);
    if (g != NULL && fiber_spawn("nbd greeter", greeter_run, g) == 0) {
        list_append(&s->greeters, &g->link);
        s->greeter_count++;
        return;
    }
    if (g != NULL)
        greeter_free(g);
    s->refused++;
    fiber_shield();
    stream_close(stream);
    fiber_unshield();
}
