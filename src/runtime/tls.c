/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of TLS streams
 *
 * OpenSSL works on two memory BIOs and never sees a socket, so no call into it waits: the SSL object is never
 * entered by two fibers at once, though one fiber may receive while another sends. Between the calls we carry
 * bytes:   plain stream --recv--> "in" BIO --SSL_read--> caller
 *          caller --SSL_write--> "out" BIO --flush--> plain stream
 *
 * Reading can make OpenSSL answer (key updates, alerts), so both sides flush; a mutex keeps the order of what
 * was taken from the "out" BIO. Small pieces of a send are gathered, so that a reply is one record.
 */
#include "runtime/tls.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/reactor.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#define TLS_RECORD_BYTES (16u * 1024)
#define TLS_BUFFER_BYTES (64u * 1024)
#define TLS_GOODBYE_NS   (500 * NSEC_PER_MSEC)
static_assert(TLS_BUFFER_BYTES >= TLS_RECORD_BYTES, "a record is gathered in one buffer");

struct tls_context {
    SSL_CTX *ctx;
    bool server;
};

struct tls_stream {
    struct stream base;
    struct stream *plain;
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    struct fmutex flushing;
    bool failed; /* OpenSSL gave up: nothing may be sent any more, not even a goodbye */
    uint8_t receive_buffer[TLS_BUFFER_BYTES];
    uint8_t gather_buffer[TLS_RECORD_BYTES];
    uint8_t flush_buffer[TLS_BUFFER_BYTES];
};

static struct tls_stream *tls_stream_of(struct stream *s)
{
    return CONTAINER_OF(s, struct tls_stream, base);
}

/* ---- Contexts ---- */

static int context_load(SSL_CTX *ctx, const struct tls_options *o)
{
    const char *bad = NULL;
    if (o->certificate_file != NULL && SSL_CTX_use_certificate_chain_file(ctx, o->certificate_file) != 1)
        bad = o->certificate_file;
    else if (o->key_file != NULL && SSL_CTX_use_PrivateKey_file(ctx, o->key_file, SSL_FILETYPE_PEM) != 1)
        bad = o->key_file;
    else if (o->key_file != NULL && SSL_CTX_check_private_key(ctx) != 1)
        bad = o->key_file;
    else if (o->ca_file != NULL && SSL_CTX_load_verify_locations(ctx, o->ca_file, NULL) != 1)
        bad = o->ca_file;
    if (bad == NULL)
        return 0;
    char reason[160];
    ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
    ERR_clear_error();
    LOG_ERROR("cannot use TLS file %s: %s", bad, reason);
    return ERR_TLS_FILES;
}

int tls_context_new(const struct tls_options *o, struct tls_context **ret)
{
    assert(!o->server || (o->certificate_file != NULL && o->key_file != NULL));
    struct tls_context *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->server = o->server;
    c->ctx = SSL_CTX_new(o->server ? TLS_server_method() : TLS_client_method());
    int err = c->ctx != NULL ? context_load(c->ctx, o) : ERR_NO_MEMORY;
    if (err != 0) {
        tls_context_free(c);
        return err;
    }
    SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(c->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_OFF); /* connections are few and long */
    SSL_CTX_set_num_tickets(c->ctx, 0);
    SSL_CTX_set_mode(c->ctx, SSL_MODE_RELEASE_BUFFERS);
    if (o->ca_file != NULL)
        SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    *ret = c;
    return 0;
}

void tls_context_free(struct tls_context *c)
{
    SSL_CTX_free(c->ctx);
    free(c);
}

/* ---- Carrying bytes ---- */

/* Sends what OpenSSL has put into its "out" BIO. */
static may_yield int tls_flush(struct tls_stream *t, uint64_t deadline_ns)
{
    if (BIO_ctrl_pending(t->out) == 0)
        return 0;
    int err = 0;
    fmutex_lock(&t->flushing);
    while (err == 0) {
        int n = BIO_read(t->out, t->flush_buffer, sizeof(t->flush_buffer));
        if (n <= 0)
            break;
        err = stream_send_all(t->plain, t->flush_buffer, (size_t)n, deadline_ns);
    }
    fmutex_unlock(&t->flushing);
    return err;
}

/* Waits for bytes and gives them to OpenSSL. */
static may_yield int tls_fill(struct tls_stream *t, uint64_t deadline_ns)
{
    struct iovec iov = {t->receive_buffer, sizeof(t->receive_buffer)};
    size_t len;
    int err = stream_recvv(t->plain, &iov, 1, deadline_ns, &len);
    if (err != 0)
        return err;
    if (BIO_write(t->in, t->receive_buffer, (int)len) == (int)len)
        return 0;
    t->failed = true; /* no memory: bytes are lost, and nothing behind them has a meaning */
    return ERR_PROTOCOL;
}

/* After an SSL_ call that returned n <= 0: 0 means try again, bytes have come. */
static may_yield int tls_continue(struct tls_stream *t, int n, uint64_t deadline_ns)
{
    int why = SSL_get_error(t->ssl, n);
    if (why == SSL_ERROR_WANT_READ) {
        int err = tls_flush(t, deadline_ns);
        return err != 0 ? err : tls_fill(t, deadline_ns);
    }
    if (why == SSL_ERROR_ZERO_RETURN)
        return ERR_CLOSED;
    t->failed = true;
    ERR_clear_error();
    (void)tls_flush(t, deadline_ns); /* the alert; the peer may be gone */
    return ERR_PROTOCOL;
}

/* ---- The stream's operations ---- */

static may_yield int tls_recvv(struct stream *s, const struct iovec *iov, uint32_t iov_count,
                               uint64_t deadline_ns, size_t *ret_len)
{
    struct tls_stream *t = tls_stream_of(s);
    if (t->failed)
        return ERR_PROTOCOL;
    size_t len = 0;  /* in all */
    size_t fill = 0; /* of element i */
    for (uint32_t i = 0; i < iov_count;) {
        size_t room = iov[i].iov_len - fill;
        size_t got = 0;
        if (room == 0) {
            i++;
            fill = 0;
            continue;
        }
        ERR_clear_error();
        int ok = SSL_read_ex(t->ssl, (char *)iov[i].iov_base + fill, room, &got);
        if (ok == 1) { /* one record at most: there may be more that has come already */
            len += got;
            fill += got;
            continue;
        }
        if (len > 0)
            break; /* what is wrong, if anything is, will be seen again by the next call */
        int err = tls_continue(t, ok, deadline_ns);
        if (err != 0)
            return err;
    }
    assert(len > 0);
    *ret_len = len;
    return 0;
}

static may_yield int tls_write(struct tls_stream *t, const void *data, size_t len, uint64_t deadline_ns)
{
    for (size_t done = 0; done < len;) {
        size_t step = MIN(len - done, (size_t)TLS_BUFFER_BYTES);
        ERR_clear_error();
        int n = SSL_write(t->ssl, (const char *)data + done, (int)step);
        if (n <= 0) {
            /* The "out" BIO takes everything, so this is a broken session. */
            t->failed = true;
            ERR_clear_error();
            return ERR_PROTOCOL;
        }
        done += (size_t)n;
        if (BIO_ctrl_pending(t->out) >= TLS_BUFFER_BYTES) {
            int err = tls_flush(t, deadline_ns);
            if (err != 0)
                return err;
        }
    }
    return 0;
}

static may_yield int tls_sendv(struct stream *s, struct iovec *iov, uint32_t iov_count, uint64_t deadline_ns)
{
    struct tls_stream *t = tls_stream_of(s);
    if (t->failed)
        return ERR_PROTOCOL;
    size_t gathered = 0;
    int err = 0;
    for (uint32_t i = 0; i < iov_count && err == 0; i++) {
        const uint8_t *data = iov[i].iov_base;
        size_t left = iov[i].iov_len;
        while (left > 0 && err == 0) {
            if (gathered == 0 && left >= TLS_RECORD_BYTES) {
                err = tls_write(t, data, left, deadline_ns);
                break;
            }
            size_t step = MIN(left, TLS_RECORD_BYTES - gathered);
            memcpy(t->gather_buffer + gathered, data, step);
            gathered += step;
            data += step;
            left -= step;
            if (gathered == TLS_RECORD_BYTES) {
                err = tls_write(t, t->gather_buffer, gathered, deadline_ns);
                gathered = 0;
            }
        }
    }
    if (err == 0 && gathered > 0)
        err = tls_write(t, t->gather_buffer, gathered, deadline_ns);
    return err != 0 ? err : tls_flush(t, deadline_ns);
}

static void tls_shutdown(struct stream *s)
{
    stream_shutdown(tls_stream_of(s)->plain);
}

static void tls_free(struct tls_stream *t)
{
    SSL_free(t->ssl); /* and both BIOs */
    ERR_clear_error();
    free(t);
}

static may_yield void tls_close(struct stream *s)
{
    struct tls_stream *t = tls_stream_of(s);
    if (!t->failed) {
        ERR_clear_error();
        SSL_shutdown(t->ssl);
        (void)tls_flush(t, reactor_now_ns() + TLS_GOODBYE_NS); /* a courtesy */
    }
    stream_close(t->plain);
    tls_free(t);
}

static const struct world_ops tls_ops = {
    .name = "tls",
    .stream_recvv = tls_recvv,
    .stream_sendv = tls_sendv,
    .stream_shutdown = tls_shutdown,
    .stream_close = tls_close,
};

/* ---- Handshakes ---- */

static int tls_stream_new(struct tls_context *c, struct stream *plain, struct tls_stream **ret)
{
    struct tls_stream *t = malloc(sizeof(*t));
    if (t == NULL)
        return ERR_NO_MEMORY;
    memset(t, 0, offsetof(struct tls_stream, receive_buffer));
    t->plain = plain;
    t->base.reactor = plain->reactor;
    t->base.ops = &tls_ops;
    memcpy(t->base.peer, plain->peer, sizeof(t->base.peer));
    memcpy(t->base.peer_ip, plain->peer_ip, sizeof(t->base.peer_ip));
    fmutex_init(&t->flushing);
    t->ssl = SSL_new(c->ctx);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (t->ssl == NULL || t->in == NULL || t->out == NULL) {
        BIO_free(t->in);
        BIO_free(t->out);
        SSL_free(t->ssl);
        free(t);
        return ERR_NO_MEMORY;
    }
    SSL_set_bio(t->ssl, t->in, t->out);
    *ret = t;
    return 0;
}

static may_yield int tls_handshake(struct tls_stream *t, uint64_t deadline_ns, struct stream **ret)
{
    int err = 0;
    while (err == 0) {
        ERR_clear_error();
        int n = SSL_do_handshake(t->ssl);
        if (n == 1)
            break;
        err = tls_continue(t, n, deadline_ns);
    }
    if (err == 0)
        err = tls_flush(t, deadline_ns);
    if (err != 0) {
        tls_free(t);
        return err;
    }
    *ret = &t->base;
    return 0;
}

int tls_accept(struct tls_context *c, struct stream *plain, uint64_t deadline_ns, struct stream **ret)
{
    assert(c->server);
    struct tls_stream *t;
    int err = tls_stream_new(c, plain, &t);
    if (err != 0)
        return err;
    SSL_set_accept_state(t->ssl);
    return tls_handshake(t, deadline_ns, ret);
}

int tls_connect(struct tls_context *c, struct stream *plain, const char *host, uint64_t deadline_ns,
                struct stream **ret)
{
    assert(!c->server);
    struct tls_stream *t;
    int err = tls_stream_new(c, plain, &t);
    if (err != 0)
        return err;
    /* SSL_set_tlsext_host_name() without its cast that drops the const. */
    void *name = (void *)(uintptr_t)host;
    if (host != NULL &&
        (SSL_set1_host(t->ssl, host) != 1 ||
         SSL_ctrl(t->ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name) != 1)) {
        tls_free(t);
        return ERR_NO_MEMORY;
    }
    SSL_set_connect_state(t->ssl);
    return tls_handshake(t, deadline_ns, ret);
}

/* OpenSSL's part is memory only and does not care which thread it runs on: only the plain stream moves. */
int tls_detach(struct stream *s, int *ret_handle)
{
    assert(s->ops == &tls_ops && !s->receiving && !s->sending);
    struct tls_stream *t = tls_stream_of(s);
    int err = stream_detach(t->plain, ret_handle);
    if (err != 0)
        return err;
    t->plain = NULL;
    t->base.reactor = NULL;
    return 0;
}

int tls_attach(struct stream *s, int handle)
{
    struct tls_stream *t = tls_stream_of(s);
    assert(s->ops == &tls_ops && t->plain == NULL);
    int err = stream_attach(handle, &t->plain);
    if (err != 0) {
        tls_free(t);
        return err;
    }
    t->base.reactor = t->plain->reactor;
    return 0;
}

bool tls_peer_subject(const struct stream *s, char *out, size_t size)
{
    assert(size > 0);
    out[0] = '\0';
    if (s->ops != &tls_ops)
        return false;
    const struct tls_stream *t = (const struct tls_stream *)(const void *)s;
    static_assert(offsetof(struct tls_stream, base) == 0, "the head comes first");
    X509 *certificate = SSL_get1_peer_certificate(t->ssl);
    if (certificate != NULL) {
        X509_NAME_oneline(X509_get_subject_name(certificate), out, (int)MIN(size, (size_t)4096));
        X509_free(certificate);
    }
    return true;
}
