/* SPDX-License-Identifier: Apache-2.0 */
/* An inode between its item and native numbers. */
#include "filesystem/fs_internal.h"

#include <sys/stat.h>

/* POSIX has no other types, and every reader below relies on that. */
static bool mode_ok(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return (mode & ~(uint32_t)(S_IFMT | 07777)) == 0;
    default:
        return false;
    }
}

int inode_decode(uint64_t ino, const void *value, uint32_t len, struct inode *ret)
{
    struct disk_inode d;

    if (len != sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, value, sizeof(d));
    if (!mode_ok(le32_get(d.mode)) || le64_get(d.size) >= FS_SIZE_MAX || d.pattern > FS_PATTERN_RANDOM)
        return ERR_VOLUME_CORRUPT;
    *ret = (struct inode){.ino = ino,
                          .mode = le32_get(d.mode),
                          .nlink = le32_get(d.nlink),
                          .uid = le32_get(d.uid),
                          .gid = le32_get(d.gid),
                          .size = le64_get(d.size),
                          .blocks = le64_get(d.blocks),
                          .atime_ns = (int64_t)le64_get(d.atime_ns),
                          .mtime_ns = (int64_t)le64_get(d.mtime_ns),
                          .ctime_ns = (int64_t)le64_get(d.ctime_ns),
                          .btime_ns = (int64_t)le64_get(d.btime_ns),
                          .change = le64_get(d.change),
                          .parent = le64_get(d.parent),
                          .generation = le32_get(d.generation),
                          .flags = le32_get(d.flags),
                          .rdev_major = le32_get(d.rdev_major),
                          .rdev_minor = le32_get(d.rdev_minor),
                          .quota = le64_get(d.quota),
                          .reap_from = le64_get(d.reap_from),
                          .subdirs = le32_get(d.subdirs),
                          .pattern = d.pattern};
    return 0;
}

void inode_encode(const struct inode *n, struct disk_inode *out)
{
    assert(mode_ok(n->mode));
    *out = (struct disk_inode){.mode = le32_make(n->mode),
                               .nlink = le32_make(n->nlink),
                               .uid = le32_make(n->uid),
                               .gid = le32_make(n->gid),
                               .size = le64_make(n->size),
                               .blocks = le64_make(n->blocks),
                               .atime_ns = le64_make((uint64_t)n->atime_ns),
                               .mtime_ns = le64_make((uint64_t)n->mtime_ns),
                               .ctime_ns = le64_make((uint64_t)n->ctime_ns),
                               .btime_ns = le64_make((uint64_t)n->btime_ns),
                               .change = le64_make(n->change),
                               .parent = le64_make(n->parent),
                               .generation = le32_make(n->generation),
                               .flags = le32_make(n->flags),
                               .rdev_major = le32_make(n->rdev_major),
                               .rdev_minor = le32_make(n->rdev_minor),
                               .quota = le64_make(n->quota),
                               .reap_from = le64_make(n->reap_from),
                               .subdirs = le32_make(n->subdirs),
                               .pattern = n->pattern};
}

void inode_attr(const struct inode *n, struct fs_attr *ret)
{
    *ret = (struct fs_attr){.ino = n->ino,
                            .generation = n->generation,
                            .mode = n->mode,
                            .nlink = n->nlink,
                            .uid = n->uid,
                            .gid = n->gid,
                            .rdev_major = n->rdev_major,
                            .rdev_minor = n->rdev_minor,
                            .size = n->size,
                            .used_bytes = quota_bytes(n),
                            .atime_ns = n->atime_ns,
                            .mtime_ns = n->mtime_ns,
                            .ctime_ns = n->ctime_ns,
                            .btime_ns = n->btime_ns,
                            .change = n->change,
                            .parent = n->parent,
                            .quota = n->quota,
                            .pattern = n->pattern};
}

/* ---- In a change ---- */

void inode_want(struct change *c, uint64_t ino)
{
    change_want(c, inode_key(ino));
    change_will_put(c, sizeof(struct disk_inode));
}

int inode_get(struct fs *fs, struct change *c, uint64_t ino, struct inode *ret)
{
    const void *value;
    uint32_t len;
    struct inode n;
    int r = change_get(c, inode_key(ino), &value, &len);

    if (!r)
        r = inode_decode(ino, value, len, &n);
    if (!r && n.nlink == 0 && !open_is(fs, ino))
        r = ERR_FS_STALE;
    if (r == ERR_NOT_FOUND)
        r = ERR_FS_STALE;
    if (r)
        return r;
    *ret = n;
    return 0;
}

void inode_put(struct change *c, struct inode *n)
{
    struct disk_inode d;

    n->change++;
    inode_encode(n, &d);
    change_put(c, inode_key(n->ino), &d, sizeof(d));
}

/* ---- Without one ---- */

void inode_read_attrs(struct fs *fs, const uint64_t *inos, uint32_t count, struct fs_attr *ret)
{
    struct tree_lookup l[TREE_LOOKUPS_MAX];
    struct inode n;

    assert(count <= TREE_LOOKUPS_MAX);
    for (uint32_t i = 0; i < count; i++)
        l[i].key = inode_key(inos[i]);
    volume_items_get(fs->volume, l, count);
    for (uint32_t i = 0; i < count; i++) { /* all that is borrowed, before anything yields */
        ret[i].ino = 0;
        if (l[i].result == 0 && inode_decode(inos[i], l[i].value, l[i].len, &n) == 0 &&
            (n.nlink > 0 || open_is(fs, inos[i])))
            inode_attr(&n, &ret[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (l[i].result == TREE_NOT_RESIDENT && inode_read(fs, inos[i], 0, &n) == 0)
            inode_attr(&n, &ret[i]);
    }
}

int inode_read(struct fs *fs, uint64_t ino, uint32_t generation, struct inode *ret)
{
    struct disk_inode d;
    struct inode n;
    uint32_t len;
    int r = volume_item_get(fs->volume, inode_key(ino), &d, sizeof(d), &len);

    if (!r)
        r = inode_decode(ino, &d, len, &n);
    if (r == ERR_NOT_FOUND || r == ERR_INVALID)
        r = ERR_FS_STALE;
    if (!r && ((generation != 0 && n.generation != generation) || (n.nlink == 0 && !open_is(fs, ino))))
        r = ERR_FS_STALE;
    if (r == ERR_FS_STALE) { /* that it is gone is an answer, too (H3) */
        int seen = volume_seen(fs->volume, &ino, 1);
        r = seen ? seen : r;
    }
    if (r)
        return r;
    *ret = n;
    return 0;
}

bool fs_case_insensitive(const struct fs *fs)
{
    return fs->flags & FS_CASE_INSENSITIVE;
}
