/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slabs of a local drive. States of an entry, and who moves it:
 *
 *                  home_slab_alloc                 home_slab_release
 *     FREE ------------------------> ALLOCATED ------------------------> FREE + UNDISCARDED
 *      ^ ^                               | home_volume_purge                  |
 *      | |  worker: discarded            v                                    | worker: discarded,
 *      | +--------------------------- DELETED                                 | or allocated again
 *      +----------------------------------------------------------------------+
 *
 * ALLOCATED is durable on both copies before the owner hears of the slab, and FREE before its space may go
 * to another volume. An UNDISCARDED slab was written already, so it may be allocated again at once.
 */
#include "drive/internal.h"

#include "runtime/error.h"

#include <stdlib.h>

static void slab_fill(struct drive_home *h, uint32_t entry, void *out)
{
    if (entry < h->sb.layout.slabs_total)
        drive_slab_encode(&h->slabs[entry].entry, out);
}

static int slab_take(struct drive_home *h, uint32_t entry, const void *in)
{
    struct drive_slab s;
    int err = drive_slab_decode(in, &s);
    if (err != 0)
        return err;
    if (entry >= h->sb.layout.slabs_total)
        return s.state == DRIVE_SLAB_FREE ? 0 : ERR_DRIVE_DAMAGED;
    h->slabs[entry].entry = s;
    if (s.state != DRIVE_SLAB_ALLOCATED)
        h->slabs_free++; /* a deleted one is so in a moment, and an allocation waits for it */
    if (s.state != DRIVE_SLAB_ALLOCATED)
        return 0;
    /* The fence is written before the first slab, so an owner without one is damage. */
    const struct drive_volume *v = home_volume_find(h, s.volume, NULL);
    if (v == NULL)
        return ERR_DRIVE_DAMAGED;
    h->owner[entry] = v->tag;
    h->alloc_seen = true;
    return 0;
}

int home_slabs_load(struct drive_home *h)
{
    int err = drive_table_init(&h->slab_table, h, DRIVE_TABLE_SLABS);
    if (err != 0)
        return err;
    h->slab_table.fill = slab_fill;
    h->slabs = calloc(h->sb.layout.slabs_total, sizeof(*h->slabs));
    h->owner = calloc(h->sb.layout.slabs_total, sizeof(*h->owner));
    if (h->slabs == NULL || h->owner == NULL)
        return ERR_NO_MEMORY;
    return drive_table_load(&h->slab_table, slab_take);
}

void home_slabs_free(struct drive_home *h)
{
    free(h->slabs);
    free(h->owner);
    h->slabs = NULL;
    h->owner = NULL;
    drive_table_done(&h->slab_table);
}

/* ---- Allocation ---- */

static uint32_t slab_find(const struct drive_home *h, const struct drive_session *s, uint32_t group,
                          uint32_t member)
{
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++) {
        const struct drive_slab *e = &h->slabs[i].entry;
        if (e->state == DRIVE_SLAB_ALLOCATED && e->group == group && e->member == member &&
            uuid_equal(e->volume, s->volume) && h->owner[i] != 0)
            return i;
    }
    return UINT32_MAX;
}

/* A free one, whose space was written already if there is such a one. */
static uint32_t slab_choose(const struct drive_home *h)
{
    uint32_t raw = UINT32_MAX;
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++) {
        const struct drive_slab_live *s = &h->slabs[i];
        if (s->entry.state != DRIVE_SLAB_FREE || s->busy)
            continue;
        if ((s->entry.flags & (DRIVE_SLAB_PREPARED | DRIVE_SLAB_UNDISCARDED)) != 0 || !h->needs_prepare)
            return i;
        raw = MIN(raw, i);
    }
    return raw;
}

/* Some slab is on its way to be free: discarded, or written ahead, just now. */
static bool slab_coming(const struct drive_home *h)
{
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++)
        if (h->slabs[i].entry.state == DRIVE_SLAB_DELETED ||
            (h->slabs[i].entry.state == DRIVE_SLAB_FREE && h->slabs[i].busy))
            return true;
    return false;
}

static int session_check(const struct drive_home *h, const struct local_session *s)
{
    if (home_state(h) != DRIVE_OK)
        return ERR_DRIVE_GONE;
    return session_current(s->volume, s->serial) ? 0 : ERR_DRIVE_FENCED;
}

/* Under alloc_lock: a free slab whose space is written. */
static int slab_get_ready(struct drive_home *h, const struct local_session *s, uint32_t *ret_slab) may_yield
{
    uint32_t slab = slab_choose(h);
    while (slab == UINT32_MAX) {
        if (!slab_coming(h))
            return ERR_DRIVE_NO_SPACE;
        int err = waitq_wait(&h->settled, DEADLINE_NEVER);
        if (err == 0)
            err = session_check(h, s);
        if (err != 0)
            return err;
        slab = slab_choose(h);
    }
    if (h->needs_prepare &&
        (h->slabs[slab].entry.flags & (DRIVE_SLAB_PREPARED | DRIVE_SLAB_UNDISCARDED)) == 0) {
        h->prepare_ahead = MIN(h->prepare_ahead * 2, 64u); /* the writers are faster than the worker */
        int err = home_slab_prepare(h, slab);
        if (err == 0)
            err = session_check(h, s);
        if (err != 0)
            return err;
    }
    *ret_slab = slab;
    return 0;
}

/* Under alloc_lock: finds or takes one, in memory. */
static int slab_take_free(struct drive_home *h, const struct local_session *s, uint32_t group,
                          uint32_t member, uint32_t *ret_slab) may_yield
{
    int err = session_check(h, s);
    if (err != 0)
        return err;
    uint32_t slab = slab_find(h, &s->base, group, member);
    if (slab != UINT32_MAX) {
        *ret_slab = slab;
        return 0;
    }
    err = h->inspect ? ERR_DRIVE_READ_ONLY : slab_get_ready(h, s, &slab);
    if (err != 0)
        return err;
    struct drive_slab_live *live = &h->slabs[slab];
    assert(live->entry.state == DRIVE_SLAB_FREE && !live->busy);
    assert(h->slabs_free > 0);
    live->entry = (struct drive_slab){.volume = s->base.volume,
                                      .epoch = s->base.epoch,
                                      .group = group,
                                      .member = member,
                                      .state = DRIVE_SLAB_ALLOCATED,
                                      .flags = DRIVE_SLAB_PREPARED};
    h->slabs_free--;
    drive_table_changed(&h->slab_table, slab);
    __atomic_store_n(&h->owner[slab], s->volume->tag, __ATOMIC_RELEASE);
    *ret_slab = slab;
    return 0;
}

int home_slab_alloc(struct drive_home *h, const struct local_session *s, uint32_t group, uint32_t member,
                    uint32_t *ret_slab)
{
    assert(reactor_current() == h->reactor);
    uint32_t slab = 0;
    h->alloc_seen = true;
    fmutex_lock(&h->alloc_lock);
    int err = slab_take_free(h, s, group, member, &slab);
    fmutex_unlock(&h->alloc_lock);
    waitq_wake_all(&h->work);
    /* Also for one that was there: its first allocation may still be on its way to the drive. */
    if (err == 0)
        err = drive_table_commit(&h->slab_table, slab);
    if (err == 0)
        *ret_slab = slab;
    return err;
}

/* ---- Giving back ---- */

int home_slab_revoke(struct drive_home *h, const struct local_session *s, uint32_t slab)
{
    assert(reactor_current() == h->reactor);
    int err = h->inspect ? ERR_DRIVE_READ_ONLY : session_check(h, s);
    if (err != 0)
        return err;
    if (slab >= h->sb.layout.slabs_total || h->owner[slab] != s->volume->tag)
        return ERR_DRIVE_BAD_SLAB;
    assert(h->slabs[slab].entry.state == DRIVE_SLAB_ALLOCATED);
    h->slabs[slab].busy = true;
    __atomic_store_n(&h->owner[slab], 0, __ATOMIC_RELEASE);
    return 0;
}

int home_slab_release(struct drive_home *h, uint32_t slab)
{
    struct drive_slab_live *live = &h->slabs[slab];
    assert(live->busy && live->entry.state == DRIVE_SLAB_ALLOCATED && h->owner[slab] == 0);
    live->entry = (struct drive_slab){.flags = DRIVE_SLAB_UNDISCARDED};
    drive_table_changed(&h->slab_table, slab);
    int err = drive_table_commit(&h->slab_table, slab);
    live->busy = false;
    h->slabs_free++;
    waitq_wake_all(&h->work);
    waitq_wake_all(&h->settled);
    return err;
}

int home_slab_list(struct drive_home *h, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
{
    uint32_t total = h->sb.layout.slabs_total;
    uint32_t count = 0;
    struct slab_entry *list = malloc((size_t)total * sizeof(*list));
    if (list == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < total; i++) {
        const struct drive_slab *e = &h->slabs[i].entry;
        if (e->state == DRIVE_SLAB_FREE || (!uuid_is_none(volume) && !uuid_equal(e->volume, volume)))
            continue;
        list[count++] = (struct slab_entry){.slab = i,
                                            .volume = e->volume,
                                            .group = e->group,
                                            .member = e->member,
                                            .epoch = e->epoch,
                                            .deleted = e->state == DRIVE_SLAB_DELETED};
    }
    *ret = list;
    *ret_count = count;
    return 0;
}

int home_volume_purge(struct drive_home *h, struct uuid volume, uint64_t epoch)
{
    assert(reactor_current() == h->reactor);
    if (h->inspect)
        return ERR_DRIVE_READ_ONLY;
    const struct drive_volume *known = home_volume_find(h, volume, NULL);
    uint64_t generation = known == NULL ? 0 : known->fence.generation;
    struct drive_volume *v;
    uint64_t serial;
    int err = home_fence(h, volume, epoch, generation, &v, &serial);
    if (err != 0)
        return err;

    uint32_t purged = 0;
    /* No session is current and nothing of the volume is under way: the fence saw to both. */
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++) {
        struct drive_slab_live *live = &h->slabs[i];
        if (h->owner[i] != v->tag)
            continue;
        assert(live->entry.state == DRIVE_SLAB_ALLOCATED && !live->busy);
        __atomic_store_n(&h->owner[i], 0, __ATOMIC_RELEASE);
        live->busy = true;
        purged++;
        live->entry.state = DRIVE_SLAB_DELETED;
        live->entry.flags = DRIVE_SLAB_UNDISCARDED;
        drive_table_changed(&h->slab_table, i);
    }
    err = drive_table_commit_all(&h->slab_table);
    h->slabs_free += purged;
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++)
        if (h->slabs[i].entry.state == DRIVE_SLAB_DELETED && uuid_equal(h->slabs[i].entry.volume, volume))
            h->slabs[i].busy = false;
    uint32_t index = 0;
    if (err == 0 && session_current(v, serial) && home_volume_find(h, volume, &index) == v) {
        v->fence.state = DRIVE_FENCE_PURGED;
        v->fresh = true;
        drive_table_changed(&h->fence_table, index);
        err = drive_table_commit(&h->fence_table, index);
    }
    volume_unpin(v);
    waitq_wake_all(&h->work);
    return err;
}
