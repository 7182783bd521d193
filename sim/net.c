/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of the simulated world: byte streams between nodes, as TCP gives them.
 *
 * A connection is a pair of ends. What one end sends becomes a packet event; packets of one direction arrive
 * in order (the arrival of each is not before that of its predecessor), those of different connections
 * overtake each other. A partition holds packets back until it is healed, as retransmission does. An end
 * whose process was killed resets its peer; one that lost its power says nothing: the peer learns when it
 * sends and the node is up again.
 *
 *      OPEN --peer's stream_close, stream_shutdown--> end of stream after what was sent (ERR_CLOSED)
 *        |--------------- reset, peer's death --------> ERR_CLOSED at once, sent data may be lost
 *
 * A sender waits while more than WINDOW_BYTES are under way or unread.
 */
#include "sim/world_internal.h"

#include "runtime/error.h"

#include <inttypes.h>
#include <stdio.h>

#include "sim/alloc.h"

#define WINDOW_BYTES (256 * KIB)
#define BACKLOG_MAX  64u

struct sim_stream {
    struct stream base;
    struct list link; /* sim.streams */
    struct list accept_link;
    struct sim_node *node; /* whose end this is */
    uint64_t boot;
    struct sim_stream *peer; /* NULL once it is gone */
    uint8_t *buffer;         /* received, not read */
    size_t buffer_start, buffer_end, buffer_capacity;
    size_t under_way; /* bytes sent to this end that have not arrived */
    uint64_t last_arrival_ns;
    bool end;    /* the peer sends no more: ERR_CLOSED once the buffer is empty */
    bool broken; /* reset, or shut down here */
    bool closed; /* by its owner: freed when nothing is under way to it */
    struct fiber *receiver, *sender;
    struct list held; /* packets that a partition holds back */
};

struct sim_packet {
    struct sim_event event;
    struct list link; /* sim_stream.held */
    struct sim_stream *to;
    size_t len; /* 0: end of stream */
    bool reset;
    uint8_t data[];
};

struct sim_listener {
    struct listener base;
    struct list link; /* sim.listeners */
    struct sim_node *node;
    uint64_t boot;
    struct list backlog; /* struct sim_stream.accept_link */
    uint32_t backlog_count;
    struct waitq waiters;
    bool closed;
};

static bool end_alive(const struct sim_stream *e)
{
    return e->node->alive && e->node->boot == e->boot;
}

/* Wakes fibers of a stream's end from the loop or from another node's fiber. */
static void end_wake(struct sim_stream *e)
{
    if (!end_alive(e) || (e->receiver == NULL && e->sender == NULL))
        return;
    struct reactor *mine = e->base.reactor;
    bool outside = reactor_current() == NULL;
    assert(outside || reactor_current() == mine);
    if (outside)
        reactor_enter(mine);
    if (e->receiver != NULL)
        fiber_wake(e->receiver);
    if (e->sender != NULL)
        fiber_wake(e->sender);
    if (outside)
        reactor_enter(NULL);
    sim_mark_turn(mine);
}

static void end_break(struct sim_stream *e)
{
    e->broken = true;
    end_wake(e);
}

/* ---- Packets ---- */

static void packet_arrive(struct sim_packet *p)
{
    struct sim_stream *to = p->to;
    assert(to->under_way >= p->len);
    to->under_way -= p->len;
    if (p->reset || to->closed || !end_alive(to)) {
        /* A node that is up answers what it does not know with a reset; one that is down says nothing. */
        if (!p->reset && to->peer != NULL && to->node->alive)
            end_break(to->peer);
        to->broken = true;
        to->peer = NULL;
    } else if (p->len == 0) {
        to->end = true;
    } else if (!to->broken) {
        if (to->buffer_end + p->len > to->buffer_capacity) {
            size_t have = to->buffer_end - to->buffer_start;
            uint8_t *buffer = malloc(have + p->len);
            assert(buffer != NULL);
            if (have > 0)
                memcpy(buffer, to->buffer + to->buffer_start, have);
            free(to->buffer);
            to->buffer = buffer;
            to->buffer_start = 0;
            to->buffer_end = have;
            to->buffer_capacity = have + p->len;
        }
        memcpy(to->buffer + to->buffer_end, p->data, p->len);
        to->buffer_end += p->len;
    }
    end_wake(to);
    free(p);
}

static void packet_due(struct sim_event *e)
{
    struct sim_packet *p = CONTAINER_OF(e, struct sim_packet, event);
    struct sim_stream *to = p->to;
    struct sim *s = to->node->sim;
    uint32_t from = to->peer != NULL ? to->peer->node->index : to->node->index;
    if (to->peer != NULL && s->partitioned[from][to->node->index]) {
        list_append(&to->held, &p->link);
        return;
    }
    if (!list_empty(&to->held)) { /* in order */
        list_append(&to->held, &p->link);
        return;
    }
    sim_trace(s, "packet", p->reset ? "reset" : "data", to->node->index, p->len, 0);
    packet_arrive(p);
}

static void packet_send(struct sim_stream *from, const uint8_t *data, size_t len, bool reset)
{
    struct sim_stream *to = from->peer;
    struct sim *s = from->node->sim;
    if (to == NULL)
        return;
    struct sim_packet *p = calloc(1, sizeof(*p) + len);
    assert(p != NULL);
    p->to = to;
    p->len = len;
    p->reset = reset;
    p->event.fn = packet_due;
    if (len > 0)
        memcpy(p->data, data, len);
    to->under_way += len;
    uint64_t latency = sim_draw_latency_ns(s, from->node == to->node ? 10 : s->o.net_latency_us);
    if (latency > 5 * NSEC_PER_USEC * s->o.net_latency_us)
        sim_count_fault(s, SIM_FAULT_NET_DELAY);
    to->last_arrival_ns = MAX(to->last_arrival_ns + 1, s->now_ns + latency);
    /* No node: a packet outlives its sender. */
    sim_event_post(s, &p->event, to->last_arrival_ns, NULL);
}

static void held_release(struct sim_stream *e)
{
    struct list *l;
    while ((l = list_pop(&e->held)) != NULL)
        packet_arrive(CONTAINER_OF(l, struct sim_packet, link));
}

void sim_partition(struct sim *s, uint32_t from, uint32_t to, bool cut)
{
    assert(from < s->node_count && to < s->node_count && reactor_current() == NULL);
    if (cut && !s->partitioned[from][to])
        sim_count_fault(s, SIM_FAULT_NET_PARTITION);
    s->partitioned[from][to] = cut;
    sim_trace(s, "partition", cut ? "cut" : "heal", from, to, 0);
    LIST_FOREACH_SAFE (&s->streams, l) {
        struct sim_stream *e = CONTAINER_OF(l, struct sim_stream, link);
        if (!cut && e->node->index == to && e->peer != NULL && e->peer->node->index == from)
            held_release(e);
    }
}

void sim_reset_connections(struct sim *s, uint32_t a, uint32_t b)
{
    assert(reactor_current() == NULL);
    sim_count_fault(s, SIM_FAULT_NET_RESET);
    sim_trace(s, "net-reset", "", a, b, 0);
    LIST_FOREACH_SAFE (&s->streams, l) {
        struct sim_stream *e = CONTAINER_OF(l, struct sim_stream, link);
        if (e->peer != NULL && e->node->index == a && e->peer->node->index == b) {
            end_break(e->peer);
            end_break(e);
        }
    }
}

void sim_net_crash(struct sim_node *n, bool silent)
{
    LIST_FOREACH_SAFE (&n->sim->listeners, l) {
        struct sim_listener *sl = CONTAINER_OF(l, struct sim_listener, link);
        if (sl->node == n)
            list_remove(&sl->link);
    }
    LIST_FOREACH_SAFE (&n->sim->streams, l) {
        struct sim_stream *e = CONTAINER_OF(l, struct sim_stream, link);
        if (e->node != n || e->boot != n->boot)
            continue;
        if (!silent)
            packet_send(e, NULL, 0, true);
        list_remove(&e->link); /* abandoned with its process */
    }
}

/* ---- Ends ---- */

static struct sim_stream *end_new(struct reactor *r, const char *peer, const char *ip)
{
    struct sim_node *n = sim_node_of(r);
    struct sim_stream *e = calloc(1, sizeof(*e));
    assert(e != NULL);
    e->base.reactor = r;
    e->base.ops = &sim_world_ops;
    snprintf(e->base.peer, sizeof(e->base.peer), "%s", peer);
    snprintf(e->base.peer_ip, sizeof(e->base.peer_ip), "%s", ip);
    e->node = n;
    e->boot = n->boot;
    list_init(&e->accept_link);
    list_init(&e->held);
    list_append(&n->sim->streams, &e->link);
    return e;
}

int may_yield sim_op_stream_recvv(struct stream *s, const struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                                  size_t *ret_len)
{
    struct sim_stream *e = CONTAINER_OF(s, struct sim_stream, base);
    while (e->buffer_start == e->buffer_end || e->broken) {
        if (e->broken || e->end)
            return ERR_CLOSED;
        e->receiver = fiber_self();
        int err = fiber_park(deadline_ns);
        e->receiver = NULL;
        if (err != 0)
            return err;
    }
    size_t have = e->buffer_end - e->buffer_start;
    /* Sometimes less than there is: whoever expects whole messages learns it here. */
    if (have > 1 && sim_random_below(&e->node->sim->random, 4) == 0)
        have = sim_random_between(&e->node->sim->random, 1, have);
    size_t len = 0;
    for (uint32_t k = 0; k < n && len < have; k++) {
        size_t part = MIN(iov[k].iov_len, have - len);
        memcpy(iov[k].iov_base, e->buffer + e->buffer_start + len, part);
        len += part;
    }
    e->buffer_start += len;
    *ret_len = len;
    return 0;
}

int may_yield sim_op_stream_sendv(struct stream *s, struct iovec *iov, uint32_t n, uint64_t deadline_ns)
{
    struct sim_stream *e = CONTAINER_OF(s, struct sim_stream, base);
    struct sim *sim = e->node->sim;
    for (uint32_t k = 0; k < n; k++) {
        const uint8_t *data = iov[k].iov_base;
        for (size_t left = iov[k].iov_len; left > 0;) {
            if (e->broken || e->peer == NULL)
                return ERR_CLOSED;
            size_t queued = e->peer->under_way + e->peer->buffer_end - e->peer->buffer_start;
            if (queued >= WINDOW_BYTES) {
                /* Asks again after a round trip, as a zero-window probe does. */
                uint64_t again = sim->now_ns + sim_draw_latency_ns(sim, sim->o.net_latency_us);
                e->sender = fiber_self();
                int err = fiber_park(MIN(again, deadline_ns));
                e->sender = NULL;
                if (err == ERR_TIMEOUT && reactor_now_ns() < deadline_ns)
                    err = 0;
                if (err != 0)
                    return err;
                continue;
            }
            size_t most = sim_random_between(&sim->random, 1, 64 * KIB);
            size_t part = MIN(left, most);
            packet_send(e, data, part, false);
            data += part;
            left -= part;
        }
    }
    return 0;
}

void sim_op_stream_shutdown(struct stream *s)
{
    struct sim_stream *e = CONTAINER_OF(s, struct sim_stream, base);
    if (e->broken)
        return;
    packet_send(e, NULL, 0, false);
    end_break(e);
}

/* Ends stay in memory: packets may still be under way to them. */
void sim_op_stream_close(struct stream *s)
{
    struct sim_stream *e = CONTAINER_OF(s, struct sim_stream, base);
    assert(e->receiver == NULL && e->sender == NULL);
    if (!e->broken)
        packet_send(e, NULL, 0, false);
    e->broken = e->closed = true;
    free(e->buffer);
    e->buffer = NULL;
    e->buffer_start = e->buffer_end = e->buffer_capacity = 0;
    list_remove(&e->link);
}

/* ---- Listeners ---- */

static struct sim_listener *listener_find(struct sim *s, struct sim_node *from, const char *address)
{
    LIST_FOREACH (&s->listeners, l) {
        struct sim_listener *sl = CONTAINER_OF(l, struct sim_listener, link);
        bool local = strncmp(address, "unix:", 5) == 0;
        if (!sl->closed && strcmp(sl->base.address, address) == 0 && (!local || sl->node == from))
            return sl;
    }
    return NULL;
}

int sim_op_listener_open(struct reactor *r, const char *address, struct listener **ret)
{
    struct sim_node *n = sim_node_of(r);
    if (strlen(address) >= WORLD_ADDRESS_SIZE)
        return ERR_SYS(ENAMETOOLONG);
    if (listener_find(n->sim, n, address) != NULL)
        return ERR_SYS(EADDRINUSE);
    struct sim_listener *l = calloc(1, sizeof(*l));
    assert(l != NULL);
    l->base.reactor = r;
    l->base.ops = &sim_world_ops;
    snprintf(l->base.address, sizeof(l->base.address), "%s", address);
    l->node = n;
    l->boot = n->boot;
    list_init(&l->backlog);
    waitq_init(&l->waiters);
    list_append(&n->sim->listeners, &l->link);
    sim_trace(n->sim, "listen", address, n->index, 0, 0);
    *ret = &l->base;
    return 0;
}

void sim_op_listener_close(struct listener *base)
{
    struct sim_listener *l = CONTAINER_OF(base, struct sim_listener, base);
    l->closed = true;
    list_remove(&l->link);
    struct list *a;
    while ((a = list_pop(&l->backlog)) != NULL) {
        struct sim_stream *e = CONTAINER_OF(a, struct sim_stream, accept_link);
        packet_send(e, NULL, 0, true);
        e->broken = e->closed = true;
        list_remove(&e->link);
    }
    waitq_wake_all(&l->waiters);
}

int may_yield sim_op_listener_accept(struct listener *base, struct stream **ret)
{
    struct sim_listener *l = CONTAINER_OF(base, struct sim_listener, base);
    while (list_empty(&l->backlog)) {
        if (l->closed)
            return ERR_CLOSED;
        int err = waitq_wait(&l->waiters, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    struct list *a = list_pop(&l->backlog);
    l->backlog_count--;
    *ret = &CONTAINER_OF(a, struct sim_stream, accept_link)->base;
    return 0;
}

/* The connection request arrives at the listener's node: an event, since that is another reactor. */
struct sim_connect {
    struct sim_event event;
    struct sim_stream *from;
    char address[WORLD_ADDRESS_SIZE];
    struct fiber *waiter;
    int result;
    bool answered;
};

static void connect_answer(struct sim_connect *c, int result)
{
    c->result = result;
    c->answered = true;
    if (!end_alive(c->from) || c->waiter == NULL)
        return;
    reactor_enter(c->from->base.reactor);
    fiber_wake(c->waiter);
    reactor_enter(NULL);
    sim_mark_turn(c->from->base.reactor);
}

static void connect_due(struct sim_event *event)
{
    struct sim_connect *c = CONTAINER_OF(event, struct sim_connect, event);
    struct sim_stream *from = c->from;
    struct sim *s = from->node->sim;
    struct sim_listener *l = listener_find(s, from->node, c->address);
    if (c->waiter == NULL) { /* gave up meanwhile */
        free(c);
        return;
    }
    if (l != NULL && (s->partitioned[from->node->index][l->node->index] ||
                      s->partitioned[l->node->index][from->node->index])) {
        sim_event_post(s, &c->event, s->now_ns + sim_draw_latency_ns(s, 1000 + s->o.net_latency_us), NULL);
        return;
    }
    if (l == NULL || l->backlog_count >= BACKLOG_MAX) {
        connect_answer(c, ERR_SYS(ECONNREFUSED));
        return;
    }
    char peer[WORLD_ADDRESS_SIZE], ip[48];
    bool local = strncmp(c->address, "unix:", 5) == 0;
    snprintf(ip, sizeof(ip), "10.0.0.%" PRIu32, from->node->index + 1);
    snprintf(peer, sizeof(peer), "tcp:%s:%" PRIu64, ip, 40000 + s->events % 20000);
    struct sim_stream *to = end_new(l->base.reactor, local ? "unix:" : peer, local ? "" : ip);
    to->peer = from;
    from->peer = to;
    list_append(&l->backlog, &to->accept_link);
    l->backlog_count++;
    sim_trace(s, "connect", c->address, from->node->index, l->node->index, 0);
    reactor_enter(l->base.reactor);
    waitq_wake_one(&l->waiters);
    reactor_enter(NULL);
    sim_mark_turn(l->base.reactor);
    connect_answer(c, 0);
}

int may_yield sim_op_stream_connect(struct reactor *r, const char *address, uint64_t deadline_ns,
                                    struct stream **ret)
{
    struct sim_node *n = sim_node_of(r);
    struct sim *s = n->sim;
    bool local = strncmp(address, "unix:", 5) == 0;
    if (strlen(address) >= WORLD_ADDRESS_SIZE)
        return ERR_SYS(ENAMETOOLONG);
    struct sim_connect *c = calloc(1, sizeof(*c));
    assert(c != NULL);
    char ip[48] = "";
    if (!local) { /* "tcp:HOST:PORT" */
        const char *colon = strrchr(address, ':');
        size_t len = colon != NULL && colon > address + 4 ? (size_t)(colon - address - 4) : 0;
        memcpy(ip, address + 4, MIN(len, sizeof(ip) - 1));
    }
    c->from = end_new(r, local ? "unix:" : address, ip);
    snprintf(c->address, sizeof(c->address), "%s", address);
    c->event.fn = connect_due;
    c->waiter = fiber_self();
    sim_event_post(s, &c->event, s->now_ns + sim_draw_latency_ns(s, local ? 10 : s->o.net_latency_us), NULL);
    int err = 0;
    while (!c->answered && err == 0)
        err = fiber_park(deadline_ns);
    if (!c->answered) {
        c->waiter = NULL; /* connect_due() frees it */
        list_remove(&c->from->link);
        return err;
    }
    struct sim_stream *e = c->from;
    int result = c->result;
    free(c);
    if (result != 0) {
        list_remove(&e->link);
        free(e);
        return result;
    }
    *ret = &e->base;
    return 0;
}
