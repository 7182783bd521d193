/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nfs/rpc_client.h"

#include "runtime/error.h"
#include "runtime/fiber.h"

#include <stdio.h>

/* A connection for one call: they are rare, and to many hosts. */
static int exchange(const char *ip, uint16_t port, struct xdr_out *call, uint32_t xid, uint64_t deadline_ns,
                    uint8_t *reply, struct xdr *ret) may_yield
{
    char address[WORLD_ADDRESS_SIZE];
    struct stream *t;
    struct be32 mark;
    uint32_t len = 0;
    bool v6 = strchr(ip, ':') != NULL;
    snprintf(address, sizeof(address), "tcp:%s%s%s:%u", v6 ? "[" : "", ip, v6 ? "]" : "", port);
    xdr_set_u32(call, 0, (call->len - 4) | RPC_FRAGMENT_LAST);
    int err = stream_connect(address, deadline_ns, &t);
    if (err != 0)
        return err;
    err = stream_send_all(t, call->data, call->len, deadline_ns);
    for (bool last = false; err == 0 && !last;) {
        err = stream_recv_all(t, &mark, sizeof(mark), deadline_ns);
        if (err != 0)
            break;
        uint32_t more = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        last = (be32_get(mark) & RPC_FRAGMENT_LAST) != 0;
        if (more > RPC_CLIENT_MAX - len || (more == 0 && !last)) /* nor empty ones without end */
            err = ERR_PROTOCOL;
        else if (more > 0)
            err = stream_recv_all(t, reply + len, more, deadline_ns);
        len += more;
    }
    fiber_shield();
    stream_close(t);
    fiber_unshield();
    if (err != 0)
        return err;
    *ret = xdr_over(reply, len);
    return rpc_reply_decode(ret, xid);
}

static uint32_t new_xid(void)
{
    uint32_t xid;
    world_random(&xid, sizeof(xid));
    return xid;
}

static int find_port(const char *ip, uint32_t program, uint32_t version, uint64_t deadline_ns, uint16_t *ret)
    may_yield
{
    uint8_t buf[128], reply[RPC_CLIENT_MAX];
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    struct xdr x;
    uint32_t xid = new_xid();
    xdr_put_u32(&o, 0);
    rpc_call_begin(&o, xid, RPC_PROGRAM_PORTMAP, 2, PMAP_GETPORT);
    xdr_put_u32(&o, program);
    xdr_put_u32(&o, version);
    xdr_put_u32(&o, PMAP_TCP);
    xdr_put_u32(&o, 0);
    int err = exchange(ip, PMAP_PORT, &o, xid, deadline_ns, reply, &x);
    if (err != 0)
        return err;
    uint32_t port = xdr_u32(&x);
    if (x.bad || port > UINT16_MAX)
        return ERR_PROTOCOL;
    if (port == 0)
        return ERR_NOT_FOUND;
    *ret = (uint16_t)port;
    return 0;
}

int rpc_client_call(const char *ip, uint16_t port, uint32_t program, uint32_t version, uint32_t procedure,
                    const void *args, uint32_t args_len, uint64_t deadline_ns, uint8_t *reply,
                    struct xdr *ret)
{
    uint8_t buf[RPC_CLIENT_MAX];
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    uint32_t xid = new_xid();
    assert(args_len % 4 == 0);
    int err = port != 0 ? 0 : find_port(ip, program, version, deadline_ns, &port);
    if (err != 0)
        return err;
    xdr_put_u32(&o, 0);
    rpc_call_begin(&o, xid, program, version, procedure);
    if (args_len > 0)
        xdr_put_fixed(&o, args, args_len);
    if (o.full)
        return ERR_INVALID;
    return exchange(ip, port, &o, xid, deadline_ns, reply, ret);
}
