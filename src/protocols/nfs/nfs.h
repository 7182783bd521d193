/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFSv3 and MOUNT v3 over TCP, both on one port; a portmapper and the registration with a running rpcbind.
 * One server has several listeners and a registry of exports, which may be added, changed and removed while
 * it runs.
 *
 * Everything here is called on the reactor on which the server was started ("home"). A connection moves to
 * the reactor of the file system that it uses. Exports of file systems of any reactor may stand side by side.
 */
#ifndef ASHLAR_PROTOCOLS_NFS_H
#define ASHLAR_PROTOCOLS_NFS_H

#include "filesystem/fs.h"
#include "runtime/reactor.h"

#define NFS_PORT         2049u
#define NFS_EXPORT_MAX   255u              /* bytes of an export's path */
#define NFS_TRANSFER_MAX ((uint32_t)(MIB)) /* bytes of one READ or WRITE: rtmax, wtmax */

/* Each connection that rests is a fiber: a page of the budget and some 8 KiB of stack and heap beside it. */
#define NFS_CONNECTIONS_MAX 16384u

struct nfs_server;

struct nfs_limits {            /* 0: the default */
    uint32_t connections;      /* 16384; a newcomer beyond them ends the one that is idle longest */
    uint32_t requests;         /* under way per connection; 256 */
    uint64_t connection_bytes; /* payload under way per connection, replies that it did not read yet included;
                                  16 MiB (but one request is always admitted) */
    uint64_t reactor_bytes;    /* the same, of all connections of a reactor; 64 MiB, at least 8 MiB. When it
                                  is used up, clients that have not moved a byte for stall_ns go */
    uint64_t stall_ns;         /* 10 s */
    uint64_t drain_ns;         /* how long nfs_server_stop() waits for its clients' replies; 5 s */
};

struct nfs_server_options {
    struct nfs_limits limits;
};

/* Without listeners and exports. Must be called on a fiber of the home reactor. */
int nfs_server_start(const struct nfs_server_options *o, struct nfs_server **ret) MUST_CHECK may_yield;
/* Unregisters, closes the listeners, removes all exports (requests under way are finished and answered), ends
 * the connections, frees the server. */
void nfs_server_stop(struct nfs_server *s) may_yield;

/* Listens on one more address, as for listener_open(): NFS, MOUNT and what else there is. Exports should be
 * added before: a client that comes back after a restart would be told that its files are gone. */
int nfs_server_listen(struct nfs_server *s, const char *address) MUST_CHECK may_yield;
/* Where the index-th of these listeners really listens; NULL past the last. Borrowed. */
const char *nfs_server_address(const struct nfs_server *s, uint32_t index);

/* The built-in portmapper (portmap v2, rpcbind v3 and v4) on TCP and UDP of "HOST:PORT" (port 111 for real
 * clients). It tells the port of the first listener. ERR_SYS(EADDRINUSE): rpcbind runs; see below. */
int nfs_server_listen_portmap(struct nfs_server *s, const char *host_port) MUST_CHECK may_yield;
/* Tells the rpcbind of this machine the port of the first listener (which must be TCP); undone by
 * nfs_server_stop(). ERR_SYS(ECONNREFUSED), ERR_SYS(ENOENT): none runs. ERR_DENIED: it refused. ERR_EXISTS:
 * somebody else serves NFS here. */
int nfs_server_register(struct nfs_server *s) MUST_CHECK may_yield;

enum nfs_squash {
    NFS_SQUASH_ROOT, /* uid and gid 0 become the anonymous ones */
    NFS_SQUASH_NONE,
    NFS_SQUASH_ALL, /* everybody becomes the anonymous one */
};

struct nfs_export_options {
    /* "/name": 2..NFS_EXPORT_MAX bytes, no empty, "." or ".." component, no '/' at the end. */
    const char *path;
    /* Borrowed until the export is removed, or set anew. NULL: not there at the moment (its volume is not
     * open, or moves): clients are told to try again. */
    struct fs *fs;
    uint64_t root_ino; /* its root: a directory. 0: the file system's */
    bool read_only;
    bool secure; /* only clients on ports below 1024 */
    enum nfs_squash squash;
    uint32_t anon_uid, anon_gid; /* 65534 for most */
    /* NULL or "": everybody; else addresses and networks, as "10.0.0.0/8, fd00::/8, 192.168.1.7". Names are
     * resolved by the caller. Who is not in it learns nothing of the export. */
    const char *clients;
};
/* ERR_EXISTS; ERR_INVALID: path, access list, or the root is no directory; ERR_FS_STALE: no such root. The
 * handles of an export hold its path: added again under it they are as good as before. */
int nfs_server_add_export(struct nfs_server *s, const struct nfs_export_options *o) MUST_CHECK may_yield;
/* Other rules for the export of this path, for every request from now on. What is not there is added. */
int nfs_server_set_export(struct nfs_server *s, const struct nfs_export_options *o) MUST_CHECK may_yield;
/* Not there at the moment, by the same rules: from now on its clients are told to try again; its requests
 * under way are finished. When it returns nobody uses the file system through it any more, and it is not
 * borrowed until the export is set anew. ERR_NOT_FOUND, ERR_NO_MEMORY. */
int nfs_server_pause_export(struct nfs_server *s, const char *path) MUST_CHECK may_yield;
/* From now on nobody finds it; its requests under way are finished. When it returns nobody uses the file
 * system through it any more. ERR_NOT_FOUND. */
int nfs_server_remove_export(struct nfs_server *s, const char *path) MUST_CHECK may_yield;

struct nfs_export_status {
    char path[NFS_EXPORT_MAX + 1];
    bool read_only;
    uint64_t ops, errors;
    uint64_t read_bytes, write_bytes; /* payload */
};
/* The index-th, in the order in which they were added; ERR_NOT_FOUND past the last. Figures of other reactors
 * may be a moment old. */
int nfs_server_get_export(const struct nfs_server *s, uint32_t index, struct nfs_export_status *ret)
    MUST_CHECK;

/* One per address; since its oldest connection that is open now. */
struct nfs_client_status {
    char ip[48]; /* "": Unix sockets */
    uint32_t connections;
    uint32_t requests; /* under way */
    uint64_t ops;
    uint64_t bytes_in, bytes_out; /* on the wire */
    uint64_t idle_ns;             /* since the last request */
};
/* Up to max clients; returns how many. */
uint32_t nfs_server_list_clients(struct nfs_server *s, struct nfs_client_status *ret, uint32_t max) may_yield;

struct nfs_server_status {
    uint32_t connections, exports; /* now */
    uint64_t accepted;
    uint64_t refused;    /* no memory for them */
    uint64_t evicted;    /* idle ones that made room, and clients that stalled */
    uint64_t duplicates; /* retransmissions that were answered from memory, or dropped */
    uint64_t bad_handles;
};
void nfs_server_get_status(const struct nfs_server *s, struct nfs_server_status *ret);

#endif
