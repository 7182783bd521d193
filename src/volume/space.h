/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space: which blocks of the volume's groups are free, and when freed ones may be used again.
 *
 * In memory a group has a busy bitmap only while blocks are taken from it (it is *active*); all groups have
 * counts. What happened in a txg is kept as lists of runs and folded into the pool tree's space items by its
 * commit, so that a root's space items say exactly what that root references.
 *
 * Invariants
 *  S1  a block freed in txg N is set in alloc and defer of root N, clear in root N+1, and can be allocated
 * only once root N+1 is durable and every reader that began in txg N or before has ended (invariant 5, Copy
 * on write); S2  space_take_*() never yields; space_ensure_*() does, and promises nothing after another
 * yield; S3  a part of the tree space is kept for what must always be possible: commits, and deleting on a
 * full pool.
 */
#ifndef ASHLAR_VOLUME_SPACE_H
#define ASHLAR_VOLUME_SPACE_H

#include "protect/group.h"
#include "runtime/list.h"
#include "volume/tree.h"

struct volume;

struct block_run {
    uint32_t space;
    uint32_t count;
    uint64_t block;
};
struct run_list {
    struct block_run *runs;
    size_t count, capacity;
};
/* false: no memory, and the run is not in the list. */
bool run_list_add(struct run_list *l, uint32_t space, uint64_t block, uint32_t count) MUST_CHECK;
void run_list_done(struct run_list *l);

enum space_urgency {
    SPACE_NORMAL, /* writes: leaves the reserve alone */
    SPACE_DELETE, /* unmap and other things that give space back: may use half of the reserve */
    SPACE_COMMIT, /* the commit itself: all of it */
};

/* A group's allocation state, in group->volume_private. */
struct space_group {
    struct group *group;
    struct list link; /* active list of its purpose, or its bucket of idle ones */
    bool active;
    bool loading;
    bool logged;          /* its existence is in the log or in a root: it may be named */
    bool item_dirty;      /* its group item must go into the next root */
    bool repairing;       /* a member of it is being placed: it is not destroyed meanwhile */
    uint64_t retired_txg; /* being given back: first root without it; 0: no */
    uint32_t blocks;
    uint32_t free;    /* that can be allocated now */
    uint32_t waiting; /* freed, but not reusable yet (S1) */
    uint32_t cursor;  /* next fit */
    uint8_t *busy;    /* active: a bit a block */
};

#define SPACE_TXGS 4u /* txgs whose lists are kept: indexed by txg mod this */

struct space {
    struct list active[3]; /* by enum group_purpose */
    struct list idle[3];
    uint64_t ready[3];      /* free blocks in active groups */
    uint64_t total_free[3]; /* in all groups */
    uint32_t next_group;
    uint32_t group_count[3];
    uint64_t chunks; /* space items of all groups: bounds what a commit touches */
    struct run_list allocs[SPACE_TXGS];
    struct run_list frees[SPACE_TXGS];
    struct run_list refs_added[SPACE_TXGS], refs_dropped[SPACE_TXGS]; /* of shared blocks: refs.c */
    uint64_t ref_items;                                               /* in the pool tree */
    uint64_t freed_data[SPACE_TXGS]; /* blocks in frees that are data: worth a commit of their own */
    uint64_t taken_data[SPACE_TXGS]; /* data blocks in allocs of this session */
    struct group *current[3];        /* where the last block was taken */
    uint32_t streak;                 /* blocks taken from current[GROUP_DATA] in a row */
    uint64_t version;  /* grows when a fold or release begins or ends: a load in between starts again */
    bool adding_tree;  /* a tree group is being activated or made */
    uint32_t creating; /* groups being made in the background */
    uint32_t together; /* the most of them at once since there was none */
    int create_error;  /* why the last one could not be made */
    bool error_alone;  /* and it was the only one: no other took the room that it lacked */
    uint64_t create_error_ns;
    bool coming;    /* slabs are on their way back to the pool (shortage.h) */
    bool emptied;   /* a group was taken out of use to be given back */
    bool keeps;     /* free groups are kept only because data is written fast; they go when that ends */
    bool give_back; /* repair lacks slabs: no free group is kept or made ahead */
    struct waitq changed;
};

int space_init(struct volume *v);
void space_done(struct volume *v);

/* n data blocks can be taken now. */
bool space_ready_data(const struct volume *v, uint32_t n);
/* Makes it so: activates groups, creates them, waits for those under way. ERR_VOLUME_FULL when neither helps
 * (the caller then forces commits, since they free what waits, and asks again). */
int space_ensure_data(struct volume *v, uint32_t n) MUST_CHECK may_yield;
/* Takes up to n blocks side by side; at least 1. The caller was promised n: it calls again for the rest. */
struct block_run space_take_data(struct volume *v, uint32_t n);

bool space_ready_nodes(const struct volume *v, uint32_t nodes, enum space_urgency u);
int space_ensure_nodes(struct volume *v, uint32_t nodes, enum space_urgency u) MUST_CHECK may_yield;
struct node_address space_take_node(struct volume *v, uint64_t txg);

/* Not referenced any more from txg on. */
void space_free(struct volume *v, uint64_t txg, uint32_t space, uint64_t block, uint32_t count);
/* Replay: the log names these blocks: they count as allocated in txg. ERR_VOLUME_CORRUPT. */
int space_claim(struct volume *v, uint64_t txg, uint32_t space, uint64_t block, uint32_t count) MUST_CHECK;

/* A group that came from root or log: makes its allocation state. used: bits set in its space items. */
int space_adopt_group(struct volume *v, struct group *g, uint32_t used) MUST_CHECK;
/* Commit of txg: folds the txg's lists, and the frees of the one before, into space items of the pool tree,
 * again and again until the tree's own changes are in too. */
int space_commit_items(struct volume *v, uint64_t txg) MUST_CHECK may_yield;
/* Root txg is durable: frees of txg-1 can be used. Gives wholly free groups back. */
void space_commit_done(struct volume *v, uint64_t txg) may_yield;
/* Nodes that commits may need at most for the pool tree: for two, since what one frees comes back with the
 * next. */
uint32_t space_commit_nodes(const struct volume *v);
/* ---- refs.c: blocks that several extents name ---- */
/* One more extent of the open txg names these blocks; one less does. */
void refs_add(struct volume *v, uint32_t space, uint64_t block, uint32_t count);
void refs_drop(struct volume *v, uint32_t space, uint64_t block, uint32_t count);
/* Folds what txg did into the counts, and frees what nobody names any more in txg. Before
 * space_commit_items(). */
int refs_commit(struct volume *v, uint64_t txg) MUST_CHECK may_yield;
/* Nodes that this may need at most. */
uint64_t refs_commit_nodes(const struct volume *v);
/* Untrusted item: ERR_VOLUME_CORRUPT. */
int refs_decode(const struct tree_key *key, const void *value, uint32_t len, uint64_t *ret_blocks,
                uint32_t *ret_count) MUST_CHECK;
void refs_done(struct volume *v);

/* Among space*.c: the bitmap of a group comes into memory, or leaves it. */
int space_activate(struct volume *v, struct space_group *sg) MUST_CHECK may_yield;
void space_deactivate(struct volume *v, struct space_group *sg);
void space_release_run(struct volume *v, const struct block_run *run);
void space_drop_unwritable(struct volume *v);
/* Marks wholly free groups as to be given back from root txg on; frees the slabs of those whose time has
 * come. */
void space_retire(struct volume *v, uint64_t txg);
void space_destroy_retired(struct volume *v, uint64_t committed) may_yield;
/* The next commits will give slabs back. */
bool space_on_its_way(const struct volume *v);
/* Starts making groups in the background where they will be needed soon. */
void space_refill(struct volume *v);

#endif
