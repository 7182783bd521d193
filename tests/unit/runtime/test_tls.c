/* SPDX-License-Identifier: Apache-2.0 */
/* TLS over loopback sockets, with certificates made on the spot. */
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "runtime/tls.h"
#include "runtime/world_real.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cmocka.h>

static char folder[64];
static int results[32];
static uint64_t numbers[8];

/* Writes NAME.crt and NAME.key: signed by the CA, or by itself. */
static void certificate_make(const char *name, const char *common_name, EVP_PKEY **key, X509 **cert,
                             EVP_PKEY *ca_key, X509 *ca)
{
    char path[128];
    *key = EVP_EC_gen("P-256");
    *cert = X509_new();
    assert(*key != NULL && *cert != NULL);
    X509_set_version(*cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(*cert), (long)strlen(name) + 1);
    X509_gmtime_adj(X509_getm_notBefore(*cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(*cert), 3600);
    X509_set_pubkey(*cert, *key);
    X509_NAME *subject = X509_get_subject_name(*cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)common_name, -1, -1, 0);
    X509_set_issuer_name(*cert, ca != NULL ? X509_get_subject_name(ca) : subject);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints,
                                              ca != NULL ? "critical,CA:FALSE" : "critical,CA:TRUE");
    X509_add_ext(*cert, ext, -1);
    X509_EXTENSION_free(ext);
    int rc = X509_sign(*cert, ca_key != NULL ? ca_key : *key, EVP_sha256());
    assert(rc > 0);
    snprintf(path, sizeof(path), "%s/%s.crt", folder, name);
    FILE *f = fopen(path, "w");
    assert(f != NULL);
    rc = PEM_write_X509(f, *cert);
    assert(rc == 1);
    fclose(f);
    snprintf(path, sizeof(path), "%s/%s.key", folder, name);
    f = fopen(path, "w");
    assert(f != NULL);
    rc = PEM_write_PrivateKey(f, *key, NULL, NULL, 0, NULL, NULL);
    assert(rc == 1);
    fclose(f);
}

static int setup_group(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test-tls-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    EVP_PKEY *ca_key, *key, *other_key;
    X509 *ca, *cert, *other;
    certificate_make("ca", "Test CA", &ca_key, &ca, NULL, NULL);
    certificate_make("server", "localhost", &key, &cert, ca_key, ca);
    EVP_PKEY_free(key);
    X509_free(cert);
    certificate_make("client", "client-one", &key, &cert, ca_key, ca);
    certificate_make("stranger", "stranger", &other_key, &other, NULL, NULL);
    EVP_PKEY_free(key);
    X509_free(cert);
    EVP_PKEY_free(other_key);
    X509_free(other);
    EVP_PKEY_free(ca_key);
    X509_free(ca);
    return 0;
}

static int teardown_group(void **state)
{
    (void)state;
    static const char *const names[] = {"ca", "server", "client", "stranger"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s.crt", folder, names[i]);
        unlink(path);
        snprintf(path, sizeof(path), "%s/%s.key", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static int setup(void **state)
{
    (void)state;
    memset(results, 0x55, sizeof(results));
    memset(numbers, 0, sizeof(numbers));
    return 0;
}

static int context_make(bool server, const char *name, bool ca, struct tls_context **ret)
{
    static char crt[128], key[128], ca_file[128];
    snprintf(crt, sizeof(crt), "%s/%s.crt", folder, name != NULL ? name : "");
    snprintf(key, sizeof(key), "%s/%s.key", folder, name != NULL ? name : "");
    snprintf(ca_file, sizeof(ca_file), "%s/ca.crt", folder);
    struct tls_options o = {.server = server,
                            .certificate_file = name != NULL ? crt : NULL,
                            .key_file = name != NULL ? key : NULL,
                            .ca_file = ca ? ca_file : NULL};
    return tls_context_new(&o, ret);
}

struct scene {
    const char *server_name, *client_name; /* certificates */
    bool server_asks, client_checks;
    const char *host;
    void (*client)(struct stream *s);
    struct listener *listener;
    struct tls_context *server_context;
};

static fiber_role_assumed void server_fiber(void *arg)
{
    struct scene *c = arg;
    struct stream *plain, *s;
    results[10] = listener_accept(c->listener, &plain);
    if (results[10] != 0)
        return;
    results[11] = tls_accept(c->server_context, plain, reactor_now_ns() + 2 * NSEC_PER_SEC, &s);
    if (results[11] != 0) {
        stream_close(plain);
        return;
    }
    char subject[128];
    numbers[0] = tls_peer_subject(s, subject, sizeof(subject)) && strstr(subject, "client-one") != NULL;
    static char buf[100000];
    for (;;) {
        struct iovec iov[2] = {{buf, 10}, {buf + 10, sizeof(buf) - 10}};
        size_t n;
        results[12] = stream_recvv(s, iov, 2, DEADLINE_NEVER, &n);
        if (results[12] != 0)
            break;
        results[13] = stream_send_all(s, buf, n, DEADLINE_NEVER);
    }
    stream_close(s);
}

static fiber_role_assumed void scene_body(void *arg)
{
    struct scene *c = arg;
    struct tls_context *client_context;
    results[0] = context_make(true, c->server_name, c->server_asks, &c->server_context);
    results[1] = context_make(false, c->client_name, c->client_checks, &client_context);
    results[2] = listener_open("tcp:127.0.0.1:0", &c->listener);
    struct fiber *server;
    results[3] = fiber_spawn_joinable("server", server_fiber, c, &server);
    struct stream *plain, *s;
    results[4] = stream_connect(listener_address(c->listener), DEADLINE_NEVER, &plain);
    results[5] = tls_connect(client_context, plain, c->host, reactor_now_ns() + 2 * NSEC_PER_SEC, &s);
    if (results[5] == 0) {
        c->client(s);
        stream_close(s);
    } else {
        stream_close(plain);
    }
    fiber_join(server);
    listener_close(c->listener);
    tls_context_free(client_context);
    tls_context_free(c->server_context);
}

static void scene_run(struct scene *c)
{
    struct memory_budget budget = {.limit_bytes = MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    assert(err == 0);
    err = reactor_spawn(r, "test", scene_body, c);
    assert(err == 0);
    reactor_stop(r);
    err = reactor_run(r);
    assert(err == 0);
    reactor_free(r);
    for (int i = 0; i <= 4; i++)
        assert_int_equal(results[i], 0);
    assert_int_equal(results[10], 0);
}

static fiber_role_assumed void send_half(void *arg)
{
    static char big[500000];
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (char)(i * 7 + i / 4096);
    struct iovec iov[4] = {{big, 16}, {big + 16, 4096}, {NULL, 0}, {big + 4112, sizeof(big) - 4112}};
    results[21] = stream_sendv(arg, iov, 4, DEADLINE_NEVER);
}

/* Sends from one fiber and receives in the other at the same time. */
static fiber_role_assumed void echo_client(struct stream *s)
{
    char c[5] = "";
    results[20] = stream_send_all(s, "abcd", 4, DEADLINE_NEVER);
    results[20] |= stream_recv_all(s, c, 4, DEADLINE_NEVER);
    numbers[1] = strcmp(c, "abcd") == 0;
    struct fiber *f;
    results[22] = fiber_spawn_joinable("sender", send_half, s, &f);
    static char back[500000];
    results[23] = stream_recv_all(s, back, sizeof(back), DEADLINE_NEVER);
    fiber_join(f);
    numbers[2] = 1;
    for (size_t i = 0; i < sizeof(back); i++)
        if (back[i] != (char)(i * 7 + i / 4096))
            numbers[2] = 0;
    results[24] = stream_recv_all(s, back, 1, reactor_now_ns() + 10 * NSEC_PER_MSEC);
    numbers[3] = strcmp(stream_peer_ip(s), "127.0.0.1") == 0;
}

static void stream_of_tls_carries_bytes_both_ways(void **state)
{
    (void)state;
    struct scene c = {
        .server_name = "server", .client_checks = true, .host = "localhost", .client = echo_client};
    scene_run(&c);
    assert_int_equal(results[5], 0);
    assert_int_equal(results[11], 0);
    for (int i = 20; i <= 23; i++)
        assert_int_equal(results[i], 0);
    assert_int_equal(results[24], ERR_TIMEOUT);
    assert_int_equal(results[12], ERR_CLOSED); /* said goodbye */
    for (int i = 1; i <= 3; i++)
        assert_int_equal(numbers[i], 1);
    assert_int_equal(numbers[0], 0);
}

static void server_of_mutual_tls_knows_the_client(void **state)
{
    (void)state;
    struct scene c = {.server_name = "server",
                      .client_name = "client",
                      .server_asks = true,
                      .client_checks = true,
                      .host = "localhost",
                      .client = echo_client};
    scene_run(&c);
    assert_int_equal(results[11], 0);
    assert_int_equal(numbers[0], 1);
    assert_int_equal(numbers[2], 1);
}

static fiber_role_assumed void one_byte_client(struct stream *s)
{
    char c;
    results[20] = stream_recv_all(s, &c, 1, reactor_now_ns() + 2 * NSEC_PER_SEC);
}

static void client_without_the_right_certificate_is_refused(void **state)
{
    (void)state;
    struct scene c = {.server_name = "server", .server_asks = true, .client = one_byte_client};
    scene_run(&c);
    assert_int_equal(results[11], ERR_PROTOCOL);
    /* With TLS 1.3 the client is done before the server has looked; it learns at its first receive. */
    assert_true(results[5] == ERR_PROTOCOL || results[20] == ERR_PROTOCOL);
    setup(NULL);
    c.client_name = "stranger";
    scene_run(&c);
    assert_int_equal(results[11], ERR_PROTOCOL);
}

static void server_of_another_name_is_refused(void **state)
{
    (void)state;
    struct scene c = {
        .server_name = "server", .client_checks = true, .host = "example.org", .client = one_byte_client};
    scene_run(&c);
    assert_int_equal(results[5], ERR_PROTOCOL);
    assert_int_equal(results[11], ERR_PROTOCOL);
    setup(NULL);
    c.server_name = "stranger";
    c.host = "stranger";
    scene_run(&c);
    assert_int_equal(results[5], ERR_PROTOCOL);
}

static fiber_role_assumed void garbage_body(void *arg)
{
    struct scene *c = arg;
    struct tls_context *unused;
    results[0] = context_make(true, "server", false, &c->server_context);
    results[1] = context_make(true, "nobody", false, &unused);
    results[2] = listener_open("tcp:127.0.0.1:0", &c->listener);
    struct stream *plain;
    char buf[256];
    for (int i = 0; i < 3; i++) {
        struct fiber *server;
        results[3] = fiber_spawn_joinable("server", server_fiber, c, &server);
        results[4] = stream_connect(listener_address(c->listener), DEADLINE_NEVER, &plain);
        world_random(buf, sizeof(buf));
        buf[0] = (char)(i == 1 ? 22 : buf[0]); /* looks like a handshake */
        if (i != 2)
            results[5] = stream_send_all(plain, buf, sizeof(buf), DEADLINE_NEVER);
        else
            stream_close(plain); /* vanishes */
        fiber_join(server);
        if (i != 2)
            stream_close(plain);
        results[6 + i] = results[11];
    }
    listener_close(c->listener);
    tls_context_free(c->server_context);
}

static void garbage_instead_of_a_handshake_is_refused(void **state)
{
    (void)state;
    struct scene c = {0};
    struct memory_budget budget = {.limit_bytes = MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget};
    struct reactor *r;
    assert_int_equal(reactor_new(&o, &r), 0);
    assert_int_equal(reactor_spawn(r, "test", garbage_body, &c), 0);
    reactor_stop(r);
    assert_int_equal(reactor_run(r), 0);
    reactor_free(r);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], ERR_TLS_FILES);
    assert_int_equal(results[6], ERR_PROTOCOL);
    assert_true(results[7] == ERR_PROTOCOL || results[7] == ERR_TIMEOUT); /* may wait for the record's rest */
    assert_int_equal(results[8], ERR_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(stream_of_tls_carries_bytes_both_ways, setup),
        cmocka_unit_test_setup(server_of_mutual_tls_knows_the_client, setup),
        cmocka_unit_test_setup(client_without_the_right_certificate_is_refused, setup),
        cmocka_unit_test_setup(server_of_another_name_is_refused, setup),
        cmocka_unit_test_setup(garbage_instead_of_a_handshake_is_refused, setup),
    };
    return cmocka_run_group_tests_name("TLS", tests, setup_group, teardown_group);
}
