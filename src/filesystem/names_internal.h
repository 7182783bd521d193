/* SPDX-License-Identifier: Apache-2.0 */
/* The half of the file system that knows names and attributes, among itself: names, directories, ACLs,
 * extended attributes, opens, what is to be done with an inode that loses a name. */
#ifndef ASHLAR_FILESYSTEM_NAMES_INTERNAL_H
#define ASHLAR_FILESYSTEM_NAMES_INTERNAL_H

#include "filesystem/fs_internal.h"

/* ---- dir.c: names and the items that hold them ---- */

#define BUCKET_SLOTS 8u
#define BUCKET_MAX   (BUCKET_SLOTS * (sizeof(struct disk_dirent) + FS_NAME_MAX))
static_assert(BUCKET_MAX <= ITEM_LEN_MAX, "a bucket is one item");

struct name {
    const char *bytes; /* borrowed */
    uint32_t len;
    uint64_t base; /* of the cookies of all names with this hash: offset of their bucket */
};
/* 0, ERR_FS_BAD_NAME, ERR_FS_NAME_TOO_LONG. "." and ".." are names here: callers know what they mean. */
int name_init(const struct fs *fs, const char *bytes, uint32_t len, struct name *ret) MUST_CHECK;
bool name_is_dot(const char *bytes, uint32_t len);
bool name_is_dotdot(const char *bytes, uint32_t len);

struct entry {
    uint64_t ino;
    uint32_t generation;
    uint8_t type; /* DT_* */
    uint8_t slot;
    uint8_t name_len;
    const char *name; /* in the bucket */
};
/* The entry at *at of a bucket's untrusted bytes; moves *at. ERR_VOLUME_CORRUPT. */
int entry_decode(const void *bytes, uint32_t len, uint32_t *at, struct entry *ret) MUST_CHECK;
/* The whole bucket: every entry, and no slot twice. */
int bucket_decode(const void *bytes, uint32_t len) MUST_CHECK;

/* A copy of one bucket, to look at and to change. */
struct bucket {
    struct tree_key key;
    uint32_t len; /* 0: there is none */
    bool stored;  /* it is in the tree */
    uint8_t bytes[BUCKET_MAX];
};
static inline struct tree_key bucket_key(uint64_t dir, uint64_t base)
{
    return (struct tree_key){dir, ITEM_DIRENT, base};
}
/* Wants the bucket of a name; promises one put of it with `more` bytes beside what it had (known_len), and
 * its deletion. */
void bucket_want(struct change *c, uint64_t dir, const struct name *n, uint32_t known_len, uint32_t more);
int bucket_get(struct change *c, uint64_t dir, const struct name *n, struct bucket *ret) MUST_CHECK;
int bucket_read(struct fs *fs, uint64_t dir, const struct name *n, struct bucket *ret) MUST_CHECK may_yield;
bool bucket_find(const struct fs *fs, const struct bucket *b, const struct name *n, struct entry *ret);
/* ERR_FS_DIR_FULL: all slots are taken. */
int bucket_add(struct bucket *b, const struct name *n, uint64_t ino, uint32_t generation, uint32_t mode)
    MUST_CHECK;
void bucket_remove(struct bucket *b, uint8_t slot);
/* Another inode under the same name: its cookie stays. */
void bucket_replace(struct bucket *b, uint8_t slot, uint64_t ino, uint32_t generation, uint32_t mode);
void bucket_put(struct change *c, struct bucket *b);
static inline uint32_t name_bytes(const struct name *n)
{
    return (uint32_t)sizeof(struct disk_dirent) + n->len;
}
uint8_t mode_dt(uint32_t mode);

/* ---- casefold.c: Unicode simple case folding ---- */

uint32_t casefold_point(uint32_t code_point);
/* UTF-8; bytes that are none stay as they are. out: at least len * 3 / 2 + 4 bytes. Returns the length. */
uint32_t casefold(const char *bytes, uint32_t len, char *out, uint32_t max);

/* ---- acl.c ---- */

#define ACL_ENTRIES_MAX 500u /* so that it fits one item of the tree */
#define ACL_USER_OBJ    0x01u
#define ACL_USER        0x02u
#define ACL_GROUP_OBJ   0x04u
#define ACL_GROUP       0x08u
#define ACL_MASK        0x10u
#define ACL_OTHER       0x20u
struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
};
struct acl {
    uint32_t count;
    struct acl_entry entries[ACL_ENTRIES_MAX];
};
#define ACL_BYTES_MAX (4u + 8u * ACL_ENTRIES_MAX)
enum acl_which { ACL_ACCESS, ACL_DEFAULT };
const char *acl_name(enum acl_which which);
/* Linux's xattr format, version 2. ERR_FS_INVALID: not one, or not a valid list. */
int acl_decode(const void *value, uint32_t len, struct acl *ret) MUST_CHECK;
uint32_t acl_encode(const struct acl *a, uint8_t out[ACL_BYTES_MAX]);
/* Whether the mode says all that it says. */
bool acl_is_mode(const struct acl *a);
/* The permission bits for user, group (the mask where there is one) and others. */
uint32_t acl_to_mode(const struct acl *a);
void acl_set_mode(struct acl *a, uint32_t mode);
/* For a new inode with this mode, from its directory's default ACL: cuts both to what the other allows. */
void acl_inherit(struct acl *a, uint32_t *mode);
/* 0 or ERR_FS_ACCESS. */
int acl_check(const struct acl *a, const struct fs_cred *cred, const struct inode *n, uint32_t wanted);
/* Of an inode whose flags say that it has one. In an instant; and without a change. */
int acl_get(struct fs *fs, struct change *c, uint64_t ino, enum acl_which which, struct acl *ret) MUST_CHECK;
int acl_read(struct fs *fs, uint64_t ino, enum acl_which which, struct acl *ret) MUST_CHECK may_yield;

/* ---- access.c ---- */

/* As access_check(), without a change. */
int access_read(struct fs *fs, const struct fs_cred *cred, const struct inode *n, uint32_t wanted)
    MUST_CHECK may_yield;
/* FS_NOT_OWNER unless the caller owns it, or may do everything. */
int access_owner(const struct fs_cred *cred, const struct inode *n) MUST_CHECK;
/* A name of `n` goes out of `dir`: the sticky bit. */
int access_sticky(const struct fs_cred *cred, const struct inode *dir, const struct inode *n) MUST_CHECK;

/* ---- xattr.c ---- */

#define XATTR_PROBES_MAX 64u
/* Where an attribute is, or would be put. */
struct xattr_place {
    uint64_t number; /* offset of its chunk 0 is number << 8 */
    bool exists;
    uint32_t value_len;  /* if it exists */
    uint32_t old_chunks; /* chunks that lie there now, a deleted one's header counts */
};
struct xattr_name {
    const char *bytes;
    uint32_t len;
    uint64_t number; /* first */
};
/* A chunk 0, untrusted: ERR_VOLUME_CORRUPT. Deleted ones have value_len XATTR_DELETED. */
struct xattr_head {
    uint32_t value_len;
    uint32_t name_len;
    const char *name;
    const uint8_t *value; /* first part */
    uint32_t first_len;
};
int xattr_head_decode(const void *bytes, uint32_t len, struct xattr_head *ret) MUST_CHECK;
void xattr_name_init(const struct fs *fs, const char *bytes, uint32_t len, struct xattr_name *ret);
static inline struct tree_key xattr_key(uint64_t ino, uint64_t number, uint32_t chunk)
{
    return (struct tree_key){ino, ITEM_XATTR, number << 8 | chunk};
}
uint32_t xattr_chunks(uint32_t name_len, uint32_t value_len);
/* In an instant. ERR_FS_NO_XATTR is no error here: exists tells. */
int xattr_find(struct change *c, uint64_t ino, const struct xattr_name *n, struct xattr_place *ret)
    MUST_CHECK;
/* Wants a place's chunks and promises to put this value there, over old_chunks. */
void xattr_want(struct change *c, uint64_t ino, uint64_t number, uint32_t name_len, uint32_t value_len,
                uint32_t old_chunks);
void xattr_put(struct change *c, uint64_t ino, const struct xattr_name *n, const struct xattr_place *at,
               const uint8_t *value, uint32_t len);

/* ---- open.c ---- */

int opens_new(struct fs_opens **ret) MUST_CHECK;
void opens_free(struct fs_opens *o);
/* Counts one more; never yields. ERR_FS_BUSY (share modes), ERR_NO_MEMORY. */
int opens_add(struct fs *fs, uint64_t ino, uint32_t flags) MUST_CHECK;
uint64_t opens_count(const struct fs *fs);
void opens_check(const struct fs *fs);

/* ---- attr.c, create.c ---- */

/* Size alone: O_TRUNC, and CREATE of an existing file. */
int attr_set_size(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t size, bool opened,
                  struct fs_attr *ret) MUST_CHECK may_yield;
static inline bool mode_is(uint32_t mode, uint32_t type)
{
    return (mode & 0170000u) == type;
}
/* A directory that can be changed: ERR_FS_NOT_DIRECTORY; ERR_FS_NOT_FOUND if it has no name any more. Fills
 * the wcc, as far as a failing call knows it. */
int dir_get(struct fs *fs, struct change *c, uint64_t ino, struct inode *ret, struct fs_wcc *w) MUST_CHECK;
static inline void dir_touch(struct inode *dir, int64_t now_ns)
{
    dir->mtime_ns = dir->ctime_ns = now_ns;
}
void notify_name(struct fs *fs, const struct fs_request *rq, enum fs_event_kind kind, uint64_t dir,
                 const struct name *n, uint64_t child);
void notify_attr(struct fs *fs, const struct fs_request *rq, uint64_t ino);

/* ---- quota.c ---- */

#define QUOTA_DEPTH_MAX 8u  /* how deep they may be nested when one is set */
#define QUOTA_CHAIN_MAX 16u /* and at most become by others above: what is above that does not count */
/* The list of quotas is read; unfinished counting goes on. */
int quota_start(struct fs *fs) MUST_CHECK may_yield;
/* Which quota a directory's names count for, as far as one pass needs to guess it. */
int quota_guess(struct fs *fs, uint64_t dir, uint64_t *ret) MUST_CHECK may_yield;
int quota_decode(const void *bytes, uint32_t len, struct disk_quota *ret) MUST_CHECK;
/* A directory that has a quota of its own goes: promises; reading; then n->quota is the one above, and the
 * quota is gone, or stays for files without a name that count for it. */
void quota_drop_want(struct change *c, uint64_t dir);
int quota_drop_check(struct fs *fs, struct change *c, const struct inode *n) MUST_CHECK;
void quota_drop_apply(struct fs *fs, struct change *c, struct inode *n);
/* Free bytes and inodes under all limits above: of statfs. */
int quota_room(struct fs *fs, uint64_t quota, struct fs_statfs *io) MUST_CHECK may_yield;

/* ---- reply.c, lock.c, stats.c, fs.c ---- */

int replies_load(struct fs *fs) MUST_CHECK may_yield;
void replies_free(struct fs *fs);
int reply_decode(const void *bytes, uint32_t len, struct disk_reply *ret) MUST_CHECK;

int locks_load(struct fs *fs) MUST_CHECK may_yield;
void locks_free(struct fs *fs);
/* Somebody has, or waits for, a lock of it. */
bool locks_any(const struct fs *fs, uint64_t ino);
/* The inode goes: its locks in memory go with it (their items are deleted with the inode). */
void locks_forget(struct fs *fs, uint64_t ino);
void locks_check(const struct fs *fs);

struct fs_files; /* the sketch of the busiest files */
int files_new(struct fs_files **ret) MUST_CHECK;
void files_free(struct fs_files *f);

/* A number for a new inode: outside of an instant. What it was taken for may fail: it is not used then. */
uint64_t ino_take(struct fs *fs);
/* Wants and promises what may be needed to use it. */
void ino_want(struct fs *fs, struct change *c, uint64_t ino);
struct ino_reserve {
    bool needed;
    struct disk_fs disk;
};
/* Reading phase; then, in the changing phase of what took it. */
int ino_check(struct fs *fs, struct change *c, uint64_t ino, struct ino_reserve *ret) MUST_CHECK;
void ino_used(struct fs *fs, struct change *c, uint64_t ino, struct ino_reserve *reserve);
/* ERR_VOLUME_CORRUPT, ERR_UNSUPPORTED (a newer version). */
int disk_fs_decode(const void *bytes, uint32_t len, struct disk_fs *ret) MUST_CHECK;

#endif
