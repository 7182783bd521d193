/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the server share. Fields are marked by whose reactor touches them. */
#ifndef ASHLAR_PROTOCOLS_NBD_INTERNAL_H
#define ASHLAR_PROTOCOLS_NBD_INTERNAL_H

#include "protocols/nbd/nbd_message.h"
#include "runtime/list.h"
#include "runtime/network.h"

/* What a request costs in the accounts beside its payload: its message, a fiber's share. */
#define NBD_REQUEST_COST     (12 * KIB)
#define NBD_STREAM_BYTES     (8 * MIB)  /* of a long request that goes piece by piece: as much at a time */
#define NBD_STREAM_QUEUE     (4 * MIB)  /* unsent bytes at which the next piece waits */
#define NBD_PARALLEL         4u         /* pieces of one request */
#define NBD_BULK             (16 * KIB) /* from here on a payload is worth receiving into its place */
#define NBD_BULK_WINDOW      1024u      /* what is received beyond a bulk payload: some headers */
#define NBD_BUFFER_PAGES     1u         /* of a connection that is quiet */
#define NBD_BUFFER_PAGES_BIG 16u
#define NBD_BUFFERS_BIG      256u /* of them per shard */
#define NBD_FREE_MESSAGES    256u

/* All connections of one reactor. */
struct nbd_shard {
    struct list link; /* home: server->shards */
    struct nbd_server *server;
    struct reactor *reactor;
    struct list connections; /* struct nbd_connection.shard_link */
    uint64_t admitted_bytes;
    struct waitq room; /* for admitted_bytes to fall */
    struct list free_messages;
    uint32_t free_message_count;
    uint32_t big_buffers;
    uint64_t evicted;
};

struct nbd_export {
    /* home */
    struct list link;
    char name[NBD_EXPORT_NAME_MAX + 1];
    char description[NBD_DESCRIPTION_MAX + 1];
    struct network_list acl;
    bool read_only;
    struct block_device *device;
    struct nbd_shard *shard;
    uint32_t holds; /* look-ups and hand-overs under way */
    struct waitq released;
    /* the shard's */
    struct list connections; /* struct nbd_connection.export_link */
    struct waitq left;
    uint32_t clients;
    uint64_t requests, errors, bytes_in, bytes_out;
};

struct nbd_server {
    struct reactor *home;
    struct nbd_limits limits;
    struct list listeners, exports, shards, greeters;
    uint32_t greeter_count, export_count;
    bool stopping;
    struct waitq greeters_changed;
    uint32_t connections; /* atomic */
    uint64_t accepted, refused, evicted, timed_out;
};

/* A connection in the transmission phase; all of it is its shard's. */
struct nbd_connection {
    struct list shard_link, export_link;
    struct nbd_shard *shard;
    struct nbd_export *export;
    struct block_device *device;
    struct stream *stream;
    struct nbd_session session;
    uint32_t refs; /* fibers that work for it */

    /* Who reads: see "leading" in nbd_connection.c. */
    struct fiber *leader; /* NULL: nobody reads now */
    bool follower_pending;
    bool closing; /* nothing more is read */
    bool broken;  /* nothing more is sent */

    struct page *buffer;
    uint32_t buffer_pages;
    size_t start, end; /* bytes received and not consumed */
    bool crowded;      /* the last receive filled the buffer */
    bool bulk;         /* the last payload was a long one: receive little beyond the next */

    struct list out; /* messages to send */
    uint64_t out_bytes;
    bool writing;
    uint32_t requests; /* admitted and not ended */
    uint64_t admitted_bytes;
    struct waitq room;                        /* for any of these to fall */
    uint64_t send_since_ns, receive_since_ns; /* a send, a payload, that is not complete; 0: none */
};

/* ---- nbd_connection.c ---- */

/* Takes the stream over. leftover: bytes that came behind the handshake. In the shard's reactor. */
int nbd_connection_start(struct nbd_shard *shard, struct nbd_export *e, const struct nbd_session *session,
                         struct stream *stream, const void *leftover, size_t leftover_len)
    MUST_CHECK may_yield;
/* Ends reading; what was read is finished and answered. */
void nbd_connection_drain(struct nbd_connection *c);
void nbd_connection_break(struct nbd_connection *c);
void nbd_connection_get(struct nbd_connection *c);
void nbd_connection_put(struct nbd_connection *c) may_yield;
/* Lets another fiber read on, so that the caller may wait in a request. */
void nbd_connection_yield_lead(struct nbd_connection *c);

/* NULL: no memory; the connection was broken. */
struct nbd_message *nbd_connection_message(struct nbd_connection *c);
/* Takes m: sends it, or drops it if the connection is broken. */
void nbd_connection_send(struct nbd_connection *c, struct nbd_message *m);
/* Drops a message unsent, with all that it holds. */
void nbd_connection_drop(struct nbd_connection *c, struct nbd_message *m);
/* A request ended without a message. */
void nbd_connection_end_request(struct nbd_connection *c, uint64_t reserved);

/* Fills the vector's pages (fresh ones) with the payload that comes next on the stream. ERR_NO_MEMORY:
 * nothing was received. Anything else: the stream is lost. */
int nbd_connection_receive(struct nbd_connection *c, uint64_t offset, uint32_t len, struct page_vec *ret)
    MUST_CHECK may_yield;
/* Reads len bytes of the stream away. */
int nbd_connection_discard(struct nbd_connection *c, uint64_t len) MUST_CHECK may_yield;

/* ---- nbd_command.c ---- */

/* What a request must reserve before it is begun. */
uint64_t nbd_command_cost(const struct nbd_request *q, const struct nbd_session *s);
/* Runs an admitted request to its end. A write's payload is still on the stream: the caller leads. */
void nbd_command_run(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield;

#endif
