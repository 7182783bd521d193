/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that every file needs: attributes, typed integers of disk and wire, minimum and maximum. */
#ifndef ASHLAR_RUNTIME_BASE_H
#define ASHLAR_RUNTIME_BASE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

#define NSEC_PER_USEC UINT64_C(1000)
#define NSEC_PER_MSEC UINT64_C(1000000)
#define NSEC_PER_SEC  UINT64_C(1000000000)

/* The unit of drive space, of checksums and of page memory: everything on a drive is a multiple of it. */
#define BLOCK_SHIFT 12
#define BLOCK_SIZE  (UINT32_C(1) << BLOCK_SHIFT)

#define ARRAY_SIZE(a)         (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(p, t, m) ((t *)((char *)(p)-offsetof(t, m)))
#define MIN(a, b)             ((a) < (b) ? (a) : (b))
#define MAX(a, b)             ((a) > (b) ? (a) : (b))
#define DIV_ROUND_UP(n, d)    (((n) + (d)-1) / (d))
#define ALIGN_UP(n, a)        (((n) + (a)-1) & ~((__typeof__(n))(a)-1))
#define ALIGN_DOWN(n, a)      ((n) & ~((__typeof__(n))(a)-1))

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define MUST_CHECK        __attribute__((warn_unused_result))
#define CLEANUP(fn)       __attribute__((cleanup(fn)))
#define PREDICT_TRUE(x)   __builtin_expect(!!(x), 1)
#define PREDICT_FALSE(x)  __builtin_expect(!!(x), 0)

/*
 * may_yield, behind a prototype: the function can suspend the running fiber. Everything that was read
 * before such a call must be looked up again, or held, after it. Clang checks that only functions so
 * marked call functions so marked (a fiber's entry function is one); gcc takes it as a comment.
 */
#ifdef __clang__
struct __attribute__((capability("role"))) fiber_role {
    int unused;
};
extern struct fiber_role fiber_role;
#define may_yield __attribute__((requires_capability(fiber_role)))
/* For the one place that starts a fiber's body or runs a test's: the role begins here. */
#define fiber_role_assumed __attribute__((no_thread_safety_analysis))
#else
#define may_yield
#define fiber_role_assumed
#endif

/* Integers on disk (little-endian) and on the wire (big-endian), typed, so that a forgotten swap does not
 * compile. They have alignment 1 and may stand anywhere in a packed layout. */
struct le16 {
    uint8_t b[2];
};
struct le32 {
    uint8_t b[4];
};
struct le64 {
    uint8_t b[8];
};
struct be16 {
    uint8_t b[2];
};
struct be32 {
    uint8_t b[4];
};
struct be64 {
    uint8_t b[8];
};

#define ASHLAR_INT_ACCESS(order, bits, swap)                              \
    static inline uint##bits##_t order##bits##_get(struct order##bits v)  \
    {                                                                     \
        uint##bits##_t x;                                                 \
        memcpy(&x, v.b, sizeof(x));                                       \
        return swap(x);                                                   \
    }                                                                     \
    static inline struct order##bits order##bits##_make(uint##bits##_t n) \
    {                                                                     \
        struct order##bits v;                                             \
        n = swap(n);                                                      \
        memcpy(v.b, &n, sizeof(n));                                       \
        return v;                                                         \
    }
#define ASHLAR_SAME(x) (x)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "big-endian hosts need the le accessors swapped");
ASHLAR_INT_ACCESS(le, 16, ASHLAR_SAME)
ASHLAR_INT_ACCESS(le, 32, ASHLAR_SAME)
ASHLAR_INT_ACCESS(le, 64, ASHLAR_SAME)
ASHLAR_INT_ACCESS(be, 16, __builtin_bswap16)
ASHLAR_INT_ACCESS(be, 32, __builtin_bswap32)
ASHLAR_INT_ACCESS(be, 64, __builtin_bswap64)

/* A 128-bit identity: pool, drive, volume. All zero means "none". */
struct uuid {
    uint8_t b[16];
};

static inline bool uuid_equal(struct uuid a, struct uuid b)
{
    return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}
static inline bool uuid_is_none(struct uuid a)
{
    return uuid_equal(a, (struct uuid){{0}});
}
/* Text form 8-4-4-4-12, lower case; out must hold UUID_TEXT_SIZE bytes. */
#define UUID_TEXT_SIZE 37
void uuid_format(struct uuid id, char out[UUID_TEXT_SIZE]);
/* 0, or ERR_UUID_SYNTAX. */
int uuid_parse(const char *text, struct uuid *ret_id) MUST_CHECK;

#endif
