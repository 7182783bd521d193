/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ashlar inspect DIR --blocks DRIVE: which bytes of a drive are in use, and for what.
 *
 * Data and tree blocks are those that the newest root names, and data that the log behind it names. Log
 * blocks are those that the two newest roots need; where they need none (the volume was closed in order), the
 * newest batches that are still whole. Copies that are not up to date do not count.
 */
#include "cli/offline_inspect.h"

#include "drive/codec.h"
#include "runtime/error.h"

#include <stdlib.h>

enum block_kind { KIND_DATA, KIND_TREE, KIND_LOG, KIND_ROOT };
static const char *const kind_names[] = {"data", "tree", "log", "root"};

struct piece {
    uint64_t offset, len, volume_offset;
    enum block_kind kind;
    uint32_t volume; /* index */
};

/* Groups that only the log knows. */
struct log_group {
    struct group group;
    struct uuid drives[GROUP_MEMBERS_MAX];
};

struct blocks {
    struct offline *o;
    struct uuid drive;
    uint64_t slab_offset, slab_bytes, drive_bytes;
    struct piece *pieces;
    size_t count, capacity;
    json_t *names; /* of the volumes */
    /* of the volume at hand */
    struct volume *volume;
    struct log_group *log_groups;
    size_t log_group_count;
};

static int piece_add(struct blocks *b, enum block_kind kind, uint32_t slab, uint64_t block, uint64_t blocks,
                     uint64_t volume_offset)
{
    if (b->count == b->capacity) {
        size_t n = MAX(b->capacity * 2, (size_t)1024);
        struct piece *p = realloc(b->pieces, n * sizeof(*p));
        if (p == NULL)
            return ERR_NO_MEMORY;
        b->pieces = p;
        b->capacity = n;
    }
    uint64_t offset = b->slab_offset + (uint64_t)slab * b->slab_bytes + block * BLOCK_SIZE;
    if ((block + blocks) * BLOCK_SIZE > b->slab_bytes || offset + blocks * BLOCK_SIZE > b->drive_bytes)
        return 0; /* nonsense in a damaged item */
    b->pieces[b->count++] = (struct piece){.offset = offset,
                                           .len = blocks * BLOCK_SIZE,
                                           .volume_offset = volume_offset,
                                           .kind = kind,
                                           .volume = (uint32_t)json_array_size(b->names) - 1};
    return 0;
}

/* The group's current member on our drive. */
static bool member_here(struct blocks *b, uint32_t group, uint32_t *ret_member, uint32_t *ret_slab)
{
    const struct group *g = group_find(b->volume->groups, group);
    for (uint32_t m = 0; g != NULL && m < g->member_count; m++)
        if (g->members[m].state == MEMBER_CURRENT &&
            uuid_equal(group_drive_id(g->members[m].drive), b->drive)) {
            *ret_member = m;
            *ret_slab = g->members[m].slab;
            return true;
        }
    for (size_t i = 0; g == NULL && i < b->log_group_count; i++) {
        const struct log_group *lg = &b->log_groups[i];
        for (uint32_t m = 0; lg->group.id == group && m < lg->group.member_count; m++)
            if (lg->group.members[m].state == MEMBER_CURRENT && uuid_equal(lg->drives[m], b->drive)) {
                *ret_member = m;
                *ret_slab = lg->group.members[m].slab;
                return true;
            }
    }
    return false;
}

static int group_blocks(struct blocks *b, enum block_kind kind, uint32_t group, uint64_t block,
                        uint64_t blocks, uint64_t volume_offset)
{
    uint32_t member, slab;
    return member_here(b, group, &member, &slab) ? piece_add(b, kind, slab, block, blocks, volume_offset) : 0;
}

/* ---- Trees ---- */

static int on_node(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low)
{
    (void)low;
    return group_blocks(ctx, KIND_TREE, le32_get(p->space), le64_get(p->block), NODE_BLOCKS, 0);
}

static int extent_add(struct blocks *b, const struct extent *e)
{
    if (e->flags & (EXTENT_ZERO | EXTENT_LOST))
        return 0;
    return group_blocks(b, KIND_DATA, e->space, e->block, e->blocks, e->start * BLOCK_SIZE);
}

static int on_item(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct extent e;
    if (key->type != ITEM_EXTENT || extent_decode(key, value, len, &e) != 0)
        return 0;
    return extent_add(ctx, &e);
}

static int on_bad(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
                  const struct tree_key *high, int err)
{
    struct blocks *b = ctx;
    (void)low;
    (void)high;
    offline_note(b->o, "volume", b->volume->record.name,
                 "a tree node at group %u block %llu cannot be read: %s", le32_get(p->space),
                 (unsigned long long)le64_get(p->block), error_text(err));
    return 0;
}

/* ---- Log ---- */

static int log_range(struct blocks *b, uint64_t from, uint64_t to)
{
    int r = 0;
    for (uint64_t at = from; r == 0 && at < to;) {
        uint32_t group, block;
        log_place(b->volume, at, &group, &block);
        uint64_t n = MIN(to - at, (uint64_t)b->volume->record.slab_blocks - block);
        r = group_blocks(b, KIND_LOG, group, block, n, 0);
        at += n;
    }
    return r;
}

static int on_past(void *ctx, uint64_t position, uint32_t blocks)
{
    return log_range(ctx, position, position + blocks);
}

static int log_group_add(struct blocks *b, const struct log_cursor *c)
{
    struct log_group *p = realloc(b->log_groups, (b->log_group_count + 1) * sizeof(*p));
    if (p == NULL)
        return ERR_NO_MEMORY;
    b->log_groups = p;
    if (group_decode(c->body, c->len, &p[b->log_group_count].group, p[b->log_group_count].drives) == 0)
        b->log_group_count++;
    return 0;
}

/* The data that one batch names, where it goes to its place. */
static int batch_data(struct blocks *b, const struct log_found *batch)
{
    struct log_cursor c;
    int r = 0;
    log_cursor_init(&c, batch);
    while (r == 0 && log_cursor_next(&c) == 0) {
        struct extent e;
        if (c.type == LOG_GROUP)
            r = log_group_add(b, &c);
        else if (c.type == LOG_EXTENT && !(c.flags & LOG_RECORD_INLINE) && log_extent_decode(&c, &e) == 0)
            r = extent_add(b, &e);
    }
    return r;
}

static int log_blocks(struct blocks *b, const struct disk_root *root) may_yield
{
    uint64_t from = le64_get(root->log_oldest_block), place = le64_get(root->log_block);
    struct log_scan scan;
    int r = log_scan_run(b->volume, root, &scan);
    if (r != 0)
        return r;
    uint64_t end = scan.end;
    for (size_t i = 0; r == 0 && i < scan.count; i++)
        r = batch_data(b, &scan.batches[i]);
    log_scan_done(&scan);
    if (from > place || end - from > b->volume->log.blocks)
        from = place;
    if (r == 0)
        r = log_range(b, from, end);
    uint32_t member, slab;
    if (r == 0 && from == end && member_here(b, 0, &member, &slab))
        r = volume_inspect_past(b->volume, member, end, on_past, b);
    return r == ERR_DRIVE_GONE ? 0 : r;
}

static int on_slot(void *ctx, const struct inspect_slot *s)
{
    struct blocks *b = ctx;
    uint32_t member, slab;
    if (s->err != 0 || !member_here(b, 0, &member, &slab) || member != s->member)
        return 0;
    return piece_add(b, KIND_ROOT, slab, s->slot, 1, 0);
}

/* ---- Volumes ---- */

static int volume_blocks(struct blocks *b, struct volume *v) may_yield
{
    struct tree_walk walk = {.node = on_node, .item = on_item, .bad = on_bad, .ctx = b};
    struct disk_root root;
    b->volume = v;
    int r = volume_inspect_roots(v, on_slot, b);
    if (r == 0)
        r = volume_inspect_root(v, &root);
    if (r == 0)
        r = log_blocks(b, &root);
    if (r == 0)
        r = volume_inspect_load(v, &root);
    if (r == 0)
        r = tree_walk(&v->pool, &walk);
    if (r == 0)
        r = tree_walk(&v->head, &walk);
    free(b->log_groups);
    b->log_groups = NULL;
    b->log_group_count = 0;
    return r;
}

static void all_volumes(struct blocks *b) may_yield
{
    struct offline *o = b->o;
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(o->node.coord, "/volumes/", &records, &count);
    if (r < 0)
        offline_fail(o, "", "the records of the volumes cannot be read: %s", error_text(r));
    for (size_t i = 0; i < count && o->result != OFFLINE_FAILED; i++) {
        struct volume_record record;
        struct volume *v = NULL;
        r = volume_record_decode(records[i].value, records[i].revision, &record);
        if (r < 0 || record.deleted)
            continue;
        json_array_append_new(b->names, control_text(record.name));
        r = volume_inspect_open(&o->node.reactors[0].env, record.id, &v);
        if (r == 0) {
            r = volume_blocks(b, v);
            volume_inspect_close(v);
        }
        if (r == ERR_NO_MEMORY)
            offline_fail(o, "Give more memory with --memory SIZE.", "the volume %s: %s", record.name,
                         error_text(r));
        else if (r != 0)
            offline_problem(o, "volume", record.name, "not all of it can be read: %s", error_text(r));
    }
    coord_records_free(records, count);
}

/* ---- The answer ---- */

static int piece_compare(const void *pa, const void *pb)
{
    const struct piece *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool piece_follows(const struct piece *a, const struct piece *b)
{
    return a->offset + a->len == b->offset && a->kind == b->kind && a->volume == b->volume &&
           (a->kind != KIND_DATA || a->volume_offset + a->len == b->volume_offset);
}

static json_t *pieces_json(struct blocks *b)
{
    json_t *list = json_array();
    if (b->count > 0)
        qsort(b->pieces, b->count, sizeof(b->pieces[0]), piece_compare);
    for (size_t i = 0; i < b->count;) {
        struct piece p = b->pieces[i++];
        /* The log may name what the root has too. */
        while (i < b->count && (b->pieces[i].offset < p.offset + p.len || piece_follows(&p, &b->pieces[i]))) {
            uint64_t end = MAX(p.offset + p.len, b->pieces[i].offset + b->pieces[i].len);
            p.len = end - p.offset;
            i++;
        }
        json_t *j = json_pack("{sI sI ss sO}", "offset", (json_int_t)p.offset, "length", (json_int_t)p.len,
                              "kind", kind_names[p.kind], "volume", json_array_get(b->names, p.volume));
        if (p.kind == KIND_DATA)
            json_object_set_new(j, "volume_offset", inspect_number(p.volume_offset));
        json_array_append_new(list, j);
    }
    return list;
}

void inspect_blocks(struct offline *o, const char *path)
{
    char *real = realpath(path, NULL);
    struct node_drive *d = node_drive_find(&o->node, real != NULL ? real : path);
    if (d == NULL)
        d = node_drive_find(&o->node, path);
    free(real);
    struct drive_info info;
    if (d == NULL || d->home == NULL || drive_get_info(d->handles[0], &info) != 0) {
        offline_fail(o, "Give its path as `ashlar inspect DIR` shows it.",
                     "%s is no drive of this pool that can be "
                     "opened%s%s",
                     path, d != NULL ? ": " : "", d != NULL ? d->why : "");
        return;
    }
    struct drive_layout layout;
    if (drive_layout_compute(info.size_bytes, info.slab_bytes, &layout) != 0) {
        offline_fail(o, "", "%s has an unknown layout", path);
        return;
    }
    struct blocks b = {.o = o,
                       .drive = d->id,
                       .slab_offset = layout.slab_offset,
                       .slab_bytes = info.slab_bytes,
                       .drive_bytes = info.size_bytes,
                       .names = json_array()};
    all_volumes(&b);
    inspect_of(o)->view = pieces_json(&b);
    json_decref(b.names);
    free(b.pieces);
}
