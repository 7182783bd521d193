/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not acknowledged yet, and what is known lost.
 *
 * A read returns only what every in-sync member has (invariant 4): a reader that may have seen an
 * unacknowledged write waits for it before it replies. The list is as long as the clients' queues: scanning
 * it is cheaper than any index over it.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

static bool overlaps(uint64_t a, uint64_t an, uint64_t b, uint64_t bn)
{
    return a < b + bn && b < a + an;
}

void inflight_add(struct volume *v, struct inflight *f, uint64_t object, uint64_t block, uint64_t blocks,
                  struct log_batch *b)
{
    *f = (struct inflight){.object = object, .block = block, .blocks = blocks, .batch = b};
    log_batch_get(b);
    list_append(&v->inflight, &f->link);
}

void inflight_remove(struct inflight *f)
{
    list_remove(&f->link);
    log_batch_put(f->batch);
}

int inflight_wait(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    struct log_batch *last = NULL;

    /* Batches are acknowledged in order: the youngest of those that overlap is enough. */
    LIST_FOREACH (&v->inflight, it) {
        struct inflight *f = CONTAINER_OF(it, struct inflight, link);
        if (f->object == object && overlaps(f->block, f->blocks, block, blocks) &&
            (!last || f->batch->sequence > last->sequence))
            last = f->batch;
    }
    if (!last || last->acknowledged)
        return v->state;
    log_batch_get(last);
    int r = log_wait(v, last, false);
    log_batch_put(last);
    return r == v->state ? r : 0; /* that its data is bad is the reading's to find out */
}

/* ---- Damage: ranges that gave EIO, so that status can name them ---- */

void damage_add(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    uint64_t from = block * BLOCK_SIZE, to = from + blocks * BLOCK_SIZE;

    damage_remove(v, object, block, blocks);
    for (uint32_t i = 0; i < v->damage_count; i++) { /* joins a neighbour */
        struct volume_damage *d = &v->damage[i];
        if (d->object != object || (d->offset_bytes != to && d->offset_bytes + d->len_bytes != from))
            continue;
        from = MIN(from, d->offset_bytes);
        to = MAX(to, d->offset_bytes + d->len_bytes);
        *d = v->damage[--v->damage_count];
        i = UINT32_MAX; /* once more from the first: it may join two */
    }
    if (v->damage_count == DAMAGE_MAX) {
        v->damage_dropped++;
        return;
    }
    uint32_t at = v->damage_count++;
    while (at > 0 && (v->damage[at - 1].object > object ||
                      (v->damage[at - 1].object == object && v->damage[at - 1].offset_bytes > from))) {
        v->damage[at] = v->damage[at - 1];
        at--;
    }
    v->damage[at] = (struct volume_damage){.object = object, .offset_bytes = from, .len_bytes = to - from};
}

void damage_remove(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    uint64_t from = block * BLOCK_SIZE, to = from + blocks * BLOCK_SIZE;

    for (uint32_t i = 0; i < v->damage_count; i++) {
        struct volume_damage *d = &v->damage[i];
        uint64_t end = d->offset_bytes + d->len_bytes;
        if (d->object != object || d->offset_bytes >= to || end <= from)
            continue;
        if (d->offset_bytes < from && end > to && v->damage_count < DAMAGE_MAX) { /* the middle goes */
            memmove(d + 2, d + 1, (v->damage_count - i - 1) * sizeof(*d));
            d[1] = (struct volume_damage){.object = object, .offset_bytes = to, .len_bytes = end - to};
            d->len_bytes = from - d->offset_bytes;
            v->damage_count++;
            i++;
        } else if (d->offset_bytes < from) {
            d->len_bytes = from - d->offset_bytes;
        } else if (end > to) {
            d->offset_bytes = to;
            d->len_bytes = end - to;
        } else {
            memmove(d, d + 1, (v->damage_count - i - 1) * sizeof(*d));
            v->damage_count--;
            i--;
        }
    }
}
