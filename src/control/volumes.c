/* SPDX-License-Identifier: Apache-2.0 */
/* The volume commands. */
#include "control/control_internal.h"

struct node_volume *control_volume(struct control_call *call, const json_t *request)
{
    const char *name = control_arg_string(request, "name", "");
    struct node_volume *v = node_volume_get(call->node, name);
    if (v == NULL)
        (void)control_fail(call, ERR_VOLUME_NOT_FOUND, "See `ashlar volume list`.",
                           "there is no volume \"%s\"", name);
    return v;
}

json_t *control_job_json(const struct volume_job *job, uint64_t now_ns)
{
    if (job->started_ns == 0)
        return json_null();
    uint64_t end_ns = job->running ? now_ns : job->finished_ns;
    uint64_t elapsed_ns = end_ns > job->started_ns ? end_ns - job->started_ns : 0;
    uint64_t total = MAX(job->total_blocks, job->done_blocks);
    json_t *o = json_pack("{sb sI sI sf sI sI sI}", "running", (int)job->running, "done_blocks",
                          (json_int_t)job->done_blocks, "total_blocks", (json_int_t)total, "elapsed_s",
                          (double)elapsed_ns / (double)NSEC_PER_SEC, "bad_copies",
                          (json_int_t)job->bad_copies, "repaired_copies", (json_int_t)job->repaired_copies,
                          "lost_blocks", (json_int_t)job->lost_blocks);
    if (o == NULL)
        return NULL;
    if (job->running && job->done_blocks > 0)
        json_object_set_new(o, "left_s",
                            json_real((double)elapsed_ns / (double)NSEC_PER_SEC *
                                      (double)(total - job->done_blocks) / (double)job->done_blocks));
    if (!job->running) {
        json_object_set_new(o, "result", json_string(job->result == 0 ? "ok" : error_name(job->result)));
        if (job->result != 0)
            json_object_set_new(o, "why", json_string(error_text(job->result)));
    }
    return o;
}

static json_t *damage_json(const struct volume_status *s)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < MIN(s->damage_count, ARRAY_SIZE(s->damage)); i++)
        json_array_append_new(list, json_pack("{sI sI sI}", "object", (json_int_t)s->damage[i].object,
                                              "offset", (json_int_t)s->damage[i].offset_bytes, "length",
                                              (json_int_t)s->damage[i].len_bytes));
    return list;
}

static void add_integer(json_t *o, const char *key, uint64_t value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void add_detail(json_t *o, const struct volume_status *s)
{
    add_integer(o, "txg", s->txg);
    add_integer(o, "data_blocks", s->data_blocks);
    add_integer(o, "tree_blocks", s->tree_blocks);
    add_integer(o, "slabs", s->slabs);
    add_integer(o, "log_bytes_used", s->log_bytes_used);
    add_integer(o, "log_bytes_total", s->log_bytes_total);
    json_object_set_new(
        o, "counters",
        json_pack("{sI sI sI sI sI sI sI sI sI sI sI sI sI}", "reads", (json_int_t)s->reads, "writes",
                  (json_int_t)s->writes, "flushes", (json_int_t)s->flushes, "read_bytes",
                  (json_int_t)(s->read_blocks * BLOCK_SIZE), "write_bytes",
                  (json_int_t)(s->write_blocks * BLOCK_SIZE), "commits", (json_int_t)s->commits,
                  "log_batches", (json_int_t)s->log_batches, "log_records", (json_int_t)s->log_records,
                  "checksum_errors", (json_int_t)s->counters.checksum_errors, "blocks_repaired",
                  (json_int_t)s->counters.blocks_repaired, "blocks_lost", (json_int_t)s->counters.blocks_lost,
                  "degraded_reads", (json_int_t)s->counters.degraded_reads, "hedged_reads",
                  (json_int_t)s->counters.hedged_reads));
}

static void add_status(json_t *o, const struct volume_status *s, bool detail)
{
    uint64_t now = reactor_now_ns();
    add_integer(o, "size_bytes", s->size_bytes);
    add_integer(o, "used_bytes", s->data_blocks * BLOCK_SIZE);
    add_integer(o, "raw_bytes", s->raw_bytes);
    json_object_set_new(o, "healthy", json_boolean(s->healthy));
    json_object_set_new(o, "read_only", json_boolean(s->read_only));
    json_object_set_new(o, "redundancy_left", json_integer(s->redundancy_left));
    add_integer(o, "stale_members", s->stale_members);
    add_integer(o, "damage_count", s->damage_count);
    json_object_set_new(o, "damage", damage_json(s));
    json_object_set_new(o, "scrub", control_job_json(&s->scrub, now));
    json_object_set_new(o, "repair", control_job_json(&s->repair, now));
    if (detail)
        add_detail(o, s);
}

json_t *control_volume_json(struct node *n, struct node_volume *v, bool detail)
{
    struct volume_status status;
    int r = node_volume_status(n, v, &status);
    const char *state = node_volume_state_name(v);
    if (r == 0 && status.state != 0)
        state = "failed";
    json_t *o = json_pack("{ss so ss ss ss si so}", "name", v->name, "id", control_uuid(v->id), "kind",
                          v->is_fs ? "fs" : "block", "state", state, "protection", v->protection, "reactor",
                          (int)v->reactor, "exports", control_export_json(n, v));
    if (o == NULL)
        return NULL;
    int error = r == 0 ? status.state : v->error;
    if (error != 0)
        json_object_set_new(o, "why", json_string(error_text(error)));
    if (r == 0)
        add_status(o, &status, detail);
    else
        json_object_set_new(o, "healthy", json_false());
    return o;
}

int control_volume_list(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume **volumes;
    uint32_t count;
    int r = node_volumes_snapshot(call->node, &volumes, &count);
    if (r < 0)
        return control_fail_err(call, r, "the volumes cannot be listed");
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        if (volumes[i]->state != NODE_VOLUME_GONE)
            json_array_append_new(list, control_volume_json(call->node, volumes[i], false));
    node_volumes_release(volumes, count);
    *ret_result = list;
    return 0;
}

int control_volume_show(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    *ret_result = control_volume_json(call->node, v, true);
    node_volume_put(v);
    return 0;
}

int control_volume_create(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = NULL;
    fmutex_lock(&n->changing);
    int r = node_volume_create(n, control_arg_string(request, "name", ""), "block",
                               control_arg_uint(request, "size_bytes", 0),
                               control_arg_string(request, "protection", ""), &v, &call->error);
    fmutex_unlock(&n->changing);
    if (r < 0)
        return r;
    event_raise(LOG_INFO_, "volume-created", "the volume %s (%s) was created", v->name, v->protection);
    *ret_result = control_volume_json(n, v, false);
    node_volume_put(v);
    return 0;
}

int control_volume_grow(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    fmutex_lock(&n->changing);
    int r = node_volume_grow(n, v, control_arg_uint(request, "size_bytes", 0), &call->error);
    fmutex_unlock(&n->changing);
    if (r == 0)
        *ret_result = control_volume_json(n, v, false);
    node_volume_put(v);
    return r;
}

/* ---- Delete ---- */

static uint64_t slabs_free_all(struct node *n) may_yield
{
    uint64_t sum = 0;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        struct drive_info info;
        if (d->state == NODE_DRIVE_IN_USE && d->handles[0] != NULL &&
            drive_get_info(d->handles[0], &info) == 0)
            sum += info.slabs_free;
    }
    return sum;
}

/* What is done is told by the slabs that came back; others may allocate meanwhile, so it is an estimate. */
static int delete_wait(struct control_call *call, struct node_volume *v, uint64_t slabs) may_yield
{
    uint64_t before = slabs_free_all(call->node), began = reactor_now_ns();
    while (v->state == NODE_VOLUME_DELETING) {
        int r = control_pause(call, 100 * NSEC_PER_MSEC);
        if (r < 0)
            return r;
        uint64_t now = slabs_free_all(call->node);
        uint64_t done = MIN(now > before ? now - before : 0, slabs);
        double elapsed_s = (double)(reactor_now_ns() - began) / (double)NSEC_PER_SEC;
        json_t *o = json_pack("{sI sI sf}", "done", (json_int_t)done, "total", (json_int_t)slabs, "elapsed_s",
                              elapsed_s);
        if (o != NULL && done > 0)
            json_object_set_new(o, "left_s", json_real(elapsed_s * (double)(slabs - done) / (double)done));
        r = control_send(call, "progress", o);
        if (r < 0)
            return r;
    }
    if (v->state == NODE_VOLUME_GONE)
        return 0;
    return control_fail(call, v->error != 0 ? v->error : ERR_VOLUME_BUSY,
                        "Try again: it goes on where it stopped.", "deleting the volume %s stopped: %s",
                        v->name, error_text(v->error != 0 ? v->error : ERR_VOLUME_BUSY));
}

int control_volume_delete(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    struct volume_status status = {0};
    fmutex_lock(&n->changing);
    if (node_volume_status(n, v, &status) < 0)
        status.slabs = 0;
    int r = node_volume_delete(n, v, &call->error);
    fmutex_unlock(&n->changing);
    if (r == 0 && !control_arg_bool(request, "no_wait"))
        r = delete_wait(call, v, status.slabs);
    if (r == 0)
        *ret_result = json_pack("{ss ss}", "name", v->name, "state", node_volume_state_name(v));
    node_volume_put(v);
    return r;
}
