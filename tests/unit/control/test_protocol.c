/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the control socket: parsing, checking of arguments, and the last line of an answer. */
#include "control/protocol.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static int parse(const char *line)
{
    struct control_error e = {0};
    json_t *request = NULL;
    int r = control_request_parse(line, strlen(line), &request, &e);
    if (r < 0) {
        assert_null(request);
        assert_true(e.text[0] != '\0');
        assert_string_equal(e.code, error_name(r));
    }
    json_decref(request);
    return r;
}

static void a_request_is_an_object_with_a_command(void **state)
{
    assert_int_equal(parse("{\"cmd\": \"status\"}"), 0);
    assert_int_equal(parse(" {\"cmd\": \"export\", \"allow\": [\"10.0.0.0/8\"], \"nbd\": true} "), 0);
    static const char *const bad[] = {"",
                                      "status",
                                      "[]",
                                      "1",
                                      "{}",
                                      "{\"cmd\": 1}",
                                      "{\"cmd\": \"a\"} x",
                                      "{\"cmd\": \"a\"",
                                      "{\"cmd\": \"a\", \"cmd\": \"b\"}",
                                      "\xff\xfe",
                                      "{\"cmd\": \"\xff\"}",
                                      "{\"cmd\": \"a\\u0000b\"}"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(parse(bad[i]), ERR_CONTROL_REQUEST);
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    char line[4096];
    memset(line, '[', sizeof(line));
    line[sizeof(line) - 1] = '\0';
    assert_int_equal(parse(line), ERR_CONTROL_REQUEST);
    /* Brackets in a string are no nesting. */
    assert_int_equal(parse("{\"cmd\": \"a\", \"name\": \"[[[[[[[[\\\"[[[[[[\"}"), 0);
}

static void a_line_that_is_too_long_is_refused(void **state)
{
    size_t len = CONTROL_LINE_MAX + 1;
    char *line = malloc(len + 1);
    memset(line, ' ', len);
    memcpy(line, "{\"cmd\": \"a\"}", 12);
    line[len] = '\0';
    assert_int_equal(parse(line), ERR_CONTROL_REQUEST);
    line[len - 1] = '\0';
    assert_int_equal(parse(line), 0);
    free(line);
}

static const struct control_arg some_args[] = {
    {"name", CONTROL_STRING, true, 4},   {"size", CONTROL_UINT, false, 100}, {"yes", CONTROL_BOOL, false, 0},
    {"list", CONTROL_STRINGS, false, 3}, {NULL, CONTROL_BOOL, false, 0},
};

static int check(const char *text)
{
    struct control_error e = {0};
    json_t *request = json_loads(text, 0, NULL);
    assert_non_null(request);
    int r = control_args_check(request, some_args, &e);
    assert_int_equal(r < 0, e.text[0] != '\0');
    json_decref(request);
    return r;
}

static void arguments_are_checked_for_type_and_bounds(void **state)
{
    static const char *const good[] = {
        "{\"cmd\": \"a\", \"name\": \"abcd\"}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": 100, \"yes\": false, \"list\": [\"abc\", \"d\"]}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": 0, \"list\": []}",
    };
    static const char *const bad[] = {
        "{\"cmd\": \"a\"}",
        "{\"cmd\": \"a\", \"name\": \"\"}",
        "{\"cmd\": \"a\", \"name\": \"abcde\"}",
        "{\"cmd\": \"a\", \"name\": 5}",
        "{\"cmd\": \"a\", \"name\": null}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": 101}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": -1}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": 1.5}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"size\": \"5\"}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"yes\": 1}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"list\": \"abc\"}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"list\": [\"abcd\"]}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"list\": [1]}",
        "{\"cmd\": \"a\", \"name\": \"a\", \"other\": 1}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_int_equal(check(good[i]), 0);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(check(bad[i]), ERR_CONTROL_REQUEST);
}

static void a_command_without_arguments_takes_none(void **state)
{
    struct control_error e = {0};
    json_t *request = json_loads("{\"cmd\": \"a\", \"x\": 1}", 0, NULL);
    assert_int_equal(control_args_check(request, NULL, &e), ERR_CONTROL_REQUEST);
    json_object_del(request, "x");
    assert_int_equal(control_args_check(request, NULL, &e), 0);
    json_decref(request);
}

static void absent_arguments_have_the_caller_s_default(void **state)
{
    json_t *request = json_loads("{\"cmd\": \"a\", \"name\": \"n\", \"size\": 7, \"yes\": true}", 0, NULL);
    assert_string_equal(control_arg_string(request, "name", "x"), "n");
    assert_string_equal(control_arg_string(request, "other", "x"), "x");
    assert_int_equal(control_arg_uint(request, "size", 1), 7);
    assert_int_equal(control_arg_uint(request, "other", 1), 1);
    assert_true(control_arg_bool(request, "yes"));
    assert_false(control_arg_bool(request, "other"));
    json_decref(request);
}

static void answers_are_one_line_each_whatever_is_in_them(void **state)
{
    struct control_error e;
    control_error_set(&e, ERR_VOLUME_NOT_FOUND, "hint\nwith a line", "no \"volume\" \xff\xc3 here");
    char *line = control_error_encode(&e);
    assert_non_null(line);
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    json_t *back = json_loads(line, 0, NULL);
    assert_true(json_is_false(json_object_get(back, "ok")));
    json_t *error = json_object_get(back, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "VOLUME_NOT_FOUND");
    assert_string_equal(json_string_value(json_object_get(error, "hint")), "hint\nwith a line");
    json_decref(back);
    free(line);

    line = control_result_encode(NULL);
    assert_string_equal(line, "{\"ok\":true,\"result\":null}\n");
    free(line);
    line = control_line_encode("progress", json_integer(3));
    assert_string_equal(line, "{\"progress\":3}\n");
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_an_object_with_a_command),
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(a_line_that_is_too_long_is_refused),
        cmocka_unit_test(arguments_are_checked_for_type_and_bounds),
        cmocka_unit_test(a_command_without_arguments_takes_none),
        cmocka_unit_test(absent_arguments_have_the_caller_s_default),
        cmocka_unit_test(answers_are_one_line_each_whatever_is_in_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
