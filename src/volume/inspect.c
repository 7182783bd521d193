/* SPDX-License-Identifier: Apache-2.0 */
#include "volume/inspect.h"

#include "runtime/checksum.h"

#include <stdlib.h>

int volume_inspect_open(const struct volume_env *env, struct uuid id, struct volume **ret)
{
    struct volume_record record;
    int r = volume_record_load(env->coord, id, &record);

    if (r)
        return r == ERR_COORD_NOT_FOUND ? ERR_VOLUME_NOT_FOUND : r;
    struct volume *v = volume_alloc(env, &record);
    if (!v)
        return ERR_NO_MEMORY;
    v->inspect = v->read_only = true;
    r = volume_groups_new(v);
    if (!r)
        r = system_groups_adopt(v);
    if (r) {
        volume_inspect_close(v);
        return r;
    }
    *ret = v;
    return 0;
}

void volume_inspect_close(struct volume *v)
{
    v->closing = true;
    while (v->background > 0)
        (void)fiber_sleep(NSEC_PER_MSEC);
    volume_free(v);
}

int volume_inspect_root(struct volume *v, struct disk_root *ret)
{
    uint64_t txg_max;

    return root_find(v, ret, &txg_max);
}

int volume_inspect_load(struct volume *v, const struct disk_root *root)
{
    v->committed = le64_get(root->txg);
    v->txg = v->committed + 1;
    return pool_load(v, root, v->txg);
}

int volume_inspect_read(struct volume *v, const struct group *g, uint32_t member, uint32_t block,
                        uint32_t blocks, struct page *pages)
{
    struct iovec iov = {.iov_base = pages->data, .iov_len = (size_t)blocks * BLOCK_SIZE};
    struct group_read read = {.group = group_find(v->groups, g->id),
                              .block = block,
                              .blocks = blocks,
                              .iov = &iov,
                              .iov_count = 1,
                              .page = pages,
                              .verify = VERIFY_NONE,
                              .only = (int)member};

    if (block > g->blocks || blocks > g->blocks - block || member >= g->member_count)
        return ERR_OUT_OF_RANGE;
    return group_read(&read);
}

static bool readable(const struct group *g, uint32_t member)
{
    return g->members[member].state == MEMBER_CURRENT && group_drive_usable(g->members[member].drive);
}

/* ---- Roots ---- */

int volume_inspect_roots(struct volume *v, int (*fn)(void *ctx, const struct inspect_slot *s), void *ctx)
{
    const struct group *g = v->system[0];
    struct page *pages;
    int r = page_alloc_wait(ROOT_RING_BLOCKS, DEADLINE_NEVER, &pages);

    if (r)
        return r;
    for (uint32_t m = 0; !r && m < g->member_count; m++) {
        if (!readable(g, m) || volume_inspect_read(v, g, m, 0, ROOT_RING_BLOCKS, pages))
            continue;
        for (uint32_t i = 0; !r && i < ROOT_RING_BLOCKS; i++) {
            struct inspect_slot s = {.member = m, .slot = i};
            memcpy(&s.root, pages->data + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
            s.err = root_check(&s.root, v->record.id);
            if (!s.err && le64_get(s.root.txg) % ROOT_RING_BLOCKS != i)
                s.err = ERR_VOLUME_CORRUPT; /* meant for another slot */
            r = fn(ctx, &s);
        }
    }
    page_put(pages, ROOT_RING_BLOCKS);
    return r;
}

/* ---- The log of one member ---- */

/* Blocks [position, position + count), in pieces that stay in one run of the system group. */
static may_yield int log_blocks_read(struct volume *v, uint32_t member, uint64_t position, uint32_t count,
                                     struct page *pages)
{
    for (uint32_t done = 0, n; done < count; done += n) {
        uint32_t group, block;
        log_place(v, position + done, &group, &block);
        n = MIN(MIN(count - done, v->record.slab_blocks - block), GROUP_READ_MAX);
        if (!readable(v->system[group], member))
            return ERR_DRIVE_GONE;
        int r = volume_inspect_read(v, v->system[group], member, block, n, page_at(pages, done));
        if (r)
            return r;
    }
    return 0;
}

/* Are the inline blocks of the batch what its records say? */
static bool payload_good(const struct log_found *b, const uint8_t *payload)
{
    struct log_cursor c;
    uint32_t at = 0;
    int r;

    log_cursor_init(&c, b);
    while (!(r = log_cursor_next(&c))) {
        struct extent e;
        if (c.type != LOG_EXTENT || !(c.flags & LOG_RECORD_INLINE))
            continue;
        if (log_extent_decode(&c, &e) || e.flags & (EXTENT_ZERO | EXTENT_LOST) ||
            e.blocks > b->payload_blocks - at)
            return false;
        for (uint32_t i = 0; i < e.blocks; i++, at++) {
            struct le32 sum;
            memcpy(&sum, e.sums + (size_t)i * 4, sizeof(sum));
            if (crc32c(0, payload + (size_t)at * BLOCK_SIZE, BLOCK_SIZE) != le32_get(sum))
                return false;
        }
    }
    return r == ERR_NOT_FOUND;
}

int volume_inspect_past(struct volume *v, uint32_t member, uint64_t end,
                        int (*fn)(void *ctx, uint64_t position, uint32_t blocks), void *ctx)
{
    uint32_t count = (uint32_t)MIN(MIN(end, v->log.blocks), (uint64_t)INSPECT_LOG_BLOCKS);
    struct page *pages;
    int r = count ? page_alloc_wait(count, DEADLINE_NEVER, &pages) : 0;

    if (r || !count)
        return r;
    r = log_blocks_read(v, member, end - count, count, pages);
    for (uint32_t i = 0; !r && i < count;) {
        const uint8_t *base = pages->data + (size_t)i * BLOCK_SIZE;
        struct log_found b;
        if (log_batch_parse(base, count - i, v->record.id, &b) || b.position != end - count + i ||
            b.header_blocks + b.payload_blocks > count - i ||
            !payload_good(&b, base + (size_t)b.header_blocks * BLOCK_SIZE)) {
            i++;
            continue;
        }
        r = fn(ctx, b.position, b.header_blocks + b.payload_blocks);
        i += b.header_blocks + b.payload_blocks;
    }
    page_put(pages, count);
    return r;
}

/* Header, records and payload of one member's copy. */
static may_yield bool copy_good(struct volume *v, uint32_t member, const struct log_found *b,
                                struct page *pages)
{
    uint32_t blocks = b->header_blocks + b->payload_blocks;
    struct log_found found;

    return !log_blocks_read(v, member, b->position, blocks, pages) &&
           !log_batch_parse(pages->data, b->header_blocks, v->record.id, &found) &&
           found.sequence == b->sequence && found.epoch == b->epoch &&
           payload_good(&found, pages->data + (size_t)b->header_blocks * BLOCK_SIZE);
}

int volume_inspect_log_copies(struct volume *v, const struct log_scan *scan,
                              void (*fn)(void *ctx, uint32_t member), void *ctx)
{
    for (size_t i = 0; i < scan->count && scan->batches[i].sequence < scan->durable; i++) {
        const struct log_found *b = &scan->batches[i];
        uint32_t blocks = b->header_blocks + b->payload_blocks;
        struct page *pages;
        if (blocks > PAGE_RUN_MAX)
            continue;
        int r = page_alloc_wait(blocks, DEADLINE_NEVER, &pages);
        if (r)
            return r;
        for (uint32_t m = 0; m < v->record.member_count; m++)
            if (readable(v->system[0], m) && !copy_good(v, m, b, pages))
                fn(ctx, m);
        page_put(pages, blocks);
    }
    return 0;
}
