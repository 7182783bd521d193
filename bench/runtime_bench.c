/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro benchmarks of runtime/: what a switch, a page, a message, an echo and a 4 KiB read cost. CPU is that
 * of the reactor's thread, kernel included. Usage: runtime_bench [FILE], FILE (made if it is not there, 256
 * MiB) for the drive's part.
 */
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "runtime/world_real.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_BYTES 28u
#define REPLY_HEADER  16u
#define FILE_BYTES    (256 * MIB)

static uint64_t clock_of(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}
static uint64_t cpu_ns(void)
{
    return clock_of(CLOCK_THREAD_CPUTIME_ID);
}
static uint64_t wall_ns(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static void must(int err, const char *what)
{
    if (err == 0)
        return;
    fprintf(stderr, "runtime_bench: %s: %s\n", what, error_text(err));
    exit(1);
}

static void report(const char *name, uint64_t ops, uint64_t wall, uint64_t cpu)
{
    printf("%-44s %10.1f ns/op %10.1f ns CPU/op %10.0f op/s\n", name, (double)wall / (double)ops,
           (double)cpu / (double)ops, (double)ops * 1e9 / (double)wall);
}

/* ---- Fibers and memory ---- */

enum { SWITCHES = 2000000 };
static fiber_role_assumed void yielder(void *arg)
{
    (void)arg;
    for (int i = 0; i < SWITCHES / 2; i++)
        fiber_yield();
}

static void nothing(void *arg)
{
    (void)arg;
}

static fiber_role_assumed void bench_fibers(void)
{
    struct fiber *a, *b;
    uint64_t w = wall_ns(), c = cpu_ns();
    must(fiber_spawn_joinable("a", yielder, NULL, &a), "spawn");
    must(fiber_spawn_joinable("b", yielder, NULL, &b), "spawn");
    fiber_join(a);
    fiber_join(b);
    report("fiber: yield to another", SWITCHES, wall_ns() - w, cpu_ns() - c);
    enum { SPAWNS = 200000 };
    w = wall_ns(), c = cpu_ns();
    for (int i = 0; i < SPAWNS; i++) {
        must(fiber_spawn_joinable("n", nothing, NULL, &a), "spawn");
        fiber_join(a);
    }
    report("fiber: spawn, run, join", SPAWNS, wall_ns() - w, cpu_ns() - c);
}

static void bench_pages(uint32_t n)
{
    enum { ROUNDS = 20000, HELD = 64 };
    struct page *p[HELD];
    uint64_t w = wall_ns(), c = cpu_ns();
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < HELD; k++)
            must(page_alloc(n, &p[k]), "page_alloc");
        for (int k = 0; k < HELD; k++)
            page_put(p[k], n);
    }
    char name[64];
    snprintf(name, sizeof(name), "memory: allocate and put %u pages", n);
    report(name, (uint64_t)ROUNDS * HELD, wall_ns() - w, cpu_ns() - c);
}

static int answer(void *arg)
{
    (void)arg;
    return 0;
}

static fiber_role_assumed void bench_block(void)
{
    enum { CALLS = 20000 };
    uint64_t w = wall_ns(), c = cpu_ns();
    for (int i = 0; i < CALLS; i++)
        must(reactor_block(answer, NULL), "block");
    report("reactor_block: there and back", CALLS, wall_ns() - w, cpu_ns() - c);
}

/* ---- A server of 4 KiB replies, as NBD reads from a cache are ---- */

struct client {
    char address[64];
    uint32_t depth, count, reply_bytes;
    int fd;
    uint64_t wall;
};

static void client_connect(struct client *k)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sa.sin_port = htons((uint16_t)strtoul(strrchr(k->address, ':') + 1, NULL, 10)); /* our own listener's */
    int on = 1;
    k->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (k->fd < 0 || connect(k->fd, (struct sockaddr *)&sa, sizeof(sa)) != 0)
        must(ERR_SYS(errno), "connect");
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* Keeps depth requests under way with blocking calls. */
static void *client_main(void *arg)
{
    struct client *k = arg;
    static char requests[256 * REQUEST_BYTES], replies[1 << 20];
    client_connect(k);
    uint64_t sent = k->depth, received_bytes = 0, answered = 0;
    uint64_t begin = wall_ns();
    if (send(k->fd, requests, (size_t)k->depth * REQUEST_BYTES, 0) < 0)
        must(ERR_SYS(errno), "send");
    while (answered < k->count) {
        ssize_t n = recv(k->fd, replies, sizeof(replies), 0);
        if (n <= 0)
            must(ERR_SYS(errno), "recv");
        received_bytes += (uint64_t)n;
        uint64_t now_answered = received_bytes / k->reply_bytes;
        uint64_t more = MIN(now_answered - answered, k->count - sent);
        answered = now_answered;
        if (more > 0 && send(k->fd, requests, more * REQUEST_BYTES, 0) < 0)
            must(ERR_SYS(errno), "send");
        sent += more;
    }
    k->wall = wall_ns() - begin;
    close(k->fd);
    return NULL;
}

/* Answers what one receive brought; gathered into one send if asked. */
static fiber_role_assumed void serve(struct stream *s, uint32_t reply_bytes, bool gather, const char *data)
{
    static char in[64 * 1024], header[REPLY_HEADER];
    static struct iovec out[2 * 256];
    size_t have = 0;
    for (;;) {
        struct iovec iov = {in + have, sizeof(in) - have};
        size_t n;
        if (stream_recvv(s, &iov, 1, reactor_now_ns() + 30 * NSEC_PER_SEC, &n) != 0)
            return;
        have += n;
        uint32_t requests = (uint32_t)(have / REQUEST_BYTES), at = 0;
        while (at < requests) {
            uint32_t batch = gather ? MIN(requests - at, 256u) : 1;
            for (uint32_t i = 0; i < batch; i++) {
                out[2 * i] = (struct iovec){header, sizeof(header)};
                out[2 * i + 1] =
                    (struct iovec){(void *)(uintptr_t)data, reply_bytes - (uint32_t)sizeof(header)};
            }
            if (stream_sendv(s, out, 2 * batch, DEADLINE_NEVER) != 0)
                return;
            at += batch;
        }
        have -= (size_t)requests * REQUEST_BYTES;
        memmove(in, in + (size_t)requests * REQUEST_BYTES, have);
    }
}

static fiber_role_assumed void bench_echo(uint32_t depth, uint32_t count, uint32_t payload, bool gather)
{
    static char data[1 << 20];
    struct listener *l;
    struct stream *s;
    struct client k = {.depth = depth, .count = count, .reply_bytes = REPLY_HEADER + payload};
    must(listener_open("tcp:127.0.0.1:0", &l), "listen");
    snprintf(k.address, sizeof(k.address), "%s", listener_address(l));
    pthread_t thread;
    must(pthread_create(&thread, NULL, client_main, &k) == 0 ? 0 : ERR_NO_MEMORY, "thread");
    must(listener_accept(l, &s), "accept");
    uint64_t c = cpu_ns();
    serve(s, k.reply_bytes, gather, data);
    c = cpu_ns() - c;
    pthread_join(thread, NULL);
    char name[64];
    snprintf(name, sizeof(name), "tcp: %u B replies, depth %u, %s", payload, depth,
             gather ? "gathered" : "one by one");
    report(name, count, k.wall, c);
    stream_close(s);
    listener_close(l);
}

/* ---- Random reads and writes of a file ---- */

struct reader {
    struct file *file;
    struct latch *latch;
    struct page *page;
    uint32_t count;
    uint64_t seed;
    enum file_op op;
    bool dsync, fixed;
};

static fiber_role_assumed void reader_fiber(void *arg)
{
    struct reader *r = arg;
    struct iovec iov = {r->page->data, BLOCK_SIZE};
    for (uint32_t i = 0; i < r->count; i++) {
        r->seed = r->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        struct file_io io = {.file = r->file,
                             .op = r->op,
                             .dsync = r->dsync,
                             .offset = (r->seed >> 33) % (FILE_BYTES / BLOCK_SIZE) * BLOCK_SIZE,
                             .len = BLOCK_SIZE,
                             .iov = &iov,
                             .iov_count = 1,
                             .page = r->fixed ? r->page : NULL};
        must(file_do(&io), "file I/O");
    }
    latch_down(r->latch);
}

static fiber_role_assumed void bench_file(struct file *f, const char *what, struct reader proto,
                                          uint32_t depth)
{
    enum { DEPTH_MAX = 64 };
    static struct reader readers[DEPTH_MAX];
    struct latch latch;
    latch_init(&latch, depth);
    uint64_t w = wall_ns(), c = cpu_ns();
    for (uint32_t i = 0; i < depth; i++) {
        readers[i] = proto;
        readers[i].file = f;
        readers[i].latch = &latch;
        readers[i].seed = i * UINT64_C(0x9e3779b97f4a7c15);
        readers[i].count = proto.count / depth;
        must(page_alloc(1, &readers[i].page), "page_alloc");
        must(fiber_spawn("reader", reader_fiber, &readers[i]), "spawn");
    }
    latch_wait(&latch);
    char name[64];
    snprintf(name, sizeof(name), "file: %s, depth %u%s", what, depth, proto.fixed ? ", registered" : "");
    report(name, proto.count / depth * depth, wall_ns() - w, cpu_ns() - c);
    for (uint32_t i = 0; i < depth; i++)
        page_put(readers[i].page, 1);
}

static fiber_role_assumed struct file *file_prepare(const char *path)
{
    struct file *f;
    uint32_t flags = FILE_OPEN_WRITE | FILE_OPEN_DIRECT;
    if (file_open(path, flags, &f) == 0)
        return f;
    must(file_open(path, flags | FILE_OPEN_CREATE, &f), path);
    struct page *p;
    must(page_alloc(PAGE_RUN_MAX, &p), "page_alloc");
    world_random(p->data, (size_t)PAGE_RUN_MAX * BLOCK_SIZE);
    for (uint64_t at = 0; at < FILE_BYTES; at += (uint64_t)PAGE_RUN_MAX * BLOCK_SIZE)
        must(file_write(f, at, p->data, (size_t)PAGE_RUN_MAX * BLOCK_SIZE), "write");
    must(file_sync(f), "sync");
    page_put(p, PAGE_RUN_MAX);
    return f;
}

static const char *file_path, *only_part;
static bool part(const char *name)
{
    return only_part == NULL || strcmp(only_part, name) == 0;
}

static fiber_role_assumed void bench_file_all(void)
{
    struct file *f = file_prepare(file_path);
    struct file_info info;
    must(file_get_info(f, &info), "info");
    printf("file: O_DIRECT %s\n", info.direct ? "yes" : "no");
    for (int fixed = 0; fixed < 2 && part("read"); fixed++) {
        bench_file(f, "random read", (struct reader){.op = FILE_READ, .count = 10000, .fixed = fixed}, 1);
        bench_file(f, "random read", (struct reader){.op = FILE_READ, .count = 100000, .fixed = fixed}, 32);
    }
    if (part("write"))
        bench_file(f, "random write", (struct reader){.op = FILE_WRITE, .count = 50000, .fixed = true}, 32);
    struct reader fua = {.op = FILE_WRITE, .count = 10000, .fixed = true, .dsync = true};
    if (part("fua")) {
        bench_file(f, "random FUA write", fua, 1);
        fua.count = 20000;
        bench_file(f, "random FUA write", fua, 32);
    }
    file_close(f);
}

static fiber_role_assumed void bench_all(void *arg)
{
    (void)arg;
    if (part("fiber"))
        bench_fibers();
    for (uint32_t n = 1; n <= 33 && part("memory"); n += 16)
        bench_pages(n);
    if (part("block"))
        bench_block();
    if (part("tcp")) {
        bench_echo(1, 30000, 4096, false);
        bench_echo(32, 300000, 4096, false);
        bench_echo(32, 300000, 4096, true);
        bench_echo(8, 4000, 512 * 1024, true);
    }
    if (file_path != NULL)
        bench_file_all();
}

int main(int argc, char **argv)
{
    file_path = argc > 1 ? argv[1] : NULL;
    only_part = argc > 2 ? argv[2] : NULL;
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget};
    struct reactor *r;
    must(reactor_new(&o, &r), "reactor");
    must(reactor_spawn(r, "bench", bench_all, NULL), "spawn");
    reactor_stop(r);
    must(reactor_run(r), "run");
    reactor_free(r);
    return 0;
}
