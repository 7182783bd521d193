/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: what a mount has beyond one connection. It is known by an id that the mount process drew.
 *
 *      attach --> connected --connection gone--> away --attach--> connected
 *                     |                           |
 *                     +--BYE, then gone--> ended  +--away_ns over--> ended
 *
 * Ended: its opens are put (unlinked files that only it kept go), its locks are cleared. A session whose node
 * was restarted is unknown to the new one: it comes with its id, tells its opens again, and its locks are in
 * the tree under that id. Locks of sessions that are not back away_ns after the start are cleared, too.
 *
 * Invalidations. What others change is told to every connected session (not its own changes: it knows them).
 * A session that is away misses them, and is told so when it comes back.
 */
#include "protocols/fuse/fuse_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Opens ---- */

/* The kinds are what fs_open_get() was told. */
static_assert(WIRE_OPEN_READ == (uint32_t)FS_OPEN_READ && WIRE_OPEN_WRITE == (uint32_t)FS_OPEN_WRITE,
              "an open's kind");

void fuse_opens_put(struct fuse_fs *f, struct fuse_table *opens)
{
    FUSE_TABLE_FOREACH(opens, n)
    {
        for (uint32_t kind = 1; kind < FUSE_OPEN_KINDS; kind++) {
            if (n->opens[kind] == 0)
                continue;
            fs_open_put(f->fs, n->ino, kind);
            f->opens--;
        }
    }
    fuse_table_done(opens);
}

/* fs_open_get() once for each file and kind, however often it is open so. */
MUST_CHECK static int opens_add(struct fuse_fs *f, struct fuse_table *opens, const struct fs_request *rq,
                                uint64_t ino, uint32_t kind, bool truncate, uint32_t count) may_yield
{
    assert(kind > 0 && kind < FUSE_OPEN_KINDS);
    struct fuse_node *n = fuse_table_find(opens, ino);
    if (n != NULL && n->opens[kind] > 0 && !truncate) {
        n->opens[kind] += MIN(count, UINT32_MAX - n->opens[kind]);
        return 0;
    }
    struct fs_attr a;
    int err = fs_open_get(f->fs, rq, ino, kind, truncate, &a);
    if (err != 0)
        return err;
    n = fuse_table_get(opens, ino);
    if (n == NULL) {
        fs_open_put(f->fs, ino, kind);
        return ERR_NO_MEMORY;
    }
    if (n->opens[kind] > 0)
        fs_open_put(f->fs, ino, kind); /* it was opened so already: one is enough */
    else
        f->opens++;
    n->opens[kind] += MIN(count, UINT32_MAX - n->opens[kind]);
    return 0;
}

int fuse_session_open(struct fuse_session *s, const struct fs_request *rq, uint64_t ino, uint32_t flags)
{
    uint32_t kind = flags & (WIRE_OPEN_READ | WIRE_OPEN_WRITE);
    return opens_add(s->fs, &s->opens, rq, ino, kind, flags & WIRE_OPEN_TRUNCATE, 1);
}

void fuse_session_close(struct fuse_session *s, uint64_t ino, uint32_t flags)
{
    uint32_t kind = flags & (WIRE_OPEN_READ | WIRE_OPEN_WRITE);
    struct fuse_node *n = fuse_table_find(&s->opens, ino);
    if (n == NULL || n->opens[kind] == 0)
        return; /* it was gone when its opens were told again */
    if (--n->opens[kind] > 0)
        return;
    fs_open_put(s->fs->fs, ino, kind);
    s->fs->opens--;
    fuse_table_drop(&s->opens, n);
}

void fuse_session_reopened(struct fuse_session *s, struct fuse_table *told)
{
    struct fuse_table before = s->opens;
    s->opens = *told;
    *told = (struct fuse_table){0};
    fuse_opens_put(s->fs, &before);
}

int fuse_session_reopen(struct fuse_connection *c, const struct fs_request *rq, uint64_t ino, uint32_t flags,
                        uint32_t count)
{
    return opens_add(c->fs, &c->told, rq, ino, flags, false, count);
}

/* ---- Life ---- */

static void session_free(struct fuse_session *s)
{
    struct fuse_fs *f = s->fs;
    assert(s->connection == NULL);
    list_remove(&s->link);
    fuse_opens_put(f, &s->opens);
    f->away--;
    waitq_wake_all(&f->left);
    free(s);
}

static void clear_locks(struct fuse_fs *f, const char *client) may_yield
{
    static const enum fs_lock_protocol kinds[] = {FS_LOCK_FUSE, FS_LOCK_FLOCK};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        int err = fs_lock_clear_client(f->fs, kinds[i], client, 0, NULL, 0);
        if (err != 0 && err != ERR_CANCELLED)
            LOG_WARNING("fuse: %s: the locks of mount %s cannot be cleared: %s", f->name, client,
                        error_text(err));
    }
}

static struct fuse_session *session_find(struct fuse_fs *f, const uint8_t id[16])
{
    LIST_FOREACH (&f->sessions, l) {
        struct fuse_session *s = CONTAINER_OF(l, struct fuse_session, link);
        if (memcmp(s->id, id, sizeof(s->id)) == 0)
            return s;
    }
    return NULL;
}

static struct fuse_session *session_new(struct fuse_fs *f, const uint8_t id[16], const char *label)
{
    struct fuse_session *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->fs = f;
    memcpy(s->id, id, sizeof(s->id));
    for (size_t i = 0; i < sizeof(s->id); i++)
        snprintf(s->client + 2 * i, 3, "%02x", s->id[i]);
    s->stats = fs_client(f->fs, label);
    s->missed = true; /* a node that was restarted does not know what changed meanwhile */
    list_append(&f->sessions, &s->link);
    f->away++;
    return s;
}

int fuse_session_attach(struct fuse_fs *f, const uint8_t id[16], const char *label, struct fuse_connection *c,
                        bool *ret_coherent)
{
    struct fuse_session *s;
    for (;;) {
        if (f->closing)
            return ERR_CLOSED;
        s = session_find(f, id);
        if (s == NULL || s->connection == NULL)
            break;
        /* Whoever has the id is the same mount: its old connection is dead, even if we do not know it yet.
         * What it began must have ended before it is asked for again. */
        fuse_connection_break(s->connection);
        int err = waitq_wait(&f->left, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    if (s == NULL)
        s = session_new(f, id, label);
    if (s == NULL)
        return ERR_NO_MEMORY;
    s->connection = c;
    s->bye = false;
    c->session = s;
    f->away--;
    f->mounts++;
    *ret_coherent = !s->missed;
    s->missed = false;
    return 0;
}

void fuse_session_detach(struct fuse_session *s)
{
    struct fuse_fs *f = s->fs;
    s->connection = NULL;
    s->away_since_ns = reactor_now_ns();
    f->mounts--;
    f->away++;
    waitq_wake_all(&f->sweep);
}

/* ---- The sweeper: ends sessions that do not come back ---- */

/* The first one that is due; *ret_next: when the next one is. */
static struct fuse_session *session_due(struct fuse_fs *f, uint64_t *ret_next)
{
    uint64_t now = reactor_now_ns();
    LIST_FOREACH (&f->sessions, l) {
        struct fuse_session *s = CONTAINER_OF(l, struct fuse_session, link);
        if (s->connection != NULL)
            continue;
        uint64_t due = s->bye ? 0 : s->away_since_ns + f->server->limits.away_ns;
        if (due <= now)
            return s;
        *ret_next = MIN(*ret_next, due);
    }
    return NULL;
}

static bool is_stranger(void *ctx, const char *client)
{
    struct fuse_fs *f = ctx;
    LIST_FOREACH (&f->sessions, l)
        if (strcmp(CONTAINER_OF(l, struct fuse_session, link)->client, client) == 0)
            return false;
    return true;
}

/* Locks from before the start, of mounts that did not come back. */
static void clear_strangers(struct fuse_fs *f) may_yield
{
    static const enum fs_lock_protocol kinds[] = {FS_LOCK_FUSE, FS_LOCK_FLOCK};
    char client[FS_LOCK_CLIENT_MAX + 1];
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        while (!f->closing && fs_lock_find_client(f->fs, kinds[i], is_stranger, f, client) == 0) {
            LOG_INFO("fuse: %s: mount %s did not come back, its locks go", f->name, client);
            int err = fs_lock_clear_client(f->fs, kinds[i], client, 0, NULL, 0);
            if (err == 0)
                continue;
            LOG_WARNING("fuse: %s: the locks of mount %s cannot be cleared: %s", f->name, client,
                        error_text(err));
            return;
        }
    }
}

static void sweeper_run(void *arg) may_yield
{
    struct fuse_fs *f = arg;
    uint64_t strangers_ns = reactor_now_ns() + f->server->limits.away_ns;
    while (!f->closing && !fiber_cancelled()) {
        uint64_t next = strangers_ns;
        if (strangers_ns <= reactor_now_ns()) {
            strangers_ns = DEADLINE_NEVER;
            clear_strangers(f);
            continue;
        }
        struct fuse_session *s = session_due(f, &next);
        if (s != NULL) {
            char client[FUSE_CLIENT_TEXT];
            bool bye = s->bye;
            memcpy(client, s->client, sizeof(client));
            session_free(s);
            if (!bye)
                LOG_INFO("fuse: %s: mount %s did not come back, its locks and open files go", f->name,
                         client);
            clear_locks(f, client);
            continue;
        }
        if (waitq_wait(&f->sweep, next) == ERR_CANCELLED)
            return;
    }
}

/* ---- Invalidations ---- */

static bool is_data(const struct fs_event *e)
{
    return e->kind == FS_EVENT_DATA;
}

static void tell(struct fuse_session *s, const struct fs_event *e)
{
    if (s->connection == NULL) {
        s->missed = true;
        return;
    }
    if (e->kind == FS_EVENT_ATTR || is_data(e)) {
        struct wire_note_inode n = {.ino = le64_make(e->ino),
                                    .offset = le64_make(is_data(e) ? e->offset : 0),
                                    .len = le64_make(is_data(e) ? e->len : 0),
                                    .data = le32_make(is_data(e))};
        fuse_connection_note(s->connection, WIRE_NOTE_INODE, &n, sizeof(n), NULL, 0);
        return;
    }
    struct wire_note_entry n = {.dir = le64_make(e->ino),
                                .child = le64_make(e->child),
                                .removed = le32_make(e->kind == FS_EVENT_NAME_REMOVED)};
    fuse_connection_note(s->connection, WIRE_NOTE_ENTRY, &n, sizeof(n), e->name, e->name_len);
}

/* In the instant of the change. */
static void on_event(struct fs_watch *w, const struct fs_request *cause, const struct fs_event *e)
{
    struct fuse_fs *f = CONTAINER_OF(w, struct fuse_fs, watch);
    LIST_FOREACH (&f->sessions, l) {
        struct fuse_session *s = CONTAINER_OF(l, struct fuse_session, link);
        if (cause == NULL || cause->source != s)
            tell(s, e);
    }
}

/* ---- Start and stop ---- */

int fuse_sessions_start(struct fuse_fs *f)
{
    list_init(&f->sessions);
    list_init(&f->connections);
    list_init(&f->free_jobs);
    waitq_init(&f->left);
    waitq_init(&f->sweep);
    int err = fiber_spawn_joinable("fuse sweeper", sweeper_run, f, &f->sweeper);
    if (err != 0)
        return err;
    f->watch.event = on_event;
    fs_watch_add(f->fs, &f->watch);
    return 0;
}

static void disconnect_all(struct fuse_fs *f) may_yield
{
    uint64_t until = reactor_now_ns() + f->server->limits.drain_ns;
    LIST_FOREACH_SAFE (&f->connections, l)
        fuse_connection_drain(CONTAINER_OF(l, struct fuse_connection, link));
    while (!list_empty(&f->connections)) {
        if (waitq_wait(&f->left, until) != ERR_TIMEOUT)
            continue;
        LIST_FOREACH_SAFE (&f->connections, l)
            fuse_connection_break(CONTAINER_OF(l, struct fuse_connection, link));
        until = DEADLINE_NEVER; /* what is under way in the volume must end */
    }
}

void fuse_sessions_stop(struct fuse_fs *f)
{
    fiber_shield(); /* the connections still point to it */
    f->closing = true;
    waitq_wake_all(&f->left);
    disconnect_all(f);
    fiber_cancel(f->sweeper);
    fiber_join(f->sweeper);
    fs_watch_remove(f->fs, &f->watch);
    /* Their opens are not put: an unlinked file would go now, and the mounts want it when they are back. */
    for (struct list *l; (l = list_pop(&f->sessions)) != NULL;) {
        struct fuse_session *s = CONTAINER_OF(l, struct fuse_session, link);
        fuse_table_done(&s->opens);
        free(s);
    }
    fuse_jobs_free(f);
    fiber_unshield();
}
