/* SPDX-License-Identifier: Apache-2.0 */
/* Roots: a ring in system group 0. A new root never overwrites the one before it, so a torn write costs at
 * most itself. */
#include "runtime/checksum.h"
#include "runtime/log.h"
#include "volume/volume_internal.h"

static uint32_t root_crc(const struct disk_root *r)
{
    return crc32c(crc32c(0, r->volume.b, sizeof(r->volume.b)), r, offsetof(struct disk_root, crc));
}

void root_seal(struct disk_root *r)
{
    r->crc = le32_make(root_crc(r));
}

int root_check(const struct disk_root *r, struct uuid volume)
{
    if (le64_get(r->magic) != ROOT_MAGIC || le32_get(r->crc) != root_crc(r) || !uuid_equal(r->volume, volume))
        return ERR_VOLUME_CORRUPT;
    if (le32_get(r->version) != VOLUME_FORMAT_VERSION || le32_get(r->block_size) != BLOCK_SIZE)
        return ERR_VOLUME_CORRUPT;
    if (le64_get(r->features_incompat) & ~VOLUME_FEATURES_INCOMPAT)
        return ERR_UNSUPPORTED;
    return 0;
}

int root_write(struct volume *v, uint64_t txg, const struct disk_node_pointer *pool, uint64_t log_sequence,
               uint64_t log_block, uint64_t log_oldest, uint64_t log_epoch, bool clean)
{
    struct page *page;
    int r = page_alloc_wait(1, DEADLINE_NEVER, &page);

    if (r)
        return r;
    struct disk_root *root = (struct disk_root *)page->data;
    *root = (struct disk_root){.magic = le64_make(ROOT_MAGIC),
                               .version = le32_make(VOLUME_FORMAT_VERSION),
                               .block_size = le32_make(BLOCK_SIZE),
                               .volume = v->record.id,
                               .epoch = le64_make(v->record.epoch),
                               .txg = le64_make(txg),
                               .written_ns = le64_make(world_wall_ns()),
                               .pool = *pool,
                               .log_sequence = le64_make(log_sequence),
                               .log_block = le64_make(log_block),
                               .log_oldest_block = le64_make(log_oldest),
                               .losses = le64_make(v->losses),
                               .system_runs = le32_make(v->record.system_runs),
                               .slab_blocks = le32_make(v->record.slab_blocks),
                               .log_epoch = le64_make(log_epoch),
                               .flags = le64_make(clean ? ROOT_CLEAN : 0)};
    root_seal(root);
    struct iovec iov = {.iov_base = page->data, .iov_len = BLOCK_SIZE};
    bool failed = true;
    while (!r && failed) { /* every in-sync member has it durably, or is out of the set */
        struct group_write w = {.group = v->system[0],
                                .block = (uint32_t)(txg % ROOT_RING_BLOCKS),
                                .blocks = 1,
                                .iov = &iov,
                                .iov_count = 1,
                                .page = page};
        r = group_write_wait(&w);
        if (!r)
            r = group_set_flush(v->groups, &failed);
        if (r == ERR_GROUP_DEGRADED_BELOW) { /* of some data; the root itself if no drive is left to settle */
            log_flush_lost(v);
            r = 0;
        }
        failed |= w.failed;
        if (!r && failed) {
            membership_kick(v);
            r = membership_settle(v);
        }
    }
    page_put(page, 1);
    return r;
}

/* Has the member this root? What is newer in its place is as good. */
static bool root_holds(const struct volume *v, const struct disk_root *root, uint64_t txg)
{
    return !root_check(root, v->record.id) && le64_get(root->txg) >= txg &&
           le64_get(root->txg) % ROOT_RING_BLOCKS == txg % ROOT_RING_BLOCKS;
}

/* One member's copy of a root that was written since opening. */
static may_yield bool root_copy_good(struct volume *v, uint32_t member, uint64_t txg, struct page *page)
{
    struct group *g = v->system[0];
    struct iovec iov = {.iov_base = page->data, .iov_len = BLOCK_SIZE};
    struct group_read read = {.group = g,
                              .block = (uint32_t)(txg % ROOT_RING_BLOCKS),
                              .blocks = 1,
                              .iov = &iov,
                              .iov_count = 1,
                              .page = page,
                              .verify = VERIFY_NONE,
                              .only = (int)member};

    if (g->members[member].state != MEMBER_CURRENT || !group_drive_usable(g->members[member].drive))
        return true; /* nothing is expected of it */
    if (!group_read(&read) && root_holds(v, (const struct disk_root *)page->data, txg))
        return true;
    /* Lost meanwhile: that is told elsewhere. */
    if (g->members[member].state != MEMBER_CURRENT || !group_drive_usable(g->members[member].drive))
        return true;
    char id[UUID_TEXT_SIZE];
    uuid_format(group_drive_id(g->members[member].drive), id);
    event_raise(LOG_WARNING_, "root-damaged",
                "volume %s: drive %s: the root of txg %llu is damaged; new ones follow", v->record.name, id,
                (unsigned long long)txg);
    return false;
}

int root_scrub(struct volume *v, uint32_t *ret_bad)
{
    struct page *page;
    uint32_t bad = 0;
    int r = page_alloc_wait(1, DEADLINE_NEVER, &page);

    if (r)
        return r;
    /* The newest, which a start needs, and the one before, which it may fall back to. */
    for (uint64_t i = 0; i < MIN(v->commits, 2u); i++)
        for (uint32_t m = 0; m < v->system[0]->member_count; m++)
            bad += !root_copy_good(v, m, v->committed - i, page);
    page_put(page, 1);
    *ret_bad = bad;
    return 0;
}

int root_find(struct volume *v, struct disk_root *ret, uint64_t *ret_txg_max)
{
    struct page *pages;
    bool found = false, any = false;
    int r = page_alloc_wait(ROOT_RING_BLOCKS, DEADLINE_NEVER, &pages), last = ERR_VOLUME_NO_ROOT;

    if (r)
        return r;
    *ret_txg_max = 0;
    struct group *g = v->system[0];
    for (uint32_t m = 0; m < g->member_count; m++) {
        struct iovec iov = {.iov_base = pages->data, .iov_len = ROOT_RING_BLOCKS * BLOCK_SIZE};
        struct group_read read = {.group = g,
                                  .blocks = ROOT_RING_BLOCKS,
                                  .iov = &iov,
                                  .iov_count = 1,
                                  .page = pages,
                                  .verify = VERIFY_NONE,
                                  .only = (int)m};
        if (g->members[m].state != MEMBER_CURRENT || !group_drive_usable(g->members[m].drive))
            continue;
        r = group_read(&read);
        if (r) {
            last = r;
            continue;
        }
        any = true;
        for (uint32_t i = 0; i < ROOT_RING_BLOCKS; i++) {
            const struct disk_root *root = (const struct disk_root *)(pages->data + (size_t)i * BLOCK_SIZE);
            if (root_check(root, v->record.id) || le64_get(root->epoch) > v->record.epoch ||
                le64_get(root->txg) % ROOT_RING_BLOCKS != i)
                continue;
            *ret_txg_max = MAX(*ret_txg_max, le64_get(root->txg));
            if (!found || le64_get(root->epoch) > le64_get(ret->epoch) ||
                (le64_get(root->epoch) == le64_get(ret->epoch) && le64_get(root->txg) > le64_get(ret->txg))) {
                *ret = *root;
                found = true;
            }
        }
    }
    page_put(pages, ROOT_RING_BLOCKS);
    return found ? 0 : any ? ERR_VOLUME_NO_ROOT : last;
}
