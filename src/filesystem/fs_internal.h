/* SPDX-License-Identifier: Apache-2.0 */
/* The file system's parts among themselves. See README.md for the order in which to read them. */
#ifndef ASHLAR_FILESYSTEM_INTERNAL_H
#define ASHLAR_FILESYSTEM_INTERNAL_H

#include "filesystem/fs.h"
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "volume/change.h"

struct fs_opens;   /* open.c: inode number -> counts and share modes */
struct fs_waiters; /* lock.c: locks that wait */
struct fs_streams; /* readahead.c */
struct fs_replies; /* reply.c */
struct fs_files;   /* stats.c: the busiest */

/* Inodes whose access times are to be written: atime.c. */
#define ATIMES_MAX 64u
struct fs_atimes {
    uint64_t inos[ATIMES_MAX];
    uint32_t first, count;
    bool running;
};

struct fs {
    struct volume *volume;
    struct reactor *reactor;
    uint32_t flags; /* FS_CASE_INSENSITIVE */
    uint8_t hash_seed[16];
    uint8_t handle_secret[32];
    uint64_t next_ino;  /* the next one to be given away */
    uint64_t limit_ino; /* what disk_fs.next_ino says: more are reserved before next_ino reaches it */
    uint64_t opened_ns, grace_until_ns; /* of orphans; locks: lock_grace_until_ns */
    uint64_t lock_grace_until_ns;
    struct fs_opens *opens;
    struct fs_waiters *waiters;
    struct fs_streams *streams;
    struct fs_replies *replies;
    struct fs_files *files;
    struct list watches;
    struct fmutex rename_mutex; /* moves of directories: no loop can form */
    bool quotas;                /* there are, or were since it was opened */
    bool quota_scanning, quota_rescan;
    bool closing;
    uint32_t background; /* fibers of its own */
    struct waitq background_wait;
    struct fs_atimes atimes;
    struct waitq reap_wanted; /* the reaper has something to do */
    struct waitq reap_done;   /* the reaper took a piece, or has nothing more to do */
    bool reap_new;            /* the list has a new orphan */
    bool reap_open;           /* some on it were left alone since they are open */
    bool reap_held;           /* or since their time of grace is not over */
    bool reap_kicked, reap_idle;
    uint64_t reap_steps;
    int64_t reap_started_ns; /* UTC */
    struct fs_op_stats stats[FS_OP_COUNT];
    struct fs_client_stats clients[FS_CLIENTS_MAX];
};

/* ---- inode.c: an inode in native numbers ---- */

struct inode {
    uint64_t ino;
    uint32_t mode, nlink, uid, gid;
    uint64_t size, blocks;
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
    uint64_t change, parent;
    uint32_t generation, flags;
    uint32_t rdev_major, rdev_minor;
    uint64_t quota, reap_from;
    uint32_t subdirs;
    uint8_t pattern;
};
static inline struct tree_key inode_key(uint64_t ino)
{
    return (struct tree_key){ino, ITEM_INODE, 0};
}
/* Untrusted bytes: ERR_VOLUME_CORRUPT. */
int inode_decode(uint64_t ino, const void *value, uint32_t len, struct inode *ret) MUST_CHECK;
void inode_encode(const struct inode *n, struct disk_inode *out);
void inode_attr(const struct inode *n, struct fs_attr *ret);

/* In an instant: wants it if it was not. ERR_FS_STALE if there is none (or it has no name and nobody has it
 * open), ERR_CHANGE_AGAIN. */
int inode_get(struct fs *fs, struct change *c, uint64_t ino, struct inode *ret) MUST_CHECK;
/* change_want + change_will_put of one inode. */
void inode_want(struct change *c, uint64_t ino);
/* Raises `change`, puts. */
void inode_put(struct change *c, struct inode *n);
/* Counts blocks that it got and gave back. */
static inline void inode_blocks(struct inode *n, uint64_t got, uint64_t freed)
{
    uint64_t held = n->blocks + got;

    n->blocks = held > freed ? held - freed : 0; /* what is on a drive may be wrong */
}
/* Without a change; generation 0: any. The caller waits with volume_seen(). */
int inode_read(struct fs *fs, uint64_t ino, uint32_t generation, struct inode *ret) MUST_CHECK may_yield;
/* The attributes of several at once, cheaper than one by one; ino 0 in those that could not be read. */
void inode_read_attrs(struct fs *fs, const uint64_t *inos, uint32_t count, struct fs_attr *ret) may_yield;

/* UTC now, in steps that never go back within a run. */
int64_t fs_now_ns(void);

/* ---- wcc and the begin and end of calls ---- */

void wcc_before(struct fs_wcc *w, const struct inode *n); /* w may be NULL */
void wcc_after(struct fs_wcc *w, const struct inode *n);
/* Statistics: `began = fs_begin(...)`, `return fs_end(fs, rq, op, began, ino, bytes, r)`. */
uint64_t fs_begin(const struct fs *fs, const struct fs_request *rq, enum fs_op op);
int fs_end(struct fs *fs, const struct fs_request *rq, enum fs_op op, uint64_t began_ns, uint64_t ino,
           uint64_t bytes, int result);
static inline uint32_t fs_end_flags(const struct fs_request *rq)
{
    return rq->durable ? CHANGE_DURABLE : 0;
}

/* ---- access.c ---- */

/* Mode bits, groups, ACL (in an instant: reads the ACL's xattr when the inode has one; ERR_CHANGE_AGAIN).
 * wanted: FS_MAY_*. 0 or ERR_FS_ACCESS. uid 0 and trusted: everything (execute of files needs one x bit). */
int access_check(struct fs *fs, struct change *c, const struct fs_cred *cred, const struct inode *n,
                 uint32_t wanted) MUST_CHECK;
/* As access_check(), without a change. */
int access_read(struct fs *fs, const struct fs_cred *cred, const struct inode *n, uint32_t wanted)
    MUST_CHECK may_yield;
bool cred_in_group(const struct fs_cred *cred, uint32_t gid);
/* Write and truncate by somebody else take setuid and setgid away. */
bool mode_kill_suid(const struct fs_cred *cred, struct inode *n);

/* ---- quota.c ---- */

/* Before the instant: wants domain `quota` (0: none) and promises the puts of it and of those above it. An
 * instant that finds another one comes again with that. */
void quota_want(struct fs *fs, struct change *c, uint64_t quota);
/* Reading phase: may `bytes` and `inodes` more (both may be negative) be counted for domain `quota` and those
 * above it? ERR_FS_QUOTA, ERR_CHANGE_AGAIN. */
int quota_check(struct fs *fs, struct change *c, uint64_t quota, int64_t bytes, int64_t inodes) MUST_CHECK;
/* Changing phase, after quota_check() of at least as much. */
void quota_charge(struct fs *fs, struct change *c, uint64_t quota, int64_t bytes, int64_t inodes);
/* What an inode counts: its blocks, or one for inline data. */
uint64_t quota_bytes(const struct inode *n);

/* ---- merge.c: blocks that are changed in part ---- */

/* Where a block of a file lay when we looked. */
struct place {
    bool mapped;   /* else a hole */
    uint8_t flags; /* EXTENT_* */
    uint32_t space;
    uint64_t block, birth;
};
/* The old content of a block, read before the instant; in it, it counts only if the block still lies there:
 * nobody's write in between is undone. */
struct merge {
    uint64_t ino, block;
    struct place place;
    struct page *old; /* a reference; NULL: zeroes */
};
/* ERR_LOST_RANGE and errors of reading. merge_done() it. */
int merge_read(struct fs *fs, uint64_t ino, uint64_t block, struct merge *ret) MUST_CHECK may_yield;
/* In the instant, in its reading phase: the block is as it was. ERR_CHANGE_AGAIN. */
int merge_same(struct change *c, const struct merge *m) MUST_CHECK;
void merge_done(struct merge *m);
/* Bytes [from, from + len) of the old content, to the same place of `to` (a block). */
void merge_copy(const struct merge *m, uint8_t *to, uint32_t from, uint32_t len);
/* An extent of a file, as far as the file system must know: a run of its blocks. */
struct span {
    uint64_t start; /* blocks of the file */
    uint32_t blocks;
    uint8_t flags; /* EXTENT_* */
    uint32_t space;
    uint64_t block, birth;
};
struct tree_key data_key(uint64_t ino, uint64_t block);
/* What the cursor stands on: ERR_VOLUME_CORRUPT. */
int span_decode(const struct tree_cursor *c, struct span *ret) MUST_CHECK;
/* In an instant: how many blocks of the range the file holds (data, zeroes kept, lost). ERR_CHANGE_AGAIN. */
int extents_count(struct change *c, uint64_t ino, uint64_t block, uint64_t blocks, uint64_t *ret) MUST_CHECK;

#define BLOCKS_END (FS_SIZE_MAX / BLOCK_SIZE)
/* What one change may unmap from `block` on, so that its instant is short: *ret_end is BLOCKS_END if there
 * are no more extents behind it. *ret_any: there are extents in it. */
int extents_piece(struct fs *fs, uint64_t ino, uint64_t block, uint64_t *ret_end, bool *ret_any)
    MUST_CHECK may_yield;
/* EISDIR, EINVAL: only regular files have data. */
int check_regular(uint32_t mode) MUST_CHECK;

/* ---- inline.c: small files in the tree ---- */

static inline struct tree_key inline_key(uint64_t ino)
{
    return (struct tree_key){ino, ITEM_INLINE, 0};
}
/* In an instant; zeroes behind what is there. *ret_len: of the item, 0 if there is none. */
int inline_get(struct change *c, const struct inode *n, uint8_t buf[FS_INLINE_MAX], uint32_t *ret_len)
    MUST_CHECK;
/* May the file have its bytes in the tree when its size is `size`? */
static inline bool inline_fits(const struct inode *n, uint64_t size)
{
    return size <= FS_INLINE_MAX && ((n->flags & INODE_INLINE) || n->blocks == 0) &&
           !(n->flags & INODE_REAPING);
}
/* A change of its own: the bytes move into block 0. Nothing else is different. 0 if it has none inline. */
int inline_spill(struct fs *fs, const struct fs_request *rq, uint64_t ino) MUST_CHECK may_yield;

/* ---- clone.c: copying by sharing blocks ---- */

struct fs_clone {
    uint64_t from, from_block, to, to_block, blocks;
    uint64_t end; /* bytes of the target: size that it has at least afterwards */
};
/* *ret_blocks are done, also when it fails. ERR_FS_NOT_SUPPORTED: the source's bytes are in the tree.
 * ERR_FS_INVALID: the last block is cut short, but something of the target lies behind it. */
int clone_blocks(struct fs *fs, const struct fs_request *rq, const struct fs_clone *what, struct fs_wcc *wcc,
                 uint64_t *ret_blocks) MUST_CHECK may_yield;

/* ---- truncate.c: cutting and extending, for setattr, open and create ---- */

/*
 * In each turn of the caller's change:
 *      after change_clear():  truncate_prepare(&t, fs, &c, ino, size), may wait; promises
 *      in the instant:        truncate_plan(&t, fs, &c, &n), last of the readings;
 *                             truncate_apply(&t, fs, &c, &n), then the caller's inode_put()
 *      after change_end():    truncate_done(&t)
 *
 * What is cut off goes at once where it is little, else the reaper takes it. Changes of the quota are in it;
 * mtime, ctime, setuid bits and the event are the caller's.
 */
struct truncate {
    uint64_t size;
    struct inode seen; /* what the promises were made for */
    bool has_tail;     /* the last block that stays is cut through */
    struct merge tail;
    struct page *page; /* its new content; or block 0 of a file that is inline no more */
    uint32_t sum;
};
/* ERR_FS_TOO_BIG, ERR_FS_STALE and errors of reading; needs truncate_done() then, too. */
int truncate_prepare(struct truncate *t, struct fs *fs, struct change *c, uint64_t ino, uint64_t size)
    MUST_CHECK may_yield;
/* ERR_CHANGE_AGAIN. */
int truncate_plan(struct truncate *t, struct fs *fs, struct change *c, const struct inode *n) MUST_CHECK;
/* Changes n: size, blocks, flags, reap_from. */
void truncate_apply(struct truncate *t, struct fs *fs, struct change *c, struct inode *n);
void truncate_done(struct truncate *t);

/* ---- orphan lists and the reaper: reap.c ---- */

void orphan_will_put(struct change *c, uint64_t ino);
void orphan_put(struct change *c, uint64_t ino, uint32_t why);
/* fs_open() starts it; it counts in fs->background. fs_close() sets closing, wakes reap_wanted and waits
 * until background is 0. */
int reaper_start(struct fs *fs) MUST_CHECK;
/* A file is not open any more: it may have been an orphan. New orphans are noticed without it. */
void reaper_kick(struct fs *fs);
/* A file that is being truncated in the background: waits until blocks up to `end` (bytes) are its own again.
 */
int reap_wait(struct fs *fs, uint64_t ino, uint64_t end) MUST_CHECK may_yield;

/* Nothing could be written for want of space: waits until the reaper took more of what was deleted. False: it
 * has nothing left that it may take. */
bool reap_for_space(struct fs *fs) may_yield;

/*
 * The last name of an inode of any type goes: small ones go whole in the same change, the others, and those
 * that are open, become orphans. For unlink, rmdir and rename. In each turn of the caller's change:
 *      before the first:      struct removal rm = {0};
 *      after change_clear():  remove_will(fs, &c, &hint, &rm), hint by inode_read()
 *      in the instant:        remove_plan(fs, &c, &n, &rm), last of the readings;
 *                             n.nlink = 0 ...; remove_apply(fs, &c, &n, &rm) in place of inode_put()
 *
 * The quota gets everything back when the inode goes: here, or by the reaper.
 */
#define REMOVE_ITEMS_MAX 12u
struct removal {
    bool now;            /* all of it, in this change */
    bool orphan;         /* an orphan's item was promised */
    bool unmaps;         /* its blocks were promised to be unmapped */
    uint64_t quota;      /* whose puts were promised */
    bool many;           /* it has more items than fit this change */
    uint32_t item_count; /* beside inode and extents */
    struct tree_key items[REMOVE_ITEMS_MAX];
};
void remove_will(struct fs *fs, struct change *c, const struct inode *hint, struct removal *rm);
/* ERR_CHANGE_AGAIN. */
int remove_plan(struct fs *fs, struct change *c, const struct inode *n, struct removal *rm) MUST_CHECK;
void remove_apply(struct fs *fs, struct change *c, struct inode *n, const struct removal *rm);

/* ---- atime.c ---- */

/* It was read. Never yields. */
void atime_note(struct fs *fs, const struct fs_request *rq, const struct inode *n);

/* ---- readahead.c ---- */

/* fs_open(), before anything is served. */
int readahead_init(struct fs *fs) MUST_CHECK;
/* fs_close(), when background is 0. */
void readahead_done(struct fs *fs);
/* A read of [block, + blocks) of a file of file_blocks: fetches what its stream will ask for next. Never
 * yields. */
void readahead_follow(struct fs *fs, const struct inode *n, uint64_t block, uint32_t blocks);
/* Waits for what is being fetched of the range, instead of reading it twice. */
void readahead_wait(struct fs *fs, uint64_t ino, uint64_t block, uint32_t blocks) may_yield;

/* ---- open.c ---- */

bool open_is(const struct fs *fs, uint64_t ino);

/* ---- notify.c ---- */

void notify(struct fs *fs, const struct fs_request *cause, const struct fs_event *e);

/* ---- reply.c ---- */

/* For rq->reply: promises, then puts the result into the same change. */
void reply_will_put(struct fs *fs, struct change *c, const struct fs_request *rq);
void reply_put(struct fs *fs, struct change *c, const struct fs_request *rq, int status, uint64_t ino);

#endif
