/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group set over fake drives, in a world of virtual time. A test's body runs on a fiber; cmocka must not
 * jump out of that, so CHECK() notes the first failure and goes on, and the test asserts afterwards.
 */
#ifndef ASHLAR_TEST_PROTECT_FIXTURE_H
#define ASHLAR_TEST_PROTECT_FIXTURE_H

#include "fake_drive.h"
#include "protect/group.h"
#include "runtime/error.h"

#define FIXTURE_DRIVES_MAX  16u
#define FIXTURE_SLAB_BLOCKS 32u

struct fixture {
    uint32_t drive_count;
    uint32_t slabs; /* a drive */
    struct fake_drive *drives[FIXTURE_DRIVES_MAX];
    struct drive_set set;
    struct group_set_options options;
    struct group_set *groups;
    uint64_t seed;
    uint32_t failures; /* calls of drive_failed */
    struct group_drive *failed[FIXTURE_DRIVES_MAX];
};

/* Runs body on a fiber with that many drives of so many slabs; asserts (in the caller's stack) that every
 * CHECK held. */
void fixture_run(uint32_t drives, uint32_t slabs, void (*body)(struct fixture *f));
/* The same where which ready fiber runs is drawn from a seed; the body finds the seed in f->seed. */
void fixture_run_seed(uint32_t drives, uint32_t slabs, uint64_t seed, void (*body)(struct fixture *f));
/* The set as a restarted process has it. */
void fixture_reopen(struct fixture *f) may_yield;

/* Notes and prints the first failure. */
void check_note(bool ok, const char *file, int line, const char *what, long long a, long long b);
#define CHECK(c)       check_note(c, __FILE__, __LINE__, #c, 0, 0)
#define CHECK_EQ(a, b) check_equal(a, b, __FILE__, __LINE__, #a " == " #b)
static inline void check_equal(long long a, long long b, const char *file, int line, const char *what)
{
    check_note(a == b, file, line, what, a, b);
}

/* Content that tells block and version. */
void fill_block(uint8_t *to, uint32_t block, uint32_t version);
/* Pages filled with blocks first.. of a version, and their checksums. */
struct page *fill_pages(uint32_t first, uint32_t count, uint32_t version, uint32_t *ret_sums);
struct fake_drive *fixture_member(struct fixture *f, const struct group *g, uint32_t member);
struct group *fixture_create(struct fixture *f, uint32_t id, uint32_t copies) may_yield;
/* Writes blocks first.. of a version and checks that every member took them. */
void fixture_write(struct group *g, uint32_t first, uint32_t count, uint32_t version, uint32_t *ret_sums)
    may_yield;
void spoil(struct fixture *f, const struct group *g, uint32_t member, uint32_t block);
/* True if the member's copy of a block is what fill_block() makes. */
bool copy_is(struct fixture *f, const struct group *g, uint32_t member, uint32_t block, uint32_t version);
void sleep_ms(uint64_t ms) may_yield;

#endif
