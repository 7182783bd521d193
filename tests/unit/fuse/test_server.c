/* SPDX-License-Identifier: Apache-2.0 */
/* The node's side over a network in memory and in virtual time, with a file system in memory; the mounts are
 * written by hand here, so that they can do what no good one does. */
#include "fake_fs.h"
#include "loop_world.h"
#include "protocols/fuse/fuse_server.h"
#include "protocols/fuse/fuse_wire.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#define ADDRESS "unix:/fs.sock"
#define SOON    (reactor_now_ns() + 5 * NSEC_PER_SEC)

/* cmocka must not jump out of a fiber: failures are noted, and asserted outside. */
static int failures;
#define CHECK(x)                                                                  \
    do {                                                                          \
        if (!(x)) {                                                               \
            failures++;                                                           \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #x); \
        }                                                                         \
    } while (0)
#define CHECK_EQUAL(a, b)                                                                               \
    do {                                                                                                \
        long long check_a = (long long)(a), check_b = (long long)(b);                                   \
        if (check_a != check_b) {                                                                       \
            failures++;                                                                                 \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #a, check_a, check_b); \
        }                                                                                               \
    } while (0)

static struct loop_world world;
static struct fs *fs;
static struct fuse_server *server;
static struct fuse_limits limits;
static uint64_t delay_ns;

/* ---- A mount ---- */

struct mount {
    struct stream *stream;
    uint8_t session[16];
    uint64_t unique;
    uint32_t welcome_error, welcome_flags;
    uint32_t notes[4]; /* seen, by kind */
    uint64_t note_ino;
};
struct answer {
    uint64_t unique;
    uint32_t error, len;
    uint8_t bytes[2 * MIB];
};
static struct answer answer; /* of the last receive() */

MUST_CHECK static int mount_hello(struct mount *m, uint8_t id, const char *name) may_yield
{
    struct wire_hello h = {.version = le32_make(WIRE_VERSION),
                           .name_len = le32_make((uint32_t)strlen(name)),
                           .label_len = le32_make(4),
                           .session = {id}};
    struct wire_welcome w;
    memset(m, 0, sizeof(*m));
    memcpy(h.magic, WIRE_MAGIC, WIRE_MAGIC_LEN);
    memcpy(m->session, h.session, 16);
    int err = stream_connect(ADDRESS, SOON, &m->stream);
    if (err != 0)
        return err;
    struct iovec iov[] = {
        {&h, sizeof(h)}, {(void *)(uintptr_t)name, strlen(name)}, {(void *)(uintptr_t) "test", 4}};
    err = stream_sendv(m->stream, iov, 3, SOON);
    if (err == 0)
        err = stream_recv_all(m->stream, &w, sizeof(w), SOON);
    if (err == 0) {
        m->welcome_error = le32_get(w.error);
        m->welcome_flags = le32_get(w.flags);
    }
    return err;
}

static void post_with(struct mount *m, struct fuse_request *q, const void *data, uint32_t len) may_yield
{
    static uint8_t bytes[WIRE_SMALL_MAX];
    if (q->unique == 0 && q->op != WIRE_REOPEN && q->op != WIRE_REOPEN_DONE && q->op != WIRE_RELEASE)
        q->unique = ++m->unique;
    struct iovec iov[] = {{bytes, fuse_request_encode(q, bytes)}, {(void *)(uintptr_t)data, len}};
    CHECK_EQUAL(stream_sendv(m->stream, iov, len > 0 ? 2 : 1, SOON), 0);
}

static void post(struct mount *m, struct fuse_request q) may_yield
{
    post_with(m, &q, NULL, 0);
}

/* The next reply, past notes, which are counted. */
MUST_CHECK static int receive(struct mount *m, uint64_t deadline_ns) may_yield
{
    for (;;) {
        struct wire_reply h;
        struct wire_note_inode n;
        int err = stream_recv_all(m->stream, &h, sizeof(h), deadline_ns);
        if (err != 0)
            return err;
        answer.unique = le64_get(h.unique);
        answer.error = le32_get(h.error);
        answer.len = le32_get(h.len) - (uint32_t)sizeof(h);
        CHECK(answer.len <= sizeof(answer.bytes));
        err = answer.len > 0 ? stream_recv_all(m->stream, answer.bytes, answer.len, SOON) : 0;
        if (err != 0)
            return err;
        if (answer.unique != 0)
            return 0;
        CHECK(answer.error >= 1 && answer.error <= 3);
        m->notes[answer.error & 3]++;
        if (answer.error == WIRE_NOTE_INODE) {
            memcpy(&n, answer.bytes, sizeof(n));
            m->note_ino = le64_get(n.ino);
        }
    }
}

/* One request and its reply: the errno. */
static uint32_t ask_with(struct mount *m, struct fuse_request q, const void *data, uint32_t len) may_yield
{
    post_with(m, &q, data, len);
    int err = receive(m, SOON);
    CHECK_EQUAL(err, 0);
    CHECK_EQUAL(answer.unique, q.unique);
    return err == 0 ? answer.error : 9999;
}

static uint32_t ask(struct mount *m, struct fuse_request q) may_yield
{
    return ask_with(m, q, NULL, 0);
}

static uint64_t answered_ino(void)
{
    struct wire_attr a;
    CHECK_EQUAL(answer.len, sizeof(a));
    memcpy(&a, answer.bytes, sizeof(a));
    return le64_get(a.ino);
}

static struct wire_text text(const char *s)
{
    return (struct wire_text){s, (uint32_t)strlen(s)};
}

static struct fuse_request create(const char *name)
{
    return (struct fuse_request){
        .op = WIRE_MAKE,
        .ino = FS_INO_ROOT,
        .name = text(name),
        .make = {.mode = S_IFREG | 0644, .flags = WIRE_MAKE_OPEN, .open = WIRE_OPEN_READ | WIRE_OPEN_WRITE}};
}

static struct fuse_request plain(uint16_t op, uint64_t ino)
{
    return (struct fuse_request){.op = op, .ino = ino};
}

static struct fuse_request named(uint16_t op, uint64_t ino, const char *name)
{
    return (struct fuse_request){.op = op, .ino = ino, .name = text(name)};
}

static struct fuse_request range(uint16_t op, uint64_t ino, uint64_t offset, uint32_t len)
{
    return (struct fuse_request){.op = op, .ino = ino, .range = {.offset = offset, .len = len}};
}

static struct fuse_request locking(uint64_t ino, uint64_t owner, uint32_t type, bool wait)
{
    return (struct fuse_request){
        .op = WIRE_LOCK_SET, .ino = ino, .lock = {.owner = owner, .type = type, .wait = wait}};
}

static struct mount mount_up(uint8_t id) may_yield
{
    struct mount m;
    CHECK_EQUAL(mount_hello(&m, id, "home"), 0);
    CHECK_EQUAL(m.welcome_error, 0);
    post(&m, plain(WIRE_REOPEN_DONE, 0));
    return m;
}

static void mount_down(struct mount *m) may_yield
{
    stream_close(m->stream);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
}

/* ---- The fixture ---- */

static void node_up(void) may_yield
{
    struct fuse_server_options o = {.address = ADDRESS, .limits = limits};
    CHECK_EQUAL(fuse_server_start(&o, &server), 0);
    CHECK_EQUAL(fuse_server_add_fs(server, "home", fs), 0);
    CHECK_EQUAL(fuse_server_add_fs(server, "home", fs), ERR_EXISTS);
}

static void body_run(void *arg) may_yield
{
    void (*fn)(void) = *(void (**)(void))arg;
    fs = fake_fs_new(&(struct fake_fs_options){.delay_ns = delay_ns});
    node_up();
    fn();
    fuse_server_stop(server);
    CHECK_EQUAL(fake_fs_watches(fs), 0);
    fake_fs_free(fs);
}

/* In order, with requests that wait, with shuffled fibers, and with every receive cut into pieces. */
static void run(void (*fn)(void))
{
    static const struct {
        size_t recv_max;
        uint64_t delay_ns;
    } ways[] = {{0, 0}, {0, 1000}, {1, 0}, {33, 1000}, {4097, 1000}};
    struct fuse_limits wanted = limits;
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        loop_world_init(&world);
        world.recv_max = ways[i].recv_max;
        world.base.shuffle = i > 0;
        world.base.seed = i + 1;
        delay_ns = ways[i].delay_ns;
        limits = wanted;
        failures = 0;
        loop_run(&world, 256 * MIB, body_run, &fn);
        loop_world_done(&world);
        assert_int_equal(failures, 0);
    }
    memset(&limits, 0, sizeof(limits));
}

/* ---- Tests ---- */

static uint8_t pattern[WIRE_DATA_MAX];

static void data_body(void) may_yield
{
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    for (size_t i = 0; i < sizeof(pattern); i++)
        pattern[i] = (uint8_t)(i * 31 + (i >> 9));
    /* Not aligned: one block more than fits a piece. */
    CHECK_EQUAL(ask_with(&m, range(WIRE_WRITE, ino, 4095, WIRE_DATA_MAX), pattern, WIRE_DATA_MAX), 0);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 4095, WIRE_DATA_MAX)), 0);
    CHECK_EQUAL(answer.len, WIRE_DATA_MAX);
    CHECK(memcmp(answer.bytes, pattern, WIRE_DATA_MAX) == 0);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 4095 + WIRE_DATA_MAX - 5, 100)), 0);
    CHECK_EQUAL(answer.len, 5);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 1ull << 40, 100)), 0);
    CHECK_EQUAL(answer.len, 0);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, 999, 0, 100)), ESTALE);
    CHECK_EQUAL(ask_with(&m, range(WIRE_WRITE, ino, 1ull << 40, 3000), pattern, 3000), EFBIG);
    CHECK_EQUAL(ask_with(&m, range(WIRE_WRITE, ino, (1ull << 40) + 1, WIRE_DATA_MAX), pattern, WIRE_DATA_MAX),
                EFBIG);
    CHECK_EQUAL(ask(&m, plain(WIRE_GETATTR, ino)), 0); /* the stream is in step */
    CHECK_EQUAL(ask(&m, named(WIRE_LOOKUP, FS_INO_ROOT, "f")), 0);
    CHECK_EQUAL(answered_ino(), ino);
    CHECK_EQUAL(ask(&m, named(WIRE_LOOKUP, FS_INO_ROOT, "g")), ENOENT);
    struct wire_request unknown = {.len = le32_make(sizeof(unknown)), .op = le16_make(WIRE_OP_END)};
    unknown.unique = le64_make(++m.unique);
    CHECK_EQUAL(stream_send_all(m.stream, &unknown, sizeof(unknown), SOON), 0);
    CHECK_EQUAL(receive(&m, SOON), 0);
    CHECK_EQUAL(answer.error, EOPNOTSUPP);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, INT64_MAX, 100)), EINVAL);
    mount_down(&m);
}
static void data_of_any_range_is_written_and_read(void **state)
{
    (void)state;
    run(data_body);
}

static void many_body(void) may_yield
{
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    bool seen[300] = {false};
    uint64_t first = m.unique + 1;
    for (int i = 0; i < 100; i++) {
        struct fuse_request w = range(WIRE_WRITE, ino, (uint64_t)i * 100, 100);
        post_with(&m, &w, pattern, 100);
        post(&m, plain(WIRE_GETATTR, ino));
        post(&m, range(WIRE_READ, ino, 0, 100));
    }
    for (int i = 0; i < 300; i++) {
        CHECK_EQUAL(receive(&m, SOON), 0);
        CHECK_EQUAL(answer.error, 0);
        CHECK(answer.unique >= first && answer.unique < first + 300);
        CHECK(!seen[(answer.unique - first) % 300]);
        seen[(answer.unique - first) % 300] = true;
    }
    mount_down(&m);
}
static void many_requests_are_under_way_at_once(void **state)
{
    (void)state;
    limits.requests = 16;
    run(many_body);
}

static void again_body(void) may_yield
{
    struct mount m = mount_up(1);
    struct fuse_request c = create("f");
    post_with(&m, &c, NULL, 0);
    mount_down(&m); /* the reply was not read */
    m = mount_up(1);
    c.again = true;
    m.unique = c.unique;
    CHECK_EQUAL(ask(&m, c), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(fake_fs_creates(fs), 1);
    CHECK_EQUAL(fake_fs_opens(fs), 1);
    struct fuse_request w = range(WIRE_WRITE, ino, 0, 10);
    w.range.flags = WIRE_WRITE_APPEND;
    w.unique = ++m.unique;
    CHECK_EQUAL(ask_with(&m, w, pattern, 10), 0);
    struct fuse_request x = w;
    x.unique = ++m.unique;
    x.range.offset = 10;
    CHECK_EQUAL(ask_with(&m, x, pattern + 20, 10), 0);
    w.again = true; /* its answer was lost: it goes where it was, not behind what came after it */
    CHECK_EQUAL(ask_with(&m, w, pattern, 10), 0);
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 0, 100)), 0);
    CHECK_EQUAL(answer.len, 20);
    CHECK(memcmp(answer.bytes, pattern, 10) == 0);
    CHECK(memcmp(answer.bytes + 10, pattern + 20, 10) == 0);
    struct fuse_request u = named(WIRE_UNLINK, FS_INO_ROOT, "f");
    u.unique = ++m.unique;
    CHECK_EQUAL(ask(&m, u), 0);
    u.again = true;
    CHECK_EQUAL(ask(&m, u), 0);
    u.again = false;
    u.unique = ++m.unique;
    CHECK_EQUAL(ask(&m, u), ENOENT);
    mount_down(&m);
}
static void what_is_asked_again_is_done_once(void **state)
{
    (void)state;
    run(again_body);
}

static void open_body(void) may_yield
{
    struct fuse_fs_status st;
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(ask(&m, (struct fuse_request){.op = WIRE_OPEN, .ino = ino, .open = {WIRE_OPEN_READ, 1}}), 0);
    CHECK_EQUAL(ask(&m, named(WIRE_UNLINK, FS_INO_ROOT, "f")), 0);
    mount_down(&m);
    CHECK_EQUAL(fuse_server_get_fs(server, "home", &st), 0);
    CHECK_EQUAL(st.away, 1);
    CHECK_EQUAL(st.opens, 2);
    CHECK_EQUAL(fiber_sleep(30 * NSEC_PER_SEC), 0);
    CHECK_EQUAL(mount_hello(&m, 1, "home"), 0);
    post(&m, (struct fuse_request){.op = WIRE_REOPEN, .ino = ino, .open = {WIRE_OPEN_READ, 3}});
    post(&m, plain(WIRE_REOPEN_DONE, 0));
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 0, 100)), 0);
    CHECK_EQUAL(fuse_server_get_fs(server, "home", &st), 0);
    CHECK_EQUAL(st.opens, 1); /* the other was not told: it was closed meanwhile */
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(ask(&m, plain(WIRE_GETATTR, ino)), 0);
        post(&m, (struct fuse_request){.op = WIRE_RELEASE, .ino = ino, .open = {WIRE_OPEN_READ, 1}});
    }
    CHECK_EQUAL(ask(&m, plain(WIRE_GETATTR, ino)), ESTALE);
    CHECK_EQUAL(fake_fs_opens(fs), 0);
    mount_down(&m);
}
static void open_files_stay_while_a_mount_is_away_and_until_their_last_close(void **state)
{
    (void)state;
    run(open_body);
}

static void away_body(void) may_yield
{
    struct mount m = mount_up(1), other = mount_up(2);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(ask(&m, locking(ino, 5, WIRE_LOCK_WRITE, false)), 0);
    CHECK_EQUAL(ask(&other, locking(ino, 5, WIRE_LOCK_WRITE, false)), EAGAIN);
    mount_down(&m);
    CHECK_EQUAL(ask(&other, locking(ino, 5, WIRE_LOCK_WRITE, false)), EAGAIN);
    CHECK_EQUAL(fake_fs_opens(fs), 1);
    CHECK_EQUAL(fiber_sleep(61 * NSEC_PER_SEC), 0);
    CHECK_EQUAL(fake_fs_opens(fs), 0);
    CHECK_EQUAL(ask(&other, locking(ino, 5, WIRE_LOCK_WRITE, false)), 0);
    CHECK_EQUAL(ask(&other, plain(WIRE_BYE, 0)), 0);
    mount_down(&other);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_SEC), 0);
    CHECK_EQUAL(fake_fs_locks(fs), 0);
}
static void what_a_mount_had_goes_after_a_time_or_at_once_with_goodbye(void **state)
{
    (void)state;
    run(away_body);
}

static void wait_body(void) may_yield
{
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(ask(&m, locking(ino, 1, WIRE_LOCK_WRITE, true)), 0);
    /* More waits than requests may be under way: the unlock must still be read. */
    for (uint64_t owner = 2; owner <= 21; owner++)
        post(&m, locking(ino, owner, WIRE_LOCK_WRITE, true));
    uint64_t second = m.unique - 19;
    post(&m, locking(ino, 99, WIRE_LOCK_WRITE, true)); /* one too many */
    CHECK_EQUAL(receive(&m, SOON), 0);
    CHECK_EQUAL(answer.unique, m.unique);
    CHECK_EQUAL(answer.error, ENOLCK);
    struct fuse_request i = {.op = WIRE_INTERRUPT, .unique = 0, .interrupt = {.unique = second}};
    post(&m, i);
    bool interrupted = false, told = false;
    for (int k = 0; k < 2; k++) {
        CHECK_EQUAL(receive(&m, SOON), 0);
        interrupted |= answer.unique == second && answer.error == EINTR;
        told |= answer.unique == m.unique && answer.error == 0;
    }
    CHECK(interrupted && told);
    CHECK_EQUAL(ask(&m, plain(WIRE_GETATTR, ino)), 0);
    post(&m, locking(ino, 1, WIRE_LOCK_NONE, false));
    for (int k = 0; k < 2; k++) { /* the unlock, and one of those who wait */
        CHECK_EQUAL(receive(&m, SOON), 0);
        CHECK_EQUAL(answer.error, 0);
    }
    CHECK_EQUAL(receive(&m, reactor_now_ns() + 10 * NSEC_PER_MSEC), ERR_TIMEOUT);
    mount_down(&m); /* the waits end with it */
}
static void waits_for_locks_do_not_stop_other_requests(void **state)
{
    (void)state;
    limits.requests = 8;
    limits.lock_waits = 20;
    run(wait_body);
}

static void notes_body(void) may_yield
{
    struct mount a = mount_up(1), b = mount_up(2);
    CHECK_EQUAL(ask(&a, create("f")), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(ask_with(&a, range(WIRE_WRITE, ino, 0, 10), pattern, 10), 0);
    CHECK_EQUAL(ask(&b, plain(WIRE_GETATTR, ino)), 0);
    CHECK_EQUAL(b.notes[WIRE_NOTE_ENTRY], 1);
    CHECK_EQUAL(b.notes[WIRE_NOTE_INODE], 1);
    CHECK_EQUAL(b.note_ino, ino);
    CHECK_EQUAL(ask(&a, plain(WIRE_GETATTR, ino)), 0);
    CHECK_EQUAL(a.notes[WIRE_NOTE_ENTRY] + a.notes[WIRE_NOTE_INODE], 0); /* it knows what it did */
    fake_fs_touch(fs, ino, false);
    CHECK_EQUAL(ask(&a, plain(WIRE_GETATTR, ino)), 0);
    CHECK_EQUAL(a.notes[WIRE_NOTE_INODE], 1);
    mount_down(&b);
    CHECK_EQUAL(mount_hello(&b, 2, "home"), 0);
    CHECK_EQUAL(b.welcome_flags, WIRE_WELCOME_COHERENT);
    mount_down(&b);
    fake_fs_touch(fs, ino, true);
    CHECK_EQUAL(mount_hello(&b, 2, "home"), 0);
    CHECK_EQUAL(b.welcome_flags, 0);
    mount_down(&b);
    mount_down(&a);
}
static void others_are_told_of_changes_and_of_having_missed_some(void **state)
{
    (void)state;
    run(notes_body);
}

static void deaf_body(void) may_yield
{
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    for (int i = 0; i < 100000; i++)
        fake_fs_touch(fs, ino, true); /* and nobody reads */
    CHECK_EQUAL(ask(&m, plain(WIRE_GETATTR, ino)), 0);
    CHECK(m.notes[WIRE_NOTE_ALL] >= 1);
    CHECK(m.notes[WIRE_NOTE_INODE] < 30000);
    mount_down(&m);
}
static void notes_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    run(deaf_body);
}

static void lost_body(void) may_yield
{
    struct mount m = mount_up(1), back = mount_up(2);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    CHECK_EQUAL(ask(&m, locking(answered_ino(), 1, WIRE_LOCK_READ, false)), 0);
    CHECK_EQUAL(ask(&back, locking(FS_INO_FIRST, 1, WIRE_LOCK_READ, false)), 0);
    fuse_server_stop(server);
    stream_close(m.stream);
    stream_close(back.stream);
    fake_fs_restart(fs);
    node_up();
    CHECK_EQUAL(fiber_sleep(50 * NSEC_PER_SEC), 0);
    back = mount_up(2);
    CHECK_EQUAL(fake_fs_locks(fs), 2);
    CHECK_EQUAL(fiber_sleep(20 * NSEC_PER_SEC), 0);
    CHECK_EQUAL(fake_fs_locks(fs), 1); /* the other mount died while the node was away */
    mount_down(&back);
}
static void locks_of_a_mount_that_died_while_the_node_was_away_go(void **state)
{
    (void)state;
    run(lost_body);
}

static void restart_body(void) may_yield
{
    struct mount m = mount_up(1);
    CHECK_EQUAL(ask(&m, create("f")), 0);
    uint64_t ino = answered_ino();
    CHECK_EQUAL(ask(&m, locking(ino, 1, WIRE_LOCK_WRITE, false)), 0);
    post(&m, locking(ino, 2, WIRE_LOCK_WRITE, true));
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    fuse_server_stop(server);
    CHECK_EQUAL(receive(&m, SOON), ERR_CLOSED); /* the wait is not answered: it is asked for again */
    stream_close(m.stream);
    CHECK_EQUAL(fake_fs_opens(fs), 1);
    fake_fs_restart(fs);
    node_up();
    CHECK_EQUAL(fake_fs_locks(fs), 1);
    CHECK_EQUAL(mount_hello(&m, 1, "home"), 0);
    CHECK_EQUAL(m.welcome_flags, 0);
    post(&m,
         (struct fuse_request){.op = WIRE_REOPEN, .ino = ino, .open = {WIRE_OPEN_READ | WIRE_OPEN_WRITE, 1}});
    post(&m, plain(WIRE_REOPEN_DONE, 0));
    CHECK_EQUAL(ask(&m, range(WIRE_READ, ino, 0, 10)), 0);
    CHECK_EQUAL(fake_fs_opens(fs), 1);
    mount_down(&m);
}
static void a_mount_goes_on_after_a_restart(void **state)
{
    (void)state;
    run(restart_body);
}

static void refused_body(void) may_yield
{
    struct mount m;
    CHECK_EQUAL(mount_hello(&m, 1, "nothing"), 0);
    CHECK_EQUAL(m.welcome_error, ENOENT);
    mount_down(&m);
    CHECK_EQUAL(mount_hello(&m, 1, "home"), 0);
    post(&m, plain(WIRE_GETATTR, 1)); /* before its opens were told */
    CHECK_EQUAL(receive(&m, SOON), ERR_CLOSED);
    mount_down(&m);
    CHECK_EQUAL(stream_connect(ADDRESS, SOON, &m.stream), 0);
    CHECK_EQUAL(stream_send_all(m.stream, pattern, 100, SOON), 0); /* not a hello */
    CHECK_EQUAL(receive(&m, SOON), ERR_CLOSED);
    mount_down(&m);
    m = mount_up(1);
    struct wire_request h = {.len = le32_make(3), .op = le16_make(WIRE_GETATTR)};
    CHECK_EQUAL(stream_send_all(m.stream, &h, sizeof(h), SOON), 0);
    CHECK_EQUAL(receive(&m, SOON), ERR_CLOSED);
    mount_down(&m);
    m = mount_up(1);
    struct mount twin = mount_up(1); /* the same session: the old connection must be dead */
    CHECK_EQUAL(receive(&m, SOON), ERR_CLOSED);
    CHECK_EQUAL(ask(&twin, plain(WIRE_GETATTR, 1)), 0);
    CHECK_EQUAL(fuse_server_remove_fs(server, "home"), 0);
    CHECK_EQUAL(fuse_server_remove_fs(server, "home"), ERR_NOT_FOUND);
    CHECK_EQUAL(receive(&twin, SOON), ERR_CLOSED);
    mount_down(&m);
    mount_down(&twin);
}
static void who_breaks_the_protocol_is_disconnected(void **state)
{
    (void)state;
    run(refused_body);
}

static void names_body(void) may_yield
{
    struct mount m = mount_up(1);
    char name[16];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof(name), "file%02d", i);
        CHECK_EQUAL(ask(&m, create(name)), 0);
    }
    uint64_t cookie = 0;
    int names = 0;
    for (;;) {
        struct fuse_request r = {.op = WIRE_READDIR,
                                 .ino = FS_INO_ROOT,
                                 .readdir = {.cookie = cookie, .len = 1000, .attributes = true}};
        CHECK_EQUAL(ask(&m, r), 0);
        if (answer.len == 0)
            break;
        int here = 0;
        for (uint32_t at = 0; at < answer.len; here++) {
            struct wire_dirent d;
            CHECK(answer.len - at >= sizeof(d));
            memcpy(&d, answer.bytes + at, sizeof(d));
            CHECK(d.has_attr);
            at += (uint32_t)(sizeof(d) + sizeof(struct wire_attr)) + le16_get(d.name_len);
            cookie = le64_get(d.cookie);
        }
        CHECK(here <= 6); /* as many as the kernel's buffer takes */
        names += here;
    }
    CHECK_EQUAL(names, 52);
    mount_down(&m);
}
static void a_directory_is_read_in_pieces_that_fit_the_kernel(void **state)
{
    (void)state;
    run(names_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_of_any_range_is_written_and_read),
        cmocka_unit_test(many_requests_are_under_way_at_once),
        cmocka_unit_test(what_is_asked_again_is_done_once),
        cmocka_unit_test(open_files_stay_while_a_mount_is_away_and_until_their_last_close),
        cmocka_unit_test(what_a_mount_had_goes_after_a_time_or_at_once_with_goodbye),
        cmocka_unit_test(waits_for_locks_do_not_stop_other_requests),
        cmocka_unit_test(others_are_told_of_changes_and_of_having_missed_some),
        cmocka_unit_test(notes_that_nobody_reads_are_bounded),
        cmocka_unit_test(a_mount_goes_on_after_a_restart),
        cmocka_unit_test(locks_of_a_mount_that_died_while_the_node_was_away_go),
        cmocka_unit_test(who_breaks_the_protocol_is_disconnected),
        cmocka_unit_test(a_directory_is_read_in_pieces_that_fit_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
