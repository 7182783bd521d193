/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the mount process share.
 *
 * Threads, and what each may wait for:
 *   main      reads requests from the kernel, sends them to the node (waits for both)
 *   receiver  reads replies from the node, gives them to the kernel; connects again when the node went
 *   resender  after a connect: sends what is open and what was not answered, then ends
 *   notifier  tells the kernel what changed. Only it: the kernel may let it wait for a page or a directory
 *             that a request of somebody holds, whose reply the receiver must be free to bring.
 *
 * `lock` guards everything marked so; it is held only for moments. `send_lock` is held while something is
 * sent or the socket is exchanged, and taken first.
 */
#ifndef ASHLAR_PROTOCOLS_FUSE_CLIENT_INTERNAL_H
#define ASHLAR_PROTOCOLS_FUSE_CLIENT_INTERNAL_H

#define FUSE_USE_VERSION 314

#include "protocols/fuse/fuse_client.h"
#include "protocols/fuse/fuse_table.h"
#include "protocols/fuse/fuse_wire.h"
#include "runtime/list.h"

#include <fuse3/fuse_lowlevel.h>
#include <pthread.h>

#define CLIENT_RECEIVE_BYTES ((size_t)(1 * MIB) + 64 * KIB) /* of one request of the kernel */
#define CLIENT_KEEP_BYTES    (32 * KIB) /* data of a write from here on is kept where it was received */
#define CLIENT_BUCKETS       4096u
#define CLIENT_NOTES_MAX     65536u
#define CLIENT_BUFFERS       8u /* spare ones */

/* Where the kernel's requests are received. */
struct client_buffer {
    struct client_buffer *next;
    uint8_t *bytes; /* CLIENT_RECEIVE_BYTES, mapped */
};

/* A request that was not answered. */
struct client_request {
    struct list order;           /* client.requests, by unique */
    struct list unsent;          /* client.unsent, or by itself */
    struct client_request *next; /* in its bucket */
    fuse_req_t req;              /* NULL: nobody waits for it */
    uint64_t unique;             /* 0: no reply comes, it goes when it was sent */
    uint64_t ino;
    uint16_t op;
    bool sent;        /* perhaps in part, perhaps on a connection that broke */
    bool interrupted; /* its process was signalled */
    pid_t pid;        /* the thread that waits; 0: not known */
    bool must;        /* it must be done, though nobody waits */
    bool plus;        /* READDIR */
    uint32_t size;    /* READDIR, XATTR_*: room for the reply; WRITE: bytes */
    uint32_t open;    /* OPEN, MAKE: WIRE_OPEN_* */
    bool creates;     /* MAKE: and opens */
    struct fuse_file_info file;
    struct client_buffer *buffer; /* that has the data; NULL: it lies in bytes */
    const uint8_t *data;
    uint32_t data_len;
    uint32_t len; /* of bytes */
    uint8_t bytes[];
};

enum client_state {
    CLIENT_AWAY,      /* no connection: requests gather */
    CLIENT_RESENDING, /* the resender sends, in order */
    CLIENT_CONNECTED,
};

struct client_note {
    struct client_note *next;
    uint32_t kind; /* enum wire_note */
    uint64_t ino, child;
    uint64_t offset, len;
    bool data, removed;
    uint32_t name_len;
    char name[];
};

struct client {
    struct fuse_mount_options options;
    uint8_t session[16];
    char label[WIRE_LABEL_MAX + 1];
    struct fuse_session *se;
    int fuse_fd;
    bool silent; /* standard error is gone: complaints go to syslog */

    pthread_mutex_t send_lock;
    int socket; /* send_lock; -1: none */

    pthread_mutex_t lock;
    enum client_state state;                        /* lock */
    struct list requests, unsent;                   /* lock */
    uint32_t request_count;                         /* lock */
    bool urgent;                                    /* lock: somebody waits for one of the unsent */
    struct client_request *buckets[CLIENT_BUCKETS]; /* lock */
    struct fuse_table nodes;                        /* lock: what the kernel knows and has open */
    struct client_buffer *spare;                    /* lock */
    uint32_t spare_count;                           /* lock */
    bool ending;                                    /* lock: unmounted */

    pthread_mutex_t note_lock;
    pthread_cond_t note_there;
    struct client_note *notes, **notes_end; /* note_lock */
    uint32_t note_count;                    /* note_lock */

    pthread_t receiver, notifier, resender;
    bool resender_runs; /* the receiver's */

    /* main's */
    uint64_t next_unique;
    uint32_t gathered; /* requests since the last were sent */
    struct client_buffer *buffer;
    const uint8_t *raw; /* the request that is being decoded, as the kernel wrote it */
    size_t raw_len;
    bool buffer_taken;    /* by a write's request */
    bool interrupted_now; /* the request that is being begun was interrupted already */
    uint64_t init_flags;  /* of the kernel's INIT while it is being answered; 0: not now */
};

/* ---- fuse_client.c ---- */

void client_log(const struct client *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- fuse_client_ops.c: the kernel's requests ---- */

extern const struct fuse_lowlevel_ops client_ops;

/* ---- fuse_client_reply.c: the node's replies ---- */

/* One whole reply or note of len bytes, header included. False: it makes no sense; the connection goes. */
bool client_reply(struct client *c, const uint8_t *bytes, uint32_t len) MUST_CHECK;

/* ---- fuse_client_link.c: the connection and what is under way on it ---- */

/* Encodes q for req (NULL: nobody waits). data: of a WRITE, else NULL. NULL: no memory; req was answered. */
struct client_request *client_request_new(struct client *c, fuse_req_t req, const struct fuse_request *q,
                                          const void *data, uint32_t data_len);
/* Takes r: it will be sent at the next client_flush(), or by the resender. */
void client_request_begin(struct client *c, struct client_request *r);
/* Sends what gathered, if there is a connection. Main only. */
void client_flush(struct client *c);
/* The request of that number, off the lists: the caller has it. NULL: there is none. */
struct client_request *client_request_take(struct client *c, uint64_t unique);
void client_request_free(struct client *c, struct client_request *r);
/* Its process was signalled. */
void client_interrupt(struct client *c, uint64_t unique);
/* One try to connect: the socket, or -errno. *ret_coherent: no invalidation was missed. */
int client_connect(struct client *c, bool *ret_coherent);
/* Runs until c->ending: connects again whenever it must. arg: struct client, with a connected socket. */
void *client_receiver(void *arg);
void client_link_start(struct client *c, int fd);
struct client_buffer *client_buffer_get(struct client *c);
void client_buffer_put(struct client *c, struct client_buffer *b);

/* ---- fuse_client_notes.c: the kernel is told what changed ---- */

void *client_notifier(void *arg);
/* name may be NULL. Never waits. */
void client_note_add(struct client *c, const struct client_note *n, const char *name, uint32_t name_len);

/* ---- What the kernel knows: lock is held ---- */

void client_node_looked_up(struct client *c, uint64_t ino);
void client_node_forget(struct client *c, uint64_t ino, uint64_t lookups);

#endif
