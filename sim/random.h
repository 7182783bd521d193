/* SPDX-License-Identifier: Apache-2.0 */
/* xoshiro256** (Blackman and Vigna, public domain algorithm), seeded by splitmix64. The only source of chance
 * in the simulator: what is drawn depends on the seed and on nothing else. */
#ifndef ASHLAR_SIM_RANDOM_H
#define ASHLAR_SIM_RANDOM_H

#include "runtime/base.h"

struct sim_random {
    uint64_t s[4];
};

static inline uint64_t sim_splitmix(uint64_t *x)
{
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Streams of one seed are independent of each other, so that more draws for the workload do not change the
 * draws for the drives. */
static inline void sim_random_init(struct sim_random *r, uint64_t seed, uint64_t stream)
{
    uint64_t x = seed ^ (stream * UINT64_C(0xd1342543de82ef95));
    for (int i = 0; i < 4; i++)
        r->s[i] = sim_splitmix(&x);
}

static inline uint64_t sim_random_u64(struct sim_random *r)
{
    uint64_t *s = r->s;
    uint64_t result = ((s[1] * 5) << 7 | (s[1] * 5) >> 57) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

/* 0 .. n-1; n >= 1. */
static inline uint64_t sim_random_below(struct sim_random *r, uint64_t n)
{
    assert(n >= 1);
    return (uint64_t)(((unsigned __int128)sim_random_u64(r) * n) >> 64);
}

/* low .. high, both included. */
static inline uint64_t sim_random_between(struct sim_random *r, uint64_t low, uint64_t high)
{
    assert(low <= high);
    return low + sim_random_below(r, high - low + 1);
}

/* True in ppm of a million cases. */
static inline bool sim_chance(struct sim_random *r, uint32_t ppm)
{
    return ppm > 0 && sim_random_below(r, 1000000) < ppm;
}

#endif
