/* SPDX-License-Identifier: Apache-2.0 */
#include "drive/codec.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

/* ---- Layout ---- */

static bool is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

uint32_t drive_slab_bytes_default(uint64_t size_bytes)
{
    uint64_t slab = 4 * MIB;
    while (slab < DRIVE_SLAB_MAX_BYTES && slab * 2 <= size_bytes / 4096)
        slab *= 2;
    assert(is_power_of_two(slab));
    return (uint32_t)slab;
}

/* The second copies stand at the other end, so that neither a cut-off tail nor an overwritten head takes
 * both. */
int drive_layout_compute(uint64_t size_bytes, uint32_t slab_bytes, struct drive_layout *ret)
{
    if (!is_power_of_two(slab_bytes) || slab_bytes < DRIVE_SLAB_MIN_BYTES ||
        slab_bytes > DRIVE_SLAB_MAX_BYTES)
        return ERR_INVALID;
    size_bytes = ALIGN_DOWN(size_bytes, (uint64_t)BLOCK_SIZE);
    if (size_bytes < DRIVE_SIZE_MIN_BYTES)
        return ERR_DRIVE_TOO_SMALL;

    uint64_t slabs_max = size_bytes / slab_bytes;
    if (slabs_max > UINT32_MAX / 2)
        return ERR_INVALID;
    struct drive_layout l = {0};
    l.table_blocks = (uint32_t)DIV_ROUND_UP(slabs_max, DRIVE_TABLE_ENTRIES);
    l.fence_blocks = (uint32_t)DIV_ROUND_UP(slabs_max + DRIVE_FENCES_SPARE, DRIVE_TABLE_ENTRIES);
    uint64_t table_bytes = (uint64_t)l.table_blocks * BLOCK_SIZE;
    uint64_t fence_bytes = (uint64_t)l.fence_blocks * BLOCK_SIZE;

    l.table_offset[0] = DRIVE_HEAD_BYTES;
    l.fence_offset[0] = l.table_offset[0] + table_bytes;
    l.slab_offset = ALIGN_UP(l.fence_offset[0] + fence_bytes, DRIVE_SLAB_ALIGN);
    uint64_t tail_bytes = table_bytes + fence_bytes + BLOCK_SIZE;
    if (l.slab_offset + tail_bytes + slab_bytes > size_bytes)
        return ERR_DRIVE_TOO_SMALL;
    l.fence_offset[1] = size_bytes - BLOCK_SIZE - fence_bytes;
    l.table_offset[1] = l.fence_offset[1] - table_bytes;
    l.slabs_total = (uint32_t)((l.table_offset[1] - l.slab_offset) / slab_bytes);
    assert(l.slabs_total >= 1 && l.slabs_total <= slabs_max);
    *ret = l;
    return 0;
}

/* A layout that was read: every region is aligned, inside of the drive, and apart from every other. */
static bool layout_valid(const struct drive_layout *l, uint64_t size_bytes, uint32_t slab_bytes)
{
    struct {
        uint64_t offset, len;
    } r[7] = {
        {0, BLOCK_SIZE},
        {size_bytes - BLOCK_SIZE, BLOCK_SIZE},
        {l->table_offset[0], (uint64_t)l->table_blocks * BLOCK_SIZE},
        {l->table_offset[1], (uint64_t)l->table_blocks * BLOCK_SIZE},
        {l->fence_offset[0], (uint64_t)l->fence_blocks * BLOCK_SIZE},
        {l->fence_offset[1], (uint64_t)l->fence_blocks * BLOCK_SIZE},
        {l->slab_offset, (uint64_t)l->slabs_total * slab_bytes},
    };
    for (size_t i = 0; i < ARRAY_SIZE(r); i++) {
        if (r[i].len == 0 || r[i].offset % BLOCK_SIZE != 0 || r[i].offset > size_bytes ||
            r[i].len > size_bytes - r[i].offset)
            return false;
        for (size_t j = 0; j < i; j++)
            if (r[i].offset < r[j].offset + r[j].len && r[j].offset < r[i].offset + r[i].len)
                return false;
    }
    return (uint64_t)l->table_blocks * DRIVE_TABLE_ENTRIES >= l->slabs_total;
}

/* ---- Superblock ---- */

static void block_seal(void *block, struct le32 *crc)
{
    *crc = le32_make(crc32c(0, block, BLOCK_SIZE - sizeof(*crc)));
}
static bool block_sealed(const void *block, struct le32 crc)
{
    return crc32c(0, block, BLOCK_SIZE - sizeof(crc)) == le32_get(crc);
}

void drive_superblock_encode(const struct drive_superblock *sb, void *block)
{
    struct drive_superblock_disk *d = block;
    assert(layout_valid(&sb->layout, sb->size_bytes, sb->slab_bytes));
    memset(d, 0, sizeof(*d));
    memcpy(d->magic, DRIVE_SUPERBLOCK_MAGIC, sizeof(d->magic));
    d->version = le32_make(DRIVE_FORMAT_VERSION);
    d->flags = le32_make(sb->clean ? DRIVE_SUPERBLOCK_CLEAN : 0);
    d->features_incompat = le64_make(sb->features_incompat);
    d->features_ro_compat = le64_make(sb->features_ro_compat);
    d->features_compat = le64_make(sb->features_compat);
    memcpy(d->pool_id, sb->pool_id.b, sizeof(d->pool_id));
    memcpy(d->drive_id, sb->drive_id.b, sizeof(d->drive_id));
    d->generation = le64_make(sb->generation);
    d->incarnation = le64_make(sb->incarnation);
    d->created_ns = le64_make(sb->created_ns);
    d->size_bytes = le64_make(sb->size_bytes);
    d->slab_bytes = le32_make(sb->slab_bytes);
    d->slabs_total = le32_make(sb->layout.slabs_total);
    d->slab_offset = le64_make(sb->layout.slab_offset);
    for (int i = 0; i < 2; i++) {
        d->table_offset[i] = le64_make(sb->layout.table_offset[i]);
        d->fence_offset[i] = le64_make(sb->layout.fence_offset[i]);
    }
    d->table_blocks = le32_make(sb->layout.table_blocks);
    d->fence_blocks = le32_make(sb->layout.fence_blocks);
    block_seal(d, &d->crc);
}

int drive_superblock_decode(const void *block, struct drive_superblock *ret)
{
    const struct drive_superblock_disk *d = block;
    if (memcmp(d->magic, DRIVE_SUPERBLOCK_MAGIC, sizeof(d->magic)) != 0)
        return ERR_DRIVE_NOT_FORMATTED;
    if (!block_sealed(d, d->crc))
        return ERR_DRIVE_DAMAGED;
    struct drive_superblock sb = {
        .generation = le64_get(d->generation),
        .incarnation = le64_get(d->incarnation),
        .created_ns = le64_get(d->created_ns),
        .size_bytes = le64_get(d->size_bytes),
        .features_incompat = le64_get(d->features_incompat),
        .features_ro_compat = le64_get(d->features_ro_compat),
        .features_compat = le64_get(d->features_compat),
        .slab_bytes = le32_get(d->slab_bytes),
        .clean = le32_get(d->flags) & DRIVE_SUPERBLOCK_CLEAN,
        .layout = {.table_offset = {le64_get(d->table_offset[0]), le64_get(d->table_offset[1])},
                   .fence_offset = {le64_get(d->fence_offset[0]), le64_get(d->fence_offset[1])},
                   .slab_offset = le64_get(d->slab_offset),
                   .table_blocks = le32_get(d->table_blocks),
                   .fence_blocks = le32_get(d->fence_blocks),
                   .slabs_total = le32_get(d->slabs_total)},
    };
    memcpy(sb.pool_id.b, d->pool_id, sizeof(d->pool_id));
    memcpy(sb.drive_id.b, d->drive_id, sizeof(d->drive_id));

    if (le32_get(d->version) != DRIVE_FORMAT_VERSION ||
        (sb.features_incompat & ~DRIVE_FEATURES_INCOMPAT_KNOWN) != 0 ||
        (sb.features_ro_compat & ~DRIVE_FEATURES_RO_COMPAT_KNOWN) != 0)
        return ERR_DRIVE_NEWER;
    if (uuid_is_none(sb.pool_id) || uuid_is_none(sb.drive_id) || sb.generation == 0 ||
        sb.size_bytes < DRIVE_SIZE_MIN_BYTES || sb.size_bytes % BLOCK_SIZE != 0 ||
        sb.size_bytes > INT64_MAX || !is_power_of_two(sb.slab_bytes) ||
        sb.slab_bytes < DRIVE_SLAB_MIN_BYTES || sb.slab_bytes > DRIVE_SLAB_MAX_BYTES ||
        !layout_valid(&sb.layout, sb.size_bytes, sb.slab_bytes))
        return ERR_DRIVE_DAMAGED;
    *ret = sb;
    return 0;
}

/* ---- Tables ---- */

void drive_table_seal(const struct drive_table_header *h, struct drive_table_disk *block)
{
    memcpy(block->magic, DRIVE_TABLE_MAGIC, sizeof(block->magic));
    block->kind = le32_make(h->kind);
    block->index = le32_make(h->index);
    memcpy(block->drive_id, h->drive_id.b, sizeof(block->drive_id));
    block->sequence = le64_make(h->sequence);
    memset(block->reserved, 0, sizeof(block->reserved));
    memset(block->reserved2, 0, sizeof(block->reserved2));
    block_seal(block, &block->crc);
}

int drive_table_check(const struct drive_table_disk *block, enum drive_table_kind kind, uint32_t index,
                      struct uuid drive_id, uint64_t *ret_sequence)
{
    if (memcmp(block->magic, DRIVE_TABLE_MAGIC, sizeof(block->magic)) != 0 ||
        !block_sealed(block, block->crc) || le32_get(block->kind) != (uint32_t)kind ||
        le32_get(block->index) != index || memcmp(block->drive_id, drive_id.b, sizeof(drive_id.b)) != 0)
        return ERR_DRIVE_DAMAGED;
    *ret_sequence = le64_get(block->sequence);
    return 0;
}

void drive_slab_encode(const struct drive_slab *s, void *entry)
{
    struct drive_slab_disk *d = entry;
    assert((s->state == DRIVE_SLAB_FREE) == uuid_is_none(s->volume));
    memset(d, 0, sizeof(*d));
    memcpy(d->volume, s->volume.b, sizeof(d->volume));
    d->epoch = le64_make(s->epoch);
    d->group = le32_make(s->group);
    d->member = le32_make(s->member);
    d->state = (uint8_t)s->state;
    d->flags = s->flags;
}

int drive_slab_decode(const void *entry, struct drive_slab *ret)
{
    const struct drive_slab_disk *d = entry;
    struct drive_slab s = {.epoch = le64_get(d->epoch),
                           .group = le32_get(d->group),
                           .member = le32_get(d->member),
                           .state = (enum drive_slab_disk_state)d->state,
                           .flags = d->flags};
    memcpy(s.volume.b, d->volume, sizeof(d->volume));
    if (d->state > DRIVE_SLAB_DELETED || (d->flags & ~(DRIVE_SLAB_PREPARED | DRIVE_SLAB_UNDISCARDED)) != 0)
        return ERR_DRIVE_DAMAGED;
    if ((s.state == DRIVE_SLAB_FREE) != uuid_is_none(s.volume))
        return ERR_DRIVE_DAMAGED;
    *ret = s;
    return 0;
}

void drive_fence_encode(const struct drive_fence *f, void *entry)
{
    struct drive_fence_disk *d = entry;
    assert((f->state == DRIVE_FENCE_UNUSED) == uuid_is_none(f->volume));
    memset(d, 0, sizeof(*d));
    memcpy(d->volume, f->volume.b, sizeof(d->volume));
    d->epoch = le64_make(f->epoch);
    d->generation = le64_make(f->generation);
    d->state = (uint8_t)f->state;
}

int drive_fence_decode(const void *entry, struct drive_fence *ret)
{
    const struct drive_fence_disk *d = entry;
    struct drive_fence f = {.epoch = le64_get(d->epoch),
                            .generation = le64_get(d->generation),
                            .state = (enum drive_fence_disk_state)d->state};
    memcpy(f.volume.b, d->volume, sizeof(d->volume));
    if (d->state > DRIVE_FENCE_PURGED || (f.state == DRIVE_FENCE_UNUSED) != uuid_is_none(f.volume))
        return ERR_DRIVE_DAMAGED;
    *ret = f;
    return 0;
}
