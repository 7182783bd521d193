/* SPDX-License-Identifier: Apache-2.0 */
/* Finding names, and reading directories and symbolic links. */
#include "filesystem/names_internal.h"

#include <dirent.h>
#include <sys/stat.h>

/* ---- One name ---- */

static may_yield int lookup_ino(struct fs *fs, const struct inode *dir, const char *bytes, uint32_t len,
                                uint64_t *ret)
{
    struct bucket b;
    struct entry e;
    struct name n;

    if (name_is_dot(bytes, len)) {
        *ret = dir->ino;
        return 0;
    }
    if (name_is_dotdot(bytes, len)) {
        if (dir->parent == 0)
            return ERR_FS_NOT_FOUND;
        *ret = dir->parent;
        return 0;
    }
    int r = name_init(fs, bytes, len, &n);
    if (!r)
        r = bucket_read(fs, dir->ino, &n, &b);
    if (r)
        return r;
    if (!bucket_find(fs, &b, &n, &e))
        return ERR_FS_NOT_FOUND;
    *ret = e.ino;
    return 0;
}

/* A name that was there, but whose inode was gone a moment later, was removed in between: look again. */
static may_yield int lookup(struct fs *fs, const struct fs_request *rq, uint64_t dir_ino, const char *bytes,
                            uint32_t len, struct inode *ret_dir, struct inode *ret)
{
    for (uint32_t tries = 0;; tries++) {
        uint64_t objects[2] = {dir_ino, dir_ino};
        struct inode n = {0};
        int r = inode_read(fs, dir_ino, 0, ret_dir);

        if (!r && !S_ISDIR(ret_dir->mode))
            r = ERR_FS_NOT_DIRECTORY;
        if (!r)
            r = access_read(fs, &rq->cred, ret_dir, FS_MAY_EXECUTE);
        if (!r)
            r = lookup_ino(fs, ret_dir, bytes, len, &objects[1]);
        if (!r) {
            r = inode_read(fs, objects[1], 0, &n);
            if (r == ERR_FS_STALE && tries < 16)
                continue;
            if (r == ERR_FS_STALE)
                r = ERR_VOLUME_CORRUPT; /* a name of nothing */
        }
        int seen = volume_seen(fs->volume, objects, 2);
        if (seen)
            r = seen;
        if (!r)
            *ret = n;
        return r;
    }
}

int fs_lookup(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              struct fs_attr *ret, struct fs_attr *ret_dir)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_LOOKUP);
    struct inode d = {0}, n;
    int r = lookup(fs, rq, dir, name, len, &d, &n);

    if (!r)
        inode_attr(&n, ret);
    if (ret_dir && d.ino != 0)
        inode_attr(&d, ret_dir);
    return fs_end(fs, rq, FS_OP_LOOKUP, began, dir, 0, r);
}

int fs_readlink(struct fs *fs, const struct fs_request *rq, uint64_t ino, char target[FS_SYMLINK_MAX + 1],
                uint32_t *ret_len, struct fs_attr *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_READLINK);
    uint32_t len = 0;
    struct inode n;
    int r = inode_read(fs, ino, 0, &n);

    if (!r && !S_ISLNK(n.mode))
        r = ERR_FS_INVALID;
    if (!r) {
        r = volume_item_get(fs->volume, (struct tree_key){ino, ITEM_INLINE, 0}, target, FS_SYMLINK_MAX, &len);
        if (r == ERR_NOT_FOUND || r == ERR_INVALID || (!r && len != n.size))
            r = ERR_VOLUME_CORRUPT;
    }
    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (!r) {
        atime_note(fs, rq, &n);
        target[len] = 0;
        *ret_len = len;
        inode_attr(&n, ret);
    }
    return fs_end(fs, rq, FS_OP_READLINK, began, ino, len, r);
}

/* ---- All names ---- */

#define COOKIE_DOT    1u
#define COOKIE_DOTDOT 2u
#define SEEN_MAX      256u
#define BATCH_MAX     TREE_LOOKUPS_MAX

/* Names are gathered, then their inodes are looked up together, then both are emitted. */
struct reading {
    struct fs *fs;
    const struct inode *dir;
    bool attributes;
    bool (*emit)(void *ctx, const struct fs_dirent *e);
    void *ctx;
    bool full;
    /* What was looked at, the directory first: the reply waits until all of it is acknowledged. */
    uint32_t seen_count;
    uint64_t seen[SEEN_MAX];
    /* The batch. */
    uint32_t count, name_bytes;
    struct fs_dirent entries[BATCH_MAX];
    char names[BATCH_MAX * FS_NAME_MAX];
};

static void batch_add(struct reading *rd, const struct fs_dirent *e)
{
    char *name = rd->names + rd->name_bytes;

    assert(rd->count < BATCH_MAX);
    memcpy(name, e->name, e->name_len);
    rd->entries[rd->count] = *e;
    rd->entries[rd->count++].name = name;
    rd->name_bytes += e->name_len;
}

static may_yield int batch_attributes(struct reading *rd, struct fs_attr *attrs)
{
    uint64_t inos[BATCH_MAX];

    if (rd->seen_count + rd->count > SEEN_MAX) {
        int r = volume_seen(rd->fs->volume, rd->seen, rd->seen_count);
        if (r)
            return r;
        rd->seen_count = 1; /* more names of the directory follow */
    }
    for (uint32_t i = 0; i < rd->count; i++)
        rd->seen[rd->seen_count++] = inos[i] = rd->entries[i].ino;
    inode_read_attrs(rd->fs, inos, rd->count, attrs);
    for (uint32_t i = 0; i < rd->count; i++) {
        if (attrs[i].ino == 0)
            continue; /* went meanwhile, or cannot be read: its name alone */
        rd->entries[i].attr = &attrs[i];
        rd->entries[i].generation = attrs[i].generation;
    }
    return 0;
}

static may_yield int batch_emit(struct reading *rd)
{
    struct fs_attr attrs[BATCH_MAX];
    int r = rd->attributes && rd->count > 0 ? batch_attributes(rd, attrs) : 0;

    for (uint32_t i = 0; i < rd->count && !r && !rd->full; i++)
        rd->full = !rd->emit(rd->ctx, &rd->entries[i]);
    rd->count = rd->name_bytes = 0;
    return r;
}

static void reading_dots(struct reading *rd, uint64_t cookie)
{
    struct fs_dirent dot = {.ino = rd->dir->ino,
                            .cookie = COOKIE_DOT,
                            .generation = rd->dir->generation,
                            .type = DT_DIR,
                            .name_len = 1,
                            .name = "."};
    struct fs_dirent dotdot = {.ino = rd->dir->parent ? rd->dir->parent : rd->dir->ino,
                               .cookie = COOKIE_DOTDOT,
                               .type = DT_DIR,
                               .name_len = 2,
                               .name = ".."};

    if (cookie < COOKIE_DOT)
        batch_add(rd, &dot);
    if (cookie < COOKIE_DOTDOT)
        batch_add(rd, &dotdot);
}

/* The names of the cursor's bucket, which must be one of the directory. Nothing yields here. */
static int reading_bucket(struct reading *rd, const struct tree_cursor *c, uint64_t cookie)
{
    struct entry d;

    if (c->key.object != rd->dir->ino || c->key.type != ITEM_DIRENT)
        return ERR_NOT_FOUND;
    if ((c->key.offset & (BUCKET_SLOTS - 1)) || c->key.offset >= FS_COOKIE_MAX)
        return ERR_VOLUME_CORRUPT;
    int r = bucket_decode(c->value, c->len);
    for (uint32_t at = 0; !r && at < c->len;) {
        r = entry_decode(c->value, c->len, &at, &d);
        assert(r == 0); /* the bucket was checked */
        uint64_t own = c->key.offset | d.slot;
        if (own <= cookie)
            continue;
        struct fs_dirent e = {.ino = d.ino,
                              .cookie = own,
                              .generation = d.generation,
                              .type = d.type,
                              .name_len = d.name_len,
                              .name = d.name};
        batch_add(rd, &e);
    }
    return r;
}

static may_yield int reading_names(struct reading *rd, uint64_t cookie, bool *ret_eof)
{
    uint64_t base = MAX(cookie, FS_COOKIE_FIRST) & ~(uint64_t)(BUCKET_SLOTS - 1);
    struct tree_cursor cursor;
    int r = volume_item_seek(rd->fs->volume, bucket_key(rd->dir->ino, base), SEEK_GE, &cursor);

    while (!r && !rd->full) {
        r = reading_bucket(rd, &cursor, cookie);
        if (!r && rd->count + BUCKET_SLOTS > BATCH_MAX)
            r = batch_emit(rd);
        if (!r && !rd->full)
            r = tree_next(&cursor);
    }
    bool end = r == ERR_NOT_FOUND;
    if (end)
        r = batch_emit(rd);
    *ret_eof = end && !rd->full;
    return r;
}

int fs_readdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, uint64_t cookie, bool attributes,
               bool (*emit)(void *ctx, const struct fs_dirent *e), void *ctx, bool *ret_eof,
               struct fs_attr *ret_dir)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_READDIR);
    struct inode d;
    struct reading rd;
    bool eof = false;
    int r = inode_read(fs, dir, 0, &d);

    rd.fs = fs;
    rd.dir = &d;
    rd.attributes = attributes;
    rd.emit = emit;
    rd.ctx = ctx;
    rd.full = false;
    rd.seen_count = 1;
    rd.seen[0] = dir;
    rd.count = rd.name_bytes = 0;
    if (!r && !S_ISDIR(d.mode))
        r = ERR_FS_NOT_DIRECTORY;
    if (!r)
        r = access_read(fs, &rq->cred, &d, FS_MAY_READ);
    if (!r) {
        reading_dots(&rd, cookie);
        r = reading_names(&rd, cookie, &eof);
    }
    int seen = volume_seen(fs->volume, rd.seen, rd.seen_count);
    if (seen)
        r = seen;
    if (!r) {
        atime_note(fs, rq, &d);
        *ret_eof = eof;
        if (ret_dir)
            inode_attr(&d, ret_dir);
    }
    return fs_end(fs, rq, FS_OP_READDIR, began, dir, 0, r);
}
