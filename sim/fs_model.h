/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client of a file system may see: a small tree in memory on which every operation is done as well.
 *
 * Each client works in a directory of its own, one operation after another, so the tree that it must find is
 * known exactly. What a crash may take is a tail of its operations:
 *
 *  F1  the death of a process loses nothing acknowledged; what was under way happened as a whole or not at
 * all; F2  a power loss may take acknowledged operations that were not durable, the youngest first: what is
 * left is the state after some number of the client's operations, all durable ones among them. Durable is
 * what was asked to be so, and whatever was acknowledged before such an operation, or a commit, of any client
 * began; F3  across clients: if an operation survived, everything that was acknowledged before it began has
 * survived.
 */
#ifndef ASHLAR_SIM_FS_MODEL_H
#define ASHLAR_SIM_FS_MODEL_H

#include "runtime/base.h"

#define FSM_DEPTH_MAX  4u
#define FSM_NAMES      12u /* different names in a directory */
#define FSM_NODES_MAX  48u
#define FSM_FILE_MAX   (96u * 1024)
#define FSM_XATTRS     3u
#define FSM_XATTR_MAX  6000u
#define FSM_TARGET_MAX 64u

struct fsm_path {  /* below the client's directory */
    uint8_t depth; /* 0: that directory itself */
    uint8_t names[FSM_DEPTH_MAX];
};
/* The name with this number. */
void fsm_name(uint8_t number, char out[24]);

enum fsm_kind {
    FSM_CREATE,
    FSM_MKDIR,
    FSM_SYMLINK,
    FSM_LINK,
    FSM_UNLINK,
    FSM_RMDIR,
    FSM_RENAME,
    FSM_WRITE,
    FSM_APPEND,
    FSM_TRUNCATE,
    FSM_PUNCH,
    FSM_ZERO,
    FSM_CLONE,
    FSM_CHMOD,
    FSM_CHOWN,
    FSM_XATTR_SET,
    FSM_XATTR_REMOVE,
    FSM_KINDS,
};
const char *fsm_kind_name(enum fsm_kind kind);

struct fsm_op {
    enum fsm_kind kind;
    struct fsm_path a, b; /* b: LINK's and RENAME's new name, CLONE's target */
    uint64_t offset, len; /* TRUNCATE: len is the size; XATTR: offset is its number */
    uint64_t tag;         /* what bytes are made of */
    uint32_t mode, uid, gid;
    bool exchange, noreplace;
    /* The harness's. */
    bool durable;
    uint64_t begun, acked; /* logical time; acked 0: it was under way when the process died */
};
/* The byte that an operation with this tag writes at an offset of its own data. */
static inline uint8_t fsm_byte(uint64_t tag, uint64_t at)
{
    uint64_t x = (tag + at / 8 * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint8_t)(x >> (at % 8 * 8)) | 1u; /* never the zero of a hole */
}

/* ---- A tree ---- */

/* The bytes of a file, shared by the copies of a tree until one of them writes. Zero behind the file's end.
 */
struct fsm_bytes {
    uint32_t refs;
    bool hashed;
    uint32_t hashed_size;
    uint64_t hash;
    uint8_t data[FSM_FILE_MAX];
};
struct fsm_node {
    bool used;
    uint32_t mode; /* with its type */
    uint32_t uid, gid, nlink;
    uint32_t size;
    struct fsm_bytes *bytes; /* of files: NULL as long as all is zero */
    char target[FSM_TARGET_MAX];
    uint8_t children[FSM_NAMES]; /* of directories: index of a node, 0: no such name (0 is the client's
                                    directory) */
    struct {
        uint32_t len;
        uint64_t tag; /* len 0: there is none */
    } xattrs[FSM_XATTRS];
};
struct fsm_tree {
    struct fsm_node nodes[FSM_NODES_MAX];
};
void fsm_tree_init(struct fsm_tree *t);
void fsm_tree_copy(struct fsm_tree *to, const struct fsm_tree *from);
void fsm_tree_done(struct fsm_tree *t);
/* To be written by the caller alone. */
uint8_t *fsm_node_bytes(struct fsm_node *n);
/* Does it: 0, or the errno with which POSIX refuses. ENOSPC: the model itself has no room; do not try it. */
int fsm_tree_apply(struct fsm_tree *t, const struct fsm_op *op);
/* Index of the node, or -1 with the errno in *ret_errno. */
int fsm_tree_find(const struct fsm_tree *t, const struct fsm_path *p, int *ret_errno);
/* A number for all that can be seen in it: names, types, modes, owners, links, sizes, contents. Built by the
 * same functions from a tree that was read. */
uint64_t fsm_tree_hash(const struct fsm_tree *t);
/* For people: the first difference. */
void fsm_tree_difference(const struct fsm_tree *expected, const struct fsm_tree *found, char *out,
                         size_t size);

/* ---- A client ---- */

struct fsm_client {
    struct fsm_tree base;   /* everything in it is known to survive */
    struct fsm_tree now;    /* and with all of the journal */
    struct fsm_op *journal; /* since then; the last one may be under way */
    size_t count, capacity;
    size_t durable;  /* so many of them survive a power loss */
    size_t survives; /* and so many what happened since it was looked at last */
    bool under_way;
};
struct fsm { /* all clients */
    uint32_t count;
    struct fsm_client *clients;
    uint64_t clock;
    bool crashed; /* fsm_recovered() is due */
    bool power;   /* and a power loss was among what happened */
};
struct fsm *fsm_new(uint32_t clients);
void fsm_free(struct fsm *m);
/* The client begins op (copied). What it will come to: *ret_errno. False: the model has no room for it. */
bool fsm_begin(struct fsm *m, uint32_t client, const struct fsm_op *op, int *ret_errno);
/* It was answered: done, or (error) nothing happened. */
void fsm_end(struct fsm *m, uint32_t client, bool done);
/* A commit: returns a mark; and when it was answered. */
uint64_t fsm_commit_begin(struct fsm *m);
void fsm_commit_end(struct fsm *m, uint64_t mark);
/* The process died; power: unflushed writes were lost. */
void fsm_crash(struct fsm *m, bool power);
/* After a crash: `found` holds what each client's directory is now. Checks F1 to F3 and goes on from there.
 * False: why says it. */
bool fsm_recovered(struct fsm *m, const struct fsm_tree *found, char *why, size_t why_size);

#endif
