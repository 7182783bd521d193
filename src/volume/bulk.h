/* SPDX-License-Identifier: Apache-2.0 */
/* Many writes of pages to their places, neighbours merged, a bounded number under way: what a commit does. */
#ifndef ASHLAR_VOLUME_BULK_H
#define ASHLAR_VOLUME_BULK_H

#include "volume/volume_internal.h"

#define BULK_WRITES 8u
#define BULK_IOV    64u
#define BULK_BLOCKS 256u

struct bulk_write {
    struct group_write write;
    struct bulk *bulk;
    struct iovec iov[BULK_IOV];
    bool busy;
};
struct bulk {
    struct volume *volume;
    struct bulk_write *writes; /* BULK_WRITES of them */
    struct bulk_write *open;   /* being gathered */
    uint32_t under_way;
    struct waitq free;
    int result;
};

void bulk_init(struct bulk *b, struct volume *v);
/* Borrows the pages until bulk_finish(). */
void bulk_add(struct bulk *b, uint32_t space, uint64_t block, struct page *page, uint32_t count) may_yield;
/* Waits for all; the first error. A drive that missed something was reported to membership. */
int bulk_finish(struct bulk *b) MUST_CHECK may_yield;

#endif
