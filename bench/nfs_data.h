/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the load generator works on, made by itself over NFS, so that it is the same on every server:
 *
 *      tree/f000000…       small files of 1 KiB
 *      links/l0…           symbolic links
 *      data/d0…            large files, all of their blocks written
 *      new-…/              made by each run for its own files, which stay there: a server whose file system
 *                          searches past what was removed lately is not charged for the runs before
 */
#ifndef ASHLAR_BENCH_NFS_DATA_H
#define ASHLAR_BENCH_NFS_DATA_H

#include "nfs_ops.h"

#define NFS_DATA_FILES 4u
#define NFS_DATA_LINKS 16u

struct nfs_data {
    uint32_t files;          /* in tree; 0: no tree and no links */
    uint64_t file_bytes;     /* of each large file; 0: there are none */
    struct nfs_object root;  /* of the export */
    struct nfs_object tree;  /* the directory */
    struct nfs_object *file; /* of tree, all of them */
    struct nfs_object links[NFS_DATA_LINKS];
    struct nfs_object data[NFS_DATA_FILES];
    struct nfs_object fresh; /* the directory for a run's own files */
};

/* Makes it, durably. d->root, files and file_bytes are given. */
void nfs_data_make(const struct nfs_data *d, uint64_t seed);
/* Finds it, and makes the directory for this run. Ends the process if something is missing. */
void nfs_data_find(struct nfs_data *d);

/* The name of a file in tree. */
void nfs_data_name(char name[NFS_NAME_SIZE], uint32_t number);

#endif
