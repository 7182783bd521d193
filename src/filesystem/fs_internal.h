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
    struct list watches;
    bool closing;
    uint32_t background; /* fibers of its own */
    struct waitq background_wait;
    struct waitq reap_wanted; /* the reaper has something to do */
    struct waitq reap_done;   /* a truncation was finished: writers behind its end go on */
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
/* Without a change; generation 0: any. The caller waits with volume_seen(). */
int inode_read(struct fs *fs, uint64_t ino, uint32_t generation, struct inode *ret) MUST_CHECK may_yield;

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
bool cred_in_group(const struct fs_cred *cred, uint32_t gid);
/* Write and truncate by somebody else take setuid and setgid away. */
bool mode_kill_suid(const struct fs_cred *cred, struct inode *n);

/* ---- quota.c ---- */

/* Reading phase: may `bytes` and `inodes` more (both may be negative) be counted for domain `quota` and those
 * above it? Wants and promises the puts. ERR_FS_QUOTA, ERR_CHANGE_AGAIN. */
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
/* In an instant: how many blocks of the range the file holds (data, zeroes kept, lost). ERR_CHANGE_AGAIN. */
int extents_count(struct change *c, uint64_t ino, uint64_t block, uint64_t blocks, uint64_t *ret) MUST_CHECK;

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

/* ---- truncate.c: cutting and extending, for setattr, open and create ---- */

/*
 *      change_clear(&c); inode_want(&c, ino) ...
 *      r = truncate_prepare(&t, fs, &c, ino, size);     may wait: reads the block that is cut through;
 * promises if (!r) r = change_begin(&c); if (!r) r = instant: inode_get(&n) ...; truncate_plan(&t, fs, &c,
 * &n);       the last of its readings truncate_apply(&t, fs, &c, &n) ...; inode_put(&n) r = change_end(&c, r,
 * ...); truncate_done(&t);                               in each turn
 *
 * What is cut off goes at once where it is little, else the reaper takes it. Changes of the quota are in it;
 * mtime, ctime, setuid bits and the event are the caller's.
 */
struct truncate {
    uint64_t size;
    uint64_t quota; /* as promised */
    uint32_t flags; /* of the inode, as promised for */
    bool small;     /* what is cut off goes in this change */
    bool has_tail;  /* the last block that stays is cut through: it is written anew */
    struct merge tail;
    struct page *page; /* its new content; or block 0 of a file that is inline no more */
    uint32_t sum;
};
int truncate_prepare(struct truncate *t, struct fs *fs, struct change *c, uint64_t ino, uint64_t size)
    MUST_CHECK may_yield;
/* ERR_CHANGE_AGAIN, ERR_FS_TOO_BIG. */
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
/* After a change that put an orphan, and when an unlinked file is not open any more. */
void reaper_kick(struct fs *fs);
/* A file that is being truncated in the background: waits until blocks up to `end` (bytes) are its own again.
 */
int reap_wait(struct fs *fs, uint64_t ino, uint64_t end) MUST_CHECK may_yield;

/*
 * The last name of an inode of any type goes (n->nlink is 0 then): small files go whole in the same change,
 * the others, and those that are open, become orphans. For unlink, rmdir and rename.
 *
 *      change_clear(&c); inode_want(&c, ino) ... remove_will(fs, &c, &hint);        hint: inode_read()
 *      instant: inode_get(&n) ...; r = remove_plan(fs, &c, &n, &rm);                the last of its readings
 *               n.nlink = 0; n.ctime_ns = ...; remove_apply(fs, &c, &n, &rm);       in place of inode_put()
 *      reaper_kick(fs) after change_end()
 *
 * The quota gets everything back when the inode goes: here, or by the reaper.
 */
#define REMOVE_ITEMS_MAX 12u
struct removal {
    bool now;            /* all of it, in this change */
    uint32_t item_count; /* beside inode and extents */
    struct tree_key items[REMOVE_ITEMS_MAX];
    uint64_t first, blocks; /* extents: to be unmapped */
};
void remove_will(struct fs *fs, struct change *c, const struct inode *hint);
/* ERR_CHANGE_AGAIN. */
int remove_plan(struct fs *fs, struct change *c, const struct inode *n, struct removal *ret) MUST_CHECK;
void remove_apply(struct fs *fs, struct change *c, struct inode *n, const struct removal *rm);

/* ---- readahead.c ---- */

/* fs_open(), before anything is served. */
int readahead_init(struct fs *fs) MUST_CHECK;
/* fs_close(), when background is 0. */
void readahead_done(struct fs *fs);
/* A read of [block, + blocks) of a file of file_blocks: fetches what its stream will ask for next. Never
 * yields. */
void readahead_follow(struct fs *fs, const struct inode *n, uint64_t block, uint32_t blocks);

/* ---- open.c ---- */

bool open_is(const struct fs *fs, uint64_t ino);

/* ---- notify.c ---- */

void notify(struct fs *fs, const struct fs_request *cause, const struct fs_event *e);

/* ---- reply.c ---- */

/* For rq->reply: promises, then puts the result into the same change. */
void reply_will_put(struct fs *fs, struct change *c, const struct fs_request *rq);
void reply_put(struct fs *fs, struct change *c, const struct fs_request *rq, int status, uint64_t ino);

#endif
