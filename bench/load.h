/* SPDX-License-Identifier: Apache-2.0 */
/* What all load generators share: the clock, random numbers, latencies, and the result as one line of JSON.
 */
#ifndef ASHLAR_BENCH_LOAD_H
#define ASHLAR_BENCH_LOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Monotonic, in nanoseconds. */
uint64_t load_now_ns(void);

/* The next number of the sequence (splitmix64); any *state is a seed. */
uint64_t load_random(uint64_t *state);

/* Fills bytes (a multiple of 8) with random words: no two blocks of a payload are the same. */
void load_random_fill(uint64_t *state, void *buf, uint64_t bytes);

/* User and system CPU time of this process so far, in seconds. */
double load_own_cpu_s(void);

/* A decimal number, nothing else. */
bool load_number(const char *text, uint64_t *ret);

/* If wanted (--sync), prints what, and waits for a line on standard input: whoever started us reads the
 * server's clocks then. Ends the process if standard input ends. */
void load_wait_for_line(bool wanted, const char *what);

/* Prints a message with the program's name in front, and ends the process with 1. */
void load_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Latencies are counted in buckets 1/32 of a power of two wide: at most 3 % off. */
#define LOAD_BUCKET_BITS 5
#define LOAD_BUCKETS     (64 << LOAD_BUCKET_BITS)
struct load_latencies {
    uint64_t count;
    uint64_t buckets[LOAD_BUCKETS];
};
void load_latency_add(struct load_latencies *l, uint64_t ns);
void load_latencies_merge(struct load_latencies *into, const struct load_latencies *from);
/* The latency that this share (0 to 1) of them does not exceed, in microseconds; 0 if there are none. */
double load_latency_us(const struct load_latencies *l, double share);

struct load_result {
    double seconds, cpu_s; /* of the timed part; cpu_s is the client's */
    uint64_t operations, errors, bytes;
};
void load_print(const struct load_result *r, const struct load_latencies *l);

#endif
