/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the server share. Fields are marked by whose reactor touches them. */
#ifndef ASHLAR_PROTOCOLS_NFS_INTERNAL_H
#define ASHLAR_PROTOCOLS_NFS_INTERNAL_H

#include "protocols/nfs/nfs.h"
#include "protocols/nfs/nfs_handle.h"
#include "protocols/nfs/rpc_message.h"
#include "protocols/nfs/rpc_record.h"
#include "runtime/list.h"
#include "runtime/network.h"

#define NFS_CALL_COST        (8 * KIB) /* of a request in the accounts, beside its payload */
#define NFS_CALL_IN          1152u /* of a record's head: the longest that has no payload, but for paths */
#define NFS_CALL_IN_MAX      (16 * KIB) /* of a record without payload */
#define NFS_CALL_OUT         416u       /* results of most procedures */
#define NFS_BULK             (16 * KIB) /* from here on a payload is worth receiving into its place */
#define NFS_BULK_WINDOW      1024u      /* what is received beyond a bulk payload: some heads */
#define NFS_BUFFER_PAGES     1u         /* of a connection that is quiet */
#define NFS_BUFFER_PAGES_BIG 16u
#define NFS_BUFFERS_BIG      256u /* of them per shard */
#define NFS_FREE_CALLS       512u
#define NFS_FREE_PAYLOADS    64u
#define NFS_PROGRAMS_MAX     8u
#define NFS_DREADDIR         (64 * KIB)              /* dtpref */
#define NFS_READDIR_MAX      ((uint32_t)(256 * KIB)) /* bytes of one READDIR or READDIRPLUS */

struct nfs_replies; /* nfs_drc.c */
struct nfs_call;

/* ---- Programs: what a call is dispatched to ---- */

/* Beside enum rpc_accept, what running a call may come to: no reply at all. */
#define NFS_CALL_DROP 100

struct rpc_procedure { /* name NULL: there is none of this number */
    const char *name;
    /* Reads call->args, writes the results to call->out; returns enum rpc_accept or NFS_CALL_DROP. */
    int (*run)(struct nfs_call *call); /* may yield */
    /* What it may hold beside NFS_CALL_COST until its reply was sent, bytes; NULL: nothing. Peeks. */
    uint64_t (*cost)(const struct nfs_call *call);
    bool payload; /* ends with opaque data that is received into pages: NFS3_WRITE */
};
struct rpc_version {
    const struct rpc_procedure *procedures;
    uint32_t count;
};
struct rpc_program {
    const char *name;
    uint32_t number, low, high; /* versions served, all between too */
    const struct rpc_version *versions;
    bool datagrams; /* also over UDP */
    bool local;     /* this machine may have one of its own: rpcbind's entry for that one is left alone */
    /* Optional: the shard on which the call would best be run. NULL: wherever it is. */
    struct nfs_shard *(*place)(struct nfs_call *call);
};
extern const struct rpc_program nfs3_program, mount3_program, nlm_program, nsm_program, portmap_program;
/* Before the first listener. */
void nfs_server_add_program(struct nfs_server *s, const struct rpc_program *p);

/* ---- Who asks ---- */

struct nfs_peer {
    uint8_t address[16];
    uint16_t port;
    bool local; /* a Unix socket */
    char ip[48];
};
/* text: as stream_peer() or a datagram's sender. */
void nfs_peer_init(struct nfs_peer *p, const char *text, const char *ip);

/* ---- A call ---- */

/* Pages of a READ's or WRITE's data. */
struct nfs_payload {
    struct list link;
    struct page_vec vec;
    uint8_t *copied; /* instead of pages: what came from another reactor */
};

struct nfs_call {
    struct list link; /* shard.free_calls, connection.out */
    struct nfs_server *server;
    struct nfs_shard *shard;           /* whose it is; of datagrams: home's */
    struct nfs_connection *connection; /* NULL: a datagram */
    const struct nfs_peer *peer;
    struct rpc_header header;
    const struct rpc_program *program;
    const struct rpc_procedure *procedure;
    struct xdr args;
    struct xdr_out out; /* the reply: 4 bytes for the mark, then the message */
    uint32_t results_at;
    bool admitted;
    uint64_t reserved;
    bool foreign;   /* it runs on another reactor than its shard's */
    bool no_memory; /* for the payload */
    uint32_t in_len;
    bool whole; /* the record's end was seen */
    uint8_t *big_in, *big_out;
    struct nfs_payload *payload[2]; /* the second: the last block of a WRITE that is not aligned */
    uint32_t payload_skip;          /* bytes of the first page in front of it */
    uint32_t payload_len;           /* of a reply: bytes behind out */
    uint8_t in[NFS_CALL_IN];
    uint8_t reply[NFS_CALL_OUT];
};

/* ---- Shards: all connections of one reactor ---- */

struct nfs_shard {
    struct list link; /* home: server->shards */
    struct nfs_server *server;
    struct reactor *reactor;
    struct nfs_export **table; /* exports by their tag: open addressing */
    uint32_t table_size;       /* power of two */
    struct nfs_replies *replies;
    struct list connections; /* struct nfs_connection.link */
    struct waitq left;       /* for them to go */
    uint64_t admitted_bytes;
    struct waitq room; /* for admitted_bytes to fall */
    struct list free_calls, free_payloads;
    uint32_t free_call_count, free_payload_count;
    uint32_t big_buffers;
    struct list lock_waits; /* struct nlm_wait.link */
    uint32_t lock_wait_count;
    struct waitq lock_wait_ended;
    uint64_t evicted, duplicates, bad_handles;
    uint64_t ops[NFS3_PROC_COUNT], errors[NFS3_PROC_COUNT];
};

/* ---- Exports: what they say never changes; another set of rules is another struct ---- */

struct nfs_export {
    struct list link; /* home: server->exports */
    char path[NFS_EXPORT_MAX + 1];
    uint32_t path_len;
    uint32_t tag;            /* of its path */
    struct fs *fs;           /* NULL: not there at the moment */
    struct nfs_shard *shard; /* of the file system's reactor; home's without one */
    uint64_t volume_tag;
    uint64_t root_ino;
    uint32_t root_generation;
    struct nfs_handle_key key;
    bool read_only, secure;
    enum nfs_squash squash;
    uint32_t anon_uid, anon_gid;
    struct network_list clients;
    char *clients_text; /* for MOUNT's list */
    uint32_t uses;      /* atomic: requests under way */
    /* the shard's */
    uint64_t ops, error_count, read_bytes, write_bytes;
};

/* ---- Connections: all of it is the shard's ---- */

struct nfs_connection {
    struct list link; /* shard.connections */
    struct nfs_shard *shard;
    struct stream *stream; /* NULL: it has moved away */
    struct nfs_peer peer;
    uint32_t refs; /* fibers that work for it */

    /* Who reads: see "leading" in nfs_connection.c. */
    struct fiber *leader; /* NULL: nobody reads now */
    bool follower_pending;
    bool closing; /* nothing more is read */
    bool broken;  /* nothing more is sent */
    bool settled; /* it is on the reactor of what it uses */
    uint32_t foreign_streak;

    struct rpc_record record;
    struct page *buffer;
    uint32_t buffer_pages;
    size_t start, end;        /* bytes received and not consumed */
    bool crowded;             /* the last receive filled the buffer */
    bool bulk;                /* the last payload was a long one: receive little beyond the next */
    struct nfs_call *carried; /* came with it from another reactor: to be run first */

    struct list out; /* calls whose replies are to be sent */
    uint64_t out_bytes;
    bool writing;
    uint32_t requests; /* admitted and not ended */
    uint64_t admitted_bytes;
    struct waitq room;                        /* for any of these to fall */
    uint64_t send_since_ns, receive_since_ns; /* a send, a payload, that is not complete; 0: none */
    uint64_t active_ns;                       /* the last request */
    uint64_t ops, bytes_in, bytes_out;

    /* Its number in the statistics of the file system used last. */
    uint32_t client_tag;
    uint32_t client_index;
    uint64_t client_until_ns;
};

struct nfs_listener {
    struct list link;
    struct nfs_server *server;
    struct listener *listener; /* NULL: datagrams */
    struct datagram_socket *datagrams;
    struct fiber *fiber;
    bool portmap;
    uint64_t warned_ns;
};

#define NFS_MOUNTS_MAX 1024u
struct nfs_mount { /* what clients say they have mounted; for people */
    struct list link;
    char ip[48];
    char path[NFS_EXPORT_MAX + 1];
};

struct nfs_server {
    struct reactor *home;
    struct nfs_limits limits;
    struct list listeners, exports, shards, mounts;
    uint32_t export_count, mount_count;
    bool stopping;
    bool registered;        /* with rpcbind */
    struct fmutex registry; /* held while exports change */
    struct nfs_shard *home_shard;
    const struct rpc_program *programs[NFS_PROGRAMS_MAX];
    uint32_t program_count;
    uint32_t connections; /* atomic */
    uint64_t accepted, refused;
};

/* ---- nfs_call.c ---- */

/* With the address of who asks; NULL: no memory. connection NULL: a datagram. */
struct nfs_call *nfs_call_new(struct nfs_shard *shard, struct nfs_connection *c, const struct nfs_peer *peer);
/* Drops all that it holds. Of its shard's reactor. */
void nfs_call_free(struct nfs_call *call);
/* Decodes the head and finds the procedure. True: it is to be run. False: the reply is in out (out.len 0:
 * there is none). */
bool nfs_call_begin(struct nfs_call *call, const uint8_t *record, uint32_t len) MUST_CHECK;
/* Runs it; the reply is in out, payload behind it. False: none. */
bool nfs_call_run(struct nfs_call *call) MUST_CHECK may_yield;
/* The reply is an error of RPC. */
void nfs_call_fail(struct nfs_call *call, enum rpc_accept status);
/* Sets the record's mark; returns the bytes on the wire. */
uint32_t nfs_call_finish(struct nfs_call *call);
/* Room for `bytes` more in out. False: no memory. */
bool nfs_call_room(struct nfs_call *call, uint32_t bytes) MUST_CHECK;
/* An empty one; NULL: no memory. */
struct nfs_payload *nfs_call_payload(struct nfs_call *call);
void nfs_payload_free(struct nfs_shard *shard, struct nfs_payload *p);
/* Runs fn(arg) on that shard's reactor; call->foreign says meanwhile whether it is another one. */
int nfs_call_on(struct nfs_call *call, struct nfs_shard *shard, int (*fn)(void *arg), void *arg) may_yield;

/* ---- nfs_connection.c ---- */

/* How a connection begins: new, or moved here. */
struct nfs_connection_start {
    struct nfs_shard *shard;
    struct stream *stream;
    const uint8_t *leftover; /* bytes that were received and not consumed */
    size_t leftover_len;
    struct rpc_record record;
    struct nfs_call *carried; /* or NULL; taken if it succeeds */
    uint64_t ops, bytes_in, bytes_out;
};
/* Takes the stream over if it succeeds. In the shard's reactor. */
int nfs_connection_begin(const struct nfs_connection_start *o) MUST_CHECK may_yield;
/* Ends reading; what was read is finished and answered. */
void nfs_connection_drain(struct nfs_connection *c);
void nfs_connection_break(struct nfs_connection *c);
/* Of a shard, the one that is idle longest; those that never asked for anything first. False: none. */
bool nfs_connection_evict_idle(struct nfs_shard *shard);
/* To compare that one with those of other shards: the smaller goes first. UINT64_MAX: there is none. */
uint64_t nfs_connection_idle_rank(const struct nfs_shard *shard);

/* ---- nfs_receive.c ---- */

int nfs_receive_fill(struct nfs_connection *c) MUST_CHECK may_yield;
/* The head of the next record into call->in. */
int nfs_receive_head(struct nfs_connection *c, struct nfs_call *call) MUST_CHECK may_yield;
/* The rest of a record without payload: call->in or call->big_in has all of it. ERR_OUT_OF_RANGE: it was too
 * long, and was read away; the call can still be answered. */
int nfs_receive_rest(struct nfs_connection *c, struct nfs_call *call) MUST_CHECK may_yield;
int nfs_receive_discard(struct nfs_connection *c, struct nfs_call *call) MUST_CHECK may_yield;
/* The payload of `len` bytes that begins in call->in at `at`, into fresh pages, for file offset `offset`, and
 * the record's rest. ERR_OUT_OF_RANGE: the record has less. ERR_NO_MEMORY: it was read away. Anything else:
 * the stream is lost. */
int nfs_receive_payload(struct nfs_connection *c, struct nfs_call *call, const uint8_t *at, uint64_t offset,
                        uint32_t len) MUST_CHECK may_yield;
void nfs_receive_free_buffer(struct nfs_connection *c);
void nfs_receive_grow(struct nfs_connection *c);

/* ---- nfs_export.c ---- */

/* Of the shard's own table; held until released. NULL: there is none. */
struct nfs_export *nfs_export_hold(struct nfs_shard *shard, uint32_t tag);
void nfs_export_release(struct nfs_export *e);
/* May this client know of it? */
bool nfs_export_visible(const struct nfs_export *e, const struct nfs_peer *peer);
/* False: it may, but not from this port. */
bool nfs_export_port_allowed(const struct nfs_export *e, const struct nfs_peer *peer);
/* Credentials as the export wants them; flavor RPC_AUTH_NONE is the anonymous one. */
void nfs_export_cred(const struct nfs_export *e, const struct rpc_credential *c, struct fs_cred *ret);
void nfs_export_handle(const struct nfs_export *e, uint64_t ino, uint32_t generation, struct nfs_handle *ret);
/* The one whose path is the longest that `path` begins with, among those that the peer may see. At home. */
struct nfs_export *nfs_export_find(struct nfs_server *s, const char *path, const struct nfs_peer *peer);

/* ---- nfs_server.c ---- */

int nfs_shard_get(struct nfs_server *s, struct reactor *r, struct nfs_shard **ret) MUST_CHECK may_yield;

/* ---- nfs_drc.c: the duplicate request cache of a shard ---- */

int nfs_replies_new(struct nfs_replies **ret) MUST_CHECK;
void nfs_replies_free(struct nfs_replies *r);

enum nfs_reply_state {
    NFS_REPLY_NEW,  /* run it, then nfs_reply_end() */
    NFS_REPLY_DONE, /* its results were written to call->out */
    NFS_REPLY_DROP, /* the same request of the same connection is under way */
};
struct nfs_reply_slot;
/* Waits while the same request of another connection is under way. *ret_slot NULL: there was no room to
 * remember it. */
enum nfs_reply_state nfs_reply_begin(struct nfs_shard *shard, struct nfs_call *call, uint32_t checksum,
                                     struct nfs_reply_slot **ret_slot) may_yield;
/* keep: the results in call->out are the answer to retransmissions. slot may be NULL. */
void nfs_reply_end(struct nfs_shard *shard, struct nfs_reply_slot *slot, const struct nfs_call *call,
                   bool keep);

/* ---- rpcbind.c ---- */

/* Tells rpcbind of this machine where our programs are; set false: takes back what is ours. ERR_EXISTS:
 * somebody else serves one of them here. */
int nfs_register(struct nfs_server *s, bool set) MUST_CHECK may_yield;

#endif
