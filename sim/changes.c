/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/changes.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "sim/seed.h"

#include <inttypes.h>
#include <stdlib.h>

#include "sim/alloc.h"

#define STREAM_CHANGES 6
#define BLOCK_MARK     UINT64_C(0x5a17000000000000)
#define ALL_BLOCKS     (SIM_OBJECTS * SIM_OBJECT_BLOCKS)

struct state {
    uint64_t items[SIM_OBJECTS][SIM_OBJECT_ITEMS]; /* id of the change that put it; 0: not there */
    uint64_t blocks[ALL_BLOCKS];                   /* stamp; 0: zeroes */
};

struct changes {
    struct sim_random random;
    uint64_t next_id;
    struct state *states; /* the newest is the last */
    uint64_t count, capacity;
    uint64_t acked, durable; /* the newest state that a death, that a power loss must leave */
    char why[256];
};

struct changes *changes_new(uint64_t seed)
{
    struct changes *c = calloc(1, sizeof(*c));
    assert(c != NULL);
    sim_random_init(&c->random, seed, STREAM_CHANGES);
    c->next_id = 1;
    c->capacity = 64;
    c->states = calloc(c->capacity, sizeof(*c->states));
    assert(c->states != NULL);
    c->count = 1; /* nothing is there */
    return c;
}

void changes_crash(struct changes *c, bool power)
{
    if (power)
        c->acked = c->durable;
}

uint64_t changes_flush_begin(const struct changes *c)
{
    return c->acked;
}

void changes_flush_ack(struct changes *c, uint64_t begun)
{
    c->durable = MAX(c->durable, begun);
}

static struct state *newest(struct changes *c)
{
    return &c->states[c->count - 1];
}

static struct state *state_add(struct changes *c)
{
    if (c->count == c->capacity) {
        c->capacity *= 2;
        c->states = reallocarray(c->states, c->capacity, sizeof(*c->states));
        assert(c->states != NULL);
    }
    c->states[c->count] = c->states[c->count - 1];
    return &c->states[c->count++];
}

/* ---- Contents ---- */

static uint32_t item_fill(uint64_t id, uint32_t object, uint32_t slot, uint8_t value[SIM_ITEM_MAX])
{
    uint64_t x = hash_mix64(id * 64 + object * 8 + slot);
    uint32_t len = 8 + (uint32_t)(x % (x >> 32 & 15 ? 500 : SIM_ITEM_MAX - 8));
    memset(value, (int)(x >> 40 & 0xff), len);
    memcpy(value, &id, sizeof(id));
    return len;
}

/* False: nobody put that. */
static bool item_id(uint32_t object, uint32_t slot, const uint8_t *value, uint32_t len, uint64_t *ret_id)
{
    uint8_t want[SIM_ITEM_MAX];
    uint64_t id;
    if (len < sizeof(id))
        return false;
    memcpy(&id, value, sizeof(id));
    if (item_fill(id, object, slot, want) != len || memcmp(want, value, len) != 0)
        return false;
    *ret_id = id;
    return true;
}

static uint64_t stamp(uint64_t id, uint32_t block)
{
    return BLOCK_MARK ^ (id << 16 | block);
}

static void block_fill(uint64_t s, uint8_t out[BLOCK_SIZE])
{
    for (uint32_t i = 0; i < BLOCK_SIZE / sizeof(s); i++) {
        uint64_t word = i == 0 ? s : hash_mix64(s + i);
        memcpy(out + i * sizeof(s), &word, sizeof(word));
    }
}

static bool block_stamp(const uint8_t *data, uint64_t *ret)
{
    uint8_t want[BLOCK_SIZE] = {0};
    uint64_t s = 0;
    if (data != NULL)
        memcpy(&s, data, sizeof(s));
    if (s != 0)
        block_fill(s, want);
    if (data != NULL && memcmp(want, data, BLOCK_SIZE) != 0)
        return false;
    *ret = s;
    return true;
}

/* ---- What readers see ---- */

struct cell { /* an item, or a block */
    bool is_block;
    uint32_t object, at;
};

static uint64_t cell_of(const struct state *s, const struct cell *cell)
{
    return cell->is_block ? s->blocks[cell->object * SIM_OBJECT_BLOCKS + cell->at]
                          : s->items[cell->object][cell->at];
}

/* C2. What was seen is acknowledged: the oldest state that it can have been, since holes and clones come back
 * (0, then a write, then 0 again, all while it was read). */
static void cell_seen(struct seed *s, const struct cell *cell, uint64_t value, uint64_t from)
{
    struct changes *c = s->changes;
    for (uint64_t i = from; i < c->count; i++) {
        if (cell_of(&c->states[i], cell) != value)
            continue;
        while (i > 0 && cell_of(&c->states[i - 1], cell) == value)
            i--;
        c->acked = MAX(c->acked, i);
        return;
    }
    seed_fail(s,
              "%s %" PRIu32 " of object %" PRIu32 " shows %#" PRIx64
              ", which it had not while it was read, but %#" PRIx64 " to %#" PRIx64,
              cell->is_block ? "block" : "item", cell->at, cell->object, value,
              cell_of(&c->states[from], cell), cell_of(newest(c), cell));
}

static bool item_read(struct seed *s, uint32_t object, uint32_t slot, uint64_t *ret_id) may_yield;
static bool item_read(struct seed *s, uint32_t object, uint32_t slot, uint64_t *ret_id)
{
    uint8_t value[SIM_ITEM_MAX];
    uint32_t len;
    int err = s->target->ops->item(s->target, object, slot, value, sizeof(value), &len);
    *ret_id = 0;
    if (err == ERR_NOT_FOUND)
        return true;
    if (err == 0 && item_id(object, slot, value, len, ret_id))
        return true;
    seed_fail(s, "item %" PRIu32 " of object %" PRIu32 ": %s", slot, object,
              err != 0 ? error_text(err) : "bytes that nobody put");
    return false;
}

static bool blocks_read(struct seed *s, uint32_t object, uint32_t block, uint32_t blocks, uint64_t *ret)
    may_yield;
static bool blocks_read(struct seed *s, uint32_t object, uint32_t block, uint32_t blocks, uint64_t *ret)
{
    struct page_vec v;
    int err = s->target->ops->object_read(s->target, object, block, blocks, &v);
    if (err != 0) {
        seed_fail(s, "blocks %" PRIu32 "+%" PRIu32 " of object %" PRIu32 ": %s", block, blocks, object,
                  error_text(err));
        return false;
    }
    bool good = true;
    for (uint32_t i = 0, at = 0; i < v.run_count; i++)
        for (uint32_t k = 0; k < v.runs[i].count; k++, at++)
            good = good &&
                   block_stamp(v.runs[i].page != NULL ? page_at(v.runs[i].page, k)->data : NULL, &ret[at]);
    page_vec_put(&v);
    if (!good)
        seed_fail(s, "blocks %" PRIu32 "+%" PRIu32 " of object %" PRIu32 " hold bytes that nobody wrote",
                  block, blocks, object);
    return good;
}

static void do_look(struct seed *s) may_yield;
static void do_look(struct seed *s)
{
    struct changes *c = s->changes;
    uint32_t object = (uint32_t)sim_random_below(&c->random, SIM_OBJECTS);
    uint64_t from = c->count - 1, value[4];
    if (sim_random_below(&c->random, 2) == 0) {
        struct cell cell = {false, object, (uint32_t)sim_random_below(&c->random, SIM_OBJECT_ITEMS)};
        if (!item_read(s, object, cell.at, value))
            return;
        int err = s->target->ops->seen(s->target, object);
        if (err != 0)
            seed_fail(s, "object %" PRIu32 " was seen: %s", object, error_text(err));
        else
            cell_seen(s, &cell, value[0], from);
        return;
    }
    uint32_t blocks = 1 + (uint32_t)sim_random_below(&c->random, ARRAY_SIZE(value));
    struct cell cell = {true, object, (uint32_t)sim_random_below(&c->random, SIM_OBJECT_BLOCKS - blocks + 1)};
    if (!blocks_read(s, object, cell.at, blocks, value))
        return;
    for (uint32_t i = 0; i < blocks && !s->failed; i++, cell.at++)
        cell_seen(s, &cell, value[i], from);
}

/* ---- Changing ---- */

struct attempt { /* of one client */
    struct seed *seed;
    struct sim_change change;
    uint64_t id;
    bool happened;
    uint64_t state; /* that it made; 0: none */
    uint8_t values[SIM_CHANGE_ITEMS][SIM_ITEM_MAX];
};

/* C1 */
static void on_look(void *ctx, uint32_t object, uint32_t slot, const void *value, uint32_t len)
{
    struct attempt *a = ctx;
    uint64_t id = 0, want = newest(a->seed->changes)->items[object][slot];
    if (value != NULL && !item_id(object, slot, value, len, &id))
        seed_fail(a->seed, "an instant finds bytes in item %" PRIu32 " of object %" PRIu32 " that nobody put",
                  slot, object);
    else if (id != want)
        seed_fail(a->seed,
                  "an instant finds change %" PRIu64 " in item %" PRIu32 " of object %" PRIu32
                  ", the newest is %" PRIu64,
                  id, slot, object, want);
}

static bool only_deletes_nothing(const struct state *s, const struct sim_change *c)
{
    for (uint32_t i = 0; i < c->item_count; i++)
        if (c->items[i].len != 0 || s->items[c->items[i].object][c->items[i].slot] != 0)
            return false;
    return true;
}

static void on_applied(void *ctx, uint32_t blocks)
{
    struct attempt *a = ctx;
    const struct sim_change *c = &a->change;
    struct changes *all = a->seed->changes;
    a->happened = true;
    if (c->data == SIM_CHANGE_NONE && only_deletes_nothing(newest(all), c))
        return; /* no record; says nothing about the changes before it, but for those that it saw */
    struct state *s = state_add(all);
    for (uint32_t i = 0; i < c->item_count; i++)
        s->items[c->items[i].object][c->items[i].slot] = c->items[i].len != 0 ? a->id : 0;
    uint64_t *to = &s->blocks[c->object * SIM_OBJECT_BLOCKS + c->block];
    const uint64_t *from = &all->states[all->count - 2].blocks[c->from * SIM_OBJECT_BLOCKS + c->from_block];
    for (uint32_t i = 0; i < blocks; i++)
        to[i] = c->data == SIM_CHANGE_WRITE   ? stamp(a->id, c->block + i)
                : c->data == SIM_CHANGE_CLONE ? from[i]
                                              : 0;
    a->state = all->count - 1;
}

static bool has_item(const struct sim_change *c, uint32_t object, uint32_t slot)
{
    for (uint32_t i = 0; i < c->item_count; i++)
        if (c->items[i].object == object && c->items[i].slot == slot)
            return true;
    return false;
}

static void draw_items(struct attempt *a, struct sim_random *r)
{
    struct sim_change *c = &a->change;
    uint32_t first = (uint32_t)sim_random_below(r, SIM_OBJECTS),
             other = (uint32_t)sim_random_below(r, SIM_OBJECTS);
    for (uint64_t n = sim_random_below(r, SIM_CHANGE_ITEMS + 1); n > 0; n--) {
        uint32_t object = sim_random_below(r, 2) == 0 ? first : other;
        uint32_t slot = (uint32_t)sim_random_below(r, SIM_OBJECT_ITEMS);
        if (has_item(c, object, slot))
            continue;
        struct sim_change_item *item = &c->items[c->item_count++];
        *item = (struct sim_change_item){.object = object, .slot = slot};
        if (sim_random_below(r, 4) == 0)
            continue; /* a deletion */
        uint8_t *value = a->values[c->item_count - 1];
        item->len = item_fill(a->id, object, slot, value);
        item->value = value;
    }
    c->object = first;
    c->from = other;
}

static bool ranges_overlap(const struct sim_change *c)
{
    return c->object == c->from && c->block < c->from_block + c->blocks &&
           c->from_block < c->block + c->blocks;
}

static void draw_data(struct sim_change *c, struct sim_random *r, bool clones)
{
    static const enum sim_change_data kinds[] = {SIM_CHANGE_NONE,  SIM_CHANGE_WRITE, SIM_CHANGE_WRITE,
                                                 SIM_CHANGE_UNMAP, SIM_CHANGE_CLONE, SIM_CHANGE_CLONE};
    c->data = kinds[sim_random_below(r, clones ? 6 : 4)];
    c->blocks = 1 + (uint32_t)sim_random_below(r, 5);
    c->block = (uint32_t)sim_random_below(r, SIM_OBJECT_BLOCKS - c->blocks + 1);
    c->from_block = (uint32_t)sim_random_below(r, SIM_OBJECT_BLOCKS - c->blocks + 1);
    if (c->item_count == 0 && c->data == SIM_CHANGE_NONE)
        c->data = SIM_CHANGE_UNMAP;
    if (c->data == SIM_CHANGE_CLONE && ranges_overlap(c))
        c->data = SIM_CHANGE_UNMAP;
}

static void do_change(struct seed *s) may_yield;
static void do_change(struct seed *s)
{
    struct changes *all = s->changes;
    struct attempt *a = calloc(1, sizeof(*a));
    struct sim_change *c = &a->change;
    struct page *page = NULL;
    assert(a != NULL);
    a->seed = s;
    a->id = all->next_id++;
    *c = (struct sim_change){.look = on_look, .applied = on_applied, .ctx = a};
    draw_items(a, &all->random);
    draw_data(c, &all->random, s->w.clones);
    c->durable = sim_chance(&all->random, s->w.fua_ppm);
    c->forget = sim_random_below(&all->random, 4) == 0;
    int err = 0;
    if (c->data == SIM_CHANGE_WRITE) {
        err = page_alloc_wait(c->blocks, DEADLINE_NEVER, &page);
        for (uint32_t i = 0; err == 0 && i < c->blocks; i++)
            block_fill(stamp(a->id, c->block + i), page_at(page, i)->data);
        c->page = page;
    }
    sim_trace(s->sim, "call", "change", c->item_count, c->data, a->id);
    if (err == 0)
        err = s->target->ops->change(s->target, c);
    if (page != NULL)
        page_put(page, c->blocks);
    s->last_progress_ns = sim_now_ns(s->sim);
    if (err == 0 && !a->happened) {
        seed_fail(s, "a change was acknowledged that never happened");
    } else if (err == 0) {
        all->acked = MAX(all->acked, a->state);
        if (c->durable)
            all->durable = MAX(all->durable, a->state);
        sim_trace(s->sim, "ack", "change", c->item_count, c->data, a->id);
    } else if (error_errno(err) != ENOSPC || a->happened) {
        seed_fail(s, "a change failed: %s (%s)", error_text(err), error_name(err));
    }
    free(a);
}

void changes_client(struct seed *s)
{
    struct changes *c = s->changes;
    while (!s->stop && !s->failed) {
        if (sim_random_below(&c->random, 3) == 0)
            do_look(s);
        else
            do_change(s);
        if (s->w.think_us != 0)
            (void)fiber_sleep(sim_random_below(&c->random, s->w.think_us * NSEC_PER_USEC));
        else
            fiber_yield();
    }
}

/* ---- After opening ---- */

static bool state_read(struct seed *s, struct state *ret) may_yield;
static bool state_read(struct seed *s, struct state *ret)
{
    for (uint32_t o = 0; o < SIM_OBJECTS; o++) {
        for (uint32_t i = 0; i < SIM_OBJECT_ITEMS; i++)
            if (!item_read(s, o, i, &ret->items[o][i]))
                return false;
        if (!blocks_read(s, o, 0, SIM_OBJECT_BLOCKS, &ret->blocks[o * SIM_OBJECT_BLOCKS]))
            return false;
    }
    return true;
}

static void why_not(struct changes *c, const struct state *found)
{
    c->why[0] = '\0';
    for (uint32_t o = 0; o < SIM_OBJECTS; o++) {
        for (uint32_t i = 0; i < SIM_OBJECT_ITEMS + SIM_OBJECT_BLOCKS; i++) {
            struct cell cell = {i >= SIM_OBJECT_ITEMS, o, i < SIM_OBJECT_ITEMS ? i : i - SIM_OBJECT_ITEMS};
            uint64_t at = c->count;
            while (at-- > c->acked && cell_of(&c->states[at], &cell) != cell_of(found, &cell))
                ;
            size_t len = strlen(c->why);
            if (at + 1 > c->acked)
                continue;
            snprintf(c->why + len, sizeof(c->why) - len,
                     "; no state has %#" PRIx64 " in %s %" PRIu32 " of %" PRIu32, cell_of(found, &cell),
                     cell.is_block ? "block" : "item", cell.at, o);
        }
    }
}

void changes_verify(struct seed *s)
{
    struct changes *c = s->changes;
    struct state found;
    if (!state_read(s, &found))
        return;
    uint64_t at = c->count, inodes = 0;
    while (at-- > c->acked && memcmp(&c->states[at], &found, sizeof(found)) != 0)
        ;
    if (at + 1 <= c->acked) {
        why_not(c, &found);
        seed_fail(s, "the objects are as in no state from %" PRIu64 " to %" PRIu64 "%s", c->acked,
                  c->count - 1, c->why);
        return;
    }
    for (uint32_t o = 0; o < SIM_OBJECTS; o++)
        inodes += found.items[o][0] != 0;
    uint64_t counted = s->target->ops->inodes(s->target);
    if (counted != inodes)
        seed_fail(s, "%" PRIu64 " inodes are counted, there are %" PRIu64, counted, inodes);
    /* Opening ended with a commit. */
    c->states[0] = found;
    c->count = 1;
    c->acked = c->durable = 0;
}
