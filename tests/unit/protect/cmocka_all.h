/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka wants these in front of it. */
#ifndef ASHLAR_TEST_CMOCKA_ALL_H
#define ASHLAR_TEST_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

/* A test that is one body on the fixture. */
#define FIXTURE_TEST(name, drives, slabs)                 \
    static may_yield void name##_body(struct fixture *f); \
    static void name(void **state)                        \
    {                                                     \
        (void)state;                                      \
        fixture_run(drives, slabs, name##_body);          \
    }                                                     \
    static void name##_body(struct fixture *f)

#endif
