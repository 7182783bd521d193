/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slab table and the fence table: two copies each, both written before an answer.
 *
 * A block is written to copy A, durably, and then to copy B, durably. A crash in between leaves one copy
 * torn or older; the sequence number in the block says which of two whole copies is newer, and the load
 * brings the other one level. So at every moment one copy is whole and holds everything that was answered.
 *
 * Group commit: whoever comes while a write is under way waits for the lock; the first of them writes the
 * changes of all, the others find theirs durable.
 */
#include "drive/internal.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define LOAD_BLOCKS 64u /* read at once */

int drive_table_init(struct drive_table *t, struct drive_home *h, enum drive_table_kind kind)
{
    const struct drive_layout *l = &h->sb.layout;
    bool slabs = kind == DRIVE_TABLE_SLABS;
    *t = (struct drive_table){.home = h, .kind = kind, .blocks = slabs ? l->table_blocks : l->fence_blocks};
    for (int i = 0; i < 2; i++)
        t->offset[i] = slabs ? l->table_offset[i] : l->fence_offset[i];
    fmutex_init(&t->lock);
    t->sequence = calloc(t->blocks, sizeof(*t->sequence));
    t->changed = calloc(t->blocks, sizeof(*t->changed));
    t->durable = calloc(t->blocks, sizeof(*t->durable));
    t->buffer = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    if (t->sequence == NULL || t->changed == NULL || t->durable == NULL || t->buffer == NULL)
        return ERR_NO_MEMORY;
    return 0;
}

void drive_table_done(struct drive_table *t)
{
    free(t->sequence);
    free(t->changed);
    free(t->durable);
    free(t->buffer);
    *t = (struct drive_table){0};
}

void drive_table_changed(struct drive_table *t, uint32_t entry)
{
    assert(entry / DRIVE_TABLE_ENTRIES < t->blocks);
    t->changed[entry / DRIVE_TABLE_ENTRIES]++;
}

static int write_durably(struct file *f, uint64_t offset, const void *block) may_yield
{
    struct iovec iov = {(void *)(uintptr_t)block, BLOCK_SIZE};
    struct file_io io = {.file = f,
                         .op = FILE_WRITE,
                         .dsync = true,
                         .offset = offset,
                         .len = BLOCK_SIZE,
                         .iov = &iov,
                         .iov_count = 1};
    return file_do(&io);
}

/* Under the lock. */
static int write_block(struct drive_table *t, uint32_t block) may_yield
{
    struct drive_home *h = t->home;
    assert(!h->inspect);
    uint64_t covered = t->changed[block];
    memset(t->buffer, 0, sizeof(*t->buffer));
    for (uint32_t i = 0; i < DRIVE_TABLE_ENTRIES; i++)
        t->fill(h, block * DRIVE_TABLE_ENTRIES + i, t->buffer->entries + i * DRIVE_TABLE_ENTRY_SIZE);
    struct drive_table_header header = {t->kind, block, h->sb.drive_id, t->sequence[block] + 1};
    drive_table_seal(&header, t->buffer);

    for (int copy = 0; copy < 2; copy++) {
        int err = write_durably(h->file, t->offset[copy] + (uint64_t)block * BLOCK_SIZE, t->buffer);
        if (err != 0) {
            home_set_state(h, DRIVE_LOST, "writing the drive's %s table failed: %s",
                           t->kind == DRIVE_TABLE_SLABS ? "slab" : "fence", error_text(err));
            return ERR_DRIVE_GONE;
        }
    }
    t->sequence[block]++;
    assert(t->durable[block] < covered);
    t->durable[block] = covered;
    return 0;
}

int drive_table_commit(struct drive_table *t, uint32_t entry)
{
    uint32_t block = entry / DRIVE_TABLE_ENTRIES;
    assert(block < t->blocks);
    uint64_t wanted = t->changed[block];
    fmutex_lock(&t->lock);
    int err = 0;
    if (home_state(t->home) != DRIVE_OK)
        err = ERR_DRIVE_GONE;
    else if (t->durable[block] < wanted)
        err = write_block(t, block);
    fmutex_unlock(&t->lock);
    return err;
}

int drive_table_commit_all(struct drive_table *t)
{
    for (uint32_t block = 0; block < t->blocks; block++) {
        if (t->durable[block] == t->changed[block])
            continue;
        int err = drive_table_commit(t, block * DRIVE_TABLE_ENTRIES);
        if (err != 0)
            return err;
    }
    return 0;
}

/* ---- Load ---- */

/* One block of both copies: the better one's entries go to take(), and the copies are made equal. */
static int load_block(struct drive_table *t, uint32_t block, struct drive_table_disk *const copies[2],
                      int (*take)(struct drive_home *h, uint32_t entry, const void *in)) may_yield
{
    struct drive_home *h = t->home;
    uint64_t sequence[2] = {0, 0};
    int err[2];
    for (int i = 0; i < 2; i++)
        err[i] = drive_table_check(copies[i], t->kind, block, h->sb.drive_id, &sequence[i]);
    if (err[0] != 0 && err[1] != 0)
        return ERR_DRIVE_DAMAGED;
    int best = err[0] != 0 || (err[1] == 0 && sequence[1] > sequence[0]);
    for (uint32_t i = 0; i < DRIVE_TABLE_ENTRIES; i++) {
        int e = take(h, block * DRIVE_TABLE_ENTRIES + i, copies[best]->entries + i * DRIVE_TABLE_ENTRY_SIZE);
        if (e != 0)
            return e;
    }
    t->sequence[block] = sequence[best];

    int other = 1 - best;
    if (err[other] == 0 && sequence[other] == sequence[best])
        return 0;
    if (err[other] == 0)
        h->condition.blocks_behind++;
    else if (t->kind == DRIVE_TABLE_SLABS)
        h->condition.table_blocks_damaged[other]++;
    else
        h->condition.fence_blocks_damaged[other]++;
    if (h->inspect)
        return 0;
    if (err[other] != 0)
        event_raise(LOG_WARNING_, "drive-table-repaired",
                    "%s: block %u of copy %c of its %s table was damaged", h->path, block, 'A' + other,
                    t->kind == DRIVE_TABLE_SLABS ? "slab" : "fence");
    return write_durably(h->file, t->offset[other] + (uint64_t)block * BLOCK_SIZE, copies[best]);
}

int drive_table_load(struct drive_table *t, int (*take)(struct drive_home *h, uint32_t entry, const void *in))
{
    size_t max = LOAD_BLOCKS * BLOCK_SIZE;
    struct drive_table_disk *buffer = aligned_alloc(BLOCK_SIZE, 2 * max);
    if (buffer == NULL)
        return ERR_NO_MEMORY;
    int err = 0;
    for (uint32_t first = 0; first < t->blocks && err == 0; first += LOAD_BLOCKS) {
        uint32_t n = MIN(LOAD_BLOCKS, t->blocks - first);
        for (int copy = 0; copy < 2; copy++) {
            struct drive_table_disk *to = buffer + copy * LOAD_BLOCKS;
            /* An unreadable stretch counts as damaged: the other copy may have it. */
            if (file_read(t->home->file, t->offset[copy] + (uint64_t)first * BLOCK_SIZE, to,
                          (size_t)n * BLOCK_SIZE) != 0)
                memset(to, 0, (size_t)n * BLOCK_SIZE);
        }
        for (uint32_t i = 0; i < n && err == 0; i++) {
            struct drive_table_disk *const copies[2] = {buffer + i, buffer + LOAD_BLOCKS + i};
            err = load_block(t, first + i, copies, take);
        }
    }
    free(buffer);
    return err;
}
