/* SPDX-License-Identifier: Apache-2.0 */
/* A table by inode number: what the node keeps of a mount's opens, and a mount of what its kernel knows. */
#ifndef ASHLAR_PROTOCOLS_FUSE_TABLE_H
#define ASHLAR_PROTOCOLS_FUSE_TABLE_H

#include "runtime/base.h"

#define FUSE_OPEN_KINDS 4u /* by WIRE_OPEN_READ | WIRE_OPEN_WRITE; 0 is unused */

struct fuse_node {
    struct fuse_node *next;
    uint64_t ino;
    uint64_t lookups; /* of the kernel, not forgotten */
    uint32_t opens[FUSE_OPEN_KINDS];
    bool locked; /* a byte-range lock was taken since it was opened */
};
struct fuse_table {
    struct fuse_node **buckets;
    uint32_t size; /* of buckets, a power of two; 0: none yet */
    uint32_t count;
};

/* Zeroes are an empty table. */
void fuse_table_done(struct fuse_table *t);
/* NULL: there is none. */
struct fuse_node *fuse_table_find(const struct fuse_table *t, uint64_t ino);
/* Made if there is none. NULL: no memory. Stays where it is until it is removed. */
struct fuse_node *fuse_table_get(struct fuse_table *t, uint64_t ino);
/* Frees the node if nothing in it counts. */
void fuse_table_drop(struct fuse_table *t, struct fuse_node *n);
bool fuse_node_is_open(const struct fuse_node *n);

#define FUSE_TABLE_FOREACH(t, it)                           \
    for (uint32_t it##_i = 0; it##_i < (t)->size; it##_i++) \
        for (struct fuse_node *it = (t)->buckets[it##_i]; it != NULL; it = it->next)

#endif
