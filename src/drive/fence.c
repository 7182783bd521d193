/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences (ARCHITECTURE.md, invariants 3 and 4).
 *
 * The drive remembers for each volume the highest epoch that it accepted, for ever. One session of a volume
 * is current, the one with the volume's newest serial; the check in local_submit() is a single comparison
 * with it. A fence does, in this order:
 *
 *   1. refuse an epoch, or a coordinator's generation, below the recorded one;
 *   2. raise the serial: from each reactor's next look on, older sessions are refused;
 *   3. make the epoch durable on both copies of the fence table;
 *   4. visit every handle on its own reactor and wait there until what older sessions had under way has
 *      completed. A request that saw the old serial was counted in its session before the visit, since a
 *      reactor runs one thing at a time: so none is missed;
 *   5. wait until the leases that these sessions of lower epochs got have run out. None is granted after 2.
 *
 * Only then the new session exists. A session that its owner closed holds no lease: the owner gave it up.
 */
#include "drive/internal.h"

#include "runtime/error.h"

#include <stdlib.h>

static void fence_fill(struct drive_home *h, uint32_t entry, void *out)
{
    if (entry < h->volumes_max && h->volumes[entry] != NULL)
        drive_fence_encode(&h->volumes[entry]->fence, out);
}

static struct drive_volume *volume_new(struct drive_home *h, uint32_t index, const struct drive_fence *f)
{
    assert(h->volumes[index] == NULL);
    struct drive_volume *v = calloc(1, sizeof(*v));
    if (v == NULL)
        return NULL;
    v->fence = *f;
    v->tag = ++h->next_tag;
    v->serial = 1;
    fmutex_init(&v->lock);
    h->volumes[index] = v;
    return v;
}

static int fence_take(struct drive_home *h, uint32_t entry, const void *in)
{
    struct drive_fence f;
    int err = drive_fence_decode(in, &f);
    if (err != 0 || f.state == DRIVE_FENCE_UNUSED)
        return err;
    if (home_volume_find(h, f.volume, NULL) != NULL)
        return ERR_DRIVE_DAMAGED;
    return volume_new(h, entry, &f) == NULL ? ERR_NO_MEMORY : 0;
}

int home_fences_load(struct drive_home *h)
{
    int err = drive_table_init(&h->fence_table, h, DRIVE_TABLE_FENCES);
    if (err != 0)
        return err;
    h->fence_table.fill = fence_fill;
    h->volumes_max = h->fence_table.blocks * DRIVE_TABLE_ENTRIES;
    h->volumes = calloc(h->volumes_max, sizeof(struct drive_volume *));
    if (h->volumes == NULL)
        return ERR_NO_MEMORY;
    return drive_table_load(&h->fence_table, fence_take);
}

void home_fences_free(struct drive_home *h)
{
    for (uint32_t i = 0; h->volumes != NULL && i < h->volumes_max; i++)
        free(h->volumes[i]);
    free(h->volumes);
    h->volumes = NULL;
    drive_table_done(&h->fence_table);
}

struct drive_volume *home_volume_find(struct drive_home *h, struct uuid volume, uint32_t *ret_index)
{
    for (uint32_t i = 0; i < h->volumes_max; i++) {
        if (h->volumes[i] == NULL || !uuid_equal(h->volumes[i]->fence.volume, volume))
            continue;
        if (ret_index != NULL)
            *ret_index = i;
        return h->volumes[i];
    }
    return NULL;
}

static void volume_pin(struct drive_volume *v)
{
    __atomic_add_fetch(&v->pins, 1, __ATOMIC_ACQ_REL);
}
void volume_unpin(struct drive_volume *v)
{
    uint32_t before = __atomic_fetch_sub(&v->pins, 1, __ATOMIC_ACQ_REL);
    assert(before > 0);
}

static bool volume_has_slabs(const struct drive_home *h, const struct drive_volume *v)
{
    for (uint32_t i = 0; i < h->sb.layout.slabs_total; i++)
        if (h->slabs[i].entry.state != DRIVE_SLAB_FREE &&
            uuid_equal(h->slabs[i].entry.volume, v->fence.volume))
            return true;
    return false;
}

/*
 * A place in the table, when all are taken: that of a purged volume. Its epoch may be forgotten only when
 * nobody can be left who holds a lower one: no slab of it is here, and it was purged in an earlier
 * incarnation of the drive, with which every session of that time ended.
 */
static bool volume_droppable(const struct drive_home *h, const struct drive_volume *v)
{
    return v->fence.state == DRIVE_FENCE_PURGED && !v->fresh &&
           __atomic_load_n(&v->pins, __ATOMIC_ACQUIRE) == 0 && !volume_has_slabs(h, v);
}

static int volume_create(struct drive_home *h, struct uuid volume, struct drive_volume **ret,
                         uint32_t *ret_index)
{
    uint32_t at = UINT32_MAX;
    for (uint32_t i = 0; i < h->volumes_max && at == UINT32_MAX; i++)
        if (h->volumes[i] == NULL)
            at = i;
    for (uint32_t i = 0; i < h->volumes_max && at == UINT32_MAX; i++)
        if (volume_droppable(h, h->volumes[i]))
            at = i;
    if (at == UINT32_MAX)
        return ERR_DRIVE_NO_SPACE;

    struct drive_volume *old = h->volumes[at];
    h->volumes[at] = NULL;
    struct drive_fence f = {.volume = volume, .state = DRIVE_FENCE_LIVE};
    struct drive_volume *v = volume_new(h, at, &f);
    if (v == NULL) {
        h->volumes[at] = old;
        return ERR_NO_MEMORY;
    }
    free(old);
    *ret = v;
    *ret_index = at;
    return 0;
}

/* ---- The fence ---- */

struct drain_call {
    struct local_drive *handle;
    const struct drive_volume *volume;
    uint64_t serial, epoch, lease_until_ns;
};

static int drain_on_handle(void *arg) may_yield
{
    struct drain_call *c = arg;
    return handle_drain(c->handle, c->volume, c->serial, c->epoch, &c->lease_until_ns);
}

/* Steps 4 and 5. */
static int drain_everywhere(struct drive_home *h, struct drive_volume *v, uint64_t serial) may_yield
{
    struct drain_call c = {.volume = v, .serial = serial, .epoch = v->fence.epoch};
    int err = 0;
    fmutex_lock(&h->handles_lock);
    LIST_FOREACH (&h->handles, it) {
        c.handle = CONTAINER_OF(it, struct local_drive, link);
        err = reactor_call(c.handle->reactor, drain_on_handle, &c);
        if (err != 0)
            break;
    }
    fmutex_unlock(&h->handles_lock);
    while (err == 0 && reactor_now_ns() < c.lease_until_ns)
        err = fiber_sleep(c.lease_until_ns - reactor_now_ns());
    return err;
}

/* An inspection fences nobody: it has the drive's lock, so no owner is there. */
static int inspect_session(struct drive_volume *v, uint64_t *ret_serial)
{
    *ret_serial = v->serial;
    return 0;
}

/* Under v->lock. */
static int fence_locked(struct drive_home *h, struct drive_volume *v, uint32_t index, uint64_t epoch,
                        uint64_t generation, uint64_t *ret_serial) may_yield
{
    if (home_state(h) != DRIVE_OK)
        return ERR_DRIVE_GONE;
    if (h->inspect)
        return inspect_session(v, ret_serial);
    if (epoch < v->fence.epoch || generation < v->fence.generation)
        return ERR_DRIVE_FENCED;
    bool raised = epoch > v->fence.epoch || generation > v->fence.generation;
    if (raised) {
        v->fence.epoch = epoch;
        v->fence.generation = generation;
        v->fence.state = DRIVE_FENCE_LIVE;
        v->fresh = true;
        drive_table_changed(&h->fence_table, index);
    }
    uint64_t serial = v->serial + 1;
    __atomic_store_n(&v->serial, serial, __ATOMIC_RELEASE);
    /* Also when this call raised nothing: an earlier one may have raised it and failed before it was
     * durable. */
    int err = drive_table_commit(&h->fence_table, index);
    if (err == 0)
        err = drain_everywhere(h, v, serial);
    if (err == 0 && home_state(h) != DRIVE_OK)
        err = ERR_DRIVE_GONE;
    if (err == 0)
        *ret_serial = serial;
    return err;
}

int home_fence(struct drive_home *h, struct uuid volume, uint64_t epoch, uint64_t generation,
               struct drive_volume **ret_volume, uint64_t *ret_serial)
{
    assert(reactor_current() == h->reactor);
    if (uuid_is_none(volume) || epoch == 0)
        return ERR_INVALID;
    /* Invariant 4: a lease that was granted before the restart. */
    while (reactor_now_ns() < h->no_fence_before_ns) {
        int err = fiber_sleep(h->no_fence_before_ns - reactor_now_ns());
        if (err != 0)
            return err;
    }
    uint32_t index = 0;
    struct drive_volume *v = home_volume_find(h, volume, &index);
    if (v == NULL) {
        int err = volume_create(h, volume, &v, &index);
        if (err != 0)
            return err;
    }
    volume_pin(v);
    fmutex_lock(&v->lock);
    int err = fence_locked(h, v, index, epoch, generation, ret_serial);
    fmutex_unlock(&v->lock);
    if (err != 0) {
        volume_unpin(v);
        return err;
    }
    *ret_volume = v;
    return 0;
}
