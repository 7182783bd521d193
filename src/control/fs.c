/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of file systems and quotas. */
#include "control/control_internal.h"

#include <stdlib.h>

static struct node_volume *fs_volume_of(struct control_call *call, const json_t *request)
{
    struct node_volume *v = control_volume(call, request);
    if (v == NULL || v->is_fs)
        return v;
    (void)control_fail(call, ERR_INVALID, "See `ashlar fs list`.", "%s is a block volume", v->name);
    node_volume_put(v);
    return NULL;
}

/* ---- What a file system has ---- */

struct show_work {
    struct fs_statfs space;
    struct fs_quota quota;
    bool has_quota;
};

static int show_here(struct fs *fs, void *arg) may_yield
{
    struct show_work *w = arg;
    struct fs_request rq = {.cred = {.trusted = true}};
    struct fs_attr attr;
    int r = fs_statfs(fs, &rq, FS_INO_ROOT, &w->space, &attr);
    if (r == 0) {
        r = fs_quota_get(fs, FS_INO_ROOT, &w->quota);
        w->has_quota = r == 0;
        if (r == ERR_NOT_FOUND)
            r = 0;
    }
    return r;
}

static json_t *fs_json(struct node *n, struct node_volume *v, bool detail) may_yield
{
    json_t *o = control_volume_json(n, v, detail);
    struct show_work w = {0};
    if (o == NULL || node_fs_call(n, v, show_here, &w) < 0)
        return o;
    json_object_del(o, "size_bytes"); /* of the volume beneath: says nothing here */
    json_object_set_new(o, "total_bytes", json_integer((json_int_t)w.space.total_bytes));
    json_object_set_new(o, "available_bytes", json_integer((json_int_t)w.space.available_bytes));
    json_object_set_new(o, "inodes", json_integer((json_int_t)w.space.used_inodes));
    json_object_set_new(o, "quota_bytes",
                        w.has_quota ? json_integer((json_int_t)w.quota.limit_bytes) : json_null());
    return o;
}

int control_fs_create(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = NULL;
    fmutex_lock(&n->changing);
    int r = node_fs_create(n, control_arg_string(request, "name", ""),
                           control_arg_string(request, "protection", NULL),
                           control_arg_uint(request, "quota_bytes", 0),
                           control_arg_bool(request, "case_insensitive"), &v, &call->error);
    fmutex_unlock(&n->changing);
    if (r < 0)
        return r;
    event_raise(LOG_INFO_, "fs-created", "the file system %s (%s) was created", v->name, v->protection);
    *ret_result = fs_json(n, v, false);
    node_volume_put(v);
    return 0;
}

int control_fs_list(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume **volumes;
    uint32_t count;
    int r = node_volumes_snapshot(call->node, &volumes, &count);
    if (r < 0)
        return control_fail_err(call, r, "the file systems cannot be listed");
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        if (volumes[i]->is_fs && volumes[i]->state != NODE_VOLUME_GONE)
            json_array_append_new(list, fs_json(call->node, volumes[i], false));
    node_volumes_release(volumes, count);
    *ret_result = list;
    return 0;
}

int control_fs_show(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    *ret_result = fs_json(call->node, v, true);
    node_volume_put(v);
    return 0;
}

/* A file system takes what the pool has; what can grow is the quota of its root. */
int control_fs_grow(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    struct show_work w = {0};
    uint64_t wanted = control_arg_uint(request, "size_bytes", 0);
    int r = node_fs_call(n, v, show_here, &w);
    if (r < 0)
        r = control_fail_err(call, r, "the quota cannot be read");
    else if (wanted != 0 && w.has_quota && w.quota.limit_bytes != 0 && wanted < w.quota.limit_bytes)
        r = control_fail(call, ERR_INVALID, "`ashlar quota set NAME / --size SIZE` sets a smaller one.",
                         "the file system %s has a larger quota already", v->name);
    else
        r = node_fs_quota_set(n, v, "/", wanted, w.quota.limit_inodes, &call->error);
    if (r == 0)
        *ret_result = fs_json(n, v, false);
    node_volume_put(v);
    return r;
}

/* ---- Access patterns ---- */

static const char *const pattern_names[] = {"concurrency", "streaming", "random"};

struct pattern_work {
    const char *path;
    enum fs_pattern pattern;
};

static int pattern_here(struct fs *fs, void *arg) may_yield
{
    const struct pattern_work *w = arg;
    struct fs_attr attr;
    int r = fs_path_find(fs, w->path, &attr);
    return r < 0 ? r : fs_pattern_set(fs, attr.ino, w->pattern);
}

int control_fs_pattern(struct control_call *call, const json_t *request, json_t **ret_result)
{
    const char *name = control_arg_string(request, "pattern", "");
    struct pattern_work w = {.path = control_arg_string(request, "path", "/")};
    while (w.pattern < ARRAY_SIZE(pattern_names) && strcmp(pattern_names[w.pattern], name) != 0)
        w.pattern++;
    if (w.pattern == ARRAY_SIZE(pattern_names))
        return control_fail(call, ERR_INVALID, "Use concurrency, streaming or random.",
                            "\"%.40s\" is not an access pattern", name);
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    int r = node_fs_call(call->node, v, pattern_here, &w);
    if (r < 0)
        r = control_fail(call, r, "", "the pattern of %s in %s cannot be set: %s", w.path, v->name,
                         error_text(r));
    else
        *ret_result = json_pack("{ss so ss}", "name", v->name, "path", control_text(w.path), "pattern", name);
    node_volume_put(v);
    return r;
}

/* ---- Quotas ---- */

int control_quota_set(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    const char *path = control_arg_string(request, "path", "/");
    int r = node_fs_quota_set(call->node, v, path, control_arg_uint(request, "limit_bytes", 0),
                              control_arg_uint(request, "limit_inodes", 0), &call->error);
    if (r == 0)
        *ret_result = json_pack("{ss so}", "name", v->name, "path", control_text(path));
    node_volume_put(v);
    return r;
}

#define QUOTAS_AT_ONCE 64u
struct list_work {
    json_t *list;
};

static int quota_add(struct fs *fs, const struct fs_quota *q, json_t *list) may_yield
{
    char path[1024];
    int r = fs_path_of(fs, q->ino, path, sizeof(path));
    if (r < 0)
        return r;
    return json_array_append_new(
               list, json_pack("{so sI sI sI sI sb}", "path", control_text(path), "limit_bytes",
                               (json_int_t)q->limit_bytes, "used_bytes", (json_int_t)q->used_bytes,
                               "limit_inodes", (json_int_t)q->limit_inodes, "used_inodes",
                               (json_int_t)q->used_inodes, "scanning", (int)q->scanning)) < 0
               ? ERR_NO_MEMORY
               : 0;
}

static int list_here(struct fs *fs, void *arg) may_yield
{
    struct list_work *w = arg;
    struct fs_quota quotas[QUOTAS_AT_ONCE];
    uint64_t after = 0;
    uint32_t count;
    int r = 0;
    do {
        r = fs_quota_list(fs, after, quotas, QUOTAS_AT_ONCE, &count);
        for (uint32_t i = 0; r == 0 && i < count; i++) {
            after = quotas[i].ino;
            r = quota_add(fs, &quotas[i], w->list);
            if (r == ERR_FS_STALE) /* removed meanwhile */
                r = 0;
        }
    } while (r == 0 && count == QUOTAS_AT_ONCE);
    return r;
}

int control_quota_list(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    struct list_work w = {.list = json_array()};
    int r = node_fs_call(call->node, v, list_here, &w);
    node_volume_put(v);
    if (r < 0) {
        json_decref(w.list);
        return control_fail_err(call, r, "the quotas cannot be listed");
    }
    *ret_result = w.list;
    return 0;
}

/* ---- Check ---- */

#define FINDINGS_MAX 1000u
struct findings {
    json_t *list;
    bool repair;
};

static void finding_add(void *ctx, const struct fs_finding *f, const char *sentence)
{
    struct findings *x = ctx;
    if (x->repair)
        event_raise(LOG_WARNING_, "fs-repair", "%s; %s", sentence, fs_finding_repair(f->kind));
    if (json_array_size(x->list) < FINDINGS_MAX)
        json_array_append_new(x->list, json_pack("{ss sI so ss}", "kind", fs_finding_name(f->kind), "ino",
                                                 (json_int_t)f->ino, "text", control_text(sentence), "repair",
                                                 fs_finding_repair(f->kind)));
}

int control_fs_check(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = fs_volume_of(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    struct findings x = {.list = json_array(), .repair = control_arg_bool(request, "repair")};
    struct fs_verify report = {.found = finding_add, .ctx = &x};
    uint64_t repaired = 0;
    fmutex_lock(&n->changing);
    int r = node_fs_check(n, v, x.repair, &report, &repaired, &call->error);
    fmutex_unlock(&n->changing);
    node_volume_put(v);
    if (r < 0) {
        json_decref(x.list);
        return r;
    }
    *ret_result = json_pack("{sI sI sI sI so}", "problems", (json_int_t)report.problems, "repaired",
                            (json_int_t)repaired, "inodes", (json_int_t)report.inodes, "names",
                            (json_int_t)report.names, "findings", x.list);
    return 0;
}
