/* SPDX-License-Identifier: Apache-2.0 */
/* The server: what clients can do to each other, exports that come and go, access lists. */
#include "fixture.h"

#include "protocols/nbd/nbd.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- Limits ---- */

static void deaf_body(void) may_yield
{
    uint8_t *b = malloc(MIB);
    pattern(b, MIB, 5);
    for (uint64_t i = 0; i < 32; i++)
        fake_volume_poke(volume, i * MIB, b, MIB);
    struct client deaf[4], good;
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(client_open(&deaf[i], ADDRESS, "rw", i % 2 ? CLIENT_STRUCTURED : 0, NULL), 0);
    CHECK_EQUAL(client_open(&good, ADDRESS, "rw", 0, NULL), 0);
    uint64_t before, used, held;
    memory_usage(reactor_memory(reactor_current()), &before, &held);
    for (int i = 0; i < 4; i++) {
        for (uint64_t k = 0; k < 200; k++)
            client_send(&deaf[i], NBD_CMD_READ, 0, k % 64 * 512 * KIB, 512 * KIB, NULL);
    }
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    uint64_t began = reactor_now_ns();
    for (uint64_t i = 0; i < 50; i++)
        CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, i * 4096, 4096, b), 0);
    CHECK_EQUAL(do_error(&good, NBD_CMD_WRITE, 0, 33 * MIB, MIB, b), 0);
    CHECK(reactor_now_ns() - began < NSEC_PER_SEC);
    memory_usage(reactor_memory(reactor_current()), &used, &held);
    CHECK(used - before < 4 * MIB);
    struct nbd_export_status st;
    CHECK_EQUAL(nbd_server_get_export(server, "rw", &st), 0);
    CHECK(st.requests < 4 * 40 + 60); /* they are read from no more */
    CHECK_EQUAL(st.clients, 5);
    for (int i = 0; i < 4; i++)
        client_close(&deaf[i]);
    CHECK_EQUAL(client_disconnect(&good), 0);
    free(b);
}

static void clients_that_read_no_replies_hurt_nobody(void **state)
{
    run_once(deaf_body);
}

static void stalled_body(void) may_yield
{
    struct client stalled[20], good;
    static uint8_t b[65536];
    pattern(b, sizeof(b), 5);
    for (uint64_t i = 0; i < 4 * 32; i++)
        fake_volume_poke(volume, i * sizeof(b), b, sizeof(b));
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(client_open(&stalled[i], ADDRESS, "rw", i % 2 ? CLIENT_STRUCTURED : 0, NULL), 0);
        client_send(&stalled[i], NBD_CMD_READ, 0, 0, (i < 15 ? 4 * MIB : 3900 * KIB), NULL);
    }
    CHECK_EQUAL(fiber_sleep(NSEC_PER_SEC), 0);
    CHECK_EQUAL(client_open(&good, ADDRESS, "rw", 0, NULL), 0);
    uint64_t began = reactor_now_ns();
    uint8_t *big = malloc(2 * MIB);
    CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, 0, 2 * MIB, big), 0);
    free(big);
    CHECK(reactor_now_ns() - began < 12 * NSEC_PER_SEC);
    struct nbd_server_status st;
    nbd_server_get_status(server, &st);
    CHECK(st.evicted >= 1);
    CHECK_EQUAL(client_disconnect(&good), 0);
    for (int i = 0; i < 20; i++)
        client_close(&stalled[i]);
}

static void stalled_clients_go_when_others_wait_for_their_memory(void **state)
{
    run_once(stalled_body);
}

static void half_payload_body(void) may_yield
{
    struct client c, good;
    uint8_t b[4096] = {1};
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    client_send(&c, NBD_CMD_WRITE, 0, 0, MIB, NULL); /* and no byte of it */
    CHECK_EQUAL(stream_send_all(c.stream, b, sizeof(b), DEADLINE_NEVER), 0);
    CHECK_EQUAL(client_open(&good, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, 0, 4096, b), 0);
    CHECK_EQUAL(client_disconnect(&good), 0);
    client_close(&c);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    CHECK_EQUAL(fake_volume_counts(volume)->writes, 0);
}

static void write_cut_within_its_payload_writes_nothing(void **state)
{
    run(half_payload_body);
}

static void many_body(void) may_yield
{
    static struct client idle[10000];
    uint8_t b[16];
    for (size_t i = 0; i < ARRAY_SIZE(idle); i++)
        CHECK_EQUAL(stream_connect(ADDRESS, DEADLINE_NEVER, &idle[i].stream), 0);
    struct client good;
    CHECK_EQUAL(client_open(&good, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, 0, 16, b), 0);
    struct nbd_server_status st;
    nbd_server_get_status(server, &st);
    CHECK(st.handshakes <= 2 * 128);
    CHECK(st.evicted >= 9000);
    CHECK_EQUAL(fiber_sleep(11 * NSEC_PER_SEC), 0);
    nbd_server_get_status(server, &st);
    CHECK_EQUAL(st.handshakes, 0);
    CHECK(st.timed_out >= 1);
    CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, 0, 16, b), 0);
    for (size_t i = 0; i < ARRAY_SIZE(idle); i++)
        client_close(&idle[i]);
    CHECK_EQUAL(client_disconnect(&good), 0);
}

static void ten_thousand_idle_connections_keep_nobody_out(void **state)
{
    loop_world_init(&world);
    world.pipe_bytes = 4096;
    run_in(many_body, 256 * MIB);
}

static void connection_limit_body(void) may_yield
{
    struct client c[4];
    uint32_t refusal = 0;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(client_open(&c[i], ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(client_open(&c[3], ADDRESS, "rw", 0, &refusal), ERR_DENIED);
    CHECK_EQUAL(refusal, NBD_REP_ERR_POLICY);
    CHECK_EQUAL(client_disconnect(&c[0]), 0);
    CHECK_EQUAL(client_open(&c[3], ADDRESS, "rw", 0, &refusal), 0);
    for (int i = 1; i < 4; i++)
        CHECK_EQUAL(client_disconnect(&c[i]), 0);
}

static void connections_have_a_limit(void **state)
{
    limits.connections = 3;
    run(connection_limit_body);
}

static void accept_error_body(void) may_yield
{
    struct client c;
    uint8_t b[16];
    world.accept_error = ERR_SYS(EMFILE);
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 16, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
}

static void listener_survives_errors_of_accept(void **state)
{
    run_once(accept_error_body);
}

static bool always(void *ctx)
{
    (void)ctx;
    return true;
}

static void no_memory_body(void) may_yield
{
    uint8_t *b = calloc(1, 3 * MIB);
    struct client c;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL), 0);
    memory_set_failure(reactor_memory(reactor_current()), always, NULL);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 0, 4096, b), NBD_ENOMEM); /* in virtual time */
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 5, 3 * MIB, b), NBD_ENOMEM);
    memory_set_failure(reactor_memory(reactor_current()), NULL, NULL);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 5, 3 * MIB, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
    free(b);
}

static void writes_without_memory_fail_and_keep_in_step(void **state)
{
    run_once(no_memory_body);
}

static uint32_t fail_at, allocations;

static bool nth(void *ctx)
{
    (void)ctx;
    return allocations++ == fail_at;
}

static void sweep_body(void) may_yield
{
    static uint8_t b[100000];
    struct client c;
    allocations = 0;
    memory_set_failure(reactor_memory(reactor_current()), nth, NULL);
    if (client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL) == 0) {
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 5, sizeof(b), b), 0); /* it waits for memory */
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 9, 100, b), 0);
        for (int i = 0; i < 20; i++)
            client_send(&c, NBD_CMD_WRITE, 0, 0, 4096, b);
        for (int i = 0; i < 20; i++) {
            struct client_reply r;
            CHECK_EQUAL(client_receive(&c, &r, b, 0, 0), 0);
            CHECK_EQUAL(r.error, 0);
        }
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 5, sizeof(b), b), 0);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    memory_set_failure(reactor_memory(reactor_current()), NULL, NULL);
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 16, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
}

static void each_page_allocation_may_fail_once(void **state)
{
    fail_at = 0;
    do {
        run_once(sweep_body);
    } while (allocations > fail_at++);
    assert_in_range(fail_at, 20, 200);
}

/* ---- Exports ---- */

static uint32_t open_refusal(const char *name) may_yield
{
    struct client c;
    uint32_t refusal = 0;
    int err = client_open(&c, ADDRESS, name, 0, &refusal);
    if (err == 0)
        client_close(&c);
    return err == 0 ? 0 : refusal;
}

static void exports_body(void) may_yield
{
    CHECK_EQUAL(open_refusal(""), 0); /* the only one */
    CHECK_EQUAL(add("rw", false, NULL), ERR_EXISTS);
    CHECK_EQUAL(add("", false, NULL), ERR_INVALID);
    CHECK_EQUAL(add("bad", false, "10.0.0.1/8"), ERR_INVALID);
    CHECK_EQUAL(add("two", false, NULL), 0);
    CHECK_EQUAL(open_refusal(""), NBD_REP_ERR_UNKNOWN);
    CHECK_EQUAL(open_refusal("two"), 0);
    CHECK_EQUAL(nbd_server_remove_export(server, "two"), 0);
    CHECK_EQUAL(nbd_server_remove_export(server, "two"), ERR_NOT_FOUND);
    CHECK_EQUAL(open_refusal("two"), NBD_REP_ERR_UNKNOWN);
}

static void exports_come_and_go(void **state)
{
    run(exports_body);
}

static void remove_body(void) may_yield
{
    uint8_t b[4096] = {9};
    struct client c[3];
    struct client_reply r;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(client_open(&c[i], ADDRESS, "rw", 0, NULL), 0);
    fake_volume_knobs(volume)->delay_ns = NSEC_PER_SEC;
    client_send(&c[0], NBD_CMD_WRITE, 0, 0, 4096, b);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    CHECK_EQUAL(nbd_server_remove_export(server, "rw"), 0);
    CHECK_EQUAL(block_open_count(device), 0);
    CHECK_EQUAL(client_receive(&c[0], &r, b, 0, 0), 0); /* was finished and answered */
    CHECK_EQUAL(r.error, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(client_receive(&c[i], &r, b, 0, 0), ERR_CLOSED);
        client_close(&c[i]);
    }
    CHECK_EQUAL(fake_volume_counts(volume)->writes, 1);
}

static void removed_export_finishes_its_requests_and_disconnects(void **state)
{
    run(remove_body);
}

static void remove_deaf_body(void) may_yield
{
    struct client c;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    for (int i = 0; i < 8; i++)
        client_send(&c, NBD_CMD_READ, 0, 0, MIB, NULL);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_SEC), 0);
    uint64_t began = reactor_now_ns();
    CHECK_EQUAL(nbd_server_remove_export(server, "rw"), 0);
    CHECK(reactor_now_ns() - began < 6 * NSEC_PER_SEC);
    client_close(&c);
}

static void removal_does_not_wait_for_a_deaf_client(void **state)
{
    run_once(remove_deaf_body);
}

static void stop_body(void) may_yield
{
    struct client c[3], greeting;
    uint8_t byte;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(client_open(&c[i], ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(client_greet(&greeting, ADDRESS), 0);
    nbd_server_stop(server);
    server = NULL;
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(stream_recv_all(c[i].stream, &byte, 1, DEADLINE_NEVER), ERR_CLOSED);
        client_close(&c[i]);
    }
    client_close(&greeting);
}

static void stopping_disconnects_everybody(void **state)
{
    run(stop_body);
}

static void grow_body(void) may_yield
{
    struct client old, fresh;
    uint8_t b[16] = {3};
    CHECK_EQUAL(client_open(&old, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(block_resize(device, 2 * SIZE), 0);
    CHECK_EQUAL(do_error(&old, NBD_CMD_WRITE, 0, SIZE, 16, b), NBD_ENOSPC); /* as it was told */
    CHECK_EQUAL(client_open(&fresh, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(fresh.size_bytes, 2 * SIZE);
    CHECK_EQUAL(do_error(&fresh, NBD_CMD_WRITE, 0, 2 * SIZE - 16, 16, b), 0);
    CHECK_EQUAL(client_disconnect(&old), 0);
    CHECK_EQUAL(client_disconnect(&fresh), 0);
}

static void grown_device_is_seen_by_who_reconnects(void **state)
{
    run(grow_body);
}

static uint32_t listed(void) may_yield
{
    struct client c;
    uint8_t data[NBD_NAME_MAX];
    uint32_t n = 0, type = 0, len;
    CHECK_EQUAL(client_greet(&c, ADDRESS), 0);
    CHECK_EQUAL(client_option(&c, NBD_OPT_LIST, NULL, 0), 0);
    while (client_option_reply(&c, &type, data, &len) == 0 && type == NBD_REP_SERVER)
        n++;
    CHECK_EQUAL(type, NBD_REP_ACK);
    client_close(&c);
    return n;
}

static void access_body(void) may_yield
{
    CHECK_EQUAL(add("lan", false, "10.1.0.0/16, fd00::/8"), 0);
    static const struct {
        const char *ip;
        bool allowed;
    } cases[] = {{"10.1.200.3", true}, {"10.2.0.1", false}, {"fd12::1", true},
                 {"fe80::1", false},   {"", true},          {"127.0.0.1", false}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world.peer_ip = cases[i].ip;
        CHECK_EQUAL(listed(), cases[i].allowed ? 2 : 1);
        CHECK_EQUAL(open_refusal("lan"), cases[i].allowed ? 0 : NBD_REP_ERR_UNKNOWN);
        CHECK_EQUAL(open_refusal("rw"), 0);
        CHECK_EQUAL(open_refusal(""), cases[i].allowed ? NBD_REP_ERR_UNKNOWN : 0);
    }
}

static void who_is_not_on_the_list_sees_no_export(void **state)
{
    run(access_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_that_read_no_replies_hurt_nobody),
        cmocka_unit_test(stalled_clients_go_when_others_wait_for_their_memory),
        cmocka_unit_test(write_cut_within_its_payload_writes_nothing),
        cmocka_unit_test(ten_thousand_idle_connections_keep_nobody_out),
        cmocka_unit_test(connections_have_a_limit),
        cmocka_unit_test(listener_survives_errors_of_accept),
        cmocka_unit_test(writes_without_memory_fail_and_keep_in_step),
        cmocka_unit_test(each_page_allocation_may_fail_once),
        cmocka_unit_test(exports_come_and_go),
        cmocka_unit_test(removed_export_finishes_its_requests_and_disconnects),
        cmocka_unit_test(removal_does_not_wait_for_a_deaf_client),
        cmocka_unit_test(stopping_disconnects_everybody),
        cmocka_unit_test(grown_device_is_seen_by_who_reconnects),
        cmocka_unit_test(who_is_not_on_the_list_sees_no_export),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
