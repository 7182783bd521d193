/* SPDX-License-Identifier: Apache-2.0 */
/* Roots, and the extents of head trees: what is accepted is as promised, and what was sealed is accepted. */
#include "volume/log_read.h"

#include "runtime/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct uuid volume = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};

static void root(const uint8_t *data, size_t size, bool mend)
{
    struct disk_root r = {0};
    memcpy(&r, data, MIN(size, sizeof(r)));
    if (mend) {
        r.magic = le64_make(ROOT_MAGIC);
        r.version = le32_make(VOLUME_FORMAT_VERSION);
        r.block_size = le32_make(BLOCK_SIZE);
        r.volume = volume;
        root_seal(&r);
    }
    int err = root_check(&r, volume);
    assert(!mend || err == 0 || (err == ERR_UNSUPPORTED && le64_get(r.features_incompat) != 0));
    if (err != 0)
        return;
    /* No bit of it can change unseen. */
    uint8_t *bytes = (uint8_t *)&r;
    size_t at = size > 2 ? (data[0] | (size_t)data[1] << 8) % sizeof(r) : 0;
    bytes[at] ^= 0x10;
    err = root_check(&r, volume);
    assert(err != 0);
}

static void extent(const uint8_t *data, size_t size)
{
    struct tree_key key = {OBJECT_BLOCK_DEVICE, ITEM_EXTENT, 0};
    struct extent e;
    uint8_t out[EXTENT_ITEM_MAX];
    if (size < 8)
        return;
    memcpy(&key.offset, data, 8);
    key.offset &= ~(uint64_t)(BLOCK_SIZE - 1);
    if (extent_decode(&key, data + 8, (uint32_t)MIN(size - 8, (size_t)ITEM_LEN_MAX), &e) != 0)
        return;
    assert(e.blocks > 0 && e.start == key.offset / BLOCK_SIZE);
    uint32_t len = extent_encode(&e, out);
    struct extent again;
    int err = extent_decode(&key, out, len, &again);
    assert(err == 0 && again.blocks == e.blocks && again.flags == e.flags && again.start == e.start);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] & 2)
        extent(data + 1, size - 1);
    else
        root(data + 1, size - 1, data[0] & 1);
    return 0;
}
