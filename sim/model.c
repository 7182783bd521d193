/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the model
 *
 * A block has a few entries, one per operation on it that still matters:
 *
 *      current   may be what a read sees (and is not merely under way)
 *      survives  may be what a power loss leaves
 *      left      when it ceased to be current: reads that began before may still see it
 *
 * An acknowledgement of g ends every entry whose operation was acknowledged before g began (M1). A read that
 * saw v ends every other entry whose operation was acknowledged before the read began (M2). A flush called at
 * f ends `survives` of each entry that is older than an operation which surely happened and was acknowledged
 * before f (M4). At a power loss `current` becomes `survives`.
 *
 * After a crash operations that may have been cut are unknown; the first read that shows one of them, or
 * shows something older in its place, decides it for all its blocks (M3): writes happen as a whole.
 *
 * All rules only remove what cannot be; so the model never forbids what is right, and in a few corners (what
 * two crashes in a row leave) allows a little more than a volume should do.
 */
#include "sim/model.h"

#include "runtime/checksum.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "sim/alloc.h"

#define WORDS (BLOCK_SIZE / 8)
#define NEVER UINT64_MAX

struct entry {
    struct model_op *op;
    uint64_t left;
    bool current, survives, damaged;
};

struct block {
    struct entry *entries;
    uint32_t count, capacity;
    bool loose; /* in model.loose: more than one entry may survive */
};

struct model {
    uint64_t seed;
    uint64_t clock;
    uint64_t settled; /* what was acknowledged before is in a committed root */
    uint64_t block_count, block_capacity;
    struct block *blocks;
    uint64_t next_id;
    struct model_op beginning; /* all zeroes */
    struct model_op **in_flight;
    uint32_t in_flight_count, in_flight_capacity;
    struct model_op **soft; /* surely happened, not known durable */
    uint32_t soft_count, soft_capacity;
    uint64_t *loose;
    uint32_t loose_count, loose_capacity;
    uint64_t *reads; /* times at which reads that are under way began */
    uint32_t reads_count, reads_capacity;
    bool errors_allowed;
    char why[512];
};

/* Appends one element to a growing array. */
#define PUSH(array, count, capacity, value)                                \
    do {                                                                   \
        if ((count) == (capacity)) {                                       \
            (capacity) = (capacity) == 0 ? 16 : 2 * (capacity);            \
            (array) = reallocarray((array), (capacity), sizeof(*(array))); \
            assert((array) != NULL);                                       \
        }                                                                  \
        (array)[(count)++] = (value);                                      \
    } while (0)

struct model *model_new(uint64_t seed, uint64_t blocks)
{
    struct model *m = calloc(1, sizeof(*m));
    assert(m != NULL);
    m->seed = seed;
    m->clock = 1;
    m->next_id = 1;
    m->beginning =
        (struct model_op){.kind = MODEL_ZERO, .state = MODEL_ACKED, .durable = true, .acked = 0, .blocks = 0};
    model_grow(m, blocks);
    return m;
}

void model_free(struct model *m)
{
    for (uint64_t b = 0; b < m->block_count; b++)
        free(m->blocks[b].entries);
    free(m->blocks);
    free(m->in_flight);
    free(m->soft);
    free(m->loose);
    free(m->reads);
    free(m);
}

uint64_t model_blocks(const struct model *m)
{
    return m->block_count;
}

void model_grow(struct model *m, uint64_t blocks)
{
    assert(blocks >= m->block_count);
    m->blocks = reallocarray(m->blocks, blocks, sizeof(*m->blocks));
    assert(m->blocks != NULL);
    memset(&m->blocks[m->block_count], 0, (blocks - m->block_count) * sizeof(*m->blocks));
    m->block_count = blocks;
}

const char *model_why(const struct model *m)
{
    return m->why;
}

/* ---- Stamps ---- */

static uint64_t stamp_base(const struct model *m, uint64_t id, uint64_t block)
{
    return hash_mix64(m->seed ^ hash_mix64(id + UINT64_C(0x9e3779b97f4a7c15) * (block + 1)));
}

void model_fill(const struct model *m, const struct model_op *op, uint64_t block, uint8_t out[BLOCK_SIZE])
{
    uint64_t base = stamp_base(m, op->id, block);
    uint64_t words[WORDS];
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = base + i * UINT64_C(0xd1342543de82ef95);
    words[0] = op->id;
    words[1] = block;
    memcpy(out, words, BLOCK_SIZE);
}

bool model_parse(const struct model *m, const uint8_t data[BLOCK_SIZE], uint64_t *ret_id, uint64_t *ret_block)
{
    uint64_t words[WORDS];
    memcpy(words, data, BLOCK_SIZE);
    if (words[0] == 0) {
        for (uint64_t i = 1; i < WORDS; i++)
            if (words[i] != 0)
                return false;
        *ret_id = 0;
        *ret_block = 0;
        return true;
    }
    uint64_t base = stamp_base(m, words[0], words[1]);
    for (uint64_t i = 2; i < WORDS; i++)
        if (words[i] != base + i * UINT64_C(0xd1342543de82ef95))
            return false;
    *ret_id = words[0];
    *ret_block = words[1];
    return true;
}

/* ---- Entries ---- */

static bool op_definite(const struct model_op *op)
{
    return op->state == MODEL_ACKED || op->state == MODEL_APPLIED;
}

static struct block *block_of(struct model *m, uint64_t b)
{
    assert(b < m->block_count);
    struct block *k = &m->blocks[b];
    if (k->count == 0) {
        struct entry e = {.op = &m->beginning, .left = NEVER, .current = true, .survives = true};
        PUSH(k->entries, k->count, k->capacity, e);
    }
    return k;
}

static struct entry *entry_of(struct block *k, const struct model_op *op)
{
    for (uint32_t i = 0; i < k->count; i++)
        if (k->entries[i].op == op)
            return &k->entries[i];
    return NULL;
}

static void entry_leave(struct model *m, struct entry *e)
{
    if (e->current) {
        e->current = false;
        e->left = m->clock;
    }
}

static uint64_t oldest_read(const struct model *m)
{
    uint64_t t = NEVER;
    for (uint32_t i = 0; i < m->reads_count; i++)
        t = MIN(t, m->reads[i]);
    return t;
}

/* Drops entries that no read and no crash can bring up any more. */
static void block_purge(struct model *m, struct block *k)
{
    if (k->count <= 4)
        return;
    uint64_t oldest = oldest_read(m);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        const struct entry *e = &k->entries[i];
        if (e->current || e->survives || e->op->state == MODEL_IN_FLIGHT || e->left >= oldest)
            k->entries[kept++] = *e;
    }
    assert(kept >= 1);
    k->count = kept;
}

static void block_loosen(struct model *m, uint64_t b)
{
    struct block *k = &m->blocks[b];
    if (k->loose)
        return;
    k->loose = true;
    PUSH(m->loose, m->loose_count, m->loose_capacity, b);
}

/* ---- Operations ---- */

struct model_op *model_begin(struct model *m, enum model_kind kind, uint64_t block, uint64_t blocks, bool fua,
                             bool atomic)
{
    assert(blocks >= 1 && block + blocks <= m->block_count);
    struct model_op *op = calloc(1, sizeof(*op)); /* lives as long as the seed: entries point to it */
    assert(op != NULL);
    *op = (struct model_op){.id = m->next_id++,
                            .kind = kind,
                            .state = MODEL_IN_FLIGHT,
                            .fua = fua,
                            .atomic = atomic,
                            .block = block,
                            .blocks = blocks,
                            .begun = ++m->clock,
                            .acked = NEVER,
                            .index = m->in_flight_count};
    PUSH(m->in_flight, m->in_flight_count, m->in_flight_capacity, op);
    for (uint64_t b = block; b < block + blocks; b++) {
        struct block *k = block_of(m, b);
        block_purge(m, k);
        struct entry e = {.op = op, .left = NEVER, .survives = true};
        PUSH(k->entries, k->count, k->capacity, e);
        block_loosen(m, b);
    }
    return op;
}

static void in_flight_remove(struct model *m, struct model_op *op)
{
    assert(op->index < m->in_flight_count && m->in_flight[op->index] == op);
    struct model_op *last = m->in_flight[--m->in_flight_count];
    m->in_flight[op->index] = last;
    last->index = op->index;
}

void model_ack(struct model *m, struct model_op *op)
{
    assert(op->state == MODEL_IN_FLIGHT);
    in_flight_remove(m, op);
    op->state = MODEL_ACKED;
    op->acked = ++m->clock;
    op->durable = op->fua;
    if (!op->durable)
        PUSH(m->soft, m->soft_count, m->soft_capacity, op);
    for (uint64_t b = op->block; b < op->block + op->blocks; b++) {
        struct block *k = block_of(m, b);
        for (uint32_t i = 0; i < k->count; i++) {
            struct entry *e = &k->entries[i];
            if (e->op == op) {
                e->current = true;
                e->left = NEVER;
            } else if (e->op->acked < op->begun) {
                entry_leave(m, e); /* M1 */
                if (op->fua)
                    e->survives = false; /* M4 */
            }
        }
        assert(entry_of(k, op) != NULL);
    }
}

void model_fail(struct model *m, struct model_op *op, bool nothing_happened)
{
    assert(op->state == MODEL_IN_FLIGHT);
    if (!nothing_happened)
        return; /* it stays under way: only a restart decides it */
    in_flight_remove(m, op);
    op->acked = ++m->clock;
    op->state = MODEL_NOT_APPLIED;
    for (uint64_t b = op->block; b < op->block + op->blocks; b++) {
        struct entry *e = entry_of(block_of(m, b), op);
        assert(e != NULL);
        e->current = e->survives = false;
        e->left = 0;
    }
}

/* ---- Reads ---- */

struct model_read model_read_begin(struct model *m, uint64_t block, uint64_t blocks)
{
    assert(block + blocks <= m->block_count);
    struct model_read r = {.block = block, .blocks = blocks, .begun = ++m->clock};
    PUSH(m->reads, m->reads_count, m->reads_capacity, r.begun);
    return r;
}

void model_read_end(struct model *m, const struct model_read *r)
{
    for (uint32_t i = 0; i < m->reads_count; i++) {
        if (m->reads[i] == r->begun) {
            m->reads[i] = m->reads[--m->reads_count];
            return;
        }
    }
    assert(!"a read ends that had not begun");
}

static bool entry_visible(const struct entry *e, uint64_t since)
{
    return e->current || e->op->state == MODEL_IN_FLIGHT || (e->left != NEVER && e->left > since);
}

static bool entry_shows(const struct entry *e, uint64_t id)
{
    return id == 0 ? e->op->kind == MODEL_ZERO : e->op->kind == MODEL_WRITE && e->op->id == id;
}

PRINTF_LIKE(2, 3) static void why_add(struct model *m, const char *fmt, ...)
{
    size_t len = strlen(m->why);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->why + len, sizeof(m->why) - len, fmt, ap);
    va_end(ap);
}

static void why_entries(struct model *m, uint64_t b, uint64_t since)
{
    static const char *const states[] = {"in flight", "acked", "unknown", "applied", "not applied"};
    struct block *k = block_of(m, b);
    why_add(m, "; now %" PRIu64 ", began %" PRIu64 "; it may be:", m->clock, since);
    for (uint32_t i = 0; i < k->count; i++) {
        const struct entry *e = &k->entries[i];
        why_add(m, " %s%" PRIu64 "%s[%s%s%s %" PRIu64 "..%" PRId64 "%s%s]",
                e->op->kind == MODEL_ZERO ? "zero" : "", e->op->id, entry_visible(e, since) ? "" : "!",
                states[e->op->state], e->op->fua ? " fua" : "", e->op->durable ? " durable" : "",
                e->op->begun, (int64_t)e->op->acked, e->survives ? " survives" : "",
                e->damaged ? " damaged" : "");
    }
}

/* The operation surely happened: what is older than it is gone from all its blocks. */
static void op_applied(struct model *m, struct model_op *op)
{
    if (op->state != MODEL_UNKNOWN || !op->atomic)
        return;
    op->state = MODEL_APPLIED;
    PUSH(m->soft, m->soft_count, m->soft_capacity, op);
    for (uint64_t b = op->block; b < op->block + op->blocks; b++) {
        struct block *k = block_of(m, b);
        for (uint32_t i = 0; i < k->count; i++)
            if (k->entries[i].op != op && k->entries[i].op->acked < op->begun)
                entry_leave(m, &k->entries[i]);
    }
}

/* The operation surely did not happen. */
static void op_not_applied(struct model *m, struct model_op *op)
{
    if (op->state != MODEL_UNKNOWN || !op->atomic)
        return;
    op->state = MODEL_NOT_APPLIED;
    for (uint64_t b = op->block; b < op->block + op->blocks; b++) {
        struct entry *e = entry_of(block_of(m, b), op);
        if (e == NULL)
            continue;
        entry_leave(m, e);
        e->survives = false;
    }
}

/* What a read that began at `since` saw: M2, M3. seen_last: when the newest of what it may have seen ended.
 */
static void block_observed(struct model *m, uint64_t b, uint64_t id, uint64_t since)
{
    struct block *k = block_of(m, b);
    uint32_t matches = 0;
    uint64_t seen_acked = 0;
    struct model_op *seen = NULL;
    for (uint32_t i = 0; i < k->count; i++) {
        struct entry *e = &k->entries[i];
        if (!entry_visible(e, since) || !entry_shows(e, id))
            continue;
        matches++;
        seen = e->op;
        seen_acked = MAX(seen_acked, e->op->acked);
        if (e->op->state == MODEL_IN_FLIGHT)
            e->current = true;
    }
    assert(matches >= 1);
    if (matches == 1)
        op_applied(m, seen);
    for (uint32_t i = 0; i < k->count; i++) {
        struct entry *e = &k->entries[i];
        if (!e->current || entry_shows(e, id) || e->op->acked > since)
            continue;
        entry_leave(m, e);
        if (seen_acked < e->op->begun)
            op_not_applied(m, e->op);
    }
}

bool model_read_block(struct model *m, const struct model_read *r, uint64_t block, const uint8_t *data)
{
    uint64_t id = 0, at = block;
    ++m->clock;
    m->why[0] = '\0';
    bool known = data == NULL || model_parse(m, data, &id, &at);
    struct block *k = block_of(m, block);
    if (known && (id == 0 || at == block)) {
        for (uint32_t i = 0; i < k->count; i++) {
            if (entry_visible(&k->entries[i], r->begun) && entry_shows(&k->entries[i], id)) {
                block_observed(m, block, id, r->begun);
                return true;
            }
        }
    }
    if (!known)
        why_add(m, "block %" PRIu64 " holds bytes that nobody wrote", block);
    else if (id != 0 && at != block)
        why_add(m, "block %" PRIu64 " shows operation %" PRIu64 " of block %" PRIu64, block, id, at);
    else
        why_add(m, "block %" PRIu64 " shows operation %" PRIu64, block, id);
    why_entries(m, block, r->begun);
    return false;
}

static bool range_damaged(struct model *m, const struct model_read *r)
{
    for (uint64_t b = r->block; b < r->block + r->blocks; b++) {
        struct block *k = block_of(m, b);
        for (uint32_t i = 0; i < k->count; i++)
            if (k->entries[i].damaged && entry_visible(&k->entries[i], r->begun))
                return true;
    }
    return false;
}

bool model_read_error(struct model *m, const struct model_read *r)
{
    ++m->clock;
    m->why[0] = '\0';
    if (m->errors_allowed || range_damaged(m, r))
        return true;
    why_add(m, "an error for blocks %" PRIu64 "+%" PRIu64 ", of which no copy was damaged", r->block,
            r->blocks);
    why_entries(m, r->block, r->begun);
    return false;
}

bool model_map_block(struct model *m, const struct model_read *r, uint64_t block, enum model_map what)
{
    struct block *k = block_of(m, block);
    m->why[0] = '\0';
    for (uint32_t i = 0; i < k->count; i++) {
        const struct entry *e = &k->entries[i];
        if (entry_visible(e, r->begun) &&
            (what == MODEL_MAP_LOST ? e->damaged || m->errors_allowed
                                    : (what == MODEL_MAP_ZERO) == (e->op->kind == MODEL_ZERO)))
            return true;
    }
    why_add(m, "the map says that block %" PRIu64 " is %s", block,
            what == MODEL_MAP_DATA   ? "data"
            : what == MODEL_MAP_ZERO ? "zero"
                                     : "lost");
    why_entries(m, block, r->begun);
    return false;
}

/* ---- Durability ---- */

uint64_t model_flush_begin(struct model *m)
{
    return ++m->clock;
}

static void block_flushed(struct block *k, uint64_t flushed)
{
    for (uint32_t i = 0; i < k->count; i++) {
        struct entry *e = &k->entries[i];
        for (uint32_t j = 0; e->survives && j < k->count; j++) {
            const struct model_op *g = k->entries[j].op;
            if (k->entries[j].survives && op_definite(g) && g->acked < flushed && e->op->acked < g->begun)
                e->survives = false;
        }
    }
}

void model_flush_ack(struct model *m, uint64_t begun)
{
    ++m->clock;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->loose_count; i++) {
        struct block *k = &m->blocks[m->loose[i]];
        block_flushed(k, begun);
        uint32_t survivors = 0;
        for (uint32_t j = 0; j < k->count; j++)
            survivors += k->entries[j].survives;
        assert(survivors >= 1);
        if (survivors > 1)
            m->loose[kept++] = m->loose[i];
        else
            k->loose = false;
    }
    m->loose_count = kept;
    kept = 0;
    for (uint32_t i = 0; i < m->soft_count; i++) {
        if (op_definite(m->soft[i]) && m->soft[i]->acked < begun)
            m->soft[i]->durable = true;
        else if (op_definite(m->soft[i]))
            m->soft[kept++] = m->soft[i];
    }
    m->soft_count = kept;
}

/* ---- Crashes ---- */

static void in_flight_unknown(struct model *m)
{
    ++m->clock;
    for (uint32_t i = 0; i < m->in_flight_count; i++) {
        struct model_op *op = m->in_flight[i];
        op->state = MODEL_UNKNOWN;
        op->acked = m->clock;
        for (uint64_t b = op->block; b < op->block + op->blocks; b++) {
            struct entry *e = entry_of(block_of(m, b), op);
            assert(e != NULL);
            e->current = true;
            e->left = NEVER;
        }
    }
    m->in_flight_count = 0;
    m->reads_count = 0;
    ++m->clock;
}

void model_kill(struct model *m)
{
    in_flight_unknown(m);
}

void model_power_loss(struct model *m)
{
    in_flight_unknown(m);
    for (uint32_t i = 0; i < m->soft_count; i++)
        if (op_definite(m->soft[i]) && !m->soft[i]->durable)
            m->soft[i]->state = MODEL_UNKNOWN;
    m->soft_count = 0;
    for (uint32_t i = 0; i < m->loose_count; i++) {
        struct block *k = &m->blocks[m->loose[i]];
        for (uint32_t j = 0; j < k->count; j++) {
            struct entry *e = &k->entries[j];
            e->current = e->survives;
            e->left = e->survives ? NEVER : 0;
        }
    }
}

/* ---- Damage ---- */

void model_settle(struct model *m, uint64_t begun)
{
    m->settled = MAX(m->settled, begun);
}

bool model_is_settled(struct model *m, uint64_t block, uint64_t op_id)
{
    if (block >= m->block_count)
        return false;
    struct block *k = block_of(m, block);
    for (uint32_t i = 0; i < k->count; i++)
        if (k->entries[i].op->id == op_id)
            return k->entries[i].op->acked < m->settled;
    return false;
}

bool model_damage(struct model *m, uint64_t block, uint64_t op_id)
{
    if (block >= m->block_count)
        return false;
    struct block *k = block_of(m, block);
    for (uint32_t i = 0; i < k->count; i++) {
        struct entry *e = &k->entries[i];
        if (e->op->id == op_id && e->op->kind == MODEL_WRITE) {
            e->damaged = true;
            return e->current || e->survives || e->op->state == MODEL_IN_FLIGHT;
        }
    }
    return false;
}

void model_allow_errors(struct model *m)
{
    m->errors_allowed = true;
}

bool model_is_damaged(struct model *m, uint64_t block)
{
    struct model_read r = {.block = block, .blocks = 1, .begun = m->clock};
    return range_damaged(m, &r);
}

uint64_t model_data_blocks(struct model *m)
{
    uint64_t n = 0;
    for (uint64_t b = 0; b < m->block_count; b++) {
        bool data = false;
        for (uint32_t i = 0; i < m->blocks[b].count; i++) {
            const struct entry *e = &m->blocks[b].entries[i];
            data = data || ((e->current || e->survives || e->op->state == MODEL_IN_FLIGHT) &&
                            e->op->kind == MODEL_WRITE);
        }
        n += data;
    }
    return n;
}
