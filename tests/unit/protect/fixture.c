/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "../runtime/test_world.h"
#include "cmocka_all.h"
#include "runtime/checksum.h"
#include "runtime/log.h"

#include <stdio.h>
#include <stdlib.h>

static bool check_failed;
static char check_text[300];

void check_note(bool ok, const char *file, int line, const char *what, long long a, long long b)
{
    if (ok || check_failed)
        return;
    check_failed = true;
    snprintf(check_text, sizeof(check_text), "%s:%d: %s (%lld, %lld)", file, line, what, a, b);
}

static void note_failed_drive(void *ctx, struct group_drive *d)
{
    struct fixture *f = ctx;
    if (f->failures < FIXTURE_DRIVES_MAX)
        f->failed[f->failures] = d;
    f->failures++;
}

struct fixture_run {
    struct fixture f;
    void (*body)(struct fixture *f);
};

static void fixture_open(struct fixture *f)
{
    f->options.drives = &f->set;
    int err = group_set_new(&f->options, &f->groups);
    assert(err == 0);
}

void fixture_reopen(struct fixture *f)
{
    group_set_free(f->groups);
    f->options.epoch++;
    fixture_open(f);
}

static may_yield void fixture_body(void *arg)
{
    struct fixture_run *run = arg;
    struct fixture *f = &run->f;
    drive_set_init(&f->set);
    for (uint32_t i = 0; i < f->drive_count; i++) {
        int err = fake_drive_new((uint8_t)(i + 1), f->slabs, FIXTURE_SLAB_BLOCKS, &f->drives[i]);
        assert(err == 0);
        err = drive_set_add(&f->set, &f->drives[i]->base);
        assert(err == 0);
    }
    fixture_open(f);
    run->body(f);
    for (uint32_t i = 0; i < f->drive_count; i++)
        fake_drive_release(f->drives[i]);
    group_set_free(f->groups);
    drive_set_done(&f->set);
    for (uint32_t i = 0; i < f->drive_count; i++)
        fake_drive_free(f->drives[i]);
}

void fixture_run_seed(uint32_t drives, uint32_t slabs, uint64_t seed, void (*body)(struct fixture *f))
{
    assert(drives <= FIXTURE_DRIVES_MAX);
    log_set_level(LOG_ERROR_);
    struct fixture_run run = {.body = body, .f = {.drive_count = drives, .slabs = slabs, .seed = seed}};
    run.f.options = (struct group_set_options){.volume = {{0x70}},
                                               .epoch = 1,
                                               .slab_blocks = FIXTURE_SLAB_BLOCKS,
                                               .drive_failed = note_failed_drive,
                                               .ctx = &run.f};
    check_failed = false;
    struct test_world w;
    test_world_init(&w);
    w.shuffle = seed != 0;
    w.seed = seed != 0 ? seed : 1;
    test_run_with(&w, 64 * MIB, MIB, fixture_body, &run);
    test_world_done(&w);
    if (check_failed)
        fail_msg("seed %llu: %s", (unsigned long long)seed, check_text);
}

void fixture_run(uint32_t drives, uint32_t slabs, void (*body)(struct fixture *f))
{
    fixture_run_seed(drives, slabs, 0, body);
}

void fill_block(uint8_t *to, uint32_t block, uint32_t version)
{
    for (uint32_t i = 0; i < BLOCK_SIZE; i += 16) {
        uint32_t words[4] = {block, version, i, 0x5eed};
        memcpy(to + i, words, sizeof(words));
    }
}

struct page *fill_pages(uint32_t first, uint32_t count, uint32_t version, uint32_t *ret_sums)
{
    struct page *p;
    int err = page_alloc(count, &p);
    assert(err == 0);
    for (uint32_t i = 0; i < count; i++)
        fill_block(page_at(p, i)->data, first + i, version);
    if (ret_sums != NULL)
        crc32c_blocks(p->data, (size_t)count * BLOCK_SIZE, ret_sums);
    return p;
}

struct fake_drive *fixture_member(struct fixture *f, const struct group *g, uint32_t member)
{
    for (uint32_t i = 0; i < f->drive_count; i++) {
        if (uuid_equal(f->drives[i]->base.id, group_drive_id(g->members[member].drive)))
            return f->drives[i];
    }
    assert(!"a member's drive is one of the fixture's");
    return NULL;
}

struct group *fixture_create(struct fixture *f, uint32_t id, uint32_t copies)
{
    struct protection p = {
        .kind = copies > 1 ? PROTECT_MIRROR : PROTECT_NONE, .data = 1, .spare = (uint8_t)(copies - 1)};
    struct group *g = NULL;
    int err = group_create(f->groups, id, GROUP_DATA, p, copies, &g);
    assert(err == 0);
    return g;
}

void fixture_write(struct group *g, uint32_t first, uint32_t count, uint32_t version, uint32_t *ret_sums)
{
    struct page *p = fill_pages(first, count, version, ret_sums);
    struct iovec iov = {p->data, (size_t)count * BLOCK_SIZE};
    struct group_write w = {
        .group = g, .block = first, .blocks = count, .iov = &iov, .iov_count = 1, .page = p};
    CHECK_EQ(group_write_wait(&w), 0);
    CHECK(!w.failed);
    page_put(p, count);
}

void spoil(struct fixture *f, const struct group *g, uint32_t member, uint32_t block)
{
    uint8_t *at = fake_drive_block(fixture_member(f, g, member), g->members[member].slab, block);
    for (uint32_t i = 0; i < BLOCK_SIZE; i += 512)
        at[i] ^= 0xff;
}

bool copy_is(struct fixture *f, const struct group *g, uint32_t member, uint32_t block, uint32_t version)
{
    uint8_t expect[BLOCK_SIZE];
    fill_block(expect, block, version);
    return memcmp(fake_drive_block(fixture_member(f, g, member), g->members[member].slab, block), expect,
                  BLOCK_SIZE) == 0;
}

void sleep_ms(uint64_t ms)
{
    int err = fiber_sleep(ms * NSEC_PER_MSEC);
    assert(err == 0);
}
