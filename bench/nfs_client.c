/* SPDX-License-Identifier: Apache-2.0 */
#include "nfs_client.h"

#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define REPLY_MAX (MIB + 64 * KIB) /* a READ of 1 MiB, or as much of a listing */
#define IN_SIZE   (4 * MIB)
#define MARK_SIZE 4u
/* No server takes longer: something hangs. */
#define ANSWER_MAX_MS 60000

void nfs_client_open(struct nfs_connection *c, uint16_t port, uint64_t seed, nfs_answered_fn *answered)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *c = (struct nfs_connection){.answered = answered, .sequence = (uint32_t)load_random(&seed)};
    c->last = &c->first;
    c->in = malloc(IN_SIZE);
    assert(c->in != NULL);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof(to)) != 0)
        load_fail("port %u: %s", port, strerror(errno));
    int one = 1;
    if (setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0)
        load_fail("TCP_NODELAY: %s", strerror(errno));
}

void nfs_client_close(struct nfs_connection *c)
{
    close(c->fd);
    free(c->in);
}

/* ---- Sending ---- */

void nfs_call_begin(struct nfs_connection *c, struct nfs_call *call, uint32_t program, uint32_t version,
                    uint32_t procedure)
{
    static const char machine[] = "bench";
    uint32_t slot = 0;
    while (slot < NFS_DEPTH_MAX && c->calls[slot] != NULL)
        slot++;
    assert(slot < NFS_DEPTH_MAX);
    c->calls[slot] = call;
    c->under_way++;
    call->xid = c->sequence++ << 8 | slot;
    call->out = xdr_into(call->head, sizeof(call->head));
    struct xdr_out *o = &call->out;
    xdr_put_u32(o, 0); /* the mark: nfs_call_end() */
    xdr_put_u32(o, call->xid);
    xdr_put_u32(o, RPC_CALL);
    xdr_put_u32(o, RPC_VERSION);
    xdr_put_u32(o, program);
    xdr_put_u32(o, version);
    xdr_put_u32(o, procedure);
    xdr_put_u32(o, RPC_AUTH_SYS);
    uint32_t at = o->len;
    xdr_put_u32(o, 0);
    xdr_put_u32(o, 0); /* stamp */
    xdr_put_opaque(o, machine, sizeof(machine) - 1);
    for (int i = 0; i < 3; i++) /* uid, gid, no more groups */
        xdr_put_u32(o, 0);
    xdr_set_u32(o, at, o->len - at - 4);
    xdr_put_u32(o, RPC_AUTH_NONE);
    xdr_put_u32(o, 0);
}

void nfs_call_end(struct nfs_connection *c, struct nfs_call *call, const void *data, uint32_t data_len)
{
    assert(!call->out.full && data_len % 4 == 0);
    call->data = data;
    call->data_len = data_len;
    xdr_set_u32(&call->out, 0, RPC_FRAGMENT_LAST | (call->out.len - MARK_SIZE + data_len));
    call->next = NULL;
    call->began_ns = load_now_ns();
    *c->last = call;
    c->last = &call->next;
}

/* Adds what of these bytes lies behind the first *skip. */
static size_t gather(struct iovec *iov, size_t n, const void *data, size_t len, size_t *skip)
{
    size_t gone = MIN(*skip, len);
    *skip -= gone;
    if (gone == len)
        return n;
    /* iovecs are not const, sendmsg only reads. */
    iov[n] = (struct iovec){.iov_base = (void *)((uintptr_t)data + gone), .iov_len = len - gone};
    return n + 1;
}

/* As much as the socket takes. One system call for each call, as the clients of kernels do it: sent together,
 * all that is under way would come and go in one piece, which flatters servers that answer in one piece. */
static void send_calls(struct nfs_connection *c)
{
    for (struct nfs_call *call; (call = c->first) != NULL;) {
        struct iovec iov[2];
        size_t skip = c->sent, n = gather(iov, 0, call->head, call->out.len, &skip);
        n = gather(iov, n, call->data, call->data_len, &skip);
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
        ssize_t done = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (done < 0)
            load_fail("sending: %s", strerror(errno));
        c->sent += (size_t)done;
        if (c->sent < (size_t)call->out.len + call->data_len)
            return;
        c->sent = 0;
        c->first = call->next;
        if (c->first == NULL)
            c->last = &c->first;
    }
}

/* ---- Receiving ---- */

/*
 * Is a whole record there? Then its fragments are joined behind the first one's mark: *ret_len bytes of
 * message from there. Returns the bytes of the stream that it takes with all of its marks; 0: it is not all
 * there yet.
 */
static size_t take_record(uint8_t *data, size_t len, size_t *ret_len)
{
    size_t at = 0, message = 0;
    for (bool last = false; !last;) {
        struct be32 mark;
        if (len - at < sizeof(mark))
            return 0;
        memcpy(&mark, data + at, sizeof(mark));
        size_t fragment = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        last = (be32_get(mark) & RPC_FRAGMENT_LAST) != 0;
        message += fragment;
        if (message > REPLY_MAX)
            load_fail("a reply of more than %u bytes", (unsigned)REPLY_MAX);
        if (len - at - sizeof(mark) < fragment)
            return 0;
        at += sizeof(mark) + fragment;
    }
    *ret_len = message;
    if (at == message + MARK_SIZE)
        return at;
    size_t from = 0, to = MARK_SIZE;
    while (from < at) {
        struct be32 mark;
        memcpy(&mark, data + from, sizeof(mark));
        size_t fragment = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        memmove(data + to, data + from + sizeof(mark), fragment);
        from += sizeof(mark) + fragment;
        to += fragment;
    }
    return at;
}

/* The head of a reply, up to the results. */
static bool accepted(struct xdr *x)
{
    uint32_t verifier_len;
    if (xdr_u32(x) != RPC_REPLY || xdr_u32(x) != RPC_ACCEPTED)
        return false;
    xdr_u32(x);
    xdr_opaque(x, RPC_AUTH_BODY_MAX, &verifier_len);
    return xdr_u32(x) == RPC_SUCCESS && !x->bad;
}

static void take_reply(struct nfs_connection *c, const uint8_t *message, size_t len)
{
    struct xdr x = xdr_over(message, len);
    uint32_t xid = xdr_u32(&x), slot = xid & 0xff;
    struct nfs_call *call = slot < NFS_DEPTH_MAX ? c->calls[slot] : NULL;
    if (x.bad || call == NULL || call->xid != xid)
        load_fail("a reply to nothing that was asked");
    if (!accepted(&x))
        load_fail("the server refused a call");
    c->calls[slot] = NULL;
    c->under_way--;
    c->answered(c, call, &x);
}

static void receive_replies(struct nfs_connection *c)
{
    if (IN_SIZE - c->in_end < REPLY_MAX) {
        memmove(c->in, c->in + c->in_first, c->in_end - c->in_first);
        c->in_end -= c->in_first;
        c->in_first = 0;
    }
    ssize_t n = recv(c->fd, c->in + c->in_end, IN_SIZE - c->in_end, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        load_fail("the server closed the connection%s%s", n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
    c->in_end += (size_t)n;
    size_t taken, len;
    while ((taken = take_record(c->in + c->in_first, c->in_end - c->in_first, &len)) > 0) {
        take_reply(c, c->in + c->in_first + MARK_SIZE, len);
        c->in_first += taken;
    }
    if (c->in_first == c->in_end)
        c->in_first = c->in_end = 0;
}

static void check_patience(const struct nfs_connection *connections, unsigned count, int waited_ms)
{
    static int quiet_ms;
    quiet_ms = waited_ms > 0 ? quiet_ms + waited_ms : 0;
    for (unsigned i = 0; i < count && quiet_ms >= ANSWER_MAX_MS; i++)
        if (connections[i].under_way > 0)
            load_fail("no answer within %d seconds", ANSWER_MAX_MS / 1000);
}

void nfs_client_turn(struct nfs_connection *connections, unsigned count, int timeout_ms)
{
    struct pollfd fds[NFS_CONNECTIONS_MAX];
    assert(count <= NFS_CONNECTIONS_MAX);
    for (unsigned i = 0; i < count; i++) {
        struct nfs_connection *c = &connections[i];
        send_calls(c);
        fds[i] = (struct pollfd){.fd = c->fd, .events = POLLIN};
        if (c->first != NULL)
            fds[i].events |= POLLOUT;
    }
    int ready = poll(fds, count, timeout_ms);
    if (ready < 0 && errno != EINTR)
        load_fail("poll: %s", strerror(errno));
    check_patience(connections, count, ready == 0 ? timeout_ms : 0);
    for (unsigned i = 0; i < count && ready > 0; i++)
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            receive_replies(&connections[i]);
}
