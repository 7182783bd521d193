/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checksum.h"

#include <isa-l/crc.h>
#include <xxhash.h>

/* ISA-L takes at most an int of bytes at once; a multiple of the block keeps its fast path. */
#define CRC_STEP_BYTES (UINT64_C(1) << 30)

/* crc32_iscsi() does neither the initial nor the final inversion of RFC 3720; both are here. */
uint32_t crc32c(uint32_t seed, const void *data, size_t len)
{
    uintptr_t p = (uintptr_t)data; /* its prototype lacks const */
    uint32_t crc = ~seed;
    while (len > 0) {
        size_t step = MIN(len, CRC_STEP_BYTES);
        crc = crc32_iscsi((unsigned char *)p, (int)step, crc);
        p += step;
        len -= step;
    }
    return ~crc;
}

void crc32c_blocks(const void *data, size_t len, uint32_t *ret_sums)
{
    assert(len % BLOCK_SIZE == 0);
    uintptr_t p = (uintptr_t)data;
    for (size_t i = 0; i < len / BLOCK_SIZE; i++, p += BLOCK_SIZE)
        ret_sums[i] = ~crc32_iscsi((unsigned char *)p, BLOCK_SIZE, UINT32_MAX);
}

uint32_t crc32c_zero_block(void)
{
    static const uint8_t zeroes[BLOCK_SIZE];
    static uint32_t sum; /* every thread computes the same value */
    uint32_t s = __atomic_load_n(&sum, __ATOMIC_RELAXED);
    if (s == 0) {
        s = crc32c(0, zeroes, sizeof(zeroes));
        __atomic_store_n(&sum, s, __ATOMIC_RELAXED);
    }
    return s;
}

uint64_t hash64(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}
