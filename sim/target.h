/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workload drives: the product's volume on a simulated node (target_volume.c), or a small store with
 * a log that shows that the checker itself works (target_toy.c).
 *
 * All functions run in a fiber of the node. A target of a process that died is never touched again.
 */
#ifndef ASHLAR_SIM_TARGET_H
#define ASHLAR_SIM_TARGET_H

#include "sim/swarm.h"
#include "volume/volume.h"

struct sim_target {
    const struct sim_target_ops *ops;
};

struct sim_target_status {
    int state; /* 0, or why it failed */
    bool healthy;
    bool busy;                                         /* scrub or repair runs */
    uint64_t bad_copies, repaired_copies, lost_blocks; /* of the last scrub */
    uint64_t damage_count;
    uint64_t commits, log_records;
    uint64_t data_blocks, tree_blocks, slabs;
    uint32_t stale_members;
    int redundancy_left;
};

struct seed;
/* What clients do, where it is not the reading and writing of blocks. */
struct sim_work_ops {
    void (*setup)(struct seed *s);
    /* After opening, and at any time when no client works: everything is as it must be. */
    void (*verify)(struct seed *s);
    void (*run)(struct seed *s);
    /* The process died; power: with what was not flushed. */
    void (*crash)(struct seed *s, bool power);
};

/* Objects beside the block device, with items and blocks: changes.c. */
#define SIM_OBJECTS       6u
#define SIM_OBJECT_ITEMS  4u /* the first one is its inode */
#define SIM_OBJECT_BLOCKS 12u
#define SIM_ITEM_MAX      4000u
#define SIM_CHANGE_ITEMS  5u

struct sim_change_item {
    uint32_t object, slot;
    const void *value;
    uint32_t len; /* 0: it is deleted, if it is there */
};
enum sim_change_data { SIM_CHANGE_NONE, SIM_CHANGE_WRITE, SIM_CHANGE_UNMAP, SIM_CHANGE_CLONE };
struct sim_change {
    bool durable;
    bool forget; /* the first item is not asked for beforehand */
    uint32_t item_count;
    struct sim_change_item items[SIM_CHANGE_ITEMS];
    enum sim_change_data data;
    uint32_t object, block, blocks; /* of the data */
    uint32_t from, from_block;      /* of a clone */
    struct page *page;              /* of a write */
    /* In the instant: each item as it was before (value NULL: not there); then, once, that it happened and to
     * how many blocks. */
    void (*look)(void *ctx, uint32_t object, uint32_t slot, const void *value, uint32_t len);
    void (*applied)(void *ctx, uint32_t blocks);
    void *ctx;
};

struct sim_target_ops {
    const char *name;
    const struct sim_work_ops *work; /* NULL: blocks (workload.c) */
    /* Makes pool and volume from nothing. Repeated after a crash in the middle of it. */
    int (*create)(struct sim_node *n, const struct sim_swarm *w);
    int (*open)(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret);
    /* Everything ends: volume, drives, coordinator. */
    int (*close)(struct sim_target *t);
    uint64_t (*blocks)(struct sim_target *t);
    int (*read)(struct sim_target *t, uint64_t block, uint32_t blocks, struct page_vec *ret);
    int (*write)(struct sim_target *t, uint64_t block, const struct page_vec *data, bool fua);
    int (*unmap)(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua);
    int (*zero)(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua);
    int (*flush)(struct sim_target *t);
    int (*commit)(struct sim_target *t);
    int (*grow)(struct sim_target *t, uint64_t blocks);
    int (*map)(struct sim_target *t, uint64_t block, uint64_t blocks, struct volume_map_entry *out,
               uint32_t max, uint32_t *ret_count);
    int (*scrub)(struct sim_target *t);
    int (*repair)(struct sim_target *t);
    /* NULL: has no changes. */
    int (*change)(struct sim_target *t, const struct sim_change *c);
    int (*item)(struct sim_target *t, uint32_t object, uint32_t slot, void *buf, uint32_t max,
                uint32_t *ret_len);
    int (*object_read)(struct sim_target *t, uint32_t object, uint32_t block, uint32_t blocks,
                       struct page_vec *ret);
    int (*seen)(struct sim_target *t, uint32_t object);
    uint64_t (*inodes)(struct sim_target *t);
    void (*get_status)(struct sim_target *t, struct sim_target_status *ret);
    void (*check)(struct sim_target *t); /* asserts its invariants */
    /* Compares what refers to space with what says that it is taken. 0, or the number of contradictions, of
     * which the first is told; or a negative error. Nothing else may run. */
    int64_t (*verify)(struct sim_target *t, char *why, size_t why_size);
    /* Looks at the drives after an orderly end; 0, or negative if one is damaged. NULL: has none. */
    int (*check_offline)(struct sim_node *n, const struct sim_swarm *w);
};

extern const struct sim_target_ops sim_target_volume_ops;
extern const struct sim_target_ops sim_target_fs_ops; /* a file system in the volume */
extern const struct sim_target_ops sim_target_toy_ops;

/* "/n0/drive-3" and the like. */
void sim_drive_path(uint32_t index, char out[SIM_PATH_SIZE]);

#endif
