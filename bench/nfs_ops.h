/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of NFS version 3 as the load generator needs them: one struct for their arguments and answers.
 */
#ifndef ASHLAR_BENCH_NFS_OPS_H
#define ASHLAR_BENCH_NFS_OPS_H

#include "nfs_client.h"

enum nfs_op {
    OP_NULL,
    OP_GETATTR,
    OP_SETATTR,
    OP_LOOKUP,
    OP_ACCESS,
    OP_READLINK,
    OP_READ,
    OP_WRITE,
    OP_COMMIT,
    OP_CREATE,
    OP_MKDIR,
    OP_SYMLINK,
    OP_REMOVE,
    OP_READDIR,
    OP_READDIRPLUS,
    OP_FSSTAT,
    OP_COUNT
};

struct nfs_object {
    uint32_t len;
    uint8_t bytes[NFS3_HANDLE_MAX];
};

/* Where a listing goes on; all zero is the beginning. */
struct nfs_place {
    uint64_t cookie;
    uint8_t verifier[NFS3_VERF_SIZE];
};

#define NFS_NAME_SIZE 40
struct nfs_request {
    struct nfs_call call;
    enum nfs_op op;
    struct nfs_object object; /* what it is about: the directory, where a name is given as well */
    char name[NFS_NAME_SIZE];
    uint64_t offset;    /* of READ, WRITE */
    uint32_t len;       /* of READ, WRITE; the size that a listing's answer may have */
    const void *data;   /* of WRITE; borrowed until the answer */
    uint32_t stable;    /* of WRITE: enum nfs3_stable */
    const char *target; /* of SYMLINK */
    struct nfs_place place;
};

struct nfs_answer {
    uint32_t status;          /* NFS3_OK, or why not; the others only if NFS3_OK */
    struct nfs_object object; /* of LOOKUP, CREATE, MKDIR */
    uint64_t size;            /* of GETATTR */
    uint32_t entries;         /* of a listing; place is behind the last one, the beginning again at the end */
    struct nfs_place place;
};

/* Hands the request to its connection. */
void nfs_request_send(struct nfs_connection *c, struct nfs_request *r);
/* Reads the answer to it. Ends the process when the answer is not what the protocol demands: malformed, less
 * read or written than was asked for, less durable than was asked for, a file made without a handle. */
void nfs_request_answer(const struct nfs_request *r, struct xdr *x, struct nfs_answer *ret);

/* The operation of that name, OP_COUNT if there is none; and back. */
enum nfs_op nfs_op_by_name(const char *name, size_t len);
const char *nfs_op_name(enum nfs_op op);

/* The root of an export, asked for over a connection to MOUNT's port. */
void nfs_mount(uint16_t port, const char *path, struct nfs_object *ret);

#endif
