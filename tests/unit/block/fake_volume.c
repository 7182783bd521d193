/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_volume.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/reactor.h"

#include <stdlib.h>

#define BUCKETS_MIN 64u
#define BUCKETS_MAX 65536u
#define OBJECT      1u

struct fake_block {
    struct fake_block *next;
    uint64_t block;
    struct page *page; /* NULL: zeroes that keep their place */
    uint32_t sum;
};

struct volume {
    uint64_t size_bytes;
    struct fake_block **buckets;
    uint32_t bucket_count;
    struct fake_volume_knobs knobs;
    struct fake_volume_counts counts;
};

struct volume *fake_volume_new(uint64_t size_bytes)
{
    struct volume *v = calloc(1, sizeof(*v));
    assert(v != NULL && size_bytes % BLOCK_SIZE == 0);
    v->size_bytes = size_bytes;
    v->bucket_count = (uint32_t)MAX(BUCKETS_MIN, MIN(BUCKETS_MAX, size_bytes / BLOCK_SIZE / 4));
    v->buckets = calloc(v->bucket_count, sizeof(*v->buckets));
    assert(v->buckets != NULL);
    v->knobs.bad_block = UINT64_MAX;
    return v;
}

static struct fake_block **slot_of(struct volume *v, uint64_t block)
{
    struct fake_block **at = &v->buckets[hash_mix64(block) % v->bucket_count];
    while (*at != NULL && (*at)->block != block)
        at = &(*at)->next;
    return at;
}

static void block_check(const struct fake_block *b)
{
    assert(b->page == NULL || crc32c(0, b->page->data, BLOCK_SIZE) == b->sum);
}

static void block_drop(struct volume *v, uint64_t block)
{
    struct fake_block **at = slot_of(v, block), *b = *at;
    if (b == NULL)
        return;
    block_check(b);
    if (b->page != NULL)
        page_put(b->page, 1);
    *at = b->next;
    free(b);
}

static void block_set(struct volume *v, uint64_t block, struct page *page)
{
    block_drop(v, block);
    struct fake_block **at = slot_of(v, block);
    *at = calloc(1, sizeof(**at));
    assert(*at != NULL);
    (*at)->block = block;
    (*at)->page = page;
    if (page != NULL) {
        page_get(page, 1);
        (*at)->sum = crc32c(0, page->data, BLOCK_SIZE);
    }
}

void fake_volume_free(struct volume *v)
{
    assert(v->counts.under_way == 0);
    for (uint32_t i = 0; i < v->bucket_count; i++) {
        while (v->buckets[i] != NULL)
            block_drop(v, v->buckets[i]->block);
    }
    free(v->buckets);
    free(v);
}

struct fake_volume_knobs *fake_volume_knobs(struct volume *v)
{
    return &v->knobs;
}

struct fake_volume_counts *fake_volume_counts(struct volume *v)
{
    return &v->counts;
}

void fake_volume_peek(struct volume *v, uint64_t offset, void *buf, size_t len)
{
    for (size_t done = 0; done < len;) {
        uint64_t at = offset + done;
        size_t n = MIN(len - done, BLOCK_SIZE - at % BLOCK_SIZE);
        const struct fake_block *b = *slot_of(v, at / BLOCK_SIZE);
        if (b != NULL && b->page != NULL)
            memcpy((uint8_t *)buf + done, b->page->data + at % BLOCK_SIZE, n);
        else
            memset((uint8_t *)buf + done, 0, n);
        done += n;
    }
}

void fake_volume_poke(struct volume *v, uint64_t offset, const void *buf, size_t len)
{
    for (size_t done = 0; done < len;) {
        uint64_t at = offset + done, block = at / BLOCK_SIZE;
        size_t n = MIN(len - done, BLOCK_SIZE - at % BLOCK_SIZE);
        struct page *p;
        int err = page_alloc(1, &p);
        assert(err == 0);
        fake_volume_peek(v, block * BLOCK_SIZE, p->data, BLOCK_SIZE);
        memcpy(p->data + at % BLOCK_SIZE, (const uint8_t *)buf + done, n);
        block_set(v, block, p);
        page_put(p, 1);
        done += n;
    }
}

/* ---- volume/volume.h ---- */

static void range_check(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    assert(object == OBJECT);
    assert(blocks > 0 && block < v->size_bytes / BLOCK_SIZE);
    assert(blocks <= v->size_bytes / BLOCK_SIZE - block);
}

/* Time passes, as in a volume that waits for its drives; half of it before the work is done. */
static may_yield void pass_time(struct volume *v)
{
    uint64_t ns = v->knobs.delay_ns;
    if (ns == 0)
        return;
    if (v->knobs.jitter) {
        uint32_t r;
        world_random(&r, sizeof(r));
        ns = r % ns;
    }
    fiber_shield();
    int err = fiber_sleep(ns);
    fiber_unshield();
    assert(err == 0);
}

static may_yield void begin(struct volume *v)
{
    v->counts.under_way++;
    v->counts.most_under_way = MAX(v->counts.most_under_way, v->counts.under_way);
    pass_time(v);
}

static may_yield int finish(struct volume *v, int err)
{
    pass_time(v);
    v->counts.under_way--;
    return err;
}

uint64_t volume_size_bytes(const struct volume *v)
{
    return v->size_bytes;
}

int volume_grow(struct volume *v, uint64_t size_bytes)
{
    assert(size_bytes >= v->size_bytes && size_bytes % BLOCK_SIZE == 0);
    v->size_bytes = size_bytes;
    return 0;
}

void page_vec_put(struct page_vec *vec)
{
    for (uint32_t i = 0; i < vec->run_count; i++) {
        if (vec->runs[i].page != NULL)
            page_put(vec->runs[i].page, vec->runs[i].count);
    }
    vec->run_count = vec->blocks = 0;
}

static void vec_add(struct page_vec *vec, struct page *page)
{
    struct page_run *last = vec->run_count > 0 ? &vec->runs[vec->run_count - 1] : NULL;
    vec->blocks++;
    if (page != NULL)
        page_get(page, 1);
    if (last != NULL && page == NULL && last->page == NULL) {
        last->count++;
    } else if (last != NULL && page != NULL && last->page != NULL &&
               page == page_at(last->page, last->count) &&
               page->data == last->page->data + (size_t)last->count * BLOCK_SIZE) {
        last->count++;
    } else {
        vec->runs[vec->run_count++] = (struct page_run){page, 1};
    }
}

int volume_read(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks, struct page_vec *ret)
{
    range_check(v, object, block, blocks);
    assert(blocks <= PAGE_VEC_MAX);
    begin(v);
    v->counts.reads++;
    int err = v->knobs.read_error;
    if (v->knobs.bad_block >= block && v->knobs.bad_block < block + blocks)
        err = ERR_NO_GOOD_COPY;
    if (err != 0)
        return finish(v, err);
    ret->run_count = ret->blocks = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        const struct fake_block *b = *slot_of(v, block + i);
        if (b != NULL)
            block_check(b);
        vec_add(ret, b != NULL ? b->page : NULL);
    }
    return finish(v, 0);
}

int volume_write(struct volume *v, uint64_t object, uint64_t block, const struct page_vec *data,
                 uint32_t flags)
{
    range_check(v, object, block, data->blocks);
    begin(v);
    v->counts.writes++;
    v->counts.fua_writes += flags & VOLUME_WRITE_FUA;
    if (v->knobs.write_error != 0)
        return finish(v, v->knobs.write_error);
    for (uint32_t i = 0; i < data->run_count; i++) {
        for (uint32_t k = 0; k < data->runs[i].count; k++)
            block_set(v, block++, data->runs[i].page != NULL ? page_at(data->runs[i].page, k) : NULL);
    }
    return finish(v, 0);
}

int volume_unmap(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    range_check(v, object, block, blocks);
    begin(v);
    v->counts.unmaps++;
    v->counts.unmapped_blocks += blocks;
    v->counts.fua_writes += flags & VOLUME_WRITE_FUA;
    for (uint32_t i = 0; i < v->bucket_count; i++) {
        for (struct fake_block **at = &v->buckets[i]; *at != NULL;) {
            uint64_t b = (*at)->block;
            if (b >= block && b - block < blocks)
                block_drop(v, b);
            else
                at = &(*at)->next;
        }
    }
    return finish(v, v->knobs.write_error);
}

int volume_zero(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks, uint32_t flags)
{
    range_check(v, object, block, blocks);
    assert(blocks <= 65536);
    begin(v);
    v->counts.zeroes++;
    v->counts.zeroed_blocks += blocks;
    v->counts.fua_writes += flags & VOLUME_WRITE_FUA;
    for (uint64_t i = 0; i < blocks; i++)
        block_set(v, block + i, NULL);
    return finish(v, v->knobs.write_error);
}

int volume_flush(struct volume *v)
{
    begin(v);
    v->counts.flushes++;
    return finish(v, v->knobs.flush_error);
}

int volume_prefetch(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks)
{
    range_check(v, object, block, blocks);
    assert(blocks <= PAGE_VEC_MAX);
    v->counts.prefetches++;
    return 0;
}

static enum volume_map_kind kind_of(struct volume *v, uint64_t block)
{
    const struct fake_block *b = *slot_of(v, block);
    return b == NULL ? MAP_HOLE : b->page == NULL ? MAP_ZERO : MAP_DATA;
}

/* Looks at no more than so many blocks, as a volume looks at so many leaves. */
#define MAP_BLOCKS_MAX 65536u

int volume_map(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks,
               struct volume_map_entry *out, uint32_t max, uint32_t *ret_count)
{
    range_check(v, object, block, blocks);
    v->counts.maps++;
    if (v->knobs.map_error != 0)
        return v->knobs.map_error;
    uint32_t n = 0;
    for (uint64_t i = 0; i < MIN(blocks, MAP_BLOCKS_MAX); i++) {
        enum volume_map_kind kind = kind_of(v, block + i);
        if (n > 0 && out[n - 1].kind == kind) {
            out[n - 1].blocks++;
        } else {
            if (n == max)
                break;
            out[n++] = (struct volume_map_entry){block + i, 1, kind};
        }
    }
    *ret_count = n;
    return 0;
}
