/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: the slabs on distinct drives that together hold one run of a volume's space under one protection.
 *
 * A group_set is one volume's groups and drive sessions on the volume's reactor. It knows where copies are,
 * which of them may be read, and how to get a right block out of the drives that are left. It does not know
 * what is in the blocks: whoever reads brings the checksums. It decides nothing about membership either: it
 * reports which drives failed; the volume makes them stale (log record, compare-and-set) *before* it
 * acknowledges anything that they missed (invariants 1 and 2).
 *
 * States of a member:
 *      current --(its drive failed a write or a flush: volume_drive_stale)--> stale
 *      stale --(group_member_fill: gets new writes, is not read)--> filling --(levelled, flushed,
 * verified)--> current stale --(another drive takes its place: group_member_replace)--> filling Reads use
 * current members only. Writes go to current and filling members.
 */
#ifndef ASHLAR_PROTECT_GROUP_H
#define ASHLAR_PROTECT_GROUP_H

#include "cluster/record.h"
#include "drive/local.h"

#define GROUP_MEMBERS_MAX 20u        /* parity:16+4 */
#define GROUP_READ_MAX    256u       /* blocks in one verified read; 1 MiB */
#define GROUP_SLAB_NONE   UINT32_MAX /* of a stale member that has no slab (yet) */

/* What a group is for. System groups (ids 0 .. system_runs-1) hold root ring and intent log and nothing else;
 * their membership is the volume record's in-sync set. */
enum group_purpose { GROUP_SYSTEM, GROUP_TREE, GROUP_DATA };
enum member_state { MEMBER_CURRENT, MEMBER_STALE, MEMBER_FILLING };

struct group_drive; /* a drive as this volume sees it: session, unflushed writes */

struct group_member {
    struct group_drive *drive; /* never NULL; it may be absent */
    uint32_t slab;             /* GROUP_SLAB_NONE: of a stale member only */
    enum member_state state;
    uint64_t stale_since_txg; /* first txg that it may lack; MEMBER_STALE and MEMBER_FILLING only */
    uint64_t incarnation;     /* of the drive when the member was made or last levelled; 0: not known */
};

struct group {
    uint32_t id;
    enum group_purpose purpose;
    enum protection_kind kind; /* PROTECT_NONE or PROTECT_MIRROR; parity brings its own way of addressing */
    uint32_t blocks;           /* that can be addressed: slab blocks x data members */
    uint32_t member_count;
    struct group_member members[GROUP_MEMBERS_MAX];
    void *volume_private; /* the volume's: its allocation state */
};

/* Blocks of one member, and where they lie. */
struct group_copy {
    enum group_purpose purpose;
    uint32_t group;
    struct uuid drive;
    uint32_t slab, block, blocks;
};

struct group_set;
struct group_set_options {
    struct uuid volume;
    uint64_t epoch;
    uint64_t generation;      /* coordinator's */
    struct drive_set *drives; /* this reactor's */
    uint32_t slab_blocks;
    /* A drive failed a write or a flush of this volume (first failure only), or is gone. In the loop or from
     * within a call of the set; must not yield, nor call back into the set but for asking. From now on
     * `failed` stays set in the results until the volume has made the drive stale. */
    void (*drive_failed)(void *ctx, struct group_drive *d);
    /* Or NULL. A copy that did not verify was rewritten from another one. Must not yield. */
    void (*copy_rewritten)(void *ctx, const struct group_copy *c);
    void *ctx;
};
int group_set_new(const struct group_set_options *o, struct group_set **ret) MUST_CHECK;
/* Nothing may be under way. */
void group_set_free(struct group_set *s) may_yield;

/* ---- Drives of the set ---- */

/* Finds or adds the drive and opens (fences) its session if it is here. A drive that is not here is added as
 * absent: ERR_DRIVE_GONE, and *ret_drive is set all the same. ERR_DRIVE_FENCED: somebody has a higher epoch.
 */
int group_drive_open(struct group_set *s, struct uuid id, struct group_drive **ret_drive)
    MUST_CHECK may_yield;
struct uuid group_drive_id(const struct group_drive *d);
bool group_drive_present(const struct group_drive *d);
/* Present, and nothing failed since it was opened. */
bool group_drive_usable(const struct group_drive *d);
uint64_t group_drive_incarnation(const struct group_drive *d);
struct drive_session *group_drive_session(const struct group_drive *d);
/* The volume has recorded the drive as stale: marks all its members of all groups (system groups too) stale
 * since txg; results no longer mention it. If writes that were not flushed had their last copy there, the
 * next flush fails. */
void group_drive_make_stale(struct group_set *s, struct group_drive *d, uint64_t txg);
/* After the drive came back, or was found again: a new session. Members stay stale until they are levelled.
 */
int group_drive_reopen(struct group_set *s, struct group_drive *d) MUST_CHECK may_yield;
/* All leases needed for a read are alive; else renews them (may yield). ERR_DRIVE_GONE, ERR_DRIVE_FENCED.
 * Cheap when alive. Only drives with current members of system groups count (invariant 4). */
bool group_set_leases_alive(const struct group_set *s);
int group_set_leases_renew(struct group_set *s) MUST_CHECK may_yield;

/* ---- Groups ---- */

/* Picks drives (distinct, most free slabs first; usable ones only; all system groups of a volume get the same
 * drives in the same order) and allocates a slab on each. Idempotent by id: after a crash the same id finds
 * its slabs again, and a group that is known already is returned. While drives are missing that other groups
 * have members on, a tree or data group may come with fewer current members than copies, at least one: the
 * others are stale on missing drives, without a slab. Only if the usable drives have no room for all copies.
 * ERR_NOT_ENOUGH_DRIVES (fewer drives than copies exist), ERR_DRIVE_NO_SPACE (they are full), ERR_EXISTS
 * (known, but of another kind), ERR_BAD_PROTECTION, ERR_DRIVE_FENCED. */
int group_create(struct group_set *s, uint32_t id, enum group_purpose purpose, struct protection p,
                 uint32_t copies, struct group **ret) MUST_CHECK may_yield;
/* A group as the volume knows it from its pool tree or record; members' drives are opened as needed; absent
 * ones are kept. */
int group_adopt(struct group_set *s, const struct group *description, struct group **ret)
    MUST_CHECK may_yield;
/* Gives the slabs back to the drives that are present and forgets the group, also when it returns an error.
 * Nothing may be under way in it. */
int group_destroy(struct group_set *s, struct group *g) MUST_CHECK may_yield;
struct group *group_find(const struct group_set *s, uint32_t id);
/* Free slabs on all usable drives together, as they were when a member was last placed; 0 before. */
uint64_t group_set_slabs_free(const struct group_set *s);
/* Iterates in ascending id: NULL for the first; NULL at the end. */
struct group *group_next(const struct group_set *s, const struct group *g);
/* True if every member is current and its drive usable. */
bool group_healthy(const struct group *g);
/* How many more members may be lost before data is lost; -1: already lost. */
int group_redundancy_left(const struct group *g);

/* Bytes of a group in the pool tree (group_format.h). */
#define GROUP_ITEM_MAX (64u + GROUP_MEMBERS_MAX * 48u)
uint32_t group_encode(const struct group *g, uint8_t out[GROUP_ITEM_MAX]);
/* Members' drives come out as ids in ret_drives[]; ret->members[i].drive is NULL. ERR_VOLUME_CORRUPT. */
int group_decode(const uint8_t *in, uint32_t len, struct group *ret,
                 struct uuid ret_drives[GROUP_MEMBERS_MAX]) MUST_CHECK;
/* group_adopt for a decoded one. */
int group_adopt_decoded(struct group_set *s, const struct group *decoded, const struct uuid *drives,
                        struct group **ret) MUST_CHECK may_yield;

/* ---- I/O ---- */

/*
 * A write to all current and filling members. The caller owns it until done(), which is called exactly once,
 * from the loop, after *every* member answered (so that no late write of ours can land in a block that was
 * given away). result is 0 if at least one current member has all of it. failed tells that some member's
 * drive that is not stale yet missed it: do not acknowledge before it is recorded as stale.
 */
struct group_write {
    struct group *group;
    uint32_t block;
    uint32_t blocks;
    const struct iovec *iov;
    uint32_t iov_count;
    struct page *page;
    bool dsync;
    int result;
    bool failed;
    void (*done)(struct group_write *w);
    void *ctx;
    uint32_t pending;     /* protect's, from here on */
    uint32_t asked, good; /* bits of members */
    struct drive_io ios_inline[3];
    struct drive_io *ios; /* one a member; ios_inline for up to three */
    struct list link;
};
void group_write_submit(struct group_write *w);
int group_write_wait(struct group_write *w) MUST_CHECK may_yield; /* submit and wait; result */

enum verify { VERIFY_BLOCKS, VERIFY_WHOLE, VERIFY_NONE };
/*
 * A verified read: the least loaded current member first, hedged to another one when it is slow, and every
 * other copy before giving up. A copy with a wrong checksum is rewritten from a right one, counted and
 * reported (invariant 7). VERIFY_BLOCKS: sums[i] is the crc32c of block i; VERIFY_WHOLE: sums[0] is the
 * crc32c of all; VERIFY_NONE: any copy's bytes (log and roots, which verify themselves), from member `only`
 * alone if >= 0.
 */
struct group_read {
    struct group *group;
    uint32_t block;
    uint32_t blocks; /* 1 .. GROUP_READ_MAX */
    /* Where to. Each piece is a multiple of BLOCK_SIZE. Or iov_count 0: the read hands out pages of its own,
     * in `page`, a run of `blocks` that is the caller's to put; that saves a copy in memory where there is
     * more than one member. They come with ERR_NO_GOOD_COPY too; else page is NULL. */
    const struct iovec *iov;
    uint32_t iov_count;
    struct page *page;
    enum verify verify;
    const uint32_t *sums;
    int only;                          /* member index, or -1 */
    uint64_t bad[GROUP_READ_MAX / 64]; /* result: bit per block that has no good copy (VERIFY_BLOCKS) */
};
/* 0; ERR_NO_GOOD_COPY: the good blocks are in the vector, the others are marked in bad and read as zeroes;
 * ERR_GROUP_DEGRADED_BELOW: no member could be asked. The caller keeps the blocks from being given away
 * until the call returns (bad copies are rewritten). Not cancellable. */
int group_read(struct group_read *r) MUST_CHECK may_yield;

/* Flushes every drive that has unflushed writes of this volume. 0: everything completed before is on stable
 * media of every drive that is neither stale nor failed, and no group lost all its copies of it;
 * ERR_GROUP_DEGRADED_BELOW: some group did. *ret_failed (set in either case): as group_write.failed, for any
 * member of any group. Concurrent calls share flushes. */
int group_set_flush(struct group_set *s, bool *ret_failed) MUST_CHECK may_yield;

/* ---- For scrub and repair ---- */

struct group_check {
    uint32_t copies_checked, copies_bad, copies_repaired;
    bool lost; /* no good copy */
    /* lost, and of some such block no current member gave any bytes: it may be whole where it is not heard */
    bool unread;
};
/* Reads every current member's copy, compares with the checksums, rewrites bad ones from a good one and reads
 * those again. Counts are in blocks. The caller keeps the blocks from being given away meanwhile. VERIFY_NONE
 * only sees whether they can be read. ERR_GROUP_DEGRADED_BELOW: no member could be asked. */
int group_scrub(struct group *g, uint32_t block, uint32_t blocks, enum verify v, const uint32_t *sums,
                struct group_check *ret, uint64_t ret_bad[GROUP_READ_MAX / 64]) MUST_CHECK may_yield;
/* Copies blocks, verified, from a current member to a filling one. What no current member has, but the
 * filling one has right from before, counts as copied. ERR_NO_GOOD_COPY: nobody has some of them, the others
 * were copied; ERR_DRIVE_GONE: the filling member's drive failed, or it is not filling any more. */
int group_copy_to_member(struct group *g, uint32_t member, uint32_t block, uint32_t blocks, enum verify v,
                         const uint32_t *sums) MUST_CHECK may_yield;
/* stale -> filling on the same slab. ERR_DRIVE_GONE (not usable), ERR_VOLUME_BUSY (writes from before it was
 * stale are still under way), ERR_INVALID (it is current, or has no slab). */
int group_member_fill(struct group *g, uint32_t member) MUST_CHECK;
/* Of a group without a current member: the members that are here become current again, though each may lack
 * something, for what they have is verified when it is read. Only if every member that ever had data is here,
 * so that no better copy is given up for a worse one. False: nothing was done. Not for system groups. */
bool group_revive(struct group *g);
/* filling -> stale: the copying has ended before it was complete, and begins anew some time. */
void group_member_give_up(struct group *g, uint32_t member);
/* stale -> filling on a slab of another drive (not one of the group's; but its own, if it has no slab there),
 * which lacks everything (stale_since_txg 0). The old slab stays taken until group_set_reap, so that a crash
 * before the change is committed finds what the old description names. Idempotent after a crash.
 * ERR_NOT_ENOUGH_DRIVES, ERR_DRIVE_NO_SPACE, ERR_INVALID (not stale). */
int group_member_replace(struct group_set *s, struct group *g, uint32_t member) MUST_CHECK may_yield;
/* Gives back the slabs that replaced members left on drives that are here. Call it after a commit that holds
 * the replacements. ERR_DRIVE_FENCED; what else cannot be freed, the owner finds at its next open. */
int group_set_reap(struct group_set *s) MUST_CHECK may_yield;
/* filling -> current; the caller has copied, flushed and verified everything. Nothing happens if the drive
 * failed meanwhile: look at the state afterwards. */
void group_member_levelled(struct group *g, uint32_t member);

/* Counters since the set was opened. */
struct group_counters {
    uint64_t blocks_repaired, blocks_lost, checksum_errors, hedged_reads, hedges_won, degraded_reads;
};
const struct group_counters *group_set_counters(const struct group_set *s);

#endif
