/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c (Castagnoli, RFC 3720 appendix B.4; the result after final inversion) by ISA-L, and xxh3 for
 * hashing. */
#ifndef ASHLAR_RUNTIME_CHECKSUM_H
#define ASHLAR_RUNTIME_CHECKSUM_H

#include "runtime/base.h"

/* Continues from seed; 0 to begin. crc32c(crc32c(0, a), b) == crc32c(0, a || b). */
uint32_t crc32c(uint32_t seed, const void *data, size_t len);
/* One checksum a 4 KiB block; len is a multiple of BLOCK_SIZE. */
void crc32c_blocks(const void *data, size_t len, uint32_t *ret_sums);
/* crc32c of one block of zeroes. */
uint32_t crc32c_zero_block(void);
uint64_t hash64(const void *data, size_t len, uint64_t seed);
static inline uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

#endif
