/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a number of requests under way on each of a number of connections, one thread for all. */
#ifndef ASHLAR_BENCH_NFS_ENGINE_H
#define ASHLAR_BENCH_NFS_ENGINE_H

#include "nfs_ops.h"

/* A place for one request at a time. What a kind of work keeps beside it is for its functions alone. */
struct nfs_slot {
    struct nfs_request r;
    unsigned connection;
    bool busy;
    uint64_t began_ns; /* of what counts as one operation, of one or several requests */
    unsigned kind, step;
    uint64_t number;
};

struct nfs_work {
    /* Fills in s->r and what else it likes; false: there is nothing more to do. */
    bool (*next)(struct nfs_slot *s);
    /* Sees the answer; true: it has filled in another request, which is sent at once. */
    bool (*done)(struct nfs_slot *s, const struct nfs_answer *a);
    unsigned connections, depth; /* within what was opened, and NFS_DEPTH_MAX */
};

/* Opens connections to the NFS port. */
void nfs_engine_open(uint16_t port, unsigned connections);
void nfs_engine_close(void);

/* Works until end_ns (load_now_ns()) or until there is nothing more to do; leaves what is under way then. */
void nfs_engine_run(const struct nfs_work *work, uint64_t end_ns);
/* Waits for what is under way; no new work. */
void nfs_engine_drain(void);
/* All of it, to its end. */
void nfs_engine_run_all(const struct nfs_work *work);

/* One request by itself; nothing else may be under way. */
void nfs_engine_ask(struct nfs_request *r, struct nfs_answer *ret);

#endif
