/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access times, as relatime has them: only when the one that is there is older than the last change of the
 * file, or than a day. Readers do not wait for them: they note the inode, and a fiber of its own writes what
 * has gathered, several in one change, not durably. When more gather than there is room for, some are left
 * out: the next read notes them again.
 */
#include "filesystem/fs_internal.h"

#define ATIME_BATCH 8u
#define DAY_NS      (INT64_C(24) * 3600 * (int64_t)NSEC_PER_SEC)

static bool is_due(const struct inode *n, int64_t now)
{
    return n->atime_ns <= n->mtime_ns || n->atime_ns <= n->ctime_ns || now - n->atime_ns > DAY_NS;
}

static int instant(struct fs *fs, struct change *c, const uint64_t *inos, uint32_t count)
{
    struct inode n[ATIME_BATCH];
    struct disk_inode d;
    int64_t now = fs_now_ns();

    for (uint32_t i = 0; i < count; i++) {
        int r = inode_get(fs, c, inos[i], &n[i]);
        if (r == ERR_FS_STALE)
            n[i].ino = 0;
        else if (r)
            return r;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (n[i].ino == 0 || !is_due(&n[i], now))
            continue;
        n[i].atime_ns = now;
        inode_encode(&n[i], &d); /* `change` stays: nobody's cached content is different */
        change_put(c, inode_key(n[i].ino), &d, sizeof(d));
    }
    return 0;
}

static uint32_t take(struct fs_atimes *a, uint64_t out[ATIME_BATCH])
{
    uint32_t n = MIN(a->count, ATIME_BATCH);

    for (uint32_t i = 0; i < n; i++)
        out[i] = a->inos[(a->first + i) % ATIMES_MAX];
    a->first = (a->first + n) % ATIMES_MAX;
    a->count -= n;
    return n;
}

static may_yield void atime_main(void *arg)
{
    struct fs *fs = arg;
    uint64_t inos[ATIME_BATCH];
    struct change c;
    int r = 0;

    while (!fs->closing && !r && fs->atimes.count > 0) {
        uint32_t n = take(&fs->atimes, inos);
        change_init(&c, fs->volume);
        do {
            change_clear(&c);
            for (uint32_t i = 0; i < n; i++)
                inode_want(&c, inos[i]);
            r = change_begin(&c);
            if (!r)
                r = instant(fs, &c, inos, n);
            r = change_end(&c, r, 0);
        } while (r == ERR_CHANGE_AGAIN);
    }
    fs->atimes.count = 0; /* a full or failing volume has more important things to do */
    fs->atimes.running = false;
    fs->background--;
    waitq_wake_all(&fs->background_wait);
}

void atime_note(struct fs *fs, const struct fs_request *rq, const struct inode *n)
{
    struct fs_atimes *a = &fs->atimes;

    if (rq->read_only || fs->closing || a->count == ATIMES_MAX || !is_due(n, fs_now_ns()))
        return;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->inos[(a->first + i) % ATIMES_MAX] == n->ino)
            return;
    a->inos[(a->first + a->count++) % ATIMES_MAX] = n->ino;
    if (a->running || fiber_spawn("atime", atime_main, fs))
        return;
    a->running = true;
    fs->background++;
}
