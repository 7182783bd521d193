/* SPDX-License-Identifier: Apache-2.0 */
/* Adding, removing and replacing drives. Nothing here overwrites a drive that may hold data of this pool. */
#include "control/node_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Formats what is (or is not yet) at the path as a drive of this pool. */
static int drive_make(struct node *n, const char *path, uint64_t size_bytes, bool confirmed, bool force,
                      struct control_error *e) may_yield
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) {
        int r = ERR_SYS(errno);
        control_error_set(e, r, "", "%s: %s", path, error_text(r));
        return r;
    }
    if (exists && S_ISBLK(st.st_mode) && !confirmed && !force) {
        control_error_set(e, ERR_DRIVE_FOREIGN, "Check the path; --yes says that you mean it.",
                          "%s is a device, and whatever is on it would be overwritten", path);
        return ERR_DRIVE_FOREIGN;
    }
    struct drive_format_options o = {.path = path, .pool_id = n->pool_id, .force = force};
    if (!exists || (S_ISREG(st.st_mode) && st.st_size == 0))
        o.size_bytes = size_bytes != 0 ? size_bytes : n->drive_size_bytes;
    char why[256] = "";
    struct uuid id;
    int r = drive_format(&o, &id, why, sizeof(why));
    if (r < 0) {
        const char *hint = r == ERR_SYS(ENOSPC) ? "Make room on the file system that holds the file, or give "
                                                  "another path."
                                                : "";
        control_error_set(e, r, hint, "%s cannot become a drive: %s", path,
                          why[0] != '\0' ? why : error_text(r));
    }
    return r;
}

/* Opens a drive of this pool at the path as a new member of it, or as the missing one that it is. */
static int drive_take_in(struct node *n, const char *path, struct node_drive **ret, struct control_error *e)
    may_yield
{
    struct drive_home *home = NULL;
    char why[256] = "";
    int r = drive_home_open(path, n->pool_id, 0, &home, why, sizeof(why));
    if (r < 0) {
        control_error_set(e, r, "", "%s cannot be used: %s", path, why[0] != '\0' ? why : error_text(r));
        return r;
    }
    char id_text[UUID_TEXT_SIZE];
    uuid_format(drive_home_id(home), id_text);
    struct node_drive *d = node_drive_find(n, id_text);
    if (d != NULL &&
        (d->home != NULL || d->state == NODE_DRIVE_REMOVED || drive_home_generation(home) < d->generation)) {
        control_error_set(
            e, ERR_EXISTS,
            "A drive that was removed, or a copy of an older state, must be wiped before it can "
            "be taken in again (wipefs --all, or delete the file).",
            "%s is the drive %s of this pool, which is %s", path, id_text, node_drive_state_name(n, d));
        drive_home_close(home);
        return ERR_EXISTS;
    }
    struct node_drive *fresh = d == NULL ? calloc(1, sizeof(*d)) : NULL;
    if (d == NULL && fresh == NULL) {
        drive_home_close(home);
        control_error_set(e, ERR_NO_MEMORY, "", "%s", error_text(ERR_NO_MEMORY));
        return ERR_NO_MEMORY;
    }
    d = d != NULL ? d : fresh;
    d->id = drive_home_id(home);
    d->home = home;
    d->generation = drive_home_generation(home);
    snprintf(d->path, sizeof(d->path), "%s", path);
    r = node_drive_attach(n, d);
    if (r < 0) {
        drive_home_close(home);
        d->home = NULL;
        free(fresh);
        control_error_set(e, r, "", "%s could not be attached: %s", path, error_text(r));
        return r;
    }
    struct drive_info info;
    if (drive_get_info(d->handles[0], &info) == 0) {
        d->size_bytes = info.size_bytes;
        d->slab_bytes = info.slab_bytes;
    }
    d->state = NODE_DRIVE_IN_USE;
    d->why[0] = '\0';
    if (fresh != NULL)
        list_append(&n->drives, &d->link);
    r = node_drive_record(n, d);
    if (r < 0) {
        control_error_set(e, r, "Look at the log; then try again.",
                          "the drive's record could not be written: %s", error_text(r));
        return r;
    }
    *ret = d;
    return 0;
}

/* True if a drive of this pool can be opened there now (which nobody else has open). */
static bool is_ours(struct node *n, const char *path) may_yield
{
    struct drive_home *home = NULL;
    char why[256];
    if (drive_home_open(path, n->pool_id, 0, &home, why, sizeof(why)) < 0)
        return false;
    drive_home_close(home);
    return true;
}

int node_drive_add(struct node *n, const char *path, uint64_t size_bytes, bool confirmed, bool force,
                   struct node_drive **ret, struct control_error *e)
{
    if (path[0] != '/' || strlen(path) >= NODE_PATH_MAX) {
        control_error_set(e, ERR_INVALID, "Give the whole path, beginning with /.", "\"%.80s\" is not a path",
                          path);
        return ERR_INVALID;
    }
    struct node_drive *d = node_drive_find(n, path);
    if (d != NULL && d->home != NULL && d->state == NODE_DRIVE_IN_USE) {
        control_error_set(e, ERR_EXISTS, "", "%s is a drive of this pool already (%s)", path,
                          node_drive_state_name(n, d));
        return ERR_EXISTS;
    }
    if (d != NULL && d->home != NULL) {
        control_error_set(e, ERR_EXISTS,
                          "Once the node was restarted it may be wiped and added as a new drive.",
                          "%s was removed from this pool", path);
        return ERR_EXISTS;
    }
    if (!is_ours(n, path)) {
        int r = drive_make(n, path, size_bytes, confirmed, force, e);
        if (r < 0)
            return r;
    }
    int r = drive_take_in(n, path, &d, e);
    if (r < 0)
        return r;
    event_raise(LOG_INFO_, "drive-added", "the drive %s is in use", d->path);
    node_volumes_retry(n);
    *ret = d;
    return 0;
}

/* ---- Removing ---- */

/* Slabs of one volume on one drive; 0 if the table cannot be read (the drive is lost). */
static uint32_t slabs_of(struct node_drive *d, struct uuid volume) may_yield
{
    struct slab_entry *slabs = NULL;
    uint32_t count = 0;
    if (d->handles[0] == NULL || drive_slab_list(d->handles[0], volume, &slabs, &count) < 0)
        return 0;
    free(slabs);
    return count;
}

/* Drives in use and well, without d; and their free bytes. */
static uint32_t other_drives(struct node *n, const struct node_drive *d, uint64_t *ret_free_bytes) may_yield
{
    uint32_t count = 0;
    uint64_t free_bytes = 0;
    char why[256];
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *o = CONTAINER_OF(it, struct node_drive, link);
        struct drive_info info;
        if (o == d || node_drive_state(n, o, why, sizeof(why)) != DRIVE_OK ||
            drive_get_info(o->handles[0], &info) < 0)
            continue;
        count++;
        free_bytes += (uint64_t)info.slabs_free * info.slab_bytes;
    }
    *ret_free_bytes = free_bytes;
    return count;
}

/* Whether one volume stands the removal of a drive on which it has slabs. */
static int removal_check(struct node *n, struct node_drive *d, struct node_volume *v, uint32_t others,
                         struct control_error *e) may_yield
{
    struct volume_status status;
    int r = node_volume_status(n, v, &status);
    if (r < 0) {
        control_error_set(
            e, r, "Bring the volume back first.",
            "the volume %s has data on %s and is not open now, so what it would lose is unknown", v->name,
            d->path);
        return r;
    }
    char why[256];
    if (node_drive_state(n, d, why, sizeof(why)) == DRIVE_OK && status.redundancy_left < 1) {
        control_error_set(
            e, ERR_VOLUME_BUSY,
            v->protect.spare == 0 ? "Copy the volume to a mirrored one and delete it, then remove the drive."
                                  : "Repair the volume first: `ashlar repair NAME --wait`.",
            "%s may hold the last good copy of data of the volume %s (%s)", d->path, v->name, v->protection);
        return ERR_VOLUME_BUSY;
    }
    uint32_t copies = protection_system_copies(v->protect);
    if (others < copies) {
        control_error_set(e, ERR_NOT_ENOUGH_DRIVES, "Add a drive first: `ashlar drive add PATH`.",
                          "without %s, %u drives are left, and the volume %s (%s) needs %u", d->path, others,
                          v->name, v->protection, copies);
        return ERR_NOT_ENOUGH_DRIVES;
    }
    return 0;
}

/* spares: drives that will be there, too, of a size that is not known yet. */
static int removal_check_all(struct node *n, struct node_drive *d, uint32_t spares, struct control_error *e)
    may_yield
{
    uint64_t free_bytes, needed_bytes = 0;
    uint32_t others = other_drives(n, d, &free_bytes) + spares;
    struct node_volume **volumes;
    uint32_t count;
    int r = node_volumes_snapshot(n, &volumes, &count);
    if (r < 0) {
        control_error_set(e, r, "", "%s", error_text(r));
        return r;
    }
    for (uint32_t i = 0; i < count && r == 0; i++) {
        if (volumes[i]->state == NODE_VOLUME_GONE)
            continue;
        uint32_t slabs = slabs_of(d, volumes[i]->id);
        needed_bytes += (uint64_t)slabs * d->slab_bytes;
        if (slabs > 0)
            r = removal_check(n, d, volumes[i], others, e);
    }
    node_volumes_release(volumes, count);
    if (r == 0 && spares == 0 && needed_bytes > free_bytes) {
        control_error_set(e, ERR_DRIVE_NO_SPACE, "Add a drive first: `ashlar drive add PATH`.",
                          "the other drives have no room for what is on %s (%llu MiB, and %llu MiB are free)",
                          d->path, (unsigned long long)(needed_bytes / MIB),
                          (unsigned long long)(free_bytes / MIB));
        r = ERR_DRIVE_NO_SPACE;
    }
    return r;
}

/* The record first: after a crash in between, the drive is not taken in again. */
static int drive_retire(struct node *n, struct node_drive *d, struct control_error *e) may_yield
{
    enum node_drive_state before = d->state;
    d->state = NODE_DRIVE_REMOVED;
    int r = node_drive_record(n, d);
    if (r < 0) {
        d->state = before;
        control_error_set(e, r, "", "the drive's record could not be written: %s", error_text(r));
        return r;
    }
    snprintf(d->why, sizeof(d->why), "removed by the operator");
    if (d->home != NULL) {
        drive_home_remove(d->home);
        node_drive_leave(n, d);
    }
    event_raise(LOG_INFO_, "drive-removed", "the drive %s was taken out of use", d->path);
    return 0;
}

int node_drive_remove(struct node *n, struct node_drive *d, struct control_error *e)
{
    if (d->state == NODE_DRIVE_REMOVED) {
        control_error_set(e, ERR_NOT_FOUND, "", "%s was removed before", d->path);
        return ERR_NOT_FOUND;
    }
    int r = removal_check_all(n, d, 0, e);
    return r < 0 ? r : drive_retire(n, d, e);
}

/* ---- Replacing ---- */

/* To PATH.replaced, or PATH.replaced.2 and so on: one that was kept before stays. */
static int move_aside(const char *path, char *ret_aside, size_t size)
{
    for (uint32_t i = 1; i < 1000; i++) {
        char number[16] = "";
        if (i > 1)
            snprintf(number, sizeof(number), ".%u", i);
        snprintf(ret_aside, size, "%s.replaced%s", path, number);
        if (renameat2(AT_FDCWD, path, AT_FDCWD, ret_aside, RENAME_NOREPLACE) == 0)
            return 0;
        struct stat st;
        bool unable = errno == EINVAL || errno == ENOSYS; /* a file system without such a rename */
        if (unable && lstat(ret_aside, &st) < 0 && errno == ENOENT)
            return rename(path, ret_aside);
        if (!unable && errno != EEXIST)
            return -1;
    }
    errno = EEXIST;
    return -1;
}

/* Makes way at the old path: what is there is the rest of the lost drive, and never a drive that works. */
static int old_path_clear(struct node *n, struct node_drive *d, struct control_error *e) may_yield
{
    struct stat st;
    char why[256];
    if (node_drive_state(n, d, why, sizeof(why)) == DRIVE_OK || is_ours(n, d->path)) {
        control_error_set(
            e, ERR_VOLUME_BUSY,
            "To move to another drive name it: `ashlar drive replace OLD NEW`. A drive that came "
            "back is taken in by `ashlar drive add PATH`.",
            "what is at %s is a good drive of this pool", d->path);
        return ERR_VOLUME_BUSY;
    }
    if (lstat(d->path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0; /* gone, or a device: formatting looks at what is there */
    char aside[NODE_PATH_MAX + 16];
    /* A stump is worthless. A whole file may still be of use to somebody with nothing else left: kept aside.
     */
    bool stump = (uint64_t)st.st_size < d->size_bytes;
    if ((stump ? unlink(d->path) : move_aside(d->path, aside, sizeof(aside))) < 0) {
        int r = ERR_SYS(errno);
        control_error_set(e, r, "Remove the file by hand, or name another path.",
                          "the rest of the lost drive, %s, cannot be moved out of the way: %s", d->path,
                          error_text(r));
        return r;
    }
    if (!stump)
        event_raise(LOG_WARNING_, "drive-kept", "the old file of the drive was kept as %s", aside);
    return 0;
}

int node_drive_replace(struct node *n, struct node_drive *d, const char *path, bool force,
                       struct node_drive **ret, struct control_error *e)
{
    if (d->state == NODE_DRIVE_REMOVED) {
        control_error_set(e, ERR_NOT_FOUND, "", "%s was removed before", d->path);
        return ERR_NOT_FOUND;
    }
    char why[256];
    bool old_is_good = node_drive_state(n, d, why, sizeof(why)) == DRIVE_OK;
    const char *new_path = path != NULL ? path : d->path;
    int r = 0;
    if (strcmp(new_path, d->path) == 0)
        r = old_path_clear(n, d, e);
    else if (old_is_good)
        r = removal_check_all(n, d, 1, e); /* before anything is overwritten for nothing */
    if (r < 0)
        return r;
    struct node_drive *fresh = NULL;
    if (!is_ours(n, new_path))
        r = drive_make(n, new_path, d->size_bytes, true, force, e);
    if (r == 0)
        r = drive_take_in(n, new_path, &fresh, e);
    if (r < 0)
        return r;
    if (old_is_good)
        r = removal_check_all(n, d, 0, e);
    if (r == 0)
        r = drive_retire(n, d, e);
    if (r < 0) {
        event_raise(LOG_WARNING_, "drive-added", "the drive %s is in use, and did not replace %s",
                    fresh->path, d->path);
        return r;
    }
    event_raise(LOG_INFO_, "drive-replaced", "the drive %s takes the place of %s", fresh->path, d->path);
    node_volumes_retry(n);
    *ret = fresh;
    return 0;
}
