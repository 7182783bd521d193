/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks in memory. An owner's locks of one file never overlap, and two that touch are of different kind: so a
 * range that is set or cleared takes away those of its owner that it meets and leaves at most one rest on
 * each side.
 */
#include "filesystem/lock_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>

#define BUCKETS            1024u
#define DEADLOCK_STEPS_MAX 64u

int lock_end(const struct fs_lock *l, uint64_t *ret)
{
    if (l->len == 0) {
        *ret = UINT64_MAX;
        return 0;
    }
    return __builtin_add_overflow(l->start, l->len - 1, ret) ? ERR_FS_INVALID : 0;
}

bool lock_same_owner(const struct held *h, const struct fs_lock *l)
{
    return h->protocol == l->protocol && h->owner_len == l->owner_len && h->client_len == l->client_len &&
           memcmp(h->bytes, l->owner, l->owner_len) == 0 &&
           memcmp(h->bytes + h->owner_len, l->client, l->client_len) == 0;
}

static bool same_owners(const struct fs_lock *a, const struct fs_lock *b)
{
    return a->protocol == b->protocol && a->owner_len == b->owner_len && a->client_len == b->client_len &&
           memcmp(a->owner, b->owner, a->owner_len) == 0 && memcmp(a->client, b->client, a->client_len) == 0;
}

void lock_describe(const struct held *h, struct fs_lock *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->start = h->start;
    ret->len = h->end == UINT64_MAX ? 0 : h->end - h->start + 1;
    ret->exclusive = h->exclusive;
    ret->protocol = (enum fs_lock_protocol)h->protocol;
    ret->pid = h->pid;
    ret->owner_len = h->owner_len;
    ret->client_len = h->client_len;
    memcpy(ret->owner, h->bytes, h->owner_len);
    memcpy(ret->client, h->bytes + h->owner_len, h->client_len);
}

/* ---- Files ---- */

int waiters_new(struct fs_waiters **ret)
{
    struct fs_waiters *w = calloc(1, sizeof(*w));

    if (!w)
        return ERR_NO_MEMORY;
    w->bucket_count = BUCKETS;
    w->buckets = calloc(w->bucket_count, sizeof(struct lock_file *));
    if (!w->buckets) {
        free(w);
        return ERR_NO_MEMORY;
    }
    list_init(&w->waiters);
    *ret = w;
    return 0;
}

static struct lock_file **file_at(const struct fs_waiters *w, uint64_t ino)
{
    struct lock_file **at = &w->buckets[hash_mix64(ino) & (w->bucket_count - 1)];

    while (*at && (*at)->ino != ino)
        at = &(*at)->next;
    return at;
}

struct lock_file *locks_of(const struct fs *fs, uint64_t ino)
{
    return fs->waiters->files ? *file_at(fs->waiters, ino) : NULL;
}

struct held *held_new(const struct fs_lock *l)
{
    struct held *h = calloc(1, sizeof(*h) + l->owner_len + l->client_len);

    if (!h)
        return NULL;
    h->exclusive = l->exclusive;
    h->protocol = (uint8_t)l->protocol;
    h->pid = l->pid;
    h->owner_len = l->owner_len;
    h->client_len = l->client_len;
    memcpy(h->bytes, l->owner, l->owner_len);
    memcpy(h->bytes + l->owner_len, l->client, l->client_len);
    return h;
}

int held_insert(struct fs *fs, uint64_t ino, struct held *h)
{
    struct fs_waiters *w = fs->waiters;
    struct lock_file **at = file_at(w, ino), *f = *at;

    if (!f) {
        f = calloc(1, sizeof(*f));
        if (!f)
            return ERR_NO_MEMORY;
        f->ino = ino;
        list_init(&f->held);
        *at = f;
        w->files++;
    }
    list_append(&f->held, &h->link);
    f->next_number = MAX(f->next_number, h->number + 1);
    f->count++;
    w->locks++;
    return 0;
}

void held_remove(struct fs *fs, struct lock_file *f, struct held *h)
{
    assert(f->count > 0 && fs->waiters->locks > 0);
    list_remove(&h->link);
    f->count--;
    fs->waiters->locks--;
    free(h);
}

void lock_file_put(struct fs *fs, struct lock_file *f)
{
    if (f->count > 0)
        return;
    struct lock_file **at = file_at(fs->waiters, f->ino);
    assert(*at == f && list_empty(&f->held));
    *at = f->next;
    fs->waiters->files--;
    free(f);
}

static void file_free(struct fs *fs, struct lock_file *f)
{
    LIST_FOREACH_SAFE (&f->held, it)
        held_remove(fs, f, CONTAINER_OF(it, struct held, link));
    lock_file_put(fs, f);
}

void locks_free(struct fs *fs)
{
    struct fs_waiters *w = fs->waiters;

    if (!w)
        return;
    assert(list_empty(&w->waiters));
    for (uint32_t i = 0; i < w->bucket_count; i++)
        while (w->buckets[i])
            file_free(fs, w->buckets[i]);
    assert(w->files == 0 && w->locks == 0);
    free(w->buckets);
    free(w);
    fs->waiters = NULL;
}

bool locks_any(const struct fs *fs, uint64_t ino)
{
    return locks_of(fs, ino) != NULL;
}

void locks_forget(struct fs *fs, uint64_t ino)
{
    struct lock_file *f = locks_of(fs, ino);

    if (f)
        file_free(fs, f);
    lock_wake(fs, ino); /* whoever waits finds that the file is gone */
}

/* Of one owner, no two overlap. */
static void file_check(const struct lock_file *f)
{
    uint32_t n = 0;

    LIST_FOREACH (&f->held, it) {
        const struct held *a = CONTAINER_OF(it, struct held, link);
        struct fs_lock l;
        assert(a->start <= a->end && a->number < f->next_number);
        lock_describe(a, &l);
        LIST_FOREACH (&f->held, other) {
            const struct held *b = CONTAINER_OF(other, struct held, link);
            assert(a == b || !lock_same_owner(b, &l) || a->start > b->end || b->start > a->end);
        }
        n++;
    }
    assert(n == f->count && n > 0);
}

void locks_check(const struct fs *fs)
{
    uint32_t files = 0, locks = 0;

    for (uint32_t i = 0; i < fs->waiters->bucket_count; i++)
        for (const struct lock_file *f = fs->waiters->buckets[i]; f; f = f->next) {
            file_check(f);
            files++;
            locks += f->count;
        }
    assert(files == fs->waiters->files);
    assert(locks == fs->waiters->locks);
}

/* ---- Conflicts ---- */

static bool one_family(uint8_t a, uint8_t b)
{
    return (a == FS_LOCK_FLOCK) == (b == FS_LOCK_FLOCK);
}

const struct held *lock_conflict(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end)
{
    const struct lock_file *f = locks_of(fs, ino);

    if (!f)
        return NULL;
    LIST_FOREACH (&f->held, it) {
        const struct held *h = CONTAINER_OF(it, struct held, link);
        if (h->start <= end && l->start <= h->end && (h->exclusive || l->exclusive) &&
            one_family(h->protocol, (uint8_t)l->protocol) && !lock_same_owner(h, l))
            return h;
    }
    return NULL;
}

bool lock_deadlock(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end)
{
    const struct held *h = lock_conflict(fs, ino, l, end);
    struct fs_lock blocker;

    if (l->protocol == FS_LOCK_FLOCK)
        return false; /* as everywhere: flock knows none */
    for (uint32_t step = 0; h && step < DEADLOCK_STEPS_MAX; step++) {
        const struct lock_waiter *waits = NULL;
        if (lock_same_owner(h, l))
            return true;
        lock_describe(h, &blocker);
        LIST_FOREACH (&fs->waiters->waiters, it) {
            const struct lock_waiter *w = CONTAINER_OF(it, struct lock_waiter, link);
            if (same_owners(w->lock, &blocker)) {
                waits = w;
                break;
            }
        }
        uint64_t waits_end;
        if (!waits || lock_end(waits->lock, &waits_end))
            return false;
        h = lock_conflict(fs, waits->ino, waits->lock, waits_end);
    }
    return false;
}

void lock_wake(struct fs *fs, uint64_t ino)
{
    LIST_FOREACH (&fs->waiters->waiters, it) {
        struct lock_waiter *w = CONTAINER_OF(it, struct lock_waiter, link);
        if (w->ino == ino) {
            w->woken = true;
            waitq_wake_all(&w->wait);
        }
    }
}

/* ---- What setting a range means ---- */

static bool touches(const struct held *h, uint64_t start, uint64_t end)
{
    bool left = h->end < start && h->end + 1 == start, right = end < h->start && end + 1 == h->start;

    return left || right;
}

/* What stays of h outside of the range. More than one on each side means that an owner's locks overlapped in
 * the tree, which no change of ours leaves: the others are dropped. */
static void plan_rests(struct lock_plan *p, const struct held *h)
{
    if (h->start < p->start && p->rest_count < ARRAY_SIZE(p->rests))
        p->rests[p->rest_count++] = (struct lock_rest){h->start, p->start - 1, h->exclusive, h->pid};
    if (h->end > p->end && p->rest_count < ARRAY_SIZE(p->rests))
        p->rests[p->rest_count++] = (struct lock_rest){p->end + 1, h->end, h->exclusive, h->pid};
}

/* Too many at once: only up to before the one with the removals_max-th lowest start. The caller comes again
 * for the rest. */
static uint64_t plan_cut(const struct lock_file *f, const struct fs_lock *l, uint64_t end,
                         uint32_t removals_max)
{
    uint64_t cut = end;

    for (;;) {
        uint32_t n = 0;
        uint64_t least = UINT64_MAX, most = 0;
        LIST_FOREACH (&f->held, it) {
            const struct held *h = CONTAINER_OF(it, struct held, link);
            if (!lock_same_owner(h, l) || h->start > cut || h->end < l->start)
                continue;
            n++;
            least = MIN(least, h->start);
            most = MAX(most, h->start);
        }
        if (n <= removals_max - 4)
            return cut;
        uint64_t from = MAX(least, l->start);
        if (most <= from)
            return cut;                 /* they overlap: as many as fit */
        cut = from + (most - from) / 2; /* halves how many there are, more or less */
        if (cut >= most)
            cut = most - 1;
    }
}

void lock_plan(const struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t end, bool set,
               uint32_t removals_max, struct lock_plan *ret)
{
    const struct lock_file *f = locks_of(fs, ino);
    struct lock_plan *p = ret;

    *p = (struct lock_plan){.start = l->start, .end = end, .adds = set};
    p->new_start = l->start;
    p->new_end = end;
    assert(removals_max >= 5 && removals_max <= LOCK_REMOVALS_MAX);
    if (f && f->count > removals_max - 4)
        p->end = p->new_end = plan_cut(f, l, end, removals_max);
    if (f) {
        LIST_FOREACH (&f->held, it) {
            struct held *h = CONTAINER_OF(it, struct held, link);
            bool overlaps = h->start <= p->end && h->end >= p->start;
            bool joins = set && h->exclusive == l->exclusive;
            if (!lock_same_owner(h, l) || !(overlaps || (joins && touches(h, p->start, p->end))))
                continue;
            if (joins && h->start <= p->start && h->end >= p->end) {
                p->nothing = true;
                return;
            }
            if (p->removal_count == LOCK_REMOVALS_MAX)
                break;
            p->removals[p->removal_count++] = h;
            if (joins) {
                p->new_start = MIN(p->new_start, h->start);
                p->new_end = MAX(p->new_end, h->end);
            } else {
                plan_rests(p, h);
            }
        }
    }
    p->nothing = !set && p->removal_count == 0;
}
