/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NBD: the transmission phase of a whole server, over a volume and a network in memory and in virtual time.
 * The first byte chooses what was agreed, how receives are cut, and how slow the volume is; the rest is what
 * the client sends before it closes its sending side. The server's replies are read (or, by one choice, never
 * are) and must be well formed; afterwards nothing may be left: no stream, no page, no request. Now and
 * then a good client beside it must be served.
 */
#include "client.h"
#include "fake_volume.h"
#include "loop_world.h"
#include "protocols/nbd/nbd.h"
#include "runtime/error.h"
#include "runtime/list.h"
#include "runtime/log.h"

#include <stdlib.h>

#define ADDRESS "tcp:127.0.0.1:10809"
#define SIZE    (4 * MIB)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    const uint8_t *data;
    size_t len;
    uint8_t choice;
    struct client client;
    struct latch done;
} fuzz;

static void sender(void *arg) may_yield
{
    (void)arg;
    int err = stream_send_all(fuzz.client.stream, fuzz.data, fuzz.len, DEADLINE_NEVER);
    (void)err; /* the server may have hung up */
    latch_down(&fuzz.done);
}

/* Reads what comes, message by message. The data of a simple reply's read has no length of its own: a stream
 * of simple replies is only read away. */
static void reader(void *arg) may_yield
{
    (void)arg;
    static uint8_t buf[SIZE]; /* no request is longer than the device */
    struct client_reply r;
    int err = 0;
    while (err == 0 && fuzz.client.structured)
        err = client_receive(&fuzz.client, &r, buf, 0, 0);
    assert(!fuzz.client.structured || err == ERR_CLOSED || err == ERR_TIMEOUT);
    while (err == 0) {
        size_t n;
        struct iovec iov = {buf, sizeof(buf)};
        err = stream_recvv(fuzz.client.stream, &iov, 1, reactor_now_ns() + 100 * NSEC_PER_SEC, &n);
    }
    latch_down(&fuzz.done);
}

static void serve_good_client(void) may_yield
{
    struct client good;
    struct client_result r;
    uint8_t b[100] = {1};
    int err = client_open(&good, ADDRESS, "rw", 0, NULL);
    assert(err == 0);
    err = client_do(&good, NBD_CMD_WRITE, 0, 5, sizeof(b), b, &r);
    assert(err == 0 && r.error == 0);
    err = client_disconnect(&good);
    assert(err == 0);
}

static void session(void) may_yield
{
    uint32_t wishes = fuzz.choice & 1 ? CLIENT_STRUCTURED | (fuzz.choice & 2 ? CLIENT_ALLOCATION : 0) : 0;
    int err = client_open(&fuzz.client, ADDRESS, fuzz.choice & 4 ? "ro" : "rw", wishes, NULL);
    assert(err == 0);
    bool deaf = fuzz.choice & 8;
    latch_init(&fuzz.done, deaf ? 1 : 2);
    err = fiber_spawn("sender", sender, NULL);
    assert(err == 0);
    if (!deaf) {
        err = fiber_spawn("reader", reader, NULL);
        assert(err == 0);
    }
    err = fiber_sleep(10 * NSEC_PER_SEC);
    assert(err == 0);
    if (fuzz.len % 4 == 0)
        serve_good_client();
    stream_shutdown(fuzz.client.stream);
    latch_wait(&fuzz.done);
    client_close(&fuzz.client);
}

static void run(void *arg) may_yield
{
    (void)arg;
    struct volume *v = fake_volume_new(SIZE);
    struct block_device *d;
    struct nbd_server *s;
    int err = block_device_new(v, 1, &d);
    assert(err == 0);
    fake_volume_poke(v, MIB, "not all zeroes", 14);
    fake_volume_knobs(v)->delay_ns = fuzz.choice & 16 ? 100000 : 0;
    fake_volume_knobs(v)->jitter = true;
    fake_volume_knobs(v)->bad_block = 1000;
    struct nbd_server_options o = {0};
    struct nbd_listen_options l = {.address = ADDRESS};
    struct nbd_export_options rw = {.name = "rw", .device = d},
                              ro = {.name = "ro", .device = d, .read_only = true};
    err = nbd_server_start(&o, &s);
    assert(err == 0);
    err = nbd_server_listen(s, &l);
    assert(err == 0);
    err = nbd_server_add_export(s, &rw);
    assert(err == 0);
    err = nbd_server_add_export(s, &ro);
    assert(err == 0);
    session();
    nbd_server_stop(s);
    block_device_free(d);
    fake_volume_free(v);
}

/* One reactor for all inputs: making one costs more than most of them. */
static struct loop_world world;
static struct memory_budget budget = {.limit_bytes = 128 * MIB};
static struct reactor *reactor;

static void start(void)
{
    struct reactor_options o = {
        .world = &loop_world_ops, .world_ctx = &world, .budget = &budget, .chunk_bytes = 4 * MIB};
    log_set_level(LOG_ERROR_);
    loop_world_init(&world);
    world.base.shuffle = true;
    world.pipe_bytes = 16 * KIB;
    int err = reactor_new(&o, &reactor);
    assert(err == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t recv_max[] = {0, 0, 0, 0, 1, 29, 4097, 333};
    if (size < 1)
        return 0;
    if (reactor == NULL)
        start();
    fuzz.choice = data[0];
    fuzz.data = data + 1;
    fuzz.len = size - 1;
    world.recv_max = recv_max[data[0] >> 5];
    world.base.seed = size;
    int err = reactor_spawn(reactor, "fuzz", run, NULL);
    assert(err == 0);
    do {
        reactor_turn(reactor);
        struct reactor *before = reactor_enter(reactor);
        if (reactor_fiber_count(reactor) > 0)
            loop_world_ops.wait(reactor, reactor_next_deadline(reactor));
        reactor_enter(before);
    } while (reactor_fiber_count(reactor) > 0);
    uint64_t used, held;
    memory_usage(reactor_memory(reactor), &used, &held);
    assert(used == 0);
    assert(world.streams == 0 && list_empty(&world.listeners));
    return 0;
}
