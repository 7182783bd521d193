/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the node's side
 *
 * Home is the reactor on which the server was started. The registry lives there, the listener accepts there,
 * and each new connection says hello there. Then it moves to the reactor of the file system that it named.
 *
 *    listener -> greeter (home) --hello--> hand over -> connection (reactor of the file system)
 *
 * Invariants
 *  S1  A fuse_fs is freed only when nobody at home holds it (hand-overs, which wait for the other reactor)
 * and its connections are gone. Who holds it has found it in the list; removing takes it off the list first.
 */
#include "protocols/fuse/fuse_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define ACCEPT_PAUSE (20 * NSEC_PER_MSEC)
#define WARN_PAUSE   (10 * NSEC_PER_SEC)
#define HELLO_MAX    (sizeof(struct wire_hello) + WIRE_NAME_MAX + WIRE_LABEL_MAX)

struct greeter {
    struct list link;
    struct fuse_server *server;
    struct stream *stream;
};

static struct fuse_fs *find(const struct fuse_server *s, const char *name, size_t len)
{
    LIST_FOREACH (&s->file_systems, l) {
        struct fuse_fs *f = CONTAINER_OF(l, struct fuse_fs, link);
        if (strlen(f->name) == len && memcmp(f->name, name, len) == 0)
            return f;
    }
    return NULL;
}

/* ---- Greeters ---- */

struct hand_over {
    struct fuse_fs *fs;
    const struct fuse_hello *hello;
    struct stream *stream;
    bool detached;
    int handle;
};

/* At the reactor of the file system. The stream is gone afterwards, whatever the result. */
static int hand_over_there(void *arg) may_yield
{
    struct hand_over *h = arg;
    if (h->detached) {
        int err = stream_attach(h->handle, &h->stream);
        if (err != 0)
            return err;
    }
    return fuse_connection_start(h->fs, h->hello, h->stream, NULL, 0);
}

static void refuse(struct greeter *g, int error, uint64_t deadline_ns) may_yield
{
    struct wire_welcome w = {.version = le32_make(WIRE_VERSION), .error = le32_make((uint32_t)error)};
    memcpy(w.magic, WIRE_MAGIC, WIRE_MAGIC_LEN);
    int err = stream_send_all(g->stream, &w, sizeof(w), deadline_ns);
    if (err != 0)
        LOG_DEBUG("fuse: a mount was refused and did not listen: %s", error_text(err));
}

MUST_CHECK static int hand_over(struct greeter *g, const struct fuse_hello *hello, uint64_t deadline_ns)
    may_yield
{
    struct fuse_server *s = g->server;
    struct fuse_fs *f = s->stopping ? NULL : find(s, hello->name.bytes, hello->name.len);
    if (f == NULL || __atomic_load_n(&s->connections, __ATOMIC_RELAXED) >= s->limits.connections) {
        refuse(g, f == NULL ? ENOENT : EAGAIN, deadline_ns);
        return 0;
    }
    struct hand_over h = {.fs = f, .hello = hello, .stream = g->stream, .detached = f->reactor != s->home};
    f->holds++;
    int err = h.detached ? stream_detach(g->stream, &h.handle) : 0;
    if (err == 0) {
        g->stream = NULL;
        err = reactor_call(f->reactor, hand_over_there, &h);
    }
    if (--f->holds == 0)
        waitq_wake_all(&f->released);
    return err;
}

MUST_CHECK static int greet(struct greeter *g) may_yield
{
    uint8_t bytes[HELLO_MAX];
    struct wire_hello head;
    struct fuse_hello hello;
    uint64_t deadline_ns = reactor_now_ns() + g->server->limits.greeting_ns;
    int err = stream_recv_all(g->stream, bytes, sizeof(head), deadline_ns);
    if (err != 0)
        return err;
    memcpy(&head, bytes, sizeof(head));
    uint32_t len = fuse_hello_len(&head);
    if (len == 0)
        return ERR_PROTOCOL;
    assert(len >= sizeof(head) && len <= sizeof(bytes));
    err = stream_recv_all(g->stream, bytes + sizeof(head), len - sizeof(head), deadline_ns);
    if (err != 0)
        return err;
    if (le32_get(head.version) != WIRE_VERSION) {
        refuse(g, EPROTONOSUPPORT, deadline_ns);
        return 0;
    }
    if (!fuse_hello_decode(bytes, len, &hello))
        return ERR_PROTOCOL;
    return hand_over(g, &hello, deadline_ns);
}

static void greeter_run(void *arg) may_yield
{
    struct greeter *g = arg;
    struct fuse_server *s = g->server;
    int err = greet(g);
    if (err != 0 && err != ERR_CLOSED)
        LOG_DEBUG("fuse: a greeting ended: %s", error_text(err));
    if (g->stream != NULL) {
        fiber_shield();
        stream_close(g->stream);
        fiber_unshield();
    }
    list_remove(&g->link);
    s->greeter_count--;
    waitq_wake_all(&s->greeters_changed);
    free(g);
}

static void greeter_start(struct fuse_server *s, struct stream *stream) may_yield
{
    struct greeter *g = s->greeter_count < s->limits.connections ? calloc(1, sizeof(*g)) : NULL;
    if (g != NULL) {
        g->server = s;
        g->stream = stream;
        if (fiber_spawn("fuse greeter", greeter_run, g) == 0) {
            list_append(&s->greeters, &g->link);
            s->greeter_count++;
            return;
        }
        free(g);
    }
    fiber_shield();
    stream_close(stream);
    fiber_unshield();
}

/* ---- The listener ---- */

static void listener_run(void *arg) may_yield
{
    struct fuse_server *s = arg;
    uint64_t warned_ns = 0;
    for (;;) {
        struct stream *stream;
        int err = listener_accept(s->listener, &stream);
        if (err == ERR_CLOSED || err == ERR_CANCELLED)
            return;
        if (err == 0) {
            greeter_start(s, stream);
            continue;
        }
        if (err == ERR_SYS(ECONNABORTED))
            continue; /* the client was gone again before its turn came */
        if (warned_ns == 0 || reactor_now_ns() - warned_ns > WARN_PAUSE)
            LOG_WARNING("fuse: %s: cannot accept: %s", listener_address(s->listener), error_text(err));
        warned_ns = reactor_now_ns();
        if (fiber_sleep(ACCEPT_PAUSE) != 0)
            return;
    }
}

#define DEFAULT(field, value)   \
    do {                        \
        if (l->field == 0)      \
            l->field = (value); \
    } while (0)

static void limits_fill_in(struct fuse_limits *l)
{
    DEFAULT(connections, 256);
    DEFAULT(greeting_ns, 10 * NSEC_PER_SEC);
    DEFAULT(requests, 512);
    DEFAULT(lock_waits, 1024);
    DEFAULT(connection_bytes, 16 * MIB);
    DEFAULT(away_ns, 60 * NSEC_PER_SEC);
    DEFAULT(drain_ns, 5 * NSEC_PER_SEC);
}

int fuse_server_start(const struct fuse_server_options *o, struct fuse_server **ret)
{
    struct fuse_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    s->home = reactor_current();
    s->limits = o->limits;
    limits_fill_in(&s->limits);
    list_init(&s->file_systems);
    list_init(&s->greeters);
    waitq_init(&s->greeters_changed);
    int err = listener_open(o->address, &s->listener);
    if (err != 0) {
        free(s);
        return err;
    }
    err = fiber_spawn_joinable("fuse listener", listener_run, s, &s->listener_fiber);
    if (err != 0) {
        listener_close(s->listener);
        free(s);
        return err;
    }
    *ret = s;
    return 0;
}

const char *fuse_server_address(const struct fuse_server *s)
{
    return listener_address(s->listener);
}

/* ---- File systems ---- */

static int start_there(void *arg) may_yield
{
    return fuse_sessions_start(arg);
}

static int stop_there(void *arg) may_yield
{
    fuse_sessions_stop(arg);
    return 0;
}

int fuse_server_add_fs(struct fuse_server *s, const char *name, struct fs *fs)
{
    assert(reactor_current() == s->home && !s->stopping);
    size_t len = strlen(name);
    if (len == 0 || len > FUSE_FS_NAME_MAX)
        return ERR_INVALID;
    if (find(s, name, len) != NULL)
        return ERR_EXISTS;
    struct fuse_fs *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return ERR_NO_MEMORY;
    memcpy(f->name, name, len);
    f->server = s;
    f->fs = fs;
    f->reactor = fs_reactor(fs);
    waitq_init(&f->released);
    int err = reactor_call(f->reactor, start_there, f);
    if (err != 0) {
        free(f);
        return err;
    }
    list_append(&s->file_systems, &f->link);
    return 0;
}

static void fs_remove(struct fuse_fs *f) may_yield
{
    list_remove(&f->link);
    fiber_shield();
    /* The first call ends connections, so hand-overs that wait for an older one go on; then none is left. */
    int err = reactor_call(f->reactor, stop_there, f);
    assert(err == 0);
    while (f->holds > 0) { /* S1 */
        if (waitq_wait(&f->released, DEADLINE_NEVER) != 0)
            break;
    }
    fiber_unshield();
    assert(f->holds == 0);
    free(f);
}

int fuse_server_remove_fs(struct fuse_server *s, const char *name)
{
    assert(reactor_current() == s->home);
    struct fuse_fs *f = find(s, name, strlen(name));
    if (f == NULL)
        return ERR_NOT_FOUND;
    fs_remove(f);
    return 0;
}

void fuse_server_stop(struct fuse_server *s)
{
    assert(reactor_current() == s->home && !s->stopping);
    s->stopping = true;
    fiber_shield();
    fiber_cancel(s->listener_fiber);
    fiber_join(s->listener_fiber);
    listener_close(s->listener);
    while (!list_empty(&s->file_systems))
        fs_remove(CONTAINER_OF(s->file_systems.next, struct fuse_fs, link));
    while (s->greeter_count > 0) {
        LIST_FOREACH_SAFE (&s->greeters, l) {
            struct greeter *g = CONTAINER_OF(l, struct greeter, link);
            if (g->stream != NULL)
                stream_shutdown(g->stream);
        }
        int err = waitq_wait(&s->greeters_changed, DEADLINE_NEVER);
        assert(err == 0);
    }
    fiber_unshield();
    free(s);
}

int fuse_server_get_fs(const struct fuse_server *s, const char *name, struct fuse_fs_status *ret)
{
    const struct fuse_fs *f = find(s, name, strlen(name));
    if (f == NULL)
        return ERR_NOT_FOUND;
    ret->mounts = __atomic_load_n(&f->mounts, __ATOMIC_RELAXED);
    ret->away = __atomic_load_n(&f->away, __ATOMIC_RELAXED);
    ret->opens = __atomic_load_n(&f->opens, __ATOMIC_RELAXED);
    ret->requests = counter_get(&f->requests);
    ret->invalidates = counter_get(&f->invalidates);
    return 0;
}
