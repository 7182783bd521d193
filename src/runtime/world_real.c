/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the real world
 *
 * One io_uring per reactor, set up by the reactor's own thread (SINGLE_ISSUER, DEFER_TASKRUN: the kernel
 * works on completions only when we ask for them, so nothing interrupts the loop). A turn of the loop queues
 * entries; real_wait() hands them over, waits and fetches completions with one system call.
 *
 * Waking from other threads: the loop sets "sleeping" before it waits and looks into its inbox once more; a
 * poster pushes first and then reads "sleeping". Both are sequentially consistent, so one of the two sees the
 * other. Only a sleeping loop costs its waker a write to the eventfd; a read of it is always in the ring.
 *
 * Page memory is registered with the ring chunk by chunk. Where that fails (locked-memory limit), I/O is
 * plain.
 */
#include "runtime/error.h"
#include "runtime/world_real_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define RING_ENTRIES  4096u
#define REAP_BATCH    64u
#define RING_SMALLEST 256u
#define LOCKED_WORTH  (64 * MIB) /* a smaller limit on locked memory is left to the rings themselves */

static uint64_t real_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static uint64_t real_now_ns(struct reactor *r)
{
    (void)r;
    return real_clock(CLOCK_BOOTTIME);
}

static uint64_t real_wall_ns(struct reactor *r)
{
    (void)r;
    return real_clock(CLOCK_REALTIME);
}

static void random_fill(void *buf, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = getrandom((char *)buf + done, len - done, 0);
        assert(n > 0 || errno == EINTR);
        done += n > 0 ? (size_t)n : 0;
    }
}

static void real_random(struct reactor *r, void *buf, size_t len)
{
    struct real_world *w = real_world_of(r);
    if (w == NULL || len > sizeof(w->random)) {
        random_fill(buf, len);
        return;
    }
    if (w->random_left < len) {
        random_fill(w->random, sizeof(w->random));
        w->random_left = sizeof(w->random);
    }
    w->random_left -= len;
    memcpy(buf, w->random + w->random_left, len);
    memset(w->random + w->random_left, 0, len); /* it may be a key one day */
}

/* ---- The ring ---- */

static int ring_try(struct io_uring *ring, unsigned entries)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    int rc = -EINVAL;
    for (size_t i = 0; i < ARRAY_SIZE(flags) && rc == -EINVAL; i++) {
        struct io_uring_params p = {.flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                                             IORING_SETUP_SUBMIT_ALL,
                                    .cq_entries = 4 * entries};
        rc = io_uring_queue_init_params(entries, ring, &p);
        if (rc == 0 && !(p.features & IORING_FEAT_NODROP && p.features & IORING_FEAT_EXT_ARG)) {
            io_uring_queue_exit(ring);
            return -ENOSYS;
        }
    }
    return rc;
}

/* Some kernels count the ring as locked memory, of which a user may have little. */
static int ring_open(struct io_uring *ring)
{
    int rc = -ENOMEM;
    for (unsigned entries = RING_ENTRIES; rc == -ENOMEM && entries >= RING_SMALLEST; entries /= 2)
        rc = ring_try(ring, entries);
    if (rc != 0)
        return ERR_SYS(-rc);
    io_uring_register_ring_fd(ring); /* saves a look-up a call; works without */
    return 0;
}

static bool locking_is_worthwhile(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return false;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &limit);
    return limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= LOCKED_WORTH || geteuid() == 0;
}

static int real_reactor_start(struct reactor *r)
{
    struct real_world *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return ERR_NO_MEMORY;
    w->chunk_registered = calloc(CHUNK_REGISTER_MAX, 1);
    w->file_slot_used = calloc(FILE_SLOTS, 1);
    int err = w->chunk_registered != NULL && w->file_slot_used != NULL ? ring_open(&w->ring) : ERR_NO_MEMORY;
    if (err != 0) {
        free(w->chunk_registered);
        free(w->file_slot_used);
        free(w);
        return err;
    }
    list_init(&w->finished);
    w->buffers_registered =
        locking_is_worthwhile() && io_uring_register_buffers_sparse(&w->ring, CHUNK_REGISTER_MAX) == 0;
    w->files_registered = io_uring_register_files_sparse(&w->ring, FILE_SLOTS) == 0;
    r->world_data = w;
    return 0;
}

struct io_uring_sqe *real_sqe(struct real_world *w)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring);
    for (int attempt = 0; PREDICT_FALSE(sqe == NULL); attempt++) {
        /* Full: 4096 entries in one turn. The kernel takes them all; completions wait in its own list. */
        int rc = io_uring_submit(&w->ring);
        assert(rc >= 0 || rc == -EAGAIN || rc == -EBUSY || rc == -EINTR);
        assert(attempt < 100000);
        if (rc <= 0)
            sched_yield();
        sqe = io_uring_get_sqe(&w->ring);
    }
    return sqe;
}

static void real_arm_wake(struct reactor *r, struct real_world *w)
{
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_read(sqe, r->wake_fd, &w->wake_value, sizeof(w->wake_value), 0);
    io_uring_sqe_set_data64(sqe, TAG_WAKE);
    w->wake_armed = true;
}

static void real_wake(struct reactor *r)
{
    if (__atomic_exchange_n(&r->sleeping, 0, __ATOMIC_SEQ_CST) == 0)
        return;
    uint64_t one = 1;
    ssize_t n = write(r->wake_fd, &one, sizeof(one));
    assert(n == sizeof(one));
}

static void real_op_completed(struct real_op *op, int32_t result, uint32_t flags)
{
    assert(!op->done);
    op->result = result;
    op->flags = flags;
    op->done = true;
    fiber_wake(op->fiber);
}

static void real_completed(struct real_world *w, const struct io_uring_cqe *cqe)
{
    void *p = (void *)(uintptr_t)(cqe->user_data & ~TAG_MASK);
    switch (cqe->user_data & TAG_MASK) {
    case TAG_OP:
        real_op_completed(p, cqe->res, cqe->flags);
        break;
    case TAG_FILE:
    case TAG_PAIR:
    case TAG_SYNC:
        real_file_completed(w, p, cqe->user_data & TAG_MASK, cqe->res);
        break;
    case TAG_WAKE:
        w->wake_armed = false;
        break;
    default:
        assert(cqe->user_data == TAG_IGNORE);
    }
}

static void real_reap(struct real_world *w)
{
    for (;;) {
        struct io_uring_cqe *ready[REAP_BATCH], copy[REAP_BATCH];
        unsigned n = io_uring_peek_batch_cqe(&w->ring, ready, REAP_BATCH);
        if (n == 0)
            break;
        for (unsigned i = 0; i < n; i++) {
            copy[i].user_data = ready[i]->user_data;
            copy[i].res = ready[i]->res;
            copy[i].flags = ready[i]->flags;
        }
        io_uring_cq_advance(&w->ring, n);
        for (unsigned i = 0; i < n; i++)
            real_completed(w, &copy[i]);
    }
    while (!list_empty(&w->finished)) {
        struct file_io *io = CONTAINER_OF(list_pop(&w->finished), struct file_io, link);
        file_io_done(io, io->result);
    }
}

static void real_reactor_end(struct reactor *r)
{
    struct real_world *w = real_world_of(r);
    assert(list_empty(&w->finished));
    /* The kernel must not write to w any more. */
    if (w->wake_armed) {
        struct io_uring_sqe *sqe = real_sqe(w);
        io_uring_prep_cancel64(sqe, TAG_WAKE, 0);
        io_uring_sqe_set_data64(sqe, TAG_IGNORE);
    }
    while (w->wake_armed) {
        int rc = io_uring_submit_and_wait(&w->ring, 1);
        assert(rc >= 0 || rc == -EINTR || rc == -EAGAIN);
        real_reap(w);
    }
    io_uring_queue_exit(&w->ring);
    free(w->chunk_registered);
    free(w->file_slot_used);
    free(w);
    r->world_data = NULL;
}

/* Submits, and waits for one completion until the deadline. */
static int real_enter(struct reactor *r, struct real_world *w, uint64_t deadline_ns)
{
    if (deadline_ns == DEADLINE_NEVER)
        return io_uring_submit_and_wait(&w->ring, 1);
    uint64_t now = real_now_ns(r);
    if (deadline_ns <= now)
        return io_uring_submit_and_get_events(&w->ring);
    uint64_t ns = deadline_ns - now;
    struct __kernel_timespec ts = {.tv_sec = (int64_t)(ns / NSEC_PER_SEC),
                                   .tv_nsec = (long long)(ns % NSEC_PER_SEC)};
    struct io_uring_cqe *cqe;
    return io_uring_submit_and_wait_timeout(&w->ring, &cqe, 1, &ts, NULL);
}

static void real_wait(struct reactor *r, uint64_t deadline_ns)
{
    struct real_world *w = real_world_of(r);
    if (!w->wake_armed)
        real_arm_wake(r, w);
    if (!list_empty(&w->finished) || io_uring_cq_ready(&w->ring) > 0)
        deadline_ns = 0;
    if (deadline_ns != 0) {
        __atomic_store_n(&r->sleeping, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&r->inbox, __ATOMIC_SEQ_CST) != NULL || reactor_finished(r))
            deadline_ns = 0;
    }
    int rc = real_enter(r, w, deadline_ns);
    __atomic_store_n(&r->sleeping, 0, __ATOMIC_SEQ_CST);
    /* EBUSY and EAGAIN: the kernel is short of memory or of room for completions; what we reap makes room. */
    assert(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EBUSY || rc == -EAGAIN);
    r->now_ns = real_now_ns(r); /* for done() callbacks, and for the next turn */
    r->now_fresh = true;
    real_reap(w);
}

int real_op_wait(struct real_world *w, struct real_op *op, const char *what, uint64_t deadline_ns)
{
    int err = 0;
    while (!op->done && err == 0)
        err = fiber_park_for(what, deadline_ns);
    if (PREDICT_TRUE(err == 0))
        return 0;
    if (!op->done) {
        struct io_uring_sqe *sqe = real_sqe(w);
        io_uring_prep_cancel64(sqe, (uintptr_t)op | TAG_OP, 0);
        io_uring_sqe_set_data64(sqe, TAG_IGNORE);
        fiber_shield(); /* the operation uses our stack until it is done */
        while (!op->done) {
            int e = fiber_park_for(what, DEADLINE_NEVER);
            assert(e == 0);
        }
        fiber_unshield();
    }
    return op->result == -ECANCELED || op->result == -EINTR ? err : 0;
}

/* ---- Registered files: the kernel looks them up once, not at each operation ---- */

int real_file_register(struct real_world *w, int fd)
{
    if (!w->files_registered)
        return -1;
    uint8_t *unused = memchr(w->file_slot_used, 0, FILE_SLOTS);
    if (unused == NULL)
        return -1;
    int slot = (int)(unused - w->file_slot_used);
    if (io_uring_register_files_update(&w->ring, (unsigned)slot, &fd, 1) != 1)
        return -1;
    *unused = 1;
    return slot;
}

void real_file_unregister(struct real_world *w, int slot)
{
    int none = -1;
    assert(w->file_slot_used[slot] == 1);
    /* If this fails the slot stays taken: better than two files of one number. */
    if (io_uring_register_files_update(&w->ring, (unsigned)slot, &none, 1) == 1)
        w->file_slot_used[slot] = 0;
}

/* ---- Page memory ---- */

static int real_memory_chunk(struct reactor *r, uint16_t index, void *base, size_t len, bool added)
{
    struct real_world *w = real_world_of(r);
    if (w == NULL || !w->buffers_registered || index >= CHUNK_REGISTER_MAX)
        return ERR_UNSUPPORTED;
    if (!added && !w->chunk_registered[index])
        return 0;
    struct iovec iov = {added ? base : NULL, added ? len : 0};
    int rc = io_uring_register_buffers_update_tag(&w->ring, index, &iov, NULL, 1);
    if (rc < 0) {
        /* The limit will not go away: later chunks need not try. */
        if (added)
            w->buffers_registered = false;
        return ERR_SYS(-rc);
    }
    w->chunk_registered[index] = added;
    return 0;
}

static int real_init(struct reactor *r)
{
    r->wake_fd = eventfd(0, EFD_CLOEXEC);
    return r->wake_fd >= 0 ? 0 : ERR_SYS(errno);
}

static void real_done(struct reactor *r)
{
    close(r->wake_fd);
}

const struct world_ops world_real_ops = {
    .name = "real",
    .now_ns = real_now_ns,
    .wall_ns = real_wall_ns,
    .random = real_random,
    .file_open = real_file_open,
    .file_close = real_file_close,
    .file_get_info = real_file_get_info,
    .file_resize = real_file_resize,
    .file_replace = real_file_replace,
    .file_read_all = real_file_read_all,
    .file_unlink = real_file_unlink,
    .file_submit = real_file_submit,
    .listener_open = real_listener_open,
    .listener_close = real_listener_close,
    .listener_accept = real_listener_accept,
    .stream_connect = real_stream_connect,
    .stream_recvv = real_stream_recvv,
    .stream_sendv = real_stream_sendv,
    .stream_shutdown = real_stream_shutdown,
    .stream_close = real_stream_close,
    .stream_detach = real_stream_detach,
    .stream_attach = real_stream_attach,
    .datagram_open = real_datagram_open,
    .datagram_close = real_datagram_close,
    .datagram_recv = real_datagram_recv,
    .datagram_send = real_datagram_send,
    .wait = real_wait,
    .wake = real_wake,
    .memory_chunk = real_memory_chunk,
    .reactor_init = real_init,
    .reactor_done = real_done,
    .reactor_start = real_reactor_start,
    .reactor_end = real_reactor_end,
};
