/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_fs.h"

#include "cluster/record.h"
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "volume/change.h"

#include <stdlib.h>
#include <sys/stat.h>

#define INODES_MAX  4096u
#define REPLIES_MAX 64u
#define FILE_MAX    (8 * MIB)

struct volume {
    struct volume_record record;
};

struct node {
    struct fs_attr a;
    uint8_t *data; /* of a file, or the target of a link */
    uint64_t capacity;
    uint64_t verifier;
    struct entry *entries;
    uint64_t next_cookie;
};
struct entry {
    struct entry *next;
    uint64_t cookie, ino;
    uint8_t len;
    char name[FS_NAME_MAX];
};
struct fs {
    struct volume volume;
    struct reactor *reactor;
    uint8_t secret[32];
    struct node *nodes; /* by number */
    uint64_t next_ino;
    int64_t clock;
    struct fake_fs_knobs knobs;
    struct fake_fs_counts counts;
    struct fs_reply_key reply_keys[REPLIES_MAX];
    struct fs_reply replies[REPLIES_MAX];
    uint32_t reply_count;
};

/* ---- Life ---- */

static struct node *node_new(struct fs *fs, uint32_t mode, uint32_t uid, uint32_t gid, uint64_t parent)
{
    assert(fs->next_ino < INODES_MAX);
    struct node *n = &fs->nodes[fs->next_ino];
    int64_t now = ++fs->clock;
    *n = (struct node){.a = {.ino = fs->next_ino++,
                             .generation = 7,
                             .mode = mode,
                             .nlink = S_ISDIR(mode) ? 2 : 1,
                             .uid = uid,
                             .gid = gid,
                             .atime_ns = now,
                             .mtime_ns = now,
                             .ctime_ns = now,
                             .btime_ns = now,
                             .parent = parent},
                       .next_cookie = FS_COOKIE_FIRST};
    return n;
}

struct fs *fake_fs_new(uint8_t id)
{
    struct fs *fs = calloc(1, sizeof(*fs));
    assert(fs != NULL);
    fs->nodes = calloc(INODES_MAX, sizeof(struct node));
    assert(fs->nodes != NULL);
    memset(fs->volume.record.id.b, id, sizeof(fs->volume.record.id.b));
    memset(fs->secret, id + 1, sizeof(fs->secret));
    fs->reactor = reactor_current();
    fs->knobs.verifier = 0x1234;
    fs->clock = 1000 * (int64_t)NSEC_PER_SEC;
    fs->next_ino = FS_INO_ROOT;
    node_new(fs, S_IFDIR | 0755, 0, 0, FS_INO_ROOT);
    fs->next_ino = FS_INO_FIRST;
    return fs;
}

static void entries_free(struct node *n)
{
    for (struct entry *e; (e = n->entries) != NULL;) {
        n->entries = e->next;
        free(e);
    }
}

void fake_fs_free(struct fs *fs)
{
    assert(fs->counts.under_way == 0);
    for (uint64_t i = 0; i < INODES_MAX; i++) {
        entries_free(&fs->nodes[i]);
        free(fs->nodes[i].data);
    }
    free(fs->nodes);
    free(fs);
}

struct fake_fs_knobs *fake_fs_knobs(struct fs *fs)
{
    return &fs->knobs;
}
struct fake_fs_counts *fake_fs_counts(struct fs *fs)
{
    return &fs->counts;
}
struct volume *fs_volume(const struct fs *fs)
{
    return (struct volume *)(uintptr_t)&fs->volume;
}
struct reactor *fs_reactor(const struct fs *fs)
{
    return fs->reactor;
}
const uint8_t *fs_handle_secret(const struct fs *fs)
{
    return fs->secret;
}
bool fs_case_insensitive(const struct fs *fs)
{
    return fs->knobs.case_insensitive;
}
const struct volume_record *volume_get_record(const struct volume *v)
{
    return &v->record;
}
uint64_t volume_verifier(const struct volume *v)
{
    return ((const struct fs *)v)->knobs.verifier; /* it is the first member */
}
void page_vec_put(struct page_vec *v)
{
    for (uint32_t i = 0; i < v->run_count; i++) {
        if (v->runs[i].page != NULL)
            page_put(v->runs[i].page, v->runs[i].count);
    }
    v->run_count = v->blocks = 0;
}
uint32_t fs_client(struct fs *fs, const char *name)
{
    (void)fs;
    (void)name;
    return 1;
}

/* ---- Parts of calls ---- */

/* Each call begins with it: waits as the knobs say. NULL: stale. */
static struct node *enter(struct fs *fs, uint64_t ino) may_yield
{
    assert(reactor_current() == fs->reactor);
    fs->counts.calls++;
    if (fs->knobs.delay_ns != 0 && (fs->knobs.slow_ino == 0 || fs->knobs.slow_ino == ino)) {
        fs->counts.under_way++;
        fs->counts.most_under_way = MAX(fs->counts.most_under_way, fs->counts.under_way);
        fiber_shield();
        int err = fiber_sleep(fs->knobs.delay_ns);
        assert(err == 0);
        fiber_unshield();
        fs->counts.under_way--;
    }
    return ino < INODES_MAX && fs->nodes[ino].a.ino != 0 && fs->nodes[ino].a.nlink > 0 ? &fs->nodes[ino]
                                                                                       : NULL;
}

static bool may(const struct fs_request *rq, const struct node *n, uint32_t want)
{
    uint32_t bits = n->a.mode & 7, need = 0;
    if (rq->cred.trusted || rq->cred.uid == 0)
        return true;
    bool in_group = rq->cred.gid == n->a.gid;
    for (uint32_t i = 0; i < rq->cred.group_count; i++)
        in_group |= rq->cred.groups[i] == n->a.gid;
    if (rq->cred.uid == n->a.uid)
        bits = n->a.mode >> 6 & 7;
    else if (in_group)
        bits = n->a.mode >> 3 & 7;
    need |= want & FS_MAY_READ ? 4 : 0;
    need |= want & FS_MAY_WRITE ? 2 : 0;
    need |= want & FS_MAY_EXECUTE ? 1 : 0;
    need |= want & FS_MAY_DELETE ? 3 : 0;
    return (bits & need) == need;
}

static struct entry **entry_at(struct node *dir, const char *name, uint32_t len)
{
    struct entry **at = &dir->entries;
    while (*at != NULL && ((*at)->len != len || memcmp((*at)->name, name, len) != 0))
        at = &(*at)->next;
    return at;
}

static void entry_add(struct node *dir, const char *name, uint32_t len, uint64_t ino)
{
    struct entry **at = entry_at(dir, name, len), *e = calloc(1, sizeof(*e));
    assert(e != NULL && *at == NULL);
    e->cookie = dir->next_cookie++;
    e->ino = ino;
    e->len = (uint8_t)len;
    memcpy(e->name, name, len);
    *at = e;
}

static int name_check(const char *name, uint32_t len)
{
    if (len > FS_NAME_MAX)
        return ERR_FS_NAME_TOO_LONG;
    return len == 0 || memchr(name, '/', len) != NULL || memchr(name, 0, len) != NULL ? ERR_FS_BAD_NAME : 0;
}

static void before(struct fs_wcc *w, const struct node *n)
{
    w->has_before = w->has_after = true;
    w->before_size = n->a.size;
    w->before_mtime_ns = n->a.mtime_ns;
    w->before_ctime_ns = n->a.ctime_ns;
    w->after = n->a;
}

static void changed(struct fs *fs, struct node *n, struct fs_wcc *w)
{
    n->a.mtime_ns = n->a.ctime_ns = ++fs->clock;
    if (w != NULL)
        w->after = n->a;
}

static void remember(struct fs *fs, const struct fs_request *rq, uint64_t ino)
{
    if (rq->reply == NULL)
        return;
    uint32_t i = fs->reply_count++ % REPLIES_MAX;
    fs->reply_keys[i] = *rq->reply;
    fs->replies[i] = (struct fs_reply){.status = 0, .ino = ino};
}

/* A directory in which something is to be changed. */
static int dir_for_change(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name,
                          uint32_t len, struct fs_wcc *w, struct node **ret) may_yield
{
    struct node *d = enter(fs, dir);
    if (d == NULL)
        return ERR_FS_STALE;
    before(w, d);
    if (!S_ISDIR(d->a.mode))
        return ERR_FS_NOT_DIRECTORY;
    int err = name_check(name, len);
    if (err != 0)
        return err;
    if (rq->read_only)
        return ERR_FS_READ_ONLY;
    if (!may(rq, d, FS_MAY_DELETE))
        return ERR_FS_ACCESS;
    *ret = d;
    return fs->knobs.error;
}

/* ---- Attributes ---- */

int fs_getattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t generation,
               struct fs_attr *ret)
{
    (void)rq;
    struct node *n = enter(fs, ino);
    if (n == NULL || (generation != 0 && generation != n->a.generation))
        return ERR_FS_STALE;
    *ret = n->a;
    return 0;
}

static void resize(struct node *n, uint64_t size)
{
    assert(size <= FILE_MAX);
    if (size > n->capacity) {
        uint64_t capacity = ALIGN_UP(size + n->capacity, (uint64_t)BLOCK_SIZE);
        n->data = realloc(n->data, capacity);
        assert(n->data != NULL);
        memset(n->data + n->capacity, 0, capacity - n->capacity);
        n->capacity = capacity;
    }
    if (size < n->a.size)
        memset(n->data + size, 0, n->a.size - size);
    n->a.size = size;
    n->a.used_bytes = ALIGN_UP(size, (uint64_t)BLOCK_SIZE);
}

static int setattr_allowed(const struct fs_request *rq, const struct node *n, const struct fs_setattr *s)
{
    if ((s->valid & FS_SET_GUARD) && s->guard_ctime_ns != n->a.ctime_ns)
        return ERR_FS_NOT_SYNC;
    if (rq->read_only)
        return ERR_FS_READ_ONLY;
    if ((s->valid & FS_SET_SIZE) && S_ISDIR(n->a.mode))
        return ERR_FS_IS_DIRECTORY;
    if ((s->valid & FS_SET_SIZE) && s->size > FILE_MAX)
        return ERR_FS_TOO_BIG;
    if ((s->valid & FS_SET_SIZE) && !(s->valid & FS_SET_OPEN) && !may(rq, n, FS_MAY_WRITE))
        return ERR_FS_ACCESS;
    uint32_t owner = FS_SET_MODE | FS_SET_UID | FS_SET_GID | FS_SET_ATIME | FS_SET_MTIME;
    if ((s->valid & owner) && rq->cred.uid != 0 && rq->cred.uid != n->a.uid)
        return ERR_FS_NOT_OWNER;
    return 0;
}

static void setattr_apply(struct fs *fs, struct node *n, const struct fs_setattr *s)
{
    if (s->valid & FS_SET_MODE)
        n->a.mode = (n->a.mode & S_IFMT) | s->mode;
    if (s->valid & FS_SET_UID)
        n->a.uid = s->uid;
    if (s->valid & FS_SET_GID)
        n->a.gid = s->gid;
    if (s->valid & FS_SET_SIZE)
        resize(n, s->size);
    if (s->valid & (FS_SET_SIZE | FS_SET_MTIME_NOW))
        n->a.mtime_ns = fs->clock + 1;
    if (s->valid & FS_SET_ATIME_NOW)
        n->a.atime_ns = fs->clock + 1;
    if (s->valid & FS_SET_ATIME)
        n->a.atime_ns = s->atime_ns;
    if (s->valid & FS_SET_MTIME)
        n->a.mtime_ns = s->mtime_ns;
    n->a.ctime_ns = ++fs->clock;
}

int fs_setattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_setattr *s,
               struct fs_wcc *ret)
{
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    before(ret, n);
    int err = fs->knobs.error != 0 ? fs->knobs.error : setattr_allowed(rq, n, s);
    if (err != 0)
        return err;
    setattr_apply(fs, n, s);
    ret->after = n->a;
    remember(fs, rq, ino);
    return 0;
}

int fs_access(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t wanted,
              uint32_t *ret_granted, struct fs_attr *ret_attr)
{
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    uint32_t granted = 0;
    for (uint32_t bit = 1; bit <= FS_MAY_DELETE; bit <<= 1)
        granted |= (wanted & bit) && may(rq, n, bit) ? bit : 0;
    if (rq->cred.uid == 0 && S_ISREG(n->a.mode) && !(n->a.mode & 0111))
        granted &= ~(uint32_t)FS_MAY_EXECUTE;
    *ret_granted = granted;
    *ret_attr = n->a;
    return 0;
}

/* ---- Names ---- */

int fs_lookup(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              struct fs_attr *ret, struct fs_attr *ret_dir)
{
    struct node *d = enter(fs, dir);
    if (d == NULL)
        return ERR_FS_STALE;
    if (!S_ISDIR(d->a.mode))
        return ERR_FS_NOT_DIRECTORY;
    int err = name_check(name, len);
    if (err == 0 && !may(rq, d, FS_MAY_EXECUTE))
        err = ERR_FS_ACCESS;
    if (err != 0)
        return err;
    uint64_t ino = dir;
    if (len == 2 && memcmp(name, "..", 2) == 0) {
        ino = d->a.parent;
    } else if (len != 1 || name[0] != '.') {
        struct entry *e = *entry_at(d, name, len);
        if (e == NULL)
            return ERR_FS_NOT_FOUND;
        ino = e->ino;
    }
    *ret = fs->nodes[ino].a;
    if (ret_dir != NULL)
        *ret_dir = d->a;
    return 0;
}

int fs_create(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              const struct fs_create *c, struct fs_attr *ret, bool *ret_created, struct fs_wcc *ret_dir)
{
    static const uint32_t types[] = {
        [FS_FILE] = S_IFREG,    [FS_DIRECTORY] = S_IFDIR, [FS_SYMLINK] = S_IFLNK, [FS_FIFO] = S_IFIFO,
        [FS_SOCKET] = S_IFSOCK, [FS_CHAR] = S_IFCHR,      [FS_BLOCK] = S_IFBLK};
    struct node *d;
    int err = dir_for_change(fs, rq, dir, name, len, ret_dir, &d);
    if (err != 0)
        return err;
    struct entry *e = *entry_at(d, name, len);
    if (e != NULL) {
        struct node *n = &fs->nodes[e->ino];
        bool same = c->how == FS_CREATE_EXCLUSIVE && n->verifier == c->verifier && c->verifier != 0;
        if (c->how != FS_CREATE_UNCHECKED && !same)
            return ERR_FS_EXISTS;
        if (!S_ISREG(n->a.mode))
            return S_ISDIR(n->a.mode) ? ERR_FS_IS_DIRECTORY : ERR_FS_EXISTS;
        if (c->attr.valid & FS_SET_SIZE)
            setattr_apply(fs, n, &(struct fs_setattr){.valid = FS_SET_SIZE, .size = c->attr.size});
        *ret = n->a;
        *ret_created = false;
        return 0;
    }
    struct node *n = node_new(fs, types[c->type] | c->attr.mode, rq->cred.uid, rq->cred.gid, dir);
    n->verifier = c->verifier;
    n->a.rdev_major = c->rdev_major;
    n->a.rdev_minor = c->rdev_minor;
    if (c->type == FS_SYMLINK) {
        n->data = calloc(1, c->target_len + 1);
        assert(n->data != NULL);
        memcpy(n->data, c->target, c->target_len);
        n->a.size = c->target_len;
    }
    entry_add(d, name, len, n->a.ino);
    d->a.nlink += c->type == FS_DIRECTORY;
    fs->counts.creates++;
    changed(fs, d, ret_dir);
    remember(fs, rq, n->a.ino);
    *ret = n->a;
    *ret_created = true;
    return 0;
}

int fs_link(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t dir, const char *name,
            uint32_t len, struct fs_attr *ret, struct fs_wcc *ret_dir)
{
    struct node *d, *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    int err = dir_for_change(fs, rq, dir, name, len, ret_dir, &d);
    if (err == 0 && S_ISDIR(n->a.mode))
        err = ERR_FS_NOT_OWNER;
    if (err == 0 && *entry_at(d, name, len) != NULL)
        err = ERR_FS_EXISTS;
    if (err != 0)
        return err;
    entry_add(d, name, len, ino);
    n->a.nlink++;
    n->a.ctime_ns = ++fs->clock;
    changed(fs, d, ret_dir);
    remember(fs, rq, ino);
    *ret = n->a;
    return 0;
}

static void drop(struct fs *fs, struct node *d, struct entry **at)
{
    struct entry *e = *at;
    struct node *n = &fs->nodes[e->ino];
    *at = e->next;
    d->a.nlink -= S_ISDIR(n->a.mode);
    n->a.nlink = S_ISDIR(n->a.mode) ? 0 : n->a.nlink - 1;
    n->a.ctime_ns = ++fs->clock;
    free(e);
}

int fs_unlink(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    struct node *d;
    int err = dir_for_change(fs, rq, dir, name, len, ret_dir, &d);
    if (err != 0)
        return err;
    struct entry **at = entry_at(d, name, len);
    if (*at == NULL)
        return ERR_FS_NOT_FOUND;
    if (S_ISDIR(fs->nodes[(*at)->ino].a.mode))
        return ERR_FS_IS_DIRECTORY;
    *ret_ino = (*at)->ino;
    drop(fs, d, at);
    fs->counts.unlinks++;
    changed(fs, d, ret_dir);
    remember(fs, rq, *ret_ino);
    return 0;
}

int fs_rmdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
             uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    struct node *d;
    int err = dir_for_change(fs, rq, dir, name, len, ret_dir, &d);
    if (err != 0)
        return err;
    struct entry **at = entry_at(d, name, len);
    if (*at == NULL)
        return ERR_FS_NOT_FOUND;
    if (!S_ISDIR(fs->nodes[(*at)->ino].a.mode))
        return ERR_FS_NOT_DIRECTORY;
    if (fs->nodes[(*at)->ino].entries != NULL)
        return ERR_FS_NOT_EMPTY;
    *ret_ino = (*at)->ino;
    drop(fs, d, at);
    changed(fs, d, ret_dir);
    remember(fs, rq, *ret_ino);
    return 0;
}

int fs_rename(struct fs *fs, const struct fs_request *rq, uint64_t from_dir, const char *from,
              uint32_t from_len, uint64_t to_dir, const char *to, uint32_t to_len, uint32_t flags,
              struct fs_wcc *ret_from, struct fs_wcc *ret_to)
{
    struct node *a, *b;
    assert(flags == 0);
    int err = dir_for_change(fs, rq, from_dir, from, from_len, ret_from, &a);
    if (err == 0)
        err = dir_for_change(fs, rq, to_dir, to, to_len, ret_to, &b);
    if (err != 0)
        return err;
    struct entry **at = entry_at(a, from, from_len), **over = entry_at(b, to, to_len);
    if (*at == NULL)
        return ERR_FS_NOT_FOUND;
    uint64_t ino = (*at)->ino;
    if (*over != NULL && (*over)->ino == ino)
        return 0;
    if (*over != NULL)
        drop(fs, b, over);
    entry_add(b, to, to_len, ino);
    at = entry_at(a, from, from_len);
    struct entry *e = *at;
    *at = e->next;
    free(e);
    if (S_ISDIR(fs->nodes[ino].a.mode)) {
        fs->nodes[ino].a.parent = to_dir;
        a->a.nlink--;
        b->a.nlink++;
    }
    changed(fs, a, ret_from);
    changed(fs, b, ret_to);
    remember(fs, rq, ino);
    return 0;
}

int fs_readlink(struct fs *fs, const struct fs_request *rq, uint64_t ino, char target[FS_SYMLINK_MAX + 1],
                uint32_t *ret_len, struct fs_attr *ret)
{
    (void)rq;
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    *ret = n->a;
    if (!S_ISLNK(n->a.mode))
        return ERR_FS_INVALID;
    memcpy(target, n->data, n->a.size + 1);
    *ret_len = (uint32_t)n->a.size;
    return 0;
}

int fs_readdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, uint64_t cookie, bool attributes,
               bool (*emit)(void *ctx, const struct fs_dirent *e), void *ctx, bool *ret_eof,
               struct fs_attr *ret_dir)
{
    struct node *d = enter(fs, dir);
    if (d == NULL)
        return ERR_FS_STALE;
    if (!S_ISDIR(d->a.mode))
        return ERR_FS_NOT_DIRECTORY;
    if (!may(rq, d, FS_MAY_READ))
        return ERR_FS_ACCESS;
    uint64_t dots[2] = {dir, d->a.parent};
    bool going = true;
    for (uint64_t i = cookie; going && i < 2; i++) {
        struct fs_dirent e = {
            .ino = dots[i], .cookie = i + 1, .generation = 7, .name_len = (uint8_t)(i + 1), .name = ".."};
        e.attr = attributes ? &fs->nodes[dots[i]].a : NULL;
        going = emit(ctx, &e);
    }
    for (struct entry *at = d->entries; going && at != NULL; at = at->next) {
        if (at->cookie <= cookie)
            continue;
        struct fs_dirent e = {
            .ino = at->ino, .cookie = at->cookie, .generation = 7, .name_len = at->len, .name = at->name};
        e.attr = attributes ? &fs->nodes[at->ino].a : NULL;
        going = emit(ctx, &e);
    }
    *ret_eof = going;
    *ret_dir = d->a;
    return 0;
}

int fs_statfs(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_statfs *ret,
              struct fs_attr *ret_attr)
{
    (void)rq;
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    *ret = (struct fs_statfs){GIB, GIB / 2, GIB / 4, 1000, 900, 800, 100};
    *ret_attr = n->a;
    return 0;
}

/* ---- Data ---- */

int fs_read(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
            struct page_vec *ret, uint32_t *ret_len, bool *ret_eof, struct fs_attr *ret_attr)
{
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    assert(fs_piece_len(offset, len) == len);
    *ret_attr = n->a;
    if (!S_ISREG(n->a.mode))
        return S_ISDIR(n->a.mode) ? ERR_FS_IS_DIRECTORY : ERR_FS_INVALID;
    if (!may(rq, n, FS_MAY_READ))
        return ERR_FS_ACCESS;
    uint64_t left = offset < n->a.size ? n->a.size - offset : 0;
    len = (uint32_t)MIN(left, len);
    struct page_vec v = {.run_count = 0};
    uint64_t at = ALIGN_DOWN(offset, (uint64_t)BLOCK_SIZE);
    for (; len > 0 && at < offset + len; at += BLOCK_SIZE) {
        static const uint8_t zeroes[BLOCK_SIZE];
        struct page_run *r = &v.runs[v.run_count++];
        v.blocks++;
        *r = (struct page_run){NULL, 1};
        if (memcmp(n->data + at, zeroes, BLOCK_SIZE) == 0)
            continue;
        int err = page_alloc(1, &r->page);
        assert(err == 0);
        memcpy(r->page->data, n->data + at, BLOCK_SIZE);
    }
    fs->counts.reads++;
    *ret = v;
    *ret_len = len;
    *ret_eof = offset + len >= n->a.size;
    return 0;
}

int fs_write(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
             const struct page_vec *data, uint32_t flags, uint64_t *ret_offset, struct fs_wcc *ret)
{
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    assert(len > 0 && fs_piece_len(offset, len) == len);
    assert(data->blocks == DIV_ROUND_UP(offset % BLOCK_SIZE + len, BLOCK_SIZE));
    before(ret, n);
    if (!S_ISREG(n->a.mode))
        return S_ISDIR(n->a.mode) ? ERR_FS_IS_DIRECTORY : ERR_FS_INVALID;
    if (fs->knobs.error != 0)
        return fs->knobs.error;
    if (rq->read_only)
        return ERR_FS_READ_ONLY;
    if (!(flags & FS_WRITE_OPEN) && !may(rq, n, FS_MAY_WRITE))
        return ERR_FS_ACCESS;
    if (offset + len > FILE_MAX)
        return ERR_FS_TOO_BIG;
    resize(n, MAX(n->a.size, offset + len));
    uint32_t skip = (uint32_t)(offset % BLOCK_SIZE), done = 0;
    for (uint32_t i = 0; i < data->run_count; i++) {
        uint32_t part = MIN(len - done, data->runs[i].count * BLOCK_SIZE - skip);
        memcpy(n->data + offset + done, data->runs[i].page->data + skip, part);
        done += part;
        skip = 0;
    }
    assert(done == len);
    fs->counts.writes++;
    fs->counts.durable_writes += rq->durable;
    changed(fs, n, ret);
    *ret_offset = offset;
    return 0;
}

int fs_commit(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_wcc *ret)
{
    (void)rq;
    struct node *n = enter(fs, ino);
    if (n == NULL)
        return ERR_FS_STALE;
    fs->counts.commits++;
    before(ret, n);
    return fs->knobs.error;
}

int fs_reply_find(struct fs *fs, const struct fs_reply_key *k, struct fs_reply *ret)
{
    for (uint32_t i = 0; i < MIN(fs->reply_count, REPLIES_MAX) && !fs->knobs.forgetful; i++) {
        if (memcmp(&fs->reply_keys[i], k, sizeof(*k)) == 0) {
            *ret = fs->replies[i];
            return 0;
        }
    }
    return ERR_NOT_FOUND;
}

/* ---- For tests ---- */

uint64_t fake_fs_add(struct fs *fs, uint64_t dir, const char *name, uint32_t mode, const void *data,
                     size_t len)
{
    struct node *n = node_new(fs, mode, 0, 0, dir);
    entry_add(&fs->nodes[dir], name, (uint32_t)strlen(name), n->a.ino);
    fs->nodes[dir].a.nlink += S_ISDIR(mode);
    if (S_ISREG(mode)) {
        resize(n, len);
        if (len > 0)
            memcpy(n->data, data, len);
    }
    return n->a.ino;
}

void fake_fs_move(struct fs *fs, uint64_t from, const char *name, uint64_t to)
{
    uint32_t len = (uint32_t)strlen(name);
    struct entry **at = entry_at(&fs->nodes[from], name, len), *e = *at;
    assert(e != NULL);
    *at = e->next;
    entry_add(&fs->nodes[to], name, len, e->ino);
    fs->nodes[e->ino].a.parent = to;
    free(e);
}

const void *fake_fs_data(struct fs *fs, uint64_t ino, size_t *ret_len)
{
    *ret_len = fs->nodes[ino].a.size;
    return fs->nodes[ino].data;
}

/* ---- Locks: tests/integration/locks.t tries the lock manager on the real ones ---- */

int fs_lock_test(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                 struct fs_lock *ret_conflict)
{
    return ERR_FS_NO_LOCKS;
}
int fs_lock_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                bool reclaim, uint64_t wait_until_ns, struct fs_lock *ret_conflict)
{
    return ERR_FS_NO_LOCKS;
}
int fs_lock_clear(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l)
{
    return ERR_FS_NO_LOCKS;
}
int fs_lock_clear_client(struct fs *fs, enum fs_lock_protocol p, const char *client, uint64_t ino,
                         const uint8_t *owner, uint32_t owner_len)
{
    return 0;
}
