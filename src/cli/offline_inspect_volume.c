/* SPDX-License-Identifier: Apache-2.0 */
/* ashlar inspect DIR --volume NAME: roots, log, trees, groups, extents, single blocks. */
#include "cli/offline_inspect.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

#include <stdlib.h>

/* ---- Names ---- */

static const char *item_name(uint8_t type)
{
    switch (type) {
    case ITEM_VOLUME:
        return "volume";
    case ITEM_HEAD:
        return "head";
    case ITEM_GROUP:
        return "group";
    case ITEM_SPACE:
        return "space";
    case ITEM_REFCOUNT:
        return "reference-count";
    case ITEM_DAMAGE:
        return "damage";
    case ITEM_STALE_DRIVE:
        return "stale-drive";
    case ITEM_EXTENT:
        return "extent";
    default:
        return "other";
    }
}

static const char *record_name(uint16_t type)
{
    switch (type) {
    case LOG_EXTENT:
        return "extent";
    case LOG_UNMAP:
        return "unmap";
    case LOG_ZERO:
        return "zero";
    case LOG_GROUP:
        return "group";
    case LOG_STALE_DRIVE:
        return "stale-drive";
    case LOG_RESIZE:
        return "resize";
    case LOG_LOST:
        return "lost";
    case LOG_CLONE:
        return "clone";
    case LOG_ITEM_PUT:
        return "item-put";
    case LOG_ITEM_DELETE:
        return "item-delete";
    default:
        return "other";
    }
}

static const char *member_state_name(enum member_state s)
{
    return s == MEMBER_CURRENT ? "current" : s == MEMBER_FILLING ? "filling" : "stale";
}

static const char *purpose_name(enum group_purpose p)
{
    return p == GROUP_SYSTEM ? "system" : p == GROUP_TREE ? "tree" : "data";
}

static void set(json_t *o, const char *key, uint64_t value)
{
    json_object_set_new(o, key, inspect_number(value));
}

/* ---- Roots ---- */

static int root_row(void *ctx, const struct inspect_slot *s)
{
    json_t *j = json_pack("{sI sI ss}", "member", (json_int_t)s->member, "slot", (json_int_t)s->slot, "state",
                          s->err == 0                    ? "valid"
                          : le64_get(s->root.magic) == 0 ? "never written"
                                                         : error_text(s->err));
    const struct disk_root *r = &s->root;
    if (j != NULL && s->err == 0) {
        set(j, "txg", le64_get(r->txg));
        set(j, "epoch", le64_get(r->epoch));
        set(j, "written_ns", le64_get(r->written_ns));
        set(j, "log_sequence", le64_get(r->log_sequence));
        set(j, "log_block", le64_get(r->log_block));
        set(j, "log_oldest_block", le64_get(r->log_oldest_block));
        set(j, "losses", le64_get(r->losses));
        json_object_set_new(j, "clean", json_boolean(le64_get(r->flags) & ROOT_CLEAN));
        json_object_set_new(j, "pool_tree", inspect_pointer(&r->pool));
    }
    json_array_append_new(ctx, j);
    return 0;
}

/* ---- Log ---- */

static json_t *extent_json(const struct extent *e)
{
    json_t *j = json_object();
    set(j, "object", e->object);
    set(j, "offset", e->start * BLOCK_SIZE);
    set(j, "length", (uint64_t)e->blocks * BLOCK_SIZE);
    if (e->flags & EXTENT_ZERO) {
        json_object_set_new(j, "kind", json_string("zero"));
    } else if (e->flags & EXTENT_LOST) {
        json_object_set_new(j, "kind", json_string("lost"));
    } else {
        json_object_set_new(j, "kind", json_string("data"));
        set(j, "group", e->space);
        set(j, "block", e->block);
    }
    set(j, "birth", e->birth);
    return j;
}

static json_t *record_json(const struct log_cursor *c)
{
    json_t *j = json_pack("{ss sI sI}", "record", record_name(c->type), "head", (json_int_t)c->head, "bytes",
                          (json_int_t)c->len);
    struct disk_log_range range;
    struct disk_stale_drive_item stale;
    struct disk_log_item item;
    struct disk_log_clone clone;
    struct extent e;
    if (j == NULL)
        return NULL;
    if (c->type == LOG_EXTENT && log_extent_decode(c, &e) == 0) {
        json_t *more = extent_json(&e);
        json_object_update(j, more);
        json_decref(more);
        json_object_set_new(j, "inline", json_boolean(c->flags & LOG_RECORD_INLINE));
    } else if ((c->type == LOG_UNMAP || c->type == LOG_ZERO || c->type == LOG_RESIZE ||
                c->type == LOG_LOST) &&
               c->len == sizeof(range)) {
        memcpy(&range, c->body, sizeof(range));
        set(j, "object", le64_get(range.object));
        set(j, "offset", le64_get(range.offset));
        set(j, "length", le64_get(range.len));
    } else if (c->type == LOG_CLONE && c->len == sizeof(clone)) {
        memcpy(&clone, c->body, sizeof(clone));
        set(j, "from", le64_get(clone.from));
        set(j, "from_offset", le64_get(clone.from_offset));
        set(j, "object", le64_get(clone.to));
        set(j, "offset", le64_get(clone.to_offset));
        set(j, "length", le64_get(clone.len));
    } else if ((c->type == LOG_ITEM_PUT || c->type == LOG_ITEM_DELETE) && c->len >= sizeof(item)) {
        memcpy(&item, c->body, sizeof(item));
        set(j, "object", le64_get(item.object));
        set(j, "type", item.type);
        set(j, "offset", le64_get(item.offset));
    } else if (c->type == LOG_STALE_DRIVE && c->len == sizeof(stale)) {
        memcpy(&stale, c->body, sizeof(stale));
        json_object_set_new(j, "drive", inspect_uuid(stale.drive));
        set(j, "since_txg", le64_get(stale.since_txg));
    }
    return j;
}

static json_t *batch_json(const struct log_found *b)
{
    json_t *j = json_object(), *records = json_array();
    struct log_cursor c;
    int r;
    set(j, "sequence", b->sequence);
    set(j, "block", b->position);
    set(j, "epoch", b->epoch);
    set(j, "txg", b->txg);
    set(j, "durable", b->durable);
    set(j, "header_blocks", b->header_blocks);
    set(j, "payload_blocks", b->payload_blocks);
    json_object_set_new(j, "alone", json_boolean(b->alone));
    log_cursor_init(&c, b);
    while ((r = log_cursor_next(&c)) == 0)
        json_array_append_new(records, record_json(&c));
    if (r != ERR_NOT_FOUND)
        json_object_set_new(j, "state", json_string("its records are malformed"));
    json_object_set_new(j, "records", records);
    return j;
}

static json_t *log_view(struct offline *o, struct volume *v, const struct disk_root *root) may_yield
{
    struct log_scan scan;
    int r = log_scan_run(v, root, &scan);
    if (r != 0) {
        offline_problem(o, "volume", v->record.name, "its log cannot be read: %s", error_text(r));
        return json_null();
    }
    json_t *j = json_object(), *batches = json_array();
    set(j, "ring_blocks", v->log.blocks);
    set(j, "from_block", le64_get(root->log_block));
    set(j, "to_block", scan.end);
    set(j, "next_sequence", scan.sequence);
    set(j, "durable", scan.durable);
    json_object_set_new(j, "hole", json_boolean(scan.hole));
    for (size_t i = 0; i < scan.count; i++)
        json_array_append_new(batches, batch_json(&scan.batches[i]));
    json_object_set_new(j, "batches", batches);
    log_scan_done(&scan);
    return j;
}

/* ---- Trees ---- */

struct tree_look {
    struct offline *o;
    struct volume *v;
    json_t *rows;
    bool extents_only;
};

static int tree_node_row(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low)
{
    struct tree_look *l = ctx;
    if (l->extents_only)
        return 0;
    json_t *j = inspect_pointer(p);
    json_object_set_new(j, "node", json_string(p->level == 0 ? "leaf" : "inner"));
    set(j, "from_object", low->object);
    set(j, "from_type", low->type);
    set(j, "from_offset", low->offset);
    json_array_append_new(l->rows, j);
    return 0;
}

static void head_item(json_t *j, const void *value, uint32_t len)
{
    struct disk_head_item h;
    if (len != sizeof(h))
        return;
    memcpy(&h, value, sizeof(h));
    set(j, "size_bytes", le64_get(h.size_bytes));
    set(j, "allocated_blocks", le64_get(h.allocated_blocks));
    set(j, "txg_created", le64_get(h.txg_created));
    json_object_set_new(j, "root", inspect_pointer(&h.root));
}

static json_t *members_json(const struct group *g, const struct uuid *drives)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < g->member_count; i++) {
        const struct group_member *m = &g->members[i];
        json_t *j = json_pack("{so sI ss}", "drive",
                              inspect_uuid(drives != NULL ? drives[i] : group_drive_id(m->drive)), "slab",
                              (json_int_t)m->slab, "state", member_state_name(m->state));
        if (j != NULL && m->state != MEMBER_CURRENT)
            set(j, "stale_since_txg", m->stale_since_txg);
        json_array_append_new(list, j);
    }
    return list;
}

static void item_value(json_t *j, const struct tree_key *key, const void *value, uint32_t len)
{
    struct extent e;
    struct group g;
    struct uuid drives[GROUP_MEMBERS_MAX];
    struct disk_space_item s;
    struct disk_volume_item v;
    uint64_t blocks;
    uint32_t count;
    if (key->type == ITEM_HEAD) {
        head_item(j, value, len);
    } else if (key->type == ITEM_EXTENT && extent_decode(key, value, len, &e) == 0) {
        json_t *more = extent_json(&e);
        json_object_update(j, more);
        json_decref(more);
    } else if (key->type == ITEM_GROUP && group_decode(value, len, &g, drives) == 0) {
        json_object_set_new(j, "purpose", json_string(purpose_name(g.purpose)));
        set(j, "blocks", g.blocks);
        json_object_set_new(j, "members", members_json(&g, drives));
    } else if (key->type == ITEM_SPACE && len >= sizeof(s)) {
        memcpy(&s, value, sizeof(s));
        set(j, "blocks", le32_get(s.blocks));
        set(j, "used", le32_get(s.used));
        set(j, "txg", le64_get(s.txg));
    } else if (key->type == ITEM_REFCOUNT && refs_decode(key, value, len, &blocks, &count) == 0) {
        set(j, "blocks", blocks);
        set(j, "count", count);
    } else if (key->type == ITEM_VOLUME && len == sizeof(v)) {
        memcpy(&v, value, sizeof(v));
        json_object_set_new(j, "volume", inspect_uuid(v.volume));
        set(j, "next_group", le32_get(v.next_group));
        set(j, "next_head", le32_get(v.next_head));
    } else {
        json_object_set_new(j, "state", json_string("not understood"));
    }
}

static int tree_item_row(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct tree_look *l = ctx;
    if (l->extents_only && key->type != ITEM_EXTENT)
        return 0;
    json_t *j = json_pack("{ss sI sI sI}", "item", item_name(key->type), "object", (json_int_t)key->object,
                          "offset", (json_int_t)key->offset, "bytes", (json_int_t)len);
    if (j == NULL)
        return ERR_NO_MEMORY;
    item_value(j, key, value, len);
    json_array_append_new(l->rows, j);
    return 0;
}

static int tree_bad_row(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
                        const struct tree_key *high, int err)
{
    struct tree_look *l = ctx;
    (void)low;
    (void)high;
    offline_problem(l->o, "volume", l->v->record.name,
                    "the tree node at group %u block %llu cannot be read: %s", le32_get(p->space),
                    (unsigned long long)le64_get(p->block), error_text(err));
    return 0;
}

static json_t *tree_view(struct offline *o, struct volume *v, bool head, bool extents_only) may_yield
{
    struct tree_look l = {.o = o, .v = v, .rows = json_array(), .extents_only = extents_only};
    struct tree_walk walk = {.node = tree_node_row, .item = tree_item_row, .bad = tree_bad_row, .ctx = &l};
    int r = tree_walk(head ? &v->head : &v->pool, &walk);
    if (r != 0)
        offline_problem(o, "volume", v->record.name, "its tree cannot be read: %s", error_text(r));
    return l.rows;
}

static json_t *groups_view(const struct volume *v)
{
    json_t *list = json_array();
    for (const struct group *g = group_next(v->groups, NULL); g != NULL; g = group_next(v->groups, g))
        json_array_append_new(list, json_pack("{sI ss ss sI so}", "group", (json_int_t)g->id, "purpose",
                                              purpose_name(g->purpose), "kind",
                                              g->kind == PROTECT_NONE ? "none" : "mirror", "blocks",
                                              (json_int_t)g->blocks, "members", members_json(g, NULL)));
    return list;
}

/* ---- One block ---- */

static json_t *block_json(const uint8_t *data)
{
    json_t *lines = json_array();
    for (uint32_t at = 0; at < BLOCK_SIZE; at += 32) {
        char line[8 + 3 * 32 + 1];
        int n = snprintf(line, sizeof(line), "%04x:", at);
        for (uint32_t i = 0; i < 32; i++)
            n += snprintf(line + n, sizeof(line) - (size_t)n, "%s%02x", i % 4 == 0 ? " " : "", data[at + i]);
        json_array_append_new(lines, json_string(line));
    }
    return lines;
}

static const char *block_guess(const struct volume *v, const uint8_t *data)
{
    const struct disk_root *root = (const struct disk_root *)data;
    struct log_found found;
    struct le32 magic;
    memcpy(&magic, data, sizeof(magic));
    if (root_check(root, v->record.id) == 0)
        return "root";
    if (log_batch_parse(data, 1, v->record.id, &found) == 0)
        return "log batch";
    return le32_get(magic) == NODE_MAGIC  ? "tree node"
           : le32_get(magic) == LOG_MAGIC ? "log batch, longer"
                                          : "data";
}

/* "GROUP:BLOCK" */
static json_t *block_view(struct offline *o, struct volume *v, const char *where) may_yield
{
    char *end = NULL, *last = NULL;
    unsigned long group = strtoul(where, &end, 10), block = *end == ':' ? strtoul(end + 1, &last, 10) : 0;
    const struct group *g = group <= UINT32_MAX ? group_find(v->groups, (uint32_t)group) : NULL;
    if (last == NULL || *last != '\0' || last == end + 1 || g == NULL || block >= g->blocks) {
        offline_fail(o, "As GROUP:BLOCK; --groups shows the groups.", "there is no block %s", where);
        return json_null();
    }
    struct page *page;
    if (page_alloc_wait(1, DEADLINE_NEVER, &page) != 0)
        return json_null();
    json_t *copies = json_array();
    for (uint32_t m = 0; m < g->member_count; m++) {
        int r = volume_inspect_read(v, g, m, (uint32_t)block, 1, page);
        json_t *j = json_pack("{so sI sI}", "drive", inspect_uuid(group_drive_id(g->members[m].drive)),
                              "slab", (json_int_t)g->members[m].slab, "block", (json_int_t)block);
        if (r == 0) {
            json_object_set_new(j, "looks_like", json_string(block_guess(v, page->data)));
            set(j, "crc32c", crc32c(0, page->data, BLOCK_SIZE));
            json_object_set_new(j, "bytes", block_json(page->data));
        } else {
            json_object_set_new(j, "state", json_string(error_text(r)));
        }
        json_array_append_new(copies, j);
    }
    page_put(page, 1);
    return copies;
}

/* ---- The volume ---- */

int inspect_volume_find(struct offline *o, const char *name, struct volume_record *ret)
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(o->node.coord, "/volumes/", &records, &count);
    if (r < 0) {
        offline_fail(o, "", "the records of the volumes cannot be read: %s", error_text(r));
        return r;
    }
    r = ERR_VOLUME_NOT_FOUND;
    for (size_t i = 0; i < count && r != 0; i++) {
        struct volume_record record;
        char id[UUID_TEXT_SIZE];
        if (volume_record_decode(records[i].value, records[i].revision, &record) != 0)
            continue;
        uuid_format(record.id, id);
        if (strcmp(record.name, name) != 0 && strcmp(id, name) != 0)
            continue;
        *ret = record;
        r = 0;
    }
    coord_records_free(records, count);
    if (r != 0)
        offline_fail(o, "`ashlar inspect DIR` lists them.", "there is no volume \"%s\"", name);
    return r;
}

/* What needs groups and trees. */
static void loaded_views(struct offline *o, struct volume *v, const struct disk_root *root, json_t *view)
    may_yield
{
    const struct cli *c = o->c;
    bool tree = cli_flag(c, "tree"), groups = cli_flag(c, "groups"), extents = cli_flag(c, "extents");
    const char *block = cli_value(c, "block");
    bool none = !tree && !extents && block == NULL && !cli_flag(c, "roots") && !cli_flag(c, "log");
    if (!tree && !groups && !extents && block == NULL && !none)
        return;
    int r = volume_inspect_load(v, root);
    if (r != 0) {
        offline_problem(o, "volume", v->record.name, "its pool tree cannot be read: %s", error_text(r));
        return;
    }
    if (none) {
        set(view, "size_bytes", v->size_bytes);
        set(view, "data_blocks", v->data_blocks);
        set(view, "tree_nodes", v->tree_nodes);
    }
    if (groups || none)
        json_object_set_new(view, "groups", groups_view(v));
    if (tree)
        json_object_set_new(view, cli_flag(c, "head") ? "head_tree" : "pool_tree",
                            tree_view(o, v, cli_flag(c, "head"), false));
    if (extents)
        json_object_set_new(view, "extents", tree_view(o, v, true, true));
    if (block != NULL)
        json_object_set_new(view, "block", block_view(o, v, block));
}

static void volume_views(struct offline *o, struct volume *v, json_t *view) may_yield
{
    const struct cli *c = o->c;
    struct disk_root root;
    if (cli_flag(c, "roots")) {
        json_t *rows = json_array();
        int r = volume_inspect_roots(v, root_row, rows);
        if (r != 0)
            offline_problem(o, "volume", v->record.name, "its roots cannot be read: %s", error_text(r));
        json_object_set_new(view, "roots", rows);
    }
    int r = volume_inspect_root(v, &root);
    if (r != 0) {
        offline_problem(o, "volume", v->record.name, "it has no root that can be read: %s", error_text(r));
        return;
    }
    set(view, "txg", le64_get(root.txg));
    set(view, "root_epoch", le64_get(root.epoch));
    json_object_set_new(view, "closed_in_order", json_boolean(le64_get(root.flags) & ROOT_CLEAN));
    if (cli_flag(c, "log"))
        json_object_set_new(view, "log", log_view(o, v, &root));
    loaded_views(o, v, &root, view);
}

void inspect_volume(struct offline *o, const char *name)
{
    struct volume_record record;
    struct volume *v = NULL;
    char protection[24];
    if (inspect_volume_find(o, name, &record) != 0)
        return;
    protection_format(record.protection, protection);
    json_t *view =
        json_pack("{so so ss sI sI sI}", "volume", control_text(record.name), "id", inspect_uuid(record.id),
                  "protection", protection, "epoch", (json_int_t)record.epoch, "system_runs",
                  (json_int_t)record.system_runs, "slab_blocks", (json_int_t)record.slab_blocks);
    inspect_of(o)->view = view;
    int r = volume_inspect_open(&o->node.reactors[0].env, record.id, &v);
    if (r != 0) {
        offline_problem(o, "volume", record.name, "its system groups cannot be read: %s", error_text(r));
        return;
    }
    volume_views(o, v, view);
    volume_inspect_close(v);
}
