/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume in memory, for tests of what stands on volumes: the data functions of volume/volume.h, with knobs.
 * It keeps references of the pages that are written to it, as a volume does, and asserts that nobody changes
 * them afterwards.
 */
#ifndef ASHLAR_FAKE_VOLUME_H
#define ASHLAR_FAKE_VOLUME_H

#include "volume/volume.h"

struct fake_volume_knobs {
    uint64_t delay_ns; /* of each call; 0: none. With jitter: a random part of it */
    bool jitter;
    int read_error, write_error, flush_error, map_error; /* returned by every such call; 0: none */
    uint64_t bad_block; /* reading it is ERR_NO_GOOD_COPY; UINT64_MAX: none */
};

struct fake_volume_counts {
    uint64_t reads, writes, fua_writes, unmaps, zeroes, flushes, prefetches, maps;
    uint64_t unmapped_blocks, zeroed_blocks;
    uint32_t under_way, most_under_way;
};

struct volume *fake_volume_new(uint64_t size_bytes);
void fake_volume_free(struct volume *v);
struct fake_volume_knobs *fake_volume_knobs(struct volume *v);
struct fake_volume_counts *fake_volume_counts(struct volume *v);
/* Without a fiber. */
void fake_volume_peek(struct volume *v, uint64_t offset, void *buf, size_t len);
void fake_volume_poke(struct volume *v, uint64_t offset, const void *buf, size_t len);

#endif
