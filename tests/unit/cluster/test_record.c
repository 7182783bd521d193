/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's record as text. */
#include "cluster/record.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct volume_record sample(void)
{
    struct volume_record r = {.id = {{1}},
                              .name = "vm-1",
                              .kind = "block",
                              .protection = {PROTECT_MIRROR, 1, 1},
                              .epoch = 12,
                              .owner = {{2}},
                              .system_runs = 3,
                              .slab_blocks = 1024,
                              .member_count = 2,
                              .exports = "{\"nbd\":{}}",
                              .revision = 4};
    r.members[0] = (struct system_member){{{3}}, UINT64_MAX, true};
    r.members[1] = (struct system_member){{{4}}, 1, false};
    return r;
}

static void record_reads_back_as_written(void **state)
{
    (void)state;
    struct volume_record r = sample(), back = {0};
    char *text = NULL;
    assert_int_equal(volume_record_encode(&r, &text), 0);
    assert_int_equal(volume_record_decode(text, 4, &back), 0);
    assert_true(uuid_equal(r.id, back.id) && uuid_equal(r.owner, back.owner));
    assert_string_equal(r.name, back.name);
    assert_string_equal(r.kind, back.kind);
    assert_string_equal(r.exports, back.exports);
    assert_int_equal(back.protection.kind, PROTECT_MIRROR);
    assert_int_equal(back.protection.spare, 1);
    assert_int_equal(back.epoch, 12);
    assert_int_equal(back.revision, 4);
    assert_int_equal(back.member_count, 2);
    assert_true(back.members[0].incarnation == UINT64_MAX && back.members[0].in_sync);
    assert_true(back.members[1].incarnation == 1 && !back.members[1].in_sync);
    free(text);
}

/* Replaces the first occurrence of from by to and decodes. */
static int decode_with(const char *from, const char *to)
{
    struct volume_record r = sample(), back;
    char *text = NULL, changed[4096];
    assert_int_equal(volume_record_encode(&r, &text), 0);
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return volume_record_decode(changed, 1, &back);
}

static void record_with_any_wrong_field_is_corrupt(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"\"version\":1", "\"version\":2"},
        {"\"epoch\":12", "\"epoch\":-1"},
        {"\"epoch\":12", "\"epoch\":\"12\""},
        {"\"epoch\":12", "\"epoch\":12,\"epoch\":13"},
        {"\"epoch\":12", "\"epoch\":12,\"unknown\":1"},
        {"\"epoch\":12,", ""},
        {"mirror:2", "mirror:9"},
        {"\"kind\":\"block\"", "\"kind\":\"tape\""},
        {"\"name\":\"vm-1\"", "\"name\":\"\""},
        {"\"name\":\"vm-1\"", "\"name\":\"a/b\""},
        {"\"name\":\"vm-1\"",
         "\"name\":\"0123456789012345678901234567890123456789012345678901234567890123\""},
        {"\"system_runs\":3", "\"system_runs\":65"},
        {"\"slab_blocks\":1024", "\"slab_blocks\":4294967296"},
        {"\"slab_blocks\":1024", "\"slab_blocks\":0"},
        {"ffffffffffffffff", "fffffffffffffff"},
        {"ffffffffffffffff", "fffffffffffffffg"},
        {"\"in_sync\":true", "\"in_sync\":1"},
        {"03000000-", "04000000-"}, /* twice the same drive */
        {"01000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"},
        {"{\"version", "[{\"version"},
    };
    assert_int_equal(decode_with("\"epoch\":12", "\"epoch\":13"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        if (decode_with(wrong[i][0], wrong[i][1]) != ERR_COORD_CORRUPT)
            fail_msg("accepted: %s", wrong[i][1]);
}

static void truncated_record_is_corrupt(void **state)
{
    (void)state;
    struct volume_record r = sample(), back;
    char *text = NULL;
    assert_int_equal(volume_record_encode(&r, &text), 0);
    for (size_t len = strlen(text); len-- > 0;) {
        text[len] = '\0';
        assert_int_equal(volume_record_decode(text, 1, &back), ERR_COORD_CORRUPT);
    }
    free(text);
}

static void invalid_record_is_not_written(void **state)
{
    (void)state;
    char *text = NULL;
    struct volume_record r = sample();
    r.members[1].drive_id = r.members[0].drive_id;
    assert_int_equal(volume_record_encode(&r, &text), ERR_INVALID);
    r = sample();
    r.epoch = UINT64_MAX;
    assert_int_equal(volume_record_encode(&r, &text), ERR_INVALID);
    r = sample();
    memcpy(r.name, "\xff\xfe", 3); /* not UTF-8 */
    assert_int_equal(volume_record_encode(&r, &text), ERR_INVALID);
    assert_null(text);
}

static void protections_have_one_text_each(void **state)
{
    (void)state;
    static const char *const known[] = {"none", "mirror:2", "mirror:3"};
    static const char *const unknown[] = {"",         "mirror",     "mirror:1",      "mirror:4", "mirror:2 ",
                                          "Mirror:2", "parity:4+2", "nested-mirror", "none:1",   "raid5"};
    struct protection p;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        char out[24];
        assert_int_equal(protection_parse(known[i], &p), 0);
        protection_format(p, out);
        assert_string_equal(out, known[i]);
        assert_int_equal(p.spare, i);
        assert_int_equal(protection_system_copies(p), i + 1);
        assert_int_equal(protection_tree_copies(p, 8), i == 0 ? 2 : i + 1);
    }
    assert_int_equal(protection_parse("none", &p), 0);
    assert_int_equal(protection_tree_copies(p, 1), 1);
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
        assert_int_equal(protection_parse(unknown[i], &p), ERR_BAD_PROTECTION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_reads_back_as_written),
        cmocka_unit_test(record_with_any_wrong_field_is_corrupt),
        cmocka_unit_test(truncated_record_is_corrupt),
        cmocka_unit_test(invalid_record_is_not_written),
        cmocka_unit_test(protections_have_one_text_each),
    };
    return cmocka_run_group_tests_name("cluster-record", tests, NULL, NULL);
}
