/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: applies the intent log to what the root says.
 *
 *  1. all batches are found and their checksums verified (log_read.c);
 *  2. groups that the log made and drives that it marked stale are known, before any data is looked at;
 *  3. the data that records name is verified on every current member of its group, and rewritten where it is
 * wrong; inline payload goes to its place. Many records at once;
 *  4. replay ends before the first batch above the durable mark whose data is not there; data below the mark
 * that is gone becomes a lost range (EIO) and an alarm, never a reason to drop what follows. Data on drives
 * that are all missing is neither there nor gone: its record counts, and reads answer EIO until a drive is
 * back;
 *  5. the records are applied in order. Replay is idempotent: a crash in it is normal.
 */
#include "runtime/checksum.h"
#include "runtime/log.h"
#include "volume/log_read.h"

#include <stdlib.h>

#define VERIFY_AT_ONCE    16u
#define VERIFY_BLOCKS_MAX 64u /* records side by side that are verified together */

struct replay {
    struct volume *volume;
    struct log_scan scan;
    struct semaphore slots;
    struct latch latch;
    size_t end; /* batches to apply */
};

/* ---- 2: what must be known first ---- */

static may_yield int learn_group(struct volume *v, const struct log_cursor *c)
{
    struct group description, *g;
    struct uuid drives[GROUP_MEMBERS_MAX];
    int r = group_decode(c->body, c->len, &description, drives);

    if (r)
        return r;
    if (description.purpose != GROUP_DATA || description.id < v->record.system_runs)
        return ERR_VOLUME_CORRUPT;
    if (group_find(v->groups, description.id))
        return 0; /* the root knows it already, and newer */
    r = group_adopt_decoded(v->groups, &description, drives, &g);
    if (!r)
        r = space_adopt_group(v, g, 0);
    if (!r) {
        struct space_group *sg = g->volume_private;
        sg->logged = sg->item_dirty = true;
    }
    return r;
}

static may_yield int learn_stale(struct volume *v, const struct log_cursor *c)
{
    struct disk_stale_drive_item item;
    struct group_drive *d;

    if (c->len != sizeof(item))
        return ERR_VOLUME_CORRUPT;
    memcpy(&item, c->body, sizeof(item));
    int r = group_drive_open(v->groups, item.drive, &d);
    if (r && r != ERR_DRIVE_GONE)
        return r;
    group_drive_make_stale(v->groups, d, le64_get(item.since_txg));
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        if (g->volume_private)
            ((struct space_group *)g->volume_private)->item_dirty = true;
    return 0;
}

static may_yield int learn(struct replay *rp)
{
    for (size_t i = 0; i < rp->scan.count; i++) {
        struct log_cursor c;
        int r;
        log_cursor_init(&c, &rp->scan.batches[i]);
        while (!(r = log_cursor_next(&c))) {
            if (c.type == LOG_GROUP)
                r = learn_group(rp->volume, &c);
            else if (c.type == LOG_STALE_DRIVE)
                r = learn_stale(rp->volume, &c);
            if (r)
                return r;
        }
        if (r != ERR_NOT_FOUND)
            return r;
    }
    return 0;
}

/* ---- 3: is the data there? ---- */

/* Records of one batch whose blocks lie side by side are one task: random writes would cost a read each. */
struct verify_task {
    struct replay *replay;
    struct log_found *batch;
    uint32_t space, blocks;
    uint64_t block;
    uint64_t payload; /* log block of its inline blocks */
    bool inline_payload;
    uint32_t sums[GROUP_READ_MAX];
};

static bool bit_get(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

/* Reads the payload, in pieces that do not cross from one run of the system group to the next.
 * ERR_NO_GOOD_COPY: some blocks, which bad[] says, cannot be had. */
static may_yield int payload_read(struct volume *v, uint64_t position, struct page *pages, uint32_t blocks,
                                  const uint32_t *sums, uint64_t bad[GROUP_READ_MAX / 64])
{
    int result = 0;

    memset(bad, 0, GROUP_READ_MAX / 8);
    for (uint32_t done = 0, n; done < blocks; done += n) {
        uint32_t group, block;
        log_place(v, position + done, &group, &block);
        n = MIN(blocks - done, v->record.slab_blocks - block);
        struct iovec iov = {.iov_base = page_at(pages, done)->data, .iov_len = (size_t)n * BLOCK_SIZE};
        struct group_read read = {.group = v->system[group],
                                  .block = block,
                                  .blocks = n,
                                  .iov = &iov,
                                  .iov_count = 1,
                                  .page = page_at(pages, done),
                                  .verify = VERIFY_BLOCKS,
                                  .sums = sums + done,
                                  .only = -1};
        int r = group_read(&read);
        if (r == ERR_NO_GOOD_COPY) {
            struct group_check check;
            uint64_t gone[GROUP_READ_MAX / 64];
            r = group_scrub(read.group, block, n, VERIFY_BLOCKS, read.sums, &check, gone);
            if (!r && !check.lost)
                r = group_read(&read); /* it could be read after all */
            else if (!r)
                r = check.unread ? ERR_GROUP_DEGRADED_BELOW : ERR_NO_GOOD_COPY;
        }
        if (r && r != ERR_NO_GOOD_COPY)
            return r;
        for (uint32_t i = 0; r && i < n; i++)
            if (bit_get(read.bad, i))
                bad[(done + i) / 64] |= UINT64_C(1) << ((done + i) % 64);
        result = r ? r : result;
    }
    return result;
}

/* Puts blocks [first, first + n) of the payload to their place. */
static may_yield int payload_write(struct volume *v, const struct verify_task *e, struct page *pages,
                                   uint32_t first, uint32_t n)
{
    struct iovec iov = {.iov_base = page_at(pages, first)->data, .iov_len = (size_t)n * BLOCK_SIZE};
    struct group_write w = {.group = group_find(v->groups, e->space),
                            .block = (uint32_t)e->block + first,
                            .blocks = n,
                            .iov = &iov,
                            .iov_count = 1,
                            .page = page_at(pages, first)};
    int r = group_write_wait(&w);

    if (w.failed)
        membership_kick(v);
    return r;
}

/* A block that the log has lost may be good in its place already, so it is not touched there. */
static may_yield int payload_put(struct volume *v, const struct verify_task *e, struct page *pages,
                                 const uint64_t *bad)
{
    for (uint32_t i = 0, n; i < e->blocks; i += n) {
        n = 1;
        while (i + n < e->blocks && bit_get(bad, i + n) == bit_get(bad, i))
            n++;
        if (bit_get(bad, i))
            continue;
        if (v->inspect) {
            struct cache_key key = {v->cache_tag, e->space, e->block + i};
            if (!cache_add_data(v->env.cache, key, page_at(pages, i), n, true))
                return ERR_NO_MEMORY;
            continue;
        }
        int r = payload_write(v, e, pages, i, n);
        if (r)
            return r;
    }
    return 0;
}

static may_yield int verify_inline(struct verify_task *t)
{
    struct volume *v = t->replay->volume;
    uint64_t bad[GROUP_READ_MAX / 64];
    struct page *pages;
    int r = page_alloc_wait(t->blocks, DEADLINE_NEVER, &pages);

    if (r)
        return r;
    r = payload_read(v, t->payload, pages, t->blocks, t->sums, bad);
    if (!r || r == ERR_NO_GOOD_COPY) {
        int w = payload_put(v, t, pages, bad);
        r = r ? r : w;
    }
    page_put(pages, t->blocks);
    return r;
}

/* ERR_NO_GOOD_COPY: of the blocks in bad[]; ERR_GROUP_DEGRADED_BELOW: of some of these nothing could be read.
 */
static may_yield int verify_named(struct volume *v, uint32_t space, uint64_t block, uint32_t blocks,
                                  const uint32_t *sums, uint64_t bad[GROUP_READ_MAX / 64])
{
    struct group_check check;

    memset(bad, 0xff, GROUP_READ_MAX / 8);
    int r =
        group_scrub(group_find(v->groups, space), (uint32_t)block, blocks, VERIFY_BLOCKS, sums, &check, bad);
    if (r || !check.lost)
        return r;
    return check.unread ? ERR_GROUP_DEGRADED_BELOW : ERR_NO_GOOD_COPY;
}

static may_yield void verify_main(void *arg)
{
    struct verify_task *t = arg;
    uint64_t bad[GROUP_READ_MAX / 64];

    int r = t->inline_payload ? verify_inline(t)
                              : verify_named(t->replay->volume, t->space, t->block, t->blocks, t->sums, bad);
    /* Where no drive could be asked, nothing says that the write did not arrive, so the record counts: reads
     * answer EIO until the drive is back, and then its checksums tell. */
    if (r && r != ERR_GROUP_DEGRADED_BELOW)
        t->batch->bad = true;
    semaphore_give(&t->replay->slots, 1);
    latch_down(&t->replay->latch);
    free(t);
}

static may_yield void verify_start(struct replay *rp, struct verify_task *t)
{
    (void)semaphore_take(&rp->slots, 1, DEADLINE_NEVER);
    latch_up(&rp->latch, 1);
    if (fiber_spawn("verify", verify_main, t))
        verify_main(t); /* no fiber left: here */
}

/* Adds the record's blocks to the task before it, or starts that one and begins another. */
static may_yield int verify_add(struct replay *rp, struct log_found *b, const struct extent *e,
                                uint64_t payload, bool inl, struct verify_task **task)
{
    const struct group *g = group_find(rp->volume->groups, e->space);
    struct verify_task *t = *task;

    if (!g || g->purpose != GROUP_DATA || e->block + e->blocks > g->blocks)
        return ERR_VOLUME_CORRUPT;
    if (!t || inl || t->inline_payload || t->space != e->space || t->block + t->blocks != e->block ||
        t->blocks + e->blocks > VERIFY_BLOCKS_MAX) {
        *task = NULL;
        if (t)
            verify_start(rp, t);
        t = malloc(sizeof(*t));
        if (!t)
            return ERR_NO_MEMORY;
        t->replay = rp;
        t->batch = b;
        t->space = e->space;
        t->block = e->block;
        t->blocks = 0;
        t->payload = payload;
        t->inline_payload = inl;
        *task = t;
    }
    memcpy(t->sums + t->blocks, e->sums, (size_t)e->blocks * 4);
    t->blocks += e->blocks;
    return 0;
}

static may_yield int verify_batch(struct replay *rp, struct log_found *b)
{
    struct verify_task *task = NULL;
    struct log_cursor c;
    uint64_t payload = b->position + b->header_blocks;
    int r;

    log_cursor_init(&c, b);
    while (!(r = log_cursor_next(&c))) {
        struct extent e;
        if (c.type != LOG_EXTENT)
            continue;
        r = log_extent_decode(&c, &e);
        if (!r && e.flags & (EXTENT_ZERO | EXTENT_LOST))
            continue;
        bool inl = c.flags & LOG_RECORD_INLINE;
        if (!r)
            r = verify_add(rp, b, &e, payload, inl, &task);
        if (r)
            break;
        payload += inl ? e.blocks : 0;
    }
    if (task)
        verify_start(rp, task);
    return r == ERR_NOT_FOUND ? 0 : r;
}

static may_yield int verify_all(struct replay *rp)
{
    int r = 0;

    semaphore_init(&rp->slots, VERIFY_AT_ONCE);
    latch_init(&rp->latch, 0);
    fiber_shield();
    for (size_t i = 0; !r && i < rp->scan.count; i++)
        r = verify_batch(rp, &rp->scan.batches[i]);
    latch_wait(&rp->latch);
    fiber_unshield();
    return r;
}

/* ---- 5: applying ---- */

static may_yield int prepare(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks,
                             struct tree_key *ret_last)
{
    struct tree_key first = extent_key(object, block), last = extent_key(object, block + blocks - 1);

    return tree_prepare(&v->head, &first, &last, 4, EXTENT_ITEM_MAX, ret_last);
}

/* A record below the mark whose data is gone: the range answers EIO until it is written again. */
static void apply_lost(struct volume *v, struct extent *e)
{
    e->flags |= EXTENT_LOST;
    damage_add(v, e->object, e->start, e->blocks);
    v->losses++;
    event_raise(LOG_ERROR_, "data-lost",
                "volume %s: acknowledged data at byte %llu, %llu bytes, has no good copy left",
                v->record.name, (unsigned long long)(e->start * BLOCK_SIZE),
                (unsigned long long)e->blocks * BLOCK_SIZE);
}

/* Blocks of one record that are all there, or all lost. */
static may_yield int apply_part(struct volume *v, struct extent *e, bool lost)
{
    int r = prepare(v, e->object, e->start, e->blocks, NULL);

    if (!r)
        r = extent_remove_now(v, e->object, e->start, e->blocks);
    if (!r && lost)
        apply_lost(v, e);
    else if (!r && !(e->flags & (EXTENT_ZERO | EXTENT_LOST)))
        r = space_claim(v, v->txg, e->space, e->block, e->blocks);
    if (r)
        return r;
    e->birth = v->txg;
    extent_put_now(v, e);
    return 0;
}

/* Exactly the blocks without a good copy become a lost range; the others of the same record stay. */
static may_yield int apply_extent(struct volume *v, const struct log_cursor *c, bool batch_bad)
{
    uint64_t bad[GROUP_READ_MAX / 64] = {0};
    struct extent e;
    int r = log_extent_decode(c, &e);

    if (r)
        return r;
    if (batch_bad && !(e.flags & EXTENT_LOST)) {
        uint32_t sums[EXTENT_BLOCKS_MAX];
        memcpy(sums, e.sums, (size_t)e.blocks * 4);
        r = verify_named(v, e.space, e.block, e.blocks, sums, bad);
        if (r && r != ERR_NO_GOOD_COPY && r != ERR_GROUP_DEGRADED_BELOW)
            memset(bad, 0xff, sizeof(bad));
    }
    for (uint32_t i = 0, n; i < e.blocks; i += n) {
        n = 1;
        while (i + n < e.blocks && bit_get(bad, i + n) == bit_get(bad, i))
            n++;
        struct extent part = e;
        part.start += i;
        part.blocks = n;
        part.block += i;
        part.sums += (size_t)i * 4;
        r = apply_part(v, &part, bit_get(bad, i));
        if (r)
            return r;
    }
    return 0;
}

static may_yield int apply_range(struct volume *v, const struct log_cursor *c)
{
    struct disk_log_range d;

    if (c->len != sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, c->body, sizeof(d));
    uint64_t object = le64_get(d.object), offset = le64_get(d.offset), len = le64_get(d.len);
    if (offset % BLOCK_SIZE || len % BLOCK_SIZE || offset > UINT64_MAX - len)
        return ERR_VOLUME_CORRUPT;
    if (c->type == LOG_RESIZE) {
        v->size_bytes = MAX(v->size_bytes, len);
        return 0;
    }
    uint64_t block = offset / BLOCK_SIZE, end = block + len / BLOCK_SIZE;
    while (block < end) {
        struct tree_key last;
        uint64_t to = end;
        int r = prepare(v, object, block, end - block, &last);
        if (r)
            return r;
        if (last.object == object && last.type == ITEM_EXTENT && last.offset / BLOCK_SIZE >= block)
            to = MIN(end, last.offset / BLOCK_SIZE + 1);
        r = extent_remove_now(v, object, block, to - block);
        if (r)
            return r;
        if (c->type == LOG_ZERO) {
            struct extent e = {.object = object,
                               .start = block,
                               .blocks = (uint32_t)(to - block),
                               .birth = v->txg,
                               .flags = EXTENT_ZERO};
            if (to - block > UINT32_MAX)
                return ERR_VOLUME_CORRUPT;
            extent_put_now(v, &e);
        }
        block = to;
    }
    return 0;
}

/* The ranges of a clone, as far as both are prepared: *ret_blocks. */
static may_yield int clone_prepare(struct volume *v, const struct clone *c, uint64_t *ret_blocks)
{
    struct tree_range ranges[2] = {
        {.first = extent_key(c->from, c->from_block),
         .last = extent_key(c->from, c->from_block + c->blocks - 1)},
        {.first = extent_key(c->to, c->to_block), .last = extent_key(c->to, c->to_block + c->blocks - 1)}};
    uint64_t start[2] = {c->from_block, c->to_block}, blocks = c->blocks;
    int r = tree_prepare_ranges(&v->head, ranges, 2, CLONE_PUTS, CLONE_PUT_BYTES, TREE_LEAVES_MAX);

    if (r)
        return r;
    for (uint32_t i = 0; i < ARRAY_SIZE(ranges); i++)
        if (tree_key_compare(&ranges[i].covered, &ranges[i].last) < 0)
            blocks = MIN(blocks, ranges[i].covered.offset / BLOCK_SIZE + 1 - start[i]);
    *ret_blocks = blocks;
    return 0;
}

/* What `from` has now is what it had then: everything before this record was applied. */
static may_yield int apply_clone(struct volume *v, const struct log_cursor *c)
{
    const uint64_t most = INT64_MAX / BLOCK_SIZE + 1;
    struct disk_log_clone d;

    if (c->len != sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, c->body, sizeof(d));
    uint64_t blocks = le64_get(d.len) / BLOCK_SIZE;
    struct clone clone = {.from = le64_get(d.from),
                          .from_block = le64_get(d.from_offset) / BLOCK_SIZE,
                          .to = le64_get(d.to),
                          .to_block = le64_get(d.to_offset) / BLOCK_SIZE};
    if (le64_get(d.len) % BLOCK_SIZE || le64_get(d.from_offset) % BLOCK_SIZE ||
        le64_get(d.to_offset) % BLOCK_SIZE || blocks > most || clone.from_block > most - blocks ||
        clone.to_block > most - blocks)
        return ERR_VOLUME_CORRUPT;
    if (clone.from == clone.to && clone.from_block < clone.to_block + blocks &&
        clone.to_block < clone.from_block + blocks)
        return ERR_VOLUME_CORRUPT;
    while (blocks > 0) {
        clone.blocks = blocks;
        int r = clone_prepare(v, &clone, &clone.blocks);
        if (!r)
            r = extent_clone_now(v, &clone);
        if (r)
            return r;
        blocks -= clone.blocks;
        clone.from_block += clone.blocks;
        clone.to_block += clone.blocks;
    }
    return 0;
}

static may_yield int apply_item(struct volume *v, const struct log_cursor *c)
{
    struct disk_log_item d;
    const void *old;
    uint32_t len = c->len - (uint32_t)sizeof(d), old_len;
    bool put = c->type == LOG_ITEM_PUT;

    if (c->len < sizeof(d) || (put ? len < 1 || len > ITEM_LEN_MAX : len != 0))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, c->body, sizeof(d));
    struct tree_key key = {le64_get(d.object), d.type, le64_get(d.offset)};
    if (key.type < ITEM_HEAD_FIRST || key.type == ITEM_EXTENT)
        return ERR_VOLUME_CORRUPT;
    int r = tree_prepare(&v->head, &key, &key, put, len, NULL);
    if (r)
        return r;
    bool there = tree_get_now(&v->head, &key, &old, &old_len) == 0;
    if (key.type == ITEM_INODE)
        v->inodes = v->inodes + put - there;
    if (put)
        tree_put_now(&v->head, &key, c->body + sizeof(d), len);
    else if (there)
        r = tree_delete_now(&v->head, &key);
    return r;
}

static may_yield int apply_batch(struct volume *v, const struct log_found *b)
{
    struct log_cursor c;
    int r;

    log_cursor_init(&c, b);
    while (!(r = log_cursor_next(&c))) {
        switch (c.type) {
        case LOG_EXTENT:
            r = apply_extent(v, &c, b->bad);
            break;
        case LOG_UNMAP:
        case LOG_ZERO:
        case LOG_RESIZE:
            r = apply_range(v, &c);
            break;
        case LOG_CLONE:
            r = apply_clone(v, &c);
            break;
        case LOG_ITEM_PUT:
        case LOG_ITEM_DELETE:
            r = apply_item(v, &c);
            break;
        case LOG_GROUP:
        case LOG_STALE_DRIVE:
            break;
        default:
            r = ERR_UNSUPPORTED;
        }
        if (r)
            return r;
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}

/* Much is dirty: a commit in the middle, whose root says where replay goes on. */
static may_yield int apply_commit(struct volume *v, const struct log_found *next)
{
    if (v->head.dirty_nodes <= v->nodes_max || v->inspect || v->read_only)
        return 0;
    v->replay_sequence = next->sequence;
    v->replay_block = next->position;
    v->replay_epoch = next->epoch;
    return txg_commit(v, false);
}

/* Where replay ends (4). */
static void find_end(struct replay *rp)
{
    rp->end = rp->scan.count;
    for (size_t i = 0; i < rp->scan.count; i++)
        if (rp->scan.batches[i].bad && !rp->scan.batches[i].unread &&
            rp->scan.batches[i].sequence >= rp->scan.durable) {
            rp->end = i;
            return;
        }
}

/* The log goes on behind what is applied. It runs before anything is applied, since a commit in the middle of
 * replay may have to record that a drive failed. What an earlier owner had not flushed is not durable before
 * the commit that ends opening: the mark is its own. */
static may_yield int log_begin(struct volume *v, const struct replay *rp, const struct disk_root *root)
{
    uint64_t head = rp->scan.end, sequence = rp->scan.sequence;

    if (rp->end < rp->scan.count) {
        head = rp->scan.batches[rp->end].position;
        sequence = rp->scan.batches[rp->end].sequence;
    }
    if (rp->scan.hole) {
        v->read_only = true;
        event_raise(LOG_ERROR_, "log-damaged",
                    "volume %s: a part of the intent log that was acknowledged cannot be read; opened "
                    "read-only as it was before it",
                    v->record.name);
    }
    int r = log_init(v, sequence, MIN(rp->scan.durable, sequence), head, le64_get(root->log_block));
    if (r)
        return r;
    v->log_started = true;
    reactor_add_turn_hook(&v->hook);
    if (v->stale_work)
        membership_kick(v);
    return 0;
}

int replay_run(struct volume *v, const struct disk_root *root, uint64_t txg_max)
{
    struct replay rp = {.volume = v};

    const uint32_t first_new = v->space.next_group; /* of the root */

    (void)txg_max;
    v->log.blocks = log_ring_blocks(&v->record);
    int r = log_scan_run(v, root, &rp.scan);
    if (r)
        return r;
    /* txg numbers are never used twice, even after falling back to an older root */
    assert(v->txg > le64_get(root->txg));
    if (!rp.scan.hole && !v->read_only && !v->inspect) /* nothing was written until here */
        r = open_drop_absent(v);
    if (!r)
        r = learn(&rp);
    if (!r) {
        absent_make_stale(v, le64_get(root->txg)); /* members of groups that only the log knows */
        single_copies_believe(v);
        /* Groups that were being made at the crash: no root and no log ever named them, and on a full pool
         * replay needs their slabs. */
        if (!rp.scan.hole && !v->read_only && !v->inspect)
            unknown_slabs_free(v, first_new, UINT32_MAX);
        groups_revive(v);
        r = verify_all(&rp);
    }
    find_end(&rp);
    if (!r)
        r = log_begin(v, &rp, root);
    v->replaying = true;
    for (size_t i = 0; !r && i < rp.end; i++) {
        r = apply_commit(v, &rp.scan.batches[i]);
        if (!r)
            r = apply_batch(v, &rp.scan.batches[i]);
    }
    v->replaying = false;
    log_scan_done(&rp.scan);
    return r;
}
