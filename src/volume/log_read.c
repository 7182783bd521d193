/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch counts if any current member has it right: a batch that only one member has was not acknowledged,
 * but once it is replayed the commit that ends opening brings it to all of them.
 *
 * Replay must deliver every batch below the highest durable mark. Where one cannot be read, a look ahead
 * finds out whether later batches exist whose mark covers it: then acknowledged changes are lost, which is an
 * alarm and makes the volume read-only, never a silent end.
 */
#include "volume/log_read.h"

#include <stdlib.h>

#define WINDOW_BLOCKS GROUP_READ_MAX
#define AHEAD_BLOCKS  1024u

int log_batch_parse(const void *base, uint32_t blocks, struct uuid volume, struct log_found *ret)
{
    struct disk_log_batch h;

    if (blocks < 1)
        return ERR_VOLUME_CORRUPT;
    memcpy(&h, base, sizeof(h));
    uint32_t header_blocks = le16_get(h.header_blocks), bytes = le32_get(h.record_bytes);
    if (le32_get(h.magic) != LOG_MAGIC || !uuid_equal(h.volume, volume) || header_blocks == 0 ||
        header_blocks > LOG_BATCH_HEADER_BLOCKS_MAX || header_blocks > blocks ||
        bytes > header_blocks * BLOCK_SIZE - sizeof(h) || le32_get(h.payload_blocks) > LOG_BATCH_PAYLOAD_MAX)
        return ERR_VOLUME_CORRUPT;
    if (le32_get(h.crc) !=
        log_batch_crc(base, header_blocks, volume, le64_get(h.epoch), le64_get(h.sequence)))
        return ERR_VOLUME_CORRUPT;
    *ret = (struct log_found){.sequence = le64_get(h.sequence),
                              .position = le64_get(h.block),
                              .epoch = le64_get(h.epoch),
                              .txg = le64_get(h.txg),
                              .durable = le64_get(h.durable),
                              .header_blocks = header_blocks,
                              .payload_blocks = le32_get(h.payload_blocks),
                              .record_bytes = bytes,
                              .record_count = le16_get(h.record_count),
                              .alone = h.flags & LOG_BATCH_ALONE};
    ret->records = (uint8_t *)(uintptr_t)base + sizeof(h);
    return 0;
}

void log_cursor_init(struct log_cursor *c, const struct log_found *b)
{
    *c = (struct log_cursor){.batch = b};
}

int log_cursor_next(struct log_cursor *c)
{
    const struct log_found *b = c->batch;
    struct disk_log_record rec;

    if (c->at == b->record_bytes)
        return ERR_NOT_FOUND;
    if (b->record_bytes - c->at < sizeof(rec))
        return ERR_VOLUME_CORRUPT;
    memcpy(&rec, b->records + c->at, sizeof(rec));
    uint32_t len = le32_get(rec.len);
    if (len > LOG_BATCH_HEADER_BLOCKS_MAX * BLOCK_SIZE || LOG_RECORD_BYTES(len) > b->record_bytes - c->at)
        return ERR_VOLUME_CORRUPT;
    c->type = le16_get(rec.type);
    c->flags = le16_get(rec.flags);
    c->head = le32_get(rec.head);
    c->len = len;
    c->body = b->records + c->at + sizeof(rec);
    c->at += LOG_RECORD_BYTES(len);
    return 0;
}

int log_extent_decode(const struct log_cursor *c, struct extent *ret)
{
    struct le64 where[2];

    if (c->len < sizeof(where))
        return ERR_VOLUME_CORRUPT;
    memcpy(where, c->body, sizeof(where));
    struct tree_key key = {le64_get(where[0]), ITEM_EXTENT, le64_get(where[1])};
    return extent_decode(&key, c->body + sizeof(where), c->len - (uint32_t)sizeof(where), ret);
}

/* ---- Windows: the log of one member, a MiB at a time ---- */

struct window {
    struct page *pages;
    uint64_t start;
    uint32_t blocks; /* 0: empty */
};
struct reader {
    struct volume *volume;
    struct window windows[SYSTEM_MEMBERS_MAX];
    uint8_t *header; /* LOG_BATCH_HEADER_BLOCKS_MAX blocks: where a header crosses a window's end */
};

static may_yield int window_read(struct volume *v, struct window *w, uint32_t member, uint32_t group,
                                 uint32_t block, uint32_t blocks)
{
    struct iovec iov = {.iov_base = w->pages->data, .iov_len = (size_t)blocks * BLOCK_SIZE};
    struct group_read read = {.group = v->system[group],
                              .block = block,
                              .blocks = blocks,
                              .iov = &iov,
                              .iov_count = 1,
                              .page = w->pages,
                              .verify = VERIFY_NONE,
                              .only = (int)member};
    return group_read(&read);
}

/* The log block at a position of one member; NULL if it cannot be read. Borrowed until the next call. */
static may_yield const uint8_t *window_block(struct reader *rd, uint32_t member, uint64_t position)
{
    struct volume *v = rd->volume;
    struct window *w = &rd->windows[member];
    uint32_t group, block;

    if (w->blocks && position >= w->start && position - w->start < w->blocks)
        return w->pages->data + (position - w->start) * BLOCK_SIZE;
    if (!w->pages && page_alloc_wait(WINDOW_BLOCKS, DEADLINE_NEVER, &w->pages))
        return NULL;
    log_place(v, position, &group, &block);
    uint32_t n = MIN(WINDOW_BLOCKS, v->record.slab_blocks - block);
    w->blocks = 0;
    /* What cannot be read in a window need not be the block that is asked for. */
    if (window_read(v, w, member, group, block, n)) {
        n = 1;
        if (window_read(v, w, member, group, block, n))
            return NULL;
    }
    w->start = position;
    w->blocks = n;
    return w->pages->data;
}

static bool member_readable(const struct volume *v, uint32_t m)
{
    const struct group_member *gm = &v->system[0]->members[m];

    return gm->state == MEMBER_CURRENT && group_drive_usable(gm->drive);
}

/* The batch at a position as one member has it; records point into rd->header. */
static may_yield int batch_at(struct reader *rd, uint32_t member, uint64_t position, struct log_found *ret)
{
    const uint8_t *first = window_block(rd, member, position);
    struct disk_log_batch h;

    if (!first)
        return ERR_DRIVE_GONE;
    memcpy(&h, first, sizeof(h));
    uint32_t n = le16_get(h.header_blocks);
    if (le32_get(h.magic) != LOG_MAGIC || n == 0 || n > LOG_BATCH_HEADER_BLOCKS_MAX ||
        le64_get(h.block) != position)
        return ERR_VOLUME_CORRUPT;
    memcpy(rd->header, first, BLOCK_SIZE);
    for (uint32_t i = 1; i < n; i++) {
        const uint8_t *b = window_block(rd, member, position + i);
        if (!b)
            return ERR_DRIVE_GONE;
        memcpy(rd->header + (size_t)i * BLOCK_SIZE, b, BLOCK_SIZE);
    }
    return log_batch_parse(rd->header, n, rd->volume->record.id, ret);
}

/* ERR_VOLUME_CORRUPT: no member has one there; ERR_GROUP_DEGRADED_BELOW: none could be read. */
static may_yield int batch_any(struct reader *rd, uint64_t position, struct log_found *ret)
{
    bool have = false, heard = false;
    struct log_found found;

    for (uint32_t m = 0; m < rd->volume->record.member_count; m++) {
        int r = member_readable(rd->volume, m) ? batch_at(rd, m, position, &found) : ERR_DRIVE_GONE;
        heard |= r != ERR_DRIVE_GONE;
        if (r)
            continue;
        if (!have || found.epoch > ret->epoch ||
            (found.epoch == ret->epoch && found.sequence > ret->sequence)) {
            uint8_t *copy = malloc(MAX(found.record_bytes, 1u));
            if (!copy) {
                if (have)
                    free(ret->records);
                return ERR_NO_MEMORY;
            }
            memcpy(copy, found.records, found.record_bytes);
            if (have)
                free(ret->records);
            *ret = found;
            ret->records = copy;
            have = true;
        }
    }
    return have ? 0 : heard ? ERR_VOLUME_CORRUPT : ERR_GROUP_DEGRADED_BELOW;
}

static int scan_add(struct log_scan *s, const struct log_found *b)
{
    if (s->count == s->capacity) {
        size_t n = s->capacity ? s->capacity * 2 : 256;
        struct log_found *p = realloc(s->batches, n * sizeof(*p));
        if (!p)
            return ERR_NO_MEMORY;
        s->batches = p;
        s->capacity = n;
    }
    s->batches[s->count++] = *b;
    return 0;
}

/* Is there a later batch that says that the missing one was durable? */
static may_yield bool look_ahead(struct reader *rd, const struct log_scan *s, uint64_t epoch)
{
    for (uint64_t i = 1; i < MIN(AHEAD_BLOCKS, rd->volume->log.blocks); i++) {
        struct log_found b;
        if (batch_any(rd, s->end + i, &b))
            continue;
        free(b.records);
        if (b.epoch >= epoch && b.sequence > s->sequence && b.durable > s->sequence)
            return true;
    }
    return false;
}

int log_scan_run(struct volume *v, const struct disk_root *root, struct log_scan *ret)
{
    struct reader rd = {.volume = v, .header = malloc((size_t)LOG_BATCH_HEADER_BLOCKS_MAX * BLOCK_SIZE)};
    struct log_scan s = {.end = le64_get(root->log_block),
                         .sequence = le64_get(root->log_sequence),
                         .durable = le64_get(root->log_sequence)};
    uint64_t epoch = le64_get(root->log_epoch), start = s.end;
    if (epoch == 0 || epoch > le64_get(root->epoch))
        epoch = le64_get(root->epoch);
    int r = rd.header ? 0 : ERR_NO_MEMORY;

    while (!r && s.end - start < v->log.blocks) {
        struct log_found b;
        r = batch_any(&rd, s.end, &b);
        if (r == ERR_NO_MEMORY || r == ERR_GROUP_DEGRADED_BELOW)
            break; /* what cannot be read is no end of the log */
        if (r || b.sequence != s.sequence || b.epoch < epoch || b.epoch > v->record.epoch ||
            b.header_blocks + b.payload_blocks > v->log.blocks - (s.end - start)) {
            if (!r)
                free(b.records);
            r = 0;
            s.hole = s.durable > s.sequence || look_ahead(&rd, &s, epoch);
            break;
        }
        r = scan_add(&s, &b);
        if (r) {
            free(b.records);
            break;
        }
        epoch = b.epoch;
        s.end += b.header_blocks + b.payload_blocks;
        s.sequence++;
        s.durable = MAX(s.durable, b.durable);
        s.txg_max = MAX(s.txg_max, b.txg);
    }
    for (uint32_t m = 0; m < SYSTEM_MEMBERS_MAX; m++)
        if (rd.windows[m].pages)
            page_put(rd.windows[m].pages, WINDOW_BLOCKS);
    free(rd.header);
    if (r) {
        log_scan_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}

void log_scan_done(struct log_scan *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->batches[i].records);
    free(s->batches);
    *s = (struct log_scan){0};
}
