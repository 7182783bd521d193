/* SPDX-License-Identifier: Apache-2.0 */
/* The whole node in one answer: for people who want to know whether all is well, and for programs. Answers
 * while the node is still starting. */
#include "control/control_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int control_version(struct control_call *call, const json_t *request, json_t **ret_result)
{
    *ret_result = json_pack("{ss si}", "version", ASHLAR_VERSION, "pid", (int)getpid());
    return 0;
}

static void problem(json_t *problems, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void problem(json_t *problems, const char *fmt, ...)
{
    char text[CONTROL_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_array_append_new(problems, control_text(text));
}

/* Worst first; "health" is the worst that was found. */
enum health { HEALTH_OK, HEALTH_DEGRADED, HEALTH_FAILED };

static void raise_health(enum health *health, enum health to)
{
    *health = MAX(*health, to);
}

static uint64_t json_number_of(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

struct capacity {
    uint64_t raw_bytes, used_bytes, free_bytes; /* the rest is what the drives keep account with */
};

/* Sparse file drives promise more than their file system may have. Told once a file system. */
#define HOST_LOW_BYTES (128 * MIB)
static void host_problem(const struct node_drive *d, const json_t *o, unsigned long *last, json_t *problems,
                         enum health *health)
{
    struct stat st;
    struct statvfs fs;
    if (stat(d->path, &st) < 0 || !S_ISREG(st.st_mode) || statvfs(d->path, &fs) < 0 || fs.f_fsid == *last)
        return;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= HOST_LOW_BYTES || room >= json_number_of(o, "free_bytes"))
        return;
    *last = fs.f_fsid;
    raise_health(health, HEALTH_DEGRADED);
    problem(problems, "the file system under the drive %s is nearly full: %llu MiB are left; make room there",
            d->path, (unsigned long long)(room / MIB));
}

static json_t *drives_part(struct node *n, struct capacity *capacity, json_t *problems, enum health *health)
    may_yield
{
    json_t *list = json_array();
    unsigned long low_host = 0;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->state == NODE_DRIVE_REMOVED)
            continue;
        json_t *o = control_drive_json(n, d);
        json_array_append_new(list, o);
        const char *state = json_string_value(json_object_get(o, "state"));
        if (state != NULL && strcmp(state, "ok") == 0) {
            capacity->raw_bytes += json_number_of(o, "size_bytes");
            capacity->used_bytes += json_number_of(o, "used_bytes");
            capacity->free_bytes += json_number_of(o, "free_bytes");
            host_problem(d, o, &low_host, problems, health);
        } else if (n->state != NODE_STARTING) {
            const char *why = json_string_value(json_object_get(o, "why"));
            raise_health(health, HEALTH_DEGRADED);
            problem(problems, "the drive %s is %s: %s", d->path, state, why != NULL ? why : "?");
        }
    }
    return list;
}

static void volume_problems(const struct node_volume *v, const json_t *o, json_t *problems,
                            enum health *health)
{
    const char *state = json_string_value(json_object_get(o, "state"));
    json_int_t damage = json_integer_value(json_object_get(o, "damage_count"));
    if (v->state == NODE_VOLUME_FAILED || (state != NULL && strcmp(state, "failed") == 0)) {
        const char *why = json_string_value(json_object_get(o, "why"));
        raise_health(health, HEALTH_FAILED);
        problem(problems, "the volume %s is not available: %s", v->name, why != NULL ? why : "?");
        return;
    }
    if (damage > 0) {
        raise_health(health, HEALTH_FAILED);
        problem(problems, "the volume %s has %lld damaged range%s that cannot be read", v->name,
                (long long)damage, damage == 1 ? "" : "s");
    }
    if (json_is_true(json_object_get(o, "read_only"))) {
        raise_health(health, HEALTH_FAILED);
        problem(problems, "the volume %s is read-only", v->name);
    }
    if (v->state == NODE_VOLUME_OPEN && damage == 0 && json_is_false(json_object_get(o, "healthy"))) {
        raise_health(health, HEALTH_DEGRADED);
        problem(problems, "the volume %s is not fully protected at present; %lld more drive(s) may be lost",
                v->name, (long long)MAX(json_integer_value(json_object_get(o, "redundancy_left")), 0));
    }
    if (v->export.nbd && !v->nbd_active && v->state == NODE_VOLUME_OPEN)
        problem(problems, "the volume %s should be exported and is not", v->name);
    for (uint32_t i = 0; v->state == NODE_VOLUME_OPEN && i < v->nfs_count; i++)
        if (!v->nfs[i].active)
            problem(problems, "the file system %s should be exported as %s and is not", v->name,
                    v->nfs[i].as);
}

static json_t *volumes_part(struct node *n, json_t *problems, enum health *health) may_yield
{
    json_t *list = json_array();
    struct node_volume **volumes;
    uint32_t count;
    if (node_volumes_snapshot(n, &volumes, &count) < 0)
        return list;
    for (uint32_t i = 0; i < count; i++) {
        if (volumes[i]->state == NODE_VOLUME_GONE)
            continue;
        json_t *o = control_volume_json(n, volumes[i], false);
        json_array_append_new(list, o);
        volume_problems(volumes[i], o, problems, health);
    }
    node_volumes_release(volumes, count);
    return list;
}

static json_t *memory_part(struct node *n)
{
    return json_pack("{sI sI}", "limit_bytes", (json_int_t)n->budget->limit_bytes, "held_bytes",
                     (json_int_t)__atomic_load_n(&n->budget->used_bytes, __ATOMIC_RELAXED));
}

/* Whoever asks right after the start mostly wants to go on with it: most nodes are ready within this time,
 * and an answer is due within ten seconds. */
#define SETTLE_NS (4 * NSEC_PER_SEC)

static void settle(struct node *n) may_yield
{
    uint64_t deadline = reactor_now_ns() + SETTLE_NS;
    while (n->state == NODE_STARTING || n->state == NODE_OPENING)
        if (waitq_wait(&n->changed, deadline) < 0)
            return;
}

int control_status(struct control_call *call, const json_t *request, json_t **ret_result)
{
    static const char *const names[] = {"ok", "degraded", "failed"};
    struct node *n = call->node;
    if (!control_arg_bool(request, "no_wait"))
        settle(n);
    struct capacity capacity = {0};
    enum health health = HEALTH_OK;
    json_t *problems = json_array();
    json_t *drives = drives_part(n, &capacity, problems, &health);
    json_t *volumes = volumes_part(n, problems, &health);
    double up_s = (double)(reactor_now_ns() - n->started_ns) / (double)NSEC_PER_SEC;
    *ret_result =
        json_pack("{ss ss ss so so so si sf si so so so so so}", "version", ASHLAR_VERSION, "state",
                  node_state_name(n->state), "health", names[health], "node", control_uuid(n->id), "pool",
                  control_uuid(n->pool_id), "dir", control_text(n->dir), "pid", (int)getpid(), "up_s", up_s,
                  "reactors", (int)n->reactor_count, "problems", problems, "capacity",
                  json_pack("{sI sI sI}", "raw_bytes", (json_int_t)capacity.raw_bytes, "free_bytes",
                            (json_int_t)capacity.free_bytes, "used_bytes", (json_int_t)capacity.used_bytes),
                  "memory", memory_part(n), "drives", drives, "volumes", volumes);
    return *ret_result != NULL ? 0 : control_fail_err(call, ERR_NO_MEMORY, "the status cannot be told");
}
