/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of the local coordinator: its records in memory and its bytes (docs/formats/coord.md), without any
 * I/O.
 */
#ifndef ASHLAR_CLUSTER_COORD_FILE_H
#define ASHLAR_CLUSTER_COORD_FILE_H

#include "cluster/coord.h"

#define COORD_FILE_MAX_BYTES (64 * MIB)

struct coord_entry {
    char *key;
    char *value;
    uint64_t revision;
    uint64_t lease; /* 0: durable; else it lives in memory only, as long as the lease */
};

/* Sorted by key. */
struct coord_table {
    struct coord_entry *entries;
    size_t count;
    uint64_t revision; /* of the newest change */
    uint64_t generation;
};

void coord_table_done(struct coord_table *t);
int coord_table_copy(const struct coord_table *from, struct coord_table *ret) MUST_CHECK;
struct coord_entry *coord_table_find(const struct coord_table *t, const char *key);
/* Copies key and value. ERR_NO_MEMORY. */
int coord_table_put(struct coord_table *t, const char *key, const char *value, uint64_t revision,
                    uint64_t lease) MUST_CHECK;
void coord_table_remove(struct coord_table *t, const char *key);

/* The durable records. *ret_text is malloc'ed. */
int coord_file_encode(const struct coord_table *t, char **ret_text, size_t *ret_len) MUST_CHECK;
/* ERR_COORD_CORRUPT. */
int coord_file_decode(const char *text, size_t len, struct coord_table *ret) MUST_CHECK;

#endif
