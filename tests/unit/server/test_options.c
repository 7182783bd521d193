/* SPDX-License-Identifier: Apache-2.0 */
/* ashlard's command line. */
#include "runtime/error.h"
#include "server/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static char why[256];

static int parse(struct server_options *o, const char *first, ...)
{
    static char words[32][64];
    static char *argv[33];
    int count = 0;
    snprintf(words[count], sizeof(words[count]), "ashlard");
    va_list ap;
    va_start(ap, first);
    for (const char *word = first; word != NULL; word = va_arg(ap, const char *))
        snprintf(words[++count], sizeof(words[0]), "%s", word);
    va_end(ap);
    for (int i = 0; i <= count; i++)
        argv[i] = words[i];
    argv[count + 1] = NULL;
    why[0] = '\0';
    return server_options_parse(count + 1, argv, o, why, sizeof(why));
}

static void the_folder_alone_is_enough(void **state)
{
    struct server_options o = {0};
    assert_int_equal(parse(&o, "--dir", "/d", NULL), 0);
    assert_string_equal(o.dir, "/d");
    assert_int_equal(o.drives, 8);
    assert_int_equal(o.drive_bytes, 8 * GIB);
    assert_int_equal(o.nbd_port, 10809);
    assert_string_equal(o.nbd_listen, "127.0.0.1");
    assert_true(o.memory_bytes >= 64 * MIB);
    assert_true(o.reactors >= 1);
    assert_int_equal(o.path_count, 0);
}

static void everything_given_is_taken(void **state)
{
    struct server_options o = {0};
    assert_int_equal(parse(&o, "--dir=/d", "--memory", "256M", "--nbd-port", "0", "--nbd-listen", "::1",
                           "--drive-size", "2G", "--drive", "/dev/a", "--drive", "/dev/b", "--reactors", "2",
                           "--log-level", "debug", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a",
                           "--tls-required", NULL),
                     0);
    assert_int_equal(o.memory_bytes, 256 * MIB);
    assert_int_equal(o.nbd_port, 0);
    assert_string_equal(o.nbd_listen, "::1");
    assert_int_equal(o.path_count, 2);
    assert_string_equal(o.paths[1], "/dev/b");
    assert_true(o.drive_size_given && o.tls_required && !o.drives_given);
    assert_int_equal(o.reactors, 2);
    assert_int_equal(o.log_level, LOG_DEBUG_);
}

static void what_is_wrong_is_refused_with_a_sentence_and_changes_nothing(void **state)
{
    static const char *const bad[][6] = {
        {"--memory", "256M"},
        {"--dir"},
        {"--dir", ""},
        {"--dir", "/d", "--memory", "lots"},
        {"--dir", "/d", "--memory", "1M"},
        {"--dir", "/d", "--nbd-port", "65536"},
        {"--dir", "/d", "--nbd-port", "-1"},
        {"--dir", "/d", "--nbd-port", "80x"},
        {"--dir", "/d", "--drives", "0"},
        {"--dir", "/d", "--drives", "257"},
        {"--dir", "/d", "--drive-size", "1M"},
        {"--dir", "/d", "--reactors", "0"},
        {"--dir", "/d", "--log-level", "loud"},
        {"--dir", "/d", "--nonsense"},
        {"--dir", "/d", "too-much"},
        {"--dir", "/d", "--tls-cert", "c"},
        {"--dir", "/d", "--tls-ca", "c"},
        {"--dir", "/d", "--tls-required"},
        {"--dir", "/d", "--drive", "/a", "--drive=/a"},
        {"--dir", "/d", "--drive", "/a", "--drives=2"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct server_options o = {.reactors = 4711};
        int r =
            parse(&o, bad[i][0], bad[i][1], bad[i][2], bad[i][3], bad[i][4], bad[i][5], (const char *)NULL);
        if (r != ERR_NODE_CONFIG)
            print_error("%s %s %s was taken\n", bad[i][0], bad[i][2], bad[i][3]);
        assert_int_equal(r, ERR_NODE_CONFIG);
        assert_true(strlen(why) > 10);
        assert_int_equal(o.reactors, 4711);
    }
}

static void help_and_version_need_nothing_else(void **state)
{
    struct server_options o = {0};
    assert_int_equal(parse(&o, "--help", NULL), 0);
    assert_true(o.help);
    assert_int_equal(parse(&o, "--version", NULL), 0);
    assert_true(o.version);
}

static void help_names_every_option(void **state)
{
    static const char *const names[] = {"--dir",          "--memory",     "--reactors", "--log-level",
                                        "--drives",       "--drive-size", "--drive ",   "--nbd-port",
                                        "--nbd-listen",   "--tls-cert",   "--tls-key",  "--tls-ca",
                                        "--tls-required", "--help",       "--version"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_non_null(strstr(server_options_help, names[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_alone_is_enough),
        cmocka_unit_test(everything_given_is_taken),
        cmocka_unit_test(what_is_wrong_is_refused_with_a_sentence_and_changes_nothing),
        cmocka_unit_test(help_and_version_need_nothing_else),
        cmocka_unit_test(help_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
