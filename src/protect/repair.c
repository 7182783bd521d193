/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub, and bringing members level.
 *
 * Both work on blocks that the caller holds (G5). Scrub reads every copy, also those that a reader would not
 * have asked, keeps the first right one of each block, rewrites the wrong ones from it and reads them back:
 * "repaired" is said only of what was seen to be right.
 */
#include "protect/group_internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

struct scrub {
    struct group_entry *e;
    uint32_t block, blocks;
    enum verify verify;
    const uint32_t *sums;
    struct page *pages; /* `blocks` of right bytes, then `blocks` to read into */
    uint64_t good[BITS_WORDS];
    uint64_t heard[BITS_WORDS]; /* some member gave bytes of it, right or wrong */
    uint64_t bad_on[GROUP_MEMBERS_MAX][BITS_WORDS];
};

static uint8_t *scrub_good_at(const struct scrub *s, uint32_t i)
{
    return page_at(s->pages, i)->data;
}
static uint8_t *scrub_read_at(const struct scrub *s, uint32_t i)
{
    return page_at(s->pages, s->blocks + i)->data;
}

static may_yield int scrub_io(struct scrub *s, uint32_t m, enum drive_op op, uint32_t first, uint32_t count,
                              uint8_t *bytes, struct page *page)
{
    const struct group_member *member = &s->e->group.members[m];
    struct iovec iov = {bytes, (size_t)count * BLOCK_SIZE};
    return group_drive_do(member->drive, op, (struct group_extent){member->slab, s->block + first, count},
                          &iov, 1, page);
}

/* Reads a member's copy of [first, first + count) behind the right bytes; bad gets the blocks that are not
 * right. Error: the drive answered with one. */
static may_yield int scrub_look(struct scrub *s, uint32_t m, uint32_t first, uint32_t count, uint64_t *bad)
{
    int err = scrub_io(s, m, DRIVE_READ, first, count, scrub_read_at(s, first),
                       page_at(s->pages, s->blocks + first));
    if (err != 0)
        return err;
    if (s->verify == VERIFY_WHOLE) {
        assert(first == 0);
        assert(count == s->blocks);
        if (crc32c(0, scrub_read_at(s, 0), (size_t)count * BLOCK_SIZE) != s->sums[0])
            bits_fill(bad, count);
        return 0;
    }
    for (uint32_t i = first; s->verify == VERIFY_BLOCKS && i < first + count; i++) {
        if (crc32c(0, scrub_read_at(s, i), BLOCK_SIZE) != s->sums[i])
            bits_set(bad, i);
    }
    return 0;
}

static bool drive_went_away(int err)
{
    return err == ERR_DRIVE_GONE || err == ERR_DRIVE_FENCED;
}

static void bits_set_run(uint64_t *bits, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        bits_set(bits, i);
}

/* The same for all blocks; those of a range that cannot be read as a whole are read one by one, and what is
 * one piece is asked for twice. Error: the drive went away. */
static may_yield int scrub_look_all(struct scrub *s, uint32_t m, uint64_t *bad)
{
    int err = scrub_look(s, m, 0, s->blocks, bad);
    if (drive_went_away(err))
        return err;
    if (err == 0) {
        bits_set_run(s->heard, 0, s->blocks);
        return 0;
    }
    uint32_t piece = s->verify == VERIFY_WHOLE ? s->blocks : 1;
    for (uint32_t i = 0; i < s->blocks; i += piece) {
        err = scrub_look(s, m, i, piece, bad);
        if (drive_went_away(err))
            return err;
        if (err == 0)
            bits_set_run(s->heard, i, piece);
        else
            bits_set_run(bad, i, piece);
    }
    return 0;
}

static may_yield int scrub_member(struct scrub *s, uint32_t m, struct group_check *check)
{
    int err = scrub_look_all(s, m, s->bad_on[m]);
    if (err != 0)
        return err;
    uint32_t wrong = bits_count(s->bad_on[m]);
    check->copies_checked += s->blocks;
    check->copies_bad += wrong;
    counter_add(&s->e->set->counters.checksum_errors, wrong);
    for (uint32_t i = 0; i < s->blocks; i++) {
        if (bits_get(s->bad_on[m], i) || bits_get(s->good, i))
            continue;
        memcpy(scrub_good_at(s, i), scrub_read_at(s, i), BLOCK_SIZE);
        bits_set(s->good, i);
    }
    return 0;
}

/* Rewrites a member's wrong blocks and sees whether they are right afterwards. */
static may_yield void scrub_heal(struct scrub *s, uint32_t m, struct group_check *check)
{
    struct group_entry *e = s->e;
    const struct group_member before = e->group.members[m];
    for (uint32_t i = 0, n; i < s->blocks; i += n) {
        for (n = 0; i + n < s->blocks && bits_get(s->bad_on[m], i + n) && bits_get(s->good, i + n);)
            n++;
        if (n == 0) {
            n = 1;
            continue;
        }
        const struct group_member *now = &e->group.members[m];
        if (now->state != MEMBER_CURRENT || now->drive != before.drive || now->slab != before.slab ||
            !group_drive_usable(now->drive))
            return;
        e->writing[m]++;
        int err = scrub_io(s, m, DRIVE_WRITE, i, n, scrub_good_at(s, i), page_at(s->pages, i));
        if (--e->writing[m] == 0)
            waitq_wake_all(&e->drained);
        if (err != 0)
            return; /* the drive is failed now, and the volume knows */
        uint64_t still[BITS_WORDS] = {0};
        if (scrub_look(s, m, i, n, still) != 0)
            continue;
        uint32_t repaired = n - bits_count(still);
        check->copies_repaired += repaired;
        if (repaired > 0)
            group_report_repaired(&e->group, &before, s->block + i, repaired);
    }
}

int group_scrub(struct group *g, uint32_t block, uint32_t blocks, enum verify v, const uint32_t *sums,
                struct group_check *ret, uint64_t ret_bad[GROUP_READ_MAX / 64])
{
    assert(blocks >= 1);
    assert(blocks <= GROUP_READ_MAX);
    assert(block < g->blocks);
    assert(blocks <= g->blocks - block);
    assert(v == VERIFY_NONE || sums != NULL);
    struct group_entry *e = group_entry_of(g);
    struct scrub s = {.e = e, .block = block, .blocks = blocks, .verify = v, .sums = sums};
    int err = page_alloc_wait(2 * blocks, DEADLINE_NEVER, &s.pages);
    if (err != 0)
        return err;
    e->io_count++;
    fiber_shield();
    struct group_check check = {0};
    bool any = false;
    for (uint32_t m = 0; m < g->member_count; m++) {
        if (g->members[m].state == MEMBER_CURRENT && group_drive_readable(g->members[m].drive))
            any |= scrub_member(&s, m, &check) == 0;
    }
    /* Log and roots (VERIFY_NONE) are written over while they are scrubbed: what is unreadable there is
     * reported, and rewritten by its owner. */
    for (uint32_t m = 0; v != VERIFY_NONE && m < g->member_count; m++) {
        if (bits_any(s.bad_on[m]))
            scrub_heal(&s, m, &check);
    }
    fiber_unshield();
    e->io_count--;
    page_put(s.pages, 2 * blocks);
    if (!any)
        return ERR_GROUP_DEGRADED_BELOW;
    uint64_t lost[BITS_WORDS];
    bits_fill(lost, blocks);
    for (uint32_t w = 0; w < BITS_WORDS; w++)
        lost[w] &= ~s.good[w];
    check.lost = bits_any(lost);
    for (uint32_t w = 0; w < BITS_WORDS; w++)
        check.unread |= (lost[w] & ~s.heard[w]) != 0;
    if (check.lost && v != VERIFY_NONE)
        group_report_lost(e->set, g->id, block, bits_count(lost));
    *ret = check;
    memcpy(ret_bad, lost, sizeof(lost));
    return 0;
}

/* ---- Catching up ---- */

/* Nobody else has some of the blocks. If the member was the last that had them, they may still be there, and
 * right: what came back counts as much as what was copied. */
static may_yield int copy_judge_own(struct group *g, uint32_t member, struct group_read *tried)
{
    struct group_read own = {.group = g,
                             .block = tried->block,
                             .blocks = tried->blocks,
                             .verify = tried->verify,
                             .sums = tried->sums,
                             .only = (int)member};
    uint64_t lost[BITS_WORDS];
    memcpy(lost, tried->bad, sizeof(lost));
    int err = group_read(&own);
    if (own.page != NULL)
        page_put(own.page, own.blocks);
    for (uint32_t w = 0; w < BITS_WORDS; w++)
        lost[w] &= own.bad[w];
    if (err == 0 || !bits_any(lost))
        return 0;
    group_report_lost(group_entry_of(g)->set, g->id, tried->block, bits_count(lost));
    return ERR_NO_GOOD_COPY;
}

/* Writes what was read right. ERR_DRIVE_GONE: the member's drive failed, or it is not filling any more. */
static may_yield int copy_write(struct group *g, uint32_t member, const struct group_read *r,
                                const struct group_drive *to)
{
    struct group_entry *e = group_entry_of(g);
    for (uint32_t i = 0, n; i < r->blocks; i += n) {
        for (n = 0; i + n < r->blocks && !bits_get(r->bad, i + n);)
            n++;
        if (n == 0) {
            n = 1;
            continue;
        }
        const struct group_member *now = &g->members[member];
        if (now->state != MEMBER_FILLING || now->drive != to || !group_drive_usable(now->drive))
            return ERR_DRIVE_GONE;
        struct iovec iov = {page_at(r->page, i)->data, (size_t)n * BLOCK_SIZE};
        e->writing[member]++;
        int err = group_drive_do(now->drive, DRIVE_WRITE, (struct group_extent){now->slab, r->block + i, n},
                                 &iov, 1, page_at(r->page, i));
        if (--e->writing[member] == 0)
            waitq_wake_all(&e->drained);
        if (err != 0)
            return ERR_DRIVE_GONE; /* it is failed now, and the volume knows */
    }
    return 0;
}

int group_copy_to_member(struct group *g, uint32_t member, uint32_t block, uint32_t blocks, enum verify v,
                         const uint32_t *sums)
{
    assert(member < g->member_count);
    struct group_entry *e = group_entry_of(g);
    struct group_read r = {
        .group = g, .block = block, .blocks = blocks, .verify = v, .sums = sums, .only = -1};
    struct group_drive *to = g->members[member].drive;
    e->io_count++;
    int result = group_read_and(&r, false);
    if (result == ERR_GROUP_DEGRADED_BELOW)
        result = ERR_NO_GOOD_COPY;
    if (r.page != NULL) {
        int err = copy_write(g, member, &r, to);
        page_put(r.page, blocks);
        if (err != 0)
            result = err;
    }
    if (result == ERR_NO_GOOD_COPY && v != VERIFY_NONE && g->members[member].state == MEMBER_FILLING &&
        g->members[member].drive == to)
        result = copy_judge_own(g, member, &r);
    e->io_count--;
    return result;
}

int group_member_fill(struct group *g, uint32_t member)
{
    assert(member < g->member_count);
    struct group_entry *e = group_entry_of(g);
    struct group_member now = g->members[member];
    if (now.state == MEMBER_FILLING)
        return 0;
    if (now.state == MEMBER_CURRENT || now.slab == GROUP_SLAB_NONE)
        return ERR_INVALID;
    if (!group_drive_usable(now.drive))
        return ERR_DRIVE_GONE;
    if (e->writing[member] > 0)
        return ERR_VOLUME_BUSY;
    now.state = MEMBER_FILLING;
    group_member_assign(e, member, &now);
    return 0;
}

bool group_revive(struct group *g)
{
    uint32_t here = 0;
    assert(g->purpose != GROUP_SYSTEM);
    for (uint32_t m = 0; m < g->member_count; m++) {
        const struct group_member *member = &g->members[m];
        if (member->state == MEMBER_CURRENT)
            return false;
        if (member->stale_since_txg == 0)
            continue; /* it never had anything */
        if (!group_drive_usable(member->drive))
            return false;
        here++;
    }
    for (uint32_t m = 0; m < g->member_count; m++) {
        struct group_member now = g->members[m];
        if (now.stale_since_txg == 0)
            continue;
        now.state = MEMBER_CURRENT;
        now.stale_since_txg = 0;
        group_member_assign(group_entry_of(g), m, &now);
    }
    return here > 0;
}

void group_member_give_up(struct group *g, uint32_t member)
{
    assert(member < g->member_count);
    struct group_member now = g->members[member];
    if (now.state != MEMBER_FILLING)
        return;
    now.state = MEMBER_STALE;
    group_member_assign(group_entry_of(g), member, &now);
}

void group_member_levelled(struct group *g, uint32_t member)
{
    assert(member < g->member_count);
    struct group_member now = g->members[member];
    if (now.state != MEMBER_FILLING || !group_drive_usable(now.drive))
        return;
    now.state = MEMBER_CURRENT;
    now.stale_since_txg = 0;
    now.incarnation = group_drive_incarnation(now.drive);
    group_member_assign(group_entry_of(g), member, &now);
}
