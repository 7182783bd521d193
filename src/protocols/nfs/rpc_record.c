/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nfs/rpc_record.h"
#include "protocols/nfs/rpc_format.h"

enum rpc_record_verdict rpc_record_step(struct rpc_record *r, const uint8_t *data, size_t len,
                                        size_t *ret_skip, size_t *ret_bytes)
{
    size_t at = 0;
    *ret_bytes = 0;
    while (r->left == 0) {
        if (r->inside && r->last) {
            assert(r->mark_len == 0);
            rpc_record_init(r);
            *ret_skip = at;
            return RPC_RECORD_END;
        }
        while (r->mark_len < sizeof(r->mark) && at < len)
            r->mark[r->mark_len++] = data[at++];
        *ret_skip = at;
        if (r->mark_len < sizeof(r->mark))
            return RPC_RECORD_MORE;
        struct be32 mark;
        memcpy(&mark, r->mark, sizeof(mark));
        uint32_t size = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        if (size > RPC_RECORD_MAX - r->len)
            return RPC_RECORD_BAD;
        r->mark_len = 0;
        r->inside = true;
        r->last = (be32_get(mark) & RPC_FRAGMENT_LAST) != 0;
        r->left = size;
        r->len += size;
    }
    *ret_skip = at;
    *ret_bytes = MIN(len - at, (size_t)r->left);
    return *ret_bytes > 0 ? RPC_RECORD_BYTES : RPC_RECORD_MORE;
}
