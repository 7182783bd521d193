/* SPDX-License-Identifier: Apache-2.0 */
/* What people and tests see of a volume. */
#include "volume/volume_internal.h"

#define SPACE_DRIVES_MAX 256u /* more are not counted */

void volume_get_status(struct volume *v, struct volume_status *ret)
{
    struct volume_status s = {.state = v->state,
                              .read_only = v->read_only,
                              .txg = v->txg,
                              .size_bytes = v->size_bytes,
                              .data_blocks = v->data_blocks,
                              .tree_blocks = v->tree_nodes * NODE_BLOCKS,
                              .redundancy_left = INT32_MAX,
                              .healthy = true,
                              .scrub = v->scrub,
                              .repair = v->repair,
                              .damage_count = v->damage_count + v->damage_dropped,
                              .counters = *group_set_counters(v->groups),
                              .log_batches = v->log.batches,
                              .log_records = v->log.records,
                              .commits = v->commits,
                              .log_bytes_used = (v->log.head - v->log.tail) * BLOCK_SIZE,
                              .log_bytes_total = v->log.blocks * BLOCK_SIZE,
                              .reads = v->reads,
                              .writes = v->writes,
                              .read_blocks = v->read_blocks,
                              .write_blocks = v->write_blocks,
                              .flushes = v->flushes};

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        s.slabs += g->member_count;
        s.redundancy_left = MIN(s.redundancy_left, group_redundancy_left(g));
        s.healthy &= group_healthy(g);
        for (uint32_t i = 0; i < g->member_count; i++)
            s.stale_members += g->members[i].state != MEMBER_CURRENT;
    }
    s.raw_bytes = s.slabs * v->record.slab_blocks * BLOCK_SIZE;
    s.healthy &= s.damage_count == 0 && !s.state;
    memcpy(s.damage, v->damage, MIN(v->damage_count, ARRAY_SIZE(s.damage)) * sizeof(s.damage[0]));
    *ret = s;
}

/* How many groups more could be made: a group takes a slab on each of so many drives. */
static uint64_t groups_possible(const uint32_t *slabs_free, uint32_t drives, uint32_t copies)
{
    uint64_t low = 0, high = 0;

    for (uint32_t i = 0; i < drives; i++)
        high += slabs_free[i];
    high /= copies;
    while (low < high) {
        uint64_t mid = low + (high - low + 1) / 2, usable = 0;
        for (uint32_t i = 0; i < drives; i++)
            usable += MIN(slabs_free[i], mid);
        if (usable >= mid * copies)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

void volume_space(struct volume *v, uint64_t *ret_free_blocks, uint64_t *ret_total_blocks)
{
    const struct drive_set *set = v->env.drives;
    uint32_t slabs_free[SPACE_DRIVES_MAX], n = 0;
    uint64_t free_blocks = v->space.total_free[GROUP_DATA], used = 0;

    for (uint32_t i = 0; i < MIN(set->count, SPACE_DRIVES_MAX); i++) {
        struct drive_info info;
        if (drive_get_info(set->drives[i], &info) == 0 && info.state == DRIVE_OK)
            slabs_free[n++] = info.slabs_free;
    }
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        const struct space_group *sg = g->volume_private;
        if (!sg || g->purpose != GROUP_DATA)
            continue;
        free_blocks += sg->waiting;
        used += sg->blocks - sg->free - sg->waiting; /* what clones share counts once */
    }
    /* What the tree takes of the groups to come: its reserve (space.c), nodes to keep account of each group,
     * and 16 KiB of items for a MiB of data. */
    const uint64_t slab = v->record.slab_blocks, reserve = 128 * NODE_BLOCKS,
                   tree_free = v->space.total_free[GROUP_TREE];
    uint64_t room = groups_possible(slabs_free, n, v->record.protection.spare + 1u) * slab;
    room -= MIN(room, reserve - MIN(reserve, tree_free));
    free_blocks +=
        room / (slab + slab / 64 + DIV_ROUND_UP(slab, SPACE_CHUNK_BLOCKS) * NODE_BLOCKS / 2) * slab;
    *ret_free_blocks = free_blocks;
    *ret_total_blocks = free_blocks + used;
}

uint32_t volume_get_damage(const struct volume *v, struct volume_damage *out, uint32_t max)
{
    uint32_t n = MIN(v->damage_count, max);

    memcpy(out, v->damage, n * sizeof(*out));
    return n;
}

void volume_check(struct volume *v)
{
    const struct space *s = &v->space;
    uint64_t ready[3] = {0}, total[3] = {0};

    assert(v->committed < v->txg && v->committing < v->txg);
    assert(v->log.tail <= v->log.head && v->log.head - v->log.tail <= v->log.blocks);
    assert(v->log.durable <= v->log.written && v->log.acknowledged <= v->log.written);
    assert(v->log.written <= v->log.next_sequence);
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        const struct space_group *sg = g->volume_private;
        if (!sg)
            continue;
        assert(sg->free + sg->waiting <= sg->blocks);
        if (sg->active)
            ready[g->purpose] += sg->free;
        if (!sg->retired_txg)
            total[g->purpose] += sg->free;
    }
    for (uint32_t p = GROUP_TREE; p <= GROUP_DATA; p++) {
        assert(ready[p] == s->ready[p]);
        assert(total[p] == s->total_free[p]);
    }
    tree_check_memory(&v->head);
    if (!v->committing)
        tree_check_memory(&v->pool);
}
