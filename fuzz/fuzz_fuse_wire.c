/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE: what a mount process sends. The bytes are taken as a stream of requests, as a connection does; of
 * what is accepted, texts lie within the bytes and encoding gives the same bytes again. Bytes that begin with
 * the magic word are also tried as a hello.
 */
#include "protocols/fuse/fuse_wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool lies_within(struct wire_text t, const uint8_t *bytes, size_t len)
{
    const uint8_t *at = (const uint8_t *)t.bytes;
    return t.len == 0 || (at >= bytes && t.len <= len && (size_t)(at - bytes) <= len - t.len);
}

static void try_hello(const uint8_t *data, size_t size)
{
    struct wire_hello h;
    struct fuse_hello r;
    if (size < sizeof(h))
        return;
    memcpy(&h, data, sizeof(h));
    uint32_t len = fuse_hello_len(&h);
    if (len == 0 || len > size || !fuse_hello_decode(data, len, &r))
        return;
    assert(lies_within(r.name, data, len) && lies_within(r.label, data, len));
    assert(r.name.len > 0 && r.name.len <= WIRE_NAME_MAX && r.label.len <= WIRE_LABEL_MAX);
}

/* How many bytes it was; 0: the connection would be lost. */
static size_t try_request(const uint8_t *data, size_t size)
{
    struct wire_request h;
    struct fuse_request q;
    static uint8_t again[WIRE_SMALL_MAX];
    if (size < sizeof(h))
        return 0;
    memcpy(&h, data, sizeof(h));
    uint32_t need = fuse_request_need(&h);
    if (need == 0 || need > size)
        return 0;
    assert(need <= WIRE_SMALL_MAX && need >= sizeof(h));
    uint8_t *copy = malloc(need); /* so that reading behind its end is seen */
    memcpy(copy, data, need);
    bool good = fuse_request_decode(copy, need, &q);
    assert(q.unique == le64_get(h.unique) && q.op == le16_get(h.op));
    if (good) {
        assert(lies_within(q.name, copy, need) && lies_within(q.second, copy, need));
        assert(fuse_request_size(&q) == need);
        assert(fuse_request_encode(&q, again) == need);
        assert(memcmp(again, copy, need) == 0);
        (void)fuse_request_once(&q);
    }
    free(copy);
    return le32_get(h.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_hello(data, size);
    while (size > 0) {
        size_t n = try_request(data, size);
        if (n == 0 || n > size)
            break;
        data += n;
        size -= n;
    }
    return 0;
}
