/* SPDX-License-Identifier: Apache-2.0 */
/* A small pool of file drives with volumes on it, for tests of the volume on the real world. */
#ifndef ASHLAR_VOLUME_TEST_H
#define ASHLAR_VOLUME_TEST_H

#include "../drive/drive_test.h"
#include "runtime/checksum.h"
#include "volume/volume_internal.h"

#define TEST_DRIVES 4u

struct pool {
    struct drive_home *homes[TEST_DRIVES];
    struct drive *drives[TEST_DRIVES];
    struct drive_set set;
    struct cache *cache;
    struct volume_env env;
    struct volume_shortage shortage;
};

/* Formats the drives (64 MiB, slabs of 64 blocks) on the first call in a folder, opens all, coordinator too.
 */
void pool_open(struct pool *p) may_yield;
void pool_close(struct pool *p) may_yield;
struct uuid pool_volume(struct pool *p, const char *protection, uint64_t size_bytes) may_yield;
/* One block of a pattern made of (block, generation). */
int test_write(struct volume *v, uint64_t block, uint32_t blocks, uint32_t generation, uint32_t flags)
    may_yield;
/* Whether the blocks hold that pattern (generation 0: zeroes). */
bool test_holds(struct volume *v, uint64_t block, uint32_t blocks, uint32_t generation) may_yield;

#endif
