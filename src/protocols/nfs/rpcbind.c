/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the rpcbind of this machine where our programs are: through its local socket (rpcbind version 3),
 * where it believes root, or, where there is none, by the loop-back address (portmap version 2).
 *
 * It is asked first what it has. What an earlier run of ours left, at a port where nobody answers, is taken
 * away; what somebody else serves is left alone.
 */
#include "protocols/nfs/portmap.h"
#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT   (2 * NSEC_PER_SEC)
#define CALL_MAX  1024u
#define REPLY_MAX (64 * KIB)
#define KNOWN_MAX 256u
#define LOCAL     "unix:/run/rpcbind.sock"
#define REMOTE    "tcp:127.0.0.1:111"

struct dialogue {
    struct stream *stream;
    bool local;
    uint32_t xid;
    uint8_t call[CALL_MAX];
    struct xdr_out out;
    uint8_t *reply;
    uint32_t known_count;
    struct nfs_mapping known[KNOWN_MAX]; /* what it has */
};

/* ---- Calls ---- */

static void begin(struct dialogue *d, uint32_t procedure)
{
    d->out = xdr_into(d->call, sizeof(d->call));
    xdr_put_u32(&d->out, 0); /* the mark */
    rpc_call_begin(&d->out, ++d->xid, RPC_PROGRAM_PORTMAP, d->local ? 3 : 2, procedure);
}

/* ret: at the results, in d->reply. Replies in more than one fragment are put together. */
MUST_CHECK static int ask(struct dialogue *d, struct xdr *ret) may_yield
{
    uint64_t until = reactor_now_ns() + TIMEOUT;
    uint32_t len = 0;
    bool last = false;
    assert(!d->out.full);
    xdr_set_u32(&d->out, 0, (d->out.len - 4) | RPC_FRAGMENT_LAST);
    int err = stream_send_all(d->stream, d->out.data, d->out.len, until);
    while (err == 0 && !last) {
        struct be32 mark;
        err = stream_recv_all(d->stream, &mark, sizeof(mark), until);
        if (err != 0)
            return err;
        uint32_t n = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        last = (be32_get(mark) & RPC_FRAGMENT_LAST) != 0;
        if (n > REPLY_MAX - len)
            return ERR_PROTOCOL;
        if (n > 0)
            err = stream_recv_all(d->stream, d->reply + len, n, until);
        len += n;
    }
    if (err != 0)
        return err;
    *ret = xdr_over(d->reply, len);
    return rpc_reply_decode(ret, d->xid);
}

/* SET or UNSET of one mapping on one network. */
MUST_CHECK static int tell_one(struct dialogue *d, const struct nfs_mapping *m, bool set, bool v6,
                               bool *ret_answer) may_yield
{
    static const char *const nets[2][2] = {{"tcp", "tcp6"}, {"udp", "udp6"}};
    struct xdr x;
    static_assert((int)RPCB_SET == (int)PMAP_SET && (int)RPCB_UNSET == (int)PMAP_UNSET, "the same numbers");
    begin(d, set ? RPCB_SET : RPCB_UNSET);
    xdr_put_u32(&d->out, m->program);
    xdr_put_u32(&d->out, m->version);
    if (d->local) {
        const char *net = nets[m->udp][v6];
        xdr_put_opaque(&d->out, net, (uint32_t)strlen(net));
        nfs_put_universal(&d->out, "", v6, m->port);
        xdr_put_opaque(&d->out, "superuser", 9);
    } else {
        xdr_put_u32(&d->out, m->udp ? PMAP_UDP : PMAP_TCP);
        xdr_put_u32(&d->out, m->port);
    }
    int err = ask(d, &x);
    if (err != 0)
        return err;
    bool answer = xdr_bool(&x);
    if (x.bad)
        return ERR_PROTOCOL;
    *ret_answer = answer;
    return 0;
}

/* On the networks of both families; true: one of them took it. */
MUST_CHECK static int tell(struct dialogue *d, const struct nfs_mapping *m, bool set, bool *ret_answer)
    may_yield
{
    bool any = false;
    for (int v6 = 0; v6 < (d->local ? 2 : 1); v6++) {
        bool answer;
        int err = tell_one(d, m, set, v6, &answer);
        if (err != 0)
            return err;
        any |= answer;
    }
    *ret_answer = any;
    return 0;
}

/* ---- What it has ---- */

static bool text_is(const uint8_t *p, uint32_t len, const char *text)
{
    return p != NULL && len == strlen(text) && memcmp(p, text, len) == 0;
}

/* The port in "0.0.0.0.8.1"; 0: none. */
static uint16_t port_of(const uint8_t *p, uint32_t len)
{
    char text[80];
    if (p == NULL || len >= sizeof(text))
        return 0;
    memcpy(text, p, len);
    text[len] = '\0';
    char *low = strrchr(text, '.');
    if (low == NULL)
        return 0;
    *low++ = '\0';
    char *high = strrchr(text, '.');
    if (high == NULL)
        return 0;
    return (uint16_t)(strtoul(high + 1, NULL, 10) << 8 | (strtoul(low, NULL, 10) & 0xff));
}

MUST_CHECK static int learn(struct dialogue *d) may_yield
{
    struct xdr x;
    static_assert((int)RPCB_DUMP == (int)PMAP_DUMP, "the same number");
    begin(d, RPCB_DUMP);
    int err = ask(d, &x);
    if (err != 0)
        return err;
    while (xdr_bool(&x) && d->known_count < KNOWN_MAX) {
        struct nfs_mapping m = {.program = xdr_u32(&x), .version = xdr_u32(&x)};
        bool wanted;
        if (d->local) {
            uint32_t net_len, address_len, owner_len;
            const uint8_t *net = xdr_opaque(&x, 128, &net_len);
            const uint8_t *address = xdr_opaque(&x, 256, &address_len);
            xdr_opaque(&x, 256, &owner_len);
            m.udp = text_is(net, net_len, "udp");
            m.port = port_of(address, address_len);
            wanted = m.udp || text_is(net, net_len, "tcp");
        } else {
            uint32_t protocol = xdr_u32(&x);
            m.udp = protocol == PMAP_UDP;
            m.port = (uint16_t)xdr_u32(&x);
            wanted = m.udp || protocol == PMAP_TCP;
        }
        if (wanted && !x.bad)
            d->known[d->known_count++] = m;
    }
    return x.bad ? ERR_PROTOCOL : 0;
}

/* Where it says that this program is; 0: nowhere. */
static uint16_t known_port(const struct dialogue *d, const struct nfs_mapping *m)
{
    for (uint32_t i = 0; i < d->known_count; i++) {
        const struct nfs_mapping *k = &d->known[i];
        if (k->program == m->program && k->version == m->version && k->udp == m->udp)
            return k->port;
    }
    return 0;
}

/* Is somebody there? By UDP that cannot be asked: who has a TCP port as well is asked there, and otherwise
 * the machine's own programs are believed. */
static bool answers(const struct dialogue *d, const struct nfs_mapping *m, uint16_t port) may_yield
{
    char address[32];
    struct stream *t;
    if (m->udp) {
        struct nfs_mapping tcp = *m;
        tcp.udp = false;
        port = known_port(d, &tcp);
        if (port == 0)
            return m->local;
    }
    snprintf(address, sizeof(address), "tcp:127.0.0.1:%u", port);
    if (stream_connect(address, reactor_now_ns() + TIMEOUT, &t) != 0)
        return false;
    fiber_shield();
    stream_close(t);
    fiber_unshield();
    return true;
}

/* ---- Registering ---- */

MUST_CHECK static int set_one(struct dialogue *d, const struct nfs_mapping *m) may_yield
{
    uint16_t port = known_port(d, m);
    bool answer;
    if (port == m->port)
        return 0;
    if (port != 0 && answers(d, m, port))
        return m->local ? 0 : ERR_EXISTS;
    int err = port != 0 ? tell(d, m, false, &answer) : 0;
    if (err == 0)
        err = tell(d, m, true, &answer);
    if (err == 0 && !answer)
        err = ERR_DENIED;
    return err;
}

MUST_CHECK static int tell_all(struct nfs_server *s, struct dialogue *d, bool set) may_yield
{
    struct nfs_mapping all[NFS_MAPPINGS_MAX];
    uint32_t n = nfs_mappings(s, all);
    int err = learn(d);
    for (uint32_t i = 0; i < n && err == 0; i++) {
        bool answer;
        if (all[i].program == RPC_PROGRAM_PORTMAP)
            continue;
        if (set)
            err = set_one(d, &all[i]);
        else if (known_port(d, &all[i]) == all[i].port)
            err = tell(d, &all[i], false, &answer);
    }
    return err;
}

int nfs_register(struct nfs_server *s, bool set)
{
    struct dialogue *d = calloc(1, sizeof(*d));
    if (d == NULL || (d->reply = malloc(REPLY_MAX)) == NULL) {
        free(d);
        return ERR_NO_MEMORY;
    }
    uint64_t until = reactor_now_ns() + TIMEOUT;
    d->local = true;
    int err = stream_connect(LOCAL, until, &d->stream);
    if (err != 0) {
        d->local = false;
        err = stream_connect(REMOTE, until, &d->stream);
    }
    if (err == 0) {
        err = tell_all(s, d, set);
        fiber_shield();
        stream_close(d->stream);
        fiber_unshield();
    }
    free(d->reply);
    free(d);
    return err;
}
