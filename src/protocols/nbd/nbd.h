/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NBD: serves block devices to Linux, qemu and libnbd clients. One server has several listeners and a
 * registry of exports, which may be added and removed while it runs.
 *
 * Everything here is called on the reactor on which the server was started ("home"). Connections greet there
 * and move to the reactor of their export's device before they carry data.
 */
#ifndef ASHLAR_PROTOCOLS_NBD_H
#define ASHLAR_PROTOCOLS_NBD_H

#include "block/block.h"
#include "runtime/reactor.h"

#define NBD_EXPORT_NAME_MAX    255u
#define NBD_DESCRIPTION_MAX    255u
#define NBD_REQUEST_MAX        ((uint32_t)(32 * MIB)) /* bytes of one read or write */
#define NBD_CONTEXT_ALLOCATION 1u                     /* our number of base:allocation */

struct nbd_server;
struct tls_context; /* runtime/tls.h */

enum nbd_tls_mode {
    NBD_TLS_NONE,
    NBD_TLS_ALLOWED,  /* a client may ask for it */
    NBD_TLS_REQUIRED, /* a client sees nothing without it */
};

struct nbd_limits {            /* 0: the default */
    uint32_t connections;      /* in the transmission phase; 1024 */
    uint32_t handshakes;       /* before it; a newcomer beyond them ends the oldest; 128 */
    uint64_t handshake_ns;     /* time for it; 10 s */
    uint32_t requests;         /* under way per connection; 256 */
    uint64_t connection_bytes; /* payload under way per connection, replies that it did not read yet
                                  included; 16 MiB (but one request is always admitted) */
    uint64_t reactor_bytes;    /* the same, of all connections of a reactor; 64 MiB, at least 40 MiB. When
                                  it is used up, clients that have not moved a byte for stall_ns go */
    uint64_t stall_ns;         /* 10 s */
    uint64_t drain_ns;         /* how long a removed export waits for its clients' replies; 5 s */
};

struct nbd_server_options {
    struct nbd_limits limits;
};

/* Without listeners and exports. Must be called on a fiber of the home reactor. */
int nbd_server_start(const struct nbd_server_options *o, struct nbd_server **ret) MUST_CHECK may_yield;
/* Closes the listeners, ends the handshakes, removes all exports (requests under way are finished and
 * answered), frees the server. */
void nbd_server_stop(struct nbd_server *s) may_yield;

struct nbd_listen_options {
    const char *address; /* as for listener_open() */
    enum nbd_tls_mode tls;
    struct tls_context *tls_context; /* borrowed until the server has stopped; NULL for NBD_TLS_NONE */
};
/* Listens on one more address. */
int nbd_server_listen(struct nbd_server *s, const struct nbd_listen_options *o) MUST_CHECK may_yield;
/* Where the index-th listener really listens; NULL past the last. Borrowed. */
const char *nbd_server_address(const struct nbd_server *s, uint32_t index);

struct nbd_export_options {
    const char *name;            /* 1..NBD_EXPORT_NAME_MAX bytes */
    const char *description;     /* NULL or text for people; cut at NBD_DESCRIPTION_MAX */
    struct block_device *device; /* borrowed until the export is removed */
    bool read_only;
    const char *allow; /* NULL or "": everybody; else networks, as "10.0.0.0/8, fd00::/8" */
};
/* ERR_EXISTS; ERR_INVALID: the name or the access list. */
int nbd_server_add_export(struct nbd_server *s, const struct nbd_export_options *o) MUST_CHECK may_yield;
/* From now on nobody finds it; its clients' requests under way are finished and answered, then they are
 * disconnected. When it returns nobody uses the device any more. ERR_NOT_FOUND. */
int nbd_server_remove_export(struct nbd_server *s, const char *name) MUST_CHECK may_yield;

struct nbd_export_status {
    char name[NBD_EXPORT_NAME_MAX + 1];
    uint32_t clients;
    uint64_t requests, errors;    /* answered, and answered with an error */
    uint64_t bytes_in, bytes_out; /* on the wire, transmission phase */
};
/* ERR_NOT_FOUND. Figures of another reactor may be a moment old. */
int nbd_server_get_export(const struct nbd_server *s, const char *name, struct nbd_export_status *ret)
    MUST_CHECK;

struct nbd_server_status {
    uint32_t handshakes, connections, exports; /* now */
    uint64_t accepted;
    uint64_t refused;   /* connections over the limit */
    uint64_t evicted;   /* handshakes that made room, clients that stalled */
    uint64_t timed_out; /* handshakes that took too long */
};
void nbd_server_get_status(const struct nbd_server *s, struct nbd_server_status *ret);

#endif
