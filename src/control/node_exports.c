/* SPDX-License-Identifier: Apache-2.0 */
/* What is offered to clients: kept in the coordinator, registered with the protocols while a volume is open.
 */
#include "control/node_internal.h"

#include "runtime/network.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- The record ---- */

int node_export_encode(const struct node_export *x, char **ret_text)
{
    json_t *allow = json_array();
    for (uint32_t i = 0; i < x->allow_count; i++)
        json_array_append_new(allow, json_string(x->allow[i]));
    json_t *o = json_pack("{s{sbso}}", "nbd", "read_only", (int)x->read_only, "allow", allow);
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text == NULL)
        return ERR_NO_MEMORY;
    *ret_text = text;
    return 0;
}

static int nbd_decode(const json_t *nbd, struct node_export *x)
{
    const json_t *allow = json_object_get(nbd, "allow");
    if (!json_is_object(nbd) || !json_is_boolean(json_object_get(nbd, "read_only")) ||
        !json_is_array(allow) || json_array_size(allow) > ARRAY_SIZE(x->allow))
        return ERR_COORD_CORRUPT;
    x->nbd = true;
    x->read_only = json_is_true(json_object_get(nbd, "read_only"));
    for (size_t i = 0; i < json_array_size(allow); i++) {
        const char *cidr = json_string_value(json_array_get(allow, i));
        struct network_list acl;
        /* One that is not understood must not become "everybody". */
        if (cidr == NULL || strlen(cidr) >= sizeof(x->allow[0]) || network_list_parse(cidr, &acl) < 0 ||
            acl.count != 1)
            return ERR_COORD_CORRUPT;
        snprintf(x->allow[x->allow_count++], sizeof(x->allow[0]), "%s", cidr);
    }
    return 0;
}

int node_export_decode(const char *text, struct node_export *ret)
{
    struct node_export x = {0};
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *nbd = json_object_get(o, "nbd");
    int r = json_is_object(o) ? 0 : ERR_COORD_CORRUPT;
    if (r == 0 && nbd != NULL)
        r = nbd_decode(nbd, &x);
    json_decref(o);
    if (r == 0)
        *ret = x;
    return r;
}

static int export_record(struct node *n, struct node_volume *v) may_yield
{
    char key[NODE_KEY_SIZE];
    char *text = NULL;
    node_key("exports", v->id, key);
    if (!v->export.nbd)
        return v->export_revision != 0 ? node_record_put(n, key, NULL, &v->export_revision) : 0;
    int r = node_export_encode(&v->export, &text);
    if (r < 0)
        return r;
    r = node_record_put(n, key, text, &v->export_revision);
    free(text);
    return r;
}

/* ---- Registering ---- */

static int nbd_start(struct node *n, struct node_volume *v) may_yield
{
    if (!v->export.nbd || v->nbd_active || n->nbd == NULL || v->state != NODE_VOLUME_OPEN)
        return 0;
    char allow[ARRAY_SIZE(v->export.allow) * (sizeof(v->export.allow[0]) + 2)] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < v->export.allow_count; i++)
        len +=
            (size_t)snprintf(allow + len, sizeof(allow) - len, "%s%s", i > 0 ? ", " : "", v->export.allow[i]);
    struct nbd_export_options o = {.name = v->name,
                                   .description = v->protection,
                                   .device = v->device,
                                   .read_only = v->export.read_only,
                                   .allow = allow};
    int r = nbd_server_add_export(n->nbd, &o);
    v->nbd_active = r == 0;
    return r;
}

static void nbd_stop(struct node *n, struct node_volume *v) may_yield
{
    if (!v->nbd_active)
        return;
    v->nbd_active = false;
    int r = nbd_server_remove_export(n->nbd, v->name);
    assert(r == 0);
}

/* Mounts on this machine need no export: the socket's permissions say who may. */
static int fuse_start(struct node *n, struct node_volume *v) may_yield
{
    if (v->fuse_active || n->fuse == NULL || v->state != NODE_VOLUME_OPEN)
        return 0;
    int r = fuse_server_add_fs(n->fuse, v->name, v->fs);
    v->fuse_active = r == 0;
    return r;
}

static void fuse_stop(struct node *n, struct node_volume *v) may_yield
{
    if (!v->fuse_active)
        return;
    v->fuse_active = false;
    int r = fuse_server_remove_fs(n->fuse, v->name);
    assert(r == 0);
}

int node_export_start(struct node *n, struct node_volume *v)
{
    if (!v->is_fs)
        return nbd_start(n, v);
    int r = fuse_start(n, v), nfs = node_nfs_start(n, v);
    return r < 0 ? r : nfs;
}

void node_export_stop(struct node *n, struct node_volume *v)
{
    nbd_stop(n, v);
    node_nfs_stop(n, v);
    fuse_stop(n, v);
}

void node_export_pause(struct node *n, struct node_volume *v)
{
    nbd_stop(n, v);
    node_nfs_pause(n, v);
    fuse_stop(n, v);
}

int node_export_set(struct node *n, struct node_volume *v, const struct node_export *wanted,
                    struct control_error *e)
{
    if (v->state != NODE_VOLUME_OPEN && wanted->nbd) {
        control_error_set(e, ERR_NODE_NOT_READY, "See `ashlar status`.", "the volume %s is %s", v->name,
                          node_volume_state_name(v));
        return ERR_NODE_NOT_READY;
    }
    if (v->is_fs) {
        control_error_set(e, ERR_INVALID, "Use --nfs, or mount it here: ashlar mount NAME DIR.",
                          "%s is a file system, not a block device", v->name);
        return ERR_INVALID;
    }
    struct node_export before = v->export;
    v->export = *wanted;
    int r = export_record(n, v);
    if (r < 0) {
        v->export = before;
        control_error_set(e, r, "", "the export of %s cannot be recorded: %s", v->name, error_text(r));
        return r;
    }
    /* The same again disturbs nobody; other terms hold for the clients that are there, too. */
    if (v->nbd_active && memcmp(&before, wanted, sizeof(before)) == 0)
        return 0;
    nbd_stop(n, v);
    r = nbd_start(n, v);
    if (r < 0)
        control_error_set(e, r, "See `ashlar status`.", "the volume %s cannot be exported: %s", v->name,
                          error_text(r));
    return r;
}

/* ---- What clients see ---- */

struct stats_work {
    const struct block_device *device;
    uint32_t queue;
    struct histogram *read, *write, *flush;
};

static int stats_here(struct volume *volume, void *arg)
{
    struct stats_work *w = arg;
    if (w->device == NULL) /* a file system: it has statistics of its own */
        return 0;
    for (enum block_op op = 0; op < BLOCK_OP_COUNT; op++)
        w->queue += (uint32_t)block_stats(w->device, op)->in_flight;
    *w->read = block_stats(w->device, BLOCK_OP_READ)->latency;
    *w->write = block_stats(w->device, BLOCK_OP_WRITE)->latency;
    *w->flush = block_stats(w->device, BLOCK_OP_FLUSH)->latency;
    return 0;
}

void node_export_stats(struct node *n, struct node_volume *v, uint32_t *ret_queue, struct histogram *ret_read,
                       struct histogram *ret_write, struct histogram *ret_flush)
{
    struct histogram read = {0}, write = {0}, flush = {0};
    struct stats_work w = {.device = v->device, .read = &read, .write = &write, .flush = &flush};
    if (node_volume_call(n, v, stats_here, &w) < 0)
        w.queue = 0;
    *ret_queue = w.queue;
    *ret_read = read;
    *ret_write = write;
    *ret_flush = flush;
}
