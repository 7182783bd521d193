/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where copies go: the drives with the most free slabs, each at most once in a group. Between drives with
 * equally many a hash of (volume, group, drive) decides, so that groups of many volumes spread over all
 * drives and the same seed gives the same places. Since every slab that is taken lowers its drive's number,
 * groups go round all drives by themselves.
 *
 * All system groups of a volume have their members on the same drives in the same order, since the volume's
 * record names one drive a member for all of them.
 *
 * While drives are missing, a data or tree group may come into being with fewer copies than it should have: a
 * mirror is there so that writing goes on. The members that are missing are stale, on a drive that is
 * missing, and without a slab (GROUP_SLAB_NONE) until repair finds them a place, there or elsewhere. Fewer
 * copies are made only when the drives that are here have no room for all.
 *
 * A crash between a slab's allocation and the record of its group leaves a slab that the drive's table gives
 * to (volume, group, member). The same group id finds it again: it may hold data that a log record names.
 */
#include "protect/group_internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

struct candidate {
    struct group_drive *drive;
    uint32_t slabs_free;
    uint64_t tie;
    bool taken; /* by this group, or it failed us */
};

struct placement {
    struct group_set *set;
    uint32_t group;
    struct candidate *candidates;
    uint32_t count;
};

static bool slab_is_known(const struct group_drive *d, const struct slab_entry *slab)
{
    const struct group *g = group_find(d->set, slab->group);
    return g != NULL && slab->member < g->member_count && g->members[slab->member].drive == d &&
           g->members[slab->member].slab == slab->slab;
}

/* What a crash left on this drive; asked once a session. */
static may_yield int leftovers_load(struct group_drive *d, struct drive *drive)
{
    if (d->leftovers_known)
        return 0;
    struct slab_entry *slabs;
    uint32_t count;
    int err = drive_slab_list(drive, d->set->o.volume, &slabs, &count);
    if (err != 0)
        return err;
    struct leftover *kept = calloc(MAX(count, 1), sizeof(*kept));
    if (kept == NULL) {
        free(slabs);
        return ERR_NO_MEMORY;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!slabs[i].deleted && !slab_is_known(d, &slabs[i]))
            kept[n++] = (struct leftover){.group = slabs[i].group, .member = slabs[i].member};
    }
    free(slabs);
    free(d->leftovers);
    d->leftovers = kept;
    d->leftover_count = n;
    d->leftovers_known = true;
    return 0;
}

static bool leftover_has(const struct group_drive *d, uint32_t group, uint32_t member)
{
    for (uint32_t i = 0; i < d->leftover_count; i++) {
        if (d->leftovers[i].group == group && d->leftovers[i].member == member)
            return true;
    }
    return false;
}

static uint64_t placement_tie(const struct group_set *s, uint32_t group, struct uuid drive)
{
    uint64_t seed = hash64(s->o.volume.b, sizeof(s->o.volume.b), group);
    return hash64(drive.b, sizeof(drive.b), seed);
}

/* One drive of the node: is it good for a new slab? ret->drive NULL: no. */
static may_yield int candidate_look(struct placement *p, struct uuid id, struct candidate *ret)
{
    ret->drive = NULL;
    struct drive *drive = drive_set_find(p->set->o.drives, id);
    if (drive == NULL || drive_get_state(drive) != DRIVE_OK ||
        drive_slab_blocks(drive) != p->set->o.slab_blocks)
        return 0;
    struct group_drive *d;
    int err = group_set_drive_add(p->set, id, &d);
    if (err != 0)
        return err;
    if (d->failed || (d->session != NULL && !group_drive_usable(d)))
        return 0;
    struct drive_info info;
    err = leftovers_load(d, drive);
    if (err == ERR_NO_MEMORY)
        return err;
    if (err != 0 || drive_get_info(drive, &info) != 0)
        return 0; /* it went away meanwhile */
    *ret = (struct candidate){
        .drive = d, .slabs_free = info.slabs_free, .tie = placement_tie(p->set, p->group, id)};
    return 0;
}

static may_yield int placement_init(struct placement *p, struct group_set *s, uint32_t group)
{
    *p = (struct placement){.set = s, .group = group};
    const struct drive_set *set = s->o.drives;
    uint32_t count = set->count;
    struct uuid *ids = calloc(MAX(count, 1), sizeof(*ids));
    p->candidates = calloc(MAX(count, 1), sizeof(*p->candidates));
    int err = ids == NULL || p->candidates == NULL ? ERR_NO_MEMORY : 0;
    /* Copied first: the set may change while drives are asked. */
    for (uint32_t i = 0; err == 0 && i < count; i++)
        ids[i] = drive_id(set->drives[i]);
    for (uint32_t i = 0; err == 0 && i < count; i++) {
        struct candidate c;
        err = candidate_look(p, ids[i], &c);
        if (err == 0 && c.drive != NULL)
            p->candidates[p->count++] = c;
    }
    free(ids);
    if (err != 0) {
        free(p->candidates);
        p->candidates = NULL;
        return err;
    }
    s->slabs_free = 0;
    for (uint32_t i = 0; i < p->count; i++)
        s->slabs_free += p->candidates[i].slabs_free;
    return 0;
}

uint64_t group_set_slabs_free(const struct group_set *s)
{
    return s->slabs_free;
}

static struct candidate *placement_find(struct placement *p, const struct group_drive *d)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->candidates[i].drive == d && !p->candidates[i].taken)
            return &p->candidates[i];
    }
    return NULL;
}

static bool candidate_better(const struct candidate *a, const struct candidate *b)
{
    if (b == NULL)
        return true;
    /* What others are asking for at this moment is as good as gone. */
    int64_t free_a = (int64_t)a->slabs_free - a->drive->placing;
    int64_t free_b = (int64_t)b->slabs_free - b->drive->placing;
    return free_a != free_b ? free_a > free_b : a->tie < b->tie;
}

static struct candidate *placement_pick(struct placement *p, uint32_t member)
{
    struct candidate *best = NULL;
    for (uint32_t i = 0; i < p->count; i++) {
        struct candidate *c = &p->candidates[i];
        if (!c->taken && leftover_has(c->drive, p->group, member))
            return c;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        struct candidate *c = &p->candidates[i];
        if (!c->taken && c->slabs_free > 0 && candidate_better(c, best))
            best = c;
    }
    return best;
}

struct placed {
    struct candidate *candidate; /* where a slab is asked for; NULL: nowhere (yet) */
    struct group_member member;
    struct placement *placement;
    struct fiber *fiber;
    uint32_t index;
    int result; /* 0 when member.slab is ours */
    bool done;
    bool fresh; /* allocated by this call: may be given back on failure */
};

static may_yield void placed_alloc(void *arg)
{
    struct placed *m = arg;
    struct group_drive *d = m->candidate->drive;
    uint32_t slab = 0;
    int err = group_drive_open(m->placement->set, d->id, &d);
    if (err == 0) {
        d->in_flight++;
        err = drive_slab_alloc(d->session, m->placement->group, m->index, &slab);
        if (--d->in_flight == 0)
            waitq_wake_all(&d->idle);
    }
    m->candidate->drive->placing--;
    m->result = err;
    if (err == 0) {
        m->done = true;
        m->member =
            (struct group_member){.drive = d, .slab = slab, .incarnation = group_drive_incarnation(d)};
        m->fresh = !leftover_has(d, m->placement->group, m->index);
    } else if (err == ERR_DRIVE_GONE && d->session != NULL) {
        group_drive_fail(d);
    }
}

static void placed_choose(struct placed *m, struct candidate *c)
{
    m->candidate = c;
    if (c != NULL) {
        c->taken = true;
        c->drive->placing++;
    }
}

/* Asks for all slabs that were chosen, at once: each takes writes to its drive's tables. Where there is no
 * fiber to be had, one after the other. */
static may_yield void placed_alloc_all(struct placed *placed, uint32_t count)
{
    struct placed *own = NULL;
    for (uint32_t m = 0; m < count; m++) {
        placed[m].fiber = NULL;
        if (placed[m].done || placed[m].candidate == NULL)
            continue;
        if (own != NULL && fiber_spawn_joinable("make-slab", placed_alloc, &placed[m], &placed[m].fiber) == 0)
            continue;
        if (own != NULL)
            placed_alloc(own);
        own = &placed[m];
    }
    if (own != NULL)
        placed_alloc(own);
    for (uint32_t m = 0; m < count; m++) {
        if (placed[m].fiber == NULL)
            continue;
        if (own != NULL && own->result == ERR_CANCELLED)
            fiber_cancel(placed[m].fiber);
        fiber_join(placed[m].fiber);
    }
}

/* Errors that are not about one drive. */
static bool placing_ends(int err)
{
    return err == ERR_DRIVE_FENCED || err == ERR_CANCELLED || err == ERR_NO_MEMORY;
}

/* Slabs for all members that have none yet. only[m] (only may be NULL): on this drive or nowhere. Drives that
 * fail are passed over. ERR_DRIVE_NO_SPACE, ERR_NOT_ENOUGH_DRIVES: for some of them there was none. */
static may_yield int placement_take(struct placement *p, struct placed *placed, uint32_t count,
                                    struct group_drive *const *only)
{
    bool full = false, any;
    do {
        any = false;
        for (uint32_t m = 0; m < count; m++) {
            if (placed[m].done)
                continue;
            bool bound = only != NULL && only[m] != NULL;
            placed_choose(&placed[m],
                          bound ? placement_find(p, only[m]) : placement_pick(p, placed[m].index));
            any |= placed[m].candidate != NULL;
        }
        placed_alloc_all(placed, count);
        for (uint32_t m = 0; m < count; m++) {
            if (placed[m].done || placed[m].candidate == NULL)
                continue;
            if (placing_ends(placed[m].result))
                return placed[m].result;
            full |= placed[m].result == ERR_DRIVE_NO_SPACE;
        }
    } while (any);
    bool all = true;
    for (uint32_t m = 0; m < count; m++) {
        all &= placed[m].done;
        if (placed[m].done || (only != NULL && only[m] != NULL))
            continue;
        for (uint32_t i = 0; i < p->count; i++)
            full |= !p->candidates[i].taken; /* drives enough, but no slab on them */
    }
    if (all)
        return 0;
    return full ? ERR_DRIVE_NO_SPACE : ERR_NOT_ENOUGH_DRIVES;
}

static may_yield int slab_give_back(struct group_drive *d, uint32_t slab)
{
    if (slab == GROUP_SLAB_NONE)
        return 0;
    if (!group_drive_usable(d))
        return ERR_DRIVE_GONE;
    d->in_flight++;
    int err = drive_slab_free(d->session, slab);
    if (--d->in_flight == 0)
        waitq_wake_all(&d->idle);
    if (err == ERR_DRIVE_GONE || err == ERR_DRIVE_FENCED)
        group_drive_fail(d);
    return err;
}

static const struct group *set_first_system(const struct group_set *s)
{
    for (uint32_t i = 0; i < s->entry_count; i++) {
        if (s->entries[i]->group.purpose == GROUP_SYSTEM)
            return &s->entries[i]->group;
    }
    return NULL;
}

/* ---- With fewer members than it should have ---- */

static bool placed_on(const struct placed *placed, uint32_t count, const struct group_drive *d)
{
    for (uint32_t m = 0; m < count; m++) {
        if (placed[m].done && placed[m].member.drive == d)
            return true;
    }
    return false;
}

/* A drive that the volume misses: a member of some group is on it, and it is not here. */
static struct group_drive *missing_drive(const struct group_set *s, const struct placed *placed,
                                         uint32_t count)
{
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct group *g = &s->entries[i]->group;
        for (uint32_t m = 0; m < g->member_count; m++) {
            struct group_drive *d = g->members[m].drive;
            const struct drive *here = drive_set_find(s->o.drives, d->id);
            bool usable = d->session != NULL
                              ? group_drive_usable(d)
                              : !d->failed && here != NULL && drive_get_state(here) == DRIVE_OK;
            if (!usable && !placed_on(placed, count, d))
                return d;
        }
    }
    return NULL;
}

/* The members that found no place become stale ones without a slab on drives that the volume misses, so that
 * writing goes on with the copies that are left; repair gives them a place. Not for system groups, whose
 * members the record names. False: there is no such drive, or nothing is left. */
static bool members_degrade(const struct group_set *s, struct placed *placed, uint32_t count)
{
    bool any = false;
    for (uint32_t m = 0; m < count; m++)
        any |= placed[m].done;
    for (uint32_t m = 0; any && m < count; m++) {
        if (placed[m].done)
            continue;
        struct group_drive *d = missing_drive(s, placed, count);
        if (d == NULL)
            return false;
        placed[m].member = (struct group_member){.drive = d, .slab = GROUP_SLAB_NONE, .state = MEMBER_STALE};
        placed[m].done = true;
    }
    return any;
}

/* ---- Creation ---- */

static may_yield int create_members(struct placement *p, struct group_entry *e, struct placed *placed)
{
    struct group_set *s = p->set;
    struct group *g = &e->group;
    const struct group *model = g->purpose == GROUP_SYSTEM ? set_first_system(s) : NULL;
    struct group_drive *only[GROUP_MEMBERS_MAX] = {NULL};
    for (uint32_t m = 0; m < g->member_count; m++) {
        placed[m] = (struct placed){.placement = p, .index = m, .member.slab = GROUP_SLAB_NONE};
        if (model != NULL && m < model->member_count)
            only[m] = model->members[m].drive;
    }
    bool enough = p->count >= g->member_count;
    if (!enough && (g->purpose == GROUP_SYSTEM || missing_drive(s, placed, 0) == NULL))
        return ERR_NOT_ENOUGH_DRIVES;
    int err = placement_take(p, placed, g->member_count, only);
    /* What somebody else takes at this moment he may give back: alone we would perhaps find room. */
    bool full = err == ERR_DRIVE_NO_SPACE && (!enough || s->creating == 1);
    if ((full || err == ERR_NOT_ENOUGH_DRIVES) && g->purpose != GROUP_SYSTEM &&
        members_degrade(s, placed, g->member_count))
        err = 0;
    for (uint32_t m = 0; err == 0 && m < g->member_count; m++)
        g->members[m] = placed[m].member;
    return err;
}

static may_yield void members_give_back(const struct group *g, const struct placed *placed)
{
    fiber_shield();
    for (uint32_t m = 0; m < g->member_count; m++) {
        /* What cannot be given back now, the owner finds among its unknown slabs at the next open. */
        if (placed[m].fresh && slab_give_back(placed[m].member.drive, placed[m].member.slab) != 0)
            ring_event("protect: slab left", g->id, m);
    }
    fiber_unshield();
}

int group_create(struct group_set *s, uint32_t id, enum group_purpose purpose, struct protection protection,
                 uint32_t copies, struct group **ret)
{
    if ((protection.kind != PROTECT_NONE && protection.kind != PROTECT_MIRROR) || copies == 0 ||
        copies > GROUP_MEMBERS_MAX || (purpose == GROUP_SYSTEM && copies > SYSTEM_MEMBERS_MAX))
        return ERR_BAD_PROTECTION;
    struct group *known = group_find(s, id);
    if (known != NULL) {
        if (known->purpose != purpose || known->member_count != copies)
            return ERR_EXISTS;
        *ret = known;
        return 0;
    }
    struct group_entry *e = calloc(1, sizeof(*e));
    struct placed *placed = calloc(copies, sizeof(*placed));
    struct placement p = {.set = s};
    s->creating++;
    int err = e == NULL || placed == NULL ? ERR_NO_MEMORY : placement_init(&p, s, id);
    if (err == 0) {
        e->group = (struct group){.id = id,
                                  .purpose = purpose,
                                  .kind = copies > 1 ? PROTECT_MIRROR : protection.kind,
                                  .blocks = s->o.slab_blocks,
                                  .member_count = copies};
        err = create_members(&p, e, placed);
        if (err == 0)
            err = group_set_insert(s, e);
        if (err != 0)
            members_give_back(&e->group, placed);
    }
    s->creating--;
    if (err == 0)
        *ret = &e->group;
    else
        free(e);
    free(placed);
    free(p.candidates);
    return err;
}

/* ---- Groups that exist ---- */

int group_adopt(struct group_set *s, const struct group *description, struct group **ret)
{
    assert(description->member_count >= 1);
    assert(description->member_count <= GROUP_MEMBERS_MAX);
    if (description->blocks != s->o.slab_blocks)
        return ERR_VOLUME_CORRUPT; /* parity will have a multiple of it */
    for (uint32_t m = 0; m < description->member_count; m++) {
        struct group_drive *d = description->members[m].drive;
        if (group_drive_session(d) != NULL || d->failed)
            continue;
        int err = group_drive_open(s, d->id, &d);
        if (err == ERR_DRIVE_FENCED || err == ERR_CANCELLED || err == ERR_NO_MEMORY)
            return err;
    }
    struct group_entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return ERR_NO_MEMORY;
    e->group = *description;
    e->group.volume_private = NULL;
    int err = group_set_insert(s, e);
    if (err != 0) {
        free(e);
        return err;
    }
    *ret = &e->group;
    return 0;
}

int group_adopt_decoded(struct group_set *s, const struct group *decoded, const struct uuid *drives,
                        struct group **ret)
{
    struct group described = *decoded;
    for (uint32_t m = 0; m < described.member_count; m++) {
        int err = group_set_drive_add(s, drives[m], &described.members[m].drive);
        if (err != 0)
            return err;
    }
    return group_adopt(s, &described, ret);
}

int group_destroy(struct group_set *s, struct group *g)
{
    struct group_entry *e = group_entry_of(g);
    assert(e->set == s);
    int result = 0;
    for (uint32_t m = 0; m < g->member_count; m++) {
        int err = slab_give_back(g->members[m].drive, g->members[m].slab);
        if (err != 0 && err != ERR_DRIVE_GONE && err != ERR_DRIVE_BAD_SLAB && result == 0)
            result = err;
    }
    group_set_remove(s, e);
    return result;
}

/* ---- Another drive takes a member's place ---- */

/* Where the other system groups have this member already, if not where it is stale. */
static struct group_drive *system_replacement(const struct group_set *s, const struct group *g,
                                              uint32_t member)
{
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct group *other = &s->entries[i]->group;
        if (other->purpose == GROUP_SYSTEM && other != g && member < other->member_count &&
            other->members[member].drive != g->members[member].drive)
            return other->members[member].drive;
    }
    return NULL;
}

static void retired_forget(struct group_set *s, const struct group_drive *d, uint32_t group, uint32_t member)
{
    LIST_FOREACH_SAFE (&s->retired, l) {
        struct retired_slab *r = CONTAINER_OF(l, struct retired_slab, link);
        if (r->drive != d || r->group != group || r->member != member)
            continue;
        list_remove(&r->link);
        free(r);
    }
}

static may_yield int replace_place(struct group_set *s, const struct group *g, uint32_t member,
                                   struct placed *ret)
{
    struct placement p;
    int err = placement_init(&p, s, g->id);
    if (err != 0)
        return err;
    struct group_drive *only = g->purpose == GROUP_SYSTEM ? system_replacement(s, g, member) : NULL;
    bool any = false;
    for (uint32_t m = 0; m < g->member_count; m++) {
        struct candidate *c = placement_find(&p, g->members[m].drive);
        if (c == NULL)
            continue;
        /* A member without a slab may get one where it belongs. */
        if (m != member || g->members[m].slab != GROUP_SLAB_NONE)
            c->taken = true;
        else if (g->purpose == GROUP_SYSTEM && only == NULL)
            only = c->drive; /* other runs may have theirs there */
    }
    for (uint32_t i = 0; i < p.count; i++)
        any |= !p.candidates[i].taken;
    *ret = (struct placed){.placement = &p, .index = member, .member.slab = GROUP_SLAB_NONE};
    err = any ? placement_take(&p, ret, 1, &only) : ERR_NOT_ENOUGH_DRIVES;
    free(p.candidates);
    return err;
}

int group_member_replace(struct group_set *s, struct group *g, uint32_t member)
{
    struct group_entry *e = group_entry_of(g);
    assert(e->set == s);
    assert(member < g->member_count);
    while (e->writing[member] > 0) {
        int err = waitq_wait(&e->drained, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    const struct group_member old = g->members[member];
    if (old.state != MEMBER_STALE)
        return ERR_INVALID;
    struct retired_slab *retired = calloc(1, sizeof(*retired));
    if (retired == NULL)
        return ERR_NO_MEMORY;
    struct placed placed;
    int err = replace_place(s, g, member, &placed);
    const struct group_member *now = &g->members[member];
    if (err == 0 && (now->state != MEMBER_STALE || now->drive != old.drive || now->slab != old.slab)) {
        if (placed.fresh && slab_give_back(placed.member.drive, placed.member.slab) != 0)
            ring_event("protect: slab left", g->id, member);
        err = ERR_INVALID; /* somebody else settled it meanwhile */
    }
    if (err != 0) {
        free(retired);
        return err;
    }
    retired_forget(s, placed.member.drive, g->id, member);
    if (old.slab != GROUP_SLAB_NONE) {
        *retired =
            (struct retired_slab){.drive = old.drive, .group = g->id, .member = member, .slab = old.slab};
        list_append(&s->retired, &retired->link);
    } else {
        free(retired);
    }
    placed.member.state = MEMBER_FILLING;
    placed.member.stale_since_txg = 0; /* it lacks everything */
    group_member_assign(e, member, &placed.member);
    return 0;
}

int group_set_reap(struct group_set *s)
{
    struct list now;
    list_init(&now);
    for (struct list *l; (l = list_pop(&s->retired)) != NULL;)
        list_append(&now, l);
    int result = 0;
    for (struct list *l; (l = list_pop(&now)) != NULL;) {
        struct retired_slab *r = CONTAINER_OF(l, struct retired_slab, link);
        const struct group *g = group_find(s, r->group);
        bool used = g != NULL && r->member < g->member_count && g->members[r->member].drive == r->drive;
        if (!used && slab_give_back(r->drive, r->slab) == ERR_DRIVE_FENCED)
            result = ERR_DRIVE_FENCED;
        free(r);
    }
    return result;
}
