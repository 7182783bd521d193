/* SPDX-License-Identifier: Apache-2.0 */
/* Renaming, in all its cases. */
#include "fs_test.h"

#define ROOT FS_INO_ROOT

static may_yield void simple(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), b = folder(t, ROOT, "b", 0755), f = file(t, a, "f", 0644);
    struct fs_attr before = attr_of(t, f);

    CHECK_EQ(mv(t, a, "f", a, "g", 0), 0);
    CHECK_EQ(ino_of(t, a, "f"), 0);
    CHECK_EQ(ino_of(t, a, "g"), f);
    CHECK_EQ(mv(t, a, "g", b, "h", 0), 0);
    CHECK_EQ(t->wcc.before_size, 1);
    CHECK_EQ(t->wcc.after.size, 0);
    CHECK_EQ(t->wcc_to.after.size, 1);
    CHECK_EQ(ino_of(t, b, "h"), f);
    CHECK(attr_of(t, f).ctime_ns > before.ctime_ns);
    CHECK_EQ(attr_of(t, f).mtime_ns, before.mtime_ns);
    CHECK_EQ(mv(t, a, "none", b, "h", 0), ERR_FS_NOT_FOUND);
    CHECK_EQ(mv(t, b, "h", f, "x", 0), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(mv(t, b, "h", b, "h", 0), 0); /* itself */
    CHECK_EQ(ino_of(t, b, "h"), f);

    uint64_t d = folder(t, a, "d", 0755);
    CHECK_EQ(attr_of(t, a).nlink, 3);
    CHECK_EQ(mv(t, a, "d", b, "d", 0), 0);
    CHECK_EQ(attr_of(t, a).nlink, 2);
    CHECK_EQ(attr_of(t, b).nlink, 3);
    CHECK_EQ(ino_of(t, d, ".."), b);
}

static may_yield void over(struct fs_test *t)
{
    uint64_t f = file(t, ROOT, "f", 0644), g = file(t, ROOT, "g", 0644), d = folder(t, ROOT, "d", 0755),
             e = folder(t, ROOT, "e", 0755), h = file(t, e, "h", 0644);
    struct fs_attr a;

    CHECK_EQ(mv(t, ROOT, "f", ROOT, "d", 0), ERR_FS_IS_DIRECTORY);
    CHECK_EQ(mv(t, ROOT, "d", ROOT, "f", 0), ERR_FS_NOT_DIRECTORY);
    CHECK_EQ(mv(t, ROOT, "d", ROOT, "e", 0), ERR_FS_NOT_EMPTY);
    CHECK_EQ(mv(t, ROOT, "f", ROOT, "g", FS_RENAME_NOREPLACE), ERR_FS_EXISTS);
    CHECK_EQ(mv(t, ROOT, "f", ROOT, "g", 0), 0);
    CHECK_EQ(ino_of(t, ROOT, "g"), f);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, g, 0, &a), ERR_FS_STALE);
    CHECK_EQ(mv(t, ROOT, "e", ROOT, "d", 0), 0);
    CHECK_EQ(fs_getattr(t->fs, &t->rq, d, 0, &a), ERR_FS_STALE);
    CHECK_EQ(ino_of(t, ROOT, "d"), e);
    CHECK_EQ(attr_of(t, ROOT).nlink, 3);
    CHECK_EQ(ino_of(t, e, "h"), h);

    /* Over one that is open, and over one of several names. */
    uint64_t x = file(t, ROOT, "x", 0644), y = file(t, ROOT, "y", 0644);
    CHECK_EQ(fs_open_get(t->fs, &t->rq, x, FS_OPEN_READ, false, &a), 0);
    CHECK_EQ(mv(t, ROOT, "y", ROOT, "x", 0), 0);
    CHECK_EQ(attr_of(t, x).nlink, 0);
    fs_open_put(t->fs, x, FS_OPEN_READ);
    CHECK_EQ(ln(t, y, ROOT, "y2"), 0);
    CHECK_EQ(mv(t, ROOT, "x", ROOT, "y2", 0), 0); /* two names of one file: nothing happens */
    CHECK_EQ(ino_of(t, ROOT, "x"), y);
    CHECK_EQ(ino_of(t, ROOT, "y2"), y);
    CHECK_EQ(mv(t, ROOT, "g", ROOT, "y2", 0), 0);
    CHECK_EQ(attr_of(t, y).nlink, 1);
    CHECK_EQ(ino_of(t, ROOT, "y2"), f);
}

static may_yield void exchanged(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), f = file(t, ROOT, "f", 0644), d = folder(t, a, "d", 0755),
             g = file(t, d, "g", 0644);

    CHECK_EQ(mv(t, ROOT, "f", a, "none", FS_RENAME_EXCHANGE), ERR_FS_NOT_FOUND);
    CHECK_EQ(mv(t, ROOT, "f", a, "d", FS_RENAME_EXCHANGE | FS_RENAME_NOREPLACE), ERR_FS_INVALID);
    CHECK_EQ(mv(t, ROOT, "f", a, "d", FS_RENAME_EXCHANGE), 0);
    CHECK_EQ(ino_of(t, ROOT, "f"), d);
    CHECK_EQ(ino_of(t, a, "d"), f);
    CHECK_EQ(ino_of(t, d, ".."), ROOT);
    CHECK_EQ(attr_of(t, a).nlink, 2);
    CHECK_EQ(attr_of(t, ROOT).nlink, 4);
    CHECK_EQ(ino_of(t, d, "g"), g);
    CHECK_EQ(mv(t, ROOT, "f", ROOT, "a", FS_RENAME_EXCHANGE), 0);
    CHECK_EQ(ino_of(t, ROOT, "f"), a);
    CHECK_EQ(ino_of(t, ROOT, "a"), d);
}

static may_yield void loops(struct fs_test *t)
{
    uint64_t at = ROOT, top = 0, middle = 0;

    for (uint32_t i = 0; i < 300; i++) { /* longer than any change could look at at once */
        at = folder(t, at, "d", 0755);
        top = i == 0 ? at : top;
        middle = i == 150 ? at : middle;
    }
    CHECK_EQ(mv(t, ROOT, "d", at, "x", 0), ERR_FS_INVALID);
    CHECK_EQ(mv(t, ROOT, "d", top, "x", 0), ERR_FS_INVALID);
    CHECK_EQ(mv(t, ROOT, "d", ROOT, "e", 0), 0);
    uint64_t other = folder(t, ROOT, "other", 0755);
    CHECK_EQ(mv(t, ROOT, "other", at, "o", 0), 0);
    CHECK_EQ(ino_of(t, other, ".."), at);
    CHECK_EQ(mv(t, at, "o", ROOT, "e", 0), ERR_FS_NOT_EMPTY);
    CHECK_EQ(mv(t, at, "o", ROOT, "e", FS_RENAME_EXCHANGE), ERR_FS_INVALID);
    CHECK_EQ(mv(t, middle, "d", ROOT, "half", 0), 0);
    CHECK_EQ(mv(t, ROOT, "e", at, "x", 0), 0); /* that is no loop any more */
}

static may_yield void rights(struct fs_test *t)
{
    as_user(t, 10, 10);
    uint64_t mine = folder(t, ROOT, "mine", 0755), f = file(t, mine, "f", 0644),
             d = folder(t, mine, "d", 0755);
    as_user(t, 20, 20);
    uint64_t his = folder(t, ROOT, "his", 0755), open_dir = folder(t, ROOT, "open", 0777);
    (void)file(t, open_dir, "his", 0666);

    CHECK_EQ(mv(t, mine, "f", his, "f", 0), ERR_FS_ACCESS);
    as_user(t, 10, 10);
    CHECK_EQ(mv(t, mine, "f", his, "f", 0), ERR_FS_ACCESS);
    CHECK_EQ(mv(t, open_dir, "his", mine, "his", 0), 0);
    CHECK_EQ(mv(t, mine, "f", open_dir, "f", 0), 0);
    as_user(t, 20, 20);
    CHECK_EQ(ch_mode(t, open_dir, 01777), 0);
    (void)file(t, open_dir, "h", 0666);
    as_user(t, 10, 10);
    CHECK_EQ(mv(t, open_dir, "h", mine, "h", 0), ERR_FS_NOT_OWNER); /* sticky: not his */
    CHECK_EQ(mv(t, mine, "d", open_dir, "h", 0), ERR_FS_NOT_OWNER);
    CHECK_EQ(mv(t, open_dir, "f", open_dir, "g", 0), 0);
    /* A directory that moves is written to. */
    CHECK_EQ(ch_mode(t, d, 0555), 0);
    CHECK_EQ(mv(t, mine, "d", open_dir, "d", 0), ERR_FS_ACCESS);
    CHECK_EQ(mv(t, mine, "d", mine, "d2", 0), 0);
    t->rq.read_only = true;
    CHECK_EQ(mv(t, mine, "d2", mine, "d3", 0), ERR_FS_READ_ONLY);
    t->rq.read_only = false;
    CHECK_EQ(ino_of(t, open_dir, "g"), f);
    as_root(t);
}

/* Random renames, links and removals; everything must agree at the end, crashes included. */
static may_yield void at_random(struct fs_test *t)
{
    uint64_t dirs[8] = {ROOT}, rng = 7;
    uint32_t dir_count = 1;
    char a[4] = "a", b[4] = "b";

    for (uint32_t step = 0; step < 3000; step++) {
        rng = hash_mix64(rng + step);
        uint64_t from = dirs[rng % dir_count], to = dirs[(rng >> 8) % dir_count], ino;
        a[0] = (char)('a' + (rng >> 16) % 6);
        b[0] = (char)('a' + (rng >> 24) % 6);
        int r = 0;
        switch ((rng >> 32) % 12) {
        case 0:
            r = make(t, FS_DIRECTORY, from, a, 0755, &ino);
            if (!r && dir_count < 8)
                dirs[dir_count++] = ino;
            break;
        case 1:
        case 2:
            r = make(t, FS_FILE, from, a, 0644, &ino);
            break;
        case 3:
            r = look(t, from, a, &ino);
            if (!r)
                r = ln(t, ino, to, b);
            break;
        case 4:
            r = rm(t, from, a);
            break;
        case 5:
            r = rm_dir(t, from, a);
            break;
        case 6:
            r = mv(t, from, a, to, b, FS_RENAME_EXCHANGE);
            break;
        case 7:
            if (step % 16 == 0)
                fs_test_crash(t);
            break;
        default:
            r = mv(t, from, a, to, b, 0);
        }
        int e = error_errno(r);
        CHECK(e == 0 || e == ENOENT || e == EEXIST || e == ENOTEMPTY || e == EISDIR || e == ENOTDIR ||
              e == EINVAL || e == ESTALE || e == EPERM);
        for (uint32_t i = 1; i < dir_count; i++) { /* those that are gone */
            struct fs_attr attr;
            if (fs_getattr(t->fs, &t->rq, dirs[i], 0, &attr) != 0)
                dirs[i--] = dirs[--dir_count];
        }
        if (step % 500 == 0)
            CHECK(fs_test_consistent(t));
    }
}

struct mover {
    struct fs_test *t;
    uint64_t a, b;
    uint32_t id, done, loops;
    struct latch *latch;
};

static may_yield void mover_main(void *arg)
{
    struct mover *m = arg;
    struct fs_wcc from, to;

    for (uint32_t i = 0; i < 100; i++) {
        /* One moves a into b, the other b into a: both at once would be a loop. */
        bool one = m->id % 2 == 0;
        int r = fs_rename(m->t->fs, &m->t->rq, ROOT, one ? "a" : "b", 1, one ? m->b : m->a, "x", 1, 0, &from,
                          &to);
        if (r == 0) {
            m->done++;
            r = fs_rename(m->t->fs, &m->t->rq, one ? m->b : m->a, "x", 1, ROOT, one ? "a" : "b", 1, 0, &from,
                          &to);
            m->loops += r != 0;
        } else {
            m->loops += r != ERR_FS_NOT_FOUND && r != ERR_FS_INVALID;
        }
        fiber_yield();
    }
    latch_down(m->latch);
}

static may_yield void concurrent(struct fs_test *t)
{
    uint64_t a = folder(t, ROOT, "a", 0755), b = folder(t, ROOT, "b", 0755);
    struct mover m[4];
    struct latch latch;
    uint32_t done = 0;

    latch_init(&latch, 4);
    for (uint32_t i = 0; i < 4; i++) {
        m[i] = (struct mover){.t = t, .a = a, .b = b, .id = i, .latch = &latch};
        CHECK_EQ(fiber_spawn("mover", mover_main, &m[i]), 0);
    }
    latch_wait(&latch);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(m[i].loops, 0);
        done += m[i].done;
    }
    CHECK(done > 0);
    CHECK_EQ(ino_of(t, ROOT, "a"), a);
    CHECK_EQ(ino_of(t, ROOT, "b"), b);
}

#define RUN(name, body)            \
    static void name(void **state) \
    {                              \
        (void)state;               \
        fs_test_run(body);         \
    }
RUN(a_name_moves_within_and_between_directories, simple)
RUN(a_rename_replaces_only_what_it_may, over)
RUN(two_names_are_exchanged, exchanged)
RUN(a_directory_never_moves_into_itself_however_deep, loops)
RUN(renaming_needs_both_directories_and_heeds_the_sticky_bit, rights)
RUN(names_and_inodes_agree_after_random_renames_and_crashes, at_random)
RUN(directories_that_move_at_once_make_no_loop, concurrent)

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(a_name_moves_within_and_between_directories),
        T(a_rename_replaces_only_what_it_may),
        T(two_names_are_exchanged),
        T(a_directory_never_moves_into_itself_however_deep),
        T(renaming_needs_both_directories_and_heeds_the_sticky_bit),
        T(names_and_inodes_agree_after_random_renames_and_crashes),
        T(directories_that_move_at_once_make_no_loop),
    };
    return cmocka_run_group_tests_name("filesystem rename", tests, NULL, NULL);
}
