/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of a drive's life fails once: an error comes back, nothing is lost, nothing leaks (ASan).
 */
#include "drive_test.h"

#include <errno.h>

static bool armed;
static uint32_t fail_after, allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t a, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t a, size_t n);

static bool fails(void)
{
    if (!armed)
        return false;
    allocations++;
    return fail_after-- == 0;
}
void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t m)
{
    return fails() ? NULL : __real_calloc(n, m);
}
void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t a, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(a, n);
}

static int life(struct drive_home **h, struct drive **d, struct drive_session **s, struct drive_set *set,
                uint32_t *slab) may_yield
{
    char why[256];
    int err = drive_home_open(drive_test_path("m"), test_pool, 0, h, why, sizeof(why));
    if (err == 0)
        err = drive_attach(*h, d);
    if (err == 0)
        err = drive_set_add(set, *d);
    if (err == 0)
        err = drive_session_open(*d, drive_test_volume(3), 1, 1, s);
    if (err == 0)
        err = drive_slab_alloc(*s, 0, 0, slab);
    struct slab_entry *list = NULL;
    uint32_t count;
    if (err == 0)
        err = drive_slab_list(*d, drive_test_volume(3), &list, &count);
    free(list);
    return err;
}

static int result;

static void sweep_body(void *arg) fiber_role_assumed
{
    uint32_t n = *(uint32_t *)arg;
    struct drive_home *h = NULL;
    struct drive *d = NULL;
    struct drive_session *s = NULL;
    struct drive_set set;
    uint32_t slab = 0;
    drive_set_init(&set);
    fail_after = n;
    allocations = 0;
    armed = true;
    result = life(&h, &d, &s, &set, &slab);
    armed = false;
    if (result != 0)
        CHECK(result == ERR_NO_MEMORY || result == ERR_SYS(ENOMEM));
    if (s != NULL) {
        CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0); /* a second attempt works */
        CHECK_EQ(drive_test_write(s, slab, 0, 1), 0);
        drive_session_close(s);
    }
    if (d != NULL)
        drive_detach(d);
    drive_set_done(&set);
    if (h != NULL)
        drive_home_close(h);
}

static void format_body(void *arg) fiber_role_assumed
{
    (void)arg;
    drive_test_format("m");
}

static void failed_allocation_at_any_point_is_an_error_and_no_loss(void **state)
{
    (void)state;
    drive_test_run(format_body, NULL);
    uint32_t n = 0;
    do
        drive_test_run(sweep_body, &n);
    while (result != 0 && ++n < 200);
    assert_in_range(n, 15, 199); /* it was a sweep, and it got through */
    assert_true(allocations >= n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_allocation_at_any_point_is_an_error_and_no_loss),
    };
    return cmocka_run_group_tests_name("drive-memory", tests, drive_test_setup, drive_test_teardown);
}
