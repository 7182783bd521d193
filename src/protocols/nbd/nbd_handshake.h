/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of one connection, without I/O: bytes go in, bytes to send come out, and a verdict what to do
 * next. Who drives it owns the stream, the deadline and the buffer. Only the callbacks of the environment
 * know about exports (and may yield, where the driver runs on a fiber).
 *
 *    FLAGS --client flags--> OPTIONS --GO, EXPORT_NAME--> DONE
 *                            OPTIONS --STARTTLS--> OPTIONS (all that was agreed before is forgotten)
 *                            OPTIONS --ABORT, breach--> DONE
 */
#ifndef ASHLAR_PROTOCOLS_NBD_HANDSHAKE_H
#define ASHLAR_PROTOCOLS_NBD_HANDSHAKE_H

#include "protocols/nbd/nbd.h"
#include "protocols/nbd/nbd_format.h"

/* Longest option that is looked at; longer ones are skipped and refused, and beyond NBD_OPTION_SKIP_MAX the
 * connection ends. */
#define NBD_OPTION_MAX      (32 * KIB)
#define NBD_OPTION_SKIP_MAX (1 * MIB)

struct nbd_export_info {
    char name[NBD_EXPORT_NAME_MAX + 1];
    char description[NBD_DESCRIPTION_MAX + 1];
    uint64_t size_bytes;
    bool read_only;
};

struct nbd_handshake_env {
    void *ctx;
    /* By the name that a client sent (not terminated); "" may stand for the only export there is. Fills in
     * all. ERR_NOT_FOUND also for exports that this client may not see; ERR_SHUTDOWN; ERR_DENIED: not now. */
    int (*lookup)(void *ctx, const char *name, size_t len, struct nbd_export_info *ret);
    /* The index-th export that this client may see, its name and description; ERR_NOT_FOUND past the last. */
    int (*list)(void *ctx, uint32_t index, struct nbd_export_info *ret);
};

enum nbd_handshake_state { NBD_HANDSHAKE_FLAGS, NBD_HANDSHAKE_OPTIONS, NBD_HANDSHAKE_DONE };

enum nbd_handshake_verdict {
    NBD_HANDSHAKE_MORE,     /* more bytes: hs->need in all, from the first that was not consumed */
    NBD_HANDSHAKE_AGAIN,    /* something was consumed: send hs->out, call again */
    NBD_HANDSHAKE_STARTTLS, /* send hs->out, begin TLS, nbd_handshake_tls_started() */
    NBD_HANDSHAKE_GO,       /* send hs->out; the transmission begins, with hs->chosen */
    NBD_HANDSHAKE_CLOSE,    /* send hs->out, close */
};

struct nbd_out { /* bytes to send; the driver empties it (len = 0) */
    uint8_t *data;
    size_t len, capacity;
    bool failed; /* no memory */
};

struct nbd_handshake {
    const struct nbd_handshake_env *env;
    enum nbd_handshake_state state;
    enum nbd_tls_mode tls;
    bool tls_active, fixed, no_zeroes, structured;
    bool allocation; /* base:allocation was selected, for the export meta_name */
    char meta_name[NBD_EXPORT_NAME_MAX + 1];
    size_t need;
    uint64_t skip;        /* bytes of an option that is too long, still to come */
    uint32_t skip_option; /* its number */
    struct nbd_out out;
    struct nbd_export_info chosen; /* after GO */
};

/* Puts the greeting into hs->out. env is borrowed. */
void nbd_handshake_init(struct nbd_handshake *hs, const struct nbd_handshake_env *env, enum nbd_tls_mode tls);
void nbd_handshake_done(struct nbd_handshake *hs);
/* Looks at the bytes from the first that was not consumed on. *ret_consumed is always written. */
enum nbd_handshake_verdict nbd_handshake_step(struct nbd_handshake *hs, const uint8_t *data, size_t len,
                                              size_t *ret_consumed);
void nbd_handshake_tls_started(struct nbd_handshake *hs);
/* What the client is told that it may send. */
uint16_t nbd_transmission_flags(bool read_only, bool structured);

#endif
