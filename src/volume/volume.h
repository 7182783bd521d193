/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume: one copy-on-write store, the unit of ownership, protection and failover. It lives on the reactor
 * that opened it; every call here is made there (reactor_call from elsewhere).
 */
#ifndef ASHLAR_VOLUME_VOLUME_H
#define ASHLAR_VOLUME_VOLUME_H

#include "protect/group.h"
#include "volume/cache.h"
#include "volume/format.h"

struct volume;
struct volume_shortage;

/* ---- Life ---- */

struct volume_env { /* what a volume stands on; borrowed for its life */
    struct coord *coord;
    struct drive_set *drives;         /* this reactor's */
    struct cache *cache;              /* this reactor's */
    struct uuid node;                 /* this node's id: the owner */
    struct volume_shortage *shortage; /* the node's (shortage.h); NULL: volumes do not wait for each other */
    uint32_t dirty_nodes_max; /* tree nodes that may wait for a commit; 0: a share of the reactor's memory */

    /* For offline tools; zero else. */
    bool no_repair; /* repair does not start by itself */
    /* A copy that did not verify was rewritten from another one. Must not yield. */
    void (*copy_rewritten)(void *ctx, const struct group_copy *c);
    void *ctx;
};

#define VOLUME_KIND_BLOCK "block" /* object 1 is a device of a fixed size */
#define VOLUME_KIND_FS    "fs" /* objects are files (change.h); the size only says how large a log is good */
struct volume_create_options {
    const char *name;    /* 1..VOLUME_NAME_MAX of [A-Za-z0-9._-], not beginning with '.' or '-' */
    const char *kind;    /* VOLUME_KIND_* */
    uint64_t size_bytes; /* multiple of BLOCK_SIZE, up to 2^63 - BLOCK_SIZE; thin */
    struct protection protection;
    uint32_t system_runs; /* 0: a sensible number for the slab size */
};
/* Record, system group, first root. The volume is not open afterwards. ERR_VOLUME_EXISTS, ERR_INVALID (name),
 * ERR_NOT_ENOUGH_DRIVES, ERR_DRIVE_NO_SPACE … */
int volume_create(const struct volume_env *env, const struct volume_create_options *o, struct uuid *ret_id)
    MUST_CHECK may_yield;
/* Claims (epoch), fences, reads the root, replays the log, levels the members, and serves. */
int volume_open(const struct volume_env *env, struct uuid id, struct volume **ret) MUST_CHECK may_yield;
/* Waits for what is under way, commits, marks the root clean, gives up ownership. Frees v even on an error.
 */
int volume_close(struct volume *v) MUST_CHECK may_yield;
/* Closes (v may be NULL: not open), writes the tombstone, gives the slabs back, removes the record.
 * Resumable. */
int volume_delete(const struct volume_env *env, struct uuid id, struct volume *v) MUST_CHECK may_yield;

const struct volume_record *volume_get_record(const struct volume *v);
uint64_t volume_size_bytes(const struct volume *v);
/* Never smaller than it is; multiple of BLOCK_SIZE. Durable when it returns. */
int volume_grow(struct volume *v, uint64_t size_bytes) MUST_CHECK may_yield;
/* 0, or why it is failed (sticky). Callers stop using it and close it. */
int volume_get_state(const struct volume *v);

/* ---- Data: ranges of an object in blocks of 4 KiB ---- */

/* Runs of pages. page NULL: zeroes. In a read the vector holds a reference of every page (page_vec_put). */
struct page_run {
    struct page *page;
    uint32_t count;
};
#define PAGE_VEC_MAX 256u /* blocks of one call: 1 MiB */
struct page_vec {
    uint32_t run_count;
    uint32_t blocks;
    struct page_run runs[PAGE_VEC_MAX];
};
void page_vec_put(struct page_vec *v);

/* Reads 1..PAGE_VEC_MAX blocks. Returns only what is acknowledged: waits for writes to the range that are
 * under way. ERR_NO_GOOD_COPY, ERR_LOST_RANGE: EIO for the caller; nothing is returned then. */
int volume_read(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks, struct page_vec *ret)
    MUST_CHECK may_yield;

enum volume_write_flags {
    VOLUME_WRITE_FUA = 1 << 0, /* on stable media of every in-sync member when it returns */
};
/* Writes the pages (1..PAGE_VEC_MAX blocks). The volume takes references as it needs; the caller keeps its
 * own and must never change the pages afterwards: they may be in the cache. Whole or not at all after a
 * crash. Concurrent writes of the same range take effect in some order; readers never see a mixture within a
 * block. ERR_VOLUME_FULL, ERR_VOLUME_FAILED, ERR_VOLUME_READ_ONLY … */
int volume_write(struct volume *v, uint64_t object, uint64_t block, const struct page_vec *data,
                 uint32_t flags) MUST_CHECK may_yield;
/* Gives space back; reads as zeroes. Any number of blocks; whole per piece of at most 64 tree leaves. */
int volume_unmap(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
    MUST_CHECK may_yield;
/* Reads as zeroes and keeps its place in the space accounting. */
int volume_zero(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
    MUST_CHECK may_yield;
/* Everything acknowledged before is on stable media of every in-sync member. */
int volume_flush(struct volume *v) MUST_CHECK may_yield;
/* Reads into the cache without returning data. */
int volume_prefetch(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks) MUST_CHECK may_yield;

enum volume_map_kind { MAP_HOLE, MAP_ZERO, MAP_DATA, MAP_LOST };
struct volume_map_entry {
    uint64_t block;
    uint64_t blocks;
    enum volume_map_kind kind;
};
/* What lies in the range: up to max entries, adjacent of one kind merged, covering from `block` on without
 * gaps. *ret_count >= 1; the last may end before the range does. */
int volume_map(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks,
               struct volume_map_entry *out, uint32_t max, uint32_t *ret_count) MUST_CHECK may_yield;

/* ---- Background work and status ---- */

/* Forces a commit and waits until its root is durable. */
int volume_commit(struct volume *v) MUST_CHECK may_yield;

struct volume_job { /* scrub or repair: progress for people */
    bool running;
    uint64_t started_ns, finished_ns; /* reactor clock */
    uint64_t done_blocks, total_blocks;
    uint64_t bad_copies, repaired_copies, lost_blocks;
    int result;
};
/* Starts reading and verifying every copy of everything in the background; ERR_VOLUME_BUSY if one runs.
 * rate 0: the default throttle. */
int volume_scrub_start(struct volume *v, uint64_t rate_bytes_per_s) MUST_CHECK;
/* Brings stale members level, or replaces them on other drives where theirs is gone. Also started by itself
 * when a drive is lost or returns. */
int volume_repair_start(struct volume *v, uint64_t rate_bytes_per_s) MUST_CHECK;
void volume_job_cancel(struct volume *v);

struct volume_damage {
    uint64_t object;
    uint64_t offset_bytes;
    uint64_t len_bytes;
};

struct volume_status {
    int state; /* volume_get_state */
    bool read_only;
    uint64_t txg;
    uint64_t size_bytes;
    uint64_t data_blocks; /* referenced by the live head */
    uint64_t tree_blocks;
    uint64_t slabs;         /* on drives, all members */
    uint64_t raw_bytes;     /* slabs x slab size */
    uint32_t stale_members; /* of all groups */
    int redundancy_left;    /* how many more drives may be lost; -1: data is lost */
    bool healthy;           /* every member current, none damaged */
    struct volume_job scrub, repair;
    uint64_t damage_count;           /* ranges known to be unreadable */
    struct volume_damage damage[16]; /* the first ones */
    struct group_counters counters;
    uint64_t log_batches, log_records, commits, log_bytes_used, log_bytes_total;
    uint64_t reads, writes, read_blocks, write_blocks, flushes;
};
void volume_get_status(struct volume *v, struct volume_status *ret);
/* Copies up to max ranges that are known to be unreadable; returns how many. */
uint32_t volume_get_damage(const struct volume *v, struct volume_damage *out, uint32_t max);

/* Re-verifies the documented invariants (asserts): tests and the simulator. */
void volume_check(struct volume *v) may_yield;

#endif
