/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mending what fs_verify() finds. Each repair is one change that looks again at what it mends, so a finding
 * that an earlier repair has settled does no harm. What one repair makes visible (an inode that lost its only
 * name) the next round finds. Nothing is guessed: what has lost its place gets a name in lost+found, and
 * every repair was told.
 */
#include "filesystem/fs_verify.h"

#include "filesystem/names_internal.h"
#include "runtime/error.h"
#include "volume/change.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define ROUNDS_MAX   8u
#define NUMBERS_MORE 1024u /* by which the counter of inode numbers goes beyond what was seen */
static const char lost_found[] = "lost+found";

struct repair {
    struct volume *volume;
    struct fs fs; /* what names are hashed by */
    struct fs_verify *report;
    struct fs_finding *findings;
    size_t count, capacity;
    bool no_memory;
    uint64_t lost; /* inode of lost+found; 0: not looked up yet */
};

static void keep(void *ctx, const struct fs_finding *f, const char *sentence)
{
    struct repair *rp = ctx;
    if (rp->report->found != NULL)
        rp->report->found(rp->report->ctx, f, sentence);
    if (rp->count == rp->capacity) {
        size_t wanted = rp->capacity != 0 ? rp->capacity * 2 : 64;
        struct fs_finding *bigger = realloc(rp->findings, wanted * sizeof(*bigger));
        if (bigger == NULL) {
            rp->no_memory = true;
            return;
        }
        rp->findings = bigger;
        rp->capacity = wanted;
    }
    rp->findings[rp->count++] = *f;
}

/* ---- One item ---- */

static int raw_inode(struct change *c, uint64_t ino, struct inode *ret)
{
    const void *value;
    uint32_t len;
    int r = change_get(c, inode_key(ino), &value, &len);
    return r != 0 ? r : inode_decode(ino, value, len, ret);
}

static void edit(struct inode *n, const struct fs_finding *f)
{
    switch (f->kind) {
    case FS_FINDING_LINK_COUNT:
        n->nlink = (uint32_t)MIN(f->number, (uint64_t)FS_LINK_MAX);
        break;
    case FS_FINDING_DIRECTORY_PARENT:
        n->parent = f->child;
        break;
    case FS_FINDING_DIRECTORY_SIZE:
        n->size = f->number;
        n->subdirs = (uint32_t)f->other;
        n->nlink = n->nlink != 0 ? n->subdirs + 2 : 0;
        break;
    case FS_FINDING_BLOCK_COUNT:
        n->blocks = f->number;
        break;
    case FS_FINDING_QUOTA_OF_INODE:
        n->quota = 0;
        break;
    default:
        assert(false);
    }
}

static int edit_inode(struct repair *rp, const struct fs_finding *f) may_yield
{
    struct change c;
    struct inode n;
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        inode_want(&c, f->ino);
        r = change_begin(&c);
        if (r == 0)
            r = raw_inode(&c, f->ino, &n);
        if (r == 0) {
            edit(&n, f);
            inode_put(&c, &n);
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static int remove_item(struct repair *rp, struct tree_key key) may_yield
{
    struct change c;
    const void *value;
    uint32_t len;
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_delete(&c);
        r = change_begin(&c);
        if (r == 0)
            r = change_get(&c, key, &value, &len);
        if (r == 0)
            change_delete(&c, key);
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static int edit_quota(struct repair *rp, const struct fs_finding *f) may_yield
{
    struct tree_key key = {f->ino, ITEM_QUOTA, 0};
    struct change c;
    struct disk_quota d;
    const void *value;
    uint32_t len;
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_put(&c, sizeof(d));
        r = change_begin(&c);
        if (r == 0)
            r = change_get(&c, key, &value, &len);
        if (r == 0)
            r = quota_decode(value, len, &d);
        if (r == 0) {
            if (f->kind == FS_FINDING_QUOTA_PARENT) {
                d.parent = le64_make(0);
            } else {
                d.used_bytes = le64_make(f->number);
                d.used_inodes = le64_make(f->other);
            }
            change_put(&c, key, &d, sizeof(d));
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* ---- The counter of inode numbers ---- */

static int raise_numbers(struct repair *rp, uint64_t least) may_yield
{
    struct tree_key key = {FS_OBJECT_FS, ITEM_FS, 0};
    struct change c;
    struct disk_fs d;
    const void *value;
    uint32_t len;
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_put(&c, sizeof(d));
        r = change_begin(&c);
        if (r == 0)
            r = change_get(&c, key, &value, &len);
        if (r == 0)
            r = disk_fs_decode(value, len, &d);
        if (r == 0) {
            d.next_ino = le64_make(MAX(le64_get(d.next_ino), least));
            change_put(&c, key, &d, sizeof(d));
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static int number_take(struct repair *rp, uint64_t *ret) may_yield
{
    struct disk_fs d;
    uint32_t len;
    int r = volume_item_get(rp->volume, (struct tree_key){FS_OBJECT_FS, ITEM_FS, 0}, &d, sizeof(d), &len);
    if (r == 0)
        r = disk_fs_decode(&d, len, &d);
    if (r == 0)
        r = raise_numbers(rp, le64_get(d.next_ino) + NUMBERS_MORE);
    if (r == 0)
        *ret = le64_get(d.next_ino);
    return r;
}

/* ---- Names ---- */

/* The bucket in which the name with this cookie lies, and the name. */
static int bucket_at(struct change *c, const struct fs_finding *f, struct bucket *b, struct entry *ret)
{
    const void *value;
    uint32_t len, at = 0;
    b->key = bucket_key(f->ino, f->item_offset & ~(uint64_t)(BUCKET_SLOTS - 1));
    int r = change_get(c, b->key, &value, &len);
    if (r == 0)
        r = bucket_decode(value, len);
    if (r != 0)
        return r;
    memcpy(b->bytes, value, len);
    b->len = len;
    b->stored = true;
    while (at < len) {
        r = entry_decode(b->bytes, len, &at, ret);
        assert(r == 0);
        if (ret->slot == (f->item_offset & (BUCKET_SLOTS - 1)) && ret->ino == f->child)
            return 0;
    }
    return ERR_NOT_FOUND;
}

static void bucket_promise(struct change *c, const struct fs_finding *f)
{
    change_want(c, bucket_key(f->ino, f->item_offset & ~(uint64_t)(BUCKET_SLOTS - 1)));
    change_will_put(c, BUCKET_MAX);
    change_will_delete(c);
}

/* NAME_DANGLING, DIRECTORY_NAMES, DIRECTORY_LOOP: takes it out; NAME_TYPE: corrects it. Counts of the
 * directory are the next round's. */
static int edit_name(struct repair *rp, const struct fs_finding *f) may_yield
{
    struct change c;
    struct bucket b;
    struct entry e;
    struct inode child = {0};
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        bucket_promise(&c, f);
        change_want(&c, inode_key(f->child));
        r = change_begin(&c);
        if (r == 0)
            r = bucket_at(&c, f, &b, &e);
        if (r == 0 && f->kind == FS_FINDING_NAME_TYPE)
            r = raw_inode(&c, f->child, &child);
        if (r == 0) {
            if (f->kind == FS_FINDING_NAME_TYPE)
                bucket_replace(&b, e.slot, e.ino, child.generation, child.mode);
            else
                bucket_remove(&b, e.slot);
            bucket_put(&c, &b);
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* A name that lies under another hash than its own. */
static int move_name(struct repair *rp, const struct fs_finding *f) may_yield
{
    struct change c;
    struct bucket from, to;
    struct entry e;
    struct name n = {0};
    struct inode child;
    int r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        bucket_promise(&c, f);
        if (n.len > 0)
            bucket_want(&c, f->ino, &n, BUCKET_MAX, 0);
        change_want(&c, inode_key(f->child));
        r = change_begin(&c);
        if (r == 0)
            r = bucket_at(&c, f, &from, &e);
        if (r == 0)
            r = raw_inode(&c, f->child, &child);
        if (r == 0)
            r = name_init(&rp->fs, e.name, e.name_len, &n);
        if (r == 0)
            r = bucket_get(&c, f->ino, &n, &to);
        if (r == 0)
            r = bucket_add(&to, &n, e.ino, child.generation, child.mode);
        if (r == 0) {
            bucket_remove(&from, e.slot);
            bucket_put(&c, &from);
            bucket_put(&c, &to);
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* ---- lost+found ---- */

static void directory_init(struct inode *n, uint64_t ino, uint64_t parent, uint32_t mode)
{
    int64_t now = fs_now_ns();
    *n = (struct inode){.ino = ino,
                        .mode = S_IFDIR | mode,
                        .nlink = 2,
                        .atime_ns = now,
                        .mtime_ns = now,
                        .ctime_ns = now,
                        .btime_ns = now,
                        .parent = parent,
                        .generation = 1};
}

/* Puts a name for an inode into a directory, in one change with both inodes. n: the inode as it will be. */
static int name_put(struct change *c, struct repair *rp, uint64_t dir_ino, const struct name *name,
                    struct inode *n)
{
    struct inode dir;
    struct bucket b;
    struct entry e;
    int r = raw_inode(c, dir_ino, &dir);
    if (r == 0)
        r = bucket_get(c, dir_ino, name, &b);
    if (r == 0 && bucket_find(&rp->fs, &b, name, &e))
        r = ERR_FS_EXISTS;
    if (r == 0)
        r = bucket_add(&b, name, n->ino, n->generation, n->mode);
    if (r != 0)
        return r;
    dir.size++;
    dir.subdirs += S_ISDIR(n->mode) ? 1 : 0;
    dir.nlink = dir.subdirs + 2;
    bucket_put(c, &b);
    inode_put(c, &dir);
    inode_put(c, n);
    return 0;
}

static void name_promise(struct change *c, uint64_t dir, const struct name *name, uint64_t ino)
{
    bucket_want(c, dir, name, BUCKET_MAX, 0);
    inode_want(c, dir);
    inode_want(c, ino);
}

static int lost_make(struct repair *rp, const struct name *name) may_yield
{
    struct change c;
    struct inode n;
    uint64_t ino;
    int r = number_take(rp, &ino);
    if (r != 0)
        return r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        name_promise(&c, FS_INO_ROOT, name, ino);
        directory_init(&n, ino, FS_INO_ROOT, 0700);
        r = change_begin(&c);
        if (r == 0)
            r = name_put(&c, rp, FS_INO_ROOT, name, &n);
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    if (r == 0)
        rp->lost = ino;
    return r;
}

static int lost_find(struct repair *rp) may_yield
{
    struct name name;
    struct bucket b;
    struct entry e;
    if (rp->lost != 0)
        return 0;
    int r = name_init(&rp->fs, lost_found, sizeof(lost_found) - 1, &name);
    if (r == 0)
        r = bucket_read(&rp->fs, FS_INO_ROOT, &name, &b);
    if (r != 0)
        return r;
    if (bucket_find(&rp->fs, &b, &name, &e) && e.type == mode_dt(S_IFDIR)) {
        rp->lost = e.ino;
        return 0;
    }
    return lost_make(rp, &name);
}

/* An inode that has no name, or (made here) an object that has no inode. */
static int to_lost(struct repair *rp, const struct fs_finding *f) may_yield
{
    char text[32];
    struct change c;
    struct name name;
    struct inode n;
    int r = lost_find(rp);
    snprintf(text, sizeof(text), "#%llu", (unsigned long long)f->ino);
    if (r == 0)
        r = name_init(&rp->fs, text, (uint32_t)strlen(text), &name);
    if (r != 0)
        return r;
    change_init(&c, rp->volume);
    do {
        change_clear(&c);
        name_promise(&c, rp->lost, &name, f->ino);
        r = change_begin(&c);
        if (r == 0)
            r = raw_inode(&c, f->ino, &n);
        if (r == ERR_NOT_FOUND && f->kind == FS_FINDING_ITEMS_WITHOUT_INODE) {
            directory_init(&n, f->ino, rp->lost, 0700);
            if (f->other == 0) { /* no names in it: a file */
                n.mode = S_IFREG | 0600;
                n.size = MIN(f->number, FS_SIZE_MAX - 1);
            }
            r = 0;
        }
        if (r == 0) {
            n.parent = rp->lost;
            n.nlink = S_ISDIR(n.mode) ? n.subdirs + 2 : 1;
            r = name_put(&c, rp, rp->lost, &name, &n);
        }
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* ---- Data where none belongs ---- */

static int remove_data(struct repair *rp, const struct fs_finding *f) may_yield
{
    int r = remove_item(rp, (struct tree_key){f->ino, ITEM_INLINE, 0});
    if (r == 0 || r == ERR_NOT_FOUND)
        r = volume_unmap(rp->volume, f->ino, 0, FS_SIZE_MAX / BLOCK_SIZE, VOLUME_WRITE_FUA);
    return r;
}

/* ---- All ---- */

static int mend(struct repair *rp, const struct fs_finding *f) may_yield
{
    struct tree_key orphan = {FS_OBJECT_LISTS, ITEM_ORPHAN, f->ino};
    switch (f->kind) {
    case FS_FINDING_ITEM_BAD:
        return remove_item(rp, (struct tree_key){f->ino, f->item_type, f->item_offset});
    case FS_FINDING_ITEMS_WITHOUT_INODE:
    case FS_FINDING_NO_NAME:
        return to_lost(rp, f);
    case FS_FINDING_INODE_NUMBER:
        return raise_numbers(rp, f->ino + NUMBERS_MORE);
    case FS_FINDING_NAME_DANGLING:
    case FS_FINDING_NAME_TYPE:
    case FS_FINDING_DIRECTORY_NAMES:
    case FS_FINDING_DIRECTORY_LOOP:
        return edit_name(rp, f);
    case FS_FINDING_NAME_PLACE:
        return move_name(rp, f);
    case FS_FINDING_LINK_COUNT:
    case FS_FINDING_DIRECTORY_PARENT:
    case FS_FINDING_DIRECTORY_SIZE:
    case FS_FINDING_BLOCK_COUNT:
    case FS_FINDING_QUOTA_OF_INODE:
        return edit_inode(rp, f);
    case FS_FINDING_ORPHAN_NAMED:
    case FS_FINDING_ORPHAN_GONE:
        return remove_item(rp, orphan);
    case FS_FINDING_DATA_OF_OTHER_TYPE:
        return remove_data(rp, f);
    case FS_FINDING_QUOTA_USAGE:
    case FS_FINDING_QUOTA_PARENT:
        return edit_quota(rp, f);
    case FS_FINDING_NO_FS_ITEM:
    case FS_FINDING_ITEM_UNKNOWN:
    case FS_FINDING_EXTENT_OVERLAP:
    case FS_FINDING_COUNT:
        break;
    }
    return ERR_UNSUPPORTED;
}

/* What names are hashed by. */
static int names_learn(struct repair *rp) may_yield
{
    struct disk_fs d;
    uint32_t len;
    int r = volume_item_get(rp->volume, (struct tree_key){FS_OBJECT_FS, ITEM_FS, 0}, &d, sizeof(d), &len);
    if (r == 0)
        r = disk_fs_decode(&d, len, &d);
    if (r != 0)
        return r;
    rp->fs.volume = rp->volume;
    rp->fs.reactor = reactor_current();
    rp->fs.flags = le32_get(d.flags);
    memcpy(rp->fs.hash_seed, d.hash_seed, sizeof(rp->fs.hash_seed));
    return 0;
}

/* One look and its repairs; *ret_repaired: how many. */
static int round_run(struct repair *rp, uint64_t *ret_repaired) may_yield
{
    struct fs_verify look = {.found = keep, .ctx = rp};
    uint64_t repaired = 0;
    rp->count = 0;
    int r = fs_verify(rp->volume, &look);
    if (r == 0 && rp->no_memory)
        r = ERR_NO_MEMORY;
    rp->report->problems = look.problems;
    rp->report->inodes = look.inodes;
    rp->report->names = look.names;
    rp->report->extents = look.extents;
    for (size_t i = 0; r == 0 && i < rp->count; i++) {
        r = mend(rp, &rp->findings[i]);
        repaired += r == 0;
        /* Not to be mended; settled by another repair of this round; for the next one to see. */
        if (r == ERR_UNSUPPORTED || r == ERR_NOT_FOUND || r == ERR_FS_EXISTS || r == ERR_VOLUME_CORRUPT)
            r = 0;
    }
    *ret_repaired = repaired;
    return r;
}

int fs_repair(struct volume *v, struct fs_verify *r, uint64_t *ret_repaired)
{
    struct repair *rp = calloc(1, sizeof(*rp)); /* large for a fiber's stack */
    uint64_t all = 0, now = 1;
    if (rp == NULL)
        return ERR_NO_MEMORY;
    rp->volume = v;
    rp->report = r;
    int err = names_learn(rp);
    for (uint32_t i = 0; err == 0 && now > 0 && i < ROUNDS_MAX; i++) {
        err = round_run(rp, &now);
        all += now;
    }
    free(rp->findings);
    free(rp);
    if (err != 0)
        return err;
    *ret_repaired = all;
    return 0;
}
