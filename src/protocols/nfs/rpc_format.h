/* SPDX-License-Identifier: Apache-2.0 */
/* ONC RPC version 2 (RFC 5531), portmap and rpcbind (RFC 1833): numbers of the wire. */
#ifndef ASHLAR_PROTOCOLS_NFS_RPC_FORMAT_H
#define ASHLAR_PROTOCOLS_NFS_RPC_FORMAT_H

#include "runtime/base.h"

/*
 * A call                                   A reply
 *   0  xid                                   0  xid
 *   4  0 (CALL)                              4  1 (REPLY)
 *   8  2 (RPC version)                       8  0 accepted               1 denied
 *  12  program                              12  verifier (flavor, body)  0 versions, 1 authentication
 *  16  version                              ..  enum rpc_accept          low, high; or enum rpc_auth_error
 *  20  procedure                            ..  results
 *  24  credential (flavor, body)
 *  ..  verifier (flavor, body)
 *  ..  arguments
 *
 * On a stream each message is a record of one or more fragments: 4 bytes in front of each hold its length,
 * and in the highest bit whether it is the record's last.
 */
#define RPC_FRAGMENT_LAST UINT32_C(0x80000000)
#define RPC_VERSION       2u
#define RPC_AUTH_BODY_MAX 400u
#define RPC_MACHINE_MAX   255u
#define RPC_GROUPS_MAX    16u

enum { RPC_CALL = 0, RPC_REPLY = 1 };
enum { RPC_ACCEPTED = 0, RPC_DENIED = 1 };
enum { RPC_MISMATCH = 0, RPC_AUTH_ERROR = 1 }; /* why it was denied */

enum rpc_accept {
    RPC_SUCCESS = 0,
    RPC_PROGRAM_UNAVAILABLE = 1,
    RPC_PROGRAM_MISMATCH = 2,
    RPC_PROCEDURE_UNAVAILABLE = 3,
    RPC_GARBAGE_ARGUMENTS = 4,
    RPC_SYSTEM_ERROR = 5,
};
enum rpc_auth_error {
    RPC_AUTH_OK = 0,
    RPC_AUTH_BADCRED = 1,
    RPC_AUTH_REJECTEDCRED = 2,
    RPC_AUTH_BADVERF = 3,
    RPC_AUTH_REJECTEDVERF = 4,
    RPC_AUTH_TOOWEAK = 5,
};
enum rpc_flavor { RPC_AUTH_NONE = 0, RPC_AUTH_SYS = 1 };

/* Programs */
#define RPC_PROGRAM_PORTMAP UINT32_C(100000)
#define RPC_PROGRAM_NFS     UINT32_C(100003)
#define RPC_PROGRAM_MOUNT   UINT32_C(100005)
#define RPC_PROGRAM_NLM     UINT32_C(100021)
#define RPC_PROGRAM_NSM     UINT32_C(100024)

/* Portmap version 2 */
enum {
    PMAP_NULL = 0,
    PMAP_SET = 1,
    PMAP_UNSET = 2,
    PMAP_GETPORT = 3,
    PMAP_DUMP = 4,
};
#define PMAP_TCP  6u
#define PMAP_UDP  17u
#define PMAP_PORT 111u

/* rpcbind versions 3 and 4 */
enum {
    RPCB_NULL = 0,
    RPCB_SET = 1,
    RPCB_UNSET = 2,
    RPCB_GETADDR = 3,
    RPCB_DUMP = 4,
    RPCB_GETTIME = 6,
    RPCB_GETVERSADDR = 9, /* version 4 */
};

#endif
