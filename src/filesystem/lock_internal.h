/* SPDX-License-Identifier: Apache-2.0 */
/* Locks in memory: which there are, who waits. Nothing here yields or knows the tree. */
#ifndef ASHLAR_FILESYSTEM_LOCK_INTERNAL_H
#define ASHLAR_FILESYSTEM_LOCK_INTERNAL_H

#include "filesystem/names_internal.h"

#define LOCKS_MAX          (1u << 18)
#define LOCK_REMOVALS_MAX  256u /* of one change */
#define LOCK_ADDITIONS_MAX 3u   /* the lock itself, and what stays of others of its owner on both sides */

/* A lock that is held: an item of the tree, and this. */
struct held {
    struct list link;
    uint64_t number;     /* of its item */
    uint64_t start, end; /* inclusive */
    bool exclusive;
    uint8_t protocol;
    uint32_t pid, owner_len, client_len;
    uint8_t bytes[]; /* owner, client */
};
/* All of one inode; there while it has any. */
struct lock_file {
    struct lock_file *next;
    uint64_t ino;
    uint64_t next_number;
    uint32_t count;
    struct list held;
};

/* Somebody whose lock is in the way of others. */
struct lock_waiter {
    struct list link;
    uint64_t ino;
    const struct fs_lock *lock;
    struct waitq wait;
    bool woken;
};

struct fs_waiters {
    struct lock_file **buckets;
    uint32_t bucket_count, files, locks;
    struct list waiters;
};

/* ERR_FS_INVALID: beyond the last byte. */
int lock_end(const struct fs_lock *l, uint64_t *ret) MUST_CHECK;
bool lock_same_owner(const struct held *h, const struct fs_lock *l);
void lock_describe(const struct held *h, struct fs_lock *ret);

struct lock_file *locks_of(const struct fs *fs, uint64_t ino);
/* The first one that `l` may not have for the sake of another owner. */
const struct held *lock_conflict(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end);
/* Waiting for `l` closes a circle. */
bool lock_deadlock(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end);

/* What setting (or clearing) a range does to its owner's locks. */
struct lock_plan {
    uint64_t start, end; /* of what is set: it may be less than what was asked for, from the left */
    uint64_t new_start, new_end;
    bool nothing; /* it is so already */
    bool adds;    /* the lock itself */
    uint32_t removal_count, rest_count;
    struct held *removals[LOCK_REMOVALS_MAX];
    struct lock_rest {
        uint64_t start, end;
        bool exclusive;
        uint32_t pid;
    } rests[2];
};
/* removals_max: about as many at most (5..LOCK_REMOVALS_MAX); what is left is another change's. */
void lock_plan(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end, bool set,
               uint32_t removals_max, struct lock_plan *ret);

struct held *held_new(const struct fs_lock *l);
/* Takes h. ERR_NO_MEMORY: a new file's entry. */
int held_insert(struct fs *fs, uint64_t ino, struct held *h) MUST_CHECK;
void held_remove(struct fs *fs, struct lock_file *f, struct held *h);
/* Frees the entry once it holds nothing. */
void lock_file_put(struct fs *fs, struct lock_file *f);
void lock_wake(struct fs *fs, uint64_t ino);

int waiters_new(struct fs_waiters **ret) MUST_CHECK;

/* ---- lock.c ---- */

#define LOCK_ITEM_MAX ((uint32_t)sizeof(struct disk_lock) + FS_LOCK_OWNER_MAX + FS_LOCK_CLIENT_MAX)
uint32_t lock_encode(const struct held *h, uint8_t out[LOCK_ITEM_MAX]);
/* Untrusted: ERR_VOLUME_CORRUPT. */
int lock_decode(const void *bytes, uint32_t len, struct fs_lock *ret) MUST_CHECK;

#endif
