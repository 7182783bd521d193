/* SPDX-License-Identifier: Apache-2.0 */
/* The clients: fibers that do one operation after another, tell the model, and check every answer. */
#include "runtime/error.h"
#include "sim/seed.h"

#include <inttypes.h>

#define VERIFY_BLOCKS 64u
#define ROOM_ATTEMPTS 40
#define REST_NS       NSEC_PER_SEC

static uint64_t draw_blocks(struct seed *s, uint64_t most)
{
    uint64_t limit = 4;
    uint64_t kind = sim_random_below(&s->random, 10);
    if (kind >= 9)
        limit = 64;
    else if (kind >= 6)
        limit = 16;
    limit = MIN(limit, most);
    return sim_random_between(&s->random, 1, limit);
}

static uint64_t draw_place(struct seed *s, uint64_t blocks)
{
    uint64_t range = model_blocks(s->model) - blocks + 1;
    if (sim_random_below(&s->random, 2) == 0)
        range = MIN(range, s->w.hot_blocks);
    return sim_random_below(&s->random, range);
}

static void acknowledged(struct seed *s, const char *what, uint64_t block, uint64_t blocks, uint64_t id)
{
    s->acked++;
    s->last_progress_ns = sim_now_ns(s->sim);
    sim_trace(s->sim, "ack", what, block, blocks, id);
    if (s->acked >= s->acked_goal)
        s->stop = true;
}

/* The pool is full: that is counted, and the client makes room. */
static bool is_full(int err)
{
    return error_errno(err) == ENOSPC;
}

static void unexpected(struct seed *s, const char *what, uint64_t block, uint64_t blocks, int err)
{
    seed_fail(s, "%s of blocks %" PRIu64 "+%" PRIu64 " failed: %s (%s)", what, block, blocks, error_text(err),
              error_name(err));
}

/* Pages as one run, or as several: the volume must take both. */
static int pages_get(struct seed *s, uint32_t blocks, struct page_vec *ret) may_yield;
static int pages_get(struct seed *s, uint32_t blocks, struct page_vec *ret)
{
    ret->run_count = 0;
    ret->blocks = 0;
    while (ret->blocks < blocks) {
        uint32_t n = blocks - ret->blocks;
        if (n > 1 && sim_random_below(&s->random, 8) == 0)
            n = (uint32_t)sim_random_between(&s->random, 1, n);
        struct page *p;
        int err = page_alloc_wait(n, DEADLINE_NEVER, &p);
        if (err != 0) {
            page_vec_put(ret);
            return err;
        }
        ret->runs[ret->run_count++] = (struct page_run){p, n};
        ret->blocks += n;
    }
    return 0;
}

static int do_write(struct seed *s, uint64_t block, uint32_t blocks, bool fua) may_yield;
static int do_write(struct seed *s, uint64_t block, uint32_t blocks, bool fua)
{
    struct page_vec v;
    int err = pages_get(s, blocks, &v);
    if (err != 0) {
        seed_fail(s, "no pages for a write: %s", error_text(err));
        return err;
    }
    struct model_op *op = model_begin(s->model, MODEL_WRITE, block, blocks, fua, true);
    uint64_t at = block;
    for (uint32_t i = 0; i < v.run_count; i++)
        for (uint32_t k = 0; k < v.runs[i].count; k++)
            model_fill(s->model, op, at++, page_at(v.runs[i].page, k)->data);
    sim_trace(s->sim, "call", fua ? "write-fua" : "write", block, blocks, op->id);
    err = s->target->ops->write(s->target, block, &v, fua);
    page_vec_put(&v);
    if (err == 0) {
        model_ack(s->model, op);
        acknowledged(s, "write", block, blocks, op->id);
    } else if (is_full(err)) {
        model_fail(s->model, op, true);
    } else {
        model_fail(s->model, op, false);
        unexpected(s, "write", block, blocks, err);
    }
    return err;
}

static int do_clear(struct seed *s, bool unmap, uint64_t block, uint64_t blocks, bool fua) may_yield;
static int do_clear(struct seed *s, bool unmap, uint64_t block, uint64_t blocks, bool fua)
{
    struct model_op *op = model_begin(s->model, MODEL_ZERO, block, blocks, fua, false);
    sim_trace(s->sim, "call", unmap ? "unmap" : "zero", block, blocks, op->id);
    int err = unmap ? s->target->ops->unmap(s->target, block, blocks, fua)
                    : s->target->ops->zero(s->target, block, blocks, fua);
    if (err == 0) {
        model_ack(s->model, op);
        acknowledged(s, unmap ? "unmap" : "zero", block, blocks, op->id);
    } else if (!unmap && is_full(err)) {
        model_fail(s->model, op, false); /* whole per piece: a part may have happened */
    } else {
        model_fail(s->model, op, false);
        unexpected(s, unmap ? "unmap" : "zero", block, blocks, err);
    }
    return err;
}

static void check_pages(struct seed *s, const struct model_read *r, const struct page_vec *v)
{
    uint64_t at = r->block;
    if (v->blocks != r->blocks) {
        seed_fail(s, "a read of %" PRIu64 " blocks returned %" PRIu32, r->blocks, v->blocks);
        return;
    }
    for (uint32_t i = 0; i < v->run_count; i++) {
        for (uint32_t k = 0; k < v->runs[i].count; k++, at++) {
            const uint8_t *data = v->runs[i].page != NULL ? page_at(v->runs[i].page, k)->data : NULL;
            if (!model_read_block(s->model, r, at, data)) {
                seed_fail(s, "read: %s", model_why(s->model));
                return;
            }
        }
    }
    if (at != r->block + r->blocks)
        seed_fail(s, "the runs of a read hold %" PRIu64 " blocks, not %" PRIu64, at - r->block, r->blocks);
}

static int do_read(struct seed *s, uint64_t block, uint32_t blocks) may_yield;
static int do_read(struct seed *s, uint64_t block, uint32_t blocks)
{
    struct page_vec v;
    struct model_read r = model_read_begin(s->model, block, blocks);
    sim_trace(s->sim, "call", "read", block, blocks, 0);
    int err = s->target->ops->read(s->target, block, blocks, &v);
    if (err == 0) {
        check_pages(s, &r, &v);
        page_vec_put(&v);
        acknowledged(s, "read", block, blocks, 0);
    } else if (error_errno(err) != EIO || !model_read_error(s->model, &r)) {
        seed_fail(s, "read of blocks %" PRIu64 "+%" PRIu32 " failed: %s (%s); %s", block, blocks,
                  error_text(err), error_name(err), model_why(s->model));
    }
    model_read_end(s->model, &r);
    return err;
}

static void do_flush(struct seed *s, bool commit) may_yield;
static void do_flush(struct seed *s, bool commit)
{
    uint64_t begun = model_flush_begin(s->model);
    uint64_t changed = s->changes != NULL ? changes_flush_begin(s->changes) : 0;
    sim_trace(s->sim, "call", commit ? "commit" : "flush", 0, 0, 0);
    int err = commit ? s->target->ops->commit(s->target) : s->target->ops->flush(s->target);
    if (err == 0) {
        model_flush_ack(s->model, begun);
        if (s->changes != NULL)
            changes_flush_ack(s->changes, changed);
        if (commit)
            model_settle(s->model, begun);
        acknowledged(s, commit ? "commit" : "flush", 0, 0, 0);
    } else {
        unexpected(s, commit ? "commit" : "flush", 0, 0, err);
    }
}

static void do_map(struct seed *s, uint64_t block, uint64_t blocks) may_yield;
static void do_map(struct seed *s, uint64_t block, uint64_t blocks)
{
    static const enum model_map kinds[] = {
        [MAP_HOLE] = MODEL_MAP_ZERO,
        [MAP_ZERO] = MODEL_MAP_ZERO,
        [MAP_DATA] = MODEL_MAP_DATA,
        [MAP_LOST] = MODEL_MAP_LOST,
    };
    struct volume_map_entry e[16];
    uint32_t n = 0;
    struct model_read r = model_read_begin(s->model, block, blocks);
    int err = s->target->ops->map(s->target, block, blocks, e, ARRAY_SIZE(e), &n);
    uint64_t at = block;
    for (uint32_t i = 0; err == 0 && i < n; i++) {
        if (e[i].block != at || e[i].blocks == 0 || at + e[i].blocks > block + blocks) {
            seed_fail(s, "map of %" PRIu64 "+%" PRIu64 ": entry %" PRIu32 " is %" PRIu64 "+%" PRIu64, block,
                      blocks, i, e[i].block, e[i].blocks);
            break;
        }
        for (uint64_t b = at; b < at + e[i].blocks; b++)
            if (!model_map_block(s->model, &r, b, kinds[e[i].kind]))
                seed_fail(s, "map: %s", model_why(s->model));
        at += e[i].blocks;
    }
    model_read_end(s->model, &r);
    if (err != 0)
        unexpected(s, "map", block, blocks, err);
    else if (n == 0)
        seed_fail(s, "map of %" PRIu64 "+%" PRIu64 " returned nothing", block, blocks);
    else
        acknowledged(s, "map", block, blocks, n);
}

static void do_scrub(struct seed *s) may_yield;
static void do_scrub(struct seed *s)
{
    int err = s->target->ops->scrub(s->target);
    if (err != 0 && err != ERR_VOLUME_BUSY)
        unexpected(s, "scrub", 0, 0, err);
}

static void do_grow(struct seed *s) may_yield;
static void do_grow(struct seed *s)
{
    uint64_t have = model_blocks(s->model);
    uint64_t want = have + sim_random_between(&s->random, 1, 200);
    want = MIN(want, s->w.volume_blocks_max);
    if (want <= have || s->growing)
        return;
    s->growing = true;
    int err = s->target->ops->grow(s->target, want);
    if (err != 0 && !is_full(err)) {
        unexpected(s, "grow", 0, want, err);
    } else if (err == 0) {
        model_grow(s->model, want);
        acknowledged(s, "grow", 0, want, 0);
    }
    s->growing = false;
}

static void full_fail(struct seed *s)
{
    struct sim_target_status st;
    s->target->ops->get_status(s->target, &st);
    seed_fail(s,
              "the pool stays full although %d ranges were unmapped and committed: %" PRIu64
              " data and %" PRIu64 " tree blocks on %" PRIu64 " slabs of %" PRIu64 " blocks, %" PRIu64
              " blocks hold data",
              ROOM_ATTEMPTS, st.data_blocks, st.tree_blocks, st.slabs, (uint64_t)s->w.slab_bytes / BLOCK_SIZE,
              model_data_blocks(s->model));
}

/* After ENOSPC: unmapping and committing must bring space back, and then writes must work. */
static void make_room(struct seed *s) may_yield;
static void make_room(struct seed *s)
{
    sim_count_fault(s->sim, SIM_FAULT_POOL_FULL);
    s->full_seen = true;
    for (int i = 0; i < ROOM_ATTEMPTS && !s->failed && !s->stop; i++) {
        uint64_t total = model_blocks(s->model);
        uint64_t blocks = sim_random_between(&s->random, MIN(total, 64u), MAX(total / 3, 65u) - 1);
        blocks = MIN(blocks, total);
        if (do_clear(s, true, sim_random_below(&s->random, total - blocks + 1), blocks, false) != 0)
            return;
        do_flush(s, true);
        do_flush(s, true);
        if (s->failed || do_write(s, draw_place(s, 1), 1, false) == 0)
            return;
    }
    /* In a pool that has hardly room for the groups that a volume needs at least, a lost drive's slabs are
     * missing: repair takes what the client gives back. */
    bool tight = s->w.spare_slabs != 0 && s->w.copies > 1 && s->w.victims > 0;
    if (!s->failed && !s->stop && !tight)
        full_fail(s);
}

static enum swarm_op draw_op(struct seed *s)
{
    uint32_t sum = 0;
    for (int i = 0; i < SWARM_OPS; i++)
        sum += s->w.weights[i];
    uint64_t n = sim_random_below(&s->random, sum);
    for (int i = 0; i < SWARM_OPS; i++) {
        if (n < s->w.weights[i])
            return (enum swarm_op)i;
        n -= s->w.weights[i];
    }
    assert(!"the weights sum up to more than they do");
    return SWARM_READ;
}

static void do_one(struct seed *s) may_yield;
static void do_one(struct seed *s)
{
    enum swarm_op op = draw_op(s);
    uint64_t total = model_blocks(s->model);
    uint64_t most = op == SWARM_WRITE ? s->w.write_blocks_max : 64;
    uint64_t blocks = draw_blocks(s, MIN(most, total));
    if ((op == SWARM_UNMAP || op == SWARM_ZERO || op == SWARM_MAP) && sim_random_below(&s->random, 8) == 0)
        blocks = sim_random_between(&s->random, 1, total);
    uint64_t block = draw_place(s, blocks);
    bool fua = sim_chance(&s->random, s->w.fua_ppm);
    int err = 0;
    switch (op) {
    case SWARM_READ:
        (void)do_read(s, block, (uint32_t)blocks);
        break;
    case SWARM_WRITE:
        err = do_write(s, block, (uint32_t)blocks, fua);
        break;
    case SWARM_UNMAP:
        (void)do_clear(s, true, block, blocks, fua);
        break;
    case SWARM_ZERO:
        err = do_clear(s, false, block, blocks, fua);
        break;
    case SWARM_FLUSH:
    case SWARM_COMMIT:
        do_flush(s, op == SWARM_COMMIT);
        break;
    case SWARM_MAP:
        do_map(s, block, blocks);
        break;
    case SWARM_SCRUB:
        do_scrub(s);
        break;
    case SWARM_GROW:
        do_grow(s);
        break;
    case SWARM_OPS:
        break;
    }
    if (is_full(err))
        make_room(s);
}

static void client_main(void *arg) fiber_role_assumed
{
    struct seed *s = arg;
    while (!s->stop && !s->failed) {
        do_one(s);
        if (s->w.think_us != 0)
            (void)fiber_sleep(sim_random_below(&s->random, s->w.think_us * NSEC_PER_USEC));
        else
            fiber_yield(); /* an operation that never waits must not keep the others out */
    }
    s->clients_running--;
}

static void change_client_main(void *arg) fiber_role_assumed
{
    changes_client(arg);
}

void workload_run(struct seed *s)
{
    struct fiber *clients[64];
    uint32_t changing = s->changes != NULL ? s->w.change_clients : 0, all = s->w.clients + changing;
    assert(all <= ARRAY_SIZE(clients));
    s->stop = s->acked >= s->acked_goal;
    s->clients_running = s->w.clients;
    for (uint32_t i = 0; i < s->w.clients; i++) {
        int err = fiber_spawn_joinable("client", client_main, s, &clients[i]);
        assert(err == 0);
    }
    for (uint32_t i = s->w.clients; i < all; i++) {
        int err = fiber_spawn_joinable("change-client", change_client_main, s, &clients[i]);
        assert(err == 0);
    }
    for (uint32_t i = 0; i < all; i++)
        fiber_join(clients[i]);
}

void workload_rest(struct seed *s)
{
    uint64_t begun = model_flush_begin(s->model);
    do_flush(s, false);
    if (s->failed || fiber_sleep(REST_NS) != 0)
        return;
    /* As good as committed: damage is noticed. */
    model_settle(s->model, begun);
    s->rested = true;
}

void workload_verify(struct seed *s)
{
    uint64_t total = model_blocks(s->model);
    for (uint64_t b = 0; b < total && !s->failed; b += VERIFY_BLOCKS) {
        uint32_t n = (uint32_t)MIN(VERIFY_BLOCKS, total - b);
        if (do_read(s, b, n) == 0)
            continue;
        for (uint32_t i = 0; i < n && !s->failed; i++) /* which of them are lost */
            (void)do_read(s, b + i, 1);
    }
}

void workload_write(struct seed *s, uint64_t block, uint32_t blocks, bool fua)
{
    (void)do_write(s, block, blocks, fua);
}

void workload_unmap(struct seed *s, uint64_t block, uint64_t blocks)
{
    (void)do_clear(s, true, block, blocks, false);
}

void workload_flush(struct seed *s, bool commit)
{
    do_flush(s, commit);
}
