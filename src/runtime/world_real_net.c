/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the real world.
 *
 * Sockets are in blocking mode (the ring answers EAGAIN at once for non-blocking ones) and direct calls say
 * MSG_DONTWAIT. Sending tries the direct call first: there is nearly always room, and the fiber goes on
 * without a turn of the loop. Receiving goes through the ring, except when the last receive left something in
 * the socket; then a direct call is right most times. After RECV_DIRECT_MAX direct ones the ring is taken all
 * the same, so that one busy client does not keep the reactor to itself.
 */
#include "runtime/error.h"
#include "runtime/world_real_internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_BACKLOG  1024
#define RECV_DIRECT_MAX 8

struct real_listener {
    struct listener base;
    int fd;
    bool closed;
    bool accepting;        /* a fiber is inside accept; it frees the listener if closed meanwhile */
    struct real_op *op;    /* of that fiber */
    char unlink_path[108]; /* Unix socket's file, or "" */
};

struct real_stream {
    struct stream base;
    int fd;
    bool shut;        /* stream_shutdown() was called */
    bool more_likely; /* the last receive left data in the socket */
    uint8_t direct_receives;
};

static struct real_stream *real_stream_of(struct stream *s)
{
    return CONTAINER_OF(s, struct real_stream, base);
}

static struct real_listener *real_listener_of(struct listener *l)
{
    return CONTAINER_OF(l, struct real_listener, base);
}

/* Ends of a connection look alike to everybody above, however they came about. */
static int net_error(int e)
{
    switch (e) {
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case ESHUTDOWN:
        return ERR_CLOSED;
    case ECANCELED:
        return ERR_CANCELLED;
    default:
        return ERR_SYS(e);
    }
}

/* ---- Addresses ---- */

struct resolve_job {
    const struct address *address;
    int flags;
    struct addrinfo *list;
};

static int resolve_run(void *arg)
{
    struct resolve_job *j = arg;
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = j->address->kind == ADDRESS_UDP ? SOCK_DGRAM : SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | j->flags};
    int rc = getaddrinfo(j->address->host, j->address->port, &hints, &j->list);
    if (rc == 0)
        return 0;
    return rc == EAI_SYSTEM ? ERR_SYS(errno) : rc == EAI_MEMORY ? ERR_NO_MEMORY : ERR_SYS(EADDRNOTAVAIL);
}

int real_address_resolve(const struct address *a, union socket_address *ret, socklen_t *ret_len)
{
    if (a->kind == ADDRESS_UNIX) {
        *ret = (union socket_address){.un.sun_family = AF_UNIX};
        static_assert(sizeof(ret->un.sun_path) == sizeof(a->path), "a path that parsed fits");
        memcpy(ret->un.sun_path, a->path, sizeof(a->path));
        *ret_len = sizeof(ret->un);
        return 0;
    }
    struct resolve_job j = {.address = a, .flags = AI_NUMERICHOST};
    int err = resolve_run(&j);
    if (err != 0) {
        j.flags = AI_ADDRCONFIG;
        err = reactor_block(resolve_run, &j);
    }
    if (err != 0)
        return err;
    assert(j.list->ai_addrlen <= sizeof(*ret));
    memcpy(ret, j.list->ai_addr, j.list->ai_addrlen);
    *ret_len = j.list->ai_addrlen;
    freeaddrinfo(j.list);
    return 0;
}

void real_address_print(const char *kind, const union socket_address *sa, char *out, size_t size, char ip[48])
{
    uint16_t port = 0;
    ip[0] = '\0';
    if (sa->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &sa->v4.sin_addr, ip, 48);
        port = ntohs(sa->v4.sin_port);
        snprintf(out, size, "%s:%s:%u", kind, ip, port);
    } else if (sa->any.sa_family == AF_INET6) {
        port = ntohs(sa->v6.sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&sa->v6.sin6_addr)) {
            inet_ntop(AF_INET, &sa->v6.sin6_addr.s6_addr[12], ip, 48);
            snprintf(out, size, "%s:%s:%u", kind, ip, port);
        } else {
            inet_ntop(AF_INET6, &sa->v6.sin6_addr, ip, 48);
            snprintf(out, size, "%s:[%s]:%u", kind, ip, port);
        }
    } else {
        snprintf(out, size, "unix:");
    }
}

static void socket_tune(int fd, int family)
{
    int on = 1, idle = 60, interval = 10, count = 6;
    if (family == AF_UNIX)
        return;
    /* Wishes: a connection works without them, only worse. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* finds peers that lost their power */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

/* Takes fd: it is closed if this fails. */
static int stream_new(struct reactor *r, int fd, const union socket_address *peer, struct stream **ret)
{
    struct real_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        close(fd);
        return ERR_NO_MEMORY;
    }
    s->base.reactor = r;
    s->base.ops = r->ops;
    s->fd = fd;
    socket_tune(fd, peer->any.sa_family);
    real_address_print("tcp", peer, s->base.peer, sizeof(s->base.peer), s->base.peer_ip);
    *ret = &s->base;
    return 0;
}

/* ---- Listeners ---- */

/* A socket file that nobody listens on is left over from a process that died. */
static bool unix_socket_is_stale(const union socket_address *sa, socklen_t len)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool stale = connect(fd, &sa->any, len) != 0 && errno == ECONNREFUSED;
    close(fd);
    return stale;
}

static int listener_bind(int fd, const union socket_address *sa, socklen_t len)
{
    int on = 1;
    if (sa->any.sa_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    int rc = bind(fd, &sa->any, len);
    if (rc != 0 && errno == EADDRINUSE && sa->any.sa_family == AF_UNIX && unix_socket_is_stale(sa, len)) {
        unlink(sa->un.sun_path);
        rc = bind(fd, &sa->any, len);
    }
    if (rc != 0 || listen(fd, LISTEN_BACKLOG) != 0)
        return ERR_SYS(errno);
    return 0;
}

int real_listener_open(struct reactor *r, const char *address, struct listener **ret)
{
    struct address a;
    union socket_address sa;
    socklen_t len;
    int err = address_parse(address, &a);
    if (err == 0 && a.kind == ADDRESS_UDP)
        err = ERR_INVALID;
    if (err == 0)
        err = real_address_resolve(&a, &sa, &len);
    if (err != 0)
        return err;
    struct real_listener *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return ERR_NO_MEMORY;
    l->fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    err = l->fd < 0 ? ERR_SYS(errno) : listener_bind(l->fd, &sa, len);
    if (err != 0) {
        if (l->fd >= 0)
            close(l->fd);
        free(l);
        return err;
    }
    l->base.reactor = r;
    l->base.ops = r->ops;
    if (a.kind == ADDRESS_UNIX) {
        memcpy(l->unlink_path, a.path, sizeof(l->unlink_path));
        snprintf(l->base.address, sizeof(l->base.address), "unix:%s", a.path);
    } else {
        char ip[48];
        len = sizeof(sa);
        int rc = getsockname(l->fd, &sa.any, &len); /* the port may have been chosen by the kernel */
        assert(rc == 0);
        real_address_print("tcp", &sa, l->base.address, sizeof(l->base.address), ip);
    }
    *ret = &l->base;
    return 0;
}

static void listener_free(struct real_listener *l)
{
    close(l->fd);
    free(l);
}

void real_listener_close(struct listener *listener)
{
    struct real_listener *l = real_listener_of(listener);
    assert(!l->closed);
    l->closed = true;
    if (l->unlink_path[0] != '\0')
        unlink(l->unlink_path);
    if (!l->accepting) {
        listener_free(l);
        return;
    }
    struct io_uring_sqe *sqe = real_sqe(real_world_of(l->base.reactor));
    io_uring_prep_cancel64(sqe, (uintptr_t)l->op | TAG_OP, 0);
    io_uring_sqe_set_data64(sqe, TAG_IGNORE);
}

int real_listener_accept(struct listener *listener, struct stream **ret)
{
    struct real_listener *l = real_listener_of(listener);
    struct reactor *r = l->base.reactor;
    struct real_world *w = real_world_of(r);
    assert(!l->accepting && !l->closed);
    union socket_address peer = {.any.sa_family = AF_UNSPEC};
    socklen_t len = sizeof(peer);
    struct real_op op;
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_accept(sqe, l->fd, &peer.any, &len, SOCK_CLOEXEC);
    real_op_queue(&op, sqe);
    l->accepting = true;
    l->op = &op;
    int err = real_op_wait(w, &op, "accept", DEADLINE_NEVER);
    l->accepting = false;
    if (l->closed) {
        if (op.result >= 0)
            close(op.result);
        listener_free(l);
        return ERR_CLOSED;
    }
    if (err != 0)
        return err;
    if (op.result < 0)
        return ERR_SYS(-op.result); /* ECONNABORTED too: the listener is well, the caller comes again */
    return stream_new(r, op.result, &peer, ret);
}

/* ---- Connecting ---- */

int real_stream_connect(struct reactor *r, const char *address, uint64_t deadline_ns, struct stream **ret)
{
    struct real_world *w = real_world_of(r);
    struct address a;
    union socket_address sa;
    socklen_t len;
    int err = address_parse(address, &a);
    if (err == 0 && a.kind == ADDRESS_UDP)
        err = ERR_INVALID;
    if (err == 0)
        err = real_address_resolve(&a, &sa, &len);
    if (err != 0)
        return err;
    int fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ERR_SYS(errno);
    struct real_op op;
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_connect(sqe, fd, &sa.any, len);
    real_op_queue(&op, sqe);
    err = real_op_wait(w, &op, "connect", deadline_ns);
    if (err == 0 && op.result < 0)
        err = ERR_SYS(-op.result);
    if (err != 0) {
        close(fd);
        return err;
    }
    return stream_new(r, fd, &sa, ret);
}

/* ---- Data ---- */

static int stream_entry_check(const struct real_stream *s)
{
    if (s->shut)
        return ERR_CLOSED;
    const struct fiber *f = s->base.reactor->running;
    return f->cancelled && f->shield == 0 ? ERR_CANCELLED : 0;
}

static ssize_t recv_direct(struct real_stream *s, const struct iovec *iov, uint32_t n)
{
    if (n == 1)
        return recv(s->fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT);
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = n};
    return recvmsg(s->fd, &m, MSG_DONTWAIT);
}

static size_t iov_bytes(const struct iovec *iov, uint32_t n)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

int real_stream_recvv(struct stream *stream, const struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                      size_t *ret_len)
{
    struct real_stream *s = real_stream_of(stream);
    struct real_world *w = real_world_of(s->base.reactor);
    int err = stream_entry_check(s);
    if (err != 0)
        return err;
    size_t want = iov_bytes(iov, n);
    assert(want > 0);
    if (s->more_likely && s->direct_receives++ < RECV_DIRECT_MAX) {
        ssize_t got = recv_direct(s, iov, n);
        if (got > 0) {
            s->more_likely = (size_t)got == want;
            *ret_len = (size_t)got;
            return 0;
        }
        if (got == 0)
            return ERR_CLOSED;
        if (errno != EAGAIN && errno != EINTR)
            return net_error(errno);
    }
    s->direct_receives = 0;
    struct real_op op;
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = n};
    do {
        struct io_uring_sqe *sqe = real_sqe(w);
        if (n == 1)
            io_uring_prep_recv(sqe, s->fd, iov->iov_base, iov->iov_len, 0);
        else
            io_uring_prep_recvmsg(sqe, s->fd, &m, 0);
        real_op_queue(&op, sqe);
        err = real_op_wait(w, &op, "receive", deadline_ns);
    } while (err == 0 && op.result == -EINTR);
    if (err == 0 && s->shut)
        err = ERR_CLOSED;
    if (err != 0)
        return err;
    if (op.result <= 0)
        return op.result == 0 ? ERR_CLOSED : net_error(-op.result);
    s->more_likely = (op.flags & IORING_CQE_F_SOCK_NONEMPTY) != 0 || (size_t)op.result == want;
    *ret_len = (size_t)op.result;
    return 0;
}

/* Takes len sent bytes off the front of the vector. */
static void iov_advance(struct iovec **iov, uint32_t *n, size_t len)
{
    while (*n > 0 && len >= (*iov)->iov_len) {
        len -= (*iov)->iov_len;
        ++*iov;
        --*n;
    }
    if (len > 0) {
        assert(*n > 0);
        (*iov)->iov_base = (char *)(*iov)->iov_base + len;
        (*iov)->iov_len -= len;
    }
}

/* Through the ring, which waits for room; the kernel goes on by itself until all is sent. */
static may_yield int send_by_ring(struct real_stream *s, struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                                  size_t *ret_len)
{
    struct real_world *w = real_world_of(s->base.reactor);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    struct real_op op;
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_sendmsg(sqe, s->fd, &m, MSG_NOSIGNAL | MSG_WAITALL);
    real_op_queue(&op, sqe);
    int err = real_op_wait(w, &op, "send", deadline_ns);
    if (err == 0 && s->shut)
        err = ERR_CLOSED;
    if (err != 0)
        return err;
    if (op.result < 0 && op.result != -EINTR)
        return net_error(-op.result);
    *ret_len = op.result > 0 ? (size_t)op.result : 0;
    return 0;
}

int real_stream_sendv(struct stream *stream, struct iovec *iov, uint32_t n, uint64_t deadline_ns)
{
    struct real_stream *s = real_stream_of(stream);
    int err = stream_entry_check(s);
    if (err != 0)
        return err;
    iov_advance(&iov, &n, 0); /* empty elements at the front */
    while (n > 0) {
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
        ssize_t sent = sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        size_t len = sent > 0 ? (size_t)sent : 0;
        if (sent < 0 && errno == EAGAIN)
            err = send_by_ring(s, iov, n, deadline_ns, &len);
        else if (sent < 0 && errno != EINTR)
            err = net_error(errno);
        if (err != 0)
            return err;
        iov_advance(&iov, &n, len);
    }
    return 0;
}

void real_stream_shutdown(struct stream *stream)
{
    struct real_stream *s = real_stream_of(stream);
    if (s->shut)
        return;
    s->shut = true;
    shutdown(s->fd, SHUT_RDWR); /* what waits in the ring comes back; that it failed is fine, too */
}

void real_stream_close(struct stream *stream)
{
    struct real_stream *s = real_stream_of(stream);
    close(s->fd);
    free(s);
}

int real_stream_detach(struct stream *stream, int *ret_handle)
{
    struct real_stream *s = real_stream_of(stream);
    if (s->shut)
        return ERR_CLOSED;
    *ret_handle = s->fd;
    free(s);
    return 0;
}

int real_stream_attach(struct reactor *r, int handle, struct stream **ret)
{
    union socket_address peer = {.any.sa_family = AF_UNIX};
    socklen_t len = sizeof(peer);
    if (getpeername(handle, &peer.any, &len) != 0) {
        int err = net_error(errno);
        close(handle);
        return err;
    }
    return stream_new(r, handle, &peer, ret);
}
