/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node: what stands between the operator's words and the layers below.
 *
 * There is one home reactor, which holds the lists and serves the control socket, and there are the reactors
 * that volumes live on (the home reactor is one of them). A reactor has its own drive handles, its own cache
 * and its own volumes; nothing of these is touched from another reactor but by a message.
 *
 * Life of a volume here:
 *
 *      CLOSED --node_volume_open--> OPENING --> OPEN --node_volume_close--> CLOSING --> CLOSED
 *                                      |          |
 *                                      v          +--node_volume_delete--> DELETING --> GONE
 *                                   FAILED --(monitor: after a while, or when drives came)--> OPENING
 *
 * Invariants
 *  N1  v->volume is not NULL exactly in OPEN and CLOSING or DELETING until the volume was given to
 *      volume_close() or volume_delete(); that waits until v->calls is 0, and no call begins outside of OPEN;
 *  N2  exports are registered only while the volume is OPEN;
 *  N3  a node_drive or node_volume is freed only when the node stops or, a volume, with its last reference
 *      after it is GONE: whoever holds a reference may yield;
 *  N4  drive handles stay attached until the node stops, also of a drive that left: sessions may point to
 *      them.
 */
#include "control/node_internal.h"

#include "volume/tree.h"

#include <stdio.h>
#include <stdlib.h>

void node_setup(struct node *n, const char *dir, struct memory_budget *budget,
                struct reactor *const *reactors, uint32_t reactor_count)
{
    assert(reactor_count >= 1 && reactor_count <= NODE_REACTORS_MAX);
    assert(strlen(dir) < sizeof(n->dir));
    memset(n, 0, sizeof(*n));
    snprintf(n->dir, sizeof(n->dir), "%s", dir);
    n->budget = budget;
    n->reactor_count = reactor_count;
    for (uint32_t i = 0; i < reactor_count; i++)
        n->reactors[i].reactor = reactors[i];
    list_init(&n->drives);
    list_init(&n->volumes);
    fmutex_init(&n->changing);
    waitq_init(&n->changed);
}

void node_set_state(struct node *n, enum node_state state)
{
    n->state = state;
    waitq_wake_all(&n->changed);
}

const char *node_state_name(enum node_state state)
{
    switch (state) {
    case NODE_STARTING:
        return "starting";
    case NODE_OPENING:
        return "opening";
    case NODE_READY:
        return "ready";
    case NODE_STOPPING:
        return "stopping";
    }
    return "?";
}

void node_key(const char *folder, struct uuid id, char out[NODE_KEY_SIZE])
{
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    snprintf(out, NODE_KEY_SIZE, "/%s/%s", folder, text);
}

/* After ERR_COORD_UNKNOWN: whether the record is now what we wanted. */
static int record_settle(struct node *n, const char *key, const char *value, uint64_t *revision) may_yield
{
    char *now = NULL;
    uint64_t at = 0;
    int r = coord_get(n->coord, key, &now, &at);
    if (r == ERR_COORD_NOT_FOUND) {
        *revision = 0;
        return value == NULL ? 0 : ERR_COORD_CONFLICT;
    }
    if (r < 0)
        return r;
    bool same = value != NULL && strcmp(now, value) == 0;
    free(now);
    *revision = at;
    return same ? 0 : ERR_COORD_CONFLICT;
}

int node_record_put(struct node *n, const char *key, const char *value, uint64_t *revision)
{
    for (int attempt = 0;; attempt++) {
        struct coord_change change = {.key = key, .if_revision = *revision, .value = value};
        uint64_t at = 0;
        int r = coord_commit(n->coord, &change, 1, &at);
        if (r == ERR_COORD_UNKNOWN || r == ERR_COORD_CONFLICT) {
            r = record_settle(n, key, value, revision);
            if (r == 0)
                return 0;
            if (r == ERR_COORD_CONFLICT && attempt < 3)
                continue; /* we are the only writer of these records: what is there is an older value of ours
                           */
            return r;
        }
        if (r < 0)
            return r;
        *revision = value != NULL ? at : 0;
        return 0;
    }
}

int node_background_start(struct node *n, const char *name, void (*fn)(void *arg), void *arg)
{
    n->background++;
    int r = fiber_spawn(name, fn, arg);
    if (r < 0)
        node_background_end(n);
    return r;
}

void node_background_end(struct node *n)
{
    assert(n->background > 0);
    n->background--;
    waitq_wake_all(&n->changed);
}

/* ---- Caches and drive sets ---- */

struct reactor_work {
    struct node *node;
    struct node_reactor *at;
};

static int reactor_prepare(void *arg)
{
    struct reactor_work *w = arg;
    drive_set_init(&w->at->drives);
    int r = cache_new(tree_node_evicted, &w->at->cache);
    if (r < 0) {
        drive_set_done(&w->at->drives);
        return r;
    }
    w->at->env = (struct volume_env){.coord = w->node->coord,
                                     .drives = &w->at->drives,
                                     .cache = w->at->cache,
                                     .node = w->node->id,
                                     .shortage = &w->node->shortage};
    return 0;
}

static int reactor_dismantle(void *arg)
{
    struct reactor_work *w = arg;
    if (w->at->cache == NULL)
        return 0;
    cache_free(w->at->cache);
    w->at->cache = NULL;
    drive_set_done(&w->at->drives);
    return 0;
}

int node_reactors_start(struct node *n, struct control_error *e)
{
    for (uint32_t i = 0; i < n->reactor_count; i++) {
        struct reactor_work w = {.node = n, .at = &n->reactors[i]};
        int r = reactor_call(w.at->reactor, reactor_prepare, &w);
        if (r < 0) {
            control_error_set(e, r, "Give more memory with --memory.", "reactor %u could not be set up: %s",
                              i, error_text(r));
            return r;
        }
    }
    return 0;
}

void node_reactors_stop(struct node *n)
{
    for (uint32_t i = 0; i < n->reactor_count; i++) {
        struct reactor_work w = {.node = n, .at = &n->reactors[i]};
        int r = reactor_call(w.at->reactor, reactor_dismantle, &w);
        assert(r == 0);
    }
}

/* ---- Watching ---- */

static int read_state(struct volume *v, void *arg)
{
    return volume_get_state(v);
}

#define LOOK_AGAIN_S   10u /* seconds between looks for missing drives */
#define RETRY_FIRST_NS (5 * NSEC_PER_SEC)
#define RETRY_MAX_NS   (60 * NSEC_PER_SEC)

/* Once repair is through, a scrub finds out which of the known damage is none any more. */
static void recheck_damage(struct node *n, struct node_volume *v) may_yield
{
    struct volume_status s;
    if (!v->recheck || node_volume_status(n, v, &s) < 0 || s.repair.running)
        return;
    v->recheck = false;
    if (s.damage_count == 0)
        return;
    int r = node_volume_job(n, v, true, 0);
    if (r < 0 && r != ERR_VOLUME_BUSY)
        LOG_WARNING("the scrub of the volume %s did not start: %s", v->name, error_text(r));
}

/* A volume that failed while open is closed and opened again: its log is replayed, so that memory and drives
 * agree once more. Each attempt waits twice as long as the one before. */
static void watch_volume(struct node *n, struct node_volume *v) may_yield
{
    uint64_t now = reactor_now_ns();
    if (v->state == NODE_VOLUME_OPEN) {
        int r = node_volume_call(n, v, read_state, NULL);
        if (r == 0)
            recheck_damage(n, v);
        if (r == 0 || r == ERR_NODE_NOT_READY || v->state != NODE_VOLUME_OPEN)
            return;
        event_raise(LOG_ERROR_, "volume-failed", "the volume %s failed: %s; it is closed and opened again",
                    v->name, error_text(r));
        node_volume_close(n, v);
        v->error = r;
        v->state = NODE_VOLUME_FAILED;
        v->retry_ns = now + MIN(RETRY_FIRST_NS << MIN(v->retries, 8u), RETRY_MAX_NS);
        return;
    }
    if (v->state == NODE_VOLUME_FAILED && now >= v->retry_ns && v->error != 0) {
        v->retries++;
        node_volume_open(n, v);
        v->retry_ns = reactor_now_ns() + MIN(RETRY_FIRST_NS << MIN(v->retries, 8u), RETRY_MAX_NS);
        if (v->state == NODE_VOLUME_OPEN)
            event_raise(LOG_INFO_, "volume-opened", "the volume %s is open again", v->name);
    }
}

static void monitor_run(void *arg) may_yield
{
    struct node *n = arg;
    uint32_t round = 0;
    while (!fiber_cancelled()) {
        if (fiber_sleep(NSEC_PER_SEC) < 0)
            break;
        if (++round % LOOK_AGAIN_S == 0) {
            fiber_shield();
            fmutex_lock(&n->changing);
            node_drives_look_again(n);
            fmutex_unlock(&n->changing);
            coord_tend(n->coord);
            fiber_unshield();
        }
        struct node_volume **volumes;
        uint32_t count;
        if (node_volumes_snapshot(n, &volumes, &count) < 0)
            continue;
        for (uint32_t i = 0; i < count && !fiber_cancelled(); i++) {
            /* What was begun is finished even if the node stops meanwhile. */
            fiber_shield();
            fmutex_lock(&n->changing);
            watch_volume(n, volumes[i]);
            fmutex_unlock(&n->changing);
            fiber_unshield();
        }
        node_volumes_release(volumes, count);
    }
}

int node_monitor_start(struct node *n, struct control_error *e)
{
    int r = fiber_spawn_joinable("node-monitor", monitor_run, n, &n->monitor);
    if (r < 0)
        control_error_set(e, r, "", "the monitor could not be started: %s", error_text(r));
    return r;
}

void node_monitor_stop(struct node *n)
{
    if (n->monitor == NULL)
        return;
    fiber_cancel(n->monitor);
    fiber_join(n->monitor);
    n->monitor = NULL;
    while (n->background > 0) {
        if (waitq_wait(&n->changed, DEADLINE_NEVER) == ERR_CANCELLED)
            fiber_yield();
    }
}
