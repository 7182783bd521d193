/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a node: everything that is started, in its order; it is stopped in the opposite one. Each step
 * stands on those above it. When a step fails, those before it are undone and the process ends with its
 * message.
 */
#include "server/server.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Steps that are more than a call ---- */

static int coordination_start(struct server *s, struct control_error *e) may_yield
{
    char path[NODE_PATH_MAX + 16];
    int r = server_records_check(s, e);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "%s/coord.json", s->dir);
    r = coord_local_open(path, &s->node.coord);
    if (r < 0)
        control_error_set(e, r,
                          r == ERR_COORD_CORRUPT
                              ? "Restore it from a backup of the folder; nothing was changed."
                              : "Make the folder writable, and room on its file system.",
                          "%s cannot be used: %s", path, error_text(r));
    return r;
}
static void coordination_stop(struct server *s) may_yield
{
    coord_close(s->node.coord);
    s->node.coord = NULL;
}

/* ---- Ports ---- */

struct port {
    const char *what; /* "NBD": its options are --nbd-port and --nbd-listen */
    const char *option;
    const char *listen;
    uint16_t port;
};

static struct port nbd_port(const struct server *s)
{
    return (struct port){"NBD", "nbd", s->options.nbd_listen, s->options.nbd_port};
}
static struct port nfs_port(const struct server *s)
{
    return (struct port){"NFS", "nfs", s->options.nfs_listen, s->options.nfs_port};
}

static void port_address(const struct port *p, char out[WORLD_ADDRESS_SIZE])
{
    bool ipv6 = strchr(p->listen, ':') != NULL;
    snprintf(out, WORLD_ADDRESS_SIZE, "tcp:%s%s%s:%u", ipv6 ? "[" : "", p->listen, ipv6 ? "]" : "", p->port);
}
static int port_failed(const struct port *p, int r, struct control_error *e)
{
    char hint[160];
    if (r == ERR_SYS(EADDRINUSE))
        snprintf(hint, sizeof(hint), "Stop what uses it (ss -ltnp), or give another port with --%s-port.",
                 p->option);
    else if (r == ERR_SYS(EACCES))
        snprintf(hint, sizeof(hint), "Ports below 1024 need privileges: give another one with --%s-port.",
                 p->option);
    else
        snprintf(hint, sizeof(hint), "Give another address with --%s-listen.", p->option);
    control_error_set(e, r, hint, "the %s port %u of %s cannot be opened: %s", p->what, p->port, p->listen,
                      error_text(r));
    return r;
}
static int port_check(const struct port *p, struct control_error *e) may_yield
{
    char address[WORLD_ADDRESS_SIZE];
    struct listener *l = NULL;
    port_address(p, address);
    int r = listener_open(address, &l);
    if (r < 0)
        return port_failed(p, r, e);
    listener_close(l);
    return 0;
}
/* A busy port is told at once, not after all volumes were opened. NFS has the same port everywhere: where
 * nobody asked for it, a node beside another server goes without. */
static int ports_check(struct server *s, struct control_error *e) may_yield
{
    struct port nbd = nbd_port(s), nfs = nfs_port(s);
    int r = port_check(&nbd, e);
    if (r < 0)
        return r;
    r = port_check(&nfs, e);
    s->nfs_wanted = r == 0;
    if (r < 0 && !s->options.nfs_port_given) {
        event_raise(LOG_WARNING_, "nfs-off", "%s; this node serves no NFS. %s", e->text, e->hint);
        *e = (struct control_error){0};
        r = 0;
    }
    return r;
}
/* The port that it really has; 0 was any free one. */
static uint16_t port_of(const char *address, uint16_t otherwise)
{
    const char *port = address != NULL ? strrchr(address, ':') : NULL;
    return port != NULL ? (uint16_t)strtoul(port + 1, NULL, 10) : otherwise;
}

static int control_start(struct server *s, struct control_error *e) may_yield
{
    return control_server_start(&s->node, s->socket_path, &s->control, e);
}
static void control_stop(struct server *s) may_yield
{
    control_server_stop(s->control);
    s->control = NULL;
}

static int reactors_start(struct server *s, struct control_error *e) may_yield
{
    return node_reactors_start(&s->node, e);
}
static void reactors_stop(struct server *s) may_yield
{
    node_reactors_stop(&s->node);
}

static int drives_start(struct server *s, struct control_error *e) may_yield
{
    return node_drives_start(&s->node, s->options.paths, s->options.path_count, e);
}
static void drives_stop(struct server *s) may_yield
{
    node_drives_stop(&s->node);
}

static int certificates_start(struct server *s, struct control_error *e) may_yield
{
    const struct server_options *o = &s->options;
    if (o->tls_cert == NULL)
        return 0;
    struct tls_options t = {
        .server = true, .certificate_file = o->tls_cert, .key_file = o->tls_key, .ca_file = o->tls_ca};
    int r = tls_context_new(&t, &s->tls);
    if (r < 0)
        control_error_set(e, r, "They are PEM files; the log says which one is wrong.",
                          "the files of --tls-cert, --tls-key and --tls-ca cannot be used: %s",
                          error_text(r));
    return r;
}
static void certificates_stop(struct server *s) may_yield
{
    if (s->tls != NULL)
        tls_context_free(s->tls);
    s->tls = NULL;
}

/* The server is there before the volumes, so that they can register; clients come in after them. */
static int nbd_start(struct server *s, struct control_error *e) may_yield
{
    uint64_t share = s->budget.limit_bytes / 4 / s->node.reactor_count;
    struct nbd_server_options o = {.limits = {.reactor_bytes = MIN(MAX(share, 40 * MIB), 256 * MIB)}};
    int r = nbd_server_start(&o, &s->node.nbd);
    if (r < 0)
        control_error_set(e, r, "", "the NBD server cannot be started: %s", error_text(r));
    return r;
}
static void nbd_stop(struct server *s) may_yield
{
    char path[NODE_PATH_MAX + 16];
    nbd_server_stop(s->node.nbd);
    s->node.nbd = NULL;
    snprintf(path, sizeof(path), "%s/nbd.sock", s->dir);
    unlink(path);
}

static int fuse_start(struct server *s, struct control_error *e) may_yield
{
    char path[NODE_PATH_MAX + 16], address[NODE_PATH_MAX + 32];
    snprintf(path, sizeof(path), "%s/fs.sock", s->dir);
    snprintf(address, sizeof(address), "unix:%s", path);
    int r = fuse_server_start(&(struct fuse_server_options){.address = address}, &s->node.fuse);
    if (r < 0)
        control_error_set(e, r, "", "%s cannot be opened: %s", path, error_text(r));
    return r;
}
static void fuse_stop(struct server *s) may_yield
{
    fuse_server_stop(s->node.fuse);
    s->node.fuse = NULL;
}

/* NFS clients that may be connected, resting ones included. Each holds a page, for which an eighth of the
 * budget is enough, and a descriptor, of which a quarter is left to drives, other protocols and ourselves. */
static uint32_t nfs_connections(const struct server *s)
{
    uint64_t n = MIN(NFS_CONNECTIONS_MAX, s->budget.limit_bytes / 8 / BLOCK_SIZE);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        n = MIN(n, files.rlim_cur / 4 * 3);
    return (uint32_t)MAX(n, 16u); /* 0 would be the default */
}

static int nfs_start(struct server *s, struct control_error *e) may_yield
{
    if (!s->nfs_wanted)
        return 0;
    uint64_t share = s->budget.limit_bytes / 4 / s->node.reactor_count;
    struct nfs_server_options o = {
        .limits = {.connections = nfs_connections(s), .reactor_bytes = MIN(MAX(share, 16 * MIB), 256 * MIB)}};
    int r = nfs_server_start(&o, &s->node.nfs);
    if (r < 0)
        control_error_set(e, r, "", "the NFS server cannot be started: %s", error_text(r));
    return r;
}
static void nfs_stop(struct server *s) may_yield
{
    struct nfs_server *nfs = node_nfs_leave(&s->node);
    if (nfs != NULL)
        nfs_server_stop(nfs);
}

static int volumes_start(struct server *s, struct control_error *e) may_yield
{
    node_set_state(&s->node, NODE_OPENING);
    return node_volumes_start(&s->node, e);
}
/* NFS goes first: a client that is not connected asks again, one that is told that its export is gone gives
 * its mount up. */
static void volumes_stop(struct server *s) may_yield
{
    nfs_stop(s);
    node_volumes_stop(&s->node);
}

static int nbd_listen(struct server *s, struct control_error *e) may_yield
{
    char address[WORLD_ADDRESS_SIZE], path[NODE_PATH_MAX + 16], unix_address[NODE_PATH_MAX + 32];
    struct port p = nbd_port(s);
    port_address(&p, address);
    struct nbd_listen_options tcp = {.address = address, .tls_context = s->tls};
    if (s->tls != NULL)
        tcp.tls = s->options.tls_required ? NBD_TLS_REQUIRED : NBD_TLS_ALLOWED;
    int r = nbd_server_listen(s->node.nbd, &tcp);
    if (r < 0)
        return port_failed(&p, r, e);
    s->node.nbd_port = port_of(nbd_server_address(s->node.nbd, 0), p.port);
    snprintf(path, sizeof(path), "%s/nbd.sock", s->dir);
    snprintf(unix_address, sizeof(unix_address), "unix:%s", path);
    struct nbd_listen_options local = {.address = unix_address};
    r = nbd_server_listen(s->node.nbd, &local);
    if (r < 0) {
        control_error_set(e, r, "", "%s cannot be opened: %s", path, error_text(r));
        return r;
    }
    if (chmod(path, 0660) < 0)
        LOG_WARNING("the mode of %s could not be set: %s", path, strerror(errno));
    return 0;
}

static int portmap_listen(struct server *s, struct control_error *e) may_yield
{
    char host[96];
    bool ipv6 = strchr(s->options.nfs_listen, ':') != NULL;
    snprintf(host, sizeof(host), "%s%s%s:111", ipv6 ? "[" : "", s->options.nfs_listen, ipv6 ? "]" : "");
    int r = nfs_server_listen_portmap(s->node.nfs, host);
    if (r < 0)
        control_error_set(
            e, r,
            r == ERR_SYS(EADDRINUSE) ? "An rpcbind runs here: leave --portmap out, and ashlard tells it."
                                     : "Port 111 needs privileges.",
            "the portmapper's port 111 of %s cannot be opened: %s", s->options.nfs_listen, error_text(r));
    return r;
}

static int nfs_listen(struct server *s, struct control_error *e) may_yield
{
    char address[WORLD_ADDRESS_SIZE];
    struct port p = nfs_port(s);
    if (s->node.nfs == NULL)
        return 0;
    port_address(&p, address);
    int r = nfs_server_listen(s->node.nfs, address);
    if (r < 0)
        return port_failed(&p, r, e);
    s->node.nfs_port = port_of(nfs_server_address(s->node.nfs, 0), p.port);
    if (s->options.portmap)
        return portmap_listen(s, e);
    r = nfs_server_register(s->node.nfs);
    if (r < 0)
        LOG_INFO("no rpcbind was told of NFS (%s): clients name the ports, as `ashlar fs show` says",
                 error_text(r));
    return 0;
}

static int clients_start(struct server *s, struct control_error *e) may_yield
{
    int r = nbd_listen(s, e);
    return r < 0 ? r : nfs_listen(s, e);
}

static int monitor_start(struct server *s, struct control_error *e) may_yield
{
    return node_monitor_start(&s->node, e);
}
static void monitor_stop(struct server *s) may_yield
{
    node_monitor_stop(&s->node);
}

static int serving_start(struct server *s, struct control_error *e) may_yield
{
    node_set_state(&s->node, NODE_READY);
    server_notify("READY=1");
    LOG_INFO("ashlard %s is ready: %s, NBD on %s port %u, NFS on %s port %u", ASHLAR_VERSION, s->dir,
             s->options.nbd_listen, s->node.nbd_port, s->options.nfs_listen, s->node.nfs_port);
    return 0;
}
/* Commands under way end before anything is taken from under them. */
static void serving_stop(struct server *s) may_yield
{
    if (s->control != NULL)
        control_stop(s);
}

/* ---- The list ---- */

static const struct step {
    const char *name;
    int (*start)(struct server *s, struct control_error *e);
    void (*stop)(struct server *s);
} steps[] = {
    {"coordination", coordination_start, coordination_stop}, /* DIR/coord.json: all records */
    {"identity", server_identity_start, NULL},               /* DIR/node.json: which node, which pool */
    {"certificates", certificates_start, certificates_stop}, /* of TLS */
    {"ports", ports_check, NULL},                            /* free? */
    {"caches", reactors_start, reactors_stop},               /* and drive sets, on each reactor */
    {"control socket", control_start, NULL},                 /* `ashlar status` answers from here on */
    {"pool", server_pool_start, NULL},                       /* the first time: formats the drives */
    {"drives", drives_start, drives_stop},                   /* opens, attaches to each reactor */
    {"NBD server", nbd_start, nbd_stop},                     /* takes exports, no clients yet */
    {"mounts", fuse_start, fuse_stop},                       /* FUSE: DIR/fs.sock */
    {"NFS server", nfs_start, nfs_stop},                     /* the same as NBD */
    {"volumes", volumes_start, volumes_stop},                /* opens all, registers exports */
    {"clients", clients_start, NULL},                        /* the listeners */
    {"monitor", monitor_start, monitor_stop},                /* looks after drives and volumes */
    {"serving", serving_start, serving_stop},                /* commands that change something */
};

static uint32_t steps_start(struct server *s) may_yield
{
    for (uint32_t i = 0; i < ARRAY_SIZE(steps); i++) {
        if (s->stop_wanted)
            return i;
        LOG_DEBUG("start: %s", steps[i].name);
        int r = steps[i].start(s, &s->error);
        if (r < 0) {
            if (s->error.text[0] == '\0')
                control_error_set(&s->error, r, "", "%s: %s", steps[i].name, error_text(r));
            s->failed = true;
            return i;
        }
    }
    return ARRAY_SIZE(steps);
}

static void steps_stop(struct server *s, uint32_t count) may_yield
{
    if (s->control != NULL) /* a start that failed on its way */
        control_stop(s);
    while (count-- > 0) {
        LOG_DEBUG("stop: %s", steps[count].name);
        if (steps[count].stop != NULL)
            steps[count].stop(s);
    }
}

void server_life(void *arg)
{
    struct server *s = arg;
    s->node.started_ns = reactor_now_ns();
    uint32_t count = steps_start(s);
    while (!s->failed && !s->stop_wanted)
        if (waitq_wait(&s->stop_waiters, DEADLINE_NEVER) == ERR_CANCELLED)
            break;
    if (!s->failed)
        LOG_INFO("stopping: closing all volumes");
    server_notify("STOPPING=1");
    node_set_state(&s->node, NODE_STOPPING);
    steps_stop(s, count);
    for (uint32_t i = 0; i < s->node.reactor_count; i++)
        reactor_stop(s->reactors[i]);
    pthread_kill(s->main_thread, SIGUSR1);
}

void server_stop_ask(void *arg)
{
    struct server *s = arg;
    s->stop_wanted = true;
    waitq_wake_all(&s->stop_waiters);
}
