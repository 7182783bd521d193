/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A POSIX file system in a volume: what NFS, FUSE and SMB stand on. It lives on its volume's reactor; every
 * call is made there, on a fiber.
 *
 * There is no cache of inodes and there are no locks: an operation finds what it needs in the head tree,
 * decides and changes in one instant (volume/change.h), and its reply waits for the log. What is in memory
 * beside the tree is only what no tree can hold: opens, waiting locks, streams, watches.
 *
 * Names are bytes without '/' and NUL, 1..FS_NAME_MAX (else FS errors below); "." and ".." are names of
 * lookup and readdir only. Errors are private codes whose errno class is what POSIX says for the call
 * (error_errno()). Those that the file system raises: FS_NOT_FOUND ENOENT, FS_EXISTS EEXIST, FS_NOT_DIRECTORY
 * ENOTDIR, FS_IS_DIRECTORY EISDIR, FS_NOT_EMPTY ENOTEMPTY, FS_ACCESS EACCES, FS_NOT_OWNER EPERM, FS_STALE
 * ESTALE, FS_NAME_TOO_LONG, FS_BAD_NAME EINVAL, FS_LOOP ELOOP, FS_CROSS_QUOTA EXDEV, FS_QUOTA EDQUOT,
 * FS_TOO_MANY_LINKS EMLINK, FS_TOO_BIG EFBIG, FS_READ_ONLY EROFS, FS_LOCKED EAGAIN, FS_DEADLOCK EDEADLK,
 * FS_NO_XATTR ENODATA, FS_XATTR_SIZE ERANGE/E2BIG, FS_NOT_SUPPORTED EOPNOTSUPP, FS_GRACE EAGAIN, FS_BUSY
 * EBUSY (share modes), FS_NO_DATA ENXIO (seek), FS_TEXT_INVALID EINVAL.
 */
#ifndef ASHLAR_FILESYSTEM_FS_H
#define ASHLAR_FILESYSTEM_FS_H

#include "filesystem/fs_format.h"
#include "runtime/metrics.h"
#include "volume/volume.h"

struct fs;

/* ---- Life ---- */

struct fs_format_options {
    bool case_insensitive;
    uint32_t root_mode, root_uid, root_gid; /* of the root directory; mode 0: 0755 */
};
/* In an open, empty volume of kind "fs". Durable when it returns. */
int fs_format(struct volume *v, const struct fs_format_options *o) MUST_CHECK may_yield;
/* Reads what is needed, starts the reaper. Borrows the volume until fs_close(). Orphans are kept for
 * grace_ns, so that who had them open can come back (fs_open_reclaim). ERR_NOT_FOUND: there is none yet
 * (fs_format()). */
int fs_open(struct volume *v, uint64_t grace_ns, struct fs **ret) MUST_CHECK may_yield;
/* No call may be under way. Stops background work where it stands. */
void fs_close(struct fs *fs) may_yield;
struct volume *fs_volume(const struct fs *fs);
struct reactor *fs_reactor(const struct fs *fs);
/* 32 secret bytes for file handles; the volume's life long the same. Borrowed. */
const uint8_t *fs_handle_secret(const struct fs *fs);
/* Names that differ only in case are the same name; the case in which one was made is kept. */
bool fs_case_insensitive(const struct fs *fs);

/* ---- Who asks ---- */

#define FS_GROUPS_MAX 64u
struct fs_cred {
    uint32_t uid, gid;
    uint32_t group_count;
    uint32_t groups[FS_GROUPS_MAX]; /* supplementary */
    bool trusted; /* permissions were checked by the client's kernel: only what it cannot know is checked here
                   */
};
/* Who asks and how the answer counts. */
struct fs_request {
    struct fs_cred cred;
    bool durable;   /* changes are on stable media before the call returns (NFS); else acknowledged (FUSE) */
    bool read_only; /* of the export: changes are FS_READ_ONLY */
    /* Of an operation that is not idempotent: its result is logged with it (fs_reply_find). NULL: not wanted.
     * A write that appends logs with its first change where it began: who asks again writes all of it there.
     */
    const struct fs_reply_key *reply;
    uint32_t client; /* index for statistics: fs_client(); 0: none */
    /* Whose request it is, for watchers: they leave their own changes out by it. Never followed. */
    const void *source;
};

/* ---- Attributes ---- */

enum fs_type { FS_FILE, FS_DIRECTORY, FS_SYMLINK, FS_FIFO, FS_SOCKET, FS_CHAR, FS_BLOCK };

struct fs_attr {
    uint64_t ino;
    uint32_t generation;
    uint32_t mode; /* with S_IFMT */
    uint32_t nlink, uid, gid;
    uint32_t rdev_major, rdev_minor;
    uint64_t size;       /* bytes */
    uint64_t used_bytes; /* what stat's st_blocks counts */
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
    uint64_t change;
    uint64_t parent;
    uint64_t quota;
    uint8_t pattern;
};
/* Weak cache consistency (RFC 1813 2.6): both of one instant with the change. */
struct fs_wcc {
    bool has_before, has_after;
    uint64_t before_size;
    int64_t before_mtime_ns, before_ctime_ns;
    struct fs_attr after;
};

/* generation 0: not checked. FS_STALE: no such inode, or another one of that number. */
int fs_getattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t generation,
               struct fs_attr *ret) MUST_CHECK may_yield;

enum fs_set {
    FS_SET_MODE = 1 << 0,
    FS_SET_UID = 1 << 1,
    FS_SET_GID = 1 << 2,
    FS_SET_SIZE = 1 << 3,
    FS_SET_ATIME = 1 << 4,
    FS_SET_MTIME = 1 << 5,
    FS_SET_ATIME_NOW = 1 << 6,
    FS_SET_MTIME_NOW = 1 << 7,
    FS_SET_CTIME = 1 << 8,     /* FUSE with writeback cache */
    FS_SET_KILL_SUID = 1 << 9, /* what write and truncate by others do */
    FS_SET_GUARD = 1 << 10,    /* only if ctime is guard_ctime_ns: else FS_NOT_SYNC (NFS3ERR_NOT_SYNC) */
    FS_SET_OPEN = 1 << 11,     /* through an open file: size needs no write permission (ftruncate) */
};
struct fs_setattr {
    uint32_t valid; /* enum fs_set */
    uint32_t mode, uid, gid;
    uint64_t size;
    int64_t atime_ns, mtime_ns, ctime_ns, guard_ctime_ns;
};
int fs_setattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_setattr *s,
               struct fs_wcc *ret) MUST_CHECK may_yield;

/* Bits as in access(2): R_OK, W_OK, X_OK; and the finer ones of NFS ACCESS and SMB. */
enum fs_access {
    FS_MAY_READ = 1 << 0,
    FS_MAY_WRITE = 1 << 1,
    FS_MAY_EXECUTE = 1 << 2, /* directories: search */
    FS_MAY_DELETE = 1 << 3,  /* directories: remove names in it */
};
/* Which of `wanted` the caller has. */
int fs_access(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t wanted,
              uint32_t *ret_granted, struct fs_attr *ret_attr) MUST_CHECK may_yield;

/* ---- Names. Wherever a wcc is returned, it is also filled as far as known when the call fails (has_* tell).
 * ---- */

/* "." and ".." work; ".." of the root is the root. dir_attr may be NULL. */
int fs_lookup(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              struct fs_attr *ret, struct fs_attr *ret_dir) MUST_CHECK may_yield;

enum fs_create_mode {
    FS_CREATE_UNCHECKED, /* an existing regular file is opened (size set if given) */
    FS_CREATE_GUARDED,   /* FS_EXISTS */
    FS_CREATE_EXCLUSIVE, /* verifier kept in the inode's times: the same again is success (RFC 1813 3.3.8) */
};
struct fs_create {
    enum fs_type type;
    enum fs_create_mode how; /* files; all others are guarded */
    uint64_t verifier;
    struct fs_setattr attr; /* mode (after the umask), and what else is valid. Owner: the request's cred */
    uint32_t umask;         /* kept out of mode unless a default ACL rules */
    uint32_t rdev_major, rdev_minor;
    const char *target; /* symbolic links */
    uint32_t target_len;
    bool open; /* counts as fs_open_get() with flags 0 at once, whether it was made or is opened */
};
int fs_create(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              const struct fs_create *c, struct fs_attr *ret, bool *ret_created, struct fs_wcc *ret_dir)
    MUST_CHECK may_yield;
int fs_link(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t dir, const char *name,
            uint32_t len, struct fs_attr *ret, struct fs_wcc *ret_dir) MUST_CHECK may_yield;
/* Not for directories (FS_IS_DIRECTORY). ret_ino: what the name was. */
int fs_unlink(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              uint64_t *ret_ino, struct fs_wcc *ret_dir) MUST_CHECK may_yield;
int fs_rmdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
             uint64_t *ret_ino, struct fs_wcc *ret_dir) MUST_CHECK may_yield;
enum fs_rename_flags { FS_RENAME_NOREPLACE = 1, FS_RENAME_EXCHANGE = 2 };
int fs_rename(struct fs *fs, const struct fs_request *rq, uint64_t from_dir, const char *from,
              uint32_t from_len, uint64_t to_dir, const char *to, uint32_t to_len, uint32_t flags,
              struct fs_wcc *ret_from, struct fs_wcc *ret_to) MUST_CHECK may_yield;
int fs_readlink(struct fs *fs, const struct fs_request *rq, uint64_t ino, char target[FS_SYMLINK_MAX + 1],
                uint32_t *ret_len, struct fs_attr *ret) MUST_CHECK may_yield;

struct fs_dirent {
    uint64_t ino;
    uint64_t cookie; /* of this name: go on after it with it */
    uint32_t generation;
    uint8_t type; /* DT_* */
    uint8_t name_len;
    const char *name;           /* borrowed for the call of emit */
    const struct fs_attr *attr; /* with attributes; NULL where it could not be had */
};
/* From the name after `cookie` (0: the beginning, with "." and "..") on; emit returns false when it has no
 * room: that name comes again next time. Must not yield. *ret_eof: nothing is behind the last one emitted. */
int fs_readdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, uint64_t cookie, bool attributes,
               bool (*emit)(void *ctx, const struct fs_dirent *e), void *ctx, bool *ret_eof,
               struct fs_attr *ret_dir) MUST_CHECK may_yield;

struct fs_statfs {
    uint64_t total_bytes, free_bytes, available_bytes; /* of the innermost quota where that is less */
    uint64_t total_inodes, free_inodes, available_inodes;
    uint64_t used_inodes;
};
int fs_statfs(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_statfs *ret,
              struct fs_attr *ret_attr) MUST_CHECK may_yield;

/* ---- Data ---- */

/* At most PAGE_VEC_MAX blocks touched (fs_piece_len()). ret: pages of the touched blocks, the range begins
 * offset % BLOCK_SIZE bytes into the first; page_vec_put() it. *ret_len: bytes, less at the end of the file;
 * then *ret_eof. */
int fs_read(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
            struct page_vec *ret, uint32_t *ret_len, bool *ret_eof, struct fs_attr *ret_attr)
    MUST_CHECK may_yield;
enum fs_write_flags {
    FS_WRITE_APPEND = 1 << 0, /* at the end, whatever offset says; *ret_offset tells where */
    FS_WRITE_OPEN = 1 << 1,   /* through a file that was opened for writing: permission was checked then */
};
/* One piece; data as for block_write(): a page for each touched block, payload at offset % BLOCK_SIZE of the
 * first; pages are the caller's alone until the call, and must never be changed after it. What is left out of
 * the first and the last block is filled in. rq->durable: data and attributes are on stable media. */
int fs_write(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
             const struct page_vec *data, uint32_t flags, uint64_t *ret_offset, struct fs_wcc *ret)
    MUST_CHECK may_yield;
static inline uint32_t fs_piece_len(uint64_t offset, uint64_t len)
{
    uint64_t room = (uint64_t)PAGE_VEC_MAX * BLOCK_SIZE - offset % BLOCK_SIZE;
    return (uint32_t)MIN(len, room);
}
/* Everything of the file system that was acknowledged is on stable media. */
int fs_commit(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_wcc *ret)
    MUST_CHECK may_yield;

enum fs_allocate_mode { /* as fallocate(2) */
                        FS_ALLOCATE,
                        FS_ALLOCATE_KEEP_SIZE,
                        FS_PUNCH_HOLE,
                        FS_ZERO_RANGE,
                        FS_ZERO_RANGE_KEEP_SIZE,
                        /* collapse and insert: FS_NOT_SUPPORTED at the protocol */
};
int fs_allocate(struct fs *fs, const struct fs_request *rq, uint64_t ino, enum fs_allocate_mode mode,
                uint64_t offset, uint64_t len, struct fs_wcc *ret) MUST_CHECK may_yield;
/* SEEK_DATA or (hole) SEEK_HOLE. FS_NO_DATA. */
int fs_seek(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, bool hole,
            uint64_t *ret_offset) MUST_CHECK may_yield;
/* Copies by sharing blocks where both ends are aligned, else by bytes; clone: only by sharing, all of it
 * (FICLONERANGE). May do less than asked: *ret_len. */
int fs_copy_range(struct fs *fs, const struct fs_request *rq, uint64_t from, uint64_t from_offset,
                  uint64_t to, uint64_t to_offset, uint64_t len, bool clone, uint64_t *ret_len,
                  struct fs_wcc *ret) MUST_CHECK may_yield;

/* ---- Opens: what keeps an unlinked file alive, and (for SMB) share modes ---- */

enum fs_open_flags {
    FS_OPEN_READ = 1 << 0,
    FS_OPEN_WRITE = 1 << 1,
    FS_OPEN_DELETE = 1 << 2,
    FS_DENY_READ = 1 << 3, /* others may not have it open so: FS_BUSY */
    FS_DENY_WRITE = 1 << 4,
    FS_DENY_DELETE = 1 << 5,
};
/* Checks permission unless trusted. Balanced by fs_open_put() with the same flags. truncate: O_TRUNC. */
int fs_open_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t flags, bool truncate,
                struct fs_attr *ret) MUST_CHECK may_yield;
void fs_open_put(struct fs *fs, uint64_t ino, uint32_t flags);

/* ---- Extended attributes and ACLs ---- */

enum fs_xattr_set { FS_XATTR_ANY, FS_XATTR_CREATE, FS_XATTR_REPLACE };
/* Names with their prefix: user., trusted., security., system.posix_acl_access, system.posix_acl_default
 * (value: the format of Linux's xattr, version 2). max 0: only the length. */
int fs_xattr_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, void *value, uint32_t max, uint32_t *ret_len) MUST_CHECK may_yield;
int fs_xattr_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, const void *value, uint32_t len, enum fs_xattr_set how)
    MUST_CHECK may_yield;
int fs_xattr_remove(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                    uint32_t name_len) MUST_CHECK may_yield;
/* NUL-terminated names one after the other, as listxattr(2). max 0: only the length. */
int fs_xattr_list(struct fs *fs, const struct fs_request *rq, uint64_t ino, char *list, uint32_t max,
                  uint32_t *ret_len) MUST_CHECK may_yield;

/* ---- Locks: advisory, byte ranges (POSIX, NLM) and whole files (flock); kept in the tree, so they survive
 * ---- */

enum fs_lock_protocol { FS_LOCK_NLM = 1, FS_LOCK_FUSE = 2, FS_LOCK_FLOCK = 3 };
struct fs_lock {
    uint64_t start, len; /* len 0: to the end of all files */
    bool exclusive;
    enum fs_lock_protocol protocol; /* FLOCK conflicts with FLOCK only, the others with each other */
    uint32_t pid;
    uint32_t owner_len, client_len;
    uint8_t owner[FS_LOCK_OWNER_MAX];    /* whose it is, within the client */
    char client[FS_LOCK_CLIENT_MAX + 1]; /* NLM: caller name; FUSE: session id */
};
/* Conflicting lock: FS_LOCKED with *ret_conflict. 0: nobody's in the way. */
int fs_lock_test(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                 struct fs_lock *ret_conflict) MUST_CHECK may_yield;
/* POSIX rules: an owner's ranges are joined, split, changed. wait: FS_LOCKED only after the deadline or
 * FS_DEADLOCK; cancelled waits: ERR_CANCELLED. reclaim: allowed in the grace period (others: FS_GRACE);
 * at other times the same as any, since locks survive a restart. */
int fs_lock_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                bool reclaim, uint64_t wait_until_ns, struct fs_lock *ret_conflict) MUST_CHECK may_yield;
int fs_lock_clear(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l)
    MUST_CHECK may_yield;
/* Everything of a client (it restarted, or its session ended); owner_len 0: of all its owners; ino 0: of all
 * files. */
int fs_lock_clear_client(struct fs *fs, enum fs_lock_protocol p, const char *client, uint64_t ino,
                         const uint8_t *owner, uint32_t owner_len) MUST_CHECK may_yield;
/* Some client that holds a lock of that protocol and for which wanted() says true. ERR_NOT_FOUND. */
int fs_lock_find_client(const struct fs *fs, enum fs_lock_protocol p,
                        bool (*wanted)(void *ctx, const char *client), void *ctx,
                        char ret[FS_LOCK_CLIENT_MAX + 1]) MUST_CHECK;
/* From fs_open() until then, only reclaims are granted (NLM). 0: no grace period. */
void fs_lock_set_grace(struct fs *fs, uint64_t until_ns);

/* ---- Recent replies ---- */

struct fs_reply_key {
    uint8_t client[16];
    uint32_t xid, procedure, checksum;
};
struct fs_reply {
    int status;   /* the protocol's */
    uint64_t ino; /* of an appending write: the offset at which it began */
};
/* One that was logged, by this or an earlier run: ERR_NOT_FOUND. */
int fs_reply_find(struct fs *fs, const struct fs_reply_key *k, struct fs_reply *ret) MUST_CHECK;

/* ---- Watches: FUSE invalidation, SMB change notification ---- */

enum fs_event_kind { FS_EVENT_ATTR, FS_EVENT_DATA, FS_EVENT_NAME_ADDED, FS_EVENT_NAME_REMOVED };
struct fs_event {
    enum fs_event_kind kind;
    uint64_t ino;     /* whose attributes or data; the directory of a name */
    uint64_t child;   /* of a name */
    const char *name; /* borrowed for the call */
    uint32_t name_len;
    uint64_t offset, len; /* of data */
};
struct fs_watch {
    struct list link;
    /* In the instant of the change; must not yield. cause: the request that made it, so that a watcher can
     * leave its own changes out. */
    void (*event)(struct fs_watch *w, const struct fs_request *cause, const struct fs_event *e);
};
void fs_watch_add(struct fs *fs, struct fs_watch *w);
void fs_watch_remove(struct fs *fs, struct fs_watch *w);

/* ---- Quotas and patterns ---- */

struct fs_quota {
    uint64_t ino;
    uint64_t limit_bytes, limit_inodes, used_bytes, used_inodes;
    uint64_t parent;
    bool scanning;
};
/* On a directory; limits 0 and 0 removes it. What is in it already is counted in the background. */
int fs_quota_set(struct fs *fs, uint64_t dir, uint64_t limit_bytes, uint64_t limit_inodes)
    MUST_CHECK may_yield;
int fs_quota_get(struct fs *fs, uint64_t dir, struct fs_quota *ret) MUST_CHECK may_yield;
/* Those after `after` (0: the first); up to max. */
int fs_quota_list(struct fs *fs, uint64_t after, struct fs_quota *ret, uint32_t max, uint32_t *ret_count)
    MUST_CHECK may_yield;

enum fs_pattern { FS_PATTERN_CONCURRENCY = 0, FS_PATTERN_STREAMING = 1, FS_PATTERN_RANDOM = 2 };
/* Of a file or a directory (new files in it inherit it). */
int fs_pattern_set(struct fs *fs, uint64_t ino, enum fs_pattern p) MUST_CHECK may_yield;
/* "/a/b/c" to an inode, as root, following no symbolic links. */
int fs_path_find(struct fs *fs, const char *path, struct fs_attr *ret) MUST_CHECK may_yield;
/* The path of an inode for people ("/a/b", or "(ino 77)"). */
int fs_path_of(struct fs *fs, uint64_t ino, char *buf, size_t size) MUST_CHECK may_yield;

/* ---- Statistics ---- */

enum fs_op {
    FS_OP_LOOKUP,
    FS_OP_GETATTR,
    FS_OP_SETATTR,
    FS_OP_ACCESS,
    FS_OP_READ,
    FS_OP_WRITE,
    FS_OP_COMMIT,
    FS_OP_CREATE,
    FS_OP_REMOVE,
    FS_OP_RENAME,
    FS_OP_LINK,
    FS_OP_READLINK,
    FS_OP_READDIR,
    FS_OP_STATFS,
    FS_OP_XATTR,
    FS_OP_LOCK,
    FS_OP_ALLOCATE,
    FS_OP_COUNT
};
const char *fs_op_name(enum fs_op op);
struct fs_op_stats {
    uint64_t ops, errors, bytes;
    struct histogram latency;
};
/* Counted by each fs_*() call itself. */
const struct fs_op_stats *fs_stats(const struct fs *fs, enum fs_op op);
#define FS_CLIENTS_MAX 256u
/* A slot for a client's name ("10.0.0.7", "fuse:host:/mnt"); the longest idle one gives way. */
uint32_t fs_client(struct fs *fs, const char *name);
struct fs_client_stats {
    char name[64];
    uint64_t ops, read_bytes, write_bytes;
    uint64_t last_ns;
};
const struct fs_client_stats *fs_client_stats(const struct fs *fs, uint32_t index); /* NULL: unused */
/* The files with the most operations lately. */
struct fs_file_stats {
    uint64_t ino;
    uint64_t ops, bytes;
};
uint32_t fs_file_stats(const struct fs *fs, struct fs_file_stats *ret, uint32_t max);

/* Re-verifies what is in memory (asserts): tests and the simulator. */
void fs_check_memory(struct fs *fs);

#endif
