/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/error.h"
#include "runtime/world.h"
#include "sim/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define FILE_BYTES (4 * MIB)

struct job {
    void (*fn)(struct job *j);
    bool done;
    int err;
    uint8_t expect, got;
    void *arg;
};

static struct sim *world_of(uint64_t seed)
{
    struct sim_options o = {
        .seed = seed, .quantum_ns = 1000, .io_latency_us = 50, .net_latency_us = 100, .shuffle_fibers = true};
    return sim_new(&o);
}

static bool job_done(void *ctx)
{
    return ((struct job *)ctx)->done;
}

static void job_entry(void *arg) fiber_role_assumed
{
    struct job *j = arg;
    j->fn(j);
    j->done = true;
}

static void node_up(struct sim_node *n)
{
    sim_node_start(n, 1, 64 * MIB, MIB);
}

/* Runs fn on a fiber of the node until it ends. */
static void node_run(struct sim_node *n, struct job *j)
{
    j->done = false;
    int err = reactor_spawn(sim_node_reactor(n, 0), "job", job_entry, j);
    assert_int_equal(err, 0);
    struct sim *s = sim_of_node(n);
    assert_int_equal(sim_run(s, job_done, j, sim_now_ns(s) + 100 * NSEC_PER_SEC), SIM_DONE);
}

static int block_write(struct file *f, uint64_t block, uint8_t fill, bool dsync) may_yield;
static int block_write(struct file *f, uint64_t block, uint8_t fill, bool dsync)
{
    struct page *p;
    int err = page_alloc(1, &p);
    if (err != 0)
        return err;
    memset(p->data, fill, BLOCK_SIZE);
    struct iovec iov = {p->data, BLOCK_SIZE};
    struct file_io io = {.file = f,
                         .op = FILE_WRITE,
                         .dsync = dsync,
                         .offset = block * BLOCK_SIZE,
                         .len = BLOCK_SIZE,
                         .iov = &iov,
                         .iov_count = 1};
    err = file_do(&io);
    page_put(p, 1);
    return err;
}

static int block_read(struct file *f, uint64_t block, uint8_t *ret_first, bool *ret_uniform) may_yield;
static int block_read(struct file *f, uint64_t block, uint8_t *ret_first, bool *ret_uniform)
{
    struct page *p;
    int err = page_alloc(1, &p);
    if (err != 0)
        return err;
    err = file_read(f, block * BLOCK_SIZE, p->data, BLOCK_SIZE);
    if (err == 0) {
        *ret_first = p->data[0];
        *ret_uniform = memcmp(p->data, p->data + 1, BLOCK_SIZE - 1) == 0;
    }
    page_put(p, 1);
    return err;
}

/* Block 0: written and synced; 1: written; 2: dsync. */
static void write_three(struct job *j) may_yield;
static void write_three(struct job *j)
{
    struct file *f;
    j->err = file_open("/d0", FILE_OPEN_WRITE | FILE_OPEN_DIRECT, &f);
    if (j->err == 0)
        j->err = block_write(f, 0, 0xa0, false);
    if (j->err == 0)
        j->err = file_sync(f);
    if (j->err == 0)
        j->err = block_write(f, 1, 0xa1, false);
    if (j->err == 0)
        j->err = block_write(f, 2, 0xa2, true);
}

struct seen {
    uint8_t first[4];
    bool uniform[4];
    int err[4];
};

static void read_all(struct job *j) may_yield;
static void read_all(struct job *j)
{
    struct seen *s = j->arg;
    struct file *f;
    j->err = file_open("/d0", FILE_OPEN_DIRECT, &f);
    for (uint64_t b = 0; j->err == 0 && b < 4; b++)
        s->err[b] = block_read(f, b, &s->first[b], &s->uniform[b]);
    if (j->err == 0)
        file_close(f);
}

static void an_unflushed_write_is_lost_torn_or_survives_and_a_flushed_one_never(void **state)
{
    (void)state;
    int lost = 0, kept = 0, torn = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct sim *s = world_of(seed);
        struct sim_node *n = sim_node_new(s);
        assert_non_null(sim_file_new(n, "/d0", FILE_BYTES));
        node_up(n);
        struct job j = {.fn = write_three};
        node_run(n, &j);
        assert_int_equal(j.err, 0);
        struct sim_power_loss p = {.lost_ppm = 400000, .torn_ppm = 200000};
        sim_node_power_loss(n, &p);
        node_up(n);
        struct seen seen = {0};
        struct job r = {.fn = read_all, .arg = &seen};
        node_run(n, &r);
        assert_int_equal(seen.first[0], 0xa0);
        assert_true(seen.uniform[0]);
        assert_int_equal(seen.first[2], 0xa2);
        assert_true(seen.uniform[2]);
        torn += !seen.uniform[1];
        lost += seen.uniform[1] && seen.first[1] == 0;
        kept += seen.uniform[1] && seen.first[1] == 0xa1;
    }
    assert_true(lost > 40 && kept > 40 && torn > 10);
    assert_int_equal(lost + kept + torn, 200);
}

static void a_killed_process_loses_nothing_that_its_kernel_completed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct sim *s = world_of(seed);
        struct sim_node *n = sim_node_new(s);
        sim_file_new(n, "/d0", FILE_BYTES);
        node_up(n);
        struct job j = {.fn = write_three};
        node_run(n, &j);
        sim_node_kill(n);
        node_up(n);
        struct seen seen = {0};
        struct job r = {.fn = read_all, .arg = &seen};
        node_run(n, &r);
        for (int b = 0; b < 3; b++) {
            assert_true(seen.uniform[b]);
            assert_int_equal(seen.first[b], 0xa0 + b);
        }
    }
}

struct pair {
    struct file *f;
    bool write_done, sync_done;
    uint64_t sync_after_ns;
};

static void late_write(void *arg) fiber_role_assumed
{
    struct pair *p = arg;
    int err = block_write(p->f, 7, 0x77, false);
    p->write_done = err == 0;
}

/* A write and a sync under way together: the sync does not cover it. */
static void sync_beside_write(struct job *j) may_yield;
static void sync_beside_write(struct job *j)
{
    struct pair *p = j->arg;
    j->err = file_open("/d0", FILE_OPEN_WRITE | FILE_OPEN_DIRECT, &p->f);
    if (j->err == 0)
        j->err = fiber_spawn("late", late_write, p);
    if (j->err == 0)
        fiber_yield();
    if (j->err == 0)
        j->err = file_sync(p->f);
    p->sync_done = true;
    while (!p->write_done)
        if (fiber_sleep(NSEC_PER_USEC) != 0)
            break;
}

static void a_sync_covers_only_what_had_completed_when_it_was_submitted(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct sim *s = world_of(seed);
        struct sim_node *n = sim_node_new(s);
        struct sim_file *f = sim_file_new(n, "/d0", FILE_BYTES);
        node_up(n);
        struct pair p = {0};
        struct job j = {.fn = sync_beside_write, .arg = &p};
        node_run(n, &j);
        assert_int_equal(j.err, 0);
        assert_int_equal(sim_file_unflushed(f), 1);
        struct sim_power_loss all = {.lost_ppm = 1000000};
        sim_node_power_loss(n, &all);
        assert_null(sim_file_block(f, 7));
    }
}

static uint64_t hash_of_run(uint64_t seed)
{
    struct sim *s = world_of(seed);
    struct sim_node *n = sim_node_new(s);
    sim_file_new(n, "/d0", FILE_BYTES);
    node_up(n);
    struct job j = {.fn = write_three};
    node_run(n, &j);
    sim_node_kill(n);
    return sim_trace_hash(s);
}

static void the_same_seed_gives_the_same_trace_hash(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        assert_int_equal(hash_of_run(seed), hash_of_run(seed));
        assert_int_not_equal(hash_of_run(seed), hash_of_run(seed + 1));
    }
}

static void faults_of_a_drive_show_as_they_should(void **state)
{
    (void)state;
    struct sim *s = world_of(5);
    struct sim_node *n = sim_node_new(s);
    struct sim_file *f = sim_file_new(n, "/d0", FILE_BYTES);
    node_up(n);
    struct job j = {.fn = write_three};
    node_run(n, &j);
    assert_true(sim_file_rot_block(f, 2));
    assert_false(sim_file_rot_block(f, 900));
    struct seen seen = {0};
    struct job r = {.fn = read_all, .arg = &seen};
    node_run(n, &r);
    assert_false(seen.uniform[2]);
    sim_file_cut(f, BLOCK_SIZE);
    node_run(n, &r);
    assert_int_equal(seen.err[0], 0);
    assert_int_equal(seen.err[1], ERR_SHORT_IO);
    sim_file_faults(f)->read_error_ppm = 1000000;
    node_run(n, &r);
    assert_int_equal(seen.err[0], ERR_SYS(EIO));
    sim_file_faults(f)->lost = true;
    node_run(n, &r);
    assert_int_equal(r.err, ERR_SYS(EIO));
    assert_true(sim_faults(s)[SIM_FAULT_READ_ERROR] > 0);
}

/* ---- Network ---- */

#define NET_BYTES 300000u
struct net_job {
    struct sim_node *server, *client;
    bool server_done, client_done;
    int server_err, client_err;
    size_t received;
    bool right;
    uint64_t deadline_ns;
};

static void net_server(void *arg) fiber_role_assumed
{
    struct net_job *j = arg;
    struct listener *l;
    struct stream *s;
    j->server_err = listener_open("tcp:10.0.0.1:7000", &l);
    if (j->server_err == 0)
        j->server_err = listener_accept(l, &s);
    j->right = true;
    uint8_t buf[4096];
    while (j->server_err == 0 && j->received < NET_BYTES) {
        struct iovec iov = {buf, sizeof(buf)};
        size_t n;
        j->server_err = stream_recvv(s, &iov, 1, DEADLINE_NEVER, &n);
        for (size_t i = 0; j->server_err == 0 && i < n; i++, j->received++)
            j->right = j->right && buf[i] == (uint8_t)(j->received * 31 >> 3);
    }
    j->server_done = true;
}

static void net_client(void *arg) fiber_role_assumed
{
    struct net_job *j = arg;
    struct stream *s;
    j->client_err = stream_connect("tcp:10.0.0.1:7000", DEADLINE_NEVER, &s);
    static uint8_t data[NET_BYTES];
    for (size_t i = 0; i < NET_BYTES; i++)
        data[i] = (uint8_t)(i * 31 >> 3);
    if (j->client_err == 0)
        j->client_err = stream_send_all(s, data, NET_BYTES, DEADLINE_NEVER);
    if (j->client_err == 0)
        stream_close(s);
    j->client_done = true;
}

static bool net_done(void *ctx)
{
    struct net_job *j = ctx;
    return j->server_done && j->client_done;
}

static struct net_job net_start(struct sim *s)
{
    struct net_job j = {.server = sim_node_new(s)};
    j.client = sim_node_new(s);
    node_up(j.server);
    node_up(j.client);
    return j;
}

static void net_spawn(struct net_job *j)
{
    assert_int_equal(reactor_spawn(sim_node_reactor(j->server, 0), "server", net_server, j), 0);
    struct sim *s = sim_of_node(j->server);
    sim_run(s, NULL, NULL, sim_now_ns(s) + NSEC_PER_MSEC);
    assert_int_equal(reactor_spawn(sim_node_reactor(j->client, 0), "client", net_client, j), 0);
}

static void a_stream_carries_bytes_in_order_between_nodes(void **state)
{
    (void)state;
    struct sim *s = world_of(11);
    struct net_job j = net_start(s);
    net_spawn(&j);
    assert_int_equal(sim_run(s, net_done, &j, sim_now_ns(s) + 10 * NSEC_PER_SEC), SIM_DONE);
    assert_int_equal(j.server_err, 0);
    assert_int_equal(j.client_err, 0);
    assert_int_equal(j.received, NET_BYTES);
    assert_true(j.right);
}

static void a_partition_holds_bytes_until_it_is_healed(void **state)
{
    (void)state;
    struct sim *s = world_of(12);
    struct net_job j = net_start(s);
    sim_partition(s, 1, 0, true);
    net_spawn(&j);
    assert_int_equal(sim_run(s, net_done, &j, sim_now_ns(s) + 2 * NSEC_PER_SEC), SIM_DEADLINE);
    assert_int_equal(j.received, 0);
    sim_partition(s, 1, 0, false);
    assert_int_equal(sim_run(s, net_done, &j, sim_now_ns(s) + 10 * NSEC_PER_SEC), SIM_DONE);
    assert_int_equal(j.received, NET_BYTES);
    assert_true(j.right);
}

static bool net_some(void *ctx)
{
    return ((struct net_job *)ctx)->received > 1000;
}

static void the_death_of_a_process_closes_its_connections(void **state)
{
    (void)state;
    struct sim *s = world_of(13);
    struct net_job j = net_start(s);
    net_spawn(&j);
    assert_int_equal(sim_run(s, net_some, &j, sim_now_ns(s) + 10 * NSEC_PER_SEC), SIM_DONE);
    sim_node_kill(j.client);
    j.client_done = true;
    assert_int_equal(sim_run(s, net_done, &j, sim_now_ns(s) + 10 * NSEC_PER_SEC), SIM_DONE);
    assert_int_equal(j.server_err, ERR_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unflushed_write_is_lost_torn_or_survives_and_a_flushed_one_never),
        cmocka_unit_test(a_killed_process_loses_nothing_that_its_kernel_completed),
        cmocka_unit_test(a_sync_covers_only_what_had_completed_when_it_was_submitted),
        cmocka_unit_test(the_same_seed_gives_the_same_trace_hash),
        cmocka_unit_test(faults_of_a_drive_show_as_they_should),
        cmocka_unit_test(a_stream_carries_bytes_in_order_between_nodes),
        cmocka_unit_test(a_partition_holds_bytes_until_it_is_healed),
        cmocka_unit_test(the_death_of_a_process_closes_its_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
