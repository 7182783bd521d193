/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is offered over NFS: any number of directories of a file system, each under a path of its own.
 *
 * Record: /nfs/VOLUME, a list of {"as", "path", "clients", "read_only", "squash", "anon_uid", "anon_gid",
 * "secure"}. Nobody but this node writes it. Clients may be named by host names, which are looked up when an
 * export is registered.
 */
#include "control/node_internal.h"

#include "runtime/network.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char *const squash_names[] = {
    [NFS_SQUASH_ROOT] = "root", [NFS_SQUASH_NONE] = "none", [NFS_SQUASH_ALL] = "all"};

const char *node_nfs_squash_name(enum nfs_squash squash)
{
    assert((size_t)squash < ARRAY_SIZE(squash_names));
    return squash_names[squash];
}

/* ---- The record ---- */

json_t *node_nfs_export_json(const struct node_nfs_export *x)
{
    json_t *clients = json_array();
    for (uint32_t i = 0; i < x->client_count; i++)
        json_array_append_new(clients, control_text(x->clients[i]));
    return json_pack("{so so so sb ss sI sI sb}", "as", control_text(x->as), "path", control_text(x->path),
                     "clients", clients, "read_only", (int)x->read_only, "squash", squash_names[x->squash],
                     "anon_uid", (json_int_t)x->anon_uid, "anon_gid", (json_int_t)x->anon_gid, "secure",
                     (int)x->secure);
}

static char *exports_encode(const struct node_volume *v)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->nfs_count; i++)
        json_array_append_new(list, node_nfs_export_json(&v->nfs[i]));
    char *text = list != NULL ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    return text;
}

static bool text_take(const json_t *o, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (text == NULL || strlen(text) >= size)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool id_take(const json_t *o, const char *key, uint32_t *ret)
{
    const json_t *number = json_object_get(o, key);
    json_int_t value = json_integer_value(number);
    if (!json_is_integer(number) || value < 0 || value > UINT32_MAX)
        return false;
    *ret = (uint32_t)value;
    return true;
}

static int export_decode(const json_t *o, struct node_nfs_export *ret)
{
    struct node_nfs_export x = {0};
    const json_t *clients = json_object_get(o, "clients");
    const char *squash = json_string_value(json_object_get(o, "squash"));
    if (!text_take(o, "as", x.as, sizeof(x.as)) || !text_take(o, "path", x.path, sizeof(x.path)) ||
        x.as[0] != '/' || x.path[0] != '/' || !id_take(o, "anon_uid", &x.anon_uid) ||
        !id_take(o, "anon_gid", &x.anon_gid) || !json_is_boolean(json_object_get(o, "read_only")) ||
        !json_is_boolean(json_object_get(o, "secure")) || !json_is_array(clients) ||
        json_array_size(clients) > NODE_NFS_CLIENTS_MAX || squash == NULL)
        return ERR_COORD_CORRUPT;
    for (; x.client_count < json_array_size(clients); x.client_count++) {
        const char *client = json_string_value(json_array_get(clients, x.client_count));
        if (client == NULL || strlen(client) >= sizeof(x.clients[0]) || client[0] == '\0')
            return ERR_COORD_CORRUPT;
        snprintf(x.clients[x.client_count], sizeof(x.clients[0]), "%s", client);
    }
    while ((size_t)x.squash < ARRAY_SIZE(squash_names) && strcmp(squash, squash_names[x.squash]) != 0)
        x.squash++;
    if ((size_t)x.squash == ARRAY_SIZE(squash_names))
        return ERR_COORD_CORRUPT;
    x.read_only = json_is_true(json_object_get(o, "read_only"));
    x.secure = json_is_true(json_object_get(o, "secure"));
    *ret = x;
    return 0;
}

int node_nfs_decode(const char *text, struct node_nfs_export **ret, uint32_t *ret_count)
{
    json_t *list = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    size_t count = json_array_size(list);
    struct node_nfs_export *exports = NULL;
    int r = json_is_array(list) && count <= NODE_NFS_EXPORTS_MAX ? 0 : ERR_COORD_CORRUPT;
    if (r == 0) {
        exports = calloc(count + 1, sizeof(*exports));
        r = exports != NULL ? 0 : ERR_NO_MEMORY;
    }
    for (size_t i = 0; r == 0 && i < count; i++)
        r = export_decode(json_array_get(list, i), &exports[i]);
    json_decref(list);
    if (r < 0) {
        free(exports);
        return r;
    }
    *ret = exports;
    *ret_count = (uint32_t)count;
    return 0;
}

static int exports_record(struct node *n, struct node_volume *v) may_yield
{
    char key[NODE_KEY_SIZE];
    node_key("nfs", v->id, key);
    if (v->nfs_count == 0)
        return v->nfs_revision != 0 ? node_record_put(n, key, NULL, &v->nfs_revision) : 0;
    char *text = exports_encode(v);
    if (text == NULL)
        return ERR_NO_MEMORY;
    int r = node_record_put(n, key, text, &v->nfs_revision);
    free(text);
    return r;
}

void node_nfs_load(struct node *n, struct node_volume *v)
{
    char key[NODE_KEY_SIZE];
    char *text = NULL;
    node_key("nfs", v->id, key);
    int r = coord_get(n->coord, key, &text, &v->nfs_revision);
    if (r == 0 && node_nfs_decode(text, &v->nfs, &v->nfs_count) < 0)
        event_raise(LOG_ERROR_, "record-damaged",
                    "the record %s cannot be understood; %s is not exported over NFS", key, v->name);
    free(text);
}

void node_nfs_forget(struct node *n, struct node_volume *v)
{
    v->nfs_count = 0;
    if (exports_record(n, v) < 0)
        LOG_WARNING("the record of NFS exports of the deleted file system %s is left behind", v->name);
}

/* ---- Registering ---- */

struct names_work {
    const struct node_nfs_export *x;
    char *out; /* addresses and networks, with commas between them */
    size_t size, len;
    const char *unknown;
};

static bool names_add(struct names_work *w, const char *text)
{
    int n = snprintf(w->out + w->len, w->size - w->len, "%s%s", w->len > 0 ? "," : "", text);
    if (n < 0 || (size_t)n >= w->size - w->len)
        return false;
    w->len += (size_t)n;
    return true;
}

/* On a helper thread: name servers may take their time. */
static int names_look_up(void *arg)
{
    struct names_work *w = arg;
    for (uint32_t i = 0; i < w->x->client_count; i++) {
        const char *client = w->x->clients[i];
        struct network_list networks;
        struct addrinfo *list = NULL;
        if (network_list_parse(client, &networks) == 0) {
            if (!names_add(w, client))
                return ERR_OUT_OF_RANGE;
            continue;
        }
        if (getaddrinfo(client, NULL, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &list) != 0) {
            w->unknown = client;
            return ERR_NOT_FOUND;
        }
        for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
            char ip[64];
            if (getnameinfo(a->ai_addr, a->ai_addrlen, ip, sizeof(ip), NULL, 0, NI_NUMERICHOST) == 0 &&
                !names_add(w, ip)) {
                freeaddrinfo(list);
                return ERR_OUT_OF_RANGE;
            }
        }
        freeaddrinfo(list);
    }
    return 0;
}

struct find_work {
    const char *path;
    struct fs_attr attr;
};

static int find_here(struct fs *fs, void *arg) may_yield
{
    struct find_work *w = arg;
    int r = fs_path_find(fs, w->path, &w->attr);
    if (r == 0 && !S_ISDIR(w->attr.mode))
        r = ERR_FS_NOT_DIRECTORY;
    return r;
}

#define CLIENTS_TEXT_SIZE 8192u

/* While its volume is not open: with the same rules, for clients to be told to try again. */
static int export_register(struct node *n, struct node_volume *v, struct node_nfs_export *x,
                           struct control_error *e) may_yield
{
    bool here = v->state == NODE_VOLUME_OPEN;
    struct find_work find = {.path = x->path};
    int r = here ? node_fs_call(n, v, find_here, &find) : 0;
    if (r < 0) {
        control_error_set(e, r, "Name a directory of the file system.", "%s in %s: %s", x->path, v->name,
                          error_text(r));
        return r;
    }
    struct names_work names = {.x = x, .out = calloc(1, CLIENTS_TEXT_SIZE), .size = CLIENTS_TEXT_SIZE};
    r = names.out != NULL ? reactor_block(names_look_up, &names) : ERR_NO_MEMORY;
    if (r < 0)
        control_error_set(
            e, r, "Write clients as 10.0.0.0/8, 192.168.1.7, fd00::/8, or a host name that this node knows.",
            "the client \"%s\" is not known", names.unknown != NULL ? names.unknown : "");
    if (r == 0) {
        struct nfs_export_options o = {.path = x->as,
                                       .fs = here ? v->fs : NULL,
                                       .root_ino = find.attr.ino,
                                       .read_only = x->read_only,
                                       .squash = x->squash,
                                       .anon_uid = x->anon_uid,
                                       .anon_gid = x->anon_gid,
                                       .secure = x->secure,
                                       .clients = names.out};
        r = x->active ? nfs_server_set_export(n->nfs, &o) : nfs_server_add_export(n->nfs, &o);
        if (r < 0)
            control_error_set(e, r, r == ERR_EXISTS ? "Give it another path with --as." : "",
                              "%s cannot be exported as %s: %s", v->name, x->as, error_text(r));
    }
    free(names.out);
    if (r == 0) {
        x->active = true;
        x->away = !here;
    }
    return r;
}

static void export_withdraw(struct node *n, struct node_nfs_export *x) may_yield
{
    if (!x->active)
        return;
    x->active = x->away = false;
    int r = nfs_server_remove_export(n->nfs, x->as);
    assert(r == 0);
}

int node_nfs_start(struct node *n, struct node_volume *v)
{
    int result = 0;
    for (uint32_t i = 0; n->nfs != NULL && v->state == NODE_VOLUME_OPEN && i < v->nfs_count; i++) {
        struct control_error e;
        bool served = v->nfs[i].active && !v->nfs[i].away;
        int r = served ? 0 : export_register(n, v, &v->nfs[i], &e);
        if (r < 0) {
            event_raise(LOG_ERROR_, "export-failed", "%s", e.text);
            result = r;
        }
    }
    return result;
}

/* A client that hears of a stale handle gives its mount up, so an export stays known without its volume. */
void node_nfs_pause(struct node *n, struct node_volume *v)
{
    assert(v->state != NODE_VOLUME_OPEN);
    for (uint32_t i = 0; n->nfs != NULL && i < v->nfs_count; i++) {
        struct node_nfs_export *x = &v->nfs[i];
        struct control_error e;
        if (x->active && !x->away) {
            int r = nfs_server_pause_export(n->nfs, x->as);
            x->away = r == 0;
            if (r < 0) /* no memory */
                export_withdraw(n, x);
        } else if (!x->active && v->state == NODE_VOLUME_FAILED && export_register(n, v, x, &e) < 0) {
            LOG_WARNING("clients of %s are not told to wait: %s", x->as, e.text);
        }
    }
}

struct nfs_server *node_nfs_leave(struct node *n)
{
    struct nfs_server *s = n->nfs;
    n->nfs = NULL;
    LIST_FOREACH (&n->volumes, it) {
        struct node_volume *v = CONTAINER_OF(it, struct node_volume, link);
        for (uint32_t i = 0; i < v->nfs_count; i++)
            v->nfs[i].active = v->nfs[i].away = false;
    }
    return s;
}

void node_nfs_stop(struct node *n, struct node_volume *v)
{
    for (uint32_t i = 0; i < v->nfs_count; i++)
        export_withdraw(n, &v->nfs[i]);
}

/* ---- Changing ---- */

static struct node_nfs_export *export_find(struct node_volume *v, const char *as)
{
    for (uint32_t i = 0; i < v->nfs_count; i++)
        if (strcmp(v->nfs[i].as, as) == 0)
            return &v->nfs[i];
    return NULL;
}

int node_nfs_set(struct node *n, struct node_volume *v, const struct node_nfs_export *wanted,
                 struct control_error *e)
{
    struct node_nfs_export *old = export_find(v, wanted->as);
    if (n->nfs == NULL) {
        control_error_set(e, ERR_NODE_NOT_READY, "Give ashlard a free port with --nfs-port.",
                          "this node does not serve NFS: its port was in use");
        return ERR_NODE_NOT_READY;
    }
    if (old == NULL && v->nfs_count == NODE_NFS_EXPORTS_MAX) {
        control_error_set(e, ERR_INVALID, "Take one away with `ashlar unexport`.",
                          "a file system can have %u NFS exports", NODE_NFS_EXPORTS_MAX);
        return ERR_INVALID;
    }
    struct node_nfs_export *list = calloc(v->nfs_count + 1, sizeof(*list)), *before = v->nfs;
    if (list == NULL) {
        control_error_set(e, ERR_NO_MEMORY, "", "%s", error_text(ERR_NO_MEMORY));
        return ERR_NO_MEMORY;
    }
    uint32_t before_count = v->nfs_count, at = old != NULL ? (uint32_t)(old - v->nfs) : v->nfs_count;
    if (v->nfs_count > 0)
        memcpy(list, v->nfs, v->nfs_count * sizeof(*list));
    list[at] = *wanted;
    list[at].active = old != NULL && old->active;
    list[at].away = old != NULL && old->away;
    v->nfs = list;
    v->nfs_count = MAX(v->nfs_count, at + 1);
    /* First tried, then recorded: what cannot be served is not remembered. */
    struct node_nfs_export *now = &v->nfs[at];
    int r = export_register(n, v, now, e);
    if (r == 0)
        r = exports_record(n, v);
    else
        goto back;
    if (r == 0) {
        free(before);
        return 0;
    }
    control_error_set(e, r, "", "the exports of %s cannot be recorded: %s", v->name, error_text(r));
    if (old == NULL) {
        export_withdraw(n, now);
    } else {
        struct control_error ignored;
        old->active = true; /* by what was just registered */
        (void)export_register(n, v, old, &ignored);
    }
back:
    free(v->nfs);
    v->nfs = before;
    v->nfs_count = before_count;
    return r;
}

int node_nfs_unset(struct node *n, struct node_volume *v, const char *as, struct control_error *e)
{
    uint32_t kept = 0, before_count = v->nfs_count;
    struct node_nfs_export *before = v->nfs, *list = calloc(v->nfs_count + 1, sizeof(*list));
    if (list == NULL) {
        control_error_set(e, ERR_NO_MEMORY, "", "%s", error_text(ERR_NO_MEMORY));
        return ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < v->nfs_count; i++) {
        if (as == NULL || strcmp(v->nfs[i].as, as) == 0)
            export_withdraw(n, &v->nfs[i]);
        else
            list[kept++] = v->nfs[i];
    }
    v->nfs = list;
    v->nfs_count = kept;
    int r = exports_record(n, v);
    if (r == 0) {
        free(before);
        return 0;
    }
    free(list);
    v->nfs = before;
    v->nfs_count = before_count;
    control_error_set(e, r, "", "the exports of %s cannot be recorded: %s", v->name, error_text(r));
    if (node_nfs_start(n, v) < 0)
        LOG_WARNING("not all exports of %s are there again", v->name);
    return r;
}
