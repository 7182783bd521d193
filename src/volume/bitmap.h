/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of bits in a byte array; bit 0 is the lowest of byte 0. */
#ifndef ASHLAR_VOLUME_BITMAP_H
#define ASHLAR_VOLUME_BITMAP_H

#include "runtime/base.h"

static inline bool bitmap_get(const uint8_t *m, uint32_t i)
{
    return m[i >> 3] >> (i & 7) & 1;
}

static inline void bitmap_set_run(uint8_t *m, uint32_t first, uint32_t n)
{
    for (; n > 0 && (first & 7); first++, n--)
        m[first >> 3] |= (uint8_t)(1u << (first & 7));
    memset(m + (first >> 3), 0xff, n >> 3);
    first += n & ~7u;
    for (n &= 7; n > 0; first++, n--)
        m[first >> 3] |= (uint8_t)(1u << (first & 7));
}

static inline void bitmap_clear_run(uint8_t *m, uint32_t first, uint32_t n)
{
    for (; n > 0 && (first & 7); first++, n--)
        m[first >> 3] &= (uint8_t) ~(1u << (first & 7));
    memset(m + (first >> 3), 0, n >> 3);
    first += n & ~7u;
    for (n &= 7; n > 0; first++, n--)
        m[first >> 3] &= (uint8_t) ~(1u << (first & 7));
}

static inline uint32_t bitmap_count(const uint8_t *m, uint32_t bits)
{
    uint32_t n = 0, i = 0;

    for (; i + 64 <= bits; i += 64) {
        uint64_t w;
        memcpy(&w, m + (i >> 3), 8);
        n += (uint32_t)__builtin_popcountll(w);
    }
    for (; i < bits; i++)
        n += bitmap_get(m, i);
    return n;
}

/* First bit of the given value at or after `from`; `bits` if there is none. */
static inline uint32_t bitmap_find(const uint8_t *m, uint32_t bits, uint32_t from, bool value)
{
    uint8_t skip = value ? 0 : 0xff;

    while (from < bits) {
        if (!(from & 7) && m[from >> 3] == skip) {
            from += 8;
            continue;
        }
        if (bitmap_get(m, from) == value)
            return from;
        from++;
    }
    return bits;
}

#endif
