/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing the node's drives, and their records. Changes of the set are in node_drive_change.c. */
#include "control/node_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Records ---- */

int node_drive_encode(struct node *n, const struct node_drive *d, char **ret_text)
{
    char id[UUID_TEXT_SIZE], node_id[UUID_TEXT_SIZE];
    uuid_format(d->id, id);
    uuid_format(n->id, node_id);
    json_t *o = json_pack("{ss ss so sI sI sI ss}", "id", id, "node", node_id, "path", control_text(d->path),
                          "generation", (json_int_t)d->generation, "size_bytes", (json_int_t)d->size_bytes,
                          "slab_bytes", (json_int_t)d->slab_bytes, "state",
                          d->state == NODE_DRIVE_REMOVED ? "removed" : "in-use");
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text == NULL)
        return ERR_NO_MEMORY;
    *ret_text = text;
    return 0;
}

int node_drive_record(struct node *n, struct node_drive *d)
{
    char key[NODE_KEY_SIZE];
    char *text = NULL;
    node_key("drives", d->id, key);
    int r = node_drive_encode(n, d, &text);
    if (r < 0)
        return r;
    r = node_record_put(n, key, text, &d->revision);
    free(text);
    return r;
}

/* Untrusted text. */
static int drive_record_decode(const char *text, struct node_drive *d)
{
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *id = json_string_value(json_object_get(o, "id"));
    const char *path = json_string_value(json_object_get(o, "path"));
    const char *state = json_string_value(json_object_get(o, "state"));
    json_int_t generation = json_integer_value(json_object_get(o, "generation"));
    json_int_t size = json_integer_value(json_object_get(o, "size_bytes"));
    json_int_t slab = json_integer_value(json_object_get(o, "slab_bytes"));
    int r = ERR_COORD_CORRUPT;
    if (id != NULL && path != NULL && state != NULL && strlen(path) < sizeof(d->path) && generation >= 0 &&
        size >= 0 && slab >= 0 && slab <= UINT32_MAX && uuid_parse(id, &d->id) == 0) {
        snprintf(d->path, sizeof(d->path), "%s", path);
        d->generation = (uint64_t)generation;
        d->size_bytes = (uint64_t)size;
        d->slab_bytes = (uint32_t)slab;
        d->state = strcmp(state, "removed") == 0 ? NODE_DRIVE_REMOVED : NODE_DRIVE_MISSING;
        r = 0;
    }
    json_decref(o);
    return r;
}

/* People look for drives by their paths. */
static void drive_insert(struct node *n, struct node_drive *d)
{
    struct list *before = n->drives.next;
    while (before != &n->drives && strcmp(CONTAINER_OF(before, struct node_drive, link)->path, d->path) <= 0)
        before = before->next;
    list_append(before, &d->link);
}

static int drives_load(struct node *n, struct control_error *e) may_yield
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(n->coord, "/drives/", &records, &count);
    if (r < 0) {
        control_error_set(e, r, "", "the records of the drives cannot be read: %s", error_text(r));
        return r;
    }
    for (size_t i = 0; i < count && r == 0; i++) {
        struct node_drive *d = calloc(1, sizeof(*d));
        if (d == NULL) {
            r = ERR_NO_MEMORY;
            break;
        }
        r = drive_record_decode(records[i].value, d);
        if (r < 0) {
            free(d);
            control_error_set(e, r, "", "the record %s cannot be understood", records[i].key);
            break;
        }
        d->revision = records[i].revision;
        snprintf(d->why, sizeof(d->why), "not opened yet");
        drive_insert(n, d);
    }
    coord_records_free(records, count);
    return r;
}

/* ---- Handles ---- */

struct attach_work {
    struct node *node;
    struct node_drive *drive;
    uint32_t at;
};

static int attach_here(void *arg) may_yield
{
    struct attach_work *w = arg;
    struct drive_set *set = &w->node->reactors[w->at].drives;
    struct drive **handle = &w->drive->handles[w->at];
    if (*handle == NULL) {
        int r = drive_attach(w->drive->home, handle);
        if (r < 0)
            return r;
    }
    return drive_set_find(set, w->drive->id) != NULL ? 0 : drive_set_add(set, *handle);
}

static int leave_here(void *arg)
{
    struct attach_work *w = arg;
    struct drive_set *set = &w->node->reactors[w->at].drives;
    struct drive *handle = w->drive->handles[w->at];
    if (handle != NULL && drive_set_find(set, w->drive->id) == handle)
        drive_set_remove(set, handle);
    return 0;
}

static int detach_here(void *arg) may_yield
{
    struct attach_work *w = arg;
    if (w->drive->handles[w->at] == NULL)
        return 0;
    int r = leave_here(arg);
    drive_detach(w->drive->handles[w->at]);
    w->drive->handles[w->at] = NULL;
    return r;
}

static int on_every_reactor(struct node *n, struct node_drive *d, int (*fn)(void *arg)) may_yield
{
    int result = 0;
    for (uint32_t i = 0; i < n->reactor_count; i++) {
        struct attach_work w = {.node = n, .drive = d, .at = i};
        int r = reactor_call(n->reactors[i].reactor, fn, &w);
        if (r < 0 && result == 0)
            result = r;
    }
    return result;
}

int node_drive_attach(struct node *n, struct node_drive *d)
{
    assert(d->home != NULL);
    int r = on_every_reactor(n, d, attach_here);
    if (r < 0)
        (void)on_every_reactor(n, d, detach_here);
    return r;
}

void node_drive_leave(struct node *n, struct node_drive *d)
{
    (void)on_every_reactor(n, d, leave_here);
}

/* ---- Start ---- */

static struct node_drive *drive_by_id(struct node *n, struct uuid id)
{
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (uuid_equal(d->id, id))
            return d;
    }
    return NULL;
}

/* The home was opened at path and is d's: into use. */
static int drive_found(struct node *n, struct node_drive *d, struct drive_home *home, const char *path)
    may_yield
{
    d->home = home;
    int r = node_drive_attach(n, d);
    if (r < 0) {
        drive_home_close(home);
        d->home = NULL;
        snprintf(d->why, sizeof(d->why), "it could not be attached: %s", error_text(r));
        return r;
    }
    struct drive_info info;
    if (drive_get_info(d->handles[0], &info) == 0) {
        d->size_bytes = info.size_bytes;
        d->slab_bytes = info.slab_bytes;
    }
    d->state = NODE_DRIVE_IN_USE;
    d->why[0] = '\0';
    d->generation = drive_home_generation(home);
    if (path != d->path)
        snprintf(d->path, sizeof(d->path), "%s", path);
    return node_drive_record(n, d);
}

/* Drives that were missing and may have come back: the monitor's. */
void node_drives_look_again(struct node *n)
{
    bool found = false;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        struct drive_home *home = NULL;
        char why[256];
        if (d->state != NODE_DRIVE_MISSING || access(d->path, R_OK | W_OK) < 0 ||
            drive_home_open(d->path, n->pool_id, d->generation, &home, why, sizeof(why)) < 0)
            continue;
        if (!uuid_equal(drive_home_id(home), d->id)) {
            drive_home_close(home);
            continue;
        }
        if (drive_found(n, d, home, d->path) < 0)
            continue;
        event_raise(LOG_INFO_, "drive-returned", "the drive %s is back in use", d->path);
        found = true;
    }
    if (found) {
        node_volumes_retry(n);
        node_repair_all(n);
    }
}

/* Opens what is at a path for whichever recorded drive it is. expected NULL: any of the missing ones. */
static void drive_try_path(struct node *n, const char *path, struct node_drive *expected) may_yield
{
    struct drive_home *home = NULL;
    char why[256] = "";
    int r = drive_home_open(path, n->pool_id, expected != NULL ? expected->generation : 0, &home, why,
                            sizeof(why));
    if (r < 0) {
        if (expected != NULL)
            snprintf(expected->why, sizeof(expected->why), "%s", why[0] != '\0' ? why : error_text(r));
        else
            LOG_WARNING("the drive %s is not used: %s", path, why[0] != '\0' ? why : error_text(r));
        return;
    }
    struct node_drive *d = drive_by_id(n, drive_home_id(home));
    const char *refused = NULL;
    if (d == NULL)
        refused = "it is of this pool, but no drive that the pool knows; take it in with `ashlar drive add`";
    else if (d->home != NULL)
        refused = "the same drive is already open at another path";
    else if (d->state == NODE_DRIVE_REMOVED)
        refused = "it was removed from the pool";
    else if (drive_home_generation(home) < d->generation)
        refused = "it was rolled back to an older state (a restored image?)";
    if (refused != NULL) {
        drive_home_close(home);
        if (expected != NULL)
            snprintf(expected->why, sizeof(expected->why), "what is at %s is another drive: %s", path,
                     refused);
        LOG_WARNING("the drive %s is not used: %s", path, refused);
        return;
    }
    r = drive_found(n, d, home, path);
    if (r < 0)
        LOG_ERROR("the drive %s: %s", path, error_text(r));
}

int node_drives_start(struct node *n, const char *const *extra, uint32_t extra_count, struct control_error *e)
{
    int r = drives_load(n, e);
    if (r < 0)
        return r;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->home == NULL && d->state != NODE_DRIVE_REMOVED)
            drive_try_path(n, d->path, d);
    }
    for (uint32_t i = 0; i < extra_count; i++)
        if (node_drive_find(n, extra[i]) == NULL || node_drive_find(n, extra[i])->home == NULL)
            drive_try_path(n, extra[i], NULL);

    uint32_t recorded = 0, open = 0;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        recorded += d->state != NODE_DRIVE_REMOVED;
        open += d->home != NULL;
        if (d->state == NODE_DRIVE_MISSING)
            event_raise(LOG_ERROR_, "drive-missing", "the drive %s is not in use: %s", d->path, d->why);
    }
    if (recorded > 0 && open == 0) {
        struct node_drive *first = CONTAINER_OF(n->drives.next, struct node_drive, link);
        control_error_set(e, ERR_DRIVE_GONE,
                          "Bring the drives back to where they were, or name their new paths with --drive.",
                          "none of the pool's %u drives can be used; the first, %s: %s", recorded,
                          first->path, first->why);
        return ERR_DRIVE_GONE;
    }
    if (open < recorded)
        LOG_WARNING("the node starts degraded: %u of its %u drives are in use", open, recorded);
    return 0;
}

void node_drives_stop(struct node *n)
{
    struct list *it;
    while ((it = list_pop(&n->drives)) != NULL) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->home != NULL) {
            uint64_t generation = drive_home_generation(d->home);
            if (d->state == NODE_DRIVE_IN_USE && generation > d->generation) {
                d->generation = generation;
                if (node_drive_record(n, d) < 0)
                    LOG_WARNING("the record of the drive %s could not be brought up to date", d->path);
            }
            (void)on_every_reactor(n, d, detach_here);
            drive_home_close(d->home);
        }
        free(d);
    }
}

/* ---- Looking ---- */

struct node_drive *node_drive_find(struct node *n, const char *id_or_path)
{
    struct node_drive *removed = NULL;
    struct uuid id;
    bool by_id = uuid_parse(id_or_path, &id) == 0;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (by_id ? !uuid_equal(d->id, id) : strcmp(d->path, id_or_path) != 0)
            continue;
        if (d->state != NODE_DRIVE_REMOVED)
            return d;
        removed = d; /* a newer drive may have its path by now */
    }
    return removed;
}

/* What a look at the path tells at once; the drive's own watch follows within two seconds. */
static bool path_is_gone(const struct node_drive *d, char *ret_why, size_t why_size)
{
    struct stat st;
    if (stat(d->path, &st) < 0) {
        snprintf(ret_why, why_size, "%s is gone: %s", d->path, strerror(errno));
        return errno == ENOENT || errno == ENXIO || errno == ENODEV;
    }
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size < d->size_bytes) {
        snprintf(ret_why, why_size, "shrunken: it has %llu bytes of %llu", (unsigned long long)st.st_size,
                 (unsigned long long)d->size_bytes);
        return true;
    }
    return false;
}

enum drive_state node_drive_state(struct node *n, struct node_drive *d, char *ret_why, size_t why_size)
{
    snprintf(ret_why, why_size, "%s", d->why);
    if (d->state == NODE_DRIVE_REMOVED)
        return DRIVE_REMOVED;
    if (d->state == NODE_DRIVE_MISSING || d->handles[0] == NULL)
        return DRIVE_LOST;
    struct drive_info info;
    int r = drive_get_info(d->handles[0], &info);
    if (r < 0) {
        snprintf(ret_why, why_size, "%s", error_text(r));
        return DRIVE_LOST;
    }
    if (info.state != DRIVE_OK) {
        snprintf(ret_why, why_size, "%s", info.why);
        return info.state;
    }
    if (path_is_gone(d, ret_why, why_size))
        return DRIVE_LOST;
    ret_why[0] = '\0';
    return DRIVE_OK;
}

const char *node_drive_state_name(struct node *n, struct node_drive *d)
{
    char why[256];
    if (d->state == NODE_DRIVE_MISSING)
        return "missing";
    switch (node_drive_state(n, d, why, sizeof(why))) {
    case DRIVE_OK:
        return "ok";
    case DRIVE_LOST:
        return "lost";
    case DRIVE_REMOVED:
        return "removed";
    }
    return "?";
}
