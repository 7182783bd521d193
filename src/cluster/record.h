/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volume's record in the coordinator: who owns it in which epoch, and which members of its system group
 * hold everything that was acknowledged (the in-sync set). Everything larger lives in the volume itself.
 */
#ifndef ASHLAR_CLUSTER_RECORD_H
#define ASHLAR_CLUSTER_RECORD_H

#include "cluster/coord.h"

#define VOLUME_NAME_MAX    63
#define SYSTEM_MEMBERS_MAX 8
#define SYSTEM_RUNS_MAX    64

enum protection_kind {
    PROTECT_NONE,
    PROTECT_MIRROR,
    PROTECT_PARITY,
    PROTECT_NESTED_MIRROR,
    PROTECT_NESTED_PARITY
};

struct protection {
    enum protection_kind kind;
    uint8_t data;  /* K of parity; 1 else */
    uint8_t spare; /* how many members may be lost: 0, N-1 of a mirror, M of parity */
};
/* "none", "mirror:2", "mirror:3" now; ERR_BAD_PROTECTION. */
int protection_parse(const char *text, struct protection *ret) MUST_CHECK;
void protection_format(struct protection p, char out[24]);
/* Copies of the system group: spare + 1. Of tree blocks: the same, but two for "none" where two drives exist.
 */
uint32_t protection_system_copies(struct protection p);
uint32_t protection_tree_copies(struct protection p, uint32_t drives);

struct system_member {
    struct uuid drive_id;
    uint64_t incarnation; /* of the drive when it was last levelled */
    bool in_sync;
};

struct volume_record {
    struct uuid id;
    char name[VOLUME_NAME_MAX + 1];
    char kind[16]; /* "block", "fs" */
    struct protection protection;
    uint64_t epoch;       /* of the present ownership; only grows */
    struct uuid owner;    /* node id; none: free */
    uint32_t system_runs; /* slabs a member of the system group: groups 0 .. runs-1 */
    uint32_t slab_blocks; /* of every slab that this volume uses */
    uint32_t member_count;
    struct system_member members[SYSTEM_MEMBERS_MAX];
    bool deleted;      /* tombstone: slabs are being given back */
    char exports[512]; /* JSON of the protocols that offer it, "" if none; control's business */
    uint64_t revision; /* of the record; not inside the JSON */
};

/* JSON text, malloc'ed. */
int volume_record_encode(const struct volume_record *r, char **ret_text) MUST_CHECK;
/* Checks every field. ERR_COORD_CORRUPT. */
int volume_record_decode(const char *text, uint64_t revision, struct volume_record *ret) MUST_CHECK;
/* "/volumes/<uuid>" */
#define VOLUME_KEY_SIZE 48
void volume_record_key(struct uuid id, char out[VOLUME_KEY_SIZE]);

int volume_record_load(struct coord *c, struct uuid id, struct volume_record *ret) MUST_CHECK may_yield;
/* Compare-and-set on r->revision; on success r->revision is the new one. Errors as coord_commit. */
int volume_record_store(struct coord *c, struct volume_record *r) MUST_CHECK may_yield;

#endif
