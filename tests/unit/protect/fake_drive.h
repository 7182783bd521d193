/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive in memory with faults on order, behind the real drive_ops: errors, delays, answers held back, wrong
 * bytes, loss of what was not flushed. Reads and writes touch the caller's memory when they complete, not
 * when they are submitted, as a device does.
 */
#ifndef ASHLAR_TEST_FAKE_DRIVE_H
#define ASHLAR_TEST_FAKE_DRIVE_H

#include "drive/local.h"
#include "runtime/list.h"
#include "runtime/reactor.h"

struct fake_slab {
    bool used;
    struct uuid volume;
    uint32_t group, member;
    uint8_t *now, *stable; /* what a read sees; what a power loss leaves */
};

struct fake_drive {
    struct drive base;
    uint32_t slabs_total;
    struct fake_slab *slabs;
    uint64_t epoch, incarnation;
    bool open; /* a session */

    /* Faults; 0 is none. */
    bool gone;
    int read_error, write_error, flush_error, alloc_error;
    uint32_t bad_slab, bad_block_from, bad_block_to; /* read_error only there; to 0: everywhere */
    uint64_t read_delay_ns, write_delay_ns, flush_delay_ns, alloc_delay_ns;
    bool hold;           /* answers wait for fake_drive_release() */
    bool swallow_writes; /* says that they are done, and does nothing */
    bool no_renew;       /* leases are not renewed */
    struct list held;

    uint64_t reads, writes, flushes, sessions;
    uint64_t max_queue;
};

/* While > 0 the fake drive itself allocates: a sweep over failing allocations leaves that alone. */
extern volatile uint32_t fake_drive_allocates; /* the compiler believes that calloc() looks at nothing */

int fake_drive_new(uint8_t id, uint32_t slabs, uint32_t slab_blocks, struct fake_drive **ret);
/* Nothing may be under way. */
void fake_drive_free(struct fake_drive *f);
/* Lets what is held go; later answers are not held. */
void fake_drive_release(struct fake_drive *f);
/* Marks the drive as lost, as drive/ does when it finds out. */
void fake_drive_lose(struct fake_drive *f);
void fake_drive_return(struct fake_drive *f, bool power_was_lost);
uint32_t fake_drive_free_slabs(const struct fake_drive *f);
/* The bytes that a read of this block sees, to look at and to spoil. */
uint8_t *fake_drive_block(struct fake_drive *f, uint32_t slab, uint32_t block);
uint8_t *fake_drive_stable_block(struct fake_drive *f, uint32_t slab, uint32_t block);

#endif
