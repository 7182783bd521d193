/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system's items in the head tree of its volume: only layouts, no code but accessors.
 * docs/formats/filesystem.md explains them and changes in the same commit.
 *
 * An object is an inode number. 1 is the root directory. All that belongs to a file lies side by side under
 * its number: inode, names or data, extended attributes. Numbers are never used twice.
 */
#ifndef ASHLAR_FILESYSTEM_FORMAT_H
#define ASHLAR_FILESYSTEM_FORMAT_H

#include "volume/format.h"

#define FS_FORMAT_VERSION 1u

#define FS_INO_ROOT  UINT64_C(1)
#define FS_INO_FIRST UINT64_C(16) /* of files; below: the root, and objects of the file system's own */
#define FS_INO_MAX   ((UINT64_C(1) << 48) - 1) /* above: the constituent (DESIGN 9) */
#define FS_OBJECT_FS UINT64_C(2)               /* (2, ITEM_FS, 0): disk_fs */
#define FS_OBJECT_LISTS                                                                   \
    UINT64_C(3) /* (3, ITEM_ORPHAN, ino), (3, ITEM_REPLY, slot), (3, ITEM_QUOTA, ino) … \
                 */
#define FS_NAME_MAX    255u
#define FS_SYMLINK_MAX 4095u
#define FS_INLINE_MAX  2048u /* bytes of a regular file that may lie in the tree */
#define FS_SIZE_MAX \
    (UINT64_C(1) << 63) /* 8 EiB; the last byte has offset FS_SIZE_MAX - 2 as POSIX's off_t has it */
#define FS_XATTR_NAME_MAX  255u
#define FS_XATTR_VALUE_MAX 65536u
#define FS_LINK_MAX        UINT32_C(4000000000)

#define ITEM_FS        43         /* (FS_OBJECT_FS, FS, 0): disk_fs */
#define ITEM_QUOTA_DIR ITEM_QUOTA /* (directory, QUOTA, 0): disk_quota */

struct disk_fs {
    struct le32 version;
    struct le32 flags; /* FS_CASE_INSENSITIVE */
    struct le64 created_ns;
    struct le64 next_ino;      /* no inode number from here on was ever used */
    uint8_t hash_seed[16];     /* of names: secret, so that nobody can make them collide */
    uint8_t handle_secret[32]; /* file handles are authenticated with it */
    struct le64 reserved[8];
};
static_assert(sizeof(struct disk_fs) == 136, "disk_fs");
#define FS_CASE_INSENSITIVE 1u

/* (ino, ITEM_INODE, 0) */
struct disk_inode {
    struct le32 mode; /* type and permissions, as in stat(2) */
    struct le32 nlink;
    struct le32 uid, gid;
    struct le64 size;   /* bytes; of directories: the number of names */
    struct le64 blocks; /* data blocks of 4 KiB that it holds (shared ones count for each) */
    struct le64 atime_ns, mtime_ns, ctime_ns, btime_ns; /* since 1970, UTC, two's complement */
    struct le64 change; /* grows with every change: NFSv4 change attribute, SMB */
    struct le64
        parent; /* directories: the one they are in (0: orphan). Files: where they were made, a hint */
    struct le32 generation; /* random; part of file handles */
    struct le32 flags;      /* INODE_* */
    struct le32 rdev_major, rdev_minor;
    struct le64 quota;     /* the directory with the innermost quota that it counts for; 0: none */
    struct le64 reap_from; /* INODE_REAPING: blocks from this byte on are still to be unmapped */
    struct le32 subdirs;   /* directories: how many directories are in it; nlink is that + 2 */
    uint8_t pattern;       /* enum fs_pattern: access pattern for read-ahead; directories: inherited */
    uint8_t reserved[43];
};
static_assert(sizeof(struct disk_inode) == 160, "disk_inode");
#define INODE_INLINE 1u /* its data is the INLINE item; holds no blocks */
#define INODE_REAPING \
    2u /* truncated; extents from reap_from on are not the file's any more; on the list of orphans */
#define INODE_ACL         4u  /* has system.posix_acl_access */
#define INODE_ACL_DEFAULT 8u  /* has system.posix_acl_default */
#define INODE_XATTR       16u /* may have extended attributes */

/* (dir, ITEM_DIRENT, cookie & ~7): up to 8 names of one hash, one after the other. The cookie of a name is a
 * hash of it with the low three bits replaced by its slot: it stays while the name is there, whatever else
 * changes. Cookies below FS_COOKIE_FIRST are "." and "..". */
#define FS_COOKIE_FIRST UINT64_C(64)
#define FS_COOKIE_MAX   (UINT64_C(1) << 62)
struct disk_dirent {
    struct le64 ino;
    struct le32 generation;
    uint8_t type; /* DT_* of readdir(3) */
    uint8_t slot; /* 0..7: low bits of its cookie */
    uint8_t name_len;
    uint8_t reserved;
    /* name_len bytes follow; entries are not aligned */
};
static_assert(sizeof(struct disk_dirent) == 16, "disk_dirent");

/* (ino, ITEM_XATTR, hash << 8 | chunk): chunk 0 begins with this header, the name and as much of the value as
 * fits; the rest follows in chunks 1.. of at most ITEM_LEN_MAX bytes. Of names with the same 48 bits the next
 * free number is taken: looking up goes on until a number has no chunk 0; a deleted one in between leaves
 * value_len XATTR_DELETED. POSIX ACLs are xattrs with their names. */
struct disk_xattr {
    struct le32 value_len;
    uint8_t name_len;
    uint8_t reserved[3];
};
static_assert(sizeof(struct disk_xattr) == 8, "disk_xattr");
#define XATTR_DELETED UINT32_MAX

/* (ino, ITEM_INLINE, 0): the bytes of a small file, or the target of a symbolic link. */

/* (FS_OBJECT_LISTS, ITEM_ORPHAN, ino): the reaper has work with it. */
struct disk_orphan {
    struct le32 why; /* ORPHAN_* */
    struct le32 reserved;
    struct le64 since_ns;
};
#define ORPHAN_DELETE   1u /* no name any more: goes when nobody has it open */
#define ORPHAN_TRUNCATE 2u /* INODE_REAPING */

/* (directory, ITEM_QUOTA, 0) */
struct disk_quota {
    struct le64 limit_bytes; /* hard; 0: none */
    struct le64 limit_inodes;
    struct le64 used_bytes; /* blocks x 4096, and inline bytes as if they were a block */
    struct le64 used_inodes;
    struct le64 parent; /* the next quota upwards, that counts all of this too; 0: none */
    struct le32 flags;  /* QUOTA_SCANNING */
    struct le32 reserved;
};
static_assert(sizeof(struct disk_quota) == 48, "disk_quota");
#define QUOTA_SCANNING 1u /* what was there before the quota is still being counted */
#define QUOTA_REMOVING 2u /* taken away: what is in the directory is being counted for `parent` again */
/* Taken away, or its directory was: it only passes on to `parent` what files without a name still count for
 * it, and goes with the last of them. Its directory's inode need not be there. */
#define QUOTA_GONE 4u

/* (FS_OBJECT_LISTS, ITEM_QUOTA, directory): one byte, 0; the directory has a quota, or one that is being
 * taken away. */

/* (ino, ITEM_LOCK, number): an advisory byte-range lock. */
struct disk_lock {
    struct le64 start, len; /* len 0: to the end */
    struct le32 kind;       /* LOCK_* */
    struct le32 protocol;   /* enum fs_lock_protocol */
    struct le32 pid;        /* as the client says (svid) */
    struct le32 owner_len, client_len;
    /* then the owner's bytes, then the client's name */
};
static_assert(sizeof(struct disk_lock) == 36, "disk_lock");
/* (FS_OBJECT_LISTS, ITEM_LOCK, ino): one byte, 0; the inode has locks, or had some. */
#define LOCK_READ_         1u
#define LOCK_WRITE_        2u
#define FS_LOCK_OWNER_MAX  1024u
#define FS_LOCK_CLIENT_MAX 255u

/* (FS_OBJECT_LISTS, ITEM_REPLY, slot): the reply of an operation that is not idempotent, in the record of the
 * operation itself: a client that asks again after the server was killed gets the same answer. */
struct disk_reply {
    uint8_t client[16]; /* hash of who asked */
    struct le32 xid;
    struct le32 procedure;
    struct le32 checksum; /* of the request's arguments */
    struct le32 status;
    struct le64 ino; /* what was made */
    struct le64 when_ns;
};
static_assert(sizeof(struct disk_reply) == 48, "disk_reply");
#define FS_REPLY_SLOTS 8192u

#endif
