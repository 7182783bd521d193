/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's parts among themselves. See README.md for the order in which to read them. */
#ifndef ASHLAR_VOLUME_VOLUME_INTERNAL_H
#define ASHLAR_VOLUME_VOLUME_INTERNAL_H

#include "runtime/error.h"
#include "runtime/reactor.h"
#include "volume/change.h"
#include "volume/log.h"
#include "volume/shortage.h"
#include "volume/space.h"
#include "volume/tree.h"
#include "volume/volume.h"

#define COMMIT_INTERVAL_NS    (5 * NSEC_PER_SEC)
#define COMMIT_NEARLY_FULL_NS (NSEC_PER_SEC / 2)
#define DAMAGE_MAX            1024u
#define READER_SLOTS          8u
#define SEEN_SLOTS            512u

/* An inline-logged block run that still has to go to its place: at the commit. */
struct deferred {
    uint32_t space;
    uint32_t count;
    uint64_t block;
    struct page *page;
};
struct deferred_list {
    struct deferred *entries;
    size_t count, capacity;
    uint64_t pages;
};

struct volume {
    struct volume_env env;
    struct volume_record record;
    uint32_t cache_tag;
    uint32_t log_seed; /* crc32c of id, to seed root checksums */
    int state;         /* sticky: 0 or why the volume failed */
    bool read_only, inspect, closing;
    bool is_fs; /* kind: objects are files; else one block device */

    struct group_set *groups;
    struct group *system[SYSTEM_RUNS_MAX];
    struct tree pool, head;
    struct node_store pool_store, head_store;
    struct space space;
    struct log log;
    struct turn_hook hook;

    uint64_t size_bytes;
    uint64_t data_blocks;     /* of the live head */
    uint64_t unmapped_blocks; /* ever, by extent_remove_now(): of data, kept zeroes and lost ones */
    uint64_t inodes;          /* of the live head: items of type ITEM_INODE */
    uint64_t tree_nodes;
    uint64_t losses;
    uint64_t created_ns;

    /* txg */
    uint64_t txg;        /* open */
    uint64_t committed;  /* newest durable root */
    uint64_t committing; /* txg being committed, 0: none */
    uint32_t holders;    /* operations inside op_hold */
    bool closing_txg;
    struct waitq hold_wait, quiesce_wait;
    uint32_t readers[READER_SLOTS]; /* by txg in which they began */
    struct waitq readers_wait;
    struct deferred_list deferred[2]; /* by txg parity */
    struct fiber *committer;
    uint64_t commit_wanted; /* a root of at least this txg */
    bool commit_stop;
    struct waitq commit_wake, commit_done;
    struct timer commit_timer;
    uint64_t dirty_since_ns;
    uint64_t root_log_sequence, root_log_block; /* of the newest durable root */
    bool replaying;                             /* commits take these instead of cutting the log */
    uint64_t replay_sequence, replay_block, replay_epoch;
    uint64_t named_blocks;    /* data written since the last commit began: bounds replay */
    uint64_t nodes_max;       /* dirty nodes before writers wait for a commit */
    uint64_t deferred_max;    /* pages */
    uint64_t dirty_pages_max; /* of all volumes of the reactor together */

    /* membership */
    bool stale_work; /* some drive failed and is not recorded */
    bool membership_running;
    bool opened;      /* before, no repair runs: it takes slabs that opening would find unknown */
    bool log_started; /* the log is initialised: membership can write its record */
    struct waitq membership_done;
    struct fmutex record_lock;

    struct list inflight;
    uint64_t seen[SEEN_SLOTS]; /* H3: by hash of an object, the last batch that changed it */
    struct volume_damage damage[DAMAGE_MAX];
    uint32_t damage_count;
    uint64_t damage_dropped;

    struct volume_job scrub, repair;
    bool scrub_cancel, repair_cancel;
    uint64_t scrub_rate, repair_rate;
    bool repair_again;
    bool revived; /* groups_revive() did something: a scrub follows */

    uint64_t reads, writes, read_blocks, write_blocks, flushes, commits;
    uint32_t background; /* fibers of the volume that are not joined: they end before it closes */
    struct waitq background_wait;
};

/* ---- open.c ---- */
struct volume *volume_alloc(const struct volume_env *env, const struct volume_record *record);
/* After everything that runs in it has ended. */
void volume_free(struct volume *v) may_yield;
/* Sticky: memory and drives may disagree. Every later call answers ERR_VOLUME_FAILED. Never yields. */
void volume_fail(struct volume *v, int why, const char *where);

/* ---- txg.c ---- */
/* An operation that changes the tree is inside one hold from before its first change until its record is
 * added: it is in one txg whole. Must not wait for a commit while holding. */
void op_hold(struct volume *v) may_yield;
void op_release(struct volume *v);
/* A reader keeps blocks that were freed since from being reused under it. Returns its slot. */
uint32_t reader_enter(struct volume *v);
void reader_leave(struct volume *v, uint32_t slot);
/* Slows writers down when much is dirty. */
int txg_throttle(struct volume *v) MUST_CHECK may_yield;
void txg_dirty(struct volume *v); /* something changed: a commit is due in COMMIT_INTERVAL_NS */
void txg_want_commit(struct volume *v);
int txg_start(struct volume *v) MUST_CHECK;
void txg_stop(struct volume *v) may_yield;
/* One commit, by the committer's fiber or, at open and close, directly. clean: the log is empty after it. */
int txg_commit(struct volume *v, bool clean) MUST_CHECK may_yield;
/* Forces what waits to become free: up to two commits. */
int txg_reclaim(struct volume *v) MUST_CHECK may_yield;
void deferred_add(struct volume *v, uint32_t space, uint64_t block, struct page *page, uint32_t count);

/* ---- root.c ---- */
int root_write(struct volume *v, uint64_t txg, const struct disk_node_pointer *pool, uint64_t log_sequence,
               uint64_t log_block, uint64_t log_oldest, uint64_t log_epoch, bool clean) MUST_CHECK may_yield;
/* 0 or ERR_VOLUME_CORRUPT; untrusted input. */
int root_check(const struct disk_root *r, struct uuid volume) MUST_CHECK;
void root_seal(struct disk_root *r);
/* Copies of the newest two roots (of those written since opening) that are not as they were written; each is
 * told. The next two commits make them needless. */
int root_scrub(struct volume *v, uint32_t *ret_bad) MUST_CHECK may_yield;
/* The newest valid root over all readable members; *ret_txg_max: highest txg in any valid one. */
int root_find(struct volume *v, struct disk_root *ret, uint64_t *ret_txg_max) MUST_CHECK may_yield;

/* ---- extent.c ---- */
struct extent {
    uint64_t object, start; /* in blocks */
    uint32_t blocks;
    uint32_t space;
    uint64_t block;
    uint64_t birth;   /* of its blocks */
    uint64_t logical; /* since when it is here; 0: as birth */
    uint8_t flags;
    const uint8_t *sums; /* into the item: borrowed as the cursor's value */
};
#define EXTENT_ITEM_MAX (sizeof(struct disk_extent) + EXTENT_BLOCKS_MAX * 4)
/* ERR_VOLUME_CORRUPT if the item is not well formed. */
int extent_decode(const struct tree_key *key, const void *value, uint32_t len, struct extent *ret) MUST_CHECK;
uint32_t extent_encode(const struct extent *e, uint8_t out[EXTENT_ITEM_MAX]);
static inline struct tree_key extent_key(uint64_t object, uint64_t block)
{
    return (struct tree_key){object, ITEM_EXTENT, block * BLOCK_SIZE};
}
/* Takes the range out of the head tree (prepared for it, with two puts to spare), freeing what it named. */
int extent_remove_now(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks) MUST_CHECK;
void extent_put_now(struct volume *v, const struct extent *e);
/* What one clone does at most: bounds what is prepared. */
#define CLONE_EXTENTS_MAX 32u
#define CLONE_BLOCKS_MAX  2048u
#define CLONE_PUT_BYTES                                                                 \
    (CLONE_EXTENTS_MAX * (uint32_t)sizeof(struct disk_extent) + CLONE_BLOCKS_MAX * 4u + \
     3u * (uint32_t)EXTENT_ITEM_MAX)
#define CLONE_PUTS (CLONE_EXTENTS_MAX + 3u)
struct clone {
    uint64_t from, from_block, to, to_block;
    uint64_t blocks;     /* in: wanted; both ranges are prepared so far. Out: done */
    uint64_t new_blocks; /* out: that `to` has there now, of data, kept zeroes and lost ones */
};
/* Makes `to` share what `from` has; what it had there is removed. The tree is prepared for CLONE_PUTS. */
int extent_clone_now(struct volume *v, struct clone *c) MUST_CHECK;

/* ---- change.c ---- */
/* A record of the change, in its batch: returns the body's place. */
void *change_log(struct change *c, uint16_t type, uint16_t flags, uint32_t len);
/* Adds the range of data to what readers wait for. */
void change_inflight(struct change *c, uint64_t object, uint64_t block, uint64_t blocks);
/* The wanted range in which the key is, as far as it is prepared; or NULL. */
const struct tree_range *change_range_of(const struct change *c, const struct tree_key *key);

/* ---- read.c ---- */
/* The device of a block volume, which has a size; other objects grow as they are written. */
static inline bool volume_is_device(const struct volume *v, uint64_t object)
{
    return object == OBJECT_BLOCK_DEVICE && !v->is_fs;
}
/* ERR_OUT_OF_RANGE, or the volume's state. */
int volume_check_range(const struct volume *v, uint64_t object, uint64_t block, uint64_t blocks) MUST_CHECK;
/* Leases before anything is shown (invariant 4). */
int volume_read_allowed(struct volume *v) MUST_CHECK may_yield;

/* ---- load.c ---- */
/* Reads the pool tree that the root names: groups, space, head. */
int pool_load(struct volume *v, const struct disk_root *root, uint64_t open_txg) MUST_CHECK may_yield;
int system_groups_adopt(struct volume *v) MUST_CHECK may_yield;
int volume_groups_new(struct volume *v) MUST_CHECK;
void volume_stores_init(struct volume *v);
/* Slabs of ours on the drives, of groups first .. end-1, that no group knows are given back. */
void unknown_slabs_free(struct volume *v, uint32_t first, uint32_t end) may_yield;

/* ---- replay.c ---- */
/* Applies the log to what the root says. Groups and trees are loaded, nothing is served. Leaves the log
 * initialised behind what was replayed. */
int replay_run(struct volume *v, const struct disk_root *root, uint64_t txg_max) MUST_CHECK may_yield;

/* ---- open.c ---- */
/* Members of the recorded set that are not here leave it. Before the first write of opening. */
int open_drop_absent(struct volume *v) MUST_CHECK may_yield;

/* ---- membership.c ---- */
void membership_drive_failed(void *ctx, struct group_drive *d); /* group_set's callback */
void membership_kick(struct volume *v);
/* Compare-and-set of the volume's record with a change; keeps what others changed in it. ERR_DRIVE_FENCED:
 * deposed. */
int membership_store(struct volume *v, void (*change)(struct volume_record *r, void *arg), void *arg)
    MUST_CHECK may_yield;
/* Waits until every failed drive is recorded as stale. */
int membership_settle(struct volume *v) MUST_CHECK may_yield;
/* In opening: members on drives that are not here are stale since txg (open.c). Again after groups were
 * learnt. */
void absent_make_stale(struct volume *v, uint64_t since_txg);
void single_copies_believe(struct volume *v);
/* In opening, after absent_make_stale(): groups that lost one drive after the other, and have them all back.
 */
void groups_revive(struct volume *v);
uint32_t volume_stale_members(struct volume *v);

/* ---- inflight.c ---- */
void inflight_add(struct volume *v, struct inflight *f, uint64_t object, uint64_t block, uint64_t blocks,
                  struct log_batch *b);
/* Waits for every unacknowledged write of the range; 0 or its error. */
void inflight_remove(struct inflight *f);
int inflight_wait(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks) may_yield;
void damage_add(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks);
void damage_remove(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks);

/* ---- jobs ---- */
/* A drive was lost or came back: brings members level where that is possible now. */
void repair_autostart(struct volume *v);

#endif
