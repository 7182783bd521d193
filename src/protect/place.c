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
    }
    return err;
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
    return a->slabs_free != b->slabs_free ? a->slabs_free > b->slabs_free : a->tie < b->tie;
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
    struct group_member member;
    bool fresh; /* allocated by this call: may be given back on failure */
};

/* A slab for one member. only: on this drive or nowhere. Drives that fail are passed over. */
static may_yield int placement_take(struct placement *p, uint32_t member, struct group_drive *only,
                                    struct placed *ret)
{
    bool full = false;
    for (;;) {
        struct candidate *c = only != NULL ? placement_find(p, only) : placement_pick(p, member);
        if (c == NULL)
            break;
        c->taken = true;
        struct group_drive *d = c->drive;
        int err = group_drive_open(p->set, d->id, &d);
        uint32_t slab = 0;
        if (err == 0) {
            d->in_flight++;
            err = drive_slab_alloc(d->session, p->group, member, &slab);
            if (--d->in_flight == 0)
                waitq_wake_all(&d->idle);
        }
        if (err == 0) {
            *ret = (struct placed){
                .member = {.drive = d, .slab = slab, .incarnation = group_drive_incarnation(d)},
                .fresh = !leftover_has(d, p->group, member)};
            return 0;
        }
        if (err == ERR_DRIVE_FENCED || err == ERR_CANCELLED || err == ERR_NO_MEMORY)
            return err;
        full |= err == ERR_DRIVE_NO_SPACE;
        if (err == ERR_DRIVE_GONE && d->session != NULL)
            group_drive_fail(d);
    }
    for (uint32_t i = 0; only == NULL && i < p->count; i++)
        full |= !p->candidates[i].taken; /* drives enough, but no slab on them */
    return full ? ERR_DRIVE_NO_SPACE : ERR_NOT_ENOUGH_DRIVES;
}

static may_yield int slab_give_back(struct group_drive *d, uint32_t slab)
{
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

/* Fills e->group.members; placed[] tells which slabs to give back if something fails later. */
static may_yield int create_members(struct placement *p, struct group_entry *e, struct placed *placed,
                                    uint32_t *ret_placed)
{
    const struct group *model = e->group.purpose == GROUP_SYSTEM ? set_first_system(p->set) : NULL;
    *ret_placed = 0;
    for (uint32_t m = 0; m < e->group.member_count; m++) {
        bool bound = model != NULL && m < model->member_count;
        int err = placement_take(p, m, bound ? model->members[m].drive : NULL, &placed[m]);
        if (err != 0)
            return err;
        e->group.members[m] = placed[m].member;
        *ret_placed = m + 1;
    }
    return 0;
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
    uint32_t placed_count = 0;
    int err = e == NULL || placed == NULL ? ERR_NO_MEMORY : placement_init(&p, s, id);
    if (err == 0 && p.count < copies)
        err = ERR_NOT_ENOUGH_DRIVES;
    if (err == 0) {
        e->group = (struct group){.id = id,
                                  .purpose = purpose,
                                  .kind = copies > 1 ? PROTECT_MIRROR : protection.kind,
                                  .blocks = s->o.slab_blocks,
                                  .member_count = copies};
        err = create_members(&p, e, placed, &placed_count);
    }
    if (err == 0)
        err = group_set_insert(s, e);
    if (err == 0) {
        *ret = &e->group;
    } else {
        fiber_shield();
        for (uint32_t m = 0; m < placed_count; m++) {
            /* What cannot be given back now, the owner finds among its unknown slabs at the next open. */
            if (placed[m].fresh && slab_give_back(placed[m].member.drive, placed[m].member.slab) != 0)
                ring_event("protect: slab left", id, m);
        }
        fiber_unshield();
        free(e);
    }
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
    for (uint32_t m = 0; m < g->member_count; m++) {
        struct candidate *c = placement_find(&p, g->members[m].drive);
        if (c != NULL)
            c->taken = true;
    }
    struct group_drive *only = g->purpose == GROUP_SYSTEM ? system_replacement(s, g, member) : NULL;
    bool any = false;
    for (uint32_t i = 0; i < p.count; i++)
        any |= !p.candidates[i].taken;
    err = any ? placement_take(&p, member, only, ret) : ERR_NOT_ENOUGH_DRIVES;
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
    if (err == 0 && (g->members[member].state != MEMBER_STALE || g->members[member].drive != old.drive)) {
        if (placed.fresh && slab_give_back(placed.member.drive, placed.member.slab) != 0)
            ring_event("protect: slab left", g->id, member);
        err = ERR_INVALID; /* somebody else settled it meanwhile */
    }
    if (err != 0) {
        free(retired);
        return err;
    }
    retired_forget(s, placed.member.drive, g->id, member);
    *retired = (struct retired_slab){.drive = old.drive, .group = g->id, .member = member, .slab = old.slab};
    list_append(&s->retired, &retired->link);
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
