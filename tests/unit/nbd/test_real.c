/* SPDX-License-Identifier: Apache-2.0 */
/* The server over real sockets with two reactors, each a thread: home is one, the volume lives on the other.
 * Clients run at home. */
#include "client.h"
#include "fake_volume.h"
#include "protocols/nbd/nbd.h"
#include "runtime/error.h"
#include "runtime/tls.h"
#include "runtime/world_real.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cmocka.h>

#define SIZE (32 * MIB)

static char folder[64], cert_path[128], key_path[128], unix_address[128], tcp_address[128];
static struct reactor *home, *shard;
static struct volume *volume;
static struct block_device *device;
static struct nbd_server *server;
static void (*body)(void);

/* ---- Two reactors ---- */

static int volume_make(void *arg)
{
    (void)arg;
    volume = fake_volume_new(SIZE);
    return block_device_new(volume, 1, &device);
}

static int volume_drop(void *arg)
{
    (void)arg;
    block_device_free(device);
    fake_volume_free(volume);
    return 0;
}

static void run_home(void *arg) may_yield
{
    (void)arg;
    struct nbd_server_options o = {0};
    CHECK_EQUAL(reactor_call(shard, volume_make, NULL), 0);
    CHECK_EQUAL(nbd_server_start(&o, &server), 0);
    struct nbd_export_options e = {.name = "disk", .description = "over there", .device = device};
    CHECK_EQUAL(nbd_server_add_export(server, &e), 0);
    body();
    nbd_server_stop(server);
    CHECK_EQUAL(reactor_call(shard, volume_drop, NULL), 0);
    reactor_stop(shard);
    reactor_stop(home);
}

static void *shard_thread(void *arg)
{
    (void)arg;
    int err = reactor_run(shard);
    assert(err == 0);
    return NULL;
}

static void run(void (*fn)(void))
{
    struct memory_budget budget = {.limit_bytes = 256 * MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget, .chunk_bytes = 4 * MIB};
    struct reactor_options o2 = o;
    o2.index = 1;
    check_failures = 0;
    body = fn;
    assert_int_equal(reactor_new(&o, &home), 0);
    assert_int_equal(reactor_new(&o2, &shard), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, shard_thread, NULL), 0);
    assert_int_equal(reactor_spawn(home, "home", run_home, NULL), 0);
    assert_int_equal(reactor_run(home), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    reactor_free(home);
    reactor_free(shard);
    assert_int_equal(check_failures, 0);
}

/* ---- Plain ---- */

static void listen_on(const char *address, enum nbd_tls_mode tls, struct tls_context *context) may_yield
{
    struct nbd_listen_options l = {.address = address, .tls = tls, .tls_context = context};
    CHECK_EQUAL(nbd_server_listen(server, &l), 0);
}

static void use(struct client *c, uint64_t offset) may_yield
{
    static uint8_t a[200000], b[200000];
    struct client_result r;
    memset(a, (int)(offset & 0xff) + 1, sizeof(a));
    CHECK_EQUAL(c->size_bytes, SIZE);
    CHECK_EQUAL(client_do(c, NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, offset, sizeof(a), a, &r), 0);
    CHECK_EQUAL(r.error, 0);
    memset(b, 0, sizeof(b));
    CHECK_EQUAL(client_do(c, NBD_CMD_READ, 0, offset, sizeof(b), b, &r), 0);
    CHECK_EQUAL(r.error, 0);
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    CHECK_EQUAL(client_do(c, NBD_CMD_READ, 0, SIZE, 1, b, &r), 0);
    CHECK_EQUAL(r.error, NBD_EINVAL);
}

static void plain_body(void) may_yield
{
    listen_on("tcp:127.0.0.1:0", NBD_TLS_NONE, NULL);
    listen_on(unix_address, NBD_TLS_NONE, NULL);
    snprintf(tcp_address, sizeof(tcp_address), "%s", nbd_server_address(server, 0));
    CHECK(nbd_server_address(server, 2) == NULL);
    for (int i = 0; i < 20; i++) {
        struct client c;
        CHECK_EQUAL(client_open(&c, i % 2 ? unix_address : tcp_address, "disk",
                                i % 4 < 2 ? CLIENT_STRUCTURED : 0, NULL),
                    0);
        use(&c, (uint64_t)i * 12345);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    struct nbd_export_status st;
    CHECK_EQUAL(nbd_server_get_export(server, "disk", &st), 0);
    CHECK_EQUAL(st.requests, 60);
    CHECK_EQUAL(st.errors, 20);
}

static void connections_move_to_the_reactor_of_their_volume(void **state)
{
    run(plain_body);
}

static void remove_body(void) may_yield
{
    struct client c[8];
    uint8_t byte;
    listen_on(unix_address, NBD_TLS_NONE, NULL);
    for (int i = 0; i < 8; i++)
        CHECK_EQUAL(client_open(&c[i], unix_address, "disk", 0, NULL), 0);
    CHECK_EQUAL(nbd_server_remove_export(server, "disk"), 0);
    CHECK_EQUAL(block_open_count(device), 0);
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(stream_recv_all(c[i].stream, &byte, 1, reactor_now_ns() + 5 * NSEC_PER_SEC), ERR_CLOSED);
        client_close(&c[i]);
    }
}

static void export_is_removed_across_reactors(void **state)
{
    run(remove_body);
}

/* ---- TLS ---- */

static int start_tls(struct client *c, struct tls_context *context) may_yield
{
    uint8_t data[NBD_NAME_MAX];
    uint32_t type, len;
    struct stream *protected;
    int err = client_option(c, NBD_OPT_STARTTLS, NULL, 0);
    if (err == 0)
        err = client_option_reply(c, &type, data, &len);
    if (err == 0 && type != NBD_REP_ACK)
        err = ERR_DENIED;
    if (err == 0)
        err = tls_connect(context, c->stream, NULL, reactor_now_ns() + 20 * NSEC_PER_SEC, &protected);
    if (err == 0)
        c->stream = protected;
    return err;
}

static void tls_body(void) may_yield
{
    struct tls_options so = {.server = true, .certificate_file = cert_path, .key_file = key_path}, co = {0};
    struct tls_context *sc, *cc;
    CHECK_EQUAL(tls_context_new(&so, &sc), 0);
    CHECK_EQUAL(tls_context_new(&co, &cc), 0);
    listen_on(unix_address, NBD_TLS_REQUIRED, sc);
    struct client c;
    uint32_t refusal = 0;
    CHECK_EQUAL(client_open(&c, unix_address, "disk", 0, &refusal), ERR_DENIED);
    CHECK_EQUAL(refusal, NBD_REP_ERR_TLS_REQD);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQUAL(client_greet(&c, unix_address), 0);
        CHECK_EQUAL(start_tls(&c, cc), 0);
        CHECK_EQUAL(client_go(&c, "disk", i == 0 ? 0 : CLIENT_STRUCTURED, NULL), 0);
        use(&c, i * MIB + i);
        CHECK_EQUAL(client_disconnect(&c), 0);
    }
    /* Bytes in the clear behind STARTTLS could be an attacker's. */
    struct nbd_option o[2] = {{be64_make(NBD_MAGIC_OPTION), be32_make(NBD_OPT_STARTTLS), be32_make(0)},
                              {be64_make(NBD_MAGIC_OPTION), be32_make(NBD_OPT_LIST), be32_make(0)}};
    uint8_t buf[64];
    CHECK_EQUAL(client_greet(&c, unix_address), 0);
    CHECK_EQUAL(stream_send_all(c.stream, o, sizeof(o), DEADLINE_NEVER), 0);
    CHECK_EQUAL(stream_recv_all(c.stream, buf, sizeof(struct nbd_option_reply), DEADLINE_NEVER), 0);
    CHECK_EQUAL(stream_recv_all(c.stream, buf, 1, DEADLINE_NEVER), ERR_CLOSED);
    client_close(&c);
    nbd_server_stop(server);
    CHECK_EQUAL(nbd_server_start(&(struct nbd_server_options){0}, &server), 0);
    tls_context_free(sc);
    tls_context_free(cc);
}

static void tls_connections_move_too(void **state)
{
    run(tls_body);
}

/* ---- A certificate ---- */

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "test-nbd-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(cert_path, sizeof(cert_path), "%s/crt", folder);
    snprintf(key_path, sizeof(key_path), "%s/key", folder);
    snprintf(unix_address, sizeof(unix_address), "unix:%s/sock", folder);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"nbd", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    int ok = X509_sign(cert, key, EVP_sha256());
    FILE *f = fopen(cert_path, "w"), *g = fopen(key_path, "w");
    if (ok <= 0 || f == NULL || g == NULL)
        return -1;
    ok = PEM_write_X509(f, cert) == 1 && PEM_write_PrivateKey(g, key, NULL, NULL, 0, NULL, NULL) == 1;
    fclose(f);
    fclose(g);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink(cert_path);
    unlink(key_path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_move_to_the_reactor_of_their_volume),
        cmocka_unit_test(export_is_removed_across_reactors),
        cmocka_unit_test(tls_connections_move_too),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
