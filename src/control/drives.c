/* SPDX-License-Identifier: Apache-2.0 */
/* The drive commands. */
#include "control/control_internal.h"

json_t *control_uuid(struct uuid id)
{
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    return json_string(text);
}

static void add_counters(json_t *o, const struct drive_info *info)
{
    json_t *counters =
        json_pack("{sI sI sI sI sI sI}", "reads", (json_int_t)info->reads, "writes", (json_int_t)info->writes,
                  "flushes", (json_int_t)info->flushes, "read_bytes", (json_int_t)info->read_bytes,
                  "write_bytes", (json_int_t)info->write_bytes, "errors", (json_int_t)info->errors);
    json_object_set_new(o, "counters", counters);
}

json_t *control_drive_json(struct node *n, struct node_drive *d)
{
    char why[256];
    const char *state = node_drive_state_name(n, d);
    enum drive_state now = node_drive_state(n, d, why, sizeof(why));
    json_t *o =
        json_pack("{so so ss}", "path", control_text(d->path), "id", control_uuid(d->id), "state", state);
    if (o == NULL)
        return NULL;
    if (now != DRIVE_OK)
        json_object_set_new(o, "why", control_text(why));
    struct drive_info info;
    if (d->handles[0] != NULL && drive_get_info(d->handles[0], &info) == 0) {
        json_object_set_new(o, "size_bytes", json_integer((json_int_t)info.size_bytes));
        json_object_set_new(o, "free_bytes",
                            json_integer((json_int_t)((uint64_t)info.slabs_free * info.slab_bytes)));
        json_object_set_new(
            o, "used_bytes",
            json_integer((json_int_t)((uint64_t)(info.slabs_total - info.slabs_free) * info.slab_bytes)));
        json_object_set_new(o, "slab_bytes", json_integer(info.slab_bytes));
        json_object_set_new(o, "slabs_total", json_integer(info.slabs_total));
        json_object_set_new(o, "slabs_free", json_integer(info.slabs_free));
        add_counters(o, &info);
    } else {
        json_object_set_new(o, "size_bytes", json_integer((json_int_t)d->size_bytes));
        json_object_set_new(o, "slab_bytes", json_integer(d->slab_bytes));
    }
    return o;
}

int control_drive_list(struct control_call *call, const json_t *request, json_t **ret_result)
{
    bool all = control_arg_bool(request, "all");
    json_t *list = json_array();
    LIST_FOREACH (&call->node->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->state != NODE_DRIVE_REMOVED || all)
            json_array_append_new(list, control_drive_json(call->node, d));
    }
    *ret_result = list;
    return 0;
}

static struct node_drive *find(struct control_call *call, const json_t *request)
{
    const char *wanted = control_arg_string(request, "drive", "");
    struct node_drive *d = node_drive_find(call->node, wanted);
    if (d == NULL)
        (void)control_fail(call, ERR_NOT_FOUND, "See `ashlar drive list`.", "there is no drive \"%s\"",
                           wanted);
    return d;
}

int control_drive_add(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_drive *d = NULL;
    fmutex_lock(&n->changing);
    int r = node_drive_add(n, control_arg_string(request, "path", ""),
                           control_arg_uint(request, "size_bytes", 0), control_arg_bool(request, "confirmed"),
                           control_arg_bool(request, "force"), &d, &call->error);
    if (r == 0)
        node_repair_all(n); /* it may be what a volume waits for */
    fmutex_unlock(&n->changing);
    if (r == 0)
        *ret_result = control_drive_json(n, d);
    return r;
}

/* The drive's fate is decided; what is left is that the volumes become whole again. */
static int repair_then(struct control_call *call, const json_t *request, json_t *result, json_t **ret_result)
    may_yield
{
    if (!control_arg_bool(request, "no_wait")) {
        json_t *jobs = NULL;
        int r = control_repair_wait(call, &jobs);
        if (r < 0) {
            json_decref(result);
            return r;
        }
        json_object_set_new(result, "repair", jobs);
    }
    *ret_result = result;
    return 0;
}

int control_drive_remove(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    fmutex_lock(&n->changing);
    struct node_drive *d = find(call, request);
    int r = d != NULL ? node_drive_remove(n, d, &call->error) : ERR_NOT_FOUND;
    if (r == 0)
        node_repair_all(n);
    fmutex_unlock(&n->changing);
    if (r < 0)
        return r;
    return repair_then(call, request, json_pack("{so}", "removed", control_drive_json(n, d)), ret_result);
}

int control_drive_replace(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_drive *fresh = NULL;
    fmutex_lock(&n->changing);
    struct node_drive *d = find(call, request);
    int r = ERR_NOT_FOUND;
    if (d != NULL)
        r = node_drive_replace(n, d, control_arg_string(request, "path", NULL),
                               control_arg_bool(request, "force"), &fresh, &call->error);
    if (r == 0)
        node_repair_all(n);
    fmutex_unlock(&n->changing);
    if (r < 0)
        return r;
    json_t *result =
        json_pack("{so so}", "removed", control_drive_json(n, d), "added", control_drive_json(n, fresh));
    return repair_then(call, request, result, ret_result);
}

int control_drive_locate(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_drive *d = find(call, request);
    if (d == NULL)
        return ERR_NOT_FOUND;
    char why[256];
    if (node_drive_state(call->node, d, why, sizeof(why)) != DRIVE_OK)
        return control_fail(call, ERR_DRIVE_GONE, "", "%s cannot be read now: %s", d->path, why);
    uint64_t seconds = control_arg_uint(request, "seconds", 10);
    for (uint64_t i = 0; i < seconds; i++) {
        if (d->home == NULL)
            break;
        drive_home_locate(d->home, NSEC_PER_SEC);
        int r = control_send(call, "progress",
                             json_pack("{sI sI}", "done", (json_int_t)(i + 1), "total", (json_int_t)seconds));
        if (r < 0)
            return r;
        if (*call->stopping)
            return control_fail_err(call, ERR_SHUTDOWN, "stopped");
    }
    *ret_result = control_drive_json(call->node, d);
    return 0;
}
