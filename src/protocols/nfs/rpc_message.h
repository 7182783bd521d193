/* SPDX-License-Identifier: Apache-2.0 */
/* The heads of calls and replies: functions over bytes, without I/O. */
#ifndef ASHLAR_PROTOCOLS_NFS_RPC_MESSAGE_H
#define ASHLAR_PROTOCOLS_NFS_RPC_MESSAGE_H

#include "protocols/nfs/rpc_format.h"
#include "protocols/nfs/xdr.h"

struct rpc_credential {
    uint32_t flavor; /* RPC_AUTH_NONE, RPC_AUTH_SYS; others: it was not looked into */
    uint32_t uid, gid;
    uint32_t group_count;
    uint32_t groups[RPC_GROUPS_MAX];
};

struct rpc_header {
    uint32_t xid, program, version, procedure;
    struct rpc_credential credential;
};

/* What is to be done with a message. */
enum rpc_verdict {
    RPC_RUN,          /* a call; x stands at its arguments */
    RPC_IGNORE,       /* not a call, or not even an xid: nothing can be answered */
    RPC_BAD_VERSION,  /* answer with rpc_reply_mismatch() */
    RPC_BAD_AUTH,     /* answer with rpc_reply_auth_error(*ret_auth) */
    RPC_BAD_ARGUMENTS /* a call that ends within its head */
};
/* For all but RPC_IGNORE ret->xid is set. More than 16 groups are RPC_AUTH_BADCRED. */
enum rpc_verdict rpc_header_decode(struct xdr *x, struct rpc_header *ret, enum rpc_auth_error *ret_auth)
    MUST_CHECK;

/* Replies. An accepted one's results follow. */
#define RPC_REPLY_HEAD 24u
void rpc_reply_accept(struct xdr_out *o, uint32_t xid, enum rpc_accept status);
void rpc_reply_program_mismatch(struct xdr_out *o, uint32_t xid, uint32_t low, uint32_t high);
void rpc_reply_mismatch(struct xdr_out *o, uint32_t xid);
void rpc_reply_auth_error(struct xdr_out *o, uint32_t xid, enum rpc_auth_error e);

/* Our own calls (to rpcbind, and callbacks): the head, with AUTH_NONE; arguments follow. */
void rpc_call_begin(struct xdr_out *o, uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure);
/* x stands at the results of the accepted, successful reply to xid; else ERR_PROTOCOL, or ERR_DENIED: the
 * call was refused; ERR_UNSUPPORTED: there is no such program, version or procedure. */
int rpc_reply_decode(struct xdr *x, uint32_t xid) MUST_CHECK;

#endif
