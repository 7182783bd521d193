/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the node's side share. Fields are marked by whose reactor touches them. */
#ifndef ASHLAR_PROTOCOLS_FUSE_INTERNAL_H
#define ASHLAR_PROTOCOLS_FUSE_INTERNAL_H

#include "protocols/fuse/fuse_server.h"
#include "protocols/fuse/fuse_table.h"
#include "protocols/fuse/fuse_wire.h"
#include "runtime/list.h"

#define FUSE_REQUEST_COST (6 * KIB) /* of a request in the accounts, beside its payload */
#define FUSE_BUFFER_PAGES 20u /* received and not consumed, of a connection: the longest small request */
#define FUSE_BULK         (16 * KIB)  /* from here on a payload is worth receiving into its place */
#define FUSE_NOTES_MAX    (512 * KIB) /* not sent yet; beyond it one note stands for all */
#define FUSE_FREE_JOBS    256u
#define FUSE_INLINE       1024u /* bytes of names in a job, and of short replies */
#define FUSE_CLIENT_TEXT  33u   /* a session's id in hexadecimal */

static_assert(FUSE_BUFFER_PAGES * BLOCK_SIZE >= WIRE_SMALL_MAX, "the longest small request");
static_assert(FUSE_FS_NAME_MAX == WIRE_NAME_MAX, "names of file systems");

/* An exported file system with all its mounts. */
struct fuse_fs {
    /* home */
    struct list link;
    struct fuse_server *server;
    char name[FUSE_FS_NAME_MAX + 1];
    struct fs *fs;
    struct reactor *reactor;
    uint32_t holds; /* hand-overs under way */
    struct waitq released;
    /* the reactor's */
    struct list sessions;    /* struct fuse_session.link */
    struct list connections; /* struct fuse_connection.link */
    struct waitq left;       /* a connection went, or a session */
    bool closing;
    struct fs_watch watch;
    struct fiber *sweeper; /* ends sessions that do not come back */
    struct waitq sweep;
    struct list free_jobs;
    uint32_t free_job_count;
    uint32_t mounts, away, opens; /* also read by home */
    uint64_t requests, invalidates;
};

struct fuse_server {
    struct reactor *home;
    struct fuse_limits limits;
    struct listener *listener;
    struct fiber *listener_fiber;
    struct list file_systems, greeters;
    uint32_t greeter_count;
    struct waitq greeters_changed;
    bool stopping;
    uint32_t connections; /* atomic; greeters too */
};

/* ---- fuse_session.c: what a mount has, beyond its connections ---- */

struct fuse_session {
    struct list link; /* fuse_fs.sessions */
    struct fuse_fs *fs;
    uint8_t id[16];
    char client[FUSE_CLIENT_TEXT];      /* of its locks */
    uint32_t stats;                     /* fs_client() */
    struct fuse_connection *connection; /* NULL: away */
    uint64_t away_since_ns;
    bool missed; /* invalidations, while it was away */
    bool bye;    /* it unmounted: ends with its connection */
    struct fuse_table opens;
};

/* At the reactor of fs; starts and ends what belongs to an exported file system there. */
int fuse_sessions_start(struct fuse_fs *f) MUST_CHECK may_yield;
void fuse_sessions_stop(struct fuse_fs *f) may_yield;
/* Finds or makes it, and gives it to the connection; waits until an earlier one of it is gone. *ret_coherent:
 * it missed no invalidation. ERR_NO_MEMORY, ERR_CLOSED (fs is being removed), ERR_CANCELLED. */
int fuse_session_attach(struct fuse_fs *f, const uint8_t id[16], const char *label, struct fuse_connection *c,
                        bool *ret_coherent) MUST_CHECK may_yield;
void fuse_session_detach(struct fuse_session *s);
/* flags: WIRE_OPEN_*. */
int fuse_session_open(struct fuse_session *s, const struct fs_request *rq, uint64_t ino, uint32_t flags)
    MUST_CHECK may_yield;
void fuse_session_close(struct fuse_session *s, uint64_t ino, uint32_t flags);
/* One of the opens that a mount tells when it connects: into c->told. */
int fuse_session_reopen(struct fuse_connection *c, const struct fs_request *rq, uint64_t ino, uint32_t flags,
                        uint32_t count) MUST_CHECK may_yield;
/* The client has told all its opens (`told`): these count, those of before go. Empties told. */
void fuse_session_reopened(struct fuse_session *s, struct fuse_table *told);
void fuse_opens_put(struct fuse_fs *f, struct fuse_table *opens);

/* ---- A request and its reply ---- */

struct fuse_job {
    struct list link;   /* queue to send, or the free ones */
    struct list active; /* fuse_connection.jobs: from its begin until its reply is queued */
    struct fuse_connection *connection;
    struct fuse_request q;
    struct fs_request rq;
    struct fs_reply_key key;
    uint64_t reserved;     /* in the accounts, until the reply was sent */
    struct fiber *waiting; /* for a lock; it may be cancelled */
    bool interrupted;
    bool counted; /* among the connection's requests */
    bool is_note;
    uint8_t *text; /* where the request's texts are, if they do not fit inline; malloc'ed */
    /* The reply: head, then the pages' bytes, then the tail. */
    uint32_t head_len;
    uint8_t head[256];
    struct page_vec vec;
    bool holds_pages;
    uint32_t skip, data_len; /* of the pages */
    uint8_t *tail;           /* malloc'ed */
    uint32_t tail_len, tail_size;
    uint8_t names[FUSE_INLINE];
};

/* A mount's stream; all of it is its file system's reactor's. */
struct fuse_connection {
    struct list link; /* fuse_fs.connections */
    struct fuse_fs *fs;
    struct fuse_session *session;
    struct stream *stream;
    uint32_t refs;          /* fibers that work for it */
    struct fuse_table told; /* opens, until REOPEN_DONE */
    bool ready;             /* REOPEN_DONE was there */

    /* Who reads: see "leading" in fuse_connection.c. */
    struct fiber *leader; /* NULL: nobody reads now */
    bool follower_pending;
    bool closing; /* nothing more is read */
    bool broken;  /* nothing more is sent */

    struct page *buffer;
    size_t start, end; /* bytes received and not consumed */
    bool bulk;         /* the last payload was a long one: receive little beyond the next */

    struct list jobs;    /* under way: struct fuse_job.active */
    struct list out;     /* replies and notes to send */
    uint64_t note_bytes; /* in out */
    bool writing;
    uint32_t requests, lock_waits;
    uint64_t admitted_bytes;
    struct waitq room; /* for any of these to fall */
};

/* ---- fuse_connection.c ---- */

/* Takes the stream, whose hello was read, over: it is closed if that fails. leftover: what came behind it. */
int fuse_connection_start(struct fuse_fs *f, const struct fuse_hello *hello, struct stream *stream,
                          const void *leftover, size_t leftover_len) MUST_CHECK may_yield;
/* Ends reading; what was read is finished and answered, but waits for locks, which go unanswered. */
void fuse_connection_drain(struct fuse_connection *c);
void fuse_connection_break(struct fuse_connection *c);
void fuse_connection_get(struct fuse_connection *c);
void fuse_connection_put(struct fuse_connection *c) may_yield;
/* Lets another fiber read on, so that the caller may wait in a request. */
void fuse_connection_yield_lead(struct fuse_connection *c);
/* Takes j: its reply is complete. */
void fuse_connection_send(struct fuse_connection *c, struct fuse_job *j);
/* It may last long: it counts no longer. */
void fuse_job_uncount(struct fuse_job *j);
/* Takes j: no reply is wanted, or it is not to be given. */
void fuse_connection_drop(struct fuse_connection *c, struct fuse_job *j);
/* Fresh pages for the payload that comes next on the stream, and the payload in them. ERR_NO_MEMORY: nothing
 * was received. Anything else: the stream is lost. */
int fuse_connection_receive(struct fuse_connection *c, uint64_t offset, uint32_t len, struct page_vec *ret)
    MUST_CHECK may_yield;
int fuse_connection_discard(struct fuse_connection *c, uint64_t len) MUST_CHECK may_yield;
/* Queues a note: kind, a head of bytes and a text. Never fails: without memory, or with too many not sent,
 * one note stands for all. */
void fuse_connection_note(struct fuse_connection *c, uint32_t kind, const void *body, uint32_t body_len,
                          const char *text, uint32_t text_len);
void fuse_jobs_free(struct fuse_fs *f);

/* ---- fuse_command*.c ---- */

uint64_t fuse_command_cost(const struct fuse_request *q);
/* Runs an admitted request to its end. well_formed false: it is refused. A write's data is still on the
 * stream: the caller leads. */
void fuse_command_run(struct fuse_job *j, bool well_formed) may_yield;
/* Ends a job with a reply of an error and what is in its head already. */
void fuse_command_end(struct fuse_job *j, int err);
void fuse_job_attr(struct fuse_job *j, const struct fs_attr *a);
void fuse_job_count(struct fuse_job *j, uint64_t value);
void fuse_job_bytes(struct fuse_job *j, const void *bytes, uint32_t len);
/* A tail of at least size bytes. ERR_NO_MEMORY. */
int fuse_job_tail(struct fuse_job *j, uint32_t size) MUST_CHECK;
void fuse_attr_encode(const struct fs_attr *a, struct wire_attr *out);

void fuse_command_read(struct fuse_job *j) may_yield;
void fuse_command_write(struct fuse_job *j) may_yield;
void fuse_command_readdir(struct fuse_job *j) may_yield;
void fuse_command_lock_test(struct fuse_job *j) may_yield;
void fuse_command_lock_set(struct fuse_job *j) may_yield;
void fuse_command_interrupt(struct fuse_job *j);

#endif
