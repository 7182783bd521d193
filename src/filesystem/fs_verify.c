/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One walk over the head tree in key order, which is the order of inode numbers: every object's inode comes
 * before what belongs to it. What names say about other inodes is kept and compared when all of them are
 * known.
 */
#include "filesystem/fs_verify.h"

#include "filesystem/names_internal.h"
#include "runtime/error.h"
#include "volume/change.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define NO_NAME UINT32_MAX

struct seen_inode {
    struct inode n;
    bool missing;     /* there are items, but no inode */
    bool orphan;      /* on the list of orphans */
    uint8_t visit;    /* of the search for loops */
    uint64_t names;   /* that name it */
    uint64_t entries; /* names in it */
    uint32_t subdirs; /* directories among them */
    uint32_t name;    /* of a directory: the first one in names[], or NO_NAME */
    uint64_t blocks;  /* of its extents */
    uint64_t end;     /* where its last extent ends, in bytes */
    bool data_items;  /* extents or inline data */
};
struct seen_name {
    uint64_t dir, child, cookie;
    uint32_t generation;
    uint8_t type;
};
struct seen_quota {
    uint64_t ino;
    struct disk_quota q;
    uint64_t bytes, inodes; /* counted */
};
struct check {
    struct fs_verify *report;
    struct fs fs; /* only what hashes names */
    struct disk_fs disk;
    bool has_disk;
    struct seen_inode *inodes;
    size_t inode_count, inode_capacity;
    struct seen_name *names;
    size_t name_count, name_capacity;
    struct seen_quota *quotas;
    size_t quota_count, quota_capacity;
    uint64_t *orphans;
    size_t orphan_count, orphan_capacity;
    bool no_memory;
};

static const struct {
    const char *name, *repair;
} kinds[] = {
#define X(name, text, repair) [FS_FINDING_##name] = {text, repair},
    FS_FINDINGS(X)
#undef X
};

const char *fs_finding_name(enum fs_finding_kind kind)
{
    assert(kind < FS_FINDING_COUNT);
    return kinds[kind].name;
}

const char *fs_finding_repair(enum fs_finding_kind kind)
{
    assert(kind < FS_FINDING_COUNT);
    return kinds[kind].repair;
}

static void found(struct check *c, const struct fs_finding *f, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void found(struct check *c, const struct fs_finding *f, const char *fmt, ...)
{
    char text[320];
    int n = snprintf(text, sizeof(text), "%s: ", kinds[f->kind].name);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
    va_end(ap);
    c->report->problems++;
    if (c->report->found != NULL)
        c->report->found(c->report->ctx, f, text);
}

/* Room for one more element; false: no memory, which ends the check. */
static bool grow(struct check *c, void *array, size_t *capacity, size_t count, size_t size)
{
    void **p = array;
    if (count < *capacity)
        return true;
    size_t wanted = *capacity != 0 ? *capacity * 2 : 256;
    void *bigger = realloc(*p, wanted * size);
    if (bigger == NULL) {
        c->no_memory = true;
        return false;
    }
    *p = bigger;
    *capacity = wanted;
    return true;
}

static struct seen_inode *inode_find(struct check *c, uint64_t ino)
{
    size_t low = 0, high = c->inode_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c->inodes[mid].n.ino < ino)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->inode_count && c->inodes[low].n.ino == ino ? &c->inodes[low] : NULL;
}

/* ---- The walk ---- */

static struct seen_inode *inode_add(struct check *c, uint64_t ino)
{
    if (!grow(c, &c->inodes, &c->inode_capacity, c->inode_count, sizeof(*c->inodes)))
        return NULL;
    struct seen_inode *s = &c->inodes[c->inode_count++];
    *s = (struct seen_inode){.n = {.ino = ino}, .name = NO_NAME};
    return s;
}

/* The object that the item belongs to; one without an inode is told once. */
static struct seen_inode *owner_of(struct check *c, const struct tree_key *key)
{
    if (c->inode_count > 0 && c->inodes[c->inode_count - 1].n.ino == key->object)
        return &c->inodes[c->inode_count - 1];
    struct seen_inode *s = inode_add(c, key->object);
    if (s == NULL)
        return NULL;
    s->missing = true;
    return s;
}

static void item_bad(struct check *c, const struct tree_key *key, const char *what)
{
    struct fs_finding f = {
        .kind = FS_FINDING_ITEM_BAD, .ino = key->object, .item_type = key->type, .item_offset = key->offset};
    found(c, &f, "inode %llu: %s (type %u, offset %llu) cannot be understood",
          (unsigned long long)key->object, what, key->type, (unsigned long long)key->offset);
}

static void see_inode(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct inode n;
    if (key->offset != 0 || inode_decode(key->object, value, len, &n) != 0) {
        item_bad(c, key, "its inode");
        return;
    }
    struct seen_inode *s = inode_add(c, key->object);
    if (s == NULL)
        return;
    s->n = n;
    c->report->inodes++;
}

static void see_names(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct seen_inode *dir = owner_of(c, key);
    struct entry e;
    uint32_t at = 0;
    if (dir == NULL)
        return;
    if (bucket_decode(value, len) != 0) {
        item_bad(c, key, "a list of its names");
        return;
    }
    while (at < len) {
        struct name n;
        int r = entry_decode(value, len, &at, &e);
        assert(r == 0);
        dir->entries++;
        c->report->names++;
        uint64_t cookie = key->offset | e.slot;
        if (c->has_disk && (name_init(&c->fs, e.name, e.name_len, &n) != 0 || n.base != key->offset)) {
            struct fs_finding f = {
                .kind = FS_FINDING_NAME_PLACE, .ino = key->object, .child = e.ino, .item_offset = cookie};
            found(c, &f, "directory %llu: the name \"%.*s\" is not where it is looked for",
                  (unsigned long long)key->object, (int)e.name_len, e.name);
        }
        if (!grow(c, &c->names, &c->name_capacity, c->name_count, sizeof(*c->names)))
            return;
        c->names[c->name_count++] = (struct seen_name){
            .dir = key->object, .child = e.ino, .cookie = cookie, .generation = e.generation, .type = e.type};
    }
}

static void see_xattr(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct xattr_head h;
    if (owner_of(c, key) != NULL && (key->offset & 0xff) == 0 && xattr_head_decode(value, len, &h) != 0)
        item_bad(c, key, "an extended attribute of it");
}

static void see_extent(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct seen_inode *s = owner_of(c, key);
    struct disk_extent d;
    if (s == NULL)
        return;
    if (len < sizeof(d)) {
        item_bad(c, key, "an extent of it");
        return;
    }
    memcpy(&d, value, sizeof(d));
    uint64_t bytes = (uint64_t)le32_get(d.blocks) * BLOCK_SIZE;
    c->report->extents++;
    s->data_items = true;
    if (key->offset < s->end) {
        struct fs_finding f = {
            .kind = FS_FINDING_EXTENT_OVERLAP, .ino = key->object, .item_offset = key->offset};
        found(c, &f, "inode %llu: two extents hold the byte %llu", (unsigned long long)key->object,
              (unsigned long long)key->offset);
    }
    s->end = MAX(s->end, key->offset + bytes);
    s->blocks += le32_get(d.blocks); /* kept zeroes and lost blocks count as well */
}

static void see_orphan(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct disk_orphan d;
    if (len != sizeof(d)) {
        item_bad(c, key, "an entry of the list of orphans");
        return;
    }
    memcpy(&d, value, sizeof(d));
    if (!grow(c, &c->orphans, &c->orphan_capacity, c->orphan_count, sizeof(*c->orphans)))
        return;
    c->orphans[c->orphan_count++] = key->offset;
}

static void see_quota(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    struct disk_quota d;
    if (key->object == FS_OBJECT_LISTS) /* only says which directories have one */
        return;
    if (quota_decode(value, len, &d) != 0) {
        item_bad(c, key, "its quota");
        return;
    }
    if (!(le32_get(d.flags) & QUOTA_GONE) && owner_of(c, key) == NULL)
        return;
    if (grow(c, &c->quotas, &c->quota_capacity, c->quota_count, sizeof(*c->quotas)))
        c->quotas[c->quota_count++] = (struct seen_quota){.ino = key->object, .q = d};
}

static void see_fs(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    if (disk_fs_decode(value, len, &c->disk) != 0) {
        item_bad(c, key, "the file system's own item");
        return;
    }
    c->has_disk = true;
    c->fs.flags = le32_get(c->disk.flags);
    memcpy(c->fs.hash_seed, c->disk.hash_seed, sizeof(c->fs.hash_seed));
}

static void see_inline(struct check *c, const struct tree_key *key)
{
    struct seen_inode *s = owner_of(c, key);
    if (s != NULL)
        s->data_items = true;
}

static void see_item(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    switch (key->type) {
    case ITEM_INODE:
        see_inode(c, key, value, len);
        break;
    case ITEM_DIRENT:
        see_names(c, key, value, len);
        break;
    case ITEM_XATTR:
        see_xattr(c, key, value, len);
        break;
    case ITEM_EXTENT:
        see_extent(c, key, value, len);
        break;
    case ITEM_INLINE:
        see_inline(c, key);
        break;
    case ITEM_ORPHAN:
        see_orphan(c, key, value, len);
        break;
    case ITEM_QUOTA:
        see_quota(c, key, value, len);
        break;
    case ITEM_FS:
        see_fs(c, key, value, len);
        break;
    case ITEM_REPLY: {
        struct disk_reply d;
        if (reply_decode(value, len, &d) != 0)
            item_bad(c, key, "a recent reply");
        break;
    }
    case ITEM_LOCK:
        if (key->object != FS_OBJECT_LISTS)
            (void)owner_of(c, key);
        break;
    default: {
        struct fs_finding f = {.kind = FS_FINDING_ITEM_UNKNOWN, .ino = key->object, .item_type = key->type};
        found(c, &f, "inode %llu: an item of the unknown type %u", (unsigned long long)key->object,
              key->type);
    }
    }
}

static may_yield int walk(struct check *c, struct volume *v)
{
    struct tree_cursor cursor;
    uint8_t copy[ITEM_LEN_MAX]; /* callbacks yield */
    /* The file system's own item first: names are hashed by what it says. */
    struct tree_key key = {FS_OBJECT_FS, ITEM_FS, 0};
    uint32_t len;
    int r = volume_item_get(v, key, copy, sizeof(copy), &len);
    if (r == 0)
        see_fs(c, &key, copy, len);
    else if (r != ERR_NOT_FOUND)
        return r;
    r = volume_item_seek(v, TREE_KEY_MIN, SEEK_GE, &cursor);
    while (r == 0 && !c->no_memory) {
        key = cursor.key;
        len = cursor.len;
        memcpy(copy, cursor.value, len);
        if (key.type != ITEM_FS)
            see_item(c, &key, copy, len);
        r = tree_next(&cursor);
    }
    if (c->no_memory)
        return ERR_NO_MEMORY;
    return r == ERR_NOT_FOUND ? 0 : r;
}

/* ---- What the whole says ---- */

static uint8_t type_of(const struct inode *n)
{
    return mode_dt(n->mode);
}

static void compare_name(struct check *c, uint32_t index)
{
    const struct seen_name *name = &c->names[index];
    struct seen_inode *child = inode_find(c, name->child), *dir = inode_find(c, name->dir);
    struct fs_finding f = {.ino = name->dir, .child = name->child, .item_offset = name->cookie};
    if (child == NULL || child->missing) {
        f.kind = FS_FINDING_NAME_DANGLING;
        found(c, &f, "directory %llu: a name of inode %llu, which does not exist",
              (unsigned long long)name->dir, (unsigned long long)name->child);
        dir->entries--;
        return;
    }
    child->names++;
    if (name->type != type_of(&child->n) || name->generation != child->n.generation) {
        f.kind = FS_FINDING_NAME_TYPE;
        found(c, &f, "directory %llu: its name for inode %llu has another type or generation",
              (unsigned long long)name->dir, (unsigned long long)name->child);
    }
    if (!S_ISDIR(child->n.mode))
        return;
    dir->subdirs++;
    /* The name in the directory that it says it is in is the right one. */
    if (child->name == NO_NAME ||
        (c->names[child->name].dir != child->n.parent && name->dir == child->n.parent))
        child->name = index;
}

/* A directory has one name; which are too many? */
static void more_names(struct check *c, const struct seen_inode *s, bool root)
{
    for (uint32_t i = 0; i < c->name_count; i++) {
        if (c->names[i].child != s->n.ino || (i == s->name && !root))
            continue;
        struct fs_finding f = {.kind = FS_FINDING_DIRECTORY_NAMES,
                               .ino = c->names[i].dir,
                               .child = s->n.ino,
                               .item_offset = c->names[i].cookie};
        found(c, &f, "directory %llu has %llu names; one more is in %llu", (unsigned long long)s->n.ino,
              (unsigned long long)s->names, (unsigned long long)f.ino);
    }
}

static void compare_directory(struct check *c, struct seen_inode *s)
{
    struct fs_finding f = {.ino = s->n.ino, .number = s->entries, .other = s->subdirs};
    bool root = s->n.ino == FS_INO_ROOT;
    if (s->names > (root ? 0u : 1u)) {
        more_names(c, s, root);
    } else if (s->names == 1 && c->names[s->name].dir != s->n.parent) {
        f.kind = FS_FINDING_DIRECTORY_PARENT;
        f.child = c->names[s->name].dir;
        found(c, &f, "directory %llu says that it is in %llu, and is in %llu", (unsigned long long)s->n.ino,
              (unsigned long long)s->n.parent, (unsigned long long)f.child);
    }
    if (s->n.size != s->entries || s->n.subdirs != s->subdirs ||
        (s->n.nlink != 0 && s->n.nlink != s->subdirs + 2)) {
        f.kind = FS_FINDING_DIRECTORY_SIZE;
        found(c, &f, "directory %llu counts %llu names and %u directories, and has %llu and %u",
              (unsigned long long)s->n.ino, (unsigned long long)s->n.size, s->n.subdirs,
              (unsigned long long)s->entries, s->subdirs);
    }
}

static void compare_file(struct check *c, struct seen_inode *s)
{
    struct fs_finding f = {.ino = s->n.ino, .number = s->names};
    if (s->names > 0 && s->n.nlink != s->names) {
        f.kind = FS_FINDING_LINK_COUNT;
        found(c, &f, "inode %llu counts %u names, and has %llu", (unsigned long long)s->n.ino, s->n.nlink,
              (unsigned long long)s->names);
    }
    if (s->data_items && !S_ISREG(s->n.mode) && !S_ISLNK(s->n.mode)) {
        f.kind = FS_FINDING_DATA_OF_OTHER_TYPE;
        found(c, &f, "inode %llu has data, and is no file", (unsigned long long)s->n.ino);
    }
}

static void compare_blocks(struct check *c, struct seen_inode *s)
{
    /* While the reaper works, what it has still to take is counted or not. */
    if (s->n.blocks == s->blocks || (s->n.flags & INODE_REAPING) || s->n.nlink == 0)
        return;
    struct fs_finding f = {.kind = FS_FINDING_BLOCK_COUNT, .ino = s->n.ino, .number = s->blocks};
    found(c, &f, "inode %llu counts %llu blocks, and has %llu", (unsigned long long)s->n.ino,
          (unsigned long long)s->n.blocks, (unsigned long long)s->blocks);
}

static void compare_inode(struct check *c, struct seen_inode *s)
{
    struct fs_finding f = {.ino = s->n.ino, .number = s->end, .other = s->entries};
    if (s->missing) {
        f.kind = FS_FINDING_ITEMS_WITHOUT_INODE;
        found(c, &f, "there are items of inode %llu, which does not exist", (unsigned long long)s->n.ino);
        return;
    }
    if (s->names == 0 && s->n.ino != FS_INO_ROOT && !s->orphan) {
        f.kind = FS_FINDING_NO_NAME;
        found(c, &f, "inode %llu has no name and is not on the list of orphans",
              (unsigned long long)s->n.ino);
    }
    if (s->orphan && s->names > 0 && !(s->n.flags & INODE_REAPING)) {
        f.kind = FS_FINDING_ORPHAN_NAMED;
        found(c, &f, "inode %llu has a name and is on the list of orphans", (unsigned long long)s->n.ino);
    }
    if (c->has_disk && s->n.ino >= le64_get(c->disk.next_ino) && s->n.ino != FS_INO_ROOT) {
        f.kind = FS_FINDING_INODE_NUMBER;
        found(c, &f, "inode %llu has a number that was not given away yet", (unsigned long long)s->n.ino);
    }
    if (S_ISDIR(s->n.mode))
        compare_directory(c, s);
    else
        compare_file(c, s);
    compare_blocks(c, s);
}

/* Directories that nobody finds from the root, though each has a name in another one. */
static void compare_loops(struct check *c)
{
    enum { UNSEEN, ON_PATH, GOOD };
    for (size_t i = 0; i < c->inode_count; i++) {
        struct seen_inode *s = &c->inodes[i], *at = s;
        if (s->missing || !S_ISDIR(s->n.mode) || s->visit == GOOD)
            continue;
        while (at != NULL && at->visit == UNSEEN && at->n.ino != FS_INO_ROOT && at->name != NO_NAME) {
            at->visit = ON_PATH;
            at = inode_find(c, c->names[at->name].dir);
        }
        if (at != NULL && at->visit == ON_PATH) {
            struct fs_finding f = {.kind = FS_FINDING_DIRECTORY_LOOP,
                                   .ino = c->names[at->name].dir,
                                   .child = at->n.ino,
                                   .item_offset = c->names[at->name].cookie};
            found(c, &f, "directory %llu lies in itself", (unsigned long long)at->n.ino);
        }
        for (at = s; at != NULL && at->visit != GOOD;) {
            bool on = at->visit == ON_PATH;
            at->visit = GOOD;
            at = on ? inode_find(c, c->names[at->name].dir) : NULL;
        }
    }
}

/* ---- Orphans and quotas ---- */

static void compare_orphans(struct check *c)
{
    for (size_t i = 0; i < c->orphan_count; i++) {
        struct seen_inode *s = inode_find(c, c->orphans[i]);
        if (s != NULL && !s->missing) {
            s->orphan = true;
            continue;
        }
        struct fs_finding f = {.kind = FS_FINDING_ORPHAN_GONE, .ino = c->orphans[i]};
        found(c, &f, "inode %llu is on the list of orphans, and does not exist",
              (unsigned long long)c->orphans[i]);
    }
}

static struct seen_quota *quota_find(struct check *c, uint64_t ino)
{
    for (size_t i = 0; i < c->quota_count; i++) /* few */
        if (c->quotas[i].ino == ino)
            return &c->quotas[i];
    return NULL;
}

static void count_quotas(struct check *c)
{
    for (size_t i = 0; i < c->inode_count; i++) {
        const struct seen_inode *s = &c->inodes[i];
        uint64_t at = s->missing ? 0 : s->n.quota;
        if (at != 0 && quota_find(c, at) == NULL) {
            struct fs_finding f = {.kind = FS_FINDING_QUOTA_OF_INODE, .ino = s->n.ino};
            found(c, &f, "inode %llu counts for the quota of %llu, which has none",
                  (unsigned long long)s->n.ino, (unsigned long long)at);
            continue;
        }
        for (size_t depth = 0; at != 0 && depth <= c->quota_count; depth++) {
            struct seen_quota *q = quota_find(c, at);
            if (q == NULL)
                break;
            q->bytes += quota_bytes(&s->n);
            q->inodes++;
            at = le64_get(q->q.parent);
        }
    }
}

static void compare_quotas(struct check *c)
{
    count_quotas(c);
    for (size_t i = 0; i < c->quota_count; i++) {
        struct seen_quota *q = &c->quotas[i];
        uint64_t parent = le64_get(q->q.parent);
        struct fs_finding f = {.ino = q->ino, .number = q->bytes, .other = q->inodes};
        if (parent != 0 && quota_find(c, parent) == NULL) {
            f.kind = FS_FINDING_QUOTA_PARENT;
            found(c, &f, "the quota of directory %llu lies in one of %llu, which has none",
                  (unsigned long long)q->ino, (unsigned long long)parent);
        }
        if ((le32_get(q->q.flags) & QUOTA_SCANNING) ||
            (le64_get(q->q.used_bytes) == q->bytes && le64_get(q->q.used_inodes) == q->inodes))
            continue;
        f.kind = FS_FINDING_QUOTA_USAGE;
        found(c, &f, "the quota of directory %llu counts %llu bytes and %llu inodes, and has %llu and %llu",
              (unsigned long long)q->ino, (unsigned long long)le64_get(q->q.used_bytes),
              (unsigned long long)le64_get(q->q.used_inodes), (unsigned long long)q->bytes,
              (unsigned long long)q->inodes);
    }
}

static void compare_all(struct check *c)
{
    struct seen_inode *root = inode_find(c, FS_INO_ROOT);
    if (!c->has_disk || root == NULL || root->missing || !S_ISDIR(root->n.mode)) {
        struct fs_finding f = {.kind = FS_FINDING_NO_FS_ITEM, .ino = FS_OBJECT_FS};
        found(c, &f, "%s",
              c->has_disk ? "there is no root directory" : "the file system's own item is not there");
        return;
    }
    compare_orphans(c);
    for (uint32_t i = 0; i < c->name_count; i++)
        compare_name(c, i);
    for (size_t i = 0; i < c->inode_count; i++)
        compare_inode(c, &c->inodes[i]);
    compare_loops(c);
    compare_quotas(c);
}

int fs_verify(struct volume *v, struct fs_verify *r)
{
    struct check *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->report = r;
    r->problems = r->inodes = r->names = r->extents = 0;
    int err = walk(c, v);
    if (err == 0)
        compare_all(c);
    free(c->inodes);
    free(c->names);
    free(c->quotas);
    free(c->orphans);
    free(c);
    return err;
}
