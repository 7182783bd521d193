/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and latency histograms, one set per reactor, merged when read. Updating one is an add in own
 * memory. */
#ifndef ASHLAR_RUNTIME_METRICS_H
#define ASHLAR_RUNTIME_METRICS_H

#include "runtime/base.h"

/* Log-linear: 8 buckets an octave from 1 us to 134 s; error at most 12.5 %. */
#define HISTOGRAM_BUCKETS 224
struct histogram {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t max_ns;
    uint32_t buckets[HISTOGRAM_BUCKETS];
};
void histogram_add(struct histogram *h, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* fraction 0..1; 0 for an empty histogram. */
uint64_t histogram_percentile_ns(const struct histogram *h, double fraction);

/* Counters are plain uint64_t fields in the structures that they describe; written by one thread, read by
 * any with relaxed loads. */
static inline void counter_add(uint64_t *c, uint64_t n)
{
    __atomic_store_n(c, *c + n, __ATOMIC_RELAXED);
}
static inline uint64_t counter_get(const uint64_t *c)
{
    return __atomic_load_n(c, __ATOMIC_RELAXED);
}

#endif
