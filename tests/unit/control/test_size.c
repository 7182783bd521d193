/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations, as people write and read them. */
#include "control/size.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void sizes_of_all_units_are_understood(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"1K", KIB},
        {"1k", KIB},
        {"10G", 10 * GIB},
        {"10GiB", 10 * GIB},
        {"10gb", 10 * GIB},
        {"1.5T", TIB + TIB / 2},
        {"0.5M", MIB / 2},
        {"64 KiB", 64 * KIB},
        {"7B", 7},
        {"1P", 1024 * TIB},
        {"7E", 7 * 1024 * 1024 * TIB},
        {"9223372036854775807", INT64_MAX},
        {"1.9999K", 2047},
        {"0.1234567890123456789T", 135742175046},
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        uint64_t bytes = 1;
        assert_int_equal(size_parse(good[i].text, &bytes), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
}

static void what_is_not_a_size_is_refused_and_changes_nothing(void **state)
{
    static const char *const bad[] = {
        "",    "G",    "-1",    "+1",
        "1.G", ".5G",  "1..5G", "ten",
        "10X", "10Gx", "1 2",   "0x10",
        "1e3", "10iB", "8E",    "9223372036854775808",
        "1G ", " 1G",  "1GiBB", "99999999999999999999999999999999999999999999T"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        uint64_t bytes = 4711;
        if (size_parse(bad[i], &bytes) != ERR_INVALID)
            print_error("\"%s\" was taken\n", bad[i]);
        assert_int_equal(size_parse(bad[i], &bytes), ERR_INVALID);
        assert_int_equal(bytes, 4711);
    }
}

static void sizes_are_shown_with_at_most_one_digit_behind_the_point(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } shown[] = {
        {0, "0 B"},           {1023, "1023 B"},       {KIB, "1 KiB"},         {1536, "1.5 KiB"},
        {MIB, "1 MiB"},       {MIB - 1, "1 MiB"},     {10 * GIB, "10 GiB"},   {TIB + TIB / 2, "1.5 TiB"},
        {INT64_MAX, "8 EiB"}, {UINT64_MAX, "16 EiB"}, {8 * GIB + 1, "8 GiB"}, {1023 * KIB, "1023 KiB"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(shown); i++) {
        char text[SIZE_TEXT_SIZE];
        size_format(shown[i].bytes, text);
        assert_string_equal(text, shown[i].text);
    }
}

static void a_shown_size_is_read_back_within_its_precision(void **state)
{
    uint64_t bytes = 1;
    for (int i = 0; i < 2000; i++) {
        char text[SIZE_TEXT_SIZE];
        uint64_t back = 0;
        bytes = (bytes * UINT64_C(6364136223846793005) + 1442695040888963407) >> (i % 60);
        bytes &= INT64_MAX >> 1;
        size_format(bytes, text);
        assert_int_equal(size_parse(text, &back), 0);
        uint64_t off = back > bytes ? back - bytes : bytes - back;
        assert_true(off <= bytes / 20 + 1);
    }
}

static void durations_use_the_unit_that_people_would(void **state)
{
    static const struct {
        uint64_t ns;
        const char *text;
    } shown[] = {
        {0, "0 us"},
        {12 * NSEC_PER_USEC, "12 us"},
        {3400 * NSEC_PER_USEC, "3.4 ms"},
        {59 * NSEC_PER_SEC, "59 s"},
        {250 * NSEC_PER_SEC, "4 min 10 s"},
        {7500 * NSEC_PER_SEC, "2 h 5 min"},
        {273600 * NSEC_PER_SEC, "3 d 4 h"},
    };
    char text[DURATION_TEXT_SIZE];
    for (size_t i = 0; i < ARRAY_SIZE(shown); i++) {
        duration_format(shown[i].ns, text);
        assert_string_equal(text, shown[i].text);
    }
    duration_format(UINT64_MAX, text);
    assert_true(strlen(text) < sizeof(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_all_units_are_understood),
        cmocka_unit_test(what_is_not_a_size_is_refused_and_changes_nothing),
        cmocka_unit_test(sizes_are_shown_with_at_most_one_digit_behind_the_point),
        cmocka_unit_test(a_shown_size_is_read_back_within_its_precision),
        cmocka_unit_test(durations_use_the_unit_that_people_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
