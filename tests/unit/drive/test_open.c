/* SPDX-License-Identifier: Apache-2.0 */
/* What a drive is refused for, what the message says, and which damage it survives. */
#include "drive_test.h"

#include "runtime/checksum.h"

#include <fcntl.h>
#include <sys/stat.h>

static char why[256];

static int try_open(const char *name, struct uuid pool, uint64_t min_generation) may_yield
{
    struct drive_home *h = NULL;
    why[0] = '\0';
    int err = drive_home_open(drive_test_path(name), pool, min_generation, &h, why, sizeof(why));
    if (err == 0)
        drive_home_close(h);
    return err;
}

static int try_format(const char *name, uint64_t size, bool force) may_yield
{
    struct drive_format_options o = {
        .path = drive_test_path(name), .pool_id = test_pool, .size_bytes = size, .force = force};
    struct uuid id;
    why[0] = '\0';
    return drive_format(&o, &id, why, sizeof(why));
}

static bool says(const char *text)
{
    if (strstr(why, text) != NULL)
        return true;
    fprintf(stderr, "the message was: %s\n", why);
    return false;
}

static void overwrite(const char *name, uint64_t offset, const void *bytes, size_t len)
{
    int fd = open(drive_test_path(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert(fd >= 0);
    ssize_t n = pwrite(fd, bytes, len, (off_t)offset);
    assert(n == (ssize_t)len);
    close(fd);
}

static void refusals_body(void *arg) fiber_role_assumed
{
    (void)arg;
    const struct uuid foreign = {{9}}, none = {{0}};
    CHECK_EQ(try_open("missing", test_pool, 0), ERR_DRIVE_GONE);
    CHECK(says("reconnect"));

    drive_test_format("d");
    CHECK_EQ(try_open("d", foreign, 0), ERR_DRIVE_FOREIGN);
    CHECK(says("belongs to pool 706f6f6c-"));
    CHECK_EQ(try_open("d", none, 0), 0);

    struct drive_home *h = drive_test_open("d");
    uint64_t generation = drive_home_generation(h);
    CHECK(generation > 1);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_IN_USE);
    CHECK(says("in use"));
    CHECK_EQ(try_format("d", 0, true), ERR_DRIVE_IN_USE);
    drive_home_close(h);
    CHECK_EQ(try_open("d", test_pool, generation), 0);
    CHECK_EQ(try_open("d", test_pool, generation + 100), ERR_DRIVE_ROLLED_BACK);
    CHECK(says("rolled back"));

    CHECK_EQ(truncate(drive_test_path("d"), 63 * MIB), 0);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_SHRUNKEN);
    CHECK(says("was cut"));
    CHECK_EQ(truncate(drive_test_path("d"), 64 * MIB), 0);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_SHRUNKEN);
    CHECK(says("cut and grown again"));
    CHECK_EQ(truncate(drive_test_path("d"), 0), 0);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_SHRUNKEN);
    CHECK_EQ(truncate(drive_test_path("d"), 64 * MIB), 0);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_NOT_FORMATTED);
    CHECK(says("wiped"));
    overwrite("d", 0, "XFSB", 4);
    CHECK_EQ(try_open("d", test_pool, 0), ERR_DRIVE_FOREIGN);
    CHECK(says("XFS"));
}

static void unfit_drives_are_refused_with_advice(void **state)
{
    (void)state;
    drive_test_run(refusals_body, NULL);
}

static void format_body(void *arg) fiber_role_assumed
{
    (void)arg;
    CHECK_EQ(try_format("f", 0, false), ERR_SYS(ENOENT));
    CHECK(says("give a size"));
    CHECK_EQ(try_format("f", 10 * MIB, false), ERR_DRIVE_TOO_SMALL);
    CHECK(says("at least 64 MiB"));
    CHECK(access(drive_test_path("f"), F_OK) != 0); /* left nothing behind */
    CHECK_EQ(try_format("f", 64 * MIB, false), 0);
    CHECK_EQ(try_format("f", 0, false), ERR_DRIVE_FOREIGN);
    CHECK(says("drive of this pool"));
    CHECK_EQ(try_format("f", 0, true), 0);
    CHECK_EQ(try_open("f", test_pool, 0), 0);

    overwrite("ext", 1080, "\x53\xef", 2);
    CHECK_EQ(truncate(drive_test_path("ext"), 100 * MIB), 0);
    CHECK_EQ(try_format("ext", 0, false), ERR_DRIVE_FOREIGN);
    CHECK(says("ext4"));
    CHECK_EQ(try_format("ext", 0, true), 0);
    CHECK_EQ(try_open("ext", test_pool, 0), 0);

    overwrite("text", 0, "my thesis", 9);
    CHECK_EQ(try_format("text", 64 * MIB, false), ERR_DRIVE_FOREIGN);
    CHECK(says("other contents"));
    struct stat st;
    CHECK(stat(drive_test_path("text"), &st) == 0 && st.st_size == 9);
    CHECK(try_format(".", 64 * MIB, false) < 0);
    CHECK(says("folder"));
}

static void format_refuses_what_is_not_empty_unless_forced(void **state)
{
    (void)state;
    drive_test_run(format_body, NULL);
}

static void size_body(void *arg) fiber_role_assumed
{
    (void)arg;
    /* A size that is no multiple of anything, and a device that grew later. */
    CHECK_EQ(try_format("odd", 100 * MIB + 12345, false), 0);
    CHECK_EQ(try_open("odd", test_pool, 0), 0);
    CHECK_EQ(truncate(drive_test_path("odd"), 200 * MIB), 0);
    CHECK_EQ(try_open("odd", test_pool, 0), 0);
}

static void drive_on_a_device_that_grew_still_opens(void **state)
{
    (void)state;
    drive_test_run(size_body, NULL);
}

/* ---- Damage ---- */

/* More than a table block holds, where blocks are what it is about; a sweep is done with a few. */
static uint32_t slabs_written;

static void fill(const char *name) may_yield
{
    drive_test_format(name);
    struct drive_home *h = drive_test_open(name);
    struct drive *d = NULL;
    struct drive_session *s = NULL;
    CHECK_EQ(drive_attach(h, &d), 0);
    CHECK_EQ(drive_session_open(d, drive_test_volume(1), 7, 1, &s), 0);
    uint32_t slab;
    for (uint32_t i = 0; i < slabs_written; i++)
        CHECK_EQ(drive_slab_alloc(s, i, 0, &slab), 0);
    drive_session_close(s);
    drive_detach(d);
    drive_home_close(h);
}

/* The drive knows all that it was told. */
static void check_filled(const char *name) may_yield
{
    struct drive_home *h = drive_test_open(name);
    if (h == NULL)
        return;
    struct drive *d = NULL;
    struct drive_session *s = NULL;
    struct slab_entry *list = NULL;
    uint32_t count = 0;
    CHECK_EQ(drive_attach(h, &d), 0);
    CHECK_EQ(drive_slab_list(d, drive_test_volume(1), &list, &count), 0);
    CHECK_EQ(count, slabs_written);
    free(list);
    CHECK_EQ(drive_session_open(d, drive_test_volume(1), 6, 1, &s), ERR_DRIVE_FENCED);
    drive_detach(d);
    drive_home_close(h);
}

/* Every block of each copy in turn; the next open repairs it, so the other copy may be hit then. */
static void tables_body(void *arg) fiber_role_assumed
{
    (void)arg;
    fill("t");
    struct drive_home *h = drive_test_open("t");
    struct drive_layout l = h->sb.layout;
    drive_home_close(h);
    CHECK(l.table_blocks > 1 && l.fence_blocks > 1);
    for (int copy = 0; copy < 2; copy++) {
        for (uint32_t i = 0; i < l.table_blocks; i++) {
            drive_test_damage("t", l.table_offset[copy] + (uint64_t)i * BLOCK_SIZE, 512); /* torn */
            check_filled("t");
        }
        for (uint32_t i = 0; i < l.fence_blocks; i++) {
            drive_test_damage("t", l.fence_offset[copy] + (uint64_t)i * BLOCK_SIZE + 3584, 512);
            check_filled("t");
        }
        drive_test_damage("t", l.table_offset[copy], (uint64_t)l.table_blocks * BLOCK_SIZE);
        drive_test_damage("t", l.fence_offset[copy], (uint64_t)l.fence_blocks * BLOCK_SIZE);
        check_filled("t");
    }
    drive_test_damage("t", l.table_offset[0], BLOCK_SIZE);
    drive_test_damage("t", l.table_offset[1], BLOCK_SIZE);
    CHECK_EQ(try_open("t", test_pool, 0), ERR_DRIVE_DAMAGED);
    CHECK(says("both copies"));
}

static void damaged_table_block_is_taken_from_the_other_copy(void **state)
{
    (void)state;
    slabs_written = DRIVE_TABLE_ENTRIES + 10;
    drive_test_run(tables_body, NULL);
}

static void superblock_body(void *arg) fiber_role_assumed
{
    (void)arg;
    fill("s");
    drive_test_damage("s", 0, BLOCK_SIZE);
    check_filled("s");
    drive_test_damage("s", 64 * MIB - BLOCK_SIZE, 512);
    check_filled("s");
    drive_test_damage("s", 1024, 512);
    check_filled("s");
    drive_test_damage("s", 100, 1);
    drive_test_damage("s", 64 * MIB - BLOCK_SIZE + 100, 1);
    CHECK_EQ(try_open("s", test_pool, 0), ERR_DRIVE_DAMAGED);
    CHECK(says("both superblocks"));
}

static void damaged_superblock_is_taken_from_the_other_end(void **state)
{
    (void)state;
    slabs_written = 3;
    drive_test_run(superblock_body, NULL);
}

/* ---- A lock that outlives its process ---- */

static struct drive_home *lingering;

static void letting_go_fiber(void *arg) fiber_role_assumed
{
    (void)arg;
    if (fiber_sleep(300 * NSEC_PER_MSEC) == 0)
        drive_home_close(lingering);
}

static void linger_body(void *arg) fiber_role_assumed
{
    drive_test_format(arg);
    lingering = drive_test_open(arg);
    CHECK_EQ(fiber_spawn("letting-go", letting_go_fiber, NULL), 0);
    CHECK_EQ(try_open(arg, test_pool, 0), 0);
}

static void open_waits_a_little_for_a_lock_that_is_going(void **state)
{
    (void)state;
    drive_test_run(linger_body, "linger");
}

/* ---- Inspection ---- */

static uint64_t hash_of(const char *name)
{
    uint64_t h = 0;
    uint8_t *block = malloc(MIB);
    int fd = open(drive_test_path(name), O_RDONLY | O_CLOEXEC);
    assert(fd >= 0 && block != NULL);
    ssize_t n;
    while ((n = read(fd, block, MIB)) > 0)
        h = hash64(block, (size_t)n, h);
    close(fd);
    free(block);
    return h;
}

static void inspect_body(void *arg) fiber_role_assumed
{
    (void)arg;
    fill("i");
    struct drive_home *h = drive_test_open("i");
    struct drive_layout l = h->sb.layout;
    uint64_t incarnation = h->incarnation;
    drive_home_close(h);
    drive_test_damage("i", 0, 512);
    drive_test_damage("i", l.table_offset[1], 2 * BLOCK_SIZE);
    drive_test_damage("i", l.fence_offset[0], BLOCK_SIZE);
    uint64_t before = hash_of("i");

    CHECK_EQ(drive_home_inspect(drive_test_path("i"), test_pool, 0, &h, why, sizeof(why)), 0);
    CHECK_EQ(try_open("i", test_pool, 0), ERR_DRIVE_IN_USE);
    struct drive_condition c;
    drive_home_condition(h, &c);
    CHECK(c.superblock_damaged[0] && !c.superblock_damaged[1]);
    CHECK(c.table_blocks_damaged[0] == 0 && c.table_blocks_damaged[1] == 2);
    CHECK(c.fence_blocks_damaged[0] == 1 && c.fence_blocks_damaged[1] == 0);
    CHECK(c.closed_in_order && c.blocks_behind == 0);

    struct drive *d = NULL;
    struct drive_session *s = NULL;
    CHECK_EQ(drive_attach(h, &d), 0);
    CHECK_EQ(drive_session_open(d, drive_test_volume(1), 1, 1, &s), 0); /* an epoch of the past will do */
    CHECK_EQ(drive_session_incarnation(s), incarnation);
    uint32_t slab = UINT32_MAX, none;
    uint8_t value;
    CHECK_EQ(drive_slab_alloc(s, 5, 0, &slab), 0); /* is there */
    CHECK_EQ(drive_test_read(s, slab, 0, &value), 0);
    CHECK_EQ(drive_test_write(s, slab, 0, 1), ERR_DRIVE_READ_ONLY);
    CHECK_EQ(drive_flush(s), 0);
    CHECK_EQ(drive_slab_alloc(s, 5, 1, &none), ERR_DRIVE_READ_ONLY);
    CHECK_EQ(drive_slab_free(s, slab), ERR_DRIVE_READ_ONLY);
    CHECK_EQ(drive_volume_purge(d, drive_test_volume(1), 100), ERR_DRIVE_READ_ONLY);
    struct drive_session *other = NULL; /* of a volume that this drive never saw */
    CHECK_EQ(drive_session_open(d, drive_test_volume(9), 1, 1, &other), 0);
    drive_session_close(other);
    drive_session_close(s);
    drive_detach(d);
    drive_home_close(h);
    CHECK(hash_of("i") == before);
    check_filled("i"); /* and the next real open repairs it */
}

static void inspection_reports_damage_and_never_writes(void **state)
{
    (void)state;
    slabs_written = 6;
    drive_test_run(inspect_body, NULL);
}

/* ---- A crash at any point ---- */

/* A crash between the two copies: whichever write it was, the state is the one before or the one after, and
 * what was answered before is there. */
static uint32_t crash_after;
static bool crashed;

static void sweep_body(void *arg) fiber_role_assumed
{
    (void)arg;
    drive_test_format("w");
    struct drive_home *h = drive_test_open("w");
    struct drive *d = NULL;
    struct drive_session *s = NULL;
    CHECK_EQ(drive_attach(h, &d), 0);
    faults.fail_op = FILE_WRITE;
    faults.fail = ERR_SYS(EIO);
    faults.fail_after = crash_after;
    int opened = drive_session_open(d, drive_test_volume(1), 3, 1, &s);
    uint32_t slab[4], got = 0;
    while (opened == 0 && got < ARRAY_SIZE(slab) && drive_slab_alloc(s, got, 0, &slab[got]) == 0)
        got++;
    int freed = opened == 0 && got == ARRAY_SIZE(slab) ? drive_slab_free(s, slab[0]) : ERR_DRIVE_GONE;
    crashed = drive_get_state(d) != DRIVE_OK || freed != 0;
    faults.fail = 0;
    if (s != NULL)
        drive_session_close(s);
    drive_detach(d);
    drive_home_close(h);

    h = drive_test_open("w");
    CHECK_EQ(drive_attach(h, &d), 0);
    struct slab_entry *list;
    uint32_t count = 0;
    CHECK_EQ(drive_slab_list(d, drive_test_volume(1), &list, &count), 0);
    CHECK(count >= (freed == 0 ? got - 1 : got == ARRAY_SIZE(slab) ? got - 1 : got));
    CHECK(count <= got + 1);
    free(list);
    s = NULL;
    if (opened == 0)
        CHECK_EQ(drive_session_open(d, drive_test_volume(1), 2, 1, &s), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_session_open(d, drive_test_volume(1), 3, 1, &s), 0);
    uint32_t again;
    for (uint32_t i = freed == 0 ? 1 : 0; i < got; i++) {
        CHECK_EQ(drive_slab_alloc(s, i, 0, &again), 0);
        CHECK(again == slab[i] || (i == 0 && got == ARRAY_SIZE(slab)));
    }
    if (s != NULL)
        drive_session_close(s);
    drive_detach(d);
    drive_home_close(h);
    CHECK_EQ(unlink(drive_test_path("w")), 0);
}

static void failed_write_at_any_point_loses_nothing_that_was_answered(void **state)
{
    (void)state;
    crashed = true;
    for (crash_after = 0; crashed && crash_after < 100; crash_after++)
        drive_test_run(sweep_body, NULL);
    assert_in_range(crash_after, 10, 99); /* it was a sweep, and it got through */
}

/* ---- Failed I/O while opening and formatting ---- */

static enum file_op sweep_op;
static uint32_t sweep_after;
static int sweep_result;

static void open_sweep_body(void *arg) fiber_role_assumed
{
    (void)arg;
    fill("o");
    faults.fail_op = sweep_op;
    faults.fail = ERR_SYS(EIO);
    faults.fail_after = sweep_after;
    struct drive_home *h = NULL;
    why[0] = '\0';
    sweep_result = drive_home_open(drive_test_path("o"), test_pool, 0, &h, why, sizeof(why));
    if (sweep_result != 0)
        CHECK(why[0] != '\0');
    else
        drive_home_close(h); /* which may fail to leave its mark; the next open takes it as a crash */
    faults.fail = 0;
    check_filled("o");
    CHECK_EQ(unlink(drive_test_path("o")), 0);
}

static void failed_io_while_opening_costs_at_most_this_attempt(void **state)
{
    (void)state;
    uint32_t refused = 0;
    slabs_written = 3;
    for (sweep_after = 0; sweep_after < 12; sweep_after++) {
        sweep_op = FILE_READ;
        drive_test_run(open_sweep_body, NULL);
        refused += sweep_result != 0;
        sweep_op = FILE_WRITE;
        drive_test_run(open_sweep_body, NULL);
        refused += sweep_result != 0;
    }
    assert_in_range(refused, 1, 23);
}

static void format_sweep_body(void *arg) fiber_role_assumed
{
    (void)arg;
    /* An old drive is formatted again, and that fails half-way. */
    fill("x");
    faults.fail_op = FILE_WRITE;
    faults.fail = ERR_SYS(EIO);
    faults.fail_after = sweep_after;
    struct drive_format_options o = {
        .path = drive_test_path("x"), .pool_id = test_pool, .slab_bytes = TEST_SLAB, .force = true};
    struct uuid id;
    sweep_result = drive_format(&o, &id, why, sizeof(why));
    faults.fail = 0;
    struct drive_home *h = NULL;
    int err = drive_home_open(drive_test_path("x"), test_pool, 0, &h, why, sizeof(why));
    CHECK(sweep_result != 0 || err == 0);
    if (err == 0) { /* then it is wholly new, or wholly old */
        CHECK(h->slabs_free == h->sb.layout.slabs_total ||
              h->slabs_free == h->sb.layout.slabs_total - slabs_written);
        drive_home_close(h);
    }
    CHECK_EQ(unlink(drive_test_path("x")), 0);
}

static void format_that_fails_half_way_leaves_no_half_drive(void **state)
{
    (void)state;
    slabs_written = 3;
    sweep_result = -1;
    for (sweep_after = 0; sweep_result != 0 && sweep_after < 50; sweep_after++)
        drive_test_run(format_sweep_body, NULL);
    assert_in_range(sweep_after, 6, 49);
}

/* ---- A block device, where the test may make one ---- */

static char loop_device[64];

static bool loop_make(void)
{
    char command[256];
    snprintf(command, sizeof(command), "truncate -s 70M %s && losetup -f --show %s 2>/dev/null",
             drive_test_path("loop"), drive_test_path("loop"));
    FILE *p = popen(command, "re");
    bool made = p != NULL && fgets(loop_device, sizeof(loop_device), p) != NULL;
    if (p != NULL)
        made = pclose(p) == 0 && made;
    loop_device[strcspn(loop_device, "\n")] = '\0';
    return made;
}

static void device_body(void *arg) fiber_role_assumed
{
    (void)arg;
    struct drive_format_options o = {
        .path = loop_device, .pool_id = test_pool, .slab_bytes = TEST_SLAB, .size_bytes = TIB};
    struct uuid id;
    CHECK_EQ(drive_format(&o, &id, why, sizeof(why)), ERR_DRIVE_TOO_SMALL);
    CHECK(says("has only"));
    o.size_bytes = 0;
    CHECK_EQ(drive_format(&o, &id, why, sizeof(why)), 0);
    struct drive_home *h = NULL;
    CHECK_EQ(drive_home_open(loop_device, test_pool, 0, &h, why, sizeof(why)), 0);
    CHECK(!h->needs_prepare);
    int fd = open(loop_device, O_RDWR | O_EXCL | O_CLOEXEC);
    CHECK(fd < 0 && errno == EBUSY); /* nobody mounts it meanwhile */
    struct drive *d = NULL;
    struct drive_session *s = NULL;
    uint32_t slab;
    uint8_t value = 0;
    CHECK_EQ(drive_attach(h, &d), 0);
    CHECK_EQ(drive_session_open(d, drive_test_volume(1), 1, 1, &s), 0);
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    CHECK_EQ(drive_test_write(s, slab, 1, 0x5a), 0);
    CHECK_EQ(drive_test_read(s, slab, 1, &value), 0);
    CHECK_EQ(value, 0x5a);
    CHECK_EQ(drive_slab_free(s, slab), 0);
    for (int i = 0; i < 200 && faults.discards == 0; i++)
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    CHECK_EQ(faults.discards, 1);
    drive_session_close(s);
    drive_detach(d);
    drive_home_close(h);

    fd = open(loop_device, O_RDWR | O_EXCL | O_CLOEXEC); /* as a mount does */
    CHECK(fd >= 0);
    CHECK_EQ(drive_home_open(loop_device, test_pool, 0, &h, why, sizeof(why)), ERR_DRIVE_IN_USE);
    o.force = true;
    CHECK_EQ(drive_format(&o, &id, why, sizeof(why)), ERR_DRIVE_IN_USE);
    CHECK(says("mounted or in use"));
    if (fd >= 0)
        close(fd);
}

static void block_device_is_used_unless_something_else_has_it(void **state)
{
    (void)state;
    if (!loop_make())
        skip(); /* needs root and a loop device */
    drive_test_run(device_body, NULL);
    char command[128];
    snprintf(command, sizeof(command), "losetup -d %s", loop_device);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unfit_drives_are_refused_with_advice),
        cmocka_unit_test(format_refuses_what_is_not_empty_unless_forced),
        cmocka_unit_test(drive_on_a_device_that_grew_still_opens),
        cmocka_unit_test(damaged_table_block_is_taken_from_the_other_copy),
        cmocka_unit_test(damaged_superblock_is_taken_from_the_other_end),
        cmocka_unit_test(open_waits_a_little_for_a_lock_that_is_going),
        cmocka_unit_test(inspection_reports_damage_and_never_writes),
        cmocka_unit_test(failed_write_at_any_point_loses_nothing_that_was_answered),
        cmocka_unit_test(failed_io_while_opening_costs_at_most_this_attempt),
        cmocka_unit_test(format_that_fails_half_way_leaves_no_half_drive),
        cmocka_unit_test(block_device_is_used_unless_something_else_has_it),
    };
    return cmocka_run_group_tests_name("drive-open", tests, drive_test_setup, drive_test_teardown);
}
