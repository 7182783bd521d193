/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the real world share. Nobody else includes it. */
#ifndef ASHLAR_RUNTIME_WORLD_REAL_INTERNAL_H
#define ASHLAR_RUNTIME_WORLD_REAL_INTERNAL_H

#include "runtime/address.h"
#include "runtime/reactor_internal.h"
#include "runtime/world_real.h"

#include <liburing.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The low bits of an entry's user_data say what the rest points to. */
#define TAG_MASK   UINT64_C(7)
#define TAG_IGNORE UINT64_C(0) /* nothing; the result does not matter */
#define TAG_OP     UINT64_C(1) /* struct real_op, on a waiting fiber's stack */
#define TAG_FILE   UINT64_C(2) /* struct file_io */
#define TAG_WAKE   UINT64_C(3) /* the eventfd was written */
#define TAG_PAIR   UINT64_C(4) /* struct file_io: a write that a sync will follow */
#define TAG_SYNC   UINT64_C(5) /* struct file_io: that sync */

#define CHUNK_REGISTER_MAX 4096u /* chunks of page memory that can be registered buffers */
#define FILE_SLOTS         256u  /* files that can be registered; more work as well, a little slower */

struct real_world {
    struct io_uring ring;
    bool buffers_registered;      /* the table of registered buffers exists */
    bool wake_armed;              /* a read of the eventfd is in the ring */
    uint64_t wake_value;          /* where it reads to */
    struct list finished;         /* struct file_io that are done without the ring's help */
    uint8_t *chunk_registered;    /* by chunk index */
    bool files_registered;        /* the table of registered files exists */
    uint8_t *file_slot_used;      /* by slot */
    const struct file *read_file; /* the last read that was queued: only compared */
    uint64_t read_end;            /* and where it ends in the file, in bytes */
    uint8_t random[512];
    size_t random_left;
};

/* One operation that a fiber waits for; on its stack. */
struct real_op {
    struct fiber *fiber;
    int32_t result; /* negative errno or a length */
    uint32_t flags; /* of the completion */
    bool done;
};

static inline struct real_world *real_world_of(struct reactor *r)
{
    return r->world_data;
}

/* world_real.c */
/* A zeroed entry; submits what is queued when the ring is full. Never NULL. */
struct io_uring_sqe *real_sqe(struct real_world *w);
/* Waits for an operation that was queued with op as its user data. 0: op->result holds. ERR_TIMEOUT or
 * ERR_CANCELLED: it was withdrawn without effect. If it completed all the same, the result counts. */
int real_op_wait(struct real_world *w, struct real_op *op, const char *what, uint64_t deadline_ns) may_yield;
static inline void real_op_queue(struct real_op *op, struct io_uring_sqe *sqe)
{
    *op = (struct real_op){.fiber = fiber_self()};
    io_uring_sqe_set_data64(sqe, (uintptr_t)op | TAG_OP);
}

/* Makes fd a registered file; its slot, or -1: use fd itself. */
int real_file_register(struct real_world *w, int fd);
void real_file_unregister(struct real_world *w, int slot);

/* world_real_file.c */
int real_file_open(struct reactor *r, const char *path, uint32_t flags, struct file **ret) may_yield;
void real_file_close(struct file *f);
int real_file_get_info(struct file *f, struct file_info *ret) may_yield;
int real_file_resize(struct file *f, uint64_t size_bytes) may_yield;
int real_file_replace(struct reactor *r, const char *path, const void *data, size_t len) may_yield;
int real_file_read_all(struct reactor *r, const char *path, size_t max, char **ret_data, size_t *ret_len)
    may_yield;
int real_file_unlink(struct reactor *r, const char *path) may_yield;
void real_file_submit(struct file_io *io);
/* tag: TAG_FILE, TAG_PAIR or TAG_SYNC. */
void real_file_completed(struct real_world *w, struct file_io *io, uint64_t tag, int32_t result);

/* world_real_net.c */
int real_listener_open(struct reactor *r, const char *address, struct listener **ret) may_yield;
void real_listener_close(struct listener *l);
int real_listener_accept(struct listener *l, struct stream **ret) may_yield;
int real_stream_connect(struct reactor *r, const char *address, uint64_t deadline_ns, struct stream **ret)
    may_yield;
int real_stream_recvv(struct stream *s, const struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                      size_t *ret_len) may_yield;
int real_stream_sendv(struct stream *s, struct iovec *iov, uint32_t n, uint64_t deadline_ns) may_yield;
void real_stream_shutdown(struct stream *s);
void real_stream_close(struct stream *s);
int real_stream_detach(struct stream *s, int *ret_handle);
int real_stream_attach(struct reactor *r, int handle, struct stream **ret);

/* An address of the network, as the kernel has it. */
union socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};
/* The first address of a name. Numbers are read here, names on a helper thread. */
int real_address_resolve(const struct address *a, union socket_address *ret, socklen_t *ret_len) may_yield;
/* "tcp:IP:PORT" (or with another word in front) or "unix:", and the bare IP. */
void real_address_print(const char *kind, const union socket_address *sa, char *out, size_t size,
                        char ip[48]);

/* world_real_datagram.c */
int real_datagram_open(struct reactor *r, const char *address, struct datagram_socket **ret) may_yield;
void real_datagram_close(struct datagram_socket *d);
int real_datagram_recv(struct datagram_socket *d, void *buf, size_t size, uint64_t deadline_ns,
                       size_t *ret_len, char *from) may_yield;
int real_datagram_send(struct datagram_socket *d, const char *to, const void *buf, size_t len);

#endif
