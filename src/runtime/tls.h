/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.2 and 1.3 over any stream. A plain stream is upgraded (STARTTLS style, or at once); what comes back
 * is a stream like any other, and all stream_...() functions work on it; to move it: tls_detach().
 */
#ifndef ASHLAR_RUNTIME_TLS_H
#define ASHLAR_RUNTIME_TLS_H

#include "runtime/world.h"

/* Certificates and settings, shared by any number of streams of all reactors. */
struct tls_context;

struct tls_options {
    bool server;
    const char *certificate_file; /* PEM, the chain, own one first; a client may have none: NULL */
    const char *key_file;         /* PEM */
    const char *ca_file;          /* PEM, or NULL. Server: clients must show a certificate signed by one of
                                     these. Client: the server must; with NULL it is not checked at all. */
};
/* Reads the files. ERR_TLS_FILES (the log says which), ERR_NO_MEMORY. */
int tls_context_new(const struct tls_options *o, struct tls_context **ret) MUST_CHECK;
void tls_context_free(struct tls_context *c); /* streams hold what they need of it */

/* Handshakes over plain. On success the new stream owns it; on failure the caller still does, and may only
 * close it. ERR_PROTOCOL: no agreement, or a certificate was refused; ERR_TIMEOUT, ERR_CANCELLED, ERR_CLOSED.
 */
int tls_accept(struct tls_context *c, struct stream *plain, uint64_t deadline_ns, struct stream **ret)
    MUST_CHECK may_yield;
/* host: must be in the server's certificate if the context has a CA; also sent as SNI. NULL: any. */
int tls_connect(struct tls_context *c, struct stream *plain, const char *host, uint64_t deadline_ns,
                struct stream **ret) MUST_CHECK may_yield;

/* Moves a TLS stream to another reactor (no call may be pending): detached it belongs to nobody, and the only
 * thing to do with it is tls_attach() with the handle, in the other reactor. If that fails the stream is
 * gone. If detaching fails nothing has changed. */
int tls_detach(struct stream *s, int *ret_handle) MUST_CHECK may_yield;
int tls_attach(struct stream *s, int handle) MUST_CHECK;

/* Whether the stream is one of TLS; then the subject of the peer's certificate ("" if it showed none),
 * shortened to fit. */
bool tls_peer_subject(const struct stream *s, char *out, size_t size);

#endif
