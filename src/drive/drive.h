/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive: a file or block device cut into slabs. One interface for a drive of this node and for one that is
 * reached over the network; no layer above knows which one it has.
 *
 * Every request names volume and epoch (its session), and a slab; the drive checks all three. A drive
 * refuses, for ever, requests below the highest epoch that it has accepted for a volume (invariant 3, Fence).
 *
 * A struct drive is one reactor's handle; each reactor has its own (drive_set). Slab table, fences and
 * identity live in the drive's home and are shared.
 */
#ifndef ASHLAR_DRIVE_DRIVE_H
#define ASHLAR_DRIVE_DRIVE_H

#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/world.h"

struct drive;
struct drive_session;
struct drive_set;

enum drive_state {
    DRIVE_OK,
    DRIVE_LOST,    /* I/O failed, or the file or device is gone, shrunken or another one */
    DRIVE_REMOVED, /* by the operator */
};

struct drive_info {
    struct uuid id; /* made when the drive was formatted */
    struct uuid pool_id;
    uint64_t incarnation; /* new at every start of its process */
    enum drive_state state;
    char path[256];
    char why[128]; /* a sentence when the state is not DRIVE_OK, else "" */
    uint64_t size_bytes;
    uint32_t slab_bytes;
    uint32_t slabs_total;
    uint32_t slabs_free;
    /* counters since start */
    uint64_t reads, writes, flushes, read_bytes, write_bytes, errors;
    struct histogram read_latency, write_latency, flush_latency;
};

/* ---- The handle ---- */

struct uuid drive_id(const struct drive *d);
uint32_t drive_slab_blocks(const struct drive *d);
enum drive_state drive_get_state(const struct drive *d);
/* Requests that this reactor has under way on the drive: for choosing the least loaded copy. */
uint32_t drive_queue_depth(const struct drive *d);
int drive_get_info(struct drive *d, struct drive_info *ret) MUST_CHECK may_yield;

/* ---- Sessions: one owner of one volume on one drive ---- */

/*
 * One session a volume and drive: opening a new one, on whatever reactor, ends every older one of that volume
 * (its requests get ERR_DRIVE_FENCED), in a lower epoch and in the same one alike.
 * Fences the drive for (volume, epoch): raises its highest epoch durably, waits until everything admitted
 * under lower epochs has completed and until a lease granted to a lower epoch has run out, drains an older
 * session of the same owner, and returns a session for requests of this epoch. generation is the
 * coordinator's (never lowered by a drive). ERR_DRIVE_FENCED, ERR_DRIVE_GONE.
 */
int drive_session_open(struct drive *d, struct uuid volume, uint64_t epoch, uint64_t generation,
                       struct drive_session **ret) MUST_CHECK may_yield;
/* All requests must have completed. */
void drive_session_close(struct drive_session *s);
/* Of the drive when the session was opened: data not flushed before may be gone if it differs from the
 * volume record's. */
uint64_t drive_session_incarnation(const struct drive_session *s);
/* The lease that the drive granted to this session, counted on the owner's clock from before the request
 * that renewed it was sent. Every answered request renews it. */
uint64_t drive_session_lease_until_ns(const struct drive_session *s);
int drive_session_renew(struct drive_session *s) MUST_CHECK may_yield;

/* ---- I/O ---- */

enum drive_op { DRIVE_READ, DRIVE_WRITE, DRIVE_FLUSH };

/* Owned by the caller until done() was called, which is exactly once, from the loop; it must not yield. */
struct drive_io {
    struct drive_session *session;
    enum drive_op op;
    bool dsync; /* a write that is durable when it completes */
    uint32_t slab;
    uint32_t block; /* in the slab */
    uint32_t blocks;
    const struct iovec *iov; /* sum is blocks * BLOCK_SIZE; memory is BLOCK_SIZE aligned */
    uint32_t iov_count;      /* 1..1024 */
    struct page *page;       /* where iov_count == 1: the first page of that memory */
    int result;              /* 0, ERR_DRIVE_FENCED, ERR_DRIVE_BAD_SLAB, ERR_DRIVE_GONE, ERR_SYS(EIO) … */
    void (*done)(struct drive_io *io);
    void *ctx; /* the caller's */
    uint64_t submitted_ns;
    struct file_io file; /* the drive's */
};
void drive_submit(struct drive_io *io);
/* Submit and wait. */
int drive_do(struct drive_io *io) MUST_CHECK may_yield;
/* Everything that was completed before on this drive, of this volume at least, is on stable media. */
int drive_flush(struct drive_session *s) MUST_CHECK may_yield;

/* ---- Slabs ---- */

struct slab_entry {
    uint32_t slab;
    struct uuid volume;
    uint32_t group;
    uint32_t member;
    uint64_t epoch; /* of the owner that allocated it */
    bool deleted;   /* its volume was deleted; space not given back yet */
};

/* Idempotent by (volume, group, member): the same answer when asked twice. The slab's table entry is durable
 * and its space was written once (unwritten extents of files spoil FUA) before it returns.
 * ERR_DRIVE_NO_SPACE, ERR_DRIVE_FENCED, ERR_DRIVE_GONE. */
int drive_slab_alloc(struct drive_session *s, uint32_t group, uint32_t member, uint32_t *ret_slab)
    MUST_CHECK may_yield;
/* Durable when it returns. The space may be given back to the host (discard). ERR_DRIVE_BAD_SLAB if not the
 * volume's. */
int drive_slab_free(struct drive_session *s, uint32_t slab) MUST_CHECK may_yield;
/* The slabs of one volume, or of all (none uuid). *ret is malloc'ed. Needs no session. */
int drive_slab_list(struct drive *d, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
    MUST_CHECK may_yield;
/* Frees slabs of a deleted volume: the tombstone's way. epoch must be above all owners'. */
int drive_volume_purge(struct drive *d, struct uuid volume, uint64_t epoch) MUST_CHECK may_yield;

/* ---- The implementations' side: local.c now, remote later ---- */

struct drive_ops {
    int (*get_info)(struct drive *d, struct drive_info *ret);
    int (*session_open)(struct drive *d, struct uuid volume, uint64_t epoch, uint64_t generation,
                        struct drive_session **ret);
    void (*session_close)(struct drive_session *s);
    int (*session_renew)(struct drive_session *s);
    void (*submit)(struct drive_io *io);
    int (*slab_alloc)(struct drive_session *s, uint32_t group, uint32_t member, uint32_t *ret_slab);
    int (*slab_free)(struct drive_session *s, uint32_t slab);
    int (*slab_list)(struct drive *d, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count);
    int (*volume_purge)(struct drive *d, struct uuid volume, uint64_t epoch);
};

/* Common head of every implementation's handle and session; only drive/ touches the fields. */
struct drive {
    const struct drive_ops *ops;
    struct uuid id;
    uint32_t slab_blocks;
    enum drive_state state;
    uint32_t queue_depth;
    struct drive_set *set; /* that it was added to; NULL: none */
};
struct drive_session {
    struct drive *drive;
    struct uuid volume;
    uint64_t epoch;
    uint64_t incarnation;
    uint64_t lease_until_ns;
    uint32_t in_flight;
};

#define DRIVE_LEASE_NS (2 * NSEC_PER_SEC)

#endif
