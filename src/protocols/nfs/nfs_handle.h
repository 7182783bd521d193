/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File handles: who has one was given it by us. Each names an export, a volume and an inode, and carries a
 * MAC over them by a secret of the file system, so that none can be made up or turned into one of another
 * export. Functions over bytes.
 */
#ifndef ASHLAR_PROTOCOLS_NFS_HANDLE_H
#define ASHLAR_PROTOCOLS_NFS_HANDLE_H

#include "protocols/nfs/nfs_format.h"

struct nfs_handle_key { /* of a file system */
    uint64_t k0, k1;
};
/* secret: 32 bytes (fs_handle_secret()). */
void nfs_handle_key_init(struct nfs_handle_key *k, const uint8_t *secret);

struct nfs_handle_fields {
    uint32_t export_tag;
    uint64_t volume_tag;
    uint64_t ino;
    uint32_t generation;
};
void nfs_handle_make(const struct nfs_handle_key *k, const struct nfs_handle_fields *f,
                     struct nfs_handle *ret);
/* False: not of our making, by its looks. The fields are only a claim until it was verified. */
bool nfs_handle_parse(const void *bytes, uint32_t len, struct nfs_handle_fields *ret);
bool nfs_handle_verify(const struct nfs_handle_key *k, const void *bytes);

uint64_t siphash24(uint64_t k0, uint64_t k1, const void *data, size_t len);

#endif
