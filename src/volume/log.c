/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intent log: gathering and sending. See log.h for the states of a batch and the invariants.
 *
 * Why data and log block of a batch are sent at once, and not one after the other: replay verifies the data
 * that a record names by the checksums in the record, so a record whose data did not make it is recognised.
 * Why acknowledgements go in order: replay ends at the first batch that does not verify; an acknowledged
 * batch behind it would be lost (L1).
 *
 * Batches of small synchronous writes carry their blocks as payload: one I/O and one flush make them durable,
 * and the blocks reach their place with the commit, side by side.
 */
#include "volume/log.h"

#include "runtime/checksum.h"
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

#define COPY_BLOCKS_MAX 4u
static_assert(COPY_BLOCKS_MAX <= LOG_HEADER_PAGES, "copied payload lies behind the records");

uint64_t log_ring_blocks(const struct volume_record *r)
{
    return (uint64_t)r->system_runs * r->slab_blocks - ROOT_RING_BLOCKS;
}

void log_place(const struct volume *v, uint64_t position, uint32_t *ret_group, uint32_t *ret_block)
{
    uint64_t b = ROOT_RING_BLOCKS + position % v->log.blocks;

    *ret_group = (uint32_t)(b / v->record.slab_blocks);
    *ret_block = (uint32_t)(b % v->record.slab_blocks);
}

static uint32_t records_blocks(uint32_t record_bytes)
{
    return DIV_ROUND_UP((uint32_t)sizeof(struct disk_log_batch) + record_bytes, BLOCK_SIZE);
}

static uint32_t batch_header_blocks(const struct log_batch *b)
{
    return records_blocks(b->record_bytes);
}

static uint32_t batch_blocks(const struct log_batch *b)
{
    return batch_header_blocks(b) + b->payload_pages;
}

/* ---- Opening and closing batches ---- */

static bool batch_fits(const struct log_batch *b, const struct log_need *n)
{
    return sizeof(struct disk_log_batch) + b->record_bytes + n->record_bytes <=
               LOG_HEADER_PAGES * BLOCK_SIZE &&
           b->data_count + n->data_runs <= LOG_DATA_RUNS_MAX &&
           b->payload_count + n->data_runs <= LOG_DATA_RUNS_MAX &&
           b->payload_pages + n->payload_pages <= LOG_PAYLOAD_PAGES;
}

/* Blocks of the ring that are neither needed nor promised. A batch is promised what its records take so far,
 * which is at least one block: a small ring has no room for all that it might take. */
static uint64_t ring_free(const struct log *l)
{
    uint64_t used = l->head - l->tail + l->reserved;

    return used >= l->blocks ? 0 : l->blocks - used;
}

static bool ring_has_room(const struct log *l, const struct log_need *n)
{
    uint32_t has = l->open ? batch_header_blocks(l->open) : 0,
             bytes = (l->open ? l->open->record_bytes : 0) + n->record_bytes;
    uint64_t need =
        n->payload_pages + records_blocks(bytes) - has + (n->last_resort ? 0 : LOG_RESERVE_BLOCKS);

    return ring_free(l) >= need;
}

bool log_ready(const struct volume *v, const struct log_need *n)
{
    const struct log *l = &v->log;

    return !v->state && l->open && batch_fits(l->open, n) && ring_has_room(l, n);
}

static void batch_free(struct log *l, struct log_batch *b)
{
    if (l->spare_count < ARRAY_SIZE(l->spare)) {
        l->spare[l->spare_count++] = b;
        return;
    }
    page_put(b->header, LOG_HEADER_PAGES);
    free(b);
}

void log_batch_get(struct log_batch *b)
{
    b->refs++;
}

void log_batch_put(struct log_batch *b)
{
    assert(b->refs > 0);
    if (--b->refs == 0)
        batch_free(&b->volume->log, b);
}

static may_yield int batch_new(struct volume *v, struct log_batch **ret)
{
    struct log *l = &v->log;
    struct log_batch *b;

    if (l->spare_count > 0) {
        b = l->spare[--l->spare_count];
        struct page *header = b->header;
        memset(b, 0, offsetof(struct log_batch, data));
        b->data_count = b->payload_count = b->payload_pages = b->write_count = 0;
        b->header = header;
    } else {
        struct page *header;
        int r = page_alloc_wait(LOG_HEADER_PAGES, DEADLINE_NEVER, &header);
        if (r)
            return r;
        b = calloc(1, sizeof(*b));
        if (!b) {
            page_put(header, LOG_HEADER_PAGES);
            return ERR_NO_MEMORY;
        }
        b->header = header;
    }
    b->volume = v;
    list_init(&b->link);
    waitq_init(&b->waiters);
    b->refs = 1;
    *ret = b;
    return 0;
}

static void batch_open(struct volume *v, struct log_batch *b)
{
    struct log *l = &v->log;

    assert(!l->open);
    b->sequence = l->next_sequence++;
    b->txg = v->txg;
    b->opened_ns = reactor_now_ns();
    l->reserved += batch_blocks(b);
    l->open = b;
}

/* Open -> closed. An empty open batch stays open, except that its txg is renewed by the next record. */
static void batch_close(struct volume *v)
{
    struct log *l = &v->log;
    struct log_batch *b = l->open;

    if (!b || b->record_count == 0)
        return;
    l->open = NULL;
    list_append(&l->queue, &b->link);
    l->queue_count++;
}

uint64_t log_cut(struct volume *v)
{
    struct log *l = &v->log;

    batch_close(v);
    assert(!l->open || l->open->record_count == 0);
    l->cut_sequence = l->open ? l->open->sequence : l->next_sequence;
    l->cut_position = l->head; /* moves on with the closed batches before it */
    return l->cut_sequence;
}

int log_ensure(struct volume *v, const struct log_need *n)
{
    struct log *l = &v->log;

    assert(n->record_bytes <= LOG_HEADER_PAGES * BLOCK_SIZE - sizeof(struct disk_log_batch));
    assert(n->data_runs <= LOG_DATA_RUNS_MAX && n->payload_pages <= LOG_PAYLOAD_PAGES);
    for (;;) {
        if (v->state)
            return v->state;
        if (log_ready(v, n))
            return 0;
        if (l->open && !batch_fits(l->open, n)) {
            batch_close(v);
            log_send(v);
        }
        if (!ring_has_room(l, n)) {
            batch_close(v);
            txg_want_commit(v);
            (void)waitq_wait(&l->room, DEADLINE_NEVER);
            if (fiber_cancelled())
                return ERR_CANCELLED;
            continue;
        }
        if (l->open)
            continue;
        if (l->queue_count >= LOG_QUEUE_MAX) {
            (void)waitq_wait(&l->room, DEADLINE_NEVER);
            if (fiber_cancelled())
                return ERR_CANCELLED;
            continue;
        }
        struct log_batch *b;
        int r = batch_new(v, &b);
        if (r)
            return r;
        if (l->open || v->state) /* somebody was faster while we waited for memory */
            batch_free(l, b);
        else
            batch_open(v, b);
    }
}

struct log_batch *log_batch_find(struct volume *v, uint64_t sequence)
{
    struct log *l = &v->log;

    if (l->open && l->open->sequence == sequence)
        return l->open;
    LIST_FOREACH (&l->writing, it)
        if (CONTAINER_OF(it, struct log_batch, link)->sequence == sequence)
            return CONTAINER_OF(it, struct log_batch, link);
    LIST_FOREACH (&l->queue, it)
        if (CONTAINER_OF(it, struct log_batch, link)->sequence == sequence)
            return CONTAINER_OF(it, struct log_batch, link);
    return NULL;
}

/* ---- Records ---- */

void *log_add(struct volume *v, uint16_t type, uint16_t flags, uint32_t head, uint32_t len,
              struct log_batch **ret_batch)
{
    struct log_batch *b = v->log.open;
    uint32_t size = LOG_RECORD_BYTES(len);

    assert(b && sizeof(struct disk_log_batch) + b->record_bytes + size <= LOG_HEADER_PAGES * BLOCK_SIZE);
    if (b->record_count == 0)
        b->txg = v->txg;
    assert(b->txg == v->txg); /* L4 */
    uint8_t *at = b->header->data + sizeof(struct disk_log_batch) + b->record_bytes;
    struct disk_log_record rec = {
        .type = le16_make(type), .flags = le16_make(flags), .len = le32_make(len), .head = le32_make(head)};
    memcpy(at, &rec, sizeof(rec));
    if (size > sizeof(rec) + len)
        memset(at + sizeof(rec) + len, 0, size - sizeof(rec) - len);
    v->log.reserved += records_blocks(b->record_bytes + size) - batch_header_blocks(b);
    b->record_bytes += size;
    b->record_count++;
    v->log.records++;
    txg_dirty(v);
    *ret_batch = b;
    return at + sizeof(rec);
}

void log_add_data(struct log_batch *b, uint32_t space, uint64_t block, struct page *page, uint32_t count,
                  bool inline_payload)
{
    struct log_data d = {.space = space, .count = count, .block = block, .page = page};

    page_get(page, count);
    if (inline_payload) {
        assert(b->payload_count < LOG_DATA_RUNS_MAX);
        b->payload[b->payload_count++] = d;
        b->payload_pages += count;
        b->volume->log.reserved += count;
    } else {
        assert(b->data_count < LOG_DATA_RUNS_MAX);
        b->data[b->data_count++] = d;
    }
}

/* ---- Sending ---- */

static void batch_written(struct log_batch *b);

static void write_done(struct group_write *w)
{
    struct log_batch *b = w->ctx;
    bool is_log = w->group->purpose == GROUP_SYSTEM;

    if (w->result) {
        if (is_log)
            b->result = w->result;
        else
            b->data_result = w->result;
    }
    if (w->failed)
        membership_kick(b->volume);
    assert(b->pending > 0);
    if (--b->pending == 0)
        batch_written(b);
}

static void batch_seal(struct volume *v, struct log_batch *b)
{
    uint8_t *base = b->header->data;
    uint32_t bytes = (uint32_t)sizeof(struct disk_log_batch) + b->record_bytes;
    uint32_t blocks = batch_header_blocks(b);
    struct disk_log_batch h = {.magic = le32_make(LOG_MAGIC),
                               .volume = v->record.id,
                               .epoch = le64_make(v->record.epoch),
                               .sequence = le64_make(b->sequence),
                               .block = le64_make(b->position),
                               .durable = le64_make(v->log.durable),
                               .txg = le64_make(b->txg),
                               .record_bytes = le32_make(b->record_bytes),
                               .record_count = le16_make((uint16_t)b->record_count),
                               .header_blocks = le16_make((uint16_t)blocks),
                               .payload_blocks = le32_make(b->payload_pages),
                               .flags = (uint8_t)b->flags};

    memset(base + bytes, 0, blocks * BLOCK_SIZE - bytes);
    memcpy(base, &h, sizeof(h));
    h.crc = le32_make(log_batch_crc(base, blocks, v->record.id, v->record.epoch, b->sequence));
    memcpy(base, &h, sizeof(h));
}

uint32_t log_batch_crc(const void *batch, uint32_t header_blocks, struct uuid volume, uint64_t epoch,
                       uint64_t sequence)
{
    struct disk_log_batch h;
    struct le64 seed[2] = {le64_make(epoch), le64_make(sequence)};
    uint32_t c = crc32c(0, volume.b, sizeof(volume.b));

    c = crc32c(c, seed, sizeof(seed));
    memcpy(&h, batch, sizeof(h));
    h.crc = le32_make(0);
    c = crc32c(c, &h, sizeof(h));
    return crc32c(c, (const uint8_t *)batch + sizeof(h), (size_t)header_blocks * BLOCK_SIZE - sizeof(h));
}

/* Adds one write of iov[first..n) to the batch's list. */
static struct group_write *batch_add_write(struct log_batch *b, struct group *g, uint32_t block,
                                           uint32_t blocks, const struct iovec *iov, uint32_t iov_count,
                                           struct page *page)
{
    struct group_write *w = &b->writes[b->write_count++];

    *w = (struct group_write){.group = g,
                              .block = block,
                              .blocks = blocks,
                              .iov = iov,
                              .iov_count = iov_count,
                              .page = iov_count == 1 ? page : NULL,
                              .dsync = b->dsync,
                              .done = write_done,
                              .ctx = b};
    return w;
}

/* The data runs, neighbours merged into one write. Returns iov entries used. */
static uint32_t batch_plan_data(struct volume *v, struct log_batch *b)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < b->data_count;) {
        const struct log_data *d = &b->data[i];
        uint32_t first = used, blocks = 0, j = i;
        do {
            b->iov[used++] = (struct iovec){.iov_base = b->data[j].page->data,
                                            .iov_len = (size_t)b->data[j].count * BLOCK_SIZE};
            blocks += b->data[j].count;
            j++;
        } while (j < b->data_count && b->data[j].space == d->space && b->data[j].block == d->block + blocks);
        struct group *g = group_find(v->groups, d->space);
        assert(g);
        batch_add_write(b, g, (uint32_t)d->block, blocks, &b->iov[first], used - first, d->page);
        i = j;
    }
    return used;
}

/* The log blocks: header, then payload; in two writes where they cross from one run of the system group to
 * the next. */
static void batch_plan_log(struct volume *v, struct log_batch *b, uint32_t used)
{
    struct iovec *iov = &b->iov[used];
    uint32_t header = batch_header_blocks(b), n = 0, left = batch_blocks(b), group, block;
    uint64_t position = b->position;
    bool copied = left <= COPY_BLOCKS_MAX;

    /* Several runs of memory make no registered buffer; a copy of a few blocks costs less than that. */
    for (uint32_t i = 0, at = header; copied && i < b->payload_count; at += b->payload[i++].count)
        memcpy(page_at(b->header, at)->data, b->payload[i].page->data,
               (size_t)b->payload[i].count * BLOCK_SIZE);
    iov[n++] =
        (struct iovec){.iov_base = b->header->data, .iov_len = (size_t)(copied ? left : header) * BLOCK_SIZE};
    for (uint32_t i = 0; !copied && i < b->payload_count; i++)
        iov[n++] = (struct iovec){.iov_base = b->payload[i].page->data,
                                  .iov_len = (size_t)b->payload[i].count * BLOCK_SIZE};
    uint32_t at = 0;
    while (left > 0) {
        log_place(v, position, &group, &block);
        uint32_t room = MIN(left, v->record.slab_blocks - block), first = at;
        size_t bytes = (size_t)room * BLOCK_SIZE;
        while (bytes >= iov[at].iov_len && bytes > 0) {
            bytes -= iov[at].iov_len;
            if (++at == n)
                break;
        }
        if (bytes > 0) { /* one entry is cut in two */
            memmove(&iov[at + 1], &iov[at], (n - at) * sizeof(*iov));
            n++;
            iov[at].iov_len = bytes;
            iov[at + 1].iov_base = (uint8_t *)iov[at + 1].iov_base + bytes;
            iov[at + 1].iov_len -= bytes;
            at++;
        }
        batch_add_write(b, v->system[group], block, room, &iov[first], at - first,
                        first == 0 ? b->header : NULL);
        position += room;
        left -= room;
    }
}

static void batch_submit(struct volume *v, struct log_batch *b)
{
    struct log *l = &v->log;

    if (l->durable > l->carrier)
        l->marked = l->carried;
    l->carrier = b->sequence;
    l->carried = l->durable;
    l->rests_ns = reactor_now_ns();
    if (b->record_count > 0)
        l->records_end = b->sequence + 1;
    uint32_t most = b->data_count + batch_blocks(b) / v->record.slab_blocks + 2;

    b->position = l->head;
    l->head += batch_blocks(b);
    if (b->sequence < l->cut_sequence)
        l->cut_position = l->head;
    assert(l->reserved >= batch_blocks(b));
    l->reserved -= batch_blocks(b);
    assert(l->head - l->tail <= l->blocks); /* L2 */
    batch_seal(v, b);
    /* Durable by itself if it names no data and no batch before it waits for a flush. */
    b->dsync = b->want_flush && b->data_count == 0 && l->last_plain <= l->durable;
    if (!b->dsync)
        l->last_plain = b->sequence + 1;
    b->writes = b->few;
    if (most > ARRAY_SIZE(b->few))
        b->writes = malloc(most * sizeof(*b->writes));
    list_append(&l->writing, &b->link);
    l->writing_count++;
    l->batches++;
    if (!b->writes) {
        b->writes = b->few;
        b->result = ERR_NO_MEMORY;
        b->pending = 0;
        batch_written(b);
        return;
    }
    b->write_count = 0;
    batch_plan_log(v, b, batch_plan_data(v, b));
    b->pending = b->write_count;
    for (uint32_t i = 0, n = b->write_count; i < n; i++)
        group_write_submit(&b->writes[i]);
}

void log_send(struct volume *v)
{
    struct log *l = &v->log;

    while (!l->stopped && l->writing_count < LOG_WRITING_MAX) {
        if (list_empty(&l->queue)) {
            if (!l->open || l->open->record_count == 0)
                return;
            batch_close(v);
        }
        struct log_batch *b = CONTAINER_OF(list_pop(&l->queue), struct log_batch, link);
        l->queue_count--;
        waitq_wake_all(&l->room);
        batch_submit(v, b);
    }
    if (l->head - l->tail > l->blocks / 3)
        txg_want_commit(v);
}

/* ---- Written, acknowledged, durable ---- */

static void batch_release(struct volume *v, struct log_batch *b)
{
    for (uint32_t i = 0; i < b->data_count; i++)
        page_put(b->data[i].page, b->data[i].count);
    for (uint32_t i = 0; i < b->payload_count; i++)
        page_put(b->payload[i].page, b->payload[i].count);
    b->data_count = b->payload_count = 0;
    if (b->writes != b->few)
        free(b->writes);
    b->writes = NULL;
    log_batch_put(b);
    (void)v;
}

/* What the batch wrote to its place need not stay in memory any more. */
static void batch_clean_cache(struct volume *v, const struct log_batch *b)
{
    for (uint32_t i = 0; i < b->data_count; i++) {
        const struct log_data *d = &b->data[i];
        cache_clean_data(v->env.cache, (struct cache_key){v->cache_tag, d->space, d->block}, d->page,
                         d->count);
    }
}

/* No flush was needed. The flusher has to look whether a mark is, unless it does so anyway before long. */
static void log_durable_alone(struct log *l, const struct log_batch *b)
{
    l->durable = b->sequence + 1;
    if (!l->marking)
        waitq_wake_all(&l->flush_wanted);
}

static void log_advance(struct volume *v)
{
    struct log *l = &v->log;
    bool flush = false;

    LIST_FOREACH (&l->writing, it) {
        struct log_batch *b = CONTAINER_OF(it, struct log_batch, link);
        if (!b->written)
            break;
        if (b->sequence < l->written)
            continue;
        l->written = b->sequence + 1;
        /* With a drive that missed it the flusher waits until that is recorded. */
        if (b->dsync && l->durable == b->sequence && !l->paused && !v->stale_work)
            log_durable_alone(l, b);
        if (b->want_flush && l->durable <= b->sequence) {
            l->want_durable = MAX(l->want_durable, b->sequence + 1);
            flush = true;
        }
    }
    while (!l->paused && !list_empty(&l->writing)) {
        struct log_batch *b = CONTAINER_OF(l->writing.next, struct log_batch, link);
        if (!b->written || b->sequence >= l->written)
            break;
        list_remove(&b->link);
        b->acknowledged = true;
        l->acknowledged = b->sequence + 1;
        waitq_wake_all(&b->waiters);
        batch_release(v, b);
    }
    if (flush)
        waitq_wake_all(&l->flush_wanted);
    waitq_wake_all(&l->acknowledged_changed);
    waitq_wake_all(&l->durable_changed);
}

static void batch_written(struct log_batch *b)
{
    struct volume *v = b->volume;

    assert(!b->written && b->pending == 0);
    b->written = true;
    v->log.writing_count--;
    batch_clean_cache(v, b);
    if (b->result)
        volume_fail(v, b->result, "intent log write");
    log_advance(v);
}

void log_resume(struct volume *v)
{
    v->log.paused = false;
    log_advance(v);
}

static bool flush_lost(const struct log *l, uint64_t sequence);

int log_wait(struct volume *v, struct log_batch *b, bool durable)
{
    struct log *l = &v->log;

    if (durable && !b->written)
        b->want_flush = true;
    fiber_shield();
    while (!b->acknowledged && !l->stopped)
        (void)waitq_wait(&b->waiters, DEADLINE_NEVER);
    if (durable) {
        while (l->durable <= b->sequence && !l->stopped) {
            l->want_durable = MAX(l->want_durable, b->sequence + 1);
            waitq_wake_all(&l->flush_wanted);
            (void)waitq_wait(&l->durable_changed, DEADLINE_NEVER);
        }
    }
    fiber_unshield();
    if (v->state)
        return v->state;
    return b->data_result || !durable || !flush_lost(l, b->sequence) ? b->data_result : ERR_LOST_RANGE;
}

int log_wait_written(struct volume *v, uint64_t sequence)
{
    struct log *l = &v->log;

    fiber_shield();
    while (l->written < sequence && !l->stopped)
        (void)waitq_wait(&l->acknowledged_changed, DEADLINE_NEVER);
    fiber_unshield();
    return v->state;
}

int log_flush(struct volume *v)
{
    struct log *l = &v->log;
    uint64_t target = l->acknowledged;
    bool waits = l->durable < target;

    fiber_shield();
    while (l->durable < target && !l->stopped) {
        l->want_durable = MAX(l->want_durable, target);
        waitq_wake_all(&l->flush_wanted);
        (void)waitq_wait(&l->durable_changed, DEADLINE_NEVER);
    }
    fiber_unshield();
    if (v->state)
        return v->state;
    return waits && flush_lost(l, target - 1) ? ERR_LOST_RANGE : 0;
}

/* Some unflushed data went with its last copy: whoever waits for a flush is told. */
void log_flush_lost(struct volume *v)
{
    v->log.lost_from = v->log.durable;
    v->log.lost_to = v->log.written;
    v->losses++;
    event_raise(LOG_ERROR_, "data-lost",
                "volume %s: data that was written but not flushed was lost with a drive", v->record.name);
}

static bool flush_lost(const struct log *l, uint64_t sequence)
{
    return sequence >= l->lost_from && sequence < l->lost_to;
}

/* ---- Marks ---- */

/* Something is durable that no durable batch says so of, and no root has. */
static bool mark_lacks(const struct volume *v)
{
    const struct log *l = &v->log;
    uint64_t marked = l->durable > l->carrier ? l->carried : l->marked;

    return MIN(l->durable, l->records_end) > marked && l->records_end > v->root_log_sequence && !l->stopped &&
           !v->closing;
}

/* Nothing else is on its way. */
static bool log_rests(const struct volume *v)
{
    const struct log *l = &v->log;

    return !l->paused && !v->replaying && l->writing_count == 0 && list_empty(&l->queue) &&
           !(l->open && l->open->record_count > 0);
}

/* Takes no memory and no room that others wait for: it may be left out, and is tried again. */
static may_yield void mark_write(struct volume *v)
{
    struct log *l = &v->log;
    struct log_need none = {0};
    struct log_batch *b;

    l->rests_ns = reactor_now_ns();
    if (!log_rests(v) || !ring_has_room(l, &none))
        return;
    if (!l->open) {
        if (l->spare_count == 0 || batch_new(v, &b))
            return;
        batch_open(v, b);
    }
    b = l->open;
    assert(b->record_count == 0);
    b->txg = v->txg;
    b->want_flush = true;
    l->open = NULL;
    list_append(&l->queue, &b->link);
    l->queue_count++;
    log_send(v);
}

/* The one fiber that flushes: while a flush is under way the next ones gather. */
static may_yield void flusher_main(void *arg)
{
    struct volume *v = arg;
    struct log *l = &v->log;

    for (;;) {
        while (!l->flusher_stop &&
               (l->want_durable <= l->durable || l->written <= l->durable || l->stopped)) {
            l->marking = mark_lacks(v);
            uint64_t due = l->marking ? l->rests_ns + LOG_MARK_NS : DEADLINE_NEVER;
            if (due <= reactor_now_ns())
                mark_write(v);
            else
                (void)waitq_wait(&l->flush_wanted, due);
        }
        if (l->flusher_stop)
            return;
        l->marking = false;
        uint64_t target = l->written;
        bool failed = false;
        int r = group_set_flush(v->groups, &failed);
        if (r == ERR_GROUP_DEGRADED_BELOW) {
            log_flush_lost(v);
        } else if (r) {
            volume_fail(v, r, "flush");
            continue;
        }
        if (failed || v->stale_work) {
            /* Durable counts only once every drive that missed something is recorded. The recorder itself
             * flushes. */
            membership_kick(v);
            if (membership_settle(v))
                continue;
        }
        log_durable(v, target);
    }
}

void log_durable(struct volume *v, uint64_t sequence)
{
    if (sequence > v->log.durable)
        v->log.durable = sequence;
    waitq_wake_all(&v->log.durable_changed);
}

void log_trim(struct volume *v, uint64_t tail)
{
    assert(tail >= v->log.tail && tail <= v->log.head);
    v->log.tail = tail;
    waitq_wake_all(&v->log.room);
}

void log_fail(struct volume *v)
{
    struct log *l = &v->log;

    l->stopped = true;
    LIST_FOREACH (&l->writing, it)
        waitq_wake_all(&CONTAINER_OF(it, struct log_batch, link)->waiters);
    LIST_FOREACH (&l->queue, it)
        waitq_wake_all(&CONTAINER_OF(it, struct log_batch, link)->waiters);
    if (l->open)
        waitq_wake_all(&l->open->waiters);
    waitq_wake_all(&l->room);
    waitq_wake_all(&l->acknowledged_changed);
    waitq_wake_all(&l->durable_changed);
}

int log_init(struct volume *v, uint64_t next_sequence, uint64_t durable, uint64_t head, uint64_t tail)
{
    struct log *l = &v->log;

    *l = (struct log){.next_sequence = next_sequence,
                      .acknowledged = next_sequence,
                      .written = next_sequence,
                      .durable = durable,
                      .want_durable = durable,
                      .last_plain = next_sequence,
                      .head = head,
                      .tail = tail,
                      .blocks = log_ring_blocks(&v->record)};
    list_init(&l->queue);
    list_init(&l->writing);
    waitq_init(&l->flush_wanted);
    waitq_init(&l->durable_changed);
    waitq_init(&l->acknowledged_changed);
    waitq_init(&l->room);
    return fiber_spawn_joinable("log-flush", flusher_main, v, &l->flusher);
}

void log_done(struct volume *v)
{
    struct log *l = &v->log;

    fiber_shield();
    if (l->flusher) {
        l->flusher_stop = true;
        waitq_wake_all(&l->flush_wanted);
        fiber_join(l->flusher);
        l->flusher = NULL;
    }
    /* A failed volume may still have writes under way: their memory must outlive them. */
    while (l->writing_count > 0)
        (void)fiber_sleep(NSEC_PER_MSEC);
    fiber_unshield();
    while (!list_empty(&l->writing)) {
        struct log_batch *b = CONTAINER_OF(list_pop(&l->writing), struct log_batch, link);
        batch_release(v, b);
    }
    while (!list_empty(&l->queue))
        batch_release(v, CONTAINER_OF(list_pop(&l->queue), struct log_batch, link));
    if (l->open)
        batch_release(v, l->open);
    l->open = NULL;
    while (l->spare_count > 0) {
        struct log_batch *b = l->spare[--l->spare_count];
        page_put(b->header, LOG_HEADER_PAGES);
        free(b);
    }
}
