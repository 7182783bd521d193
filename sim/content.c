/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/content.h"

#include <sys/mman.h>

#include "sim/alloc.h"

#define SECTOR     512u
#define HUGE_BYTES (2 * MIB)

static const uint8_t zero_page[BLOCK_SIZE];

/* Pages are kept for reuse for ever: one process is one seed. */
union page_slot {
    union page_slot *next;
    uint8_t data[BLOCK_SIZE];
};
static union page_slot *free_pages;

static uint8_t *page_new(void)
{
    if (free_pages == NULL) {
        const size_t n = HUGE_BYTES / sizeof(union page_slot);
        union page_slot *slots = aligned_alloc(HUGE_BYTES, HUGE_BYTES);
        assert(slots != NULL);
        madvise(slots, HUGE_BYTES, MADV_HUGEPAGE); /* a wish */
        for (size_t i = 0; i < n; i++) {
            slots[i].next = free_pages;
            free_pages = &slots[i];
        }
    }
    union page_slot *p = free_pages;
    free_pages = p->next;
    return p->data;
}

static bool is_zero_page(const uint8_t *p)
{
    return p == zero_page;
}

static uint8_t *zeroes(void)
{
    return (uint8_t *)(uintptr_t)zero_page; /* never written through: see is_zero_page() */
}

static void page_drop(uint8_t *p)
{
    if (p == NULL || is_zero_page(p))
        return;
    union page_slot *s = (union page_slot *)(void *)p;
    s->next = free_pages;
    free_pages = s;
}

static bool all_zero(const uint8_t *data)
{
    return data == NULL || (data[0] == 0 && memcmp(data, data + 1, BLOCK_SIZE - 1) == 0);
}

static uint8_t *page_copy(const uint8_t *data)
{
    if (all_zero(data))
        return zeroes();
    uint8_t *p = page_new();
    memcpy(p, data, BLOCK_SIZE);
    return p;
}

void sim_content_init(struct sim_content *c, uint64_t size_bytes, struct sim_random *random)
{
    *c = (struct sim_content){.size_bytes = size_bytes, .stable_size_bytes = size_bytes, .random = random};
}

void sim_content_clear(struct sim_content *c)
{
    for (uint32_t i = 0; i < c->present_count; i++) {
        struct sim_block *e = c->extents[c->present[i]];
        for (uint32_t k = 0; k < SIM_EXTENT_BLOCKS; k++) {
            page_drop(e[k].stable);
            page_drop(e[k].cached);
            e[k] = (struct sim_block){0};
        }
    }
    c->dirty_count = 0;
    c->blocks_used = 0;
}

struct sim_block *sim_content_find(const struct sim_content *c, uint64_t block)
{
    uint64_t i = block / SIM_EXTENT_BLOCKS;
    if (i >= c->extent_count || c->extents[i] == NULL)
        return NULL;
    return &c->extents[i][block % SIM_EXTENT_BLOCKS];
}

static struct sim_block *block_make(struct sim_content *c, uint64_t block)
{
    uint64_t i = block / SIM_EXTENT_BLOCKS;
    assert(i < UINT32_MAX / 2);
    if (i >= c->extent_count) {
        uint32_t count = MAX((uint32_t)i + 1, 2 * c->extent_count);
        c->extents = reallocarray(c->extents, count, sizeof(*c->extents));
        c->present = reallocarray(c->present, count, sizeof(*c->present));
        assert(c->extents != NULL && c->present != NULL);
        memset(&c->extents[c->extent_count], 0, (count - c->extent_count) * sizeof(*c->extents));
        c->extent_count = count;
    }
    if (c->extents[i] == NULL) {
        c->extents[i] = calloc(SIM_EXTENT_BLOCKS, sizeof(struct sim_block));
        assert(c->extents[i] != NULL);
        c->present[c->present_count++] = (uint32_t)i;
    }
    return &c->extents[i][block % SIM_EXTENT_BLOCKS];
}

const uint8_t *sim_content_bytes(const struct sim_content *c, uint64_t block)
{
    const struct sim_block *b = sim_content_find(c, block);
    if (b == NULL)
        return zero_page;
    return b->cached != NULL ? b->cached : b->stable != NULL ? b->stable : zero_page;
}

const uint8_t *sim_content_stable_bytes(const struct sim_content *c, uint64_t block)
{
    const struct sim_block *b = sim_content_find(c, block);
    return b == NULL || b->stable == NULL ? zero_page : b->stable;
}

static void dirty_add(struct sim_content *c, uint64_t block)
{
    if (c->dirty_count == c->dirty_capacity) {
        c->dirty_capacity = MAX(64u, 2 * c->dirty_capacity);
        c->dirty = reallocarray(c->dirty, c->dirty_capacity, sizeof(*c->dirty));
        assert(c->dirty != NULL);
    }
    c->dirty[c->dirty_count++] = (uint32_t)block;
}

static void set_stable(struct sim_block *b, uint8_t *page)
{
    if (b->stable != page)
        page_drop(b->stable);
    b->stable = page;
}

/* page: owned by the block from now on. */
static void block_set(struct sim_content *c, uint64_t block, uint8_t *page, bool stable)
{
    struct sim_block *b = block_make(c, block);
    if (b->stable == NULL && b->cached == NULL)
        c->blocks_used++;
    if (stable) {
        page_drop(b->cached);
        b->cached = NULL;
        set_stable(b, page);
        return;
    }
    if (b->cached != NULL) {
        /* What a sync under way must cover may not vanish; else the device wrote back, or did not. */
        if (b->written <= c->syncing || sim_random_below(c->random, 2) == 0)
            set_stable(b, b->cached);
        else
            page_drop(b->cached);
    } else {
        dirty_add(c, block);
    }
    b->cached = page;
    b->written = c->sequence;
}

void sim_content_write(struct sim_content *c, uint64_t offset, const uint8_t *data, uint64_t len, bool stable)
{
    c->sequence++;
    uint64_t end = offset + len;
    for (uint64_t at = offset; at < end;) {
        uint64_t block = at / BLOCK_SIZE;
        uint64_t in = at % BLOCK_SIZE;
        uint64_t n = MIN(BLOCK_SIZE - in, end - at);
        const uint8_t *from = data != NULL ? data + (at - offset) : NULL;
        if (n == BLOCK_SIZE) {
            block_set(c, block, page_copy(from), stable);
        } else {
            uint8_t whole[BLOCK_SIZE];
            memcpy(whole, sim_content_bytes(c, block), BLOCK_SIZE);
            if (from != NULL)
                memcpy(whole + in, from, n);
            else
                memset(whole + in, 0, n);
            block_set(c, block, page_copy(whole), stable);
        }
        at += n;
    }
    if (end > c->size_bytes)
        c->size_bytes = end;
    if (stable && end > c->stable_size_bytes)
        c->stable_size_bytes = end;
}

void sim_content_sync(struct sim_content *c, uint64_t sequence)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->dirty_count; i++) {
        struct sim_block *b = sim_content_find(c, c->dirty[i]);
        if (b == NULL || b->cached == NULL)
            continue;
        if (b->written <= sequence) {
            set_stable(b, b->cached);
            b->cached = NULL;
        } else {
            c->dirty[kept++] = c->dirty[i];
        }
    }
    c->dirty_count = kept;
    c->stable_size_bytes = c->size_bytes;
}

void sim_content_resize(struct sim_content *c, uint64_t size_bytes)
{
    uint64_t keep = DIV_ROUND_UP(size_bytes, (uint64_t)BLOCK_SIZE);
    for (uint32_t i = 0; i < c->present_count; i++) {
        uint64_t first = (uint64_t)c->present[i] * SIM_EXTENT_BLOCKS;
        struct sim_block *e = c->extents[c->present[i]];
        for (uint32_t k = 0; first + SIM_EXTENT_BLOCKS > keep && k < SIM_EXTENT_BLOCKS; k++) {
            if (first + k < keep || (e[k].stable == NULL && e[k].cached == NULL))
                continue;
            page_drop(e[k].stable);
            page_drop(e[k].cached);
            e[k] = (struct sim_block){0};
            c->blocks_used--;
        }
    }
    c->size_bytes = size_bytes;
    c->stable_size_bytes = MIN(c->stable_size_bytes, size_bytes);
}

/* ---- What goes wrong ---- */

static uint8_t *page_mixed(struct sim_random *r, const uint8_t *old, const uint8_t *new)
{
    uint8_t mix[BLOCK_SIZE];
    uint64_t which = sim_random_between(r, 1, (1u << (BLOCK_SIZE / SECTOR)) - 2); /* at least one of each */
    for (uint32_t i = 0; i < BLOCK_SIZE / SECTOR; i++)
        memcpy(mix + i * SECTOR, (which >> i & 1 ? new : old) + i * SECTOR, SECTOR);
    return page_copy(mix);
}

void sim_content_tear(struct sim_content *c, uint64_t block, const uint8_t *data)
{
    c->sequence++;
    block_set(c, block, page_mixed(c->random, sim_content_bytes(c, block), data), false);
}

void sim_content_power_loss(struct sim_content *c, uint32_t lost_ppm, uint32_t torn_ppm, uint64_t *ret_lost,
                            uint64_t *ret_torn)
{
    *ret_lost = *ret_torn = 0;
    for (uint32_t i = 0; i < c->dirty_count; i++) {
        struct sim_block *b = sim_content_find(c, c->dirty[i]);
        if (b == NULL || b->cached == NULL)
            continue;
        uint64_t draw = sim_random_below(c->random, 1000000);
        if (draw < lost_ppm) {
            page_drop(b->cached);
            if (b->stable == NULL)
                c->blocks_used--;
            (*ret_lost)++;
        } else if (draw < (uint64_t)lost_ppm + torn_ppm) {
            uint8_t *torn = page_mixed(c->random, sim_content_stable_bytes(c, c->dirty[i]), b->cached);
            page_drop(b->cached);
            set_stable(b, torn);
            (*ret_torn)++;
        } else {
            set_stable(b, b->cached);
        }
        b->cached = NULL;
    }
    c->dirty_count = 0;
    c->syncing = 0;
    if (c->size_bytes != c->stable_size_bytes && sim_random_below(c->random, 2) == 0)
        sim_content_resize(c, c->stable_size_bytes);
    c->stable_size_bytes = c->size_bytes;
}

static void page_flip(struct sim_random *r, uint8_t **page)
{
    uint8_t *p = page_new();
    memcpy(p, *page, BLOCK_SIZE);
    /* Each flip in a part of its own, so that none undoes another. */
    uint64_t flips = sim_random_between(r, 1, 4);
    uint64_t part_bits = BLOCK_SIZE * 8 / flips;
    for (uint64_t i = 0; i < flips; i++) {
        uint64_t bit = i * part_bits + sim_random_below(r, part_bits);
        p[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    page_drop(*page);
    *page = p;
}

bool sim_content_flip(struct sim_content *c, uint64_t block)
{
    struct sim_block *b = sim_content_find(c, block);
    if (b == NULL || (b->stable == NULL && b->cached == NULL))
        return false;
    page_flip(c->random, b->cached != NULL ? &b->cached : &b->stable);
    return true;
}

bool sim_content_pick(const struct sim_content *c, struct sim_random *r, uint64_t first, uint64_t end,
                      uint64_t *ret_block)
{
    for (int attempt = 0; attempt < 400 && c->present_count > 0; attempt++) {
        uint64_t extent = c->present[sim_random_below(r, c->present_count)];
        uint64_t block = extent * SIM_EXTENT_BLOCKS + sim_random_below(r, SIM_EXTENT_BLOCKS);
        const struct sim_block *b = sim_content_find(c, block);
        if (block < first || block >= end || b == NULL || is_zero_page(sim_content_bytes(c, block)))
            continue;
        *ret_block = block;
        return true;
    }
    return false;
}
