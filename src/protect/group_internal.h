/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of protect/ share: the set, its drives, the group's hidden half. */
#ifndef ASHLAR_PROTECT_GROUP_INTERNAL_H
#define ASHLAR_PROTECT_GROUP_INTERNAL_H

#include "protect/group.h"
#include "runtime/list.h"
#include "runtime/reactor.h"

/* A slab that the drive's table gives to this volume under (group, member), but no adopted group names:
 * left by a group_create that a crash interrupted, or that only the log knows. */
struct leftover {
    uint32_t group;
    uint32_t member;
};

/* Repairs (or losses) of blocks, gathered so that an operator sees a few lines and not one a block. */
struct report {
    struct timer timer;
    uint64_t count; /* not yet told */
    uint32_t group, block;
};

struct group_drive {
    struct list link; /* group_set.drives, in the order in which they were first named */
    struct group_set *set;
    struct uuid id;
    struct drive *drive;           /* the reactor's handle; NULL while absent */
    struct drive_session *session; /* NULL while absent or not opened */
    struct fmutex opening;
    bool failed; /* failed a write or a flush, or went away, since the session was opened */

    uint32_t in_flight; /* requests of this layer under way in the session */
    struct waitq idle;  /* woken when in_flight falls to zero */
    uint32_t placing;   /* slabs that are being allocated here */

    uint32_t live;           /* members of all groups on this drive that are not stale */
    uint32_t system_current; /* current members of system groups */

    /* Read latency: the mean, and a high quantile that rises fast and falls slowly. */
    uint64_t mean_ns, high_ns;

    /* Flushes, in numbers of group_set.write_sequence: the last write here; up to which all are on stable
     * media; what somebody waits for; what the flush under way will have covered. */
    uint64_t written, durable, flush_wanted, flush_covers;
    bool flushing;
    struct drive_io flush_io;
    struct waitq flushed;

    bool leftovers_known;
    struct leftover *leftovers;
    uint32_t leftover_count;

    struct report repaired;
};

struct group_entry {
    struct group group;
    struct group_set *set;
    uint32_t rotor;                      /* which copy is asked first when all are idle */
    uint16_t writing[GROUP_MEMBERS_MAX]; /* writes under way to each member */
    uint32_t io_count;                   /* writes and reads under way */
    struct waitq drained;                /* woken when a member's writes have drained */
};

/* A slab that group_member_replace left behind, until group_set_reap. */
struct retired_slab {
    struct list link;
    struct group_drive *drive;
    uint32_t group, member, slab;
};

struct group_set {
    struct group_set_options o;
    struct group_counters counters;
    struct list drives; /* struct group_drive */
    struct fiber *watcher;
    uint64_t write_sequence; /* numbers the writes that completed without dsync */
    bool flush_lost;         /* unflushed writes were lost with their last copy: the next flush says so */

    /* Groups by ascending id; ids beside the pointers so that a search touches little memory. */
    uint32_t *ids;
    struct group_entry **entries;
    uint32_t entry_count, entry_room;

    struct group_drive *lease_drives[SYSTEM_MEMBERS_MAX]; /* those with system_current > 0 */
    uint32_t lease_count;

    struct list attempts_free; /* struct read_attempt */
    uint32_t attempts_kept;
    uint32_t loose_reads; /* losers of hedged reads that are still under way */
    uint32_t hedges_now;  /* hedge reads under way */
    struct waitq idle;    /* woken when loose_reads falls to zero */

    struct list deferred; /* struct group_write that ended at once, to be told from the loop */
    struct timer deferred_timer;

    struct list retired; /* struct retired_slab */
    uint32_t creating;   /* calls of group_create under way */
    uint64_t slabs_free; /* of all candidates, when drives were last looked at */
    struct report lost;
};

/* The head is the entry's first member. */
static inline struct group_entry *group_entry_of(const struct group *g)
{
    static_assert(offsetof(struct group_entry, group) == 0, "a group is the head of its entry");
    return (struct group_entry *)(uintptr_t)g;
}

/* ---- group.c ---- */

struct group_drive *group_set_drive_find(const struct group_set *s, struct uuid id);
/* Finds or makes; does not open. */
int group_set_drive_add(struct group_set *s, struct uuid id, struct group_drive **ret) MUST_CHECK;
/* Marks the drive as failed; tells the volume the first time. Must not yield. */
void group_drive_fail(struct group_drive *d);
/* There is a session and the drive still answers: worth asking for a read, even if a write failed. */
bool group_drive_readable(const struct group_drive *d);
/* Every request goes through these two; `done` of the request must call the second one first. */
void group_drive_begin(struct group_drive *d, struct drive_io *io);
void group_drive_end(struct group_drive *d, struct drive_io *io);
/* One request, waited for; not cancellable. ERR_DRIVE_GONE without a session. */
struct group_extent {
    uint32_t slab, block, blocks;
};
int group_drive_do(struct group_drive *d, enum drive_op op, struct group_extent at, const struct iovec *iov,
                   uint32_t iov_count, struct page *page) MUST_CHECK may_yield;
/* Adds the entry to the set and counts its members. ERR_NO_MEMORY, ERR_EXISTS. */
int group_set_insert(struct group_set *s, struct group_entry *e) MUST_CHECK;
void group_set_remove(struct group_set *s, struct group_entry *e);
/* All changes of a member's state or place go through this. */
void group_member_assign(struct group_entry *e, uint32_t member, const struct group_member *now);

/* ---- write.c ---- */

void group_write_deferred(struct timer *t);
void group_drive_flush_init(struct group_drive *d);
/* Some writes of this drive completed, no flush has made them durable, and now none can. */
bool group_drive_lost_writes(const struct group_drive *d);
/* Has every group with a drive that lost writes another current copy? Else ERR_GROUP_DEGRADED_BELOW. */
int group_set_judge_loss(const struct group_set *s) MUST_CHECK;

/* ---- read.c ---- */

void group_read_pool_free(struct group_set *s);
/* group_read; report_lost: count and tell blocks without a good copy. */
int group_read_and(struct group_read *r, bool report_lost) MUST_CHECK may_yield;

/* ---- report.c ---- */

void report_init(struct report *r, void (*fn)(struct timer *t));
void group_report_repaired(const struct group *g, const struct group_member *m, uint32_t block,
                           uint32_t blocks);
void group_report_lost(struct group_set *s, uint32_t group, uint32_t block, uint32_t blocks);
void group_report_repaired_due(struct timer *t);
void group_report_lost_due(struct timer *t);
/* Tells what is gathered and stops the timer. */
void group_report_end_drive(struct group_drive *d);
void group_report_end_set(struct group_set *s);

/* ---- Bits of up to GROUP_READ_MAX blocks ---- */

#define BITS_WORDS (GROUP_READ_MAX / 64)
static_assert(GROUP_READ_MAX % 64 == 0, "whole words");

static inline bool bits_get(const uint64_t *b, uint32_t i)
{
    return (b[i / 64] >> (i % 64)) & 1;
}
static inline void bits_set(uint64_t *b, uint32_t i)
{
    b[i / 64] |= UINT64_C(1) << (i % 64);
}
static inline void bits_clear(uint64_t *b, uint32_t i)
{
    b[i / 64] &= ~(UINT64_C(1) << (i % 64));
}
static inline bool bits_any(const uint64_t *b)
{
    return (b[0] | b[1] | b[2] | b[3]) != 0;
}
static_assert(BITS_WORDS == 4, "bits_any looks at four words");
static inline uint32_t bits_count(const uint64_t *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < BITS_WORDS; i++)
        n += (uint32_t)__builtin_popcountll(b[i]);
    return n;
}
static inline void bits_fill(uint64_t *b, uint32_t count)
{
    memset(b, 0, BITS_WORDS * sizeof(*b));
    for (uint32_t i = 0; i < count; i += 64)
        b[i / 64] = count - i >= 64 ? UINT64_MAX : (UINT64_C(1) << (count - i)) - 1;
}

#endif
