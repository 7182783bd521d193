/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data in a change. Without a yield: blocks side by side, extents, cache and log record.
 *
 * Small synchronous writes go inline: their blocks travel in the log batch, one I/O and one flush, and reach
 * their place at the commit. Everything else goes straight to its place, together with the log record that
 * names it.
 */
#include "volume/volume_internal.h"

#define NAMED_BLOCKS_MAX 131072u /* 512 MiB: what replay has to verify at most, about a second */

struct piece {
    uint64_t object, block;
    const struct page_run *runs; /* memory; the first one from `skip` on */
    uint32_t run_count, skip;
    uint32_t blocks;
    const uint32_t *sums;
};

/* The data of one space run, which may lie in several runs of memory. */
static void piece_add_data(struct change *c, const struct piece *p, const struct block_run *run,
                           uint32_t done)
{
    struct volume *v = c->volume;
    uint32_t at = 0, i = 0, skip = p->skip + done;

    while (skip >= p->runs[i].count)
        skip -= p->runs[i++].count;
    for (; at < run->count; i++, skip = 0) {
        uint32_t n = MIN(run->count - at, p->runs[i].count - skip);
        struct page *page = page_at(p->runs[i].page, skip);
        struct cache_key key = {v->cache_tag, run->space, run->block + at};
        if (!cache_add_data(v->env.cache, key, page, n, true)) /* readers would not find it */
            volume_fail(v, ERR_NO_MEMORY, "keeping written blocks");
        log_add_data(c->batch, run->space, run->block + at, page, n, c->inline_payload);
        if (c->inline_payload)
            deferred_add(v, run->space, run->block + at, page, n);
        at += n;
    }
}

static void piece_add_run(struct change *c, const struct piece *p, const struct block_run *run, uint32_t done)
{
    struct volume *v = c->volume;
    struct extent e = {.object = p->object,
                       .start = p->block + done,
                       .blocks = run->count,
                       .space = run->space,
                       .block = run->block,
                       .birth = v->txg,
                       .sums = (const uint8_t *)(p->sums + done)};
    uint8_t item[EXTENT_ITEM_MAX];
    uint32_t len = extent_encode(&e, item);

    extent_put_now(v, &e);
    uint8_t *body = change_log(c, LOG_EXTENT, c->inline_payload ? LOG_RECORD_INLINE : 0,
                               (uint32_t)offsetof(struct disk_log_extent, extent) + len);
    struct le64 where[2] = {le64_make(e.object), le64_make(e.start * BLOCK_SIZE)};
    memcpy(body, where, sizeof(where));
    memcpy(body + sizeof(where), item, len);
    piece_add_data(c, p, run, done);
}

/* Takes the range out, and what is known about its damage. *ret_freed: blocks that it had. */
static int range_remove(struct change *c, uint64_t object, uint64_t block, uint64_t blocks,
                        uint64_t *ret_freed)
{
    struct volume *v = c->volume;
    uint64_t before = v->unmapped_blocks;
    int r = extent_remove_now(v, object, block, blocks);

    c->changed = true;
    if (r) {
        volume_fail(v, r, "extent tree");
        return r;
    }
    *ret_freed = v->unmapped_blocks - before;
    if (v->damage_count)
        damage_remove(v, object, block, blocks);
    return 0;
}

static void piece_apply(struct change *c, const struct piece *p, uint32_t runs_max, uint32_t *ret_done,
                        uint32_t *ret_freed)
{
    struct volume *v = c->volume;
    struct block_run runs[CHANGE_WRITE_RUNS];
    uint32_t n = 0, taken = 0, done = 0;
    uint64_t freed = 0;

    while (taken < p->blocks && n < runs_max) {
        runs[n] = space_take_data(v, p->blocks - taken);
        taken += runs[n++].count;
    }
    c->runs_left -= MAX(n, p->run_count);
    *ret_done = taken;
    *ret_freed = 0;
    if (range_remove(c, p->object, p->block, taken, &freed))
        return; /* the volume has failed: change_end() says so */
    *ret_freed = (uint32_t)freed;
    for (uint32_t i = 0; i < n; i++) {
        piece_add_run(c, p, &runs[i], done);
        done += runs[i].count;
    }
    if (!c->inline_payload && (v->named_blocks += done) > NAMED_BLOCKS_MAX)
        txg_want_commit(v);
    change_inflight(c, p->object, p->block, done);
}

void change_write(struct change *c, uint64_t object, uint64_t block, const struct page_vec *data,
                  uint32_t skip, uint32_t blocks, const uint32_t *sums, uint32_t *ret_done,
                  uint32_t *ret_freed)
{
    struct piece p = {.object = object, .block = block, .runs = data->runs, .sums = sums};
    struct tree_key first = extent_key(object, block), last = extent_key(object, block + blocks - 1);

    assert(c->holding && c->data_writes > 0 && blocks > 0 && skip + blocks <= data->blocks);
    assert(change_range_of(c, &first) && change_range_of(c, &last));
    assert(c->data_blocks >= blocks);
    c->data_writes--;
    c->data_blocks -= blocks;
    /* Each write that is still to come keeps a run. */
    assert(c->runs_left > c->data_writes);
    const uint32_t runs_max = c->runs_left - c->data_writes;
    for (; skip >= p.runs->count; p.runs++)
        skip -= p.runs->count;
    p.skip = skip;
    uint32_t avail = p.runs[0].count - skip;
    for (p.run_count = 1; p.run_count < runs_max && avail < blocks; p.run_count++)
        avail += p.runs[p.run_count].count;
    p.blocks = MIN(avail, blocks);
    piece_apply(c, &p, runs_max, ret_done, ret_freed);
}

/* A zero extent's length is 32 bits; its pieces stay well inside. */
#define ZERO_BLOCKS_MAX (UINT64_C(1) << 30)

/* How much of the range, from block on, is prepared. */
static uint64_t prepared_blocks(const struct change *c, uint64_t object, uint64_t block, uint64_t blocks)
{
    struct tree_key first = extent_key(object, block), last = extent_key(object, block + blocks - 1);
    const struct tree_range *r = change_range_of(c, &first);

    assert(r);
    if (tree_key_compare(&r->covered, &last) >= 0)
        return blocks;
    /* Keys between two blocks have no items. */
    return r->covered.offset / BLOCK_SIZE + 1 - block;
}

void change_unmap(struct change *c, uint64_t object, uint64_t block, uint64_t blocks, bool zero,
                  uint64_t *ret_done, uint64_t *ret_freed)
{
    struct volume *v = c->volume;

    assert(c->holding && blocks > 0);
    blocks = prepared_blocks(c, object, block, zero ? MIN(blocks, ZERO_BLOCKS_MAX) : blocks);
    *ret_done = blocks;
    *ret_freed = 0;
    if (range_remove(c, object, block, blocks, ret_freed))
        return;
    if (zero) {
        struct extent e = {.object = object,
                           .start = block,
                           .blocks = (uint32_t)blocks,
                           .birth = v->txg,
                           .flags = EXTENT_ZERO};
        extent_put_now(v, &e);
    }
    struct disk_log_range range = {.object = le64_make(object),
                                   .offset = le64_make(block * BLOCK_SIZE),
                                   .len = le64_make(blocks * BLOCK_SIZE)};
    memcpy(change_log(c, zero ? LOG_ZERO : LOG_UNMAP, 0, sizeof(range)), &range, sizeof(range));
    change_inflight(c, object, block, blocks);
}

void change_will_clone(struct change *c, uint64_t from, uint64_t from_block, uint64_t to, uint64_t to_block,
                       uint64_t blocks)
{
    struct tree_key first = extent_key(from, from_block), last = extent_key(from, from_block + blocks - 1);

    assert(blocks > 0 && from_block <= UINT64_MAX / BLOCK_SIZE - blocks);
    assert(from != to || from_block >= to_block + blocks || to_block >= from_block + blocks);
    change_want_range(c, &first, &last);
    first = extent_key(to, to_block);
    last = extent_key(to, to_block + blocks - 1);
    change_want_range(c, &first, &last);
    c->puts += CLONE_PUTS;
    c->put_bytes += CLONE_PUT_BYTES;
    c->record_bytes += LOG_RECORD_BYTES(sizeof(struct disk_log_clone));
}

void change_clone(struct change *c, uint64_t from, uint64_t from_block, uint64_t to, uint64_t to_block,
                  uint64_t blocks, uint64_t *ret_done, uint64_t *ret_new_blocks, uint64_t *ret_freed)
{
    struct volume *v = c->volume;
    struct clone clone = {.from = from, .from_block = from_block, .to = to, .to_block = to_block};
    uint64_t before = v->unmapped_blocks;

    assert(c->holding && blocks > 0);
    clone.blocks =
        MIN(prepared_blocks(c, from, from_block, blocks), prepared_blocks(c, to, to_block, blocks));
    c->changed = true;
    int r = extent_clone_now(v, &clone);
    *ret_done = clone.blocks;
    *ret_new_blocks = *ret_freed = 0;
    if (r) {
        volume_fail(v, r, "extent tree");
        return;
    }
    *ret_new_blocks = clone.new_blocks;
    *ret_freed = v->unmapped_blocks - before;
    struct disk_log_clone d = {.from = le64_make(from),
                               .from_offset = le64_make(from_block * BLOCK_SIZE),
                               .to = le64_make(to),
                               .to_offset = le64_make(to_block * BLOCK_SIZE),
                               .len = le64_make(clone.blocks * BLOCK_SIZE)};
    memcpy(change_log(c, LOG_CLONE, 0, sizeof(d)), &d, sizeof(d));
    change_inflight(c, to, to_block, clone.blocks);
}
