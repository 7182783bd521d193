/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NFS client's side of ONC RPC over TCP, for the load generator: many calls under way on a connection, no
 * copy of a WRITE's data. It knows servers by the wire alone. What a server must not do ends the process with
 * a message: a load that went wrong measures nothing.
 */
#ifndef ASHLAR_BENCH_NFS_CLIENT_H
#define ASHLAR_BENCH_NFS_CLIENT_H

#include "protocols/nfs/nfs_format.h"
#include "protocols/nfs/rpc_format.h"
#include "protocols/nfs/xdr.h"

/* Calls under way on one connection: their numbers are the low byte of xids. */
#define NFS_DEPTH_MAX       128u
#define NFS_CONNECTIONS_MAX 32u /* of one load */
/* The head of a call and all arguments but a WRITE's data: two handles, a name, attributes. */
#define NFS_HEAD_SIZE 640u

/* One call; embedded in what the caller knows of it. Used again when it was answered. */
struct nfs_call {
    uint8_t head[NFS_HEAD_SIZE];
    struct xdr_out out; /* into head */
    const void *data;   /* borrowed until the answer; sent behind the head */
    uint32_t data_len;  /* a multiple of 4 */
    uint32_t xid;
    struct nfs_call *next; /* to be sent */
    uint64_t began_ns;     /* when it was handed over for sending */
};

struct nfs_connection;
/* x stands at the results of a call that the server accepted. They are borrowed for the call. */
typedef void nfs_answered_fn(struct nfs_connection *c, struct nfs_call *call, struct xdr *x);

struct nfs_connection {
    int fd;
    uint32_t under_way, sequence;
    struct nfs_call *calls[NFS_DEPTH_MAX]; /* by the low byte of their xid; NULL: free */
    struct nfs_call *first, **last;        /* what is not sent yet */
    size_t sent;                           /* bytes of the first one that are */
    uint8_t *in;
    size_t in_first, in_end;
    nfs_answered_fn *answered;
};

/* To 127.0.0.1:port. The xids begin at seed: no server must take them for those of an earlier client. */
void nfs_client_open(struct nfs_connection *c, uint16_t port, uint64_t seed, nfs_answered_fn *answered);
/* Waits for nothing. */
void nfs_client_close(struct nfs_connection *c);

/* Begins a call as uid 0 (AUTH_SYS); the arguments are put into call->out. At most NFS_DEPTH_MAX at a time.
 */
void nfs_call_begin(struct nfs_connection *c, struct nfs_call *call, uint32_t program, uint32_t version,
                    uint32_t procedure);
/* It goes out with the next nfs_client_turn(). */
void nfs_call_end(struct nfs_connection *c, struct nfs_call *call, const void *data, uint32_t data_len);

/* Sends what waits and takes in what has come, on all connections, once: waits up to timeout_ms for either.
 */
void nfs_client_turn(struct nfs_connection *connections, unsigned count, int timeout_ms);

#endif
