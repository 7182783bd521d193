/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NBD load of one thread on libnbd: random or sequential, reads and writes in any mixture, FUA, several
 * connections with a region each. Prints one JSON object: operations a second, bytes a second, latencies, and
 * the client's own CPU. It waits for a line on standard input before and after the timed part (--sync), so
 * that whoever started it can read the server's clocks at those moments.
 */
#include "load.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <libnbd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16
#define DEPTH_MAX       128

struct options {
    const char *uri;
    uint64_t block;
    uint64_t span; /* bytes of the volume that are used */
    unsigned depth;
    unsigned connections;
    unsigned read_percent;
    double seconds;
    bool sequential;
    bool fua;
    bool sync;
    bool fill; /* write the whole span once, in order, and end */
    uint64_t seed;
};

struct connection;
struct request {
    struct connection *connection;
    unsigned char *buf;
    uint64_t sent_ns;
    bool in_use;
};

struct connection {
    struct nbd_handle *handle;
    struct request requests[DEPTH_MAX];
    uint64_t first, last; /* its region, in blocks */
    uint64_t next;        /* for sequential */
    unsigned in_flight;
};

static struct options opt = {.block = 4096,
                             .span = UINT64_C(1) << 30,
                             .depth = 32,
                             .connections = 1,
                             .read_percent = 100,
                             .seconds = 5,
                             .seed = 1};
static struct connection connections[CONNECTIONS_MAX];
static struct load_latencies latencies;
static uint64_t errors, random_state;
static bool stopping, timed;

static int answered(void *ctx, int *error)
{
    struct request *r = ctx;
    assert(r->in_use && r->connection->in_flight > 0);
    r->in_use = false;
    r->connection->in_flight--;
    if (*error)
        errors++;
    else if (timed)
        load_latency_add(&latencies, load_now_ns() - r->sent_ns);
    return 1;
}

static uint64_t choose_block(struct connection *c)
{
    if (!opt.sequential)
        return c->first + load_random(&random_state) % (c->last - c->first);
    uint64_t block = c->next++;
    if (c->next == c->last) {
        c->next = c->first;
        if (opt.fill)
            stopping = true;
    }
    return block;
}

static void send_one(struct connection *c, struct request *r)
{
    nbd_completion_callback done = {.callback = answered, .user_data = r};
    uint64_t offset = choose_block(c) * opt.block;
    bool reads = load_random(&random_state) % 100 < opt.read_percent;
    r->in_use = true;
    r->sent_ns = load_now_ns();
    c->in_flight++;
    int64_t cookie;
    if (reads)
        cookie = nbd_aio_pread(c->handle, r->buf, opt.block, offset, done, 0);
    else {
        /* So that no two blocks are the same, at a cost that does not matter. */
        for (uint64_t i = 0; i < opt.block; i += 4096) {
            uint64_t word = load_random(&random_state);
            memcpy(r->buf + i, &word, sizeof(word));
        }
        cookie =
            nbd_aio_pwrite(c->handle, r->buf, opt.block, offset, done, opt.fua ? LIBNBD_CMD_FLAG_FUA : 0);
    }
    if (cookie < 0) {
        fprintf(stderr, "nbdload: %s\n", nbd_get_error());
        exit(1);
    }
}

static void pump(void)
{
    struct pollfd fds[CONNECTIONS_MAX];
    for (unsigned i = 0; i < opt.connections; i++) {
        unsigned direction = nbd_aio_get_direction(connections[i].handle);
        fds[i] = (struct pollfd){.fd = nbd_aio_get_fd(connections[i].handle)};
        fds[i].events = (short)((direction & LIBNBD_AIO_DIRECTION_READ ? POLLIN : 0) |
                                (direction & LIBNBD_AIO_DIRECTION_WRITE ? POLLOUT : 0));
    }
    if (poll(fds, opt.connections, 1000) < 0 && errno != EINTR) {
        perror("nbdload: poll");
        exit(1);
    }
    for (unsigned i = 0; i < opt.connections; i++) {
        struct nbd_handle *h = connections[i].handle;
        unsigned direction = nbd_aio_get_direction(h);
        if (direction & LIBNBD_AIO_DIRECTION_READ && fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            nbd_aio_notify_read(h);
        else if (direction & LIBNBD_AIO_DIRECTION_WRITE && fds[i].revents & (POLLOUT | POLLHUP | POLLERR))
            nbd_aio_notify_write(h);
        if (nbd_aio_is_dead(h) || nbd_aio_is_closed(h)) {
            fprintf(stderr, "nbdload: the server closed the connection\n");
            exit(1);
        }
    }
}

static void fill_all(void)
{
    for (unsigned i = 0; i < opt.connections && !stopping; i++)
        for (unsigned k = 0; k < opt.depth && !stopping; k++)
            if (!connections[i].requests[k].in_use)
                send_one(&connections[i], &connections[i].requests[k]);
}

static bool any_in_flight(void)
{
    for (unsigned i = 0; i < opt.connections; i++)
        if (connections[i].in_flight)
            return true;
    return false;
}

static void run_for(double seconds)
{
    uint64_t end = load_now_ns() + (uint64_t)(seconds * 1e9);
    while (!stopping && load_now_ns() < end) {
        fill_all();
        pump();
    }
}

static void open_all(void)
{
    uint64_t blocks = opt.span / opt.block / opt.connections;
    assert(blocks > 1);
    for (unsigned i = 0; i < opt.connections; i++) {
        struct connection *c = &connections[i];
        c->handle = nbd_create();
        if (!c->handle || nbd_connect_uri(c->handle, opt.uri) < 0) {
            fprintf(stderr, "nbdload: %s\n", nbd_get_error());
            exit(1);
        }
        c->first = c->next = i * blocks;
        c->last = c->first + blocks;
        for (unsigned k = 0; k < opt.depth; k++) {
            c->requests[k].connection = c;
            c->requests[k].buf = aligned_alloc(4096, opt.block);
            assert(c->requests[k].buf);
            load_random_fill(&random_state, c->requests[k].buf, opt.block);
        }
    }
}

static void measure(void)
{
    double cpu_s = load_own_cpu_s();
    uint64_t start = load_now_ns();
    timed = true;
    run_for(opt.fill ? 1e6 : opt.seconds);
    timed = false;
    struct load_result result = {.seconds = (double)(load_now_ns() - start) / 1e9,
                                 .cpu_s = load_own_cpu_s() - cpu_s,
                                 .operations = latencies.count,
                                 .bytes = latencies.count * opt.block};
    load_wait_for_line(opt.sync, "done");
    stopping = true;
    while (any_in_flight())
        pump();
    result.errors = errors;
    load_print(&result, &latencies);
}

static void usage(void)
{
    fputs("usage: nbdload URI [--block BYTES] [--span BYTES] [--depth N] [--connections N] [--read PERCENT]\n"
          "               [--seconds S] [--warmup S] [--sequential] [--fua] [--sync] [--fill] [--seed N]\n",
          stderr);
    exit(2);
}

static uint64_t number(const char *text)
{
    uint64_t n;
    if (!load_number(text, &n))
        usage();
    return n;
}

static double parse(int argc, char **argv)
{
    static const struct option table[] = {
        {"block", required_argument, NULL, 'b'},
        {"span", required_argument, NULL, 'n'},
        {"depth", required_argument, NULL, 'd'},
        {"connections", required_argument, NULL, 'c'},
        {"read", required_argument, NULL, 'r'},
        {"seconds", required_argument, NULL, 't'},
        {"warmup", required_argument, NULL, 'w'},
        {"sequential", no_argument, NULL, 's'},
        {"fua", no_argument, NULL, 'f'},
        {"sync", no_argument, NULL, 'y'},
        {"fill", no_argument, NULL, 'F'},
        {"seed", required_argument, NULL, 'S'},
        {0},
    };
    double warmup = 0.5;
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        switch (c) {
        case 'b':
            opt.block = number(optarg);
            break;
        case 'n':
            opt.span = number(optarg);
            break;
        case 'd':
            opt.depth = (unsigned)number(optarg);
            break;
        case 'c':
            opt.connections = (unsigned)number(optarg);
            break;
        case 'r':
            opt.read_percent = (unsigned)number(optarg);
            break;
        case 't':
            opt.seconds = (double)number(optarg);
            break;
        case 'w':
            warmup = (double)number(optarg);
            break;
        case 's':
            opt.sequential = true;
            break;
        case 'f':
            opt.fua = true;
            break;
        case 'y':
            opt.sync = true;
            break;
        case 'F':
            opt.fill = opt.sequential = true;
            break;
        case 'S':
            opt.seed = number(optarg);
            break;
        default:
            usage();
        }
    }
    if (optind + 1 != argc || opt.block % 4096 || !opt.block || opt.connections - 1 >= CONNECTIONS_MAX ||
        opt.depth - 1 >= DEPTH_MAX)
        usage();
    opt.uri = argv[optind];
    return warmup;
}

int main(int argc, char **argv)
{
    double warmup = parse(argc, argv);
    random_state = opt.seed;
    open_all();
    if (opt.fill)
        opt.read_percent = 0;
    else
        run_for(warmup);
    load_wait_for_line(opt.sync, "ready");
    measure();
    for (unsigned i = 0; i < opt.connections; i++) {
        if (opt.fill && nbd_flush(connections[i].handle, 0) < 0)
            errors++;
        nbd_close(connections[i].handle);
    }
    return errors ? 1 : 0;
}
