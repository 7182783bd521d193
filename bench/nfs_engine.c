/* SPDX-License-Identifier: Apache-2.0 */
#include "nfs_engine.h"

#include "load.h"

#include <stdlib.h>

static struct nfs_connection connections[NFS_CONNECTIONS_MAX];
static struct nfs_slot (*slots)[NFS_DEPTH_MAX]; /* of each connection */
static unsigned opened;
static const struct nfs_work *current;

static void start(struct nfs_slot *s)
{
    nfs_request_send(&connections[s->connection], &s->r);
}

static void answered(struct nfs_connection *c, struct nfs_call *call, struct xdr *x)
{
    struct nfs_slot *s = CONTAINER_OF(call, struct nfs_slot, r.call);
    struct nfs_answer a;
    (void)c;
    nfs_request_answer(&s->r, x, &a);
    if (current->done(s, &a))
        start(s);
    else
        s->busy = false;
}

void nfs_engine_open(uint16_t port, unsigned count)
{
    assert(count <= NFS_CONNECTIONS_MAX && opened == 0);
    slots = calloc(count, sizeof(*slots));
    assert(slots != NULL);
    for (opened = 0; opened < count; opened++)
        nfs_client_open(&connections[opened], port, load_now_ns() + opened, answered);
}

void nfs_engine_close(void)
{
    for (unsigned i = 0; i < opened; i++)
        nfs_client_close(&connections[i]);
    free(slots);
    opened = 0;
}

/* Puts every free slot to work; false: there is no more work. Connections take turns, so that none gets all
 * of what is left. */
static bool fill(const struct nfs_work *work)
{
    for (unsigned k = 0; k < work->depth; k++)
        for (unsigned i = 0; i < work->connections; i++) {
            struct nfs_slot *s = &slots[i][k];
            if (s->busy)
                continue;
            s->connection = i;
            s->step = 0;
            s->began_ns = load_now_ns();
            if (!work->next(s))
                return false;
            s->busy = true;
            start(s);
        }
    return true;
}

static bool any_under_way(void)
{
    for (unsigned i = 0; i < opened; i++)
        if (connections[i].under_way > 0)
            return true;
    return false;
}

void nfs_engine_run(const struct nfs_work *work, uint64_t end_ns)
{
    assert(work->connections <= opened && work->depth <= NFS_DEPTH_MAX);
    current = work;
    while (load_now_ns() < end_ns && fill(work))
        nfs_client_turn(connections, opened, 1000);
}

void nfs_engine_drain(void)
{
    while (any_under_way())
        nfs_client_turn(connections, opened, 1000);
}

void nfs_engine_run_all(const struct nfs_work *work)
{
    nfs_engine_run(work, UINT64_MAX);
    nfs_engine_drain();
}

/* ---- One by itself ---- */

static struct nfs_request *single;
static struct nfs_answer *single_answer;

static bool single_next(struct nfs_slot *s)
{
    if (single == NULL)
        return false;
    s->r = *single;
    single = NULL;
    return true;
}

static bool single_done(struct nfs_slot *s, const struct nfs_answer *a)
{
    (void)s;
    *single_answer = *a;
    return false;
}

void nfs_engine_ask(struct nfs_request *r, struct nfs_answer *ret)
{
    static const struct nfs_work work = {single_next, single_done, 1, 1};
    assert(!any_under_way());
    single = r;
    single_answer = ret;
    nfs_engine_run_all(&work);
}
