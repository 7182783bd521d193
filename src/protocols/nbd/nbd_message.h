/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as they were decoded, and messages to send: the pure part of the transmission phase.
 *
 * A message is one vector of memory to send: headers that it holds itself and, without copying, pages that it
 * holds references of. It may carry several chunks of a structured reply.
 */
#ifndef ASHLAR_PROTOCOLS_NBD_MESSAGE_H
#define ASHLAR_PROTOCOLS_NBD_MESSAGE_H

#include "protocols/nbd/nbd.h"
#include "protocols/nbd/nbd_format.h"

#include <sys/uio.h>

struct nbd_request {
    uint8_t cookie[8];
    uint64_t offset;
    uint32_t len;
    uint16_t type;
    uint16_t flags;
};

struct nbd_session { /* what was agreed */
    uint64_t size_bytes;
    bool read_only, structured, allocation;
};

/* False: not a request; the stream is out of step. bytes: sizeof(struct nbd_request_header). */
bool nbd_request_decode(const uint8_t *bytes, struct nbd_request *ret);
/* 0, or the wire's error for a request that cannot be served: unknown, flags that do not belong, out of
 * range, too long. size_bytes of the session is what the client was told; the device may be longer by now. */
uint32_t nbd_request_check(const struct nbd_request *q, const struct nbd_session *s);
/* The wire's number for an error of ours. 0 for 0. */
uint32_t nbd_error_number(int err);

/* Zeroes of this length and more inside of a read's reply go as a hole. */
#define NBD_HOLE_BLOCKS 16u
/* Runs of pages, zeroes among them cut into NBD_HOLE_BLOCKS, and a header for each hole and data chunk. */
#define NBD_MESSAGE_HEADERS (2 * (PAGE_VEC_MAX / NBD_HOLE_BLOCKS) + 2)
#define NBD_MESSAGE_IOV     (PAGE_VEC_MAX + NBD_MESSAGE_HEADERS)
#define NBD_STATUS_MAX      256u /* extents in one reply */

struct nbd_message {
    struct list link;
    uint64_t reserved; /* payload that was admitted; given back when the message was sent */
    bool last;         /* of its request */
    bool holds_pages;
    uint64_t bytes;
    uint32_t iov_count, header_count;
    struct iovec iov[NBD_MESSAGE_IOV];
    union {
        uint8_t headers[NBD_MESSAGE_HEADERS][32];
        uint8_t text[26 + 200]; /* an error chunk */
        uint8_t status[24 + 8 * NBD_STATUS_MAX];
    };
    struct page_vec vec;
};

/* Empties it; vec is undefined until holds_pages. */
void nbd_message_init(struct nbd_message *m);
/* Drops the pages. */
void nbd_message_done(struct nbd_message *m);

/* A reply without payload: a simple one. wire_error 0: success. With structured replies an error goes as a
 * chunk with its text (""), and so does the success of a read. */
void nbd_message_reply(struct nbd_message *m, const struct nbd_request *q, const struct nbd_session *s,
                       uint32_t wire_error, const char *text);
/* A successful read, begun: the header in front of len bytes that follow whole and in order: a simple reply,
 * or one chunk. */
void nbd_message_read_header(struct nbd_message *m, const struct nbd_request *q, bool structured);
/* m->vec (filled in by the caller, whose references the message takes over) as bytes behind such a header. */
void nbd_message_read_data(struct nbd_message *m, uint64_t offset, uint32_t len);
/* m->vec as chunks of a structured reply, zeroes as holes. done: the last chunk is the request's last. */
void nbd_message_read_chunks(struct nbd_message *m, const struct nbd_request *q, uint64_t offset,
                             uint32_t len, bool done);
/* Block status: adds an extent, merging equal neighbours; false when the message is full. Then finish. */
bool nbd_message_status_add(struct nbd_message *m, uint64_t len, uint32_t flags);
void nbd_message_status_finish(struct nbd_message *m, const struct nbd_request *q);

#endif
