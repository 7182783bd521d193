/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the local drive. home.c has the theory.
 *
 * Who touches what: fields of struct drive_home belong to the home's reactor, but those marked "shared",
 * which any reactor reads with atomic loads. Fields of struct local_drive and struct local_session belong to
 * the reactor that attached the handle.
 */
#ifndef ASHLAR_DRIVE_INTERNAL_H
#define ASHLAR_DRIVE_INTERNAL_H

#include "drive/codec.h"
#include "drive/local.h"
#include "runtime/list.h"
#include "runtime/reactor.h"

struct drive_counters {
    uint64_t reads, writes, flushes, read_bytes, write_bytes, errors;
    struct histogram read_latency, write_latency, flush_latency;
};

/* Two copies of a row of checksummed blocks. The entries live in the home; fill() encodes them. */
struct drive_table {
    struct drive_home *home;
    enum drive_table_kind kind;
    uint64_t offset[2];
    uint32_t blocks;
    uint64_t *sequence; /* of each block, as last written */
    uint64_t *changed;  /* counts changes in memory … */
    uint64_t *durable;  /* … and which of them are on both copies */
    struct fmutex lock;
    struct drive_table_disk *buffer; /* one block, aligned; under the lock */
    void (*fill)(struct drive_home *h, uint32_t entry, void *out);
};

/* A volume that this drive has heard of: its fence. */
struct drive_volume {
    struct drive_fence fence;
    uint32_t tag;    /* shared, constant: what owner[slab] holds for its slabs; never used twice */
    uint64_t serial; /* shared: of the newest session; any other is fenced */
    uint32_t pins;   /* sessions and calls that hold the pointer; shared (atomic) */
    bool fresh;      /* changed in this incarnation: a purged one may not be dropped yet */
    struct fmutex lock;
};

struct drive_slab_live {
    struct drive_slab entry;
    bool busy; /* being prepared, revoked or discarded: not for allocation */
};

struct drive_home {
    struct reactor *reactor;
    struct file *file; /* has the lock */
    char path[256];
    struct drive_superblock sb;
    uint64_t incarnation;
    uint64_t no_fence_before_ns;
    uint64_t opened_ns;
    bool opened_clean;
    bool needs_prepare; /* a file: its space must be written once */
    bool closing;
    bool inspect; /* never writes; constant */
    struct drive_condition condition;

    enum drive_state state; /* shared */
    uint32_t state_claimed; /* shared: who sets the state first */
    uint32_t state_told;    /* shared: state_message has arrived */
    char why[128];          /* constant once state is not DRIVE_OK */
    struct message state_message;

    struct fmutex sb_lock;
    void *sb_block; /* aligned; under sb_lock */
    struct fmutex handles_lock;
    struct list handles; /* of struct local_drive */
    struct drive_counters detached;

    struct drive_table slab_table, fence_table;
    struct drive_slab_live *slabs;
    uint32_t *owner; /* shared: the tag of the volume that each slab belongs to; 0: none */
    uint32_t slabs_free;
    struct fmutex alloc_lock;
    bool alloc_seen;
    bool host_full;
    uint32_t prepare_ahead; /* slabs to keep ready */

    struct drive_volume **volumes; /* by their entry in the fence table; NULL: unused */
    uint32_t volumes_max;
    uint32_t next_tag;

    struct waitq work;    /* wakes the worker */
    struct waitq settled; /* woken when a slab is not busy any more */
    struct waitq watch;
    struct fiber *worker_fiber;
    struct fiber *watch_fiber;
    uint64_t traffic_seen;
};

struct local_drive {
    struct drive base;
    struct drive_home *home;
    struct reactor *reactor;
    struct file *file;
    struct list link;     /* home->handles */
    struct list sessions; /* of struct local_session */
    struct waitq drained; /* woken when a session's count of something reaches zero, if someone waits */
    uint32_t drain_waiters;

    struct list rejected; /* struct drive_io by file.link: done() is due, from the loop */
    struct message reject_message;
    bool reject_posted;

    struct list flush_riding; /* by file.link: complete with the flush that is under way */
    struct list flush_waiting;
    struct file_io flush_io;
    uint64_t flush_started_ns;
    bool flushing;

    struct drive_counters counters; /* others read them with relaxed loads */
};

struct local_session {
    struct drive_session base;
    struct drive_volume *volume;
    uint64_t serial;
    struct list link;
    uint32_t phase; /* 0 or 1: I/O is counted by the phase in which it was admitted, so that one can wait
                       for all that came before while new ones go on */
    uint32_t phase_in_flight[2];
    uint32_t calls; /* slab operations under way */
    struct fmutex drain_lock;
};

static inline struct local_drive *local_of(struct drive *d)
{
    return (struct local_drive *)d;
}
static inline struct local_session *local_session_of(struct drive_session *s)
{
    return (struct local_session *)s;
}
static inline enum drive_state home_state(const struct drive_home *h)
{
    return __atomic_load_n(&h->state, __ATOMIC_ACQUIRE);
}
static inline bool session_current(const struct drive_volume *v, uint64_t serial)
{
    return __atomic_load_n(&v->serial, __ATOMIC_ACQUIRE) == serial;
}

/* home.c */
/* First caller wins. Any thread. */
void home_set_state(struct drive_home *h, enum drive_state state, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Under sb_lock. */
int home_write_superblock(struct drive_home *h, bool clean) MUST_CHECK may_yield;
/* Reads both superblock blocks of an open file. Copy B is looked for where copy A says, else at the end.
 * ret_err[i] is drive_superblock_decode's or the read's error; ret_zero: copy B is a block of zeroes. */
struct superblock_pair {
    int err[2];
    bool zero[2];
    struct drive_superblock copy[2];
};
int superblock_read_pair(struct file *f, uint64_t size_bytes, struct superblock_pair *ret)
    MUST_CHECK may_yield;

/* watch.c */
void home_watch_fiber(void *arg) may_yield;
/* Looks whether the path still leads to this drive, whole. */
void home_check_medium(struct drive_home *h) may_yield;

/* table.c */
int drive_table_init(struct drive_table *t, struct drive_home *h, enum drive_table_kind kind) MUST_CHECK;
void drive_table_done(struct drive_table *t);
/* Loads every block, from the better copy; brings the other one level. take() gets each entry. */
int drive_table_load(struct drive_table *t, int (*take)(struct drive_home *h, uint32_t entry, const void *in))
    MUST_CHECK may_yield;
void drive_table_changed(struct drive_table *t, uint32_t entry);
/* Both copies hold what the entry has in memory now, durably. ERR_DRIVE_GONE (the drive is lost then). */
int drive_table_commit(struct drive_table *t, uint32_t entry) MUST_CHECK may_yield;
int drive_table_commit_all(struct drive_table *t) MUST_CHECK may_yield;

/* fence.c; all on the home's reactor */
int home_fences_load(struct drive_home *h) MUST_CHECK may_yield;
struct drive_volume *home_volume_find(struct drive_home *h, struct uuid volume, uint32_t *ret_index);
/* Invariant 3. On success *ret_volume is pinned for the session. */
int home_fence(struct drive_home *h, struct uuid volume, uint64_t epoch, uint64_t generation,
               struct drive_volume **ret_volume, uint64_t *ret_serial) MUST_CHECK may_yield;
void home_fences_free(struct drive_home *h);
void volume_unpin(struct drive_volume *v);

/* slab.c; all on the home's reactor */
int home_slabs_load(struct drive_home *h) MUST_CHECK may_yield;
void home_slabs_free(struct drive_home *h);
int home_slab_alloc(struct drive_home *h, const struct local_session *s, uint32_t group, uint32_t member,
                    uint32_t *ret_slab) MUST_CHECK may_yield;
/* The slab is the volume's no longer: its later requests are refused. */
int home_slab_revoke(struct drive_home *h, const struct local_session *s, uint32_t slab) MUST_CHECK;
/* After everything admitted before has completed. */
int home_slab_release(struct drive_home *h, uint32_t slab) MUST_CHECK may_yield;
int home_slab_list(struct drive_home *h, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
    MUST_CHECK;
int home_volume_purge(struct drive_home *h, struct uuid volume, uint64_t epoch) MUST_CHECK may_yield;
/* prepare.c */
void home_worker_fiber(void *arg) may_yield;
/* Writes the slab's space once. ERR_DRIVE_NO_SPACE: the host's file system is full. */
int home_slab_prepare(struct drive_home *h, uint32_t slab) MUST_CHECK may_yield;

/* local.c */
/* Waits until no session older than serial of this volume has anything under way on this handle. Raises
 * *lease_until_ns to the latest lease of those whose epoch is below. */
int handle_drain(struct local_drive *ld, const struct drive_volume *v, uint64_t serial, uint64_t epoch,
                 uint64_t *lease_until_ns) MUST_CHECK may_yield;
void handle_take_state(struct local_drive *ld);

/* set.c */
void drive_state_changed(struct drive *d, enum drive_state state);

#endif
