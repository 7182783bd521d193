/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth allocation fails, the Nth request of a drive fails: for every N that the scenario reaches, what
 * failed says so, works when it is tried again, and nothing is lost or left behind.
 */
#include "cmocka_all.h"
#include "fixture.h"

#include "runtime/checksum.h"

#include <stdio.h>
#include <stdlib.h>

/* Linked with --wrap: every call in the program comes here first. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_reallocarray(void *p, size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_reallocarray(void *p, size_t count, size_t size);

static volatile bool armed;
static volatile uint32_t seen, fail_at, failed;

static bool must_fail(void)
{
    if (!armed || fake_drive_allocates > 0 || seen++ != fail_at)
        return false;
    failed++;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return must_fail() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size)
{
    return must_fail() ? NULL : __real_calloc(count, size);
}
void *__wrap_reallocarray(void *p, size_t count, size_t size)
{
    return must_fail() ? NULL : __real_reallocarray(p, count, size);
}

static bool page_fails(void *ctx)
{
    (void)ctx;
    return must_fail();
}

/* What fails for want of memory succeeds when it is tried again, since one allocation alone fails. */
#define RETRY(call)                               \
    ({                                            \
        int retry_err = (call);                   \
        if (retry_err == ERR_NO_MEMORY && failed) \
            retry_err = (call);                   \
        CHECK_EQ(retry_err, 0);                   \
        retry_err;                                \
    })

static may_yield int write_blocks(struct group *g, struct page *p)
{
    struct iovec iov = {p->data, 4 * BLOCK_SIZE};
    struct group_write w = {.group = g, .blocks = 4, .iov = &iov, .iov_count = 1, .page = p};
    int err = group_write_wait(&w);
    CHECK(!w.failed || err == ERR_NO_MEMORY);
    return err;
}

static may_yield int read_blocks(struct group *g, const uint32_t *sums, bool own)
{
    struct page *p = NULL;
    struct iovec iov;
    struct group_read r = {.group = g, .blocks = 4, .verify = VERIFY_BLOCKS, .sums = sums, .only = -1};
    if (own) {
        armed = false;
        p = fill_pages(0, 4, 99, NULL);
        armed = true;
        iov = (struct iovec){p->data, 4 * BLOCK_SIZE};
        r.iov = &iov;
        r.iov_count = 1;
    }
    int err = group_read(&r);
    for (uint32_t i = 0; err == 0 && i < 4; i++)
        CHECK_EQ(crc32c(0, own ? page_at(p, i)->data : page_at(r.page, i)->data, BLOCK_SIZE), sums[i]);
    if (own)
        page_put(p, 4);
    else if (r.page != NULL)
        page_put(r.page, 4);
    return err;
}

static may_yield void scenario(struct fixture *f)
{
    struct protection mirror = {PROTECT_MIRROR, 1, 3};
    struct group *g = NULL, *h = NULL;
    uint32_t sums[4];
    struct page *p = fill_pages(0, 4, 1, sums);
    sleep_ms(1); /* the runtime's heap of timers may not fail: it is made now */
    memory_set_failure(reactor_memory(reactor_current()), page_fails, NULL);
    armed = true;
    RETRY(group_create(f->groups, 1, GROUP_DATA, mirror, 4, &g));
    RETRY(group_create(f->groups, 2, GROUP_DATA, mirror, 2, &h));
    if (g != NULL && h != NULL) {
        RETRY(write_blocks(g, p));
        RETRY(write_blocks(h, p));
        spoil(f, h, 0, 1);
        for (uint32_t i = 0; i < 4; i++)
            RETRY(read_blocks(h, sums, i % 2 == 0));
        struct group_check check;
        uint64_t bad[GROUP_READ_MAX / 64];
        armed = false; /* scrub waits for memory, and there it is */
        CHECK_EQ(group_scrub(h, 0, 4, VERIFY_BLOCKS, sums, &check, bad), 0);
        armed = true;
        group_drive_make_stale(f->groups, h->members[1].drive, 3);
        RETRY(group_member_replace(f->groups, h, 1));
        RETRY(group_copy_to_member(h, 1, 0, 4, VERIFY_BLOCKS, sums));
        group_member_levelled(h, 1);
        CHECK_EQ(h->members[1].state, MEMBER_CURRENT);
        RETRY(group_set_reap(f->groups));
        for (uint32_t m = 0; m < 2; m++)
            CHECK(copy_is(f, h, m, 1, 1));
        uint8_t item[GROUP_ITEM_MAX];
        struct group d, *again = NULL;
        struct uuid ids[GROUP_MEMBERS_MAX];
        CHECK_EQ(group_decode(item, group_encode(h, item), &d, ids), 0);
        armed = false;
        fixture_reopen(f);
        armed = true;
        RETRY(group_adopt_decoded(f->groups, &d, ids, &again));
        if (again != NULL) {
            RETRY(read_blocks(again, sums, false));
            RETRY(group_destroy(f->groups, again));
        }
        RETRY(group_create(f->groups, 1, GROUP_DATA, mirror, 4, &g));
        RETRY(read_blocks(g, sums, true));
        RETRY(group_destroy(f->groups, g));
    }
    armed = false;
    page_put(p, 4);
    for (uint32_t i = 0; i < f->drive_count; i++)
        CHECK_EQ(fake_drive_free_slabs(f->drives[i]), f->slabs);
}

static void every_allocation_may_fail_once(void **state)
{
    (void)state;
    for (fail_at = 0;; fail_at++) {
        seen = failed = 0;
        fixture_run(6, 4, scenario);
        if (failed == 0)
            break;
    }
    printf("%u allocations failed, one a run\n", fail_at);
    assert_true(fail_at > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail_once),
    };
    return cmocka_run_group_tests_name("protect sweep", tests, NULL, NULL);
}
