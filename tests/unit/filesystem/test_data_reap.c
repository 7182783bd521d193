/* SPDX-License-Identifier: Apache-2.0 */
/* Large cuts and deletes, borders, what is lost, a full pool, read-ahead, access times. */
#include "data_test.h"

/* So many extents that neither a cut nor a delete does it at once: every other block of 16 MiB. */
#define SPARSE_BLOCKS 4096u

static may_yield bool make_large(struct data_test *t, uint64_t ino)
{
    uint8_t *bytes = malloc(MIB);
    bool good = true;

    memset(bytes, 0x5a, MIB);
    for (uint64_t at = 0; good && at < SPARSE_BLOCKS * BLOCK_SIZE; at += MIB)
        good = CHECK_EQ(data_write(t, &data_request, ino, at, bytes, MIB, 0), 0);
    struct fs_wcc wcc;
    for (uint64_t at = 0; good && at < SPARSE_BLOCKS / 2; at++) /* in pieces */
        good = CHECK_EQ(
            fs_allocate(t->fs, &data_request, ino, FS_PUNCH_HOLE, at * 2 * BLOCK_SIZE, BLOCK_SIZE, &wcc), 0);
    free(bytes);
    return good;
}

static may_yield bool is_zero(struct data_test *t, uint64_t ino, uint64_t at, uint64_t len)
{
    uint8_t *bytes = malloc(len);
    uint64_t got = 0;
    bool good = CHECK_EQ(data_read(t, ino, at, bytes, len, &got), 0) && CHECK_EQ(got, len);

    for (uint64_t i = 0; good && i < got; i++)
        good = CHECK_EQ(bytes[i], 0);
    free(bytes);
    return good;
}

static may_yield void large_cut(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    struct inode n;
    uint8_t byte = 1;

    (void)arg;
    bool good = data_start(t, "none");
    uint64_t ino = data_make(t, 0);
    if (good && make_large(t, ino)) {
        CHECK_EQ(data_truncate(t, &data_request, ino, 5000), 0);
        CHECK_EQ(data_inode(t, ino, &n), 0);
        CHECK(n.flags & INODE_REAPING);
        CHECK_EQ(data_truncate(t, &data_request, ino, 16 * MIB), 0);
        CHECK_EQ(data_inode(t, ino, &n), 0);
        CHECK(n.flags & INODE_REAPING);
        CHECK(is_zero(t, ino, 15 * MIB, MIB)); /* F5: nothing of the old content */
        CHECK(is_zero(t, ino, 5000, 16 * MIB - 5000));
        uint64_t place = 0;
        CHECK_EQ(fs_seek(t->fs, &data_request, ino, 8192, false, &place), ERR_FS_NO_DATA);
        data_crash(t);
        good = data_open(t);
        /* A writer gets its blocks at once, whatever the reaper does. */
        CHECK_EQ(data_write(t, &data_request, ino, 9 * MIB + 3, &byte, 1, 0), 0);
        CHECK(is_zero(t, ino, 5000, 9 * MIB + 3 - 5000));
        CHECK(is_zero(t, ino, 9 * MIB + 4, 16 * MIB - 9 * MIB - 4));
        CHECK(data_reaped(t));
        CHECK(data_agrees(t, ino));
        CHECK_EQ(data_inode(t, ino, &n), 0);
        CHECK_EQ(n.flags & INODE_REAPING, 0);
        CHECK(is_zero(t, ino, 5000, 9 * MIB + 3 - 5000));
    }
    data_end(t);
    free(t);
}

static void a_large_cut_shows_nothing_of_what_the_reaper_has_not_taken_yet(void **state)
{
    (void)state;
    drive_test_run(large_cut, NULL);
}

static may_yield void large_delete(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    struct inode n;

    (void)arg;
    bool good = data_start(t, "mirror:2");
    uint64_t inodes = good ? volume_inode_count(t->v) : 0;
    uint64_t a = data_make(t, 0), b = data_make(t, 0), small = data_make(t, 0);
    uint8_t byte = 1;
    if (good && make_large(t, a) && make_large(t, b)) {
        CHECK_EQ(data_write(t, &data_request, small, 100000, &byte, 1, 0), 0);
        CHECK_EQ(data_truncate(t, &data_request, b, 3 * MIB), 0); /* cut and deleted, too */
        CHECK_EQ(data_remove(t, a), 0);
        CHECK_EQ(data_remove(t, b), 0);
        CHECK_EQ(data_inode(t, a, &n), ERR_FS_STALE);
        CHECK_EQ(data_remove(t, small), 0); /* at once: no orphan */
        CHECK_EQ(data_inode(t, small, &n), ERR_FS_STALE);
        data_crash(t);
        if (data_open(t)) {
            CHECK_EQ(data_inode(t, a, &n), ERR_FS_STALE);
            CHECK(data_reaped(t));
            CHECK_EQ(t->v->data_blocks, 0);
            CHECK_EQ(volume_inode_count(t->v), inodes);
        }
    }
    data_end(t);
    free(t);
}

static void deleting_large_files_goes_on_after_a_crash_and_gives_all_back(void **state)
{
    (void)state;
    drive_test_run(large_delete, NULL);
}

/* An unlinked file lives as long as somebody has it open, and for a time of grace after a crash. */
static may_yield void unlinked(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    const uint32_t flags = FS_OPEN_READ | FS_OPEN_WRITE;
    uint8_t byte = 4, back = 0;
    struct fs_attr attr;
    struct inode n;
    uint64_t got;

    (void)arg;
    if (data_start(t, "none")) {
        uint64_t ino = data_make(t, 0);
        CHECK_EQ(data_write(t, &data_request, ino, 3 * MIB, &byte, 1, 0), 0);
        CHECK_EQ(fs_open_get(t->fs, &data_request, ino, flags, false, &attr), 0);
        CHECK_EQ(data_remove(t, ino), 0);
        (void)fiber_sleep(20 * NSEC_PER_MSEC);
        CHECK_EQ(data_write(t, &data_request, ino, 0, &byte, 1, 0), 0);
        CHECK_EQ(data_read(t, ino, 3 * MIB, &back, 1, &got), 0);
        CHECK_EQ(back, 4);
        data_crash(t);
        CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0);
        CHECK_EQ(fs_open(t->v, NSEC_PER_SEC, &t->fs), 0);
        (void)fiber_sleep(20 * NSEC_PER_MSEC);
        CHECK_EQ(fs_open_get(t->fs, &data_request, ino, flags, false, &attr), 0); /* it comes back */
        CHECK_EQ(data_read(t, ino, 3 * MIB, &back, 1, &got), 0);
        (void)fiber_sleep(1100 * NSEC_PER_MSEC);
        CHECK_EQ(data_read(t, ino, 0, &back, 1, &got), 0);
        CHECK_EQ(back, 4);
        fs_open_put(t->fs, ino, flags);
        CHECK(data_reaped(t));
        CHECK_EQ(data_inode(t, ino, &n), ERR_FS_STALE);
        CHECK_EQ(fs_open_get(t->fs, &data_request, ino, flags, false, &attr), ERR_FS_STALE);
        CHECK_EQ(t->v->data_blocks, 0);
    }
    data_end(t);
    free(t);
}

static void an_unlinked_file_lives_while_it_is_open_and_over_a_crash(void **state)
{
    (void)state;
    drive_test_run(unlinked, NULL);
}

/* ---- Borders ---- */

static may_yield void borders(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    const uint64_t last = FS_SIZE_MAX - 2;
    uint8_t byte = 7, back[3];
    uint64_t got = 0, at = 0;
    struct inode n;
    struct fs_wcc wcc;

    (void)arg;
    if (data_start(t, "none")) {
        uint64_t ino = data_make(t, 0);
        CHECK_EQ(data_write(t, &data_request, ino, last, &byte, 1, 0), 0);
        CHECK_EQ(data_inode(t, ino, &n), 0);
        CHECK_EQ(n.size, FS_SIZE_MAX - 1);
        CHECK_EQ(n.blocks, 1);
        CHECK_EQ(data_read(t, ino, last - 2, back, 3, &got), 0);
        CHECK(got == 3 && back[0] == 0 && back[1] == 0 && back[2] == 7);
        CHECK_EQ(data_write(t, &data_request, ino, last + 1, &byte, 1, 0), ERR_FS_TOO_BIG);
        CHECK_EQ(data_write(t, &data_request, ino, 0, &byte, 1, FS_WRITE_APPEND), ERR_FS_TOO_BIG);
        CHECK_EQ(fs_allocate(t->fs, &data_request, ino, FS_ALLOCATE, last, 2, &wcc), ERR_FS_TOO_BIG);
        CHECK_EQ(data_truncate(t, &data_request, ino, FS_SIZE_MAX), ERR_FS_TOO_BIG);
        CHECK_EQ(fs_seek(t->fs, &data_request, ino, 10, false, &at), 0);
        CHECK_EQ(at, ALIGN_DOWN(last, (uint64_t)BLOCK_SIZE));
        CHECK_EQ(fs_seek(t->fs, &data_request, ino, 10, true, &at), 0);
        CHECK_EQ(at, 10);
        CHECK_EQ(data_truncate(t, &data_request, ino, 1), 0);
        CHECK_EQ(data_inode(t, ino, &n), 0);
        CHECK_EQ(n.blocks, 0);
        CHECK(is_zero(t, ino, 0, 1));
        /* In the tree up to FS_INLINE_MAX bytes. */
        uint64_t small = data_make(t, 0);
        for (uint64_t i = 0; i < FS_INLINE_MAX; i++)
            CHECK_EQ(data_write(t, &data_request, small, i, &byte, 1, i % 2 ? FS_WRITE_APPEND : 0), 0);
        CHECK_EQ(data_inode(t, small, &n), 0);
        CHECK(n.flags & INODE_INLINE);
        CHECK_EQ(t->v->data_blocks, 0);
        CHECK_EQ(data_write(t, &data_request, small, FS_INLINE_MAX, &byte, 1, 0), 0);
        CHECK_EQ(data_inode(t, small, &n), 0);
        CHECK_EQ(n.flags & INODE_INLINE, 0);
        CHECK_EQ(n.blocks, 1);
        CHECK_EQ(data_truncate(t, &data_request, small, 0), 0);
        CHECK_EQ(data_write(t, &data_request, small, 0, &byte, 1, 0), 0);
        CHECK_EQ(data_inode(t, small, &n), 0);
        CHECK(n.flags & INODE_INLINE);
        CHECK_EQ(data_read(t, small, 0, back, 3, &got), 0);
        CHECK(got == 1 && back[0] == 7);
    }
    data_end(t);
    free(t);
}

static void files_are_as_large_as_can_be_and_as_small(void **state)
{
    (void)state;
    drive_test_run(borders, NULL);
}

/* ---- Lost ---- */

static may_yield void lost(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    uint8_t *bytes = malloc(10 * BLOCK_SIZE);
    uint64_t got = 0;

    (void)arg;
    memset(bytes, 9, 10 * BLOCK_SIZE);
    if (data_start(t, "none")) {
        uint64_t ino = data_make(t, 0);
        CHECK_EQ(data_write(t, &data_request, ino, 0, bytes, 10 * BLOCK_SIZE, 0), 0);
        /* As replay marks what it cannot find any more: blocks 4 and 5. */
        struct extent e = {.object = ino, .start = 4, .blocks = 2, .birth = t->v->txg, .flags = EXTENT_LOST};
        struct tree_key first = extent_key(ino, 4), last = extent_key(ino, 5);
        op_hold(t->v);
        CHECK_EQ(tree_prepare(&t->v->head, &first, &last, 4, EXTENT_ITEM_MAX, NULL), 0);
        CHECK_EQ(extent_remove_now(t->v, ino, 4, 2), 0);
        extent_put_now(t->v, &e);
        op_release(t->v);
        CHECK_EQ(data_read(t, ino, 0, bytes, 4 * BLOCK_SIZE, &got), 0);
        CHECK_EQ(data_read(t, ino, 4 * BLOCK_SIZE + 17, bytes, 5, &got), ERR_LOST_RANGE);
        CHECK_EQ(data_read(t, ino, 3 * BLOCK_SIZE, bytes, 2 * BLOCK_SIZE, &got), ERR_LOST_RANGE);
        CHECK_EQ(data_read(t, ino, 6 * BLOCK_SIZE, bytes, 4 * BLOCK_SIZE, &got), 0);
        /* What is not whole cannot be merged; a whole block mends it; a cut through it works. */
        CHECK_EQ(data_write(t, &data_request, ino, 4 * BLOCK_SIZE + 1, bytes, 1, 0), ERR_LOST_RANGE);
        CHECK_EQ(data_write(t, &data_request, ino, 4 * BLOCK_SIZE, bytes, BLOCK_SIZE, 0), 0);
        CHECK_EQ(data_read(t, ino, 4 * BLOCK_SIZE, bytes, BLOCK_SIZE, &got), 0);
        CHECK_EQ(data_read(t, ino, 5 * BLOCK_SIZE, bytes, 1, &got), ERR_LOST_RANGE);
        CHECK(data_agrees(t, ino));
        CHECK_EQ(data_truncate(t, &data_request, ino, 5 * BLOCK_SIZE + 100), 0);
        CHECK_EQ(data_truncate(t, &data_request, ino, 5 * BLOCK_SIZE), 0);
        CHECK(data_agrees(t, ino));
        CHECK_EQ(data_remove(t, ino), 0);
    }
    data_end(t);
    free(bytes);
    free(t);
}

static void what_is_lost_is_an_error_for_exactly_its_range(void **state)
{
    (void)state;
    drive_test_run(lost, NULL);
}

/* ---- Full ---- */

static may_yield int fill(struct data_test *t, uint64_t ino, uint64_t from, uint64_t *ret_end)
{
    uint8_t *bytes = malloc(MIB);
    int r = 0;

    memset(bytes, 0x11, MIB);
    while (!r && from < GIB) {
        r = data_write(t, &data_request, ino, from, bytes, MIB, 0);
        if (!r)
            from += MIB;
    }
    free(bytes);
    *ret_end = from;
    return r;
}

static may_yield void full(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    uint64_t end = 0, end2 = 0;

    (void)arg;
    if (data_start(t, "mirror:3")) {
        uint64_t a = data_make(t, 0), b = data_make(t, 0);
        CHECK_EQ(fill(t, a, 0, &end), ERR_VOLUME_FULL);
        CHECK(end >= 20 * MIB);
        CHECK_EQ(data_truncate(t, &data_request, a, end / 2), 0);
        CHECK_EQ(fill(t, b, 0, &end2), ERR_VOLUME_FULL); /* in the room of what was cut off */
        CHECK(end2 >= end / 4);
        CHECK_EQ(data_remove(t, a), 0);
        CHECK_EQ(fill(t, b, end2, &end2), ERR_VOLUME_FULL);
        CHECK(end2 >= end / 4 * 3);
        CHECK_EQ(data_remove(t, b), 0);
        CHECK(data_reaped(t));
        CHECK_EQ(t->v->data_blocks, 0);
    }
    data_end(t);
    free(t);
}

static void on_a_full_pool_deleting_works_and_its_room_is_used_again(void **state)
{
    (void)state;
    drive_test_run(full, NULL);
}

/* ---- Quota ---- */

static may_yield int64_t used(struct data_test *t)
{
    struct fs_quota q = {0};

    CHECK_EQ(fs_quota_get(t->fs, FS_INO_ROOT, &q), 0);
    return (int64_t)q.used_bytes;
}

static may_yield void quota(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    uint8_t *bytes = calloc(1, MIB);
    struct fs_wcc wcc;

    (void)arg;
    if (data_start(t, "none") && CHECK_EQ(fs_quota_set(t->fs, FS_INO_ROOT, 100 * MIB, 0), 0)) {
        struct fs_quota q = {.scanning = true};
        for (int i = 0; q.scanning && i < 5000; i++) { /* what is there is being counted */
            (void)fiber_sleep(NSEC_PER_MSEC);
            CHECK_EQ(fs_quota_get(t->fs, FS_INO_ROOT, &q), 0);
        }
        int64_t base = used(t);
        struct fs_create how = {.type = FS_FILE, .attr = {.valid = FS_SET_MODE, .mode = 0644}};
        struct fs_attr attr;
        bool created;
        CHECK_EQ(fs_create(t->fs, &data_request, FS_INO_ROOT, "f", 1, &how, &attr, &created, &wcc), 0);
        CHECK_EQ(attr.quota, FS_INO_ROOT);
        uint64_t ino = attr.ino, room = 100 * MIB - (uint64_t)base;
        CHECK_EQ(data_write(t, &data_request, ino, 0, bytes, 100, 0), 0); /* in the tree: as one block */
        CHECK_EQ(used(t) - base, BLOCK_SIZE);
        CHECK_EQ(data_write(t, &data_request, ino, 100, bytes, 9000, 0), 0);
        CHECK_EQ(used(t) - base, 3 * BLOCK_SIZE);
        CHECK_EQ(data_write(t, &data_request, ino, 50, bytes, 5000, 0), 0);
        CHECK_EQ(used(t) - base, 3 * BLOCK_SIZE);
        CHECK_EQ(fs_allocate(t->fs, &data_request, ino, FS_ALLOCATE_KEEP_SIZE, 0, room, &wcc), 0);
        CHECK_EQ(used(t) - base, ALIGN_DOWN(room, (uint64_t)BLOCK_SIZE));
        uint64_t full = ALIGN_DOWN(room, (uint64_t)BLOCK_SIZE);
        CHECK_EQ(data_write(t, &data_request, ino, full, bytes, 1, 0), ERR_FS_QUOTA);
        CHECK_EQ(data_write(t, &data_request, ino, full - MIB, bytes, MIB, 0), 0); /* its place was kept */
        CHECK_EQ(fs_allocate(t->fs, &data_request, ino, FS_PUNCH_HOLE, 0, MIB, &wcc), 0);
        CHECK_EQ(used(t) - base, full - MIB);
        /* What the reaper has still to give back counts, but a writer waits for it. */
        CHECK_EQ(data_truncate(t, &data_request, ino, 5000), 0);
        CHECK_EQ(fs_allocate(t->fs, &data_request, ino, FS_ALLOCATE, 0, 50 * MIB, &wcc), 0);
        CHECK(data_reaped(t));
        CHECK_EQ(used(t) - base, 50 * MIB);
        CHECK_EQ(data_truncate(t, &data_request, ino, 100), 0);
        for (uint64_t at = 0; at < 90 * MIB; at += 30 * MIB)
            CHECK_EQ(data_write(t, &data_request, ino, at, bytes, MIB, 0), 0);
        uint64_t gone;
        CHECK_EQ(fs_unlink(t->fs, &data_request, FS_INO_ROOT, "f", 1, &gone, &wcc), 0);
        CHECK(data_reaped(t));
        CHECK_EQ(used(t), base);
    }
    data_end(t);
    free(bytes);
    free(t);
}

static void a_quota_counts_every_block_and_gets_every_block_back(void **state)
{
    (void)state;
    drive_test_run(quota, NULL);
}

/* ---- Read-ahead, access times ---- */

static may_yield void ahead(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    uint8_t *bytes = malloc(MIB);
    uint64_t got = 0, rng = 3;

    (void)arg;
    memset(bytes, 3, MIB);
    if (data_start(t, "none")) {
        uint64_t ino = data_make(t, 0);
        for (uint64_t at = 0; at < 16; at++)
            CHECK_EQ(data_write(t, &data_request, ino, at * MIB, bytes, MIB, 0), 0);
        data_close(t);
        CHECK(data_open(t));
        uint64_t before = t->v->reads;
        for (uint64_t i = 0; i < 40; i++) /* far apart: nothing follows */
            CHECK_EQ(data_read(t, ino, (draw(&rng, 7) * 5 + 1) * 100 * BLOCK_SIZE, bytes, 4096, &got), 0);
        CHECK_EQ(t->v->reads - before, 40);
        before = t->v->read_blocks;
        for (uint64_t i = 0; i < 64; i++) { /* one after the other: what comes next is there already */
            CHECK_EQ(data_read(t, ino, i * 65536, bytes, 65536, &got), 0);
            (void)fiber_sleep(NSEC_PER_MSEC);
        }
        CHECK(t->v->read_blocks - before >= 64 * 16 + 300);
        CHECK(t->v->read_blocks - before <= 64 * 16 * 2 + 1024);
    }
    data_end(t);
    free(bytes);
    free(t);
}

static void read_ahead_follows_a_stream_and_no_random_reader(void **state)
{
    (void)state;
    drive_test_run(ahead, NULL);
}

static may_yield void atimes(void *arg)
{
    struct data_test *t = calloc(1, sizeof(*t));
    struct inode before, after;
    uint8_t byte = 1;
    uint64_t got;

    (void)arg;
    if (data_start(t, "none")) {
        uint64_t ino = data_make(t, 0);
        CHECK_EQ(data_write(t, &data_request, ino, 0, &byte, 1, 0), 0);
        CHECK_EQ(data_inode(t, ino, &before), 0);
        (void)fiber_sleep(2 * NSEC_PER_MSEC);
        CHECK_EQ(data_read(t, ino, 0, &byte, 1, &got), 0);
        (void)fiber_sleep(200 * NSEC_PER_MSEC);
        CHECK_EQ(data_inode(t, ino, &after), 0);
        CHECK(after.atime_ns > before.mtime_ns);
        CHECK_EQ(after.change, before.change);
        CHECK_EQ(after.ctime_ns, before.ctime_ns);
        before = after;
        CHECK_EQ(data_read(t, ino, 0, &byte, 1, &got), 0);
        (void)fiber_sleep(200 * NSEC_PER_MSEC);
        CHECK_EQ(data_inode(t, ino, &after), 0);
        CHECK_EQ(after.atime_ns, before.atime_ns);
    }
    data_end(t);
    free(t);
}

static void the_access_time_follows_a_change_once(void **state)
{
    (void)state;
    drive_test_run(atimes, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_large_cut_shows_nothing_of_what_the_reaper_has_not_taken_yet,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(deleting_large_files_goes_on_after_a_crash_and_gives_all_back,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(an_unlinked_file_lives_while_it_is_open_and_over_a_crash,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(files_are_as_large_as_can_be_and_as_small, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(what_is_lost_is_an_error_for_exactly_its_range, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(on_a_full_pool_deleting_works_and_its_room_is_used_again,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(a_quota_counts_every_block_and_gets_every_block_back,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(read_ahead_follows_a_stream_and_no_random_reader, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(the_access_time_follows_a_change_once, drive_test_setup,
                                        drive_test_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
