/* SPDX-License-Identifier: Apache-2.0 */
#include "change_test.h"

#include "volume/verify.h"

void world_open(struct world *w, const char *protection)
{
    struct volume_create_options o = {
        .name = "f", .kind = VOLUME_KIND_FS, .size_bytes = 64 * MIB, .system_runs = 64};

    pool_open(&w->pool);
    CHECK_EQ(protection_parse(protection, &o.protection), 0);
    CHECK_EQ(volume_create(&w->pool.env, &o, &w->id), 0);
    CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
}

void world_close(struct world *w)
{
    if (w->v)
        CHECK_EQ(volume_close(w->v), 0);
    pool_close(&w->pool);
}

bool world_crash(struct world *w)
{
    volume_fail(w->v, ERR_SHORT_IO, "the test");
    CHECK(volume_close(w->v) != 0);
    w->v = NULL;
    pool_close(&w->pool);
    pool_open(&w->pool);
    return CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
}

static void print_problem(void *ctx, const char *sentence)
{
    (void)ctx;
    fprintf(stderr, "verify: %s\n", sentence);
}

bool world_verified(struct world *w)
{
    struct volume_verify r = {.problem = print_problem};

    return CHECK_EQ(volume_verify(w->v, &r), 0) && CHECK_EQ(r.problems, 0);
}

struct page_vec *data_make(uint32_t blocks, uint8_t byte, uint32_t *sums)
{
    struct page_vec *vec = calloc(1, sizeof(*vec));
    struct page *page;

    CHECK_EQ(page_alloc_wait(blocks, DEADLINE_NEVER, &page), 0);
    memset(page->data, byte, (size_t)blocks * BLOCK_SIZE);
    crc32c_blocks(page->data, (size_t)blocks * BLOCK_SIZE, sums);
    vec->run_count = 1;
    vec->blocks = blocks;
    vec->runs[0] = (struct page_run){page, blocks};
    return vec;
}

void data_free(struct page_vec *vec)
{
    page_vec_put(vec);
    free(vec);
}

bool data_holds(struct volume *v, uint64_t object, uint64_t block, uint8_t byte)
{
    struct page_vec *vec = calloc(1, sizeof(*vec));
    int r = volume_read(v, object, block, 1, vec);
    bool good = !r;

    for (uint32_t i = 0; !r && i < BLOCK_SIZE; i++)
        good &= (vec->runs[0].page ? vec->runs[0].page->data[i] : 0) == byte;
    if (!r)
        page_vec_put(vec);
    free(vec);
    return good;
}
