/* SPDX-License-Identifier: Apache-2.0 */
/* A volume of files on real files, for tests of changes. */
#ifndef ASHLAR_CHANGE_TEST_H
#define ASHLAR_CHANGE_TEST_H

#include "volume_test.h"

struct world {
    struct pool pool;
    struct uuid id;
    struct volume *v;
};

void world_open(struct world *w, const char *protection) may_yield;
void world_close(struct world *w) may_yield;
/* Stops as a killed process does: what the kernel has stays, nothing else is written. Then opens again, with
 * nothing in the cache. */
bool world_crash(struct world *w) may_yield;
bool world_verified(struct world *w) may_yield;

/* Blocks of one byte, and their checksums. */
struct page_vec *data_make(uint32_t blocks, uint8_t byte, uint32_t *sums) may_yield;
void data_free(struct page_vec *vec);
/* Whether the block of the object is full of that byte. */
bool data_holds(struct volume *v, uint64_t object, uint64_t block, uint8_t byte) may_yield;

#endif
