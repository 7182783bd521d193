/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating and deleting volumes. A volume that is being made is a tombstone until its first root is durable,
 * so a crash in between leaves nothing but slabs that the tombstone's way gives back.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define COORD_TRIES 50u /* a coordinator that cannot write (a full disk) must not hold a command for ever */

#define LOG_BYTES_MIN (16 * MIB)
#define LOG_BYTES_MAX (256 * MIB)

static bool name_ok(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n > VOLUME_NAME_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
            return false;
    return true;
}

static void name_key(const char *name, char out[VOLUME_NAME_MAX + 16])
{
    (void)snprintf(out, VOLUME_NAME_MAX + 16, "/names/%s", name);
}

/* Slabs of the log: an eighth of the volume within limits, so that small volumes stay cheap and large ones
 * commit seldom; and at most an eighth of the smallest drive, since a thin volume may be larger than its
 * pool. */
static uint32_t default_runs(uint64_t size_bytes, uint32_t slab_blocks, uint32_t drive_slabs)
{
    uint64_t bytes = MIN(MAX(size_bytes / 8, LOG_BYTES_MIN), LOG_BYTES_MAX);
    uint64_t runs = DIV_ROUND_UP(bytes, (uint64_t)slab_blocks * BLOCK_SIZE);

    runs = MIN(runs, drive_slabs / 8);
    return (uint32_t)MIN(MAX(runs, 2u), SYSTEM_RUNS_MAX);
}

static uint32_t pool_slab_blocks(const struct drive_set *s)
{
    uint32_t n = UINT32_MAX;

    for (uint32_t i = 0; i < s->count; i++)
        n = MIN(n, drive_slab_blocks(s->drives[i]));
    return n;
}

static may_yield uint32_t pool_drive_slabs(const struct drive_set *s)
{
    uint32_t n = UINT32_MAX;
    struct drive_info info;

    for (uint32_t i = 0; i < s->count; i++)
        if (drive_get_info(s->drives[i], &info) == 0)
            n = MIN(n, info.slabs_total);
    return n;
}

/* Group 0 chooses the drives; the other runs of the system group lie on the same ones. */
static may_yield int system_groups_make(struct volume *v)
{
    struct volume_record *rec = &v->record;
    struct group *g;
    int r = group_create(v->groups, 0, GROUP_SYSTEM, rec->protection,
                         protection_system_copies(rec->protection), &g);

    if (r)
        return r;
    v->system[0] = g;
    rec->member_count = g->member_count;
    for (uint32_t m = 0; m < g->member_count; m++)
        rec->members[m] = (struct system_member){.drive_id = group_drive_id(g->members[m].drive),
                                                 .incarnation = group_drive_incarnation(g->members[m].drive),
                                                 .in_sync = true};
    for (uint32_t run = 1; run < rec->system_runs; run++) {
        struct group more = *g;
        struct uuid drives[GROUP_MEMBERS_MAX];
        more.id = run;
        for (uint32_t m = 0; m < g->member_count; m++) {
            drives[m] = group_drive_id(g->members[m].drive);
            r = drive_slab_alloc(group_drive_session(g->members[m].drive), run, m, &more.members[m].slab);
            if (r)
                return r;
        }
        r = group_adopt_decoded(v->groups, &more, drives, &v->system[run]);
        if (r)
            return r;
    }
    return 0;
}

/* The first root, on empty trees. */
static may_yield int first_root(struct volume *v, uint64_t size_bytes)
{
    v->txg = 1;
    v->size_bytes = size_bytes;
    v->created_ns = world_wall_ns();
    v->space.next_group = v->record.system_runs;
    tree_init(&v->pool, &v->pool_store, v->env.cache, v->cache_tag, v->record.id, 0, NULL, v->txg);
    tree_init(&v->head, &v->head_store, v->env.cache, v->cache_tag, v->record.id, HEAD_LIVE, NULL, v->txg);
    int r = log_init(v, 1, 1, 0, 0);
    if (r)
        return r;
    v->log_started = true;
    reactor_add_turn_hook(&v->hook);
    r = txg_commit(v, true);
    return r ? r : v->state;
}

static may_yield int create_contents(const struct volume_env *env, struct volume_record *rec,
                                     uint64_t size_bytes)
{
    struct volume *v = volume_alloc(env, rec);

    if (!v)
        return ERR_NO_MEMORY;
    int r = volume_groups_new(v);
    if (!r)
        r = system_groups_make(v);
    if (!r)
        r = first_root(v, size_bytes);
    *rec = v->record;
    fiber_shield(); /* a cancelled fiber does not sleep */
    v->closing = true;
    while (v->background > 0)
        (void)waitq_wait(&v->background_wait, DEADLINE_NEVER);
    volume_free(v);
    fiber_unshield();
    return r;
}

static may_yield int record_insert(const struct volume_env *env, struct volume_record *rec)
{
    char key[VOLUME_KEY_SIZE], name[VOLUME_NAME_MAX + 16], id[UUID_TEXT_SIZE + 2], *text;
    int r = volume_record_encode(rec, &text);

    if (r)
        return r;
    char plain[UUID_TEXT_SIZE];
    uuid_format(rec->id, plain);
    (void)snprintf(id, sizeof(id), "\"%s\"", plain);
    volume_record_key(rec->id, key);
    name_key(rec->name, name);
    struct coord_change changes[2] = {{.key = name, .value = id}, {.key = key, .value = text}};
    uint64_t revision;
    uint32_t tries = 0;
    /* Given up, it may have happened all the same: then it is a tombstone that is deleted at the next start.
     */
    do
        r = coord_commit(env->coord, changes, 2, &revision);
    while (r == ERR_COORD_UNKNOWN && ++tries < COORD_TRIES);
    free(text);
    if (!r)
        rec->revision = revision;
    return r == ERR_COORD_CONFLICT ? ERR_VOLUME_EXISTS : r;
}

static may_yield int create_once(const struct volume_env *env, const struct volume_create_options *o,
                                 struct uuid *ret_id)
{
    uint32_t slab = pool_slab_blocks(env->drives);

    bool kind_ok = strcmp(o->kind, VOLUME_KIND_BLOCK) == 0 || strcmp(o->kind, VOLUME_KIND_FS) == 0;

    if (!name_ok(o->name) || !kind_ok || o->size_bytes == 0 || o->size_bytes % BLOCK_SIZE ||
        o->size_bytes > INT64_MAX - BLOCK_SIZE + 1)
        return ERR_INVALID;
    if (env->drives->count < o->protection.spare + 1u)
        return ERR_NOT_ENOUGH_DRIVES;
    struct volume_record rec = {
        .id = world_random_uuid(),
        .protection = o->protection,
        .epoch = 1,
        .owner = env->node,
        .slab_blocks = slab,
        .system_runs = o->system_runs ? o->system_runs
                                      : default_runs(o->size_bytes, slab, pool_drive_slabs(env->drives)),
        .deleted = true};
    (void)snprintf(rec.name, sizeof(rec.name), "%s", o->name);
    (void)snprintf(rec.kind, sizeof(rec.kind), "%s", o->kind);
    if (slab < 16 || (uint64_t)rec.system_runs * slab < ROOT_RING_BLOCKS + 128u ||
        rec.system_runs > SYSTEM_RUNS_MAX)
        return ERR_INVALID;
    int r = record_insert(env, &rec);
    if (r)
        return r;
    r = create_contents(env, &rec, o->size_bytes);
    if (!r) {
        rec.deleted = false;
        rec.owner = (struct uuid){{0}};
        r = volume_record_store(env->coord, &rec);
    }
    if (r) {
        int d = volume_delete(env, rec.id, NULL);
        if (d)
            event_raise(LOG_WARNING_, "volume-leftover",
                        "volume %s could not be made, nor cleaned up yet: %s", rec.name, error_text(d));
        return r;
    }
    *ret_id = rec.id;
    return 0;
}

int volume_create(const struct volume_env *env, const struct volume_create_options *o, struct uuid *ret_id)
{
    uint64_t until_ns = 0;
    int r;

    do
        r = create_once(env, o, ret_id);
    while ((r == ERR_DRIVE_NO_SPACE || r == ERR_VOLUME_FULL) && shortage_wait(env, NULL, &until_ns));
    return r;
}

/* ---- Deleting ---- */

static may_yield int record_remove(const struct volume_env *env, const struct volume_record *rec)
{
    char key[VOLUME_KEY_SIZE], name[VOLUME_NAME_MAX + 16], *value;
    uint64_t name_revision, revision;

    volume_record_key(rec->id, key);
    name_key(rec->name, name);
    int r = coord_get(env->coord, name, &value, &name_revision);
    bool named = !r;
    if (!r)
        free(value);
    struct coord_change changes[2] = {{.key = key, .if_revision = rec->revision},
                                      {.key = name, .if_revision = named ? name_revision : 0}};
    return coord_commit(env->coord, changes, named ? 2 : 1, &revision);
}

int volume_delete(const struct volume_env *env, struct uuid id, struct volume *v)
{
    struct volume_record rec;
    int r;

    if (v) {
        r = volume_close(v);
        if (r && r != ERR_VOLUME_FAILED)
            LOG_WARNING("closing volume before its deletion: %s", error_text(r));
    }
    uint32_t tries = 0;
    do {
        r = volume_record_load(env->coord, id, &rec);
        if (r)
            return r == ERR_COORD_NOT_FOUND ? ERR_VOLUME_NOT_FOUND : r;
        rec.deleted = true;
        rec.epoch++;
        rec.owner = env->node;
        r = volume_record_store(env->coord, &rec);
    } while ((r == ERR_COORD_CONFLICT || r == ERR_COORD_UNKNOWN) && ++tries < COORD_TRIES);
    if (r)
        return r;
    for (uint32_t i = 0; i < env->drives->count; i++) {
        r = drive_get_state(env->drives->drives[i]) == DRIVE_OK
                ? drive_volume_purge(env->drives->drives[i], id, rec.epoch)
                : 0;
        if (r)
            return r;
    }
    tries = 0;
    do
        r = record_remove(env, &rec);
    while (r == ERR_COORD_UNKNOWN && ++tries < COORD_TRIES);
    return r;
}
