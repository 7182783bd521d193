/* SPDX-License-Identifier: Apache-2.0 */
/* The world that writes nothing, on real files. Fibers record, the tests assert afterwards. */
#include "runtime/error.h"
#include "runtime/world_overlay.h"
#include "runtime/world_real.h"

#include "runtime/reactor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BLOCKS 64u
#define FILE_BYTES  (FILE_BLOCKS * BLOCK_SIZE)

struct run {
    char dir[64], path[96], small[96];
    struct world_overlay *overlay;
    uint8_t before[FILE_BYTES];
    void (*body)(struct run *t);
    uint32_t wrong; /* what a body found not to be so */
};

/* In a fiber: note it, do not jump out. */
#define HOLDS(t, condition)                                                 \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            (t)->wrong++;                                                   \
        }                                                                   \
    } while (0)

static void fiber_main(void *arg)
{
    struct run *t = arg;
    t->body(t);
}

static void put_file(const char *path, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    close(fd);
}

static void on_reactor(struct run *t, const struct world_ops *world, void *ctx)
{
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {.world = world, .world_ctx = ctx, .budget = &budget};
    struct reactor *r;
    assert_int_equal(reactor_new(&o, &r), 0);
    assert_int_equal(reactor_spawn(r, "test", fiber_main, t), 0);
    reactor_stop(r);
    assert_int_equal(reactor_run(r), 0);
    reactor_free(r);
}

/* Runs body on an overlay over a file of noise; then the folder must be as it was. */
static void run_limited(void (*body)(struct run *t), uint64_t limit_bytes)
{
    struct run *t = calloc(1, sizeof(*t));
    uint8_t *after = malloc(FILE_BYTES);
    char text[16] = "";
    assert_non_null(t);
    assert_non_null(after);
    snprintf(t->dir, sizeof(t->dir), "/var/tmp/ashlar-overlay.XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    snprintf(t->path, sizeof(t->path), "%s/file", t->dir);
    snprintf(t->small, sizeof(t->small), "%s/small", t->dir);
    for (size_t i = 0; i < FILE_BYTES; i++)
        t->before[i] = (uint8_t)(i * 2654435761u >> 13);
    put_file(t->path, t->before, FILE_BYTES);
    put_file(t->small, "first", 5);
    assert_int_equal(chmod(t->path, 0400), 0); /* it must not even ask for more */
    t->body = body;
    assert_int_equal(world_overlay_new(limit_bytes, &t->overlay), 0);
    on_reactor(t, world_overlay_ops(t->overlay), t->overlay);
    world_overlay_free(t->overlay);

    int fd = open(t->path, O_RDONLY);
    assert_int_equal(read(fd, after, FILE_BYTES), FILE_BYTES);
    assert_memory_equal(after, t->before, FILE_BYTES);
    close(fd);
    fd = open(t->small, O_RDONLY);
    assert_int_equal(read(fd, text, sizeof(text)), 5);
    assert_string_equal(text, "first");
    close(fd);
    assert_int_equal(t->wrong, 0);
    unlink(t->path);
    unlink(t->small);
    assert_int_equal(rmdir(t->dir), 0); /* nothing else was left there */
    free(after);
    free(t);
}
static void run(void (*body)(struct run *t))
{
    run_limited(body, 16 * MIB);
}

static uint8_t *blocks_alloc(uint32_t n, int fill)
{
    uint8_t *p = aligned_alloc(BLOCK_SIZE, (size_t)n * BLOCK_SIZE);
    if (p != NULL)
        memset(p, fill, (size_t)n * BLOCK_SIZE);
    return p;
}

/* ---- Blocks ---- */

static void writes_body(struct run *t) may_yield
{
    struct file *a = NULL, *b = NULL;
    uint8_t *w = blocks_alloc(4, 0x5a), *r = blocks_alloc(8, 0);
    uint32_t flags = FILE_OPEN_WRITE | FILE_OPEN_DIRECT;
    HOLDS(t, file_open(t->path, flags, &a) == 0 && file_open(t->path, flags, &b) == 0);
    HOLDS(t, file_write(a, 3 * BLOCK_SIZE, w, 4 * BLOCK_SIZE) == 0);
    HOLDS(t, file_sync(a) == 0);
    /* Seen by both handles, between what the file has. */
    for (int i = 0; i < 2; i++) {
        HOLDS(t, file_read(i == 0 ? a : b, 2 * BLOCK_SIZE, r, 8 * BLOCK_SIZE) == 0);
        HOLDS(t, memcmp(r, t->before + 2 * BLOCK_SIZE, BLOCK_SIZE) == 0);
        HOLDS(t, memcmp(r + BLOCK_SIZE, w, 4 * BLOCK_SIZE) == 0);
        HOLDS(t, memcmp(r + 5 * BLOCK_SIZE, t->before + 7 * BLOCK_SIZE, 3 * BLOCK_SIZE) == 0);
    }
    /* The handles' end does not end it. */
    file_close(a);
    file_close(b);
    HOLDS(t, file_open(t->path, FILE_OPEN_DIRECT, &a) == 0);
    HOLDS(t, file_read(a, 3 * BLOCK_SIZE, r, 4 * BLOCK_SIZE) == 0 && memcmp(r, w, 4 * BLOCK_SIZE) == 0);
    file_close(a);
    free(w);
    free(r);
}
static void writes_are_seen_by_all_handles_and_the_file_stays(void **state)
{
    run(writes_body);
}

static void vectors_body(struct run *t) may_yield
{
    struct file *f = NULL;
    uint8_t *w = blocks_alloc(3, 0), *r = blocks_alloc(3, 0);
    for (uint32_t i = 0; i < 3 * BLOCK_SIZE; i++)
        w[i] = (uint8_t)(i % 251);
    /* Pieces that cut blocks in two. */
    struct iovec in[4] = {{w, 512},
                          {w + 512, BLOCK_SIZE},
                          {w + 512 + BLOCK_SIZE, BLOCK_SIZE},
                          {w + 512 + 2 * BLOCK_SIZE, BLOCK_SIZE - 512}};
    struct iovec out[3] = {
        {r, BLOCK_SIZE + 1024}, {r + BLOCK_SIZE + 1024, 512}, {r + BLOCK_SIZE + 1536, 2 * BLOCK_SIZE - 1536}};
    struct file_io wr = {
        .op = FILE_WRITE, .offset = BLOCK_SIZE, .len = 3 * BLOCK_SIZE, .iov = in, .iov_count = 4};
    struct file_io rd = {
        .op = FILE_READ, .offset = BLOCK_SIZE, .len = 3 * BLOCK_SIZE, .iov = out, .iov_count = 3};
    HOLDS(t, file_open(t->path, FILE_OPEN_WRITE | FILE_OPEN_DIRECT, &f) == 0);
    wr.file = rd.file = f;
    HOLDS(t, file_do(&wr) == 0);
    HOLDS(t, file_do(&rd) == 0);
    HOLDS(t, memcmp(w, r, 3 * BLOCK_SIZE) == 0);
    file_close(f);
    free(w);
    free(r);
}
static void blocks_may_come_in_pieces(void **state)
{
    run(vectors_body);
}

static void zeroes_body(struct run *t) may_yield
{
    struct file *f = NULL;
    uint8_t *r = blocks_alloc(FILE_BLOCKS, 1);
    struct file_io io = {.op = FILE_ZERO, .offset = 0, .len = FILE_BYTES};
    HOLDS(t, file_open(t->path, FILE_OPEN_WRITE | FILE_OPEN_DIRECT, &f) == 0);
    io.file = f;
    HOLDS(t, file_do(&io) == 0);
    HOLDS(t, file_read(f, 0, r, FILE_BYTES) == 0 && r[0] == 0 && memcmp(r, r + 1, FILE_BYTES - 1) == 0);
    /* Zeroes take no memory of their own. */
    HOLDS(t, world_overlay_used_bytes(t->overlay) < FILE_BYTES);
    /* After a discard anything may be there; here it is the file. */
    uint64_t used = world_overlay_used_bytes(t->overlay);
    uint8_t *w = blocks_alloc(1, 7);
    HOLDS(t, file_write(f, 0, w, BLOCK_SIZE) == 0);
    HOLDS(t, world_overlay_used_bytes(t->overlay) == used + BLOCK_SIZE);
    io.op = FILE_DISCARD;
    HOLDS(t, file_do(&io) == 0);
    HOLDS(t, world_overlay_used_bytes(t->overlay) == used);
    file_close(f);
    free(r);
    free(w);
}
static void zeroes_and_discards_keep_memory_small(void **state)
{
    run(zeroes_body);
}

static void full_body(struct run *t) may_yield
{
    struct file *f = NULL;
    uint8_t *w = blocks_alloc(8, 9);
    HOLDS(t, file_open(t->path, FILE_OPEN_WRITE | FILE_OPEN_DIRECT, &f) == 0);
    HOLDS(t, file_write(f, 0, w, BLOCK_SIZE) == 0);
    HOLDS(t, !world_overlay_full(t->overlay));
    HOLDS(t, file_write(f, 0, w, 8 * BLOCK_SIZE) == ERR_NO_MEMORY);
    HOLDS(t, world_overlay_full(t->overlay));
    HOLDS(t, world_overlay_used_bytes(t->overlay) <= 28 * KIB);
    file_close(f);
    free(w);
}
static void a_full_overlay_refuses_writes_and_says_so(void **state)
{
    run_limited(full_body, 28 * KIB);
}

static void refuse_body(struct run *t) may_yield
{
    struct file *f = NULL;
    char other[128];
    snprintf(other, sizeof(other), "%s/new", t->dir);
    HOLDS(t, file_open(other, FILE_OPEN_WRITE | FILE_OPEN_CREATE, &f) == ERR_SYS(EROFS));
    HOLDS(t, file_open(other, FILE_OPEN_WRITE, &f) == ERR_SYS(ENOENT));
    HOLDS(t, file_open(t->path, FILE_OPEN_WRITE, &f) == 0);
    HOLDS(t, file_resize(f, 0) == ERR_SYS(EROFS));
    HOLDS(t, file_write(f, 100, "x", 1) == ERR_INVALID); /* whole blocks only */
    file_close(f);
}
static void files_are_neither_made_nor_resized(void **state)
{
    run(refuse_body);
}

/* ---- Small files ---- */

static void small_body(struct run *t) may_yield
{
    char *data = NULL;
    size_t len = 0;
    HOLDS(t, file_read_all(t->small, 100, &data, &len) == 0 && len == 5 && memcmp(data, "first", 5) == 0);
    free(data);
    HOLDS(t, file_replace(t->small, "another", 7) == 0);
    HOLDS(t, file_read_all(t->small, 100, &data, &len) == 0 && len == 7 && strcmp(data, "another") == 0);
    free(data);
    HOLDS(t, file_read_all(t->small, 6, &data, &len) == ERR_SYS(EFBIG));
    HOLDS(t, file_unlink(t->small) == 0);
    HOLDS(t, file_read_all(t->small, 100, &data, &len) == ERR_SYS(ENOENT));
}
static void small_files_are_replaced_in_memory(void **state)
{
    run(small_body);
}

/* ---- Locks ---- */

static void hold_body(struct run *t) may_yield
{
    struct file *f = NULL, *again = NULL;
    uint32_t flags = FILE_OPEN_WRITE | FILE_OPEN_LOCK;
    HOLDS(t, file_open(t->path, flags, &f) == 0);
    HOLDS(t, file_open(t->path, flags, &again) == 0); /* two looks at once */
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(t->small, O_RDWR);
    HOLDS(t, fcntl(fd, F_OFD_SETLK, &l) == 0);
    close(fd);
    chmod(t->path, 0600);
    fd = open(t->path, O_RDWR);
    HOLDS(t, fd >= 0 && fcntl(fd, F_OFD_SETLK, &l) != 0); /* no writer meanwhile */
    file_close(f);
    file_close(again);
    HOLDS(t, fcntl(fd, F_OFD_SETLK, &l) == 0);
    HOLDS(t, file_open(t->path, flags, &f) == ERR_SYS(EBUSY)); /* a writer is there */
    close(fd);
}
static void its_locks_keep_writers_out_and_are_shared(void **state)
{
    run(hold_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_are_seen_by_all_handles_and_the_file_stays),
        cmocka_unit_test(blocks_may_come_in_pieces),
        cmocka_unit_test(zeroes_and_discards_keep_memory_small),
        cmocka_unit_test(a_full_overlay_refuses_writes_and_says_so),
        cmocka_unit_test(files_are_neither_made_nor_resized),
        cmocka_unit_test(small_files_are_replaced_in_memory),
        cmocka_unit_test(its_locks_keep_writers_out_and_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
