/* SPDX-License-Identifier: Apache-2.0 */
/* The test world (virtual time) with a network: streams are pairs of bounded pipes in memory, of one reactor.
 * For tests and fuzz targets of protocols. */
#ifndef ASHLAR_LOOP_WORLD_H
#define ASHLAR_LOOP_WORLD_H

#include "test_world.h"

struct loop_world {
    struct test_world base; /* first: the test world's functions take it from the reactor's context */
    struct list listeners, sockets;
    const char *peer_ip; /* of the next connections, as the server sees them; "": a Unix socket */
    size_t pipe_bytes;   /* capacity of one direction */
    size_t recv_max;     /* bytes of one receive of the accepting side; 0: all there is */
    int accept_error;    /* returned by the next accept instead; 0: none */
    uint32_t streams;    /* open ends */
    uint64_t sends;      /* calls of sendv */
    uint32_t lose;       /* datagrams to be lost next */
};

extern const struct world_ops loop_world_ops; /* world_ctx: struct loop_world */
/* Runs fn(arg) on a fiber until no fiber is left; then no stream may be open and no page in use. */
void loop_run(struct loop_world *w, uint64_t memory_bytes, void (*fn)(void *arg), void *arg);
void loop_world_init(struct loop_world *w);
void loop_world_done(struct loop_world *w);

#endif
