/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what: mode bits, groups, ACLs, ownership, the sticky bit. */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

bool cred_in_group(const struct fs_cred *cred, uint32_t gid)
{
    if (cred->gid == gid)
        return true;
    for (uint32_t i = 0; i < cred->group_count; i++)
        if (cred->groups[i] == gid)
            return true;
    return false;
}

/* In the bits of one class of a mode. Removing names from a directory is writing to it. */
static uint32_t wanted_bits(uint32_t wanted)
{
    return (wanted & FS_MAY_READ ? 4u : 0) | (wanted & (FS_MAY_WRITE | FS_MAY_DELETE) ? 2u : 0) |
           (wanted & FS_MAY_EXECUTE ? 1u : 0);
}

/* 1: the ACL decides. */
static int access_by_mode(const struct fs_cred *cred, const struct inode *n, uint32_t bits)
{
    if (cred->trusted || bits == 0)
        return 0;
    if (cred->uid == 0) {
        bool no_execute = (bits & 1) && !S_ISDIR(n->mode) && !(n->mode & 0111);
        return no_execute ? ERR_FS_ACCESS : 0;
    }
    uint32_t class;
    if (cred->uid == n->uid)
        class = n->mode >> 6;
    else if (n->flags & INODE_ACL)
        return 1;
    else
        class = cred_in_group(cred, n->gid) ? n->mode >> 3 : n->mode;
    return (class & bits) == bits ? 0 : ERR_FS_ACCESS;
}

int access_check(struct fs *fs, struct change *c, const struct fs_cred *cred, const struct inode *n,
                 uint32_t wanted)
{
    struct acl a;
    int r = access_by_mode(cred, n, wanted_bits(wanted));

    if (PREDICT_TRUE(r != 1))
        return r;
    r = acl_get(fs, c, n->ino, ACL_ACCESS, &a);
    return r ? r : acl_check(&a, cred, n, wanted_bits(wanted));
}

int access_read(struct fs *fs, const struct fs_cred *cred, const struct inode *n, uint32_t wanted)
{
    struct acl a;
    int r = access_by_mode(cred, n, wanted_bits(wanted));

    if (PREDICT_TRUE(r != 1))
        return r;
    r = acl_read(fs, n->ino, ACL_ACCESS, &a);
    return r ? r : acl_check(&a, cred, n, wanted_bits(wanted));
}

int access_owner(const struct fs_cred *cred, const struct inode *n)
{
    return cred->trusted || cred->uid == 0 || cred->uid == n->uid ? 0 : ERR_FS_NOT_OWNER;
}

int access_sticky(const struct fs_cred *cred, const struct inode *dir, const struct inode *n)
{
    if (!(dir->mode & S_ISVTX) || cred->trusted || cred->uid == 0)
        return 0;
    return cred->uid == dir->uid || cred->uid == n->uid ? 0 : ERR_FS_NOT_OWNER;
}

bool mode_kill_suid(const struct fs_cred *cred, struct inode *n)
{
    uint32_t kill = n->mode & S_ISUID;

    /* Setgid without execution by the group meant mandatory locking once: it stays. */
    if ((n->mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
        kill |= S_ISGID;
    if (kill == 0 || !S_ISREG(n->mode) || cred->uid == 0)
        return false;
    n->mode &= ~kill;
    return true;
}

int fs_access(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t wanted,
              uint32_t *ret_granted, struct fs_attr *ret_attr)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_ACCESS);
    struct inode n;
    uint32_t granted = 0;
    int r = inode_read(fs, ino, 0, &n);

    for (uint32_t bit = 1; !r && bit <= FS_MAY_DELETE; bit <<= 1) {
        if (!(wanted & bit) || (bit == FS_MAY_DELETE && !S_ISDIR(n.mode)))
            continue;
        r = access_read(fs, &rq->cred, &n, bit);
        if (!r)
            granted |= bit;
        else if (r == ERR_FS_ACCESS)
            r = 0;
    }
    if (!r && rq->read_only && !S_ISCHR(n.mode) && !S_ISBLK(n.mode))
        granted &= ~(uint32_t)(FS_MAY_WRITE | FS_MAY_DELETE);
    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (!r) {
        *ret_granted = granted;
        inode_attr(&n, ret_attr);
    }
    return fs_end(fs, rq, FS_OP_ACCESS, began, ino, 0, r);
}
