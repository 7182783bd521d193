/* SPDX-License-Identifier: Apache-2.0 */
/* Names: made, found, read, linked, removed. */
#include "fs_test.h"

#define ROOT FS_INO_ROOT

static may_yield void made(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "a", 0640), d = folder(t, ROOT, "d", 0750), x;
    struct fs_attr a = attr_of(t, f);

    CHECK_EQ(a.mode, S_IFREG | 0640);
    CHECK_EQ(a.nlink, 1);
    CHECK_EQ(a.size, 0);
    CHECK(a.generation != 0);
    CHECK_EQ(ino_of(t, ROOT, "a"), f);
    CHECK_EQ(ino_of(t, ROOT, "b"), 0);
    CHECK_EQ(attr_of(t, d).nlink, 2);
    CHECK_EQ(attr_of(t, ROOT).nlink, 3);
    CHECK_EQ(attr_of(t, ROOT).size, 2);
    CHECK_EQ(make(t, FS_FILE, ROOT, "a", 0644, &x), ERR_FS_EXISTS);
    CHECK_EQ(make(t, FS_DIRECTORY, ROOT, "a", 0755, &x), ERR_FS_EXISTS);
    CHECK_EQ(make(t, FS_FILE, f, "b", 0644, &x), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(make(t, FS_FILE, 999999, "b", 0644, &x), ERR_FS_STALE);
    CHECK_EQ(look(t, f, "b", &x), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, f, a.generation, &a), 0);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, f, a.generation + 1, &a), ERR_FS_STALE);
    fs_test_close(t);
    fs_test_open(t);
    CHECK_EQ(ino_of(t, ROOT, "a"), f);
    CHECK_EQ(ino_of(t, ROOT, "d"), d);
    CHECK_EQ(ino_of(t, d, ".."), ROOT);
    CHECK_EQ(ino_of(t, d, "."), d);
    CHECK_EQ(ino_of(t, ROOT, ".."), ROOT);
    CHECK(file(t, d, "c", 0644) > d); /* a number is never used twice */
}

static may_yield void all_types(struct fs_test *t)
{
    static const struct {
        enum fs_type type;
        uint32_t mode;
    } types[] = {{FS_SYMLINK, S_IFLNK},
                 {FS_FIFO, S_IFIFO},
                 {FS_SOCKET, S_IFSOCK},
                 {FS_CHAR, S_IFCHR},
                 {FS_BLOCK, S_IFBLK}};
    uint64_t ino = 0;
    char name[2] = "a", target[FS_SYMLINK_MAX + 1];
    uint32_t len = 0;

    for (uint32_t i = 0; i < ARRAY_SIZE(types); i++, name[0]++) {
        CHECK_EQ(make(t, types[i].type, ROOT, name, 0600, &ino), 0);
        CHECK_EQ(attr_of(t, ino).mode & S_IFMT, types[i].mode);
    }
    CHECK_EQ(fs_readlink(t->fs, &t->rq, ino_of(t, ROOT, "a"), target, &len, &t->at), 0);
    CHECK_EQ(len, 14);
    CHECK(strcmp(target, "where/it/leads") == 0);
    CHECK_EQ(t->at.mode, S_IFLNK | 0777);
    CHECK_EQ(t->at.size, 14);
    CHECK_EQ(fs_readlink(t->fs, &t->rq, ino_of(t, ROOT, "b"), target, &len, &t->at), ERR_FS_INVALID);

    struct fs_create dev = {
        .type = FS_CHAR, .attr = {.valid = FS_SET_MODE, .mode = 0600}, .rdev_major = 7, .rdev_minor = 300};
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "dev", 3, &dev, &t->at, NULL, NULL), 0);
    CHECK_EQ(t->at.rdev_major, 7);
    CHECK_EQ(t->at.rdev_minor, 300);
    as_user(t, 10, 10);
    CHECK_EQ(make(t, FS_CHAR, ROOT, "dev2", 0600, &ino), ERR_FS_NOT_OWNER);
    CHECK_EQ(make(t, FS_FIFO, ROOT, "fifo2", 0600, &ino), 0);

    char longest[FS_SYMLINK_MAX + 2];
    memset(longest, 'x', sizeof(longest));
    struct fs_create s = {.type = FS_SYMLINK, .target = longest, .target_len = FS_SYMLINK_MAX};
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "long", 4, &s, &t->at, NULL, NULL), 0);
    CHECK_EQ(fs_readlink(t->fs, &t->rq, t->at.ino, target, &len, &t->at), 0);
    CHECK_EQ(len, FS_SYMLINK_MAX);
    s.target_len++;
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "more", 4, &s, &t->at, NULL, NULL), ERR_FS_NAME_TOO_LONG);
    s.target_len = 0;
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "more", 4, &s, &t->at, NULL, NULL), ERR_FS_NOT_FOUND);
}

static may_yield void odd_names(struct fs_test *t)
{
    char name[300];
    uint64_t ino;

    memset(name, 'n', sizeof(name));
    name[FS_NAME_MAX] = 0;
    CHECK_EQ(make(t, FS_FILE, ROOT, name, 0644, &ino), 0);
    CHECK_EQ(ino_of(t, ROOT, name), ino);
    name[FS_NAME_MAX] = 'n';
    name[FS_NAME_MAX + 1] = 0;
    CHECK_EQ(make(t, FS_FILE, ROOT, name, 0644, &ino), ERR_FS_NAME_TOO_LONG);
    CHECK_EQ(look(t, ROOT, name, &ino), ERR_FS_NAME_TOO_LONG);
    CHECK_EQ(rm(t, ROOT, name), ERR_FS_NAME_TOO_LONG);
    CHECK_EQ(make(t, FS_FILE, ROOT, "", 0644, &ino), ERR_FS_BAD_NAME);
    CHECK_EQ(make(t, FS_FILE, ROOT, "a/b", 0644, &ino), ERR_FS_BAD_NAME);
    CHECK_EQ(make(t, FS_FILE, ROOT, ".", 0644, &ino), ERR_FS_EXISTS);
    CHECK_EQ(make(t, FS_DIRECTORY, ROOT, "..", 0644, &ino), ERR_FS_EXISTS);
    CHECK_EQ(rm_dir(t, ROOT, "."), ERR_FS_INVALID);
    CHECK_EQ(rm_dir(t, ROOT, ".."), ERR_FS_NOT_EMPTY);
    CHECK_EQ(mv(t, ROOT, ".", ROOT, "x", 0), ERR_FS_BAD_NAME);
    for (int c = 1; c < 256; c++) { /* every byte there is */
        char one[4] = {'_', (char)c, '_', 0};
        if (c != '/')
            CHECK_EQ(make(t, FS_FILE, ROOT, one, 0644, &ino), 0);
    }
    CHECK_EQ(attr_of(t, ROOT).size, 255);
}

static may_yield void removed(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755), g = file(t, d, "g", 0644), ino = 0;
    struct fs_attr a;

    CHECK_EQ(rm(t, ROOT, "none"), ERR_FS_NOT_FOUND);
    CHECK(t->wcc.has_before && t->wcc.has_after);
    CHECK_EQ(rm(t, ROOT, "d"), ERR_FS_IS_DIRECTORY);
    CHECK_EQ(rm_dir(t, ROOT, "f"), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(rm_dir(t, ROOT, "d"), ERR_FS_NOT_EMPTY);
    CHECK_EQ(rm(t, g, "x"), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(fs_unlink(t->fs, &t->rq, ROOT, "f", 1, &ino, &t->wcc), 0);
    CHECK_EQ(ino, f);
    CHECK_EQ(t->wcc.before_size, 2);
    CHECK_EQ(t->wcc.after.size, 1);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, f, 0, &a), ERR_FS_STALE);
    CHECK_EQ(rm(t, d, "g"), 0);
    CHECK_EQ(rm_dir(t, ROOT, "d"), 0);
    CHECK_EQ(attr_of(t, ROOT).nlink, 2);
    CHECK_EQ(attr_of(t, ROOT).size, 0);
    CHECK_EQ(volume_inode_count(t->v), 1);

    uint64_t big = file(t, ROOT, "big", 0644);
    CHECK_EQ(fill(t, big, 9 * MIB), 0);
    CHECK_EQ(rm(t, ROOT, "big"), 0);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, big, 0, &a), ERR_FS_STALE);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(volume_inode_count(t->v), 1);
}

static may_yield void open_removed(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755), ino;
    struct fs_attr a;

    CHECK_EQ(fill(t, f, 5000), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, d, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    CHECK_EQ(rm_dir(t, ROOT, "d"), 0);
    CHECK_EQ(attr_of(t, f).nlink, 0);
    CHECK_EQ(attr_of(t, f).size, 5000);
    CHECK_EQ(ch_mode(t, f, 0600), 0);
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &ino), ERR_FS_NOT_FOUND);
    CHECK_EQ(ln(t, f, ROOT, "again"), ERR_FS_NOT_FOUND);
    fs_open_put(t->fs, f, FS_OPEN_READ);
    fs_open_put(t->fs, d, FS_OPEN_READ);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, f, 0, &a), ERR_FS_STALE);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(volume_inode_count(t->v), 1);
}

static may_yield void orphan_restart(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644);
    struct fs_attr a;

    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    /* Killed; whoever had it open comes back in time. */
    volume_fail(t->v, ERR_SHORT_IO, "the test");
    fs_open_put(t->fs, f, FS_OPEN_READ);
    fs_close(t->fs);
    CHECK(volume_close(t->v) != 0);
    CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0);
    CHECK_EQ(fs_open(t->v, 3600 * NSEC_PER_SEC, &t->fs), 0);
    (void)fiber_sleep(20 * NSEC_PER_MSEC);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(a.nlink, 0);
    fs_open_put(t->fs, f, FS_OPEN_READ);
    fs_test_close(t);
    fs_test_open(t); /* without grace: it goes */
    CHECK(fs_test_reaped(t));
    CHECK_EQ(fs_open_get(t->fs, &t->rq, f, FS_OPEN_READ, false, &a), ERR_FS_STALE);
    CHECK_EQ(volume_inode_count(t->v), 1);
}

static may_yield void linked(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755);

    CHECK_EQ(ln(t, f, d, "g"), 0);
    CHECK_EQ(t->at.nlink, 2);
    CHECK_EQ(ln(t, f, d, "g"), ERR_FS_EXISTS);
    CHECK_EQ(ln(t, d, ROOT, "d2"), ERR_FS_NOT_OWNER);
    CHECK_EQ(ln(t, f, f, "x"), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(ln(t, 7777, ROOT, "x"), ERR_FS_STALE);
    CHECK_EQ(ino_of(t, d, "g"), f);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    CHECK_EQ(attr_of(t, f).nlink, 1);
    CHECK_EQ(ino_of(t, d, "g"), f);
    CHECK_EQ(rm(t, d, "g"), 0);
    CHECK_EQ(volume_inode_count(t->v), 2);
}

static may_yield void create_modes(struct fs_test *t)
{
    struct fs_create c = {
        .type = FS_FILE, .how = FS_CREATE_UNCHECKED, .attr = {.valid = FS_SET_MODE, .mode = 0644}};
    bool created = false;
    uint64_t d = folder(t, ROOT, "d", 0755);

    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "f", 1, &c, &t->at, &created, &t->wcc), 0);
    CHECK(created);
    uint64_t f = t->at.ino;
    CHECK_EQ(fill(t, f, 100), 0);
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "f", 1, &c, &t->at, &created, &t->wcc), 0);
    CHECK(!created);
    CHECK_EQ(t->at.ino, f);
    CHECK_EQ(t->at.size, 100);
    c.attr.valid |= FS_SET_SIZE;
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "f", 1, &c, &t->at, &created, &t->wcc), 0);
    CHECK_EQ(t->at.size, 0);
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "d", 1, &c, &t->at, &created, &t->wcc), ERR_FS_EXISTS);
    CHECK_EQ(ino_of(t, ROOT, "d"), d);
    c.how = FS_CREATE_GUARDED;
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "f", 1, &c, &t->at, &created, &t->wcc), ERR_FS_EXISTS);

    struct fs_create x = {
        .type = FS_FILE, .how = FS_CREATE_EXCLUSIVE, .verifier = UINT64_C(0xf123456789abcdef)};
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "x", 1, &x, &t->at, &created, &t->wcc), 0);
    uint64_t first = t->at.ino;
    CHECK(created);
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "x", 1, &x, &t->at, &created, &t->wcc), 0);
    CHECK_EQ(t->at.ino, first);
    CHECK(!created);
    x.verifier++;
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "x", 1, &x, &t->at, &created, &t->wcc), ERR_FS_EXISTS);

    struct fs_create o = {.type = FS_FILE, .how = FS_CREATE_GUARDED, .open = true};
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "o", 1, &o, &t->at, &created, &t->wcc), 0);
    uint64_t opened = t->at.ino;
    CHECK_EQ(rm(t, ROOT, "o"), 0);
    CHECK_EQ(attr_of(t, opened).nlink, 0);
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "f", 1, &o, &t->at, &created, &t->wcc), ERR_FS_EXISTS);
    CHECK_EQ(opens_count(t->fs), 1);
    fs_open_put(t->fs, opened, 0);
}

/* ---- Reading directories ---- */

static may_yield void listed(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755);
    struct listing all, few;
    char name[32];

    for (uint32_t i = 0; i < 700; i++) {
        snprintf(name, sizeof(name), "name-%u", i);
        (void)file(t, d, name, 0644);
    }
    CHECK_EQ(list_all(t, d, 10000, true, &all), 0);
    CHECK_EQ(all.count, 702);
    CHECK_EQ(all.calls, 1);
    CHECK(strcmp(all.names[0].name, ".") == 0 && all.names[0].ino == d);
    CHECK(strcmp(all.names[1].name, "..") == 0 && all.names[1].ino == ROOT);
    for (uint32_t i = 0; i < all.count; i++) {
        CHECK(all.names[i].has_attr);
        CHECK(i == 0 || all.names[i].cookie > all.names[i - 1].cookie);
    }
    CHECK(listing_find(&all, "name-699") != NULL);
    CHECK_EQ(listing_find(&all, "name-3")->type, DT_REG);
    CHECK_EQ(list_all(t, d, 3, false, &few), 0);
    CHECK_EQ(few.count, all.count);
    CHECK(memcmp(few.names, all.names, 0) == 0 && strcmp(few.names[500].name, all.names[500].name) == 0);
    listing_free(&all);
    listing_free(&few);
    CHECK_EQ(list_all(t, file(t, ROOT, "f", 0644), 3, false, &few), ERR_FS_NOT_DIRECTORY);
    listing_free(&few);
}

/* Names come and go while somebody reads: all that stay are seen exactly once. */
static may_yield void listed_while_changing(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), cookie = 0;
    static uint8_t seen[400];
    struct listing l = {0};
    bool eof = false;
    char name[32];

    memset(seen, 0, sizeof(seen));
    for (uint32_t i = 0; i < 400; i++) {
        snprintf(name, sizeof(name), "s%u", i);
        (void)file(t, d, name, 0644);
    }
    for (uint32_t turn = 0; !eof && turn < 1000; turn++) {
        l.count = 0;
        l.max = 7;
        CHECK_EQ(fs_readdir(t->fs, &t->rq, d, cookie, false, list_emit_for_tests, &l, &eof, NULL), 0);
        for (uint32_t i = 0; i < l.count; i++) {
            cookie = l.names[i].cookie;
            if (l.names[i].name[0] == 's')
                seen[strtoull(l.names[i].name + 1, NULL, 10) % 400]++;
        }
        snprintf(name, sizeof(name), "t%u", turn);
        (void)file(t, d, name, 0644);
        if (turn > 2) {
            snprintf(name, sizeof(name), "t%u", turn - 3);
            CHECK_EQ(rm(t, d, name), 0);
        }
        if (turn < 20) { /* the first ones go, wherever they are */
            snprintf(name, sizeof(name), "s%u", turn);
            CHECK_EQ(rm(t, d, name), 0);
        }
    }
    for (uint32_t i = 0; i < 400; i++)
        CHECK(i < 20 ? seen[i] <= 1 : seen[i] == 1);
    listing_free(&l);
}

/* ---- Names of one hash share an item ---- */

static may_yield void one_bucket(struct fs_test *t)
{
    struct bucket b = {.key = bucket_key(ROOT, 64), .len = 0};
    struct name n[9];
    char names[9][8];
    struct entry e;

    for (uint32_t i = 0; i < 9; i++) {
        snprintf(names[i], sizeof(names[i]), "n%u", i);
        CHECK_EQ(name_init(t->fs, names[i], 2, &n[i]), 0);
    }
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(bucket_add(&b, &n[i], 100 + i, 5, S_IFREG | 0644), 0);
    CHECK_EQ(bucket_add(&b, &n[8], 108, 5, S_IFREG | 0644), ERR_FS_DIR_FULL);
    CHECK_EQ(bucket_decode(b.bytes, b.len), 0);
    CHECK(bucket_find(t->fs, &b, &n[5], &e) && e.ino == 105 && e.slot == 5);
    bucket_remove(&b, 2);
    bucket_remove(&b, 6);
    CHECK(!bucket_find(t->fs, &b, &n[2], &e));
    CHECK(bucket_find(t->fs, &b, &n[5], &e) && e.slot == 5); /* its cookie stays */
    CHECK_EQ(bucket_add(&b, &n[8], 108, 5, S_IFDIR | 0755), 0);
    CHECK(bucket_find(t->fs, &b, &n[8], &e) && e.slot == 2 && e.type == DT_DIR);
    bucket_replace(&b, 2, 200, 9, S_IFLNK | 0777);
    CHECK(bucket_find(t->fs, &b, &n[8], &e) && e.ino == 200 && e.type == DT_LNK && e.generation == 9);
    CHECK_EQ(bucket_decode(b.bytes, b.len), 0);
}

/* ---- Where case does not count ---- */

static may_yield void insensitive(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "ÄPFEL.Txt", 0644), ino;
    struct listing l;

    CHECK_EQ(ino_of(t, ROOT, "äpfel.tXT"), f);
    CHECK_EQ(make(t, FS_FILE, ROOT, "äpfel.txt", 0644, &ino), ERR_FS_EXISTS);
    CHECK_EQ(list_all(t, ROOT, 100, false, &l), 0);
    CHECK(listing_find(&l, "ÄPFEL.Txt") != NULL); /* kept as it was given */
    listing_free(&l);
    CHECK_EQ(mv(t, ROOT, "äpfel.txt", ROOT, "Äpfel.txt", 0), 0);
    CHECK_EQ(list_all(t, ROOT, 100, false, &l), 0);
    CHECK(listing_find(&l, "Äpfel.txt") != NULL);
    CHECK_EQ(l.count, 3);
    listing_free(&l);
    uint64_t other = file(t, ROOT, "zwei", 0644);
    CHECK_EQ(mv(t, ROOT, "ZWEI", ROOT, "ÄPFEL.TXT", 0), 0);
    CHECK_EQ(ino_of(t, ROOT, "äpfel.txt"), other);
    CHECK_EQ(list_all(t, ROOT, 100, false, &l), 0);
    CHECK(listing_find(&l, "ÄPFEL.TXT") != NULL);
    CHECK_EQ(l.count, 3);
    listing_free(&l);
    CHECK_EQ(rm(t, ROOT, "äPFEL.txt"), 0);
    CHECK_EQ(attr_of(t, ROOT).size, 0);
}

/* ---- What a crash leaves ---- */

static may_yield void crashed(struct fs_test *t)
{
    char name[32];
    uint64_t last = 0, ino;

    for (uint32_t round = 0; round < 5; round++) {
        uint64_t d = folder(t, ROOT, (snprintf(name, sizeof(name), "d%u", round), name), 0755);
        for (uint32_t i = 0; i < 50; i++) {
            snprintf(name, sizeof(name), "f%u", i);
            ino = file(t, d, name, 0644);
            CHECK(ino > last);
            last = ino;
            if (i % 3 == 0)
                CHECK_EQ(rm(t, d, name), 0);
        }
        fs_test_crash(t);
        CHECK_EQ(attr_of(t, d).size, 33);
        CHECK_EQ(ino_of(t, d, "f0"), 0);
        CHECK(ino_of(t, d, "f1") != 0);
        CHECK(fs_test_consistent(t));
    }
}

static may_yield void full_volume(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 0755), ino;
    char name[32];
    uint32_t made_files = 0;
    int r = 0;

    for (uint32_t i = 0; !r && i < 400; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        r = make(t, FS_FILE, d, name, 0644, &ino);
        if (!r)
            r = fill(t, ino, MIB);
        made_files = i + 1;
    }
    CHECK_EQ(error_errno(r), ENOSPC);
    for (uint32_t i = 0; i < made_files; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        r = rm(t, d, name);
        CHECK(r == 0 || (i == made_files - 1 && r == ERR_FS_NOT_FOUND));
    }
    CHECK_EQ(rm_dir(t, ROOT, "d"), 0);
    CHECK(fs_test_reaped(t));
    CHECK_EQ(volume_commit(t->v), 0);
    CHECK_EQ(volume_commit(t->v), 0);
    CHECK_EQ(fill(t, file(t, ROOT, "again", 0644), 4 * MIB), 0);
}

#define RUN(name, body)            \
    static void name(void **state) \
    {                              \
        (void)state;               \
        fs_test_run(body);         \
    }
RUN(a_name_that_was_made_is_found_after_reopening, made)
RUN(every_type_of_inode_can_be_made, all_types)
RUN(names_have_any_bytes_up_to_255_of_them, odd_names)
RUN(the_last_name_takes_the_inode_with_it, removed)
RUN(an_open_file_outlives_its_last_name, open_removed)
RUN(an_orphan_waits_for_its_owner_in_the_grace_period, orphan_restart)
RUN(a_hard_link_is_as_good_as_the_first_name, linked)
RUN(creating_what_exists_follows_its_mode, create_modes)
RUN(a_directory_is_read_in_pieces_of_any_size, listed)
RUN(names_that_stay_are_read_once_whatever_changes, listed_while_changing)
RUN(names_of_one_hash_keep_their_slots, one_bucket)
RUN(an_acknowledged_name_survives_a_crash, crashed)
RUN(deleting_works_on_a_full_volume, full_volume)

static void names_that_differ_in_case_are_one_where_case_does_not_count(void **state)
{
    (void)state;
    fs_test_run_insensitive(insensitive);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(a_name_that_was_made_is_found_after_reopening),
        T(every_type_of_inode_can_be_made),
        T(names_have_any_bytes_up_to_255_of_them),
        T(the_last_name_takes_the_inode_with_it),
        T(an_open_file_outlives_its_last_name),
        T(an_orphan_waits_for_its_owner_in_the_grace_period),
        T(a_hard_link_is_as_good_as_the_first_name),
        T(creating_what_exists_follows_its_mode),
        T(a_directory_is_read_in_pieces_of_any_size),
        T(names_that_stay_are_read_once_whatever_changes),
        T(names_of_one_hash_keep_their_slots),
        T(names_that_differ_in_case_are_one_where_case_does_not_count),
        T(an_acknowledged_name_survives_a_crash),
        T(deleting_works_on_a_full_volume),
    };
    return cmocka_run_group_tests_name("filesystem names", tests, NULL, NULL);
}
