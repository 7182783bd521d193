/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record marking (RFC 5531, 11): where in a stream of bytes records and their fragments begin and end. A pure
 * state machine: it is shown what has come, in whatever pieces, and tells what it is.
 *
 *      rpc_record_step()  --MORE-->  receive
 *                         --BYTES->  use 1..*ret_bytes of them, rpc_record_take()
 *                         --END--->  the record is whole; the next step begins the next one
 *                         --BAD--->  longer than allowed: nothing after it can be believed
 */
#ifndef ASHLAR_PROTOCOLS_NFS_RPC_RECORD_H
#define ASHLAR_PROTOCOLS_NFS_RPC_RECORD_H

#include "runtime/base.h"

/* What a record may hold: a WRITE of 1 MiB, its head, and room to spare. */
#define RPC_RECORD_MAX (UINT32_C(1) << 20 | UINT32_C(16) << 10)

struct rpc_record {
    uint32_t left; /* bytes of this fragment still to come */
    uint32_t len;  /* bytes of this record that were announced so far */
    uint8_t mark[4];
    uint8_t mark_len; /* bytes of the next fragment's mark that are there */
    bool inside;      /* the record has begun */
    bool last;        /* this is its last fragment */
};
static inline void rpc_record_init(struct rpc_record *r)
{
    *r = (struct rpc_record){.left = 0};
}

enum rpc_record_verdict { RPC_RECORD_MORE, RPC_RECORD_BYTES, RPC_RECORD_END, RPC_RECORD_BAD };
/* data: what comes next. *ret_skip: bytes of it that were marks, and are done with (whatever the verdict);
 * *ret_bytes: how many behind those belong to the record, 0 unless BYTES. */
enum rpc_record_verdict rpc_record_step(struct rpc_record *r, const uint8_t *data, size_t len,
                                        size_t *ret_skip, size_t *ret_bytes) MUST_CHECK;
static inline void rpc_record_take(struct rpc_record *r, size_t bytes)
{
    assert(bytes <= r->left);
    r->left -= (uint32_t)bytes;
}

#endif
