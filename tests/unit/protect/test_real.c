/* SPDX-License-Identifier: Apache-2.0 */
/* The same on real drives: files behind io_uring. What the fake drive promises must be what drive/ does. */
#include "../drive/drive_test.h"

#include "protect/group.h"
#include "runtime/checksum.h"

#include <fcntl.h>
#include <sys/stat.h>

#define DRIVES 3u
#define BLOCKS 8u
#define MARK   0x5a

struct rig {
    const char *names[DRIVES];
    struct drive_home *homes[DRIVES];
    struct drive *drives[DRIVES];
    struct drive_set set;
    struct group_set *groups;
    uint32_t failures;
};

static void rig_failed(void *ctx, struct group_drive *d)
{
    (void)d;
    ((struct rig *)ctx)->failures++;
}

static void rig_set_open(struct rig *r, uint64_t epoch) may_yield
{
    struct group_set_options o = {.volume = drive_test_volume(1),
                                  .epoch = epoch,
                                  .generation = 1,
                                  .drives = &r->set,
                                  .slab_blocks = TEST_SLAB / BLOCK_SIZE,
                                  .drive_failed = rig_failed,
                                  .ctx = r};
    CHECK_EQ(group_set_new(&o, &r->groups), 0);
}

static void rig_open(struct rig *r) may_yield
{
    drive_set_init(&r->set);
    for (uint32_t i = 0; i < DRIVES; i++) {
        drive_test_format(r->names[i]);
        r->homes[i] = drive_test_open(r->names[i]);
        CHECK_EQ(drive_attach(r->homes[i], &r->drives[i]), 0);
        CHECK_EQ(drive_set_add(&r->set, r->drives[i]), 0);
    }
    rig_set_open(r, 1);
}

static void rig_close(struct rig *r) may_yield
{
    group_set_free(r->groups);
    for (uint32_t i = 0; i < DRIVES; i++) {
        drive_set_remove(&r->set, r->drives[i]);
        drive_detach(r->drives[i]);
        drive_home_close(r->homes[i]);
    }
    drive_set_done(&r->set);
}

static const char *rig_name(const struct rig *r, const struct group_drive *d)
{
    for (uint32_t i = 0; i < DRIVES; i++) {
        if (uuid_equal(drive_id(r->drives[i]), group_drive_id(d)))
            return r->names[i];
    }
    return NULL;
}

/* Writes block `block` of the group with a pattern of its own; keeps its checksum. */
static int rig_write(struct group *g, uint32_t block, uint32_t *ret_sum, bool *ret_failed) may_yield
{
    struct page *p;
    CHECK_EQ(page_alloc(1, &p), 0);
    memset(p->data, MARK + (int)block, BLOCK_SIZE);
    *ret_sum = crc32c(0, p->data, BLOCK_SIZE);
    struct iovec iov = {p->data, BLOCK_SIZE};
    struct group_write w = {.group = g, .block = block, .blocks = 1, .iov = &iov, .iov_count = 1, .page = p};
    int err = group_write_wait(&w);
    *ret_failed = w.failed;
    page_put(p, 1);
    return err;
}

static void rig_expect(struct group *g, uint32_t blocks, const uint32_t *sums, int only) may_yield
{
    struct group_read r = {.group = g, .blocks = blocks, .verify = VERIFY_BLOCKS, .sums = sums, .only = only};
    CHECK_EQ(group_read(&r), 0);
    if (r.page == NULL)
        return;
    for (uint32_t b = 0; b < blocks; b++)
        CHECK_EQ(page_at(r.page, b)->data[77], MARK + b);
    page_put(r.page, blocks);
}

/* Spoils every block of the file that begins like one of ours. Returns how many. */
static uint32_t rig_damage(const char *name)
{
    uint32_t n = 0;
    int fd = open(drive_test_path(name), O_RDONLY | O_CLOEXEC);
    assert(fd >= 0);
    uint8_t block[BLOCK_SIZE];
    for (uint64_t at = 0; pread(fd, block, sizeof(block), (off_t)at) == (ssize_t)sizeof(block);
         at += BLOCK_SIZE) {
        bool ours =
            block[0] >= MARK && block[0] < MARK + BLOCKS && memcmp(block, block + 1, BLOCK_SIZE - 1) == 0;
        if (ours) {
            drive_test_damage(name, at, BLOCK_SIZE);
            n++;
        }
    }
    close(fd);
    return n;
}

static void heal_body(void *arg) fiber_role_assumed
{
    (void)arg;
    struct rig r = {.names = {"h1", "h2", "h3"}};
    rig_open(&r);
    struct group *g = NULL;
    CHECK_EQ(group_create(r.groups, 1, GROUP_DATA, (struct protection){PROTECT_MIRROR, 1, 1}, 2, &g), 0);
    uint32_t sums[BLOCKS];
    bool failed;
    for (uint32_t b = 0; b < BLOCKS; b++)
        CHECK_EQ(rig_write(g, b, &sums[b], &failed), 0);
    CHECK_EQ(group_set_flush(r.groups, &failed), 0);
    CHECK(!failed);
    rig_expect(g, BLOCKS, sums, 0);
    CHECK_EQ(rig_damage(rig_name(&r, g->members[0].drive)), BLOCKS);
    /* Until the damaged copy's turn comes; which copy is asked depends on how fast the drives answer. */
    for (uint32_t i = 0; i < 200 && group_set_counters(r.groups)->blocks_repaired == 0; i++)
        rig_expect(g, BLOCKS, sums, -1);
    CHECK_EQ(group_set_counters(r.groups)->blocks_repaired, BLOCKS);
    rig_expect(g, BLOCKS, sums, 0);
    CHECK_EQ(rig_damage(rig_name(&r, g->members[1].drive)), BLOCKS);
    struct group_check check = {0};
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, BLOCKS, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_repaired, BLOCKS);
    rig_expect(g, BLOCKS, sums, 1);
    CHECK_EQ(r.failures, 0);
    rig_close(&r);
}

static void damaged_file_is_healed(void **state)
{
    (void)state;
    drive_test_run(heal_body, NULL);
}

static void lose_body(void *arg) fiber_role_assumed
{
    (void)arg;
    struct rig r = {.names = {"l1", "l2", "l3"}};
    rig_open(&r);
    struct group *g = NULL;
    CHECK_EQ(group_create(r.groups, 1, GROUP_DATA, (struct protection){PROTECT_MIRROR, 1, 1}, 2, &g), 0);
    uint32_t sums[BLOCKS];
    bool failed = false;
    for (uint32_t b = 0; b < BLOCKS / 2; b++)
        CHECK_EQ(rig_write(g, b, &sums[b], &failed), 0);
    CHECK_EQ(group_set_flush(r.groups, &failed), 0);
    /* Somebody cuts the drive's file under the running server. */
    struct group_drive *lost = g->members[0].drive;
    CHECK_EQ(truncate(drive_test_path(rig_name(&r, lost)), 0), 0);
    for (uint32_t i = 0; i < 4; i++)
        rig_expect(g, BLOCKS / 2, sums, -1);
    for (uint32_t b = BLOCKS / 2; b < BLOCKS; b++)
        CHECK_EQ(rig_write(g, b, &sums[b], &failed), 0);
    CHECK_EQ(group_set_flush(r.groups, &failed), 0);
    for (uint32_t i = 0; i < 100 && r.failures == 0; i++)
        CHECK_EQ(fiber_sleep(50 * NSEC_PER_MSEC), 0);
    CHECK_EQ(r.failures, 1);
    CHECK(!group_drive_usable(lost));
    CHECK_EQ(rig_write(g, BLOCKS - 1, &sums[BLOCKS - 1], &failed), 0);
    CHECK(failed);
    group_drive_make_stale(r.groups, lost, 3);
    CHECK_EQ(group_member_replace(r.groups, g, 0), 0);
    CHECK(g->members[0].drive != lost);
    CHECK_EQ(group_copy_to_member(g, 0, 0, BLOCKS, VERIFY_BLOCKS, sums), 0);
    CHECK_EQ(group_set_flush(r.groups, &failed), 0);
    CHECK(!failed);
    rig_expect(g, BLOCKS, sums, 0);
    group_member_levelled(g, 0);
    CHECK(group_healthy(g));
    CHECK_EQ(group_set_reap(r.groups), 0);
    rig_expect(g, BLOCKS, sums, -1);
    rig_close(&r);
}

static void truncated_drive_is_survived_and_replaced(void **state)
{
    (void)state;
    drive_test_run(lose_body, NULL);
}

static void restart_body(void *arg) fiber_role_assumed
{
    (void)arg;
    struct rig r = {.names = {"r1", "r2", "r3"}};
    rig_open(&r);
    struct group *g = NULL;
    CHECK_EQ(group_create(r.groups, 1, GROUP_DATA, (struct protection){PROTECT_MIRROR, 1, 2}, 3, &g), 0);
    uint32_t sums[BLOCKS];
    bool failed;
    for (uint32_t b = 0; b < BLOCKS; b++)
        CHECK_EQ(rig_write(g, b, &sums[b], &failed), 0);
    uint8_t item[GROUP_ITEM_MAX];
    uint32_t len = group_encode(g, item);
    group_set_free(r.groups);
    struct group d, *again = NULL;
    struct uuid ids[GROUP_MEMBERS_MAX];
    CHECK_EQ(group_decode(item, len, &d, ids), 0);
    rig_set_open(&r, 2);
    CHECK_EQ(group_adopt_decoded(r.groups, &d, ids, &again), 0);
    for (int m = 0; m < 3; m++)
        rig_expect(again, BLOCKS, sums, m);
    CHECK_EQ(group_destroy(r.groups, again), 0);
    for (uint32_t i = 0; i < DRIVES; i++) {
        struct slab_entry *list = NULL;
        uint32_t count = 1;
        CHECK_EQ(drive_slab_list(r.drives[i], drive_test_volume(1), &list, &count), 0);
        CHECK_EQ(count, 0);
        free(list);
    }
    rig_close(&r);
}

static void set_opened_again_finds_its_groups(void **state)
{
    (void)state;
    drive_test_run(restart_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(damaged_file_is_healed, drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(truncated_drive_is_survived_and_replaced, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(set_opened_again_finds_its_groups, drive_test_setup,
                                        drive_test_teardown),
    };
    return cmocka_run_group_tests_name("protect on real drives", tests, NULL, NULL);
}
