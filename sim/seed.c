/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One seed from beginning to end:
 *
 *      create pool and volume
 *      repeat: start a process, open, (verify,) work under faults, crash: kill or power loss
 *      last: all faults stop; open, verify, repair, scrub, verify, check, close in order; sometimes once more
 *
 * The first lives end where a drawn number of submissions is reached (some while the volume is being opened)
 * or when their share of operations is done; the last life of work goes on until enough was acknowledged.
 */
#include "sim/seed.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <time.h>

#include "sim/alloc.h"

#define STREAM_WORKLOAD 4
#define STREAM_CHAOS    5
#define HEALTHY_NS      (3600 * NSEC_PER_SEC)

void sim_drive_path(uint32_t index, char out[SIM_PATH_SIZE])
{
    snprintf(out, SIM_PATH_SIZE, "/drive-%" PRIu32, index);
}

void seed_fail(struct seed *s, const char *fmt, ...)
{
    if (s->failed)
        return;
    s->failed = true;
    static const char *const phases[] = {"create", "open", "work", "last"};
    int n = snprintf(s->why, sizeof(s->why), "[life %" PRIu64 ", %s, %.6f s, %" PRIu64 " acknowledged] ",
                     s->life, phases[s->phase], (double)sim_now_ns(s->sim) / 1e9, s->acked);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->why + n, sizeof(s->why) - (size_t)n, fmt, ap);
    va_end(ap);
    sim_note(s->sim, "FAILED: %s", s->why);
}

/* ---- Running one process ---- */

bool seed_life_done(void *ctx)
{
    struct seed *s = ctx;
    return s->failed || s->life_over || sim_node_cut(s->node);
}

static bool node_idle(void *ctx)
{
    struct seed *s = ctx;
    return reactor_fiber_count(sim_node_reactor(s->node, 0)) == 0;
}

void seed_run_until(struct seed *s, bool (*done)(void *ctx), uint64_t patience_ns)
{
    s->last_progress_ns = sim_now_ns(s->sim);
    for (;;) {
        uint64_t deadline = s->last_progress_ns + patience_ns;
        enum sim_stop stop = sim_run(s->sim, done, s, deadline);
        if (stop == SIM_DONE)
            return;
        if (stop == SIM_IDLE) {
            seed_fail(s, "stuck: nothing is left that could happen");
            return;
        }
        if (s->last_progress_ns + patience_ns <= sim_now_ns(s->sim)) {
            seed_fail(s, "stuck: nothing was acknowledged for %" PRIu64 " s", patience_ns / NSEC_PER_SEC);
            return;
        }
    }
}

void seed_life_begin(struct seed *s, enum seed_phase phase, void (*fn)(void *arg))
{
    s->life++;
    s->phase = phase;
    s->life_over = s->stop = s->growing = s->rested = false;
    s->target = NULL;
    sim_node_start(s->node, 1, s->w.budget_bytes, s->w.chunk_bytes);
    int err = reactor_spawn(sim_node_reactor(s->node, 0), "main", fn, s);
    assert(err == 0);
}

static void verify(struct seed *s) may_yield;
static void verify(struct seed *s)
{
    const struct sim_work_ops *work = s->o->target->work;
    (work != NULL ? work->verify : workload_verify)(s);
}

void seed_crash(struct seed *s)
{
    if (s->phase == PHASE_OPEN)
        sim_count_fault(s->sim, SIM_FAULT_CRASH_IN_RECOVERY);
    s->crashes++;
    bool power = sim_chance(&s->random, s->w.power_ppm);
    if (power) {
        sim_node_power_loss(s->node, &s->w.power_loss);
        model_power_loss(s->model);
        if (s->changes != NULL)
            changes_crash(s->changes, true);
    } else {
        sim_node_kill(s->node);
        model_kill(s->model);
        if (s->changes != NULL)
            changes_crash(s->changes, false);
    }
    if (s->o->target->work != NULL)
        s->o->target->work->crash(s, power);
    s->target = NULL;
}

void seed_end(struct seed *s)
{
    seed_run_until(s, node_idle, SEED_STUCK_NS);
    if (!s->failed)
        sim_node_end(s->node);
}

/* ---- What the main fiber of a process does ---- */

void seed_create_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    int err = s->o->target->create(s->node, &s->w);
    if (err != 0)
        seed_fail(s, "cannot create: %s (%s)", error_text(err), error_name(err));
    s->life_over = true;
}

bool seed_open_target(struct seed *s)
{
    struct sim_target *t = NULL;
    int err = s->o->target->open(s->node, &s->w, &t);
    if (err != 0) {
        seed_fail(s, "cannot open: %s (%s)", error_text(err), error_name(err));
        return false;
    }
    s->target = t;
    s->last_progress_ns = sim_now_ns(s->sim);
    uint64_t blocks = t->ops->blocks(t);
    if (blocks < model_blocks(s->model) || blocks > s->w.volume_blocks_max) {
        seed_fail(s, "the volume has %" PRIu64 " blocks after opening, it had %" PRIu64, blocks,
                  model_blocks(s->model));
        return false;
    }
    model_grow(s->model, blocks);                        /* a grow that was under way happened */
    model_settle(s->model, model_flush_begin(s->model)); /* opening ends with a commit */
    sim_trace(s->sim, "opened", "", blocks, s->life, 0);
    if (s->changes != NULL)
        changes_verify(s);
    return !s->failed;
}

static void work_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    if (!seed_open_target(s))
        return;
    s->phase = PHASE_WORK;
    const struct sim_work_ops *work = s->o->target->work;
    if (work != NULL || sim_random_below(&s->random, 3) == 0)
        verify(s);
    if (!s->failed)
        (work != NULL ? work->run : workload_run)(s);
    if (!s->failed && s->w.rest)
        workload_rest(s);
    if (!s->failed)
        s->target->ops->check(s->target);
    s->life_over = true;
}

bool seed_wait_jobs(struct seed *s, bool healthy, struct sim_target_status *st)
{
    uint64_t until = sim_now_ns(s->sim) + HEALTHY_NS;
    for (;;) {
        s->target->ops->get_status(s->target, st);
        if (st->state != 0) {
            seed_fail(s, "the volume failed: %s", error_text(st->state));
            return false;
        }
        if (!st->busy && (st->healthy || !healthy))
            return true;
        if (sim_now_ns(s->sim) >= until) {
            seed_fail(s,
                      "after an hour the volume is %s and %s: %" PRIu32
                      " stale members, redundancy %d, %" PRIu64 " damaged ranges",
                      st->busy ? "busy" : "idle", st->healthy ? "healthy" : "not healthy", st->stale_members,
                      st->redundancy_left, st->damage_count);
            return false;
        }
        if (!st->busy) {
            int err = s->target->ops->repair(s->target);
            if (err != 0 && err != ERR_VOLUME_BUSY) {
                seed_fail(s, "cannot repair: %s", error_text(err));
                return false;
            }
        }
        s->last_progress_ns = sim_now_ns(s->sim);
        if (fiber_sleep(20 * NSEC_PER_MSEC) != 0)
            return false;
    }
}

static bool scrub_once(struct seed *s, struct sim_target_status *st) may_yield;
static bool scrub_once(struct seed *s, struct sim_target_status *st)
{
    if (!seed_wait_jobs(s, false, st))
        return false;
    int err = s->target->ops->scrub(s->target);
    if (err != 0) {
        seed_fail(s, "cannot scrub: %s", error_text(err));
        return false;
    }
    return seed_wait_jobs(s, false, st);
}

/* Whole again: repaired, scrubbed twice (the second one finds nothing). */
static void make_whole(struct seed *s) may_yield;
static void make_whole(struct seed *s)
{
    struct sim_target_status st;
    /* What had one copy stays lost until it is overwritten; a full pool may have no slab for a new copy. */
    bool whole = (s->w.copies > 1 || !s->w.rot) && (s->w.spare_slabs == 0 || s->w.victims == 0);
    if (!seed_wait_jobs(s, whole, &st) || !scrub_once(s, &st))
        return;
    if (st.lost_blocks != 0 && s->w.copies > 1)
        seed_fail(s, "scrub says that %" PRIu64 " blocks are lost", st.lost_blocks);
    if (!s->failed && scrub_once(s, &st) && st.bad_copies != st.lost_blocks && s->w.copies > 1)
        seed_fail(s, "a second scrub finds %" PRIu64 " bad copies", st.bad_copies);
}

/* Its invariants in memory, and what its trees say about space. */
static void check_inside(struct seed *s) may_yield;
static void check_inside(struct seed *s)
{
    char why[256];
    s->target->ops->check(s->target);
    int64_t problems = s->target->ops->verify(s->target, why, sizeof(why));
    if (problems < 0)
        seed_fail(s, "cannot verify: %s", error_text((int)problems));
    else if (problems > 0)
        seed_fail(s, "%" PRId64 " contradictions inside, the first: %s", problems, why);
}

static void last_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    if (!seed_open_target(s))
        return;
    s->phase = PHASE_LAST;
    verify(s);
    if (!s->failed)
        make_whole(s);
    if (!s->failed)
        check_inside(s);
    if (!s->failed)
        verify(s);
    if (s->failed)
        return;
    int err = s->target->ops->close(s->target);
    if (err != 0)
        seed_fail(s, "cannot close: %s (%s)", error_text(err), error_name(err));
    s->life_over = true;
}

static void offline_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    int err = s->o->target->check_offline(s->node, &s->w);
    if (err != 0)
        seed_fail(s, "the offline check found damage: %s (%s)", error_text(err), error_name(err));
    s->life_over = true;
}

/* ---- The phases ---- */

static void phase_create(struct seed *s)
{
    seed_life_begin(s, PHASE_CREATE, seed_create_main);
    seed_run_until(s, seed_life_done, SEED_STUCK_NS);
    if (!s->failed)
        seed_end(s);
}

static void phase_work(struct seed *s, bool last)
{
    s->acked_goal =
        last ? MAX((uint64_t)s->w.ops, s->acked + 1) : s->acked + s->w.ops / (s->w.crashes + 1) + 1;
    seed_life_begin(s, PHASE_OPEN, work_main);
    chaos_start(s);
    if (!last) {
        bool recovery = sim_chance(&s->random, s->w.recovery_crash_ppm);
        uint64_t span = recovery ? 60 : s->w.crash_span;
        sim_node_cut_after(s->node, sim_random_between(&s->random, 1, span));
    }
    seed_run_until(s, seed_life_done, SEED_STUCK_NS);
    if (!s->failed)
        seed_crash(s);
    if (!s->failed && s->rested && s->w.victims > 0)
        chaos_at_rest(s);
}

static void phase_last(struct seed *s)
{
    chaos_quiet(s);
    s->w.replace_bad_drives = true;
    s->acked_goal = UINT64_MAX;
    bool again = sim_random_below(&s->random, 4) == 0;
    for (int i = 0; i < (again ? 2 : 1) && !s->failed; i++) {
        seed_life_begin(s, PHASE_OPEN, last_main);
        seed_run_until(s, seed_life_done, SEED_STUCK_NS);
        if (!s->failed)
            seed_end(s);
    }
    if (!s->failed && s->o->target->check_offline != NULL) {
        seed_life_begin(s, PHASE_LAST, offline_main);
        seed_run_until(s, seed_life_done, SEED_STUCK_NS);
        if (!s->failed)
            seed_end(s);
    }
}

static void log_sink(void *ctx, enum log_level level, const char *text)
{
    struct seed *s = ctx;
    sim_note(s->sim, "log %d: %s", (int)level, text);
}

void seed_make(struct seed *s, const struct seed_options *o, const struct sim_swarm *w)
{
    s->o = o;
    s->w = *w;
    sim_random_init(&s->random, o->seed, STREAM_WORKLOAD);
    sim_random_init(&s->chaos, o->seed, STREAM_CHAOS);
    struct sim_options so = {
        .seed = s->o->seed,
        .trace = s->o->trace,
        .trace_out = s->o->out,
        .mutant = s->o->mutant,
        .quantum_ns = s->w.quantum_ns,
        .io_latency_us = s->w.io_latency_us,
        .net_latency_us = 100,
        .shuffle_fibers = s->w.shuffle_fibers,
    };
    s->sim = sim_new(&so);
    s->node = sim_node_new(s->sim);
    for (uint32_t i = 0; i < s->w.drives; i++) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(i, path);
        struct sim_file *f = sim_file_new(s->node, path, s->w.drive_bytes);
        assert(f != NULL);
    }
    s->model = model_new(o->seed, s->w.volume_blocks);
    if (o->target->work != NULL)
        o->target->work->setup(s);
    if (s->w.change_clients != 0 && o->target->change != NULL)
        s->changes = changes_new(o->seed);
    log_set_sink(log_sink, s);
}

void seed_run(const struct seed_options *o, struct seed_result *ret)
{
    struct seed *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    struct sim_swarm w;
    swarm_draw(o->seed, &w);
    if (o->target == &sim_target_toy_ops)
        w.victims = 0;
    if (o->target == &sim_target_fs_ops)
        swarm_for_files(&w);
    seed_make(s, o, &w);

    phase_create(s);
    while (!s->failed && s->crashes < s->w.crashes)
        phase_work(s, false);
    if (!s->failed)
        phase_work(s, true);
    if (!s->failed)
        phase_last(s);
    log_set_sink(NULL, NULL);

    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    *ret = (struct seed_result){
        .seed = o->seed,
        .failed = s->failed,
        .trace_hash = sim_trace_hash(s->sim),
        .events = sim_event_count(s->sim),
        .acked = s->acked,
        .crashes = s->crashes,
        .sim_ns = sim_now_ns(s->sim),
        .cpu_ns = (uint64_t)cpu.tv_sec * NSEC_PER_SEC + (uint64_t)cpu.tv_nsec,
    };
    memcpy(ret->faults, sim_faults(s->sim), sizeof(ret->faults));
    memcpy(ret->why, s->why, sizeof(ret->why));
}
