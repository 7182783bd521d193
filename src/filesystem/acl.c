/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX ACLs (the withdrawn 1003.1e draft 17, as everybody has them): kept as extended attributes in Linux's
 * xattr format, so that the protocols pass them through. The inode's mode says the same as the entries for
 * user, group or mask, and others; a list that says nothing else is not kept.
 */
#include "filesystem/names_internal.h"

#define ACL_VERSION 2u
struct disk_acl_entry { /* after a le32 version */
    struct le16 tag, perm;
    struct le32 id;
};
static_assert(sizeof(struct disk_acl_entry) == 8, "disk_acl_entry");

const char *acl_name(enum acl_which which)
{
    return which == ACL_ACCESS ? "system.posix_acl_access" : "system.posix_acl_default";
}

/* In the order of their tags; one of each but of users and groups; a mask if there are any of those. */
static bool acl_valid(const struct acl *a)
{
    uint32_t seen = 0, last = 0;

    for (uint32_t i = 0; i < a->count; i++) {
        const struct acl_entry *e = &a->entries[i];
        bool many = e->tag == ACL_USER || e->tag == ACL_GROUP;
        bool known = many || e->tag == ACL_USER_OBJ || e->tag == ACL_GROUP_OBJ || e->tag == ACL_MASK ||
                     e->tag == ACL_OTHER;
        if (!known || e->perm > 7 || e->tag < last || (e->tag == last && !many))
            return false;
        last = e->tag;
        seen |= e->tag;
    }
    uint32_t must = ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER;
    if (seen & (ACL_USER | ACL_GROUP))
        must |= ACL_MASK;
    return (seen & must) == must;
}

int acl_decode(const void *value, uint32_t len, struct acl *ret)
{
    const uint8_t *p = value;
    struct le32 version;

    if (len < sizeof(version) || (len - sizeof(version)) % sizeof(struct disk_acl_entry) != 0)
        return ERR_FS_INVALID;
    memcpy(&version, p, sizeof(version));
    uint32_t count = (len - (uint32_t)sizeof(version)) / (uint32_t)sizeof(struct disk_acl_entry);
    if (le32_get(version) != ACL_VERSION)
        return ERR_FS_INVALID;
    if (count > ACL_ENTRIES_MAX)
        return ERR_FS_XATTR_TOO_BIG;
    ret->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct disk_acl_entry d;
        memcpy(&d, p + sizeof(version) + i * sizeof(d), sizeof(d));
        ret->entries[i] = (struct acl_entry){le16_get(d.tag), le16_get(d.perm), le32_get(d.id)};
    }
    return acl_valid(ret) ? 0 : ERR_FS_INVALID;
}

uint32_t acl_encode(const struct acl *a, uint8_t out[ACL_BYTES_MAX])
{
    struct le32 version = le32_make(ACL_VERSION);

    assert(a->count <= ACL_ENTRIES_MAX);
    memcpy(out, &version, sizeof(version));
    for (uint32_t i = 0; i < a->count; i++) {
        struct disk_acl_entry d = {le16_make(a->entries[i].tag), le16_make(a->entries[i].perm),
                                   le32_make(a->entries[i].id)};
        memcpy(out + sizeof(version) + i * sizeof(d), &d, sizeof(d));
    }
    return (uint32_t)(sizeof(version) + a->count * sizeof(struct disk_acl_entry));
}

static struct acl_entry *acl_entry_of(struct acl *a, uint32_t tag)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (a->entries[i].tag == tag)
            return &a->entries[i];
    return NULL;
}

static uint32_t acl_perm(const struct acl *a, uint32_t tag, uint32_t otherwise)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (a->entries[i].tag == tag)
            return a->entries[i].perm;
    return otherwise;
}

bool acl_is_mode(const struct acl *a)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (a->entries[i].tag & (ACL_USER | ACL_GROUP | ACL_MASK))
            return false;
    return true;
}

uint32_t acl_to_mode(const struct acl *a)
{
    uint32_t group = acl_perm(a, ACL_MASK, acl_perm(a, ACL_GROUP_OBJ, 0));

    return acl_perm(a, ACL_USER_OBJ, 0) << 6 | group << 3 | acl_perm(a, ACL_OTHER, 0);
}

/* The three entries that stand for the mode's three classes. */
static void acl_classes(struct acl *a, struct acl_entry *ret[3])
{
    struct acl_entry *mask = acl_entry_of(a, ACL_MASK);

    ret[0] = acl_entry_of(a, ACL_OTHER);
    ret[1] = mask ? mask : acl_entry_of(a, ACL_GROUP_OBJ);
    ret[2] = acl_entry_of(a, ACL_USER_OBJ);
    assert(ret[0] && ret[1] && ret[2]); /* acl_valid() */
}

void acl_set_mode(struct acl *a, uint32_t mode)
{
    struct acl_entry *class[3];

    acl_classes(a, class);
    for (uint32_t i = 0; i < 3; i++)
        class[i]->perm = mode >> (3 * i) & 7;
}

void acl_inherit(struct acl *a, uint32_t *mode)
{
    struct acl_entry *class[3];
    uint32_t bits = 0;

    acl_classes(a, class);
    for (uint32_t i = 0; i < 3; i++) {
        class[i]->perm &= *mode >> (3 * i) & 7;
        bits |= (uint32_t) class[i]->perm << (3 * i);
    }
    *mode = (*mode & ~0777u) | bits;
}

int acl_check(const struct acl *a, const struct fs_cred *cred, const struct inode *n, uint32_t wanted)
{
    uint32_t mask = acl_perm(a, ACL_MASK, 7);
    bool in_group = false;

    if (cred->uid == n->uid)
        return (acl_perm(a, ACL_USER_OBJ, 0) & wanted) == wanted ? 0 : ERR_FS_ACCESS;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct acl_entry *e = &a->entries[i];
        if (e->tag == ACL_USER && e->id == cred->uid)
            return (e->perm & mask & wanted) == wanted ? 0 : ERR_FS_ACCESS;
        bool group = (e->tag == ACL_GROUP_OBJ && cred_in_group(cred, n->gid)) ||
                     (e->tag == ACL_GROUP && cred_in_group(cred, e->id));
        if (!group)
            continue;
        in_group = true;
        if ((e->perm & mask & wanted) == wanted)
            return 0;
    }
    return !in_group && (acl_perm(a, ACL_OTHER, 0) & wanted) == wanted ? 0 : ERR_FS_ACCESS;
}

/* ---- From the tree ---- */

/* One chunk 0 on the way to the list: 1: not it, look at the next number. */
static int acl_from(const void *bytes, uint32_t len, const struct xattr_name *n, struct acl *ret)
{
    struct xattr_head h;
    int r = xattr_head_decode(bytes, len, &h);

    if (r)
        return r;
    if (h.value_len == XATTR_DELETED || h.name_len != n->len || memcmp(h.name, n->bytes, n->len) != 0)
        return 1;
    /* It was checked when it was set. */
    return h.first_len != h.value_len || acl_decode(h.value, h.value_len, ret) ? ERR_VOLUME_CORRUPT : 0;
}

int acl_get(struct fs *fs, struct change *c, uint64_t ino, enum acl_which which, struct acl *ret)
{
    struct xattr_name n;
    const void *bytes;
    uint32_t len;

    xattr_name_init(fs, acl_name(which), (uint32_t)strlen(acl_name(which)), &n);
    for (uint32_t i = 0; i < XATTR_PROBES_MAX; i++) {
        int r = change_get(c, xattr_key(ino, n.number + i, 0), &bytes, &len);
        if (!r)
            r = acl_from(bytes, len, &n, ret);
        if (r != 1)
            return r == ERR_NOT_FOUND ? ERR_VOLUME_CORRUPT : r;
    }
    return ERR_VOLUME_CORRUPT;
}

int acl_read(struct fs *fs, uint64_t ino, enum acl_which which, struct acl *ret)
{
    uint8_t bytes[ITEM_LEN_MAX];
    struct xattr_name n;
    uint32_t len;

    xattr_name_init(fs, acl_name(which), (uint32_t)strlen(acl_name(which)), &n);
    for (uint32_t i = 0; i < XATTR_PROBES_MAX; i++) {
        int r = volume_item_get(fs->volume, xattr_key(ino, n.number + i, 0), bytes, sizeof(bytes), &len);
        if (!r)
            r = acl_from(bytes, len, &n, ret);
        if (r != 1)
            return r == ERR_NOT_FOUND ? ERR_VOLUME_CORRUPT : r;
    }
    return ERR_VOLUME_CORRUPT;
}
