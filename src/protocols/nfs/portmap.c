/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port mapper: asked by clients where a program is, by portmap version 2 and rpcbind versions 3 and 4.
 * Everything but the mapper itself is on the port of the first listener. Nobody can register with ours.
 */
#include "protocols/nfs/portmap.h"
#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

#define DUMP_BYTES (8 * KIB)

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

uint32_t nfs_mappings(const struct nfs_server *s, struct nfs_mapping *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->program_count; i++) {
        const struct rpc_program *p = s->programs[i];
        for (uint32_t v = p->low; v <= p->high; v++) {
            for (int udp = 0; udp < 2; udp++) {
                uint16_t port = port_at(s, p, udp);
                if (port != 0 && n < NFS_MAPPINGS_MAX)
                    out[n++] = (struct nfs_mapping){p->number, v, udp, port, p->local};
            }
        }
    }
    return n;
}

/* version 0: any. */
static uint16_t lookup(const struct nfs_server *s, uint32_t program, uint32_t version, bool udp)
{
    struct nfs_mapping all[NFS_MAPPINGS_MAX];
    uint32_t n = nfs_mappings(s, all);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].program == program && (version == 0 || all[i].version == version) && all[i].udp == udp)
            return all[i].port;
    }
    return 0;
}

void nfs_put_universal(struct xdr_out *o, const char *host, bool v6, uint16_t port)
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
    struct nfs_mapping all[NFS_MAPPINGS_MAX];
    uint32_t n = nfs_mappings(call->server, all);
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
    nfs_put_universal(&call->out, host, v6, port);
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
    struct nfs_mapping all[NFS_MAPPINGS_MAX];
    uint32_t n = nfs_mappings(call->server, all);
    if (!nfs_call_room(call, DUMP_BYTES))
        return RPC_SYSTEM_ERROR;
    for (uint32_t i = 0; i < n; i++) {
        for (int v6 = 0; v6 < 2; v6++) {
            const char *net = nets[all[i].udp][v6];
            xdr_put_bool(&call->out, true);
            xdr_put_u32(&call->out, all[i].program);
            xdr_put_u32(&call->out, all[i].version);
            xdr_put_opaque(&call->out, net, (uint32_t)strlen(net));
            nfs_put_universal(&call->out, "", v6, all[i].port);
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
