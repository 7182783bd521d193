/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a seed decides about its history beforehand. Swarm testing: each seed has some kinds of operations and
 * faults and not others, so that rare combinations are not drowned by an average of everything.
 */
#ifndef ASHLAR_SIM_SWARM_H
#define ASHLAR_SIM_SWARM_H

#include "sim/world.h"

#include <stdio.h>

#define SWARM_DRIVES_MAX 6u

enum swarm_op {
    SWARM_READ,
    SWARM_WRITE,
    SWARM_UNMAP,
    SWARM_ZERO,
    SWARM_FLUSH,
    SWARM_COMMIT,
    SWARM_MAP,
    SWARM_SCRUB,
    SWARM_GROW,
    SWARM_OPS
};

struct sim_swarm {
    uint64_t seed;
    struct uuid pool; /* also the node's identity */
    char protection[16];
    uint32_t copies;
    uint32_t drives;
    uint64_t drive_bytes;
    uint32_t slab_bytes;
    uint32_t system_runs;
    uint32_t spare_slabs; /* the pool has only so many free ones a drive; 0: as many as there are */
    uint64_t volume_blocks, volume_blocks_max;
    uint64_t budget_bytes;
    size_t chunk_bytes;

    uint32_t clients;
    uint32_t ops; /* to acknowledge before the last phase */
    uint32_t weights[SWARM_OPS];
    uint32_t fua_ppm;
    uint32_t write_blocks_max;
    uint32_t hot_blocks; /* half of the operations go to so many blocks */
    uint32_t think_us;   /* pause of a client between two operations; 0: none */

    uint32_t change_clients; /* beside the others: changes.c; 0: none */
    bool clones;             /* they also clone */

    uint64_t quantum_ns;
    uint32_t io_latency_us;
    bool shuffle_fibers;

    uint32_t crashes;            /* at least so many */
    uint32_t power_ppm;          /* of the crashes; the others are kills */
    uint32_t recovery_crash_ppm; /* of the crashes fall into the opening of the volume */
    uint32_t crash_span;         /* submissions until a crash: 1 .. this */
    struct sim_power_loss power_loss;

    uint32_t victims;  /* drives 0 .. victims-1 may misbehave: never more than the copies bear */
    uint64_t chaos_us; /* between two faults that are not drawn per I/O; 0: none */
    bool rot, lose_drive, cut_drive, slow_drive, host_full;
    bool rest; /* clients flush and rest before an end of the process; data rots before the next start */
    bool replace_bad_drives; /* set for the last phase: what cannot be opened gets a new drive in its place */
    uint32_t read_error_ppm, write_error_ppm, sync_error_ppm, misdirect_ppm, drop_ppm, slow_ppm;
};

void swarm_draw(uint64_t seed, struct sim_swarm *ret);
/* The same for clients of a file system: an operation is several of a block device's. */
void swarm_for_files(struct sim_swarm *w);
void swarm_print(const struct sim_swarm *w, FILE *out);

#endif
