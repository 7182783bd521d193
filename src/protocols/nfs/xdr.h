/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XDR (RFC 4506) as two cursors over bytes: one that reads, one that writes. Both are sticky: after the first
 * item that does not fit, everything reads as zero (writes nothing), and the caller asks once at the end.
 * Reading copies no payload: opaque data comes back as a pointer into the message.
 */
#ifndef ASHLAR_PROTOCOLS_NFS_XDR_H
#define ASHLAR_PROTOCOLS_NFS_XDR_H

#include "runtime/base.h"

#define XDR_PAD(len) ((-(uint32_t)(len)) & 3u)

/* ---- Reading ---- */

struct xdr {
    const uint8_t *at, *end;
    bool bad; /* something was missing, too long or not what it must be */
};

static inline struct xdr xdr_over(const void *data, size_t len)
{
    const uint8_t *p = data;
    return (struct xdr){.at = p, .end = p + len};
}
static inline size_t xdr_left(const struct xdr *x)
{
    return (size_t)(x->end - x->at);
}
static inline void xdr_fail(struct xdr *x)
{
    x->bad = true;
    x->at = x->end;
}

static inline uint32_t xdr_u32(struct xdr *x)
{
    struct be32 v;
    if (PREDICT_FALSE(xdr_left(x) < sizeof(v))) {
        xdr_fail(x);
        return 0;
    }
    memcpy(&v, x->at, sizeof(v));
    x->at += sizeof(v);
    return be32_get(v);
}
static inline uint64_t xdr_u64(struct xdr *x)
{
    struct be64 v;
    if (PREDICT_FALSE(xdr_left(x) < sizeof(v))) {
        xdr_fail(x);
        return 0;
    }
    memcpy(&v, x->at, sizeof(v));
    x->at += sizeof(v);
    return be64_get(v);
}
/* Anything but 0 and 1 is bad. */
static inline bool xdr_bool(struct xdr *x)
{
    uint32_t v = xdr_u32(x);
    if (PREDICT_FALSE(v > 1))
        xdr_fail(x);
    return v == 1;
}
/* One of 0..last. */
static inline uint32_t xdr_enum(struct xdr *x, uint32_t last)
{
    uint32_t v = xdr_u32(x);
    if (PREDICT_FALSE(v > last)) {
        xdr_fail(x);
        return 0;
    }
    return v;
}
/* len bytes and their padding; borrowed. NULL if they are not all there. */
static inline const uint8_t *xdr_fixed(struct xdr *x, uint32_t len)
{
    if (PREDICT_FALSE(xdr_left(x) < (uint64_t)len + XDR_PAD(len))) {
        xdr_fail(x);
        return NULL;
    }
    const uint8_t *p = x->at;
    x->at += len + XDR_PAD(len);
    return p;
}
/* Opaque data or a string of at most max bytes; *ret_len is 0 when it is bad. */
static inline const uint8_t *xdr_opaque(struct xdr *x, uint32_t max, uint32_t *ret_len)
{
    uint32_t len = xdr_u32(x);
    *ret_len = 0;
    if (PREDICT_FALSE(len > max || x->bad)) {
        xdr_fail(x);
        return NULL;
    }
    const uint8_t *p = xdr_fixed(x, len);
    if (p != NULL)
        *ret_len = len;
    return p;
}

/* ---- Writing ---- */

struct xdr_out {
    uint8_t *data;
    uint32_t len, capacity;
    bool full; /* something did not fit, and was left out */
};

static inline struct xdr_out xdr_into(void *data, size_t capacity)
{
    return (struct xdr_out){.data = data, .capacity = (uint32_t)capacity};
}
/* Room for len bytes (a multiple of 4); NULL: there is none. */
static inline uint8_t *xdr_room(struct xdr_out *o, uint32_t len)
{
    if (PREDICT_FALSE(len > o->capacity - o->len || o->full)) {
        o->full = true;
        return NULL;
    }
    uint8_t *p = o->data + o->len;
    o->len += len;
    return p;
}
static inline void xdr_put_u32(struct xdr_out *o, uint32_t v)
{
    struct be32 b = be32_make(v);
    uint8_t *p = xdr_room(o, sizeof(b));
    if (PREDICT_TRUE(p != NULL))
        memcpy(p, &b, sizeof(b));
}
static inline void xdr_put_u64(struct xdr_out *o, uint64_t v)
{
    struct be64 b = be64_make(v);
    uint8_t *p = xdr_room(o, sizeof(b));
    if (PREDICT_TRUE(p != NULL))
        memcpy(p, &b, sizeof(b));
}
static inline void xdr_put_bool(struct xdr_out *o, bool v)
{
    xdr_put_u32(o, v);
}
static inline void xdr_put_fixed(struct xdr_out *o, const void *data, uint32_t len)
{
    uint8_t *p = xdr_room(o, len + XDR_PAD(len));
    if (PREDICT_FALSE(p == NULL) || len == 0)
        return;
    memset(p + len + XDR_PAD(len) - 4, 0, 4); /* at most the last word is padding in part */
    memcpy(p, data, len);
}
static inline void xdr_put_opaque(struct xdr_out *o, const void *data, uint32_t len)
{
    xdr_put_u32(o, len);
    xdr_put_fixed(o, data, len);
}
/* A number that is known only later: at an offset that was written before. */
static inline void xdr_set_u32(struct xdr_out *o, uint32_t at, uint32_t v)
{
    struct be32 b = be32_make(v);
    assert(at <= o->len && o->len - at >= sizeof(b));
    memcpy(o->data + at, &b, sizeof(b));
}

#endif
