/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/sweep.h"

#include "runtime/error.h"
#include "sim/runner.h"

#include <inttypes.h>
#include <stdlib.h>

#define POINTS_MAX 5000u

static const char *const kind_names[] = {"io", "alloc", "malloc"};
static const char *const phase_names[] = {"start", "commit", "replay", "repair", "grow"};
static_assert(ARRAY_SIZE(kind_names) == SWEEP_KINDS && ARRAY_SIZE(phase_names) == SWEEP_PHASES, "");

struct sweep {
    enum sweep_kind kind;
    enum sweep_phase phase;
    uint64_t nth;
    struct seed *seed;
    bool opened; /* in the life in which something fails */
    int err;     /* of the phase */
};

static bool name_parse(const char *const *names, int count, const char *name, int *ret)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            *ret = i;
            return true;
        }
    }
    return false;
}

bool sweep_kind_parse(const char *name, enum sweep_kind *ret)
{
    int i;
    if (!name_parse(kind_names, SWEEP_KINDS, name, &i))
        return false;
    *ret = (enum sweep_kind)i;
    return true;
}

bool sweep_phase_parse(const char *name, enum sweep_phase *ret)
{
    int i;
    if (!name_parse(phase_names, SWEEP_PHASES, name, &i))
        return false;
    *ret = (enum sweep_phase)i;
    return true;
}

static void arm(struct sweep *sw)
{
    /* Two copies, one of them gone: what fails on another drive as well may take the last one. */
    bool bears_one = sw->phase != SWEEP_REPAIR || sw->seed->w.copies > 2;
    if (sw->kind == SWEEP_IO)
        sim_node_fail_io(sw->seed->node, sw->nth, bears_one ? NULL : "/drive-0");
    else if (sw->kind == SWEEP_ALLOC)
        sim_node_fail_alloc(sw->seed->node, sw->nth);
    else
        sim_node_fail_malloc(sw->seed->node, sw->nth);
}

static struct sim_swarm scenario(uint64_t seed)
{
    struct sim_swarm w;
    swarm_draw(seed, &w);
    w.copies = 1 + (uint32_t)(seed % 3);
    snprintf(w.protection, sizeof(w.protection), "%s",
             w.copies == 1   ? "none"
             : w.copies == 2 ? "mirror:2"
                             : "mirror:3");
    w.drives = w.copies + 1;
    w.slab_bytes = MIB;
    w.system_runs = 1;
    w.spare_slabs = 0;
    w.change_clients = 0;
    w.volume_blocks = 512;
    w.volume_blocks_max = 1024;
    w.budget_bytes = 16 * MIB;
    w.victims = 0;
    w.chaos_us = 0;
    w.rot = false;
    w.think_us = 0;
    w.power_ppm = seed / 3 % 2 == 0 ? 1000000 : 0;
    return w;
}

/* ---- The lives ---- */

/* Some data, some of it committed, some only in the log. */
static void fill(struct seed *s, uint32_t writes) may_yield;
static void fill(struct seed *s, uint32_t writes)
{
    s->acked_goal = UINT64_MAX;
    for (uint32_t i = 0; i < writes && !s->failed; i++) {
        workload_write(s, sim_random_below(&s->random, 500), 1 + (uint32_t)sim_random_below(&s->random, 12),
                       i % 4 == 0);
        if (i % 8 == 7)
            workload_unmap(s, sim_random_below(&s->random, 500), 5);
    }
}

static void prepare_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    struct sweep *sw = s->sweep;
    if (!seed_open_target(s))
        return;
    s->phase = PHASE_WORK;
    fill(s, 20);
    workload_flush(s, true);
    if (sw->phase == SWEEP_REPAIR) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(0, path);
        sim_file_faults(sim_file_find(s->node, path))->lost = true;
    }
    if (sw->phase == SWEEP_REPLAY || sw->phase == SWEEP_REPAIR)
        fill(s, 20);
    if (sw->phase == SWEEP_START && !s->failed && s->target->ops->close(s->target) != 0)
        seed_fail(s, "cannot close before the sweep");
    s->life_over = true;
}

static int sweep_commit(struct seed *s) may_yield;
static int sweep_commit(struct seed *s)
{
    uint64_t begun = model_flush_begin(s->model);
    int err = s->target->ops->commit(s->target);
    if (err == 0)
        model_flush_ack(s->model, begun);
    return err;
}

static int sweep_grow(struct seed *s) may_yield;
static int sweep_grow(struct seed *s)
{
    int err = s->target->ops->grow(s->target, 1000);
    if (err == 0)
        model_grow(s->model, 1000);
    return err;
}

/* Until repair and scrub rest, or the volume failed. */
static int sweep_repair(struct seed *s) may_yield;
static int sweep_repair(struct seed *s)
{
    int err = s->target->ops->repair(s->target);
    if (err != 0 && err != ERR_VOLUME_BUSY)
        return err;
    for (;;) {
        struct sim_target_status st;
        s->target->ops->get_status(s->target, &st);
        if (st.state != 0 || !st.busy)
            return st.state;
        s->last_progress_ns = sim_now_ns(s->sim);
        err = fiber_sleep(NSEC_PER_MSEC);
        if (err != 0)
            return err;
    }
}

static int act(struct sweep *sw) may_yield;
static int act(struct sweep *sw)
{
    switch (sw->phase) {
    case SWEEP_COMMIT:
        return sweep_commit(sw->seed);
    case SWEEP_GROW:
        return sweep_grow(sw->seed);
    case SWEEP_REPAIR:
        return sweep_repair(sw->seed);
    case SWEEP_START:
    case SWEEP_REPLAY:
    case SWEEP_PHASES:
        break;
    }
    return 0;
}

static void failing_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    struct sweep *sw = s->sweep;
    bool opening = sw->phase == SWEEP_START || sw->phase == SWEEP_REPLAY;
    if (opening) {
        arm(sw);
        struct sim_target *t = NULL;
        sw->err = s->o->target->open(s->node, &s->w, &t);
        s->target = t;
    } else if (seed_open_target(s)) {
        s->phase = PHASE_WORK;
        if (sw->phase != SWEEP_REPAIR)
            fill(s, 12);
        arm(sw);
        sw->err = act(sw);
    }
    sw->opened = s->target != NULL;
    if (sw->opened && !s->failed) {
        struct sim_target_status st;
        s->target->ops->get_status(s->target, &st);
        /* A single copy may be refused; whatever is shown must be right. */
        if (st.state == 0 && sw->err == 0 && (s->w.copies > 1 || sw->kind != SWEEP_IO))
            workload_verify(s);
    }
    s->life_over = true;
}

static void after_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    struct sim_target_status st;
    if (!seed_open_target(s))
        return;
    s->phase = PHASE_LAST;
    /* What had its only copy on the drive that failed is given up with an alarm: an error, never wrong bytes.
     */
    bool only_copies = s->w.copies == 1 && s->sweep->kind == SWEEP_IO;
    if (only_copies)
        model_allow_errors(s->model);
    workload_verify(s);
    if (!s->failed && seed_wait_jobs(s, !only_copies, &st)) {
        fill(s, 4);
        workload_flush(s, true);
        workload_verify(s);
        s->target->ops->check(s->target);
        int err = s->target->ops->close(s->target);
        if (err != 0)
            seed_fail(s, "cannot close: %s", error_text(err));
    }
    s->life_over = true;
}

static void life(struct seed *s, enum seed_phase phase, void (*fn)(void *arg), bool in_order)
{
    if (s->failed)
        return;
    seed_life_begin(s, phase, fn);
    seed_run_until(s, seed_life_done, SEED_STUCK_NS);
    if (s->failed)
        return;
    if (in_order)
        seed_end(s);
    else
        seed_crash(s);
}

static void point_run(const struct seed_options *o, struct seed_result *ret)
{
    struct seed *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    struct sweep sw = *(const struct sweep *)o->arg;
    sw.seed = s;
    s->sweep = &sw;
    struct sim_swarm w = scenario(o->seed);
    seed_make(s, o, &w);
    life(s, PHASE_CREATE, seed_create_main, true);
    life(s, PHASE_OPEN, prepare_main, sw.phase == SWEEP_START);
    if (sw.phase == SWEEP_REPAIR) { /* a new drive in the place of the lost one */
        char path[SIM_PATH_SIZE];
        sim_drive_path(0, path);
        sim_file_faults(sim_file_find(s->node, path))->lost = false;
        sim_file_wipe(sim_file_find(s->node, path), s->w.drive_bytes);
        s->w.replace_bad_drives = true;
    }
    if (!s->failed) {
        seed_life_begin(s, PHASE_OPEN, failing_main);
        seed_run_until(s, seed_life_done, SEED_STUCK_NS);
    }
    ret->fired = !s->failed && sim_node_failed(s->node);
    if (!s->failed && sw.opened)
        seed_crash(s);
    else if (!s->failed)
        seed_end(s); /* an open that failed gives everything back */
    life(s, PHASE_OPEN, after_main, true);
    ret->seed = o->seed;
    ret->failed = s->failed;
    ret->trace_hash = sim_trace_hash(s->sim);
    snprintf(ret->why, sizeof(ret->why), "phase: %s; %.600s", error_name(sw.err), s->why);
}

int sweep_run(enum sweep_kind kind, enum sweep_phase phase, uint64_t only, const struct seed_options *o)
{
    uint64_t failed = 0, points = 0;
    if (phase == SWEEP_REPAIR && scenario(o->seed).copies == 1) {
        printf("sweep %s %s: a volume without copies repairs nothing\n", kind_names[kind],
               phase_names[phase]);
        return 0;
    }
    for (uint64_t n = MAX(only, 1u); n <= (only != 0 ? only : POINTS_MAX); n++) {
        struct sweep sw = {.kind = kind, .phase = phase, .nth = n};
        struct seed_options so = *o;
        so.run = point_run;
        so.arg = &sw;
        struct seed_result r;
        runner_one(&so, &r);
        if (r.failed) {
            failed++;
            printf("sweep %s %s, seed %" PRIu64 ", point %" PRIu64 " failed: %s\n", kind_names[kind],
                   phase_names[phase], o->seed, n, r.why);
        }
        if (!r.fired && !r.failed)
            break;
        points++;
        if (failed >= 20)
            break;
    }
    printf("sweep %s %s, seed %" PRIu64 ": %" PRIu64 " points, %" PRIu64 " failed\n", kind_names[kind],
           phase_names[phase], o->seed, points, failed);
    return failed > 0 ? 1 : 0;
}
