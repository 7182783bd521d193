/* SPDX-License-Identifier: Apache-2.0 */
/* The node's file systems: volumes of a kind of their own, with a file system in the place of the block
 * device. */
#include "control/node_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* How long files that were unlinked while open are kept after a start, for who had them open to come back;
 * and how long only locks of before are granted. As long as NFS clients take to find a server that restarted.
 */
#define FS_GRACE_NS (45 * NSEC_PER_SEC)

#define KIND_FS                  "fs"
#define KIND_FS_CASE_INSENSITIVE "fs-ci"

bool node_kind_is_fs(const char *kind)
{
    return strcmp(kind, KIND_FS) == 0 || strcmp(kind, KIND_FS_CASE_INSENSITIVE) == 0;
}

/* A crash between making the volume and its root directory leaves a volume that nobody was told of: its first
 * opening makes the rest. */
int node_fs_open_here(struct node_volume *v)
{
    int r = fs_open(v->volume, FS_GRACE_NS, &v->fs);
    if (r == ERR_NOT_FOUND) {
        struct fs_format_options o = {
            .case_insensitive = strcmp(volume_get_record(v->volume)->kind, KIND_FS_CASE_INSENSITIVE) == 0};
        r = fs_format(v->volume, &o);
        if (r == 0)
            r = fs_open(v->volume, FS_GRACE_NS, &v->fs);
    }
    if (r < 0)
        v->fs = NULL;
    return r;
}

void node_fs_close_here(struct node_volume *v)
{
    if (v->fs == NULL)
        return;
    fs_close(v->fs);
    v->fs = NULL;
}

/* ---- Calls on the file system's reactor ---- */

struct fs_work {
    struct node_volume *v;
    int (*fn)(struct fs *fs, void *arg);
    void *arg;
};

static int fs_here(struct volume *volume, void *arg) may_yield
{
    struct fs_work *w = arg;
    return w->v->fs != NULL ? w->fn(w->v->fs, w->arg) : ERR_NODE_NOT_READY;
}

int node_fs_call(struct node *n, struct node_volume *v, int (*fn)(struct fs *fs, void *arg), void *arg)
{
    assert(v->is_fs);
    return node_volume_call(n, v, fs_here, &(struct fs_work){.v = v, .fn = fn, .arg = arg});
}

/* ---- Making one ---- */

struct quota_work {
    const char *path;
    uint64_t limit_bytes, limit_inodes;
};

static int quota_here(struct fs *fs, void *arg) may_yield
{
    const struct quota_work *w = arg;
    struct fs_attr attr;
    int r = fs_path_find(fs, w->path, &attr);
    return r < 0 ? r : fs_quota_set(fs, attr.ino, w->limit_bytes, w->limit_inodes);
}

int node_fs_quota_set(struct node *n, struct node_volume *v, const char *path, uint64_t limit_bytes,
                      uint64_t limit_inodes, struct control_error *e)
{
    struct quota_work w = {.path = path, .limit_bytes = limit_bytes, .limit_inodes = limit_inodes};
    int r = node_fs_call(n, v, quota_here, &w);
    if (r < 0)
        control_error_set(e, r, r == ERR_FS_NOT_DIRECTORY ? "Quotas are of directories." : "",
                          "the quota of %s in %s cannot be set: %s", path, v->name, error_text(r));
    return r;
}

/* Two copies where there are two drives: nobody who did not think about it should lose data with one drive.
 */
static const char *default_protection(const struct node *n)
{
    uint32_t drives = 0;
    LIST_FOREACH (&n->drives, it) {
        drives += CONTAINER_OF(it, struct node_drive, link)->state == NODE_DRIVE_IN_USE;
    }
    return drives >= 2 ? "mirror:2" : "none";
}

/* The size of a file system's volume says only how large its log is: what its drives have. */
static uint64_t pool_bytes(const struct node *n)
{
    uint64_t sum = 0;
    LIST_FOREACH (&n->drives, it) {
        const struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->state == NODE_DRIVE_IN_USE)
            sum += d->size_bytes;
    }
    return MAX(ALIGN_DOWN(sum, (uint64_t)BLOCK_SIZE), 64 * MIB);
}

int node_fs_create(struct node *n, const char *name, const char *protection, uint64_t quota_bytes,
                   bool case_insensitive, struct node_volume **ret, struct control_error *e)
{
    struct node_volume *v;
    int r = node_volume_create(n, name, case_insensitive ? KIND_FS_CASE_INSENSITIVE : KIND_FS, pool_bytes(n),
                               protection != NULL ? protection : default_protection(n), &v, e);
    if (r < 0)
        return r;
    if (quota_bytes != 0)
        r = node_fs_quota_set(n, v, "/", quota_bytes, 0, e);
    if (r < 0) {
        node_volume_put(v);
        return r;
    }
    *ret = v;
    return 0;
}

/* ---- Checking one, and mending it ---- */

struct check_work {
    struct node_volume *v;
    bool repair;
    struct fs_verify *report;
    uint64_t repaired;
};

/* The file system is closed meanwhile: nothing may change it. */
static int check_here(struct volume *volume, void *arg) may_yield
{
    struct check_work *w = arg;
    node_fs_close_here(w->v);
    int r = w->repair ? fs_repair(volume, w->report, &w->repaired) : fs_verify(volume, w->report);
    int opened = node_fs_open_here(w->v); /* where that fails v->fs is NULL */
    return r < 0 ? r : opened;
}

int node_fs_check(struct node *n, struct node_volume *v, bool repair, struct fs_verify *report,
                  uint64_t *ret_repaired, struct control_error *e)
{
    struct check_work w = {.v = v, .repair = repair, .report = report};
    int r = node_volume_alone(n, v, check_here, &w), started = 0;
    if (v->state == NODE_VOLUME_OPEN)
        started = node_export_start(n, v);
    if (r < 0) {
        control_error_set(e, r, "See `ashlar status` and `ashlar events`.",
                          "the file system %s cannot be checked: %s", v->name, error_text(r));
        return r;
    }
    if (started < 0)
        event_raise(LOG_ERROR_, "export-failed", "the file system %s is open again, but not exported: %s",
                    v->name, error_text(started));
    *ret_repaired = w.repaired;
    return 0;
}
