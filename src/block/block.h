/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block device: one object of a volume, seen as bytes. What protocols for block clients stand on.
 *
 * Everything is called on the volume's reactor. Offsets and lengths are bytes and need no alignment; a range
 * beyond the end is ERR_OUT_OF_RANGE and touches nothing. Errors of the volume are passed on.
 */
#ifndef ASHLAR_BLOCK_BLOCK_H
#define ASHLAR_BLOCK_BLOCK_H

#include "runtime/metrics.h"
#include "volume/volume.h"

struct block_device;

/* The longest range of one block_read() or block_write(): PAGE_VEC_MAX blocks. */
#define BLOCK_PIECE_MAX ((uint32_t)(PAGE_VEC_MAX * BLOCK_SIZE))

/* ---- Life ---- */

/* Borrows the volume, which must stay open until block_device_free(). ERR_NO_MEMORY. */
int block_device_new(struct volume *v, uint64_t object, struct block_device **ret) MUST_CHECK;
/* Nobody may have it open, and no call may be under way. */
void block_device_free(struct block_device *d);
/* Users of the device (connections), so that nobody deletes it under them. */
void block_open(struct block_device *d);
void block_close(struct block_device *d);
uint32_t block_open_count(const struct block_device *d);

struct reactor *block_reactor(const struct block_device *d);
struct volume *block_volume(const struct block_device *d);
uint64_t block_size_bytes(const struct block_device *d);
/* Grows; durable when it returns. Requests under way are not disturbed. Not a multiple of BLOCK_SIZE:
 * ERR_UNALIGNED; smaller than it is: ERR_INVALID. */
int block_resize(struct block_device *d, uint64_t size_bytes) MUST_CHECK may_yield;

/* ---- Data ---- */

enum block_flags {
    BLOCK_FUA = 1 << 0,      /* on stable media when it returns */
    BLOCK_MAY_TRIM = 1 << 1, /* block_zero(): the space may be given back */
};

/* How much of a range the piece that begins at offset takes: pieces end at multiples of BLOCK_PIECE_MAX, so
 * that each touches at most PAGE_VEC_MAX blocks. len > 0. */
static inline uint32_t block_piece_len(uint64_t offset, uint64_t len)
{
    uint64_t room = BLOCK_PIECE_MAX - offset % BLOCK_PIECE_MAX;
    return (uint32_t)MIN(len, room);
}
/* Blocks that the range touches. len > 0. */
static inline uint32_t block_span(uint64_t offset, uint32_t len)
{
    return (uint32_t)(DIV_ROUND_UP(offset % BLOCK_SIZE + len, BLOCK_SIZE));
}

/* One piece (block_piece_len). ret holds the blocks that the range touches, with a reference of each page
 * (page_vec_put): the range begins offset % BLOCK_SIZE bytes into the first. */
int block_read(struct block_device *d, uint64_t offset, uint32_t len, struct page_vec *ret)
    MUST_CHECK may_yield;
/* One piece. data has a page for each block that the range touches, with the payload at offset % BLOCK_SIZE
 * of the first. Pages are the caller's alone until this call: what the range leaves out of the first and the
 * last block is filled in here (read, modify, write; atomic against every other writer of these blocks).
 * The volume takes references; the pages must never be changed afterwards. flags: BLOCK_FUA. */
int block_write(struct block_device *d, uint64_t offset, uint32_t len, const struct page_vec *data,
                uint32_t flags) MUST_CHECK may_yield;
/* Gives back the blocks that lie wholly inside of the range; they read as zeroes. The partial ones at its
 * ends are left as they are. flags: BLOCK_FUA. */
int block_trim(struct block_device *d, uint64_t offset, uint64_t len, uint32_t flags) MUST_CHECK may_yield;
/* The range reads as zeroes, to the byte. flags: BLOCK_FUA, BLOCK_MAY_TRIM. */
int block_zero(struct block_device *d, uint64_t offset, uint64_t len, uint32_t flags) MUST_CHECK may_yield;
/* Everything that was acknowledged before is on stable media when it returns. */
int block_flush(struct block_device *d) MUST_CHECK may_yield;
/* Reads into the cache; of a long range only the first BLOCK_PREFETCH_MAX bytes. */
#define BLOCK_PREFETCH_MAX (32 * MIB)
int block_prefetch(struct block_device *d, uint64_t offset, uint64_t len) MUST_CHECK may_yield;

struct block_extent {
    uint64_t offset, len; /* bytes */
    enum volume_map_kind kind;
};
/* What lies in the range, from offset on without gaps, clipped to it: up to max extents. *ret_count >= 1; the
 * last may end before the range does. len > 0. */
int block_map(struct block_device *d, uint64_t offset, uint64_t len, struct block_extent *out, uint32_t max,
              uint32_t *ret_count) MUST_CHECK may_yield;

/* Calls fn for each piece of the range, up to `parallel` at a time (on fibers of their own beside the
 * caller's), in no particular order. The first error stops what has not begun and is returned when all that
 * began has ended. */
int block_for_pieces(uint64_t offset, uint64_t len, uint32_t parallel,
                     int (*fn)(void *ctx, uint64_t offset, uint32_t len), void *ctx) MUST_CHECK may_yield;

/* Any length, by copying, for callers that have bytes and no pages. */
int block_read_bytes(struct block_device *d, uint64_t offset, void *buf, uint64_t len) MUST_CHECK may_yield;
int block_write_bytes(struct block_device *d, uint64_t offset, const void *buf, uint64_t len, uint32_t flags)
    MUST_CHECK may_yield;

/* ---- Statistics: the gate where latencies of block clients are measured ---- */

enum block_op {
    BLOCK_OP_READ,
    BLOCK_OP_WRITE,
    BLOCK_OP_TRIM,
    BLOCK_OP_ZERO,
    BLOCK_OP_FLUSH,
    BLOCK_OP_MAP,
    BLOCK_OP_COUNT
};
struct block_op_stats {
    uint64_t ops; /* finished, also in error; a piece is an operation */
    uint64_t errors;
    uint64_t bytes;
    uint64_t in_flight;
    struct histogram latency;
};
/* Written on the device's reactor; readable anywhere with counter_get. Borrowed. */
const struct block_op_stats *block_stats(const struct block_device *d, enum block_op op);
const char *block_op_name(enum block_op op);
/* Of all partial blocks: how many were read, to be merged with what a client wrote. */
uint64_t block_merge_count(const struct block_device *d);

#endif
