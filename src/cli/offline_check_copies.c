/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ashlar check: are the copies of roots and log alike?
 *
 * Opening takes the best copy of these, so only a look before it tells which are wrong. A root that was being
 * written in a crash may be on some members only; so may the log above the durable mark. What must be on all:
 * the newest root if the volume was closed in order, the root before it if the same owner wrote both (it
 * waited for the first one), and the log below the mark.
 */
#include "cli/offline.h"

#include "volume/inspect.h"

#include <stdlib.h>

struct copies_look {
    struct offline *o;
    const char *name;
    struct volume *v;
    struct disk_root newest, before;
    bool have_before;
    uint32_t has_newest, has_before; /* bits of members */
    uint32_t readable;
    uint32_t bad_batches[SYSTEM_MEMBERS_MAX];
};

static int on_root_slot(void *ctx, const struct inspect_slot *s)
{
    struct copies_look *k = ctx;
    uint64_t txg = le64_get(s->root.txg);
    k->readable |= 1u << s->member;
    if (s->err != 0)
        return 0;
    if (txg == le64_get(k->newest.txg)) {
        k->has_newest |= 1u << s->member;
    } else if (le64_get(s->root.epoch) == le64_get(k->newest.epoch) && txg < le64_get(k->newest.txg) &&
               le64_get(s->root.log_block) == le64_get(k->newest.log_oldest_block) &&
               (!k->have_before || txg >= le64_get(k->before.txg))) {
        if (!k->have_before || txg > le64_get(k->before.txg))
            k->has_before = 0;
        k->have_before = true;
        k->before = s->root;
        k->has_before |= 1u << s->member;
    }
    return 0;
}

static void on_bad_batch(void *ctx, uint32_t member)
{
    struct copies_look *k = ctx;
    k->bad_batches[member]++;
}

static const char *member_path(struct copies_look *k, uint32_t member, char id[UUID_TEXT_SIZE])
{
    uuid_format(k->v->record.members[member].drive_id, id);
    const struct node_drive *d = node_drive_find(&k->o->node, id);
    return d != NULL ? d->path : id;
}

static void copies_tell(struct copies_look *k)
{
    bool clean = le64_get(k->newest.flags) & ROOT_CLEAN;
    for (uint32_t m = 0; m < k->v->record.member_count; m++) {
        char id[UUID_TEXT_SIZE];
        const char *path = member_path(k, m, id);
        if (!(k->readable >> m & 1))
            continue;
        if ((clean && !(k->has_newest >> m & 1)) || (k->have_before && !(k->has_before >> m & 1)))
            offline_problem(
                k->o, "volume", k->name,
                "a root on the drive %s is wrong; another copy is right: start the node, which writes "
                "new ones",
                path);
        if (k->bad_batches[m] > 0)
            offline_problem(
                k->o, "volume", k->name,
                "%u batch(es) of the log on the drive %s are wrong; another copy is right: start the "
                "node, which replays it",
                k->bad_batches[m], path);
    }
}

static int copies_look(struct copies_look *k) may_yield
{
    struct log_scan scan;
    int r = volume_inspect_root(k->v, &k->newest);
    if (r == 0)
        r = volume_inspect_roots(k->v, on_root_slot, k);
    if (r == 0)
        r = log_scan_run(k->v, &k->newest, &scan);
    if (r != 0)
        return r;
    r = volume_inspect_log_copies(k->v, &scan, on_bad_batch, k);
    log_scan_done(&scan);
    return r;
}

/* What cannot be read here at all is said when the volume does not open. */
void offline_copies_check(struct offline *o, const char *name, const struct volume_env *env, struct uuid id)
{
    struct copies_look *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return;
    k->o = o;
    k->name = name;
    if (volume_inspect_open(env, id, &k->v) == 0) {
        if (k->v->record.member_count > 1 && copies_look(k) == 0)
            copies_tell(k);
        volume_inspect_close(k->v);
    }
    free(k);
}
