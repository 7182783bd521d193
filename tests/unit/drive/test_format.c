/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a drive, without I/O. */
#include "drive_test.h"

#include "runtime/checksum.h"

static const struct uuid id_a = {{1, 2, 3}};

static struct drive_superblock sample(uint64_t size, uint32_t slab)
{
    struct drive_superblock sb = {.pool_id = test_pool,
                                  .drive_id = id_a,
                                  .generation = 7,
                                  .incarnation = UINT64_MAX,
                                  .created_ns = 5,
                                  .size_bytes = size,
                                  .slab_bytes = slab,
                                  .clean = true};
    assert_int_equal(drive_layout_compute(size, slab, &sb.layout), 0);
    return sb;
}

static void superblock_reads_back_as_written(void **state)
{
    (void)state;
    struct drive_superblock sb = sample(8 * GIB, 4 * MIB), back = {0};
    uint8_t block[BLOCK_SIZE];
    drive_superblock_encode(&sb, block);
    assert_int_equal(drive_superblock_decode(block, &back), 0);
    uint8_t again[BLOCK_SIZE];
    drive_superblock_encode(&back, again);
    assert_memory_equal(block, again, sizeof(block));
    assert_int_equal(back.layout.slab_offset, sb.layout.slab_offset);
    assert_true(uuid_equal(back.pool_id, test_pool) && uuid_equal(back.drive_id, id_a));
    assert_int_equal(back.generation, 7);
    assert_true(back.incarnation == UINT64_MAX);
    assert_true(back.clean);
    assert_int_equal(back.size_bytes, 8 * GIB);
}

static void superblock_with_any_flipped_bit_is_refused(void **state)
{
    (void)state;
    struct drive_superblock sb = sample(64 * MIB, TEST_SLAB), back;
    uint8_t block[BLOCK_SIZE];
    drive_superblock_encode(&sb, block);
    for (uint32_t bit = 0; bit < BLOCK_SIZE * 8; bit++) {
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(drive_superblock_decode(block, &back) < 0);
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(drive_superblock_decode(block, &back), 0);
}

static void reseal(struct drive_superblock_disk *d)
{
    d->crc = le32_make(crc32c(0, d, BLOCK_SIZE - 4));
}

static void superblock_with_wrong_fields_is_refused(void **state)
{
    (void)state;
    struct drive_superblock sb = sample(64 * MIB, TEST_SLAB), back;
    struct drive_superblock_disk d, good;
    drive_superblock_encode(&sb, &good);
    for (int i = 0; i < 10; i++) {
        d = good;
        int want = ERR_DRIVE_DAMAGED;
        switch (i) {
        case 0:
            d.version = le32_make(2);
            want = ERR_DRIVE_NEWER;
            break;
        case 1:
            d.features_incompat = le64_make(1);
            want = ERR_DRIVE_NEWER;
            break;
        case 2:
            d.features_ro_compat = le64_make(1);
            want = ERR_DRIVE_NEWER;
            break;
        case 3:
            d.slab_bytes = le32_make(TEST_SLAB + 4096);
            break;
        case 4:
            d.slabs_total = le32_make(100000);
            break;
        case 5:
            d.table_offset[0] = le64_make(sb.layout.slab_offset);
            break; /* overlaps the slabs */
        case 6:
            d.fence_blocks = le32_make(0);
            break;
        case 7:
            d.size_bytes = le64_make(UINT64_MAX);
            break;
        case 8:
            memset(d.drive_id, 0, 16);
            break;
        case 9:
            d.slab_offset = le64_make(UINT64_MAX - 4095);
            break;
        }
        reseal(&d);
        assert_int_equal(drive_superblock_decode(&d, &back), want);
    }
    d = good;
    d.features_compat = le64_make(1); /* may be ignored */
    reseal(&d);
    assert_int_equal(drive_superblock_decode(&d, &back), 0);
}

static void slab_size_is_about_a_4096th_of_the_drive(void **state)
{
    (void)state;
    assert_int_equal(drive_slab_bytes_default(64 * MIB), 4 * MIB);
    assert_int_equal(drive_slab_bytes_default(8 * GIB), 4 * MIB);
    assert_int_equal(drive_slab_bytes_default(64 * GIB), 16 * MIB);
    assert_int_equal(drive_slab_bytes_default(TIB), 256 * MIB);
    assert_int_equal(drive_slab_bytes_default(64 * TIB), 256 * MIB);
}

static void layout_fits_every_size(void **state)
{
    (void)state;
    struct drive_layout l;
    assert_int_equal(drive_layout_compute(64 * MIB - 1, 4 * MIB, &l), ERR_DRIVE_TOO_SMALL);
    assert_int_equal(drive_layout_compute(64 * MIB, 256 * MIB, &l), ERR_DRIVE_TOO_SMALL);
    assert_int_equal(drive_layout_compute(64 * MIB, 3 * MIB, &l), ERR_INVALID);
    assert_int_equal(drive_layout_compute(64 * MIB, 32 * KIB, &l), ERR_INVALID);
    for (uint64_t size = 64 * MIB; size < 64 * TIB; size = size * 3 / 2 + 12345) {
        struct drive_superblock sb = sample(ALIGN_DOWN(size, 4096), drive_slab_bytes_default(size)), back;
        uint8_t block[BLOCK_SIZE];
        drive_superblock_encode(&sb, block);
        assert_int_equal(drive_superblock_decode(block, &back), 0);
        /* At most a fiftieth goes to the drive's own needs, but for the smallest. */
        uint64_t used = (uint64_t)sb.layout.slabs_total * sb.slab_bytes;
        assert_true(size < GIB || used > size / 50 * 49);
    }
}

static void table_block_is_only_believed_in_its_place(void **state)
{
    (void)state;
    struct drive_table_disk block = {0};
    struct drive_table_header h = {DRIVE_TABLE_SLABS, 3, id_a, 9};
    uint64_t sequence = 0;
    drive_table_seal(&h, &block);
    assert_int_equal(drive_table_check(&block, DRIVE_TABLE_SLABS, 3, id_a, &sequence), 0);
    assert_int_equal(sequence, 9);
    assert_int_equal(drive_table_check(&block, DRIVE_TABLE_FENCES, 3, id_a, &sequence), ERR_DRIVE_DAMAGED);
    assert_int_equal(drive_table_check(&block, DRIVE_TABLE_SLABS, 4, id_a, &sequence), ERR_DRIVE_DAMAGED);
    assert_int_equal(drive_table_check(&block, DRIVE_TABLE_SLABS, 3, test_pool, &sequence),
                     ERR_DRIVE_DAMAGED);
    block.entries[100] ^= 1;
    assert_int_equal(drive_table_check(&block, DRIVE_TABLE_SLABS, 3, id_a, &sequence), ERR_DRIVE_DAMAGED);
}

static void table_entries_read_back_and_nonsense_is_refused(void **state)
{
    (void)state;
    struct drive_slab s = {test_pool, 5, 6, 7, DRIVE_SLAB_ALLOCATED, DRIVE_SLAB_PREPARED}, s2;
    struct drive_fence f = {test_pool, 5, 6, DRIVE_FENCE_PURGED}, f2;
    uint8_t e[DRIVE_TABLE_ENTRY_SIZE];
    drive_slab_encode(&s, e);
    assert_int_equal(drive_slab_decode(e, &s2), 0);
    assert_true(uuid_equal(s2.volume, test_pool) && s2.epoch == 5 && s2.group == 6 && s2.member == 7);
    assert_true(s2.state == DRIVE_SLAB_ALLOCATED && s2.flags == DRIVE_SLAB_PREPARED);
    e[32] = 3;
    assert_int_equal(drive_slab_decode(e, &s2), ERR_DRIVE_DAMAGED);
    e[32] = DRIVE_SLAB_FREE; /* with a volume */
    assert_int_equal(drive_slab_decode(e, &s2), ERR_DRIVE_DAMAGED);
    e[32] = DRIVE_SLAB_ALLOCATED;
    e[33] = 0x80;
    assert_int_equal(drive_slab_decode(e, &s2), ERR_DRIVE_DAMAGED);
    drive_fence_encode(&f, e);
    assert_int_equal(drive_fence_decode(e, &f2), 0);
    assert_true(uuid_equal(f2.volume, test_pool) && f2.epoch == 5 && f2.generation == 6);
    e[32] = 9;
    assert_int_equal(drive_fence_decode(e, &f2), ERR_DRIVE_DAMAGED);
}

static void other_users_of_a_device_are_recognised(void **state)
{
    (void)state;
    static const struct {
        uint32_t at;
        const char *bytes;
        size_t len;
        const char *name;
    } cases[] = {
        {1080, "\x53\xef", 2, "ext4"},
        {0, "XFSB", 4, "XFS"},
        {65600, "_BHRfS_M", 8, "Btrfs"},
        {512, "LABELONE", 8, "LVM"},
        {512, "EFI PART", 8, "GPT"},
        {510, "\x55\xaa", 2, "partition table"},
        {4086, "SWAPSPACE2", 10, "swap"},
        {0, "LUKS\xba\xbe", 6, "LUKS"},
        {135168, "\x0c\xb1\xba\0\0\0\0\0", 8, "ZFS"},
    };
    size_t len = DRIVE_SIGNATURE_BYTES;
    uint8_t *head = calloc(2, len);
    assert_non_null(head);
    assert_null(drive_foreign_signature(head, len, head + len, len));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        memset(head, 0, len);
        memcpy(head + cases[i].at, cases[i].bytes, cases[i].len);
        const char *name = drive_foreign_signature(head, len, NULL, 0);
        assert_non_null(name);
        assert_non_null(strstr(name, cases[i].name));
        /* A short beginning is not read beyond. */
        (void)drive_foreign_signature(head, cases[i].at + 1, NULL, 0);
    }
    memset(head, 0, len);
    memcpy(head + 2 * len - 512, "EFI PART", 8);
    assert_non_null(strstr(drive_foreign_signature(head, len, head + len, len), "GPT"));
    free(head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(superblock_reads_back_as_written),
        cmocka_unit_test(superblock_with_any_flipped_bit_is_refused),
        cmocka_unit_test(superblock_with_wrong_fields_is_refused),
        cmocka_unit_test(slab_size_is_about_a_4096th_of_the_drive),
        cmocka_unit_test(layout_fits_every_size),
        cmocka_unit_test(table_block_is_only_believed_in_its_place),
        cmocka_unit_test(table_entries_read_back_and_nonsense_is_refused),
        cmocka_unit_test(other_users_of_a_device_are_recognised),
    };
    return cmocka_run_group_tests_name("drive-format", tests, NULL, NULL);
}
