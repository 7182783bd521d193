/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, UUIDs, checksums, histograms, events: what needs no reactor. */
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void error_codes_have_names_and_classes(void **state)
{
    (void)state;
    for (int i = 0; i < ERROR_COUNT; i++) {
        assert_true(strlen(error_name(-i)) > 0);
        assert_true(strlen(error_text(-i)) > 0);
        assert_int_equal(error_errno(-i) == 0, i == 0);
    }
    assert_string_equal(error_name(ERR_TIMEOUT), "TIMEOUT");
    assert_int_equal(error_errno(ERR_VOLUME_FULL), ENOSPC);
}

static void error_of_the_system_keeps_its_errno(void **state)
{
    (void)state;
    assert_int_equal(error_errno(ERR_SYS(ENOENT)), ENOENT);
    assert_string_equal(error_name(ERR_SYS(ENOENT)), "ENOENT");
    assert_string_equal(error_text(ERR_SYS(ENOENT)), "No such file or directory");
    assert_string_equal(error_name(ERR_SYS(9999)), "UNKNOWN");
}

static void error_that_nobody_knows_is_an_io_error(void **state)
{
    (void)state;
    assert_int_equal(error_errno(-ERROR_COUNT), EIO);
    assert_int_equal(error_errno(5), EIO);
    assert_string_equal(error_name(-5000), "UNKNOWN");
}

static void uuid_text_round_trips(void **state)
{
    (void)state;
    struct uuid id = world_random_uuid(), back;
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    assert_int_equal(strlen(text), 36);
    assert_int_equal(uuid_parse(text, &back), 0);
    assert_true(uuid_equal(id, back));
    assert_int_equal(uuid_parse("01234567-89AB-cdef-0123-456789abcdef", &back), 0);
    assert_int_equal(back.b[0], 0x01);
    assert_int_equal(back.b[5], 0xab);
    assert_int_equal(back.b[15], 0xef);
}

static void uuid_parser_refuses_what_is_not_one(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "0",
        "01234567",
        "01234567-89ab-cdef-0123-456789abcde",
        "01234567-89ab-cdef-0123-456789abcdef0",
        "01234567089ab-cdef-0123-456789abcdef",
        "g1234567-89ab-cdef-0123-456789abcdef",
        "01234567-89ab-cdef-0123-456789abcde-",
    };
    struct uuid id = {{7}};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(uuid_parse(bad[i], &id), ERR_UUID_SYNTAX);
    assert_int_equal(id.b[0], 7);
}

/* The test vectors of RFC 3720, appendix B.4. */
static void crc32c_gives_the_vectors_of_rfc_3720(void **state)
{
    (void)state;
    uint8_t b[48];
    memset(b, 0, 32);
    assert_int_equal(crc32c(0, b, 32), 0x8a9136aa);
    memset(b, 0xff, 32);
    assert_int_equal(crc32c(0, b, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    assert_int_equal(crc32c(0, b, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)(31 - i);
    assert_int_equal(crc32c(0, b, 32), 0x113fdb5c);
    static const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                                             0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                             0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    assert_int_equal(crc32c(0, read_command, 48), 0xd9963a56);
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
}

static void crc32c_continues_over_pieces(void **state)
{
    (void)state;
    uint8_t data[2 * BLOCK_SIZE];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 + i / 251);
    uint32_t whole = crc32c(0, data, sizeof(data));
    for (size_t cut = 0; cut <= sizeof(data); cut += 37)
        assert_int_equal(crc32c(crc32c(0, data, cut), data + cut, sizeof(data) - cut), whole);
    uint32_t sums[2];
    crc32c_blocks(data, sizeof(data), sums);
    assert_int_equal(sums[0], crc32c(0, data, BLOCK_SIZE));
    assert_int_equal(sums[1], crc32c(0, data + BLOCK_SIZE, BLOCK_SIZE));
    memset(data, 0, BLOCK_SIZE);
    assert_int_equal(crc32c_zero_block(), crc32c(0, data, BLOCK_SIZE));
    assert_int_equal(crc32c(0, data, 0), 0);
}

static void typed_integers_have_their_byte_order(void **state)
{
    (void)state;
    assert_int_equal(be32_make(0x01020304).b[0], 1);
    assert_int_equal(le32_make(0x01020304).b[0], 4);
    assert_int_equal(be64_get(be64_make(0x0102030405060708)), 0x0102030405060708);
    assert_int_equal(le16_get(le16_make(0xabcd)), 0xabcd);
}

static void histogram_percentiles_are_within_an_eighth(void **state)
{
    (void)state;
    static const uint64_t values[] = {1, 900, 1000, 1001, 7777, 123456, 99999999, UINT64_C(100000000000)};
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        struct histogram h = {0};
        histogram_add(&h, values[i]);
        histogram_add(&h, UINT64_C(130000000000));
        uint64_t p = histogram_percentile_ns(&h, 0.25);
        assert_true(p >= values[i]);
        assert_true(p <= values[i] + MAX(values[i] / 8, UINT64_C(125)));
    }
}

static void histogram_of_many_values_merges(void **state)
{
    (void)state;
    struct histogram a = {0}, b = {0};
    assert_int_equal(histogram_percentile_ns(&a, 0.5), 0);
    for (uint64_t i = 1; i <= 1000; i++)
        histogram_add(i % 2 ? &a : &b, i * NSEC_PER_USEC);
    histogram_merge(&a, &b);
    assert_int_equal(a.count, 1000);
    assert_int_equal(a.max_ns, 1000 * NSEC_PER_USEC);
    uint64_t p50 = histogram_percentile_ns(&a, 0.5), p99 = histogram_percentile_ns(&a, 0.99);
    assert_true(p50 >= 500 * NSEC_PER_USEC && p50 <= 563 * NSEC_PER_USEC);
    assert_true(p99 >= 990 * NSEC_PER_USEC && p99 <= 1000 * NSEC_PER_USEC);
    assert_int_equal(histogram_percentile_ns(&a, 1.0), 1000 * NSEC_PER_USEC);
    histogram_add(&a, UINT64_MAX); /* beyond the last bucket */
    assert_int_equal(histogram_percentile_ns(&a, 1.0), UINT64_MAX);
}

static int log_lines;
static void count_line(void *ctx, enum log_level level, const char *text)
{
    (void)level;
    log_lines++;
    snprintf(ctx, 256, "%s", text);
}

static void log_below_the_level_is_dropped(void **state)
{
    (void)state;
    char last[256] = "";
    log_set_sink(count_line, last);
    log_set_level(LOG_WARNING_);
    LOG_INFO("no %d", 1);
    assert_int_equal(log_lines, 0);
    LOG_ERROR("drive %d: %s", 7, "gone");
    assert_int_equal(log_lines, 1);
    assert_string_equal(last, "drive 7: gone");
    log_set_level(LOG_INFO_);
    log_set_sink(NULL, NULL);
}

static void events_are_kept_up_to_a_thousand(void **state)
{
    (void)state;
    char last[256];
    log_set_sink(count_line, last);
    for (int i = 1; i <= 1500; i++)
        event_raise(LOG_INFO_, "test-event", "number %d", i);
    log_set_sink(NULL, NULL);
    static struct event out[2000];
    assert_int_equal(event_list(0, out, ARRAY_SIZE(out)), 1000);
    assert_string_equal(out[0].text, "number 501");
    assert_string_equal(out[999].text, "number 1500");
    assert_string_equal(out[999].kind, "test-event");
    assert_int_equal(event_list(out[999].sequence - 3, out, 2), 2);
    assert_string_equal(out[1].text, "number 1499");
    assert_int_equal(event_list(out[1].sequence + 1, out, 10), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_codes_have_names_and_classes),
        cmocka_unit_test(error_of_the_system_keeps_its_errno),
        cmocka_unit_test(error_that_nobody_knows_is_an_io_error),
        cmocka_unit_test(uuid_text_round_trips),
        cmocka_unit_test(uuid_parser_refuses_what_is_not_one),
        cmocka_unit_test(crc32c_gives_the_vectors_of_rfc_3720),
        cmocka_unit_test(crc32c_continues_over_pieces),
        cmocka_unit_test(typed_integers_have_their_byte_order),
        cmocka_unit_test(histogram_percentiles_are_within_an_eighth),
        cmocka_unit_test(histogram_of_many_values_merges),
        cmocka_unit_test(log_below_the_level_is_dropped),
        cmocka_unit_test(events_are_kept_up_to_a_thousand),
    };
    return cmocka_run_group_tests_name("runtime basics", tests, NULL, NULL);
}
