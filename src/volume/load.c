/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a root to a volume in memory: which groups there are, what is free, where the head's tree is.
 *
 * The pool tree describes the groups, and lies in groups itself. So loading has two steps: the drives' slab
 * tables tell which slabs belong to which group; with that provisional knowledge the pool tree is read (every
 * node is verified, so a stale copy is harmless); then the real descriptions take over.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

/* ---- Node stores of the two trees ---- */

static struct node_address store_alloc(void *ctx, uint64_t txg)
{
    return space_take_node(ctx, txg);
}

static void store_free(void *ctx, struct node_address a, uint64_t birth, uint64_t txg)
{
    (void)birth;
    space_free(ctx, txg, a.space, a.block, NODE_BLOCKS);
}

static may_yield int store_reserve_head(void *ctx, uint32_t n)
{
    return space_ensure_nodes(ctx, n, SPACE_DELETE);
}
static may_yield int store_reserve_pool(void *ctx, uint32_t n)
{
    return space_ensure_nodes(ctx, n, SPACE_COMMIT);
}

static may_yield int store_read(void *ctx, const struct disk_node_pointer *p, struct page *pages)
{
    struct volume *v = ctx;
    struct group *g = group_find(v->groups, le32_get(p->space));
    struct iovec iov = {.iov_base = pages->data, .iov_len = NODE_SIZE};
    struct le32 stored;
    uint64_t block = le64_get(p->block);

    if (!g || g->purpose == GROUP_SYSTEM || p->checksum_type != CHECKSUM_CRC32C ||
        block + NODE_BLOCKS > g->blocks)
        return ERR_VOLUME_CORRUPT;
    memcpy(&stored, p->checksum, sizeof(stored));
    uint32_t sum = le32_get(stored);
    struct group_read read = {.group = g,
                              .block = (uint32_t)block,
                              .blocks = NODE_BLOCKS,
                              .iov = &iov,
                              .iov_count = 1,
                              .page = pages,
                              .verify = VERIFY_WHOLE,
                              .sums = &sum,
                              .only = -1};
    /* Whoever looks: the node is named now, so what it lies on must not be used anew before it was read. */
    uint32_t slot = reader_enter(v);
    int r = group_read(&read);
    reader_leave(v, slot);
    return r;
}

void volume_stores_init(struct volume *v)
{
    v->head_store = (struct node_store){store_alloc, store_free, store_reserve_head, store_read, v};
    v->pool_store = (struct node_store){store_alloc, store_free, store_reserve_pool, store_read, v};
}

static void copy_rewritten(void *ctx, const struct group_copy *c)
{
    const struct volume *v = ctx;

    if (v->env.copy_rewritten)
        v->env.copy_rewritten(v->env.ctx, c);
}

int volume_groups_new(struct volume *v)
{
    struct group_set_options o = {.volume = v->record.id,
                                  .epoch = v->record.epoch,
                                  .generation = coord_generation(v->env.coord),
                                  .drives = v->env.drives,
                                  .slab_blocks = v->record.slab_blocks,
                                  .drive_failed = membership_drive_failed,
                                  .copy_rewritten = copy_rewritten,
                                  .ctx = v};
    return group_set_new(&o, &v->groups);
}

/* ---- What the drives say: slab tables ---- */

struct found_slab {
    uint32_t group, member, slab;
    struct uuid drive;
};
struct found {
    struct found_slab *slabs;
    size_t count;
};

static int found_compare(const void *pa, const void *pb)
{
    const struct found_slab *a = pa, *b = pb;

    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return a->member < b->member ? -1 : a->member > b->member;
}

static may_yield int found_collect(struct volume *v, struct found *f)
{
    *f = (struct found){0};
    for (uint32_t i = 0; i < v->env.drives->count; i++) {
        struct drive *d = v->env.drives->drives[i];
        struct slab_entry *list;
        uint32_t n;
        if (drive_get_state(d) != DRIVE_OK || drive_slab_list(d, v->record.id, &list, &n))
            continue; /* what is not here is missing, not unknown */
        struct found_slab *p = realloc(f->slabs, (f->count + n + 1) * sizeof(*p));
        if (!p) {
            free(list);
            free(f->slabs);
            return ERR_NO_MEMORY;
        }
        f->slabs = p;
        for (uint32_t k = 0; k < n; k++)
            f->slabs[f->count++] =
                (struct found_slab){list[k].group, list[k].member, list[k].slab, drive_id(d)};
        free(list);
    }
    if (f->count)
        qsort(f->slabs, f->count, sizeof(*f->slabs), found_compare);
    return 0;
}

static const struct found_slab *found_find(const struct found *f, uint32_t group, uint32_t member,
                                           struct uuid drive)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->slabs[i].group == group && f->slabs[i].member == member &&
            uuid_equal(f->slabs[i].drive, drive))
            return &f->slabs[i];
    return NULL;
}

/* System groups: members are the record's; slabs are the drives'. */
static may_yield int adopt_system(struct volume *v, const struct found *f)
{
    for (uint32_t run = 0; run < v->record.system_runs; run++) {
        struct group g = {.id = run,
                          .purpose = GROUP_SYSTEM,
                          .kind = v->record.member_count > 1 ? PROTECT_MIRROR : PROTECT_NONE,
                          .blocks = v->record.slab_blocks,
                          .member_count = v->record.member_count};
        struct uuid drives[GROUP_MEMBERS_MAX];
        for (uint32_t m = 0; m < v->record.member_count; m++) {
            const struct system_member *sm = &v->record.members[m];
            const struct found_slab *s = found_find(f, run, m, sm->drive_id);
            drives[m] = sm->drive_id;
            g.members[m].slab = s ? s->slab : GROUP_SLAB_NONE;
            g.members[m].state = sm->in_sync && s ? MEMBER_CURRENT : MEMBER_STALE;
        }
        int r = group_adopt_decoded(v->groups, &g, drives, &v->system[run]);
        if (r)
            return r;
    }
    return 0;
}

int system_groups_adopt(struct volume *v)
{
    struct found f;
    int r = found_collect(v, &f);

    if (!r) {
        r = adopt_system(v, &f);
        free(f.slabs);
    }
    return r;
}

/* Every other group, as far as the slab tables tell. */
static may_yield int adopt_provisional(struct volume *v, const struct found *f)
{
    for (size_t i = 0, j; i < f->count; i = j) {
        struct group g = {.id = f->slabs[i].group,
                          .purpose = GROUP_TREE,
                          .kind = PROTECT_MIRROR,
                          .blocks = v->record.slab_blocks};
        struct uuid drives[GROUP_MEMBERS_MAX];
        for (j = i; j < f->count && f->slabs[j].group == g.id; j++) {
            if (g.member_count == GROUP_MEMBERS_MAX)
                continue;
            drives[g.member_count] = f->slabs[j].drive;
            g.members[g.member_count++] =
                (struct group_member){.slab = f->slabs[j].slab, .state = MEMBER_CURRENT};
        }
        struct group *adopted;
        if (g.id < v->record.system_runs)
            continue;
        if (g.member_count == 1)
            g.kind = PROTECT_NONE;
        int r = group_adopt_decoded(v->groups, &g, drives, &adopted);
        if (r)
            return r;
    }
    return 0;
}

/* ---- The pool tree's items ---- */

struct loaded_group {
    struct group group;
    struct uuid drives[GROUP_MEMBERS_MAX];
    uint32_t used;
};
struct loaded {
    struct loaded_group *groups;
    size_t count, capacity;
    struct run_list deferred;
    struct disk_head_item head;
    struct disk_volume_item volume;
    bool have_head, have_volume;
    uint64_t ref_items;
};

static int load_group(struct loaded *l, const void *value, uint32_t len)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 64;
        struct loaded_group *p = realloc(l->groups, l->capacity * sizeof(*p));
        if (!p)
            return ERR_NO_MEMORY;
        l->groups = p;
    }
    struct loaded_group *g = &l->groups[l->count++];
    g->used = 0;
    return group_decode(value, len, &g->group, g->drives);
}

/* Space items of a group come right after its group item: keys are ordered so. */
static int load_space(struct loaded *l, const struct tree_key *key, const uint8_t *value, uint32_t len)
{
    struct disk_space_item item;
    struct loaded_group *g = l->count ? &l->groups[l->count - 1] : NULL;

    if (len < sizeof(item) || !g || g->group.id != key->object)
        return ERR_VOLUME_CORRUPT;
    memcpy(&item, value, sizeof(item));
    uint32_t blocks = le32_get(item.blocks), bytes = DIV_ROUND_UP(blocks, 8u);
    if (blocks > SPACE_CHUNK_BLOCKS || len != sizeof(item) + 2 * bytes || key->offset > g->group.blocks ||
        blocks > g->group.blocks - key->offset || le32_get(item.used) > blocks)
        return ERR_VOLUME_CORRUPT;
    g->used += le32_get(item.used);
    const uint8_t *defer = value + sizeof(item) + bytes;
    for (uint32_t i = 0; i < blocks; i++)
        if ((defer[i >> 3] >> (i & 7) & 1) && !run_list_add(&l->deferred, g->group.id, key->offset + i, 1))
            return ERR_NO_MEMORY;
    return 0;
}

static int load_item(struct loaded *l, const struct tree_key *key, const void *value, uint32_t len)
{
    switch (key->type) {
    case ITEM_VOLUME:
        if (len != sizeof(l->volume))
            return ERR_VOLUME_CORRUPT;
        memcpy(&l->volume, value, len);
        l->have_volume = true;
        return 0;
    case ITEM_HEAD:
        if (key->object != HEAD_LIVE)
            return 0;
        if (len != sizeof(l->head))
            return ERR_VOLUME_CORRUPT;
        memcpy(&l->head, value, len);
        l->have_head = true;
        return 0;
    case ITEM_GROUP:
        return load_group(l, value, len);
    case ITEM_SPACE:
        return load_space(l, key, value, len);
    case ITEM_REFCOUNT:
        l->ref_items++;
        return 0;
    default:
        return 0;
    }
}

static may_yield int load_items(struct volume *v, struct loaded *l)
{
    struct tree_cursor c;
    int r = tree_seek(&c, &v->pool, &TREE_KEY_MIN, SEEK_GE);

    while (!r) {
        r = load_item(l, &c.key, c.value, c.len);
        if (!r)
            r = tree_next(&c);
    }
    if (r != ERR_NOT_FOUND)
        return r;
    return l->have_head && l->have_volume ? 0 : ERR_VOLUME_CORRUPT;
}

static may_yield int load_apply(struct volume *v, struct loaded *l, uint64_t open_txg)
{
    int r = 0;

    for (size_t i = 0; !r && i < l->count; i++) {
        struct loaded_group *lg = &l->groups[i];
        struct group *g;
        if (lg->group.id < v->record.system_runs || lg->group.purpose == GROUP_SYSTEM ||
            lg->used > lg->group.blocks)
            return ERR_VOLUME_CORRUPT;
        r = group_adopt_decoded(v->groups, &lg->group, lg->drives, &g);
        if (!r)
            r = space_adopt_group(v, g, lg->used);
        if (!r) {
            ((struct space_group *)g->volume_private)->logged = true;
            if (g->purpose == GROUP_TREE)
                v->tree_nodes += lg->used / NODE_BLOCKS;
        }
    }
    if (r)
        return r;
    for (size_t i = 0; i < l->deferred.count; i++) {
        const struct block_run *run = &l->deferred.runs[i];
        struct space_group *sg = group_find(v->groups, run->space)->volume_private;
        sg->waiting += run->count;
        if (sg->group->purpose == GROUP_TREE)
            v->tree_nodes -= run->count / NODE_BLOCKS;
    }
    v->space.frees[(open_txg - 1) % SPACE_TXGS] = l->deferred;
    l->deferred = (struct run_list){0};
    v->space.next_group = MAX(v->space.next_group, le32_get(l->volume.next_group));
    v->created_ns = le64_get(l->volume.created_ns);
    v->size_bytes = le64_get(l->head.size_bytes);
    v->data_blocks = le64_get(l->head.allocated_blocks);
    v->inodes = le64_get(l->head.inodes);
    v->space.ref_items = l->ref_items;
    tree_init(&v->head, &v->head_store, v->env.cache, v->cache_tag, v->record.id, HEAD_LIVE, &l->head.root,
              open_txg);
    return 0;
}

int pool_load(struct volume *v, const struct disk_root *root, uint64_t open_txg)
{
    struct found f;
    struct loaded l = {0};
    int r = found_collect(v, &f);

    if (r)
        return r;
    r = adopt_provisional(v, &f);
    if (!r) {
        tree_init(&v->pool, &v->pool_store, v->env.cache, v->cache_tag, v->record.id, 0, &root->pool,
                  open_txg);
        r = load_items(v, &l);
    }
    if (!r) { /* now the real descriptions */
        group_set_free(v->groups);
        v->groups = NULL;
        r = volume_groups_new(v);
        if (!r)
            r = adopt_system(v, &f);
        if (!r)
            r = load_apply(v, &l, open_txg);
    }
    free(f.slabs);
    free(l.groups);
    run_list_done(&l.deferred);
    return r;
}

void unknown_slabs_free(struct volume *v, uint32_t first, uint32_t end)
{
    struct found f;

    if (found_collect(v, &f))
        return;
    for (size_t i = 0; i < f.count; i++) {
        const struct found_slab *s = &f.slabs[i];
        struct group *g = group_find(v->groups, s->group);
        bool known = false;
        for (uint32_t m = 0; g && m < g->member_count; m++)
            known |=
                uuid_equal(group_drive_id(g->members[m].drive), s->drive) && g->members[m].slab == s->slab;
        if (known || s->group < first || s->group >= end)
            continue;
        struct group_drive *d;
        int r = group_drive_open(v->groups, s->drive, &d);
        if (!r)
            r = drive_slab_free(group_drive_session(d), s->slab);
        if (r)
            event_raise(LOG_WARNING_, "slab-free", "volume %s: an unused slab could not be freed: %s",
                        v->record.name, error_text(r));
    }
    free(f.slabs);
}
