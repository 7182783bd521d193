/* SPDX-License-Identifier: Apache-2.0 */
/* A local drive at work: sessions and fences, slabs, flushes, loss. */
#include "drive_test.h"

#include "runtime/world_real.h"

#include <pthread.h>
#include <sys/stat.h>

/* Everything of one drive on one reactor. */
struct rig {
    struct drive_home *home;
    struct drive *d;
};

static struct rig rig_open(const char *name) may_yield
{
    struct rig r = {0};
    drive_test_format(name);
    r.home = drive_test_open(name);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    return r;
}

static void rig_close(struct rig *r) may_yield
{
    drive_detach(r->d);
    drive_home_close(r->home);
}

static struct drive_session *session(struct drive *d, uint8_t volume, uint64_t epoch) may_yield
{
    struct drive_session *s = NULL;
    CHECK_EQ(drive_session_open(d, drive_test_volume(volume), epoch, 1, &s), 0);
    return s;
}

/* ---- Slabs ---- */

static void alloc_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t a = 0, b = 0, again = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &a), 0);
    CHECK_EQ(drive_slab_alloc(s, 0, 1, &b), 0);
    CHECK(a != b);
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &again), 0);
    CHECK_EQ(a, again);
    CHECK_EQ(drive_test_write(s, a, 3, 0x11), 0);
    drive_session_close(s);

    /* The same after a restart, by the next owner. */
    rig_close(&r);
    r.home = drive_test_open(arg);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    s = session(r.d, 1, 2);
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &again), 0);
    CHECK_EQ(a, again);
    uint8_t value = 0;
    CHECK_EQ(drive_test_read(s, a, 3, &value), 0);
    CHECK_EQ(value, 0x11);
    CHECK_EQ(drive_test_read(s, a, 4, &value), 0);
    CHECK_EQ(value, 0); /* prepared */

    struct slab_entry *list;
    uint32_t count;
    CHECK_EQ(drive_slab_list(r.d, drive_test_volume(1), &list, &count), 0);
    CHECK_EQ(count, 2);
    CHECK_EQ(list[0].epoch, 1);
    free(list);
    drive_session_close(s);
    rig_close(&r);
}

static void slab_allocation_is_idempotent_over_restarts(void **state)
{
    (void)state;
    drive_test_run(alloc_body, "alloc");
}

static void space_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    struct drive_info info;
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    uint32_t total = info.slabs_total, slab = 0;
    CHECK(total > 800);
    CHECK_EQ(info.slabs_free, total);
    for (uint32_t i = 0; i < total; i++)
        CHECK_EQ(drive_slab_alloc(s, i, 0, &slab), 0);
    CHECK_EQ(drive_slab_alloc(s, total, 0, &slab), ERR_DRIVE_NO_SPACE);
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    CHECK_EQ(info.slabs_free, 0);

    /* Every slab is another one: what was written to one is in no other. */
    CHECK_EQ(drive_test_write(s, 0, 0, 1), 0);
    CHECK_EQ(drive_test_write(s, total - 1, TEST_SLAB / BLOCK_SIZE - 1, 2), 0);
    CHECK_EQ(drive_slab_free(s, 7), 0);
    CHECK_EQ(drive_slab_free(s, 7), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_test_write(s, 7, 0, 3), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_slab_alloc(s, total, 0, &slab), 0);
    CHECK_EQ(slab, 7);
    drive_session_close(s);
    rig_close(&r);

    r.home = drive_test_open(arg);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    CHECK_EQ(info.slabs_free, 0);
    s = session(r.d, 1, 1);
    uint8_t value = 0;
    CHECK_EQ(drive_test_read(s, total - 1, TEST_SLAB / BLOCK_SIZE - 1, &value), 0);
    CHECK_EQ(value, 2);
    drive_session_close(s);
    rig_close(&r);
}

static void full_drive_says_no_space_and_takes_freed_slabs(void **state)
{
    (void)state;
    drive_test_run(space_body, "space");
}

static void bounds_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s1 = session(r.d, 1, 1);
    struct drive_session *s2 = session(r.d, 2, 1);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(s1, 0, 0, &slab), 0);
    uint8_t value;
    CHECK_EQ(drive_test_write(s1, slab, 0, 1), 0);
    CHECK_EQ(drive_test_write(s2, slab, 0, 2), ERR_DRIVE_BAD_SLAB); /* another volume's */
    CHECK_EQ(drive_test_read(s2, slab, 0, &value), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_slab_free(s2, slab), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_test_write(s1, slab + 1, 0, 1), ERR_DRIVE_BAD_SLAB); /* nobody's */
    CHECK_EQ(drive_test_write(s1, slab, TEST_SLAB / BLOCK_SIZE, 1), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_test_write(s1, UINT32_MAX, 0, 1), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_test_write(s1, slab, UINT32_MAX, 1), ERR_DRIVE_BAD_SLAB);
    CHECK_EQ(drive_test_read(s1, slab, 0, &value), 0);
    CHECK_EQ(value, 1);
    drive_session_close(s1);
    drive_session_close(s2);
    rig_close(&r);
}

static void request_outside_of_the_volumes_slabs_is_refused(void **state)
{
    (void)state;
    drive_test_run(bounds_body, "bounds");
}

static void discard_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab[200];
    struct stat before, after;
    for (uint32_t i = 0; i < 200; i++)
        CHECK_EQ(drive_slab_alloc(s, i, 0, &slab[i]), 0);
    CHECK(stat(drive_test_path(arg), &before) == 0);
    for (uint32_t i = 0; i < 200; i++)
        CHECK_EQ(drive_slab_free(s, slab[i]), 0);
    for (int i = 0; i < 500 && faults.discards < 200; i++)
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    CHECK_EQ(faults.discards, 200);
    drive_session_close(s);
    rig_close(&r);
    CHECK(stat(drive_test_path(arg), &after) == 0);
    /* Some are prepared again for the next allocation, but not more than that. */
    CHECK(after.st_blocks < before.st_blocks - 100 * (blkcnt_t)(TEST_SLAB / 512));
}

static void freed_slabs_give_their_space_back_to_the_host(void **state)
{
    (void)state;
    drive_test_run(discard_body, "discard");
}

static void purge_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 5), *other = session(r.d, 2, 5);
    uint32_t slab = 0, kept = 0;
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(drive_slab_alloc(s, i, 0, &slab), 0);
    CHECK_EQ(drive_slab_alloc(other, 0, 0, &kept), 0);
    CHECK_EQ(drive_volume_purge(r.d, drive_test_volume(1), 4), ERR_DRIVE_FENCED); /* not above the owner */
    CHECK_EQ(drive_volume_purge(r.d, drive_test_volume(1), 6), 0);
    CHECK_EQ(drive_test_write(s, slab, 0, 1), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_slab_alloc(s, 9, 0, &slab), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_test_write(other, kept, 0, 1), 0);
    CHECK_EQ(drive_volume_purge(r.d, drive_test_volume(1), 7), 0); /* again: nothing to do */
    struct drive_info info;
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(drive_get_info(r.d, &info), 0);
        if (info.slabs_free == info.slabs_total - 1)
            break;
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    }
    CHECK_EQ(info.slabs_free, info.slabs_total - 1);
    struct drive_session *late = NULL;
    CHECK_EQ(drive_session_open(r.d, drive_test_volume(1), 6, 1, &late), ERR_DRIVE_FENCED);
    drive_session_close(s);
    drive_session_close(other);
    rig_close(&r);
}

static void purge_frees_a_volumes_slabs_and_fences_its_owner(void **state)
{
    (void)state;
    drive_test_run(purge_body, "purge");
}

/* ---- Fences ---- */

static void fence_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *old = session(r.d, 1, 3), *none = NULL;
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(old, 0, 0, &slab), 0);
    CHECK_EQ(drive_test_write(old, slab, 0, 1), 0);
    uint64_t lease = drive_session_lease_until_ns(old);
    CHECK(lease > reactor_now_ns());

    struct drive_session *new = session(r.d, 1, 4);
    CHECK(reactor_now_ns() >= lease); /* invariant 4 */
    CHECK_EQ(drive_test_write(old, slab, 0, 9), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_flush(old), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_session_renew(old), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_slab_alloc(old, 1, 0, &slab), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_slab_free(old, slab), ERR_DRIVE_FENCED);
    CHECK(drive_session_lease_until_ns(old) <= reactor_now_ns());
    CHECK_EQ(drive_session_open(r.d, drive_test_volume(1), 3, 1, &none), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_session_open(r.d, drive_test_volume(1), 5, 0, &none), ERR_DRIVE_FENCED); /* generation */
    uint8_t value = 0;
    CHECK_EQ(drive_test_read(new, slab, 0, &value), 0);
    CHECK_EQ(value, 1);
    drive_session_close(old);
    drive_session_close(new);

    /* For ever: also after a restart. */
    rig_close(&r);
    r.home = drive_test_open(arg);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    CHECK_EQ(drive_session_open(r.d, drive_test_volume(1), 3, 1, &none), ERR_DRIVE_FENCED);
    new = session(r.d, 1, 4);
    drive_session_close(new);
    rig_close(&r);
}

static void old_session_is_refused_for_ever_after_a_higher_fence(void **state)
{
    (void)state;
    drive_test_run(fence_body, "fence");
}

static void same_epoch_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *first = session(r.d, 1, 3);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(first, 0, 0, &slab), 0);
    uint64_t before = reactor_now_ns();
    struct drive_session *second = session(r.d, 1, 3);
    CHECK(reactor_now_ns() - before < NSEC_PER_SEC); /* the same owner waits for no lease of its own */
    CHECK_EQ(drive_test_write(first, slab, 0, 1), ERR_DRIVE_FENCED);
    CHECK_EQ(drive_test_write(second, slab, 0, 1), 0);
    drive_session_close(first);
    drive_session_close(second);
    rig_close(&r);
}

static void newer_session_of_the_same_epoch_ends_the_older(void **state)
{
    (void)state;
    drive_test_run(same_epoch_body, "same");
}

struct pending_write {
    struct drive_io io;
    struct iovec iov;
    void *data;
    bool done;
};

static void pending_done(struct drive_io *io)
{
    ((struct pending_write *)io->ctx)->done = true;
}

static void pending_submit(struct pending_write *p, struct drive_session *s, uint32_t slab, uint32_t block)
{
    p->data = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    assert(p->data != NULL);
    memset(p->data, 0x77, BLOCK_SIZE);
    p->iov = (struct iovec){p->data, BLOCK_SIZE};
    p->done = false;
    p->io = (struct drive_io){.session = s,
                              .op = DRIVE_WRITE,
                              .slab = slab,
                              .block = block,
                              .blocks = 1,
                              .iov = &p->iov,
                              .iov_count = 1,
                              .done = pending_done,
                              .ctx = p};
    drive_submit(&p->io);
}

struct opener {
    struct drive *d;
    struct drive_session *s;
    int err;
    bool done;
};

static void opener_fiber(void *arg) fiber_role_assumed
{
    struct opener *o = arg;
    o->err = drive_session_open(o->d, drive_test_volume(1), 2, 1, &o->s);
    o->done = true;
}

static void drain_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *old = session(r.d, 1, 1);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(old, 0, 0, &slab), 0);
    faults.hold_op = FILE_WRITE;
    faults.hold_from = r.home->sb.layout.slab_offset;
    faults.hold = true;
    struct pending_write p;
    pending_submit(&p, old, slab, 0);
    CHECK_EQ(drive_queue_depth(r.d), 1);
    faults.hold = false; /* what comes now goes through: tables among it */

    struct opener o = {.d = r.d};
    CHECK_EQ(fiber_spawn("opener", opener_fiber, &o), 0);
    CHECK_EQ(fiber_sleep(DRIVE_LEASE_NS + NSEC_PER_SEC / 2), 0); /* not the lease is what it waits for */
    CHECK(!o.done && !p.done);
    CHECK_EQ(drive_test_write(old, slab, 1, 1), ERR_DRIVE_FENCED); /* no new one is let in meanwhile */
    drive_test_release();
    for (int i = 0; i < 300 && !o.done; i++)
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    CHECK(o.done && p.done);
    CHECK_EQ(o.err, 0);
    CHECK_EQ(p.io.result, 0); /* it was admitted, so it counts */
    uint8_t value = 0;
    CHECK_EQ(drive_test_read(o.s, slab, 0, &value), 0);
    CHECK_EQ(value, 0x77);
    free(p.data);
    drive_session_close(old);
    drive_session_close(o.s);
    rig_close(&r);
}

static void fence_waits_for_what_the_old_session_has_under_way(void **state)
{
    (void)state;
    drive_test_run(drain_body, "drain");
}

struct freer {
    struct drive_session *s;
    uint32_t slab;
    int err;
    bool done;
};

static void freer_fiber(void *arg) fiber_role_assumed
{
    struct freer *f = arg;
    f->err = drive_slab_free(f->s, f->slab);
    f->done = true;
}

static void free_drain_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab = 0, other = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    CHECK_EQ(drive_slab_alloc(s, 1, 0, &other), 0);
    faults.hold_op = FILE_WRITE;
    faults.hold_from = r.home->sb.layout.slab_offset;
    faults.hold = true;
    struct pending_write p;
    pending_submit(&p, s, slab, 0);
    faults.hold = false;
    struct freer f = {.s = s, .slab = slab};
    CHECK_EQ(fiber_spawn("freer", freer_fiber, &f), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(drive_test_write(s, other, (uint32_t)i % 8, 1), 0); /* goes on meanwhile */
        CHECK_EQ(fiber_sleep(NSEC_PER_MSEC), 0);
    }
    CHECK(!f.done);
    CHECK_EQ(drive_test_write(s, slab, 1, 1), ERR_DRIVE_BAD_SLAB);
    drive_test_release();
    for (int i = 0; i < 300 && !f.done; i++)
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    CHECK(f.done && p.done);
    CHECK_EQ(f.err, 0);
    free(p.data);
    drive_session_close(s);
    rig_close(&r);
}

static void freeing_a_slab_waits_for_its_writes_but_not_for_later_ones(void **state)
{
    (void)state;
    drive_test_run(free_drain_body, "freedrain");
}

static void restart_body(void *arg) fiber_role_assumed
{
    /* As after SIGKILL: the file is copied while the drive is open, so it has no mark of an orderly close. */
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    char command[512];
    snprintf(command, sizeof(command), "cp --sparse=always %s %s", drive_test_path(arg),
             drive_test_path("restarted"));
    CHECK_EQ(system(command), 0);
    drive_session_close(s);
    rig_close(&r);

    for (int remote = 0; remote < 2; remote++) {
        r.home = drive_test_open("restarted");
        uint64_t begin = reactor_now_ns();
        if (remote)
            drive_home_expect_remote_owners(r.home);
        r.home->sb.clean = false;
        CHECK_EQ(drive_attach(r.home, &r.d), 0);
        s = session(r.d, 1, 2);
        uint64_t took = reactor_now_ns() - begin;
        CHECK(took < NSEC_PER_SEC);
        drive_session_close(s);
        if (remote == 0) { /* crash again: keep the file as it is now */
            snprintf(command, sizeof(command), "cp --sparse=always %s %s", drive_test_path("restarted"),
                     drive_test_path("again"));
            CHECK_EQ(system(command), 0);
        }
        rig_close(&r);
    }
    /* remote == 1 above followed an orderly close. After a crash it waits a whole lease. */
    r.home = drive_test_open("again");
    uint64_t begin = reactor_now_ns();
    drive_home_expect_remote_owners(r.home);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    s = session(r.d, 1, 3);
    CHECK(reactor_now_ns() - begin >= DRIVE_LEASE_NS - NSEC_PER_SEC / 10);
    drive_session_close(s);
    rig_close(&r);
}

static void restarted_drive_waits_a_lease_only_for_remote_owners_after_a_crash(void **state)
{
    (void)state;
    drive_test_run(restart_body, "restart");
}

static void fence_table_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    uint32_t max = r.home->volumes_max;
    struct uuid volume = {{0x99}};
    /* Fill it with purged volumes: none may be forgotten while sessions of this incarnation could be left. */
    for (uint32_t i = 0; i < max; i++) {
        memcpy(volume.b + 4, &i, sizeof(i));
        if (drive_volume_purge(r.d, volume, 1) != 0) {
            CHECK(!"purge");
            break;
        }
    }
    struct drive_session *s = NULL;
    CHECK_EQ(drive_session_open(r.d, drive_test_volume(1), 1, 1, &s), ERR_DRIVE_NO_SPACE);
    rig_close(&r);
    r.home = drive_test_open(arg);
    CHECK_EQ(drive_attach(r.home, &r.d), 0);
    s = session(r.d, 1, 1);
    CHECK(s != NULL);
    if (s != NULL)
        drive_session_close(s);
    rig_close(&r);
}

static void fence_table_forgets_only_volumes_purged_before_the_restart(void **state)
{
    (void)state;
    drive_test_run(fence_table_body, "fences");
}

/* ---- Another reactor ---- */

struct other {
    const char *name;
    struct drive_home *home;
    struct drive_session *s;
    struct drive *d;
    struct reactor *reactor;
    uint32_t slab;
    struct pending_write p;
    int err;
};

static void *other_thread(void *arg)
{
    struct other *o = arg;
    int err = reactor_run(o->reactor);
    assert(err == 0);
    return NULL;
}

static int other_begin(void *arg) may_yield
{
    struct other *o = arg;
    int err = drive_attach(o->home, &o->d);
    if (err == 0)
        err = drive_session_open(o->d, drive_test_volume(1), 1, 1, &o->s);
    if (err == 0)
        err = drive_slab_alloc(o->s, 0, 0, &o->slab);
    if (err == 0)
        err = drive_test_write(o->s, o->slab, 0, 1);
    return err;
}

static int other_write(void *arg) may_yield
{
    struct other *o = arg;
    return drive_test_write(o->s, o->slab, 0, 2);
}

static int other_state(void *arg)
{
    return (int)drive_get_state(((struct other *)arg)->d);
}

static int other_end(void *arg) may_yield
{
    struct other *o = arg;
    drive_session_close(o->s);
    drive_detach(o->d);
    return 0;
}

static void other_body(void *arg) fiber_role_assumed
{
    struct other *o = arg;
    struct rig r = rig_open(o->name);
    o->home = r.home;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, o), 0);
    CHECK_EQ(reactor_call(o->reactor, other_begin, o), 0);

    struct drive_session *mine = session(r.d, 1, 2);
    CHECK_EQ(reactor_call(o->reactor, other_write, o), ERR_DRIVE_FENCED);
    uint8_t value = 0;
    CHECK_EQ(drive_test_read(mine, o->slab, 0, &value), 0);
    CHECK_EQ(value, 1);
    struct drive_info info;
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    CHECK_EQ(info.writes, 1); /* of the other reactor's handle */
    CHECK_EQ(info.reads, 1);
    drive_session_close(mine);

    drive_home_remove(r.home);
    int state = DRIVE_OK;
    for (int i = 0; i < 300 && state == DRIVE_OK; i++) {
        state = reactor_call(o->reactor, other_state, o);
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    }
    CHECK_EQ(state, DRIVE_REMOVED); /* without a request of its own */
    CHECK_EQ(reactor_call(o->reactor, other_end, o), 0);
    reactor_stop(o->reactor);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    rig_close(&r);
}

static void session_of_another_reactor_is_fenced_and_told_of_the_state(void **state)
{
    (void)state;
    struct memory_budget budget = {.limit_bytes = 64 * MIB};
    struct reactor_options opt = {
        .world = &world_real_ops, .budget = &budget, .chunk_bytes = 4 * MIB, .index = 1};
    struct other o = {.name = "other"};
    assert_int_equal(reactor_new(&opt, &o.reactor), 0);
    drive_test_run(other_body, &o);
    reactor_free(o.reactor);
}

/* ---- Flushes ---- */

struct flusher {
    struct drive_io io;
    uint32_t *done;
};

static void flusher_done(struct drive_io *io)
{
    ++*((struct flusher *)io->ctx)->done;
}

static void flush_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    faults.syncs = 0;
    faults.hold_op = FILE_SYNC;
    faults.hold = true;
    uint32_t done = 0;
    struct flusher f[10];
    for (uint32_t i = 0; i < ARRAY_SIZE(f); i++) {
        f[i] = (struct flusher){.done = &done};
        f[i].io = (struct drive_io){.session = s, .op = DRIVE_FLUSH, .done = flusher_done, .ctx = &f[i]};
        drive_submit(&f[i].io);
    }
    CHECK_EQ(faults.syncs, 1);
    CHECK_EQ(done, 0);
    drive_test_release();
    for (int i = 0; i < 300 && done < ARRAY_SIZE(f); i++)
        CHECK_EQ(fiber_sleep(10 * NSEC_PER_MSEC), 0);
    CHECK_EQ(done, ARRAY_SIZE(f));
    CHECK_EQ(faults.syncs, 2); /* the first alone, the other nine together, begun after they came */
    for (uint32_t i = 0; i < ARRAY_SIZE(f); i++)
        CHECK_EQ(f[i].io.result, 0);
    drive_session_close(s);
    rig_close(&r);
}

static void flushes_that_come_meanwhile_share_the_next_one(void **state)
{
    (void)state;
    drive_test_run(flush_body, "flush");
}

/* ---- Loss ---- */

static void write_error_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_set set;
    drive_set_init(&set);
    CHECK_EQ(drive_set_add(&set, r.d), 0);
    CHECK(drive_set_find(&set, drive_home_id(r.home)) == r.d);
    uint64_t generation = set.generation;
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    CHECK_EQ(fiber_sleep(50 * NSEC_PER_MSEC), 0); /* preparing is over */

    faults.fail_op = FILE_READ;
    faults.fail = ERR_SYS(EIO);
    uint8_t value;
    CHECK_EQ(drive_test_read(s, slab, 0, &value), ERR_SYS(EIO)); /* one bad place */
    faults.fail = 0;
    CHECK_EQ(drive_get_state(r.d), DRIVE_OK);
    CHECK_EQ(drive_test_read(s, slab, 0, &value), 0);

    faults.fail_op = FILE_WRITE;
    faults.fail = ERR_SYS(EIO);
    CHECK_EQ(drive_test_write(s, slab, 0, 1), ERR_DRIVE_GONE);
    faults.fail = 0;
    CHECK_EQ(drive_get_state(r.d), DRIVE_LOST);
    CHECK(set.generation > generation);
    CHECK_EQ(drive_test_write(s, slab, 0, 1), ERR_DRIVE_GONE);
    CHECK_EQ(drive_test_read(s, slab, 0, &value), ERR_DRIVE_GONE);
    CHECK_EQ(drive_flush(s), ERR_DRIVE_GONE);
    CHECK_EQ(drive_slab_alloc(s, 1, 0, &slab), ERR_DRIVE_GONE);
    struct drive_info info;
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    CHECK_EQ(info.state, DRIVE_LOST);
    CHECK_EQ(info.errors, 2);
    CHECK(strstr(info.why, "write failed") != NULL);
    drive_session_close(s);
    drive_set_remove(&set, r.d);
    drive_set_done(&set);
    rig_close(&r);
}

static void write_error_loses_the_drive_but_a_read_error_does_not(void **state)
{
    (void)state;
    drive_test_run(write_error_body, "error");
}

enum cut { CUT_TO_ZERO, CUT_HALF, CUT_AND_REGROWN, DELETED, REPLACED, CUT_COUNT };

static void make_cut(const char *name, enum cut cut)
{
    const char *path = drive_test_path(name);
    int rc = 0;
    switch (cut) {
    case CUT_TO_ZERO:
        rc = truncate(path, 0);
        break;
    case CUT_HALF:
        rc = truncate(path, 32 * MIB);
        break;
    case CUT_AND_REGROWN:
        rc = truncate(path, 63 * MIB) | truncate(path, 64 * MIB);
        break;
    case DELETED:
        rc = unlink(path);
        break;
    case REPLACED:
        rc = rename(drive_test_path("another"), path);
        break;
    case CUT_COUNT:
        break;
    }
    assert(rc == 0);
}

static void cut_body(void *arg) fiber_role_assumed
{
    enum cut cut = *(enum cut *)arg;
    struct rig r = rig_open("cut");
    if (cut == REPLACED)
        drive_test_format("another");
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    make_cut("cut", cut);
    /* A load of nothing but writes, which all succeed in a file that grows again. */
    int err = 0;
    uint64_t begin = reactor_now_ns();
    while (err == 0 && reactor_now_ns() - begin < 5 * NSEC_PER_SEC) {
        err = drive_test_write(s, slab, 0, 1);
        if (fiber_sleep(5 * NSEC_PER_MSEC) != 0)
            break;
    }
    CHECK_EQ(err, ERR_DRIVE_GONE);
    CHECK(reactor_now_ns() - begin < 3 * NSEC_PER_SEC);
    struct drive_info info;
    CHECK_EQ(drive_get_info(r.d, &info), 0);
    CHECK_EQ(info.state, DRIVE_LOST);
    CHECK(info.why[0] != '\0');
    drive_session_close(s);
    rig_close(&r);
    if (cut != DELETED)
        CHECK_EQ(unlink(drive_test_path("cut")), 0);
}

static void file_cut_deleted_or_replaced_under_writes_is_noticed(void **state)
{
    (void)state;
    for (enum cut cut = CUT_TO_ZERO; cut < CUT_COUNT; cut++)
        drive_test_run(cut_body, &cut);
}

static void short_read_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    CHECK_EQ(fiber_sleep(NSEC_PER_SEC / 10), 0); /* preparing, which would grow the file, is over */
    make_cut(arg, CUT_TO_ZERO);
    uint8_t value;
    CHECK_EQ(drive_test_read(s, slab, 0, &value), ERR_DRIVE_GONE);
    CHECK_EQ(drive_get_state(r.d), DRIVE_LOST);
    drive_session_close(s);
    rig_close(&r);
}

static void read_beyond_a_cut_loses_the_drive_at_once(void **state)
{
    (void)state;
    drive_test_run(short_read_body, "short");
}

static void host_full_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    struct drive_session *s = session(r.d, 1, 1);
    uint32_t slab = 0;
    faults.fail_op = FILE_WRITE;
    faults.fail = ERR_SYS(ENOSPC);
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), ERR_DRIVE_NO_SPACE);
    CHECK_EQ(drive_get_state(r.d), DRIVE_OK);
    faults.fail = 0;
    CHECK_EQ(drive_slab_alloc(s, 0, 0, &slab), 0);
    drive_session_close(s);
    rig_close(&r);
}

static void full_file_system_under_the_drive_is_no_space_and_no_loss(void **state)
{
    (void)state;
    drive_test_run(host_full_body, "hostfull");
}

static void locate_body(void *arg) fiber_role_assumed
{
    struct rig r = rig_open(arg);
    uint64_t begin = reactor_now_ns();
    CHECK_EQ(drive_home_locate(r.home, NSEC_PER_SEC / 2), 0);
    CHECK(reactor_now_ns() - begin >= NSEC_PER_SEC / 2);
    rig_close(&r);
}

static void locate_reads_for_as_long_as_asked(void **state)
{
    (void)state;
    drive_test_run(locate_body, "locate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slab_allocation_is_idempotent_over_restarts),
        cmocka_unit_test(full_drive_says_no_space_and_takes_freed_slabs),
        cmocka_unit_test(request_outside_of_the_volumes_slabs_is_refused),
        cmocka_unit_test(freed_slabs_give_their_space_back_to_the_host),
        cmocka_unit_test(purge_frees_a_volumes_slabs_and_fences_its_owner),
        cmocka_unit_test(old_session_is_refused_for_ever_after_a_higher_fence),
        cmocka_unit_test(newer_session_of_the_same_epoch_ends_the_older),
        cmocka_unit_test(fence_waits_for_what_the_old_session_has_under_way),
        cmocka_unit_test(freeing_a_slab_waits_for_its_writes_but_not_for_later_ones),
        cmocka_unit_test(restarted_drive_waits_a_lease_only_for_remote_owners_after_a_crash),
        cmocka_unit_test(fence_table_forgets_only_volumes_purged_before_the_restart),
        cmocka_unit_test(session_of_another_reactor_is_fenced_and_told_of_the_state),
        cmocka_unit_test(flushes_that_come_meanwhile_share_the_next_one),
        cmocka_unit_test(write_error_loses_the_drive_but_a_read_error_does_not),
        cmocka_unit_test(file_cut_deleted_or_replaced_under_writes_is_noticed),
        cmocka_unit_test(read_beyond_a_cut_loses_the_drive_at_once),
        cmocka_unit_test(full_file_system_under_the_drive_is_no_space_and_no_loss),
        cmocka_unit_test(locate_reads_for_as_long_as_asked),
    };
    return cmocka_run_group_tests_name("drive-local", tests, drive_test_setup, drive_test_teardown);
}
