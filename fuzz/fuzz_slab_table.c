/* SPDX-License-Identifier: Apache-2.0 */
/* A block of the slab table or of the fence table. */
#include "drive/codec.h"
#include "runtime/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_entry(const uint8_t *entry)
{
    uint8_t back[DRIVE_TABLE_ENTRY_SIZE];
    struct drive_slab s, s2;
    if (drive_slab_decode(entry, &s) == 0) {
        drive_slab_encode(&s, back);
        int err = drive_slab_decode(back, &s2);
        assert(err == 0 && uuid_equal(s.volume, s2.volume));
        assert(s.epoch == s2.epoch && s.group == s2.group && s.member == s2.member);
        assert(s.state == s2.state && s.flags == s2.flags);
    }
    struct drive_fence f, f2;
    if (drive_fence_decode(entry, &f) == 0) {
        drive_fence_encode(&f, back);
        int err = drive_fence_decode(back, &f2);
        assert(err == 0 && uuid_equal(f.volume, f2.volume));
        assert(f.epoch == f2.epoch && f.generation == f2.generation && f.state == f2.state);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct drive_table_disk block = {0};
    memcpy(&block, data, MIN(size, sizeof(block)));
    struct uuid id;
    memcpy(id.b, block.drive_id, sizeof(id.b));
    uint32_t index = le32_get(block.index);
    uint64_t sequence;
    /* Entries that the input does not reach are all zero and all alike. */
    uint32_t entries = (uint32_t)MIN(size / DRIVE_TABLE_ENTRY_SIZE + 1, (size_t)DRIVE_TABLE_ENTRIES);
    for (int sealed = 0; sealed < 2; sealed++) {
        for (int kind = DRIVE_TABLE_SLABS; kind <= DRIVE_TABLE_FENCES; kind++) {
            int err = drive_table_check(&block, (enum drive_table_kind)kind, index, id, &sequence);
            assert(!sealed || (err == 0) == (kind == DRIVE_TABLE_SLABS));
            for (uint32_t i = 0; err == 0 && i < entries; i++)
                decode_entry(block.entries + i * DRIVE_TABLE_ENTRY_SIZE);
        }
        struct drive_table_header h = {DRIVE_TABLE_SLABS, index, id, le64_get(block.sequence)};
        drive_table_seal(&h, &block);
    }
    return 0;
}
