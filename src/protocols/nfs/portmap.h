/* SPDX-License-Identifier: Apache-2.0 */
/* Which program is at which port: for our own port mapper, and for telling rpcbind. */
#ifndef ASHLAR_PROTOCOLS_NFS_PORTMAP_H
#define ASHLAR_PROTOCOLS_NFS_PORTMAP_H

#include "protocols/nfs/nfs_internal.h"

#define NFS_MAPPINGS_MAX 32u
struct nfs_mapping {
    uint32_t program, version;
    bool udp;
    uint16_t port;
    bool local; /* rpc_program.local */
};
/* All that the server listens for, up to NFS_MAPPINGS_MAX; returns how many. */
uint32_t nfs_mappings(const struct nfs_server *s, struct nfs_mapping *out);
/* "10.0.0.1.8.1": host and port, as rpcbind writes them. host "": any. */
void nfs_put_universal(struct xdr_out *o, const char *host, bool v6, uint16_t port);

#endif
