/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordination: small records under compare-and-set. Never a lock, never in the way of data.
 *
 * Implementations: `local`, a file (one node); later `etcd`. The simulator has one of its own that loses
 * answers. Keys are text ("/volumes/UUID"), values are JSON text of at most 64 KiB. Every record has a
 * revision that grows with every change of it; revision 0 means "does not exist".
 */
#ifndef ASHLAR_CLUSTER_COORD_H
#define ASHLAR_CLUSTER_COORD_H

#include "runtime/world.h"

#define COORD_KEY_MAX   255
#define COORD_VALUE_MAX (64 * KIB)

struct coord;

struct coord_record {
    char *key;
    char *value;
    uint64_t revision;
};
void coord_records_free(struct coord_record *records, size_t count);

struct coord_change {
    const char *key;
    uint64_t if_revision; /* the change takes effect only while the record has it; 0: does not exist */
    const char *value;    /* NULL: delete */
};

/* ERR_COORD_NOT_FOUND. *ret_value is malloc'ed. */
int coord_get(struct coord *c, const char *key, char **ret_value, uint64_t *ret_revision)
    MUST_CHECK may_yield;
/* All records whose key begins with prefix, in key order; malloc'ed. */
int coord_list(struct coord *c, const char *prefix, struct coord_record **ret, size_t *ret_count)
    MUST_CHECK may_yield;
/* All or nothing, durable. 0 and the new revision of all changed records; ERR_COORD_CONFLICT: nothing
 * happened; ERR_COORD_UNKNOWN: it may have happened, or may still: settle it by another compare-and-set. */
int coord_commit(struct coord *c, const struct coord_change *changes, size_t count, uint64_t *ret_revision)
    MUST_CHECK may_yield;
/* Grows when the coordinator's history was lost and restored; fences carry it, drives never lower it. */
uint64_t coord_generation(const struct coord *c);

/* Waits until a record under the prefix has a revision above `after`, or the deadline. *ret_revision is the
 * newest seen. ERR_TIMEOUT, ERR_CANCELLED. */
int coord_watch(struct coord *c, const char *prefix, uint64_t after, uint64_t deadline_ns,
                uint64_t *ret_revision) MUST_CHECK may_yield;

/* Presence: records put with a lease vanish when it is not kept alive. */
int coord_lease_grant(struct coord *c, uint64_t ttl_ns, uint64_t *ret_lease) MUST_CHECK may_yield;
int coord_lease_keep(struct coord *c, uint64_t lease) MUST_CHECK may_yield;
int coord_put_leased(struct coord *c, const char *key, const char *value, uint64_t lease)
    MUST_CHECK may_yield;

/* Upkeep, every few seconds by whoever has a monitor. */
void coord_tend(struct coord *c) may_yield;

void coord_close(struct coord *c) may_yield;

/* The file implementation: atomic replacement, checksum and revision inside; loads or creates it. May be
 * called from any reactor of the process (it runs on the one that opened it). */
int coord_local_open(const char *path, struct coord **ret) MUST_CHECK may_yield;

struct coord_ops {
    int (*get)(struct coord *c, const char *key, char **ret_value, uint64_t *ret_revision);
    int (*list)(struct coord *c, const char *prefix, struct coord_record **ret, size_t *ret_count);
    int (*commit)(struct coord *c, const struct coord_change *changes, size_t count, uint64_t *ret_revision);
    int (*watch)(struct coord *c, const char *prefix, uint64_t after, uint64_t deadline_ns,
                 uint64_t *ret_revision);
    int (*lease_grant)(struct coord *c, uint64_t ttl_ns, uint64_t *ret_lease);
    int (*lease_keep)(struct coord *c, uint64_t lease);
    int (*put_leased)(struct coord *c, const char *key, const char *value, uint64_t lease);
    void (*tend)(struct coord *c); /* or NULL */
    uint64_t (*generation)(const struct coord *c);
    void (*close)(struct coord *c);
};
struct coord {
    const struct coord_ops *ops;
};

#endif
