/* SPDX-License-Identifier: Apache-2.0 */
/* Items that no change of ours would leave: whoever meets them gets an error, and nothing falls over. */
#include "fs_test.h"

#define ROOT FS_INO_ROOT

static may_yield void put(struct fs_test *t, struct tree_key key, const void *value, uint32_t len)
{
    struct change c;
    int r;

    change_init(&c, t->v);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_put(&c, len);
        r = change_begin(&c);
        if (!r)
            change_put(&c, key, value, len);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    CHECK_EQ(r, 0);
}

static may_yield void drop(struct fs_test *t, struct tree_key key)
{
    const void *value;
    struct change c;
    uint32_t len;
    int r;

    change_init(&c, t->v);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_delete(&c);
        r = change_begin(&c);
        if (!r)
            r = change_get(&c, key, &value, &len);
        if (!r)
            change_delete(&c, key);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    CHECK_EQ(r, 0);
}

static struct tree_key bucket_of(struct fs_test *t, uint64_t dir, const char *name)
{
    struct name n;

    CHECK_EQ(name_init(t->fs, name, (uint32_t)strlen(name), &n), 0);
    return bucket_key(dir, n.base);
}

static may_yield void directories(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), f = file(t, d, "f", 0644), x;
    struct listing l;
    struct disk_dirent e = {
        .ino = le64_make(424242), .generation = le32_make(1), .type = DT_REG, .name_len = 4};
    uint8_t item[64];

    /* A bucket of nonsense. */
    put(t, bucket_of(t, d, "bad"), "nonsense nonsense", 17);
    CHECK_EQ(look(t, d, "bad", &x), ERR_VOLUME_CORRUPT);
    CHECK_EQ(make(t, FS_FILE, d, "bad", 0644, &x), ERR_VOLUME_CORRUPT);
    CHECK_EQ(rm(t, d, "bad"), ERR_VOLUME_CORRUPT);
    CHECK_EQ(mv(t, d, "f", d, "bad", 0), ERR_VOLUME_CORRUPT);
    CHECK_EQ(ln(t, f, d, "bad"), ERR_VOLUME_CORRUPT);
    CHECK_EQ(list_all(t, d, 10, true, &l), ERR_VOLUME_CORRUPT);
    listing_free(&l);
    CHECK_EQ(ino_of(t, d, "f"), f);
    drop(t, bucket_of(t, d, "bad"));
    /* A name of nothing. */
    memcpy(item, &e, sizeof(e));
    memcpy(item + sizeof(e), "lost", 4);
    put(t, bucket_of(t, d, "lost"), item, sizeof(e) + 4);
    CHECK_EQ(look(t, d, "lost", &x), ERR_VOLUME_CORRUPT);
    CHECK_EQ(make(t, FS_FILE, d, "lost", 0644, &x), ERR_FS_EXISTS);
    CHECK_EQ(mv(t, d, "lost", d, "g", 0), ERR_VOLUME_CORRUPT);
    CHECK_EQ(rm(t, d, "lost"), ERR_VOLUME_CORRUPT);
    CHECK_EQ(list_all(t, d, 10, true, &l), 0);
    CHECK(listing_find(&l, "lost") && !listing_find(&l, "lost")->has_attr);
    listing_free(&l);
    drop(t, bucket_of(t, d, "lost"));
    /* An inode that is none. */
    uint64_t g = file(t, d, "g", 0644);
    struct tree_key key = inode_key(g);
    uint8_t old[256];
    uint32_t old_len;
    CHECK_EQ(volume_item_get(t->v, key, old, sizeof(old), &old_len), 0);
    put(t, key, "short", 5);
    struct fs_attr a;
    CHECK_EQ(fs_getattr(t->fs, &t->rq, g, 0, &a), ERR_VOLUME_CORRUPT);
    CHECK_EQ(rm(t, d, "g"), ERR_VOLUME_CORRUPT);
    CHECK_EQ(ch_mode(t, g, 0600), ERR_VOLUME_CORRUPT);
    put(t, key, old, old_len);
    CHECK_EQ(rm(t, d, "g"), 0);
}

/* A loop of directories that exists already: a move into it must not walk for ever. */
static may_yield void loop(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), b = folder(t, a, "b", 0755);
    struct disk_inode d;
    uint32_t len;

    (void)folder(t, ROOT, "c", 0755);
    CHECK_EQ(volume_item_get(t->v, inode_key(a), &d, sizeof(d), &len), 0);
    d.parent = le64_make(b);
    put(t, inode_key(a), &d, sizeof(d));
    CHECK_EQ(mv(t, ROOT, "c", b, "c", 0), ERR_VOLUME_CORRUPT);
    char path[64];
    d.parent = le64_make(ROOT);
    CHECK_EQ(fs_path_of(t->fs, b, path, sizeof(path)), 0);
    put(t, inode_key(a), &d, sizeof(d));
    CHECK_EQ(mv(t, ROOT, "c", b, "c", 0), 0);
}

static may_yield void attributes(struct fs_test *t)
{
    static const char name[] = "user.x";
    uint8_t *v = calloc(1, 65536);
    uint64_t f = file(t, ROOT, "f", 0644);
    struct xattr_name n;
    uint32_t len;
    char list[100];

    CHECK_EQ(fs_xattr_set(t->fs, &t->rq, f, name, 6, v, 30000, FS_XATTR_ANY), 0);
    xattr_name_init(t->fs, name, 6, &n);
    drop(t, xattr_key(f, n.number, 3)); /* a hole in the value */
    CHECK_EQ(fs_xattr_get(t->fs, &t->rq, f, name, 6, v, 65536, &len), ERR_VOLUME_CORRUPT);
    CHECK_EQ(fs_xattr_set(t->fs, &t->rq, f, name, 6, v, 10, FS_XATTR_ANY), ERR_VOLUME_CORRUPT);
    CHECK_EQ(fs_xattr_remove(t->fs, &t->rq, f, name, 6), ERR_VOLUME_CORRUPT);
    put(t, xattr_key(f, n.number, 0), "\1\0\0", 3);
    CHECK_EQ(fs_xattr_list(t->fs, &t->rq, f, list, sizeof(list), &len), ERR_VOLUME_CORRUPT);
    CHECK_EQ(fs_xattr_set(t->fs, &t->rq, f, name, 6, v, 10, FS_XATTR_ANY), ERR_VOLUME_CORRUPT);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    free(v);

    /* An ACL that is not there, though the inode says so. */
    uint64_t g = file(t, ROOT, "g", 0640);
    struct disk_inode d;
    CHECK_EQ(volume_item_get(t->v, inode_key(g), &d, sizeof(d), &len), 0);
    d.flags = le32_make(le32_get(d.flags) | INODE_ACL);
    put(t, inode_key(g), &d, sizeof(d));
    as_user(t, 10, 10);
    CHECK_EQ(may(t, g, FS_MAY_READ), ERR_VOLUME_CORRUPT);
    as_root(t);
    CHECK_EQ(ch_mode(t, g, 0600), ERR_VOLUME_CORRUPT);
    CHECK_EQ(rm(t, ROOT, "g"), 0);
}

static may_yield void quotas(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), x;
    struct disk_quota q;
    uint32_t len;

    CHECK_EQ(fs_quota_set(t->fs, d, GIB, 0), 0);
    for (uint32_t i = 0; i < 1000 && t->fs->quota_scanning; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    struct tree_key key = {d, ITEM_QUOTA, 0};
    CHECK_EQ(volume_item_get(t->v, key, &q, sizeof(q), &len), 0);
    struct disk_quota was = q;
    q.parent = le64_make(d); /* its own parent */
    put(t, key, &q, sizeof(q));
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &x), 0);
    CHECK_EQ(rm(t, d, "x"), 0);
    struct fs_statfs s;
    CHECK_EQ(fs_statfs(t->fs, &t->rq, d, &s, &t->at), 0);
    put(t, key, "?", 1);
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &x), ERR_VOLUME_CORRUPT);
    CHECK_EQ(fs_statfs(t->fs, &t->rq, d, &s, &t->at), ERR_VOLUME_CORRUPT);
    struct fs_quota out;
    CHECK_EQ(fs_quota_get(t->fs, d, &out), ERR_VOLUME_CORRUPT);
    drop(t, key); /* none at all: nothing is counted */
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &x), 0);
    CHECK_EQ(rm(t, d, "x"), 0);
    put(t, key, &was, sizeof(was));
}

static may_yield void locks(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);
    struct fs_lock l = {.start = 0,
                        .len = 10,
                        .exclusive = true,
                        .protocol = FS_LOCK_FUSE,
                        .owner_len = 1,
                        .owner = "a",
                        .client_len = 1,
                        .client = "c"},
                   other;
    struct {
        struct disk_lock d;
        uint8_t rest[2];
    } item = {.rest = {'a', 'c'}};

    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &other), 0);
    /* 600 more of the same owner, which overlap; and one of nonsense. */
    item.d = (struct disk_lock){.len = le64_make(1000),
                                .kind = le32_make(LOCK_READ_),
                                .protocol = le32_make(FS_LOCK_FUSE),
                                .owner_len = le32_make(1),
                                .client_len = le32_make(1)};
    for (uint64_t i = 0; i < 600; i++) {
        item.d.start = le64_make(i % 3);
        put(t, (struct tree_key){f, ITEM_LOCK, 1000 + i}, &item, sizeof(item.d) + 2);
    }
    put(t, (struct tree_key){f, ITEM_LOCK, 5000}, "nonsense", 8);
    fs_close(t->fs);
    CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
    l.start = 5;
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &other), 0);
    l.owner[0] = 'b';
    CHECK_EQ(fs_lock_set(t->fs, &t->rq, f, &l, false, 0, &other), ERR_FS_LOCKED);
    l.owner[0] = 'a';
    l.start = l.len = 0;
    for (uint32_t i = 0; i < 10 && locks_any(t->fs, f); i++)
        CHECK_EQ(fs_lock_clear(t->fs, &t->rq, f, &l), 0);
    CHECK(!locks_any(t->fs, f));
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    CHECK(fs_test_reaped(t));
}

static may_yield void own_item(struct fs_test *t)
{
    struct tree_key key = {FS_OBJECT_FS, ITEM_FS, 0};
    struct disk_fs d, was;
    struct fs *fs;
    uint32_t len;

    CHECK_EQ(volume_item_get(t->v, key, &was, sizeof(was), &len), 0);
    fs_close(t->fs);
    d = was;
    d.version = le32_make(2);
    put(t, key, &d, sizeof(d));
    CHECK_EQ(fs_open(t->v, 0, &fs), ERR_UNSUPPORTED);
    d = was;
    d.next_ino = le64_make(UINT64_MAX);
    put(t, key, &d, sizeof(d));
    CHECK_EQ(fs_open(t->v, 0, &fs), ERR_VOLUME_CORRUPT);
    put(t, key, &was, 7);
    CHECK_EQ(fs_open(t->v, 0, &fs), ERR_VOLUME_CORRUPT);
    put(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_REPLY, 5}, "x", 1);
    put(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_LOCK, 77}, "", 1); /* of a file that is gone */
    put(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_QUOTA, 78}, "", 1);
    put(t, key, &was, sizeof(was));
    CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
    for (uint32_t i = 0; i < 1000 && t->fs->quota_scanning; i++)
        (void)fiber_sleep(NSEC_PER_MSEC);
    struct tree_cursor c; /* what leads to nothing was removed */
    CHECK(volume_item_seek(t->v, (struct tree_key){FS_OBJECT_LISTS, ITEM_LOCK, 0}, SEEK_GE, &c) != 0 ||
          c.key.type == ITEM_REPLY);
    drop(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_REPLY, 5});
}

#define RUN(name, body)            \
    static void name(void **state) \
    {                              \
        (void)state;               \
        fs_test_run(body);         \
    }
RUN(damaged_names_are_errors, directories)
RUN(a_loop_of_directories_is_walked_only_once, loop)
RUN(damaged_attributes_are_errors, attributes)
RUN(damaged_quotas_are_errors, quotas)
RUN(damaged_locks_are_left_out, locks)
RUN(a_damaged_file_system_is_not_opened, own_item)

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(damaged_names_are_errors),      T(a_loop_of_directories_is_walked_only_once),
        T(damaged_attributes_are_errors), T(damaged_quotas_are_errors),
        T(damaged_locks_are_left_out),    T(a_damaged_file_system_is_not_opened),
    };
    return cmocka_run_group_tests_name("filesystem damage", tests, NULL, NULL);
}
