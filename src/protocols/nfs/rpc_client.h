/* SPDX-License-Identifier: Apache-2.0 */
/* Calling others: the programs of our clients (lock manager, status monitor), found through their port
 * mapper. */
#ifndef ASHLAR_PROTOCOLS_NFS_RPC_CLIENT_H
#define ASHLAR_PROTOCOLS_NFS_RPC_CLIENT_H

#include "protocols/nfs/rpc_message.h"
#include "runtime/world.h"

#define RPC_CLIENT_MAX 4096u /* bytes of a call or a reply */

/* One call over TCP to a program of the host `ip`. port 0: its port mapper (port 111) is asked first. args:
 * what follows the head. reply: at least RPC_CLIENT_MAX bytes; *ret stands at the results in it.
 * ERR_NOT_FOUND: the host has no such program; ERR_TIMEOUT, ERR_PROTOCOL, ERR_DENIED, ERR_UNSUPPORTED,
 * ERR_SYS(e). */
int rpc_client_call(const char *ip, uint16_t port, uint32_t program, uint32_t version, uint32_t procedure,
                    const void *args, uint32_t args_len, uint64_t deadline_ns, uint8_t *reply,
                    struct xdr *ret) MUST_CHECK may_yield;

#endif
