/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub and repair: starting them, and following them to their end. */
#include "control/control_internal.h"

#include <stdlib.h>

#define POLL_NS (200 * NSEC_PER_MSEC)

/* The volumes meant: one, or all; with references. */
static int targets(struct control_call *call, const char *name, struct node_volume ***ret,
                   uint32_t *ret_count)
{
    if (name == NULL) {
        int r = node_volumes_snapshot(call->node, ret, ret_count);
        return r < 0 ? control_fail_err(call, r, "the volumes cannot be listed") : 0;
    }
    struct node_volume *v = node_volume_get(call->node, name);
    if (v == NULL)
        return control_fail(call, ERR_VOLUME_NOT_FOUND, "See `ashlar volume list`.",
                            "there is no volume \"%s\"", name);
    struct node_volume **list = malloc(sizeof(struct node_volume *));
    if (list == NULL) {
        node_volume_put(v);
        return control_fail_err(call, ERR_NO_MEMORY, "not done");
    }
    list[0] = v;
    *ret = list;
    *ret_count = 1;
    return 0;
}

/* One look at all: a progress line's content in *ret_progress, and how many still run. */
static uint32_t look(struct control_call *call, struct node_volume **volumes, uint32_t count, bool scrub,
                     json_t **ret_progress) may_yield
{
    uint32_t running = 0;
    uint64_t done = 0, total = 0, bad = 0, repaired = 0, lost = 0, now = reactor_now_ns(), first = now;
    const char *name = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct volume_status status;
        if (node_volume_status(call->node, volumes[i], &status) < 0)
            continue;
        const struct volume_job *job = scrub ? &status.scrub : &status.repair;
        if (job->started_ns == 0)
            continue;
        done += job->done_blocks;
        total += MAX(job->total_blocks, job->done_blocks);
        bad += job->bad_copies;
        repaired += job->repaired_copies;
        lost += job->lost_blocks;
        if (job->running) {
            running++;
            name = name == NULL ? volumes[i]->name : name;
            first = MIN(first, job->started_ns);
        }
    }
    json_t *o = json_pack("{si sI sI sI sI sI}", "running", (int)running, "done", (json_int_t)done, "total",
                          (json_int_t)total, "bad_copies", (json_int_t)bad, "repaired_copies",
                          (json_int_t)repaired, "lost_blocks", (json_int_t)lost);
    if (o != NULL && name != NULL)
        json_object_set_new(o, "volume", json_string(name));
    if (o != NULL && running > 0 && done > 0)
        json_object_set_new(
            o, "left_s",
            json_real((double)(now - first) / (double)NSEC_PER_SEC * (double)(total - done) / (double)done));
    *ret_progress = o;
    return running;
}

static json_t *results(struct control_call *call, struct node_volume **volumes, uint32_t count, bool scrub)
    may_yield
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        struct volume_status status;
        int r = node_volume_status(call->node, volumes[i], &status);
        json_t *o =
            json_pack("{ss sb}", "volume", volumes[i]->name, "healthy", (int)(r == 0 && status.healthy));
        if (o != NULL && r == 0)
            json_object_set_new(o, "job",
                                control_job_json(scrub ? &status.scrub : &status.repair, reactor_now_ns()));
        else if (o != NULL)
            json_object_set_new(o, "why", json_string(node_volume_state_name(volumes[i])));
        json_array_append_new(list, o);
    }
    return list;
}

static int follow(struct control_call *call, struct node_volume **volumes, uint32_t count, bool scrub)
    may_yield
{
    for (;;) {
        json_t *progress = NULL;
        uint32_t running = look(call, volumes, count, scrub, &progress);
        int r = control_send(call, "progress", progress);
        if (r < 0 || running == 0)
            return r;
        r = control_pause(call, POLL_NS);
        if (r == ERR_SHUTDOWN)
            return control_fail(call, r, "It goes on after the next start: `ashlar repair`, `ashlar scrub`.",
                                "the node is being stopped");
        if (r < 0)
            return r;
    }
}

/* A volume that lacks copies although no repair runs: it has not noticed yet, or another drive was lost
 * meanwhile. Known damage is not for repair to mend. */
static bool lacks_copies(const struct volume_status *s)
{
    return s->stale_members > 0 || (!s->healthy && s->damage_count == 0);
}

/* Starts repair where it is still needed; how many volumes that were. */
static uint32_t repair_again(struct control_call *call, struct node_volume **volumes, uint32_t count)
    may_yield
{
    uint32_t lacking = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct volume_status s;
        if (node_volume_status(call->node, volumes[i], &s) < 0 || s.state != 0 || !lacks_copies(&s))
            continue;
        lacking++;
        int r = node_volume_job(call->node, volumes[i], false, 0);
        if (r < 0 && r != ERR_VOLUME_BUSY && r != ERR_NODE_NOT_READY)
            LOG_WARNING("repair of the volume %s did not start: %s", volumes[i]->name, error_text(r));
    }
    return lacking;
}

/* Until every volume has its copies, or trying again and again gave nothing (too few drives). */
#define REPAIR_TRIES 10u
static int follow_repair(struct control_call *call, struct node_volume **volumes, uint32_t count) may_yield
{
    for (uint32_t tries = 0;; tries++) {
        int r = follow(call, volumes, count, false);
        if (r < 0 || tries == REPAIR_TRIES || repair_again(call, volumes, count) == 0)
            return r;
        r = control_pause(call, POLL_NS);
        if (r < 0)
            return r == ERR_SHUTDOWN ? control_fail_err(call, r, "the repair goes on after the next start")
                                     : r;
    }
}

int control_repair_wait(struct control_call *call, json_t **ret_result)
{
    struct node_volume **volumes;
    uint32_t count;
    int r = targets(call, NULL, &volumes, &count);
    if (r < 0)
        return r;
    r = follow_repair(call, volumes, count);
    if (r == 0)
        *ret_result = results(call, volumes, count, false);
    node_volumes_release(volumes, count);
    return r;
}

/* One that runs already may have begun before what it is wanted for: with waiting, another one follows. */
static int start_all(struct control_call *call, struct node_volume **volumes, uint32_t count, bool scrub,
                     uint64_t rate, bool wait) may_yield
{
    for (uint32_t i = 0; i < count; i++) {
        int r = node_volume_job(call->node, volumes[i], scrub, rate);
        if (r == ERR_VOLUME_BUSY && wait) {
            r = follow(call, &volumes[i], 1, scrub);
            if (r < 0)
                return r;
            r = node_volume_job(call->node, volumes[i], scrub, rate);
        }
        if (r == ERR_VOLUME_BUSY)
            continue; /* somebody was faster: theirs will do */
        if (r < 0 && (count == 1 || r != ERR_NODE_NOT_READY))
            return control_fail(call, r, "See `ashlar status`.", "the %s of the volume %s did not start: %s",
                                scrub ? "scrub" : "repair", volumes[i]->name, error_text(r));
    }
    return 0;
}

int control_job_start(struct control_call *call, const json_t *request, json_t **ret_result)
{
    const char *kind = control_arg_string(request, "kind", "");
    const char *name = control_arg_string(request, "name", NULL);
    bool scrub = strcmp(kind, "scrub") == 0, wait = !control_arg_bool(request, "no_wait");
    if (!scrub && strcmp(kind, "repair") != 0)
        return control_fail(call, ERR_CONTROL_REQUEST, "", "the kind of a job is scrub or repair");
    struct node_volume **volumes;
    uint32_t count;
    int r = targets(call, name, &volumes, &count);
    if (r < 0)
        return r;
    r = start_all(call, volumes, count, scrub, control_arg_uint(request, "rate_bytes_per_s", 0), wait);
    if (r == 0 && wait)
        r = scrub ? follow(call, volumes, count, true) : follow_repair(call, volumes, count);
    if (r == 0)
        *ret_result = results(call, volumes, count, scrub);
    node_volumes_release(volumes, count);
    return r;
}
