/* SPDX-License-Identifier: Apache-2.0 */
/* A small RPC and NFS client on fibers, for tests of the server. It can be told to do what no good client
 * does. */
#ifndef ASHLAR_TEST_NFS_CLIENT_H
#define ASHLAR_TEST_NFS_CLIENT_H

#include "protocols/nfs/nfs_format.h"
#include "protocols/nfs/rpc_format.h"
#include "protocols/nfs/xdr.h"
#include "runtime/world.h"

/* cmocka must not jump out of a fiber: failures are noted, and asserted outside. */
extern int check_failures;
void check_failed(const char *file, int line, const char *what);
void check_failed_equal(const char *file, int line, const char *what, long long a, long long b);
#define CHECK(x) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, #x))
#define CHECK_EQUAL(a, b)                                                           \
    do {                                                                            \
        long long check_a = (long long)(a), check_b = (long long)(b);               \
        if (check_a != check_b)                                                     \
            check_failed_equal(__FILE__, __LINE__, #a " == " #b, check_a, check_b); \
    } while (0)

#define CLIENT_BUFFER (2 * MIB)

struct client {
    struct stream *stream;
    uint32_t xid; /* of the next call */
    uint32_t flavor, uid, gid, group_count, groups[16];
    uint32_t fragment; /* bytes of a fragment; 0: the whole record */
    uint8_t *out_bytes, *in_bytes;
    struct xdr_out out; /* the call being built */
};
struct answer {
    uint32_t xid;
    bool denied;
    uint32_t status; /* enum rpc_accept; denied: enum rpc_auth_error, or 100: RPC version */
    struct xdr x;    /* at the results */
};
struct handle {
    uint32_t len;
    uint8_t bytes[NFS3_HANDLE_MAX];
};

int client_open(struct client *c, const char *address) MUST_CHECK may_yield;
void client_close(struct client *c) may_yield;

/* Begins a call; arguments are put into c->out. */
void client_begin(struct client *c, uint32_t program, uint32_t version, uint32_t procedure);
/* Sends it; its xid. */
uint32_t client_send(struct client *c) may_yield;
/* The next reply, whosoever it is. ERR_CLOSED. Results are good until the next call of it. */
int client_receive(struct client *c, struct answer *ret) MUST_CHECK may_yield;
/* Sends and receives. */
int client_call(struct client *c, struct answer *ret) MUST_CHECK may_yield;

/* ---- NFS ---- */

void client_begin_nfs(struct client *c, uint32_t procedure, const struct handle *h);
void put_name(struct client *c, const char *name);
void put_handle(struct client *c, const struct handle *h);
/* No attributes; or only a mode. */
void put_sattr(struct client *c, int mode);
/* Calls; the NFS status, or UINT32_MAX. x stands behind the status. */
uint32_t client_nfs(struct client *c, struct xdr *ret_x) may_yield;

struct attr {
    bool known;
    uint32_t type, mode, nlink, uid, gid;
    uint64_t size, used;
    uint32_t major, minor;
    uint64_t fsid, fileid;
    uint32_t atime[2], mtime[2], ctime[2];
};
void get_attr(struct xdr *x, struct attr *ret);
void get_post(struct xdr *x, struct attr *ret);
struct wcc {
    bool known;
    uint64_t size;
    uint32_t mtime[2], ctime[2];
    struct attr after;
};
void get_wcc(struct xdr *x, struct wcc *ret);
void get_handle(struct xdr *x, struct handle *ret);

/* MOUNT; the status of MNT, or UINT32_MAX. */
uint32_t client_mount(struct client *c, const char *path, struct handle *ret) may_yield;
uint32_t client_lookup(struct client *c, const struct handle *dir, const char *name, struct handle *ret)
    may_yield;
uint32_t client_create(struct client *c, const struct handle *dir, const char *name, struct handle *ret)
    may_yield;
uint32_t client_getattr(struct client *c, const struct handle *h, struct attr *ret) may_yield;
/* The count written. */
uint32_t client_write(struct client *c, const struct handle *h, uint64_t offset, const void *data,
                      uint32_t len, uint32_t stable, uint32_t *ret_count) may_yield;
uint32_t client_read(struct client *c, const struct handle *h, uint64_t offset, void *data, uint32_t len,
                     uint32_t *ret_count, bool *ret_eof) may_yield;
uint32_t client_remove(struct client *c, const struct handle *dir, const char *name) may_yield;

#endif
