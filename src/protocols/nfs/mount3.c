/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MOUNT version 3: from a path to the first handle. All of it is done at home, where the registry is; the
 * path below an export's own is followed on the file system's reactor.
 *
 * A client that an export does not list gets the same answer for it as for a path that does not exist, and
 * sees it in no list.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"

#include <stdlib.h>
#include <sys/stat.h>

#define LIST_BYTES (64 * KIB)

/* ---- MNT ---- */

struct mnt {
    struct nfs_call *call;
    char path[MOUNT3_PATH_MAX + 1];
    struct nfs_export *export;
    const char *below; /* of path: what follows the export's own */
    struct fs_attr attr;
    enum mount3_status status;
};

static enum mount3_status status_of(int err)
{
    switch (error_errno(err)) {
    case 0:
        return MNT3_OK;
    case ENOENT:
        return MNT3ERR_NOENT;
    case ENOTDIR:
        return MNT3ERR_NOTDIR;
    case ENAMETOOLONG:
        return MNT3ERR_NAMETOOLONG;
    case EINVAL:
        return MNT3ERR_INVAL;
    case EIO:
        return MNT3ERR_IO;
    default:
        return MNT3ERR_SERVERFAULT;
    }
}

/* On the file system's reactor: component by component, through no symbolic link and never upwards. */
static int walk_there(void *arg) may_yield
{
    struct mnt *m = arg;
    struct fs_request rq = {.cred.trusted = true};
    const struct nfs_export *e = m->export;
    int err = fs_getattr(e->fs, &rq, e->root_ino, 0, &m->attr);
    for (const char *p = m->below; err == 0;) {
        p += strspn(p, "/");
        size_t len = strcspn(p, "/");
        if (len == 0)
            break;
        if (len == 2 && p[0] == '.' && p[1] == '.')
            return ERR_FS_NOT_FOUND;
        uint64_t dir = m->attr.ino;
        if ((m->attr.mode & S_IFMT) != S_IFDIR)
            return ERR_FS_NOT_DIRECTORY;
        struct fs_attr parent;
        err = fs_lookup(e->fs, &rq, dir, p, (uint32_t)len, &m->attr, &parent);
        p += len;
    }
    if (err == 0 && (m->attr.mode & S_IFMT) != S_IFDIR)
        err = ERR_FS_NOT_DIRECTORY;
    return err;
}

static void mounts_forget(struct nfs_server *s, const char *ip, const char *path)
{
    LIST_FOREACH_SAFE (&s->mounts, l) {
        struct nfs_mount *m = CONTAINER_OF(l, struct nfs_mount, link);
        if (strcmp(m->ip, ip) != 0 || (path != NULL && strcmp(m->path, path) != 0))
            continue;
        list_remove(&m->link);
        s->mount_count--;
        free(m);
    }
}

/* For people only, so the oldest entry may go, and failing to remember is no failure. */
static void mounts_remember(struct nfs_server *s, const char *ip, const char *path)
{
    mounts_forget(s, ip, path);
    if (s->mount_count == NFS_MOUNTS_MAX) {
        free(CONTAINER_OF(list_pop(&s->mounts), struct nfs_mount, link));
        s->mount_count--;
    }
    struct nfs_mount *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return;
    memcpy(m->ip, ip, strnlen(ip, sizeof(m->ip) - 1));
    memcpy(m->path, path, strnlen(path, sizeof(m->path) - 1));
    list_append(&s->mounts, &m->link);
    s->mount_count++;
}

/* At home. */
static int mnt_there(void *arg) may_yield
{
    struct mnt *m = arg;
    struct nfs_server *s = m->call->server;
    const struct nfs_peer *peer = m->call->peer;
    struct nfs_export *e = nfs_export_find(s, m->path, peer);
    m->export = e;
    m->status = MNT3ERR_ACCES;
    if (e == NULL || !nfs_export_port_allowed(e, peer))
        return 0;
    if (e->fs == NULL) {
        m->status = MNT3ERR_IO;
        return 0;
    }
    __atomic_fetch_add(&e->uses, 1, __ATOMIC_ACQUIRE); /* it is in the list, so it is in the tables */
    m->below = m->path + e->path_len;
    m->status = status_of(reactor_call(e->shard->reactor, walk_there, m));
    if (m->status == MNT3_OK) {
        mounts_remember(s, peer->ip, m->path);
        struct nfs_handle h;
        struct xdr_out *o = &m->call->out;
        nfs_export_handle(e, m->attr.ino, m->attr.generation, &h);
        xdr_put_u32(o, MNT3_OK);
        xdr_put_opaque(o, &h, sizeof(h));
        xdr_put_u32(o, 2); /* flavors */
        xdr_put_u32(o, RPC_AUTH_SYS);
        xdr_put_u32(o, RPC_AUTH_NONE);
    }
    nfs_export_release(e);
    return 0;
}

/* A path as text; false: there is none. Slashes at its end do not count. */
static bool get_path(struct nfs_call *call, char path[MOUNT3_PATH_MAX + 1])
{
    uint32_t len;
    const uint8_t *p = xdr_opaque(&call->args, MOUNT3_PATH_MAX, &len);
    if (p == NULL)
        return false;
    memcpy(path, p, len);
    while (len > 1 && path[len - 1] == '/')
        len--;
    path[len] = '\0';
    return true;
}

static int mount3_mnt(struct nfs_call *call) may_yield
{
    struct mnt m = {.call = call};
    if (!get_path(call, m.path))
        return RPC_GARBAGE_ARGUMENTS;
    int err = nfs_call_on(call, call->server->home_shard, mnt_there, &m);
    if (err < 0)
        return RPC_SYSTEM_ERROR;
    if (m.status != MNT3_OK)
        xdr_put_u32(&call->out, m.status);
    return RPC_SUCCESS;
}

/* ---- The others ---- */

struct umnt {
    struct nfs_call *call;
    char path[MOUNT3_PATH_MAX + 1];
    bool all;
};

static int umnt_there(void *arg)
{
    struct umnt *u = arg;
    mounts_forget(u->call->server, u->call->peer->ip, u->all ? NULL : u->path);
    return 0;
}

static int umnt(struct nfs_call *call, bool all) may_yield
{
    struct umnt u = {.call = call, .all = all};
    if (!all && !get_path(call, u.path))
        return RPC_GARBAGE_ARGUMENTS;
    return nfs_call_on(call, call->server->home_shard, umnt_there, &u) < 0 ? RPC_SYSTEM_ERROR : RPC_SUCCESS;
}

static int mount3_umnt(struct nfs_call *call) may_yield
{
    return umnt(call, false);
}

static int mount3_umntall(struct nfs_call *call) may_yield
{
    return umnt(call, true);
}

/* One item less than fits, so that the list can always be ended. */
static bool list_has_room(const struct xdr_out *o, size_t bytes)
{
    return o->capacity - o->len >= bytes + 16;
}

static int dump_there(void *arg)
{
    struct nfs_call *call = arg;
    struct nfs_server *s = call->server;
    LIST_FOREACH (&s->mounts, l) {
        const struct nfs_mount *m = CONTAINER_OF(l, struct nfs_mount, link);
        if (nfs_export_find(s, m->path, call->peer) == NULL)
            continue;
        if (!list_has_room(&call->out, sizeof(*m)))
            break;
        xdr_put_bool(&call->out, true);
        xdr_put_opaque(&call->out, m->ip, (uint32_t)strlen(m->ip));
        xdr_put_opaque(&call->out, m->path, (uint32_t)strlen(m->path));
    }
    xdr_put_bool(&call->out, false);
    return 0;
}

static void put_groups(struct xdr_out *o, const char *text)
{
    static const char separators[] = ", \t\n";
    for (text += strspn(text, separators); *text != '\0'; text += strspn(text, separators)) {
        size_t len = strcspn(text, separators);
        xdr_put_bool(o, true);
        xdr_put_opaque(o, text, (uint32_t)len);
        text += len;
    }
    xdr_put_bool(o, false);
}

static int export_there(void *arg)
{
    struct nfs_call *call = arg;
    LIST_FOREACH (&call->server->exports, l) {
        const struct nfs_export *e = CONTAINER_OF(l, struct nfs_export, link);
        if (!nfs_export_visible(e, call->peer))
            continue;
        if (!list_has_room(&call->out, 64 + e->path_len + 8 * strlen(e->clients_text)))
            break;
        xdr_put_bool(&call->out, true);
        xdr_put_opaque(&call->out, e->path, e->path_len);
        put_groups(&call->out, e->clients_text);
    }
    xdr_put_bool(&call->out, false);
    return 0;
}

static int list_at_home(struct nfs_call *call, int (*fn)(void *arg)) may_yield
{
    if (!nfs_call_room(call, LIST_BYTES))
        return RPC_SYSTEM_ERROR;
    return nfs_call_on(call, call->server->home_shard, fn, call) < 0 ? RPC_SYSTEM_ERROR : RPC_SUCCESS;
}

static int mount3_dump(struct nfs_call *call) may_yield
{
    return list_at_home(call, dump_there);
}

static int mount3_export(struct nfs_call *call) may_yield
{
    return list_at_home(call, export_there);
}

static int mount3_null(struct nfs_call *call)
{
    (void)call;
    return RPC_SUCCESS;
}

static uint64_t list_cost(const struct nfs_call *call)
{
    (void)call;
    return LIST_BYTES;
}

static const struct rpc_procedure mount3_procedures[MOUNT3_PROC_COUNT] = {
    [MOUNT3_NULL] = {"NULL", mount3_null},
    [MOUNT3_MNT] = {"MNT", mount3_mnt},
    [MOUNT3_DUMP] = {"DUMP", mount3_dump, list_cost},
    [MOUNT3_UMNT] = {"UMNT", mount3_umnt},
    [MOUNT3_UMNTALL] = {"UMNTALL", mount3_umntall},
    [MOUNT3_EXPORT] = {"EXPORT", mount3_export, list_cost},
};
static const struct rpc_version mount3_versions[] = {{mount3_procedures, MOUNT3_PROC_COUNT}};
const struct rpc_program mount3_program = {
    .name = "mountd",
    .number = RPC_PROGRAM_MOUNT,
    .low = MOUNT3_VERSION,
    .high = MOUNT3_VERSION,
    .versions = mount3_versions,
};
