/* SPDX-License-Identifier: Apache-2.0 */
/* The server: commands, data, errors. */
#include "fixture.h"

#include "protocols/nbd/nbd.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- Data ---- */

static void round_trip_body(void) may_yield
{
    static uint8_t a[300000], b[300000];
    static const struct {
        uint64_t offset;
        uint32_t len;
    } ranges[] = {{0, 4096},           {4096, 1},     {5, 4096},     {MIB - 1, 2},
                  {0, 100000},         {777, 299999}, {SIZE - 1, 1}, {SIZE - 70000, 70000},
                  {MIB - 100, 200000}, {12288, 16384}};
    for (size_t w = 0; w < ARRAY_SIZE(wishes); w++) {
        struct client c;
        CHECK_EQUAL(client_open(&c, ADDRESS, "rw", wishes[w], NULL), 0);
        CHECK_EQUAL(c.size_bytes, SIZE);
        for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
            uint32_t len = ranges[i].len;
            pattern(a, len, i + 100 * w);
            CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, ranges[i].offset, len, a), 0);
            memset(b, 0xee, len);
            CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, ranges[i].offset, len, b), 0);
            CHECK(memcmp(a, b, len) == 0);
            fake_volume_peek(volume, ranges[i].offset, b, len);
            CHECK(memcmp(a, b, len) == 0);
        }
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 10, 0, b), 0);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 10, 0, b), 0);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
}

static void what_was_written_is_read(void **state)
{
    run(round_trip_body);
}

static void longest_body(void) may_yield
{
    uint32_t len = NBD_REQUEST_MAX;
    uint8_t *a = malloc(len), *b = malloc(len);
    fake_volume_knobs(volume)->delay_ns = 1000;
    fake_volume_knobs(volume)->jitter = true;
    for (size_t w = 1; w < 3; w++) {
        struct client c;
        CHECK_EQUAL(client_open(&c, ADDRESS, "rw", wishes[w], NULL), 0);
        pattern(a, len, w);
        uint64_t offset = w == 1 ? 0 : MIB / 2 + 3;
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, offset, len, a), 0);
        CHECK_EQUAL(fake_volume_counts(volume)->flushes, w);
        memset(b, 0, len);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, offset, len, b), 0);
        CHECK(memcmp(a, b, len) == 0);
        if (c.structured) {
            struct client_result r;
            memset(b, 0, len);
            CHECK_EQUAL(client_do(&c, NBD_CMD_READ, NBD_CMD_FLAG_DF, offset, len, b, &r), 0);
            CHECK_EQUAL(r.data_chunks, 1);
            CHECK(memcmp(a, b, len) == 0);
        }
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    CHECK(fake_volume_counts(volume)->most_under_way <= 8);
    free(a);
    free(b);
}

static void longest_requests_go_in_pieces(void **state)
{
    run_once(longest_body);
    loop_world_init(&world);
    world.recv_max = 100001;
    world.base.shuffle = true;
    run_in(longest_body, 256 * MIB);
}

static void sparse_body(void) may_yield
{
    uint8_t *b = malloc(2 * MIB);
    struct client c;
    struct client_result r;
    fake_volume_poke(volume, 256 * KIB, "x", 1);
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL), 0);
    memset(b, 0xee, 2 * MIB);
    CHECK_EQUAL(client_do(&c, NBD_CMD_READ, 0, 100, MIB - 200, b, &r), 0);
    CHECK_EQUAL(r.hole_chunks, 2);
    CHECK_EQUAL(r.data_chunks, 1);
    for (uint32_t i = 0; i < MIB - 200; i++)
        CHECK(b[i] == (i == 256 * KIB - 100 ? 'x' : 0));
    CHECK_EQUAL(client_do(&c, NBD_CMD_READ, 0, MIB, 512, b, &r), 0);
    CHECK_EQUAL(r.hole_chunks, 1);
    CHECK_EQUAL(client_do(&c, NBD_CMD_READ, NBD_CMD_FLAG_DF, MIB, 4096, b, &r), 0);
    CHECK_EQUAL(r.hole_chunks, 0);
    CHECK_EQUAL(r.data_chunks, 1);
    CHECK_EQUAL(client_do(&c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, 2 * MIB, b, &r), 0);
    CHECK_EQUAL(r.hole_chunks, 0);
    CHECK_EQUAL(r.data_chunks, 1);
    CHECK_EQUAL(b[256 * KIB], 'x');
    CHECK_EQUAL(client_disconnect(&c), 0);
    free(b);
}

static void holes_are_sent_as_holes_unless_fragments_are_forbidden(void **state)
{
    run(sparse_body);
}

static void commands_body(void) may_yield
{
    uint8_t b[8192];
    struct client c;
    const struct fake_volume_counts *n = fake_volume_counts(volume);
    memset(b, 0x55, sizeof(b));
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, 0, 8192, b), 0);
    CHECK_EQUAL(n->fua_writes, 1);
    CHECK_EQUAL(do_error(&c, NBD_CMD_FLUSH, 0, 0, 0, NULL), 0);
    CHECK_EQUAL(n->flushes, 1);
    CHECK_EQUAL(do_error(&c, NBD_CMD_TRIM, NBD_CMD_FLAG_FUA, 0, 4096, NULL), 0);
    CHECK_EQUAL(n->unmaps, 1);
    CHECK_EQUAL(n->fua_writes, 2);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE, 4096, 4096, NULL), 0);
    CHECK_EQUAL(n->zeroes, 1);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FAST_ZERO, 4096, 8192, NULL), 0);
    CHECK_EQUAL(n->unmaps, 2);
    CHECK_EQUAL(do_error(&c, NBD_CMD_CACHE, 0, 0, 2 * MIB, NULL), 0);
    CHECK_EQUAL(n->prefetches, 2);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, NBD_CMD_FLAG_FUA, 0, 8192, b), 0);
    for (size_t i = 0; i < sizeof(b); i++)
        CHECK_EQUAL(b[i], 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_TRIM, 0, 0, SIZE, NULL), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
}

static void each_command_reaches_the_volume(void **state)
{
    run(commands_body);
}

static void status_body(void) may_yield
{
    struct client c;
    struct client_result r;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED | CLIENT_ALLOCATION, NULL), 0);
    fake_volume_poke(volume, 8192, "data", 4);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE, 16384, 4096, NULL), 0);
    CHECK_EQUAL(client_do(&c, NBD_CMD_BLOCK_STATUS, 0, 100, 32768, NULL, &r), 0);
    const uint32_t want[][2] = {{8092, NBD_STATE_HOLE | NBD_STATE_ZERO},
                                {4096, 0},
                                {4096, NBD_STATE_HOLE | NBD_STATE_ZERO},
                                {4096, NBD_STATE_ZERO},
                                {12388, NBD_STATE_HOLE | NBD_STATE_ZERO}};
    CHECK_EQUAL(r.last.extents, ARRAY_SIZE(want));
    for (uint32_t i = 0; i < ARRAY_SIZE(want); i++) {
        CHECK_EQUAL(r.last.extent[i].len, want[i][0]);
        CHECK_EQUAL(r.last.extent[i].flags, want[i][1]);
    }
    CHECK_EQUAL(client_do(&c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, 0, 32768, NULL, &r), 0);
    CHECK_EQUAL(r.last.extents, 1);
    CHECK_EQUAL(r.last.extent[0].len, 8192);
    CHECK_EQUAL(client_do(&c, NBD_CMD_BLOCK_STATUS, 0, 0, SIZE, NULL, &r), 0);
    CHECK_EQUAL(r.last.extents, 5);
    /* more extents than fit into one reply: a part of the answer, from the beginning on without gaps */
    for (uint64_t i = 0; i < 600; i++)
        fake_volume_poke(volume, 32 * MIB + 8192 * i, "x", 1);
    CHECK_EQUAL(client_do(&c, NBD_CMD_BLOCK_STATUS, 0, 32 * MIB, 8192 * 600, NULL, &r), 0);
    CHECK_EQUAL(r.last.extents, 256);
    CHECK_EQUAL(do_error(&c, NBD_CMD_BLOCK_STATUS, 0, 0, 0, NULL), NBD_EINVAL);
    CHECK_EQUAL(do_error(&c, NBD_CMD_BLOCK_STATUS, 0, SIZE - 1, 2, NULL), NBD_EINVAL);
    fake_volume_knobs(volume)->map_error = ERR_VOLUME_CORRUPT;
    CHECK_EQUAL(do_error(&c, NBD_CMD_BLOCK_STATUS, 0, 0, 4096, NULL), NBD_EIO);
    CHECK_EQUAL(client_disconnect(&c), 0);
    for (size_t w = 0; w < 3; w++) { /* not selected */
        CHECK_EQUAL(client_open(&c, ADDRESS, "rw", wishes[w], NULL), 0);
        CHECK_EQUAL(do_error(&c, NBD_CMD_BLOCK_STATUS, 0, 0, 4096, NULL), NBD_EINVAL);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
}

static void block_status_tells_holes_zeroes_and_data(void **state)
{
    run(status_body);
}

/* ---- Errors ---- */

static void refused_body(void) may_yield
{
    static uint8_t b[70000];
    for (size_t w = 0; w < ARRAY_SIZE(wishes); w++) {
        struct client c;
        CHECK_EQUAL(client_open(&c, ADDRESS, "rw", wishes[w], NULL), 0);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, SIZE, 1, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, UINT64_MAX, 4096, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, SIZE - 69999, 70000, b), NBD_ENOSPC);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, UINT64_MAX - 3, 4, b), NBD_ENOSPC);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE_ZEROES, 0, SIZE - 1, 4096, b), NBD_ENOSPC);
        CHECK_EQUAL(do_error(&c, NBD_CMD_TRIM, 0, SIZE, 4096, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_CACHE, 0, SIZE - 1, 4096, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, NBD_REQUEST_MAX + 1, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0x8000, 0, 512, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, 512, b), c.structured ? 0 : NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, NBD_CMD_FLAG_NO_HOLE, 0, 512, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_FLUSH, 0, 1, 0, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, 4711, 0, 0, 512, b), NBD_EINVAL);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 512, b), 0); /* and still it works */
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    struct client c;
    CHECK_EQUAL(add("ro", true, NULL), 0);
    CHECK_EQUAL(client_open(&c, ADDRESS, "ro", CLIENT_STRUCTURED, NULL), 0);
    CHECK(c.flags & NBD_FLAG_READ_ONLY);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 0, 70000, b), NBD_EPERM);
    CHECK_EQUAL(do_error(&c, NBD_CMD_TRIM, 0, 0, 512, b), NBD_EPERM);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE_ZEROES, 0, 0, 512, b), NBD_EPERM);
    CHECK_EQUAL(do_error(&c, NBD_CMD_FLUSH, 0, 0, 0, b), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 512, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
    CHECK_EQUAL(fake_volume_counts(volume)->writes, 0);
}

static void bad_requests_get_errors_and_the_connection_lives_on(void **state)
{
    run(refused_body);
}

static void too_long_write_body(void) may_yield
{
    uint32_t len = NBD_REQUEST_MAX + 12345;
    uint8_t *b = calloc(1, len);
    struct client c;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 0, len, b), NBD_EINVAL);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 512, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
    free(b);
}

static void payload_of_a_write_that_is_too_long_is_read_away(void **state)
{
    run_once(too_long_write_body);
}

static void volume_errors_body(void) may_yield
{
    uint8_t *b = calloc(1, 4 * MIB);
    struct client_result r;
    for (size_t w = 1; w < 3; w++) {
        struct client c;
        CHECK_EQUAL(client_open(&c, ADDRESS, "rw", wishes[w], NULL), 0);
        *fake_volume_knobs(volume) = (struct fake_volume_knobs){.bad_block = 300};
        CHECK_EQUAL(client_do(&c, NBD_CMD_READ, 0, 300 * 4096 + 10, 10, b, &r), 0);
        CHECK_EQUAL(r.error, NBD_EIO);
        if (c.structured)
            CHECK(strlen(r.last.text) > 0);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 4 * MIB, b), NBD_EIO);
        CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 301 * 4096, 4096, b), 0);
        *fake_volume_knobs(volume) =
            (struct fake_volume_knobs){.write_error = ERR_VOLUME_FULL, .bad_block = UINT64_MAX};
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 0, 4096, b), NBD_ENOSPC);
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, 0, 100, 3 * MIB, b), NBD_ENOSPC);
        *fake_volume_knobs(volume) =
            (struct fake_volume_knobs){.flush_error = ERR_VOLUME_FAILED, .bad_block = UINT64_MAX};
        CHECK_EQUAL(do_error(&c, NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, 0, 3 * MIB, b), NBD_EIO);
        CHECK_EQUAL(do_error(&c, NBD_CMD_FLUSH, 0, 0, 0, b), NBD_EIO);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    free(b);
}

static void errors_of_the_volume_reach_the_client(void **state)
{
    run_once(volume_errors_body);
}

static void garbage_body(void) may_yield
{
    uint8_t junk[200];
    struct client c, good;
    CHECK_EQUAL(client_open(&good, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    pattern(junk, sizeof(junk), 1);
    CHECK_EQUAL(stream_send_all(c.stream, junk, sizeof(junk), DEADLINE_NEVER), 0);
    CHECK_EQUAL(stream_recv_all(c.stream, junk, 1, DEADLINE_NEVER), ERR_CLOSED);
    client_close(&c);
    CHECK_EQUAL(do_error(&good, NBD_CMD_READ, 0, 0, 100, junk), 0);
    CHECK_EQUAL(client_disconnect(&good), 0);
}

static void garbage_ends_only_its_connection(void **state)
{
    run(garbage_body);
}

/* A whole session, cut after each of its bytes. */
static uint8_t session[8192];
static size_t session_len;

static void session_put(const void *data, size_t len)
{
    assert(session_len + len <= sizeof(session));
    memcpy(session + session_len, data, len);
    session_len += len;
}

static void session_request(uint16_t type, uint64_t offset, uint32_t len)
{
    struct nbd_request_header h = {be32_make(NBD_MAGIC_REQUEST), be16_make(0), be16_make(type),
                                   .offset = be64_make(offset), .len = be32_make(len)};
    session_put(&h, sizeof(h));
}

static void session_make(void)
{
    static const uint8_t flags[] = {0, 0, 0, 3}, go[] = {0, 0, 0, 2, 'r', 'w', 0, 0}, payload[600];
    struct nbd_option structured = {be64_make(NBD_MAGIC_OPTION), be32_make(NBD_OPT_STRUCTURED_REPLY),
                                    be32_make(0)};
    struct nbd_option o = {be64_make(NBD_MAGIC_OPTION), be32_make(NBD_OPT_GO), be32_make(sizeof(go))};
    session_len = 0;
    session_put(flags, sizeof(flags));
    session_put(&structured, sizeof(structured));
    session_put(&o, sizeof(o));
    session_put(go, sizeof(go));
    session_request(NBD_CMD_WRITE, 100, sizeof(payload));
    session_put(payload, sizeof(payload));
    session_request(NBD_CMD_READ, 0, 100000);
    session_request(NBD_CMD_WRITE, SIZE, 100);
    session_put(payload, 100);
    session_request(NBD_CMD_FLUSH, 0, 0);
    session_request(NBD_CMD_DISC, 0, 0);
}

static void truncation_body(void) may_yield
{
    session_make();
    for (size_t cut = 0; cut <= session_len; cut++) {
        struct stream *s;
        CHECK_EQUAL(stream_connect(ADDRESS, DEADLINE_NEVER, &s), 0);
        if (cut > 0)
            CHECK_EQUAL(stream_send_all(s, session, cut, DEADLINE_NEVER), 0);
        fiber_yield();
        if (cut % 3 == 0)
            fiber_yield();
        stream_close(s);
    }
    struct client c;
    uint8_t b[16];
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    CHECK_EQUAL(do_error(&c, NBD_CMD_READ, 0, 0, 16, b), 0);
    CHECK_EQUAL(client_disconnect(&c), 0);
    struct nbd_server_status st;
    nbd_server_get_status(server, &st);
    CHECK_EQUAL(st.handshakes + st.connections, 0);
}

static void session_cut_at_any_byte_leaves_nothing_behind(void **state)
{
    run(truncation_body);
}

/* ---- Requests beside each other ---- */

static void overlap_body(void) may_yield
{
    static uint8_t b[64 * 4096];
    struct client c;
    struct client_reply r;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", CLIENT_STRUCTURED, NULL), 0);
    fake_volume_knobs(volume)->delay_ns = NSEC_PER_MSEC;
    uint64_t began = reactor_now_ns();
    for (int i = 0; i < 64; i++)
        client_send(&c, NBD_CMD_READ, 0, (uint64_t)i * 4096, 4096, NULL);
    uint64_t seen = 0;
    for (int i = 0; i < 64; i++) {
        CHECK_EQUAL(client_receive(&c, &r, b, 0, 0), 0);
        seen |= UINT64_C(1) << (r.cookie - 1);
    }
    CHECK(seen == UINT64_MAX);
    /* two waits in each read; one after the other they took 128 ms */
    CHECK(reactor_now_ns() - began < 4 * NSEC_PER_MSEC);
    CHECK_EQUAL(fake_volume_counts(volume)->most_under_way, 64);
    CHECK_EQUAL(client_disconnect(&c), 0);
}

static void requests_that_wait_do_not_hold_up_those_behind(void **state)
{
    run_once(overlap_body);
}

static void batch_body(void) may_yield
{
    static uint8_t b[4096];
    struct client c;
    struct client_reply r;
    pattern(b, sizeof(b), 1);
    for (uint64_t i = 0; i < 32; i++)
        fake_volume_poke(volume, i * 8192, b, sizeof(b));
    world.pipe_bytes = MIB;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    uint64_t before = world.sends;
    for (uint64_t i = 0; i < 32; i++)
        client_send(&c, NBD_CMD_READ, 0, i * 8192, 4096, NULL);
    for (int i = 0; i < 32; i++)
        CHECK_EQUAL(client_receive(&c, &r, b, 0, 4096), 0);
    CHECK(world.sends - before - 32 <= 2); /* 32 are the client's */
    CHECK_EQUAL(client_disconnect(&c), 0);
}

static void replies_of_a_batch_go_out_together(void **state)
{
    run_once(batch_body);
}

static void disconnect_body(void) may_yield
{
    uint8_t b[4096] = {7};
    struct client c;
    struct client_reply r;
    CHECK_EQUAL(client_open(&c, ADDRESS, "rw", 0, NULL), 0);
    fake_volume_knobs(volume)->delay_ns = NSEC_PER_SEC;
    client_send(&c, NBD_CMD_WRITE, 0, 0, 4096, b);
    client_send(&c, NBD_CMD_DISC, 0, 0, 0, NULL);
    CHECK_EQUAL(client_receive(&c, &r, b, 0, 0), 0);
    CHECK_EQUAL(r.error, 0);
    CHECK_EQUAL(client_receive(&c, &r, b, 0, 0), ERR_CLOSED);
    client_close(&c);
}

static void disconnect_waits_for_what_is_under_way(void **state)
{
    run(disconnect_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(longest_requests_go_in_pieces),
        cmocka_unit_test(holes_are_sent_as_holes_unless_fragments_are_forbidden),
        cmocka_unit_test(each_command_reaches_the_volume),
        cmocka_unit_test(block_status_tells_holes_zeroes_and_data),
        cmocka_unit_test(bad_requests_get_errors_and_the_connection_lives_on),
        cmocka_unit_test(payload_of_a_write_that_is_too_long_is_read_away),
        cmocka_unit_test(errors_of_the_volume_reach_the_client),
        cmocka_unit_test(garbage_ends_only_its_connection),
        cmocka_unit_test(session_cut_at_any_byte_leaves_nothing_behind),
        cmocka_unit_test(requests_that_wait_do_not_hold_up_those_behind),
        cmocka_unit_test(replies_of_a_batch_go_out_together),
        cmocka_unit_test(disconnect_waits_for_what_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
