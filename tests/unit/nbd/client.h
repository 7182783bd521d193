/* SPDX-License-Identifier: Apache-2.0 */
/* A small NBD client on fibers, for tests of the server. It can be told to do what no good client does. */
#ifndef ASHLAR_TEST_NBD_CLIENT_H
#define ASHLAR_TEST_NBD_CLIENT_H

#include "protocols/nbd/nbd_format.h"
#include "runtime/world.h"

/* cmocka must not jump out of a fiber: failures are noted, and asserted outside. */
extern int check_failures;
void check_failed(const char *file, int line, const char *what);
#define CHECK(x) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, #x))
#define CHECK_EQUAL(a, b)                                                           \
    do {                                                                            \
        long long check_a = (long long)(a), check_b = (long long)(b);               \
        if (check_a != check_b)                                                     \
            check_failed_equal(__FILE__, __LINE__, #a " == " #b, check_a, check_b); \
    } while (0)
void check_failed_equal(const char *file, int line, const char *what, long long a, long long b);

struct client {
    struct stream *stream;
    bool structured;
    uint64_t size_bytes;
    uint16_t flags;
    uint64_t next_cookie;
};

enum client_wishes {
    CLIENT_STRUCTURED = 1 << 0,
    CLIENT_ALLOCATION = 1 << 1,  /* and structured */
    CLIENT_EXPORT_NAME = 1 << 2, /* instead of GO */
};

/* Connects and greets. 0; the reply type of a refusal is in *ret_refusal (may be NULL) with ERR_DENIED. */
int client_open(struct client *c, const char *address, const char *export_name, uint32_t wishes,
                uint32_t *ret_refusal) MUST_CHECK may_yield;
/* Only the greeting: hello received, flags sent. */
int client_greet(struct client *c, const char *address) MUST_CHECK may_yield;
/* From after the greeting to the transmission. */
int client_go(struct client *c, const char *export_name, uint32_t wishes, uint32_t *ret_refusal)
    MUST_CHECK may_yield;
int client_option(struct client *c, uint32_t option, const void *data, uint32_t len) MUST_CHECK may_yield;
/* data: at least NBD_NAME_MAX bytes. */
int client_option_reply(struct client *c, uint32_t *ret_type, void *data, uint32_t *ret_len)
    MUST_CHECK may_yield;
void client_close(struct client *c) may_yield;
/* A polite end: DISC, then waits for the server to close. */
int client_disconnect(struct client *c) MUST_CHECK may_yield;

/* Sends a request (payload for writes) and returns its cookie. */
uint64_t client_send(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len,
                     const void *payload) may_yield;

struct client_reply {
    uint64_t cookie;
    uint32_t error; /* the wire's */
    bool done;      /* the last of its request */
    uint16_t type;  /* of a structured chunk; UINT16_MAX: a simple reply */
    uint64_t offset;
    uint32_t len; /* of data or hole */
    char text[256];
    uint32_t extents; /* block status */
    struct {
        uint32_t len, flags;
    } extent[64];
};
/* One message. Data of a read goes to buf + (offset - base), bytes of a hole are zeroed there; simple_len:
 * what follows a simple reply without an error. ERR_CLOSED: the server hung up. */
int client_receive(struct client *c, struct client_reply *r, void *buf, uint64_t base, uint32_t simple_len)
    MUST_CHECK may_yield;

struct client_result {
    uint32_t error;
    uint32_t data_chunks, hole_chunks;
    struct client_reply last;
};
/* One request and its whole reply. Returns 0 or what happened to the stream. */
int client_do(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len, void *buf,
              struct client_result *ret) MUST_CHECK may_yield;

#endif
