/* SPDX-License-Identifier: Apache-2.0 */
/* The lock manager's parts among themselves. A request runs on the reactor of the file system that its handle
 * names. */
#ifndef ASHLAR_PROTOCOLS_NFS_NLM_H
#define ASHLAR_PROTOCOLS_NFS_NLM_H

#include "protocols/nfs/nfs_internal.h"
#include "protocols/nfs/nlm_format.h"

/* The arguments of all procedures about one lock; borrowed from the call. */
struct nlm_args {
    const uint8_t *cookie;
    uint32_t cookie_len;
    bool block, exclusive, reclaim;
    const char *caller;
    uint32_t caller_len;
    const uint8_t *handle;
    uint32_t handle_len;
    const uint8_t *oh;
    uint32_t oh_len;
    uint32_t svid;
    uint64_t offset, len;
    uint32_t deny, access; /* SHARE */
};

/* A lock that a client waits for; outlives its call. */
struct nlm_wait {
    struct list link; /* shard->lock_waits */
    struct nfs_shard *shard;
    struct fiber *fiber; /* NULL: it has not begun */
    uint32_t export_tag;
    uint64_t ino;
    struct fs_request rq;
    struct fs_lock lock;
    uint32_t svid;
    uint8_t cookie[64];
    uint32_t cookie_len;
    uint8_t handle[sizeof(struct nfs_handle)];
    uint8_t oh[FS_LOCK_OWNER_MAX];
    uint32_t oh_len;
    char caller[FS_LOCK_CLIENT_MAX + 1];
    char ip[48];
    bool cancelled;
    bool granted;   /* the lock is held; the client is being told */
    bool confirmed; /* it asked again meanwhile, and knows */
};

/* ---- nlm_wait.c ---- */

/* Begins to wait for the lock, on the shard's reactor; the client is told by a call of ours when it has it.
 * The same request again waits no second time. ERR_FS_NO_LOCKS: too many wait. */
int nlm_wait_begin(struct nfs_shard *shard, struct nfs_export *e, uint64_t ino, const struct fs_request *rq,
                   const struct fs_lock *l, const struct nlm_args *a, const struct nfs_peer *peer) MUST_CHECK;
/* Who waits for exactly that; NULL: nobody. */
struct nlm_wait *nlm_wait_find(struct nfs_shard *shard, uint64_t ino, const struct fs_lock *l);
void nlm_wait_cancel(struct nlm_wait *w);
/* All that wait in a shard, for an export (0: for any); returns when they have ended. On the shard's reactor.
 */
void nlm_wait_end_all(struct nfs_shard *shard, uint32_t export_tag) may_yield;

/* ---- nsm.c ---- */

/* A client says that it starts anew: its locks go, in all file systems. */
void nsm_client_restarted(struct nfs_call *call, const char *name, uint32_t len) may_yield;

#define NLM_WAITS_MAX 1024u /* of a shard */

#endif
