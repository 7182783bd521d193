/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has which inode open: what keeps an unlinked file alive, and share modes. A hash table in memory; after
 * a restart those who had files open come back within the grace period, in which no orphan is reaped.
 */
#include "filesystem/names_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>
#include <sys/stat.h>

#define OPENS_BUCKETS_MIN 256u
#define OPENS_MAX         (1u << 20) /* inodes */

#define OPEN_MODES 6u /* bits of enum fs_open_flags */
struct open_file {
    struct open_file *next;
    uint64_t ino;
    uint32_t count;
    uint32_t modes[OPEN_MODES]; /* how many of `count` have the bit */
};

struct fs_opens {
    struct open_file **buckets;
    uint32_t bucket_count, count;
};

int opens_new(struct fs_opens **ret)
{
    struct fs_opens *o = calloc(1, sizeof(*o));

    if (!o)
        return ERR_NO_MEMORY;
    o->bucket_count = OPENS_BUCKETS_MIN;
    o->buckets = calloc(o->bucket_count, sizeof(struct open_file *));
    if (!o->buckets) {
        free(o);
        return ERR_NO_MEMORY;
    }
    *ret = o;
    return 0;
}

void opens_free(struct fs_opens *o)
{
    for (uint32_t i = 0; i < o->bucket_count; i++)
        for (struct open_file *f = o->buckets[i], *next; f; f = next) {
            next = f->next;
            free(f);
        }
    free(o->buckets);
    free(o);
}

static struct open_file **opens_at(const struct fs_opens *o, uint64_t ino)
{
    struct open_file **at = &o->buckets[hash_mix64(ino) & (o->bucket_count - 1)];

    while (*at && (*at)->ino != ino)
        at = &(*at)->next;
    return at;
}

/* Doubling is only for speed: without memory it stays as it is. */
static void opens_grow(struct fs_opens *o)
{
    uint32_t n = o->bucket_count * 2;
    struct open_file **buckets = calloc(n, sizeof(struct open_file *));

    if (!buckets)
        return;
    for (uint32_t i = 0; i < o->bucket_count; i++)
        for (struct open_file *f = o->buckets[i], *next; f; f = next) {
            struct open_file **at = &buckets[hash_mix64(f->ino) & (n - 1)];
            next = f->next;
            f->next = *at;
            *at = f;
        }
    free(o->buckets);
    o->buckets = buckets;
    o->bucket_count = n;
}

/* What is denied by others to these flags, and what these flags deny that others have. */
static bool share_conflict(const struct open_file *f, uint32_t flags)
{
    for (uint32_t i = 0; i < 3; i++) {
        if ((flags & (1u << i)) && f->modes[i + 3] > 0)
            return true;
        if ((flags & (8u << i)) && f->modes[i] > 0)
            return true;
    }
    return false;
}
static_assert(FS_DENY_READ == FS_OPEN_READ << 3 && FS_DENY_WRITE == FS_OPEN_WRITE << 3 &&
                  FS_DENY_DELETE == FS_OPEN_DELETE << 3,
              "share_conflict");

int opens_add(struct fs *fs, uint64_t ino, uint32_t flags)
{
    struct fs_opens *o = fs->opens;
    struct open_file **at = opens_at(o, ino), *f = *at;

    assert(flags < 1u << OPEN_MODES);
    if (f && share_conflict(f, flags))
        return ERR_FS_BUSY;
    if (!f) {
        f = o->count < OPENS_MAX ? calloc(1, sizeof(*f)) : NULL;
        if (!f)
            return ERR_NO_MEMORY;
        f->ino = ino;
        *at = f;
        if (++o->count > o->bucket_count)
            opens_grow(o);
    }
    f->count++;
    for (uint32_t i = 0; i < OPEN_MODES; i++)
        f->modes[i] += flags >> i & 1;
    return 0;
}

bool open_is(const struct fs *fs, uint64_t ino)
{
    return fs->opens->count > 0 && *opens_at(fs->opens, ino) != NULL;
}

void fs_open_put(struct fs *fs, uint64_t ino, uint32_t flags)
{
    struct open_file **at = opens_at(fs->opens, ino), *f = *at;

    assert(f && f->count > 0);
    for (uint32_t i = 0; i < OPEN_MODES; i++) {
        assert(f->modes[i] >= (flags >> i & 1));
        f->modes[i] -= flags >> i & 1;
    }
    if (--f->count > 0)
        return;
    *at = f->next;
    free(f);
    assert(fs->opens->count > 0);
    fs->opens->count--;
    if (!fs->closing)
        reaper_kick(fs); /* perhaps it was an orphan's last one */
}

uint64_t opens_count(const struct fs *fs)
{
    return fs->opens->count;
}

void opens_check(const struct fs *fs)
{
    const struct fs_opens *o = fs->opens;
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->bucket_count; i++)
        for (const struct open_file *f = o->buckets[i]; f; f = f->next, n++) {
            assert(f->count > 0);
            assert((hash_mix64(f->ino) & (o->bucket_count - 1)) == i);
            for (uint32_t k = 0; k < OPEN_MODES; k++)
                assert(f->modes[k] <= f->count);
        }
    assert(n == o->count);
}

static uint32_t wanted_access(uint32_t flags, bool truncate)
{
    return (flags & FS_OPEN_READ ? FS_MAY_READ : 0) | (flags & FS_OPEN_WRITE || truncate ? FS_MAY_WRITE : 0);
}

/* It is counted already. An orphan that nobody had open is gone, but for those who come back after a restart.
 */
static may_yield int open_check(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t flags,
                                bool truncate, bool was_open, struct fs_attr *ret)
{
    struct inode n;
    int r = inode_read(fs, ino, 0, &n);

    if (r)
        return r;
    if (n.nlink == 0 && !was_open && reactor_now_ns() >= fs->grace_until_ns)
        return ERR_FS_STALE;
    if (S_ISDIR(n.mode) && ((flags & FS_OPEN_WRITE) || truncate))
        return ERR_FS_IS_DIRECTORY;
    if (rq->read_only && (truncate || (S_ISREG(n.mode) && (flags & FS_OPEN_WRITE))))
        return ERR_FS_READ_ONLY;
    r = access_read(fs, &rq->cred, &n, wanted_access(flags, truncate));
    int seen = volume_seen(fs->volume, &ino, 1); /* before a refusal, too */
    if (seen)
        r = seen;
    if (!r && truncate && S_ISREG(n.mode))
        return attr_set_size(fs, rq, ino, 0, true, ret);
    if (!r)
        inode_attr(&n, ret);
    return r;
}

int fs_open_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t flags, bool truncate,
                struct fs_attr *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_ACCESS);
    bool was_open = open_is(fs, ino);
    int r = opens_add(fs, ino, flags);

    if (!r) {
        r = open_check(fs, rq, ino, flags, truncate, was_open, ret);
        if (r)
            fs_open_put(fs, ino, flags);
    }
    return fs_end(fs, rq, FS_OP_ACCESS, began, ino, 0, r);
}
