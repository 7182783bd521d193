/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one seam to the world. Time, randomness, files and drives, the network: code above runtime/ reaches
 * them only through the functions below. They dispatch to the world of the current reactor: the real one
 * (io_uring, sockets) or the simulator's. Code above cannot tell which one runs.
 *
 * Coordination has a seam of its own (cluster/coord.h), since it is a service and not a device.
 */
#ifndef ASHLAR_RUNTIME_WORLD_H
#define ASHLAR_RUNTIME_WORLD_H

#include "runtime/base.h"
#include "runtime/fiber.h"

#include <sys/uio.h>

struct reactor;
struct page;

/* ---- Time and randomness ---- */

/* Monotonic, counts the time that the machine was suspended (CLOCK_BOOTTIME). Cached once per turn of the
 * loop; good to some microseconds. */
uint64_t reactor_now_ns(void);
/* The same clock, read now; for measuring. */
uint64_t reactor_clock_ns(void);
/* UTC since 1970. Never used for a decision about data. */
uint64_t world_wall_ns(void);
void world_random(void *buf, size_t len);
struct uuid world_random_uuid(void);

/* ---- Files and block devices ---- */

struct file; /* opened for the current reactor; others open their own; see "implementation's side" */

enum file_open_flags {
    FILE_OPEN_WRITE = 1 << 0,
    FILE_OPEN_CREATE = 1 << 1, /* with O_EXCL: the file must not exist */
    FILE_OPEN_DIRECT = 1 << 2, /* O_DIRECT if the file system can, else buffered: see file_info.direct */
    FILE_OPEN_LOCK = 1 << 3,   /* exclusive lock for the life of the handle (open file description lock;
                                  a block device with O_EXCL too), ERR_SYS(EBUSY) if another has it. Without
                                  FILE_OPEN_WRITE it is a shared one: it keeps writers out, not readers */
};

struct file_info {
    uint64_t size_bytes;
    bool is_block_device;
    bool direct;       /* O_DIRECT is in effect; else writes are buffered, and file_sync makes them durable */
    uint32_t io_align; /* bytes; memory and offset alignment that the device wants */
    char serial[64];   /* of a block device, or "" */
};

int file_open(const char *path, uint32_t flags, struct file **ret) MUST_CHECK may_yield;
void file_close(struct file *f);
int file_get_info(struct file *f, struct file_info *ret) MUST_CHECK may_yield;
int file_resize(struct file *f, uint64_t size_bytes) MUST_CHECK may_yield;
/* Small files beside the way of data: the coordination file, configuration. Atomic replacement: write to a
 * temporary name, sync, rename, sync the folder. */
int file_replace(const char *path, const void *data, size_t len) MUST_CHECK may_yield;
/* Reads a whole small file (at most max bytes); *ret_data is malloc'ed, NUL-terminated beyond len. */
int file_read_all(const char *path, size_t max, char **ret_data, size_t *ret_len) MUST_CHECK may_yield;
int file_unlink(const char *path) MUST_CHECK may_yield;

enum file_op {
    FILE_READ,
    FILE_WRITE,
    FILE_SYNC, /* everything completed before is on stable media (fdatasync) */
    FILE_ZERO, /* the range reads as zeroes afterwards and stays allocated (fallocate zero-range or writes) */
    FILE_DISCARD, /* the range's space may be given back (punch hole, BLKDISCARD); contents undefined */
};

/*
 * One asynchronous operation. The caller owns the structure, the vector and the memory until done() was
 * called: it always is called, exactly once, from the loop (never from inside file_submit), with result set.
 * done() must not yield; it usually wakes a fiber (latch_down).
 */
struct file_io {
    struct file *file;
    enum file_op op;
    bool dsync;      /* FILE_WRITE: durable when it completes, what completed before it need not be */
    uint64_t offset; /* bytes, multiple of BLOCK_SIZE for FILE_OPEN_DIRECT */
    uint64_t len;    /* bytes; for READ and WRITE the sum of the vector */
    const struct iovec *iov;
    uint32_t iov_count; /* 1..1024 */
    struct page *page; /* iov_count == 1 and the memory begins in this page: registered-buffer I/O. Or NULL */
    int result;        /* 0: all of it; ERR_SHORT_IO, ERR_SYS(e), ERR_CANCELLED */
    void (*done)(struct file_io *io);
    void *ctx;             /* the caller's */
    struct list link;      /* the world's, from submit to done */
    uint64_t submitted_ns; /* set by file_submit */
};

void file_submit(struct file_io *io);
/* Submit and wait, for code that does one thing at a time. Not cancellable. */
int file_do(struct file_io *io) MUST_CHECK may_yield;
int file_read(struct file *f, uint64_t offset, void *buf, size_t len) MUST_CHECK may_yield;
int file_write(struct file *f, uint64_t offset, const void *buf, size_t len) MUST_CHECK may_yield;
int file_sync(struct file *f) MUST_CHECK may_yield;

/* ---- Network: byte streams over TCP and Unix sockets, and TLS over either ---- */

#define WORLD_ADDRESS_SIZE 128 /* of an address as text */

struct stream;
struct listener;

/* address: "tcp:HOST:PORT" (IPv6 in brackets; port 0: any free one) or "unix:PATH" (a stale socket file is
 * replaced, a live one is ERR_SYS(EADDRINUSE)). */
int listener_open(const char *address, struct listener **ret) MUST_CHECK may_yield;
void listener_close(struct listener *l); /* wakes the waiting accept with ERR_CLOSED */
/* Where it really listens, in the form above. */
const char *listener_address(const struct listener *l);
/* Waits for the next connection. ERR_CLOSED, ERR_CANCELLED, ERR_SYS(EMFILE) (after which it may be called
 * again, later). */
int listener_accept(struct listener *l, struct stream **ret) MUST_CHECK may_yield;

int stream_connect(const char *address, uint64_t deadline_ns, struct stream **ret) MUST_CHECK may_yield;
/* Receives at least one byte, up to the vector's size. ERR_CLOSED at the end of the stream. One fiber at a
 * time may receive and one may send. */
int stream_recvv(struct stream *s, const struct iovec *iov, uint32_t iov_count, uint64_t deadline_ns,
                 size_t *ret_len) MUST_CHECK may_yield;
/* Receives exactly len bytes. */
int stream_recv_all(struct stream *s, void *buf, size_t len, uint64_t deadline_ns) MUST_CHECK may_yield;
/* Sends all of the vector (which it may change). After an error the stream is only good for closing. */
int stream_sendv(struct stream *s, struct iovec *iov, uint32_t iov_count, uint64_t deadline_ns)
    MUST_CHECK may_yield;
int stream_send_all(struct stream *s, const void *buf, size_t len, uint64_t deadline_ns) MUST_CHECK may_yield;
/* Makes pending and later calls of other fibers return ERR_CLOSED; idempotent. */
void stream_shutdown(struct stream *s);
/* No fiber may be inside a call. */
void stream_close(struct stream *s) may_yield;
/* "tcp:1.2.3.4:567" or "unix:"; borrowed. For access lists the bare IP: stream_peer_ip ("" for unix). */
const char *stream_peer(const struct stream *s);
const char *stream_peer_ip(const struct stream *s);
/* Takes the stream off this reactor (no call may be pending) and gives it to another one. */
int stream_detach(struct stream *s, int *ret_handle) MUST_CHECK may_yield;
int stream_attach(int handle, struct stream **ret) MUST_CHECK;

/* ---- Network: datagrams over UDP ---- */

struct datagram_socket;

/* address: "udp:HOST:PORT" (port 0: any free one). ERR_UNSUPPORTED: this world has none. */
int datagram_open(const char *address, struct datagram_socket **ret) MUST_CHECK may_yield;
/* No fiber may be inside a call. */
void datagram_close(struct datagram_socket *d);
/* Where it really is, in the form above. */
const char *datagram_address(const struct datagram_socket *d);
/* Waits for the next one; what is longer than size is cut. One fiber at a time. from: who sent it, in the
 * form above, of WORLD_ADDRESS_SIZE. ERR_TIMEOUT, ERR_CANCELLED. */
int datagram_recv(struct datagram_socket *d, void *buf, size_t size, uint64_t deadline_ns, size_t *ret_len,
                  char *from) MUST_CHECK may_yield;
/* Sends one, or loses it: that it arrives is never known. to: as `from`; no names. An error: it could not
 * even be sent. */
int datagram_send(struct datagram_socket *d, const char *to, const void *buf, size_t len) MUST_CHECK;

/* ---- The implementation's side ---- */

/* The heads that a world embeds as the first member of its own structures (struct sim_stream { struct stream
 * base; ... }). It fills them when it opens the object, zeroing what it does not know; world.c checks the
 * contract against them. Streams and listeners dispatch by their own ops, so that TLS can wrap a stream. */
struct file {
    struct reactor *reactor;
    uint32_t flags;   /* enum file_open_flags */
    bool direct;      /* O_DIRECT is in effect: offsets, lengths and memory must be aligned */
    uint32_t pending; /* operations submitted and not done; world.c's */
};

struct listener {
    struct reactor *reactor;
    const struct world_ops *ops;
    char address[WORLD_ADDRESS_SIZE];
};
struct stream {
    struct reactor *reactor;
    const struct world_ops *ops;
    char peer[WORLD_ADDRESS_SIZE];
    char peer_ip[48];
    bool receiving, sending; /* a fiber is inside; world.c's */
};
struct datagram_socket {
    struct reactor *reactor;
    char address[WORLD_ADDRESS_SIZE];
    bool receiving; /* a fiber is inside; world.c's */
};

struct world_ops {
    const char *name;
    uint64_t (*now_ns)(struct reactor *r);
    uint64_t (*wall_ns)(struct reactor *r);
    void (*random)(struct reactor *r, void *buf, size_t len);

    int (*file_open)(struct reactor *r, const char *path, uint32_t flags, struct file **ret);
    void (*file_close)(struct file *f);
    int (*file_get_info)(struct file *f, struct file_info *ret);
    int (*file_resize)(struct file *f, uint64_t size_bytes);
    int (*file_replace)(struct reactor *r, const char *path, const void *data, size_t len);
    int (*file_read_all)(struct reactor *r, const char *path, size_t max, char **ret_data, size_t *ret_len);
    int (*file_unlink)(struct reactor *r, const char *path);
    void (*file_submit)(struct file_io *io);

    int (*listener_open)(struct reactor *r, const char *address, struct listener **ret);
    void (*listener_close)(struct listener *l);
    int (*listener_accept)(struct listener *l, struct stream **ret);
    int (*stream_connect)(struct reactor *r, const char *address, uint64_t deadline_ns, struct stream **ret);
    int (*stream_recvv)(struct stream *s, const struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                        size_t *ret_len);
    int (*stream_sendv)(struct stream *s, struct iovec *iov, uint32_t n, uint64_t deadline_ns);
    void (*stream_shutdown)(struct stream *s);
    void (*stream_close)(struct stream *s);

    /* Sends what was queued and waits for events until the deadline (0: just poll). Completions call done()
     * and wake fibers. */
    void (*wait)(struct reactor *r, uint64_t deadline_ns);
    /* From any thread: makes wait() return. */
    void (*wake)(struct reactor *r);
    /* A new chunk of page memory was mapped, or is about to be unmapped: register it for I/O. */
    int (*memory_chunk)(struct reactor *r, uint16_t index, void *base, size_t len, bool added);

    /* Optional, NULL where a world has no need of them. */

    /* In reactor_new() and reactor_free(). */
    int (*reactor_init)(struct reactor *r);
    void (*reactor_done)(struct reactor *r);
    /* In the reactor's own thread, before its first turn and after its last. */
    int (*reactor_start)(struct reactor *r);
    void (*reactor_end)(struct reactor *r);
    /* Which of the ready fibers runs next: 0..ready_count-1. NULL: the first. */
    uint32_t (*pick)(struct reactor *r, uint32_t ready_count);
    /* Instead of a helper thread: runs fn(arg) now (may park). */
    int (*block)(struct reactor *r, int (*fn)(void *arg), void *arg);
    int (*stream_detach)(struct stream *s, int *ret_handle);
    int (*stream_attach)(struct reactor *r, int handle, struct stream **ret);
    int (*datagram_open)(struct reactor *r, const char *address, struct datagram_socket **ret);
    void (*datagram_close)(struct datagram_socket *d);
    int (*datagram_recv)(struct datagram_socket *d, void *buf, size_t size, uint64_t deadline_ns,
                         size_t *ret_len, char *from);
    int (*datagram_send)(struct datagram_socket *d, const char *to, const void *buf, size_t len);
};

/* How a world completes an operation: from the loop, exactly once, never from inside file_submit. */
void file_io_done(struct file_io *io, int result);

/* What the world keeps for a reactor, between reactor_start and reactor_end. */
void reactor_set_world_data(struct reactor *r, void *data);
void *reactor_world_data(const struct reactor *r);

#endif
