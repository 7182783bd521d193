/* SPDX-License-Identifier: Apache-2.0 */
/* NFS version 3: what its procedures share. A procedure runs on the file system's reactor. */
#ifndef ASHLAR_PROTOCOLS_NFS3_H
#define ASHLAR_PROTOCOLS_NFS3_H

#include "protocols/nfs/nfs_internal.h"

struct nfs3_op {
    struct nfs_call *call;
    struct nfs_export *export;
    struct fs *fs;
    uint64_t ino;        /* of the first handle, which was verified */
    uint32_t generation; /* of it */
    struct fs_request rq;
    struct fs_reply_key reply_key;
    struct xdr *in; /* at what follows the first handle */
    struct xdr_out *out;
    enum nfs3_status status; /* of the results written */
    /* A retransmission of what an earlier run of the server has done: `again` says how it ended. */
    bool is_again;
    struct fs_reply again;
};

/* Reads the arguments behind the first handle, does it, and writes all results. Returns RPC_SUCCESS or
 * RPC_GARBAGE_ARGUMENTS (then nothing was done, and what was written does not count). */
int nfs3_getattr(struct nfs3_op *op) may_yield;
int nfs3_setattr(struct nfs3_op *op) may_yield;
int nfs3_lookup(struct nfs3_op *op) may_yield;
int nfs3_access(struct nfs3_op *op) may_yield;
int nfs3_readlink(struct nfs3_op *op) may_yield;
int nfs3_read(struct nfs3_op *op) may_yield;
int nfs3_write(struct nfs3_op *op) may_yield;
int nfs3_create(struct nfs3_op *op) may_yield;
int nfs3_mkdir(struct nfs3_op *op) may_yield;
int nfs3_symlink(struct nfs3_op *op) may_yield;
int nfs3_mknod(struct nfs3_op *op) may_yield;
int nfs3_remove(struct nfs3_op *op) may_yield;
int nfs3_rmdir(struct nfs3_op *op) may_yield;
int nfs3_rename(struct nfs3_op *op) may_yield;
int nfs3_link(struct nfs3_op *op) may_yield;
int nfs3_readdir(struct nfs3_op *op) may_yield;
int nfs3_readdirplus(struct nfs3_op *op) may_yield;
int nfs3_fsstat(struct nfs3_op *op) may_yield;
int nfs3_fsinfo(struct nfs3_op *op) may_yield;
int nfs3_pathconf(struct nfs3_op *op) may_yield;
int nfs3_commit(struct nfs3_op *op) may_yield;

/* ---- nfs3.c ---- */

/* May the caller use this handle? *ret_fields is to be believed with NFS3_OK only. The export is held,
 * whatever the answer; NULL: there is none. */
enum nfs3_status nfs3_admit(struct nfs_call *call, const void *handle, uint32_t len,
                            struct nfs_export **ret_export, struct nfs_handle_fields *ret_fields);

/* ---- nfs3_xdr.c ---- */

/* The one table of errors: by our code where it says more than its class. */
enum nfs3_status nfs3_status_of(int err);
/* Writes the status of err and keeps it in op. True: success. */
bool nfs3_begin(struct nfs3_op *op, int err);
/* fattr3. */
void nfs3_put_attr(struct nfs3_op *op, const struct fs_attr *a);
/* post_op_attr; ino 0 (and NULL): unknown. */
void nfs3_put_post(struct nfs3_op *op, const struct fs_attr *a);
/* wcc_data. */
void nfs3_put_wcc(struct nfs3_op *op, const struct fs_wcc *w);
void nfs3_put_handle(struct nfs3_op *op, const struct fs_attr *a);
/* post_op_fh3 and post_op_attr of what was made or found. */
void nfs3_put_object(struct nfs3_op *op, const struct fs_attr *a);
/* sattr3. */
void nfs3_get_sattr(struct xdr *x, struct fs_setattr *ret);
int64_t nfs3_get_time(struct xdr *x);
/* A name; borrowed. Too long or empty ones are the file system's to refuse: *ret_len says what there was. */
const char *nfs3_get_name(struct xdr *x, uint32_t *ret_len);
bool nfs3_name_is_dots(const char *name, uint32_t len);
/* Another handle among the arguments, of the same export: else ERR_FS_CROSS_QUOTA (EXDEV), ERR_FS_BAD_HANDLE.
 */
int nfs3_get_handle(struct nfs3_op *op, uint64_t *ret_ino) MUST_CHECK;
/* What the owner of a file may always do: he had it open when its mode was changed. */
bool nfs3_is_owner(struct nfs3_op *op) may_yield;

#endif
