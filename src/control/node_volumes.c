/* SPDX-License-Identifier: Apache-2.0 */
/* The node's volumes: opening, closing, calling, creating and deleting them on their reactors. */
#include "control/node_internal.h"

#include "control/size.h"

#include <stdio.h>
#include <stdlib.h>

#define OPENING_AT_ONCE  16u
#define DELETES_AT_START 4u

/* ---- References ---- */

void node_volume_put(struct node_volume *v)
{
    assert(v->refs > 0);
    if (--v->refs == 0) {
        assert(v->volume == NULL && v->calls == 0);
        free(v->nfs);
        free(v);
    }
}

struct node_volume *node_volume_get(struct node *n, const char *name)
{
    LIST_FOREACH (&n->volumes, it) {
        struct node_volume *v = CONTAINER_OF(it, struct node_volume, link);
        if (strcmp(v->name, name) == 0) {
            v->refs++;
            return v;
        }
    }
    return NULL;
}

int node_volumes_snapshot(struct node *n, struct node_volume ***ret, uint32_t *ret_count)
{
    uint32_t count = 0;
    LIST_FOREACH (&n->volumes, it) {
        count++;
    }
    struct node_volume **volumes = calloc(count + 1, sizeof(struct node_volume *));
    if (volumes == NULL)
        return ERR_NO_MEMORY;
    uint32_t i = 0;
    LIST_FOREACH (&n->volumes, it) {
        volumes[i] = CONTAINER_OF(it, struct node_volume, link);
        volumes[i++]->refs++;
    }
    *ret = volumes;
    *ret_count = count;
    return 0;
}

void node_volumes_release(struct node_volume **volumes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        node_volume_put(volumes[i]);
    free(volumes);
}

const char *node_volume_state_name(const struct node_volume *v)
{
    static const char *const names[] = {"closed",  "opening",  "open",     "failed",
                                        "closing", "deleting", "checking", "gone"};
    assert(v->state < ARRAY_SIZE(names));
    return names[v->state];
}

/* The reactor with the fewest volumes. */
static uint32_t reactor_choose(const struct node *n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n->reactor_count; i++)
        if (n->reactors[i].volumes < n->reactors[best].volumes)
            best = i;
    return best;
}

struct node_volume *node_volume_add(struct node *n, const struct volume_record *r)
{
    struct node_volume *v = calloc(1, sizeof(*v));
    if (v == NULL)
        return NULL;
    v->id = r->id;
    snprintf(v->name, sizeof(v->name), "%s", r->name);
    v->is_fs = node_kind_is_fs(r->kind);
    v->protect = r->protection;
    protection_format(r->protection, v->protection);
    waitq_init(&v->changed);
    v->refs = 1; /* the list's */
    v->reactor = reactor_choose(n);
    n->reactors[v->reactor].volumes++;
    list_append(&n->volumes, &v->link);
    return v;
}

static void volume_forget(struct node *n, struct node_volume *v)
{
    assert(n->reactors[v->reactor].volumes > 0);
    n->reactors[v->reactor].volumes--;
    list_remove(&v->link);
    v->state = NODE_VOLUME_GONE;
    waitq_wake_all(&v->changed);
    node_volume_put(v);
}

static void volume_set_state(struct node_volume *v, enum node_volume_state state)
{
    v->state = state;
    waitq_wake_all(&v->changed);
}

/* ---- On the volume's reactor ---- */

struct volume_work {
    struct node *node;
    struct node_volume *v;
    int (*fn)(struct volume *v, void *arg);
    void *arg;
};

static int call_here(void *arg)
{
    struct volume_work *w = arg;
    return w->fn(w->v->volume, w->arg);
}

static int open_here(void *arg) may_yield
{
    struct volume_work *w = arg;
    struct node_volume *v = w->v;
    int r = volume_open(&w->node->reactors[v->reactor].env, v->id, &v->volume);
    if (r < 0)
        return r;
    r = v->is_fs ? node_fs_open_here(v) : block_device_new(v->volume, OBJECT_BLOCK_DEVICE, &v->device);
    if (r < 0) {
        int closed = volume_close(v->volume);
        v->volume = NULL;
        if (closed < 0)
            LOG_ERROR("closing the volume %s: %s", v->name, error_text(closed));
    }
    return r;
}

static void content_drop(struct node_volume *v) may_yield
{
    node_fs_close_here(v);
    if (v->device == NULL)
        return;
    block_device_free(v->device);
    v->device = NULL;
}

static int close_here(void *arg) may_yield
{
    struct volume_work *w = arg;
    content_drop(w->v);
    return volume_close(w->v->volume);
}

static int delete_here(void *arg) may_yield
{
    struct volume_work *w = arg;
    content_drop(w->v);
    return volume_delete(&w->node->reactors[w->v->reactor].env, w->v->id, w->v->volume);
}

static int volume_go(struct node *n, struct node_volume *v, int (*fn)(void *arg)) may_yield
{
    struct volume_work w = {.node = n, .v = v};
    return reactor_call(n->reactors[v->reactor].reactor, fn, &w);
}

int node_volume_call(struct node *n, struct node_volume *v, int (*fn)(struct volume *v, void *arg), void *arg)
{
    if (v->state != NODE_VOLUME_OPEN)
        return ERR_NODE_NOT_READY;
    struct volume_work w = {.node = n, .v = v, .fn = fn, .arg = arg};
    v->refs++;
    v->calls++;
    int r = reactor_call(n->reactors[v->reactor].reactor, call_here, &w);
    v->calls--;
    waitq_wake_all(&v->changed);
    node_volume_put(v);
    return r;
}

/* N1: nobody is inside the volume any more. The state is not OPEN, so nobody comes. */
static void volume_quiesce(struct node_volume *v) may_yield
{
    assert(v->state != NODE_VOLUME_OPEN);
    while (v->calls > 0)
        if (waitq_wait(&v->changed, DEADLINE_NEVER) == ERR_CANCELLED)
            fiber_yield();
}

void node_volume_open(struct node *n, struct node_volume *v)
{
    assert(v->volume == NULL);
    volume_set_state(v, NODE_VOLUME_OPENING);
    int r = volume_go(n, v, open_here);
    v->error = r;
    if (r < 0) {
        LOG_ERROR("the volume %s cannot be opened: %s (%s)", v->name, error_text(r), error_name(r));
        v->volume = NULL;
        v->retry_ns = reactor_now_ns() + 5 * NSEC_PER_SEC;
        volume_set_state(v, NODE_VOLUME_FAILED);
        node_nfs_pause(n, v);
        return;
    }
    assert(v->volume != NULL);
    v->retries = 0;
    volume_set_state(v, NODE_VOLUME_OPEN);
    r = node_export_start(n, v);
    if (r < 0)
        event_raise(LOG_ERROR_, "export-failed", "the volume %s is open, but cannot be exported: %s", v->name,
                    error_text(r));
}

void node_volume_close(struct node *n, struct node_volume *v)
{
    if (v->state != NODE_VOLUME_OPEN)
        return;
    volume_set_state(v, NODE_VOLUME_CLOSING);
    node_export_pause(n, v);
    volume_quiesce(v);
    int r = volume_go(n, v, close_here);
    if (r < 0)
        LOG_ERROR("closing the volume %s: %s; its log is replayed when it is opened again", v->name,
                  error_text(r));
    v->volume = NULL;
    volume_set_state(v, NODE_VOLUME_CLOSED);
}

int node_volume_alone(struct node *n, struct node_volume *v, int (*fn)(struct volume *v, void *arg),
                      void *arg)
{
    if (v->state != NODE_VOLUME_OPEN)
        return ERR_NODE_NOT_READY;
    struct volume_work w = {.node = n, .v = v, .fn = fn, .arg = arg};
    volume_set_state(v, NODE_VOLUME_CHECKING);
    node_export_pause(n, v);
    volume_quiesce(v);
    int r = reactor_call(n->reactors[v->reactor].reactor, call_here, &w);
    if (!v->is_fs || v->fs != NULL) {
        volume_set_state(v, NODE_VOLUME_OPEN);
        return r;
    }
    assert(r < 0);
    int closed = volume_go(n, v, close_here);
    if (closed < 0)
        LOG_ERROR("closing the volume %s: %s", v->name, error_text(closed));
    v->volume = NULL;
    v->error = r;
    v->retry_ns = reactor_now_ns() + 5 * NSEC_PER_SEC;
    volume_set_state(v, NODE_VOLUME_FAILED);
    return r;
}

static int status_here(struct volume *v, void *arg)
{
    volume_get_status(v, arg);
    return 0;
}

int node_volume_status(struct node *n, struct node_volume *v, struct volume_status *ret)
{
    return node_volume_call(n, v, status_here, ret);
}

/* ---- Deleting ---- */

struct delete_work {
    struct node *node;
    struct node_volume *v;
};

static void delete_run(void *arg) may_yield
{
    struct delete_work *w = arg;
    struct node *n = w->node;
    struct node_volume *v = w->v;
    node_export_stop(n, v);
    volume_quiesce(v);
    int r = volume_go(n, v, delete_here);
    v->volume = NULL;
    v->error = r;
    if (r < 0) {
        event_raise(LOG_ERROR_, "delete-failed",
                    "deleting the volume %s stopped: %s; `ashlar volume delete` "
                    "goes on with it",
                    v->name, error_text(r));
        v->retry_ns = DEADLINE_NEVER; /* half deleted: never opened again */
        volume_set_state(v, NODE_VOLUME_FAILED);
    } else {
        char key[NODE_KEY_SIZE];
        node_key("exports", v->id, key);
        if (v->export_revision != 0 && node_record_put(n, key, NULL, &v->export_revision) < 0)
            LOG_WARNING("the export record of the deleted volume %s is left behind", v->name);
        if (v->nfs_revision != 0)
            node_nfs_forget(n, v);
        event_raise(LOG_INFO_, "volume-deleted", "the volume %s was deleted", v->name);
        volume_forget(n, v);
    }
    node_volume_put(v);
    free(w);
    node_background_end(n);
}

int node_volume_delete(struct node *n, struct node_volume *v, struct control_error *e)
{
    if (v->state != NODE_VOLUME_OPEN && v->state != NODE_VOLUME_FAILED && v->state != NODE_VOLUME_CLOSED) {
        control_error_set(e, ERR_VOLUME_BUSY, "", "the volume %s is %s", v->name, node_volume_state_name(v));
        return ERR_VOLUME_BUSY;
    }
    struct delete_work *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        control_error_set(e, ERR_NO_MEMORY, "", "%s", error_text(ERR_NO_MEMORY));
        return ERR_NO_MEMORY;
    }
    *w = (struct delete_work){.node = n, .v = v};
    enum node_volume_state before = v->state;
    volume_set_state(v, NODE_VOLUME_DELETING);
    v->refs++;
    int r = node_background_start(n, "volume-delete", delete_run, w);
    if (r < 0) {
        volume_set_state(v, before);
        node_volume_put(v);
        free(w);
        control_error_set(e, r, "", "%s", error_text(r));
    }
    return r;
}

/* ---- Start and stop ---- */

struct open_work {
    struct node *node;
    struct node_volume *v;
    struct semaphore *at_once;
    struct latch *all;
};

static void open_run(void *arg) may_yield
{
    struct open_work *w = arg;
    if (semaphore_take(w->at_once, 1, DEADLINE_NEVER) == 0) {
        node_volume_open(w->node, w->v);
        semaphore_give(w->at_once, 1);
    }
    latch_down(w->all);
}

static void close_run(void *arg) may_yield
{
    struct open_work *w = arg;
    node_volume_close(w->node, w->v);
    latch_down(w->all);
}

/* Runs fn for every volume at once and waits for all. */
static int for_all(struct node *n, const char *name, void (*fn)(void *arg)) may_yield
{
    struct node_volume **volumes;
    uint32_t count;
    int r = node_volumes_snapshot(n, &volumes, &count);
    if (r < 0)
        return r;
    struct open_work *work = calloc(count + 1, sizeof(*work));
    if (work == NULL) {
        node_volumes_release(volumes, count);
        return ERR_NO_MEMORY;
    }
    struct semaphore at_once;
    struct latch all;
    semaphore_init(&at_once, OPENING_AT_ONCE);
    latch_init(&all, count);
    for (uint32_t i = 0; i < count; i++) {
        work[i] = (struct open_work){.node = n, .v = volumes[i], .at_once = &at_once, .all = &all};
        bool here = volumes[i]->state == NODE_VOLUME_DELETING; /* its own fiber sees to it */
        if (!here && fiber_spawn(name, fn, &work[i]) < 0)
            fn(&work[i]); /* no fiber to be had: one after the other */
        else if (here)
            latch_down(&all);
    }
    latch_wait(&all);
    free(work);
    node_volumes_release(volumes, count);
    return 0;
}

/* A record that nobody can read is an alarm, and nothing else is held up by it. */
static struct node_volume *record_load(struct node *n, const struct coord_record *record) may_yield
{
    struct volume_record r;
    int err = volume_record_decode(record->value, record->revision, &r);
    if (err < 0) {
        event_raise(LOG_ERROR_, "record-damaged", "the record %s cannot be understood: %s", record->key,
                    error_text(err));
        return NULL;
    }
    struct node_volume *v = node_volume_add(n, &r);
    if (v == NULL)
        return NULL;
    char key[NODE_KEY_SIZE];
    char *text = NULL;
    node_key("exports", v->id, key);
    err = coord_get(n->coord, key, &text, &v->export_revision);
    if (err == 0 && node_export_decode(text, &v->export) < 0)
        event_raise(LOG_ERROR_, "record-damaged", "the record %s cannot be understood; %s is not exported",
                    key, v->name);
    free(text);
    if (v->is_fs)
        node_nfs_load(n, v);
    if (r.deleted) {
        struct control_error e;
        if (node_volume_delete(n, v, &e) < 0)
            LOG_ERROR("the volume %s, being deleted: %s", v->name, e.text);
    }
    return v;
}

int node_volumes_start(struct node *n, struct control_error *e)
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(n->coord, "/volumes/", &records, &count);
    if (r < 0) {
        control_error_set(e, r, "", "the records of the volumes cannot be read: %s", error_text(r));
        return r;
    }
    for (size_t i = 0; i < count; i++)
        (void)record_load(n, &records[i]);
    coord_records_free(records, count);
    r = for_all(n, "volume-open", open_run);
    if (r < 0)
        control_error_set(e, r, "", "the volumes cannot be opened: %s", error_text(r));
    return r;
}

void node_volumes_stop(struct node *n)
{
    int r = for_all(n, "volume-close", close_run);
    if (r < 0) { /* no memory for doing it at once */
        LIST_FOREACH (&n->volumes, it) {
            node_volume_close(n, CONTAINER_OF(it, struct node_volume, link));
        }
    }
    while (n->background > 0)
        if (waitq_wait(&n->changed, DEADLINE_NEVER) == ERR_CANCELLED)
            fiber_yield();
    while (!list_empty(&n->volumes))
        volume_forget(n, CONTAINER_OF(n->volumes.next, struct node_volume, link));
}

void node_volumes_retry(struct node *n)
{
    LIST_FOREACH (&n->volumes, it) {
        struct node_volume *v = CONTAINER_OF(it, struct node_volume, link);
        if (v->state == NODE_VOLUME_FAILED && v->retry_ns != DEADLINE_NEVER)
            v->retry_ns = 0;
        v->recheck = v->state == NODE_VOLUME_OPEN;
    }
}

/* ---- Changes ---- */

struct create_work {
    struct node_reactor *at;
    struct volume_create_options options;
    struct uuid id;
};

static int create_here(void *arg) may_yield
{
    struct create_work *w = arg;
    return volume_create(&w->at->env, &w->options, &w->id);
}

static void create_explain(struct node *n, int r, const char *name, const char *protection,
                           struct control_error *e)
{
    const char *hint = "";
    if (r == ERR_VOLUME_EXISTS)
        hint = "Choose another name, or see `ashlar volume list`.";
    else if (r == ERR_NOT_ENOUGH_DRIVES)
        hint = "Add drives with `ashlar drive add PATH`, or choose a lower protection.";
    else if (r == ERR_DRIVE_NO_SPACE || r == ERR_VOLUME_FULL)
        hint =
            "Delete volumes, discard what clients no longer need (fstrim), add a drive, or make room on the "
            "file system under the drives; `ashlar events` tells more.";
    else if (r == ERR_COORD_UNKNOWN)
        hint = "The node's coord.json cannot be written: see the log; is its file system full?";
    else if (r == ERR_INVALID)
        hint = "Names are 1 to 63 of A-Z a-z 0-9 . _ - and begin with a letter, a digit or '_'; sizes are "
               "multiples of 4 KiB.";
    control_error_set(e, r, hint, "the volume %s (%s) was not created: %s", name, protection, error_text(r));
}

int node_volume_create(struct node *n, const char *name, const char *kind, uint64_t size_bytes,
                       const char *protection, struct node_volume **ret, struct control_error *e)
{
    struct create_work w = {.at = &n->reactors[reactor_choose(n)],
                            .options = {.name = name, .kind = kind, .size_bytes = size_bytes}};
    int r = protection_parse(protection, &w.options.protection);
    if (r < 0) {
        control_error_set(e, r, "Use none, mirror:2 or mirror:3.", "\"%.40s\" is not a protection",
                          protection);
        return r;
    }
    struct node_volume *same = node_volume_get(n, name);
    if (same != NULL) {
        node_volume_put(same);
        r = ERR_VOLUME_EXISTS;
    }
    if (r == 0)
        r = reactor_call(w.at->reactor, create_here, &w);
    struct volume_record record;
    if (r == 0)
        r = volume_record_load(n->coord, w.id, &record);
    if (r < 0) {
        create_explain(n, r, name, protection, e);
        return r;
    }
    struct node_volume *v = node_volume_add(n, &record);
    if (v == NULL) {
        control_error_set(e, ERR_NO_MEMORY, "Restart the node.",
                          "the volume was created, but cannot be opened");
        return ERR_NO_MEMORY;
    }
    node_volume_open(n, v);
    if (v->state != NODE_VOLUME_OPEN) {
        control_error_set(e, v->error, "See `ashlar status`.",
                          "the volume was created, but does not open: %s", error_text(v->error));
        return v->error;
    }
    v->refs++;
    *ret = v;
    return 0;
}

struct grow_work {
    struct node_volume *v;
    uint64_t size_bytes;
};

static int grow_here(struct volume *volume, void *arg) may_yield
{
    const struct grow_work *w = arg;
    return block_resize(w->v->device, w->size_bytes);
}

static int size_here(struct volume *v, void *arg)
{
    uint64_t *size_bytes = arg;
    *size_bytes = volume_size_bytes(v);
    return 0;
}

int node_volume_grow(struct node *n, struct node_volume *v, uint64_t size_bytes, struct control_error *e)
{
    uint64_t now = 0;
    if (v->is_fs) {
        control_error_set(e, ERR_INVALID,
                          "A file system takes what its pool has; `ashlar fs grow` raises its quota.",
                          "%s is a file system", v->name);
        return ERR_INVALID;
    }
    int r = node_volume_call(n, v, size_here, &now);
    if (r == 0 && size_bytes < now) {
        char is[SIZE_TEXT_SIZE];
        size_format(now, is);
        control_error_set(e, ERR_INVALID, "Volumes only grow; discard what is not needed instead (fstrim).",
                          "the volume %s has %s already", v->name, is);
        return ERR_INVALID;
    }
    if (r == 0)
        r = node_volume_call(n, v, grow_here, &(struct grow_work){.v = v, .size_bytes = size_bytes});
    if (r < 0)
        control_error_set(e, r, r == ERR_UNALIGNED || r == ERR_INVALID ? "Sizes are multiples of 4 KiB." : "",
                          "the volume %s cannot grow: %s", v->name, error_text(r));
    return r;
}

struct job_work {
    bool scrub;
    uint64_t rate;
};

static int job_here(struct volume *v, void *arg)
{
    const struct job_work *w = arg;
    return w->scrub ? volume_scrub_start(v, w->rate) : volume_repair_start(v, w->rate);
}

int node_volume_job(struct node *n, struct node_volume *v, bool scrub, uint64_t rate_bytes_per_s)
{
    struct job_work w = {.scrub = scrub, .rate = rate_bytes_per_s};
    return node_volume_call(n, v, job_here, &w);
}

void node_repair_all(struct node *n)
{
    struct node_volume **volumes;
    uint32_t count;
    if (node_volumes_snapshot(n, &volumes, &count) < 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        int r = node_volume_job(n, volumes[i], false, 0);
        if (r < 0 && r != ERR_VOLUME_BUSY && r != ERR_NODE_NOT_READY)
            event_raise(LOG_ERROR_, "repair-failed", "repair of the volume %s did not start: %s",
                        volumes[i]->name, error_text(r));
    }
    node_volumes_release(volumes, count);
}
