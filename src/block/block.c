/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the block device
 *
 * Clients see bytes, the volume keeps blocks of 4 KiB. A write that covers a block only in part becomes a
 * merge: read the block, fill in what the client did not send, write. Three rules make this invisible:
 *
 *  B1  Merges exclude every other change of their blocks. Otherwise a merge would write back bytes that it
 *      read before the other change, and undo an acknowledged write that it never overlapped.
 *  B2  Changes of whole blocks exclude only merges. Among themselves the volume orders them.
 *  B3  First come, first served: a range waits for each conflicting one that came before it, granted or not.
 *      So neither merges nor whole writes starve, and there is no deadlock (waits go only to the older).
 *
 * All ranges that change something stand in one list in the order of their arrival. As long as no merge is
 * among them (the rule), entering and leaving cost two pointer writes each; only with a merge in the list
 * they are compared.
 *
 * Readers take no range: the volume never shows a mixture within a block.
 */
#include "block/block.h"
#include "runtime/error.h"
#include "runtime/reactor.h"

#include <stdlib.h>

#define BYTES_PARALLEL  4u
#define ALLOC_TIMEOUT   (60 * NSEC_PER_SEC)
#define MAP_BATCH       64u
#define BLOCK_FLAGS_ALL (BLOCK_FUA | BLOCK_MAY_TRIM)

struct block_device {
    struct volume *volume;
    uint64_t object;
    struct reactor *reactor;
    uint32_t open_count;
    struct list ranges; /* struct block_range.link, oldest first */
    uint32_t merges;    /* of them exclusive */
    struct waitq ranges_changed;
    uint64_t merge_count;
    struct block_op_stats stats[BLOCK_OP_COUNT];
};

struct block_range {
    struct list link;
    uint64_t first, end; /* blocks */
    bool merge;
};

/* ---- Life ---- */

int block_device_new(struct volume *v, uint64_t object, struct block_device **ret)
{
    assert(v != NULL && reactor_current() != NULL);
    struct block_device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return ERR_NO_MEMORY;
    d->volume = v;
    d->object = object;
    d->reactor = reactor_current();
    list_init(&d->ranges);
    waitq_init(&d->ranges_changed);
    *ret = d;
    return 0;
}

void block_device_free(struct block_device *d)
{
    assert(d->open_count == 0);
    assert(list_empty(&d->ranges));
    for (int op = 0; op < BLOCK_OP_COUNT; op++)
        assert(d->stats[op].in_flight == 0);
    free(d);
}

void block_open(struct block_device *d)
{
    assert(d->open_count < UINT32_MAX);
    __atomic_store_n(&d->open_count, d->open_count + 1, __ATOMIC_RELAXED);
}

void block_close(struct block_device *d)
{
    assert(d->open_count > 0);
    __atomic_store_n(&d->open_count, d->open_count - 1, __ATOMIC_RELAXED);
}

uint32_t block_open_count(const struct block_device *d)
{
    return __atomic_load_n(&d->open_count, __ATOMIC_RELAXED);
}

struct reactor *block_reactor(const struct block_device *d)
{
    return d->reactor;
}

struct volume *block_volume(const struct block_device *d)
{
    return d->volume;
}

uint64_t block_size_bytes(const struct block_device *d)
{
    assert(d->reactor == reactor_current());
    return volume_size_bytes(d->volume);
}

int block_resize(struct block_device *d, uint64_t size_bytes)
{
    assert(d->reactor == reactor_current());
    if (size_bytes % BLOCK_SIZE != 0)
        return ERR_UNALIGNED;
    if (size_bytes < volume_size_bytes(d->volume) || size_bytes > INT64_MAX)
        return ERR_INVALID;
    return volume_grow(d->volume, size_bytes);
}

/* ---- The gate: ranges, and what is measured ---- */

static int gate_range(const struct block_device *d, uint64_t offset, uint64_t len)
{
    uint64_t size = block_size_bytes(d);
    return offset > size || len > size - offset ? ERR_OUT_OF_RANGE : 0;
}

static uint64_t gate_enter(struct block_device *d, enum block_op op)
{
    counter_add(&d->stats[op].in_flight, 1);
    return reactor_clock_ns();
}

static int gate_leave(struct block_device *d, enum block_op op, uint64_t began_ns, uint64_t bytes, int err)
{
    struct block_op_stats *s = &d->stats[op];
    assert(s->in_flight > 0 && err <= 0);
    __atomic_store_n(&s->in_flight, s->in_flight - 1, __ATOMIC_RELAXED);
    counter_add(&s->ops, 1);
    if (err == 0)
        counter_add(&s->bytes, bytes);
    else
        counter_add(&s->errors, 1);
    uint64_t now = reactor_clock_ns();
    histogram_add(&s->latency, now > began_ns ? now - began_ns : 0);
    return err;
}

const struct block_op_stats *block_stats(const struct block_device *d, enum block_op op)
{
    assert(op < BLOCK_OP_COUNT);
    return &d->stats[op];
}

const char *block_op_name(enum block_op op)
{
    static const char *const names[BLOCK_OP_COUNT] = {"read", "write", "trim", "zero", "flush", "map"};
    assert(op < BLOCK_OP_COUNT);
    return names[op];
}

uint64_t block_merge_count(const struct block_device *d)
{
    return counter_get(&d->merge_count);
}

/* ---- Ranges under change ---- */

static bool range_must_wait(const struct block_device *d, const struct block_range *r)
{
    if (d->merges == 0)
        return false;
    LIST_FOREACH (&d->ranges, l) {
        const struct block_range *o = CONTAINER_OF(l, struct block_range, link);
        if (o == r)
            return false;
        if ((o->merge || r->merge) && o->first < r->end && r->first < o->end)
            return true; /* B1, B2, B3 */
    }
    assert(false && "a range that waits is in the list");
    return false;
}

static void range_leave(struct block_device *d, struct block_range *r)
{
    list_remove(&r->link);
    if (r->merge) {
        assert(d->merges > 0);
        d->merges--;
    }
    if (r->merge || d->merges > 0)
        waitq_wake_all(&d->ranges_changed);
}

MUST_CHECK static int range_enter(struct block_device *d, struct block_range *r, uint64_t first,
                                  uint64_t blocks, bool merge) may_yield
{
    assert(blocks > 0);
    r->first = first;
    r->end = first + blocks;
    r->merge = merge;
    list_append(&d->ranges, &r->link);
    d->merges += merge;
    while (range_must_wait(d, r)) {
        int err = waitq_wait(&d->ranges_changed, DEADLINE_NEVER);
        if (err != 0) {
            range_leave(d, r);
            return err;
        }
    }
    return 0;
}

/* ---- Reading ---- */

int block_read(struct block_device *d, uint64_t offset, uint32_t len, struct page_vec *ret)
{
    assert(len > 0 && len == block_piece_len(offset, len));
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    uint64_t began = gate_enter(d, BLOCK_OP_READ);
    err = volume_read(d->volume, d->object, offset / BLOCK_SIZE, block_span(offset, len), ret);
    assert(err != 0 || ret->blocks == block_span(offset, len));
    return gate_leave(d, BLOCK_OP_READ, began, len, err);
}

int block_prefetch(struct block_device *d, uint64_t offset, uint64_t len)
{
    int err = gate_range(d, offset, len);
    len = MIN(len, BLOCK_PREFETCH_MAX);
    while (err == 0 && len > 0) {
        uint32_t n = block_piece_len(offset, len);
        err = volume_prefetch(d->volume, d->object, offset / BLOCK_SIZE, block_span(offset, n));
        offset += n;
        len -= n;
    }
    return err;
}

int block_map(struct block_device *d, uint64_t offset, uint64_t len, struct block_extent *out, uint32_t max,
              uint32_t *ret_count)
{
    assert(len > 0 && max > 0);
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    uint64_t began = gate_enter(d, BLOCK_OP_MAP);
    struct volume_map_entry entries[MAP_BATCH];
    uint64_t first = offset / BLOCK_SIZE, last = (offset + len - 1) / BLOCK_SIZE;
    uint32_t count = 0;
    err = volume_map(d->volume, d->object, first, last - first + 1, entries, MIN(max, MAP_BATCH), &count);
    if (err != 0)
        return gate_leave(d, BLOCK_OP_MAP, began, 0, err);
    assert(count >= 1 && count <= MIN(max, MAP_BATCH));
    uint64_t at = offset, end = offset + len;
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && at < end; i++) {
        assert(entries[i].block * BLOCK_SIZE <= at && entries[i].blocks > 0);
        uint64_t stop = MIN(end, (entries[i].block + entries[i].blocks) * BLOCK_SIZE);
        assert(stop > at);
        out[n++] = (struct block_extent){at, stop - at, entries[i].kind};
        at = stop;
    }
    *ret_count = n;
    return gate_leave(d, BLOCK_OP_MAP, began, 0, 0);
}

/* ---- Writing ---- */

/* Copies bytes [from, to) of the device's block into the page. */
MUST_CHECK static int merge_bytes(struct block_device *d, uint64_t block, uint32_t from, uint32_t to,
                                  struct page *page) may_yield
{
    assert(from < to && to <= BLOCK_SIZE);
    struct page_vec old;
    int err = volume_read(d->volume, d->object, block, 1, &old);
    if (err != 0)
        return err;
    assert(old.blocks == 1);
    if (old.runs[0].page != NULL)
        memcpy(page->data + from, old.runs[0].page->data + from, to - from);
    else
        memset(page->data + from, 0, to - from);
    page_vec_put(&old);
    counter_add(&d->merge_count, 1);
    return 0;
}

/* The range of blocks is entered as a merge: nobody else changes them (B1). */
MUST_CHECK static int merge_edges(struct block_device *d, uint64_t offset, uint32_t len,
                                  const struct page_vec *data) may_yield
{
    uint32_t head = (uint32_t)(offset % BLOCK_SIZE), tail = (uint32_t)((offset + len) % BLOCK_SIZE);
    int err = 0;
    if (head != 0) {
        assert(data->runs[0].page != NULL);
        err = merge_bytes(d, offset / BLOCK_SIZE, 0, head, data->runs[0].page);
    }
    if (err == 0 && tail != 0) {
        const struct page_run *last = &data->runs[data->run_count - 1];
        assert(last->page != NULL);
        err = merge_bytes(d, (offset + len) / BLOCK_SIZE, tail, BLOCK_SIZE,
                          page_at(last->page, last->count - 1));
    }
    return err;
}

MUST_CHECK static int write_piece(struct block_device *d, uint64_t offset, uint32_t len,
                                  const struct page_vec *data, uint32_t flags) may_yield
{
    bool merge = (offset | (offset + len)) % BLOCK_SIZE != 0;
    struct block_range range;
    int err = range_enter(d, &range, offset / BLOCK_SIZE, block_span(offset, len), merge);
    if (err != 0)
        return err;
    if (merge)
        err = merge_edges(d, offset, len, data);
    if (err == 0)
        err = volume_write(d->volume, d->object, offset / BLOCK_SIZE, data,
                           flags & BLOCK_FUA ? VOLUME_WRITE_FUA : 0);
    range_leave(d, &range);
    return err;
}

int block_write(struct block_device *d, uint64_t offset, uint32_t len, const struct page_vec *data,
                uint32_t flags)
{
    assert(len > 0 && len == block_piece_len(offset, len));
    assert(data->blocks == block_span(offset, len) && (flags & ~(uint32_t)BLOCK_FUA) == 0);
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    uint64_t began = gate_enter(d, BLOCK_OP_WRITE);
    err = write_piece(d, offset, len, data, flags);
    return gate_leave(d, BLOCK_OP_WRITE, began, len, err);
}

/* Whole blocks. */
MUST_CHECK static int clear_blocks(struct block_device *d, uint64_t first, uint64_t blocks, bool trim,
                                   uint32_t flags) may_yield
{
    struct block_range range;
    int err = range_enter(d, &range, first, blocks, false);
    if (err != 0)
        return err;
    uint32_t vflags = flags & BLOCK_FUA ? VOLUME_WRITE_FUA : 0;
    err = trim ? volume_unmap(d->volume, d->object, first, blocks, vflags)
               : volume_zero(d->volume, d->object, first, blocks, vflags);
    range_leave(d, &range);
    return err;
}

/* A part of one block. */
MUST_CHECK static int zero_part(struct block_device *d, uint64_t offset, uint32_t len, uint32_t flags)
    may_yield
{
    assert(len > 0 && block_span(offset, len) == 1);
    struct page *page;
    int err = page_alloc_wait(1, reactor_now_ns() + ALLOC_TIMEOUT, &page);
    if (err != 0)
        return err;
    memset(page->data, 0, BLOCK_SIZE);
    struct page_vec v = {.run_count = 1, .blocks = 1};
    v.runs[0] = (struct page_run){page, 1};
    err = write_piece(d, offset, len, &v, flags & BLOCK_FUA);
    page_put(page, 1);
    return err;
}

int block_trim(struct block_device *d, uint64_t offset, uint64_t len, uint32_t flags)
{
    assert((flags & ~(uint32_t)BLOCK_FUA) == 0);
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    uint64_t began = gate_enter(d, BLOCK_OP_TRIM);
    uint64_t first = DIV_ROUND_UP(offset, BLOCK_SIZE), end = (offset + len) / BLOCK_SIZE;
    if (first < end)
        err = clear_blocks(d, first, end - first, true, flags);
    return gate_leave(d, BLOCK_OP_TRIM, began, len, err);
}

MUST_CHECK static int zero_range(struct block_device *d, uint64_t offset, uint64_t len, uint32_t flags)
    may_yield
{
    uint64_t stop = offset + len;
    uint64_t first = DIV_ROUND_UP(offset, BLOCK_SIZE), end = stop / BLOCK_SIZE;
    if (first > end) /* inside of one block */
        return zero_part(d, offset, (uint32_t)len, flags);
    int err = 0;
    if (first < end)
        err = clear_blocks(d, first, end - first, flags & BLOCK_MAY_TRIM, flags);
    if (err == 0 && offset < first * BLOCK_SIZE)
        err = zero_part(d, offset, (uint32_t)(first * BLOCK_SIZE - offset), flags);
    if (err == 0 && end * BLOCK_SIZE < stop)
        err = zero_part(d, end * BLOCK_SIZE, (uint32_t)(stop - end * BLOCK_SIZE), flags);
    return err;
}

int block_zero(struct block_device *d, uint64_t offset, uint64_t len, uint32_t flags)
{
    assert((flags & ~(uint32_t)BLOCK_FLAGS_ALL) == 0);
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    uint64_t began = gate_enter(d, BLOCK_OP_ZERO);
    if (len > 0)
        err = zero_range(d, offset, len, flags);
    return gate_leave(d, BLOCK_OP_ZERO, began, len, err);
}

int block_flush(struct block_device *d)
{
    assert(d->reactor == reactor_current());
    uint64_t began = gate_enter(d, BLOCK_OP_FLUSH);
    return gate_leave(d, BLOCK_OP_FLUSH, began, 0, volume_flush(d->volume));
}

/* ---- Many pieces ---- */

struct pieces {
    uint64_t at, end; /* bytes not begun */
    int (*fn)(void *ctx, uint64_t offset, uint32_t len);
    void *ctx;
    int error;
    struct latch helpers;
};

static void pieces_work(struct pieces *p) may_yield
{
    while (p->error == 0 && p->at < p->end) {
        uint64_t offset = p->at;
        uint32_t len = block_piece_len(offset, p->end - offset);
        p->at += len;
        int err = p->fn(p->ctx, offset, len);
        if (err != 0 && p->error == 0)
            p->error = err;
    }
}

static void pieces_helper(void *arg) may_yield
{
    struct pieces *p = arg;
    pieces_work(p);
    latch_down(&p->helpers);
}

int block_for_pieces(uint64_t offset, uint64_t len, uint32_t parallel,
                     int (*fn)(void *ctx, uint64_t offset, uint32_t len), void *ctx)
{
    assert(parallel > 0 && len <= UINT64_MAX - offset);
    struct pieces p = {.at = offset, .end = offset + len, .fn = fn, .ctx = ctx};
    if (len == 0)
        return 0;
    uint64_t count = (offset + len - 1) / BLOCK_PIECE_MAX - offset / BLOCK_PIECE_MAX + 1;
    uint32_t helpers = (uint32_t)MIN(count, parallel) - 1;
    latch_init(&p.helpers, helpers);
    for (uint32_t i = 0; i < helpers; i++) {
        /* Fewer fibers make it slower, not wrong. */
        if (fiber_spawn("block piece", pieces_helper, &p) != 0)
            latch_down(&p.helpers);
    }
    pieces_work(&p);
    latch_wait(&p.helpers);
    return p.error;
}

/* ---- Bytes ---- */

struct bytes_job {
    struct block_device *device;
    uint8_t *to;
    const uint8_t *from;
    uint64_t base;
    uint32_t flags;
};

static void copy_from_pages(const struct page_vec *v, uint32_t skip, uint8_t *to, uint32_t len)
{
    for (uint32_t i = 0; i < v->run_count && len > 0; i++) {
        uint32_t n = MIN(len, v->runs[i].count * BLOCK_SIZE - skip);
        if (v->runs[i].page != NULL)
            memcpy(to, v->runs[i].page->data + skip, n);
        else
            memset(to, 0, n);
        to += n;
        len -= n;
        skip = 0;
    }
    assert(len == 0);
}

static int read_bytes_piece(void *ctx, uint64_t offset, uint32_t len) may_yield
{
    struct bytes_job *j = ctx;
    struct page_vec v;
    int err = block_read(j->device, offset, len, &v);
    if (err != 0)
        return err;
    copy_from_pages(&v, (uint32_t)(offset % BLOCK_SIZE), j->to + (offset - j->base), len);
    page_vec_put(&v);
    return 0;
}

int block_read_bytes(struct block_device *d, uint64_t offset, void *buf, uint64_t len)
{
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    struct bytes_job j = {.device = d, .to = buf, .base = offset};
    return block_for_pieces(offset, len, BYTES_PARALLEL, read_bytes_piece, &j);
}

static int write_bytes_piece(void *ctx, uint64_t offset, uint32_t len) may_yield
{
    struct bytes_job *j = ctx;
    uint32_t blocks = block_span(offset, len);
    struct page *page;
    int err = page_alloc_wait(blocks, reactor_now_ns() + ALLOC_TIMEOUT, &page);
    if (err != 0)
        return err;
    memcpy(page->data + offset % BLOCK_SIZE, j->from + (offset - j->base), len);
    struct page_vec v = {.run_count = 1, .blocks = blocks};
    v.runs[0] = (struct page_run){page, blocks};
    err = block_write(j->device, offset, len, &v, j->flags);
    page_put(page, blocks);
    return err;
}

int block_write_bytes(struct block_device *d, uint64_t offset, const void *buf, uint64_t len, uint32_t flags)
{
    int err = gate_range(d, offset, len);
    if (err != 0)
        return err;
    struct bytes_job j = {.device = d, .from = buf, .base = offset, .flags = flags};
    return block_for_pieces(offset, len, BYTES_PARALLEL, write_bytes_piece, &j);
}
