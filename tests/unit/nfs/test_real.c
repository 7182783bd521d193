/* SPDX-License-Identifier: Apache-2.0 */
/* The server over real sockets with two reactors, each a thread: "/a" lives at home, "/b" on the other one.
 * Clients run at home. */
#include "client.h"
#include "fake_fs.h"
#include "protocols/nfs/nfs_internal.h"
#include "runtime/error.h"
#include "runtime/world_real.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], unix_address[128], tcp_address[128];
static struct reactor *home, *shard;
static struct fs *a, *b;
static struct nfs_server *server;
static void (*body)(void);
static struct nfs_limits limits;

static int fs_make(void *arg)
{
    (void)arg;
    b = fake_fs_new(2);
    return 0;
}

static int fs_drop(void *arg)
{
    (void)arg;
    fake_fs_free(b);
    return 0;
}

static void run_home(void *arg) may_yield
{
    (void)arg;
    struct nfs_server_options o = {.limits = limits};
    struct nfs_export_options e = {.path = "/a", .squash = NFS_SQUASH_NONE};
    CHECK_EQUAL(reactor_call(shard, fs_make, NULL), 0);
    a = fake_fs_new(1);
    CHECK_EQUAL(nfs_server_start(&o, &server), 0);
    e.fs = a;
    CHECK_EQUAL(nfs_server_add_export(server, &e), 0);
    e.path = "/b";
    e.fs = b;
    CHECK_EQUAL(nfs_server_add_export(server, &e), 0);
    CHECK_EQUAL(nfs_server_listen(server, "tcp:127.0.0.1:0"), 0);
    CHECK_EQUAL(nfs_server_listen(server, unix_address), 0);
    snprintf(tcp_address, sizeof(tcp_address), "%s", nfs_server_address(server, 0));
    body();
    nfs_server_stop(server);
    fake_fs_free(a);
    CHECK_EQUAL(reactor_call(shard, fs_drop, NULL), 0);
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

static void check_memory(struct reactor *r)
{
    uint64_t used, held;
    memory_check(reactor_memory(r));
    memory_usage(reactor_memory(r), &used, &held);
    assert_int_equal(used, 0);
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
    check_memory(home);
    check_memory(shard);
    reactor_free(home);
    reactor_free(shard);
    assert_int_equal(check_failures, 0);
}

/* ---- Where a connection is ---- */

struct count {
    struct reactor *reactor;
    uint32_t connections;
};

static int count_there(void *arg)
{
    struct count *q = arg;
    LIST_FOREACH (&server->shards, l) {
        struct nfs_shard *s = CONTAINER_OF(l, struct nfs_shard, link);
        if (s->reactor != q->reactor)
            continue;
        for (struct list *c = s->connections.next; c != &s->connections; c = c->next)
            q->connections += CONTAINER_OF(c, struct nfs_connection, link)->stream != NULL;
    }
    return 0;
}

static uint32_t connections_at(struct reactor *r) may_yield
{
    struct count q = {.reactor = r};
    CHECK_EQUAL(reactor_call(r, count_there, &q), 0);
    return q.connections;
}

/* Everything that carries data or goes through memory of its own. */
static void use(struct client *c, const struct handle *root, const char *name) may_yield
{
    static uint8_t data[1 << 20], got[1 << 20];
    static const uint32_t lens[] = {10, 4096, 70000, 1 << 20};
    struct handle f, link;
    struct attr attr;
    struct xdr x;
    uint32_t count;
    bool eof;
    CHECK_EQUAL(client_create(c, root, name, &f), NFS3_OK);
    for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
        uint64_t offset = i * 1000;
        for (uint32_t k = 0; k < lens[i]; k++)
            data[k] = (uint8_t)(k * 7 + i + k / 251);
        CHECK_EQUAL(client_write(c, &f, offset, data, lens[i], NFS3_FILE_SYNC, &count), NFS3_OK);
        CHECK_EQUAL(count, lens[i]);
        for (uint32_t done = 0; done < lens[i]; done += count) {
            CHECK_EQUAL(client_read(c, &f, offset + done, got, lens[i] - done, &count, &eof), NFS3_OK);
            CHECK(count > 0 && memcmp(got, data + done, count) == 0);
            if (count == 0)
                break;
        }
    }
    client_begin_nfs(c, NFS3_SYMLINK, root);
    put_name(c, "link");
    put_sattr(c, 0777);
    char target[2001];
    memset(target, 'x', 2000);
    target[2000] = '\0';
    put_name(c, target);
    CHECK_EQUAL(client_nfs(c, &x), NFS3_OK);
    CHECK_EQUAL(client_lookup(c, root, "link", &link), NFS3_OK);
    client_begin_nfs(c, NFS3_READLINK, &link);
    CHECK_EQUAL(client_nfs(c, &x), NFS3_OK);
    client_begin_nfs(c, NFS3_READDIRPLUS, root);
    xdr_put_u64(&c->out, 0);
    xdr_put_u64(&c->out, 0);
    xdr_put_u32(&c->out, 60000);
    xdr_put_u32(&c->out, 60000);
    CHECK_EQUAL(client_nfs(c, &x), NFS3_OK);
    CHECK_EQUAL(client_remove(c, root, "link"), NFS3_OK);
    CHECK_EQUAL(client_remove(c, root, name), NFS3_OK);
    CHECK_EQUAL(client_getattr(c, &f, &attr), NFS3ERR_STALE);
}

static void two_body(void) may_yield
{
    for (int i = 0; i < 6; i++) {
        struct client c;
        struct handle ra, rb;
        struct attr attr;
        CHECK_EQUAL(client_open(&c, i % 2 ? unix_address : tcp_address), 0);
        c.fragment = i >= 4 ? 1000 : 0;
        CHECK_EQUAL(client_mount(&c, "/b", &rb), MNT3_OK);
        CHECK_EQUAL(connections_at(home), 1);
        CHECK_EQUAL(client_getattr(&c, &rb, &attr), NFS3_OK);
        CHECK_EQUAL(connections_at(home), 0); /* it went to its file system */
        CHECK_EQUAL(connections_at(shard), 1);
        use(&c, &rb, "own");
        CHECK_EQUAL(client_mount(&c, "/a", &ra), MNT3_OK);
        use(&c, &ra, "other");
        CHECK_EQUAL(connections_at(shard), 1); /* a guest there */
        use(&c, &rb, "own");
        for (int k = 0; k < 100; k++)
            CHECK_EQUAL(client_getattr(&c, &ra, &attr), NFS3_OK);
        CHECK_EQUAL(connections_at(home), 1); /* it stays where it is all the time */
        use(&c, &ra, "home");
        struct nfs_client_status st[2];
        CHECK_EQUAL(nfs_server_list_clients(server, st, 2), 1);
        CHECK(st[0].ops > 100);
        client_close(&c);
    }
}

static void a_connection_goes_where_its_files_are(void **state)
{
    run(two_body);
}

static void pipelined_body(void) may_yield
{
    struct client c;
    struct handle roots[2];
    struct answer ans;
    enum { CALLS = 400 };
    static bool seen[CALLS];
    memset(seen, 0, sizeof(seen));
    CHECK_EQUAL(client_open(&c, tcp_address), 0);
    CHECK_EQUAL(client_mount(&c, "/a", &roots[0]), MNT3_OK);
    CHECK_EQUAL(client_mount(&c, "/b", &roots[1]), MNT3_OK);
    uint32_t first = c.xid;
    for (int i = 0; i < CALLS; i++) { /* all in flight, of both, while the connection moves */
        client_begin_nfs(&c, i % 3 == 0 ? NFS3_FSINFO : NFS3_GETATTR, &roots[i / 5 % 2]);
        client_send(&c);
    }
    for (int i = 0; i < CALLS; i++) {
        CHECK_EQUAL(client_receive(&c, &ans), 0);
        CHECK(ans.status == RPC_SUCCESS && xdr_u32(&ans.x) == NFS3_OK);
        CHECK(ans.xid - first < CALLS && !seen[ans.xid - first]);
        seen[(ans.xid - first) % CALLS] = true;
    }
    client_close(&c);
}

static void calls_of_two_file_systems_in_flight_are_all_answered(void **state)
{
    run(pipelined_body);
}

static void gone_body(void) may_yield
{
    struct client c[8];
    struct handle root;
    struct attr attr;
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(client_open(&c[i], unix_address), 0);
        CHECK_EQUAL(client_mount(&c[i], "/b", &root), MNT3_OK);
        CHECK_EQUAL(client_getattr(&c[i], &root, &attr), NFS3_OK);
    }
    CHECK_EQUAL(nfs_server_remove_export(server, "/b"), 0);
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(client_getattr(&c[i], &root, &attr), NFS3ERR_STALE);
        if (i % 2)
            client_close(&c[i]);
    }
    for (int i = 0; i < 8; i += 2) /* the server goes first for these */
        stream_shutdown(c[i].stream);
    for (int i = 0; i < 8; i += 2)
        client_close(&c[i]);
}

static void an_export_of_another_reactor_is_removed_under_its_clients(void **state)
{
    run(gone_body);
}

/* All that rest have gone to their file system's reactor; the newcomers arrive at home. */
static void full_body(void) may_yield
{
    enum { RESTING = 60, NEWCOMERS = 40 };
    static struct client resting[RESTING], newcomer[NEWCOMERS];
    struct client busy;
    struct handle root;
    struct attr attr;
    struct nfs_server_status s;
    for (int i = 0; i < RESTING; i++) {
        CHECK_EQUAL(client_open(&resting[i], tcp_address), 0);
        CHECK_EQUAL(client_mount(&resting[i], "/b", &root), MNT3_OK);
        CHECK_EQUAL(client_getattr(&resting[i], &root, &attr), NFS3_OK);
    }
    CHECK_EQUAL(client_open(&busy, tcp_address), 0);
    CHECK_EQUAL(connections_at(shard), RESTING);
    for (int i = 0; i < NEWCOMERS; i++) {
        CHECK_EQUAL(client_mount(&busy, "/b", &root), MNT3_OK);
        CHECK_EQUAL(client_getattr(&busy, &root, &attr), NFS3_OK);
        CHECK_EQUAL(client_open(&newcomer[i], tcp_address), 0);
        CHECK_EQUAL(client_mount(&newcomer[i], "/b", &root), MNT3_OK);
        CHECK_EQUAL(client_getattr(&newcomer[i], &root, &attr), NFS3_OK);
    }
    CHECK_EQUAL(client_getattr(&newcomer[0], &root, &attr), NFS3_OK); /* it was not the one to go */
    nfs_server_get_status(server, &s);
    CHECK_EQUAL(s.refused, 0);
    CHECK(s.connections <= RESTING + 1 + 16);
    CHECK_EQUAL(s.evicted, NEWCOMERS);
    for (int i = 0; i < RESTING; i++)
        client_close(&resting[i]);
    for (int i = 0; i < NEWCOMERS; i++)
        client_close(&newcomer[i]);
    client_close(&busy);
}

static void who_rests_on_another_reactor_makes_room_for_a_newcomer(void **state)
{
    limits.connections = 61;
    run(full_body);
    memset(&limits, 0, sizeof(limits));
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/ashlar-nfs-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(unix_address, sizeof(unix_address), "unix:%s/nfs", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_goes_where_its_files_are),
        cmocka_unit_test(calls_of_two_file_systems_in_flight_are_all_answered),
        cmocka_unit_test(an_export_of_another_reactor_is_removed_under_its_clients),
        cmocka_unit_test(who_rests_on_another_reactor_makes_room_for_a_newcomer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
