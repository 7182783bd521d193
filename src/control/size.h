/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations and rates as people write and read them. Pure; used by ashlard's options and by ashlar. */
#ifndef ASHLAR_CONTROL_SIZE_H
#define ASHLAR_CONTROL_SIZE_H

#include "runtime/base.h"

/* "4096", "10G", "1.5T", "512MiB", "64 kb": a decimal number and a unit of powers of 1024 (K M G T P E, in
 * either case, with an optional "iB" or "B"). Fractions are rounded down to whole bytes. ERR_INVALID:
 * anything else, negative, or above 2^63-1. */
int size_parse(const char *text, uint64_t *ret_bytes) MUST_CHECK;

#define SIZE_TEXT_SIZE 24
/* "0 B", "512 B", "4 KiB", "1.5 GiB": whole numbers without a fraction, else one digit behind the point. */
void size_format(uint64_t bytes, char out[SIZE_TEXT_SIZE]);

#define DURATION_TEXT_SIZE 24
/* Rounded for people: "12 us", "3.4 ms", "5 s", "4 min 10 s", "2 h 5 min", "3 d 4 h". */
void duration_format(uint64_t ns, char out[DURATION_TEXT_SIZE]);

#endif
