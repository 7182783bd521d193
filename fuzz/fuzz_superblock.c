/* SPDX-License-Identifier: Apache-2.0 */
/* A drive's superblock and the recognition of foreign devices. */
#include "drive/codec.h"
#include "runtime/checksum.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const void *block)
{
    struct drive_superblock sb, again;
    uint8_t back[BLOCK_SIZE], back_again[BLOCK_SIZE];
    if (drive_superblock_decode(block, &sb) != 0)
        return;
    /* What is believed can be written, and reads back the same. */
    drive_superblock_encode(&sb, back);
    int err = drive_superblock_decode(back, &again);
    assert(err == 0);
    drive_superblock_encode(&again, back_again);
    assert(memcmp(back, back_again, sizeof(back)) == 0);
    assert(sb.generation == again.generation && sb.incarnation == again.incarnation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct drive_superblock_disk block = {0};
    memcpy(&block, data, MIN(size, sizeof(block)));
    decode(&block);
    /* The same with what a fuzzer cannot guess. */
    memcpy(block.magic, DRIVE_SUPERBLOCK_MAGIC, sizeof(block.magic));
    block.version = le32_make(DRIVE_FORMAT_VERSION);
    block.crc = le32_make(crc32c(0, &block, BLOCK_SIZE - 4));
    decode(&block);

    struct drive_layout l;
    if (size >= 12) {
        uint64_t drive_size;
        uint32_t slab;
        memcpy(&drive_size, data, 8);
        memcpy(&slab, data + 8, 4);
        (void)(drive_layout_compute(drive_size % (UINT64_C(1) << 50), slab, &l) == 0);
        (void)drive_slab_bytes_default(drive_size);
    }
    uint8_t *exact = malloc(size + 1); /* so that a read beyond is seen */
    if (exact != NULL) {
        memcpy(exact, data, size);
        (void)drive_foreign_signature(exact, size, exact, size);
    }
    free(exact);
    return 0;
}
