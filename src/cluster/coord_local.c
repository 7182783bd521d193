/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator of a single node: one file.
 *
 * It lives on the reactor that opened it; calls from others run there (reactor_call). A commit makes a copy
 * of the table, changes it, writes it to PATH and then to PATH.prev, each by atomic replacement, and answers
 * after both: so either file alone holds everything that was answered. If PATH turns out damaged, gone or
 * older than PATH.prev, the latter is used and the generation grows: drives then refuse fences that were
 * made from the history before.
 *
 * On a full file system a reserve of space gives way (coord_reserve.h), and a start writes nothing where both
 * files are whole and say the same.
 *
 * A failed write leaves open which state the disk holds. The caller is told so (ERR_COORD_UNKNOWN), and the
 * next call reads the file before anything else.
 *
 * Records with a lease are in memory only: after a restart of the only node all leases have run out.
 */
#include "cluster/coord_file.h"
#include "cluster/coord_reserve.h"

#include "runtime/error.h"
#include "runtime/list.h"
#include "runtime/log.h"
#include "runtime/reactor.h"

#include <stdio.h>
#include <stdlib.h>

#define DELETED_KEPT    256u
#define WRITE_FAILED_NS (100 * NSEC_PER_MSEC)
#define WATCH_SLICE_NS \
    (NSEC_PER_SEC / 4) /* a wait on behalf of another reactor, which may be cancelled there */

struct local_lease {
    uint64_t id;
    uint64_t ttl_ns;
    uint64_t until_ns;
};

struct coord_local {
    struct coord base;
    struct reactor *reactor;
    char *path;
    char *prev;
    struct coord_reserve reserve; /* of space */
    struct coord_table table;
    struct fmutex lock; /* one change at a time */
    struct waitq changed;
    bool uncertain;                           /* a write failed: the disk decides */
    size_t file_bytes;                        /* as it was last written; 0: not yet */
    bool failing;                             /* the last write failed, and it was told */
    struct coord_entry deleted[DELETED_KEPT]; /* newest removals, for watchers: key and revision */
    uint32_t deleted_next;
    uint64_t deleted_lost; /* highest revision of a removal that is not in the ring any more */
    struct local_lease *leases;
    size_t lease_count;
    uint64_t lease_last;
};

static struct coord_local *local_of(struct coord *c)
{
    return (struct coord_local *)c;
}

/* ---- The file ---- */

/* ERR_COORD_CORRUPT, ERR_COORD_NOT_FOUND: no such file. */
static int read_file(const char *path, struct coord_table *ret) may_yield
{
    char *text;
    size_t len;
    int err = file_read_all(path, COORD_FILE_MAX_BYTES, &text, &len);
    if (err == ERR_SYS(ENOENT))
        return ERR_COORD_NOT_FOUND;
    if (err != 0)
        return err;
    err = coord_file_decode(text, len, ret);
    free(text);
    return err;
}

/* On a full file system the reserve gives way. */
static int write_one(struct coord_local *c, const char *path, const char *text, size_t len) may_yield
{
    int err = file_replace(path, text, len);
    if (coord_reserve_wanted(err) && coord_reserve_give(&c->reserve))
        err = file_replace(path, text, len);
    return err;
}

static int write_both(struct coord_local *c, const struct coord_table *t) may_yield
{
    char *text;
    size_t len;
    int err = coord_file_encode(t, &text, &len);
    if (err != 0)
        return err;
    err = write_one(c, c->path, text, len);
    if (err == 0)
        err = write_one(c, c->prev, text, len);
    free(text);
    if (err != 0) {
        if (!c->failing)
            event_raise(LOG_ERROR_, "coord-write-failed", "%s: %s", c->path, error_text(err));
        c->failing = true;
        /* Whoever settles the result tries again, and may do so in a loop. */
        if (fiber_sleep(WRITE_FAILED_NS) < 0)
            LOG_DEBUG("the wait after a failed write was cancelled");
        return ERR_COORD_UNKNOWN;
    }
    c->failing = false;
    c->file_bytes = len;
    coord_reserve_keep(&c->reserve, len);
    return 0;
}

enum load_state {
    LOAD_LEVEL, /* both are whole and say the same */
    LOAD_FIRST,
    LOAD_RESTORED, /* the first one could not be believed */
};

/* What the two files say together. */
static int load_best(struct coord_local *c, struct coord_table *ret, enum load_state *ret_state) may_yield
{
    struct coord_table first = {0}, second = {0};
    int err1 = read_file(c->path, &first);
    int err2 = read_file(c->prev, &second);
    if (err1 == 0 && (err2 != 0 || second.revision <= first.revision)) {
        bool level = err2 == 0 && second.revision == first.revision && second.generation == first.generation;
        coord_table_done(&second);
        *ret = first;
        *ret_state = level ? LOAD_LEVEL : LOAD_FIRST;
        return 0;
    }
    coord_table_done(&first);
    if (err2 == 0) {
        *ret = second;
        *ret_state = LOAD_RESTORED;
        return 0;
    }
    /* Damage on either side is not an empty beginning. */
    return err1 == ERR_COORD_NOT_FOUND ? err2 : err1;
}

/* ---- Removals and leases ---- */

static void remember_removed(struct coord_local *c, const char *key, uint64_t revision)
{
    struct coord_entry *slot = &c->deleted[c->deleted_next++ % DELETED_KEPT];
    c->deleted_lost = MAX(c->deleted_lost, slot->revision);
    free(slot->key);
    slot->key = strdup(key);
    slot->revision = revision;
    if (slot->key == NULL)
        c->deleted_lost = revision;
}

static struct local_lease *lease_find(struct coord_local *c, uint64_t id)
{
    for (size_t i = 0; i < c->lease_count; i++)
        if (c->leases[i].id == id)
            return &c->leases[i];
    return NULL;
}

static void lease_end(struct coord_local *c, size_t at)
{
    uint64_t id = c->leases[at].id;
    c->leases[at] = c->leases[--c->lease_count];
    for (size_t i = c->table.count; i-- > 0;) {
        if (c->table.entries[i].lease != id)
            continue;
        remember_removed(c, c->table.entries[i].key, ++c->table.revision);
        coord_table_remove(&c->table, c->table.entries[i].key);
    }
}

/* Returns when the next one runs out. */
static uint64_t leases_expire(struct coord_local *c)
{
    uint64_t next = DEADLINE_NEVER;
    uint64_t now = reactor_now_ns();
    bool ended = false;
    for (size_t i = c->lease_count; i-- > 0;) {
        if (c->leases[i].until_ns > now) {
            next = MIN(next, c->leases[i].until_ns);
            continue;
        }
        lease_end(c, i);
        ended = true;
    }
    if (ended)
        waitq_wake_all(&c->changed);
    return next;
}

/* Under the lock, before every look: the disk decides what an earlier failure left open. */
static int settle(struct coord_local *c) may_yield
{
    leases_expire(c);
    if (!c->uncertain)
        return 0;
    struct coord_table t;
    enum load_state state;
    int err = load_best(c, &t, &state);
    if (err != 0)
        return ERR_COORD_UNKNOWN;
    for (size_t i = 0; i < c->table.count && err == 0; i++) {
        const struct coord_entry *e = &c->table.entries[i];
        if (e->lease != 0)
            err = coord_table_put(&t, e->key, e->value, e->revision, e->lease);
    }
    t.revision = MAX(t.revision, c->table.revision);
    if (err == 0)
        err = write_both(c, &t);
    if (err != 0) {
        coord_table_done(&t);
        return ERR_COORD_UNKNOWN;
    }
    coord_table_done(&c->table);
    c->table = t;
    c->deleted_lost = t.revision; /* watchers look themselves */
    c->uncertain = false;
    waitq_wake_all(&c->changed);
    return 0;
}

/* ---- Operations, on the coordinator's reactor ---- */

struct local_call {
    struct coord_local *c;
    const char *key; /* or prefix */
    const struct coord_change *changes;
    size_t count;
    const char *put_value;
    uint64_t after, deadline_ns, ttl_ns, lease, revision;
    char *value;
    struct coord_record *records;
};

static int get_call(void *arg) may_yield
{
    struct local_call *a = arg;
    struct coord_local *c = a->c;
    fmutex_lock(&c->lock);
    int err = settle(c);
    const struct coord_entry *e = err == 0 ? coord_table_find(&c->table, a->key) : NULL;
    if (err == 0 && e == NULL)
        err = ERR_COORD_NOT_FOUND;
    if (err == 0) {
        a->value = strdup(e->value);
        a->revision = e->revision;
        if (a->value == NULL)
            err = ERR_NO_MEMORY;
    }
    fmutex_unlock(&c->lock);
    return err;
}

static int list_locked(struct local_call *a)
{
    const struct coord_table *t = &a->c->table;
    size_t prefix_len = strlen(a->key);
    a->records = calloc(t->count + 1, sizeof(*a->records));
    if (a->records == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < t->count; i++) {
        const struct coord_entry *e = &t->entries[i];
        if (strncmp(e->key, a->key, prefix_len) != 0)
            continue;
        struct coord_record *r = &a->records[a->count++];
        *r = (struct coord_record){strdup(e->key), strdup(e->value), e->revision};
        if (r->key == NULL || r->value == NULL) {
            coord_records_free(a->records, a->count);
            return ERR_NO_MEMORY;
        }
    }
    return 0;
}

static int list_call(void *arg) may_yield
{
    struct local_call *a = arg;
    fmutex_lock(&a->c->lock);
    int err = settle(a->c);
    if (err == 0)
        err = list_locked(a);
    fmutex_unlock(&a->c->lock);
    return err;
}

static int tend_call(void *arg) may_yield
{
    struct coord_local *c = ((struct local_call *)arg)->c;
    fmutex_lock(&c->lock);
    coord_reserve_keep(&c->reserve, c->file_bytes);
    fmutex_unlock(&c->lock);
    return 0;
}

static int apply_changes(const struct local_call *a, struct coord_table *next)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct coord_entry *e = coord_table_find(next, a->changes[i].key);
        if ((e == NULL ? 0 : e->revision) != a->changes[i].if_revision)
            return ERR_COORD_CONFLICT;
    }
    next->revision++;
    for (size_t i = 0; i < a->count; i++) {
        const struct coord_change *ch = &a->changes[i];
        int err = 0;
        if (ch->value == NULL)
            coord_table_remove(next, ch->key);
        else
            err = coord_table_put(next, ch->key, ch->value, next->revision, 0);
        if (err != 0)
            return err;
    }
    return 0;
}

static int commit_locked(struct local_call *a) may_yield
{
    struct coord_local *c = a->c;
    int err = settle(c);
    if (err != 0)
        return err;
    struct coord_table next;
    err = coord_table_copy(&c->table, &next);
    if (err != 0)
        return err;
    err = apply_changes(a, &next);
    if (err == 0) {
        err = write_both(c, &next);
        c->uncertain = err == ERR_COORD_UNKNOWN;
    }
    if (err != 0) {
        coord_table_done(&next);
        return err;
    }
    coord_table_done(&c->table);
    c->table = next;
    for (size_t i = 0; i < a->count; i++)
        if (a->changes[i].value == NULL)
            remember_removed(c, a->changes[i].key, next.revision);
    a->revision = next.revision;
    waitq_wake_all(&c->changed);
    return 0;
}

static int commit_call(void *arg) may_yield
{
    struct local_call *a = arg;
    fmutex_lock(&a->c->lock);
    int err = commit_locked(a);
    fmutex_unlock(&a->c->lock);
    return err;
}

static uint64_t newest_under(const struct coord_local *c, const char *prefix)
{
    size_t len = strlen(prefix);
    uint64_t newest = c->deleted_lost;
    for (size_t i = 0; i < c->table.count; i++)
        if (strncmp(c->table.entries[i].key, prefix, len) == 0)
            newest = MAX(newest, c->table.entries[i].revision);
    for (size_t i = 0; i < DELETED_KEPT; i++)
        if (c->deleted[i].key != NULL && strncmp(c->deleted[i].key, prefix, len) == 0)
            newest = MAX(newest, c->deleted[i].revision);
    return newest;
}

static int watch_call(void *arg) may_yield
{
    struct local_call *a = arg;
    struct coord_local *c = a->c;
    while (true) {
        /* Under the lock, as the table of a commit that is under way would bring back what expires here. */
        fmutex_lock(&c->lock);
        uint64_t next_expiry = leases_expire(c);
        uint64_t newest = newest_under(c, a->key);
        fmutex_unlock(&c->lock);
        if (newest > a->after) {
            a->revision = newest;
            return 0;
        }
        if (reactor_now_ns() >= a->deadline_ns)
            return ERR_TIMEOUT;
        int err = waitq_wait(&c->changed, MIN(a->deadline_ns, next_expiry));
        if (err != 0 && err != ERR_TIMEOUT)
            return err;
    }
}

static int lease_grant_call(void *arg)
{
    struct local_call *a = arg;
    struct coord_local *c = a->c;
    struct local_lease *more = realloc(c->leases, (c->lease_count + 1) * sizeof(*more));
    if (more == NULL)
        return ERR_NO_MEMORY;
    c->leases = more;
    a->lease = ++c->lease_last;
    c->leases[c->lease_count++] = (struct local_lease){a->lease, a->ttl_ns, reactor_now_ns() + a->ttl_ns};
    return 0;
}

static int lease_keep_call(void *arg) may_yield
{
    struct local_call *a = arg;
    fmutex_lock(&a->c->lock);
    leases_expire(a->c);
    struct local_lease *l = lease_find(a->c, a->lease);
    if (l != NULL)
        l->until_ns = reactor_now_ns() + l->ttl_ns;
    fmutex_unlock(&a->c->lock);
    return l == NULL ? ERR_COORD_NOT_FOUND : 0;
}

static int put_leased_call(void *arg) may_yield
{
    struct local_call *a = arg;
    struct coord_local *c = a->c;
    fmutex_lock(&c->lock);
    int err = settle(c);
    const struct coord_entry *e = coord_table_find(&c->table, a->key);
    if (err == 0 && lease_find(c, a->lease) == NULL)
        err = ERR_COORD_NOT_FOUND;
    if (err == 0 && e != NULL && e->lease == 0)
        err = ERR_COORD_CONFLICT; /* a durable record does not become a passing one */
    if (err == 0)
        err = coord_table_put(&c->table, a->key, a->put_value, c->table.revision + 1, a->lease);
    if (err == 0) {
        c->table.revision++;
        waitq_wake_all(&c->changed);
    }
    fmutex_unlock(&c->lock);
    return err;
}

/* ---- From any reactor ---- */

static int local_get(struct coord *base, const char *key, char **ret_value, uint64_t *ret_revision) may_yield
{
    struct local_call a = {.c = local_of(base), .key = key};
    int err = reactor_call(a.c->reactor, get_call, &a);
    if (err != 0)
        return err;
    *ret_value = a.value;
    *ret_revision = a.revision;
    return 0;
}

static int local_list(struct coord *base, const char *prefix, struct coord_record **ret, size_t *ret_count)
    may_yield
{
    struct local_call a = {.c = local_of(base), .key = prefix};
    int err = reactor_call(a.c->reactor, list_call, &a);
    if (err != 0)
        return err;
    *ret = a.records;
    *ret_count = a.count;
    return 0;
}

static int local_commit(struct coord *base, const struct coord_change *changes, size_t count,
                        uint64_t *ret_revision) may_yield
{
    struct local_call a = {.c = local_of(base), .changes = changes, .count = count};
    int err = reactor_call(a.c->reactor, commit_call, &a);
    if (err == 0)
        *ret_revision = a.revision;
    return err;
}

static int local_watch(struct coord *base, const char *prefix, uint64_t after, uint64_t deadline_ns,
                       uint64_t *ret_revision) may_yield
{
    struct local_call a = {.c = local_of(base), .key = prefix, .after = after, .deadline_ns = deadline_ns};
    bool here = a.c->reactor == reactor_current();
    int err;
    do {
        if (fiber_cancelled())
            return ERR_CANCELLED;
        if (!here)
            a.deadline_ns = MIN(deadline_ns, reactor_now_ns() + WATCH_SLICE_NS);
        err = reactor_call(a.c->reactor, watch_call, &a);
    } while (err == ERR_TIMEOUT && reactor_now_ns() < deadline_ns);
    if (err == 0)
        *ret_revision = a.revision;
    return err;
}

static int local_lease_grant(struct coord *base, uint64_t ttl_ns, uint64_t *ret_lease) may_yield
{
    struct local_call a = {.c = local_of(base), .ttl_ns = ttl_ns};
    int err = reactor_call(a.c->reactor, lease_grant_call, &a);
    if (err == 0)
        *ret_lease = a.lease;
    return err;
}

static int local_lease_keep(struct coord *base, uint64_t lease) may_yield
{
    struct local_call a = {.c = local_of(base), .lease = lease};
    return reactor_call(a.c->reactor, lease_keep_call, &a);
}

static int local_put_leased(struct coord *base, const char *key, const char *value, uint64_t lease) may_yield
{
    struct local_call a = {.c = local_of(base), .key = key, .put_value = value, .lease = lease};
    return reactor_call(a.c->reactor, put_leased_call, &a);
}

static void local_tend(struct coord *base) may_yield
{
    struct local_call a = {.c = local_of(base)};
    if (reactor_call(a.c->reactor, tend_call, &a) != 0)
        LOG_DEBUG("the upkeep of the coordinator was cancelled");
}

static uint64_t local_generation(const struct coord *base)
{
    return ((const struct coord_local *)base)->table.generation;
}

static void local_close(struct coord *base)
{
    struct coord_local *c = local_of(base);
    assert(reactor_current() == c->reactor);
    assert(list_empty(&c->changed.waiters));
    coord_table_done(&c->table);
    for (size_t i = 0; i < DELETED_KEPT; i++)
        free(c->deleted[i].key);
    free(c->leases);
    coord_reserve_done(&c->reserve);
    free(c->path);
    free(c->prev);
    free(c);
}

static const struct coord_ops local_ops = {
    .get = local_get,
    .list = local_list,
    .commit = local_commit,
    .watch = local_watch,
    .lease_grant = local_lease_grant,
    .lease_keep = local_lease_keep,
    .put_leased = local_put_leased,
    .tend = local_tend,
    .generation = local_generation,
    .close = local_close,
};

/* ---- Open ---- */

static int load_or_create(struct coord_local *c) may_yield
{
    enum load_state state = LOAD_FIRST;
    int err = load_best(c, &c->table, &state);
    if (err == ERR_COORD_NOT_FOUND) {
        c->table = (struct coord_table){.generation = 1};
        err = 0;
    }
    if (err != 0)
        return err;
    if (state == LOAD_LEVEL) {
        coord_reserve_keep(&c->reserve, 0);
        return 0; /* a start writes nothing where nothing is to be mended: there may be no room */
    }
    if (state == LOAD_RESTORED) {
        c->table.generation++;
        event_raise(LOG_WARNING_, "coord-restored",
                    "%s was missing, damaged or older than %s, which is used instead", c->path, c->prev);
    }
    /* Both files are level before the first answer. */
    err = write_both(c, &c->table);
    if (err == 0)
        c->deleted_lost = 0;
    return err;
}

int coord_local_open(const char *path, struct coord **ret)
{
    struct coord_local *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->base.ops = &local_ops;
    c->reactor = reactor_current();
    fmutex_init(&c->lock);
    waitq_init(&c->changed);
    size_t len = strlen(path);
    c->path = strdup(path);
    c->prev = malloc(len + sizeof(".prev"));
    int err = c->path == NULL || c->prev == NULL ? ERR_NO_MEMORY : 0;
    if (err == 0) {
        memcpy(c->prev, path, len);
        memcpy(c->prev + len, ".prev", sizeof(".prev"));
        err = coord_reserve_init(&c->reserve, path);
    }
    if (err == 0)
        err = load_or_create(c);
    if (err != 0) {
        local_close(&c->base);
        return err;
    }
    *ret = &c->base;
    return 0;
}
