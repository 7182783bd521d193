/* SPDX-License-Identifier: Apache-2.0 */
/* The file coordinator, on real files. */
#include "cluster/coord_file.h"
#include "cluster/record.h"
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "runtime/world_real.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static uint32_t failures;
static struct world_ops test_ops;
static uint32_t replace_fail_at; /* 1: the next one fails; 0: none */
static bool replace_fail_after;  /* … although it took effect */

static void check(bool ok, const char *what, int line)
{
    if (ok)
        return;
    failures++;
    fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, line, what);
}
#define CHECK(cond)    check((cond), #cond, __LINE__)
#define CHECK_EQ(a, b) check((a) == (b), #a " == " #b, __LINE__)

static bool host_full; /* the reserve's space is all there is */

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static int replace_with_faults(struct reactor *r, const char *path, const void *data, size_t len)
{
    char reserve[128];
    snprintf(reserve, sizeof(reserve), "%s/full.reserve", folder);
    if (host_full && (exists(reserve) || strcmp(path, reserve) == 0))
        return ERR_SYS(ENOSPC);
    if (replace_fail_at == 0 || --replace_fail_at != 0)
        return world_real_ops.file_replace(r, path, data, len);
    int err = replace_fail_after ? world_real_ops.file_replace(r, path, data, len) : 0;
    return err != 0 ? err : ERR_SYS(EIO);
}

static void run(void (*body)(void *arg), void *arg)
{
    test_ops = world_real_ops;
    test_ops.file_replace = replace_with_faults;
    replace_fail_at = 0;
    host_full = false;
    failures = 0;
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {.world = &test_ops, .budget = &budget, .chunk_bytes = 4 * MIB};
    struct reactor *r;
    assert_int_equal(reactor_new(&o, &r), 0);
    assert_int_equal(reactor_spawn(r, "test", body, arg), 0);
    reactor_stop(r);
    int err = reactor_run(r);
    reactor_free(r);
    assert_int_equal(err, 0);
    assert_int_equal(failures, 0);
}

static const char *path_of(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *p = paths[next++ % ARRAY_SIZE(paths)];
    snprintf(p, sizeof(paths[0]), "%s/%s", folder, name);
    return p;
}

static struct coord *open_at(const char *name) may_yield
{
    struct coord *c = NULL;
    CHECK_EQ(coord_local_open(path_of(name), &c), 0);
    return c;
}

/* 0 or the error; *revision of the record goes in and out. */
static int put(struct coord *c, const char *key, const char *value, uint64_t *revision) may_yield
{
    struct coord_change ch = {key, *revision, value};
    return coord_commit(c, &ch, 1, revision);
}

static bool holds(struct coord *c, const char *key, const char *value) may_yield
{
    char *got;
    uint64_t revision;
    if (coord_get(c, key, &got, &revision) != 0)
        return value == NULL;
    bool same = value != NULL && strcmp(got, value) == 0;
    free(got);
    return same;
}

/* ---- Compare-and-set ---- */

static void cas_body(void *arg) fiber_role_assumed
{
    struct coord *c = open_at(arg);
    uint64_t a = 0, b = 0, zero = 0, stale;
    CHECK_EQ(put(c, "/v/a", "1", &a), 0);
    CHECK_EQ(put(c, "/v/b", "1", &b), 0);
    CHECK(a > 0 && b > a);
    CHECK_EQ(put(c, "/v/a", "again", &zero), ERR_COORD_CONFLICT);
    stale = a;
    CHECK_EQ(put(c, "/v/a", "2", &a), 0);
    CHECK(a > stale);
    CHECK_EQ(put(c, "/v/a", "3", &stale), ERR_COORD_CONFLICT);
    CHECK(holds(c, "/v/a", "2"));

    /* All or nothing. */
    struct coord_change two[] = {{"/v/a", a, "x"}, {"/v/b", b + 100, "x"}};
    uint64_t revision = 0;
    CHECK_EQ(coord_commit(c, two, 2, &revision), ERR_COORD_CONFLICT);
    CHECK(holds(c, "/v/a", "2") && holds(c, "/v/b", "1"));
    two[1].if_revision = b;
    CHECK_EQ(coord_commit(c, two, 2, &revision), 0);
    CHECK(holds(c, "/v/a", "x") && holds(c, "/v/b", "x"));
    struct coord_change twice[] = {{"/v/c", 0, "1"}, {"/v/c", 0, "2"}};
    CHECK_EQ(coord_commit(c, twice, 2, &revision), ERR_INVALID);

    CHECK_EQ(put(c, "/v/a", NULL, &revision), 0);
    CHECK(holds(c, "/v/a", NULL));
    CHECK_EQ(put(c, "/w/other", "é\n\"", &zero), 0);
    uint64_t generation = coord_generation(c);
    coord_close(c);

    c = open_at(arg);
    CHECK_EQ(coord_generation(c), generation);
    CHECK(holds(c, "/v/a", NULL) && holds(c, "/v/b", "x") && holds(c, "/w/other", "é\n\""));
    struct coord_record *list;
    size_t count;
    CHECK_EQ(coord_list(c, "/v/", &list, &count), 0);
    CHECK(count == 1 && strcmp(list[0].key, "/v/b") == 0);
    coord_records_free(list, count);
    CHECK_EQ(coord_list(c, "/", &list, &count), 0);
    CHECK(count == 2 && strcmp(list[0].key, list[1].key) < 0);
    coord_records_free(list, count);
    coord_close(c);
}

static void commit_takes_effect_only_at_the_expected_revision(void **state)
{
    (void)state;
    run(cas_body, "cas");
}

static void record_body(void *arg) fiber_role_assumed
{
    struct coord *c = open_at(arg);
    struct volume_record r = {.id = {{1}},
                              .name = "v",
                              .kind = "block",
                              .protection = {PROTECT_NONE, 1, 0},
                              .epoch = 1,
                              .system_runs = 1,
                              .slab_blocks = 1024};
    struct volume_record other, loaded;
    CHECK_EQ(volume_record_load(c, r.id, &loaded), ERR_COORD_NOT_FOUND);
    CHECK_EQ(volume_record_store(c, &r), 0);
    other = r;
    r.epoch = 2;
    CHECK_EQ(volume_record_store(c, &r), 0);
    other.epoch = 2;
    CHECK_EQ(volume_record_store(c, &other), ERR_COORD_CONFLICT); /* one owner wins */
    CHECK_EQ(volume_record_load(c, r.id, &loaded), 0);
    CHECK(loaded.epoch == 2 && loaded.revision == r.revision);
    /* A record under the key of another volume is not believed. */
    char key[VOLUME_KEY_SIZE], *text = NULL;
    volume_record_key((struct uuid){{7}}, key);
    CHECK_EQ(volume_record_encode(&r, &text), 0);
    uint64_t zero = 0;
    CHECK_EQ(put(c, key, text, &zero), 0);
    CHECK_EQ(volume_record_load(c, (struct uuid){{7}}, &loaded), ERR_COORD_CORRUPT);
    free(text);
    coord_close(c);
}

static void two_owners_cannot_both_raise_the_epoch(void **state)
{
    (void)state;
    run(record_body, "record");
}

/* ---- Damage ---- */

static void damage(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert(fd >= 0);
    ssize_t n = pwrite(fd, "#", 1, 60);
    assert(n == 1);
    close(fd);
}

static void damage_body(void *arg) fiber_role_assumed
{
    char prev[128];
    snprintf(prev, sizeof(prev), "%s.prev", path_of(arg));
    struct coord *c = open_at(arg);
    uint64_t revision = 0;
    CHECK_EQ(put(c, "/a", "1", &revision), 0);
    CHECK_EQ(put(c, "/a", "2", &revision), 0);
    uint64_t generation = coord_generation(c);
    coord_close(c);

    damage(prev);
    c = open_at(arg);
    CHECK_EQ(coord_generation(c), generation);
    CHECK(holds(c, "/a", "2"));
    coord_close(c);

    damage(path_of(arg));
    c = open_at(arg);
    CHECK_EQ(coord_generation(c), generation + 1); /* nothing was lost, but nobody can be sure of it */
    CHECK(holds(c, "/a", "2"));
    coord_close(c);

    CHECK_EQ(unlink(path_of(arg)), 0);
    c = open_at(arg);
    CHECK_EQ(coord_generation(c), generation + 2);
    CHECK(holds(c, "/a", "2"));
    coord_close(c);

    damage(path_of(arg));
    damage(prev);
    CHECK_EQ(coord_local_open(path_of(arg), &c), ERR_COORD_CORRUPT);
    CHECK_EQ(unlink(path_of(arg)), 0);
    CHECK_EQ(coord_local_open(path_of(arg), &c), ERR_COORD_CORRUPT); /* damage is no empty beginning */
}

static void damaged_file_is_replaced_by_the_other_and_raises_the_generation(void **state)
{
    (void)state;
    run(damage_body, "damage");
}

static void unknown_body(void *arg) fiber_role_assumed
{
    for (uint32_t at = 1; at <= 2; at++) {
        for (int after = 0; after < 2; after++) {
            char name[32];
            snprintf(name, sizeof(name), "unknown%u%d", at, after);
            struct coord *c = open_at(name);
            uint64_t revision = 0;
            CHECK_EQ(put(c, "/a", "1", &revision), 0);
            replace_fail_at = at;
            replace_fail_after = after;
            uint64_t next = revision;
            CHECK_EQ(put(c, "/a", "2", &next), ERR_COORD_UNKNOWN);
            /* It happened wholly or not at all, and stays so. */
            bool happened = at == 2 || after == 1;
            CHECK(holds(c, "/a", happened ? "2" : "1"));
            next = revision;
            CHECK_EQ(put(c, "/a", "3", &next), happened ? ERR_COORD_CONFLICT : 0);
            coord_close(c);
            c = open_at(name);
            CHECK(holds(c, "/a", happened ? "2" : "3"));
            CHECK_EQ(coord_generation(c), 1);
            coord_close(c);
        }
    }
    (void)arg;
}

static void failed_write_is_unknown_and_settled_by_the_disk(void **state)
{
    (void)state;
    run(unknown_body, NULL);
}

static void full_body(void *arg) fiber_role_assumed
{
    (void)arg;
    struct coord *c = open_at("full");
    uint64_t revision = 0;
    CHECK(exists(path_of("full.reserve")));
    CHECK_EQ(put(c, "/a", "1", &revision), 0);
    host_full = true;
    CHECK_EQ(put(c, "/a", "2", &revision), 0);
    CHECK(holds(c, "/a", "2"));
    CHECK(!exists(path_of("full.reserve")));
    coord_tend(c);
    CHECK(!exists(path_of("full.reserve")));
    coord_close(c);

    host_full = false;
    c = open_at("full");
    CHECK(holds(c, "/a", "2"));
    CHECK(exists(path_of("full.reserve")));
    CHECK_EQ(unlink(path_of("full.reserve")), 0);
    coord_close(c);
    c = open_at("full");
    CHECK(exists(path_of("full.reserve")));
    host_full = true;
    CHECK_EQ(put(c, "/a", "3", &revision), 0);
    host_full = false;
    coord_tend(c);
    CHECK(exists(path_of("full.reserve")));
    struct stat st;
    CHECK_EQ(stat(path_of("full.reserve"), &st), 0);
    CHECK(st.st_size >= 256 * 1024 && st.st_blocks * 512 >= st.st_size);
    coord_close(c);
}

static void full_file_system_takes_a_change_by_the_reserve_which_is_made_again_later(void **state)
{
    (void)state;
    run(full_body, NULL);
}

static void level_body(void *arg) fiber_role_assumed
{
    struct coord *c = open_at(arg);
    uint64_t revision = 0;
    CHECK_EQ(put(c, "/a", "1", &revision), 0);
    coord_close(c);
    replace_fail_at = 1;
    c = open_at(arg);
    CHECK(holds(c, "/a", "1"));
    CHECK_EQ(replace_fail_at, 1);
    replace_fail_at = 0;
    coord_close(c);
}

static void start_writes_nothing_where_both_files_are_level(void **state)
{
    (void)state;
    run(level_body, "level");
}

/* ---- Watches and leases ---- */

struct watcher {
    struct coord *c;
    const char *prefix;
    uint64_t after, revision;
    int err;
    bool done;
};

static void watcher_fiber(void *arg) fiber_role_assumed
{
    struct watcher *w = arg;
    w->err = coord_watch(w->c, w->prefix, w->after, reactor_now_ns() + 5 * NSEC_PER_SEC, &w->revision);
    w->done = true;
}

static void watch_body(void *arg) fiber_role_assumed
{
    struct coord *c = open_at(arg);
    uint64_t a = 0, b = 0, seen = 0;
    CHECK_EQ(put(c, "/a/1", "x", &a), 0);
    CHECK_EQ(coord_watch(c, "/a/", 0, DEADLINE_NEVER, &seen), 0);
    CHECK_EQ(seen, a);
    CHECK_EQ(coord_watch(c, "/a/", a, reactor_now_ns() + NSEC_PER_MSEC, &seen), ERR_TIMEOUT);

    struct watcher w = {.c = c, .prefix = "/a/", .after = a};
    CHECK_EQ(fiber_spawn("watcher", watcher_fiber, &w), 0);
    CHECK_EQ(put(c, "/b", "not mine", &b), 0);
    CHECK_EQ(fiber_sleep(20 * NSEC_PER_MSEC), 0);
    CHECK(!w.done);
    CHECK_EQ(put(c, "/a/1", NULL, &a), 0); /* a removal is a change, too */
    CHECK_EQ(fiber_sleep(20 * NSEC_PER_MSEC), 0);
    CHECK(w.done && w.err == 0 && w.revision == a);
    coord_close(c);
}

static void watch_wakes_for_changes_and_removals_under_its_prefix(void **state)
{
    (void)state;
    run(watch_body, "watch");
}

static void lease_body(void *arg) fiber_role_assumed
{
    struct coord *c = open_at(arg);
    uint64_t lease = 0, durable = 0, other = 0;
    CHECK_EQ(put(c, "/volumes/x", "v", &durable), 0);
    CHECK_EQ(coord_lease_grant(c, 100 * NSEC_PER_MSEC, &lease), 0);
    CHECK_EQ(coord_put_leased(c, "/nodes/1", "here", lease), 0);
    CHECK_EQ(coord_put_leased(c, "/volumes/x", "v", lease), ERR_COORD_CONFLICT);
    CHECK_EQ(coord_put_leased(c, "/nodes/2", "here", lease + 1), ERR_COORD_NOT_FOUND);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(fiber_sleep(50 * NSEC_PER_MSEC), 0);
        CHECK_EQ(coord_lease_keep(c, lease), 0);
    }
    CHECK(holds(c, "/nodes/1", "here"));
    struct watcher w = {.c = c, .prefix = "/nodes/", .after = UINT64_MAX};
    char *value;
    CHECK_EQ(coord_get(c, "/nodes/1", &value, &w.after), 0);
    free(value);
    CHECK_EQ(fiber_spawn("watcher", watcher_fiber, &w), 0);
    CHECK_EQ(put(c, "/volumes/x", "w", &durable), 0);
    CHECK_EQ(fiber_sleep(300 * NSEC_PER_MSEC), 0);
    CHECK(w.done && w.err == 0);
    CHECK(holds(c, "/nodes/1", NULL));
    CHECK_EQ(coord_lease_keep(c, lease), ERR_COORD_NOT_FOUND);

    /* Nothing of it is on disk. */
    CHECK_EQ(coord_lease_grant(c, 100 * NSEC_PER_SEC, &other), 0);
    CHECK_EQ(coord_put_leased(c, "/nodes/3", "here", other), 0);
    CHECK_EQ(put(c, "/volumes/x", "y", &durable), 0);
    coord_close(c);
    c = open_at(arg);
    CHECK(holds(c, "/nodes/3", NULL) && holds(c, "/volumes/x", "y"));
    coord_close(c);
}

static void leased_records_vanish_when_the_lease_is_not_kept(void **state)
{
    (void)state;
    run(lease_body, "lease");
}

/* ---- From another reactor ---- */

struct remote {
    struct coord *c;
    struct reactor *reactor;
    struct fiber *watcher;
    struct watcher w;
    bool cancelled;
};

static void *remote_thread(void *arg)
{
    int err = reactor_run(((struct remote *)arg)->reactor);
    assert(err == 0);
    return NULL;
}

static int remote_put(void *arg) may_yield
{
    struct remote *r = arg;
    uint64_t zero = 0;
    int err = put(r->c, "/from/there", "1", &zero);
    if (err == 0)
        err = fiber_spawn_joinable("watcher", watcher_fiber, &r->w, &r->watcher);
    return err;
}

static int remote_cancel(void *arg) may_yield
{
    struct remote *r = arg;
    fiber_cancel(r->watcher);
    fiber_join(r->watcher);
    return 0;
}

static void remote_body(void *arg) fiber_role_assumed
{
    struct remote *r = arg;
    r->c = open_at("remote");
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, remote_thread, r), 0);
    r->w = (struct watcher){.c = r->c, .prefix = "/never", .after = 0};
    CHECK_EQ(reactor_call(r->reactor, remote_put, r), 0);
    CHECK(holds(r->c, "/from/there", "1"));
    uint64_t begin = reactor_now_ns();
    CHECK_EQ(reactor_call(r->reactor, remote_cancel, r), 0);
    CHECK(r->w.done && r->w.err == ERR_CANCELLED);
    CHECK(reactor_now_ns() - begin < 2 * NSEC_PER_SEC);
    reactor_stop(r->reactor);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    coord_close(r->c);
}

static void coordinator_serves_other_reactors_and_their_waits_can_be_cancelled(void **state)
{
    (void)state;
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options o = {
        .world = &world_real_ops, .budget = &budget, .chunk_bytes = 4 * MIB, .index = 1};
    struct remote r = {0};
    assert_int_equal(reactor_new(&o, &r.reactor), 0);
    run(remote_body, &r);
    reactor_free(r.reactor);
}

/* ---- The file ---- */

static void file_with_any_flipped_bit_is_corrupt(void **state)
{
    (void)state;
    struct coord_table t = {.revision = 9, .generation = 2}, back;
    assert_int_equal(coord_table_put(&t, "/b", "{\"x\":1}", 9, 0), 0);
    assert_int_equal(coord_table_put(&t, "/a", "1", 3, 0), 0);
    assert_int_equal(coord_table_put(&t, "/leased", "1", 4, 77), 0);
    char *text;
    size_t len;
    assert_int_equal(coord_file_encode(&t, &text, &len), 0);
    assert_int_equal(coord_file_decode(text, len, &back), 0);
    assert_int_equal(back.count, 2);
    assert_string_equal(back.entries[0].key, "/a");
    coord_table_done(&back);
    for (size_t bit = 0; bit < len * 8; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        assert_int_equal(coord_file_decode(text, len, &back), ERR_COORD_CORRUPT);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    for (size_t n = 0; n < len; n++)
        assert_int_equal(coord_file_decode(text, n, &back), ERR_COORD_CORRUPT);
    free(text);
    coord_table_done(&t);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test-coord-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_takes_effect_only_at_the_expected_revision),
        cmocka_unit_test(two_owners_cannot_both_raise_the_epoch),
        cmocka_unit_test(damaged_file_is_replaced_by_the_other_and_raises_the_generation),
        cmocka_unit_test(failed_write_is_unknown_and_settled_by_the_disk),
        cmocka_unit_test(full_file_system_takes_a_change_by_the_reserve_which_is_made_again_later),
        cmocka_unit_test(start_writes_nothing_where_both_files_are_level),
        cmocka_unit_test(watch_wakes_for_changes_and_removals_under_its_prefix),
        cmocka_unit_test(leased_records_vanish_when_the_lease_is_not_kept),
        cmocka_unit_test(coordinator_serves_other_reactors_and_their_waits_can_be_cancelled),
        cmocka_unit_test(file_with_any_flipped_bit_is_corrupt),
    };
    return cmocka_run_group_tests_name("cluster-coord", tests, setup, teardown);
}
