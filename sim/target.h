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
