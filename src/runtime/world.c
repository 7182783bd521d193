/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate in front of every world: the functions of world.h dispatch to the ops of the current reactor (or
 * of the stream), and check the contract of both sides on the way: arguments before the call, results after
 * it.
 */
#include "runtime/world.h"
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define IOV_MAX_COUNT 1024u

/* Outputs may only be set on success, errors are negative. */
static int gate_result(int err, const void *ret)
{
    assert(err <= 0);
    assert(err != 0 || ret != NULL);
    return err;
}

static struct reactor *gate_fiber(void)
{
    struct reactor *r = reactor_tls;
    assert(r != NULL && r->running != NULL);
    return r;
}

/* ---- Time and randomness ---- */

uint64_t world_wall_ns(void)
{
    struct reactor *r = reactor_tls;
    if (r != NULL)
        return r->ops->wall_ns(r);
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

void world_random(void *buf, size_t len)
{
    struct reactor *r = reactor_tls;
    if (r != NULL) {
        r->ops->random(r, buf, len);
        return;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = getrandom((char *)buf + done, len - done, 0);
        assert(n > 0 || errno == EINTR);
        done += n > 0 ? (size_t)n : 0;
    }
}

struct uuid world_random_uuid(void)
{
    struct uuid id;
    world_random(id.b, sizeof(id.b));
    id.b[6] = (uint8_t)((id.b[6] & 0x0f) | 0x40); /* version 4, variant 1 of RFC 4122 */
    id.b[8] = (uint8_t)((id.b[8] & 0x3f) | 0x80);
    return id;
}

/* ---- Files ---- */

int file_open(const char *path, uint32_t flags, struct file **ret)
{
    struct reactor *r = gate_fiber();
    struct file *f = NULL;
    int err = gate_result(r->ops->file_open(r, path, flags, &f), &f);
    if (err != 0)
        return err;
    assert(f->reactor == r && f->pending == 0);
    f->flags = flags;
    *ret = f;
    return 0;
}

void file_close(struct file *f)
{
    assert(f->reactor == reactor_tls);
    assert(f->pending == 0);
    f->reactor->ops->file_close(f);
}

int file_get_info(struct file *f, struct file_info *ret)
{
    assert(f->reactor == gate_fiber());
    return gate_result(f->reactor->ops->file_get_info(f, ret), ret);
}

int file_resize(struct file *f, uint64_t size_bytes)
{
    assert(f->reactor == gate_fiber());
    assert(f->flags & FILE_OPEN_WRITE);
    return gate_result(f->reactor->ops->file_resize(f, size_bytes), f);
}

int file_replace(const char *path, const void *data, size_t len)
{
    struct reactor *r = gate_fiber();
    return gate_result(r->ops->file_replace(r, path, data, len), r);
}

int file_read_all(const char *path, size_t max, char **ret_data, size_t *ret_len)
{
    struct reactor *r = gate_fiber();
    char *data = NULL;
    size_t len = 0;
    int err = gate_result(r->ops->file_read_all(r, path, max, &data, &len), r);
    if (err != 0)
        return err;
    assert(data != NULL && len <= max && data[len] == '\0');
    *ret_data = data;
    *ret_len = len;
    return 0;
}

int file_unlink(const char *path)
{
    struct reactor *r = gate_fiber();
    return gate_result(r->ops->file_unlink(r, path), r);
}

/* Only what costs nothing: the vector is summed where there is one element. */
static void gate_file_io(const struct file_io *io)
{
    const struct file *f = io->file;
    assert(f->reactor == reactor_tls && io->done != NULL);
    if (io->op == FILE_SYNC)
        return;
    assert(io->len > 0 && io->offset <= INT64_MAX - io->len);
    assert(io->op == FILE_READ || (f->flags & FILE_OPEN_WRITE));
    if (io->op == FILE_READ || io->op == FILE_WRITE) {
        assert(io->iov_count >= 1 && io->iov_count <= IOV_MAX_COUNT);
        assert(io->iov_count != 1 || io->iov->iov_len == io->len);
        assert(io->page == NULL || io->iov_count == 1);
        assert(!f->direct || ((uintptr_t)io->iov->iov_base | io->len | io->offset) % 512 == 0);
    }
}

void file_submit(struct file_io *io)
{
    gate_file_io(io);
    struct reactor *r = io->file->reactor;
    io->submitted_ns = r->now_ns;
    io->file->pending++;
    r->ops->file_submit(io);
}

void file_io_done(struct file_io *io, int result)
{
    assert(result <= 0);
    assert(io->file->pending > 0);
    assert(io->file->reactor == reactor_tls && reactor_tls->running == NULL);
    io->file->pending--;
    if (result < 0)
        ring_event_at(io->file->reactor, error_name(result), io->op, io->offset);
    io->result = result;
    io->done(io);
}

static void file_do_done(struct file_io *io)
{
    latch_down(io->ctx);
}

int file_do(struct file_io *io)
{
    struct latch l;
    latch_init(&l, 1);
    io->done = file_do_done;
    io->ctx = &l;
    file_submit(io);
    latch_wait(&l);
    return io->result;
}

int file_read(struct file *f, uint64_t offset, void *buf, size_t len)
{
    struct iovec iov = {buf, len};
    struct file_io io = {
        .file = f, .op = FILE_READ, .offset = offset, .len = len, .iov = &iov, .iov_count = 1};
    return file_do(&io);
}

int file_write(struct file *f, uint64_t offset, const void *buf, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)buf, len};
    struct file_io io = {
        .file = f, .op = FILE_WRITE, .offset = offset, .len = len, .iov = &iov, .iov_count = 1};
    return file_do(&io);
}

int file_sync(struct file *f)
{
    struct file_io io = {.file = f, .op = FILE_SYNC};
    return file_do(&io);
}

/* ---- Network ---- */

/* A process that was killed keeps its sockets for some milliseconds more, until the kernel has taken down its
 * rings: whoever restarts it at once must not be told that its own port is taken. */
#define LISTENER_BUSY_NS UINT64_C(2000000000)
#define LISTENER_POLL_NS UINT64_C(10000000)

int listener_open(const char *address, struct listener **ret)
{
    struct reactor *r = gate_fiber();
    struct listener *l = NULL;
    uint64_t limit_ns = reactor_now_ns() + LISTENER_BUSY_NS;
    int err;
    for (;;) {
        err = gate_result(r->ops->listener_open(r, address, &l), &l);
        if (err != ERR_SYS(EADDRINUSE) || reactor_now_ns() >= limit_ns)
            break;
        int slept = fiber_sleep(LISTENER_POLL_NS);
        if (slept < 0)
            return slept;
    }
    if (err != 0)
        return err;
    assert(l->reactor == r && l->ops != NULL && l->address[0] != '\0');
    *ret = l;
    return 0;
}

void listener_close(struct listener *l)
{
    assert(l->reactor == reactor_tls);
    l->ops->listener_close(l);
}

const char *listener_address(const struct listener *l)
{
    return l->address;
}

static void gate_new_stream(const struct stream *s)
{
    assert(s->reactor == reactor_tls && s->ops != NULL);
    assert(s->peer[0] != '\0' && !s->receiving && !s->sending);
}

int listener_accept(struct listener *l, struct stream **ret)
{
    assert(l->reactor == gate_fiber());
    struct stream *s = NULL;
    int err = gate_result(l->ops->listener_accept(l, &s), &s);
    if (err != 0)
        return err;
    gate_new_stream(s);
    *ret = s;
    return 0;
}

int stream_connect(const char *address, uint64_t deadline_ns, struct stream **ret)
{
    struct reactor *r = gate_fiber();
    struct stream *s = NULL;
    int err = gate_result(r->ops->stream_connect(r, address, deadline_ns, &s), &s);
    if (err != 0)
        return err;
    gate_new_stream(s);
    *ret = s;
    return 0;
}

int stream_recvv(struct stream *s, const struct iovec *iov, uint32_t iov_count, uint64_t deadline_ns,
                 size_t *ret_len)
{
    assert(s->reactor == gate_fiber());
    assert(!s->receiving && iov_count >= 1 && iov_count <= IOV_MAX_COUNT);
    size_t len = 0;
    s->receiving = true;
    int err = gate_result(s->ops->stream_recvv(s, iov, iov_count, deadline_ns, &len), s);
    s->receiving = false;
    if (err != 0)
        return err;
    assert(len > 0);
    *ret_len = len;
    return 0;
}

int stream_recv_all(struct stream *s, void *buf, size_t len, uint64_t deadline_ns)
{
    for (size_t done = 0; done < len;) {
        struct iovec iov = {(char *)buf + done, len - done};
        size_t n;
        int err = stream_recvv(s, &iov, 1, deadline_ns, &n);
        if (err != 0)
            return err;
        assert(n <= len - done);
        done += n;
    }
    return 0;
}

int stream_sendv(struct stream *s, struct iovec *iov, uint32_t iov_count, uint64_t deadline_ns)
{
    assert(s->reactor == gate_fiber());
    assert(!s->sending && iov_count >= 1 && iov_count <= IOV_MAX_COUNT);
    s->sending = true;
    int err = gate_result(s->ops->stream_sendv(s, iov, iov_count, deadline_ns), s);
    s->sending = false;
    return err;
}

int stream_send_all(struct stream *s, const void *buf, size_t len, uint64_t deadline_ns)
{
    struct iovec iov = {(void *)(uintptr_t)buf, len};
    return stream_sendv(s, &iov, 1, deadline_ns);
}

void stream_shutdown(struct stream *s)
{
    assert(s->reactor == reactor_tls);
    s->ops->stream_shutdown(s);
}

void stream_close(struct stream *s)
{
    assert(s->reactor == gate_fiber());
    assert(!s->receiving && !s->sending);
    s->ops->stream_close(s);
}

const char *stream_peer(const struct stream *s)
{
    return s->peer;
}

const char *stream_peer_ip(const struct stream *s)
{
    return s->peer_ip;
}

int stream_detach(struct stream *s, int *ret_handle)
{
    assert(s->reactor == gate_fiber());
    assert(!s->receiving && !s->sending);
    if (s->ops->stream_detach == NULL)
        return ERR_UNSUPPORTED;
    return gate_result(s->ops->stream_detach(s, ret_handle), ret_handle);
}

int stream_attach(int handle, struct stream **ret)
{
    struct reactor *r = reactor_tls;
    assert(r != NULL);
    if (r->ops->stream_attach == NULL)
        return ERR_UNSUPPORTED;
    struct stream *s = NULL;
    int err = gate_result(r->ops->stream_attach(r, handle, &s), &s);
    if (err != 0)
        return err;
    gate_new_stream(s);
    *ret = s;
    return 0;
}

/* ---- Datagrams ---- */

int datagram_open(const char *address, struct datagram_socket **ret)
{
    struct reactor *r = gate_fiber();
    struct datagram_socket *d = NULL;
    if (r->ops->datagram_open == NULL)
        return ERR_UNSUPPORTED;
    int err = gate_result(r->ops->datagram_open(r, address, &d), &d);
    if (err != 0)
        return err;
    assert(d->reactor == r && d->address[0] != '\0' && !d->receiving);
    *ret = d;
    return 0;
}

void datagram_close(struct datagram_socket *d)
{
    assert(d->reactor == reactor_tls && !d->receiving);
    d->reactor->ops->datagram_close(d);
}

const char *datagram_address(const struct datagram_socket *d)
{
    return d->address;
}

int datagram_recv(struct datagram_socket *d, void *buf, size_t size, uint64_t deadline_ns, size_t *ret_len,
                  char *from)
{
    assert(d->reactor == gate_fiber());
    assert(!d->receiving && size > 0);
    size_t len = 0;
    d->receiving = true;
    int err = gate_result(d->reactor->ops->datagram_recv(d, buf, size, deadline_ns, &len, from), d);
    d->receiving = false;
    if (err != 0)
        return err;
    assert(len <= size);
    *ret_len = len;
    return 0;
}

int datagram_send(struct datagram_socket *d, const char *to, const void *buf, size_t len)
{
    assert(d->reactor == reactor_tls);
    return gate_result(d->reactor->ops->datagram_send(d, to, buf, len), d);
}
