/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ashlar check: verifies a whole stopped pool and writes nothing.
 *
 * Each volume is opened by the ordinary code, one after the other, on a world whose writes stay in memory:
 * its log is replayed, its members are brought level, a root is committed, all of it there. Then its trees
 * are compared with its space items (volume_verify), and every copy of every block is read and compared with
 * its checksum (scrub).
 *
 * What a crash leaves is not damage: a log to replay, copies of a table that are one write apart, a mirrored
 * block whose write was on its way and reached one drive (replay brings these level, so copies of *data* that
 * are rewritten while the volume opens are only counted). A tree node is different: a committed root names
 * it, so every copy of it was durable; a wrong one is damage whenever it is met.
 */
#include "cli/offline.h"

#include "cluster/record.h"
#include "control/size.h"
#include "drive/codec.h"
#include "filesystem/fs_verify.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "volume/verify.h"

#include <stdlib.h>
#include <unistd.h>

#define SENTENCES_MAX 40u /* of one volume's verification */
#define RANGES_MAX    1024u
#define RANGES_TOLD   24u
#define MAP_ENTRIES   64u
#define SCRUB_RATE    (UINT64_C(1) << 40) /* as fast as the drives are */
#define POLL_NS       (50 * NSEC_PER_MSEC)

/* Copies of one volume on one drive that did not verify. */
struct bad_copies {
    struct uuid drive;
    uint64_t tree, data;  /* blocks */
    uint32_t slab, block; /* of the first */
};

struct volume_look {
    struct offline *o;
    const char *name;
    bool opening;      /* see above */
    uint64_t levelled; /* blocks of data that replay brought level */
    struct bad_copies bad[SYSTEM_MEMBERS_MAX * 8];
    uint32_t bad_count;
    uint64_t sentences;
    struct volume_damage *ranges;
    uint32_t range_count;
    json_t *json;
};

struct check {
    struct offline base;
    json_t *drives, *volumes;
    uint64_t events_seen;
};

static struct check *check_of(struct offline *o)
{
    return CONTAINER_OF(o, struct check, base);
}

/* ---- Events ---- */

/* Those that are told in another way, by whoever looks for them. */
static bool event_is_known(const struct event *e)
{
    static const char *const known[] = {"block-repaired", "block-lost",           "scrub-done",
                                        "drive-missing",  "drive-table-repaired", "drive-superblock-repaired",
                                        "data-lost",      "coord-restored",       "drive-stale"};
    for (uint32_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strcmp(e->kind, known[i]) == 0)
            return true;
    return false;
}

static void events_take(struct offline *o, const char *about, const char *name)
{
    struct check *k = check_of(o);
    struct event e;
    while (event_list(k->events_seen, &e, 1) == 1) {
        k->events_seen = e.sequence;
        if (e.level >= LOG_WARNING_ && !event_is_known(&e))
            offline_problem(o, about, name, "%s", e.text);
    }
}

/* ---- Drives ---- */

static void condition_check(struct offline *o, struct node_drive *d, const struct drive_condition *c)
{
    static const char *const places[2] = {"at its beginning", "at its end"};
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t tables = c->table_blocks_damaged[i], fences = c->fence_blocks_damaged[i];
        if (c->superblock_damaged[i])
            offline_problem(
                o, "drive", d->path,
                "the superblock %s is damaged; the other one is whole: the next start of the node "
                "rewrites it",
                places[i]);
        /* A power cut in the middle of a write of a table leaves one torn block. */
        bool torn = !c->closed_in_order && tables + fences == 1;
        if (tables + fences > 0 && !torn)
            offline_problem(
                o, "drive", d->path,
                "%u block(s) of the slab table and %u of the fence table %s are damaged; the other "
                "copies are whole: the next start of the node rewrites them",
                tables, fences, places[i]);
        else if (torn)
            offline_note(o, "drive", d->path,
                         "a block of the %s table %s is torn, as by a crash in its write",
                         tables > 0 ? "slab" : "fence", places[i]);
    }
    if (c->blocks_behind > 0)
        offline_note(o, "drive", d->path, "%u block(s) of its tables are one write behind their other copy",
                     c->blocks_behind);
}

static bool record_exists(struct offline *o, struct uuid id) may_yield
{
    char key[VOLUME_KEY_SIZE];
    char *text = NULL;
    uint64_t revision;
    volume_record_key(id, key);
    int r = coord_get(o->node.coord, key, &text, &revision);
    free(text);
    return r != ERR_COORD_NOT_FOUND;
}

/* Slabs of volumes that nobody knows. They take space and harm nobody. */
static uint32_t orphans_count(struct offline *o, struct node_drive *d) may_yield
{
    struct slab_entry *list = NULL;
    uint32_t count = 0, orphans = 0;
    if (drive_slab_list(d->handles[0], (struct uuid){{0}}, &list, &count) < 0)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        orphans += !list[i].deleted && !record_exists(o, list[i].volume);
    free(list);
    if (orphans > 0)
        offline_note(o, "drive", d->path, "%u slab(s) belong to volumes that the pool does not know",
                     orphans);
    return orphans;
}

static void drive_check(struct offline *o, struct node_drive *d) may_yield
{
    char id[UUID_TEXT_SIZE];
    struct drive_info info = {0};
    struct drive_condition condition = {0};
    uint32_t orphans = 0;
    bool open = d->home != NULL && d->handles[0] != NULL && drive_get_info(d->handles[0], &info) == 0;
    uuid_format(d->id, id);
    if (open) {
        drive_home_condition(d->home, &condition);
        condition_check(o, d, &condition);
        orphans = orphans_count(o, d);
    }
    const char *state = d->state == NODE_DRIVE_REMOVED ? "removed" : open ? "ok" : "missing";
    json_t *j =
        json_pack("{so ss ss sI sI sI sI sb}", "path", control_text(d->path), "id", id, "state", state,
                  "size_bytes", (json_int_t)d->size_bytes, "slabs_total", (json_int_t)info.slabs_total,
                  "slabs_used", (json_int_t)(info.slabs_total - info.slabs_free), "slabs_unknown",
                  (json_int_t)orphans, "closed_in_order", (int)condition.closed_in_order);
    if (j != NULL && !open)
        json_object_set_new(j, "why", control_text(d->why));
    json_array_append_new(check_of(o)->drives, j);
}

/* ---- What is wrong with a volume ---- */

static void copy_rewritten(void *ctx, const struct group_copy *c)
{
    struct volume_look *l = ctx;
    if (l->opening && c->purpose != GROUP_TREE) {
        l->levelled += c->blocks;
        return;
    }
    struct bad_copies *b = NULL;
    for (uint32_t i = 0; i < l->bad_count && b == NULL; i++)
        if (uuid_equal(l->bad[i].drive, c->drive))
            b = &l->bad[i];
    if (b == NULL && l->bad_count < ARRAY_SIZE(l->bad)) {
        b = &l->bad[l->bad_count++];
        *b = (struct bad_copies){.drive = c->drive, .slab = c->slab, .block = c->block};
    }
    if (b != NULL)
        *(c->purpose == GROUP_TREE ? &b->tree : &b->data) += c->blocks;
}

/* Where a block of a slab lies on its drive; 0: not known. */
static uint64_t drive_offset(const struct node_drive *d, uint32_t slab, uint32_t block)
{
    struct drive_layout layout;
    if (drive_layout_compute(d->size_bytes, d->slab_bytes, &layout) != 0)
        return 0;
    return layout.slab_offset + (uint64_t)slab * d->slab_bytes + (uint64_t)block * BLOCK_SIZE;
}

static void bad_copies_tell(struct volume_look *l)
{
    for (uint32_t i = 0; i < l->bad_count; i++) {
        const struct bad_copies *b = &l->bad[i];
        char id[UUID_TEXT_SIZE];
        uuid_format(b->drive, id);
        const struct node_drive *d = node_drive_find(&l->o->node, id);
        offline_problem(
            l->o, "volume", l->name,
            "%llu block(s) of data and %llu of trees on the drive %s are wrong, the first at byte %llu "
            "of the drive; other copies are right: start the node and run `ashlar scrub %s`",
            (unsigned long long)b->data, (unsigned long long)b->tree, d != NULL ? d->path : id,
            d != NULL ? (unsigned long long)drive_offset(d, b->slab, b->block) : 0, l->name);
    }
}

static void range_add(struct volume_look *l, uint64_t offset, uint64_t len)
{
    if (l->range_count < RANGES_MAX)
        l->ranges[l->range_count++] = (struct volume_damage){OBJECT_BLOCK_DEVICE, offset, len};
}

static void ranges_take(struct volume_look *l, const struct volume *v)
{
    struct volume_damage *d = calloc(RANGES_MAX, sizeof(*d));
    uint32_t n = d != NULL ? volume_get_damage(v, d, RANGES_MAX) : 0;
    for (uint32_t i = 0; i < n; i++)
        range_add(l, d[i].offset_bytes, d[i].len_bytes);
    free(d);
}

/* Ranges that an earlier replay recorded as lost: they answer EIO until they are written again. */
static int lost_ranges_find(struct volume_look *l, struct volume *v) may_yield
{
    struct volume_map_entry *e = calloc(MAP_ENTRIES, sizeof(*e));
    uint64_t block = 0, blocks = volume_size_bytes(v) / BLOCK_SIZE;
    int r = e != NULL ? 0 : ERR_NO_MEMORY;
    while (r == 0 && block < blocks) {
        uint32_t n = 0;
        r = volume_map(v, OBJECT_BLOCK_DEVICE, block, blocks - block, e, MAP_ENTRIES, &n);
        for (uint32_t i = 0; r == 0 && i < n; i++) {
            if (e[i].kind == MAP_LOST)
                range_add(l, e[i].block * BLOCK_SIZE, e[i].blocks * BLOCK_SIZE);
            block = e[i].block + e[i].blocks;
        }
    }
    free(e);
    return r;
}

static int range_compare(const void *pa, const void *pb)
{
    const struct volume_damage *a = pa, *b = pb;
    return a->offset_bytes < b->offset_bytes ? -1 : a->offset_bytes > b->offset_bytes;
}

static void ranges_merge(struct volume_look *l)
{
    uint32_t n = 0;
    if (l->range_count > 0)
        qsort(l->ranges, l->range_count, sizeof(l->ranges[0]), range_compare);
    for (uint32_t i = 0; i < l->range_count; i++) {
        struct volume_damage *last = n > 0 ? &l->ranges[n - 1] : NULL;
        const struct volume_damage now = l->ranges[i];
        if (last != NULL && now.offset_bytes <= last->offset_bytes + last->len_bytes)
            last->len_bytes = MAX(last->offset_bytes + last->len_bytes, now.offset_bytes + now.len_bytes) -
                              last->offset_bytes;
        else
            l->ranges[n++] = now;
    }
    l->range_count = n;
}

static void ranges_tell(struct volume_look *l)
{
    json_t *list = json_array();
    ranges_merge(l);
    for (uint32_t i = 0; i < l->range_count; i++) {
        const struct volume_damage *d = &l->ranges[i];
        json_array_append_new(list, json_pack("{sI sI}", "offset", (json_int_t)d->offset_bytes, "length",
                                              (json_int_t)d->len_bytes));
        if (i < RANGES_TOLD)
            offline_problem(
                l->o, "volume", l->name,
                "%llu bytes at byte %llu have no good copy left: restore them from a backup; writing or "
                "discarding the range makes it readable again",
                (unsigned long long)d->len_bytes, (unsigned long long)d->offset_bytes);
    }
    if (l->range_count > RANGES_TOLD)
        offline_problem(l->o, "volume", l->name, "and %u more ranges have no good copy left",
                        l->range_count - RANGES_TOLD);
    json_object_set_new(l->json, "damage", list);
}

static void sentence(void *ctx, const char *text)
{
    struct volume_look *l = ctx;
    if (++l->sentences <= SENTENCES_MAX)
        offline_problem(l->o, "volume", l->name, "%s", text);
}

static void status_check(struct volume_look *l, const struct volume_status *s)
{
    if (s->state != 0)
        offline_problem(l->o, "volume", l->name, "it failed while it was checked: %s", error_text(s->state));
    if (s->read_only)
        offline_problem(l->o, "volume", l->name, "it opens read-only");
    if (s->stale_members > 0)
        offline_problem(
            l->o, "volume", l->name,
            "degraded: %u of its slabs' copies are missing or not up to date (%d more drive(s) may be "
            "lost): bring the drives back or replace them, start the node and run `ashlar repair %s`",
            s->stale_members, MAX(s->redundancy_left, 0), l->name);
}

/* ---- One volume ---- */

static void progress(struct offline *o, const char *name, const char *what, const struct volume_job *job)
{
    char label[VOLUME_NAME_MAX + 32];
    if (!isatty(STDERR_FILENO))
        return;
    json_t *p = json_pack("{sI sI}", "done", (json_int_t)(job != NULL ? job->done_blocks : 0), "total",
                          (json_int_t)(job != NULL ? job->total_blocks : 0));
    snprintf(label, sizeof(label), "%s of %s", what, name);
    (void)cli_progress(o->c, "progress", p, label);
    json_decref(p);
}

/* Every copy of everything. */
static int scrub_all(struct volume_look *l, struct volume *v, struct volume_status *ret) may_yield
{
    int r = volume_scrub_start(v, SCRUB_RATE);
    volume_get_status(v, ret);
    while (r == 0 && ret->scrub.running) {
        progress(l->o, l->name, "reading", &ret->scrub);
        (void)fiber_sleep(POLL_NS);
        volume_get_status(v, ret);
    }
    return r != 0 ? r : ret->scrub.result;
}

static void totals_add(struct volume_look *l, const struct volume_status *s,
                       const struct volume_verify *verify)
{
    uint64_t bad = 0;
    for (uint32_t i = 0; i < l->bad_count; i++)
        bad += l->bad[i].data + l->bad[i].tree;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"size_bytes", s->size_bytes},
                   {"used_bytes", s->data_blocks * BLOCK_SIZE},
                   {"tree_nodes", verify->nodes},
                   {"extents", verify->extents},
                   {"checked_blocks", s->scrub.done_blocks},
                   {"bad_copies", MAX(bad, s->scrub.bad_copies)},
                   {"lost_blocks", s->scrub.lost_blocks},
                   {"levelled_blocks", l->levelled},
                   {"stale_members", s->stale_members}};
    for (uint32_t i = 0; i < ARRAY_SIZE(numbers); i++)
        json_object_set_new(l->json, numbers[i].name, json_integer((json_int_t)numbers[i].value));
}

static void fs_sentence(void *ctx, const struct fs_finding *f, const char *text)
{
    (void)f;
    sentence(ctx, text);
}

/* What is in it: names against inodes, and so on. */
static int fs_look(struct volume_look *l, struct volume *v) may_yield
{
    struct fs_verify verify = {.found = fs_sentence, .ctx = l};
    int r = fs_verify(v, &verify);
    if (r != 0)
        return r;
    json_object_set_new(l->json, "inodes", json_integer((json_int_t)verify.inodes));
    json_object_set_new(l->json, "names", json_integer((json_int_t)verify.names));
    return 0;
}

static void volume_look(struct volume_look *l, struct volume *v) may_yield
{
    struct volume_verify verify = {.problem = sentence, .ctx = l};
    struct volume_status status;
    volume_get_status(v, &status);
    status_check(l, &status);
    ranges_take(l, v);
    int r = volume_verify(v, &verify);
    if (r == 0 && node_kind_is_fs(volume_get_record(v)->kind))
        r = fs_look(l, v);
    if (l->sentences > SENTENCES_MAX)
        offline_problem(l->o, "volume", l->name, "and %llu more problems of its structure",
                        (unsigned long long)(l->sentences - SENTENCES_MAX));
    if (r == 0)
        r = lost_ranges_find(l, v);
    if (r != 0)
        offline_problem(l->o, "volume", l->name, "its structure cannot be verified: %s", error_text(r));
    r = scrub_all(l, v, &status);
    if (r != 0 && status.state == 0)
        offline_problem(l->o, "volume", l->name, "not all of its copies could be read: %s", error_text(r));
    ranges_take(l, v);
    if (status.state != 0)
        status_check(l, &status);
    totals_add(l, &status, &verify);
}

static void open_failed(struct volume_look *l, int r)
{
    if (r == ERR_NO_MEMORY)
        offline_fail(l->o, "Give more memory with --memory SIZE.", "the volume %s: %s", l->name,
                     error_text(r));
    else if (r == ERR_UNSUPPORTED)
        offline_fail(l->o, "Use the newer Ashlar.", "the volume %s was written by a newer Ashlar", l->name);
    else
        offline_problem(
            l->o, "volume", l->name,
            "it cannot be opened: %s. If drives are missing, bring them back; else restore it from a "
            "backup",
            error_text(r));
}

static void volume_check_one(struct offline *o, const struct volume_record *record) may_yield
{
    struct volume_look l = {.o = o, .name = record->name, .opening = true};
    struct volume_env env = o->node.reactors[0].env;
    char id[UUID_TEXT_SIZE], protection[24];
    struct volume *v = NULL;
    uuid_format(record->id, id);
    protection_format(record->protection, protection);
    l.json = json_pack("{so ss ss}", "name", control_text(record->name), "id", id, "protection", protection);
    l.ranges = calloc(RANGES_MAX, sizeof(*l.ranges));
    if (l.json == NULL || l.ranges == NULL) {
        offline_fail(o, "", "%s", error_text(ERR_NO_MEMORY));
        json_decref(l.json);
        free(l.ranges);
        return;
    }
    offline_copies_check(o, record->name, &env, record->id);
    env.copy_rewritten = copy_rewritten;
    env.ctx = &l;
    progress(o, record->name, "replay", NULL);
    int r = volume_open(&env, record->id, &v);
    l.opening = false;
    if (r == 0) {
        volume_look(&l, v);
        r = volume_get_state(v);
        int closed = volume_close(v);
        if (r == 0 && closed != 0)
            offline_problem(o, "volume", record->name, "it could not be committed and closed: %s",
                            error_text(closed));
        r = 0;
    } else {
        open_failed(&l, r);
    }
    cli_progress_end(o->c);
    bad_copies_tell(&l);
    ranges_tell(&l);
    events_take(o, "volume", record->name);
    json_object_set_new(l.json, "opened", json_boolean(r == 0));
    json_array_append_new(check_of(o)->volumes, l.json);
    free(l.ranges);
}

static void volumes_check(struct offline *o) may_yield
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(o->node.coord, "/volumes/", &records, &count);
    if (r < 0) {
        offline_fail(o, "", "the records of the volumes cannot be read: %s", error_text(r));
        return;
    }
    for (size_t i = 0; i < count && o->result != OFFLINE_FAILED; i++) {
        struct volume_record record;
        if (volume_record_decode(records[i].value, records[i].revision, &record) < 0)
            offline_problem(o, "pool", o->dir, "the record %s is damaged", records[i].key);
        else if (record.deleted)
            offline_note(o, "volume", record.name, "it is being deleted: the next start of the node goes on");
        else
            volume_check_one(o, &record);
    }
    coord_records_free(records, count);
}

static void check_body(struct offline *o) may_yield
{
    if (o->dir[0] == '\0')
        offline_fail(o, "Name the folder that ashlard was given with --dir.", "%s is not a folder",
                     o->c->args[0]);
    if (o->result != OFFLINE_CLEAN || offline_records_open(o) != 0 || o->creating)
        return;
    int r = offline_drives_open(o);
    LIST_FOREACH (&o->node.drives, it)
        drive_check(o, CONTAINER_OF(it, struct node_drive, link));
    events_take(o, "pool", o->dir);
    if (r == 0)
        volumes_check(o);
}

/* ---- Report ---- */

static void list_print(struct cli *c, const json_t *list, const char *mark)
{
    size_t i;
    json_t *p;
    json_array_foreach(list, i, p) fprintf(c->out, "%s %s %s: %s\n", mark, json_text(p, "about"),
                                           json_text(p, "name"), json_text(p, "text"));
}

static void report_print(struct check *k)
{
    struct cli *c = k->base.c;
    size_t i, problems = json_array_size(k->base.problems);
    json_t *d, *v;
    json_array_foreach(k->drives, i, d) fprintf(
        c->out, "drive %s: %s, %s, %llu of %llu slabs in use%s\n", json_text(d, "path"),
        json_text(d, "state"), text_size(d, "size_bytes"), (unsigned long long)json_number(d, "slabs_used"),
        (unsigned long long)json_number(d, "slabs_total"),
        json_is_true(json_object_get(d, "closed_in_order")) ? "" : ", not closed in order");
    json_array_foreach(k->volumes, i, v) fprintf(
        c->out,
        "volume %s (%s): %s of %s in use; %llu tree nodes, %llu extents, %llu blocks read, %llu bad copies, "
        "%llu blocks lost\n",
        json_text(v, "name"), json_text(v, "protection"), text_size(v, "used_bytes"),
        text_size(v, "size_bytes"), (unsigned long long)json_number(v, "tree_nodes"),
        (unsigned long long)json_number(v, "extents"), (unsigned long long)json_number(v, "checked_blocks"),
        (unsigned long long)json_number(v, "bad_copies"), (unsigned long long)json_number(v, "lost_blocks"));
    list_print(c, k->base.notes, "  note:");
    list_print(c, k->base.problems, "  !");
    if (k->base.result == OFFLINE_CLEAN)
        fprintf(c->out, "%s is clean\n", k->base.dir);
    else
        fprintf(c->out, "%s is damaged: %zu problem%s\n", k->base.dir, problems, problems == 1 ? "" : "s");
}

int cmd_check(struct cli *c)
{
    struct check *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        (void)cli_failed(c, "", "%s", error_text(ERR_NO_MEMORY));
        return OFFLINE_FAILED;
    }
    k->drives = json_array();
    k->volumes = json_array();
    int r = offline_run(&k->base, c, c->args[0], check_body);
    if (r != OFFLINE_FAILED && !c->json)
        report_print(k);
    if (r != OFFLINE_FAILED && c->json)
        (void)cli_print_json(c, json_pack("{so sb sO sO sO sO}", "dir", control_text(k->base.dir), "clean",
                                          (int)(r == OFFLINE_CLEAN), "drives", k->drives, "volumes",
                                          k->volumes, "problems", k->base.problems, "notes", k->base.notes));
    json_decref(k->drives);
    json_decref(k->volumes);
    json_decref(k->base.problems);
    json_decref(k->base.notes);
    free(k);
    return r;
}
