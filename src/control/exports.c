/* SPDX-License-Identifier: Apache-2.0 */
/* The export commands. */
#include "control/control_internal.h"

#include "runtime/network.h"

#include <stdio.h>
#include <stdlib.h>

/* 0.0.0.0 and :: are where it listens, not where a client goes; a client on this machine can. */
static const char *reachable(const char *listen)
{
    return strcmp(listen, "0.0.0.0") == 0 || strcmp(listen, "::") == 0 ? "127.0.0.1" : listen;
}

static json_t *nfs_json(struct node *n, struct node_volume *v)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->nfs_count; i++) {
        json_t *x = node_nfs_export_json(&v->nfs[i]);
        const char *host = reachable(n->nfs_listen);
        bool brackets = strchr(host, ':') != NULL;
        char mount[NFS_EXPORT_MAX + 200];
        snprintf(mount, sizeof(mount), "%s%s%s:%s", brackets ? "[" : "", host, brackets ? "]" : "",
                 v->nfs[i].as);
        json_object_set_new(x, "protocol", json_string("nfs"));
        json_object_set_new(x, "active", json_boolean(v->nfs[i].active && !v->nfs[i].away));
        json_object_set_new(x, "source", control_text(mount));
        snprintf(mount, sizeof(mount), "vers=3,port=%u,mountport=%u,proto=tcp,mountproto=tcp", n->nfs_port,
                 n->nfs_port);
        json_object_set_new(x, "mount_options", control_text(mount));
        json_array_append_new(list, x);
    }
    return list;
}

json_t *control_export_json(struct node *n, struct node_volume *v)
{
    if (v->is_fs)
        return nfs_json(n, v);
    json_t *list = json_array();
    if (!v->export.nbd)
        return list;
    json_t *allow = json_array();
    for (uint32_t i = 0; i < v->export.allow_count; i++)
        json_array_append_new(allow, json_string(v->export.allow[i]));
    const char *host = reachable(n->nbd_listen);
    char uri[200], unix_uri[NODE_PATH_MAX + 120];
    bool brackets = strchr(host, ':') != NULL;
    snprintf(uri, sizeof(uri), "nbd://%s%s%s:%u/%s", brackets ? "[" : "", host, brackets ? "]" : "",
             n->nbd_port, v->name);
    snprintf(unix_uri, sizeof(unix_uri), "nbd+unix:///%s?socket=%s/nbd.sock", v->name, n->dir);
    json_array_append_new(list,
                          json_pack("{ss sb sb so so so}", "protocol", "nbd", "read_only",
                                    (int)v->export.read_only, "active", (int)v->nbd_active, "allow", allow,
                                    "uri", control_text(uri), "unix_uri", control_text(unix_uri)));
    return list;
}

static int export_wanted(struct control_call *call, const json_t *request, struct node_export *ret)
{
    struct node_export wanted = {.nbd = control_arg_bool(request, "nbd"),
                                 .read_only = control_arg_bool(request, "read_only")};
    const json_t *allow = json_object_get(request, "allow");
    if (json_array_size(allow) > ARRAY_SIZE(wanted.allow))
        return control_fail(call, ERR_INVALID, "Use wider networks.", "at most %zu networks can be allowed",
                            ARRAY_SIZE(wanted.allow));
    for (size_t i = 0; i < json_array_size(allow); i++) {
        const char *cidr = json_string_value(json_array_get(allow, i));
        struct network_list acl;
        if (network_list_parse(cidr, &acl) < 0 || acl.count != 1)
            return control_fail(call, ERR_INVALID, "Write it as 10.0.0.0/8, 192.168.1.7 or fd00::/8.",
                                "\"%.60s\" is not an address or network", cidr);
        snprintf(wanted.allow[wanted.allow_count++], sizeof(wanted.allow[0]), "%s", cidr);
    }
    *ret = wanted;
    return 0;
}

static int export_change(struct control_call *call, const json_t *request, const struct node_export *wanted,
                         json_t **ret_result) may_yield
{
    struct node *n = call->node;
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    int r = 0;
    fmutex_lock(&n->changing);
    if (!wanted->nbd && !v->export.nbd)
        r = control_fail(call, ERR_NOT_FOUND, "See `ashlar volume list`.", "the volume %s is not exported",
                         v->name);
    else
        r = node_export_set(n, v, wanted, &call->error);
    fmutex_unlock(&n->changing);
    if (r == 0)
        *ret_result = control_volume_json(n, v, false);
    node_volume_put(v);
    return r;
}

/* ---- NFS ---- */

/* A path as people write it: one '/' between names, none at the end. False: not absolute, or too long. */
static bool path_tidy(const char *path, char *out, size_t size)
{
    size_t len = 0;
    if (path[0] != '/')
        return false;
    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '/' && (p[1] == '/' || p[1] == '\0'))
            continue;
        if (len + 1 >= size)
            return false;
        out[len++] = *p;
    }
    if (len == 0)
        out[len++] = '/';
    out[len] = '\0';
    return true;
}

static int nfs_wanted(struct control_call *call, const json_t *request, const struct node_volume *v,
                      struct node_nfs_export *ret)
{
    const json_t *clients = json_object_get(request, "clients");
    const char *squash = control_arg_string(request, "squash", "root"),
               *path = control_arg_string(request, "path", "/");
    char as[VOLUME_NAME_MAX + 2 + 1024];
    if (!path_tidy(path, ret->path, sizeof(ret->path)))
        return control_fail(call, ERR_INVALID, "As --path /projects/film.",
                            "\"%.60s\" is not an absolute path", path);
    snprintf(as, sizeof(as), "/%s%s", v->name, strcmp(ret->path, "/") == 0 ? "" : ret->path);
    if (!path_tidy(control_arg_string(request, "as", as), ret->as, sizeof(ret->as)) ||
        strcmp(ret->as, "/") == 0)
        return control_fail(call, ERR_INVALID, "As --as /film; at most 255 bytes.",
                            "\"%.60s\" is not a path that clients can mount",
                            control_arg_string(request, "as", as));
    if (json_array_size(clients) > NODE_NFS_CLIENTS_MAX)
        return control_fail(call, ERR_INVALID, "Use wider networks.", "at most %u clients can be named",
                            NODE_NFS_CLIENTS_MAX);
    for (size_t i = 0; i < json_array_size(clients); i++)
        snprintf(ret->clients[ret->client_count++], sizeof(ret->clients[0]), "%s",
                 json_string_value(json_array_get(clients, i)));
    for (ret->squash = NFS_SQUASH_ROOT; ret->squash <= NFS_SQUASH_ALL; ret->squash++)
        if (strcmp(squash, node_nfs_squash_name(ret->squash)) == 0)
            break;
    if (ret->squash > NFS_SQUASH_ALL)
        return control_fail(call, ERR_INVALID, "Use root, none or all.", "\"%.20s\" squashes nobody", squash);
    ret->read_only = control_arg_bool(request, "read_only");
    ret->secure = control_arg_bool(request, "secure");
    ret->anon_uid = (uint32_t)control_arg_uint(request, "anon_uid", 65534);
    ret->anon_gid = (uint32_t)control_arg_uint(request, "anon_gid", 65534);
    return 0;
}

static int nfs_export(struct control_call *call, const json_t *request, struct node_volume *v) may_yield
{
    struct node_nfs_export *wanted = calloc(1, sizeof(*wanted)); /* large for a fiber's stack */
    if (wanted == NULL)
        return control_fail_err(call, ERR_NO_MEMORY, "not exported");
    int r = nfs_wanted(call, request, v, wanted);
    if (r == 0)
        r = node_nfs_set(call->node, v, wanted, &call->error);
    free(wanted);
    return r;
}

int control_export(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_export wanted;
    bool nbd = control_arg_bool(request, "nbd"), nfs = control_arg_bool(request, "nfs");
    if (nbd == nfs)
        return control_fail(call, ERR_CONTROL_REQUEST, "", "name a protocol: nbd, or nfs");
    if (nbd) {
        int r = export_wanted(call, request, &wanted);
        return r < 0 ? r : export_change(call, request, &wanted, ret_result);
    }
    struct node *n = call->node;
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    fmutex_lock(&n->changing);
    int r = 0;
    if (!v->is_fs)
        r = control_fail(call, ERR_INVALID, "Use --nbd; `ashlar fs create` makes file systems.",
                         "%s is a block volume", v->name);
    else if (v->state != NODE_VOLUME_OPEN)
        r = control_fail(call, ERR_NODE_NOT_READY, "See `ashlar status`.", "%s is %s", v->name,
                         node_volume_state_name(v));
    else
        r = nfs_export(call, request, v);
    fmutex_unlock(&n->changing);
    if (r == 0)
        *ret_result = control_volume_json(n, v, false);
    node_volume_put(v);
    return r;
}

int control_unexport(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node *n = call->node;
    struct node_volume *v = control_volume(call, request);
    if (v == NULL)
        return ERR_VOLUME_NOT_FOUND;
    if (!v->is_fs) {
        node_volume_put(v);
        return export_change(call, request, &(struct node_export){0}, ret_result);
    }
    char as[NFS_EXPORT_MAX + 1];
    const char *given = control_arg_string(request, "as", NULL);
    fmutex_lock(&n->changing);
    bool found = given == NULL && v->nfs_count > 0;
    if (given != NULL && path_tidy(given, as, sizeof(as)))
        for (uint32_t i = 0; i < v->nfs_count; i++)
            found = found || strcmp(v->nfs[i].as, as) == 0;
    if (v->state == NODE_VOLUME_DELETING || v->state == NODE_VOLUME_GONE)
        found = false; /* its exports go with it */
    int r = found ? node_nfs_unset(n, v, given != NULL ? as : NULL, &call->error)
                  : control_fail(call, ERR_NOT_FOUND, "See `ashlar fs show`.", "%s is not exported%s%.60s",
                                 v->name, given != NULL ? " as " : "", given != NULL ? given : "");
    fmutex_unlock(&n->changing);
    if (r == 0)
        *ret_result = control_volume_json(n, v, false);
    node_volume_put(v);
    return r;
}
