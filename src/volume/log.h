/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The intent log: the record of acknowledged changes since the last committed root, with group commit.
 *
 * Records gather in a batch while others are under way. A batch goes to the drives together with the data
 * that its records name: data blocks side by side as one I/O, the log blocks as another. It counts (is
 * *acknowledged*) when it, its data and every batch before it are written, and every drive that missed some
 * of it is recorded as stale. It is *durable* when a flush that began after that has ended; a batch that is
 * all that somebody waits for is written so that it is durable when written, without a flush.
 *
 *   open --(cut: full, or a commit begins)--> closed --(place free)--> writing --> written --> acknowledged
 *
 * A batch says up to where everything was durable when it was written, and replay demands all of that. So
 * that this holds for the last flush of a volume that then rests, an empty batch follows it (a *mark*): else
 * damage before the next start would look like a write that was never finished. A mark wants no mark itself.
 *
 * Invariants
 *  L1  sequences are gapless; batches are acknowledged in their order (invariant 1, Ack);
 *  L2  a log block is overwritten only when the root after the one that made it needless is durable;
 *  L3  log_add() never yields; log_ensure() does, and promises nothing after another yield;
 *  L4  the records of one txg are in batches of their own: a commit cuts the open batch.
 */
#ifndef ASHLAR_VOLUME_LOG_H
#define ASHLAR_VOLUME_LOG_H

#include "protect/group.h"
#include "runtime/list.h"
#include "volume/format.h"
#include "volume/volume.h"

#define LOG_WRITING_MAX   2u                   /* batches on their way at once */
#define LOG_QUEUE_MAX     8u                   /* closed ones that wait */
#define LOG_HEADER_PAGES  32u                  /* all records of one change of items fit: 64 KiB and more */
#define LOG_MARK_NS       (50 * NSEC_PER_MSEC) /* of rest, after which a mark is written */
#define LOG_DATA_RUNS_MAX 128u                 /* data runs of one batch */
#define LOG_PAYLOAD_PAGES 256u

/* Blocks on their way to their final place, or into the payload. */
struct log_data {
    uint32_t space;
    uint32_t count;
    uint64_t block;
    struct page *page; /* count pages of one run; the batch holds a reference */
};

struct log_batch {
    struct list link;
    struct volume *volume;
    uint64_t sequence;
    uint64_t txg;
    uint64_t position;   /* log block number, from submit on */
    struct page *header; /* LOG_HEADER_PAGES */
    uint32_t record_bytes, record_count;
    uint32_t flags;
    bool want_flush;
    bool dsync;       /* the log write itself is durable, and nothing else is needed: see batch_submit() */
    uint32_t refs;    /* waiting operations, and the log itself */
    uint32_t pending; /* writes under way */
    int result;       /* of the log write: negative fails the volume */
    int data_result;  /* some data found no member: its operations get this */
    bool written, acknowledged;
    struct log_data data[LOG_DATA_RUNS_MAX];
    uint32_t data_count;
    struct log_data payload[LOG_DATA_RUNS_MAX];
    uint32_t payload_count, payload_pages;
    struct group_write few[4];                    /* writes: these, or malloc'ed when they are more */
    struct group_write *writes;                   /* from submit to written */
    struct iovec iov[2 * LOG_DATA_RUNS_MAX + 64]; /* and a cut for each run of the system group */
    uint32_t write_count;
    uint64_t opened_ns;
    struct waitq waiters;
};

struct log {
    struct log_batch *open;
    struct list queue;   /* closed, oldest first */
    struct list writing; /* submitted, in order, until acknowledged */
    uint32_t writing_count, queue_count;
    uint64_t next_sequence; /* of the next batch that is opened */
    uint64_t acknowledged;  /* every batch below is */
    uint64_t written;       /* every batch below is written, data too */
    uint64_t durable;       /* every batch below is on stable media */
    uint64_t want_durable;
    uint64_t lost_from, lost_to; /* batches whose flush lost data with its last copy: EIO for who waits */
    uint64_t head;               /* log block number where the next batch goes */
    uint64_t tail;               /* oldest one that is still needed (L2) */
    uint64_t blocks;             /* size of the ring */
    bool paused;                 /* acknowledgements wait: a failed drive is not recorded yet */
    bool stopped;                /* the volume failed: nothing is sent any more */
    struct fiber *flusher;
    bool flusher_stop;
    struct waitq flush_wanted;
    struct waitq durable_changed;
    struct waitq acknowledged_changed;
    struct waitq room;
    struct log_batch *spare[2]; /* kept for reuse: as many as are under way at once */
    uint32_t spare_count;
    uint64_t last_plain;                 /* 1 + sequence of the last batch that needs a flush to be durable */
    uint64_t reserved;                   /* log blocks that the open and the closed batches will take */
    uint64_t cut_sequence, cut_position; /* of the last cut: first batch after it, and its place */
    uint64_t batches, records;
    uint64_t marked;  /* a durable batch says: every one below is durable */
    uint64_t carrier; /* the newest batch that was sent, and what it says, once it is durable */
    uint64_t carried;
    uint64_t records_end; /* after the newest batch with records */
    bool marking;         /* the flusher waits for the time of a mark */
    uint64_t rests_ns;    /* since when no batch was sent */
};

/* durable: every batch below it is known to be on stable media. */
int log_init(struct volume *v, uint64_t next_sequence, uint64_t durable, uint64_t head, uint64_t tail)
    MUST_CHECK;
/* After everything is acknowledged or failed. */
void log_done(struct volume *v) may_yield;

/* What an operation will add at most. */
struct log_need {
    uint32_t record_bytes; /* LOG_RECORD_BYTES of each record */
    uint32_t data_runs;
    uint32_t payload_pages; /* 0, or as many as the data runs have */
    bool last_resort;       /* may use the blocks kept for stale marks */
};
#define LOG_RECORD_BYTES(len) (ALIGN_UP((uint32_t)sizeof(struct disk_log_record) + (uint32_t)(len), 8u))
#define LOG_RESERVE_BLOCKS    16u
bool log_ready(const struct volume *v, const struct log_need *n);
/* Room in a batch and in the ring. The volume's state if it failed, ERR_NO_MEMORY. */
int log_ensure(struct volume *v, const struct log_need *n) MUST_CHECK may_yield;
/* Space for one record's body of len bytes in the open batch; the batch is borrowed (log_batch_get to wait
 * for it). */
void *log_add(struct volume *v, uint16_t type, uint16_t flags, uint32_t head, uint32_t len,
              struct log_batch **ret_batch);
/* Data that the records name: goes with the batch, to its place (or inline: only as payload). Takes
 * references. */
void log_add_data(struct log_batch *b, uint32_t space, uint64_t block, struct page *page, uint32_t count,
                  bool inline_payload);
/* A batch that is not acknowledged yet, or NULL. */
struct log_batch *log_batch_find(struct volume *v, uint64_t sequence);
void log_batch_get(struct log_batch *b);
void log_batch_put(struct log_batch *b);
/* Waits until the batch is acknowledged, and durable if asked. Not cancellable. 0, data_result, or the
 * volume's state. */
int log_wait(struct volume *v, struct log_batch *b, bool durable) may_yield;
/* Everything acknowledged now is durable when it returns. */
int log_flush(struct volume *v) may_yield;
/* Ends the open batch; returns the first sequence of the next txg. */
uint64_t log_cut(struct volume *v);
/* Waits until every batch below is written (not acknowledged). */
int log_wait_written(struct volume *v, uint64_t sequence) may_yield;
/* Sends what can be sent: called at the end of each turn. Never yields. */
void log_send(struct volume *v);
/* A flush said that data was lost with its last copy. */
void log_flush_lost(struct volume *v);
/* Every batch below the sequence was flushed by a commit. */
void log_durable(struct volume *v, uint64_t sequence);
/* A root is durable that needs log blocks from tail on only. */
void log_trim(struct volume *v, uint64_t tail);
/* Acknowledges what may be: after a drive was recorded as stale. */
void log_resume(struct volume *v);
void log_fail(struct volume *v);
/* Where a log block lies: system group (run) and block in it. */
void log_place(const struct volume *v, uint64_t position, uint32_t *ret_group, uint32_t *ret_block);
uint64_t log_ring_blocks(const struct volume_record *r);
/* crc32c of header and records, seeded; the crc field taken as 0. Reads header_blocks whole blocks. */
uint32_t log_batch_crc(const void *batch, uint32_t header_blocks, struct uuid volume, uint64_t epoch,
                       uint64_t sequence);

#endif
