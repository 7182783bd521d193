/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the simulated world
 *
 * One thread, one loop (sim_run). It lets the reactors of all living nodes turn until none of them has
 * anything to do, then moves the clock to the next event (an I/O completion, a packet, a timer) and delivers
 * everything of that moment. Chance decides three things: how long each thing takes, in which order ready
 * fibers run, and in which order things of the same moment happen. All draws come from the seed.
 *
 * A turn costs 200 ns of virtual time, so that fibers which poll see time pass.
 *
 * A process dies between two turns. Its reactors are then never turned again (S3): their fibers stay parked
 * for ever on their stacks, their memory stays allocated. sim_node_cut_after() makes it die in the middle of
 * a turn as seen from outside: from the nth submission on nothing of it reaches the world.
 */
#include "sim/world_internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

#include <inttypes.h>
#include <stdarg.h>

#include "sim/alloc.h"

#define TURN_COST_NS UINT64_C(200)

const char *sim_fault_name(enum sim_fault f)
{
    static const char *const names[] = {
#define X(name, text) text,
        SIM_FAULTS(X)
#undef X
    };
    assert((size_t)f < ARRAY_SIZE(names));
    return names[f];
}

const char *sim_mutant_name(enum sim_mutant m)
{
    static const char *const names[] = {"none",       "no-sync",     "early-ack",  "no-dsync",
                                        "stale-read", "wrong-block", "change-torn"};
    static_assert(ARRAY_SIZE(names) == SIM_MUTANT_COUNT, "a name for each mutant");
    assert((size_t)m < ARRAY_SIZE(names));
    return names[m];
}

enum sim_mutant sim_mutant_of(const struct sim *s)
{
    return s->o.mutant;
}

struct sim *sim_new(const struct sim_options *o)
{
    struct sim *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    s->o = *o;
    assert(s->o.quantum_ns >= 1);
    sim_random_init(&s->random, o->seed, 1);
    sim_random_init(&s->entropy, o->seed, 2);
    s->now_ns = NSEC_PER_SEC; /* never 0, which some code takes for "not yet" */
    s->hash = o->seed;
    list_init(&s->listeners);
    list_init(&s->streams);
    list_init(&s->free_ios);
    return s;
}

struct sim_random *sim_random_of(struct sim *s)
{
    return &s->random;
}

uint64_t sim_now_ns(const struct sim *s)
{
    return s->now_ns;
}

/* ---- Trace ---- */

uint64_t sim_trace_hash(const struct sim *s)
{
    return s->hash;
}

uint64_t sim_event_count(const struct sim *s)
{
    return s->events;
}

bool sim_tracing(const struct sim *s)
{
    return s->o.trace;
}

static uint64_t hash_step(uint64_t h, uint64_t x)
{
    return hash_mix64(h ^ x) + (h << 7 | h >> 57);
}

void sim_trace(struct sim *s, const char *what, const char *text, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = hash_step(s->hash, s->now_ns);
    for (const char *p = what; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
    for (const char *p = text; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
    s->hash = hash_step(hash_step(hash_step(h, a), b), c);
    s->events++;
    if (s->o.trace)
        fprintf(s->o.trace_out, "%14.3f us  %-16s %-20s %" PRIu64 " %" PRIu64 " %" PRIx64 "\n",
                (double)s->now_ns / 1000.0, what, text, a, b, c);
}

void sim_note(struct sim *s, const char *fmt, ...)
{
    if (!s->o.trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(s->o.trace_out, "%14.3f us  # ", (double)s->now_ns / 1000.0);
    vfprintf(s->o.trace_out, fmt, ap);
    fputc('\n', s->o.trace_out);
    va_end(ap);
}

void sim_count_fault(struct sim *s, enum sim_fault f)
{
    assert(f < SIM_FAULT_COUNT);
    s->faults[f]++;
}

const uint64_t *sim_faults(const struct sim *s)
{
    return s->faults;
}

/* ---- Events: a binary heap by (time, drawn order) ---- */

static bool event_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->when_ns != b->when_ns ? a->when_ns < b->when_ns : a->order < b->order;
}

void sim_event_post(struct sim *s, struct sim_event *e, uint64_t when_ns, struct sim_node *node)
{
    assert(e->fn != NULL && when_ns >= s->now_ns);
    e->when_ns = when_ns;
    e->order = sim_random_u64(&s->random);
    e->node = node;
    e->boot = node != NULL ? node->boot : 0;
    if (s->heap_count + 1 >= s->heap_capacity) {
        s->heap_capacity = s->heap_capacity == 0 ? 256 : 2 * s->heap_capacity;
        s->heap = reallocarray(s->heap, s->heap_capacity, sizeof(*s->heap));
        assert(s->heap != NULL);
    }
    uint32_t i = s->heap_count++;
    while (i > 0 && event_before(e, s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = e;
}

static struct sim_event *event_pop(struct sim *s)
{
    assert(s->heap_count > 0);
    struct sim_event *top = s->heap[0];
    struct sim_event *last = s->heap[--s->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && event_before(s->heap[child + 1], s->heap[child]))
            child++;
        if (!event_before(s->heap[child], last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

struct sim_call {
    struct sim_event event;
    void (*fn)(void *arg);
    void *arg;
};

static void call_due(struct sim_event *e)
{
    struct sim_call *c = CONTAINER_OF(e, struct sim_call, event);
    c->fn(c->arg);
    free(c);
}

void sim_call_at(struct sim *s, uint64_t when_ns, void (*fn)(void *arg), void *arg)
{
    struct sim_call *c = calloc(1, sizeof(*c));
    assert(c != NULL);
    c->event.fn = call_due;
    c->fn = fn;
    c->arg = arg;
    sim_event_post(s, &c->event, MAX(when_ns, s->now_ns), NULL);
}

/* ---- The loop ---- */

static bool node_turn(struct sim_node *n)
{
    bool any = false;
    for (uint32_t i = 0; i < n->reactor_count && n->alive; i++) {
        struct reactor *r = n->reactors[i];
        if (!n->turn_due[i] && reactor_next_deadline(r) > n->sim->now_ns)
            continue;
        n->turn_due[i] = false;
        reactor_turn(r);
        n->sim->now_ns += TURN_COST_NS;
        any = true;
    }
    return any;
}

static bool turn_all(struct sim *s)
{
    bool any = false;
    uint32_t first = s->node_count > 1 ? (uint32_t)sim_random_below(&s->random, s->node_count) : 0;
    for (uint32_t i = 0; i < s->node_count; i++)
        if (node_turn(s->nodes[(first + i) % s->node_count]))
            any = true;
    return any;
}

static uint64_t next_time(const struct sim *s)
{
    uint64_t t = s->heap_count > 0 ? s->heap[0]->when_ns : UINT64_MAX;
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct sim_node *n = s->nodes[i];
        for (uint32_t k = 0; n->alive && k < n->reactor_count; k++)
            t = MIN(t, reactor_next_deadline(n->reactors[k]));
    }
    return t;
}

enum sim_stop sim_run(struct sim *s, bool (*done)(void *ctx), void *ctx, uint64_t deadline_ns)
{
    assert(reactor_current() == NULL);
    for (;;) {
        if (done != NULL && done(ctx))
            return SIM_DONE;
        if (turn_all(s)) {
            if (s->now_ns >= deadline_ns)
                return SIM_DEADLINE;
            continue;
        }
        uint64_t next = next_time(s);
        if (next == UINT64_MAX)
            return SIM_IDLE;
        if (next > deadline_ns) {
            s->now_ns = MAX(s->now_ns, deadline_ns);
            return SIM_DEADLINE;
        }
        s->now_ns = ALIGN_UP(MAX(s->now_ns, next), s->o.quantum_ns);
        while (s->heap_count > 0 && s->heap[0]->when_ns <= s->now_ns) {
            struct sim_event *e = event_pop(s);
            if (e->node == NULL || e->node->boot == e->boot) /* S3 */
                e->fn(e);
        }
    }
}

/* ---- Nodes ---- */

struct sim_node *sim_node_new(struct sim *s)
{
    assert(s->node_count < SIM_NODES_MAX);
    struct sim_node *n = calloc(1, sizeof(*n));
    assert(n != NULL);
    n->sim = s;
    n->index = s->node_count;
    list_init(&n->files);
    list_init(&n->in_flight);
    s->nodes[s->node_count++] = n;
    return n;
}

/* Asked at every page allocation of the node. */
static bool alloc_should_fail(void *ctx)
{
    struct sim_node *n = ctx;
    if (n->fail_alloc_in == 0 || --n->fail_alloc_in > 0)
        return false;
    n->failed = true;
    sim_trace(n->sim, "fail-alloc", "", n->index, 0, 0);
    return true;
}

void sim_node_start(struct sim_node *n, uint32_t reactors, uint64_t budget_bytes, size_t chunk_bytes)
{
    assert(!n->alive && reactors >= 1 && reactors <= SIM_NODE_REACTORS_MAX);
    n->boot++;
    n->alive = true;
    n->cut = false;
    n->cut_at = 0;
    n->submissions = 0;
    n->fail_io_in = n->fail_alloc_in = n->fail_malloc_in = 0;
    n->failed = false;
    list_init(&n->in_flight);
    n->budget = calloc(1, sizeof(*n->budget)); /* never freed: a dead process's pages still count on it */
    assert(n->budget != NULL);
    n->budget->limit_bytes = budget_bytes;
    n->reactor_count = reactors;
    for (uint32_t i = 0; i < reactors; i++) {
        struct reactor_options o = {
            .world = &sim_world_ops,
            .world_ctx = n,
            .budget = n->budget,
            .chunk_bytes = chunk_bytes,
            .stack_bytes = n->sim->o.stack_bytes,
            .index = i,
        };
        int err = reactor_new(&o, &n->reactors[i]);
        assert(err == 0);
        memory_set_failure(reactor_memory(n->reactors[i]), alloc_should_fail, n);
        n->turn_due[i] = true;
    }
    sim_trace(n->sim, "node-start", "", n->index, n->boot, budget_bytes);
}

bool sim_node_alive(const struct sim_node *n)
{
    return n->alive;
}

struct reactor *sim_node_reactor(struct sim_node *n, uint32_t index)
{
    assert(n->alive && index < n->reactor_count);
    return n->reactors[index];
}

struct sim_node *sim_node_of(struct reactor *r)
{
    return reactor_world_ctx(r);
}

struct sim_node *sim_node_current(void)
{
    struct reactor *r = reactor_current();
    return r != NULL ? reactor_world_ctx(r) : NULL;
}

struct sim *sim_of_node(struct sim_node *n)
{
    return n->sim;
}

uint32_t sim_node_index(const struct sim_node *n)
{
    return n->index;
}

void sim_mark_turn(struct reactor *r)
{
    struct sim_node *n = sim_node_of(r);
    n->turn_due[reactor_index(r)] = true;
}

static void node_abandon(struct sim_node *n)
{
    assert(reactor_current() == NULL); /* between two turns */
    n->alive = false;
    n->boot++; /* its events are dropped */
    n->reactor_count = 0;
    list_init(&n->in_flight);
}

void sim_node_kill(struct sim_node *n)
{
    assert(n->alive);
    sim_count_fault(n->sim, SIM_FAULT_PROCESS_KILL);
    sim_trace(n->sim, "process-kill", "", n->index, n->submissions, 0);
    sim_files_crash(n, NULL);
    sim_net_crash(n, false);
    node_abandon(n);
}

void sim_node_power_loss(struct sim_node *n, const struct sim_power_loss *p)
{
    assert(p->lost_ppm + p->torn_ppm <= 1000000);
    sim_count_fault(n->sim, SIM_FAULT_POWER_LOSS);
    sim_trace(n->sim, "power-loss", "", n->index, p->lost_ppm, p->torn_ppm);
    sim_files_crash(n, p);
    sim_net_crash(n, true);
    node_abandon(n);
}

void sim_node_cut_after(struct sim_node *n, uint64_t submissions)
{
    n->cut_at = submissions == 0 ? 0 : n->submissions + submissions;
}

bool sim_node_cut(const struct sim_node *n)
{
    return n->cut;
}

uint64_t sim_node_submissions(const struct sim_node *n)
{
    return n->submissions;
}

void sim_node_end(struct sim_node *n)
{
    assert(n->alive && list_empty(&n->in_flight));
    for (uint32_t i = 0; i < n->reactor_count; i++)
        reactor_free(n->reactors[i]);
    sim_trace(n->sim, "node-end", "", n->index, n->boot, 0);
    node_abandon(n);
}

void sim_node_fail_io(struct sim_node *n, uint64_t nth, const char *path)
{
    n->fail_io_in = nth;
    n->fail_io_path = path;
    n->failed = false;
}

void sim_node_fail_alloc(struct sim_node *n, uint64_t nth)
{
    n->fail_alloc_in = nth;
    n->failed = false;
}

volatile uint32_t sim_alloc_exempt;

void sim_node_fail_malloc(struct sim_node *n, uint64_t nth)
{
    n->fail_malloc_in = nth;
    n->failed = false;
}

bool sim_malloc_fails(void)
{
    struct sim_node *n = sim_alloc_exempt == 0 ? sim_node_current() : NULL;
    if (PREDICT_TRUE(n == NULL || n->fail_malloc_in == 0) || --n->fail_malloc_in > 0)
        return false;
    n->failed = true;
    sim_trace(n->sim, "fail-malloc", "", n->index, 0, 0);
    return true;
}

bool sim_node_failed(struct sim_node *n)
{
    n->fail_io_in = n->fail_alloc_in = n->fail_malloc_in = 0;
    return n->failed;
}

/* ---- Small operations of the world ---- */

uint64_t sim_draw_latency_ns(struct sim *s, uint32_t us)
{
    uint64_t base = (uint64_t)us * NSEC_PER_USEC;
    uint64_t ns = base / 2 + sim_random_below(&s->random, base + 1);
    if (sim_random_below(&s->random, 64) == 0)
        ns += sim_random_below(&s->random, 20 * base + 1); /* a hiccup: reorders with what comes later */
    return ns;
}

void sim_pause(struct reactor *r, uint32_t us)
{
    fiber_shield();
    int err = fiber_sleep(sim_draw_latency_ns(sim_node_of(r)->sim, us));
    assert(err == 0);
    fiber_unshield();
}

static uint64_t op_now_ns(struct reactor *r)
{
    return sim_node_of(r)->sim->now_ns;
}

static uint64_t op_wall_ns(struct reactor *r)
{
    return SIM_EPOCH_NS + sim_node_of(r)->sim->now_ns;
}

static void op_random(struct reactor *r, void *buf, size_t len)
{
    struct sim *s = sim_node_of(r)->sim;
    for (size_t done = 0; done < len; done += 8) {
        uint64_t x = sim_random_u64(&s->entropy);
        memcpy((char *)buf + done, &x, MIN(len - done, sizeof(x)));
    }
}

static void op_wait(struct reactor *r, uint64_t deadline_ns)
{
    (void)r, (void)deadline_ns;
    assert(!"reactor_run() in the simulator: its loop is sim_run()");
}

/* sim_run() looks at every reactor's inbox after each turn. */
static void op_wake(struct reactor *r)
{
    (void)r;
}

static uint32_t op_pick(struct reactor *r, uint32_t ready_count)
{
    struct sim *s = sim_node_of(r)->sim;
    return s->o.shuffle_fibers ? (uint32_t)sim_random_below(&s->random, ready_count) : 0;
}

static int op_block(struct reactor *r, int (*fn)(void *arg), void *arg)
{
    (void)r;
    return fn(arg);
}

const struct world_ops sim_world_ops = {
    .name = "sim",
    .now_ns = op_now_ns,
    .wall_ns = op_wall_ns,
    .random = op_random,
    .file_open = sim_op_file_open,
    .file_close = sim_op_file_close,
    .file_get_info = sim_op_file_get_info,
    .file_resize = sim_op_file_resize,
    .file_replace = sim_op_file_replace,
    .file_read_all = sim_op_file_read_all,
    .file_unlink = sim_op_file_unlink,
    .file_submit = sim_op_file_submit,
    .listener_open = sim_op_listener_open,
    .listener_close = sim_op_listener_close,
    .listener_accept = sim_op_listener_accept,
    .stream_connect = sim_op_stream_connect,
    .stream_recvv = sim_op_stream_recvv,
    .stream_sendv = sim_op_stream_sendv,
    .stream_shutdown = sim_op_stream_shutdown,
    .stream_close = sim_op_stream_close,
    .wait = op_wait,
    .wake = op_wake,
    .pick = op_pick,
    .block = op_block,
};
