/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that happen by themselves while clients work. Only the victims (drives 0 .. victims-1) misbehave,
 * and there are never more of them than the protection bears, so a client may notice nothing. On a volume
 * without protection only blocks that hold a client's data rot, and the model learns which.
 */
#include "sim/seed.h"

#include "sim/alloc.h"

struct tick {
    struct seed *seed;
    uint64_t life;
};

static struct sim_file *victim_pick(struct seed *s)
{
    char path[SIM_PATH_SIZE];
    sim_drive_path((uint32_t)sim_random_below(&s->chaos, s->w.victims), path);
    return sim_file_find(s->node, path);
}

static void rot_unprotected(struct seed *s, struct sim_file *f)
{
    uint64_t block, id, at;
    if (!sim_file_pick_block(f, 0, UINT64_MAX, &block))
        return;
    const uint8_t *data = sim_file_block(f, block);
    if (data == NULL || !model_parse(s->model, data, &id, &at) || id == 0)
        return;
    if (!model_is_settled(s->model, at, id))
        return;
    (void)model_damage(s->model, at, id);
    (void)sim_file_rot_block(f, block);
}

static void rot(struct seed *s, struct sim_file *f)
{
    if (s->w.copies == 1) {
        rot_unprotected(s, f);
        return;
    }
    uint64_t block;
    if (sim_file_pick_block(f, 0, UINT64_MAX, &block))
        (void)sim_file_rot_block(f, block);
}

/* Between two processes. Everything was flushed a while ago: replay must notice, and keep the rest. */
void chaos_at_rest(struct seed *s)
{
    struct sim_file *f = victim_pick(s);
    for (int i = 0; f != NULL && i < 4; i++)
        rot_unprotected(s, f);
}

static void lose(struct seed *s, struct sim_drive_faults *d)
{
    if (d->lost)
        return;
    d->lost = true;
    sim_count_fault(s->sim, SIM_FAULT_DRIVE_LOST);
    sim_trace(s->sim, "drive-lost", "", 0, 0, 0);
}

static void slow_down(struct seed *s, struct sim_drive_faults *d)
{
    if (d->slow_factor > 1) {
        d->slow_factor = 1;
        return;
    }
    d->slow_factor = (uint32_t)sim_random_between(&s->chaos, 10, 1000);
    sim_count_fault(s->sim, SIM_FAULT_SLOW_DRIVE);
}

static void chaos_tick(void *arg)
{
    struct tick *t = arg;
    struct seed *s = t->seed;
    if (s->life != t->life || s->phase > PHASE_WORK || s->failed) {
        free(t);
        return;
    }
    struct sim_file *f = victim_pick(s);
    if (f != NULL && s->phase == PHASE_WORK) {
        struct sim_drive_faults *d = sim_file_faults(f);
        uint64_t what = sim_random_below(&s->chaos, 10);
        if (what < 6 && s->w.rot)
            rot(s, f);
        else if (what == 6 && s->w.lose_drive)
            lose(s, d);
        else if (what == 7 && s->w.slow_drive)
            slow_down(s, d);
        else if (what == 8 && s->w.host_full)
            d->full = !d->full;
        else if (what == 9 && s->w.cut_drive && sim_file_size(f) == s->w.drive_bytes)
            sim_file_cut(f, ALIGN_DOWN(sim_random_below(&s->chaos, s->w.drive_bytes), (uint64_t)BLOCK_SIZE));
    }
    uint64_t pause = sim_random_between(&s->chaos, 1, 2 * s->w.chaos_us) * NSEC_PER_USEC;
    sim_call_at(s->sim, sim_now_ns(s->sim) + pause, chaos_tick, t);
}

void chaos_start(struct seed *s)
{
    for (uint32_t i = 0; i < s->w.victims; i++) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(i, path);
        struct sim_file *f = sim_file_find(s->node, path);
        if (f == NULL)
            continue;
        struct sim_drive_faults *d = sim_file_faults(f);
        d->read_error_ppm = s->w.read_error_ppm;
        d->write_error_ppm = s->w.write_error_ppm;
        d->sync_error_ppm = s->w.sync_error_ppm;
        d->misdirect_ppm = s->w.misdirect_ppm;
        d->drop_ppm = s->w.drop_ppm;
        d->slow_ppm = s->w.slow_ppm;
        d->full = false;
        if (d->lost && sim_random_below(&s->chaos, 2) == 0)
            d->lost = false; /* it was only the cable */
    }
    if (s->w.chaos_us == 0 || s->w.victims == 0)
        return;
    struct tick *t = malloc(sizeof(*t));
    assert(t != NULL);
    *t = (struct tick){s, s->life};
    sim_call_at(s->sim, sim_now_ns(s->sim) + s->w.chaos_us * NSEC_PER_USEC, chaos_tick, t);
}

void chaos_quiet(struct seed *s)
{
    for (uint32_t i = 0; i < s->w.drives; i++) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(i, path);
        struct sim_file *f = sim_file_find(s->node, path);
        if (f != NULL)
            *sim_file_faults(f) = (struct sim_drive_faults){0};
    }
}
