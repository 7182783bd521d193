/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing the data of one object: each call is one change (change.h), or several where it is long or space
 * is in pieces.
 */
#include "runtime/checksum.h"
#include "volume/volume_internal.h"

#define INLINE_BLOCKS_MAX 8u

static int check_write(const struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    if (v->state)
        return v->state;
    if (v->read_only)
        return ERR_VOLUME_READ_ONLY;
    return volume_check_range(v, object, block, blocks);
}

static may_yield int write_piece(struct volume *v, uint64_t object, uint64_t block,
                                 const struct page_vec *data, uint32_t skip, const uint32_t *sums,
                                 uint32_t flags, uint32_t *ret_done)
{
    uint32_t freed, blocks = data->blocks - skip;
    bool fua = flags & VOLUME_WRITE_FUA;
    struct change c;

    change_init(&c, v);
    change_will_write(&c, object, block, blocks, fua && data->blocks <= INLINE_BLOCKS_MAX);
    int r = change_begin(&c);
    if (!r)
        change_write(&c, object, block, data, skip, blocks, sums, ret_done, &freed);
    return change_end(&c, r, fua ? CHANGE_DURABLE : 0);
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
    for (uint32_t done = 0, piece; !r && done < n; done += piece) {
        piece = 0;
        r = write_piece(v, object, block + done, data, done, sums + done, flags, &piece);
    }
    if (r)
        return r;
    counter_add(&v->writes, 1);
    counter_add(&v->write_blocks, n);
    return 0;
}

static may_yield int range_change(struct volume *v, bool zero, uint64_t object, uint64_t block,
                                  uint64_t blocks, uint32_t flags)
{
    int r = check_write(v, object, block, blocks);

    while (!r && blocks > 0) {
        struct change c;
        uint64_t done = 0, freed;
        change_init(&c, v);
        c.deletes = !zero;
        change_will_unmap(&c, object, block, blocks);
        r = change_begin(&c);
        if (!r)
            change_unmap(&c, object, block, blocks, zero, &done, &freed);
        bool last = done == blocks;
        r = change_end(&c, r, last && (flags & VOLUME_WRITE_FUA) ? CHANGE_DURABLE : 0);
        block += done;
        blocks -= done;
    }
    return r;
}

int volume_unmap(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    return range_change(v, false, object, block, blocks, flags);
}

int volume_zero(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    return range_change(v, true, object, block, blocks, flags);
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
    struct change c;

    if (size_bytes < v->size_bytes || size_bytes % BLOCK_SIZE || size_bytes > INT64_MAX - BLOCK_SIZE + 1)
        return ERR_INVALID;
    change_init(&c, v);
    c.record_bytes = LOG_RECORD_BYTES(sizeof(struct disk_log_range));
    int r = change_begin(&c);
    if (!r) {
        struct disk_log_range range = {.object = le64_make(OBJECT_BLOCK_DEVICE),
                                       .len = le64_make(size_bytes)};
        memcpy(change_log(&c, LOG_RESIZE, 0, sizeof(range)), &range, sizeof(range));
        v->size_bytes = MAX(v->size_bytes, size_bytes);
        c.changed = true;
    }
    return change_end(&c, r, CHANGE_DURABLE);
}
