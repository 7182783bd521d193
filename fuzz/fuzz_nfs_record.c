/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFS: record marking. The first byte chooses how the stream is cut into receives; the rest is the stream.
 * However it arrives, the same records must come out, and they must be those that a plain walk over the
 * fragments finds.
 */
#include "protocols/nfs/rpc_format.h"
#include "protocols/nfs/rpc_record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A hash over the bytes and ends of records; how the stream ended. */
struct outcome {
    uint64_t hash;
    uint32_t records;
    bool bad;
};

static void add(struct outcome *o, uint64_t x)
{
    o->hash = (o->hash ^ x) * UINT64_C(0x100000001b3);
}

static struct outcome feed(const uint8_t *data, size_t len, size_t piece)
{
    struct outcome o = {.hash = 1};
    struct rpc_record r;
    size_t at = 0, have = 0;
    rpc_record_init(&r);
    for (;;) {
        size_t skip, bytes;
        enum rpc_record_verdict v = rpc_record_step(&r, data + at, have - at, &skip, &bytes);
        assert(skip <= have - at && bytes <= have - at - skip);
        assert((v == RPC_RECORD_BYTES) == (bytes > 0));
        assert(r.len <= RPC_RECORD_MAX && r.left <= r.len);
        at += skip;
        if (v == RPC_RECORD_BAD) {
            o.bad = true;
            return o;
        }
        if (v == RPC_RECORD_END) {
            add(&o, 256);
            o.records++;
        } else if (v == RPC_RECORD_BYTES) {
            bytes = MIN(bytes, piece); /* a caller may take less than there is */
            for (size_t i = 0; i < bytes; i++)
                add(&o, data[at + i]);
            at += bytes;
            rpc_record_take(&r, bytes);
        } else if (have < len) {
            assert(at == have);
            have = MIN(len, have + piece);
        } else {
            return o;
        }
    }
}

static struct outcome walk(const uint8_t *data, size_t len)
{
    struct outcome o = {.hash = 1};
    uint64_t record = 0;
    for (size_t at = 0; len - at >= 4;) {
        struct be32 mark;
        memcpy(&mark, data + at, sizeof(mark));
        at += 4;
        uint32_t n = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        record += n;
        if (record > RPC_RECORD_MAX) {
            o.bad = true;
            return o;
        }
        bool whole = n <= len - at;
        for (size_t i = 0; i < MIN((size_t)n, len - at); i++)
            add(&o, data[at + i]);
        if (!whole)
            return o;
        at += n;
        if (be32_get(mark) & RPC_FRAGMENT_LAST) {
            add(&o, 256);
            o.records++;
            record = 0;
        }
    }
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct outcome whole = walk(data + 1, size - 1);
    size_t pieces[] = {1, (size_t)data[0] + 1, size};
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        struct outcome o = feed(data + 1, size - 1, pieces[i]);
        assert(o.hash == whole.hash && o.records == whole.records && o.bad == whole.bad);
    }
    return 0;
}
