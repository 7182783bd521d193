/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atomic changes: see change.h for their way and the invariants H1 to H3.
 *
 * change_begin() comes back inside a hold of the txg (op_hold), with everything promised that the instant may
 * need: memory and addresses for tree nodes, room in the open batch and in the log's ring, data blocks. Each
 * of these promises holds until the next yield only, so they are asked for in a loop until all hold at once.
 *
 * H3 costs a table of sequences by object: a change notes its batch there, and whoever looked at an object
 * waits until that batch is acknowledged. Two objects in one slot make a reader wait for the later of two
 * batches, which is never wrong. Data has its own, finer list (inflight.c).
 */
#include "runtime/checksum.h"
#include "volume/volume_internal.h"

#define INLINE_BLOCKS_MAX 8u
#define LEAVES_WHEN_FULL  4u

void change_init(struct change *c, struct volume *v)
{
    memset(c, 0, offsetof(struct change, ranges));
    c->volume = v;
}

void change_clear(struct change *c)
{
    assert(!c->holding && !c->changed);
    c->puts = c->put_bytes = c->record_bytes = c->data_blocks = c->data_writes = 0;
    c->inline_payload = false;
}

/* ---- What is wanted ---- */

static void range_add(struct change *c, const struct tree_key *first, const struct tree_key *last)
{
    if (c->range_count == CHANGE_RANGES_MAX) {
        c->range_count--;
        memmove(&c->ranges[0], &c->ranges[1], c->range_count * sizeof(c->ranges[0]));
    }
    c->ranges[c->range_count++] = (struct tree_range){.first = *first, .last = *last, .covered = *first};
}

void change_want_range(struct change *c, const struct tree_key *first, const struct tree_key *last)
{
    assert(!c->holding && tree_key_compare(first, last) <= 0);
    for (uint32_t i = 0; i < c->range_count; i++) {
        struct tree_range *r = &c->ranges[i];
        if (tree_key_compare(last, &r->first) < 0 || tree_key_compare(first, &r->last) > 0)
            continue;
        if (tree_key_compare(first, &r->first) < 0)
            r->first = *first;
        if (tree_key_compare(last, &r->last) > 0)
            r->last = *last;
        return;
    }
    range_add(c, first, last);
}

void change_will_put(struct change *c, uint32_t len)
{
    assert(len >= 1 && len <= ITEM_LEN_MAX);
    c->puts++;
    c->put_bytes += len;
    c->record_bytes += LOG_RECORD_BYTES(sizeof(struct disk_log_item) + len);
}

void change_will_delete(struct change *c)
{
    c->record_bytes += LOG_RECORD_BYTES(sizeof(struct disk_log_item));
}

static void want_data(struct change *c, uint64_t object, uint64_t block, uint64_t blocks)
{
    struct tree_key first = extent_key(object, block), last = extent_key(object, block + blocks - 1);

    assert(blocks > 0 && block <= UINT64_MAX / BLOCK_SIZE && blocks <= UINT64_MAX / BLOCK_SIZE - block);
    change_want_range(c, &first, &last);
    /* An extent that is cut leaves a part on each side. */
    c->puts += 3;
    c->put_bytes += 3 * (uint32_t)EXTENT_ITEM_MAX;
}

void change_will_write(struct change *c, uint64_t object, uint64_t block, uint32_t blocks, bool fua_inline)
{
    want_data(c, object, block, blocks);
    c->inline_payload = fua_inline && (c->data_writes == 0 || c->inline_payload);
    c->data_blocks += blocks;
    c->data_writes++;
}

void change_will_unmap(struct change *c, uint64_t object, uint64_t block, uint64_t blocks)
{
    want_data(c, object, block, blocks);
    c->record_bytes += LOG_RECORD_BYTES(sizeof(struct disk_log_range));
}

/* ---- Beginning ---- */

struct need {
    struct log_need log;
    uint32_t puts, put_bytes;
    uint32_t spare_nodes; /* that must be there beside the reserve */
};

static void need_of(struct change *c, struct need *n)
{
    uint32_t runs = MIN(c->data_blocks, CHANGE_WRITE_RUNS);

    assert(c->data_blocks <= PAGE_VEC_MAX && c->data_writes <= CHANGE_DATA_MAX);
    assert(c->record_bytes <= CHANGE_RECORD_BYTES_MAX);
    c->runs_left = runs;
    c->inline_payload &= c->data_blocks <= INLINE_BLOCKS_MAX;
    *n = (struct need){.log = {.record_bytes = c->record_bytes + c->data_blocks * 4 +
                                               runs * (LOG_RECORD_BYTES(sizeof(struct disk_log_extent)) + 8),
                               .data_runs = 2 * runs,
                               .payload_pages = c->inline_payload ? c->data_blocks : 0},
                       .puts = c->puts + runs,
                       .put_bytes =
                           c->put_bytes + runs * (uint32_t)sizeof(struct disk_extent) + c->data_blocks * 4};
    n->spare_nodes = 16 + n->put_bytes / 2048;
}

static may_yield int ensure_all(struct volume *v, const struct change *c, const struct need *n)
{
    int r = txg_throttle(v);

    if (!r && c->data_blocks)
        r = space_ensure_data(v, c->data_blocks);
    if (!r && !c->deletes)
        r = space_ensure_nodes(v, n->spare_nodes, SPACE_NORMAL);
    if (!r)
        r = log_ensure(v, &n->log);
    return r;
}

static may_yield int prepare(struct change *c, const struct need *n, uint32_t leaves)
{
    if (c->range_count == 0)
        return 0;
    return tree_prepare_ranges(&c->volume->head, c->ranges, c->range_count, n->puts, n->put_bytes, leaves);
}

int change_begin(struct change *c)
{
    struct volume *v = c->volume;
    uint32_t reclaimed = 0, leaves = TREE_LEAVES_MAX;
    uint64_t until_ns = 0;
    struct need n;

    assert(!c->holding && !c->changed);
    if (v->state || v->read_only)
        return v->state ? v->state : ERR_VOLUME_READ_ONLY;
    need_of(c, &n);
    for (;;) {
        int r = ensure_all(v, c, &n);
        if (!r) {
            op_hold(v);
            r = prepare(c, &n, leaves);
            if (!r && !v->state && log_ready(v, &n.log) &&
                (!c->data_blocks || space_ready_data(v, c->data_blocks))) {
                c->holding = true;
                return 0;
            }
            op_release(v);
            if (v->state)
                return v->state;
            if (!r)
                continue;
        }
        /* Full: what was freed lately comes back after two commits. A wide range that is done in smaller
         * parts needs fewer nodes at once. */
        if (r == ERR_VOLUME_FULL && reclaimed < 2) {
            reclaimed++;
            r = txg_reclaim(v);
        } else if (r == ERR_VOLUME_FULL && leaves > LEAVES_WHEN_FULL && c->deletes) {
            leaves = LEAVES_WHEN_FULL;
            continue;
        } else if (r == ERR_VOLUME_FULL && shortage_wait(&v->env, v, &until_ns)) {
            v->space.create_error_ns = 0; /* of a pool that was full */
            r = v->state;
        }
        if (r)
            return r;
    }
}

/* ---- In the instant ---- */

const struct tree_range *change_range_of(const struct change *c, const struct tree_key *key)
{
    for (uint32_t i = c->range_count; i-- > 0;)
        if (tree_key_compare(key, &c->ranges[i].first) >= 0 &&
            tree_key_compare(key, &c->ranges[i].covered) <= 0)
            return &c->ranges[i];
    return NULL;
}

/* H1: too late to come again after a change. Wanted on its own even if a wider range has it: of a range that
 * is prepared in part only, the rest does not come by wanting it again. */
static int again(struct change *c, const struct tree_key *key)
{
    assert(!c->changed);
    range_add(c, key, key);
    return ERR_CHANGE_AGAIN;
}

int change_get(struct change *c, struct tree_key key, const void **ret_value, uint32_t *ret_len)
{
    assert(c->holding);
    if (!change_range_of(c, &key))
        return again(c, &key);
    int r = tree_get_now(&c->volume->head, &key, ret_value, ret_len);
    assert(r != TREE_NOT_RESIDENT); /* T1 */
    return r;
}

int change_seek(struct change *c, struct tree_key low, struct tree_key high, enum tree_seek how,
                struct tree_cursor *ret)
{
    struct tree_key *from = how == SEEK_GE ? &low : &high;

    assert(c->holding && tree_key_compare(&low, &high) <= 0);
    int r = tree_seek_resident(ret, &c->volume->head, from, how);
    if (r == TREE_NOT_RESIDENT)
        return again(c, from);
    if (!r && (tree_key_compare(&ret->key, &low) < 0 || tree_key_compare(&ret->key, &high) > 0))
        return ERR_NOT_FOUND;
    return r;
}

static uint64_t *seen_slot(struct volume *v, uint64_t object)
{
    return &v->seen[hash_mix64(object) % SEEN_SLOTS];
}

void *change_log(struct change *c, uint16_t type, uint16_t flags, uint32_t len)
{
    struct log_batch *b;
    void *body = log_add(c->volume, type, flags, HEAD_LIVE, len, &b);

    if (!c->batch) {
        log_batch_get(b);
        c->batch = b;
    }
    assert(c->batch == b); /* H2 */
    return body;
}

void change_inflight(struct change *c, uint64_t object, uint64_t block, uint64_t blocks)
{
    assert(c->inflight_count < CHANGE_DATA_MAX);
    inflight_add(c->volume, &c->inflight[c->inflight_count++], object, block, blocks, c->batch);
    *seen_slot(c->volume, object) = c->batch->sequence;
}

static void *log_item(struct change *c, uint16_t type, const struct tree_key *key, uint32_t len)
{
    struct disk_log_item item = {
        .object = le64_make(key->object), .type = key->type, .offset = le64_make(key->offset)};
    uint8_t *body = change_log(c, type, 0, (uint32_t)sizeof(item) + len);

    memcpy(body, &item, sizeof(item));
    *seen_slot(c->volume, key->object) = c->batch->sequence;
    return body + sizeof(item);
}

void change_put(struct change *c, struct tree_key key, const void *value, uint32_t len)
{
    struct volume *v = c->volume;
    const void *old;
    uint32_t old_len;

    assert(c->holding && key.type >= ITEM_HEAD_FIRST && key.type != ITEM_EXTENT);
    assert(change_range_of(c, &key));
    assert(c->puts > 0 && c->put_bytes >= len); /* as promised */
    c->puts--;
    c->put_bytes -= len;
    c->changed = true;
    if (key.type == ITEM_INODE && tree_get_now(&v->head, &key, &old, &old_len) == ERR_NOT_FOUND)
        v->inodes++;
    /* The log first: the value may lie in the tree. */
    void *copy = log_item(c, LOG_ITEM_PUT, &key, len);
    memcpy(copy, value, len);
    tree_put_now(&v->head, &key, copy, len);
}

void change_delete(struct change *c, struct tree_key key)
{
    struct volume *v = c->volume;

    assert(c->holding && key.type >= ITEM_HEAD_FIRST && key.type != ITEM_EXTENT);
    assert(change_range_of(c, &key));
    c->changed = true;
    int r = tree_delete_now(&v->head, &key);
    assert(r == 0);
    if (key.type == ITEM_INODE) {
        assert(v->inodes > 0);
        v->inodes--;
    }
    (void)log_item(c, LOG_ITEM_DELETE, &key, 0);
}

/* ---- Ending; what others see ---- */

/* Every batch up to this one holds what was done until now. */
static uint64_t sequence_now(const struct log *l)
{
    return l->open && l->open->record_count == 0 ? l->open->sequence - 1 : l->next_sequence - 1;
}

static may_yield int wait_for(struct volume *v, uint64_t sequence)
{
    struct log_batch *b = sequence < v->log.acknowledged ? NULL : log_batch_find(v, sequence);

    if (!b)
        return v->state;
    log_batch_get(b);
    (void)log_wait(v, b, false); /* that its data is bad is the reading's to find out */
    log_batch_put(b);
    return v->state;
}

int volume_seen(struct volume *v, const uint64_t *objects, uint32_t count)
{
    uint64_t last = 0;

    for (uint32_t i = 0; i < count; i++)
        last = MAX(last, *seen_slot(v, objects[i]));
    int r = wait_for(v, last);
    return r ? r : volume_read_allowed(v);
}

/* H3 for what the instant may have seen. */
static may_yield int change_seen(struct change *c)
{
    struct volume *v = c->volume;
    uint64_t last = 0;

    for (uint32_t i = 0; i < c->range_count; i++) {
        const struct tree_range *r = &c->ranges[i];
        bool one = r->first.object == r->last.object;
        last = MAX(last, one ? *seen_slot(v, r->first.object) : sequence_now(&v->log));
    }
    int r = wait_for(v, last);
    return r ? r : volume_read_allowed(v);
}

static may_yield int wait_changed(struct change *c, uint32_t flags)
{
    struct volume *v = c->volume;
    int r = c->batch ? log_wait(v, c->batch, flags & CHANGE_DURABLE) : v->state;

    while (c->inflight_count > 0)
        inflight_remove(&c->inflight[--c->inflight_count]);
    if (c->batch)
        log_batch_put(c->batch);
    c->batch = NULL;
    c->changed = false;
    return r;
}

int change_end(struct change *c, int result, uint32_t flags)
{
    struct volume *v = c->volume;

    assert(!c->changed || (c->holding && result == 0)); /* H1 */
    if (c->holding) {
        /* Closing a volume waits for what is in flight. */
        if (c->batch && c->inflight_count == 0)
            inflight_add(v, &c->inflight[c->inflight_count++], 0, 0, 0, c->batch);
        c->holding = false;
        op_release(v);
    }
    if (c->changed)
        return wait_changed(c, flags);
    if (result == ERR_CHANGE_AGAIN)
        return result;
    int r = change_seen(c);
    return r ? r : result;
}

/* ---- Reading without a change ---- */

int volume_item_get(struct volume *v, struct tree_key key, void *buf, uint32_t max, uint32_t *ret_len)
{
    return v->state ? v->state : tree_get(&v->head, &key, buf, max, ret_len);
}

void volume_items_get(struct volume *v, struct tree_lookup *lookups, uint32_t count)
{
    if (!v->state) {
        tree_get_many(&v->head, lookups, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        lookups[i].result = TREE_NOT_RESIDENT;
}

int volume_item_seek(struct volume *v, struct tree_key key, enum tree_seek how, struct tree_cursor *ret)
{
    return v->state ? v->state : tree_seek(ret, &v->head, &key, how);
}

uint64_t volume_inode_count(const struct volume *v)
{
    return v->inodes;
}

uint64_t volume_verifier(const struct volume *v)
{
    uint64_t id[2];

    memcpy(id, v->record.id.b, sizeof(id));
    return hash_mix64(hash_mix64(hash_mix64(id[0]) ^ id[1]) ^ hash_mix64(v->record.epoch << 20 ^ v->losses));
}
