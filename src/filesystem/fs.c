/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system's life, its inode numbers, and how full it is.
 *
 * How the parts go together: every call here is one change of the volume's head tree (volume/change.h). It
 * says which items it wants, comes back in an instant in which nothing else runs, reads them, decides,
 * changes them, and waits for the log. An operation that guessed wrong what it would need comes again
 * (ERR_CHANGE_AGAIN) knowing more; so the usual case is guessed right from the start: a create takes one
 * pass.
 *
 * Inode numbers are handed out from memory, ahead of what disk_fs.next_ino says was ever used (F3): the
 * change that would use a number from there on raises it by a batch, in itself. Numbers that a crash or a
 * failure leaves unused stay unused.
 */
#include "filesystem/names_internal.h"

#include <stdlib.h>
#include <sys/stat.h>

#define INO_BATCH 65536u
/* No running file system comes near it: what says so is damaged. */
#define INO_LAST (FS_INO_MAX - (UINT64_C(1) << 40))

static const struct tree_key fs_key = {FS_OBJECT_FS, ITEM_FS, 0};

int disk_fs_decode(const void *bytes, uint32_t len, struct disk_fs *ret)
{
    struct disk_fs d;

    if (len != sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, bytes, sizeof(d));
    if (le32_get(d.version) != FS_FORMAT_VERSION || (le32_get(d.flags) & ~FS_CASE_INSENSITIVE))
        return ERR_UNSUPPORTED;
    if (le64_get(d.next_ino) < FS_INO_FIRST || le64_get(d.next_ino) > INO_LAST)
        return ERR_VOLUME_CORRUPT;
    *ret = d;
    return 0;
}

/* ---- Making ---- */

static void format_instant(struct change *c, const struct fs_format_options *o)
{
    int64_t now = (int64_t)world_wall_ns();
    uint32_t mode = o->root_mode ? o->root_mode & 07777 : 0755;
    struct disk_fs d = {.version = le32_make(FS_FORMAT_VERSION),
                        .flags = le32_make(o->case_insensitive ? FS_CASE_INSENSITIVE : 0),
                        .created_ns = le64_make((uint64_t)now),
                        .next_ino = le64_make(FS_INO_FIRST)};
    struct inode root = {.ino = FS_INO_ROOT,
                         .mode = S_IFDIR | mode,
                         .nlink = 2,
                         .uid = o->root_uid,
                         .gid = o->root_gid,
                         .atime_ns = now,
                         .mtime_ns = now,
                         .ctime_ns = now,
                         .btime_ns = now,
                         .parent = FS_INO_ROOT,
                         .generation = 1};

    world_random(d.hash_seed, sizeof(d.hash_seed));
    world_random(d.handle_secret, sizeof(d.handle_secret));
    change_put(c, fs_key, &d, sizeof(d));
    inode_put(c, &root);
}

int fs_format(struct volume *v, const struct fs_format_options *o)
{
    struct change c;
    const void *value;
    uint32_t len;
    int r;

    change_init(&c, v);
    do {
        change_clear(&c);
        change_want(&c, fs_key);
        change_will_put(&c, sizeof(struct disk_fs));
        inode_want(&c, FS_INO_ROOT);
        r = change_begin(&c);
        if (!r) {
            r = change_get(&c, fs_key, &value, &len);
            if (!r)
                r = ERR_EXISTS;
            else if (r == ERR_NOT_FOUND)
                r = 0;
        }
        if (!r)
            format_instant(&c, o);
        r = change_end(&c, r, CHANGE_DURABLE);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* ---- Life ---- */

static _Thread_local int64_t last_now; /* fs_now_ns() of this reactor */

static void fs_free(struct fs *fs)
{
    readahead_done(fs);
    locks_free(fs);
    replies_free(fs);
    files_free(fs->files);
    if (fs->opens)
        opens_free(fs->opens);
    free(fs);
}

static may_yield int load(struct fs *fs)
{
    struct disk_fs d;
    uint32_t len;
    uint8_t bytes[sizeof(d)];
    int r = volume_item_get(fs->volume, fs_key, bytes, sizeof(bytes), &len);

    if (r == ERR_INVALID)
        r = ERR_VOLUME_CORRUPT;
    if (!r)
        r = disk_fs_decode(bytes, len, &d);
    if (r)
        return r;
    fs->flags = le32_get(d.flags);
    memcpy(fs->hash_seed, d.hash_seed, sizeof(fs->hash_seed));
    memcpy(fs->handle_secret, d.handle_secret, sizeof(fs->handle_secret));
    fs->next_ino = fs->limit_ino = le64_get(d.next_ino);
    r = opens_new(&fs->opens);
    if (!r)
        r = files_new(&fs->files);
    if (!r)
        r = replies_load(fs);
    if (!r)
        r = locks_load(fs);
    if (!r)
        r = readahead_init(fs);
    return r;
}

int fs_open(struct volume *v, uint64_t grace_ns, struct fs **ret)
{
    struct fs *fs = calloc(1, sizeof(*fs));
    int r;

    if (!fs)
        return ERR_NO_MEMORY;
    fs->volume = v;
    fs->reactor = reactor_current();
    fs->opened_ns = reactor_now_ns();
    last_now = 0; /* a clock that was set back while it was closed is believed */
    fs->grace_until_ns = grace_ns ? fs->opened_ns + grace_ns : 0;
    list_init(&fs->watches);
    fmutex_init(&fs->rename_mutex);
    waitq_init(&fs->background_wait);
    waitq_init(&fs->reap_wanted);
    waitq_init(&fs->reap_done);
    r = load(fs);
    if (r) {
        fs_free(fs);
        return r;
    }
    r = reaper_start(fs);
    if (!r)
        r = quota_start(fs);
    if (r) {
        fs_close(fs);
        return r;
    }
    *ret = fs;
    return 0;
}

void fs_close(struct fs *fs)
{
    fs->closing = true;
    waitq_wake_all(&fs->reap_wanted);
    waitq_wake_all(&fs->reap_done);
    fiber_shield(); /* a cancelled wait would not let them run */
    while (fs->background > 0)
        (void)waitq_wait(&fs->background_wait, DEADLINE_NEVER);
    fiber_unshield();
    fs_free(fs);
}

struct volume *fs_volume(const struct fs *fs)
{
    return fs->volume;
}

struct reactor *fs_reactor(const struct fs *fs)
{
    return fs->reactor;
}

const uint8_t *fs_handle_secret(const struct fs *fs)
{
    return fs->handle_secret;
}

int64_t fs_now_ns(void)
{
    /* Clocks are set back; times in a file system should not follow. One reactor, one thread. */
    int64_t now = (int64_t)world_wall_ns();

    if (now > last_now || last_now - now > (int64_t)(60 * NSEC_PER_SEC)) /* somebody meant it */
        last_now = now;
    return last_now;
}

void fs_check_memory(struct fs *fs)
{
    assert(fs->next_ino >= FS_INO_FIRST);
    assert(fs->limit_ino >= FS_INO_FIRST && fs->limit_ino <= FS_INO_MAX);
    opens_check(fs);
    locks_check(fs);
}

/* ---- Inode numbers ---- */

uint64_t ino_take(struct fs *fs)
{
    assert(fs->next_ino < FS_INO_MAX - INO_BATCH);
    return fs->next_ino++;
}

void ino_want(struct fs *fs, struct change *c, uint64_t ino)
{
    if (ino < fs->limit_ino)
        return;
    change_want(c, fs_key);
    change_will_put(c, sizeof(struct disk_fs));
}

int ino_check(struct fs *fs, struct change *c, uint64_t ino, struct ino_reserve *ret)
{
    const void *value;
    uint32_t len;

    ret->needed = ino >= fs->limit_ino; /* the limit only grows: if so now, then when it was wanted, too */
    if (!ret->needed)
        return 0;
    int r = change_get(c, fs_key, &value, &len);
    if (r == ERR_NOT_FOUND)
        r = ERR_VOLUME_CORRUPT;
    return r ? r : disk_fs_decode(value, len, &ret->disk);
}

void ino_used(struct fs *fs, struct change *c, uint64_t ino, struct ino_reserve *reserve)
{
    if (!reserve->needed)
        return;
    assert(ino >= fs->limit_ino);
    fs->limit_ino = ino + INO_BATCH;
    reserve->disk.next_ino = le64_make(fs->limit_ino);
    change_put(c, fs_key, &reserve->disk, sizeof(reserve->disk));
}

/* ---- How full ---- */

#define BYTES_PER_INODE 512u /* of tree: inode, name, and what splitting leaves free */

int fs_statfs(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_statfs *ret,
              struct fs_attr *ret_attr)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_STATFS), free_blocks, total_blocks;
    struct inode n;
    int r = inode_read(fs, ino, 0, &n);

    if (!r) {
        volume_space(fs->volume, &free_blocks, &total_blocks);
        struct fs_statfs s = {.total_bytes = total_blocks * BLOCK_SIZE,
                              .free_bytes = free_blocks * BLOCK_SIZE,
                              .used_inodes = volume_inode_count(fs->volume)};
        s.free_inodes = MIN(s.free_bytes / BYTES_PER_INODE, FS_INO_MAX - MIN(FS_INO_MAX, fs->next_ino));
        s.total_inodes = s.used_inodes + s.free_inodes;
        r = quota_room(fs, n.quota, &s);
        s.available_bytes = s.free_bytes;
        s.available_inodes = s.free_inodes;
        if (!r)
            r = volume_seen(fs->volume, &ino, 1);
        if (!r)
            *ret = s;
    }
    if (!r)
        inode_attr(&n, ret_attr);
    return fs_end(fs, rq, FS_OP_STATFS, began, ino, 0, r);
}
