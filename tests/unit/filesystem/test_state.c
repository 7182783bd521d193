/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept beside names: quotas, recent replies, locks, opens, statistics; and who is told. */
#include "filesystem/lock_internal.h"
#include "fs_test.h"

#define ROOT FS_INO_ROOT

/* ---- Quotas ---- */

static may_yield bool scanned(struct fs_test *t)
{
    for (uint32_t i = 0; i < 5000 && t->fs->quota_scanning; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    return CHECK(!t->fs->quota_scanning);
}

static may_yield struct fs_quota quota_of(struct fs_test *t, uint64_t dir)
{
    struct fs_quota q = {0};

    CHECK_EQ(fs_quota_get(t->fs, dir, &q), 0);
    return q;
}

static may_yield void quotas(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), e = folder(t, d, "e", 0755), ino = 0;

    CHECK_EQ(fs_quota_set(t->fs, d, 100 * KIB, 10), 0);
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, d).used_inodes, 2);
    CHECK_EQ(fs_quota_set(t->fs, e, 40 * KIB, 0), 0);
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, e).used_inodes, 1);
    CHECK_EQ(quota_of(t, e).parent, d);
    CHECK_EQ(attr_of(t, e).quota, e);
    uint64_t f = file(t, e, "f", 0644), g = file(t, d, "g", 0644);
    CHECK_EQ(attr_of(t, f).quota, e);
    CHECK_EQ(fill(t, f, 40 * KIB), 0);
    CHECK_EQ(fill(t, f, 44 * KIB), ERR_FS_QUOTA);
    CHECK_EQ(quota_of(t, e).used_bytes, 40 * KIB);
    CHECK_EQ(quota_of(t, d).used_bytes, 40 * KIB); /* the outer one counts it, too */
    CHECK_EQ(fill(t, g, 64 * KIB), ERR_FS_QUOTA);
    CHECK_EQ(fill(t, g, 60 * KIB), 0);
    CHECK_EQ(make(t, FS_FILE, e, "h", 0644, &ino), 0);
    CHECK_EQ(fill(t, ino, 10), ERR_FS_QUOTA);
    CHECK_EQ(quota_of(t, d).used_inodes, 5);
    for (uint32_t i = 0; i < 5; i++) {
        char name[2] = {(char)('0' + i), 0};
        (void)file(t, d, name, 0644);
    }
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &ino), ERR_FS_QUOTA);
    CHECK_EQ(make(t, FS_DIRECTORY, e, "x", 0755, &ino), ERR_FS_QUOTA); /* the outer one's limit */
    CHECK_EQ(mv(t, d, "g", e, "g", 0), ERR_FS_CROSS_QUOTA);
    CHECK_EQ(ln(t, g, ROOT, "g"), ERR_FS_CROSS_QUOTA);
    struct fs_statfs s;
    CHECK_EQ(fs_statfs(t->fs, &t->rq, d, &s, &t->at), 0);
    CHECK_EQ(s.total_bytes, 100 * KIB);
    CHECK_EQ(s.available_bytes, 0);
    CHECK_EQ(s.available_inodes, 0);
    CHECK_EQ(fs_statfs(t->fs, &t->rq, ROOT, &s, &t->at), 0);
    CHECK(s.available_bytes > MIB && s.used_inodes == volume_inode_count(t->v));
    struct fs_quota list[4];
    uint32_t n = 0;
    CHECK_EQ(fs_quota_list(t->fs, 0, list, 4, &n), 0);
    CHECK(n == 2 && list[0].ino == d && list[1].ino == e);

    fs_test_crash(t);
    CHECK_EQ(rm(t, e, "f"), 0);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(quota_of(t, e).used_bytes, 0);
    CHECK_EQ(quota_of(t, d).used_bytes, 60 * KIB);
    CHECK_EQ(rm(t, e, "h"), 0);
    CHECK_EQ(rm_dir(t, d, "e"), 0); /* its quota goes with it */
    CHECK(fs_test_reaped(t));
    CHECK_EQ(quota_of(t, d).used_inodes, 7);
    CHECK_EQ(fs_quota_list(t->fs, 0, list, 4, &n), 0);
    CHECK_EQ(n, 1);
}

/* A quota comes on a tree that is there, goes, and every number is right. */
static may_yield void quota_scan(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), inner = 0, at = d;
    struct fs_quota list[4];
    char name[16];
    uint32_t n = 0;

    for (uint32_t depth = 0; depth < 5; depth++) {
        for (uint32_t i = 0; i < 100; i++) {
            snprintf(name, sizeof(name), "f%u", i);
            uint64_t f = file(t, at, name, 0644);
            if (i % 10 == 0)
                CHECK_EQ(fill(t, f, 5000), 0);
        }
        at = folder(t, at, "sub", 0755);
        inner = depth == 2 ? at : inner;
    }
    CHECK_EQ(fs_quota_set(t->fs, inner, GIB, 0), 0);
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, inner).used_inodes, 1 + 2 * 100 + 2);
    CHECK_EQ(quota_of(t, inner).used_bytes, 2 * 10 * 8192);
    CHECK_EQ(fs_quota_set(t->fs, d, GIB, 0), 0);
    (void)file(t, at, "while it counts", 0644);
    (void)file(t, d, "while it counts", 0644);
    fs_test_crash(t); /* and goes on */
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, d).used_inodes, 1 + 5 * 100 + 5 + 2);
    CHECK_EQ(quota_of(t, d).used_bytes, 5 * 10 * 8192);
    CHECK_EQ(quota_of(t, inner).parent, d);
    CHECK(!quota_of(t, d).scanning);
    CHECK_EQ(fs_quota_set(t->fs, inner, 0, 0), 0);
    CHECK(scanned(t));
    CHECK_EQ(attr_of(t, at).quota, d);
    CHECK_EQ(quota_of(t, d).used_inodes, 1 + 5 * 100 + 5 + 2);
    CHECK_EQ(quota_of(t, d).used_bytes, 5 * 10 * 8192);
    CHECK_EQ(fs_quota_list(t->fs, 0, list, 4, &n), 0);
    CHECK_EQ(n, 1);
    CHECK_EQ(fs_quota_set(t->fs, d, 0, 0), 0);
    CHECK(scanned(t));
    CHECK_EQ(attr_of(t, at).quota, 0);
    CHECK_EQ(fs_quota_list(t->fs, 0, list, 4, &n), 0);
    CHECK_EQ(n, 0);
    CHECK_EQ(fs_quota_set(t->fs, d, 0, 0), ERR_NOT_FOUND);
}

/* Files that lost their names still count for a quota that is gone meanwhile, and for those above it. */
static may_yield void quota_gone(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), e = folder(t, d, "e", 0755), k = folder(t, d, "k", 0755);
    struct fs_attr a;

    CHECK_EQ(fs_quota_set(t->fs, d, GIB, 0), 0);
    CHECK_EQ(fs_quota_set(t->fs, e, GIB, 0), 0);
    CHECK_EQ(fs_quota_set(t->fs, k, GIB, 0), 0);
    CHECK(scanned(t));
    uint64_t f = file(t, e, "f", 0644), g = file(t, k, "g", 0644);
    CHECK_EQ(fill(t, f, 100 * KIB), 0);
    CHECK_EQ(fill(t, g, 200 * KIB), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, g, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(rm(t, e, "f"), 0);
    CHECK_EQ(rm(t, k, "g"), 0);
    CHECK_EQ(rm_dir(t, d, "e"), 0);
    CHECK_EQ(fs_quota_set(t->fs, k, 0, 0), 0);
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, d).used_bytes, 300 * KIB);
    CHECK_EQ(quota_of(t, d).used_inodes, 4);
    CHECK_EQ(fs_quota_set(t->fs, k, MIB, 0), 0); /* again, with what is left of the old one */
    CHECK(scanned(t));
    CHECK_EQ(quota_of(t, k).used_bytes, 200 * KIB);
    CHECK_EQ(fs_quota_set(t->fs, k, 0, 0), 0);
    CHECK(scanned(t));
    fs_open_put(t->fs, f, FS_OPEN_READ);
    fs_open_put(t->fs, g, FS_OPEN_READ);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(quota_of(t, d).used_bytes, 0);
    CHECK_EQ(quota_of(t, d).used_inodes, 2);
    struct tree_cursor cursor; /* nothing is left of the others */
    CHECK(volume_item_seek(t->v, (struct tree_key){e, ITEM_QUOTA, 0}, SEEK_GE, &cursor) != 0 ||
          cursor.key.object != e);
    CHECK(volume_item_seek(t->v, (struct tree_key){k, ITEM_QUOTA, 0}, SEEK_GE, &cursor) != 0 ||
          cursor.key.object != k);
}

/* ---- Replies ---- */

/* Set from the innermost outwards, a chain may be so long; a change meets all of it. */
static may_yield void quota_chain(struct fs_test *t)
{
    uint64_t dirs[16], at = ROOT, f = 0;
    const uint32_t last = ARRAY_SIZE(dirs) - 1;

    for (uint32_t i = 0; i <= last; i++)
        at = dirs[i] = folder(t, at, "sub", 0755);
    for (uint32_t i = last + 1; i-- > 0;) {
        CHECK_EQ(fs_quota_set(t->fs, dirs[i], GIB, 0), 0);
        CHECK(scanned(t));
    }
    CHECK_EQ(quota_of(t, dirs[last]).parent, dirs[last - 1]);
    f = file(t, dirs[last], "f", 0644);
    (void)file(t, dirs[last], "g", 0644);
    CHECK_EQ(fill(t, f, 10000), 0);
    CHECK_EQ(quota_of(t, dirs[last - 1]).used_bytes, 3 * 4096);
    CHECK_EQ(mv(t, dirs[last], "g", dirs[last], "f", 0), 0);
    CHECK_EQ(quota_of(t, dirs[last - 1]).used_bytes, 0);
    CHECK_EQ(rm(t, dirs[last], "f"), 0);
    CHECK_EQ(rm_dir(t, dirs[last - 1], "sub"), 0);
    CHECK_EQ(quota_of(t, dirs[last - 1]).used_inodes, 1);
    for (uint32_t i = last; i-- > 0;)
        CHECK_EQ(rm_dir(t, i ? dirs[i - 1] : ROOT, "sub"), 0);
}

static may_yield void replies(struct fs_test *t)
{
    struct fs_reply_key key = {.client = {1, 2, 3}, .xid = 77, .procedure = 8, .checksum = 9}, other = key;
    struct fs_reply r = {0};

    t->rq.reply = &key;
    CHECK_EQ(fs_reply_find(t->fs, &key, &r), ERR_NOT_FOUND);
    uint64_t f = file(t, ROOT, "f", 0644), x;
    CHECK_EQ(fs_reply_find(t->fs, &key, &r), 0);
    CHECK_EQ(r.ino, f);
    CHECK_EQ(r.status, 0);
    key.xid++;
    CHECK_EQ(make(t, FS_FILE, ROOT, "f", 0644, &x), ERR_FS_EXISTS); /* what changed nothing is not kept */
    CHECK_EQ(fs_reply_find(t->fs, &key, &r), ERR_NOT_FOUND);
    CHECK_EQ(mv(t, ROOT, "f", ROOT, "g", 0), 0);
    key.xid++;
    CHECK_EQ(rm(t, ROOT, "g"), 0);
    fs_test_crash(t);
    for (uint32_t i = 0; i < 3; i++) {
        other.xid = 77 + i;
        CHECK_EQ(fs_reply_find(t->fs, &other, &r), 0);
        CHECK_EQ(r.ino, f);
    }
    other.checksum++;
    CHECK_EQ(fs_reply_find(t->fs, &other, &r), ERR_NOT_FOUND);
    t->rq.reply = NULL;
}

/* len bytes of `byte`, told to append at `seen`, where the writer believes the end of the file to be. */
static may_yield int append(struct fs_test *t, uint64_t ino, uint64_t seen, uint32_t len, uint8_t byte,
                            uint64_t *ret_offset)
{
    uint32_t skip = (uint32_t)(seen % BLOCK_SIZE), blocks = (skip + len + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct page *page;
    int r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);

    if (r)
        return r;
    struct page_vec v = {.run_count = 1, .blocks = blocks};
    memset(page->data + skip, byte, len);
    v.runs[0] = (struct page_run){page, blocks};
    r = fs_write(t->fs, &t->rq, ino, seen, len, &v, FS_WRITE_APPEND | FS_WRITE_OPEN, ret_offset, &t->wcc);
    page_put(page, blocks);
    return r;
}

static may_yield void append_replies(struct fs_test *t)
{
    static const uint32_t lens[] = {100, 3000, 200, 3 * BLOCK_SIZE}; /* in the tree, out of it, in blocks */
    struct fs_reply_key key = {.client = {4, 5}, .xid = 1, .procedure = 3, .checksum = 0};
    uint64_t f = file(t, ROOT, "log", 0644), end = 0, at[ARRAY_SIZE(lens)];

    t->rq.durable = true;
    t->rq.reply = &key;
    for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
        key.xid = i;
        CHECK_EQ(append(t, f, i % 2 ? 17 : end, lens[i], (uint8_t)i, &at[i]), 0);
        CHECK_EQ(at[i], end);
        end += lens[i];
    }
    t->rq.reply = NULL;
    fs_test_crash(t);
    for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
        struct fs_reply r = {0};
        key.xid = i;
        CHECK_EQ(fs_reply_find(t->fs, &key, &r), 0);
        CHECK_EQ(r.ino, at[i]);
    }
    CHECK_EQ(attr_of(t, f).size, end);
    t->rq.durable = false;
}

/* ---- Opens ---- */

static may_yield void opens(struct fs_test *t)
{
    as_user(t, 10, 10);
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755);
    struct fs_attr a;

    CHECK_EQ(fill(t, f, 3000), 0);
    as_user(t, 11, 11);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_WRITE, false, &a), ERR_FS_ACCESS);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, d, FS_OPEN_WRITE, false, &a), ERR_FS_IS_DIRECTORY);
    CHECK_EQ(opens_count(t->fs), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ | FS_DENY_WRITE, false, &a), 0);
    as_user(t, 10, 10);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_WRITE, false, &a), ERR_FS_BUSY);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_DENY_READ, false, &a), ERR_FS_BUSY);
    fs_open_put(t->fs, f, FS_OPEN_READ | FS_DENY_WRITE);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_WRITE, true, &a), 0);
    CHECK_EQ(a.size, 0);
    fs_open_put(t->fs, f, FS_OPEN_WRITE);
    fs_open_put(t->fs, f, FS_OPEN_READ);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, 12345, FS_OPEN_READ, false, &a), ERR_FS_STALE);
    CHECK_EQ(opens_count(t->fs), 0);
    as_root(t);
}

/* ---- Locks ---- */

static struct fs_lock lock_make(uint64_t start, uint64_t len, bool exclusive, const char *owner)
{
    struct fs_lock l = {
        .start = start, .len = len, .exclusive = exclusive, .protocol = FS_LOCK_NLM, .pid = 1};

    l.owner_len = (uint32_t)strlen(owner);
    memcpy(l.owner, owner, l.owner_len);
    l.client_len = 4;
    memcpy(l.client, "host", 4);
    return l;
}

static may_yield int lock(struct fs_test *t, uint64_t ino, uint64_t start, uint64_t len, bool exclusive,
                          const char *owner)
{
    struct fs_lock l = lock_make(start, len, exclusive, owner), conflict;

    return fs_lock_set(t->fs, &t->rq, ino, &l, false, 0, &conflict);
}

static may_yield int unlock(struct fs_test *t, uint64_t ino, uint64_t start, uint64_t len, const char *owner)
{
    struct fs_lock l = lock_make(start, len, false, owner);

    return fs_lock_clear(t->fs, &t->rq, ino, &l);
}

/* Who has each of the first bytes: an upper case letter exclusively, a lower case one shared. */
static may_yield bool locked_as(struct fs_test *t, uint64_t ino, const char *map)
{
    char got[64] = {0};

    for (uint32_t i = 0; map[i]; i++) {
        struct fs_lock probe = lock_make(i, 1, true, "?"), c;
        int r = fs_lock_test(t->fs, &t->rq, ino, &probe, &c);
        got[i] = r == 0 ? '.' : (char)(c.exclusive ? c.owner[0] - 32 : c.owner[0]);
    }
    if (strcmp(got, map) != 0)
        fprintf(stderr, "locks %s, not %s\n", got, map);
    return CHECK(strcmp(got, map) == 0);
}

static may_yield void locks(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);
    struct fs_lock l, conflict;

    CHECK_EQ(lock(t, f, 2, 6, true, "a"), 0);
    CHECK(locked_as(t, f, "..AAAAAA..."));
    CHECK_EQ(lock(t, f, 0, 3, false, "b"), ERR_FS_LOCKED);
    CHECK_EQ(lock(t, f, 0, 2, false, "b"), 0);
    CHECK_EQ(lock(t, f, 4, 2, false, "a"), 0); /* a part becomes shared: it is split */
    CHECK(locked_as(t, f, "bbAAaaAA..."));
    CHECK_EQ(locks_of(t->fs, f)->count, 4);
    CHECK_EQ(lock(t, f, 4, 2, true, "a"), 0); /* and joined again */
    CHECK_EQ(locks_of(t->fs, f)->count, 2);
    CHECK_EQ(unlock(t, f, 3, 2, "a"), 0);
    CHECK(locked_as(t, f, "bbA..AAA..."));
    fs_check_memory(t->fs);
    fs_test_crash(t); /* they are kept */
    CHECK(locked_as(t, f, "bbA..AAA..."));
    CHECK_EQ(lock(t, f, 8, 0, true, "b"), 0); /* to the end */
    CHECK_EQ(lock(t, f, UINT64_MAX - 5, 3, false, "a"), ERR_FS_LOCKED);
    l = lock_make(UINT64_MAX - 5, 3, false, "a");
    CHECK_EQ(fs_lock_test(t->fs, &t->rq, f, &l, &conflict), ERR_FS_LOCKED);
    CHECK(conflict.start == 8 && conflict.len == 0 && conflict.owner[0] == 'b');
    l = lock_make(10, UINT64_MAX, false, "a");
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), ERR_FS_INVALID);
    CHECK_EQ(unlock(t, f, 0, 0, "b"), 0);
    CHECK_EQ(unlock(t, f, 0, 0, "b"), 0);
    CHECK(locked_as(t, f, "..A..AAA..."));
    /* flock is another kind. */
    l = lock_make(0, 0, true, "f");
    l.protocol = FS_LOCK_FLOCK;
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), 0);
    l.owner[0] = 'g';
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), ERR_FS_LOCKED);
    CHECK_EQ(fs_lock_clear_client(t->fs, FS_LOCK_FLOCK, "host", 0, NULL, 0), 0);
    CHECK_EQ(fs_lock_clear_client(t->fs, FS_LOCK_NLM, "other", 0, NULL, 0), 0);
    CHECK(locked_as(t, f, "..A..AAA..."));
    CHECK_EQ(fs_lock_clear_client(t->fs, FS_LOCK_NLM, "host", 0, NULL, 0), 0);
    CHECK(!locks_any(t->fs, f));
    CHECK_EQ(lock(t, ROOT, 0, 1, false, "a"), ERR_FS_INVALID);
    CHECK_EQ(lock(t, f, 0, 1, false, "a"), 0);
    CHECK_EQ(rm(t, ROOT, "f"), 0); /* they go with the file */
    CHECK(!locks_any(t->fs, f));
    fs_test_crash(t);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(t->fs->waiters->locks, 0);
}

static may_yield void many_locks(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);

    for (uint64_t i = 0; i < 1500; i++)
        CHECK_EQ(lock(t, f, i * 2, 1, true, "a"), 0);
    CHECK_EQ(locks_of(t->fs, f)->count, 1500);
    CHECK_EQ(lock(t, f, 100, 2000, true, "a"), 0); /* in parts, joined to one */
    CHECK_EQ(lock(t, f, 101, 1, true, "b"), ERR_FS_LOCKED);
    CHECK_EQ(locks_of(t->fs, f)->count, 500);
    fs_check_memory(t->fs);
    CHECK_EQ(unlock(t, f, 0, 0, "a"), 0);
    CHECK(!locks_any(t->fs, f));
}

struct locker {
    struct fs_test *t;
    uint64_t ino, start;
    const char *owner;
    int result;
    bool done;
};

static may_yield void locker_main(void *arg)
{
    struct locker *l = arg;
    struct fs_lock want = lock_make(l->start, 1, true, l->owner), conflict;

    l->result = fs_lock_set(l->t->fs, &l->t->rq, l->ino, &want, false, reactor_now_ns() + 5 * NSEC_PER_SEC,
                            &conflict);
    l->done = true;
}

static may_yield void waiting(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);
    struct locker w = {.t = t, .ino = f, .start = 0, .owner = "b"},
                  x = {.t = t, .ino = f, .start = 1, .owner = "a"};
    struct fs_lock l = lock_make(0, 1, true, "c"), conflict;

    CHECK_EQ(lock(t, f, 0, 1, true, "a"), 0);
    CHECK_EQ(lock(t, f, 1, 1, true, "b"), 0);
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, reactor_now_ns() + 20 * NSEC_PER_MSEC, &conflict),
             ERR_FS_LOCKED);
    CHECK_EQ(fiber_spawn("locker", locker_main, &w), 0);
    (void)fiber_sleep(20 * NSEC_PER_MSEC);
    CHECK(!w.done);
    CHECK_EQ(fiber_spawn("locker", locker_main, &x), 0); /* a waits for b, who waits for a */
    for (uint32_t i = 0; i < 1000 && !x.done; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    CHECK(x.done);
    CHECK_EQ(x.result, ERR_FS_DEADLOCK);
    CHECK_EQ(unlock(t, f, 0, 1, "a"), 0);
    for (uint32_t i = 0; i < 1000 && !w.done; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    CHECK(w.done);
    CHECK_EQ(w.result, 0);
    CHECK(locked_as(t, f, "BB"));
    /* The file goes while somebody waits. */
    w.done = false;
    w.owner = "d";
    CHECK_EQ(fiber_spawn("locker", locker_main, &w), 0);
    (void)fiber_sleep(20 * NSEC_PER_MSEC);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    for (uint32_t i = 0; i < 1000 && !w.done; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    CHECK(w.done);
    CHECK_EQ(w.result, ERR_FS_STALE);
}

static may_yield void grace(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);
    struct fs_lock l = lock_make(0, 1, true, "a"), conflict;

    fs_lock_set_grace(t->fs, reactor_now_ns() + 3600 * NSEC_PER_SEC);
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), ERR_FS_GRACE);
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, true, 0, &conflict), 0);
    l.protocol = FS_LOCK_FLOCK;
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), 0);
    l.protocol = FS_LOCK_NLM;
    fs_lock_set_grace(t->fs, 0);
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, true, 0, &conflict),
             0); /* it is kept: so it is never too late */
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &conflict), 0);
}

/* ---- Events, statistics, paths ---- */

struct watcher {
    struct fs_watch watch;
    char log[512];
};

static void heard(struct fs_watch *w, const struct fs_request *cause, const struct fs_event *e)
{
    struct watcher *me = CONTAINER_OF(w, struct watcher, watch);
    size_t at = strlen(me->log);

    (void)cause;
    (void)snprintf(me->log + at, sizeof(me->log) - at, "%c%.*s ", "ad+-"[e->kind], (int)e -> name_len,
                   e -> name ? e -> name : "");
}

static may_yield void events(struct fs_test *t)
{
    struct watcher w = {.watch.event = heard};
    uint64_t x;

    fs_watch_add(t->fs, &w.watch);
    uint64_t f = file(t, ROOT, "f", 0644);
    CHECK_EQ(make(t, FS_FILE, ROOT, "f", 0644, &x), ERR_FS_EXISTS);
    CHECK_EQ(ch_mode(t, f, 0600), 0);
    CHECK_EQ(set(t, f, (struct fs_setattr){.valid = FS_SET_SIZE, .size = 10}), 0);
    CHECK_EQ(mv(t, ROOT, "f", ROOT, "g", 0), 0);
    CHECK_EQ(ln(t, f, ROOT, "h"), 0);
    CHECK_EQ(rm(t, ROOT, "g"), 0);
    CHECK_EQ(rm(t, ROOT, "h"), 0);
    fs_watch_remove(t->fs, &w.watch);
    (void)file(t, ROOT, "unheard", 0644);
    CHECK(strcmp(w.log, "+f a a d -f +g +h a -g a -h ") == 0);
    if (strcmp(w.log, "+f a a d -f +g +h a -g a -h ") != 0)
        fprintf(stderr, "heard: %s\n", w.log);
}

static may_yield void statistics(struct fs_test *t)
{
    struct fs_file_stats busy[4];
    struct fs_attr a;

    t->rq.client = fs_client(t->fs, "10.0.0.7");
    CHECK(t->rq.client != 0);
    CHECK_EQ(fs_client(t->fs, "10.0.0.7"), t->rq.client);
    uint64_t f = file(t, ROOT, "f", 0644);
    for (uint32_t i = 0; i < 1000; i++)
        (void)attr_of(t, f);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, 9999, 0, &a), ERR_FS_STALE);
    CHECK_EQ(fs_stats(t->fs, FS_OP_GETATTR)->ops, 1001);
    CHECK_EQ(fs_stats(t->fs, FS_OP_GETATTR)->errors, 1);
    CHECK_EQ(fs_stats(t->fs, FS_OP_GETATTR)->latency.count, 1001);
    CHECK_EQ(fs_client_stats(t->fs, t->rq.client)->ops, 1002);
    CHECK(fs_file_stats(t->fs, busy, 4) >= 1);
    CHECK_EQ(busy[0].ino, f);
    CHECK(busy[0].ops > 800 && busy[0].ops < 1200);
    for (uint32_t i = 0; i < 2 * FS_CLIENTS_MAX; i++) { /* idle ones give way */
        char name[16];
        snprintf(name, sizeof(name), "c%u", i);
        uint32_t slot = fs_client(t->fs, name);
        CHECK(slot > 0 && slot < FS_CLIENTS_MAX);
        CHECK(strcmp(fs_client_stats(t->fs, slot)->name, name) == 0);
    }
    t->rq.client = 0;
}

static may_yield void paths(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), b = folder(t, a, "bb", 0700), f = file(t, b, "file", 0600);
    struct fs_attr at;
    char buf[64];

    CHECK_EQ(fs_path_find(t->fs, "/a/bb//file", &at), 0);
    CHECK_EQ(at.ino, f);
    CHECK_EQ(fs_path_find(t->fs, "/", &at), 0);
    CHECK_EQ(at.ino, ROOT);
    CHECK_EQ(fs_path_find(t->fs, "/a/none", &at), ERR_FS_NOT_FOUND);
    CHECK_EQ(fs_path_find(t->fs, "/a/bb/file/x", &at), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(fs_path_of(t->fs, f, buf, sizeof(buf)), 0);
    CHECK(strcmp(buf, "/a/bb/file") == 0);
    CHECK_EQ(fs_path_of(t->fs, ROOT, buf, sizeof(buf)), 0);
    CHECK(strcmp(buf, "/") == 0);
    CHECK_EQ(fs_path_of(t->fs, 99999, buf, sizeof(buf)), ERR_FS_STALE);
}

#define RUN(name, body)            \
    static void name(void **state) \
    {                              \
        (void)state;               \
        fs_test_run(body);         \
    }
RUN(nested_quotas_are_hard_and_exact, quotas)
RUN(a_quota_counts_what_was_there_before_it, quota_scan)
RUN(files_without_a_name_count_until_they_go, quota_gone)
RUN(a_chain_of_sixteen_quotas_is_charged_whole, quota_chain)
RUN(a_reply_is_found_again_after_a_crash, replies)
RUN(an_append_tells_after_a_crash_where_it_began, append_replies)
RUN(share_modes_keep_others_out, opens)
RUN(locks_are_joined_and_split_and_survive_a_crash, locks)
RUN(an_owner_of_very_many_locks_is_served_in_parts, many_locks)
RUN(who_waits_for_a_lock_gets_it_or_a_deadlock, waiting)
RUN(in_the_grace_period_only_reclaims_are_granted, grace)
RUN(a_watcher_hears_of_each_change_once, events)
RUN(operations_clients_and_busy_files_are_counted, statistics)
RUN(paths_lead_to_inodes_and_back, paths)

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(nested_quotas_are_hard_and_exact),
        T(a_quota_counts_what_was_there_before_it),
        T(files_without_a_name_count_until_they_go),
        T(a_chain_of_sixteen_quotas_is_charged_whole),
        T(a_reply_is_found_again_after_a_crash),
        T(an_append_tells_after_a_crash_where_it_began),
        T(share_modes_keep_others_out),
        T(locks_are_joined_and_split_and_survive_a_crash),
        T(an_owner_of_very_many_locks_is_served_in_parts),
        T(who_waits_for_a_lock_gets_it_or_a_deadlock),
        T(in_the_grace_period_only_reclaims_are_granted),
        T(a_watcher_hears_of_each_change_once),
        T(operations_clients_and_busy_files_are_counted),
        T(paths_lead_to_inodes_and_back),
    };
    return cmocka_run_group_tests_name("filesystem state", tests, NULL, NULL);
}
