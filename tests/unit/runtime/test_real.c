/* SPDX-License-Identifier: Apache-2.0 */
/* The real world: files on a temporary folder, sockets over loopback. */
#include "runtime/error.h"
#include "runtime/list.h"
#include "runtime/log.h"
#include "runtime/reactor.h"
#include "runtime/world_real.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static int results[32];
static uint64_t numbers[32];

static void record(int i, int result)
{
    assert(i < (int)ARRAY_SIZE(results));
    results[i] = result;
}

static int setup(void **state)
{
    (void)state;
    memset(results, 0x55, sizeof(results));
    memset(numbers, 0, sizeof(numbers));
    return 0;
}

static int setup_group(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test-real-XXXXXX");
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = MIN(limit.rlim_max, (rlim_t)8192);
    setrlimit(RLIMIT_NOFILE, &limit);
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int teardown_group(void **state)
{
    (void)state;
    return rmdir(folder); /* every test removes what it made */
}

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *p = paths[next++ % ARRAY_SIZE(paths)];
    snprintf(p, sizeof(paths[0]), "%s/%s", folder, name);
    return p;
}

static void run(void (*fn)(void *arg), void *arg)
{
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget, .chunk_bytes = 4 * MIB};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    assert(err == 0);
    err = reactor_spawn(r, "test", fn, arg);
    assert(err == 0);
    reactor_stop(r); /* ends when the last fiber has */
    err = reactor_run(r);
    assert(err == 0);
    reactor_free(r);
}

static void must_spawn(const char *name, void (*fn)(void *arg), void *arg)
{
    int err = fiber_spawn(name, fn, arg);
    assert(err == 0);
}

static struct fiber *must_spawn_joinable(const char *name, void (*fn)(void *arg), void *arg)
{
    struct fiber *f;
    int err = fiber_spawn_joinable(name, fn, arg, &f);
    assert(err == 0);
    return f;
}

/* ---- Files ---- */

static fiber_role_assumed void file_body(void *arg)
{
    const char *path = in_folder("file");
    uint32_t direct = *(const uint32_t *)arg;
    struct file *f, *other;
    struct file_info info;
    struct page *p, *q;
    record(0, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_CREATE | FILE_OPEN_LOCK | direct, &f));
    if (results[0] != 0)
        return;
    record(1, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_CREATE, &other));
    record(2, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_LOCK, &other));
    record(3, file_resize(f, MIB));
    record(4, file_get_info(f, &info));
    numbers[0] = info.size_bytes;
    numbers[1] = info.is_block_device;
    record(5, page_alloc(4, &p));
    record(6, page_alloc(4, &q));
    memset(p->data, 0xa5, (size_t)4 * BLOCK_SIZE);
    struct iovec iov = {p->data, (size_t)4 * BLOCK_SIZE};
    struct file_io io = {.file = f,
                         .op = FILE_WRITE,
                         .dsync = true,
                         .offset = 2 * BLOCK_SIZE,
                         .len = iov.iov_len,
                         .iov = &iov,
                         .iov_count = 1,
                         .page = p};
    record(7, file_do(&io)); /* registered buffer */
    record(8, file_sync(f));
    record(9, file_read(f, BLOCK_SIZE, q->data, (size_t)4 * BLOCK_SIZE));
    numbers[2] = q->data[0] == 0 && q->data[BLOCK_SIZE] == 0xa5 && q->data[4 * BLOCK_SIZE - 1] == 0xa5;
    struct iovec two[2] = {{q->data, BLOCK_SIZE}, {q->data + 2 * (size_t)BLOCK_SIZE, BLOCK_SIZE}};
    memset(q->data, 0x11, (size_t)4 * BLOCK_SIZE);
    struct file_io gather = {
        .file = f, .op = FILE_READ, .offset = BLOCK_SIZE, .len = 2 * BLOCK_SIZE, .iov = two, .iov_count = 2};
    record(10, file_do(&gather));
    numbers[3] = q->data[0] == 0 && q->data[BLOCK_SIZE] == 0x11 && q->data[2 * (size_t)BLOCK_SIZE] == 0xa5;
    struct file_io zero = {.file = f, .op = FILE_ZERO, .offset = 2 * BLOCK_SIZE, .len = BLOCK_SIZE};
    record(11, file_do(&zero));
    struct file_io discard = {.file = f, .op = FILE_DISCARD, .offset = 3 * BLOCK_SIZE, .len = BLOCK_SIZE};
    record(12, file_do(&discard));
    record(13, file_read(f, 2 * BLOCK_SIZE, q->data, (size_t)4 * BLOCK_SIZE));
    numbers[4] = q->data[0] == 0 && q->data[2 * (size_t)BLOCK_SIZE] == 0xa5;
    record(14, file_read(f, MIB - BLOCK_SIZE, q->data, (size_t)2 * BLOCK_SIZE)); /* over the end */
    page_put(p, 4);
    page_put(q, 4);
    file_close(f);
    record(15, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_LOCK, &other)); /* the lock went with it */
    if (results[15] == 0)
        file_close(other);
    record(16, file_unlink(path));
    record(17, file_open(path, 0, &f));
}

/* Enough of them that both ways to make a write durable take their turns. */
static fiber_role_assumed void durable_body(void *arg)
{
    const char *path = in_folder("durable");
    uint32_t direct = *(const uint32_t *)arg;
    struct file *f, *full;
    struct page *p;
    record(0, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_CREATE | direct, &f));
    record(1, page_alloc(2, &p));
    if (results[0] != 0 || results[1] != 0)
        return;
    numbers[0] = numbers[1] = 0;
    struct iovec iov = {p->data, BLOCK_SIZE};
    struct file_io io = {.file = f,
                         .op = FILE_WRITE,
                         .dsync = true,
                         .len = BLOCK_SIZE,
                         .iov = &iov,
                         .iov_count = 1,
                         .page = p};
    for (uint32_t i = 0; i < 300; i++) {
        memset(p->data, (int)i & 0xff, BLOCK_SIZE);
        io.offset = (uint64_t)i * BLOCK_SIZE;
        numbers[0] += file_do(&io) != 0;
    }
    for (uint32_t i = 0; i < 300; i++)
        numbers[1] += file_read(f, (uint64_t)i * BLOCK_SIZE, p->data, BLOCK_SIZE) != 0 ||
                      *(const uint8_t *)p->data != (i & 0xff);
    file_close(f);
    record(2, file_open("/dev/full", FILE_OPEN_WRITE, &full));
    if (results[2] == 0) {
        io.file = full;
        record(3, file_do(&io));
        file_close(full);
    }
    page_put(p, 2);
    record(4, file_unlink(path));
}

static void durable_writes_keep_what_was_written(void **state)
{
    (void)state;
    static const uint32_t flags[] = {FILE_OPEN_DIRECT, 0};
    static const int expected[5] = {[3] = ERR_SYS(ENOSPC)};
    for (size_t k = 0; k < ARRAY_SIZE(flags); k++) {
        uint32_t direct = flags[k];
        run(durable_body, &direct);
        for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
            assert_int_equal(results[i], expected[i]);
        assert_int_equal(numbers[0], 0);
        assert_int_equal(numbers[1], 0);
    }
}

static void file_check(uint32_t direct)
{
    run(file_body, &direct);
    static const int expected[18] = {
        [1] = ERR_SYS(EEXIST), [2] = ERR_SYS(EBUSY), [14] = ERR_SHORT_IO, [17] = ERR_SYS(ENOENT)};
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        assert_int_equal(results[i], expected[i]);
    assert_int_equal(numbers[0], MIB);
    assert_int_equal(numbers[1], 0);
    assert_int_equal(numbers[2], 1);
    assert_int_equal(numbers[3], 1);
    assert_int_equal(numbers[4], 1);
}

static void file_of_o_direct_keeps_what_was_written(void **state)
{
    (void)state;
    file_check(FILE_OPEN_DIRECT);
}

static void file_with_buffers_keeps_what_was_written(void **state)
{
    (void)state;
    file_check(0);
}

static fiber_role_assumed void small_file_body(void *arg)
{
    (void)arg;
    const char *path = in_folder("small");
    char *data;
    size_t len;
    record(0, file_read_all(path, 100, &data, &len));
    record(1, file_replace(path, "one", 3));
    record(2, file_replace(path, "second", 6));
    record(3, file_read_all(path, 5, &data, &len));
    record(4, file_read_all(path, 6, &data, &len));
    if (results[4] == 0) {
        numbers[0] = len == 6 && strcmp(data, "second") == 0;
        free(data);
    }
    record(5, file_replace(in_folder("no/such"), "x", 1));
    record(6, file_unlink(path));
}

static void small_file_is_replaced_whole(void **state)
{
    (void)state;
    run(small_file_body, NULL);
    assert_int_equal(results[0], ERR_SYS(ENOENT));
    assert_int_equal(results[1], 0);
    assert_int_equal(results[2], 0);
    assert_int_equal(results[3], ERR_SYS(EFBIG));
    assert_int_equal(results[4], 0);
    assert_int_equal(numbers[0], 1);
    assert_int_equal(results[5], ERR_SYS(ENOENT));
    assert_int_equal(results[6], 0);
}

/* In a child that may not lock memory, so that page memory cannot be registered. */
static fiber_role_assumed void unlocked_body(void *arg)
{
    (void)arg;
    const char *path = in_folder("unlocked");
    struct file *f;
    struct page *p;
    record(0, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_CREATE | FILE_OPEN_DIRECT, &f));
    record(1, page_alloc(2, &p));
    memset(p->data, 9, BLOCK_SIZE);
    struct iovec iov = {p->data, BLOCK_SIZE};
    struct file_io io = {
        .file = f, .op = FILE_WRITE, .len = BLOCK_SIZE, .iov = &iov, .iov_count = 1, .page = p};
    record(2, file_do(&io));
    io.op = FILE_READ;
    io.iov = &(struct iovec){page_at(p, 1)->data, BLOCK_SIZE};
    io.page = page_at(p, 1);
    record(3, file_do(&io));
    record(4, memcmp(p->data, page_at(p, 1)->data, BLOCK_SIZE) != 0);
    page_put(p, 2);
    file_close(f);
    record(5, file_unlink(path));
}

static void page_memory_works_where_it_may_not_be_locked(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit little = {MIB / 2, MIB / 2}; /* too little for a full ring, too */
        bool limited = chmod(folder, 0777) == 0 && setrlimit(RLIMIT_MEMLOCK, &little) == 0 &&
                       (getuid() != 0 || setresuid(65534, 65534, 65534) == 0);
        if (limited)
            run(unlocked_body, NULL);
        int bad = 0;
        for (int i = 0; i <= 5; i++)
            bad += results[i] != 0;
        _exit(limited ? bad : 100);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* More operations in one turn than the ring has entries. */
enum { FLOOD = 10000 };
static struct latch flood_latch;
static void flood_done(struct file_io *io)
{
    if (io->result == 0)
        numbers[0]++;
    latch_down(&flood_latch);
}

static fiber_role_assumed void flood_body(void *arg)
{
    (void)arg;
    const char *path = in_folder("flood");
    struct file *f;
    record(0, file_open(path, FILE_OPEN_WRITE | FILE_OPEN_CREATE, &f));
    record(1, file_resize(f, MIB));
    struct file_io *ios = calloc(FLOOD, sizeof(*ios));
    struct iovec *iovs = calloc(FLOOD, sizeof(*iovs));
    struct page *p;
    record(2, page_alloc(1, &p));
    memset(p->data, 1, BLOCK_SIZE);
    latch_init(&flood_latch, FLOOD);
    for (uint32_t i = 0; i < FLOOD; i++) {
        iovs[i] = (struct iovec){p->data, BLOCK_SIZE};
        ios[i] = (struct file_io){.file = f,
                                  .op = FILE_WRITE,
                                  .offset = i % 256 * (uint64_t)BLOCK_SIZE,
                                  .len = BLOCK_SIZE,
                                  .iov = &iovs[i],
                                  .iov_count = 1,
                                  .page = p,
                                  .done = flood_done};
        file_submit(&ios[i]);
    }
    latch_wait(&flood_latch);
    page_put(p, 1);
    free(ios);
    free(iovs);
    file_close(f);
    record(3, file_unlink(path));
}

static void more_operations_than_the_ring_holds_complete(void **state)
{
    (void)state;
    run(flood_body, NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(results[i], 0);
    assert_int_equal(numbers[0], FLOOD);
}

/* ---- Sockets ---- */

static struct listener *listener;
static uint32_t echo_alive;

static fiber_role_assumed void echo_fiber(void *arg)
{
    struct stream *s = arg;
    char buf[4096];
    echo_alive++;
    for (;;) {
        struct iovec iov = {buf, sizeof(buf)};
        size_t n;
        if (stream_recvv(s, &iov, 1, DEADLINE_NEVER, &n) != 0)
            break;
        if (stream_send_all(s, buf, n, DEADLINE_NEVER) != 0)
            break;
    }
    stream_close(s);
    echo_alive--;
}

static fiber_role_assumed void accept_fiber(void *arg)
{
    (void)arg;
    struct stream *s;
    int err;
    while ((err = listener_accept(listener, &s)) == 0)
        must_spawn("echo", echo_fiber, s);
    record(31, err);
}

static int connect_to_listener(struct stream **ret) may_yield;
static int connect_to_listener(struct stream **ret)
{
    return stream_connect(listener_address(listener), reactor_now_ns() + 10 * NSEC_PER_SEC, ret);
}

static fiber_role_assumed void echo_body(void *arg)
{
    record(0, listener_open(arg, &listener));
    if (results[0] != 0)
        return;
    struct fiber *acceptor = must_spawn_joinable("accept", accept_fiber, NULL);
    struct stream *s;
    record(1, connect_to_listener(&s));
    static char big[MIB], back[MIB];
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (char)(i * 31 + i / 1000);
    for (int i = 0; i < 100; i++)
        record(2, stream_send_all(s, big + i, 100, DEADLINE_NEVER) != 0 ||
                      stream_recv_all(s, back, 100, DEADLINE_NEVER) != 0 || memcmp(big + i, back, 100) != 0);
    /* More than the buffers of both sockets hold, from another fiber. */
    struct iovec iov[3] = {{big, 1000}, {NULL, 0}, {big + 1000, 200000}};
    record(3, stream_sendv(s, iov, 3, DEADLINE_NEVER));
    record(4, stream_recv_all(s, back, 201000, DEADLINE_NEVER));
    record(5, memcmp(big, back, 201000) != 0);
    record(6, stream_recv_all(s, back, 1, reactor_now_ns() + 20 * NSEC_PER_MSEC));
    record(7, stream_send_all(s, big, 10, DEADLINE_NEVER)); /* a timeout of receiving lost nothing */
    record(8, stream_recv_all(s, back, 10, DEADLINE_NEVER) != 0 || memcmp(big, back, 10) != 0);
    stream_shutdown(s);
    record(9, stream_recv_all(s, back, 1, DEADLINE_NEVER));
    record(10, stream_send_all(s, back, 1, DEADLINE_NEVER));
    stream_close(s);
    listener_close(listener);
    fiber_join(acceptor);
}

static void echo_check(const char *address)
{
    run(echo_body, (void *)(uintptr_t)address);
    for (int i = 0; i < 9; i++)
        assert_int_equal(results[i], i == 6 ? ERR_TIMEOUT : 0);
    assert_int_equal(results[9], ERR_CLOSED);
    assert_int_equal(results[10], ERR_CLOSED);
    assert_int_equal(results[31], ERR_CLOSED);
    assert_int_equal(echo_alive, 0);
}

static void stream_over_tcp_carries_bytes(void **state)
{
    (void)state;
    echo_check("tcp:127.0.0.1:0");
}

static void stream_over_ipv6_and_a_name_carries_bytes(void **state)
{
    (void)state;
    if (access("/proc/net/if_inet6", F_OK) == 0)
        echo_check("tcp:[::1]:0");
    setup(NULL);
    echo_check("tcp:localhost:0");
}

static void stream_over_a_unix_socket_carries_bytes(void **state)
{
    (void)state;
    char address[160];
    snprintf(address, sizeof(address), "unix:%s", in_folder("sock"));
    echo_check(address);
}

static fiber_role_assumed void stale_body(void *arg)
{
    (void)arg;
    char address[160];
    snprintf(address, sizeof(address), "unix:%s", in_folder("stale"));
    struct listener *again;
    record(0, listener_open(address, &listener));
    record(1, listener_open(address, &again)); /* alive */
    char moved[128];
    snprintf(moved, sizeof(moved), "%s", in_folder("moved"));
    record(2, rename(in_folder("stale"), moved));
    listener_close(listener);
    record(3, rename(moved, in_folder("stale")));
    record(4, listener_open(address, &again)); /* its file is there, nobody listens */
    if (results[4] == 0)
        listener_close(again);
    record(5, access(in_folder("stale"), F_OK));
    record(6, listener_open("tcp:127.0.0.1", &again));
    record(7, listener_open("udp:1", &again));
    record(8, listener_open("tcp:127.0.0.1:65536", &again));
}

static void unix_socket_that_is_stale_is_replaced(void **state)
{
    (void)state;
    run(stale_body, NULL);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], ERR_SYS(EADDRINUSE));
    assert_int_equal(results[2], 0);
    assert_int_equal(results[3], 0);
    assert_int_equal(results[4], 0);
    assert_int_equal(results[5], -1);
    for (int i = 6; i <= 8; i++)
        assert_int_equal(results[i], ERR_INVALID);
}

static fiber_role_assumed void close_later(void *arg)
{
    record(3, fiber_sleep(100 * NSEC_PER_MSEC));
    listener_close(arg);
}

static fiber_role_assumed void busy_body(void *arg)
{
    (void)arg;
    struct listener *again;
    record(0, listener_open("tcp:127.0.0.1:0", &listener));
    record(1, fiber_spawn("close later", close_later, listener));
    char address[WORLD_ADDRESS_SIZE];
    snprintf(address, sizeof(address), "%s", listener_address(listener));
    record(2, listener_open(address, &again));
    if (results[2] == 0)
        listener_close(again);
}

/* As after SIGKILL: the kernel lets go of the dead process's sockets only some milliseconds later. */
static void address_in_use_is_waited_for(void **state)
{
    (void)state;
    run(busy_body, NULL);
    for (int i = 0; i <= 3; i++)
        assert_int_equal(results[i], 0);
}

enum { CLIENTS = 1000 };
static struct latch clients;
static fiber_role_assumed void client_fiber(void *arg)
{
    uintptr_t i = (uintptr_t)arg;
    struct stream *s;
    char out[64], in[64];
    memset(out, (int)i, sizeof(out));
    if (connect_to_listener(&s) == 0) {
        uint64_t good = 0;
        for (int k = 0; k < 5; k++) {
            if (stream_send_all(s, out, sizeof(out), DEADLINE_NEVER) == 0 &&
                stream_recv_all(s, in, sizeof(in), DEADLINE_NEVER) == 0 && memcmp(in, out, sizeof(in)) == 0)
                good++;
            /* Nobody leaves before all are there. */
            for (int wait = 0; echo_alive < CLIENTS && numbers[1] == 0 && wait < 2000; wait++)
                good = fiber_sleep(5 * NSEC_PER_MSEC) == 0 ? good : 0;
            numbers[1] = MAX(numbers[1], (uint64_t)(echo_alive == CLIENTS));
        }
        numbers[0] += good;
        stream_close(s);
    }
    latch_down(&clients);
}

static fiber_role_assumed void thousand_body(void *arg)
{
    (void)arg;
    record(0, listener_open("tcp:127.0.0.1:0", &listener));
    must_spawn("accept", accept_fiber, NULL);
    latch_init(&clients, CLIENTS);
    for (uintptr_t i = 0; i < CLIENTS; i++)
        must_spawn("client", client_fiber, (void *)i);
    latch_wait(&clients);
    listener_close(listener);
}

static void thousand_connections_are_served_at_once(void **state)
{
    (void)state;
    run(thousand_body, NULL);
    assert_int_equal(results[0], 0);
    assert_int_equal(numbers[0], CLIENTS * 5);
    assert_int_equal(numbers[1], 1);
    assert_int_equal(echo_alive, 0);
}

static fiber_role_assumed void recv_until_error(void *arg)
{
    char c;
    record(20, stream_recv_all(arg, &c, 1, DEADLINE_NEVER));
    numbers[20] = reactor_now_ns();
}

static fiber_role_assumed void cancel_body(void *arg)
{
    (void)arg;
    struct stream *s, *t;
    record(0, listener_open("tcp:127.0.0.1:0", &listener));
    struct fiber *acceptor = must_spawn_joinable("accept", accept_fiber, NULL);
    record(1, connect_to_listener(&s));
    struct fiber *f = must_spawn_joinable("recv", recv_until_error, s);
    record(2, fiber_sleep(5 * NSEC_PER_MSEC));
    fiber_cancel(f);
    fiber_join(f);
    record(3, results[20]);
    /* Other fibers' calls end with a shutdown. */
    f = must_spawn_joinable("recv", recv_until_error, s);
    record(4, fiber_sleep(5 * NSEC_PER_MSEC));
    stream_shutdown(s);
    fiber_join(f);
    record(5, results[20]);
    stream_close(s);
    /* A peer that resets: unread data and closed. */
    record(6, connect_to_listener(&s));
    record(7, stream_send_all(s, "abcd", 4, DEADLINE_NEVER));
    record(8, fiber_sleep(5 * NSEC_PER_MSEC));
    int fd;
    record(9, stream_detach(s, &fd));
    struct linger linger = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    close(fd);
    record(10, fiber_sleep(10 * NSEC_PER_MSEC));
    numbers[0] = echo_alive;
    /* Detached and attached again it goes on. */
    record(11, connect_to_listener(&s));
    record(12, stream_detach(s, &fd));
    record(13, stream_attach(fd, &t));
    char back[4] = "";
    record(14, stream_send_all(t, "abc", 4, DEADLINE_NEVER));
    record(15, stream_recv_all(t, back, 4, DEADLINE_NEVER));
    numbers[1] = strcmp(back, "abc") == 0 && strcmp(stream_peer_ip(t), "127.0.0.1") == 0 &&
                 strcmp(stream_peer(t), listener_address(listener)) == 0;
    stream_close(t);
    fiber_cancel(acceptor);
    fiber_join(acceptor);
    record(16, results[31]);
    char gone[WORLD_ADDRESS_SIZE];
    memcpy(gone, listener_address(listener), sizeof(gone));
    listener_close(listener);
    record(17, stream_connect(gone, DEADLINE_NEVER, &s));
}

static void peers_may_vanish_and_calls_be_cancelled(void **state)
{
    (void)state;
    run(cancel_body, NULL);
    for (int i = 0; i <= 17; i++) {
        int expected = i == 3 || i == 16 ? ERR_CANCELLED : 0;
        expected = i == 5 ? ERR_CLOSED : i == 17 ? ERR_SYS(ECONNREFUSED) : expected;
        assert_int_equal(results[i], expected);
    }
    assert_int_equal(numbers[0], 0);
    assert_int_equal(numbers[1], 1);
}

/* A peer that never reads must not keep the sender for ever. */
static fiber_role_assumed void stuck_body(void *arg)
{
    (void)arg;
    struct stream *s, *t;
    record(0, listener_open("tcp:127.0.0.1:0", &listener));
    record(1, connect_to_listener(&s));
    record(2, listener_accept(listener, &t));
    char *big = calloc(1, 16 * MIB);
    uint64_t begin = reactor_now_ns();
    record(3, stream_send_all(t, big, 16 * MIB, begin + 50 * NSEC_PER_MSEC));
    numbers[0] = (reactor_now_ns() - begin) / NSEC_PER_MSEC;
    free(big);
    stream_close(s);
    stream_close(t);
    listener_close(listener);
}

static void peer_that_never_reads_runs_into_the_deadline(void **state)
{
    (void)state;
    run(stuck_body, NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(results[i], 0);
    assert_int_equal(results[3], ERR_TIMEOUT);
    assert_true(numbers[0] >= 49 && numbers[0] < 2000);
}

/* ---- Threads, time, idleness ---- */

static struct reactor *other;
static fiber_role_assumed void *other_main(void *arg)
{
    int err = reactor_run(other);
    assert(err == 0);
    return arg;
}

static fiber_role_assumed int short_sleep(void *arg)
{
    (void)arg;
    return fiber_sleep(NSEC_PER_USEC);
}

static fiber_role_assumed void call_body(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000; i++)
        numbers[0] += reactor_call(other, short_sleep, NULL) == 0;
    reactor_stop(other);
}

static void reactors_of_two_threads_call_each_other(void **state)
{
    (void)state;
    struct memory_budget budget = {.limit_bytes = MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget, .index = 1};
    assert_int_equal(reactor_new(&o, &other), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_main, NULL), 0);
    run(call_body, NULL);
    pthread_join(thread, NULL);
    reactor_free(other);
    assert_int_equal(numbers[0], 2000);
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static fiber_role_assumed void idle_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_clock_ns(), cpu = thread_cpu_ns();
    record(0, fiber_sleep(200 * NSEC_PER_MSEC));
    numbers[0] = reactor_clock_ns() - begin;
    numbers[1] = thread_cpu_ns() - cpu;
}

static void idle_reactor_uses_no_cpu(void **state)
{
    (void)state;
    run(idle_body, NULL);
    assert_int_equal(results[0], 0);
    assert_true(numbers[0] >= 200 * NSEC_PER_MSEC);
    assert_true(numbers[1] < 5 * NSEC_PER_MSEC);
}

static int slow_call(void *arg)
{
    (void)arg;
    usleep(200000);
    return 0;
}

static fiber_role_assumed void blocked_fiber(void *arg)
{
    (void)arg;
    numbers[0] += reactor_block(slow_call, NULL) == 0;
}

static fiber_role_assumed void block_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    for (int i = 0; i < 8; i++)
        must_spawn("blocked", blocked_fiber, NULL);
    record(0, fiber_sleep(NSEC_PER_MSEC)); /* the loop goes on meanwhile */
    numbers[1] = reactor_now_ns() - begin;
}

static void helper_threads_leave_the_loop_free(void **state)
{
    (void)state;
    run(block_body, NULL);
    assert_int_equal(numbers[0], 8);
    assert_true(numbers[1] < 150 * NSEC_PER_MSEC);
}

/* ---- Datagrams ---- */

static fiber_role_assumed void datagram_body(void *arg)
{
    struct datagram_socket *a, *b;
    char from[WORLD_ADDRESS_SIZE] = "", buf[16];
    size_t len = 0;
    record(0, datagram_open("udp:127.0.0.1:0", &a));
    record(1, datagram_open(arg, &b));
    if (results[0] != 0 || results[1] != 0)
        return;
    record(2, datagram_recv(a, buf, sizeof(buf), reactor_now_ns() + 20 * NSEC_PER_MSEC, &len, from));
    char to[WORLD_ADDRESS_SIZE];
    const char *port = strrchr(datagram_address(b), ':');
    snprintf(to, sizeof(to), "udp:127.0.0.1%s", port);
    record(3, datagram_send(a, to, "question", 8));
    record(4, datagram_recv(b, buf, 4, DEADLINE_NEVER, &len, from));
    numbers[0] = len == 4 && memcmp(buf, "ques", 4) == 0; /* cut */
    numbers[1] = strcmp(from, datagram_address(a)) == 0;
    record(5, datagram_send(b, from, "", 0));
    record(6, datagram_recv(a, buf, sizeof(buf), DEADLINE_NEVER, &len, from));
    numbers[2] = len == 0 && strcmp(from, to) == 0;
    record(7, datagram_send(b, "udp:nonsense:1", "", 0));
    datagram_close(a);
    datagram_close(b);
}

static void datagrams_go_both_ways(void **state)
{
    static const char *const addresses[] = {"udp:127.0.0.1:0", "udp:[::]:0"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
        run(datagram_body, (void *)(uintptr_t)addresses[i]);
        for (int k = 0; k < 7; k++)
            assert_int_equal(results[k], k == 2 ? ERR_TIMEOUT : 0);
        assert_int_equal(results[7], ERR_INVALID);
        for (int k = 0; k < 3; k++)
            assert_true(numbers[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(durable_writes_keep_what_was_written, setup),
        cmocka_unit_test_setup(file_of_o_direct_keeps_what_was_written, setup),
        cmocka_unit_test_setup(file_with_buffers_keeps_what_was_written, setup),
        cmocka_unit_test_setup(small_file_is_replaced_whole, setup),
        cmocka_unit_test_setup(page_memory_works_where_it_may_not_be_locked, setup),
        cmocka_unit_test_setup(more_operations_than_the_ring_holds_complete, setup),
        cmocka_unit_test_setup(stream_over_tcp_carries_bytes, setup),
        cmocka_unit_test_setup(stream_over_ipv6_and_a_name_carries_bytes, setup),
        cmocka_unit_test_setup(stream_over_a_unix_socket_carries_bytes, setup),
        cmocka_unit_test_setup(unix_socket_that_is_stale_is_replaced, setup),
        cmocka_unit_test_setup(address_in_use_is_waited_for, setup),
        cmocka_unit_test_setup(thousand_connections_are_served_at_once, setup),
        cmocka_unit_test_setup(peers_may_vanish_and_calls_be_cancelled, setup),
        cmocka_unit_test_setup(peer_that_never_reads_runs_into_the_deadline, setup),
        cmocka_unit_test_setup(reactors_of_two_threads_call_each_other, setup),
        cmocka_unit_test_setup(idle_reactor_uses_no_cpu, setup),
        cmocka_unit_test_setup(datagrams_go_both_ways, setup),
        cmocka_unit_test_setup(helper_threads_leave_the_loop_free, setup),
    };
    return cmocka_run_group_tests_name("the real world", tests, setup_group, teardown_group);
}
