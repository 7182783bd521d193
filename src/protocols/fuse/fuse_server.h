/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE, the node's side: serves file systems to mount processes (`ashlar mount`) of the same machine over a
 * Unix socket. One server has a listener and a registry of file systems, which may be added and removed while
 * it runs.
 *
 * Everything here is called on the reactor on which the server was started ("home"). Connections greet there
 * and move to the reactor of their file system before they carry requests.
 *
 * Whoever can connect is believed: the kernel of the mount checks permissions, requests only say for whom
 * they are. So the socket must belong to the node's owner alone (mode 0600).
 */
#ifndef ASHLAR_PROTOCOLS_FUSE_SERVER_H
#define ASHLAR_PROTOCOLS_FUSE_SERVER_H

#include "filesystem/fs.h"
#include "runtime/reactor.h"

#define FUSE_FS_NAME_MAX 255u

struct fuse_server;

struct fuse_limits {           /* 0: the default */
    uint32_t connections;      /* mounts, and greetings; 256 */
    uint64_t greeting_ns;      /* time for it; 10 s */
    uint32_t requests;         /* under way per connection; 512 */
    uint32_t lock_waits;       /* locks that one connection waits for; 1024 */
    uint64_t connection_bytes; /* payload under way per connection; 16 MiB (one request is always admitted) */
    uint64_t away_ns;          /* a mount that lost its connection keeps its opens and locks so long; 60 s */
    uint64_t drain_ns;         /* how long a file system that is removed waits for replies to be read; 5 s */
};

struct fuse_server_options {
    const char *address; /* "unix:DIR/fs.sock"; a stale socket is replaced */
    struct fuse_limits limits;
};

/* Listens, without file systems: mounts that come are told to come again. On a fiber of the home reactor. */
int fuse_server_start(const struct fuse_server_options *o, struct fuse_server **ret) MUST_CHECK may_yield;
/* Closes the listener, removes all file systems, frees the server. Locks of the mounts stay in their trees:
 * the mounts come back after the restart. */
void fuse_server_stop(struct fuse_server *s) may_yield;
/* Where it really listens; borrowed. */
const char *fuse_server_address(const struct fuse_server *s);

/* fs is borrowed until it is removed; it must stay open so long. name: 1..FUSE_FS_NAME_MAX bytes.
 * ERR_EXISTS, ERR_INVALID (the name). */
int fuse_server_add_fs(struct fuse_server *s, const char *name, struct fs *fs) MUST_CHECK may_yield;
/* From now on nobody finds it; requests under way are finished and answered, then its mounts are disconnected
 * (they wait for it to come back). When it returns nobody uses fs any more. What its mounts have open is not
 * closed in fs, so that unlinked files stay until they are back: fs_close() must follow. ERR_NOT_FOUND. */
int fuse_server_remove_fs(struct fuse_server *s, const char *name) MUST_CHECK may_yield;

struct fuse_fs_status {
    uint32_t mounts;      /* connected now */
    uint32_t away;        /* lost their connection a short time ago */
    uint32_t opens;       /* of files, by all of them */
    uint64_t requests;    /* answered */
    uint64_t invalidates; /* told to mounts */
};
/* ERR_NOT_FOUND. Figures of another reactor may be a moment old. */
int fuse_server_get_fs(const struct fuse_server *s, const char *name, struct fuse_fs_status *ret) MUST_CHECK;

#endif
