/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volume's bytes on its drives: roots, intent log, tree nodes and items. Only layouts, no code but
 * accessors. docs/formats/volume.md explains them and changes in the same commit.
 */
#ifndef ASHLAR_VOLUME_FORMAT_H
#define ASHLAR_VOLUME_FORMAT_H

#include "runtime/base.h"

#define VOLUME_FORMAT_VERSION 1u

/* Feature flags. Unknown incompatible: do not open. Unknown read-only-compatible: open read-only. */
#define VOLUME_FEATURES_INCOMPAT  UINT64_C(0)
#define VOLUME_FEATURES_RO_COMPAT UINT64_C(0)

enum checksum_type { CHECKSUM_NONE = 0, CHECKSUM_CRC32C = 1 };
enum compression_type { COMPRESSION_NONE = 0 };
#define CHECKSUM_WIDTH_MAX 32u

/*
 * Addresses. A block is named by (space, block). space < 2^31: a group, and block counts 4 KiB blocks in it.
 * With bit 31 set: a space of virtual stripes, whose place a remap table in the pool tree tells (parity).
 */
#define SPACE_VIRTUAL (UINT32_C(1) << 31)

/* How a parent names a tree node: 80 bytes. */
struct disk_node_pointer {
    struct le32 space;
    struct le32 blocks; /* physical length */
    struct le64 block;
    struct le64 birth_logical;  /* txg in which its content was made */
    struct le64 birth_physical; /* txg in which it was written here */
    uint8_t checksum_type;
    uint8_t checksum_width; /* bytes used of checksum[] */
    uint8_t compression;
    uint8_t level;      /* 0: leaf */
    struct le32 key_id; /* encryption; 0: none */
    struct le64 reserved;
    uint8_t checksum[CHECKSUM_WIDTH_MAX]; /* crc32c over the node, little-endian, first 4 bytes */
};
static_assert(sizeof(struct disk_node_pointer) == 80, "disk_node_pointer");

/* ---- Tree nodes ---- */

#define NODE_SIZE   16384u
#define NODE_BLOCKS (NODE_SIZE / BLOCK_SIZE)
#define NODE_MAGIC  UINT32_C(0x4e4c5341) /* "ASLN" */

struct disk_key { /* order: object, type, offset, as numbers */
    struct le64 object;
    uint8_t type;
    struct le64 offset;
};
static_assert(sizeof(struct disk_key) == 17, "disk_key");

struct disk_node_header {
    struct le32 magic;
    uint8_t version;
    uint8_t level;
    struct le16 count; /* items */
    struct le64 birth; /* txg */
    struct uuid volume;
    struct le32 head;  /* tree that made it: 0 the pool tree, else the head's id */
    struct le32 space; /* where it was meant to be: recognises misdirected writes */
    struct le64 block;
    struct le16 items_start; /* offset of the lowest item byte; items grow down from the end */
    struct le16 free_bytes;  /* holes between items, not counting the gap */
    struct le32 reserved;
};
static_assert(sizeof(struct disk_node_header) == 56, "disk_node_header");

/* After the header: count slots, sorted by key, growing up. */
struct disk_slot {
    struct disk_key key;
    uint8_t reserved;
    struct le16 offset; /* of the value from the node's beginning */
    struct le16 len;    /* inner nodes: sizeof(struct disk_node_pointer) */
};
static_assert(sizeof(struct disk_slot) == 22, "disk_slot");
#define ITEM_LEN_MAX 4096u /* so that at least three fit a node */

/* ---- Items ---- */

enum item_type {
    /* pool tree: object is the head id, the group id … as said */
    ITEM_VOLUME = 1,       /* (0, VOLUME, 0): disk_volume_item */
    ITEM_HEAD = 2,         /* (head id, HEAD, 0): disk_head_item */
    ITEM_GROUP = 3,        /* (group id, GROUP, 0): protect's group item */
    ITEM_SPACE = 4,        /* (group id, SPACE, first block): disk_space_item */
    ITEM_REMAP = 5,        /* (space, REMAP, virtual stripe): parity, later */
    ITEM_STRIPE = 6,       /* (group, STRIPE, stripe): parity, later */
    ITEM_DEAD = 7,         /* (head, DEAD, birth): snapshots, later */
    ITEM_REFCOUNT = 8,     /* (space, REFCOUNT, first block): disk_refcount_item */
    ITEM_DAMAGE = 9,       /* (object, DAMAGE, byte offset): a range known lost: disk_damage_item */
    ITEM_STALE_DRIVE = 10, /* (n, STALE_DRIVE, 0): disk_stale_drive_item */
    /* head trees: object is an inode number; 1 is the block device or the root directory */
    ITEM_INODE = 32,
    ITEM_DIRENT = 33,
    ITEM_XATTR = 34,
    ITEM_EXTENT = 35, /* (object, EXTENT, first byte): disk_extent */
    ITEM_INLINE = 36,
    ITEM_ORPHAN = 37,
    ITEM_LOCK = 38,
    ITEM_QUOTA = 39,
    ITEM_REPLY = 40,
    ITEM_RESERVATION = 41,
    ITEM_INTENT = 42,
};
#define ITEM_HEAD_FIRST ITEM_INODE /* lower types are of the pool tree */

#define OBJECT_BLOCK_DEVICE UINT64_C(1)

struct disk_volume_item {
    struct uuid volume;
    struct le64 features_incompat, features_ro_compat, features_compat;
    struct le32 next_group; /* ids are never used twice */
    struct le32 next_head;
    struct le64 created_ns;
    struct le64 reserved[4];
};
static_assert(sizeof(struct disk_volume_item) == 88, "disk_volume_item");

struct disk_head_item {
    struct disk_node_pointer root; /* blocks == 0: an empty tree */
    struct le64 size_bytes;        /* of the block device */
    struct le64 txg_created;
    struct le32 parent_head;      /* clones and snapshots */
    struct le32 flags;            /* 1: read-only (snapshot) */
    struct le64 allocated_blocks; /* data blocks that it references */
    struct le64 inodes;           /* items of type ITEM_INODE */
    struct le64 reserved[2];
};
static_assert(sizeof(struct disk_head_item) == 136, "disk_head_item");
#define HEAD_LIVE 1u

/*
 * SPACE_CHUNK_BLOCKS blocks of a group (the last chunk of a group may have fewer): a bit a block; the lowest
 * bit of byte 0 is the first block. After the header: alloc[n], then defer[n], n = bytes for the chunk's
 * blocks. alloc: referenced by this root, or freed so lately that it may not be reused. defer, a subset:
 * freed in the txg of this root: its bit in alloc goes with the next root.
 */
#define SPACE_CHUNK_BLOCKS 8192u
struct disk_space_item {
    struct le32 blocks; /* of the chunk */
    struct le32 used;   /* bits set in alloc */
    struct le64 txg;    /* that wrote it */
};
static_assert(sizeof(struct disk_space_item) == 16, "disk_space_item");

/* Blocks of a space that several extents name, each so often; those with EXTENT_SHARED that have no item are
 * named once. Items of a space do not overlap. */
struct disk_refcount_item {
    struct le32 blocks;
    struct le32 count; /* 2 or more */
};

struct disk_damage_item {
    struct le64 len_bytes;
    struct le64 found_ns;
};
struct disk_stale_drive_item {
    struct uuid drive;
    struct le64 since_txg;
};

/* A byte range of an object. Followed by blocks x checksum_width bytes of checksums. */
struct disk_extent {
    struct le32 blocks;          /* logical length */
    struct le32 physical_blocks; /* == blocks unless compressed */
    struct le32 space;
    uint8_t checksum_type;
    uint8_t checksum_width;
    uint8_t compression;
    uint8_t flags; /* EXTENT_* */
    struct le64 block;
    struct le64 birth_logical;
    struct le64 birth_physical;
    /* EXTENT_ENCRYPTED: struct disk_crypt here; then the checksums */
};
static_assert(sizeof(struct disk_extent) == 40, "disk_extent");
#define EXTENT_SHARED     1u /* other extents may name its blocks, too: see the reference counts */
#define EXTENT_ENCRYPTED  2u
#define EXTENT_ZERO       4u /* reads as zeroes, holds its place: no blocks, no checksums */
#define EXTENT_LOST       8u /* acknowledged here, cannot be read any more: EIO; no blocks, no checksums */
#define EXTENT_BLOCKS_MAX 256u
struct disk_crypt {
    struct le32 key_id;
    uint8_t nonce[12];
    uint8_t tag[16];
};

/* ---- Root ring: in system group 0, blocks 0 .. ROOT_RING_BLOCKS-1; root of txg t in slot t mod ring ---- */

#define ROOT_RING_BLOCKS 16u
#define ROOT_MAGIC       UINT64_C(0x3130544f4f525341) /* "ASROOT01" */

struct disk_root { /* one block; crc32c over all of it, seeded with volume id, last */
    struct le64 magic;
    struct le32 version;
    struct le32 block_size;
    struct uuid volume;
    struct le64 features_incompat, features_ro_compat, features_compat;
    struct le64 epoch;             /* of the owner that wrote it */
    struct le64 txg;               /* never used twice */
    struct le64 written_ns;        /* UTC, for people */
    struct disk_node_pointer pool; /* the pool tree */
    struct le64 log_sequence;      /* first batch that is not in this root */
    struct le64 log_block;         /* its place: counts log blocks for ever; modulo the log's size */
    struct le64 log_oldest_block;  /* what must be kept for the root before this one */
    struct le64 losses;            /* count of losses: part of the NFS write verifier */
    struct le32 system_runs;
    struct le32 slab_blocks;
    struct le64 flags; /* 1: closed in order, the log is empty */
    struct le64
        log_epoch; /* no batch of a lower epoch belongs to this root's log; 0: as epoch. Lower than that
                    * in a root written in the middle of a replay: what follows is another owner's */
    uint8_t reserved[BLOCK_SIZE - 4 - 216];
    struct le32 crc;
};
static_assert(sizeof(struct disk_root) == BLOCK_SIZE, "disk_root");
#define ROOT_CLEAN 1u

/* ---- Intent log: the system group's other blocks, run after run, as one ring ---- */

#define LOG_MAGIC UINT32_C(0x474f4c41) /* "ALOG" */

/*
 * A batch: header and records in whole blocks (zero-padded), then the inline payload blocks. crc32c over
 * header and records, seeded with crc32c(volume, epoch, sequence): an earlier lap or another volume never
 * verifies. Payload is covered by the checksums in the records.
 */
struct disk_log_batch {
    struct le32 magic;
    struct le32 crc; /* computed with this field 0 */
    struct uuid volume;
    struct le64 epoch;
    struct le64 sequence;     /* of this batch; gapless */
    struct le64 block;        /* where it was meant to be (log block number) */
    struct le64 durable;      /* every batch below this was known durable, data too, when this was written */
    struct le64 txg;          /* open txg */
    struct le32 record_bytes; /* after this header */
    struct le16 record_count;
    struct le16 header_blocks;  /* blocks of header and records */
    struct le32 payload_blocks; /* inline payload blocks after them */
    uint8_t flags;              /* 1: counts without its predecessors (stale marks alone in it) */
    uint8_t reserved[19];
};
static_assert(sizeof(struct disk_log_batch) == 96, "disk_log_batch");
#define LOG_BATCH_ALONE             1u
#define LOG_BATCH_HEADER_BLOCKS_MAX 64u
#define LOG_BATCH_PAYLOAD_MAX       1024u

enum log_record_type {
    LOG_EXTENT = 1,       /* disk_log_extent + checksums: object range now lies there */
    LOG_UNMAP = 2,        /* disk_log_range: object range reads as zeroes, unallocated */
    LOG_ZERO = 3,         /* disk_log_range: reads as zeroes, stays allocated */
    LOG_GROUP = 4,        /* protect's group item: a new group, before it is used */
    LOG_STALE_DRIVE = 5,  /* disk_stale_drive_item: a drive missed a write from txg on */
    LOG_RESIZE = 6,       /* disk_log_range: size of the device */
    LOG_LOST = 7,         /* disk_log_range: known lost */
    LOG_CLONE = 8,        /* disk_log_clone: one range now has what the other one has */
    LOG_ITEM_PUT = 16,    /* disk_log_item + value: an item of the head tree, new or replaced */
    LOG_ITEM_DELETE = 17, /* disk_log_item: it is gone */
};

struct disk_log_record { /* records are 8-byte aligned */
    struct le16 type;
    struct le16 flags;
    struct le32 len;  /* of the body, without padding */
    struct le32 head; /* which head it changes; 0: the pool */
    struct le32 reserved;
};
static_assert(sizeof(struct disk_log_record) == 16, "disk_log_record");
#define LOG_RECORD_INLINE 1u /* LOG_EXTENT: its blocks are also in the batch's payload, in order */

struct disk_log_extent {
    struct le64 object;
    struct le64 offset;        /* bytes */
    struct disk_extent extent; /* checksums follow */
};
struct disk_log_range {
    struct le64 object;
    struct le64 offset;
    struct le64 len;
};
struct disk_log_clone { /* byte offsets and length; the ranges do not overlap */
    struct le64 from, from_offset;
    struct le64 to, to_offset;
    struct le64 len;
};
struct disk_log_item {
    struct le64 object;
    uint8_t type; /* enum item_type, of head trees; never ITEM_EXTENT */
    uint8_t reserved[7];
    struct le64 offset;
    /* LOG_ITEM_PUT: the value follows, 1..ITEM_LEN_MAX bytes */
};
static_assert(sizeof(struct disk_log_item) == 24, "disk_log_item");

#endif
