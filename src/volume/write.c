/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing data. The life of a write: checksums; room in space, log and tree; then, without a yield, blocks
 * side by side, extents, cache and log record; then a wait for the batch that carries them.
 *
 * Small synchronous writes go inline: their blocks travel in the log batch, one I/O and one flush, and reach
 * their place at the commit. Everything else goes straight to its place, together with the log record that
 * names it.
 */
#include "runtime/checksum.h"
#include "runtime/log.h"
#include "volume/volume_internal.h"

#define PIECE_RUNS_MAX    48u /* runs of space, and of memory, in one piece of a write */
#define INLINE_BLOCKS_MAX 8u
#define NAMED_BLOCKS_MAX  131072u /* 512 MiB: what replay has to verify at most, about a second */

static int check_write(const struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    if (v->state)
        return v->state;
    if (v->read_only)
        return ERR_VOLUME_READ_ONLY;
    if (blocks == 0 || block > UINT64_MAX / BLOCK_SIZE || blocks > UINT64_MAX / BLOCK_SIZE - block)
        return ERR_OUT_OF_RANGE;
    if (object == OBJECT_BLOCK_DEVICE && block + blocks > v->size_bytes / BLOCK_SIZE)
        return ERR_OUT_OF_RANGE;
    return 0;
}

/* What an operation needs before its instant. */
struct op_need {
    struct log_need log;
    uint32_t data_blocks;
    uint32_t puts, put_len;
    struct tree_key first, last;
    enum space_urgency urgency;
};

static may_yield int ensure_all(struct volume *v, const struct op_need *n)
{
    int r = txg_throttle(v);

    if (!r && n->data_blocks)
        r = space_ensure_data(v, n->data_blocks);
    if (!r && n->urgency == SPACE_NORMAL)
        r = space_ensure_nodes(v, 16, SPACE_NORMAL);
    if (!r)
        r = log_ensure(v, &n->log);
    return r;
}

/* Comes back inside op_hold, with everything promised until the next yield. *ret_last as tree_prepare. */
static may_yield int op_begin(struct volume *v, const struct op_need *n, struct tree_key *ret_last)
{
    uint32_t reclaimed = 0;
    uint64_t until_ns = 0;

    for (;;) {
        int r = ensure_all(v, n);
        if (!r) {
            op_hold(v);
            r = tree_prepare(&v->head, &n->first, &n->last, n->puts, n->put_len, ret_last);
            if (!r && !v->state && log_ready(v, &n->log) &&
                (!n->data_blocks || space_ready_data(v, n->data_blocks)))
                return 0;
            op_release(v);
            if (v->state)
                return v->state;
            if (!r)
                continue;
        }
        /* Full: what was freed lately comes back after two commits. */
        if (r == ERR_VOLUME_FULL && reclaimed < 2) {
            reclaimed++;
            r = txg_reclaim(v);
        } else if (r == ERR_VOLUME_FULL && shortage_wait(&v->env, v, &until_ns)) {
            v->space.create_error_ns = 0; /* of a pool that was full */
            r = v->state;
        }
        if (r)
            return r;
    }
}

/* ---- Write ---- */

struct piece {
    uint64_t object, block;
    const struct page_run *runs; /* memory; the first one from `skip` on */
    uint32_t run_count, skip;
    uint32_t blocks;
    const uint32_t *sums;
    bool inline_payload;
};

/* The data of one space run, which may lie in several runs of memory. */
static void piece_add_data(struct volume *v, const struct piece *p, struct log_batch *b,
                           const struct block_run *run, uint32_t done)
{
    uint32_t at = 0, i = 0, skip = p->skip + done;

    while (skip >= p->runs[i].count)
        skip -= p->runs[i++].count;
    for (; at < run->count; i++, skip = 0) {
        uint32_t n = MIN(run->count - at, p->runs[i].count - skip);
        struct page *page = page_at(p->runs[i].page, skip);
        struct cache_key key = {v->cache_tag, run->space, run->block + at};
        if (!cache_add_data(v->env.cache, key, page, n, true)) /* readers would not find it */
            volume_fail(v, ERR_NO_MEMORY, "keeping written blocks");
        log_add_data(b, run->space, run->block + at, page, n, p->inline_payload);
        if (p->inline_payload)
            deferred_add(v, run->space, run->block + at, page, n);
        at += n;
    }
}

static void piece_add_run(struct volume *v, const struct piece *p, const struct block_run *run, uint32_t done,
                          struct log_batch **ret_batch)
{
    struct extent e = {.object = p->object,
                       .start = p->block + done,
                       .blocks = run->count,
                       .space = run->space,
                       .block = run->block,
                       .birth = v->txg,
                       .sums = (const uint8_t *)(p->sums + done)};
    uint8_t item[EXTENT_ITEM_MAX];
    uint32_t len = extent_encode(&e, item);
    struct log_batch *b;

    extent_put_now(v, &e);
    uint8_t *body = log_add(v, LOG_EXTENT, p->inline_payload ? LOG_RECORD_INLINE : 0, HEAD_LIVE,
                            (uint32_t)offsetof(struct disk_log_extent, extent) + len, &b);
    struct le64 where[2] = {le64_make(e.object), le64_make(e.start * BLOCK_SIZE)};
    memcpy(body, where, sizeof(where));
    memcpy(body + sizeof(where), item, len);
    piece_add_data(v, p, b, run, done);
    *ret_batch = b;
}

/* The instant of a write: nothing here yields. Writes up to p->blocks; returns how many in *ret_done. */
static int piece_apply(struct volume *v, const struct piece *p, struct inflight *f, uint32_t *ret_done)
{
    struct block_run runs[PIECE_RUNS_MAX];
    struct log_batch *b = NULL;
    uint32_t n = 0, taken = 0;

    while (taken < p->blocks && n < PIECE_RUNS_MAX) {
        runs[n] = space_take_data(v, p->blocks - taken);
        taken += runs[n++].count;
    }
    int r = extent_remove_now(v, p->object, p->block, taken);
    if (r) {
        volume_fail(v, r, "extent tree");
        return r;
    }
    if (v->damage_count)
        damage_remove(v, p->object, p->block, taken);
    uint32_t done = 0;
    for (uint32_t i = 0; i < n; i++) {
        piece_add_run(v, p, &runs[i], done, &b);
        done += runs[i].count;
    }
    if (!p->inline_payload && (v->named_blocks += done) > NAMED_BLOCKS_MAX)
        txg_want_commit(v);
    inflight_add(v, f, p->object, p->block, done, b);
    *ret_done = done;
    return 0;
}

static may_yield int piece_write(struct volume *v, const struct piece *p, uint32_t flags, uint32_t *ret_done)
{
    uint32_t runs = MIN(p->blocks, PIECE_RUNS_MAX);
    struct op_need need = {
        .log = {.record_bytes = LOG_RECORD_BYTES(sizeof(struct disk_log_extent) + p->blocks * 4) +
                                (runs - 1) * (LOG_RECORD_BYTES(sizeof(struct disk_log_extent)) + 8),
                .data_runs = runs + p->run_count,
                .payload_pages = p->inline_payload ? p->blocks : 0},
        .data_blocks = p->blocks,
        .puts = runs + 3,
        .put_len = (uint32_t)sizeof(struct disk_extent) + 4 * EXTENT_BLOCKS_MAX,
        .first = extent_key(p->object, p->block),
        .last = extent_key(p->object, p->block + p->blocks - 1)};
    struct inflight f;
    int r = op_begin(v, &need, NULL);

    if (r)
        return r;
    r = piece_apply(v, p, &f, ret_done);
    op_release(v);
    if (r)
        return r;
    r = log_wait(v, f.batch, flags & VOLUME_WRITE_FUA);
    inflight_remove(&f);
    return r;
}

int volume_write(struct volume *v, uint64_t object, uint64_t block, const struct page_vec *data,
                 uint32_t flags)
{
    uint32_t sums[PAGE_VEC_MAX], n = 0;
    int r = check_write(v, object, block, data->blocks);

    assert(data->blocks <= PAGE_VEC_MAX);
    if (r)
        return r;
    for (uint32_t i = 0; i < data->run_count; i++) {
        crc32c_blocks(data->runs[i].page->data, (size_t)data->runs[i].count * BLOCK_SIZE, sums + n);
        n += data->runs[i].count;
    }
    assert(n == data->blocks);
    struct piece p = {.object = object, .runs = data->runs};
    for (uint32_t done = 0; !r && done < n;) {
        uint32_t piece_done = 0, avail = p.runs[0].count - p.skip;
        p.block = block + done;
        p.sums = sums + done;
        for (p.run_count = 1; p.run_count < PIECE_RUNS_MAX && avail < n - done; p.run_count++)
            avail += p.runs[p.run_count].count;
        p.blocks = MIN(avail, n - done);
        p.inline_payload = (flags & VOLUME_WRITE_FUA) && n <= INLINE_BLOCKS_MAX;
        r = piece_write(v, &p, flags, &piece_done);
        done += piece_done;
        for (p.skip += piece_done; done < n && p.skip >= p.runs[0].count; p.runs++)
            p.skip -= p.runs[0].count;
    }
    if (r)
        return r;
    counter_add(&v->writes, 1);
    counter_add(&v->write_blocks, n);
    return 0;
}

/* ---- Ranges: unmap, zero ---- */

/* One piece of a range operation; returns how many blocks from block on are done. */
static may_yield int range_piece(struct volume *v, uint16_t type, uint64_t object, uint64_t block,
                                 uint64_t blocks, struct inflight *f, uint64_t *ret_done)
{
    struct op_need need = {.log = {.record_bytes = LOG_RECORD_BYTES(sizeof(struct disk_log_range))},
                           .puts = 4,
                           .put_len = (uint32_t)sizeof(struct disk_extent) + 4 * EXTENT_BLOCKS_MAX,
                           .urgency = type == LOG_UNMAP ? SPACE_DELETE : SPACE_NORMAL,
                           .first = extent_key(object, block),
                           .last = extent_key(object, block + blocks - 1)};
    struct tree_key last;
    struct log_batch *b;
    int r = op_begin(v, &need, &last);

    if (r)
        return r;
    if (tree_key_compare(&last, &need.last) < 0 && last.object == object && last.type == ITEM_EXTENT &&
        last.offset / BLOCK_SIZE >= block)
        blocks = last.offset / BLOCK_SIZE + 1 - block;
    r = extent_remove_now(v, object, block, blocks);
    if (!r && type == LOG_ZERO) {
        struct extent e = {.object = object,
                           .start = block,
                           .blocks = (uint32_t)blocks,
                           .birth = v->txg,
                           .flags = EXTENT_ZERO};
        extent_put_now(v, &e);
    }
    if (r) {
        volume_fail(v, r, "extent tree");
        op_release(v);
        return r;
    }
    if (v->damage_count)
        damage_remove(v, object, block, blocks);
    struct disk_log_range range = {.object = le64_make(object),
                                   .offset = le64_make(block * BLOCK_SIZE),
                                   .len = le64_make(blocks * BLOCK_SIZE)};
    memcpy(log_add(v, type, 0, HEAD_LIVE, sizeof(range), &b), &range, sizeof(range));
    inflight_add(v, f, object, block, blocks, b);
    op_release(v);
    *ret_done = blocks;
    return 0;
}

/* A zero extent's length is 32 bits; keep the pieces well inside. */
#define RANGE_PIECE_MAX (UINT64_C(1) << 30)

static may_yield int range_change(struct volume *v, uint16_t type, uint64_t object, uint64_t block,
                                  uint64_t blocks, uint32_t flags)
{
    uint64_t most = RANGE_PIECE_MAX;
    int r = check_write(v, object, block, blocks);

    while (!r && blocks > 0) {
        struct inflight f;
        uint64_t done;
        r = range_piece(v, type, object, block, MIN(blocks, most), &f, &done);
        if (r == ERR_VOLUME_FULL && most > 64) { /* a smaller piece needs fewer tree nodes */
            most = MIN(blocks, most) / 8 + 1;
            r = 0;
            continue;
        }
        if (r)
            break;
        block += done;
        blocks -= done;
        r = log_wait(v, f.batch, (flags & VOLUME_WRITE_FUA) && blocks == 0);
        inflight_remove(&f);
    }
    return r;
}

int volume_unmap(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    return range_change(v, LOG_UNMAP, object, block, blocks, flags);
}

int volume_zero(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    return range_change(v, LOG_ZERO, object, block, blocks, flags);
}

int volume_flush(struct volume *v)
{
    if (v->state)
        return v->state;
    counter_add(&v->flushes, 1);
    return v->read_only ? 0 : log_flush(v);
}

int volume_grow(struct volume *v, uint64_t size_bytes)
{
    struct op_need need = {.log = {.record_bytes = LOG_RECORD_BYTES(sizeof(struct disk_log_range))},
                           .first = TREE_KEY_MIN,
                           .last = TREE_KEY_MIN};
    struct log_batch *b;

    if (size_bytes < v->size_bytes || size_bytes % BLOCK_SIZE || size_bytes > INT64_MAX - BLOCK_SIZE + 1)
        return ERR_INVALID;
    int r = v->read_only ? ERR_VOLUME_READ_ONLY : op_begin(v, &need, NULL);
    if (r)
        return r;
    struct disk_log_range range = {.object = le64_make(OBJECT_BLOCK_DEVICE), .len = le64_make(size_bytes)};
    memcpy(log_add(v, LOG_RESIZE, 0, HEAD_LIVE, sizeof(range), &b), &range, sizeof(range));
    v->size_bytes = MAX(v->size_bytes, size_bytes);
    log_batch_get(b);
    op_release(v);
    r = log_wait(v, b, true);
    log_batch_put(b);
    return r;
}
