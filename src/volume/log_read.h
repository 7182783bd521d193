/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the intent log back: batches in order, from whichever member has them right. */
#ifndef ASHLAR_VOLUME_LOG_READ_H
#define ASHLAR_VOLUME_LOG_READ_H

#include "volume/volume_internal.h"

struct log_found { /* a batch that verified */
    uint64_t sequence, position, epoch, txg, durable;
    uint32_t header_blocks, payload_blocks, record_bytes, record_count;
    bool alone;
    uint8_t *records; /* malloc'ed, record_bytes */
    bool bad;         /* some data that it names has no good copy */
    bool unread;      /* … or could not be read at all: no proof that it was never written */
};

/* Parses header and records of a batch that lies in `blocks` readable blocks at base. Untrusted input. 0, or
 * ERR_VOLUME_CORRUPT. Does not take a copy of the records: ret->records points into base. */
int log_batch_parse(const void *base, uint32_t blocks, struct uuid volume, struct log_found *ret) MUST_CHECK;

/* The n-th record: walks. body points into records. ERR_NOT_FOUND at the end, ERR_VOLUME_CORRUPT. */
struct log_cursor {
    const struct log_found *batch;
    uint32_t at;
    uint16_t type, flags;
    uint32_t head, len;
    const uint8_t *body;
};
void log_cursor_init(struct log_cursor *c, const struct log_found *b);
int log_cursor_next(struct log_cursor *c) MUST_CHECK;
/* LOG_EXTENT: the extent that the record names. */
int log_extent_decode(const struct log_cursor *c, struct extent *ret) MUST_CHECK;

struct log_scan {
    struct log_found *batches;
    size_t count, capacity;
    uint64_t end;      /* log block after the last batch */
    uint64_t sequence; /* of the next batch */
    uint64_t durable;  /* highest mark found */
    uint64_t txg_max;
    bool hole; /* a batch below the mark cannot be read: what is behind it is not applied */
};
/* All batches from the root's place on. */
int log_scan_run(struct volume *v, const struct disk_root *root, struct log_scan *ret) MUST_CHECK may_yield;
void log_scan_done(struct log_scan *s);

#endif
