/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises other users of a device, so that a slip of the finger does not overwrite them. */
#include "drive/codec.h"

struct magic {
    const char *name;
    uint32_t offset;
    uint8_t len;
    const char *bytes;
};

/* By rising generality: a partition table's two bytes come last. */
static const struct magic magics[] = {
    {"an ext2, ext3 or ext4 file system", 1080, 2, "\x53\xef"},
    {"an XFS file system", 0, 4, "XFSB"},
    {"a Btrfs file system", 65600, 8, "_BHRfS_M"},
    {"a bcachefs file system", 4120, 8, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca"},
    {"an F2FS file system", 1024, 4, "\x10\x20\xf5\xf2"},
    {"an NTFS file system", 3, 8, "NTFS    "},
    {"an exFAT file system", 3, 8, "EXFAT   "},
    {"a FAT file system", 54, 3, "FAT"},
    {"a FAT32 file system", 82, 5, "FAT32"},
    {"an ISO 9660 file system", 32769, 5, "CD001"},
    {"a SquashFS file system", 0, 4, "hsqs"},
    {"an LVM physical volume", 0, 8, "LABELONE"},
    {"an LVM physical volume", 512, 8, "LABELONE"},
    {"an LVM physical volume", 1024, 8, "LABELONE"},
    {"an LVM physical volume", 1536, 8, "LABELONE"},
    {"a LUKS encrypted volume", 0, 6, "LUKS\xba\xbe"},
    {"a swap area", 4086, 10, "SWAPSPACE2"},
    {"a swap area", 4086, 10, "SWAP-SPACE"},
    {"a member of a Linux RAID", 0, 4, "\xfc\x4e\x2b\xa9"},
    {"a member of a Linux RAID", 4096, 4, "\xfc\x4e\x2b\xa9"},
    {"a Ceph BlueStore device", 0, 22, "bluestore block device"},
    {"a qcow2 image", 0, 4, "QFI\xfb"},
    {"a GPT partition table", 512, 8, "EFI PART"},
    {"a GPT partition table", 4096, 8, "EFI PART"},
    {"a partition table or boot sector", 510, 2, "\x55\xaa"},
};

/* ZFS keeps an array of 1 KiB uberblocks at 128 KiB, in the byte order of the machine that wrote it. */
static bool has_zfs_label(const uint8_t *head, size_t len)
{
    for (size_t at = 128 * KIB; at + 8 <= len && at < 256 * KIB; at += KIB)
        if (memcmp(head + at, "\x0c\xb1\xba\x00\x00\x00\x00\x00", 8) == 0 ||
            memcmp(head + at, "\x00\x00\x00\x00\x00\xba\xb1\x0c", 8) == 0)
            return true;
    return false;
}

static bool bytes_at(const uint8_t *data, size_t len, uint64_t at, const void *bytes, size_t n)
{
    return at <= len && n <= len - at && memcmp(data + at, bytes, n) == 0;
}

const char *drive_foreign_signature(const uint8_t *head, size_t head_len, const uint8_t *tail,
                                    size_t tail_len)
{
    if (has_zfs_label(head, head_len))
        return "a ZFS pool's device";
    for (size_t i = 0; i < ARRAY_SIZE(magics); i++)
        if (bytes_at(head, head_len, magics[i].offset, magics[i].bytes, magics[i].len))
            return magics[i].name;
    /* A backup partition table outlives a wiped beginning; so does a RAID superblock of version 0.9 (64 to
     * 128 KiB before the end, at a multiple of 64 KiB) or 1.0 (8 KiB before the end). */
    if (tail_len >= 512 && bytes_at(tail, tail_len, tail_len - 512, "EFI PART", 8))
        return "the backup of a GPT partition table";
    if (tail_len >= 8 * KIB && bytes_at(tail, tail_len, tail_len - 8 * KIB, "\xfc\x4e\x2b\xa9", 4))
        return "a member of a Linux RAID";
    if (tail_len >= 64 * KIB && bytes_at(tail, tail_len, tail_len - 64 * KIB, "\xfc\x4e\x2b\xa9", 4))
        return "a member of a Linux RAID";
    return NULL;
}
