/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advisory locks: POSIX byte ranges (of NLM and FUSE, which see each other's) and flock.
 *
 * A lock is an item of its file in the tree, so that it survives the server; and an entry in memory, where
 * conflicts are looked for. Both change in the same instant. What is only in memory are those who wait; they
 * look again whenever a lock of their file went. fs_open() finds the items by a list of the files that have
 * any (its entries may be left over: then they go).
 */
#include "filesystem/lock_internal.h"
#include "runtime/log.h"

#include <stdlib.h>
#include <sys/stat.h>

static struct tree_key lock_key(uint64_t ino, uint64_t number)
{
    return (struct tree_key){ino, ITEM_LOCK, number};
}

static struct tree_key list_key(uint64_t ino)
{
    return (struct tree_key){FS_OBJECT_LISTS, ITEM_LOCK, ino};
}

/* ---- Items ---- */

uint32_t lock_encode(const struct held *h, uint8_t out[LOCK_ITEM_MAX])
{
    struct disk_lock d = {.start = le64_make(h->start),
                          .len = le64_make(h->end == UINT64_MAX ? 0 : h->end - h->start + 1),
                          .kind = le32_make(h->exclusive ? LOCK_WRITE_ : LOCK_READ_),
                          .protocol = le32_make(h->protocol),
                          .pid = le32_make(h->pid),
                          .owner_len = le32_make(h->owner_len),
                          .client_len = le32_make(h->client_len)};
    uint32_t len = (uint32_t)sizeof(d) + h->owner_len + h->client_len;

    assert(len <= LOCK_ITEM_MAX);
    memcpy(out, &d, sizeof(d));
    memcpy(out + sizeof(d), h->bytes, h->owner_len + h->client_len);
    return len;
}

int lock_decode(const void *bytes, uint32_t len, struct fs_lock *ret)
{
    struct disk_lock d;

    if (len < sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, bytes, sizeof(d));
    uint32_t kind = le32_get(d.kind), protocol = le32_get(d.protocol), owner_len = le32_get(d.owner_len),
             client_len = le32_get(d.client_len);
    uint64_t start = le64_get(d.start), n = le64_get(d.len), end;
    if ((kind != LOCK_READ_ && kind != LOCK_WRITE_) || protocol < FS_LOCK_NLM || protocol > FS_LOCK_FLOCK ||
        owner_len > FS_LOCK_OWNER_MAX || client_len > FS_LOCK_CLIENT_MAX ||
        len != sizeof(d) + owner_len + client_len || (n > 0 && __builtin_add_overflow(start, n - 1, &end)))
        return ERR_VOLUME_CORRUPT;
    memset(ret, 0, sizeof(*ret));
    ret->start = start;
    ret->len = n;
    ret->exclusive = kind == LOCK_WRITE_;
    ret->protocol = (enum fs_lock_protocol)protocol;
    ret->pid = le32_get(d.pid);
    ret->owner_len = owner_len;
    ret->client_len = client_len;
    memcpy(ret->owner, (const uint8_t *)bytes + sizeof(d), owner_len);
    memcpy(ret->client, (const uint8_t *)bytes + sizeof(d) + owner_len, client_len);
    return 0;
}

/* ---- Setting and clearing ---- */

struct lock_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t ino;
    const struct fs_lock *l;
    uint64_t end;
    bool set;
    bool goes_on; /* only a part was done */
    uint64_t goes_on_at;
    struct fs_lock *conflict;
    uint32_t removals; /* promised */
    uint32_t passes;   /* of one change */
    struct held *spare[LOCK_ADDITIONS_MAX];
};

static int spare_fill(struct lock_op *op)
{
    for (uint32_t i = 0; i < LOCK_ADDITIONS_MAX; i++) {
        if (!op->spare[i])
            op->spare[i] = held_new(op->l);
        if (!op->spare[i])
            return ERR_NO_MEMORY;
    }
    return 0;
}

static void spare_free(struct lock_op *op)
{
    for (uint32_t i = 0; i < LOCK_ADDITIONS_MAX; i++)
        free(op->spare[i]);
}

static struct held *spare_take(struct lock_op *op, uint64_t start, uint64_t end, bool exclusive, uint32_t pid)
{
    for (uint32_t i = 0; i < LOCK_ADDITIONS_MAX; i++) {
        struct held *h = op->spare[i];
        if (!h)
            continue;
        op->spare[i] = NULL;
        h->start = start;
        h->end = end;
        h->exclusive = exclusive;
        h->pid = pid;
        return h;
    }
    assert(!"three are enough");
    return NULL;
}

/* Locks that were set in no order lie in more leaves than one change can prepare: after some passes, few at
 * once, each with a range of its own. */
#define PASSES_MANY    6u
#define REMOVALS_APART 8u

static void lock_want(struct lock_op *op, struct change *c)
{
    uint32_t len = (uint32_t)sizeof(struct disk_lock) + op->l->owner_len + op->l->client_len;
    struct tree_key first = lock_key(op->ino, 0), last = lock_key(op->ino, UINT64_MAX);

    change_clear(c);
    change_want(c, inode_key(op->ino));
    change_want(c, list_key(op->ino));
    change_want_range(c, &first, &last);
    for (uint32_t i = 0; i < LOCK_ADDITIONS_MAX; i++)
        change_will_put(c, len);
    change_will_put(c, 1);
    for (uint32_t i = 0; i < op->removals + 1; i++)
        change_will_delete(c);
}

/* All that will be touched is prepared. */
static int plan_check(struct lock_op *op, struct change *c, const struct lock_plan *p, bool *ret_listed)
{
    const struct lock_file *f = locks_of(op->fs, op->ino);
    uint64_t next = f ? f->next_number : 0;
    const void *value;
    uint32_t len;
    int r = change_get(c, list_key(op->ino), &value, &len);

    *ret_listed = r == 0;
    for (uint32_t i = 0; (!r || r == ERR_NOT_FOUND) && i < p->removal_count; i++) {
        r = change_get(c, lock_key(op->ino, p->removals[i]->number), &value, &len);
        if (r == ERR_NOT_FOUND)
            return ERR_VOLUME_CORRUPT;
    }
    for (uint32_t i = 0; (!r || r == ERR_NOT_FOUND) && i < LOCK_ADDITIONS_MAX; i++)
        r = change_get(c, lock_key(op->ino, next + i), &value, &len);
    if (r && r != ERR_NOT_FOUND)
        return r;
    if (p->removal_count > op->removals) {
        op->removals = p->removal_count;
        return ERR_CHANGE_AGAIN;
    }
    return op->set && op->fs->waiters->locks + LOCK_ADDITIONS_MAX > LOCKS_MAX ? ERR_FS_NO_LOCKS : 0;
}

static void lock_add(struct lock_op *op, struct change *c, struct lock_file *f, struct held *h)
{
    uint8_t item[LOCK_ITEM_MAX];

    h->number = f->next_number++;
    uint32_t len = lock_encode(h, item);
    change_put(c, lock_key(op->ino, h->number), item, len);
    int r = held_insert(op->fs, op->ino, h);
    assert(r == 0); /* the file's entry is there */
}

static void plan_apply(struct lock_op *op, struct change *c, const struct lock_plan *p, struct lock_file *f,
                       bool listed)
{
    for (uint32_t i = 0; i < p->removal_count; i++) {
        change_delete(c, lock_key(op->ino, p->removals[i]->number));
        held_remove(op->fs, f, p->removals[i]);
    }
    for (uint32_t i = 0; i < p->rest_count; i++)
        lock_add(op, c, f,
                 spare_take(op, p->rests[i].start, p->rests[i].end, p->rests[i].exclusive, p->rests[i].pid));
    if (p->adds)
        lock_add(op, c, f, spare_take(op, p->new_start, p->new_end, op->l->exclusive, op->l->pid));
    if (f->count > 0 && !listed)
        change_put(c, list_key(op->ino), "", 1);
    if (f->count == 0 && listed)
        change_delete(c, list_key(op->ino));
}

static int lock_instant(struct lock_op *op, struct change *c)
{
    struct fs *fs = op->fs;
    struct lock_plan p;
    struct inode n;
    bool listed;
    int r = inode_get(fs, c, op->ino, &n);

    if (!r && !S_ISREG(n.mode) && op->l->protocol != FS_LOCK_FLOCK)
        r = ERR_FS_INVALID;
    if (r)
        return r;
    const struct held *conflict = op->set ? lock_conflict(fs, op->ino, op->l, op->end) : NULL;
    if (conflict) {
        if (op->conflict)
            lock_describe(conflict, op->conflict);
        return ERR_FS_LOCKED;
    }
    lock_plan(fs, op->ino, op->l, op->end, op->set,
              ++op->passes > PASSES_MANY ? REMOVALS_APART : LOCK_REMOVALS_MAX, &p);
    op->goes_on = p.end < op->end;
    op->goes_on_at = p.end + 1;
    if (p.nothing)
        return 0;
    r = plan_check(op, c, &p, &listed);
    if (r)
        return r;
    struct lock_file *f = locks_of(fs, op->ino);
    if (!f) { /* the first lock of the file: its entry is made with it, and may fail now */
        struct held *h = spare_take(op, p.new_start, p.new_end, op->l->exclusive, op->l->pid);
        h->number = 0;
        r = held_insert(fs, op->ino, h);
        if (r) {
            free(h);
            return r;
        }
        uint8_t item[LOCK_ITEM_MAX];
        uint32_t len = lock_encode(h, item);
        change_put(c, lock_key(op->ino, 0), item, len);
        if (!listed)
            change_put(c, list_key(op->ino), "", 1);
        return 0;
    }
    plan_apply(op, c, &p, f, listed);
    lock_file_put(fs, f);
    if (p.removal_count > 0)
        lock_wake(fs, op->ino);
    return 0;
}

static may_yield int lock_try(struct lock_op *op)
{
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    op->passes = 0;
    c.deletes = !op->set;
    do {
        lock_want(op, &c);
        r = spare_fill(op);
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = lock_instant(op, &c);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static bool lock_valid(const struct fs_lock *l)
{
    return l->protocol >= FS_LOCK_NLM && l->protocol <= FS_LOCK_FLOCK && l->owner_len <= FS_LOCK_OWNER_MAX &&
           l->client_len <= FS_LOCK_CLIENT_MAX;
}

/* In as many changes as it takes: one but for an owner with very many locks. */
static may_yield int lock_run(struct fs *fs, const struct fs_request *rq, uint64_t ino,
                              const struct fs_lock *l, bool set, struct fs_lock *conflict)
{
    struct fs_lock part = *l;
    struct lock_op op = {.fs = fs, .rq = rq, .ino = ino, .l = &part, .set = set, .conflict = conflict};
    int r = lock_end(l, &op.end);

    while (!r) {
        r = lock_try(&op);
        if (r || !op.goes_on)
            break;
        part.start = op.goes_on_at;
        part.len = op.end == UINT64_MAX ? 0 : op.end - part.start + 1;
    }
    spare_free(&op);
    return r;
}

/* ---- Waiting ---- */

static may_yield int lock_wait(struct fs *fs, uint64_t ino, const struct fs_lock *l, uint64_t until)
{
    struct lock_waiter w = {.ino = ino, .lock = l};
    uint64_t end;
    int r = lock_end(l, &end);

    if (r)
        return r;
    if (lock_deadlock(fs, ino, l, end))
        return ERR_FS_DEADLOCK;
    waitq_init(&w.wait);
    list_append(&fs->waiters->waiters, &w.link);
    while (!r && !w.woken && lock_conflict(fs, ino, l, end))
        r = waitq_wait(&w.wait, until);
    list_remove(&w.link);
    return r;
}

int fs_lock_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                bool reclaim, uint64_t wait_until_ns, struct fs_lock *ret_conflict)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_LOCK);
    bool grace = l->protocol == FS_LOCK_NLM && reactor_now_ns() < fs->lock_grace_until_ns;
    int r = !lock_valid(l)                                      ? ERR_FS_INVALID
            : grace && !(reclaim && l->protocol == FS_LOCK_NLM) ? ERR_FS_GRACE
                                                                : 0;

    while (!r) {
        r = lock_run(fs, rq, ino, l, true, ret_conflict);
        if (r != ERR_FS_LOCKED || reactor_now_ns() >= wait_until_ns)
            break;
        r = lock_wait(fs, ino, l, wait_until_ns);
        if (r == ERR_TIMEOUT)
            r = ERR_FS_LOCKED;
    }
    return fs_end(fs, rq, FS_OP_LOCK, began, ino, 0, r);
}

int fs_lock_clear(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_LOCK);
    int r = lock_valid(l) ? lock_run(fs, rq, ino, l, false, NULL) : ERR_FS_INVALID;

    return fs_end(fs, rq, FS_OP_LOCK, began, ino, 0, r);
}

int fs_lock_test(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_lock *l,
                 struct fs_lock *ret_conflict)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_LOCK), end;
    struct inode n;
    int r = lock_valid(l) ? lock_end(l, &end) : ERR_FS_INVALID;

    if (!r)
        r = inode_read(fs, ino, 0, &n);
    if (!r) {
        const struct held *h = lock_conflict(fs, ino, l, end);
        if (h)
            lock_describe(h, ret_conflict);
        r = volume_seen(fs->volume, &ino, 1);
        if (!r && h)
            r = ERR_FS_LOCKED;
    }
    return fs_end(fs, rq, FS_OP_LOCK, began, ino, 0, r);
}

/* ---- All of a client ---- */

struct client_match {
    enum fs_lock_protocol protocol;
    const char *client;
    uint32_t client_len;
    uint64_t ino;
    const uint8_t *owner;
    uint32_t owner_len;
};

static const struct held *match_in(const struct lock_file *f, const struct client_match *m)
{
    LIST_FOREACH (&f->held, it) {
        const struct held *h = CONTAINER_OF(it, struct held, link);
        if (h->protocol == m->protocol && h->client_len == m->client_len &&
            memcmp(h->bytes + h->owner_len, m->client, m->client_len) == 0 &&
            (m->owner_len == 0 ||
             (h->owner_len == m->owner_len && memcmp(h->bytes, m->owner, m->owner_len) == 0)))
            return h;
    }
    return NULL;
}

/* The first match from a bucket on. */
static const struct held *match_next(const struct fs *fs, const struct client_match *m, uint32_t *bucket,
                                     uint64_t *ret_ino)
{
    const struct held *h = NULL;

    if (m->ino) {
        const struct lock_file *f = locks_of(fs, m->ino);
        *ret_ino = m->ino;
        return f ? match_in(f, m) : NULL;
    }
    for (; !h && *bucket < fs->waiters->bucket_count; *bucket += h ? 0 : 1)
        for (const struct lock_file *f = fs->waiters->buckets[*bucket]; f && !h; f = f->next) {
            h = match_in(f, m);
            *ret_ino = f->ino;
        }
    return h;
}

int fs_lock_clear_client(struct fs *fs, enum fs_lock_protocol p, const char *client, uint64_t ino,
                         const uint8_t *owner, uint32_t owner_len)
{
    static const struct fs_request rq = {.cred = {.trusted = true}};
    struct client_match m = {.protocol = p,
                             .client = client,
                             .client_len = (uint32_t)strnlen(client, FS_LOCK_CLIENT_MAX),
                             .ino = ino,
                             .owner = owner,
                             .owner_len = owner_len};
    uint32_t bucket = 0;
    const struct held *h;
    uint64_t file;

    while ((h = match_next(fs, &m, &bucket, &file)) != NULL) {
        struct fs_lock l;
        lock_describe(h, &l);
        l.start = l.len = 0;
        int r = lock_run(fs, &rq, file, &l, false, NULL);
        if (r == ERR_FS_STALE) /* the file is going: so do its locks */
            locks_forget(fs, file);
        else if (r)
            return r;
    }
    return 0;
}

int fs_lock_find_client(const struct fs *fs, enum fs_lock_protocol p,
                        bool (*wanted)(void *ctx, const char *client), void *ctx,
                        char ret[FS_LOCK_CLIENT_MAX + 1])
{
    for (uint32_t bucket = 0; bucket < fs->waiters->bucket_count; bucket++)
        for (const struct lock_file *f = fs->waiters->buckets[bucket]; f; f = f->next)
            LIST_FOREACH (&f->held, it) {
                const struct held *h = CONTAINER_OF(it, struct held, link);
                struct fs_lock l;
                if (h->protocol != p)
                    continue;
                lock_describe(h, &l);
                if (!wanted(ctx, l.client))
                    continue;
                memcpy(ret, l.client, sizeof(l.client));
                return 0;
            }
    return ERR_NOT_FOUND;
}

void fs_lock_set_grace(struct fs *fs, uint64_t until_ns)
{
    fs->lock_grace_until_ns = until_ns;
}

/* ---- From the tree ---- */

static may_yield int load_file(struct fs *fs, uint64_t ino, bool *ret_any)
{
    struct tree_cursor cursor;
    struct fs_lock l;
    int r = volume_item_seek(fs->volume, lock_key(ino, 0), SEEK_GE, &cursor);

    *ret_any = false;
    while (!r && cursor.key.object == ino && cursor.key.type == ITEM_LOCK) {
        r = lock_decode(cursor.value, cursor.len, &l);
        if (r) {
            LOG_WARNING("lock %llu of inode %llu is damaged and left out",
                        (unsigned long long)cursor.key.offset, (unsigned long long)ino);
        } else if (fs->waiters->locks < LOCKS_MAX) {
            struct held *h = held_new(&l);
            if (!h)
                return ERR_NO_MEMORY;
            h->number = cursor.key.offset;
            h->start = l.start;
            r = lock_end(&l, &h->end);
            assert(r == 0); /* decoded */
            r = held_insert(fs, ino, h);
            if (r) {
                free(h);
                return r;
            }
        }
        *ret_any = true;
        r = tree_next(&cursor);
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}

static may_yield int list_drop(struct fs *fs, uint64_t ino)
{
    const void *value;
    struct change c;
    uint32_t len;
    int r;

    change_init(&c, fs->volume);
    c.deletes = true;
    do {
        change_clear(&c);
        change_want(&c, list_key(ino));
        change_will_delete(&c);
        r = change_begin(&c);
        if (!r)
            r = change_get(&c, list_key(ino), &value, &len);
        if (!r)
            change_delete(&c, list_key(ino));
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r == ERR_VOLUME_READ_ONLY || r == ERR_NOT_FOUND ? 0 : r;
}

int locks_load(struct fs *fs)
{
    struct tree_cursor cursor;
    uint64_t ino = 0;
    int r = waiters_new(&fs->waiters);

    while (!r) {
        bool any;
        r = volume_item_seek(fs->volume, list_key(ino), SEEK_GE, &cursor);
        if (r || cursor.key.object != FS_OBJECT_LISTS || cursor.key.type != ITEM_LOCK)
            break;
        ino = cursor.key.offset;
        r = load_file(fs, ino, &any);
        if (!r && !any)
            r = list_drop(fs, ino);
        ino++;
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}
