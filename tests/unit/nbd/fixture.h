/* SPDX-License-Identifier: Apache-2.0 */
/* A server with one export, "rw", over a volume in memory, a network in memory and virtual time. */
#ifndef ASHLAR_TEST_NBD_FIXTURE_H
#define ASHLAR_TEST_NBD_FIXTURE_H

#include "client.h"
#include "fake_volume.h"
#include "loop_world.h"
#include "protocols/nbd/nbd.h"

#define ADDRESS "tcp:127.0.0.1:10809"
#define SIZE    (64 * MIB)

extern struct loop_world world;
extern struct volume *volume;
extern struct block_device *device;
extern struct nbd_server *server; /* a body that stops it sets it to NULL */
extern struct nbd_limits limits;  /* of the next run; zeroed after it */

/* Each asserts, when the body (on a fiber) has ended, that no CHECK failed and nothing was left behind. */
void run_once(void (*body)(void));
/* The body in order, and again with every receive cut into pieces, and with shuffled fibers. */
void run(void (*body)(void));
/* In `world` as the caller prepared it (loop_world_init). */
void run_in(void (*body)(void), uint64_t memory_bytes);

int add(const char *name, bool read_only, const char *allow) MUST_CHECK may_yield;
void pattern(uint8_t *buf, size_t len, uint64_t seed);
/* One request; its error on the wire. */
uint32_t do_error(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len, void *buf)
    MUST_CHECK may_yield;

extern const uint32_t wishes[4]; /* ways to open a connection; enum client_wishes */

#endif
