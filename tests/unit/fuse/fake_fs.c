/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_fs.h"

#include "runtime/error.h"
#include "runtime/list.h"
#include "runtime/reactor.h"

#include <stdlib.h>
#include <sys/stat.h>

#define INODES  4096u
#define NAMES   4096u
#define REPLIES 64u
#define LOCKS   64u

struct fake_inode {
    struct fs_attr attr; /* ino 0: free */
    uint8_t *data;
    uint32_t opens;
    char xattr_name[256], xattr_value[256];
    uint32_t xattr_len;
};
struct fake_name {
    uint64_t dir, ino; /* ino 0: free */
    uint32_t len;
    char name[256];
};
struct fake_lock {
    uint64_t ino; /* 0: free */
    struct fs_lock lock;
};
struct fs {
    struct fake_fs_options options;
    struct reactor *reactor;
    struct fake_inode inodes[INODES];
    struct fake_name names[NAMES];
    struct {
        struct fs_reply_key key;
        struct fs_reply reply;
    } replies[REPLIES];
    uint32_t reply_count, creates, opens;
    struct fake_lock locks[LOCKS];
    struct waitq unlocked;
    struct list watches;
    struct fs_op_stats stats;
    int64_t now_ns;
};

struct fs *fake_fs_new(const struct fake_fs_options *o)
{
    struct fs *fs = calloc(1, sizeof(*fs));
    assert(fs != NULL);
    fs->options = *o;
    fs->reactor = reactor_current();
    fs->now_ns = 1000;
    list_init(&fs->watches);
    waitq_init(&fs->unlocked);
    fs->inodes[FS_INO_ROOT].attr =
        (struct fs_attr){.ino = FS_INO_ROOT, .generation = 1, .mode = S_IFDIR | 0755, .nlink = 2};
    return fs;
}

void fake_fs_free(struct fs *fs)
{
    for (uint32_t i = 0; i < INODES; i++)
        free(fs->inodes[i].data);
    free(fs);
}

void fake_fs_restart(struct fs *fs)
{
    for (uint32_t i = 0; i < INODES; i++)
        fs->inodes[i].opens = 0;
    fs->opens = 0;
}

uint32_t fake_fs_opens(const struct fs *fs)
{
    return fs->opens;
}
uint32_t fake_fs_creates(const struct fs *fs)
{
    return fs->creates;
}
uint32_t fake_fs_locks(const struct fs *fs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < LOCKS; i++)
        n += fs->locks[i].ino != 0;
    return n;
}
uint32_t fake_fs_inodes(const struct fs *fs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < INODES; i++)
        n += fs->inodes[i].attr.ino != 0;
    return n;
}
uint32_t fake_fs_watches(const struct fs *fs)
{
    uint32_t n = 0;
    LIST_FOREACH (&fs->watches, l)
        n++;
    return n;
}

static void tell(struct fs *fs, const struct fs_request *rq, const struct fs_event *e)
{
    LIST_FOREACH (&fs->watches, l) {
        struct fs_watch *w = CONTAINER_OF(l, struct fs_watch, link);
        w->event(w, rq, e);
    }
}

void fake_fs_touch(struct fs *fs, uint64_t ino, bool data)
{
    tell(fs, NULL, &(struct fs_event){.kind = data ? FS_EVENT_DATA : FS_EVENT_ATTR, .ino = ino, .len = 10});
}

static void pause_(struct fs *fs) may_yield
{
    if (fs->options.delay_ns > 0 && fiber_sleep(fs->options.delay_ns) != 0)
        return;
}

static struct fake_inode *inode(struct fs *fs, uint64_t ino)
{
    struct fake_inode *n = ino < INODES ? &fs->inodes[ino] : NULL;
    return n != NULL && n->attr.ino != 0 ? n : NULL;
}

static struct fake_name *name_find(struct fs *fs, uint64_t dir, const char *name, uint32_t len)
{
    for (uint32_t i = 0; i < NAMES; i++) {
        struct fake_name *n = &fs->names[i];
        if (n->ino != 0 && n->dir == dir && n->len == len && memcmp(n->name, name, len) == 0)
            return n;
    }
    return NULL;
}

static int name_add(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
                    uint64_t ino)
{
    for (uint32_t i = 0; i < NAMES; i++) {
        struct fake_name *n = &fs->names[i];
        if (n->ino != 0)
            continue;
        n->dir = dir;
        n->ino = ino;
        n->len = len;
        memcpy(n->name, name, len);
        tell(fs, rq,
             &(struct fs_event){
                 .kind = FS_EVENT_NAME_ADDED, .ino = dir, .child = ino, .name = name, .name_len = len});
        return 0;
    }
    return ERR_FS_DIR_FULL;
}

static void collect(struct fs *fs, struct fake_inode *n)
{
    if (n->attr.nlink > 0 || n->opens > 0)
        return;
    free(n->data);
    memset(n, 0, sizeof(*n));
    (void)fs;
}

static void reply_keep(struct fs *fs, const struct fs_request *rq, uint64_t ino)
{
    if (rq->reply == NULL)
        return;
    uint32_t at = fs->reply_count++ % REPLIES;
    fs->replies[at].key = *rq->reply;
    fs->replies[at].reply = (struct fs_reply){.ino = ino};
}

int fs_reply_find(struct fs *fs, const struct fs_reply_key *k, struct fs_reply *ret)
{
    for (uint32_t i = 0; i < MIN(fs->reply_count, REPLIES); i++) {
        if (memcmp(&fs->replies[i].key, k, sizeof(*k)) != 0)
            continue;
        *ret = fs->replies[i].reply;
        return 0;
    }
    return ERR_NOT_FOUND;
}

struct reactor *fs_reactor(const struct fs *fs)
{
    return fs->reactor;
}
uint32_t fs_client(struct fs *fs, const char *name)
{
    (void)fs;
    (void)name;
    return 1;
}

/* ---- Attributes and names ---- */

int fs_getattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t generation,
               struct fs_attr *ret)
{
    (void)rq;
    (void)generation;
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    *ret = n->attr;
    return 0;
}

static void resize(struct fake_inode *n, uint64_t size)
{
    uint8_t *data = realloc(n->data, size > 0 ? size : 1);
    assert(data != NULL);
    if (size > n->attr.size)
        memset(data + n->attr.size, 0, size - n->attr.size);
    n->data = data;
    n->attr.size = size;
    n->attr.used_bytes = ALIGN_UP(size, BLOCK_SIZE);
}

int fs_setattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_setattr *s,
               struct fs_wcc *ret)
{
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if ((s->valid & FS_SET_SIZE) && s->size > 64 * MIB)
        return ERR_FS_TOO_BIG;
    if (s->valid & FS_SET_MODE)
        n->attr.mode = (n->attr.mode & S_IFMT) | s->mode;
    if (s->valid & FS_SET_UID)
        n->attr.uid = s->uid;
    if (s->valid & FS_SET_GID)
        n->attr.gid = s->gid;
    if (s->valid & FS_SET_SIZE)
        resize(n, s->size);
    if (s->valid & FS_SET_MTIME)
        n->attr.mtime_ns = s->mtime_ns;
    n->attr.ctime_ns = fs->now_ns++;
    ret->has_after = true;
    ret->after = n->attr;
    tell(fs, rq, &(struct fs_event){.kind = FS_EVENT_ATTR, .ino = ino});
    return 0;
}

int fs_access(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t wanted,
              uint32_t *ret_granted, struct fs_attr *ret_attr)
{
    *ret_granted = wanted;
    return fs_getattr(fs, rq, ino, 0, ret_attr);
}

int fs_lookup(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              struct fs_attr *ret, struct fs_attr *ret_dir)
{
    (void)rq;
    (void)ret_dir;
    pause_(fs);
    struct fake_name *n = name_find(fs, dir, name, len);
    if (n == NULL)
        return ERR_FS_NOT_FOUND;
    *ret = inode(fs, n->ino)->attr;
    return 0;
}

static uint32_t format_of(enum fs_type t)
{
    static const uint32_t formats[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
    return formats[t];
}

int fs_create(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              const struct fs_create *c, struct fs_attr *ret, bool *ret_created, struct fs_wcc *ret_dir)
{
    (void)ret_dir;
    pause_(fs);
    struct fake_inode *d = inode(fs, dir);
    if (d == NULL)
        return ERR_FS_STALE;
    struct fake_name *old = name_find(fs, dir, name, len);
    if (old != NULL && c->how != FS_CREATE_UNCHECKED)
        return ERR_FS_EXISTS;
    *ret_created = old == NULL;
    if (old != NULL) {
        if (c->attr.valid & FS_SET_SIZE)
            resize(inode(fs, old->ino), c->attr.size);
        *ret = inode(fs, old->ino)->attr;
        return 0;
    }
    uint64_t ino = FS_INO_FIRST;
    while (ino < INODES && fs->inodes[ino].attr.ino != 0)
        ino++;
    if (ino == INODES)
        return ERR_VOLUME_FULL;
    struct fake_inode *n = &fs->inodes[ino];
    n->attr = (struct fs_attr){.ino = ino,
                               .generation = 7,
                               .mode = format_of(c->type) | (c->attr.mode & ~c->umask),
                               .nlink = c->type == FS_DIRECTORY ? 2 : 1,
                               .uid = rq->cred.uid,
                               .gid = rq->cred.gid,
                               .rdev_major = c->rdev_major,
                               .rdev_minor = c->rdev_minor,
                               .mtime_ns = fs->now_ns++,
                               .parent = dir};
    if (c->type == FS_SYMLINK) {
        resize(n, c->target_len);
        memcpy(n->data, c->target, c->target_len);
    }
    int err = name_add(fs, rq, dir, name, len, ino);
    assert(err == 0);
    fs->creates++;
    reply_keep(fs, rq, ino);
    *ret = n->attr;
    return 0;
}

int fs_link(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t dir, const char *name,
            uint32_t len, struct fs_attr *ret, struct fs_wcc *ret_dir)
{
    (void)ret_dir;
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if (name_find(fs, dir, name, len) != NULL)
        return ERR_FS_EXISTS;
    int err = name_add(fs, rq, dir, name, len, ino);
    if (err != 0)
        return err;
    n->attr.nlink++;
    reply_keep(fs, rq, ino);
    *ret = n->attr;
    return 0;
}

static int name_remove(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name,
                       uint32_t len, bool directory, uint64_t *ret_ino)
{
    struct fake_name *n = name_find(fs, dir, name, len);
    if (n == NULL)
        return ERR_FS_NOT_FOUND;
    struct fake_inode *i = inode(fs, n->ino);
    if (S_ISDIR(i->attr.mode) != directory)
        return directory ? ERR_FS_NOT_DIRECTORY : ERR_FS_IS_DIRECTORY;
    for (uint32_t k = 0; directory && k < NAMES; k++)
        if (fs->names[k].ino != 0 && fs->names[k].dir == n->ino)
            return ERR_FS_NOT_EMPTY;
    *ret_ino = n->ino;
    n->ino = 0;
    i->attr.nlink = directory ? 0 : i->attr.nlink - 1;
    tell(fs, rq,
         &(struct fs_event){
             .kind = FS_EVENT_NAME_REMOVED, .ino = dir, .child = *ret_ino, .name = name, .name_len = len});
    collect(fs, i);
    reply_keep(fs, rq, *ret_ino);
    return 0;
}

int fs_unlink(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    (void)ret_dir;
    pause_(fs);
    return name_remove(fs, rq, dir, name, len, false, ret_ino);
}

int fs_rmdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
             uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    (void)ret_dir;
    pause_(fs);
    return name_remove(fs, rq, dir, name, len, true, ret_ino);
}

int fs_rename(struct fs *fs, const struct fs_request *rq, uint64_t from_dir, const char *from,
              uint32_t from_len, uint64_t to_dir, const char *to, uint32_t to_len, uint32_t flags,
              struct fs_wcc *ret_from, struct fs_wcc *ret_to)
{
    (void)ret_from;
    (void)ret_to;
    uint64_t gone;
    pause_(fs);
    struct fake_name *n = name_find(fs, from_dir, from, from_len), *old = name_find(fs, to_dir, to, to_len);
    if (n == NULL)
        return ERR_FS_NOT_FOUND;
    if (old != NULL && (flags & FS_RENAME_NOREPLACE))
        return ERR_FS_EXISTS;
    if (old != NULL && old->ino == n->ino)
        return 0;
    struct fs_request quiet = *rq;
    quiet.reply = NULL;
    if (old != NULL) {
        bool directory = S_ISDIR(inode(fs, old->ino)->attr.mode);
        int err = name_remove(fs, &quiet, to_dir, to, to_len, directory, &gone);
        if (err != 0)
            return err;
    }
    uint64_t ino = n->ino;
    n->ino = 0;
    reply_keep(fs, rq, ino);
    tell(fs, rq,
         &(struct fs_event){.kind = FS_EVENT_NAME_REMOVED,
                            .ino = from_dir,
                            .child = ino,
                            .name = from,
                            .name_len = from_len});
    return name_add(fs, rq, to_dir, to, to_len, ino);
}

int fs_readlink(struct fs *fs, const struct fs_request *rq, uint64_t ino, char target[FS_SYMLINK_MAX + 1],
                uint32_t *ret_len, struct fs_attr *ret)
{
    (void)rq;
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL || !S_ISLNK(n->attr.mode))
        return ERR_FS_INVALID;
    memcpy(target, n->data, n->attr.size);
    *ret_len = (uint32_t)n->attr.size;
    *ret = n->attr;
    return 0;
}

int fs_readdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, uint64_t cookie, bool attributes,
               bool (*emit)(void *ctx, const struct fs_dirent *e), void *ctx, bool *ret_eof,
               struct fs_attr *ret_dir)
{
    pause_(fs);
    int err = fs_getattr(fs, rq, dir, 0, ret_dir);
    if (err != 0)
        return err;
    *ret_eof = false;
    for (uint64_t at = cookie; at < NAMES + 2; at++) {
        struct fs_dirent e = {.ino = dir, .cookie = at + 1, .type = 4, .name_len = 1, .name = "."};
        if (at == 1) {
            e.name = "..";
            e.name_len = 2;
        }
        if (at >= 2) {
            const struct fake_name *n = &fs->names[at - 2];
            if (n->ino == 0 || n->dir != dir)
                continue;
            e.ino = n->ino;
            e.type = (uint8_t)(inode(fs, n->ino)->attr.mode >> 12);
            e.name = n->name;
            e.name_len = (uint8_t)n->len;
        }
        if (attributes)
            e.attr = &inode(fs, e.ino)->attr;
        if (!emit(ctx, &e))
            return 0;
    }
    *ret_eof = true;
    return 0;
}

int fs_statfs(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_statfs *ret,
              struct fs_attr *ret_attr)
{
    *ret = (struct fs_statfs){.total_bytes = GIB,
                              .free_bytes = GIB / 2,
                              .available_bytes = GIB / 2,
                              .total_inodes = INODES,
                              .free_inodes = INODES,
                              .available_inodes = INODES};
    return fs_getattr(fs, rq, ino, 0, ret_attr);
}

/* ---- Data ---- */

int fs_read(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
            struct page_vec *ret, uint32_t *ret_len, bool *ret_eof, struct fs_attr *ret_attr)
{
    (void)rq;
    assert(len == fs_piece_len(offset, len));
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    uint32_t got = offset < n->attr.size ? (uint32_t)MIN(len, n->attr.size - offset) : 0;
    uint32_t skip = (uint32_t)(offset % BLOCK_SIZE), blocks = DIV_ROUND_UP(skip + got, BLOCK_SIZE);
    ret->run_count = 0;
    ret->blocks = 0;
    if (got > 0) {
        struct page *p;
        int err = page_alloc(blocks, &p);
        if (err != 0)
            return err;
        memcpy(p->data + skip, n->data + offset, got);
        ret->runs[0] = (struct page_run){p, blocks};
        ret->run_count = 1;
        ret->blocks = blocks;
    }
    *ret_len = got;
    *ret_eof = offset + got >= n->attr.size;
    *ret_attr = n->attr;
    return 0;
}

int fs_write(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
             const struct page_vec *data, uint32_t flags, uint64_t *ret_offset, struct fs_wcc *ret)
{
    (void)ret;
    assert(len == fs_piece_len(offset, len));
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    uint32_t skip = (uint32_t)(offset % BLOCK_SIZE), done = 0;
    if (n == NULL)
        return ERR_FS_STALE;
    if (flags & FS_WRITE_APPEND)
        offset = n->attr.size;
    if (offset + len > 64 * MIB)
        return ERR_FS_TOO_BIG;
    if (offset + len > n->attr.size)
        resize(n, offset + len);
    for (uint32_t i = 0; i < data->run_count && done < len; i++) {
        uint32_t k = MIN(len - done, data->runs[i].count * BLOCK_SIZE - skip);
        memcpy(n->data + offset + done, data->runs[i].page->data + skip, k);
        done += k;
        skip = 0;
    }
    assert(done == len);
    n->attr.mtime_ns = fs->now_ns++;
    if (flags & FS_WRITE_APPEND)
        reply_keep(fs, rq, offset);
    *ret_offset = offset;
    tell(fs, rq, &(struct fs_event){.kind = FS_EVENT_DATA, .ino = ino, .offset = offset, .len = len});
    return 0;
}

int fs_commit(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_wcc *ret)
{
    (void)ret;
    struct fs_attr a;
    return fs_getattr(fs, rq, ino, 0, &a);
}

int fs_allocate(struct fs *fs, const struct fs_request *rq, uint64_t ino, enum fs_allocate_mode mode,
                uint64_t offset, uint64_t len, struct fs_wcc *ret)
{
    (void)rq;
    (void)ret;
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if (offset + len > 64 * MIB)
        return ERR_FS_TOO_BIG;
    if (mode == FS_ALLOCATE && offset + len > n->attr.size)
        resize(n, offset + len);
    if ((mode == FS_PUNCH_HOLE || mode == FS_ZERO_RANGE_KEEP_SIZE) && offset < n->attr.size)
        memset(n->data + offset, 0, MIN(len, n->attr.size - offset));
    return 0;
}

int fs_seek(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, bool hole,
            uint64_t *ret_offset)
{
    struct fs_attr a;
    int err = fs_getattr(fs, rq, ino, 0, &a);
    if (err == 0 && offset >= a.size)
        err = ERR_FS_NO_DATA;
    if (err == 0)
        *ret_offset = hole ? a.size : offset;
    return err;
}

int fs_copy_range(struct fs *fs, const struct fs_request *rq, uint64_t from, uint64_t from_offset,
                  uint64_t to, uint64_t to_offset, uint64_t len, bool clone, uint64_t *ret_len,
                  struct fs_wcc *ret)
{
    (void)rq;
    (void)clone;
    (void)ret;
    struct fake_inode *a = inode(fs, from), *b = inode(fs, to);
    if (a == NULL || b == NULL)
        return ERR_FS_STALE;
    len = from_offset < a->attr.size ? MIN(len, a->attr.size - from_offset) : 0;
    if (to_offset > 64 * MIB || to_offset + len > 64 * MIB)
        return ERR_FS_TOO_BIG;
    if (to_offset + len > b->attr.size)
        resize(b, to_offset + len);
    if (len > 0)
        memmove(b->data + to_offset, a->data + from_offset, len);
    *ret_len = len;
    return 0;
}

/* ---- Opens, extended attributes ---- */

int fs_open_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t flags, bool truncate,
                struct fs_attr *ret)
{
    (void)rq;
    (void)flags;
    pause_(fs);
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if (truncate)
        resize(n, 0);
    n->opens++;
    fs->opens++;
    *ret = n->attr;
    return 0;
}

void fs_open_put(struct fs *fs, uint64_t ino, uint32_t flags)
{
    (void)flags;
    struct fake_inode *n = inode(fs, ino);
    assert(n != NULL && n->opens > 0);
    n->opens--;
    fs->opens--;
    collect(fs, n);
}

int fs_xattr_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, void *value, uint32_t max, uint32_t *ret_len)
{
    (void)rq;
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if (strlen(n->xattr_name) != name_len || memcmp(n->xattr_name, name, name_len) != 0)
        return ERR_FS_NO_XATTR;
    if (max > 0 && n->xattr_len > max)
        return ERR_FS_XATTR_RANGE;
    if (max > 0)
        memcpy(value, n->xattr_value, n->xattr_len);
    *ret_len = n->xattr_len;
    return 0;
}

int fs_xattr_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, const void *value, uint32_t len, enum fs_xattr_set how)
{
    (void)rq;
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    if (len > sizeof(n->xattr_value))
        return ERR_FS_XATTR_TOO_BIG;
    if (how == FS_XATTR_CREATE && n->xattr_name[0] != '\0')
        return ERR_FS_EXISTS;
    memcpy(n->xattr_name, name, name_len);
    n->xattr_name[name_len] = '\0';
    if (len > 0)
        memcpy(n->xattr_value, value, len);
    n->xattr_len = len;
    return 0;
}

int fs_xattr_remove(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                    uint32_t name_len)
{
    uint32_t len;
    int err = fs_xattr_get(fs, rq, ino, name, name_len, NULL, 0, &len);
    if (err == 0)
        inode(fs, ino)->xattr_name[0] = '\0';
    return err;
}

int fs_xattr_list(struct fs *fs, const struct fs_request *rq, uint64_t ino, char *list, uint32_t max,
                  uint32_t *ret_len)
{
    (void)rq;
    struct fake_inode *n = inode(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    uint32_t len = n->xattr_name[0] != '\0' ? (uint32_t)strlen(n->xattr_name) + 1 : 0;
    if (max > 0 && len > max)
        return ERR_FS_XATTR_RANGE;
    if (max > 0)
        memcpy(list, n->xattr_name, len);
    *ret_len = len;
    return 0;
}

/* ---- Locks: whole files ---- */

static bool same_owner(const struct fs_lock *a, const struct fs_lock *b)
{
    return strcmp(a->client, b->client) == 0 && a->owner_len == b->owner_len &&
           memcmp(a->owner, b->owner, a->owner_len) == 0;
}

static struct fake_lock *conflict(struct fs *fs, uint64_t ino, const struct fs_lock *l)
{
    for (uint32_t i = 0; i < LOCKS; i++) {
        struct fake_lock *o = &fs->locks[i];
        if (o->ino == ino && o->lock.protocol == l->protocol && !same_owner(&o->lock, l) &&
            (o->lock.exclusive || l->exclusive))
            return o;
    }
    return NULL;
}

int fs_lock_test(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                 struct fs_lock *ret_conflict)
{
    (void)rq;
    struct fake_lock *o = conflict(fs, ino, l);
    if (o == NULL)
        return 0;
    *ret_conflict = o->lock;
    return ERR_FS_LOCKED;
}

int fs_lock_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                bool reclaim, uint64_t wait_until_ns, struct fs_lock *ret_conflict)
{
    (void)reclaim;
    struct fake_lock *o;
    while ((o = conflict(fs, ino, l)) != NULL) {
        *ret_conflict = o->lock;
        if (wait_until_ns == 0)
            return ERR_FS_LOCKED;
        int err = waitq_wait(&fs->unlocked, wait_until_ns);
        if (err != 0)
            return err;
    }
    int err = fs_lock_clear(fs, rq, ino, l);
    assert(err == 0);
    for (uint32_t i = 0; i < LOCKS; i++) {
        if (fs->locks[i].ino != 0)
            continue;
        fs->locks[i] = (struct fake_lock){ino, *l};
        return 0;
    }
    return ERR_FS_NO_LOCKS;
}

int fs_lock_clear(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l)
{
    (void)rq;
    for (uint32_t i = 0; i < LOCKS; i++)
        if (fs->locks[i].ino == ino && fs->locks[i].lock.protocol == l->protocol &&
            same_owner(&fs->locks[i].lock, l))
            fs->locks[i].ino = 0;
    waitq_wake_all(&fs->unlocked);
    return 0;
}

int fs_lock_clear_client(struct fs *fs, enum fs_lock_protocol p, const char *client, uint64_t ino,
                         const uint8_t *owner, uint32_t owner_len)
{
    for (uint32_t i = 0; i < LOCKS; i++) {
        struct fake_lock *o = &fs->locks[i];
        if (o->ino != 0 && o->lock.protocol == p && strcmp(o->lock.client, client) == 0 &&
            (ino == 0 || o->ino == ino) &&
            (owner_len == 0 ||
             (o->lock.owner_len == owner_len && memcmp(o->lock.owner, owner, owner_len) == 0)))
            o->ino = 0;
    }
    waitq_wake_all(&fs->unlocked);
    return 0;
}

int fs_lock_find_client(const struct fs *fs, enum fs_lock_protocol p,
                        bool (*wanted)(void *ctx, const char *client), void *ctx,
                        char ret[FS_LOCK_CLIENT_MAX + 1])
{
    for (uint32_t i = 0; i < LOCKS; i++) {
        const struct fake_lock *o = &fs->locks[i];
        if (o->ino == 0 || o->lock.protocol != p || !wanted(ctx, o->lock.client))
            continue;
        memcpy(ret, o->lock.client, sizeof(o->lock.client));
        return 0;
    }
    return ERR_NOT_FOUND;
}

/* ---- Watches ---- */

void fs_watch_add(struct fs *fs, struct fs_watch *w)
{
    list_append(&fs->watches, &w->link);
}
void fs_watch_remove(struct fs *fs, struct fs_watch *w)
{
    (void)fs;
    list_remove(&w->link);
}

void page_vec_put(struct page_vec *v)
{
    for (uint32_t i = 0; i < v->run_count; i++)
        if (v->runs[i].page != NULL)
            page_put(v->runs[i].page, v->runs[i].count);
    v->run_count = 0;
    v->blocks = 0;
}
