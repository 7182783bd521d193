/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From bytes of a drive to structures and back, without any I/O: what the fuzz targets and the offline tools
 * call. Nothing that is read is believed before its checksum and its ranges were checked.
 */
#ifndef ASHLAR_DRIVE_CODEC_H
#define ASHLAR_DRIVE_CODEC_H

#include "drive/format.h"

/* Where everything lies; bytes. */
struct drive_layout {
    uint64_t table_offset[2];
    uint64_t fence_offset[2];
    uint64_t slab_offset;
    uint32_t table_blocks;
    uint32_t fence_blocks;
    uint32_t slabs_total;
};

struct drive_superblock {
    struct uuid pool_id;
    struct uuid drive_id;
    uint64_t generation;
    uint64_t incarnation;
    uint64_t created_ns;
    uint64_t size_bytes;
    uint64_t features_incompat;
    uint64_t features_ro_compat;
    uint64_t features_compat;
    uint32_t slab_bytes;
    bool clean;
    struct drive_layout layout;
};

/* About 1/4096 of the drive, a power of two from 4 to 256 MiB. */
uint32_t drive_slab_bytes_default(uint64_t size_bytes);
/* size is rounded down to blocks. ERR_DRIVE_TOO_SMALL, ERR_INVALID (slab size not a power of two in range).
 */
int drive_layout_compute(uint64_t size_bytes, uint32_t slab_bytes, struct drive_layout *ret) MUST_CHECK;

void drive_superblock_encode(const struct drive_superblock *sb, void *block);
/* ERR_DRIVE_NOT_FORMATTED (no magic), ERR_DRIVE_DAMAGED (checksum or a field), ERR_DRIVE_NEWER. */
int drive_superblock_decode(const void *block, struct drive_superblock *ret) MUST_CHECK;

/* One block of a table; `entries` are raw and in the caller's hands. */
struct drive_table_header {
    enum drive_table_kind kind;
    uint32_t index;
    struct uuid drive_id;
    uint64_t sequence;
};
/* block holds the entries already. */
void drive_table_seal(const struct drive_table_header *h, struct drive_table_disk *block);
/* Checks magic, checksum and that the block is the one that was asked for. ERR_DRIVE_DAMAGED. */
int drive_table_check(const struct drive_table_disk *block, enum drive_table_kind kind, uint32_t index,
                      struct uuid drive_id, uint64_t *ret_sequence) MUST_CHECK;

struct drive_slab {
    struct uuid volume; /* none when free */
    uint64_t epoch;
    uint32_t group;
    uint32_t member;
    enum drive_slab_disk_state state;
    uint8_t flags;
};
struct drive_fence {
    struct uuid volume;
    uint64_t epoch;
    uint64_t generation;
    enum drive_fence_disk_state state;
};
void drive_slab_encode(const struct drive_slab *s, void *entry);
void drive_fence_encode(const struct drive_fence *f, void *entry);
/* ERR_DRIVE_DAMAGED. */
int drive_slab_decode(const void *entry, struct drive_slab *ret) MUST_CHECK;
int drive_fence_decode(const void *entry, struct drive_fence *ret) MUST_CHECK;

/*
 * Names what else uses this device: a file system, a partition table, a volume manager; NULL if nothing
 * known was found. head is its beginning (DRIVE_SIGNATURE_BYTES, or all of a smaller one), tail its last
 * DRIVE_SIGNATURE_BYTES.
 */
#define DRIVE_SIGNATURE_BYTES (256 * KIB)
const char *drive_foreign_signature(const uint8_t *head, size_t head_len, const uint8_t *tail,
                                    size_t tail_len);

#endif
