/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node as its operator sees it: drives, volumes and exports by name, and what can be done to them. The
 * server starts and stops it; the handlers of the control socket change it and look at it.
 *
 * Everything here belongs to the home reactor (reactors[0]) and is called on its fibers, unless said
 * otherwise. Volumes live on reactors of their own: node_volume_call() goes there. Whatever changes what
 * exists (adding a drive, creating a volume, …) holds node->changing; looking needs nothing but a reference.
 *
 * Records in the coordinator
 *      /pool             {"id", "state": "creating"|"ready", "drive_size_bytes", "planned": [PATH…]}
 *      /nodes/NODE       {"id", "dir"}
 *      /drives/DRIVE     {"id", "node", "path", "generation", "size_bytes", "slab_bytes", "state"}
 *      /volumes/VOLUME   cluster/record.h; the volume's own
 *      /exports/VOLUME   {"nbd": {"read_only", "allow": [CIDR…]}}
 *      /nfs/VOLUME       [{"as", "path", "clients", …}], see node_nfs.c
 * Exports have records of their own, since a volume's record is changed by its owner alone.
 */
#ifndef ASHLAR_CONTROL_NODE_H
#define ASHLAR_CONTROL_NODE_H

#include "block/block.h"
#include "cluster/coord.h"
#include "control/protocol.h"
#include "drive/local.h"
#include "filesystem/fs.h"
#include "filesystem/fs_verify.h"
#include "protocols/fuse/fuse_server.h"
#include "protocols/nbd/nbd.h"
#include "protocols/nfs/nfs.h"
#include "runtime/list.h"
#include "runtime/reactor.h"
#include "volume/shortage.h"
#include "volume/volume.h"

#define NODE_REACTORS_MAX 64u
#define NODE_PATH_MAX     256u

enum node_state {
    NODE_STARTING, /* drives are being opened */
    NODE_OPENING,  /* volumes are being opened; reading commands are served */
    NODE_READY,
    NODE_STOPPING,
};

/* What one reactor has for its volumes. Made and used on that reactor. */
struct node_reactor {
    struct reactor *reactor;
    struct drive_set drives;
    struct cache *cache;
    struct volume_env env;
    uint32_t volumes; /* placed here; the home reactor's */
};

enum node_drive_state {
    NODE_DRIVE_IN_USE,
    NODE_DRIVE_MISSING, /* recorded, but not here or refused; `why` says it */
    NODE_DRIVE_REMOVED, /* by the operator; its record goes when no volume needs it */
};

struct node_drive {
    struct list link;
    struct uuid id;
    char path[NODE_PATH_MAX];
    char why[256];
    uint64_t size_bytes;
    uint32_t slab_bytes;
    uint64_t generation;
    enum node_drive_state state;
    struct drive_home *home;                  /* NULL unless it was opened; kept when removed */
    struct drive *handles[NODE_REACTORS_MAX]; /* one a reactor, with home */
    uint64_t revision;                        /* of the record; 0: none yet */
};

enum node_volume_state {
    NODE_VOLUME_CLOSED, /* to be opened */
    NODE_VOLUME_OPENING,
    NODE_VOLUME_OPEN,
    NODE_VOLUME_FAILED, /* could not be opened; `error` and `why` say it; tried again */
    NODE_VOLUME_CLOSING,
    NODE_VOLUME_DELETING,
    NODE_VOLUME_CHECKING, /* nobody uses it but `ashlar fs check` */
    NODE_VOLUME_GONE,     /* deleted; the last reference frees it */
};

struct node_export {
    bool nbd;
    bool read_only;
    uint32_t allow_count;
    char allow[16][48]; /* CIDR; none: everybody who can reach the listener */
};

#define NODE_NFS_EXPORTS_MAX 64u
#define NODE_NFS_CLIENTS_MAX 32u
struct node_nfs_export {
    char as[256];    /* what clients mount: "/NAME" */
    char path[1024]; /* the directory in the file system */
    uint32_t client_count;
    char clients[NODE_NFS_CLIENTS_MAX][128]; /* CIDR or host names; none: everybody who can reach the port */
    bool read_only, secure;
    enum nfs_squash squash;
    uint32_t anon_uid, anon_gid;
    bool active; /* registered now */
    bool away;   /* and clients are told to try again, until its volume is open */
};

struct node_volume {
    struct list link;
    struct uuid id;
    char name[VOLUME_NAME_MAX + 1];
    char protection[24];
    struct protection protect;
    enum node_volume_state state;
    int error;
    uint32_t reactor;
    uint32_t refs;
    uint32_t calls;              /* under way on its reactor; closing waits for them */
    struct waitq changed;        /* state, calls */
    struct volume *volume;       /* NODE_VOLUME_OPEN; touched on its reactor only */
    bool is_fs;                  /* what is in it: a file system, or else a block device */
    struct block_device *device; /* with volume */
    struct fs *fs;               /* the same; touched on its reactor only */
    uint64_t retry_ns;           /* when a failed one is tried again */
    uint32_t retries;
    bool recheck; /* a drive came back: what was damaged may be readable again */
    struct node_export export;
    uint64_t export_revision;
    bool nbd_active; /* registered now */
    bool fuse_active;
    struct node_nfs_export *nfs; /* nfs_count of them */
    uint32_t nfs_count;
    uint64_t nfs_revision;
};

struct node {
    char dir[NODE_PATH_MAX];
    struct uuid id, pool_id;
    enum node_state state;
    uint64_t started_ns;
    uint64_t drive_size_bytes; /* of file drives that are made without a size */
    struct memory_budget *budget;
    struct coord *coord;
    struct volume_shortage shortage; /* of slabs, among the volumes of all reactors */
    struct nbd_server *nbd;          /* the server's start.c starts and stops it; NULL: not yet */
    uint16_t nbd_port;
    char nbd_listen[64];
    struct fuse_server *fuse; /* the same */
    struct nfs_server *nfs;   /* the same; NULL also where its port was in use */
    uint16_t nfs_port;
    char nfs_listen[64];
    uint32_t reactor_count;
    struct node_reactor reactors[NODE_REACTORS_MAX];
    struct list drives;  /* struct node_drive */
    struct list volumes; /* struct node_volume */
    struct fmutex changing;
    struct waitq changed; /* node state */
    struct fiber *monitor;
    uint32_t background; /* detached fibers of ours; stopping waits for them */
};

/* Zeroes and wires n; borrows budget and reactors, which outlive it. */
void node_setup(struct node *n, const char *dir, struct memory_budget *budget,
                struct reactor *const *reactors, uint32_t reactor_count);
void node_set_state(struct node *n, enum node_state state);
const char *node_state_name(enum node_state state);

/* ---- Life, in the order of server/start.c; each with its undoing ---- */

/* Caches and drive sets on every reactor. */
int node_reactors_start(struct node *n, struct control_error *e) MUST_CHECK may_yield;
void node_reactors_stop(struct node *n) may_yield;
/* Opens every recorded drive; also looks for them at the `extra` paths. A drive that is missing or refused is
 * reported, never formatted. Fails only when there are recorded drives and none can be opened. */
int node_drives_start(struct node *n, const char *const *extra, uint32_t extra_count, struct control_error *e)
    MUST_CHECK may_yield;
void node_drives_stop(struct node *n) may_yield;
/* Reads all records and opens the volumes in parallel; returns when each was tried once. Volumes that cannot
 * be opened stay listed as failed. */
int node_volumes_start(struct node *n, struct control_error *e) MUST_CHECK may_yield;
void node_volumes_stop(struct node *n) may_yield;
/* Watches drives and volumes: raises events, opens again what failed. */
int node_monitor_start(struct node *n, struct control_error *e) MUST_CHECK may_yield;
void node_monitor_stop(struct node *n) may_yield;

/* ---- Drives ---- */

struct node_drive *node_drive_find(struct node *n, const char *id_or_path);
/* Also of a drive that was lost while running: no later than the moment of asking. */
enum drive_state node_drive_state(struct node *n, struct node_drive *d, char *ret_why, size_t why_size)
    may_yield;
const char *node_drive_state_name(struct node *n, struct node_drive *d) may_yield;
/* Formats (or finds again, if it is a recorded drive that was missing) and takes into use. size_bytes 0: the
 * device's, the existing file's, or the pool's usual size for a new file. */
/* confirmed: somebody means it that a device is overwritten, even one that seems to be empty. */
int node_drive_add(struct node *n, const char *path, uint64_t size_bytes, bool confirmed, bool force,
                   struct node_drive **ret, struct control_error *e) MUST_CHECK may_yield;
/* Checks first that no volume would lose data by it and that its redundancy can be restored. Takes the drive
 * out of use; repair is the caller's (node_repair_all). */
int node_drive_remove(struct node *n, struct node_drive *d, struct control_error *e) MUST_CHECK may_yield;
/* A new drive in the place of an old one. path NULL: at the old path, if what is there is not a good drive.
 */
int node_drive_replace(struct node *n, struct node_drive *d, const char *path, bool force,
                       struct node_drive **ret, struct control_error *e) MUST_CHECK may_yield;
/* Stores the drive's record, as it is in memory now. */
int node_drive_record(struct node *n, struct node_drive *d) MUST_CHECK may_yield;
int node_drive_encode(struct node *n, const struct node_drive *d, char **ret_text) MUST_CHECK;

/* ---- Volumes ---- */

/* A reference, or NULL. */
struct node_volume *node_volume_get(struct node *n, const char *name);
void node_volume_put(struct node_volume *v);
/* References of all, malloc'ed. */
int node_volumes_snapshot(struct node *n, struct node_volume ***ret, uint32_t *ret_count) MUST_CHECK;
void node_volumes_release(struct node_volume **volumes, uint32_t count);
const char *node_volume_state_name(const struct node_volume *v);
/* Runs fn(volume, arg) on the volume's reactor. ERR_NODE_NOT_READY: it is not open now. */
int node_volume_call(struct node *n, struct node_volume *v, int (*fn)(struct volume *v, void *arg), void *arg)
    MUST_CHECK may_yield;
int node_volume_status(struct node *n, struct node_volume *v, struct volume_status *ret) MUST_CHECK may_yield;
/* kind: "block", or one of node_kind_is_fs(). */
int node_volume_create(struct node *n, const char *name, const char *kind, uint64_t size_bytes,
                       const char *protection, struct node_volume **ret, struct control_error *e)
    MUST_CHECK may_yield;
int node_volume_grow(struct node *n, struct node_volume *v, uint64_t size_bytes, struct control_error *e)
    MUST_CHECK may_yield;
/* Starts deleting in the background: the state tells when it is done (NODE_VOLUME_GONE, or FAILED). */
int node_volume_delete(struct node *n, struct node_volume *v, struct control_error *e) MUST_CHECK may_yield;
/* Starts scrub (else repair) of one volume. ERR_VOLUME_BUSY: one is running. */
int node_volume_job(struct node *n, struct node_volume *v, bool scrub, uint64_t rate_bytes_per_s)
    MUST_CHECK may_yield;
/* Starts repair of all open volumes; those that fail to start are told in an event. */
void node_repair_all(struct node *n) may_yield;
/* Tries failed volumes again at once (drives came back). */
void node_volumes_retry(struct node *n);

/* ---- File systems: node_volume.is_fs ---- */

bool node_kind_is_fs(const char *kind);
/* protection NULL: mirror:2 where there are two drives. quota_bytes 0: none. */
int node_fs_create(struct node *n, const char *name, const char *protection, uint64_t quota_bytes,
                   bool case_insensitive, struct node_volume **ret, struct control_error *e)
    MUST_CHECK may_yield;
/* Runs fn(fs, arg) on its reactor. ERR_NODE_NOT_READY: it is not open now. */
int node_fs_call(struct node *n, struct node_volume *v, int (*fn)(struct fs *fs, void *arg), void *arg)
    MUST_CHECK may_yield;
/* Of the directory `path`; 0 and 0: takes the quota away. */
int node_fs_quota_set(struct node *n, struct node_volume *v, const char *path, uint64_t limit_bytes,
                      uint64_t limit_inodes, struct control_error *e) MUST_CHECK may_yield;

/* Looks whether all that is in it fits together (repair: and mends what does not), while clients wait: those
 * of NFS are told to try again, mounts of this machine wait. The report's found() is called on the
 * volume's reactor. */
int node_fs_check(struct node *n, struct node_volume *v, bool repair, struct fs_verify *report,
                  uint64_t *ret_repaired, struct control_error *e) MUST_CHECK may_yield;

/* ---- Exports ---- */

int node_export_set(struct node *n, struct node_volume *v, const struct node_export *wanted,
                    struct control_error *e) MUST_CHECK may_yield;
/* Registers with the protocols what the volume's export says; after it opened. */
int node_export_start(struct node *n, struct node_volume *v) MUST_CHECK may_yield;
/* Before it closes. Clients are disconnected. */
void node_export_stop(struct node *n, struct node_volume *v) may_yield;
/* Before the NFS server stops, which must be before the volumes close: no volume is exported by it any more
 * as far as the node knows. Returns the server, for nfs_server_stop(); NULL: there is none. */
struct nfs_server *node_nfs_leave(struct node *n) MUST_CHECK;
/* One more directory, or other terms for the one that is exported `as` the same. Clients that are there go
 * on, by the new terms. */
int node_nfs_set(struct node *n, struct node_volume *v, const struct node_nfs_export *wanted,
                 struct control_error *e) MUST_CHECK may_yield;
/* as NULL: all of the file system. */
int node_nfs_unset(struct node *n, struct node_volume *v, const char *as, struct control_error *e)
    MUST_CHECK may_yield;
json_t *node_nfs_export_json(const struct node_nfs_export *x);
const char *node_nfs_squash_name(enum nfs_squash squash);
/* Untrusted text; *ret is malloc'ed. ERR_COORD_CORRUPT. */
int node_nfs_decode(const char *text, struct node_nfs_export **ret, uint32_t *ret_count) MUST_CHECK;
int node_export_encode(const struct node_export *x, char **ret_text) MUST_CHECK;
/* Untrusted text. ERR_COORD_CORRUPT. */
int node_export_decode(const char *text, struct node_export *ret) MUST_CHECK;
/* What block clients of an exported volume saw: queue now, latencies since it opened. Zeroes if not exported.
 */
void node_export_stats(struct node *n, struct node_volume *v, uint32_t *ret_queue, struct histogram *ret_read,
                       struct histogram *ret_write, struct histogram *ret_flush) may_yield;

#endif
