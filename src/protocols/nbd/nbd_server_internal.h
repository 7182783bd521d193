/* SPDX-License-Identifier: Apache-2.0 */
/* Home's side of the server: registry, listeners, greeters. */
#ifndef ASHLAR_PROTOCOLS_NBD_SERVER_INTERNAL_H
#define ASHLAR_PROTOCOLS_NBD_SERVER_INTERNAL_H

#include "protocols/nbd/nbd_internal.h"

struct nbd_listener {
    struct list link;
    struct nbd_server *server;
    struct listener *listener;
    struct fiber *fiber;
    enum nbd_tls_mode tls;
    struct tls_context *tls_context;
    uint64_t warned_ns; /* the last failure to accept; 0: none */
};

/* ---- nbd_server.c ---- */

/* NULL: there is none. */
struct nbd_export *nbd_server_find(const struct nbd_server *s, const char *name, size_t len);
/* So that it stays while the holder waits (N1). */
void nbd_export_hold(struct nbd_export *e);
void nbd_export_release(struct nbd_export *e);

/* ---- nbd_greeter.c ---- */

/* Takes the stream. */
void nbd_greeter_start(struct nbd_server *s, const struct nbd_listener *l, struct stream *stream) may_yield;
void nbd_greeter_evict_oldest(struct nbd_server *s);
void nbd_greeter_shutdown_all(struct nbd_server *s);

#endif
