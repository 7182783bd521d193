/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive of this node.
 *
 * Two sorts of objects. The *home* (struct drive_home) is there once for each drive: identity, superblock,
 * slab table, fences, background work. It belongs to one reactor, and what changes it runs there, on a fiber
 * (reactor_call). A *handle* (struct local_drive) is there once for each drive and reactor: its own open
 * file, its sessions, its counters. I/O never leaves the handle's reactor.
 *
 * The checks of volume, epoch and slab are made for each request on the handle's reactor with
 * three loads from memory that all reactors share: the drive's state, the serial of the volume's newest
 * session, and the tag of the volume that owns the slab. They need no lock because whoever changes one of
 * them then visits each handle's reactor and waits there for what was admitted before (fence.c), or waits
 * for the session's own I/O (a freed slab).
 *
 *      submit ---> state? serial? owner[slab]? ---> counted in the session ---> file_submit ---> done
 *                                                        ^ waited for by fences and frees
 *
 * The state of a drive only ever goes away from DRIVE_OK, once, and a lost drive is not trusted again before
 * it was closed and opened: then it has a new incarnation, and its members catch up first.
 */
#include "drive/internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define PREPARE_AHEAD 8u
#define BUSY_WAIT_NS  (2 * NSEC_PER_SEC)
#define BUSY_POLL_NS  (50 * NSEC_PER_MSEC)

/* ---- State ---- */

static void state_changed(struct message *m)
{
    struct drive_home *h = CONTAINER_OF(m, struct drive_home, state_message);
    waitq_wake_all(&h->watch);
    waitq_wake_all(&h->work);
    waitq_wake_all(&h->settled);
    __atomic_store_n(&h->state_told, 1, __ATOMIC_RELEASE);
}

void home_set_state(struct drive_home *h, enum drive_state state, const char *fmt, ...)
{
    assert(state != DRIVE_OK);
    if (__atomic_exchange_n(&h->state_claimed, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->why, sizeof(h->why), fmt, ap);
    va_end(ap);
    __atomic_store_n(&h->state, state, __ATOMIC_RELEASE);
    if (state == DRIVE_LOST)
        event_raise(LOG_ERROR_, "drive-lost", "%s: %s", h->path, h->why);
    h->state_message.fn = state_changed;
    reactor_post(h->reactor, &h->state_message);
}

void drive_home_remove(struct drive_home *h)
{
    home_set_state(h, DRIVE_REMOVED, "removed by the operator");
}

/* ---- Superblock ---- */

int superblock_read_pair(struct file *f, uint64_t size_bytes, struct superblock_pair *ret)
{
    assert(size_bytes >= 2 * BLOCK_SIZE && size_bytes % BLOCK_SIZE == 0);
    uint8_t *block = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    if (block == NULL)
        return ERR_NO_MEMORY;
    *ret = (struct superblock_pair){0};
    const uint64_t offset[2] = {0, size_bytes - BLOCK_SIZE};
    for (int i = 0; i < 2; i++) {
        ret->err[i] = file_read(f, offset[i], block, BLOCK_SIZE);
        if (ret->err[i] != 0)
            continue;
        ret->err[i] = drive_superblock_decode(block, &ret->copy[i]);
        ret->zero[i] = block[0] == 0 && memcmp(block, block + 1, BLOCK_SIZE - 1) == 0;
    }
    free(block);
    return 0;
}

/* Under sb_lock. The end first: its copy is then never older than what the beginning says. */
int home_write_superblock(struct drive_home *h, bool clean)
{
    assert(!h->inspect);
    struct drive_superblock next = h->sb;
    next.generation++;
    next.incarnation = h->incarnation;
    next.clean = clean;
    drive_superblock_encode(&next, h->sb_block);
    const uint64_t offset[2] = {h->sb.size_bytes - BLOCK_SIZE, 0};
    struct iovec iov = {h->sb_block, BLOCK_SIZE};
    for (int i = 0; i < 2; i++) {
        struct file_io io = {.file = h->file,
                             .op = FILE_WRITE,
                             .dsync = true,
                             .offset = offset[i],
                             .len = BLOCK_SIZE,
                             .iov = &iov,
                             .iov_count = 1};
        int err = file_do(&io);
        if (err != 0)
            return err;
    }
    h->sb = next;
    return 0;
}

/* ---- Open ---- */

/* Everything that refuses a drive says what was found and what to do. */
static int refuse(char *why, size_t why_size, int err, const char *fmt, ...) PRINTF_LIKE(4, 5);
static int refuse(char *why, size_t why_size, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, why_size, fmt, ap);
    va_end(ap);
    return err;
}

static bool error_is_busy(int err)
{
    return err == ERR_SYS(EBUSY) || err == ERR_SYS(EAGAIN) || err == ERR_SYS(EWOULDBLOCK);
}

/* After SIGKILL the kernel keeps the old process's file, and with it the lock, until the I/O that was under
 * way has ended: a restart waits a little for that. */
static int open_locked(struct drive_home *h) may_yield
{
    uint64_t deadline = reactor_now_ns() + BUSY_WAIT_NS;
    while (true) {
        int err = file_open(h->path, FILE_OPEN_WRITE | FILE_OPEN_DIRECT | FILE_OPEN_LOCK, &h->file);
        if (!error_is_busy(err) || reactor_now_ns() >= deadline)
            return err;
        err = fiber_sleep(BUSY_POLL_NS);
        if (err != 0)
            return err;
    }
}

static int open_file(struct drive_home *h, struct file_info *ret_info, char *why, size_t n) may_yield
{
    int err = open_locked(h);
    if (err == ERR_SYS(ENOENT) || err == ERR_SYS(ENXIO) || err == ERR_SYS(ENODEV))
        return refuse(why, n, ERR_DRIVE_GONE,
                      "%s is not there: reconnect it, or replace it (ashlar drive replace)", h->path);
    if (error_is_busy(err))
        return refuse(why, n, ERR_DRIVE_IN_USE,
                      "%s is in use by another process, or mounted: stop that first", h->path);
    if (err == ERR_SYS(EACCES) || err == ERR_SYS(EPERM))
        return refuse(why, n, err, "%s: no permission to read and write it: run as its owner", h->path);
    if (err != 0)
        return refuse(why, n, err, "%s cannot be opened: %s", h->path, error_text(err));
    err = file_get_info(h->file, ret_info);
    if (err != 0)
        return refuse(why, n, err, "%s: its size cannot be read: %s", h->path, error_text(err));
    if (ret_info->io_align > BLOCK_SIZE)
        return refuse(why, n, ERR_UNSUPPORTED,
                      "%s wants I/O in units of %u bytes; at most 4096 are supported", h->path,
                      ret_info->io_align);
    if (ret_info->size_bytes < 2 * BLOCK_SIZE)
        return refuse(why, n, ERR_DRIVE_SHRUNKEN,
                      "%s is empty: its content was lost; replace the drive (ashlar drive replace)", h->path);
    return 0;
}

/* No copy can be believed: says what stands there instead. */
static int refuse_unformatted(struct drive_home *h, const struct superblock_pair *p, uint64_t size_bytes,
                              char *why, size_t n) may_yield
{
    if (p->err[0] == ERR_DRIVE_NEWER || p->err[1] == ERR_DRIVE_NEWER)
        return refuse(why, n, ERR_DRIVE_NEWER, "%s was formatted by a newer Ashlar: upgrade this node",
                      h->path);
    if (p->err[0] == ERR_DRIVE_DAMAGED || p->err[1] == ERR_DRIVE_DAMAGED)
        return refuse(why, n, ERR_DRIVE_DAMAGED,
                      "%s: both superblocks are damaged; replace the drive (ashlar drive replace)", h->path);
    if (p->err[0] != ERR_DRIVE_NOT_FORMATTED)
        return refuse(why, n, p->err[0], "%s: its superblock cannot be read: %s", h->path,
                      error_text(p->err[0]));
    size_t len = (size_t)MIN(DRIVE_SIGNATURE_BYTES, ALIGN_DOWN(size_bytes, (uint64_t)BLOCK_SIZE));
    uint8_t *head = aligned_alloc(BLOCK_SIZE, len);
    const char *foreign = NULL;
    if (head != NULL && file_read(h->file, 0, head, len) == 0)
        foreign = drive_foreign_signature(head, len, NULL, 0);
    free(head);
    if (foreign != NULL)
        return refuse(why, n, ERR_DRIVE_FOREIGN, "%s holds %s, not an Ashlar drive: check the path", h->path,
                      foreign);
    return refuse(
        why, n, ERR_DRIVE_NOT_FORMATTED,
        "%s has no superblock: it was wiped or never formatted; if it is the right device, replace the "
        "drive (ashlar drive replace)",
        h->path);
}

static int choose_superblock(struct drive_home *h, uint64_t size_bytes, char *why, size_t n) may_yield
{
    struct superblock_pair p;
    uint64_t size = ALIGN_DOWN(size_bytes, (uint64_t)BLOCK_SIZE);
    int err = superblock_read_pair(h->file, size, &p);
    if (err != 0)
        return refuse(why, n, err, "%s: %s", h->path, error_text(err));
    if (p.err[0] == 0 && p.copy[0].size_bytes > size)
        return refuse(
            why, n, ERR_DRIVE_SHRUNKEN,
            "%s has %llu bytes but was formatted with %llu: it was cut; replace the drive (ashlar drive "
            "replace)",
            h->path, (unsigned long long)size_bytes, (unsigned long long)p.copy[0].size_bytes);
    /* The device grew: the copy is where the end was. */
    if (p.err[0] == 0 && p.copy[0].size_bytes < size) {
        err = superblock_read_pair(h->file, p.copy[0].size_bytes, &p);
        if (err != 0)
            return refuse(why, n, err, "%s: %s", h->path, error_text(err));
    }
    if (p.err[0] != 0 && p.err[1] != 0)
        return refuse_unformatted(h, &p, size, why, n);
    /* A torn write leaves rubbish, never zeroes: the end was cut off and grew back. */
    if (p.err[0] == 0 && p.zero[1])
        return refuse(
            why, n, ERR_DRIVE_SHRUNKEN,
            "%s: its end is empty: it was cut and grown again; replace the drive (ashlar drive replace)",
            h->path);
    if (p.err[0] == 0 && p.err[1] == 0 && !uuid_equal(p.copy[0].drive_id, p.copy[1].drive_id))
        return refuse(
            why, n, ERR_DRIVE_DAMAGED,
            "%s: its two superblocks are of different drives; replace the drive (ashlar drive replace)",
            h->path);
    int best = p.err[0] != 0 || (p.err[1] == 0 && p.copy[1].generation > p.copy[0].generation);
    h->sb = p.copy[best];
    if (h->sb.size_bytes > size)
        return refuse(why, n, ERR_DRIVE_SHRUNKEN, "%s was cut; replace the drive (ashlar drive replace)",
                      h->path);
    for (int i = 0; i < 2; i++)
        h->condition.superblock_damaged[i] = p.err[i] != 0;
    h->condition.closed_in_order = h->sb.clean;
    if (p.err[1 - best] != 0 && !h->inspect)
        event_raise(LOG_WARNING_, "drive-superblock-repaired", "%s: the %s superblock was damaged", h->path,
                    best == 0 ? "last" : "first");
    return 0;
}

static int check_identity(const struct drive_home *h, struct uuid expect_pool, uint64_t min_generation,
                          char *why, size_t n)
{
    if (!uuid_is_none(expect_pool) && !uuid_equal(expect_pool, h->sb.pool_id)) {
        char theirs[UUID_TEXT_SIZE], ours[UUID_TEXT_SIZE];
        uuid_format(h->sb.pool_id, theirs);
        uuid_format(expect_pool, ours);
        return refuse(
            why, n, ERR_DRIVE_FOREIGN,
            "%s belongs to pool %s, not to this pool %s: check the path; to give it to this pool, wipe it "
            "first",
            h->path, theirs, ours);
    }
    if (h->sb.generation < min_generation)
        return refuse(
            why, n, ERR_DRIVE_ROLLED_BACK,
            "%s was rolled back: its generation is %llu, the pool remembers %llu. It holds old data and is "
            "no source; replace the drive (ashlar drive replace)",
            h->path, (unsigned long long)h->sb.generation, (unsigned long long)min_generation);
    return 0;
}

static int load_tables(struct drive_home *h, char *why, size_t n) may_yield
{
    /* Fences first: slabs refer to them. */
    int err = home_fences_load(h);
    if (err == 0)
        err = home_slabs_load(h);
    if (err == ERR_DRIVE_DAMAGED)
        return refuse(
            why, n, err,
            "%s: its slab or fence table is damaged in both copies; replace the drive (ashlar drive "
            "replace)",
            h->path);
    if (err != 0)
        return refuse(why, n, err, "%s: its tables cannot be read: %s", h->path, error_text(err));
    return 0;
}

static int start(struct drive_home *h, char *why, size_t n) may_yield
{
    h->opened_clean = h->sb.clean;
    h->opened_ns = reactor_now_ns();
    h->incarnation = h->sb.incarnation;
    if (h->inspect)
        return 0;
    do
        world_random(&h->incarnation, sizeof(h->incarnation));
    while (h->incarnation == 0);
    fmutex_lock(&h->sb_lock);
    int err = home_write_superblock(h, false);
    fmutex_unlock(&h->sb_lock);
    if (err != 0)
        return refuse(why, n, err, "%s: its superblock cannot be written: %s", h->path, error_text(err));
    err = fiber_spawn_joinable("drive-worker", home_worker_fiber, h, &h->worker_fiber);
    if (err == 0)
        err = fiber_spawn_joinable("drive-watch", home_watch_fiber, h, &h->watch_fiber);
    if (err != 0)
        return refuse(why, n, err, "%s: %s", h->path, error_text(err));
    return 0;
}

static void stop_fibers(struct drive_home *h) may_yield
{
    h->closing = true;
    waitq_wake_all(&h->work);
    waitq_wake_all(&h->watch);
    if (h->worker_fiber != NULL)
        fiber_join(h->worker_fiber);
    if (h->watch_fiber != NULL)
        fiber_join(h->watch_fiber);
    h->worker_fiber = h->watch_fiber = NULL;
}

static void home_free(struct drive_home *h)
{
    home_slabs_free(h);
    home_fences_free(h);
    if (h->file != NULL)
        file_close(h->file);
    free(h->sb_block);
    free(h);
}

static int home_open(const char *path, struct uuid expect_pool, uint64_t min_generation, bool inspect,
                     struct drive_home **ret, char *ret_why, size_t why_size) may_yield
{
    assert(path != NULL && ret != NULL && why_size > 0);
    struct drive_home *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return refuse(ret_why, why_size, ERR_NO_MEMORY, "%s: out of memory", path);
    h->inspect = inspect;
    if (strlen(path) >= sizeof(h->path)) {
        free(h);
        return refuse(ret_why, why_size, ERR_INVALID, "%s: the path is too long", path);
    }
    memcpy(h->path, path, strlen(path) + 1);
    h->reactor = reactor_current();
    h->prepare_ahead = PREPARE_AHEAD;
    fmutex_init(&h->sb_lock);
    fmutex_init(&h->handles_lock);
    fmutex_init(&h->alloc_lock);
    list_init(&h->handles);
    waitq_init(&h->work);
    waitq_init(&h->watch);
    waitq_init(&h->settled);
    h->sb_block = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);

    struct file_info info = {0};
    int err = h->sb_block == NULL ? refuse(ret_why, why_size, ERR_NO_MEMORY, "%s: out of memory", path) : 0;
    if (err == 0)
        err = open_file(h, &info, ret_why, why_size);
    if (err == 0)
        err = choose_superblock(h, info.size_bytes, ret_why, why_size);
    if (err == 0)
        err = check_identity(h, expect_pool, min_generation, ret_why, why_size);
    h->needs_prepare = !info.is_block_device;
    if (err == 0)
        err = load_tables(h, ret_why, why_size);
    if (err == 0)
        err = start(h, ret_why, why_size);
    if (err != 0) {
        stop_fibers(h);
        home_free(h);
        return err;
    }
    *ret = h;
    return 0;
}

int drive_home_open(const char *path, struct uuid expect_pool, uint64_t min_generation,
                    struct drive_home **ret, char *ret_why, size_t why_size)
{
    return home_open(path, expect_pool, min_generation, false, ret, ret_why, why_size);
}

int drive_home_inspect(const char *path, struct uuid expect_pool, uint64_t min_generation,
                       struct drive_home **ret, char *ret_why, size_t why_size)
{
    return home_open(path, expect_pool, min_generation, true, ret, ret_why, why_size);
}

void drive_home_condition(const struct drive_home *h, struct drive_condition *ret)
{
    *ret = h->condition;
}

void drive_home_close(struct drive_home *h)
{
    assert(reactor_current() == h->reactor);
    assert(list_empty(&h->handles));
    stop_fibers(h);
    /* What is only in memory yet (prepared, discarded) goes out, and then the mark of an orderly end. A
     * failure only makes the next start a start after a crash. */
    if (!h->inspect && home_state(h) == DRIVE_OK && drive_table_commit_all(&h->slab_table) == 0 &&
        drive_table_commit_all(&h->fence_table) == 0 && file_sync(h->file) == 0) {
        fmutex_lock(&h->sb_lock);
        int err = home_write_superblock(h, true);
        fmutex_unlock(&h->sb_lock);
        if (err != 0)
            event_raise(LOG_WARNING_, "drive-close-failed", "%s: %s", h->path, error_text(err));
    }
    /* A state message may still be on its way to this reactor: it must arrive before its memory goes. */
    fiber_shield();
    if (__atomic_load_n(&h->state_claimed, __ATOMIC_ACQUIRE) != 0)
        while (__atomic_load_n(&h->state_told, __ATOMIC_ACQUIRE) == 0)
            if (fiber_sleep(NSEC_PER_MSEC) != 0)
                fiber_yield();
    fiber_unshield();
    home_free(h);
}

void drive_home_expect_remote_owners(struct drive_home *h)
{
    if (!h->opened_clean)
        h->no_fence_before_ns = h->opened_ns + DRIVE_LEASE_NS;
}

struct uuid drive_home_id(const struct drive_home *h)
{
    return h->sb.drive_id;
}
struct uuid drive_home_pool_id(const struct drive_home *h)
{
    return h->sb.pool_id;
}
uint64_t drive_home_generation(const struct drive_home *h)
{
    return h->sb.generation;
}

/* ---- Locate ---- */

#define LOCATE_BYTES    (256 * KIB)
#define LOCATE_BLINK_NS (250 * NSEC_PER_MSEC)

int drive_home_locate(struct drive_home *h, uint64_t duration_ns)
{
    assert(reactor_current() == h->reactor);
    uint8_t *buffer = aligned_alloc(BLOCK_SIZE, LOCATE_BYTES);
    if (buffer == NULL)
        return ERR_NO_MEMORY;
    uint64_t begin = reactor_now_ns();
    uint64_t bytes = (uint64_t)h->sb.layout.slabs_total * h->sb.slab_bytes;
    uint64_t span = bytes > LOCATE_BYTES ? bytes - LOCATE_BYTES : 0;
    uint64_t at = 0;
    int err = 0;
    while (err == 0 && reactor_now_ns() - begin < duration_ns) {
        if ((reactor_now_ns() - begin) / LOCATE_BLINK_NS % 2 == 0) {
            at = span == 0 ? 0 : ALIGN_DOWN(hash_mix64(at + begin) % span, (uint64_t)BLOCK_SIZE);
            err = file_read(h->file, h->sb.layout.slab_offset + at, buffer, MIN(bytes, LOCATE_BYTES));
        } else {
            err = fiber_sleep(LOCATE_BLINK_NS);
        }
        if (home_state(h) != DRIVE_OK)
            err = ERR_DRIVE_GONE;
    }
    free(buffer);
    return err;
}
