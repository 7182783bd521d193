/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports. Home has the list; every shard has a table of its own of the same structures, by the tag that
 * handles carry, so that a call finds its export without asking anybody. What an export says never changes:
 * other rules make another structure of the same tag.
 *
 * Invariants
 *  E1  an export is freed only when no table has it and nobody uses it: publishing visits every shard, and
 *      who found it in a table has counted himself as a user before anything else could run there;
 *  E2  changes of the registry are made one after the other (server->registry), since they wait for shards;
 *  E3  the tag is the path's hash: handles are good again when the same path is exported again.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/checksum.h"
#include "runtime/error.h"

#include <stdlib.h>
#include <sys/stat.h>

#define RELEASE_POLL (1 * NSEC_PER_MSEC)
#define MEMORY_POLL  (10 * NSEC_PER_MSEC)

/* ---- Tables ---- */

static uint32_t tag_of(const char *path)
{
    uint64_t h = hash64(path, strlen(path), 0);
    return (uint32_t)(h ^ h >> 32);
}

static struct nfs_export *table_find(const struct nfs_shard *shard, uint32_t tag)
{
    if (shard->table_size == 0)
        return NULL;
    for (uint32_t i = tag & (shard->table_size - 1);; i = (i + 1) & (shard->table_size - 1)) {
        struct nfs_export *e = shard->table[i];
        if (e == NULL || e->tag == tag)
            return e;
    }
}

struct nfs_export *nfs_export_hold(struct nfs_shard *shard, uint32_t tag)
{
    struct nfs_export *e = table_find(shard, tag);
    if (e != NULL)
        __atomic_fetch_add(&e->uses, 1, __ATOMIC_ACQUIRE);
    return e;
}

void nfs_export_release(struct nfs_export *e)
{
    uint32_t before = __atomic_fetch_sub(&e->uses, 1, __ATOMIC_RELEASE);
    assert(before > 0);
}

struct publish {
    struct nfs_shard *shard;
    struct nfs_export **table;
    uint32_t size;
};

static int publish_there(void *arg)
{
    struct publish *p = arg;
    struct nfs_export **old = p->shard->table;
    p->shard->table = p->table;
    p->shard->table_size = p->size;
    p->table = old;
    return 0;
}

static void table_fill(const struct nfs_server *s, struct nfs_export **table, uint32_t size)
{
    LIST_FOREACH (&s->exports, l) {
        struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        uint32_t i = e->tag & (size - 1);
        while (table[i] != NULL)
            i = (i + 1) & (size - 1);
        table[i] = e;
    }
}

/* Every shard's table says what the list says. Waits for memory, since a removal cannot fail. */
static void publish(struct nfs_server *s) may_yield
{
    uint32_t size = 16;
    while (size < 2 * s->export_count)
        size *= 2;
    fiber_shield();
    LIST_FOREACH (&s->shards, l) {
        struct publish p = {.shard = CONTAINER_OF(l, struct nfs_shard, link), .size = size};
        while ((p.table = calloc(size, sizeof(struct nfs_export *))) == NULL) {
            int slept = fiber_sleep(MEMORY_POLL);
            assert(slept == 0);
        }
        table_fill(s, p.table, size);
        int err = reactor_call(p.shard->reactor, publish_there, &p);
        assert(err == 0);
        free(p.table);
    }
    fiber_unshield();
}

/* ---- Who may ---- */

bool nfs_export_visible(const struct nfs_export *e, const struct nfs_peer *peer)
{
    return peer->local || network_list_contains(&e->clients, peer->address);
}

bool nfs_export_port_allowed(const struct nfs_export *e, const struct nfs_peer *peer)
{
    return !e->secure || peer->local || (peer->port > 0 && peer->port < 1024);
}

void nfs_export_cred(const struct nfs_export *e, const struct rpc_credential *c, struct fs_cred *ret)
{
    ret->trusted = false;
    ret->group_count = 0;
    ret->uid = e->anon_uid;
    ret->gid = e->anon_gid;
    if (c->flavor != RPC_AUTH_SYS || e->squash == NFS_SQUASH_ALL)
        return;
    bool root = e->squash == NFS_SQUASH_ROOT;
    if (!root || c->uid != 0)
        ret->uid = c->uid;
    if (!root || c->gid != 0)
        ret->gid = c->gid;
    static_assert(RPC_GROUPS_MAX <= FS_GROUPS_MAX, "all groups fit");
    for (uint32_t i = 0; i < c->group_count; i++)
        ret->groups[i] = root && c->groups[i] == 0 ? e->anon_gid : c->groups[i];
    ret->group_count = c->group_count;
}

void nfs_export_handle(const struct nfs_export *e, uint64_t ino, uint32_t generation, struct nfs_handle *ret)
{
    struct nfs_handle_fields f = {
        .export_tag = e->tag, .volume_tag = e->volume_tag, .ino = ino, .generation = generation};
    nfs_handle_make(&e->key, &f, ret);
}

/* ---- The registry ---- */

static struct nfs_export *registry_find(const struct nfs_server *s, const char *path)
{
    LIST_FOREACH (&s->exports, l) {
        struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        if (strcmp(e->path, path) == 0)
            return e;
    }
    return NULL;
}

struct nfs_export *nfs_export_find(struct nfs_server *s, const char *path, const struct nfs_peer *peer)
{
    struct nfs_export *best = NULL;
    assert(reactor_current() == s->home);
    LIST_FOREACH (&s->exports, l) {
        struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        if (strncmp(e->path, path, e->path_len) != 0)
            continue;
        if (path[e->path_len] != '\0' && path[e->path_len] != '/')
            continue;
        if (nfs_export_visible(e, peer) && (best == NULL || e->path_len > best->path_len))
            best = e;
    }
    return best;
}

static bool path_valid(const char *path)
{
    size_t len = strlen(path);
    if (len < 2 || len > NFS_EXPORT_MAX || path[0] != '/')
        return false;
    for (const char *p = path; *p != '\0';) {
        p++; /* the slash */
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
    }
    return true;
}

/* What only the file system's reactor can tell. */
struct examine {
    struct nfs_export *export;
};

static int examine_there(void *arg) may_yield
{
    struct nfs_export *e = ((struct examine *)arg)->export;
    struct fs_request rq = {.cred.trusted = true};
    struct fs_attr attr;
    int err = fs_getattr(e->fs, &rq, e->root_ino, 0, &attr);
    if (err != 0)
        return err;
    if ((attr.mode & S_IFMT) != S_IFDIR)
        return ERR_INVALID;
    e->root_generation = attr.generation;
    struct uuid id = volume_get_record(fs_volume(e->fs))->id;
    struct be64 tag;
    memcpy(&tag, id.b, sizeof(tag));
    e->volume_tag = be64_get(tag);
    nfs_handle_key_init(&e->key, fs_handle_secret(e->fs));
    return 0;
}

static void export_free(struct nfs_export *e)
{
    free(e->clients_text);
    free(e);
}

static int export_new(struct nfs_server *s, const struct nfs_export_options *o, struct nfs_export **ret)
    may_yield
{
    if (!path_valid(o->path))
        return ERR_INVALID;
    struct nfs_export *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return ERR_NO_MEMORY;
    list_init(&e->link);
    e->path_len = (uint32_t)strlen(o->path);
    memcpy(e->path, o->path, e->path_len);
    e->tag = tag_of(o->path);
    e->fs = o->fs;
    e->root_ino = o->root_ino != 0 ? o->root_ino : FS_INO_ROOT;
    e->read_only = o->read_only;
    e->secure = o->secure;
    e->squash = o->squash;
    e->anon_uid = o->anon_uid;
    e->anon_gid = o->anon_gid;
    const char *clients = o->clients != NULL ? o->clients : "";
    int err = network_list_parse(clients, &e->clients);
    if (err == 0 && (e->clients_text = strdup(clients)) == NULL)
        err = ERR_NO_MEMORY;
    if (err == 0)
        err = nfs_shard_get(s, o->fs != NULL ? fs_reactor(o->fs) : s->home, &e->shard);
    struct examine x = {.export = e};
    if (err == 0 && e->fs != NULL)
        err = reactor_call(e->shard->reactor, examine_there, &x);
    if (err != 0) {
        export_free(e);
        return err;
    }
    *ret = e;
    return 0;
}

/* No table has it any more: waits for its users (E1). */
static void export_retire(struct nfs_export *e) may_yield
{
    fiber_shield();
    while (__atomic_load_n(&e->uses, __ATOMIC_ACQUIRE) > 0) {
        int err = fiber_sleep(RELEASE_POLL);
        assert(err == 0);
    }
    fiber_unshield();
}

static bool tag_taken(const struct nfs_server *s, const struct nfs_export *n)
{
    LIST_FOREACH (&s->exports, l) {
        const struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        if (e->tag == n->tag)
            return true;
    }
    return false;
}

/* With the registry held. */
static int registry_add(struct nfs_server *s, const struct nfs_export_options *o) may_yield
{
    struct nfs_export *e;
    if (s->stopping)
        return ERR_SHUTDOWN;
    if (registry_find(s, o->path) != NULL)
        return ERR_EXISTS;
    int err = export_new(s, o, &e);
    if (err != 0)
        return err;
    if (tag_taken(s, e)) { /* two paths of one hash: one in four thousand millions */
        export_free(e);
        return ERR_EXISTS;
    }
    list_append(&s->exports, &e->link);
    s->export_count++;
    publish(s);
    return 0;
}

int nfs_server_add_export(struct nfs_server *s, const struct nfs_export_options *o)
{
    assert(reactor_current() == s->home);
    fmutex_lock(&s->registry);
    int err = registry_add(s, o);
    fmutex_unlock(&s->registry);
    return err;
}

/* The new one is in the old one's place when it returns, and the old one is gone. */
static void registry_replace(struct nfs_server *s, struct nfs_export *old, struct nfs_export *e) may_yield
{
    assert(e->tag == old->tag);
    list_insert(&old->link, &e->link);
    list_remove(&old->link);
    publish(s);
    export_retire(old);
    e->ops += old->ops;
    e->error_count += old->error_count;
    e->read_bytes += old->read_bytes;
    e->write_bytes += old->write_bytes;
    export_free(old);
}

int nfs_server_set_export(struct nfs_server *s, const struct nfs_export_options *o)
{
    assert(reactor_current() == s->home);
    fmutex_lock(&s->registry);
    struct nfs_export *old = registry_find(s, o->path), *e;
    int err = 0;
    if (old == NULL) {
        err = registry_add(s, o);
    } else if ((err = export_new(s, o, &e)) == 0) {
        registry_replace(s, old, e);
    }
    fmutex_unlock(&s->registry);
    return err;
}

/* The same without its file system. */
static struct nfs_export *export_without_fs(const struct nfs_export *old)
{
    struct nfs_export *e = malloc(sizeof(*e));
    if (e == NULL)
        return NULL;
    *e = *old;
    e->clients_text = strdup(old->clients_text);
    if (e->clients_text == NULL) {
        free(e);
        return NULL;
    }
    list_init(&e->link);
    e->fs = NULL;
    e->uses = 0;
    e->ops = e->error_count = e->read_bytes = e->write_bytes = 0;
    return e;
}

int nfs_server_pause_export(struct nfs_server *s, const char *path)
{
    assert(reactor_current() == s->home);
    fmutex_lock(&s->registry);
    struct nfs_export *old = registry_find(s, path), *e;
    int err = old != NULL ? 0 : ERR_NOT_FOUND;
    if (err == 0 && old->fs != NULL) {
        e = export_without_fs(old);
        if (e != NULL)
            registry_replace(s, old, e);
        else
            err = ERR_NO_MEMORY;
    }
    fmutex_unlock(&s->registry);
    return err;
}

int nfs_server_remove_export(struct nfs_server *s, const char *path)
{
    assert(reactor_current() == s->home);
    fmutex_lock(&s->registry);
    struct nfs_export *e = registry_find(s, path);
    if (e != NULL) {
        list_remove(&e->link);
        s->export_count--;
        publish(s);
        export_retire(e);
        export_free(e);
    }
    fmutex_unlock(&s->registry);
    return e != NULL ? 0 : ERR_NOT_FOUND;
}

int nfs_server_get_export(const struct nfs_server *s, uint32_t index, struct nfs_export_status *ret)
{
    LIST_FOREACH (&s->exports, l) {
        const struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        if (index-- > 0)
            continue;
        memcpy(ret->path, e->path, sizeof(ret->path));
        ret->read_only = e->read_only;
        ret->ops = counter_get(&e->ops);
        ret->errors = counter_get(&e->error_count);
        ret->read_bytes = counter_get(&e->read_bytes);
        ret->write_bytes = counter_get(&e->write_bytes);
        return 0;
    }
    return ERR_NOT_FOUND;
}
