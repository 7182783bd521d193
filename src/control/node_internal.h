/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the node. */
#ifndef ASHLAR_CONTROL_NODE_INTERNAL_H
#define ASHLAR_CONTROL_NODE_INTERNAL_H

#include "control/node.h"
#include "runtime/error.h"
#include "runtime/log.h"

#define NODE_KEY_SIZE 64
/* "/drives/UUID" and the like. */
void node_key(const char *folder, struct uuid id, char out[NODE_KEY_SIZE]);

/* Puts one record if its revision is still *revision, which becomes the new one; settles an unknown result by
 * reading. value NULL: deletes it. */
int node_record_put(struct node *n, const char *key, const char *value, uint64_t *revision)
    MUST_CHECK may_yield;

/* A detached fiber that stopping waits for. fn must end with node_background_end(). */
int node_background_start(struct node *n, const char *name, void (*fn)(void *arg), void *arg) MUST_CHECK;
void node_background_end(struct node *n);

/* Every home reactor's handle joins, or leaves, its reactor's set. */
int node_drive_attach(struct node *n, struct node_drive *d) MUST_CHECK may_yield;
void node_drive_leave(struct node *n, struct node_drive *d) may_yield;

/* Takes recorded drives that were missing into use, if they are back. */
void node_drives_look_again(struct node *n) may_yield;

/* One attempt; the outcome is in v->state, v->error. Registers its exports. */
void node_volume_open(struct node *n, struct node_volume *v) may_yield;
void node_volume_close(struct node *n, struct node_volume *v) may_yield;
/* Of an open volume, on its reactor: its file system comes, and goes. */
int node_fs_open_here(struct node_volume *v) MUST_CHECK may_yield;
void node_fs_close_here(struct node_volume *v) may_yield;
/* The exports over NFS: read from their record, registered, taken back, forgotten with their volume. */
void node_nfs_load(struct node *n, struct node_volume *v) may_yield;
int node_nfs_start(struct node *n, struct node_volume *v) MUST_CHECK may_yield;
void node_nfs_stop(struct node *n, struct node_volume *v) may_yield;
/* Of a volume that is not open any more, or not yet: when it returns nobody uses its file system through
 * them, and clients are told to try again. */
void node_nfs_pause(struct node *n, struct node_volume *v) may_yield;
/* Like node_export_stop(), but NFS clients wait for it to come back. Mounts of this machine do so anyway. */
void node_export_pause(struct node *n, struct node_volume *v) may_yield;
/* Runs fn(volume, arg) on the open volume's reactor while nobody else uses it: its exports pause, calls are
 * refused. fn may close a file system and open it again; where that fails the volume is closed and tried
 * again later. Exports are started by the caller. */
int node_volume_alone(struct node *n, struct node_volume *v, int (*fn)(struct volume *v, void *arg),
                      void *arg) MUST_CHECK may_yield;
void node_nfs_forget(struct node *n, struct node_volume *v) may_yield;
struct node_volume *node_volume_add(struct node *n, const struct volume_record *r);

#endif
