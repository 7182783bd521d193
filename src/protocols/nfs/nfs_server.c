/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the server
 *
 * Home is the reactor on which the server was started. The registry of exports lives there, and listeners
 * accept there. Each reactor that has a file system, and home, has a shard: its connections, its pools of
 * calls, its table of exports, its cache of replies. A new connection begins in home's shard and moves to
 * that of the file system which its first handle names (nfs_connection.c).
 *
 *    listener -> connection (home: MOUNT, the first calls) --a handle--> connection (shard of its file
 * system)
 *
 * Invariants
 *  N1  shards live as long as the server: who has an export or a connection may follow it to its shard;
 *  N2  stopping ends connections before exports: a client never hears that a file is gone because the server
 *      goes.
 */
#include "protocols/nfs/nlm.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdio.h>
#include <stdlib.h>

#define REACTOR_BYTES_MIN (8 * MIB)
#define ACCEPT_PAUSE      (20 * NSEC_PER_MSEC)
#define WARN_PAUSE        (10 * NSEC_PER_SEC)
#define ROOM_POLL         NSEC_PER_MSEC
#define ROOM_POLLS        50
/* Above the limit, while those that make room are on their way out. */
#define CONNECTIONS_BESIDE 16u
#define DATAGRAM_MAX       8192u

#define DEFAULT(field, value)   \
    do {                        \
        if (l->field == 0)      \
            l->field = (value); \
    } while (0)

static void limits_fill_in(struct nfs_limits *l)
{
    DEFAULT(connections, NFS_CONNECTIONS_MAX);
    DEFAULT(requests, 256);
    DEFAULT(connection_bytes, 16 * MIB);
    DEFAULT(reactor_bytes, 64 * MIB);
    DEFAULT(stall_ns, 10 * NSEC_PER_SEC);
    DEFAULT(drain_ns, 5 * NSEC_PER_SEC);
    l->reactor_bytes = MAX(l->reactor_bytes, REACTOR_BYTES_MIN); /* the longest request must fit */
}

/* ---- Shards ---- */

int nfs_shard_get(struct nfs_server *s, struct reactor *r, struct nfs_shard **ret)
{
    LIST_FOREACH (&s->shards, l) {
        struct nfs_shard *shard = CONTAINER_OF(l, struct nfs_shard, link);
        if (shard->reactor == r) {
            *ret = shard;
            return 0;
        }
    }
    struct nfs_shard *shard = calloc(1, sizeof(*shard));
    if (shard == NULL)
        return ERR_NO_MEMORY;
    int err = nfs_replies_new(&shard->replies);
    if (err != 0) {
        free(shard);
        return err;
    }
    shard->server = s;
    shard->reactor = r;
    list_init(&shard->connections);
    list_init(&shard->free_calls);
    list_init(&shard->free_payloads);
    list_init(&shard->lock_waits);
    waitq_init(&shard->lock_wait_ended);
    waitq_init(&shard->room);
    waitq_init(&shard->left);
    list_append(&s->shards, &shard->link);
    *ret = shard;
    return 0;
}

static void shard_free(struct nfs_shard *shard)
{
    assert(list_empty(&shard->connections) && shard->admitted_bytes == 0 && list_empty(&shard->lock_waits));
    for (struct list *l; (l = list_pop(&shard->free_calls)) != NULL;)
        free(CONTAINER_OF(l, struct nfs_call, link));
    for (struct list *l; (l = list_pop(&shard->free_payloads)) != NULL;)
        free(CONTAINER_OF(l, struct nfs_payload, link));
    nfs_replies_free(shard->replies);
    free(shard->table);
    free(shard);
}

/* At the shard: everybody out. */
static int shard_drain(void *arg) may_yield
{
    struct nfs_shard *shard = arg;
    uint64_t until = reactor_now_ns() + shard->server->limits.drain_ns;
    fiber_shield();
    LIST_FOREACH_SAFE (&shard->connections, l)
        nfs_connection_drain(CONTAINER_OF(l, struct nfs_connection, link));
    while (!list_empty(&shard->connections)) {
        if (waitq_wait(&shard->left, until) != ERR_TIMEOUT)
            continue;
        LIST_FOREACH_SAFE (&shard->connections, l)
            nfs_connection_break(CONTAINER_OF(l, struct nfs_connection, link));
        until = DEADLINE_NEVER; /* what is under way in the file system must end */
    }
    nlm_wait_end_all(shard, 0);
    fiber_unshield();
    return 0;
}

/* ---- Life ---- */

void nfs_server_add_program(struct nfs_server *s, const struct rpc_program *p)
{
    assert(s->program_count < NFS_PROGRAMS_MAX && list_empty(&s->listeners));
    s->programs[s->program_count++] = p;
}

int nfs_server_start(const struct nfs_server_options *o, struct nfs_server **ret)
{
    struct nfs_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    s->home = reactor_current();
    s->limits = o->limits;
    limits_fill_in(&s->limits);
    list_init(&s->listeners);
    list_init(&s->exports);
    list_init(&s->shards);
    list_init(&s->mounts);
    fmutex_init(&s->registry);
    int err = nfs_shard_get(s, s->home, &s->home_shard);
    if (err != 0) {
        free(s);
        return err;
    }
    nfs_server_add_program(s, &nfs3_program);
    nfs_server_add_program(s, &mount3_program);
    nfs_server_add_program(s, &nlm_program);
    nfs_server_add_program(s, &nsm_program);
    *ret = s;
    return 0;
}

static void close_listeners(struct nfs_server *s) may_yield
{
    for (struct list *link; (link = list_pop(&s->listeners)) != NULL;) {
        struct nfs_listener *l = CONTAINER_OF(link, struct nfs_listener, link);
        fiber_cancel(l->fiber);
        fiber_join(l->fiber);
        if (l->listener != NULL)
            listener_close(l->listener);
        else
            datagram_close(l->datagrams);
        free(l);
    }
}

void nfs_server_stop(struct nfs_server *s)
{
    assert(reactor_current() == s->home && !s->stopping);
    fiber_shield();
    if (s->registered) {
        int err = nfs_register(s, false);
        if (err != 0)
            LOG_WARNING("nfs: rpcbind still tells our port: %s", error_text(err));
    }
    s->stopping = true;
    close_listeners(s);
    /* N2. Twice: a connection may have been on its way from one shard to another. */
    for (int i = 0; i < 2; i++) {
        LIST_FOREACH (&s->shards, l) {
            struct nfs_shard *shard = CONTAINER_OF(l, struct nfs_shard, link);
            int err = reactor_call(shard->reactor, shard_drain, shard);
            assert(err == 0);
        }
    }
    while (!list_empty(&s->exports)) {
        int err = nfs_server_remove_export(s, CONTAINER_OF(s->exports.next, struct nfs_export, link)->path);
        assert(err == 0);
    }
    fiber_unshield();
    for (struct list *l; (l = list_pop(&s->shards)) != NULL;)
        shard_free(CONTAINER_OF(l, struct nfs_shard, link));
    for (struct list *l; (l = list_pop(&s->mounts)) != NULL;)
        free(CONTAINER_OF(l, struct nfs_mount, link));
    free(s);
}

/* ---- Listeners ---- */

void nfs_peer_init(struct nfs_peer *p, const char *text, const char *ip)
{
    memset(p, 0, sizeof(*p));
    p->local = ip[0] == '\0';
    memcpy(p->ip, ip, strnlen(ip, sizeof(p->ip) - 1));
    const char *port = strrchr(text, ':');
    if (port != NULL && !p->local)
        p->port = (uint16_t)strtoul(port + 1, NULL, 10);
    if (!p->local && network_address_parse(ip, p->address) != 0)
        memset(p->address, 0, sizeof(p->address));
}

static uint32_t connection_count(const struct nfs_server *s)
{
    return __atomic_load_n(&s->connections, __ATOMIC_RELAXED);
}

struct idlest {
    struct nfs_shard *shard;
    uint64_t rank;
};

static int idlest_there(void *arg)
{
    struct idlest *q = arg;
    q->rank = nfs_connection_idle_rank(q->shard);
    return 0;
}

static int evict_there(void *arg)
{
    struct idlest *q = arg;
    return nfs_connection_evict_idle(q->shard) ? 0 : ERR_NOT_FOUND;
}

/* Of all shards: connections leave home with their first handle, so those that rest are elsewhere. Asked one
 * after the other, the answers may be a moment old. */
static void evict_idlest(struct nfs_server *s) may_yield
{
    struct idlest best = {.rank = UINT64_MAX};
    LIST_FOREACH (&s->shards, l) {
        struct idlest q = {.shard = CONTAINER_OF(l, struct nfs_shard, link)};
        int err = reactor_call(q.shard->reactor, idlest_there, &q); /* N1: shards stay */
        if (err == 0 && q.rank < best.rank)
            best = q;
    }
    if (best.shard != NULL && reactor_call(best.shard->reactor, evict_there, &best) != 0)
        LOG_DEBUG("nfs: the connection that was to make room has gone, or is busy again");
}

/* Room for one more: whoever is idle longest goes. Going takes a moment, which a newcomer waits for only if
 * many came at once. */
static void make_room(struct nfs_server *s) may_yield
{
    if (connection_count(s) < s->limits.connections)
        return;
    evict_idlest(s);
    for (int i = 0; i < ROOM_POLLS && connection_count(s) >= s->limits.connections + CONNECTIONS_BESIDE; i++)
        if (fiber_sleep(ROOM_POLL) != 0)
            return;
}

static void accepted(struct nfs_server *s, struct stream *stream) may_yield
{
    struct nfs_connection_start o = {.shard = s->home_shard, .stream = stream};
    s->accepted++;
    rpc_record_init(&o.record);
    make_room(s);
    int err = ERR_TOO_MANY_CLIENTS;
    if (connection_count(s) < s->limits.connections + CONNECTIONS_BESIDE) {
        __atomic_fetch_add(&s->connections, 1, __ATOMIC_RELAXED);
        err = nfs_connection_begin(&o);
        if (err != 0)
            __atomic_fetch_sub(&s->connections, 1, __ATOMIC_RELAXED);
    }
    if (err == 0)
        return;
    s->refused++;
    fiber_shield();
    stream_close(stream);
    fiber_unshield();
}

static void listener_run(void *arg) may_yield
{
    struct nfs_listener *l = arg;
    for (;;) {
        struct stream *stream;
        int err = listener_accept(l->listener, &stream);
        if (err == ERR_CLOSED || err == ERR_CANCELLED)
            return;
        if (err == ERR_SYS(ECONNABORTED))
            continue; /* the client was gone again before its turn came */
        if (err == 0) {
            accepted(l->server, stream);
            continue;
        }
        /* Out of descriptors or memory: whoever is idle longest makes room. */
        if (reactor_now_ns() - l->warned_ns > WARN_PAUSE || l->warned_ns == 0)
            LOG_WARNING("nfs: %s: cannot accept: %s", listener_address(l->listener), error_text(err));
        l->warned_ns = reactor_now_ns();
        evict_idlest(l->server);
        if (fiber_sleep(ACCEPT_PAUSE) != 0)
            return;
    }
}

/* A call in a datagram, answered on the spot. */
static void datagram_serve(struct nfs_listener *l, const char *from, const uint8_t *data, size_t len)
    may_yield
{
    struct nfs_peer peer;
    char ip[48] = "?";
    const char *begin = from + 4, *end = strrchr(from, ':');
    if (*begin == '[' && end > begin + 1 && end[-1] == ']') {
        begin++;
        end--;
    }
    if (end > begin && (size_t)(end - begin) < sizeof(ip)) {
        memcpy(ip, begin, (size_t)(end - begin));
        ip[end - begin] = '\0';
    }
    nfs_peer_init(&peer, from, ip);
    struct nfs_call *call = nfs_call_new(l->server->home_shard, NULL, &peer);
    if (call == NULL)
        return; /* it will ask again */
    bool answer;
    if (nfs_call_begin(call, data, (uint32_t)len))
        answer = nfs_call_run(call);
    else
        answer = call->out.len > 0;
    if (answer) {
        int err = datagram_send(l->datagrams, from, call->out.data + 4, call->out.len - 4);
        (void)err; /* lost, as datagrams are */
    }
    nfs_call_free(call);
}

static void datagrams_run(void *arg) may_yield
{
    struct nfs_listener *l = arg;
    uint8_t *buf = malloc(DATAGRAM_MAX);
    if (buf == NULL) {
        LOG_ERROR("nfs: %s: no memory to receive", datagram_address(l->datagrams));
        return;
    }
    for (;;) {
        char from[WORLD_ADDRESS_SIZE];
        size_t len;
        int err = datagram_recv(l->datagrams, buf, DATAGRAM_MAX, DEADLINE_NEVER, &len, from);
        if (err == 0)
            datagram_serve(l, from, buf, len);
        else if (err == ERR_CANCELLED || fiber_sleep(ACCEPT_PAUSE) != 0)
            break;
    }
    free(buf);
}

static int listener_add(struct nfs_server *s, const char *address, bool datagrams, bool portmap) may_yield
{
    assert(reactor_current() == s->home && !s->stopping);
    struct nfs_listener *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return ERR_NO_MEMORY;
    l->server = s;
    l->portmap = portmap;
    int err = datagrams ? datagram_open(address, &l->datagrams) : listener_open(address, &l->listener);
    if (err == 0) {
        err = fiber_spawn_joinable("nfs listener", datagrams ? datagrams_run : listener_run, l, &l->fiber);
        if (err != 0 && datagrams)
            datagram_close(l->datagrams);
        else if (err != 0)
            listener_close(l->listener);
    }
    if (err != 0) {
        free(l);
        return err;
    }
    list_append(&s->listeners, &l->link);
    return 0;
}

/* The UDP port of the same number as the TCP port that was opened last. */
static int listener_add_udp(struct nfs_server *s, bool portmap) may_yield
{
    char address[WORLD_ADDRESS_SIZE];
    const char *bound = CONTAINER_OF(s->listeners.prev, struct nfs_listener, link)->listener->address;
    snprintf(address, sizeof(address), "udp:%.*s", (int)sizeof(address) - 5, bound + 4);
    return listener_add(s, address, true, portmap);
}

int nfs_server_listen(struct nfs_server *s, const char *address)
{
    int err = listener_add(s, address, false, false);
    if (err != 0 || strncmp(address, "tcp:", 4) != 0)
        return err;
    /* The status monitors of clients speak UDP; everything else works without it. */
    err = listener_add_udp(s, false);
    if (err != 0)
        LOG_WARNING("nfs: no UDP at %s: %s; clients that restart say so over TCP only", address,
                    error_text(err));
    return 0;
}

int nfs_server_listen_portmap(struct nfs_server *s, const char *host_port)
{
    char address[WORLD_ADDRESS_SIZE];
    bool known = false;
    for (uint32_t i = 0; i < s->program_count; i++)
        known |= s->programs[i] == &portmap_program;
    if (!known) {
        assert(s->program_count < NFS_PROGRAMS_MAX);
        s->programs[s->program_count++] = &portmap_program;
    }
    if (strlen(host_port) + 5 > sizeof(address))
        return ERR_INVALID;
    snprintf(address, sizeof(address), "tcp:%s", host_port);
    int err = listener_add(s, address, false, true);
    if (err != 0)
        return err;
    return listener_add_udp(s, true);
}

int nfs_server_register(struct nfs_server *s)
{
    assert(reactor_current() == s->home && !s->stopping);
    int err = nfs_register(s, true);
    if (err == 0)
        s->registered = true;
    return err;
}

const char *nfs_server_address(const struct nfs_server *s, uint32_t index)
{
    LIST_FOREACH (&s->listeners, link) {
        const struct nfs_listener *l = CONTAINER_OF(link, struct nfs_listener, link);
        if (l->listener != NULL && !l->portmap && index-- == 0)
            return listener_address(l->listener);
    }
    return NULL;
}

/* ---- Status ---- */

void nfs_server_get_status(const struct nfs_server *s, struct nfs_server_status *ret)
{
    *ret = (struct nfs_server_status){
        .connections = __atomic_load_n(&s->connections, __ATOMIC_RELAXED),
        .exports = s->export_count,
        .accepted = s->accepted,
        .refused = s->refused,
    };
    LIST_FOREACH (&s->shards, l) {
        const struct nfs_shard *shard = CONTAINER_OF(l, struct nfs_shard, link);
        ret->evicted += counter_get(&shard->evicted);
        ret->duplicates += counter_get(&shard->duplicates);
        ret->bad_handles += counter_get(&shard->bad_handles);
    }
}

struct client_list {
    struct nfs_shard *shard;
    struct nfs_client_status *out;
    uint32_t max, count;
};

static int list_there(void *arg)
{
    struct client_list *q = arg;
    uint64_t now = reactor_now_ns();
    LIST_FOREACH (&q->shard->connections, l) {
        const struct nfs_connection *c = CONTAINER_OF(l, struct nfs_connection, link);
        uint64_t idle = now > c->active_ns ? now - c->active_ns : 0;
        uint32_t i = 0;
        if (c->stream == NULL)
            continue; /* it has just moved */
        while (i < q->count && strcmp(q->out[i].ip, c->peer.ip) != 0)
            i++;
        if (i == q->max)
            continue;
        struct nfs_client_status *t = &q->out[i];
        if (i == q->count) {
            *t = (struct nfs_client_status){.idle_ns = idle};
            memcpy(t->ip, c->peer.ip, sizeof(t->ip));
            q->count++;
        }
        t->connections++;
        t->requests += c->requests;
        t->ops += c->ops;
        t->bytes_in += c->bytes_in;
        t->bytes_out += c->bytes_out;
        t->idle_ns = MIN(t->idle_ns, idle);
    }
    return 0;
}

uint32_t nfs_server_list_clients(struct nfs_server *s, struct nfs_client_status *ret, uint32_t max)
{
    struct client_list q = {.out = ret, .max = max};
    assert(reactor_current() == s->home);
    LIST_FOREACH (&s->shards, l) {
        q.shard = CONTAINER_OF(l, struct nfs_shard, link);
        int err = reactor_call(q.shard->reactor, list_there, &q);
        assert(err == 0);
    }
    return q.count;
}
