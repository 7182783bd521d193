/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port mapper: asked by clients where a program is, by portmap version 2 and rpcbind versions 3 and 4.
 * Everything but the mapper itself is on the port of the first listener. Nobody can register with ours.
 *
 * And its opposite: telling the rpcbind of this machine, through its local socket, where only root is
 * believed, or where there is none by the loop-back address.
 */
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

#define MAPPINGS_MAX   32u
#define DUMP_BYTES     (8 * KIB)
#define TELL_TIMEOUT   (2 * NSEC_PER_SEC)
#define TELL_MAX       1024u
#define RPCBIND_LOCAL  "unix:/run/rpcbind.sock"
#define RPCBIND_REMOTE "tcp:127.0.0.1:111"

struct mapping {
    bool local; /* rpc_program.local */
    uint32_t program, version;
    const char *owner;
    bool udp;
    uint16_t port;
};

/* ---- What there is ---- */

static uint16_t port_of(const char *address)
{
    const char *port = strrchr(address, ':');
    return port != NULL ? (uint16_t)strtoul(port + 1, NULL, 10) : 0;
}

/* The port at which a program is served; 0: nowhere. */
static uint16_t port_at(const struct nfs_server *s, const struct rpc_program *p, bool udp)
{
    bool mapper = p->number == RPC_PROGRAM_PORTMAP;
    if (udp && !p->datagrams)
        return 0;
    LIST_FOREACH (&s->listeners, link) {
        const struct nfs_listener *l = CONTAINER_OF(link, struct nfs_listener, link);
        const char *address = l->listener != NULL ? l->listener->address : l->datagrams->address;
        if ((l->datagrams != NULL) == udp && l->portmap == mapper && strncmp(address, "unix:", 5) != 0)
            return port_of(address);
    }
    return 0;
}

static uint32_t mappings(const struct nfs_server *s, struct mapping *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->program_count; i++) {
        const struct rpc_program *p = s->programs[i];
        for (uint32_t v = p->low; v <= p->high; v++) {
            for (int udp = 0; udp < 2; udp++) {
                uint16_t port = port_at(s, p, udp);
                if (port != 0 && n < MAPPINGS_MAX)
                    out[n++] = (struct mapping){p->local, p->number, v, p->name, udp, port};
            }
        }
    }
    return n;
}

/* version 0: any. */
static uint16_t lookup(const struct nfs_server *s, uint32_t program, uint32_t version, bool udp)
{
    struct mapping all[MAPPINGS_MAX];
    uint32_t n = mappings(s, all);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].program == program && (version == 0 || all[i].version == version) && all[i].udp == udp)
            return all[i].port;
    }
    return 0;
}

/* "10.0.0.1.8.1": host and port, as rpcbind writes them. host "": any. */
static void put_universal(struct xdr_out *o, const char *host, bool v6, uint16_t port)
{
    char text[80];
    if (host[0] == '\0')
        host = v6 ? "::" : "0.0.0.0";
    snprintf(text, sizeof(text), "%s.%u.%u", host, port >> 8, port & 0xff);
    xdr_put_opaque(o, text, (uint32_t)strlen(text));
}

/* ---- Version 2 ---- */

static int null_run(struct nfs_call *call)
{
    (void)call;
    return RPC_SUCCESS;
}

/* SET and UNSET: false. */
static int refuse(struct nfs_call *call)
{
    xdr_put_bool(&call->out, false);
    return RPC_SUCCESS;
}

static int pmap_getport(struct nfs_call *call)
{
    uint32_t program = xdr_u32(&call->args), version = xdr_u32(&call->args), protocol = xdr_u32(&call->args);
    xdr_u32(&call->args);
    if (call->args.bad)
        return RPC_GARBAGE_ARGUMENTS;
    uint16_t port = 0;
    if (protocol == PMAP_TCP || protocol == PMAP_UDP) {
        port = lookup(call->server, program, version, protocol == PMAP_UDP);
        if (port == 0) /* another version is better than none: the program itself says which it has */
            port = lookup(call->server, program, 0, protocol == PMAP_UDP);
    }
    xdr_put_u32(&call->out, port);
    return RPC_SUCCESS;
}

static int pmap_dump(struct nfs_call *call)
{
    struct mapping all[MAPPINGS_MAX];
    uint32_t n = mappings(call->server, all);
    if (!nfs_call_room(call, DUMP_BYTES))
        return RPC_SYSTEM_ERROR;
    for (uint32_t i = 0; i < n; i++) {
        xdr_put_bool(&call->out, true);
        xdr_put_u32(&call->out, all[i].program);
        xdr_put_u32(&call->out, all[i].version);
        xdr_put_u32(&call->out, all[i].udp ? PMAP_UDP : PMAP_TCP);
        xdr_put_u32(&call->out, all[i].port);
    }
    xdr_put_bool(&call->out, false);
    return RPC_SUCCESS;
}

/* ---- Versions 3 and 4 ---- */

static bool net_is(const uint8_t *net, uint32_t len, const char *name)
{
    return len == strlen(name) && memcmp(net, name, len) == 0;
}

/* The address that the client can reach: the host that it asks, which only it knows; it is told by the
 * address that it used itself, r_addr, or else by "any", and takes the one that it has. */
static int getaddr(struct nfs_call *call, bool exact)
{
    uint32_t net_len, addr_len, owner_len;
    uint32_t program = xdr_u32(&call->args), version = xdr_u32(&call->args);
    const uint8_t *net = xdr_opaque(&call->args, 32, &net_len);
    const uint8_t *addr = xdr_opaque(&call->args, 128, &addr_len);
    xdr_opaque(&call->args, 256, &owner_len);
    if (call->args.bad)
        return RPC_GARBAGE_ARGUMENTS;
    bool v6 = net_is(net, net_len, "tcp6") || net_is(net, net_len, "udp6");
    bool tcp = net_is(net, net_len, "tcp") || net_is(net, net_len, "tcp6");
    bool udp = net_is(net, net_len, "udp") || net_is(net, net_len, "udp6");
    uint16_t port = tcp || udp ? lookup(call->server, program, version, udp) : 0;
    if (port == 0 && (tcp || udp) && !exact)
        port = lookup(call->server, program, 0, udp);
    if (port == 0) {
        xdr_put_opaque(&call->out, "", 0);
        return RPC_SUCCESS;
    }
    char host[64] = "";
    int dots = 0;
    while (addr_len > 0 && dots < 2) /* the last two parts are the port that it asked at */
        dots += addr[--addr_len] == '.';
    if (dots == 2 && addr_len < sizeof(host)) {
        memcpy(host, addr, addr_len);
        host[addr_len] = '\0';
    }
    if (strspn(host, "0123456789abcdefABCDEF.:") != strlen(host))
        host[0] = '\0';
    put_universal(&call->out, host, v6, port);
    return RPC_SUCCESS;
}

static int rpcb_getaddr(struct nfs_call *call)
{
    return getaddr(call, false);
}

static int rpcb_getversaddr(struct nfs_call *call)
{
    return getaddr(call, true);
}

static int rpcb_dump(struct nfs_call *call)
{
    static const char *const nets[2][2] = {{"tcp", "tcp6"}, {"udp", "udp6"}};
    struct mapping all[MAPPINGS_MAX];
    uint32_t n = mappings(call->server, all);
    if (!nfs_call_room(call, DUMP_BYTES))
        return RPC_SYSTEM_ERROR;
    for (uint32_t i = 0; i < n; i++) {
        for (int v6 = 0; v6 < 2; v6++) {
            const char *net = nets[all[i].udp][v6];
            xdr_put_bool(&call->out, true);
            xdr_put_u32(&call->out, all[i].program);
            xdr_put_u32(&call->out, all[i].version);
            xdr_put_opaque(&call->out, net, (uint32_t)strlen(net));
            put_universal(&call->out, "", v6, all[i].port);
            xdr_put_opaque(&call->out, "superuser", 9);
        }
    }
    xdr_put_bool(&call->out, false);
    return RPC_SUCCESS;
}

static int rpcb_gettime(struct nfs_call *call)
{
    xdr_put_u32(&call->out, (uint32_t)(world_wall_ns() / NSEC_PER_SEC));
    return RPC_SUCCESS;
}

static const struct rpc_procedure pmap2_procedures[] = {
    [PMAP_NULL] = {"NULL", null_run},  [PMAP_SET] = {"SET", refuse},
    [PMAP_UNSET] = {"UNSET", refuse},  [PMAP_GETPORT] = {"GETPORT", pmap_getport},
    [PMAP_DUMP] = {"DUMP", pmap_dump},
};
static const struct rpc_procedure rpcb_procedures[] = {
    [RPCB_NULL] = {"NULL", null_run},
    [RPCB_SET] = {"SET", refuse},
    [RPCB_UNSET] = {"UNSET", refuse},
    [RPCB_GETADDR] = {"GETADDR", rpcb_getaddr},
    [RPCB_DUMP] = {"DUMP", rpcb_dump},
    [RPCB_GETTIME] = {"GETTIME", rpcb_gettime},
    [RPCB_GETVERSADDR] = {"GETVERSADDR", rpcb_getversaddr},
};
static const struct rpc_version portmap_versions[] = {
    {pmap2_procedures, ARRAY_SIZE(pmap2_procedures)},
    {rpcb_procedures, RPCB_GETTIME + 1},
    {rpcb_procedures, ARRAY_SIZE(rpcb_procedures)},
};
const struct rpc_program portmap_program = {
    .name = "portmapper",
    .number = RPC_PROGRAM_PORTMAP,
    .low = 2,
    .high = 4,
    .versions = portmap_versions,
    .datagrams = true,
};

/* ---- Telling rpcbind ---- */

/* One call, and its boolean answer. */
MUST_CHECK static int ask(struct stream *t, struct xdr_out *o, uint32_t xid, bool *ret_answer) may_yield
{
    uint8_t reply[TELL_MAX];
    struct be32 mark;
    uint64_t until = reactor_now_ns() + TELL_TIMEOUT;
    assert(!o->full);
    xdr_set_u32(o, 0, (o->len - 4) | RPC_FRAGMENT_LAST);
    int err = stream_send_all(t, o->data, o->len, until);
    if (err == 0)
        err = stream_recv_all(t, &mark, sizeof(mark), until);
    if (err != 0)
        return err;
    uint32_t len = be32_get(mark) & ~RPC_FRAGMENT_LAST;
    if (!(be32_get(mark) & RPC_FRAGMENT_LAST) || len > sizeof(reply))
        return ERR_PROTOCOL;
    err = stream_recv_all(t, reply, len, until);
    if (err != 0)
        return err;
    struct xdr x = xdr_over(reply, len);
    err = rpc_reply_decode(&x, xid);
    if (err != 0)
        return err;
    bool answer = xdr_bool(&x);
    if (x.bad)
        return ERR_PROTOCOL;
    *ret_answer = answer;
    return 0;
}

/* Through the local socket: rpcbind version 3, for the networks of both families. */
MUST_CHECK static int tell_local(struct stream *t, const struct mapping *m, bool set, bool *ret_answer)
    may_yield
{
    bool any = false;
    for (int v6 = 0; v6 < 2; v6++) {
        const char *net = m->udp ? (v6 ? "udp6" : "udp") : (v6 ? "tcp6" : "tcp");
        uint8_t buf[TELL_MAX];
        struct xdr_out o = xdr_into(buf, sizeof(buf));
        bool answer;
        xdr_put_u32(&o, 0);
        rpc_call_begin(&o, m->program + m->version, RPC_PROGRAM_PORTMAP, 3, set ? RPCB_SET : RPCB_UNSET);
        xdr_put_u32(&o, m->program);
        xdr_put_u32(&o, m->version);
        xdr_put_opaque(&o, net, (uint32_t)strlen(net));
        put_universal(&o, "", v6, m->port);
        xdr_put_opaque(&o, "superuser", 9);
        int err = ask(t, &o, m->program + m->version, &answer);
        if (err != 0)
            return err;
        any |= answer;
    }
    *ret_answer = any;
    return 0;
}

MUST_CHECK static int tell_remote(struct stream *t, const struct mapping *m, bool set, bool *ret_answer)
    may_yield
{
    uint8_t buf[TELL_MAX];
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    xdr_put_u32(&o, 0);
    rpc_call_begin(&o, m->program + m->version, RPC_PROGRAM_PORTMAP, 2, set ? PMAP_SET : PMAP_UNSET);
    xdr_put_u32(&o, m->program);
    xdr_put_u32(&o, m->version);
    xdr_put_u32(&o, m->udp ? PMAP_UDP : PMAP_TCP);
    xdr_put_u32(&o, m->port);
    return ask(t, &o, m->program + m->version, ret_answer);
}

int nfs_register(struct nfs_server *s, bool set)
{
    struct mapping all[MAPPINGS_MAX];
    uint32_t n = mappings(s, all);
    struct stream *t;
    uint64_t until = reactor_now_ns() + TELL_TIMEOUT;
    bool local = true;
    int err = stream_connect(RPCBIND_LOCAL, until, &t);
    if (err != 0) {
        local = false;
        err = stream_connect(RPCBIND_REMOTE, until, &t);
    }
    if (err != 0)
        return err;
    for (uint32_t i = 0; i < n && err == 0; i++) {
        bool answer = true, gone;
        if (all[i].program == RPC_PROGRAM_PORTMAP || (!set && all[i].local && !s->local_told))
            continue;
        if (set && !all[i].local) { /* what an earlier run of the server left there would be in the way */
            err = local ? tell_local(t, &all[i], false, &gone) : tell_remote(t, &all[i], false, &gone);
            if (err != 0)
                break;
        }
        err = local ? tell_local(t, &all[i], set, &answer) : tell_remote(t, &all[i], set, &answer);
        if (err == 0 && set && all[i].local)
            s->local_told = s->local_told || answer;
        else if (err == 0 && set && !answer)
            err = ERR_DENIED;
    }
    fiber_shield();
    stream_close(t);
    fiber_unshield();
    return err;
}
