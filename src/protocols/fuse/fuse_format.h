/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes between a mount process and the node, and nothing else. Little-endian, no padding, no alignment.
 *
 *      mount process                                node
 *      wire_hello  name label            -->
 *                                        <--        wire_welcome
 *      REOPEN ..., REOPEN_DONE           -->                         what it has open, told at each connect
 *      wire_request  arguments  bytes    -->
 *                                        <--        wire_reply  body     in any order, told apart by unique
 *                                        <--        wire_reply  note     unique 0: invalidations
 *
 * Requests that were not answered when a connection broke are sent again on the next one, with WIRE_AGAIN.
 */
#ifndef ASHLAR_PROTOCOLS_FUSE_FORMAT_H
#define ASHLAR_PROTOCOLS_FUSE_FORMAT_H

#include "runtime/base.h"

#define WIRE_MAGIC       "ASHFUSE1"
#define WIRE_MAGIC_LEN   8u
#define WIRE_VERSION     1u
#define WIRE_NAME_MAX    255u                  /* of a file system, of a file */
#define WIRE_LABEL_MAX   63u                   /* what people see of a mount: "fuse:host:/mnt" */
#define WIRE_TARGET_MAX  4095u                 /* of a symbolic link */
#define WIRE_VALUE_MAX   65536u                /* of an extended attribute; of their list */
#define WIRE_DATA_MAX    ((uint32_t)(1 * MIB)) /* of one read or write */
#define WIRE_READDIR_MAX ((uint32_t)(128 * KIB))
/* The longest request without the data of a write. */
#define WIRE_SMALL_MAX ((uint32_t)(68 * KIB))

struct wire_hello {
    uint8_t magic[WIRE_MAGIC_LEN];
    struct le32 version;
    struct le32 name_len, label_len; /* of what follows */
    uint8_t session[16];             /* drawn by the mount process; never all zero */
};
static_assert(sizeof(struct wire_hello) == 36, "wire_hello");

struct wire_welcome {
    uint8_t magic[WIRE_MAGIC_LEN];
    struct le32 version;
    struct le32 error; /* an errno: the connection ends. ENOENT: no such file system, perhaps not yet */
    struct le32 flags;
};
static_assert(sizeof(struct wire_welcome) == 20, "wire_welcome");
/* No invalidation was missed since the session's last connection. */
#define WIRE_WELCOME_COHERENT 1u

enum wire_op {
    WIRE_LOOKUP = 1,
    WIRE_GETATTR = 2,
    WIRE_SETATTR = 3,
    WIRE_READLINK = 4,
    WIRE_MAKE = 5,
    WIRE_UNLINK = 6,
    WIRE_RMDIR = 7,
    WIRE_RENAME = 8,
    WIRE_LINK = 9,
    WIRE_OPEN = 10,
    WIRE_RELEASE = 11,
    WIRE_READ = 12,
    WIRE_WRITE = 13,
    WIRE_FSYNC = 14,
    WIRE_READDIR = 15,
    WIRE_STATFS = 16,
    WIRE_XATTR_GET = 17,
    WIRE_XATTR_SET = 18,
    WIRE_XATTR_LIST = 19,
    WIRE_XATTR_REMOVE = 20,
    WIRE_ACCESS = 21,
    WIRE_LOCK_TEST = 22,
    WIRE_LOCK_SET = 23,
    WIRE_LOCK_FLUSH = 24,
    WIRE_ALLOCATE = 25,
    WIRE_SEEK = 26,
    WIRE_COPY = 27,
    WIRE_INTERRUPT = 28,
    WIRE_REOPEN = 29,
    WIRE_REOPEN_DONE = 30,
    WIRE_BYE = 31,
    WIRE_OP_END
};

struct wire_request {
    struct le32 len; /* of all of it, arguments and bytes too */
    struct le16 op;
    struct le16 flags;
    struct le64 unique; /* the session's number of it, from 1; 0: no reply is wanted */
    struct le64 ino;
    struct le32 uid, gid;
};
static_assert(sizeof(struct wire_request) == 32, "wire_request");
#define WIRE_AGAIN 1u /* it may have been done already, on an earlier connection */

struct wire_reply {
    struct le32 len;    /* of all of it */
    struct le32 error;  /* an errno, 0: none; of a note: what kind (enum wire_note) */
    struct le64 unique; /* 0: a note */
};
static_assert(sizeof(struct wire_reply) == 16, "wire_reply");

/* ---- Arguments behind wire_request; where a text says "name", its bytes follow up to the end. LOOKUP,
 * UNLINK, RMDIR, XATTR_REMOVE: only the name. GETATTR, READLINK, FSYNC, STATFS, REOPEN_DONE, BYE: nothing
 * ----
 */

struct wire_setattr {
    struct le32 valid; /* WIRE_SET_* */
    struct le32 mode, uid, gid;
    struct le64 size;
    struct le64 atime_ns, mtime_ns, ctime_ns;
};
static_assert(sizeof(struct wire_setattr) == 48, "wire_setattr");
#define WIRE_SET_MODE      (1u << 0)
#define WIRE_SET_UID       (1u << 1)
#define WIRE_SET_GID       (1u << 2)
#define WIRE_SET_SIZE      (1u << 3)
#define WIRE_SET_ATIME     (1u << 4)
#define WIRE_SET_MTIME     (1u << 5)
#define WIRE_SET_ATIME_NOW (1u << 6)
#define WIRE_SET_MTIME_NOW (1u << 7)
#define WIRE_SET_CTIME     (1u << 8)
#define WIRE_SET_KILL_SUID (1u << 9)
#define WIRE_SET_OPEN      (1u << 10) /* through an open file */
#define WIRE_SET_ALL       ((1u << 11) - 1)

/* name, then the target of a symbolic link. ino: the directory. */
struct wire_make {
    struct le32 mode; /* with S_IFMT */
    struct le32 umask;
    struct le32 rdev_major, rdev_minor;
    struct le32 flags; /* WIRE_MAKE_* */
    struct le32 open;  /* WIRE_OPEN_*, of WIRE_MAKE_OPEN */
    struct le32 name_len, target_len;
};
static_assert(sizeof(struct wire_make) == 32, "wire_make");
#define WIRE_MAKE_OPEN      1u /* regular files: and open it */
#define WIRE_MAKE_EXCLUSIVE 2u /* it must not exist */
#define WIRE_MAKE_TRUNCATE  4u /* an existing one becomes empty */
#define WIRE_MAKE_ALL       7u

/* The old name, then the new one. ino: the old directory. */
struct wire_rename {
    struct le64 to_dir;
    struct le32 flags; /* WIRE_RENAME_* */
    struct le32 name_len, to_len;
};
static_assert(sizeof(struct wire_rename) == 20, "wire_rename");
#define WIRE_RENAME_NOREPLACE 1u
#define WIRE_RENAME_EXCHANGE  2u

/* name. ino: the file. */
struct wire_link {
    struct le64 dir;
};

/* OPEN, RELEASE, REOPEN. A RELEASE is told once: what is open is told at each connect. */
struct wire_open {
    struct le32 flags;
    struct le32 count; /* REOPEN: how often it is open so; else 1 */
};
static_assert(sizeof(struct wire_open) == 8, "wire_open");
#define WIRE_OPEN_READ     1u
#define WIRE_OPEN_WRITE    2u
#define WIRE_OPEN_TRUNCATE 4u /* OPEN */

/* READ; WRITE: the data follows. */
struct wire_range {
    struct le64 offset;
    struct le32 len;
    struct le32 flags; /* WIRE_WRITE_* */
};
static_assert(sizeof(struct wire_range) == 16, "wire_range");
#define WIRE_WRITE_APPEND    1u
#define WIRE_WRITE_KILL_SUID 2u /* the kernel wants setuid and setgid gone */
#define WIRE_WRITE_ALL       3u

struct wire_readdir {
    struct le64 cookie;
    struct le32 len; /* room: what the names may take as directory entries of Linux's FUSE */
    struct le32 attributes;
};
static_assert(sizeof(struct wire_readdir) == 16, "wire_readdir");

/* XATTR_GET, XATTR_SET, XATTR_LIST (no name): the name, then the value of XATTR_SET. */
struct wire_xattr {
    struct le32 name_len;
    struct le32 value_len; /* of SET; else: how much of it is wanted, 0: only its length */
    struct le32 how;       /* SET: WIRE_XATTR_* */
};
static_assert(sizeof(struct wire_xattr) == 12, "wire_xattr");
#define WIRE_XATTR_CREATE  1u
#define WIRE_XATTR_REPLACE 2u

struct wire_access {
    struct le32 mask; /* as access(2) */
};

struct wire_lock {
    struct le64 start, len; /* len 0: to the end */
    struct le64 owner;
    struct le32 pid;
    struct le32 type;  /* WIRE_LOCK_* */
    struct le32 flags; /* WIRE_LOCK_WAIT, WIRE_LOCK_FLOCK */
};
static_assert(sizeof(struct wire_lock) == 36, "wire_lock");
#define WIRE_LOCK_NONE  0u
#define WIRE_LOCK_READ  1u
#define WIRE_LOCK_WRITE 2u
#define WIRE_LOCK_WAIT  1u
#define WIRE_LOCK_FLOCK 2u

/* All byte-range locks of an owner on a file go (close). */
struct wire_lock_flush {
    struct le64 owner;
};

struct wire_allocate {
    struct le64 offset, len;
    struct le32 mode; /* FALLOC_FL_* of Linux: keep size 1, punch hole 2, zero range 16 */
};
static_assert(sizeof(struct wire_allocate) == 20, "wire_allocate");

struct wire_seek {
    struct le64 offset;
    struct le32 hole;
};
static_assert(sizeof(struct wire_seek) == 12, "wire_seek");

/* ino: the source. */
struct wire_copy {
    struct le64 offset, to, to_offset, len;
};
static_assert(sizeof(struct wire_copy) == 32, "wire_copy");

struct wire_interrupt {
    struct le64 unique; /* of the request whose process wants to go on */
};

/* ---- Bodies of replies. LOOKUP, GETATTR, SETATTR, MAKE, LINK: wire_attr. READLINK, READ, XATTR_GET and
 * XATTR_LIST: bytes (of these two with length 0: wire_count). ACCESS and the rest: nothing ---- */

struct wire_attr {
    struct le64 ino;
    struct le64 size, used_bytes;
    struct le64 atime_ns, mtime_ns, ctime_ns;
    struct le32 generation;
    struct le32 mode, nlink, uid, gid;
    struct le32 rdev_major, rdev_minor;
};
static_assert(sizeof(struct wire_attr) == 76, "wire_attr");

/* WRITE (where it was written), SEEK (where), COPY (how much), XATTR_GET and XATTR_LIST (how long). */
struct wire_count {
    struct le64 value;
};

/* READDIR: one after the other until the end of the reply; wire_attr, if there is one, then the name. */
struct wire_dirent {
    struct le64 ino;
    struct le64 cookie;
    uint8_t type; /* DT_* */
    uint8_t has_attr;
    struct le16 name_len;
};
static_assert(sizeof(struct wire_dirent) == 20, "wire_dirent");

struct wire_statfs {
    struct le64 total_bytes, free_bytes, available_bytes;
    struct le64 total_inodes, free_inodes, available_inodes;
};
static_assert(sizeof(struct wire_statfs) == 48, "wire_statfs");

/* LOCK_TEST: wire_lock, of type WIRE_LOCK_NONE if nobody is in the way. */

/* ---- Notes ---- */

enum wire_note {
    WIRE_NOTE_INODE = 1, /* wire_note_inode: attributes, and data if it has a range */
    WIRE_NOTE_ENTRY = 2, /* wire_note_entry */
    WIRE_NOTE_ALL = 3,   /* so much changed that everything must be asked for again */
};
struct wire_note_inode {
    struct le64 ino;
    struct le64 offset, len; /* len 0: to the end */
    struct le32 data;        /* 0: attributes only */
};
static_assert(sizeof(struct wire_note_inode) == 28, "wire_note_inode");
struct wire_note_entry {
    struct le64 dir;
    struct le64 child;   /* what the name was, if removed; 0: not known */
    struct le32 removed; /* else added or replaced */
    /* name */
};
static_assert(sizeof(struct wire_note_entry) == 20, "wire_note_entry");

#endif
