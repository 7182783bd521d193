/* SPDX-License-Identifier: Apache-2.0 */
/* UDP sockets of the real world. Receiving waits in the ring; sending is a plain system call, since a
 * datagram that finds no room is lost like any other. */
#include "runtime/error.h"
#include "runtime/network.h"
#include "runtime/world_real_internal.h"

#include <stdlib.h>
#include <unistd.h>

struct real_datagram {
    struct datagram_socket base;
    int fd;
    int family;
};

static struct real_datagram *real_datagram_of(struct datagram_socket *d)
{
    return CONTAINER_OF(d, struct real_datagram, base);
}

static int datagram_bind(struct real_datagram *d, const union socket_address *sa, socklen_t len)
{
    char ip[48];
    union socket_address bound;
    socklen_t bound_len = sizeof(bound);
    d->family = sa->any.sa_family;
    d->fd = socket(d->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (d->fd < 0)
        return ERR_SYS(errno);
    if (bind(d->fd, &sa->any, len) != 0 || getsockname(d->fd, &bound.any, &bound_len) != 0) {
        int err = ERR_SYS(errno);
        close(d->fd);
        return err;
    }
    real_address_print("udp", &bound, d->base.address, sizeof(d->base.address), ip);
    return 0;
}

int real_datagram_open(struct reactor *r, const char *address, struct datagram_socket **ret)
{
    struct address a;
    union socket_address sa;
    socklen_t len;
    int err = address_parse(address, &a);
    if (err == 0 && a.kind != ADDRESS_UDP)
        err = ERR_INVALID;
    if (err == 0)
        err = real_address_resolve(&a, &sa, &len);
    if (err != 0)
        return err;
    struct real_datagram *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return ERR_NO_MEMORY;
    d->base.reactor = r;
    err = datagram_bind(d, &sa, len);
    if (err != 0) {
        free(d);
        return err;
    }
    *ret = &d->base;
    return 0;
}

void real_datagram_close(struct datagram_socket *base)
{
    struct real_datagram *d = real_datagram_of(base);
    close(d->fd);
    free(d);
}

int real_datagram_recv(struct datagram_socket *base, void *buf, size_t size, uint64_t deadline_ns,
                       size_t *ret_len, char *from)
{
    struct real_datagram *d = real_datagram_of(base);
    struct real_world *w = real_world_of(d->base.reactor);
    union socket_address peer = {.any.sa_family = AF_UNSPEC};
    struct iovec iov = {buf, size};
    struct msghdr m = {.msg_name = &peer, .msg_namelen = sizeof(peer), .msg_iov = &iov, .msg_iovlen = 1};
    struct real_op op;
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_recvmsg(sqe, d->fd, &m, 0);
    real_op_queue(&op, sqe);
    int err = real_op_wait(w, &op, "receive datagram", deadline_ns);
    if (err != 0)
        return err;
    if (op.result < 0)
        return ERR_SYS(-op.result);
    char ip[48];
    real_address_print("udp", &peer, from, WORLD_ADDRESS_SIZE, ip);
    *ret_len = (size_t)op.result;
    return 0;
}

/* Numbers only, in the socket's own family. */
static int address_read(const struct real_datagram *d, const char *text, union socket_address *ret,
                        socklen_t *ret_len)
{
    struct address a;
    uint8_t ip[16];
    int err = address_parse(text, &a);
    if (err == 0 && a.kind != ADDRESS_UDP)
        err = ERR_INVALID;
    if (err == 0)
        err = network_address_parse(a.host, ip);
    if (err != 0)
        return err;
    uint16_t port = htons((uint16_t)strtoul(a.port, NULL, 10));
    if (d->family == AF_INET6) {
        *ret = (union socket_address){.v6 = {.sin6_family = AF_INET6, .sin6_port = port}};
        memcpy(&ret->v6.sin6_addr, ip, sizeof(ip));
        *ret_len = sizeof(ret->v6);
        return 0;
    }
    *ret = (union socket_address){.v4 = {.sin_family = AF_INET, .sin_port = port}};
    memcpy(&ret->v4.sin_addr, ip + 12, 4);
    *ret_len = sizeof(ret->v4);
    return 0;
}

int real_datagram_send(struct datagram_socket *base, const char *to, const void *buf, size_t len)
{
    struct real_datagram *d = real_datagram_of(base);
    union socket_address sa = {.any.sa_family = AF_UNSPEC};
    socklen_t sa_len;
    int err = address_read(d, to, &sa, &sa_len);
    if (err != 0)
        return err;
    ssize_t n = sendto(d->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL, &sa.any, sa_len);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return ERR_SYS(errno);
    return 0;
}
