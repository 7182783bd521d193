/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the server
 *
 * Home is the reactor on which the server was started. The registry of exports lives there, listeners accept
 * there, and each new connection is greeted there (nbd_greeter.c) until it has chosen an export. Then it
 * moves to the shard of the export: the connections of the reactor that has the volume.
 *
 *    listener -> greeter (home) --NBD_OPT_GO--> hand over -> connection (shard)
 *
 * Invariants
 *  N1  An export is freed only when nobody at home holds it (look-ups and hand-overs, which wait for other
 *      reactors) and no connection at its shard uses it. Who holds it has found it in the list; removing
 * takes it off the list first. N2  A shard lives as long as the server.
 */
#include "protocols/nbd/nbd_server_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define REACTOR_BYTES_MIN (40 * MIB)
#define ACCEPT_PAUSE      (20 * NSEC_PER_MSEC)
#define WARN_PAUSE        (10 * NSEC_PER_SEC)

#define DEFAULT(field, value)   \
    do {                        \
        if (l->field == 0)      \
            l->field = (value); \
    } while (0)

static void limits_fill_in(struct nbd_limits *l)
{
    DEFAULT(connections, 1024);
    DEFAULT(handshakes, 128);
    DEFAULT(handshake_ns, 10 * NSEC_PER_SEC);
    DEFAULT(requests, 256);
    DEFAULT(connection_bytes, 16 * MIB);
    DEFAULT(reactor_bytes, 64 * MIB);
    DEFAULT(stall_ns, 10 * NSEC_PER_SEC);
    DEFAULT(drain_ns, 5 * NSEC_PER_SEC);
    l->reactor_bytes = MAX(l->reactor_bytes, REACTOR_BYTES_MIN); /* the longest request must fit */
}

int nbd_server_start(const struct nbd_server_options *o, struct nbd_server **ret)
{
    struct nbd_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    s->home = reactor_current();
    s->limits = o->limits;
    limits_fill_in(&s->limits);
    list_init(&s->listeners);
    list_init(&s->exports);
    list_init(&s->shards);
    list_init(&s->greeters);
    waitq_init(&s->greeters_changed);
    *ret = s;
    return 0;
}

/* ---- Listeners ---- */

static void listener_run(void *arg) may_yield
{
    struct nbd_listener *l = arg;
    for (;;) {
        struct stream *stream;
        int err = listener_accept(l->listener, &stream);
        if (err == ERR_CLOSED || err == ERR_CANCELLED)
            return;
        if (err == ERR_SYS(ECONNABORTED))
            continue; /* the client was gone again before its turn came */
        if (err != 0) {
            /* Out of descriptors or memory: whoever waits longest for nothing makes room. */
            if (reactor_now_ns() - l->warned_ns > WARN_PAUSE || l->warned_ns == 0)
                LOG_WARNING("nbd: %s: cannot accept: %s", listener_address(l->listener), error_text(err));
            l->warned_ns = reactor_now_ns();
            nbd_greeter_evict_oldest(l->server);
            if (fiber_sleep(ACCEPT_PAUSE) != 0)
                return;
            continue;
        }
        l->server->accepted++;
        nbd_greeter_start(l->server, l, stream);
    }
}

int nbd_server_listen(struct nbd_server *s, const struct nbd_listen_options *o)
{
    assert(reactor_current() == s->home && !s->stopping);
    assert((o->tls == NBD_TLS_NONE) == (o->tls_context == NULL));
    struct nbd_listener *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return ERR_NO_MEMORY;
    l->server = s;
    l->tls = o->tls;
    l->tls_context = o->tls_context;
    int err = listener_open(o->address, &l->listener);
    if (err != 0) {
        free(l);
        return err;
    }
    err = fiber_spawn_joinable("nbd listener", listener_run, l, &l->fiber);
    if (err != 0) {
        listener_close(l->listener);
        free(l);
        return err;
    }
    list_append(&s->listeners, &l->link);
    return 0;
}

const char *nbd_server_address(const struct nbd_server *s, uint32_t index)
{
    LIST_FOREACH (&s->listeners, l) {
        if (index-- == 0)
            return listener_address(CONTAINER_OF(l, struct nbd_listener, link)->listener);
    }
    return NULL;
}

static void close_listeners(struct nbd_server *s) may_yield
{
    for (struct list *link; (link = list_pop(&s->listeners)) != NULL;) {
        struct nbd_listener *l = CONTAINER_OF(link, struct nbd_listener, link);
        fiber_cancel(l->fiber);
        fiber_join(l->fiber);
        listener_close(l->listener);
        free(l);
    }
}

/* ---- Shards ---- */

static void shard_free_messages(struct nbd_shard *shard)
{
    for (struct list *l; (l = list_pop(&shard->free_messages)) != NULL;)
        free(CONTAINER_OF(l, struct nbd_message, link));
}

static int shard_get(struct nbd_server *s, struct reactor *r, struct nbd_shard **ret)
{
    LIST_FOREACH (&s->shards, l) {
        struct nbd_shard *shard = CONTAINER_OF(l, struct nbd_shard, link);
        if (shard->reactor == r) {
            *ret = shard;
            return 0;
        }
    }
    struct nbd_shard *shard = calloc(1, sizeof(*shard));
    if (shard == NULL)
        return ERR_NO_MEMORY;
    shard->server = s;
    shard->reactor = r;
    list_init(&shard->connections);
    list_init(&shard->free_messages);
    waitq_init(&shard->room);
    list_append(&s->shards, &shard->link);
    *ret = shard;
    return 0;
}

/* ---- Exports ---- */

struct nbd_export *nbd_server_find(const struct nbd_server *s, const char *name, size_t len)
{
    LIST_FOREACH (&s->exports, l) {
        struct nbd_export *e = CONTAINER_OF(l, struct nbd_export, link);
        if (strlen(e->name) == len && memcmp(e->name, name, len) == 0)
            return e;
    }
    return NULL;
}

void nbd_export_hold(struct nbd_export *e)
{
    assert(e->holds < UINT32_MAX);
    e->holds++;
}

void nbd_export_release(struct nbd_export *e)
{
    assert(e->holds > 0);
    if (--e->holds == 0)
        waitq_wake_all(&e->released);
}

int nbd_server_add_export(struct nbd_server *s, const struct nbd_export_options *o)
{
    assert(reactor_current() == s->home && !s->stopping);
    size_t len = strlen(o->name);
    if (len == 0 || len > NBD_EXPORT_NAME_MAX)
        return ERR_INVALID;
    if (nbd_server_find(s, o->name, len) != NULL)
        return ERR_EXISTS;
    struct nbd_export *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return ERR_NO_MEMORY;
    int err = network_list_parse(o->allow != NULL ? o->allow : "", &e->acl);
    if (err == 0)
        err = shard_get(s, block_reactor(o->device), &e->shard);
    if (err != 0) {
        free(e);
        return err;
    }
    memcpy(e->name, o->name, len);
    if (o->description != NULL)
        memcpy(e->description, o->description, strnlen(o->description, NBD_DESCRIPTION_MAX));
    e->read_only = o->read_only;
    e->device = o->device;
    waitq_init(&e->released);
    waitq_init(&e->left);
    list_init(&e->connections);
    list_append(&s->exports, &e->link);
    s->export_count++;
    return 0;
}

/* At the shard: everybody out. */
static int export_drain(void *arg) may_yield
{
    struct nbd_export *e = arg;
    uint64_t until = reactor_now_ns() + e->shard->server->limits.drain_ns;
    LIST_FOREACH_SAFE (&e->connections, l)
        nbd_connection_drain(CONTAINER_OF(l, struct nbd_connection, export_link));
    fiber_shield(); /* the connections still point to the export */
    while (!list_empty(&e->connections)) {
        if (waitq_wait(&e->left, until) != ERR_TIMEOUT)
            continue;
        LIST_FOREACH_SAFE (&e->connections, l)
            nbd_connection_break(CONTAINER_OF(l, struct nbd_connection, export_link));
        until = DEADLINE_NEVER; /* what is under way in the volume must end */
    }
    fiber_unshield();
    return 0;
}

static void export_remove(struct nbd_server *s, struct nbd_export *e) may_yield
{
    list_remove(&e->link);
    s->export_count--;
    fiber_shield();
    while (e->holds > 0) { /* N1 */
        if (waitq_wait(&e->released, DEADLINE_NEVER) != 0)
            break;
    }
    assert(e->holds == 0);
    int err = reactor_call(e->shard->reactor, export_drain, e);
    fiber_unshield();
    assert(err == 0 && list_empty(&e->connections));
    free(e);
}

int nbd_server_remove_export(struct nbd_server *s, const char *name)
{
    assert(reactor_current() == s->home);
    struct nbd_export *e = nbd_server_find(s, name, strlen(name));
    if (e == NULL)
        return ERR_NOT_FOUND;
    export_remove(s, e);
    return 0;
}

/* ---- The end ---- */

void nbd_server_stop(struct nbd_server *s)
{
    assert(reactor_current() == s->home && !s->stopping);
    s->stopping = true;
    fiber_shield();
    close_listeners(s);
    while (s->greeter_count > 0) {
        nbd_greeter_shutdown_all(s);
        int err = waitq_wait(&s->greeters_changed, DEADLINE_NEVER);
        assert(err == 0);
    }
    while (!list_empty(&s->exports))
        export_remove(s, CONTAINER_OF(s->exports.next, struct nbd_export, link));
    fiber_unshield();
    for (struct list *l; (l = list_pop(&s->shards)) != NULL;) {
        struct nbd_shard *shard = CONTAINER_OF(l, struct nbd_shard, link);
        assert(list_empty(&shard->connections) && shard->admitted_bytes == 0);
        shard_free_messages(shard);
        free(shard);
    }
    free(s);
}

/* ---- Status ---- */

int nbd_server_get_export(const struct nbd_server *s, const char *name, struct nbd_export_status *ret)
{
    const struct nbd_export *e = nbd_server_find(s, name, strlen(name));
    if (e == NULL)
        return ERR_NOT_FOUND;
    memcpy(ret->name, e->name, sizeof(ret->name));
    ret->clients = __atomic_load_n(&e->clients, __ATOMIC_RELAXED);
    ret->requests = counter_get(&e->requests);
    ret->errors = counter_get(&e->errors);
    ret->bytes_in = counter_get(&e->bytes_in);
    ret->bytes_out = counter_get(&e->bytes_out);
    return 0;
}

void nbd_server_get_status(const struct nbd_server *s, struct nbd_server_status *ret)
{
    *ret = (struct nbd_server_status){
        .handshakes = s->greeter_count,
        .connections = __atomic_load_n(&s->connections, __ATOMIC_RELAXED),
        .exports = s->export_count,
        .accepted = s->accepted,
        .refused = s->refused,
        .evicted = s->evicted,
        .timed_out = s->timed_out,
    };
    LIST_FOREACH (&s->shards, l)
        ret->evicted += counter_get(&CONTAINER_OF(l, struct nbd_shard, link)->evicted);
}
