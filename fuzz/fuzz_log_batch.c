/* SPDX-License-Identifier: Apache-2.0 */
/* The intent log: a batch that log_batch_parse() accepts can be walked to its end, and every record is within
 * it. */
#include "volume/log_read.h"

#include "runtime/error.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCKS_MAX 4u

static const struct uuid volume = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};

/* What a fuzzer does not find by chance: magic, volume, a checksum that is right. */
static void mend(uint8_t *base, uint32_t blocks)
{
    struct disk_log_batch h;
    memcpy(&h, base, sizeof(h));
    uint32_t header_blocks = 1 + le16_get(h.header_blocks) % blocks;
    h.magic = le32_make(LOG_MAGIC);
    h.volume = volume;
    h.header_blocks = le16_make((uint16_t)header_blocks);
    h.record_bytes =
        le32_make(le32_get(h.record_bytes) % (header_blocks * BLOCK_SIZE - (uint32_t)sizeof(h) + 1));
    h.payload_blocks = le32_make(le32_get(h.payload_blocks) % (LOG_BATCH_PAYLOAD_MAX + 1));
    h.crc = le32_make(0);
    memcpy(base, &h, sizeof(h));
    h.crc = le32_make(log_batch_crc(base, header_blocks, volume, le64_get(h.epoch), le64_get(h.sequence)));
    memcpy(base, &h, sizeof(h));
}

static void walk(const struct log_found *b)
{
    struct log_cursor c;
    int r;
    log_cursor_init(&c, b);
    while ((r = log_cursor_next(&c)) == 0) {
        struct extent e;
        assert(c.at <= b->record_bytes);
        assert(c.body >= b->records && c.body + c.len <= b->records + b->record_bytes);
        if (c.type != LOG_EXTENT || log_extent_decode(&c, &e) != 0)
            continue;
        assert(e.blocks > 0);
        uint8_t sum = 0;
        for (uint32_t i = 0; !(e.flags & (EXTENT_ZERO | EXTENT_LOST)) && i < e.blocks * 4; i++)
            sum ^= e.sums[i];
        __asm__ volatile("" : : "r"(sum)); /* the reads happen */
        assert(e.flags & (EXTENT_ZERO | EXTENT_LOST) || e.blocks <= EXTENT_BLOCKS_MAX);
    }
    assert(r == ERR_NOT_FOUND || r == ERR_VOLUME_CORRUPT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint32_t blocks = 1 + data[0] % BLOCKS_MAX;
    uint8_t *base = calloc(blocks, BLOCK_SIZE); /* exactly as long as it says: a read beyond is found */
    if (base == NULL)
        return 0;
    memcpy(base, data + 2, MIN(size - 2, (size_t)blocks * BLOCK_SIZE));
    if (data[1] & 1)
        mend(base, blocks);
    struct log_found found = {0};
    if (log_batch_parse(base, blocks, volume, &found) == 0) {
        assert(found.header_blocks >= 1 && found.header_blocks <= blocks);
        assert(found.records + found.record_bytes <= base + (size_t)found.header_blocks * BLOCK_SIZE);
        walk(&found);
    } else {
        assert(!(data[1] & 1));
    }
    free(base);
    return 0;
}
