/* SPDX-License-Identifier: Apache-2.0 */
/* The command line client without a node: understanding words, help, tables, confirmation, progress. */
#include "cli/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* What a command line comes to: code, what was parsed, and what was said. */
struct outcome {
    struct cli c;
    int code;
    bool done;
    char *out, *err;
    size_t out_len, err_len;
    char *words[16];
};

static struct outcome *understand(const char *first, ...)
{
    struct outcome *o = calloc(1, sizeof(*o));
    int count = 0;
    va_list ap;
    va_start(ap, first);
    for (const char *word = first; word != NULL; word = va_arg(ap, const char *))
        o->words[count++] = strdup(word);
    va_end(ap);
    o->c.out = open_memstream(&o->out, &o->out_len);
    o->c.err = open_memstream(&o->err, &o->err_len);
    o->c.socket = CLI_SOCKET;
    o->code = cli_parse(&o->c, count, o->words, &o->done);
    fclose(o->c.out);
    fclose(o->c.err);
    return o;
}

static void forget(struct outcome *o)
{
    for (size_t i = 0; o->words[i] != NULL; i++)
        free(o->words[i]);
    free(o->out);
    free(o->err);
    free(o);
}

static void a_command_of_two_words_and_its_options_are_understood(void **state)
{
    struct outcome *o =
        understand("volume", "create", "v1", "--size", "10G", "--protect=mirror:2", "--json", NULL);
    assert_int_equal(o->code, CLI_OK);
    assert_false(o->done);
    assert_string_equal(o->c.command->name, "volume create");
    assert_int_equal(o->c.arg_count, 1);
    assert_string_equal(o->c.args[0], "v1");
    assert_string_equal(cli_value(&o->c, "size"), "10G");
    assert_string_equal(cli_value(&o->c, "protect"), "mirror:2");
    assert_true(o->c.json);
    assert_null(cli_value(&o->c, "other"));
    forget(o);
}

static void the_socket_may_be_named_before_or_after_the_command(void **state)
{
    struct outcome *o = understand("-s", "/a", "status", NULL);
    assert_int_equal(o->code, CLI_OK);
    assert_string_equal(o->c.socket, "/a");
    forget(o);
    o = understand("status", "--socket=/b", NULL);
    assert_int_equal(o->code, CLI_OK);
    assert_string_equal(o->c.socket, "/b");
    forget(o);
}

static void a_list_option_takes_values_until_the_next_option(void **state)
{
    struct outcome *o =
        understand("export", "v", "--nbd", "--allow", "10.0.0.0/8", "fd00::/8", "--read-only", NULL);
    assert_int_equal(o->code, CLI_OK);
    assert_int_equal(o->c.arg_count, 1);
    assert_true(cli_flag(&o->c, "read-only"));
    uint32_t count = 0;
    for (uint32_t i = 0; i < o->c.given_count; i++)
        if (strcmp(o->c.given[i].option->name, "allow") == 0)
            count = o->c.given[i].count;
    assert_int_equal(count, 2);
    forget(o);
}

static void words_behind_two_dashes_are_no_options(void **state)
{
    struct outcome *o = understand("volume", "show", "--", "--json", NULL);
    assert_int_equal(o->code, CLI_OK);
    assert_string_equal(o->c.args[0], "--json");
    assert_false(o->c.json);
    forget(o);
}

static void wrong_usage_exits_with_2_and_says_why(void **state)
{
    static const char *const lines[][5] = {
        {"nonsense"},
        {"volume"},
        {"volume", "nonsense"},
        {"volume", "show"},
        {"volume", "show", "a", "b"},
        {"status", "--nonsense"},
        {"status", "-x"},
        {"status", "--json=yes"},
        {"volume", "create", "v", "--size"},
        {"volume", "create", "v", "--size="},
        {"-s"},
        {"drive", "add"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        struct outcome *o =
            understand(lines[i][0], lines[i][1], lines[i][2], lines[i][3], lines[i][4], (const char *)NULL);
        assert_int_equal(o->code, CLI_USAGE);
        assert_true(o->err_len > 0);
        assert_int_equal(o->out_len, 0);
        forget(o);
    }
}

static void too_many_words_are_refused_without_harm(void **state)
{
    struct outcome *o = understand("volume", "show", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", NULL);
    assert_int_equal(o->code, CLI_USAGE);
    forget(o);
}

static void a_mistyped_command_gets_a_suggestion(void **state)
{
    static const struct {
        const char *first, *second, *meant;
    } typed[] = {{"stauts", NULL, "ashlar status"},
                 {"volume", "crate", "ashlar volume create"},
                 {"drive", "lost", "ashlar drive list"},
                 {"unexprot", NULL, "ashlar unexport"}};
    for (size_t i = 0; i < ARRAY_SIZE(typed); i++) {
        struct outcome *o = understand(typed[i].first, typed[i].second, (const char *)NULL);
        assert_int_equal(o->code, CLI_USAGE);
        assert_non_null(strstr(o->err, typed[i].meant));
        forget(o);
    }
    struct outcome *o = understand("xyzzyx", NULL);
    assert_null(strstr(o->err, "Did you mean"));
    forget(o);
}

static void distance_counts_edits(void **state)
{
    assert_int_equal(cli_distance("", ""), 0);
    assert_int_equal(cli_distance("abc", "abc"), 0);
    assert_int_equal(cli_distance("abc", ""), 3);
    assert_int_equal(cli_distance("", "abc"), 3);
    assert_int_equal(cli_distance("kitten", "sitting"), 3);
    char *longer = malloc(201);
    memset(longer, 'a', 200);
    longer[200] = '\0';
    assert_int_equal(cli_distance(longer, "b"), 64);
    free(longer);
}

static void every_command_has_help_that_names_its_options(void **state)
{
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++) {
        char first[64], *second;
        snprintf(first, sizeof(first), "%s", k->name);
        second = strchr(first, ' ');
        if (second != NULL)
            *second++ = '\0';
        struct outcome *o =
            second != NULL ? understand(first, second, "--help", NULL) : understand(first, "--help", NULL);
        assert_int_equal(o->code, CLI_OK);
        assert_true(o->done);
        assert_non_null(strstr(o->out, k->name));
        uint32_t options = 0;
        for (const struct cli_option *x = k->options; x != NULL && x->name != NULL; x++, options++)
            assert_non_null(strstr(o->out, x->name));
        assert_true(options <= CLI_OPTIONS_MAX);
        assert_true(k->args_max <= CLI_ARGS_MAX && k->run != NULL && k->summary != NULL);
        forget(o);
    }
}

static void only_a_clear_yes_is_a_yes(void **state)
{
    assert_true(confirm_answer("y\n"));
    assert_true(confirm_answer("Y"));
    assert_true(confirm_answer(" yes \n"));
    assert_true(confirm_answer("YES\n"));
    static const char *const no[] = {"", "\n", "n\n", "no\n", "yess\n", "ye\n", "y n\n", "yes no\n", "1\n"};
    for (size_t i = 0; i < ARRAY_SIZE(no); i++)
        assert_false(confirm_answer(no[i]));
}

static void nothing_is_confirmed_without_a_terminal(void **state)
{
    char *text = NULL;
    size_t len = 0;
    /* Standard input is what the test runner gives: never a terminal here. */
    assert_non_null(freopen("/dev/null", "r", stdin));
    struct outcome *o = understand("volume", "delete", "v", NULL);
    o->c.err = open_memstream(&text, &len);
    assert_false(cli_confirm(&o->c, "All of %s goes.", "v"));
    fclose(o->c.err);
    assert_non_null(strstr(text, "All of v goes."));
    assert_non_null(strstr(text, "--yes"));
    free(text);
    forget(o);
    text = NULL;
    o = understand("volume", "delete", "v", "--json", NULL);
    o->c.out = open_memstream(&text, &len);
    o->c.err = fopen("/dev/null", "w");
    assert_non_null(o->c.err);
    assert_false(cli_confirm(&o->c, "All of %s goes.", "v"));
    fclose(o->c.out);
    fclose(o->c.err);
    assert_non_null(strstr(text, "\"error\""));
    free(text);
    forget(o);
    o = understand("volume", "delete", "v", "--yes", NULL);
    assert_true(cli_confirm(&o->c, "All of %s goes.", "v"));
    forget(o);
}

static void tables_align_by_characters_and_set_numbers_to_the_right(void **state)
{
    static const char *const headings[] = {"NAME", ">SIZE", "X"};
    struct table t;
    char *text = NULL;
    size_t len = 0;
    table_init(&t, headings, 3);
    table_row(&t, "a", "1 GiB", "x");
    table_row(&t, "\xc3\xa4\xc3\xb6\xc3\xbc-long", "10 B", (const char *)NULL);
    FILE *f = open_memstream(&text, &len);
    table_print(&t, f);
    fclose(f);
    assert_string_equal(text, "NAME       SIZE  X\n"
                              "a         1 GiB  x\n"
                              "\xc3\xa4\xc3\xb6\xc3\xbc-long   10 B  -\n");
    free(text);
    table_done(&t);
}

static void progress_tells_part_and_time_left(void **state)
{
    char line[160];
    json_t *o = json_pack("{sI sI ss sf}", "done", (json_int_t)25, "total", (json_int_t)200, "volume", "v1",
                          "left_s", 90.0);
    progress_format(o, "scrub", line, sizeof(line));
    assert_string_equal(line, "scrub v1: 12.5 %, about 1 min 30 s left");
    json_decref(o);
    o = json_pack("{sI sI}", "done", (json_int_t)0, "total", (json_int_t)0);
    progress_format(o, "delete", line, sizeof(line));
    assert_string_equal(line, "delete: working");
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_of_two_words_and_its_options_are_understood),
        cmocka_unit_test(the_socket_may_be_named_before_or_after_the_command),
        cmocka_unit_test(a_list_option_takes_values_until_the_next_option),
        cmocka_unit_test(words_behind_two_dashes_are_no_options),
        cmocka_unit_test(wrong_usage_exits_with_2_and_says_why),
        cmocka_unit_test(too_many_words_are_refused_without_harm),
        cmocka_unit_test(a_mistyped_command_gets_a_suggestion),
        cmocka_unit_test(distance_counts_edits),
        cmocka_unit_test(every_command_has_help_that_names_its_options),
        cmocka_unit_test(only_a_clear_yes_is_a_yes),
        cmocka_unit_test(nothing_is_confirmed_without_a_terminal),
        cmocka_unit_test(tables_align_by_characters_and_set_numbers_to_the_right),
        cmocka_unit_test(progress_tells_part_and_time_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
