/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/swarm.h"

#include <inttypes.h>

#define STREAM 3

/* One of several numbers. */
#define PICK(r, ...)                                             \
    ({                                                           \
        const uint64_t pick_from[] = {__VA_ARGS__};              \
        pick_from[sim_random_below((r), ARRAY_SIZE(pick_from))]; \
    })

static void draw_pool(struct sim_random *r, struct sim_swarm *w)
{
    w->copies = (uint32_t)PICK(r, 1, 1, 2, 2, 2, 3, 3);
    snprintf(w->protection, sizeof(w->protection), "%s",
             w->copies == 1   ? "none"
             : w->copies == 2 ? "mirror:2"
                              : "mirror:3");
    uint32_t most = SWARM_DRIVES_MAX - w->copies;
    w->drives = w->copies + (uint32_t)sim_random_below(r, MIN(most, 3u) + 1);
    w->drive_bytes = 64 * MIB;
    w->slab_bytes = (uint32_t)PICK(r, 512 * KIB, MIB, MIB, 2 * MIB);
    w->system_runs = (uint32_t)PICK(r, 1, 1, 2, 3) * (w->slab_bytes == 512 * KIB ? 2 : 1);
    w->volume_blocks = PICK(r, 64, 256, 700, 1024, 2000);
    w->volume_blocks_max = w->volume_blocks;
    w->budget_bytes = PICK(r, 12 * MIB, 16 * MIB, 32 * MIB);
    w->chunk_bytes = 4 * MIB;
    if (sim_random_below(r, 6) == 0) { /* a pool that fills */
        w->slab_bytes = 512 * KIB;
        w->system_runs = 2;
        w->volume_blocks = PICK(r, 1500, 3000);
        w->volume_blocks_max = w->volume_blocks;
        /* Tree groups need some, data groups the rest. */
        w->spare_slabs = w->system_runs + 6 + (uint32_t)sim_random_below(r, 4);
    }
}

static void draw_workload(struct sim_random *r, struct sim_swarm *w)
{
    w->clients = (uint32_t)PICK(r, 1, 2, 4, 8, 16);
    w->ops = 1000 + (uint32_t)sim_random_below(r, 60);
    static const uint32_t usual[SWARM_OPS] = {40, 40, 6, 4, 6, 1, 4, 1, 1};
    for (int i = 0; i < SWARM_OPS; i++) {
        bool absent = i >= SWARM_UNMAP && sim_random_below(r, 3) == 0;
        uint64_t scale = PICK(r, 1, 1, 1, 3);
        w->weights[i] = absent ? 0 : usual[i] * (uint32_t)scale;
    }
    if (w->weights[SWARM_GROW] != 0 && w->spare_slabs == 0)
        w->volume_blocks_max = w->volume_blocks * 2;
    w->fua_ppm = (uint32_t)PICK(r, 0, 100000, 500000, 1000000);
    w->write_blocks_max = (uint32_t)PICK(r, 1, 8, 64, 64);
    w->hot_blocks = (uint32_t)PICK(r, 8, 32, 64);
    w->think_us = (uint32_t)PICK(r, 0, 0, 20, 1000);
    w->quantum_ns = PICK(r, 1, 1000, 20000);
    w->io_latency_us = (uint32_t)PICK(r, 10, 50, 200);
    w->shuffle_fibers = sim_random_below(r, 4) != 0;
}

static void draw_crashes(struct sim_random *r, struct sim_swarm *w)
{
    w->crashes = (uint32_t)sim_random_between(r, 1, 5);
    w->power_ppm = (uint32_t)PICK(r, 0, 500000, 500000, 1000000);
    w->recovery_crash_ppm = (uint32_t)PICK(r, 0, 200000, 500000);
    w->crash_span = (uint32_t)PICK(r, 100, 1000, 3000);
    w->power_loss.lost_ppm = (uint32_t)PICK(r, 0, 100000, 500000, 900000, 1000000);
    w->power_loss.torn_ppm = (uint32_t)PICK(r, 0, 50000, 300000);
    if (w->power_loss.lost_ppm + w->power_loss.torn_ppm > 1000000)
        w->power_loss.torn_ppm = 1000000 - w->power_loss.lost_ppm;
}

static void draw_faults(struct sim_random *r, struct sim_swarm *w)
{
    if (sim_random_below(r, 3) == 0)
        return;
    w->chaos_us = PICK(r, 500, 2000, 10000);
    w->slow_drive = sim_random_below(r, 3) == 0;
    w->slow_ppm = (uint32_t)PICK(r, 0, 0, 1000, 10000);
    if (w->copies == 1) {
        w->victims = 1;
        w->rot = sim_random_below(r, 2) == 0;
        return;
    }
    w->victims = 1 + (uint32_t)sim_random_below(r, w->copies - 1);
    w->rot = sim_random_below(r, 2) == 0;
    w->lose_drive = sim_random_below(r, 4) == 0;
    w->cut_drive = sim_random_below(r, 6) == 0;
    w->host_full = sim_random_below(r, 6) == 0;
    w->read_error_ppm = (uint32_t)PICK(r, 0, 0, 1000, 20000);
    w->write_error_ppm = (uint32_t)PICK(r, 0, 0, 0, 1000);
    w->sync_error_ppm = (uint32_t)PICK(r, 0, 0, 0, 5000);
    w->misdirect_ppm = (uint32_t)PICK(r, 0, 0, 2000);
    w->drop_ppm = (uint32_t)PICK(r, 0, 0, 5000);
}

#define STREAM_CHANGES 7

void swarm_draw(uint64_t seed, struct sim_swarm *ret)
{
    struct sim_random r;
    sim_random_init(&r, seed, STREAM);
    struct sim_swarm w = {.seed = seed};
    draw_pool(&r, &w);
    draw_workload(&r, &w);
    draw_crashes(&r, &w);
    draw_faults(&r, &w);
    for (size_t i = 0; i < sizeof(w.pool.b); i++)
        w.pool.b[i] = (uint8_t)sim_random_below(&r, 256);
    w.rest = w.copies == 1 && w.rot && sim_random_below(&r, 2) == 0;
    assert(w.victims <= MAX(w.copies - 1, 1u) && w.drives <= SWARM_DRIVES_MAX);
    /* A stream of its own: the other draws of a seed stay as they were. */
    sim_random_init(&r, seed, STREAM_CHANGES);
    if (sim_random_below(&r, 2) == 0) {
        w.change_clients = (uint32_t)PICK(&r, 1, 2, 4, 8);
        w.clones = sim_random_below(&r, 3) != 0;
    }
    *ret = w;
}

void swarm_for_files(struct sim_swarm *w)
{
    w->clients = MIN(w->clients, 6u);
    w->ops = 200 + w->ops % 100;
    w->crash_span = MIN(w->crash_span, 1000u);
    w->volume_blocks_max = w->volume_blocks;
    /* What rots must be a known client's known block; names have no stamp. */
    if (w->copies == 1)
        w->rot = w->rest = false;
}

void swarm_print(const struct sim_swarm *w, FILE *out)
{
    static const char *const names[SWARM_OPS] = {"read",   "write", "unmap", "zero", "flush",
                                                 "commit", "map",   "scrub", "grow"};
    fprintf(out,
            "seed %" PRIu64 ": %s, %" PRIu32 " drives of %" PRIu64 " MiB, slabs %" PRIu64 " KiB, %" PRIu32
            " system runs, spare slabs %" PRIu32 ", volume %" PRIu64 "..%" PRIu64 " blocks, memory %" PRIu64
            " MiB\n",
            w->seed, w->protection, w->drives, w->drive_bytes / MIB, w->slab_bytes / KIB, w->system_runs,
            w->spare_slabs, w->volume_blocks, w->volume_blocks_max, w->budget_bytes / MIB);
    fprintf(out, "  %" PRIu32 " clients, %" PRIu32 " operations:", w->clients, w->ops);
    for (int i = 0; i < SWARM_OPS; i++)
        if (w->weights[i] != 0)
            fprintf(out, " %s %" PRIu32, names[i], w->weights[i]);
    fprintf(out,
            ", fua %" PRIu32 " ppm, up to %" PRIu32 " blocks, hot %" PRIu32 ", think %" PRIu32
            " us, latency %" PRIu32 " us, quantum %" PRIu64 " ns%s\n",
            w->fua_ppm, w->write_blocks_max, w->hot_blocks, w->think_us, w->io_latency_us, w->quantum_ns,
            w->shuffle_fibers ? ", shuffled" : "");
    if (w->change_clients != 0)
        fprintf(out, "  %" PRIu32 " clients that change items and data%s\n", w->change_clients,
                w->clones ? ", and clone" : "");
    fprintf(out,
            "  crashes %" PRIu32 " within %" PRIu32 " submissions, power %" PRIu32 " ppm (lost %" PRIu32
            ", torn %" PRIu32 "), in recovery %" PRIu32 " ppm\n",
            w->crashes, w->crash_span, w->power_ppm, w->power_loss.lost_ppm, w->power_loss.torn_ppm,
            w->recovery_crash_ppm);
    fprintf(out,
            "  victims %" PRIu32 "%s%s%s%s%s, ppm: read error %" PRIu32 ", write error %" PRIu32
            ", sync error %" PRIu32 ", misdirected %" PRIu32 ", dropped %" PRIu32 ", slow %" PRIu32
            ", every %" PRIu64 " us\n",
            w->victims,
            w->rest  ? ", rot, also at rest"
            : w->rot ? ", rot"
                     : "",
            w->lose_drive ? ", lose" : "", w->cut_drive ? ", cut" : "", w->slow_drive ? ", slow" : "",
            w->host_full ? ", host full" : "", w->read_error_ppm, w->write_error_ppm, w->sync_error_ppm,
            w->misdirect_ppm, w->drop_ppm, w->slow_ppm, w->chaos_us);
}
