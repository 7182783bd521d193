/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of directories. An inode names the innermost directory with a quota that it counts for; that quota
 * names the next one above. What an inode takes is charged to the whole chain in the change that takes it, so
 * the numbers are exact at every moment, and limits are hard.
 *
 * A quota that is set on a directory with content begins with what was made since, and a scan in the
 * background brings what is there under it, inode by inode, each in a change that takes it from its old chain
 * and gives it to the new one. A directory comes under it before its content, so that what is made meanwhile
 * needs no scan. Nothing moves between what counts for different quotas (EXDEV), so nothing escapes the scan.
 * Taking a quota away is the same scan in the other direction.
 *
 *      none --fs_quota_set--> SCANNING --scan--> set --fs_quota_set(0, 0)--> REMOVING --scan--> GONE --> none
 *                                                set --rmdir---------------------------------> GONE --> none
 *
 * GONE is left at once, unless files without a name still count for it: they are found by no scan. It passes
 * their charges on to the chain above and goes with the last of them.
 */
#include "filesystem/names_internal.h"
#include "runtime/log.h"

#include <stdlib.h>
#include <sys/stat.h>

static struct tree_key quota_key(uint64_t dir)
{
    return (struct tree_key){dir, ITEM_QUOTA_DIR, 0};
}

static struct tree_key list_key(uint64_t dir)
{
    return (struct tree_key){FS_OBJECT_LISTS, ITEM_QUOTA, dir};
}

int quota_decode(const void *bytes, uint32_t len, struct disk_quota *ret)
{
    struct disk_quota d;

    if (len != sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, bytes, sizeof(d));
    if (le32_get(d.flags) & ~(QUOTA_SCANNING | QUOTA_REMOVING | QUOTA_GONE))
        return ERR_VOLUME_CORRUPT;
    *ret = d;
    return 0;
}

uint64_t quota_bytes(const struct inode *n)
{
    if (n->flags & INODE_INLINE)
        return n->size > 0 ? BLOCK_SIZE : 0;
    return n->blocks * BLOCK_SIZE;
}

/* ---- Charging ---- */

void quota_want(struct fs *fs, struct change *c, uint64_t quota)
{
    if (quota)
        change_want(c, quota_key(quota));
    /* Without any quota on the list, files without a name may still count for one that is gone. */
    for (uint32_t i = 0; (quota || fs->quotas) && i < QUOTA_CHAIN_MAX; i++)
        change_will_put(c, sizeof(struct disk_quota));
}

static int quota_item(struct change *c, uint64_t quota, struct disk_quota *ret)
{
    const void *value;
    uint32_t len;
    int r = change_get(c, quota_key(quota), &value, &len);

    return r ? r : quota_decode(value, len, ret);
}

/* More than there is room for below the limit? */
static bool exceeds(uint64_t limit, uint64_t used, int64_t more)
{
    return more > 0 && limit > 0 && (used >= limit || (uint64_t)more > limit - used);
}

int quota_check(struct fs *fs, struct change *c, uint64_t quota, int64_t bytes, int64_t inodes)
{
    struct disk_quota d;

    (void)fs;
    for (uint32_t i = 0; quota && i < QUOTA_CHAIN_MAX; i++) {
        int r = quota_item(c, quota, &d);
        if (r == ERR_NOT_FOUND)
            return 0;
        if (r)
            return r;
        if (exceeds(le64_get(d.limit_bytes), le64_get(d.used_bytes), bytes) ||
            exceeds(le64_get(d.limit_inodes), le64_get(d.used_inodes), inodes))
            return ERR_FS_QUOTA;
        quota = le64_get(d.parent);
    }
    return 0;
}

static struct le64 plus(struct le64 v, int64_t more)
{
    uint64_t n = le64_get(v);

    return le64_make(more < 0 && n < (uint64_t)-more ? 0 : n + (uint64_t)more);
}

/* One that is gone goes with the last that counts for it. */
static void quota_store(struct change *c, uint64_t quota, const struct disk_quota *d)
{
    if ((le32_get(d->flags) & QUOTA_GONE) && le64_get(d->used_inodes) == 0)
        change_delete(c, quota_key(quota));
    else
        change_put(c, quota_key(quota), d, sizeof(*d));
}

static void quota_gone(struct disk_quota *d)
{
    d->limit_bytes = d->limit_inodes = le64_make(0);
    d->flags = le32_make(QUOTA_GONE);
}

void quota_charge(struct fs *fs, struct change *c, uint64_t quota, int64_t bytes, int64_t inodes)
{
    struct disk_quota d;

    (void)fs;
    if (bytes == 0 && inodes == 0)
        return;
    for (uint32_t i = 0; quota && i < QUOTA_CHAIN_MAX; i++) {
        if (quota_item(c, quota, &d)) /* quota_check() has read it: there is none */
            return;
        d.used_bytes = plus(d.used_bytes, bytes);
        d.used_inodes = plus(d.used_inodes, inodes);
        quota_store(c, quota, &d);
        quota = le64_get(d.parent);
    }
}

int quota_guess(struct fs *fs, uint64_t dir, uint64_t *ret)
{
    struct inode n;
    int r = fs->quotas ? inode_read(fs, dir, 0, &n) : ERR_FS_STALE;

    if (r && r != ERR_FS_STALE)
        return r;
    *ret = r ? 0 : n.quota;
    return 0;
}

/* ---- A directory goes ---- */

void quota_drop_want(struct change *c, uint64_t dir)
{
    change_want(c, quota_key(dir));
    change_want(c, list_key(dir));
    change_will_put(c, sizeof(struct disk_quota));
    change_will_delete(c);
    change_will_delete(c);
}

int quota_drop_check(struct fs *fs, struct change *c, const struct inode *n)
{
    struct disk_quota d;
    const void *value;
    uint32_t len;

    if (n->quota != n->ino)
        return 0;
    int r = quota_item(c, n->ino, &d);
    if (!r) /* one more above than the chain from here on has: the inode is charged to it when it goes */
        r = quota_check(fs, c, le64_get(d.parent), 0, 0);
    if (!r)
        r = change_get(c, list_key(n->ino), &value, &len);
    return r == ERR_NOT_FOUND ? 0 : r;
}

void quota_drop_apply(struct fs *fs, struct change *c, struct inode *n)
{
    struct disk_quota d;
    const void *value;
    uint32_t len;

    (void)fs;
    if (n->quota != n->ino)
        return;
    n->quota = 0;
    if (quota_item(c, n->ino, &d) == 0) {
        /* The inode itself counts for the chain above until it goes. */
        d.used_bytes = plus(d.used_bytes, -(int64_t)quota_bytes(n));
        d.used_inodes = plus(d.used_inodes, -1);
        n->quota = le64_get(d.parent);
        quota_gone(&d);
        quota_store(c, n->ino, &d);
    }
    if (change_get(c, list_key(n->ino), &value, &len) == 0)
        change_delete(c, list_key(n->ino));
}

/* ---- Asking ---- */

static may_yield int quota_read(struct fs *fs, uint64_t dir, struct disk_quota *ret)
{
    uint8_t bytes[sizeof(*ret)];
    uint32_t len;
    int r = volume_item_get(fs->volume, quota_key(dir), bytes, sizeof(bytes), &len);

    if (r == ERR_INVALID)
        return ERR_VOLUME_CORRUPT;
    return r ? r : quota_decode(bytes, len, ret);
}

int quota_room(struct fs *fs, uint64_t quota, struct fs_statfs *io)
{
    struct disk_quota d;

    for (uint32_t i = 0; quota && i < QUOTA_CHAIN_MAX; i++) {
        int r = quota_read(fs, quota, &d);
        if (r)
            return r == ERR_NOT_FOUND ? 0 : r;
        uint64_t limit = le64_get(d.limit_bytes), used = le64_get(d.used_bytes);
        if (limit > 0) {
            io->total_bytes = MIN(io->total_bytes, limit);
            io->free_bytes = MIN(io->free_bytes, limit > used ? limit - used : 0);
        }
        limit = le64_get(d.limit_inodes);
        used = le64_get(d.used_inodes);
        if (limit > 0) {
            io->total_inodes = MIN(io->total_inodes, limit);
            io->free_inodes = MIN(io->free_inodes, limit > used ? limit - used : 0);
        }
        quota = le64_get(d.parent);
    }
    return 0;
}

static void quota_fill(uint64_t dir, const struct disk_quota *d, struct fs_quota *ret)
{
    *ret = (struct fs_quota){.ino = dir,
                             .limit_bytes = le64_get(d->limit_bytes),
                             .limit_inodes = le64_get(d->limit_inodes),
                             .used_bytes = le64_get(d->used_bytes),
                             .used_inodes = le64_get(d->used_inodes),
                             .parent = le64_get(d->parent),
                             .scanning = le32_get(d->flags) != 0};
}

int fs_quota_get(struct fs *fs, uint64_t dir, struct fs_quota *ret)
{
    uint64_t objects[2] = {dir, FS_OBJECT_LISTS};
    struct disk_quota d;
    uint8_t mark[8];
    uint32_t len;
    int r = volume_item_get(fs->volume, list_key(dir), mark, sizeof(mark), &len);

    if (!r)
        r = quota_read(fs, dir, &d);
    if (!r)
        r = volume_seen(fs->volume, objects, 2);
    if (!r)
        quota_fill(dir, &d, ret);
    return r;
}

/* The next directory of the list after `after`: ERR_NOT_FOUND. */
static may_yield int list_next(struct fs *fs, uint64_t after, uint64_t *ret)
{
    struct tree_cursor cursor;
    int r = after == UINT64_MAX ? ERR_NOT_FOUND
                                : volume_item_seek(fs->volume, list_key(after + 1), SEEK_GE, &cursor);

    if (!r && (cursor.key.object != FS_OBJECT_LISTS || cursor.key.type != ITEM_QUOTA))
        r = ERR_NOT_FOUND;
    if (!r)
        *ret = cursor.key.offset;
    return r;
}

int fs_quota_list(struct fs *fs, uint64_t after, struct fs_quota *ret, uint32_t max, uint32_t *ret_count)
{
    uint64_t lists = FS_OBJECT_LISTS;
    struct disk_quota d;
    uint32_t n = 0;
    int r = 0;

    while (!r && n < max) {
        r = list_next(fs, after, &after);
        if (r)
            break;
        r = quota_read(fs, after, &d);
        if (r == ERR_NOT_FOUND) {
            r = 0;
            continue; /* removed in this moment */
        }
        if (!r)
            quota_fill(after, &d, &ret[n++]);
    }
    if (r == ERR_NOT_FOUND)
        r = 0;
    if (!r)
        r = volume_seen(fs->volume, &lists, 1);
    if (!r)
        *ret_count = n;
    return r;
}

/* ---- The scan ---- */

struct scan_level {
    uint64_t dir, cookie;
};
struct scan {
    struct fs *fs;
    uint64_t root;            /* whose quota it is */
    uint32_t mode;            /* QUOTA_SCANNING or QUOTA_REMOVING */
    bool stop;                /* the quota was changed meanwhile: from the beginning */
    bool into;                /* of the inode converted last: its content counts for the same */
    struct scan_level *stack; /* as deep as the tree */
    uint32_t depth, room;
};

/* A quota of its own below: it hangs under another one now, with all that it counts. */
static int scan_nested(struct scan *s, struct change *c, uint64_t ino, uint64_t to)
{
    struct disk_quota d;
    int r = quota_item(c, ino, &d);

    if (r)
        return r == ERR_NOT_FOUND ? 0 : r;
    uint64_t from = le64_get(d.parent);
    if (from == to || (s->mode == QUOTA_REMOVING && from != s->root))
        return 0;
    r = quota_check(s->fs, c, from, 0, 0);
    if (!r)
        r = quota_check(s->fs, c, to, 0, 0);
    if (r)
        return r;
    int64_t bytes = (int64_t)le64_get(d.used_bytes), inodes = (int64_t)le64_get(d.used_inodes);
    quota_charge(s->fs, c, from, -bytes, -inodes);
    quota_charge(s->fs, c, to, bytes, inodes);
    d.parent = le64_make(to);
    change_put(c, quota_key(ino), &d, sizeof(d));
    return 0;
}

static int scan_instant(struct scan *s, struct change *c, uint64_t ino)
{
    struct disk_quota own;
    struct inode n;
    int r = quota_item(c, s->root, &own);

    s->into = false;
    if (r == ERR_NOT_FOUND || (!r && !(le32_get(own.flags) & s->mode))) {
        s->stop = true;
        return 0;
    }
    if (!r)
        r = inode_get(s->fs, c, ino, &n);
    if (r)
        return r == ERR_FS_STALE ? 0 : r;
    uint64_t to = s->mode == QUOTA_SCANNING ? s->root : le64_get(own.parent);
    if (n.quota == n.ino)
        return scan_nested(s, c, ino, to);
    s->into = S_ISDIR(n.mode);
    if (n.quota == to || (s->mode == QUOTA_REMOVING && n.quota != s->root))
        return 0;
    uint64_t from = n.quota;
    r = quota_check(s->fs, c, from, 0, 0);
    if (!r)
        r = quota_check(s->fs, c, to, 0, 0);
    if (r)
        return r;
    quota_charge(s->fs, c, from, -(int64_t)quota_bytes(&n), -1);
    quota_charge(s->fs, c, to, (int64_t)quota_bytes(&n), 1);
    n.quota = to;
    inode_put(c, &n);
    return 0;
}

static may_yield int scan_one(struct scan *s, uint64_t ino)
{
    struct change c;
    int r;

    change_init(&c, s->fs->volume);
    c.deletes = true;
    do {
        change_clear(&c);
        inode_want(&c, ino);
        quota_want(s->fs, &c, s->root);
        quota_want(s->fs, &c, ino);
        change_will_put(&c, sizeof(struct disk_quota));
        r = change_begin(&c);
        if (!r)
            r = scan_instant(s, &c, ino);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static int scan_push(struct scan *s, uint64_t dir)
{
    if (s->depth == s->room) {
        uint32_t room = s->room ? s->room * 2 : 64;
        struct scan_level *more = realloc(s->stack, room * sizeof(*more));
        if (!more)
            return ERR_NO_MEMORY;
        s->stack = more;
        s->room = room;
    }
    s->stack[s->depth++] = (struct scan_level){.dir = dir};
    return 0;
}

/* The names of a directory, some at a time. */
#define SCAN_BATCH 64u
struct scan_batch {
    uint32_t count;
    uint64_t inos[SCAN_BATCH], cookies[SCAN_BATCH];
    bool dirs[SCAN_BATCH];
};

static bool scan_emit(void *ctx, const struct fs_dirent *e)
{
    struct scan_batch *b = ctx;

    if (e->cookie < FS_COOKIE_FIRST)
        return true;
    if (b->count == SCAN_BATCH)
        return false;
    b->inos[b->count] = e->ino;
    b->cookies[b->count] = e->cookie;
    b->dirs[b->count++] = e->type == 4; /* DT_DIR */
    return true;
}

/* Some names of the innermost directory; goes into the first directory among them, and comes back later. */
static may_yield int scan_level_step(struct scan *s)
{
    static const struct fs_request rq = {.cred = {.trusted = true}, .read_only = true};
    struct scan_level *at = &s->stack[s->depth - 1];
    struct scan_batch b = {0};
    bool eof = false;
    int r = fs_readdir(s->fs, &rq, at->dir, at->cookie, false, scan_emit, &b, &eof, NULL);

    if (r == ERR_FS_STALE || r == ERR_FS_NOT_DIRECTORY || (!r && b.count == 0)) {
        s->depth--;
        return 0;
    }
    for (uint32_t i = 0; !r && i < b.count && !s->stop && !s->fs->closing; i++) {
        r = scan_one(s, b.inos[i]);
        s->stack[s->depth - 1].cookie = b.cookies[i];
        if (!r && b.dirs[i] && s->into)
            return scan_push(s, b.inos[i]);
    }
    return r;
}

static int scan_finish_instant(struct scan *s, struct change *c)
{
    struct disk_quota d;
    const void *value;
    uint32_t len;
    int r = change_get(c, list_key(s->root), &value, &len);
    bool listed = r == 0;

    if (!r || r == ERR_NOT_FOUND)
        r = quota_item(c, s->root, &d);
    if (r == ERR_NOT_FOUND) { /* the directory is gone, and its quota with it */
        if (listed)
            change_delete(c, list_key(s->root));
        return 0;
    }
    if (r || !(le32_get(d.flags) & s->mode))
        return r;
    d.flags = le32_make(0);
    if (s->mode == QUOTA_REMOVING && listed)
        change_delete(c, list_key(s->root));
    if (s->mode == QUOTA_REMOVING)
        quota_gone(&d);
    quota_store(c, s->root, &d);
    return 0;
}

static may_yield int scan_finish(struct scan *s)
{
    struct change c;
    int r;

    change_init(&c, s->fs->volume);
    c.deletes = true;
    do {
        change_clear(&c);
        change_want(&c, quota_key(s->root));
        change_want(&c, list_key(s->root));
        change_will_put(&c, sizeof(struct disk_quota));
        change_will_delete(&c);
        change_will_delete(&c);
        r = change_begin(&c);
        if (!r)
            r = scan_finish_instant(s, &c);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static may_yield int scan_quota(struct fs *fs, uint64_t dir, uint32_t mode)
{
    struct scan s = {.fs = fs, .root = dir, .mode = mode};
    int r = scan_push(&s, dir);

    while (!r && s.depth > 0 && !s.stop && !fs->closing) {
        r = scan_level_step(&s);
        fiber_yield(); /* clients first */
    }
    free(s.stack);
    if (!r && !s.stop && !fs->closing)
        r = scan_finish(&s);
    return r;
}

static may_yield void scan_main(void *arg)
{
    struct fs *fs = arg;
    struct disk_quota d;
    uint64_t dir;

    while (fs->quota_rescan && !fs->closing) {
        fs->quota_rescan = false;
        int r = 0;
        for (dir = 0; !r && !fs->closing && list_next(fs, dir, &dir) == 0;) {
            r = quota_read(fs, dir, &d);
            uint32_t mode = r == ERR_NOT_FOUND ? QUOTA_REMOVING : r ? 0 : le32_get(d.flags);
            if (mode)
                r = scan_quota(fs, dir, mode & QUOTA_REMOVING ? QUOTA_REMOVING : QUOTA_SCANNING);
            if (r == ERR_NOT_FOUND)
                r = 0;
        }
        if (r && !fs->closing)
            LOG_WARNING("quota of directory %llu: counting stopped: %s; it goes on when the file system is "
                        "opened again",
                        (unsigned long long)dir, error_text(r));
    }
    fs->quota_scanning = false;
    fs->background--;
    waitq_wake_all(&fs->background_wait);
}

static int scan_start(struct fs *fs)
{
    fs->quota_rescan = true;
    if (fs->quota_scanning)
        return 0;
    int r = fiber_spawn("quota", scan_main, fs);
    if (r)
        return r;
    fs->quota_scanning = true;
    fs->background++;
    return 0;
}

int quota_start(struct fs *fs)
{
    uint64_t dir = 0;
    int r = list_next(fs, 0, &dir);

    if (r)
        return r == ERR_NOT_FOUND ? 0 : r;
    fs->quotas = true;
    return scan_start(fs);
}

/* ---- Setting ---- */

struct quota_op {
    struct fs *fs;
    uint64_t dir, limit_bytes, limit_inodes;
    bool scan;
};

static int depth_check(struct change *c, uint64_t quota)
{
    struct disk_quota d;

    for (uint32_t i = 1; quota; i++) {
        int r = quota_item(c, quota, &d);
        if (r)
            return r == ERR_NOT_FOUND ? 0 : r;
        if (i >= QUOTA_DEPTH_MAX)
            return ERR_FS_INVALID;
        quota = le64_get(d.parent);
    }
    return 0;
}

/* The directory's own inode changes its chain with it. */
static void own_inode_moves(struct quota_op *op, struct change *c, struct inode *n, uint64_t to)
{
    quota_charge(op->fs, c, n->quota, -(int64_t)quota_bytes(n), -1);
    quota_charge(op->fs, c, to, (int64_t)quota_bytes(n), 1);
    n->quota = to;
    inode_put(c, n);
}

static int quota_set_check(struct quota_op *op, struct change *c, struct inode *n, struct disk_quota *d)
{
    const void *value;
    uint32_t len;
    int r = dir_get(op->fs, c, op->dir, n, NULL);

    if (!r)
        r = quota_item(c, op->dir, d);
    if (r == ERR_NOT_FOUND) {
        *d = (struct disk_quota){{{0}}};
        r = 0;
    }
    if (!r)
        r = quota_check(op->fs, c, n->quota, 0, 0);
    if (!r)
        r = quota_check(op->fs, c, le64_get(d->parent), 0, 0);
    if (!r && n->quota != op->dir)
        r = depth_check(c, n->quota);
    if (!r)
        r = change_get(c, list_key(op->dir), &value, &len);
    return r == ERR_NOT_FOUND ? 0 : r;
}

static int quota_set_instant(struct quota_op *op, struct change *c)
{
    bool remove = op->limit_bytes == 0 && op->limit_inodes == 0;
    struct disk_quota d;
    struct inode n;
    int r = quota_set_check(op, c, &n, &d);

    if (r)
        return r;
    bool has = n.quota == op->dir;
    op->scan = has == remove;
    if (!has && remove)
        return ERR_NOT_FOUND;
    d.limit_bytes = le64_make(op->limit_bytes);
    d.limit_inodes = le64_make(op->limit_inodes);
    if (!has && le64_get(d.parent) != n.quota) { /* what still counts for one that was gone comes along */
        int64_t bytes = (int64_t)le64_get(d.used_bytes), inodes = (int64_t)le64_get(d.used_inodes);
        quota_charge(op->fs, c, le64_get(d.parent), -bytes, -inodes);
        quota_charge(op->fs, c, n.quota, bytes, inodes);
        d.parent = le64_make(n.quota);
    }
    if (op->scan)
        d.flags = le32_make(remove ? QUOTA_REMOVING : QUOTA_SCANNING);
    change_put(c, quota_key(op->dir), &d, sizeof(d));
    change_put(c, list_key(op->dir), "", 1);
    if (op->scan)
        own_inode_moves(op, c, &n, remove ? le64_get(d.parent) : op->dir);
    return 0;
}

int fs_quota_set(struct fs *fs, uint64_t dir, uint64_t limit_bytes, uint64_t limit_inodes)
{
    struct quota_op op = {.fs = fs, .dir = dir, .limit_bytes = limit_bytes, .limit_inodes = limit_inodes};
    struct change c;
    int r;

    fs->quotas = true;
    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        inode_want(&c, dir);
        quota_want(fs, &c, dir);
        for (uint32_t i = 0; i < 3; i++)
            quota_want(fs, &c, 0);
        change_want(&c, list_key(dir));
        change_will_put(&c, sizeof(struct disk_quota));
        change_will_put(&c, 1);
        r = change_begin(&c);
        if (!r)
            r = quota_set_instant(&op, &c);
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    if (!r && op.scan)
        r = scan_start(fs);
    return r;
}

/* ---- Patterns: beside quotas what else a directory hands down ---- */

static int pattern_instant(struct fs *fs, struct change *c, uint64_t ino, enum fs_pattern p)
{
    struct inode n;
    int r = inode_get(fs, c, ino, &n);

    if (r)
        return r;
    n.pattern = (uint8_t)p;
    inode_put(c, &n);
    return 0;
}

int fs_pattern_set(struct fs *fs, uint64_t ino, enum fs_pattern p)
{
    struct change c;
    int r;

    if (p > FS_PATTERN_RANDOM)
        return ERR_INVALID;
    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        inode_want(&c, ino);
        r = change_begin(&c);
        if (!r)
            r = pattern_instant(fs, &c, ino, p);
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}
