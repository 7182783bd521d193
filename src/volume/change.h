/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An atomic change of the live head: items and data of any objects, in one log batch, whole or not at all
 * after a crash. What file systems stand on.
 *
 * The way of a change (T1 of tree.h, applied to several key ranges at once):
 *
 *      struct change c;
 *      int r;
 *      change_init(&c, v);
 *      do {                                     the loop ends: each turn knows more ranges than the last
 *          change_clear(&c);                    what will be put is counted anew; ranges stay
 *          change_want(&c, key); change_will_put(&c, n) ...
 *          r = change_begin(&c);                waits: memory, log, space, nodes
 *          if (!r)
 *              r = my_instant(&c, ...);         never yields: reads with change_get(), then change_put() ...
 *          r = change_end(&c, r, flags);        waits for the log
 *      } while (r == ERR_CHANGE_AGAIN);
 *
 * Between change_begin() and change_end() nothing else runs, so what the instant reads is the truth when it
 * changes it: there are no locks. An instant that meets a key whose leaf was not prepared gets
 * ERR_CHANGE_AGAIN, has changed nothing yet, and returns it: the range was added, the loop comes back.
 *
 * Invariants
 *  H1  an instant reads all that it needs before its first change: after one, ERR_CHANGE_AGAIN and other
 * errors are not possible any more (asserted); H2  the records of one change are in one batch, so replay
 * applies all of them or none; H3  any result, an error too, waits until everything that the instant may have
 * seen is acknowledged (invariant 4, Lease: a reply waits for the log sequence of the state that it saw).
 */
#ifndef ASHLAR_VOLUME_CHANGE_H
#define ASHLAR_VOLUME_CHANGE_H

#include "volume/log.h"
#include "volume/tree.h"
#include "volume/volume.h"

#define CHANGE_RANGES_MAX TREE_RANGES_MAX
#define CHANGE_WRITE_RUNS 48u /* runs of space, and of memory, that one change writes at most */
#define CHANGE_DATA_MAX   4u  /* writes, unmaps and clones of one change */
/* Bytes of all records of one change at most: what fits one batch. A write of data that needs more is done in
 * part; items of more are the caller's mistake (asserted). */
#define CHANGE_RECORD_BYTES_MAX (96u * 1024u)

/* A change that is not acknowledged yet: readers of its range of data wait for it. */
struct inflight {
    struct list link;
    uint64_t object, block, blocks;
    struct log_batch *batch;
};

struct change {
    struct volume *volume;
    bool inline_payload; /* its data is small and synchronous: it travels in the log */
    bool deletes;        /* gives space back: may use the reserve (works on a full pool) */

    /* What the instant may do at most: change_will_*(). */
    uint32_t puts, put_bytes, record_bytes;
    uint32_t data_blocks, data_writes;

    /* Private. */
    bool holding, changed;
    uint32_t runs_left; /* space runs, and memory runs, that its writes may still take */
    uint32_t inflight_count;
    struct log_batch *batch;
    struct inflight inflight[CHANGE_DATA_MAX];

    uint32_t range_count;
    struct tree_range ranges[CHANGE_RANGES_MAX]; /* oldest first */
};

void change_init(struct change *c, struct volume *v);
/* Forgets what will be done; keeps the ranges. */
void change_clear(struct change *c);
/* The instant may read and change items with keys in [first, last]. A range of more than 64 leaves is
 * prepared in part. More than CHANGE_RANGES_MAX that cannot be joined: the oldest one goes (and is asked for
 * again). */
void change_want_range(struct change *c, const struct tree_key *first, const struct tree_key *last);
static inline void change_want(struct change *c, struct tree_key key)
{
    change_want_range(c, &key, &key);
}
/* One item of at most len bytes (value); one deletion. */
void change_will_put(struct change *c, uint32_t len);
void change_will_delete(struct change *c);
/* Data blocks [block, block + blocks) of an object will be written: adds the range and what it takes. At most
 * PAGE_VEC_MAX blocks a change. fua_inline: a small synchronous write. */
void change_will_write(struct change *c, uint64_t object, uint64_t block, uint32_t blocks, bool fua_inline);
/* A range will be unmapped (change_unmap()). */
void change_will_unmap(struct change *c, uint64_t object, uint64_t block, uint64_t blocks);
/* A range will be cloned (change_clone()): adds both. They must not overlap. */
void change_will_clone(struct change *c, uint64_t from, uint64_t from_block, uint64_t to, uint64_t to_block,
                       uint64_t blocks);

/* Waits for everything and comes back in the instant. ERR_VOLUME_FULL (commits were forced and gave nothing),
 * ERR_VOLUME_READ_ONLY, ERR_VOLUME_FAILED, ERR_NO_MEMORY, errors of reading nodes: then change_end() must
 * still be called with that error (it does nothing but H3). Not cancellable once it holds. */
int change_begin(struct change *c) MUST_CHECK may_yield;

/* ---- In the instant: nothing yields ---- */

/* Borrowed until the next change of the tree or the end of the instant. ERR_NOT_FOUND. ERR_CHANGE_AGAIN: the
 * key is in no range that was wanted (now it is). */
int change_get(struct change *c, struct tree_key key, const void **ret_value, uint32_t *ret_len) MUST_CHECK;
/* First item >= low (SEEK_GE) or last one <= high (SEEK_LE) in [low, high]; ERR_NOT_FOUND: there is none.
 * Nothing need be wanted: ERR_CHANGE_AGAIN only if a node is not in memory (the end where it begins is wanted
 * now). To change what it finds, ask change_get() for it first. */
int change_seek(struct change *c, struct tree_key low, struct tree_key high, enum tree_seek how,
                struct tree_cursor *ret) MUST_CHECK;
/* The key must be in a wanted range, len as promised. */
void change_put(struct change *c, struct tree_key key, const void *value, uint32_t len);
/* The item must be there. */
void change_delete(struct change *c, struct tree_key key);
/* Writes up to `blocks` blocks of data at `block`: those of the vector after `skip` of them. The pages must
 * never be changed afterwards. sums: crc32c of each of these blocks. Returns in *ret_done how many (>= 1;
 * fewer than asked when space is in pieces: the rest is another change's), in *ret_freed how many blocks the
 * object had there before (data, EXTENT_ZERO and EXTENT_LOST alike: what an inode counts). */
void change_write(struct change *c, uint64_t object, uint64_t block, const struct page_vec *data,
                  uint32_t skip, uint32_t blocks, const uint32_t *sums, uint32_t *ret_done,
                  uint32_t *ret_freed);
/* Unmaps [block, block + blocks) as far as it is prepared: *ret_done blocks from `block` on (>= 1),
 * *ret_freed as above. zero: leaves EXTENT_ZERO behind (allocated, reads as zeroes) instead of
 * a hole; then at most 2^30 blocks. */
void change_unmap(struct change *c, uint64_t object, uint64_t block, uint64_t blocks, bool zero,
                  uint64_t *ret_done, uint64_t *ret_freed);
/* Makes `to` share the blocks that `from` has in [from_block, + blocks), holes and all (reflink): both
 * extents get EXTENT_SHARED. *ret_done and *ret_freed as above; *ret_new_blocks: that `to` has there now,
 * counted in the same way. */
void change_clone(struct change *c, uint64_t from, uint64_t from_block, uint64_t to, uint64_t to_block,
                  uint64_t blocks, uint64_t *ret_done, uint64_t *ret_new_blocks, uint64_t *ret_freed);

enum change_end_flags {
    CHANGE_DURABLE = 1 << 0, /* on stable media of every in-sync member when it returns */
};
/* Ends the instant with its result. 0: waits until the change is acknowledged (and durable). Errors and
 * ERR_CHANGE_AGAIN are passed on; nothing was changed then (H1). May return another error of the volume. */
int change_end(struct change *c, int result, uint32_t flags) MUST_CHECK may_yield;

/* ---- Reading without a change ---- */

/* As tree_get() on the live head. */
int volume_item_get(struct volume *v, struct tree_key key, void *buf, uint32_t max, uint32_t *ret_len)
    MUST_CHECK may_yield;
/* As tree_get_many(): those that are in memory, borrowed until the next yield; the others, and all of a
 * volume that failed, have TREE_NOT_RESIDENT: ask for them with volume_item_get(). */
void volume_items_get(struct volume *v, struct tree_lookup *lookups, uint32_t count);
/* As tree_seek(): walk with tree_next(), then volume_seen(). */
int volume_item_seek(struct volume *v, struct tree_key key, enum tree_seek how, struct tree_cursor *ret)
    MUST_CHECK may_yield;
/* H3 for readers: waits until every change of these objects that was made before now is acknowledged, and for
 * the leases (invariant 4). Cheap when there is none. */
int volume_seen(struct volume *v, const uint64_t *objects, uint32_t count) MUST_CHECK may_yield;

/* Items of type ITEM_INODE in the live head (kept through commits and replay): for statfs. */
uint64_t volume_inode_count(const struct volume *v);
/* Blocks that can still be written before ERR_VOLUME_FULL, and in all: pool and protection considered; for
 * statfs. */
void volume_space(struct volume *v, uint64_t *ret_free_blocks, uint64_t *ret_total_blocks) may_yield;
/* Changes with every loss of acknowledged but unflushed changes, so with every opening: NFS write verifier.
 */
uint64_t volume_verifier(const struct volume *v);

#endif
