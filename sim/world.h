/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated world: one universe of nodes, files and a network under a virtual clock, driven by one seed.
 * It implements struct world_ops for the reactors of its nodes; everything above runtime/ runs unchanged.
 *
 * A node is a process: it is started, runs reactors, and ends in order, by a kill (its memory is gone, what
 * its kernel completed stays) or by a power loss (what was not flushed is lost, survives or is torn, block by
 * block). A dead process is abandoned: its fibers are never resumed and nothing of it is freed.
 *
 * Invariants
 *  S1  the same seed gives the same events in the same order: nothing depends on addresses, on the real clock
 *      or on the order of a hash table;
 *  S2  time moves only in sim_run(), to the next event;
 *  S3  nothing of a process that died is called again, and none of its I/O completes;
 *  S4  a completed write is seen by every later read; after a power loss only what was covered by a sync
 *      (submitted after the write had completed) or was written with dsync is certain.
 */
#ifndef ASHLAR_SIM_WORLD_H
#define ASHLAR_SIM_WORLD_H

#include "runtime/reactor.h"
#include "sim/random.h"

#include <stdio.h>

#define SIM_NODES_MAX         8u
#define SIM_NODE_REACTORS_MAX 4u
#define SIM_PATH_SIZE         64u
#define SIM_SECTOR_SIZE       512u /* a torn block is torn between sectors */

#define SIM_FAULTS(X)                                                           \
    X(PROCESS_KILL, "process-kill")           /* a node's process died */       \
    X(POWER_LOSS, "power-loss")               /* a node lost its power */       \
    X(UNFLUSHED_LOST, "unflushed-lost")       /* a block lost at that */        \
    X(UNFLUSHED_TORN, "unflushed-torn")       /* a block torn at that */        \
    X(CRASH_IN_FLIGHT, "in-flight-cut")       /* writes under way at a crash */ \
    X(CRASH_IN_RECOVERY, "crash-in-recovery") /* before the volume was open */  \
    X(READ_ERROR, "read-error")                                                 \
    X(WRITE_ERROR, "write-error")                                               \
    X(SYNC_ERROR, "sync-error")                                                 \
    X(DRIVE_LOST, "drive-lost")     /* all I/O fails from now on */             \
    X(DRIVE_CUT, "drive-truncated") /* its file became shorter */               \
    X(HOST_FULL, "host-full")       /* no space for a new block */              \
    X(BIT_ROT, "bit-rot")           /* a stable block changed */                \
    X(MISDIRECTED, "misdirected-write")                                         \
    X(DROPPED, "dropped-write") /* acknowledged, never written */               \
    X(SLOW_IO, "slow-io")       /* one took 10 to 1000 times as long */         \
    X(SLOW_DRIVE, "slow-drive") /* all of them for a while */                   \
    X(POOL_FULL, "pool-full")   /* the volume said ENOSPC */                    \
    X(NET_DELAY, "net-delay")                                                   \
    X(NET_PARTITION, "net-partition")                                           \
    X(NET_RESET, "net-reset")

enum sim_fault {
#define X(name, text) SIM_FAULT_##name,
    SIM_FAULTS(X)
#undef X
        SIM_FAULT_COUNT
};
const char *sim_fault_name(enum sim_fault f);

/* Bugs of the world itself, for showing that the checker sees what they do (sim --mutant). */
enum sim_mutant {
    SIM_MUTANT_NONE,
    SIM_MUTANT_NO_SYNC,     /* FILE_SYNC completes and makes nothing stable */
    SIM_MUTANT_EARLY_ACK,   /* a write completes before its data can be read back */
    SIM_MUTANT_NO_DSYNC,    /* dsync writes are like others */
    SIM_MUTANT_STALE_READ,  /* now and then a read returns what was there before the last write */
    SIM_MUTANT_WRONG_BLOCK, /* now and then a write lands in a neighbour, on all drives alike */
    SIM_MUTANT_CHANGE_TORN, /* the volume target's: one change is made as two */
    SIM_MUTANT_COUNT
};
const char *sim_mutant_name(enum sim_mutant m);

struct sim;
struct sim_node;
struct sim_file;

struct sim_options {
    uint64_t seed;
    bool trace; /* print each event to trace_out */
    FILE *trace_out;
    enum sim_mutant mutant;
    uint64_t quantum_ns;    /* events within one quantum are delivered together; >= 1 */
    uint32_t io_latency_us; /* typical; each I/O draws around it */
    uint32_t net_latency_us;
    bool shuffle_fibers; /* else FIFO */
    size_t stack_bytes;  /* of fibers; 0: the runtime's default */
};

enum sim_mutant sim_mutant_of(const struct sim *s);
struct sim *sim_new(const struct sim_options *o);
struct sim_random *sim_random_of(struct sim *s); /* the world's own stream */
uint64_t sim_now_ns(const struct sim *s);
/* Hash over all events so far; holds no wall-clock time and no address. */
uint64_t sim_trace_hash(const struct sim *s);
uint64_t sim_event_count(const struct sim *s);
/* Adds to the hash and, with --trace, prints "time what text a b c". what and text are literals or printable
 * text that depends on the seed only. */
void sim_trace(struct sim *s, const char *what, const char *text, uint64_t a, uint64_t b, uint64_t c);
bool sim_tracing(const struct sim *s);
/* For people only: printed with --trace, not hashed. */
void sim_note(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
void sim_count_fault(struct sim *s, enum sim_fault f);
const uint64_t *sim_faults(const struct sim *s); /* [SIM_FAULT_COUNT] */

/* ---- Running ---- */

enum sim_stop { SIM_DONE, SIM_IDLE, SIM_DEADLINE };
/* Runs until done(ctx) is true (asked after each event), nothing is left that could happen, or the virtual
 * time reaches the deadline. */
enum sim_stop sim_run(struct sim *s, bool (*done)(void *ctx), void *ctx, uint64_t deadline_ns);
/* Calls fn(arg) from the loop when the time has come, outside of every node. */
void sim_call_at(struct sim *s, uint64_t when_ns, void (*fn)(void *arg), void *arg);

/* ---- Nodes ---- */

struct sim_node *sim_node_new(struct sim *s); /* host "10.0.0.<index + 1>"; not started */
/* Starts a process of n with `reactors` reactors sharing budget_bytes of page memory. */
void sim_node_start(struct sim_node *n, uint32_t reactors, uint64_t budget_bytes, size_t chunk_bytes);
bool sim_node_alive(const struct sim_node *n);
struct reactor *sim_node_reactor(struct sim_node *n, uint32_t index);
struct sim_node *sim_node_current(void); /* whose code runs now; NULL outside */
struct sim *sim_of_node(struct sim_node *n);
uint32_t sim_node_index(const struct sim_node *n);

struct sim_power_loss { /* what becomes of each block that was not flushed, in ppm; the rest survives */
    uint32_t lost_ppm;
    uint32_t torn_ppm;
};
/* The process is gone at once; what the kernel had completed stays. I/O under way: done, not done, or done in
 * part. */
void sim_node_kill(struct sim_node *n);
void sim_node_power_loss(struct sim_node *n, const struct sim_power_loss *p);
/* After this many further submissions of n the process does nothing to the world any more: sim_node_cut() is
 * true from then on, and whoever asked crashes it. 0: never. */
void sim_node_cut_after(struct sim_node *n, uint64_t submissions);
bool sim_node_cut(const struct sim_node *n);
uint64_t sim_node_submissions(const struct sim_node *n);
/* An orderly end: all fibers must have ended. */
void sim_node_end(struct sim_node *n);

/* ---- Files and drives ---- */

struct sim_drive_faults { /* of one file; all zero: a good drive */
    uint32_t read_error_ppm, write_error_ppm, sync_error_ppm;
    uint32_t misdirect_ppm, drop_ppm, slow_ppm;
    uint32_t slow_factor; /* > 1: every I/O takes this many times as long */
    bool lost;            /* every I/O fails */
    bool full;            /* blocks that were never written cannot be allocated */
};

/* Creates a file of n's, stable at once. NULL if it exists. */
struct sim_file *sim_file_new(struct sim_node *n, const char *path, uint64_t size_bytes);
struct sim_file *sim_file_find(struct sim_node *n, const char *path);
struct sim_drive_faults *sim_file_faults(struct sim_file *f);
uint64_t sim_file_size(const struct sim_file *f);
uint64_t sim_file_blocks_used(const struct sim_file *f);
/* The stable content of a block as bytes; NULL: never written or zero. */
const uint8_t *sim_file_block(const struct sim_file *f, uint64_t block);
/* Flips 1 to 4 bits of one block, stable and cached content alike. false: it holds nothing. */
bool sim_file_rot_block(struct sim_file *f, uint64_t block);
/* A written block chosen by chance from [first, end); false: found none. */
bool sim_file_pick_block(struct sim_file *f, uint64_t first, uint64_t end, uint64_t *ret_block);
/* Cuts the file at once, durably: what a person does with truncate(1). */
void sim_file_cut(struct sim_file *f, uint64_t size_bytes);
/* Replaces the content by nothing, as a new drive in the old one's place. */
void sim_file_wipe(struct sim_file *f, uint64_t size_bytes);
/* Blocks written but not yet stable. */
uint64_t sim_file_unflushed(const struct sim_file *f);

/* Fails the nth I/O (1: the next) of a node's files (path not NULL: of this file) with EIO, or the nth of its
 * page allocations, once. path is borrowed. */
void sim_node_fail_io(struct sim_node *n, uint64_t nth, const char *path);
void sim_node_fail_alloc(struct sim_node *n, uint64_t nth);
/* The same for malloc, calloc and realloc of the node's code; only in a program that is linked with
 * malloc_wrap.c. */
void sim_node_fail_malloc(struct sim_node *n, uint64_t nth);
bool sim_malloc_fails(void); /* malloc_wrap.c asks */
/* True once that failure has happened; disarms what has not. */
bool sim_node_failed(struct sim_node *n);

/* ---- Network ---- */

/* Nothing passes from node a to node b until healed: what is sent is held, as by retransmission. */
void sim_partition(struct sim *s, uint32_t from, uint32_t to, bool cut);
/* Resets every connection between two nodes. */
void sim_reset_connections(struct sim *s, uint32_t a, uint32_t b);

extern const struct world_ops sim_world_ops;

#endif
