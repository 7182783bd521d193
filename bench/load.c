/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

uint64_t load_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t load_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void load_random_fill(uint64_t *state, void *buf, uint64_t bytes)
{
    for (uint64_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word = load_random(state);
        memcpy((unsigned char *)buf + at, &word, sizeof(word));
    }
}

double load_own_cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

bool load_number(const char *text, uint64_t *ret)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-')
        return false;
    *ret = n;
    return true;
}

void load_wait_for_line(bool wanted, const char *what)
{
    char line[16];
    if (!wanted)
        return;
    printf("%s\n", what);
    fflush(stdout);
    if (fgets(line, sizeof(line), stdin) == NULL)
        exit(1);
}

void load_fail(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* ---- Latencies ---- */

static unsigned bucket_of(uint64_t ns)
{
    if (ns < 1u << LOAD_BUCKET_BITS)
        return (unsigned)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - LOAD_BUCKET_BITS;
    return ((shift + 1) << LOAD_BUCKET_BITS) + (unsigned)((ns >> shift) & ((1u << LOAD_BUCKET_BITS) - 1));
}

/* The lower end of a bucket. */
static double bucket_ns(unsigned bucket)
{
    unsigned shift = bucket >> LOAD_BUCKET_BITS, low = bucket & ((1u << LOAD_BUCKET_BITS) - 1);
    return shift == 0 ? low : (double)(((uint64_t)low | 1u << LOAD_BUCKET_BITS) << (shift - 1));
}

void load_latency_add(struct load_latencies *l, uint64_t ns)
{
    l->count++;
    l->buckets[bucket_of(ns)]++;
}

void load_latencies_merge(struct load_latencies *into, const struct load_latencies *from)
{
    into->count += from->count;
    for (unsigned i = 0; i < LOAD_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

double load_latency_us(const struct load_latencies *l, double share)
{
    uint64_t wanted = (uint64_t)((double)l->count * share), seen = 0;
    for (unsigned i = 0; i < LOAD_BUCKETS; i++) {
        seen += l->buckets[i];
        if (seen > wanted)
            return bucket_ns(i) / 1000;
    }
    return 0;
}

void load_print(const struct load_result *r, const struct load_latencies *l)
{
    printf("{\"seconds\": %.4f, \"operations\": %llu, \"errors\": %llu, \"ops_per_s\": %.1f, "
           "\"mib_per_s\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"client_cpu_us\": %.2f}\n",
           r->seconds, (unsigned long long)r->operations, (unsigned long long)r->errors,
           (double)r->operations / r->seconds, (double)r->bytes / r->seconds / 1048576,
           load_latency_us(l, 0.5), load_latency_us(l, 0.99), load_latency_us(l, 0.999),
           r->operations != 0 ? r->cpu_s * 1e6 / (double)r->operations : 0);
}
