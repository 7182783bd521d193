/* SPDX-License-Identifier: Apache-2.0 */
/* ashlar inspect DRIVE: superblocks, slab table, fences of one drive, whatever state they are in. */
#include "cli/offline_inspect.h"

#include "drive/codec.h"
#include "runtime/error.h"

#include <stdlib.h>

struct drive_look {
    struct offline *o;
    struct file *file;
    uint64_t size_bytes;
    struct drive_superblock sb[2];
    int err[2];
    const struct drive_superblock *best; /* NULL: neither can be believed */
};

static json_t *superblock_json(const struct drive_superblock *sb, int err, uint64_t offset)
{
    json_t *j =
        json_pack("{sI ss}", "offset", (json_int_t)offset, "state", err == 0 ? "whole" : error_text(err));
    if (err != 0 || j == NULL)
        return j;
    json_object_set_new(j, "pool", inspect_uuid(sb->pool_id));
    json_object_set_new(j, "drive", inspect_uuid(sb->drive_id));
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"generation", sb->generation},
                   {"incarnation", sb->incarnation},
                   {"created_ns", sb->created_ns},
                   {"size_bytes", sb->size_bytes},
                   {"slab_bytes", sb->slab_bytes},
                   {"slabs_total", sb->layout.slabs_total},
                   {"slab_offset", sb->layout.slab_offset},
                   {"table_blocks", sb->layout.table_blocks},
                   {"fence_blocks", sb->layout.fence_blocks},
                   {"table_offset_a", sb->layout.table_offset[0]},
                   {"table_offset_b", sb->layout.table_offset[1]},
                   {"fence_offset_a", sb->layout.fence_offset[0]},
                   {"fence_offset_b", sb->layout.fence_offset[1]},
                   {"features_incompat", sb->features_incompat},
                   {"features_ro_compat", sb->features_ro_compat},
                   {"features_compat", sb->features_compat}};
    for (uint32_t i = 0; i < ARRAY_SIZE(numbers); i++)
        json_object_set_new(j, numbers[i].name, inspect_number(numbers[i].value));
    json_object_set_new(j, "closed_in_order", json_boolean(sb->clean));
    return j;
}

/* Copy B is where copy A says the end was, else at the end of the file. */
static json_t *superblocks(struct drive_look *l, void *block) may_yield
{
    json_t *list = json_array();
    uint64_t offset = 0;
    for (int i = 0; i < 2; i++) {
        l->err[i] = file_read(l->file, offset, block, BLOCK_SIZE);
        if (l->err[i] == 0)
            l->err[i] = drive_superblock_decode(block, &l->sb[i]);
        json_array_append_new(list, superblock_json(&l->sb[i], l->err[i], offset));
        uint64_t size =
            l->err[0] == 0 && l->sb[0].size_bytes <= l->size_bytes ? l->sb[0].size_bytes : l->size_bytes;
        offset = ALIGN_DOWN(size, (uint64_t)BLOCK_SIZE) - BLOCK_SIZE;
    }
    if (l->err[0] == 0 || l->err[1] == 0)
        l->best = l->err[0] != 0 || (l->err[1] == 0 && l->sb[1].generation > l->sb[0].generation) ? &l->sb[1]
                                                                                                  : &l->sb[0];
    return list;
}

static void slab_row(json_t *list, uint32_t index, const void *entry)
{
    static const char *const states[] = {"free", "allocated", "deleted"};
    struct drive_slab s;
    json_t *j = NULL;
    if (drive_slab_decode(entry, &s) != 0) {
        j = json_pack("{sI ss}", "slab", (json_int_t)index, "state", "damaged");
    } else if (s.state != DRIVE_SLAB_FREE && s.state < ARRAY_SIZE(states)) {
        j = json_pack("{sI ss so sI sI sI sb}", "slab", (json_int_t)index, "state", states[s.state], "volume",
                      inspect_uuid(s.volume), "group", (json_int_t)s.group, "member", (json_int_t)s.member,
                      "epoch", (json_int_t)s.epoch, "prepared", (int)((s.flags & DRIVE_SLAB_PREPARED) != 0));
    }
    if (j != NULL)
        json_array_append_new(list, j);
}

static void fence_row(json_t *list, uint32_t index, const void *entry)
{
    static const char *const states[] = {"unused", "live", "purged"};
    struct drive_fence f;
    json_t *j = NULL;
    if (drive_fence_decode(entry, &f) != 0)
        j = json_pack("{sI ss}", "entry", (json_int_t)index, "state", "damaged");
    else if (f.state != DRIVE_FENCE_UNUSED && f.state < ARRAY_SIZE(states))
        j = json_pack("{sI ss so sI sI}", "entry", (json_int_t)index, "state", states[f.state], "volume",
                      inspect_uuid(f.volume), "epoch", (json_int_t)f.epoch, "generation",
                      (json_int_t)f.generation);
    if (j != NULL)
        json_array_append_new(list, j);
}

/* Rows of the better copy of each block; and which blocks of which copy are not whole. */
static json_t *table(struct drive_look *l, enum drive_table_kind kind, struct drive_table_disk *blocks)
    may_yield
{
    const struct drive_layout *at = &l->best->layout;
    bool slabs = kind == DRIVE_TABLE_SLABS;
    uint32_t count = slabs ? at->table_blocks : at->fence_blocks;
    uint32_t entries = slabs ? at->slabs_total : UINT32_MAX;
    const uint64_t *offset = slabs ? at->table_offset : at->fence_offset;
    json_t *rows = json_array(), *damaged = json_array();
    for (uint32_t b = 0; b < count; b++) {
        uint64_t sequence[2] = {0, 0};
        int err[2];
        for (uint32_t i = 0; i < 2; i++) {
            err[i] = file_read(l->file, offset[i] + (uint64_t)b * BLOCK_SIZE, &blocks[i], BLOCK_SIZE);
            if (err[i] == 0)
                err[i] = drive_table_check(&blocks[i], kind, b, l->best->drive_id, &sequence[i]);
            if (err[i] != 0)
                json_array_append_new(
                    damaged, json_pack("{sI ss}", "block", (json_int_t)b, "copy", i == 0 ? "A" : "B"));
        }
        if (err[0] != 0 && err[1] != 0)
            continue;
        const struct drive_table_disk *best =
            &blocks[err[0] != 0 || (err[1] == 0 && sequence[1] > sequence[0])];
        for (uint32_t i = 0; i < DRIVE_TABLE_ENTRIES; i++) {
            uint32_t index = b * DRIVE_TABLE_ENTRIES + i;
            const void *entry = best->entries + (size_t)i * DRIVE_TABLE_ENTRY_SIZE;
            if (index >= entries)
                break;
            if (slabs)
                slab_row(rows, index, entry);
            else
                fence_row(rows, index, entry);
        }
    }
    return json_pack("{sI so so}", "blocks", (json_int_t)count, "damaged_blocks", damaged, "entries", rows);
}

static void drive_look(struct drive_look *l, const char *path) may_yield
{
    void *blocks = aligned_alloc(BLOCK_SIZE, 2 * (size_t)BLOCK_SIZE);
    if (blocks == NULL) {
        offline_fail(l->o, "", "%s", error_text(ERR_NO_MEMORY));
        return;
    }
    json_t *view = json_object();
    json_object_set_new(view, "path", control_text(path));
    json_object_set_new(view, "superblocks", superblocks(l, blocks));
    if (l->best == NULL) {
        offline_problem(l->o, "drive", path, "neither superblock is whole");
    } else {
        json_object_set_new(view, "slab_table", table(l, DRIVE_TABLE_SLABS, blocks));
        json_object_set_new(view, "fence_table", table(l, DRIVE_TABLE_FENCES, blocks));
    }
    inspect_of(l->o)->view = view;
    free(blocks);
}

void inspect_drive(struct offline *o, const char *path)
{
    struct drive_look l = {.o = o};
    struct file_info info;
    int r = file_open(path, FILE_OPEN_DIRECT | FILE_OPEN_LOCK, &l.file);
    if (r != 0) {
        offline_fail(
            o, r == ERR_SYS(EBUSY) ? "Stop the node that uses it first." : "", "%s %s%s", path,
            r == ERR_SYS(EBUSY) ? "is in use" : "cannot be read: ", r == ERR_SYS(EBUSY) ? "" : error_text(r));
        return;
    }
    r = file_get_info(l.file, &info);
    if (r == 0 && info.size_bytes < 2 * BLOCK_SIZE)
        r = ERR_DRIVE_TOO_SMALL;
    l.size_bytes = r == 0 ? info.size_bytes : 0;
    if (r != 0)
        offline_fail(o, "", "%s: %s", path, error_text(r));
    else
        drive_look(&l, path);
    file_close(l.file);
}
