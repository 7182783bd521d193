/* SPDX-License-Identifier: Apache-2.0 */
/* A server with one export, "/a", over a file system in memory, a network in memory and virtual time. */
#ifndef ASHLAR_TEST_NFS_FIXTURE_H
#define ASHLAR_TEST_NFS_FIXTURE_H

#include "client.h"
#include "fake_fs.h"
#include "loop_world.h"
#include "protocols/nfs/nfs.h"

#define ADDRESS "tcp:127.0.0.1:2049"

extern struct loop_world world;
extern struct fs *fs;
extern struct nfs_server *server;          /* a body that stops it sets it to NULL */
extern struct nfs_limits limits;           /* of the next run; zeroed after it */
extern struct nfs_export_options export_a; /* of "/a" in the next run; its fs is set; reset after it */

/* Each asserts, when the body (on a fiber) has ended, that no CHECK failed and nothing was left behind. */
void run_once(void (*body)(void));
/* The body in order, and again with every receive cut into pieces, and with shuffled fibers. */
void run(void (*body)(void));

/* Connects and mounts "/a". */
void open_a(struct client *c, struct handle *root) may_yield;
void pattern(uint8_t *buf, size_t len, uint64_t seed);

#endif
