/* SPDX-License-Identifier: Apache-2.0 */
/* Every inconsistency has a name, is found, and mended as its table says. */
#include "fs_test.h"

#include "filesystem/fs_verify.h"

#define ROOT FS_INO_ROOT

struct seen {
    uint32_t count[FS_FINDING_COUNT];
};

static void see(void *ctx, const struct fs_finding *f, const char *sentence)
{
    struct seen *s = ctx;
    s->count[f->kind]++;
    CHECK(strncmp(sentence, fs_finding_name(f->kind), strlen(fs_finding_name(f->kind))) == 0);
}

/* Puts (value NULL: deletes) an item behind the file system's back. */
static may_yield void tamper(struct fs_test *t, struct tree_key key, const void *value, uint32_t len)
{
    struct change c;
    const void *old;
    uint32_t old_len;
    int r;
    change_init(&c, t->v);
    do {
        change_clear(&c);
        change_want(&c, key);
        change_will_put(&c, MAX(len, 1u));
        change_will_delete(&c);
        r = change_begin(&c);
        if (r == 0)
            r = change_get(&c, key, &old, &old_len);
        if (r == ERR_NOT_FOUND && value != NULL)
            r = 0;
        if (r == 0 && value != NULL)
            change_put(&c, key, value, len);
        else if (r == 0)
            change_delete(&c, key);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    CHECK_EQ(r, 0);
}

static may_yield struct disk_inode inode_of(struct fs_test *t, uint64_t ino)
{
    struct disk_inode d = {0};
    uint32_t len;
    CHECK_EQ(volume_item_get(t->v, inode_key(ino), &d, sizeof(d), &len), 0);
    return d;
}

static may_yield void put_inode(struct fs_test *t, uint64_t ino, struct disk_inode d)
{
    tamper(t, inode_key(ino), &d, sizeof(d));
}

/* Found once at least; mended; and then nothing is left. The file system is closed meanwhile. */
static may_yield void found_and_mended(struct fs_test *t, enum fs_finding_kind kind)
{
    struct seen s = {0};
    struct fs_verify v = {.found = see, .ctx = &s};
    uint64_t repaired = 0;
    if (t->fs != NULL)
        fs_close(t->fs);
    CHECK_EQ(fs_verify(t->v, &v), 0);
    CHECK(v.problems > 0);
    CHECK_EQ(s.count[kind] > 0 ? kind : FS_FINDING_COUNT, kind);
    CHECK_EQ(fs_repair(t->v, &v, &repaired), 0);
    CHECK(repaired > 0);
    CHECK_EQ(v.problems, 0);
    CHECK_EQ(fs_verify(t->v, &v), 0);
    CHECK_EQ(v.problems, 0);
    CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
}

static may_yield void close_it(struct fs_test *t)
{
    fs_close(t->fs);
    t->fs = NULL;
}

static may_yield uint64_t lost(struct fs_test *t, uint64_t ino)
{
    char name[32];
    uint64_t dir = ino_of(t, ROOT, "lost+found");
    snprintf(name, sizeof(name), "#%llu", (unsigned long long)ino);
    return dir != 0 ? ino_of(t, dir, name) : 0;
}

static may_yield void counts(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755);
    file(t, d, "g", 0644);
    CHECK_EQ(fill(t, f, 3 * BLOCK_SIZE), 0);
    struct disk_inode n = inode_of(t, f);
    n.nlink = le32_make(7);
    put_inode(t, f, n);
    found_and_mended(t, FS_FINDING_LINK_COUNT);
    CHECK_EQ(attr_of(t, f).nlink, 1);
    n = inode_of(t, f);
    n.blocks = le64_make(1000);
    put_inode(t, f, n);
    found_and_mended(t, FS_FINDING_BLOCK_COUNT);
    CHECK_EQ(attr_of(t, f).used_bytes, 3 * BLOCK_SIZE);
    n = inode_of(t, d);
    n.size = le64_make(5);
    put_inode(t, d, n);
    found_and_mended(t, FS_FINDING_DIRECTORY_SIZE);
    CHECK_EQ(attr_of(t, d).size, 1);
    n = inode_of(t, f);
    n.quota = le64_make(12345);
    put_inode(t, f, n);
    found_and_mended(t, FS_FINDING_QUOTA_OF_INODE);
    n = inode_of(t, d);
    n.parent = le64_make(f);
    put_inode(t, d, n);
    found_and_mended(t, FS_FINDING_DIRECTORY_PARENT);
    CHECK_EQ(ino_of(t, d, ".."), ROOT);
}

static may_yield struct bucket bucket_of(struct fs_test *t, uint64_t dir, const char *text)
{
    struct name name;
    struct bucket b = {.len = 0};
    CHECK_EQ(name_init(t->fs, text, (uint32_t)strlen(text), &name), 0);
    CHECK_EQ(bucket_read(t->fs, dir, &name, &b), 0);
    CHECK(b.len > 0);
    return b;
}

static may_yield void names(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755), g = file(t, d, "g", 0644);
    /* A name of what does not exist. */
    tamper(t, inode_key(g), NULL, 0);
    found_and_mended(t, FS_FINDING_NAME_DANGLING);
    CHECK_EQ(ino_of(t, d, "g"), 0);
    CHECK_EQ(attr_of(t, d).size, 0);
    /* An inode whose only name is gone: a file, and a directory with something in it. */
    uint64_t h = file(t, d, "h", 0644);
    struct bucket b = bucket_of(t, ROOT, "d");
    tamper(t, b.key, NULL, 0);
    b = bucket_of(t, ROOT, "f");
    tamper(t, b.key, NULL, 0);
    found_and_mended(t, FS_FINDING_NO_NAME);
    CHECK_EQ(lost(t, f), f);
    CHECK_EQ(lost(t, d), d);
    CHECK_EQ(ino_of(t, d, "h"), h);
    CHECK_EQ(ino_of(t, d, ".."), ino_of(t, ROOT, "lost+found"));
    /* A name with another type. */
    b = bucket_of(t, d, "h");
    b.bytes[offsetof(struct disk_dirent, type)] = DT_FIFO;
    tamper(t, b.key, b.bytes, b.len);
    found_and_mended(t, FS_FINDING_NAME_TYPE);
    /* And one where nobody looks for it. */
    b = bucket_of(t, d, "h");
    tamper(t, b.key, NULL, 0);
    b.key.offset = FS_COOKIE_FIRST + BUCKET_SLOTS;
    tamper(t, b.key, b.bytes, b.len);
    CHECK_EQ(ino_of(t, d, "h"), 0);
    found_and_mended(t, FS_FINDING_NAME_PLACE);
    CHECK_EQ(ino_of(t, d, "h"), h);
}

static may_yield void directories(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), b = folder(t, a, "b", 0755), c = folder(t, b, "c", 0755);
    /* A second name for a directory. */
    struct bucket bucket = bucket_of(t, b, "c");
    tamper(t, bucket_key(ROOT, bucket.key.offset), bucket.bytes, bucket.len);
    found_and_mended(t, FS_FINDING_DIRECTORY_NAMES);
    CHECK_EQ(ino_of(t, b, "c"), c);
    CHECK_EQ(ino_of(t, ROOT, "c"), 0);
    /* a lies in c, which lies in b, which lies in a. */
    bucket = bucket_of(t, ROOT, "a");
    tamper(t, bucket.key, NULL, 0);
    tamper(t, bucket_key(c, bucket.key.offset), bucket.bytes, bucket.len);
    found_and_mended(t, FS_FINDING_DIRECTORY_LOOP);
    CHECK_EQ(lost(t, a) + lost(t, b) + lost(t, c) > 0, 1);
}

static may_yield void items(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), g = file(t, ROOT, "g", 0644);
    CHECK_EQ(fill(t, f, 2 * BLOCK_SIZE), 0);
    /* Data of an inode that does not exist: it is kept, for root. */
    struct bucket b = bucket_of(t, ROOT, "f");
    tamper(t, b.key, NULL, 0);
    tamper(t, inode_key(f), NULL, 0);
    found_and_mended(t, FS_FINDING_ITEMS_WITHOUT_INODE);
    CHECK_EQ(lost(t, f), f);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0600);
    CHECK_EQ(attr_of(t, f).used_bytes, 2 * BLOCK_SIZE);
    /* Bytes that nobody understands. */
    tamper(t, inode_key(g), "what?", 5);
    found_and_mended(t, FS_FINDING_ITEM_BAD);
    /* Orphans. */
    struct disk_orphan o = {.why = le32_make(ORPHAN_DELETE)};
    close_it(t); /* the reaper would see them first */
    tamper(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_ORPHAN, 99999}, &o, sizeof(o));
    found_and_mended(t, FS_FINDING_ORPHAN_GONE);
    close_it(t);
    tamper(t, (struct tree_key){FS_OBJECT_LISTS, ITEM_ORPHAN, f}, &o, sizeof(o));
    found_and_mended(t, FS_FINDING_ORPHAN_NAMED);
    /* A number that was not given away. */
    struct disk_inode n = inode_of(t, f);
    uint64_t far = 900000;
    put_inode(t, far, n);
    found_and_mended(t, FS_FINDING_INODE_NUMBER);
    CHECK(file(t, ROOT, "after", 0644) > far);
}

static may_yield void quotas(struct fs_test *t)
{
    struct disk_quota q = {0};
    uint64_t d = folder(t, ROOT, "d", 0755);
    uint32_t len;
    struct fs_quota seen = {.scanning = true};
    CHECK_EQ(fs_quota_set(t->fs, d, GIB, 1000), 0);
    file(t, d, "f", 0644);
    for (int i = 0; seen.scanning && i < 1000; i++) {
        CHECK_EQ(fs_quota_get(t->fs, d, &seen), 0);
        CHECK_EQ(fiber_sleep(NSEC_PER_MSEC), 0);
    }
    struct tree_key key = {d, ITEM_QUOTA, 0};
    CHECK_EQ(volume_item_get(t->v, key, &q, sizeof(q), &len), 0);
    struct disk_quota right = q;
    q.used_inodes = le64_make(500);
    tamper(t, key, &q, sizeof(q));
    found_and_mended(t, FS_FINDING_QUOTA_USAGE);
    CHECK_EQ(volume_item_get(t->v, key, &q, sizeof(q), &len), 0);
    CHECK_EQ(le64_get(q.used_inodes), le64_get(right.used_inodes));
    q.parent = le64_make(77);
    tamper(t, key, &q, sizeof(q));
    found_and_mended(t, FS_FINDING_QUOTA_PARENT);
}

static void counts_that_are_wrong_are_set_to_what_is_there(void **state)
{
    fs_test_run(counts);
}
static void names_and_inodes_that_lost_each_other_are_found(void **state)
{
    fs_test_run(names);
}
static void directories_with_two_names_or_in_themselves_are_untangled(void **state)
{
    fs_test_run(directories);
}
static void items_without_an_owner_go_to_lost_and_found(void **state)
{
    fs_test_run(items);
}
static void quotas_are_counted_anew(void **state)
{
    fs_test_run(quotas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(counts_that_are_wrong_are_set_to_what_is_there),
        T(names_and_inodes_that_lost_each_other_are_found),
        T(directories_with_two_names_or_in_themselves_are_untangled),
        T(items_without_an_owner_go_to_lost_and_found),
        T(quotas_are_counted_anew),
    };
    return cmocka_run_group_tests_name("checking and mending file systems", tests, NULL, NULL);
}
