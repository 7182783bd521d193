/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/crash/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The first words of a block that is not zeroes. The rest is a random sequence begun from all three. */
struct content_head {
    uint64_t seed;
    uint64_t block;
    uint64_t generation;
};

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void model_init(struct model *m, uint64_t seed, size_t block_count)
{
    assert(block_count > 0);
    *m = (struct model){
        .seed = mix(seed), .random = mix(seed + 1), .next_generation = 1, .block_count = block_count};
    m->blocks = calloc(block_count, sizeof(m->blocks[0]));
    assert(m->blocks);
}

void model_done(struct model *m)
{
    free(m->blocks);
    m->blocks = NULL;
}

uint64_t model_random(struct model *m)
{
    m->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(m->random);
}

uint64_t model_random_below(struct model *m, uint64_t limit)
{
    assert(limit > 0);
    return model_random(m) % limit;
}

void model_fill(const struct model *m, void *buf, size_t block, uint32_t generation)
{
    if (generation == 0) {
        memset(buf, 0, MODEL_BLOCK);
        return;
    }
    uint64_t *word = buf;
    struct content_head head = {m->seed, block, generation};
    uint64_t state = mix(m->seed ^ mix(block) ^ mix((uint64_t)generation << 32));
    for (size_t i = 0; i < MODEL_BLOCK / sizeof(*word); i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word[i] = state;
    }
    memcpy(buf, &head, sizeof(head));
}

void model_sent(struct model *m, size_t block, size_t count, uint32_t generation)
{
    assert(block + count <= m->block_count);
    for (size_t i = block; i < block + count; i++) {
        assert(!m->blocks[i].busy);
        m->blocks[i].busy = true;
        m->blocks[i].has_pending = true;
        m->blocks[i].pending = generation;
    }
}

void model_acked(struct model *m, size_t block, size_t count)
{
    for (size_t i = block; i < block + count; i++) {
        assert(m->blocks[i].busy && m->blocks[i].has_pending);
        m->blocks[i].acked = m->blocks[i].pending;
        m->blocks[i].has_pending = false;
        m->blocks[i].busy = false;
    }
}

void model_unanswered(struct model *m, size_t block, size_t count)
{
    for (size_t i = block; i < block + count; i++) {
        assert(m->blocks[i].busy);
        m->blocks[i].busy = false;
    }
}

static bool holds(const struct model *m, const void *buf, size_t block, uint32_t generation)
{
    _Alignas(8) char expected[MODEL_BLOCK];
    model_fill(m, expected, block, generation);
    return memcmp(buf, expected, MODEL_BLOCK) == 0;
}

static void explain(const struct model *m, const void *buf, size_t block, struct model_finding *f)
{
    const struct model_block *b = &m->blocks[block];
    struct content_head head;
    memcpy(&head, buf, sizeof(head));
    *f = (struct model_finding){
        .block = block, .acked = b->acked, .has_pending = b->has_pending, .pending = b->pending};
    if (holds(m, buf, block, 0)) {
        f->what = "zeroes";
        return;
    }
    if (head.seed != m->seed) {
        f->what = "something that was never written";
        return;
    }
    f->found_block = head.block;
    f->found_generation = (uint32_t)head.generation;
    if (head.block != block)
        f->what = "the content of another block";
    else if (!holds(m, buf, block, f->found_generation))
        f->what = "a torn or damaged content";
    else if (f->found_generation < b->acked)
        f->what = "an older content";
    else
        f->what = "a content that cannot be there";
}

bool model_verify(struct model *m, const void *buf, size_t block, struct model_finding *ret_finding)
{
    assert(block < m->block_count);
    struct model_block *b = &m->blocks[block];
    if (b->has_pending && holds(m, buf, block, b->pending)) {
        b->acked = b->pending;
        b->has_pending = false;
        return true;
    }
    if (holds(m, buf, block, b->acked)) {
        b->has_pending = false;
        return true;
    }
    explain(m, buf, block, ret_finding);
    return false;
}
