/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is deleted: at once where it is little, else in the background.
 *
 * Theory. A file that lost its last name, or most of its content, is on the list of orphans, in the change
 * that took it; so nothing is lost in a crash, and the caller waits for nothing. The reaper walks the list
 * and takes piece after piece, each in a change of its own that is right by itself: of a file that is cut,
 * blocks from reap_from on, which moves up with them; of a file that has no name, all its blocks, then its
 * other items, at last the inode with the orphan's item. A writer that needs blocks behind reap_from does the
 * reaper's work for its file itself (reap_wait): nobody waits behind the deletion of somebody else's
 * terabyte.
 *
 *   named --(last name goes, open or large)--> orphan DELETE --(closed; reaper)--> gone
 *   named --(last name goes, small)--------------------------------------------> gone
 *   file  --(large cut)--> REAPING + orphan TRUNCATE --(reaper, reap_wait)--> file
 *
 * A file of an orphan that was on the list when the file system was opened may be open at a client that comes
 * back: it stays until the time of grace is over. Cuts do not wait for that.
 */
#include "filesystem/names_internal.h"
#include "runtime/log.h"

#include <sys/stat.h>

#define SMALL_BLOCKS   1024u
#define CERTAIN_BLOCKS 32u /* so few extents are surely prepared whole */
#define RETRY_NS       (60 * NSEC_PER_SEC)
#define STEP_PAUSE_NS  (100 * NSEC_PER_USEC)

static struct tree_key orphan_key(uint64_t ino)
{
    return (struct tree_key){FS_OBJECT_LISTS, ITEM_ORPHAN, ino};
}

void orphan_will_put(struct change *c, uint64_t ino)
{
    change_want(c, orphan_key(ino));
    change_will_put(c, sizeof(struct disk_orphan));
}

void orphan_put(struct change *c, uint64_t ino, uint32_t why)
{
    struct disk_orphan d = {.why = le32_make(why), .since_ns = le64_make((uint64_t)fs_now_ns())};

    change_put(c, orphan_key(ino), &d, sizeof(d));
}

/* ---- An inode loses its last name ---- */

static bool removable(const struct fs *fs, const struct inode *n)
{
    return n->blocks <= SMALL_BLOCKS && !(n->flags & (INODE_XATTR | INODE_REAPING)) && !open_is(fs, n->ino);
}

static void want_items(struct change *c, const struct inode *n)
{
    struct tree_key first = {n->ino, S_ISDIR(n->mode) ? ITEM_XATTR : ITEM_INODE, 0};
    struct tree_key last = {n->ino, UINT8_MAX, UINT64_MAX};

    change_want_range(c, &first, &last);
}

void remove_will(struct fs *fs, struct change *c, const struct inode *hint, struct removal *rm)
{
    rm->now = removable(fs, hint) && !rm->many;
    rm->orphan = !rm->now || hint->blocks > CERTAIN_BLOCKS;
    rm->unmaps = rm->now && hint->blocks > 0;
    rm->quota = hint->quota;
    rm->item_count = 0;
    c->deletes = true;
    if (hint->quota)
        quota_want(fs, c, hint->quota);
    if (rm->orphan)
        orphan_will_put(c, hint->ino);
    if (!rm->now)
        return;
    want_items(c, hint);
    for (uint32_t i = 0; i < 1 + REMOVE_ITEMS_MAX; i++)
        change_will_delete(c);
    if (rm->unmaps)
        change_will_unmap(c, hint->ino, 0, BLOCKS_END);
}

/* The items beside inode and extents, as far as they fit. *ret_more: there are others. */
static int items_list(struct change *c, uint64_t ino, struct tree_key *items, uint32_t max,
                      uint32_t *ret_count, bool *ret_more)
{
    struct tree_key low = {ino, ITEM_INODE + 1, 0}, high = {ino, UINT8_MAX, UINT64_MAX};
    struct tree_cursor cursor;
    const void *value;
    uint32_t n = 0, len;
    int r;

    *ret_more = false;
    while ((r = change_seek(c, low, high, SEEK_GE, &cursor)) == 0) {
        if (cursor.key.type == ITEM_EXTENT || cursor.key.type == ITEM_QUOTA_DIR) { /* quota.c's to remove */
            low = (struct tree_key){ino, cursor.key.type + 1, 0};
            continue;
        }
        if (n == max) {
            *ret_more = true;
            break;
        }
        items[n++] = cursor.key;
        low = cursor.key;
        low.offset++;
        low.type += low.offset == 0;
    }
    for (uint32_t i = 0; i < n && (!r || r == ERR_NOT_FOUND); i++) /* prepared for being deleted, too? */
        r = change_get(c, items[i], &value, &len);
    if (r && r != ERR_NOT_FOUND)
        return r;
    *ret_count = n;
    return 0;
}

int remove_plan(struct fs *fs, struct change *c, const struct inode *n, struct removal *rm)
{
    bool more;
    int r = 0;

    if (n->quota != rm->quota || (rm->now && n->blocks > 0 && !rm->unmaps))
        return ERR_CHANGE_AGAIN;
    if (rm->now != (removable(fs, n) && !rm->many) || (rm->now && n->blocks > CERTAIN_BLOCKS && !rm->orphan))
        return ERR_CHANGE_AGAIN;
    if (n->quota)
        r = quota_check(fs, c, n->quota, 0, 0);
    if (r || !rm->now)
        return r;
    r = items_list(c, n->ino, rm->items, REMOVE_ITEMS_MAX, &rm->item_count, &more);
    if (!r && more) {
        rm->many = true;
        return ERR_CHANGE_AGAIN;
    }
    return r;
}

static void inode_delete(struct fs *fs, struct change *c, const struct inode *n, const struct tree_key *items,
                         uint32_t item_count, uint64_t quota_bytes_left)
{
    if (n->quota)
        quota_charge(fs, c, n->quota, -(int64_t)quota_bytes_left, -1);
    for (uint32_t i = 0; i < item_count; i++)
        change_delete(c, items[i]);
    change_delete(c, inode_key(n->ino));
}

void remove_apply(struct fs *fs, struct change *c, struct inode *n, const struct removal *rm)
{
    uint64_t bytes = quota_bytes(n), done = BLOCKS_END, freed = 0;

    if (rm->now && n->blocks > 0) {
        change_unmap(c, n->ino, 0, BLOCKS_END, false, &done, &freed);
        assert(done == BLOCKS_END || rm->orphan);
    }
    if (rm->now && done == BLOCKS_END) {
        inode_delete(fs, c, n, rm->items, rm->item_count, bytes);
        return;
    }
    inode_blocks(n, 0, freed);
    if (n->quota && freed)
        quota_charge(fs, c, n->quota, (int64_t)quota_bytes(n) - (int64_t)bytes, 0);
    orphan_put(c, n->ino, ORPHAN_DELETE);
    inode_put(c, n);
    fs->reap_new = true;
    reaper_kick(fs);
}

/* ---- Pieces ---- */

/* Any inode, with a name or without. */
static int inode_any(struct change *c, uint64_t ino, struct inode *ret)
{
    const void *value;
    uint32_t len;
    int r = change_get(c, inode_key(ino), &value, &len);

    return r ? r : inode_decode(ino, value, len, ret);
}

static may_yield int inode_any_read(struct fs *fs, uint64_t ino, struct inode *ret)
{
    struct disk_inode d;
    uint32_t len;
    int r = volume_item_get(fs->volume, inode_key(ino), &d, sizeof(d), &len);

    return r ? r : inode_decode(ino, &d, len, ret);
}

struct step {
    struct fs *fs;
    uint64_t ino;
    uint64_t block, end; /* to be unmapped; end 0: nothing */
    struct inode seen;
    bool done; /* nothing is left to do */
};

static void step_promise(struct step *s, struct change *c)
{
    c->deletes = true;
    inode_want(c, s->ino);
    change_want(c, orphan_key(s->ino));
    change_will_delete(c);
    if (s->seen.quota)
        quota_want(s->fs, c, s->seen.quota);
    if (s->end)
        change_will_unmap(c, s->ino, s->block, s->end - s->block);
}

/* Reading: the inode is as it was seen, as far as the step depends on it; is the orphan's item there? */
static int step_look(struct step *s, struct change *c, struct inode *n, bool *ret_listed)
{
    const void *value;
    uint32_t len;
    int r = inode_any(c, s->ino, n);

    if (r == ERR_NOT_FOUND) /* somebody else took its last piece */
        r = ERR_CHANGE_AGAIN;
    if (!r && (n->quota != s->seen.quota || n->flags != s->seen.flags || n->reap_from != s->seen.reap_from ||
               n->nlink != s->seen.nlink))
        r = ERR_CHANGE_AGAIN;
    if (!r && n->quota)
        r = quota_check(s->fs, c, n->quota, 0, 0);
    if (r)
        return r;
    r = change_get(c, orphan_key(s->ino), &value, &len);
    if (r && r != ERR_NOT_FOUND)
        return r;
    *ret_listed = r == 0;
    return 0;
}

static void step_unmap(struct step *s, struct change *c, struct inode *n, uint64_t *ret_done)
{
    uint64_t before = quota_bytes(n), freed;

    change_unmap(c, s->ino, s->block, s->end - s->block, false, ret_done, &freed);
    inode_blocks(n, 0, freed);
    if (n->quota)
        quota_charge(s->fs, c, n->quota, (int64_t)quota_bytes(n) - (int64_t)before, 0);
}

/* ---- A file that was cut ---- */

static int cut_instant(struct step *s, struct change *c)
{
    struct inode n;
    uint64_t done;
    bool listed;
    int r = step_look(s, c, &n, &listed);

    if (r)
        return r;
    assert(n.flags & INODE_REAPING);
    step_unmap(s, c, &n, &done);
    if (s->block + done == BLOCKS_END) {
        n.flags &= ~INODE_REAPING;
        n.reap_from = 0;
        if (listed && n.nlink > 0)
            change_delete(c, orphan_key(s->ino));
        s->done = true;
    } else {
        n.reap_from = (s->block + done) * BLOCK_SIZE;
    }
    inode_put(c, &n);
    return 0;
}

/* Once *ret_done, nothing of it has to be reaped any more. */
static may_yield int cut_step(struct fs *fs, uint64_t ino, bool *ret_done)
{
    struct step s = {.fs = fs, .ino = ino};
    struct change c;
    bool any;
    int r;

    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        r = inode_any_read(fs, ino, &s.seen);
        if (r == ERR_NOT_FOUND || (!r && !(s.seen.flags & INODE_REAPING))) {
            *ret_done = true;
            return 0;
        }
        s.block = s.seen.reap_from / BLOCK_SIZE;
        if (!r && s.block >= BLOCKS_END)
            r = ERR_VOLUME_CORRUPT;
        if (!r)
            r = extents_piece(fs, ino, s.block, &s.end, &any);
        if (r)
            return r;
        step_promise(&s, &c);
        r = change_begin(&c);
        if (!r)
            r = cut_instant(&s, &c);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    if (r)
        return r;
    fs->reap_steps++;
    waitq_wake_all(&fs->reap_done);
    *ret_done = s.done;
    return 0;
}

int reap_wait(struct fs *fs, uint64_t ino, uint64_t end)
{
    for (;;) {
        struct inode n;
        bool done;
        int r = inode_any_read(fs, ino, &n);

        if (r)
            return r == ERR_NOT_FOUND ? ERR_FS_STALE : r;
        if (!(n.flags & INODE_REAPING) || n.reap_from >= end)
            return 0;
        r = cut_step(fs, ino, &done);
        if (r || done)
            return r;
    }
}

/* ---- An inode without a name ---- */

static int delete_instant(struct step *s, struct change *c)
{
    struct tree_key items[REMOVE_ITEMS_MAX];
    uint32_t count = 0;
    uint64_t done;
    struct inode n;
    bool listed, more = false;
    int r = step_look(s, c, &n, &listed);

    if (!r && (n.nlink > 0 || open_is(s->fs, s->ino))) {
        s->fs->reap_open = true; /* somebody came back; whoever closes it kicks */
        s->done = true;
        return 0;
    }
    if (!r && !s->end)
        r = items_list(c, s->ino, items, REMOVE_ITEMS_MAX, &count, &more);
    if (r)
        return r;
    if (s->end) {
        step_unmap(s, c, &n, &done);
        inode_put(c, &n);
        return 0;
    }
    if (more) {
        for (uint32_t i = 0; i < count; i++)
            change_delete(c, items[i]);
        return 0;
    }
    inode_delete(s->fs, c, &n, items, count, quota_bytes(&n));
    locks_forget(s->fs, s->ino);
    if (listed)
        change_delete(c, orphan_key(s->ino));
    s->done = true;
    return 0;
}

static may_yield int delete_step(struct fs *fs, uint64_t ino, bool *ret_done)
{
    struct step s = {.fs = fs, .ino = ino};
    struct change c;
    bool any;
    int r;

    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        r = inode_any_read(fs, ino, &s.seen);
        if (!r)
            r = extents_piece(fs, ino, 0, &s.end, &any);
        if (r == ERR_NOT_FOUND) {
            *ret_done = true;
            return 0;
        }
        if (r)
            return r;
        s.block = 0;
        if (!any)
            s.end = 0;
        step_promise(&s, &c);
        for (uint32_t i = 0; !s.end && i < 1 + REMOVE_ITEMS_MAX; i++)
            change_will_delete(&c);
        r = change_begin(&c);
        if (!r)
            r = delete_instant(&s, &c);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    if (r)
        return r;
    fs->reap_steps++;
    waitq_wake_all(&fs->reap_done);
    *ret_done = s.done;
    return 0;
}

/* ---- The reaper ---- */

/* An item of the list without an inode, or for one that is as it should be. */
static int stray_instant(struct fs *fs, struct change *c, uint64_t ino)
{
    const void *value;
    struct inode n;
    uint32_t len;
    int r = inode_any(c, ino, &n);

    (void)fs;
    if (!r && (n.nlink == 0 || (n.flags & INODE_REAPING)))
        return 0;
    if (r && r != ERR_NOT_FOUND)
        return r;
    r = change_get(c, orphan_key(ino), &value, &len);
    if (r)
        return r == ERR_NOT_FOUND ? 0 : r;
    change_delete(c, orphan_key(ino));
    return 0;
}

static may_yield int stray_remove(struct fs *fs, uint64_t ino)
{
    struct change c;
    int r;

    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        c.deletes = true;
        change_want(&c, inode_key(ino));
        change_want(&c, orphan_key(ino));
        change_will_delete(&c);
        r = change_begin(&c);
        if (!r)
            r = stray_instant(fs, &c, ino);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* May it be deleted now? Who had it open before a restart has time to come back. */
static bool due(struct fs *fs, uint64_t ino, int64_t since_ns)
{
    if (open_is(fs, ino)) {
        fs->reap_open = true;
        return false;
    }
    if (since_ns >= fs->reap_started_ns || reactor_now_ns() >= fs->grace_until_ns)
        return true;
    fs->reap_held = true;
    return false;
}

/* One orphan, until it is done or must wait. */
static may_yield int reap_one(struct fs *fs, uint64_t ino, int64_t since_ns)
{
    struct inode n;
    bool done = false;
    int r = inode_any_read(fs, ino, &n);

    if (r == ERR_NOT_FOUND || (!r && n.nlink > 0 && !(n.flags & INODE_REAPING)))
        return stray_remove(fs, ino);
    while (!r && !done && !fs->closing) {
        if (n.nlink == 0 && due(fs, ino, since_ns))
            r = delete_step(fs, ino, &done);
        else if (n.flags & INODE_REAPING)
            r = cut_step(fs, ino, &done);
        else
            return 0;
        if (!r && !done) {
            (void)fiber_sleep(STEP_PAUSE_NS); /* clients first */
            r = inode_any_read(fs, ino, &n);
        }
        if (r == ERR_NOT_FOUND)
            return 0;
    }
    return r;
}

static may_yield int reap_list(struct fs *fs)
{
    struct disk_orphan d;
    uint64_t at = 0;
    int result = 0;

    while (!fs->closing) {
        struct tree_cursor c;
        int r = volume_item_seek(fs->volume, orphan_key(at), SEEK_GE, &c);
        if (r == ERR_NOT_FOUND || (!r && (c.key.object != FS_OBJECT_LISTS || c.key.type != ITEM_ORPHAN)))
            return result;
        if (!r && c.len != sizeof(d))
            r = ERR_VOLUME_CORRUPT;
        if (r)
            return r;
        memcpy(&d, c.value, sizeof(d));
        at = c.key.offset + 1;
        r = reap_one(fs, c.key.offset, (int64_t)le64_get(d.since_ns));
        if (r == ERR_VOLUME_READ_ONLY)
            return r;
        if (r && !result && !fs->closing) {
            LOG_WARNING("reaper: inode %llu: %s; it is tried again", (unsigned long long)(at - 1),
                        error_text(r));
            result = r;
        }
    }
    return result;
}

static may_yield void reaper_main(void *arg)
{
    struct fs *fs = arg;

    while (!fs->closing) {
        uint64_t until = DEADLINE_NEVER;
        fs->reap_kicked = fs->reap_new = fs->reap_open = fs->reap_held = fs->reap_idle = false;
        int r = volume_get_state(fs->volume);
        if (!r)
            r = reap_list(fs);
        if (fs->reap_kicked && !r)
            continue;
        fs->reap_idle = true;
        waitq_wake_all(&fs->reap_done);
        if (r && r != ERR_VOLUME_READ_ONLY)
            until = reactor_now_ns() + RETRY_NS;
        else if (fs->reap_held)
            until = fs->grace_until_ns;
        while (!fs->closing && !fs->reap_kicked && reactor_now_ns() < until)
            if (waitq_wait(&fs->reap_wanted, until) == ERR_CANCELLED)
                goto out;
    }
out:
    fs->reap_idle = true;
    waitq_wake_all(&fs->reap_done);
    fs->background--;
    waitq_wake_all(&fs->background_wait);
}

int reaper_start(struct fs *fs)
{
    fs->reap_started_ns = fs_now_ns();
    int r = fiber_spawn("reaper", reaper_main, fs);
    if (r)
        return r;
    fs->background++;
    return 0;
}

void reaper_kick(struct fs *fs)
{
    if (!fs->reap_new && !fs->reap_open)
        return;
    fs->reap_kicked = true;
    waitq_wake_all(&fs->reap_wanted);
}

bool reap_for_space(struct fs *fs)
{
    uint64_t before = fs->reap_steps;

    while (fs->reap_steps == before && !fs->closing && (!fs->reap_idle || fs->reap_kicked))
        if (waitq_wait(&fs->reap_done, DEADLINE_NEVER))
            break;
    return fs->reap_steps != before;
}
