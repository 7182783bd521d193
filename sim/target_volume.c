/* SPDX-License-Identifier: Apache-2.0 */
/* The product on a simulated node: drives, coordinator and one volume, put together as ashlard does it. */
#include "cluster/coord.h"
#include "filesystem/fs_verify.h"
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "sim/fs_work.h"
#include "sim/target.h"
#include "volume/change.h"
#include "volume/shortage.h"
#include "volume/tree.h"
#include "volume/verify.h"

#include <inttypes.h>
#include <stdlib.h>

#define COORD_PATH  "/coord"
#define VOLUME_NAME "vol"

struct place { /* what stands beneath a volume */
    struct sim_node *node;
    struct coord *coord;
    uint32_t count;
    struct drive_home *homes[SWARM_DRIVES_MAX];
    struct drive *drives[SWARM_DRIVES_MAX];
    struct drive_set set;
    struct cache *cache;
};

struct volume_target {
    struct sim_target base;
    struct place place;
    struct volume_env env;
    struct volume_shortage shortage;
    struct volume *volume;
    struct fs *fs;      /* of a target with one */
    struct fmutex torn; /* the mutant's */
};

static struct volume *volume_of(struct sim_target *t)
{
    return CONTAINER_OF(t, struct volume_target, base)->volume;
}

/* ---- Beneath the volume ---- */

static void place_close(struct place *p) may_yield;
static void place_close(struct place *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        drive_set_remove(&p->set, p->drives[i]);
        drive_detach(p->drives[i]);
        drive_home_close(p->homes[i]);
    }
    drive_set_done(&p->set);
    if (p->cache != NULL)
        cache_free(p->cache);
    if (p->coord != NULL)
        coord_close(p->coord);
}

/* What an operator does with a drive that is refused: another one in its place. */
static int drive_replace(struct place *p, const struct sim_swarm *w, const char *path) may_yield;
static int drive_replace(struct place *p, const struct sim_swarm *w, const char *path)
{
    char why[256] = "";
    struct drive_format_options o = {
        .path = path, .pool_id = w->pool, .slab_bytes = w->slab_bytes, .force = true};
    sim_file_wipe(sim_file_find(p->node, path), w->drive_bytes);
    struct uuid id;
    int err = drive_format(&o, &id, why, sizeof(why));
    if (err != 0)
        sim_note(sim_of_node(p->node), "replacing %s: %s", path, why);
    return err;
}

static int drive_add(struct place *p, const char *path) may_yield;
static int drive_add(struct place *p, const char *path)
{
    char why[256] = "";
    struct drive_home *h;
    struct drive *d;
    int err = drive_home_open(path, (struct uuid){{0}}, 0, &h, why, sizeof(why));
    if (err != 0) {
        sim_note(sim_of_node(p->node), "drive %s is left out: %s %s", path, error_name(err), why);
        return err;
    }
    err = drive_attach(h, &d);
    if (err == 0) {
        err = drive_set_add(&p->set, d);
        if (err != 0)
            drive_detach(d);
    }
    if (err != 0) {
        drive_home_close(h);
        return err;
    }
    p->homes[p->count] = h;
    p->drives[p->count++] = d;
    return 0;
}

/* A drive that cannot be opened is left out, as ashlard does: the volume copes or says that it cannot. */
static int place_open(struct sim_node *n, const struct sim_swarm *w, struct place *p) may_yield;
static int place_open(struct sim_node *n, const struct sim_swarm *w, struct place *p)
{
    *p = (struct place){.node = n};
    drive_set_init(&p->set);
    int err = coord_local_open(COORD_PATH, &p->coord);
    if (err == 0)
        err = cache_new(tree_node_evicted, &p->cache);
    for (uint32_t i = 0; err == 0 && i < w->drives; i++) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(i, path);
        int add_err = drive_add(p, path);
        if (add_err == ERR_NO_MEMORY) { /* says nothing about the drive */
            err = add_err;
        } else if (add_err != 0 && w->replace_bad_drives) {
            err = drive_replace(p, w, path);
            if (err == 0)
                err = drive_add(p, path);
        }
    }
    if (err != 0)
        place_close(p);
    return err;
}

/* Takes slabs for another volume until only so many are free: a small pool without small drives. */
static int place_fill(struct place *p, uint32_t spare) may_yield;
static int place_fill(struct place *p, uint32_t spare)
{
    struct uuid other = world_random_uuid();
    for (uint32_t i = 0; i < p->count; i++) {
        struct drive_session *s;
        int err = drive_session_open(p->drives[i], other, 1, coord_generation(p->coord), &s);
        if (err != 0)
            return err;
        struct drive_info info;
        err = drive_get_info(p->drives[i], &info);
        for (uint32_t g = 0; err == 0 && info.slabs_free > spare + g; g++) {
            uint32_t slab;
            err = drive_slab_alloc(s, g, i, &slab);
        }
        drive_session_close(s);
        if (err != 0)
            return err;
    }
    return 0;
}

/* The file system of a new volume, with a directory for each client. */
static int files_make(const struct volume_env *env, struct uuid id, const struct sim_swarm *w) may_yield;
static int files_make(const struct volume_env *env, struct uuid id, const struct sim_swarm *w)
{
    struct volume *v;
    struct fs *fs = NULL;
    int err = volume_open(env, id, &v);
    if (err != 0)
        return err;
    err = fs_format(v, &(struct fs_format_options){0});
    if (err == 0)
        err = fs_open(v, 0, &fs);
    for (uint32_t i = 0; err == 0 && i < w->clients; i++) {
        char name[24];
        struct fs_attr attr;
        bool created;
        struct fs_request rq = {.cred = {.trusted = true}, .durable = true};
        struct fs_create c = {.type = FS_DIRECTORY, .attr = {.valid = FS_SET_MODE, .mode = 0755}};
        fs_work_directory(i, name);
        err = fs_create(fs, &rq, FS_INO_ROOT, name, (uint32_t)strlen(name), &c, &attr, &created, NULL);
    }
    if (fs != NULL)
        fs_close(fs);
    int closed = volume_close(v);
    return err != 0 ? err : closed;
}

static int target_create(struct sim_node *n, const struct sim_swarm *w, bool files) may_yield;
static int target_create(struct sim_node *n, const struct sim_swarm *w, bool files)
{
    for (uint32_t i = 0; i < w->drives; i++) {
        char path[SIM_PATH_SIZE], why[256] = "";
        sim_drive_path(i, path);
        struct drive_format_options o = {
            .path = path, .pool_id = w->pool, .slab_bytes = w->slab_bytes, .force = true};
        struct uuid id;
        int err = drive_format(&o, &id, why, sizeof(why));
        if (err != 0) {
            sim_note(sim_of_node(n), "format of %s: %s", path, why);
            return err;
        }
    }
    struct place p;
    int err = place_open(n, w, &p);
    if (err != 0)
        return err;
    if (w->spare_slabs != 0)
        err = place_fill(&p, w->spare_slabs);
    struct volume_env env = {.coord = p.coord, .drives = &p.set, .cache = p.cache, .node = w->pool};
    struct volume_create_options o = {.name = VOLUME_NAME,
                                      .kind = files ? "fs" : "block",
                                      .size_bytes = w->volume_blocks * BLOCK_SIZE,
                                      .system_runs = w->system_runs};
    if (err == 0)
        err = protection_parse(w->protection, &o.protection);
    struct uuid id;
    if (err == 0)
        err = volume_create(&env, &o, &id);
    if (err == 0 && files)
        err = files_make(&env, id, w);
    place_close(&p);
    return err;
}

static int volume_target_create(struct sim_node *n, const struct sim_swarm *w) may_yield;
static int volume_target_create(struct sim_node *n, const struct sim_swarm *w)
{
    return target_create(n, w, false);
}

static int fs_target_create(struct sim_node *n, const struct sim_swarm *w) may_yield;
static int fs_target_create(struct sim_node *n, const struct sim_swarm *w)
{
    return target_create(n, w, true);
}

static int find_volume(struct place *p, struct uuid *ret) may_yield;
static int find_volume(struct place *p, struct uuid *ret)
{
    struct coord_record *records;
    size_t count;
    int err = coord_list(p->coord, "/volumes/", &records, &count);
    if (err != 0)
        return err;
    err = ERR_VOLUME_NOT_FOUND;
    for (size_t i = 0; i < count && err == ERR_VOLUME_NOT_FOUND; i++) {
        struct volume_record r;
        int bad = volume_record_decode(records[i].value, records[i].revision, &r);
        if (bad == 0 && strcmp(r.name, VOLUME_NAME) == 0) {
            *ret = r.id;
            err = 0;
        } else if (bad != 0) {
            err = bad;
        }
    }
    coord_records_free(records, count);
    return err;
}

static int volume_target_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret)
    may_yield;
static int volume_target_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret)
{
    struct volume_target *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return ERR_NO_MEMORY;
    t->base.ops = &sim_target_volume_ops;
    fmutex_init(&t->torn);
    int err = place_open(n, w, &t->place);
    if (err != 0) {
        free(t);
        return err;
    }
    t->env = (struct volume_env){.coord = t->place.coord,
                                 .drives = &t->place.set,
                                 .cache = t->place.cache,
                                 .node = w->pool,
                                 .shortage = &t->shortage};
    struct uuid id;
    err = find_volume(&t->place, &id);
    if (err == 0)
        err = volume_open(&t->env, id, &t->volume);
    if (err != 0) {
        place_close(&t->place);
        free(t);
        return err;
    }
    *ret = &t->base;
    return 0;
}

static int fs_target_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret) may_yield;
static int fs_target_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret)
{
    struct sim_target *target;
    int err = volume_target_open(n, w, &target);
    if (err != 0)
        return err;
    struct volume_target *t = CONTAINER_OF(target, struct volume_target, base);
    target->ops = &sim_target_fs_ops;
    err = fs_open(t->volume, 0, &t->fs);
    if (err != 0) {
        t->fs = NULL;
        int closed = target->ops->close(target);
        return closed != 0 ? closed : err;
    }
    *ret = target;
    return 0;
}

struct fs *fs_work_of(struct seed *s)
{
    return CONTAINER_OF(s->target, struct volume_target, base)->fs;
}

static int volume_target_close(struct sim_target *target) may_yield;
static int volume_target_close(struct sim_target *target)
{
    struct volume_target *t = CONTAINER_OF(target, struct volume_target, base);
    if (t->fs != NULL)
        fs_close(t->fs);
    int err = volume_close(t->volume);
    place_close(&t->place);
    free(t);
    return err;
}

/* ---- Calls ---- */

static uint64_t volume_target_blocks(struct sim_target *t)
{
    return volume_size_bytes(volume_of(t)) / BLOCK_SIZE;
}

static int volume_target_read(struct sim_target *t, uint64_t block, uint32_t blocks, struct page_vec *ret)
    may_yield;
static int volume_target_read(struct sim_target *t, uint64_t block, uint32_t blocks, struct page_vec *ret)
{
    return volume_read(volume_of(t), OBJECT_BLOCK_DEVICE, block, blocks, ret);
}

static int volume_target_write(struct sim_target *t, uint64_t block, const struct page_vec *data, bool fua)
    may_yield;
static int volume_target_write(struct sim_target *t, uint64_t block, const struct page_vec *data, bool fua)
{
    return volume_write(volume_of(t), OBJECT_BLOCK_DEVICE, block, data, fua ? VOLUME_WRITE_FUA : 0);
}

static int volume_target_unmap(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua) may_yield;
static int volume_target_unmap(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua)
{
    return volume_unmap(volume_of(t), OBJECT_BLOCK_DEVICE, block, blocks, fua ? VOLUME_WRITE_FUA : 0);
}

static int volume_target_zero(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua) may_yield;
static int volume_target_zero(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua)
{
    return volume_zero(volume_of(t), OBJECT_BLOCK_DEVICE, block, blocks, fua ? VOLUME_WRITE_FUA : 0);
}

static int volume_target_flush(struct sim_target *t) may_yield;
static int volume_target_flush(struct sim_target *t)
{
    return volume_flush(volume_of(t));
}

static int volume_target_commit(struct sim_target *t) may_yield;
static int volume_target_commit(struct sim_target *t)
{
    return volume_commit(volume_of(t));
}

static int volume_target_grow(struct sim_target *t, uint64_t blocks) may_yield;
static int volume_target_grow(struct sim_target *t, uint64_t blocks)
{
    return volume_grow(volume_of(t), blocks * BLOCK_SIZE);
}

static int volume_target_map(struct sim_target *t, uint64_t block, uint64_t blocks,
                             struct volume_map_entry *out, uint32_t max, uint32_t *ret_count) may_yield;
static int volume_target_map(struct sim_target *t, uint64_t block, uint64_t blocks,
                             struct volume_map_entry *out, uint32_t max, uint32_t *ret_count)
{
    return volume_map(volume_of(t), OBJECT_BLOCK_DEVICE, block, blocks, out, max, ret_count);
}

static int volume_target_scrub(struct sim_target *t)
{
    return volume_scrub_start(volume_of(t), GIB);
}

static int volume_target_repair(struct sim_target *t)
{
    return volume_repair_start(volume_of(t), GIB);
}

/* ---- Changes ---- */

static uint64_t object_of(uint32_t object)
{
    return 1000 + object;
}

static struct tree_key item_key(uint32_t object, uint32_t slot)
{
    return (struct tree_key){object_of(object), slot == 0 ? ITEM_INODE : ITEM_XATTR, slot};
}

/* The items [first, end) of a change, and its data if it is the last part. */
struct part {
    const struct sim_change *sim;
    uint32_t first, end;
    bool data;
};

static void part_want(const struct part *p, struct change *c)
{
    const struct sim_change *s = p->sim;
    c->deletes = !p->data || s->data == SIM_CHANGE_NONE || s->data == SIM_CHANGE_UNMAP;
    for (uint32_t i = p->first; i < p->end; i++) {
        const struct sim_change_item *item = &s->items[i];
        if (i > p->first || !s->forget)
            change_want(c, item_key(item->object, item->slot));
        if (item->len != 0)
            change_will_put(c, item->len);
        else
            change_will_delete(c);
        c->deletes = c->deletes && item->len == 0;
    }
    if (!p->data)
        return;
    if (s->data == SIM_CHANGE_WRITE)
        change_will_write(c, object_of(s->object), s->block, s->blocks, s->durable);
    else if (s->data == SIM_CHANGE_UNMAP)
        change_will_unmap(c, object_of(s->object), s->block, s->blocks);
    else if (s->data == SIM_CHANGE_CLONE)
        change_will_clone(c, object_of(s->from), s->from_block, object_of(s->object), s->block, s->blocks);
}

static void part_data(const struct part *p, struct change *c)
{
    const struct sim_change *s = p->sim;
    uint64_t done = 0, more, freed;
    uint32_t done32, freed32;
    if (s->data == SIM_CHANGE_WRITE) {
        struct page_vec v = {.run_count = 1, .blocks = s->blocks, .runs = {{s->page, s->blocks}}};
        uint32_t sums[SIM_OBJECT_BLOCKS];
        crc32c_blocks(s->page->data, (size_t)s->blocks * BLOCK_SIZE, sums);
        change_write(c, object_of(s->object), s->block, &v, 0, s->blocks, sums, &done32, &freed32);
        done = done32;
    } else if (s->data == SIM_CHANGE_UNMAP) {
        change_unmap(c, object_of(s->object), s->block, s->blocks, false, &done, &freed);
    } else if (s->data == SIM_CHANGE_CLONE) {
        change_clone(c, object_of(s->from), s->from_block, object_of(s->object), s->block, s->blocks, &done,
                     &more, &freed);
    }
    s->applied(s->ctx, (uint32_t)done);
}

static int part_instant(const struct part *p, struct change *c)
{
    const struct sim_change *s = p->sim;
    bool there[SIM_CHANGE_ITEMS];
    for (uint32_t i = p->first; i < p->end; i++) {
        const void *value = NULL;
        uint32_t len = 0;
        int err = change_get(c, item_key(s->items[i].object, s->items[i].slot), &value, &len);
        if (err != 0 && err != ERR_NOT_FOUND)
            return err;
        there[i] = err == 0;
    }
    for (uint32_t i = p->first; i < p->end; i++) {
        const struct sim_change_item *item = &s->items[i];
        const void *value = NULL;
        uint32_t len = 0;
        if (there[i] && change_get(c, item_key(item->object, item->slot), &value, &len) != 0)
            value = NULL;
        s->look(s->ctx, item->object, item->slot, value, len);
    }
    for (uint32_t i = p->first; i < p->end; i++) {
        const struct sim_change_item *item = &s->items[i];
        if (item->len != 0)
            change_put(c, item_key(item->object, item->slot), item->value, item->len);
        else if (there[i])
            change_delete(c, item_key(item->object, item->slot));
    }
    if (p->data)
        part_data(p, c);
    return 0;
}

static int part_make(struct volume *v, const struct part *p) may_yield;
static int part_make(struct volume *v, const struct part *p)
{
    struct change c;
    int err;
    change_init(&c, v);
    do {
        change_clear(&c);
        part_want(p, &c);
        err = change_begin(&c);
        if (err == 0)
            err = part_instant(p, &c);
        err = change_end(&c, err, p->sim->durable ? CHANGE_DURABLE : 0);
    } while (err == ERR_CHANGE_AGAIN);
    return err;
}

/* The mutant makes two changes of one, so that a crash may come between them; nobody else looks meanwhile. */
static int volume_target_change(struct sim_target *t, const struct sim_change *c) may_yield;
static int volume_target_change(struct sim_target *t, const struct sim_change *c)
{
    struct volume_target *vt = CONTAINER_OF(t, struct volume_target, base);
    struct part whole = {c, 0, c->item_count, true};
    if (sim_mutant_of(sim_of_node(vt->place.node)) != SIM_MUTANT_CHANGE_TORN)
        return part_make(vt->volume, &whole);
    fmutex_lock(&vt->torn);
    struct part first = {c, 0, c->item_count / 2, false};
    struct part second = {c, c->item_count / 2, c->item_count, true};
    int err = first.end > first.first ? part_make(vt->volume, &first) : 0;
    if (err == 0)
        err = part_make(vt->volume, &second);
    fmutex_unlock(&vt->torn);
    return err;
}

/* With the mutant: waits until no change is in the middle. */
static void torn_wait(struct sim_target *t) may_yield;
static void torn_wait(struct sim_target *t)
{
    struct volume_target *vt = CONTAINER_OF(t, struct volume_target, base);
    fmutex_lock(&vt->torn);
    fmutex_unlock(&vt->torn);
}

static int volume_target_item(struct sim_target *t, uint32_t object, uint32_t slot, void *buf, uint32_t max,
                              uint32_t *ret_len) may_yield;
static int volume_target_item(struct sim_target *t, uint32_t object, uint32_t slot, void *buf, uint32_t max,
                              uint32_t *ret_len)
{
    torn_wait(t);
    return volume_item_get(volume_of(t), item_key(object, slot), buf, max, ret_len);
}

static int volume_target_object_read(struct sim_target *t, uint32_t object, uint32_t block, uint32_t blocks,
                                     struct page_vec *ret) may_yield;
static int volume_target_object_read(struct sim_target *t, uint32_t object, uint32_t block, uint32_t blocks,
                                     struct page_vec *ret)
{
    return volume_read(volume_of(t), object_of(object), block, blocks, ret);
}

static int volume_target_seen(struct sim_target *t, uint32_t object) may_yield;
static int volume_target_seen(struct sim_target *t, uint32_t object)
{
    uint64_t o = object_of(object);
    return volume_seen(volume_of(t), &o, 1);
}

static uint64_t volume_target_inodes(struct sim_target *t)
{
    return volume_inode_count(volume_of(t));
}

static void volume_target_get_status(struct sim_target *t, struct sim_target_status *ret)
{
    struct volume_status st;
    volume_get_status(volume_of(t), &st);
    *ret = (struct sim_target_status){
        .state = st.state,
        .healthy = st.healthy,
        .busy = st.scrub.running || st.repair.running,
        .bad_copies = st.scrub.bad_copies,
        .repaired_copies = st.scrub.repaired_copies,
        .lost_blocks = st.scrub.lost_blocks,
        .damage_count = st.damage_count,
        .commits = st.commits,
        .log_records = st.log_records,
        .data_blocks = st.data_blocks,
        .tree_blocks = st.tree_blocks,
        .slabs = st.slabs,
        .stale_members = st.stale_members,
        .redundancy_left = st.redundancy_left,
    };
}

static void volume_target_check(struct sim_target *t) may_yield;
static void volume_target_check(struct sim_target *t)
{
    volume_check(volume_of(t));
}

struct first_problem {
    char *why;
    size_t why_size;
};

static void keep_first(void *ctx, const char *sentence)
{
    struct first_problem *p = ctx;
    if (p->why[0] == '\0')
        snprintf(p->why, p->why_size, "%s", sentence);
}

static int64_t volume_target_verify(struct sim_target *t, char *why, size_t why_size) may_yield;
static int64_t volume_target_verify(struct sim_target *t, char *why, size_t why_size)
{
    struct first_problem first = {why, why_size};
    struct volume_verify v = {.problem = keep_first, .ctx = &first};
    why[0] = '\0';
    int err = volume_verify(volume_of(t), &v);
    return err != 0 ? err : (int64_t)v.problems;
}

static void keep_first_finding(void *ctx, const struct fs_finding *f, const char *sentence)
{
    (void)f;
    keep_first(ctx, sentence);
}

static int64_t fs_target_verify(struct sim_target *target, char *why, size_t why_size) may_yield;
static int64_t fs_target_verify(struct sim_target *target, char *why, size_t why_size)
{
    struct volume_target *t = CONTAINER_OF(target, struct volume_target, base);
    struct first_problem first = {why, why_size};
    struct fs_verify v = {.found = keep_first_finding, .ctx = &first};
    int64_t problems = volume_target_verify(target, why, why_size);
    if (problems != 0)
        return problems;
    fs_check_memory(t->fs);
    int err = fs_verify(t->volume, &v);
    return err != 0 ? err : (int64_t)v.problems;
}

/* Closed in order, so each copy of each structure of a drive is whole and up to date. */
static int drive_check_offline(struct sim_node *n, const char *path) may_yield;
static int drive_check_offline(struct sim_node *n, const char *path)
{
    char why[256] = "";
    struct drive_home *h;
    int err = drive_home_inspect(path, (struct uuid){{0}}, 0, &h, why, sizeof(why));
    if (err != 0) {
        sim_note(sim_of_node(n), "inspecting %s: %s", path, why);
        return err;
    }
    struct drive_condition c;
    drive_home_condition(h, &c);
    drive_home_close(h);
    for (int i = 0; i < 2; i++)
        if (c.superblock_damaged[i] || c.table_blocks_damaged[i] != 0 || c.fence_blocks_damaged[i] != 0)
            return ERR_DRIVE_DAMAGED;
    return c.blocks_behind == 0 && c.closed_in_order ? 0 : ERR_DRIVE_DAMAGED;
}

static int volume_target_check_offline(struct sim_node *n, const struct sim_swarm *w) may_yield;
static int volume_target_check_offline(struct sim_node *n, const struct sim_swarm *w)
{
    int result = 0;
    for (uint32_t i = 0; i < w->drives && result == 0; i++) {
        char path[SIM_PATH_SIZE];
        sim_drive_path(i, path);
        result = drive_check_offline(n, path);
    }
    return result;
}

const struct sim_target_ops sim_target_volume_ops = {
    .name = "volume",
    .create = volume_target_create,
    .open = volume_target_open,
    .close = volume_target_close,
    .blocks = volume_target_blocks,
    .read = volume_target_read,
    .write = volume_target_write,
    .unmap = volume_target_unmap,
    .zero = volume_target_zero,
    .flush = volume_target_flush,
    .commit = volume_target_commit,
    .grow = volume_target_grow,
    .map = volume_target_map,
    .scrub = volume_target_scrub,
    .repair = volume_target_repair,
    .change = volume_target_change,
    .item = volume_target_item,
    .object_read = volume_target_object_read,
    .seen = volume_target_seen,
    .inodes = volume_target_inodes,
    .get_status = volume_target_get_status,
    .check = volume_target_check,
    .verify = volume_target_verify,
    .check_offline = volume_target_check_offline,
};

/* Clients never touch its blocks. */
const struct sim_target_ops sim_target_fs_ops = {
    .name = "fs",
    .work = &fs_work_ops,
    .create = fs_target_create,
    .open = fs_target_open,
    .close = volume_target_close,
    .blocks = volume_target_blocks,
    .commit = volume_target_commit,
    .scrub = volume_target_scrub,
    .repair = volume_target_repair,
    .get_status = volume_target_get_status,
    .check = volume_target_check,
    .verify = fs_target_verify,
    .check_offline = volume_target_check_offline,
};
