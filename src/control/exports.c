/* SPDX-License-Identifier: Apache-2.0 */
/* The export commands. */
#include "control/control_internal.h"

#include "runtime/network.h"

#include <stdio.h>

json_t *control_export_json(struct node *n, struct node_volume *v)
{
    json_t *list = json_array();
    if (!v->export.nbd)
        return list;
    json_t *allow = json_array();
    for (uint32_t i = 0; i < v->export.allow_count; i++)
        json_array_append_new(allow, json_string(v->export.allow[i]));
    /* 0.0.0.0 and :: are where it listens, not where a client goes; a client on this machine can. */
    const char *host = n->nbd_listen;
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        host = "127.0.0.1";
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
    if (!wanted.nbd)
        return control_fail(call, ERR_CONTROL_REQUEST, "", "name a protocol: nbd");
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

int control_export(struct control_call *call, const json_t *request, json_t **ret_result)
{
    struct node_export wanted;
    int r = export_wanted(call, request, &wanted);
    return r < 0 ? r : export_change(call, request, &wanted, ret_result);
}

int control_unexport(struct control_call *call, const json_t *request, json_t **ret_result)
{
    return export_change(call, request, &(struct node_export){0}, ret_result);
}
