/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/error.h"
#include "runtime/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static bool allows(const char *list, const char *ip)
{
    struct network_list acl;
    assert_int_equal(network_list_parse(list, &acl), 0);
    return network_list_allows(&acl, ip);
}

static void empty_list_is_everybody(void **state)
{
    assert_true(allows("", "1.2.3.4"));
    assert_true(allows(" , ", "::1"));
}

static void networks_end_at_their_last_bit(void **state)
{
    assert_true(allows("10.0.0.0/8", "10.255.255.255"));
    assert_false(allows("10.0.0.0/8", "11.0.0.0"));
    assert_true(allows("192.168.1.128/25", "192.168.1.128"));
    assert_false(allows("192.168.1.128/25", "192.168.1.127"));
    assert_true(allows("1.2.3.4", "1.2.3.4"));
    assert_false(allows("1.2.3.4", "1.2.3.5"));
    assert_true(allows("0.0.0.0/0", "9.9.9.9"));
    assert_false(allows("0.0.0.0/0", "fd00::1"));
    assert_true(allows("::/0", "fd00::1"));
    assert_true(allows("fd00:1::/33", "fd00:1:7fff::1"));
    assert_false(allows("fd00:1::/33", "fd00:1:8000::1"));
    assert_true(allows("10.0.0.0/8 fd00::/8", "fdff::"));
}

static void mapped_and_scoped_addresses_are_what_they_stand_for(void **state)
{
    assert_true(allows("10.0.0.0/8", "::ffff:10.1.2.3"));
    assert_true(allows("::ffff:10.0.0.0/104", "10.1.2.3"));
    assert_true(allows("fe80::/10", "fe80::1%eth0"));
}

static void local_sockets_are_always_allowed_and_nonsense_never(void **state)
{
    assert_true(allows("10.0.0.0/8", ""));
    assert_false(allows("10.0.0.0/8", "not an address"));
    assert_false(
        allows("10.0.0.0/8", "10.0.0.1.example.very.long.name.that.does.not.end.before.sixty.four.bytes"));
}

static void mistakes_are_refused(void **state)
{
    static const char *const bad[] = {"10.0.0.0/33", "10.0.0.0/",  "10.0.0.1/8",  "10.0.0/8",
                                      "/8",          "fd00::/129", "fd00::1/64",  "10.0.0.0/8x",
                                      "10.0.0.0/-1", "host",       "10.0.0.0//8", "10.0.0.0/08888888",
                                      "1.2.3.4,bad"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct network_list acl;
        assert_int_equal(network_list_parse(bad[i], &acl), ERR_INVALID);
    }
    char many[16 * (NETWORK_LIST_MAX + 1)];
    size_t len = 0;
    for (uint32_t i = 0; i <= NETWORK_LIST_MAX; i++)
        len += (size_t)snprintf(many + len, sizeof(many) - len, "10.0.0.%u ", i);
    struct network_list acl;
    assert_int_equal(network_list_parse(many, &acl), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_list_is_everybody),
        cmocka_unit_test(networks_end_at_their_last_bit),
        cmocka_unit_test(mapped_and_scoped_addresses_are_what_they_stand_for),
        cmocka_unit_test(local_sockets_are_always_allowed_and_nonsense_never),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
