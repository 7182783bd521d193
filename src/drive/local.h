/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives of this node. A struct drive_home holds identity, slab table and fences of one local drive and
 * belongs to the reactor that opened it; other reactors attach handles to it.
 */
#ifndef ASHLAR_DRIVE_LOCAL_H
#define ASHLAR_DRIVE_LOCAL_H

#include "drive/drive.h"

struct drive_home;

struct drive_format_options {
    const char *path;
    struct uuid pool_id;
    uint64_t size_bytes; /* of a file that is created (sparse); 0: the device's or existing file's size */
    uint32_t slab_bytes; /* 0: about 1/4096 of the drive, 4 to 256 MiB, a power of two */
    bool force;          /* also over a foreign file system, partition table or another pool's drive */
};

/* Makes an empty drive. Refuses (with a reason in ret_why, at most why_size bytes, always set on an error):
 * a mounted or locked device, foreign contents unless forced, one that is too small (64 MiB). */
int drive_format(const struct drive_format_options *o, struct uuid *ret_id, char *ret_why, size_t why_size)
    MUST_CHECK may_yield;

/* Opens and locks; checks both superblocks, table, pool, size. *expect_pool none: any pool. Refuses foreign,
 * wiped, rolled-back (min_generation: the lowest superblock generation that may be believed), shrunken and
 * in-use drives; ret_why says what to do. The home is bound to the calling reactor. */
int drive_home_open(const char *path, struct uuid expect_pool, uint64_t min_generation,
                    struct drive_home **ret, char *ret_why, size_t why_size) MUST_CHECK may_yield;
/* For offline tools: the same checks and the same lock, but nothing is ever written, no table is repaired,
 * and the incarnation is the last one's. Sessions are given in any epoch, without a fence; writes, frees,
 * purges and allocations of what is not there get ERR_DRIVE_READ_ONLY; flushes do nothing. */
int drive_home_inspect(const char *path, struct uuid expect_pool, uint64_t min_generation,
                       struct drive_home **ret, char *ret_why, size_t why_size) MUST_CHECK may_yield;
/* What was found damaged at the open: [0] of copy A, [1] of copy B. An open that may write repaired it. */
struct drive_condition {
    bool superblock_damaged[2];
    uint32_t table_blocks_damaged[2]; /* of the slab table */
    uint32_t fence_blocks_damaged[2];
    uint32_t blocks_behind; /* of both tables: whole, but older than their other copy (a crash in between) */
    bool closed_in_order;
};
void drive_home_condition(const struct drive_home *h, struct drive_condition *ret);
/* No handle may be attached. */
void drive_home_close(struct drive_home *h) may_yield;
struct uuid drive_home_id(const struct drive_home *h);
struct uuid drive_home_pool_id(const struct drive_home *h);
/* Owners on other nodes exist: they may hold leases that this drive granted before it was restarted, so it
 * answers no fence for one full lease after an open that followed no orderly close (invariant 4). Without
 * this call every owner lived in the process that died with the drive, and nothing is waited for. Call it
 * before the first session is opened. */
void drive_home_expect_remote_owners(struct drive_home *h);
/* Grows with every change of the superblock; kept in the coordinator to recognise a rolled-back drive. */
uint64_t drive_home_generation(const struct drive_home *h);
/* Blinks: a second of reads of the drive, so that a person finds its light. */
int drive_home_locate(struct drive_home *h, uint64_t duration_ns) may_yield;
/* Takes the drive out of use: handles answer ERR_DRIVE_GONE from now on. */
void drive_home_remove(struct drive_home *h);

/* A handle for the calling reactor (opens the file again, so that each ring has its own). */
int drive_attach(struct drive_home *h, struct drive **ret) MUST_CHECK may_yield;
void drive_detach(struct drive *d) may_yield;

/* One reactor's drives, by id: what groups look members up in. */
struct drive_set {
    struct drive **drives; /* borrowed handles */
    uint32_t count;
    uint64_t generation; /* grows when a drive joins or leaves or changes its state */
    struct waitq changed;
};
void drive_set_init(struct drive_set *s);
void drive_set_done(struct drive_set *s);
int drive_set_add(struct drive_set *s, struct drive *d) MUST_CHECK;
void drive_set_remove(struct drive_set *s, struct drive *d);
struct drive *drive_set_find(const struct drive_set *s, struct uuid id); /* NULL: not here */

#endif
