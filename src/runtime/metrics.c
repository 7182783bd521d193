/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The histogram counts in units of 125 ns. The first 8 buckets are one unit wide (below 1 us); from there on
 * each octave has 8 buckets of equal width, so a bucket is at most 1/8 of its lower bound wide.
 */
#include "runtime/metrics.h"

#define HISTOGRAM_UNIT_NS 125

static uint32_t histogram_index(uint64_t ns)
{
    uint64_t v = ns / HISTOGRAM_UNIT_NS;
    if (v < 8)
        return (uint32_t)v;
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(v); /* >= 3 */
    uint32_t index = (octave - 2) * 8 + (uint32_t)((v >> (octave - 3)) & 7);
    return MIN(index, HISTOGRAM_BUCKETS - 1u);
}

/* The largest value that the bucket can hold. */
static uint64_t histogram_upper_ns(uint32_t index)
{
    assert(index < HISTOGRAM_BUCKETS);
    if (index < 8)
        return (index + 1) * (uint64_t)HISTOGRAM_UNIT_NS - 1;
    uint32_t octave = index / 8 + 2;
    uint64_t next = (uint64_t)(8 + index % 8 + 1) << (octave - 3);
    return next * HISTOGRAM_UNIT_NS - 1;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    h->count++;
    h->sum_ns += ns;
    if (ns > h->max_ns)
        h->max_ns = ns;
    h->buckets[histogram_index(ns)]++;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    into->count += from->count;
    into->sum_ns += from->sum_ns;
    into->max_ns = MAX(into->max_ns, from->max_ns);
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

uint64_t histogram_percentile_ns(const struct histogram *h, double fraction)
{
    assert(fraction >= 0.0 && fraction <= 1.0);
    if (h->count == 0)
        return 0;
    uint64_t rank = (uint64_t)(fraction * (double)h->count);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
        seen += h->buckets[i];
        if (seen > rank || seen == h->count)
            return MIN(histogram_upper_ns(i), h->max_ns);
    }
    return h->max_ns;
}
