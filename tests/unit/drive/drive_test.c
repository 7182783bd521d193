/* SPDX-License-Identifier: Apache-2.0 */
#include "drive_test.h"

#include "runtime/world_real.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

const struct uuid test_pool = {{0x70, 0x6f, 0x6f, 0x6c, 1}};
struct drive_test_faults faults;

static char folder[64];
static uint32_t failures;
static struct list held;
static struct world_ops test_ops;

bool drive_test_check(bool ok, const char *what, const char *file, int line)
{
    if (!ok) {
        failures++;
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    }
    return ok;
}

bool drive_test_check_equal(long long a, long long b, const char *what, const char *file, int line)
{
    if (a != b) {
        failures++;
        fprintf(stderr, "%s:%d: does not hold: %s (%lld, %lld)\n", file, line, what, a, b);
    }
    return a == b;
}

/* ---- The world with faults ---- */

struct failing {
    struct message message;
    struct file_io *io;
    int result;
};

static void fail_arrived(struct message *m)
{
    struct failing *f = CONTAINER_OF(m, struct failing, message);
    struct file_io *io = f->io;
    int result = f->result;
    free(f);
    file_io_done(io, result);
}

static void fault_submit(struct file_io *io)
{
    if (io->op == FILE_SYNC)
        faults.syncs++;
    if (io->op == FILE_WRITE)
        faults.writes++;
    if (io->op == FILE_DISCARD)
        faults.discards++;
    if (faults.fail != 0 && io->op == faults.fail_op && faults.fail_after-- == 0) {
        struct failing *f = malloc(sizeof(*f));
        assert(f != NULL);
        *f = (struct failing){.message.fn = fail_arrived, .io = io, .result = faults.fail};
        faults.fail_after = 0;
        reactor_post(reactor_current(), &f->message);
        return;
    }
    if (faults.hold && io->op == faults.hold_op && io->offset >= faults.hold_from) {
        list_append(&held, &io->link);
        faults.held++;
        return;
    }
    world_real_ops.file_submit(io);
}

void drive_test_release(void)
{
    struct list *it;
    faults.hold = false;
    while ((it = list_pop(&held)) != NULL) {
        faults.held--;
        world_real_ops.file_submit(CONTAINER_OF(it, struct file_io, link));
    }
}

void drive_test_run(void (*body)(void *arg), void *arg)
{
    test_ops = world_real_ops;
    test_ops.file_submit = fault_submit;
    faults = (struct drive_test_faults){0};
    list_init(&held);
    failures = 0;
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {.world = &test_ops, .budget = &budget, .chunk_bytes = 4 * MIB};
    struct reactor *r;
    assert_int_equal(reactor_new(&o, &r), 0);
    assert_int_equal(reactor_spawn(r, "test", body, arg), 0);
    reactor_stop(r); /* it ends when the last fiber has */
    int err = reactor_run(r);
    reactor_free(r);
    assert_int_equal(err, 0);
    assert_int_equal(failures, 0);
}

/* ---- Files ---- */

int drive_test_setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test-drive-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

int drive_test_teardown(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *drive_test_path(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *p = paths[next++ % ARRAY_SIZE(paths)];
    snprintf(p, sizeof(paths[0]), "%s/%s", folder, name);
    return p;
}

void drive_test_damage(const char *name, uint64_t offset, uint64_t len)
{
    uint8_t rubbish[BLOCK_SIZE];
    memset(rubbish, 0xa5, sizeof(rubbish));
    int fd = open(drive_test_path(name), O_WRONLY | O_CLOEXEC);
    assert(fd >= 0);
    for (uint64_t at = 0; at < len; at += BLOCK_SIZE) {
        ssize_t n = pwrite(fd, rubbish, MIN(sizeof(rubbish), len - at), (off_t)(offset + at));
        assert(n > 0);
    }
    close(fd);
}

struct uuid drive_test_format(const char *name)
{
    struct drive_format_options o = {
        .path = drive_test_path(name), .pool_id = test_pool, .size_bytes = 64 * MIB, .slab_bytes = TEST_SLAB};
    struct uuid id = {{0}};
    char why[256] = "";
    if (!CHECK_EQ(drive_format(&o, &id, why, sizeof(why)), 0))
        fprintf(stderr, "format: %s\n", why);
    return id;
}

struct drive_home *drive_test_open(const char *name)
{
    struct drive_home *h = NULL;
    char why[256] = "";
    if (!CHECK_EQ(drive_home_open(drive_test_path(name), test_pool, 0, &h, why, sizeof(why)), 0))
        fprintf(stderr, "open: %s\n", why);
    return h;
}

struct uuid drive_test_volume(uint8_t n)
{
    return (struct uuid){{0x76, n, 1}};
}

static int transfer(struct drive_session *s, enum drive_op op, uint32_t slab, uint32_t block, uint8_t *data)
    may_yield
{
    struct iovec iov = {data, BLOCK_SIZE};
    struct drive_io io = {
        .session = s, .op = op, .slab = slab, .block = block, .blocks = 1, .iov = &iov, .iov_count = 1};
    return drive_do(&io);
}

int drive_test_write(struct drive_session *s, uint32_t slab, uint32_t block, uint8_t value)
{
    uint8_t *data = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    assert(data != NULL);
    memset(data, value, BLOCK_SIZE);
    int err = transfer(s, DRIVE_WRITE, slab, block, data);
    free(data);
    return err;
}

int drive_test_read(struct drive_session *s, uint32_t slab, uint32_t block, uint8_t *ret_value)
{
    uint8_t *data = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    assert(data != NULL);
    int err = transfer(s, DRIVE_READ, slab, block, data);
    if (err == 0) {
        *ret_value = data[0];
        CHECK(memcmp(data, data + 1, BLOCK_SIZE - 1) == 0);
    }
    free(data);
    return err;
}
