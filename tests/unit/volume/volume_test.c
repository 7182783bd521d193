/* SPDX-License-Identifier: Apache-2.0 */
#include "volume_test.h"

static const char *const names[TEST_DRIVES] = {"d0", "d1", "d2", "d3"};

void pool_open(struct pool *p)
{
    *p = (struct pool){0};
    drive_set_init(&p->set);
    CHECK_EQ(cache_new(tree_node_evicted, &p->cache), 0);
    for (uint32_t i = 0; i < TEST_DRIVES; i++) {
        if (access(drive_test_path(names[i]), F_OK) != 0)
            (void)drive_test_format(names[i]);
        p->homes[i] = drive_test_open(names[i]);
        CHECK_EQ(drive_attach(p->homes[i], &p->drives[i]), 0);
        CHECK_EQ(drive_set_add(&p->set, p->drives[i]), 0);
    }
    CHECK_EQ(coord_local_open(drive_test_path("coord.json"), &p->env.coord), 0);
    p->env.drives = &p->set;
    p->env.cache = p->cache;
    p->env.shortage = &p->shortage;
    p->env.node = drive_test_volume(99);
}

void pool_close(struct pool *p)
{
    for (uint32_t i = 0; i < TEST_DRIVES; i++) {
        drive_set_remove(&p->set, p->drives[i]);
        drive_detach(p->drives[i]);
        drive_home_close(p->homes[i]);
    }
    drive_set_done(&p->set);
    cache_free(p->cache);
    coord_close(p->env.coord);
}

struct uuid pool_volume(struct pool *p, const char *protection, uint64_t size_bytes)
{
    struct volume_create_options o = {
        .name = "v", .kind = "block", .size_bytes = size_bytes, .system_runs = 64};
    struct uuid id = {{0}};

    CHECK_EQ(protection_parse(protection, &o.protection), 0);
    CHECK_EQ(volume_create(&p->env, &o, &id), 0);
    return id;
}

static void pattern(uint64_t *words, uint64_t block, uint32_t generation)
{
    for (uint64_t i = 0; i < BLOCK_SIZE / 8; i++)
        words[i] = generation ? hash_mix64(block * 1000003 + generation * 7919 + i) : 0;
}

int test_write(struct volume *v, uint64_t block, uint32_t blocks, uint32_t generation, uint32_t flags)
{
    struct page *page;
    int r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);

    if (r)
        return r;
    for (uint32_t i = 0; i < blocks; i++)
        pattern((uint64_t *)(void *)page_at(page, i)->data, block + i, generation);
    struct page_vec *vec = calloc(1, sizeof(*vec));
    vec->run_count = 1;
    vec->blocks = blocks;
    vec->runs[0] = (struct page_run){page, blocks};
    r = volume_write(v, OBJECT_BLOCK_DEVICE, block, vec, flags);
    page_put(page, blocks);
    free(vec);
    return r;
}

bool test_holds(struct volume *v, uint64_t block, uint32_t blocks, uint32_t generation)
{
    struct page_vec *vec = calloc(1, sizeof(*vec));
    uint64_t want[BLOCK_SIZE / 8];
    int r = volume_read(v, OBJECT_BLOCK_DEVICE, block, blocks, vec);
    bool same = !r;

    if (r)
        fprintf(stderr, "read of %u blocks at %llu: %s\n", blocks, (unsigned long long)block, error_text(r));
    for (uint32_t i = 0, at = 0; !r && i < vec->run_count; i++)
        for (uint32_t k = 0; k < vec->runs[i].count; k++, at++) {
            pattern(want, block + at, generation);
            if (vec->runs[i].page)
                same &= memcmp(page_at(vec->runs[i].page, k)->data, want, BLOCK_SIZE) == 0;
            else
                same &= generation == 0;
        }
    if (!r)
        page_vec_put(vec);
    free(vec);
    return same;
}
