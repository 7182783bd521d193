/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulated world share. The harness above it uses sim/world.h alone. */
#ifndef ASHLAR_SIM_WORLD_INTERNAL_H
#define ASHLAR_SIM_WORLD_INTERNAL_H

#include "runtime/list.h"
#include "sim/world.h"

/* Something that will happen. Owned by whoever embeds it; fn runs from the loop, outside of every reactor. */
struct sim_event {
    uint64_t when_ns;
    uint64_t order; /* among events of the same time: drawn */
    void (*fn)(struct sim_event *e);
    struct sim_node *node; /* whose process it belongs to, or NULL: it is dropped when that has died */
    uint64_t boot;
};
/* node may be NULL. */
void sim_event_post(struct sim *s, struct sim_event *e, uint64_t when_ns, struct sim_node *node);

struct sim_node {
    struct sim *sim;
    uint32_t index;
    uint64_t boot; /* grows with every start and every death */
    bool alive;
    uint32_t reactor_count;
    struct reactor *reactors[SIM_NODE_REACTORS_MAX];
    bool turn_due[SIM_NODE_REACTORS_MAX]; /* a completion was delivered since its last turn */
    struct memory_budget *budget;
    struct list files;     /* struct sim_file.link */
    struct list in_flight; /* struct sim_io.link, in order of submission */
    uint64_t submissions, cut_at;
    bool cut;
    uint64_t fail_io_in, fail_alloc_in, fail_malloc_in;
    const char *fail_io_path; /* NULL: of any file */
    bool failed;
};

struct sim {
    struct sim_options o;
    struct sim_random random;  /* schedule, latency, faults */
    struct sim_random entropy; /* what nodes ask for: identities */
    uint64_t now_ns;
    uint64_t hash;
    uint64_t events;
    struct sim_event **heap;
    uint32_t heap_count, heap_capacity;
    struct sim_node *nodes[SIM_NODES_MAX];
    uint32_t node_count;
    uint64_t faults[SIM_FAULT_COUNT];
    struct list listeners, streams; /* network */
    bool partitioned[SIM_NODES_MAX][SIM_NODES_MAX];
    struct list free_ios;
};

#define SIM_EPOCH_NS (UINT64_C(1700000000) * NSEC_PER_SEC) /* wall time at the beginning */

struct sim_node *sim_node_of(struct reactor *r);
/* Waits a drawn time in a fiber of r: an operation that takes about `us`. Not cancellable. */
void sim_pause(struct reactor *r, uint32_t us) may_yield;
/* Around `us` microseconds: mostly near it, sometimes far above. */
uint64_t sim_draw_latency_ns(struct sim *s, uint32_t us);
void sim_mark_turn(struct reactor *r);

/* file.c */
void sim_files_crash(struct sim_node *n, const struct sim_power_loss *p); /* p NULL: only the process died */
int sim_op_file_open(struct reactor *r, const char *path, uint32_t flags, struct file **ret);
void sim_op_file_close(struct file *f);
int sim_op_file_get_info(struct file *f, struct file_info *ret);
int sim_op_file_resize(struct file *f, uint64_t size_bytes);
int sim_op_file_replace(struct reactor *r, const char *path, const void *data, size_t len);
int sim_op_file_read_all(struct reactor *r, const char *path, size_t max, char **ret_data, size_t *ret_len);
int sim_op_file_unlink(struct reactor *r, const char *path);
void sim_op_file_submit(struct file_io *io);

/* net.c */
void sim_net_crash(struct sim_node *n, bool silent);
int sim_op_listener_open(struct reactor *r, const char *address, struct listener **ret);
void sim_op_listener_close(struct listener *l);
int sim_op_listener_accept(struct listener *l, struct stream **ret);
int sim_op_stream_connect(struct reactor *r, const char *address, uint64_t deadline_ns, struct stream **ret);
int sim_op_stream_recvv(struct stream *s, const struct iovec *iov, uint32_t n, uint64_t deadline_ns,
                        size_t *ret_len);
int sim_op_stream_sendv(struct stream *s, struct iovec *iov, uint32_t n, uint64_t deadline_ns);
void sim_op_stream_shutdown(struct stream *s);
void sim_op_stream_close(struct stream *s);

#endif
