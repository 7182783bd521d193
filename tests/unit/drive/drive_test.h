/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of drives: runs a body on a fiber of the real world, with faults that the body switches on, and
 * keeps what it found until the fiber has ended, since cmocka may not jump out of a fiber.
 */
#ifndef ASHLAR_DRIVE_TEST_H
#define ASHLAR_DRIVE_TEST_H

#include "drive/internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* In a fiber: counts and prints what does not hold, and goes on. */
#define CHECK(cond) drive_test_check((cond), #cond, __FILE__, __LINE__)
#define CHECK_EQ(a, b) \
    drive_test_check_equal((long long)(a), (long long)(b), #a " == " #b, __FILE__, __LINE__)
bool drive_test_check(bool ok, const char *what, const char *file, int line);
bool drive_test_check_equal(long long a, long long b, const char *what, const char *file, int line);

/* Runs the body on a fiber; afterwards asserts that every CHECK held. */
void drive_test_run(void (*body)(void *arg), void *arg);

int drive_test_setup(void **state);    /* makes a folder */
int drive_test_teardown(void **state); /* and removes it with all in it */
const char *drive_test_path(const char *name);

/* Faults of this process's world; all off at the start of each run. */
struct drive_test_faults {
    bool hold; /* keep what is submitted and matches, until drive_test_release() */
    enum file_op hold_op;
    uint64_t hold_from; /* only at this offset or above */
    uint32_t held;      /* how many are kept now */
    int fail;           /* error for what matches fail_op, after fail_after more */
    enum file_op fail_op;
    uint32_t fail_after;
    uint32_t syncs, writes, discards; /* that were submitted */
};
extern struct drive_test_faults faults;
void drive_test_release(void);

#define TEST_SLAB (64 * KIB)
extern const struct uuid test_pool;
/* Formats a file of 64 MiB with small slabs, so that tables have several blocks. */
struct uuid drive_test_format(const char *name) may_yield;
struct drive_home *drive_test_open(const char *name) may_yield;
struct uuid drive_test_volume(uint8_t n);
/* Reads or writes whole blocks of one value. */
int drive_test_write(struct drive_session *s, uint32_t slab, uint32_t block, uint8_t value) may_yield;
int drive_test_read(struct drive_session *s, uint32_t slab, uint32_t block, uint8_t *ret_value) may_yield;
/* Fills a range of the file with 0xa5, from outside. */
void drive_test_damage(const char *name, uint64_t offset, uint64_t len);

#endif
