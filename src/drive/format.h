/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a drive (version 1). docs/formats/drive.md has the same as tables; both change together.
 *
 *   block 0          superblock, copy A
 *   64 KiB ..        slab table A, fence table A
 *   1 MiB aligned    slabs
 *   before the end   slab table B, fence table B
 *   last block       superblock, copy B
 *
 * All integers are little-endian. Every structure here is one 4 KiB block whose last four bytes are the
 * crc32c of the 4092 before them.
 */
#ifndef ASHLAR_DRIVE_FORMAT_H
#define ASHLAR_DRIVE_FORMAT_H

#include "runtime/base.h"

#define DRIVE_FORMAT_VERSION 1

#define DRIVE_HEAD_BYTES     (64 * KIB) /* the first table begins here */
#define DRIVE_SLAB_ALIGN     MIB        /* the first slab begins at a multiple of it */
#define DRIVE_SIZE_MIN_BYTES (64 * MIB)
#define DRIVE_SLAB_MIN_BYTES (64 * KIB) /* of an explicit choice; the default is 4 to 256 MiB */
#define DRIVE_SLAB_MAX_BYTES (256 * MIB)
#define DRIVE_FENCES_SPARE   1024u /* fence entries beyond one a slab: volumes that were purged here */

#define DRIVE_SUPERBLOCK_MAGIC "ASHLARSB"
#define DRIVE_TABLE_MAGIC      "ASHLARTB"

/* Feature bits of this version: none. Unknown incompatible bits: refuse to open. Unknown read-only-compatible
 * bits: refuse to write, so refuse to open here, since a drive that is open is written. */
#define DRIVE_FEATURES_INCOMPAT_KNOWN  UINT64_C(0)
#define DRIVE_FEATURES_RO_COMPAT_KNOWN UINT64_C(0)

#define DRIVE_SUPERBLOCK_CLEAN 0x1u /* closed in order: no session was open */

struct drive_superblock_disk {
    char magic[8];
    struct le32 version;
    struct le32 flags; /* DRIVE_SUPERBLOCK_… */
    struct le64 features_incompat;
    struct le64 features_ro_compat;
    struct le64 features_compat;
    uint8_t pool_id[16];
    uint8_t drive_id[16];
    struct le64 generation; /* grows with every change of the superblock */
    struct le64 incarnation;
    struct le64 created_ns; /* UTC, for people */
    struct le64 size_bytes;
    struct le32 slab_bytes;
    struct le32 slabs_total;
    struct le64 slab_offset;     /* bytes, of slab 0 */
    struct le64 table_offset[2]; /* bytes, of the copies of the slab table */
    struct le64 fence_offset[2];
    struct le32 table_blocks; /* of one copy */
    struct le32 fence_blocks;
    uint8_t reserved[3932];
    struct le32 crc;
};
static_assert(sizeof(struct drive_superblock_disk) == BLOCK_SIZE, "one block");
static_assert(offsetof(struct drive_superblock_disk, pool_id) == 40, "");
static_assert(offsetof(struct drive_superblock_disk, generation) == 72, "");
static_assert(offsetof(struct drive_superblock_disk, slab_bytes) == 104, "");
static_assert(offsetof(struct drive_superblock_disk, slab_offset) == 112, "");
static_assert(offsetof(struct drive_superblock_disk, table_blocks) == 152, "");
static_assert(offsetof(struct drive_superblock_disk, reserved) == 160, "");
static_assert(offsetof(struct drive_superblock_disk, crc) == BLOCK_SIZE - 4, "checksum last");

enum drive_table_kind { DRIVE_TABLE_SLABS = 1, DRIVE_TABLE_FENCES = 2 };

enum drive_slab_disk_state {
    DRIVE_SLAB_FREE = 0,
    DRIVE_SLAB_ALLOCATED = 1,
    DRIVE_SLAB_DELETED = 2, /* its volume was purged; the space is not given back yet */
};
#define DRIVE_SLAB_PREPARED    0x1u /* its space was written at least once since it was last discarded */
#define DRIVE_SLAB_UNDISCARDED 0x2u /* free, but the host still has its old contents */

struct drive_slab_disk {
    uint8_t volume[16];
    struct le64 epoch; /* of the owner that allocated it */
    struct le32 group;
    struct le32 member;
    uint8_t state;
    uint8_t flags;
    uint8_t reserved[14];
};

enum drive_fence_disk_state { DRIVE_FENCE_UNUSED = 0, DRIVE_FENCE_LIVE = 1, DRIVE_FENCE_PURGED = 2 };

struct drive_fence_disk {
    uint8_t volume[16];
    struct le64 epoch;      /* the highest that was accepted */
    struct le64 generation; /* the coordinator's; never lowered */
    uint8_t state;
    uint8_t reserved[15];
};

#define DRIVE_TABLE_ENTRY_SIZE 48u
#define DRIVE_TABLE_ENTRIES    84u

struct drive_table_disk {
    char magic[8];
    struct le32 kind;
    struct le32 index; /* of this block in the table */
    uint8_t drive_id[16];
    struct le64 sequence; /* grows with every write of this block; the higher of two whole copies counts */
    uint8_t reserved[8];
    uint8_t entries[DRIVE_TABLE_ENTRIES * DRIVE_TABLE_ENTRY_SIZE];
    uint8_t reserved2[12];
    struct le32 crc;
};
static_assert(sizeof(struct drive_slab_disk) == DRIVE_TABLE_ENTRY_SIZE, "");
static_assert(sizeof(struct drive_fence_disk) == DRIVE_TABLE_ENTRY_SIZE, "");
static_assert(offsetof(struct drive_slab_disk, state) == 32, "");
static_assert(offsetof(struct drive_fence_disk, state) == 32, "");
static_assert(sizeof(struct drive_table_disk) == BLOCK_SIZE, "one block");
static_assert(offsetof(struct drive_table_disk, entries) == 48, "");
static_assert(offsetof(struct drive_table_disk, crc) == BLOCK_SIZE - 4, "checksum last");

#endif
