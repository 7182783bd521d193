/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's listener and connections: one fiber accepts, one fiber serves each connection, request
 * by request. A client that sends garbage gets an error and loses its connection; one that is silent for long
 * or does not read its replies is dropped.
 */
#include "control/control_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define CONNECTIONS_MAX 64u
#define IDLE_NS         (600 * NSEC_PER_SEC) /* between requests */
#define SEND_NS         (30 * NSEC_PER_SEC)
#define READY_NS        (120 * NSEC_PER_SEC) /* how long a command waits for a node that starts */

struct control_server {
    struct node *node;
    struct listener *listener;
    struct fiber *acceptor;
    struct list connections;
    uint32_t count;
    bool stopping;
    struct waitq changed;
};

struct connection {
    struct list link;
    struct control_server *server;
    struct stream *stream;
    size_t have; /* bytes in line */
    char line[CONTROL_LINE_MAX + 1];
};

/* ---- What handlers use ---- */

int control_fail(struct control_call *call, int err, const char *hint, const char *fmt, ...)
{
    char text[CONTROL_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    control_error_set(&call->error, err, hint, "%s", text);
    return err;
}

int control_fail_err(struct control_call *call, int err, const char *what)
{
    return control_fail(call, err, "", "%s: %s", what, error_text(err));
}

static int send_line(struct stream *s, char *line) may_yield
{
    if (line == NULL)
        return ERR_NO_MEMORY;
    int r = stream_send_all(s, line, strlen(line), reactor_now_ns() + SEND_NS);
    free(line);
    return r;
}

int control_send(struct control_call *call, const char *key, json_t *value)
{
    return send_line(call->stream, control_line_encode(key, value));
}

int control_pause(struct control_call *call, uint64_t duration_ns)
{
    /* Waiting for bytes is how a client that leaves is noticed. It has nothing to say while it waits for its
     * answer: bytes that come all the same are a broken client's. */
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    size_t got;
    if (*call->stopping)
        return ERR_SHUTDOWN;
    int r = stream_recvv(call->stream, &iov, 1, reactor_now_ns() + duration_ns, &got);
    if (*call->stopping)
        return ERR_SHUTDOWN;
    if (r == ERR_TIMEOUT)
        return 0;
    return r < 0 ? r : ERR_PROTOCOL;
}

/* ---- One request ---- */

static int wait_ready(struct control_call *call) may_yield
{
    uint64_t deadline = reactor_now_ns() + READY_NS;
    while (call->node->state == NODE_STARTING || call->node->state == NODE_OPENING) {
        int r = waitq_wait(&call->node->changed, deadline);
        if (r == ERR_TIMEOUT)
            return control_fail(call, ERR_NODE_NOT_READY,
                                "Try again later; `ashlar status` shows how far it is.",
                                "the node is still %s", node_state_name(call->node->state));
        if (r < 0)
            return control_fail_err(call, ERR_SHUTDOWN, "not done");
    }
    if (call->node->state == NODE_STOPPING)
        return control_fail_err(call, ERR_SHUTDOWN, "not done");
    return 0;
}

static int request_run(struct control_call *call, const char *line, size_t len, json_t **ret_result) may_yield
{
    json_t *request = NULL;
    int r = control_request_parse(line, len, &request, &call->error);
    if (r < 0)
        return r;
    const char *name = json_string_value(json_object_get(request, "cmd"));
    const struct control_command *c = control_command_find(name);
    if (c == NULL)
        r = control_fail(call, ERR_CONTROL_REQUEST, "The node may be of another version than the client.",
                         "there is no command \"%.40s\"", name);
    if (r == 0)
        r = control_args_check(request, c->args, &call->error);
    if (r == 0 && (c->flags & CONTROL_ANYTIME) == 0)
        r = wait_ready(call);
    if (r == 0)
        r = c->handler(call, request, ret_result);
    json_decref(request);
    return r;
}

/* False: the connection ends. */
static bool request_serve(struct connection *c, size_t len) may_yield
{
    struct control_call call = {
        .node = c->server->node, .stream = c->stream, .stopping = &c->server->stopping};
    json_t *result = NULL;
    int r = request_run(&call, c->line, len, &result);
    if (r == 0)
        return send_line(c->stream, control_result_encode(result)) == 0;
    json_decref(result);
    if (call.error.code[0] == '\0')
        control_error_set(&call.error, r, "", "%s", error_text(r));
    return send_line(c->stream, control_error_encode(&call.error)) == 0 && r != ERR_CONTROL_REQUEST;
}

/* ---- One connection ---- */

static void connection_serve(struct connection *c) may_yield
{
    while (!c->server->stopping) {
        char *end = memchr(c->line, '\n', c->have);
        if (end != NULL) {
            size_t len = (size_t)(end - c->line);
            if (len > 0 && !request_serve(c, len))
                return;
            c->have -= len + 1;
            memmove(c->line, end + 1, c->have);
            continue;
        }
        if (c->have == sizeof(c->line)) {
            (void)request_serve(c, c->have); /* answers that it is too long */
            return;
        }
        struct iovec iov = {.iov_base = c->line + c->have, .iov_len = sizeof(c->line) - c->have};
        size_t got = 0;
        if (stream_recvv(c->stream, &iov, 1, reactor_now_ns() + IDLE_NS, &got) < 0)
            return;
        c->have += got;
    }
}

static void connection_run(void *arg) may_yield
{
    struct connection *c = arg;
    struct control_server *s = c->server;
    connection_serve(c);
    stream_close(c->stream);
    list_remove(&c->link);
    free(c);
    s->count--;
    waitq_wake_all(&s->changed);
}

static void connection_refuse(struct stream *stream, const char *why) may_yield
{
    struct control_error e;
    control_error_set(&e, ERR_NODE_NOT_READY, "Try again later.", "%s", why);
    char *line = control_error_encode(&e);
    if (line != NULL && stream_send_all(stream, line, strlen(line), reactor_now_ns() + NSEC_PER_SEC) < 0)
        LOG_DEBUG("a client that was refused is gone");
    free(line);
    stream_close(stream);
}

static void accept_run(void *arg) may_yield
{
    struct control_server *s = arg;
    while (!s->stopping) {
        struct stream *stream = NULL;
        int r = listener_accept(s->listener, &stream);
        if (r == ERR_CLOSED || r == ERR_CANCELLED)
            return;
        if (r < 0) { /* too many open files: some will be closed */
            if (fiber_sleep(100 * NSEC_PER_MSEC) < 0)
                return;
            continue;
        }
        struct connection *c = s->count < CONNECTIONS_MAX ? malloc(sizeof(*c)) : NULL;
        if (c == NULL) {
            connection_refuse(stream, "too many clients use the control socket");
            continue;
        }
        c->server = s;
        c->stream = stream;
        c->have = 0;
        if (fiber_spawn("control", connection_run, c) < 0) {
            free(c);
            connection_refuse(stream, "the node is overloaded");
            continue;
        }
        s->count++;
        list_append(&s->connections, &c->link);
    }
}

int control_server_start(struct node *n, const char *path, struct control_server **ret,
                         struct control_error *e)
{
    char address[NODE_PATH_MAX + 16];
    snprintf(address, sizeof(address), "unix:%s", path);
    struct control_server *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        control_error_set(e, ERR_NO_MEMORY, "", "%s", error_text(ERR_NO_MEMORY));
        return ERR_NO_MEMORY;
    }
    s->node = n;
    list_init(&s->connections);
    waitq_init(&s->changed);
    int r = listener_open(address, &s->listener);
    if (r < 0) {
        control_error_set(e, r,
                          strlen(path) > 100
                              ? "The path of a Unix socket may have at most 107 bytes: give a "
                                "shorter --dir."
                              : "Another ashlard may run there, or the folder is not writable.",
                          "the control socket %s cannot be opened: %s", path, error_text(r));
        free(s);
        return r;
    }
    if (chmod(path, 0660) < 0)
        LOG_WARNING("the mode of %s could not be set: %s", path, strerror(errno));
    r = fiber_spawn_joinable("control-accept", accept_run, s, &s->acceptor);
    if (r < 0) {
        listener_close(s->listener);
        free(s);
        control_error_set(e, r, "", "%s", error_text(r));
        return r;
    }
    *ret = s;
    return 0;
}

void control_server_stop(struct control_server *s)
{
    s->stopping = true;
    listener_close(s->listener);
    fiber_cancel(s->acceptor);
    fiber_join(s->acceptor);
    LIST_FOREACH (&s->connections, it) {
        stream_shutdown(CONTAINER_OF(it, struct connection, link)->stream);
    }
    while (s->count > 0)
        if (waitq_wait(&s->changed, DEADLINE_NEVER) == ERR_CANCELLED)
            fiber_yield();
    free(s);
}
