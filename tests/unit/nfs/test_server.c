/* SPDX-License-Identifier: Apache-2.0 */
/* What holds whatever the procedure: RPC, records, exports, handles, retransmissions, limits. */
#include "fixture.h"

#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

/* ---- RPC ---- */

static void rpc_body(void) may_yield
{
    static const struct {
        uint32_t program, version, procedure, status;
    } calls[] = {{RPC_PROGRAM_NFS, 3, 0, RPC_SUCCESS},
                 {RPC_PROGRAM_MOUNT, 3, 0, RPC_SUCCESS},
                 {RPC_PROGRAM_NFS, 2, 0, RPC_PROGRAM_MISMATCH},
                 {RPC_PROGRAM_NFS, 4, 0, RPC_PROGRAM_MISMATCH},
                 {RPC_PROGRAM_NFS, 3, 22, RPC_PROCEDURE_UNAVAILABLE},
                 {RPC_PROGRAM_NFS, 3, UINT32_MAX, RPC_PROCEDURE_UNAVAILABLE},
                 {100227, 3, 0, RPC_PROGRAM_UNAVAILABLE}, /* NFSACL */
                 {RPC_PROGRAM_PORTMAP, 2, 0, RPC_PROGRAM_UNAVAILABLE},
                 {RPC_PROGRAM_NFS, 3, NFS3_GETATTR, RPC_GARBAGE_ARGUMENTS},
                 {RPC_PROGRAM_MOUNT, 3, MOUNT3_MNT, RPC_GARBAGE_ARGUMENTS}};
    struct client c;
    struct answer a;
    CHECK_EQUAL(client_open(&c, ADDRESS), 0);
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
        client_begin(&c, calls[i].program, calls[i].version, calls[i].procedure);
        CHECK_EQUAL(client_call(&c, &a), 0);
        CHECK(!a.denied);
        CHECK_EQUAL(a.status, calls[i].status);
        if (a.status == RPC_PROGRAM_MISMATCH)
            CHECK(xdr_u32(&a.x) == 3 && xdr_u32(&a.x) == 3);
        CHECK_EQUAL(xdr_left(&a.x), 0);
    }
    c.flavor = 6; /* RPCSEC_GSS */
    client_begin(&c, RPC_PROGRAM_NFS, 3, NFS3_GETATTR);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK(a.denied && a.status == RPC_AUTH_TOOWEAK);
    client_begin(&c, RPC_PROGRAM_NFS, 3, NFS3_NULL);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK(!a.denied && a.status == RPC_SUCCESS);
    client_begin(&c, RPC_PROGRAM_NFS, 3, NFS3_NULL);
    xdr_set_u32(&c.out, 8, 3); /* RPC version 3 */
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK(a.denied && a.status == 100);
    /* A record that is no call is passed over; so is an empty one. */
    client_begin(&c, RPC_PROGRAM_NFS, 3, NFS3_NULL);
    xdr_set_u32(&c.out, 4, RPC_REPLY);
    client_send(&c);
    c.out.len = 0;
    client_send(&c);
    client_begin(&c, RPC_PROGRAM_NFS, 3, NFS3_NULL);
    CHECK_EQUAL(client_call(&c, &a), 0);
    client_close(&c);
}

static void calls_that_cannot_be_served_get_the_right_error(void **state)
{
    run(rpc_body);
}

static void fragments_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct attr a;
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 27, 28, 40, 100, 0};
    open_a(&c, &root);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        c.fragment = sizes[i];
        CHECK_EQUAL(client_getattr(&c, &root, &a), NFS3_OK);
    }
    client_close(&c);
}

static void records_come_in_fragments_of_any_size(void **state)
{
    run(fragments_body);
}

static void too_long_body(void) may_yield
{
    static const uint32_t marks[] = {UINT32_MAX, 0x7fffffff, RPC_FRAGMENT_LAST | 0x200000};
    struct client c;
    struct handle root;
    struct answer a;
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        struct be32 mark = be32_make(marks[i]);
        CHECK_EQUAL(client_open(&c, ADDRESS), 0);
        CHECK_EQUAL(stream_send_all(c.stream, &mark, sizeof(mark), DEADLINE_NEVER), 0);
        CHECK_EQUAL(client_receive(&c, &a), ERR_CLOSED);
        client_close(&c);
    }
    /* Too long for what it is, but well framed: the connection goes on. */
    open_a(&c, &root);
    client_begin_nfs(&c, NFS3_GETATTR, &root);
    for (int i = 0; i < 20000; i++)
        xdr_put_u32(&c.out, 0);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK_EQUAL(a.status, RPC_GARBAGE_ARGUMENTS);
    client_begin(&c, 4711, 1, 1);
    for (int i = 0; i < 20000; i++)
        xdr_put_u32(&c.out, 0);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK_EQUAL(a.status, RPC_PROGRAM_UNAVAILABLE);
    struct attr attr;
    CHECK_EQUAL(client_getattr(&c, &root, &attr), NFS3_OK);
    client_close(&c);
}

static void too_long_records_end_the_connection_or_are_passed_over(void **state)
{
    run(too_long_body);
}

/* ---- In flight ---- */

static void order_body(void) may_yield
{
    struct client c;
    struct handle root, slow;
    struct answer a;
    uint32_t slow_xid[20], seen = 0;
    fake_fs_add(fs, FS_INO_ROOT, "slow", S_IFREG | 0644, "", 0);
    open_a(&c, &root);
    CHECK_EQUAL(client_lookup(&c, &root, "slow", &slow), NFS3_OK);
    fake_fs_knobs(fs)->slow_ino = FS_INO_FIRST;
    fake_fs_knobs(fs)->delay_ns = NSEC_PER_SEC;
    for (int i = 0; i < 20; i++) {
        client_begin_nfs(&c, NFS3_GETATTR, &slow);
        slow_xid[i] = client_send(&c);
    }
    client_begin_nfs(&c, NFS3_GETATTR, &root);
    uint32_t fast = client_send(&c);
    uint64_t begin = reactor_now_ns();
    CHECK_EQUAL(client_receive(&c, &a), 0);
    CHECK_EQUAL(a.xid, fast);
    CHECK(reactor_now_ns() - begin < NSEC_PER_SEC / 2);
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(client_receive(&c, &a), 0);
        for (int k = 0; k < 20; k++)
            seen |= (a.xid == slow_xid[k]) << k;
    }
    CHECK_EQUAL(seen, (1 << 20) - 1);
    CHECK(reactor_now_ns() - begin < 2 * NSEC_PER_SEC);
    CHECK_EQUAL(fake_fs_counts(fs)->most_under_way, 20);
    client_close(&c);
}

static void calls_in_flight_do_not_wait_for_each_other(void **state)
{
    run(order_body);
}

static void batch_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct answer a;
    open_a(&c, &root);
    static uint8_t batch[64 * 200];
    size_t len = 0;
    for (int i = 0; i < 64; i++) {
        client_begin_nfs(&c, NFS3_GETATTR, &root);
        struct be32 mark = be32_make(c.out.len | RPC_FRAGMENT_LAST);
        memcpy(batch + len, &mark, sizeof(mark));
        memcpy(batch + len + 4, c.out_bytes, c.out.len);
        len += 4 + c.out.len;
        assert(len <= sizeof(batch));
    }
    uint64_t before = world.sends;
    CHECK_EQUAL(stream_send_all(c.stream, batch, len, DEADLINE_NEVER), 0);
    for (int i = 0; i < 64; i++) {
        CHECK_EQUAL(client_receive(&c, &a), 0);
        CHECK_EQUAL(a.status, RPC_SUCCESS);
    }
    CHECK(world.sends - before <= 1 + 5);
    client_close(&c);
}

static void a_batch_of_calls_is_answered_with_few_sends(void **state)
{
    run_once(batch_body);
}

static void deaf_body(void) may_yield
{
    static uint8_t data[1 << 20];
    struct client deaf[8], good;
    struct handle root, f, h;
    struct attr a;
    open_a(&good, &root);
    fake_fs_add(fs, FS_INO_ROOT, "f", S_IFREG | 0644, data, sizeof(data));
    pattern(data, sizeof(data), 1);
    uint32_t count;
    CHECK_EQUAL(client_lookup(&good, &root, "f", &f), NFS3_OK);
    CHECK_EQUAL(client_write(&good, &f, 0, data, sizeof(data), NFS3_UNSTABLE, &count), NFS3_OK);
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(client_open(&deaf[i], ADDRESS), 0);
        for (int k = 0; k < 40; k++) { /* more than may be under way */
            client_begin_nfs(&deaf[i], NFS3_READ, &f);
            xdr_put_u64(&deaf[i].out, 0);
            xdr_put_u32(&deaf[i].out, 1 << 20);
            client_send(&deaf[i]);
        }
    }
    for (int i = 0; i < 20; i++) {
        uint64_t begin = reactor_now_ns();
        bool eof;
        CHECK_EQUAL(client_getattr(&good, &root, &a), NFS3_OK);
        CHECK_EQUAL(client_read(&good, &f, 0, data, 65536, &count, &eof), NFS3_OK);
        CHECK(reactor_now_ns() - begin < 30 * NSEC_PER_SEC);
        CHECK_EQUAL(client_lookup(&good, &root, "f", &h), NFS3_OK);
        CHECK_EQUAL(fiber_sleep(NSEC_PER_SEC), 0);
    }
    uint64_t used, held;
    memory_usage(reactor_memory(reactor_current()), &used, &held);
    CHECK(used < 24 * MIB);
    for (int i = 0; i < 8; i++)
        client_close(&deaf[i]);
    client_close(&good);
}

static void clients_that_do_not_read_hurt_only_themselves(void **state)
{
    limits.connection_bytes = 8 * MIB;
    limits.reactor_bytes = 16 * MIB;
    run_once(deaf_body);
}

static void idle_body(void) may_yield
{
    static struct client idle[200];
    struct client good;
    struct handle root;
    struct attr a;
    struct nfs_server_status s;
    open_a(&good, &root);
    for (int i = 0; i < 200; i++) {
        CHECK_EQUAL(client_open(&idle[i], ADDRESS), 0);
        fiber_yield();
    }
    CHECK_EQUAL(fiber_sleep(NSEC_PER_SEC), 0);
    nfs_server_get_status(server, &s);
    CHECK(s.connections <= 50);
    CHECK(s.evicted >= 150);
    CHECK_EQUAL(client_getattr(&good, &root, &a), NFS3_OK);
    for (int i = 0; i < 200; i++)
        client_close(&idle[i]);
    client_close(&good);
}

static void idle_connections_displace_only_each_other(void **state)
{
    limits.connections = 50;
    run_once(idle_body);
}

/* ---- Exports and handles ---- */

static uint32_t exports_seen(struct client *c, const char *path) may_yield
{
    struct answer a;
    uint32_t count = 0;
    client_begin(c, RPC_PROGRAM_MOUNT, 3, MOUNT3_EXPORT);
    CHECK_EQUAL(client_call(c, &a), 0);
    while (xdr_bool(&a.x)) {
        uint32_t len;
        const uint8_t *p = xdr_opaque(&a.x, MOUNT3_PATH_MAX, &len);
        count += p != NULL && len == strlen(path) && memcmp(p, path, len) == 0;
        while (xdr_bool(&a.x))
            xdr_opaque(&a.x, MOUNT3_NAME_MAX, &len);
    }
    CHECK(!a.x.bad && xdr_left(&a.x) == 0);
    return count;
}

static uint32_t mounts_seen(struct client *c) may_yield
{
    struct answer a;
    uint32_t count = 0, len;
    client_begin(c, RPC_PROGRAM_MOUNT, 3, MOUNT3_DUMP);
    CHECK_EQUAL(client_call(c, &a), 0);
    for (; xdr_bool(&a.x); count++) {
        xdr_opaque(&a.x, MOUNT3_NAME_MAX, &len);
        xdr_opaque(&a.x, MOUNT3_PATH_MAX, &len);
    }
    CHECK(!a.x.bad && xdr_left(&a.x) == 0);
    return count;
}

static void mount_body(void) may_yield
{
    struct client c;
    struct handle root, sub, other;
    struct answer a;
    uint64_t d = fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0755, NULL, 0);
    fake_fs_add(fs, d, "e", S_IFDIR | 0755, NULL, 0);
    fake_fs_add(fs, d, "f", S_IFREG | 0644, "", 0);
    struct nfs_export_options o = export_a;
    o.path = "/a/d/e"; /* an export inside of another one, by path */
    o.fs = fs;
    o.clients = "10.0.0.0/8, fd00::/8";
    CHECK_EQUAL(nfs_server_add_export(server, &o), 0);
    CHECK_EQUAL(nfs_server_add_export(server, &o), ERR_EXISTS);
    open_a(&c, &root);
    CHECK_EQUAL(client_mount(&c, "/a/d", &sub), MNT3_OK);
    CHECK_EQUAL(client_mount(&c, "/a/d/e/", &other), MNT3_OK); /* of "/a": the other one is not seen */
    CHECK_EQUAL(client_mount(&c, "/a//d/./e", &sub), MNT3_OK);
    CHECK(memcmp(other.bytes, sub.bytes, sub.len) == 0);
    CHECK_EQUAL(client_mount(&c, "/a/d/f", &sub), MNT3ERR_NOTDIR);
    CHECK_EQUAL(client_mount(&c, "/a/d/x", &sub), MNT3ERR_NOENT);
    CHECK_EQUAL(client_mount(&c, "/a/..", &sub), MNT3ERR_NOENT);
    CHECK_EQUAL(client_mount(&c, "/ab", &sub), MNT3ERR_ACCES);
    CHECK_EQUAL(client_mount(&c, "", &sub), MNT3ERR_ACCES);
    CHECK_EQUAL(exports_seen(&c, "/a"), 1);
    CHECK_EQUAL(exports_seen(&c, "/a/d/e"), 0);
    CHECK_EQUAL(mounts_seen(&c), 4);
    client_begin(&c, RPC_PROGRAM_MOUNT, 3, MOUNT3_UMNT);
    put_name(&c, "/a/d");
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK_EQUAL(mounts_seen(&c), 3);
    client_begin(&c, RPC_PROGRAM_MOUNT, 3, MOUNT3_UMNTALL);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK_EQUAL(mounts_seen(&c), 0);
    client_close(&c);
    world.peer_ip = "10.1.2.3";
    CHECK_EQUAL(client_open(&c, ADDRESS), 0);
    CHECK_EQUAL(exports_seen(&c, "/a/d/e"), 1);
    CHECK_EQUAL(client_mount(&c, "/a/d/e", &sub), MNT3_OK);
    CHECK(memcmp(other.bytes, sub.bytes, sub.len) != 0);
    client_close(&c);
}

static void mounting_follows_paths_and_tells_only_what_the_client_may_see(void **state)
{
    run(mount_body);
}

static void listed_body(void) may_yield
{
    struct client in, out;
    struct handle root, h;
    struct attr a;
    open_a(&in, &root);
    world.peer_ip = "192.168.7.7";
    CHECK_EQUAL(client_open(&out, ADDRESS), 0);
    CHECK_EQUAL(client_mount(&out, "/a", &h), MNT3ERR_ACCES);
    CHECK_EQUAL(client_mount(&out, "/a/no", &h), MNT3ERR_ACCES);
    CHECK_EQUAL(client_mount(&out, "/nothing", &h), MNT3ERR_ACCES);
    CHECK_EQUAL(exports_seen(&out, "/a"), 0);
    CHECK_EQUAL(mounts_seen(&out), 0);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3ERR_STALE); /* a handle that it heard on the wire */
    CHECK_EQUAL(client_getattr(&in, &root, &a), NFS3_OK);
    export_a.clients = "192.168.0.0/16";
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK_EQUAL(client_getattr(&in, &root, &a), NFS3ERR_STALE);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3_OK);
    export_a.secure = true; /* the loop's clients are on port 1 */
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3_OK);
    export_a.read_only = true;
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK_EQUAL(client_create(&out, &root, "f", &h), NFS3ERR_ROFS);
    export_a.fs = NULL; /* its volume moves */
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3ERR_JUKEBOX);
    CHECK_EQUAL(nfs_server_remove_export(server, "/a"), 0);
    CHECK_EQUAL(nfs_server_remove_export(server, "/a"), ERR_NOT_FOUND);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3ERR_STALE);
    export_a.fs = fs;
    CHECK_EQUAL(nfs_server_add_export(server, &export_a), 0);
    CHECK_EQUAL(client_getattr(&out, &root, &a), NFS3_OK); /* the handle is good again */
    client_close(&in);
    client_close(&out);
}

static void rules_of_an_export_take_effect_with_the_next_call(void **state)
{
    export_a.clients = "127.0.0.1";
    run_once(listed_body);
}

static void forged_body(void) may_yield
{
    struct client c;
    struct handle root, file, h;
    struct attr a;
    struct xdr x;
    struct wcc w;
    uint64_t d = fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0755, NULL, 0);
    struct fs *other = fake_fs_new(2);
    struct nfs_export_options sub = export_a, b = export_a;
    sub.path = "/sub";
    sub.root_ino = d;
    b.path = "/b";
    b.fs = other;
    CHECK_EQUAL(nfs_server_add_export(server, &sub), 0);
    CHECK_EQUAL(nfs_server_add_export(server, &b), 0);
    open_a(&c, &root);
    CHECK_EQUAL(client_create(&c, &root, "f", &file), NFS3_OK);
    for (uint32_t bit = 0; bit < 8 * root.len; bit++) {
        h = file;
        h.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        uint32_t status = client_getattr(&c, &h, &a);
        CHECK(status == NFS3ERR_BADHANDLE || status == NFS3ERR_STALE);
    }
    for (h.len = 0; h.len <= NFS3_HANDLE_MAX; h.len++) {
        if (h.len != root.len)
            CHECK_EQUAL(client_getattr(&c, &h, &a), NFS3ERR_BADHANDLE);
    }
    /* The export's number of one handle in another one. */
    struct handle subroot, broot;
    CHECK_EQUAL(client_mount(&c, "/sub", &subroot), MNT3_OK);
    CHECK_EQUAL(client_mount(&c, "/b", &broot), MNT3_OK);
    h = file;
    memcpy(h.bytes + 4, subroot.bytes + 4, 4);
    CHECK_EQUAL(client_getattr(&c, &h, &a), NFS3ERR_BADHANDLE);
    h = broot;
    memcpy(h.bytes + 4, root.bytes + 4, 4);
    CHECK_EQUAL(client_getattr(&c, &h, &a), NFS3ERR_STALE);
    /* Two exports in one call. */
    client_begin_nfs(&c, NFS3_RENAME, &root);
    put_name(&c, "f");
    put_handle(&c, &broot);
    put_name(&c, "g");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_XDEV);
    get_wcc(&x, &w);
    get_wcc(&x, &w);
    CHECK(xdr_left(&x) == 0);
    client_begin_nfs(&c, NFS3_LINK, &file);
    put_handle(&c, &subroot);
    put_name(&c, "g");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_XDEV);
    client_close(&c);
    nfs_server_stop(server);
    server = NULL;
    fake_fs_free(other);
}

static void handles_cannot_be_made_up_or_taken_elsewhere(void **state)
{
    run_once(forged_body);
}

static void outside_body(void) may_yield
{
    struct client c;
    struct handle root, up, e;
    struct attr a, b;
    struct xdr x;
    uint64_t d = fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0755, NULL, 0);
    fake_fs_add(fs, d, "e", S_IFDIR | 0755, NULL, 0);
    struct nfs_export_options sub = export_a;
    sub.path = "/sub";
    sub.root_ino = d;
    CHECK_EQUAL(nfs_server_add_export(server, &sub), 0);
    sub.path = "/none";
    sub.root_ino = 4000;
    CHECK_EQUAL(nfs_server_add_export(server, &sub), ERR_FS_STALE);
    CHECK_EQUAL(client_open(&c, ADDRESS), 0);
    CHECK_EQUAL(client_mount(&c, "/sub", &root), MNT3_OK);
    CHECK_EQUAL(client_getattr(&c, &root, &a), NFS3_OK);
    CHECK_EQUAL(a.fileid, d);
    CHECK_EQUAL(client_lookup(&c, &root, "..", &up), NFS3_OK);
    CHECK(memcmp(up.bytes, root.bytes, root.len) == 0);
    CHECK_EQUAL(client_lookup(&c, &root, "e", &e), NFS3_OK);
    CHECK_EQUAL(client_lookup(&c, &e, "..", &up), NFS3_OK);
    CHECK(memcmp(up.bytes, root.bytes, root.len) == 0);
    for (int i = 0; i < 2; i++) {
        client_begin_nfs(&c, NFS3_READDIRPLUS, i == 0 ? &root : &e);
        xdr_put_u64(&c.out, 1); /* ".." is next */
        xdr_put_u64(&c.out, 0);
        xdr_put_u32(&c.out, 4000);
        xdr_put_u32(&c.out, 4000);
        CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
        get_post(&x, &a);
        xdr_u64(&x);
        CHECK(xdr_bool(&x));
        CHECK_EQUAL(xdr_u64(&x), d);
        uint32_t len;
        const uint8_t *name = xdr_opaque(&x, 2, &len);
        CHECK(name != NULL && len == 2 && memcmp(name, "..", 2) == 0);
        xdr_u64(&x);
        CHECK(!xdr_bool(&x) && !xdr_bool(&x)); /* neither attributes nor a handle */
    }
    fake_fs_move(fs, d, "e", FS_INO_ROOT); /* while the client is in it */
    CHECK_EQUAL(client_getattr(&c, &e, &b), NFS3_OK);
    CHECK_EQUAL(client_lookup(&c, &e, "..", &up), NFS3ERR_STALE);
    client_close(&c);
}

static void nothing_leads_out_of_a_directory_that_is_exported(void **state)
{
    run(outside_body);
}

static uint32_t maker(struct client *c, const struct handle *root, uint32_t uid, uint32_t gid,
                      uint32_t *ret_gid) may_yield
{
    struct handle h;
    struct attr a = {.uid = UINT32_MAX};
    char name[32];
    c->uid = uid;
    c->gid = gid;
    snprintf(name, sizeof(name), "f%u.%u.%u", uid, gid, c->xid);
    CHECK_EQUAL(client_create(c, root, name, &h), NFS3_OK);
    CHECK_EQUAL(client_getattr(c, &h, &a), NFS3_OK);
    *ret_gid = a.gid;
    return a.uid;
}

static void squash_body(void) may_yield
{
    struct client c;
    struct handle root, d;
    uint32_t gid;
    fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0777, NULL, 0);
    open_a(&c, &root);
    CHECK_EQUAL(client_lookup(&c, &root, "d", &d), NFS3_OK);
    CHECK(maker(&c, &d, 0, 0, &gid) == 0 && gid == 0);
    export_a.squash = NFS_SQUASH_ROOT;
    export_a.anon_uid = 99;
    export_a.anon_gid = 98;
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK(maker(&c, &d, 0, 0, &gid) == 99 && gid == 98);
    CHECK(maker(&c, &d, 0, 5, &gid) == 99 && gid == 5);
    CHECK(maker(&c, &d, 7, 5, &gid) == 7 && gid == 5);
    export_a.squash = NFS_SQUASH_ALL;
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK(maker(&c, &d, 7, 5, &gid) == 99 && gid == 98);
    export_a.squash = NFS_SQUASH_NONE;
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    c.flavor = RPC_AUTH_NONE;
    CHECK(maker(&c, &d, 0, 0, &gid) == 99 && gid == 98);
    client_close(&c);
}

static void users_are_squashed_as_the_export_says(void **state)
{
    run_once(squash_body);
}

static void bad_exports_body(void) may_yield
{
    static const char *const paths[] = {"", "/", "a", "/a/", "//a", "/a/..", "/./a", "/a//b"};
    struct nfs_export_options o = export_a;
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        o.path = paths[i];
        CHECK_EQUAL(nfs_server_add_export(server, &o), ERR_INVALID);
    }
    o.path = "/b";
    o.clients = "10.0.0.0/33";
    CHECK_EQUAL(nfs_server_add_export(server, &o), ERR_INVALID);
    o.clients = NULL;
    o.root_ino = fake_fs_add(fs, FS_INO_ROOT, "f", S_IFREG | 0644, "", 0);
    CHECK_EQUAL(nfs_server_add_export(server, &o), ERR_INVALID);
    struct nfs_export_status st;
    CHECK_EQUAL(nfs_server_get_export(server, 0, &st), 0);
    CHECK(strcmp(st.path, "/a") == 0);
    CHECK_EQUAL(nfs_server_get_export(server, 1, &st), ERR_NOT_FOUND);
}

static void exports_that_make_no_sense_are_refused(void **state)
{
    run_once(bad_exports_body);
}

struct removal {
    struct latch done;
    uint64_t when_ns;
};

static void remove_fiber(void *arg) may_yield
{
    struct removal *r = arg;
    CHECK_EQUAL(nfs_server_remove_export(server, "/a"), 0);
    CHECK_EQUAL(fake_fs_counts(fs)->under_way, 0);
    r->when_ns = reactor_now_ns();
    latch_down(&r->done);
}

static void removal_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct answer a;
    struct removal r;
    open_a(&c, &root);
    fake_fs_knobs(fs)->delay_ns = NSEC_PER_SEC;
    uint64_t begin = reactor_now_ns();
    client_begin_nfs(&c, NFS3_GETATTR, &root);
    client_send(&c);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    latch_init(&r.done, 1);
    CHECK_EQUAL(fiber_spawn("remove", remove_fiber, &r), 0);
    CHECK_EQUAL(client_receive(&c, &a), 0);
    CHECK_EQUAL(xdr_u32(&a.x), NFS3_OK); /* what was under way is finished */
    latch_wait(&r.done);
    CHECK(r.when_ns - begin >= NSEC_PER_SEC);
    client_close(&c);
}

static void removing_an_export_waits_for_its_calls(void **state)
{
    run(removal_body);
}

static void pause_fiber(void *arg) may_yield
{
    struct removal *r = arg;
    CHECK_EQUAL(nfs_server_pause_export(server, "/a"), 0);
    CHECK_EQUAL(fake_fs_counts(fs)->under_way, 0);
    r->when_ns = reactor_now_ns();
    latch_down(&r->done);
}

static void pause_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct answer a;
    struct attr attr;
    struct removal r;
    open_a(&c, &root);
    fake_fs_knobs(fs)->delay_ns = NSEC_PER_SEC;
    uint64_t begin = reactor_now_ns();
    client_begin_nfs(&c, NFS3_GETATTR, &root);
    client_send(&c);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    latch_init(&r.done, 1);
    CHECK_EQUAL(fiber_spawn("pause", pause_fiber, &r), 0);
    CHECK_EQUAL(client_receive(&c, &a), 0);
    CHECK_EQUAL(xdr_u32(&a.x), NFS3_OK); /* what was under way is finished */
    latch_wait(&r.done);
    CHECK(r.when_ns - begin >= NSEC_PER_SEC);
    fake_fs_knobs(fs)->delay_ns = 0;
    CHECK_EQUAL(client_getattr(&c, &root, &attr), NFS3ERR_JUKEBOX);
    CHECK_EQUAL(nfs_server_pause_export(server, "/a"), 0); /* again: nothing more */
    CHECK_EQUAL(client_getattr(&c, &root, &attr), NFS3ERR_JUKEBOX);
    CHECK_EQUAL(nfs_server_pause_export(server, "/b"), ERR_NOT_FOUND);
    export_a.fs = fs;
    CHECK_EQUAL(nfs_server_set_export(server, &export_a), 0);
    CHECK_EQUAL(client_getattr(&c, &root, &attr), NFS3_OK); /* the same handle */
    client_close(&c);
}

static void clients_of_a_paused_export_are_told_to_try_again(void **state)
{
    run(pause_body);
}

static void stop_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct answer a;
    open_a(&c, &root);
    fake_fs_knobs(fs)->delay_ns = NSEC_PER_SEC;
    client_begin_nfs(&c, NFS3_GETATTR, &root);
    client_send(&c);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    nfs_server_stop(server);
    server = NULL;
    CHECK_EQUAL(client_receive(&c, &a), 0);
    CHECK_EQUAL(xdr_u32(&a.x), NFS3_OK);
    CHECK_EQUAL(client_receive(&c, &a), ERR_CLOSED);
    client_close(&c);
}

static void stopping_answers_what_is_under_way(void **state)
{
    run(stop_body);
}

/* ---- Retransmissions ---- */

static void send_remove(struct client *c, const struct handle *dir, const char *name, uint32_t xid) may_yield
{
    c->xid = xid;
    client_begin_nfs(c, NFS3_REMOVE, dir);
    put_name(c, name);
    client_send(c);
}

static uint32_t receive_status(struct client *c) may_yield
{
    struct answer a;
    CHECK_EQUAL(client_receive(c, &a), 0);
    return a.status == RPC_SUCCESS ? xdr_u32(&a.x) : UINT32_MAX;
}

static void again_body(void) may_yield
{
    struct client c, d;
    struct handle root, f;
    struct nfs_server_status s;
    open_a(&c, &root);
    CHECK_EQUAL(client_open(&d, ADDRESS), 0);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    fake_fs_knobs(fs)->delay_ns = NSEC_PER_SEC;
    fake_fs_knobs(fs)->forgetful = true;
    send_remove(&c, &root, "f", 5000);
    CHECK_EQUAL(fiber_sleep(NSEC_PER_MSEC), 0);
    send_remove(&c, &root, "f", 5000); /* of one connection: only one is answered */
    send_remove(&d, &root, "f", 5000); /* of another one: answered when the first is */
    CHECK_EQUAL(receive_status(&d), NFS3_OK);
    CHECK_EQUAL(receive_status(&c), NFS3_OK);
    CHECK_EQUAL(fake_fs_counts(fs)->unlinks, 1);
    send_remove(&d, &root, "f", 5000); /* later */
    CHECK_EQUAL(receive_status(&d), NFS3_OK);
    send_remove(&d, &root, "g", 5000); /* another call that happens to have the number */
    CHECK_EQUAL(receive_status(&d), NFS3ERR_NOENT);
    send_remove(&c, &root, "f", 5001);
    CHECK_EQUAL(receive_status(&c), NFS3ERR_NOENT); /* and no second answer of the first came before it */
    nfs_server_get_status(server, &s);
    CHECK_EQUAL(s.duplicates, 3);
    client_close(&c);
    client_close(&d);
    world.peer_ip = "127.0.0.2"; /* another client */
    CHECK_EQUAL(client_open(&d, ADDRESS), 0);
    send_remove(&d, &root, "f", 5000);
    CHECK_EQUAL(receive_status(&d), NFS3ERR_NOENT);
    client_close(&d);
}

static void a_call_that_is_sent_again_is_run_once(void **state)
{
    run(again_body);
}

static void restart_body(void) may_yield
{
    struct client c;
    struct handle root, f, made;
    struct xdr x;
    struct wcc w;
    struct attr a;
    open_a(&c, &root);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    c.xid = 7000;
    CHECK_EQUAL(client_create(&c, &root, "g", &made), NFS3_OK);
    c.xid = 7001;
    CHECK_EQUAL(client_remove(&c, &root, "f"), NFS3_OK);
    client_close(&c);
    nfs_server_stop(server); /* what it knew itself is gone */
    struct nfs_server_options o = {.limits = limits};
    CHECK_EQUAL(nfs_server_start(&o, &server), 0);
    CHECK_EQUAL(nfs_server_add_export(server, &export_a), 0);
    CHECK_EQUAL(nfs_server_listen(server, ADDRESS), 0);
    CHECK_EQUAL(client_open(&c, ADDRESS), 0);
    uint64_t creates = fake_fs_counts(fs)->creates;
    c.xid = 7000;
    CHECK_EQUAL(client_create(&c, &root, "g", &f), NFS3_OK);
    CHECK(memcmp(f.bytes, made.bytes, made.len) == 0);
    CHECK_EQUAL(fake_fs_counts(fs)->creates, creates);
    c.xid = 7001;
    CHECK_EQUAL(client_remove(&c, &root, "f"), NFS3_OK);
    CHECK_EQUAL(client_remove(&c, &root, "f"), NFS3ERR_NOENT);
    client_begin_nfs(&c, NFS3_RENAME, &root);
    put_name(&c, "g");
    put_handle(&c, &root);
    put_name(&c, "h");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_wcc(&x, &w);
    get_wcc(&x, &w);
    CHECK_EQUAL(client_getattr(&c, &made, &a), NFS3_OK);
    client_close(&c);
}

static void replies_of_an_earlier_run_are_given_again(void **state)
{
    run(restart_body);
}

/* ---- Port mapper ---- */

static uint32_t getport(struct client *c, uint32_t program, uint32_t protocol) may_yield
{
    struct answer a;
    client_begin(c, RPC_PROGRAM_PORTMAP, 2, PMAP_GETPORT);
    xdr_put_u32(&c->out, program);
    xdr_put_u32(&c->out, 3);
    xdr_put_u32(&c->out, protocol);
    xdr_put_u32(&c->out, 0);
    CHECK_EQUAL(client_call(c, &a), 0);
    CHECK_EQUAL(a.status, RPC_SUCCESS);
    uint32_t port = xdr_u32(&a.x);
    CHECK(xdr_left(&a.x) == 0);
    return port;
}

static void portmap_body(void) may_yield
{
    struct client c;
    struct answer a;
    CHECK_EQUAL(nfs_server_listen_portmap(server, "127.0.0.1:111"), 0);
    CHECK_EQUAL(client_open(&c, "tcp:127.0.0.1:111"), 0);
    CHECK_EQUAL(getport(&c, RPC_PROGRAM_NFS, PMAP_TCP), 2049);
    CHECK_EQUAL(getport(&c, RPC_PROGRAM_MOUNT, PMAP_TCP), 2049);
    CHECK_EQUAL(getport(&c, RPC_PROGRAM_NFS, PMAP_UDP), 0);
    CHECK_EQUAL(getport(&c, RPC_PROGRAM_PORTMAP, PMAP_UDP), 111);
    CHECK_EQUAL(getport(&c, 4711, PMAP_TCP), 0);
    client_begin(&c, RPC_PROGRAM_PORTMAP, 4, RPCB_GETADDR);
    xdr_put_u32(&c.out, RPC_PROGRAM_NFS);
    xdr_put_u32(&c.out, 3);
    put_name(&c, "tcp");
    put_name(&c, "127.0.0.1.0.111");
    put_name(&c, "");
    CHECK_EQUAL(client_call(&c, &a), 0);
    uint32_t len;
    const uint8_t *p = xdr_opaque(&a.x, 100, &len);
    CHECK(p != NULL && len == 13 && memcmp(p, "127.0.0.1.8.1", 13) == 0);
    client_begin(&c, RPC_PROGRAM_PORTMAP, 2, PMAP_SET);
    for (int i = 0; i < 4; i++)
        xdr_put_u32(&c.out, 100003);
    CHECK_EQUAL(client_call(&c, &a), 0);
    CHECK(!xdr_bool(&a.x));
    for (uint32_t version = 2; version <= 4; version++) {
        uint32_t count = 0;
        client_begin(&c, RPC_PROGRAM_PORTMAP, version, PMAP_DUMP);
        CHECK_EQUAL(client_call(&c, &a), 0);
        for (; xdr_bool(&a.x); count++) {
            xdr_u64(&a.x);
            if (version == 2) {
                xdr_u64(&a.x);
                continue;
            }
            for (int i = 0; i < 3; i++)
                xdr_opaque(&a.x, 100, &len);
        }
        CHECK(!a.x.bad && xdr_left(&a.x) == 0);
        CHECK_EQUAL(count, version == 2 ? 11 : 22);
    }
    client_close(&c);
}

static void the_port_mapper_tells_ports(void **state)
{
    run(portmap_body);
}

static void datagram_body(void) may_yield
{
    struct datagram_socket *d;
    uint8_t buf[256], reply[512];
    char from[WORLD_ADDRESS_SIZE];
    size_t len;
    CHECK_EQUAL(nfs_server_listen_portmap(server, "127.0.0.1:111"), 0);
    CHECK_EQUAL(datagram_open("udp:127.0.0.1:900", &d), 0);
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    xdr_put_u32(&o, 77);
    xdr_put_u32(&o, RPC_CALL);
    xdr_put_u32(&o, RPC_VERSION);
    xdr_put_u32(&o, RPC_PROGRAM_PORTMAP);
    xdr_put_u32(&o, 2);
    xdr_put_u32(&o, PMAP_GETPORT);
    for (int i = 0; i < 4; i++)
        xdr_put_u32(&o, 0);
    xdr_put_u32(&o, RPC_PROGRAM_NFS);
    xdr_put_u32(&o, 3);
    xdr_put_u32(&o, PMAP_TCP);
    xdr_put_u32(&o, 0);
    for (uint32_t cut = 0; cut <= o.len; cut++) { /* whatever comes, it goes on */
        CHECK_EQUAL(datagram_send(d, "udp:127.0.0.1:111", buf, cut), 0);
        if (cut < 8)
            continue;
        CHECK_EQUAL(datagram_recv(d, reply, sizeof(reply), DEADLINE_NEVER, &len, from), 0);
        struct xdr x = xdr_over(reply, len);
        CHECK_EQUAL(xdr_u32(&x), 77);
        x.at += 16;
        CHECK_EQUAL(xdr_u32(&x), cut == o.len ? RPC_SUCCESS : RPC_GARBAGE_ARGUMENTS);
        if (cut == o.len)
            CHECK_EQUAL(xdr_u32(&x), 2049);
    }
    xdr_set_u32(&o, 12, RPC_PROGRAM_NFS); /* only by TCP */
    CHECK_EQUAL(datagram_send(d, "udp:127.0.0.1:111", buf, o.len), 0);
    CHECK_EQUAL(datagram_recv(d, reply, sizeof(reply), DEADLINE_NEVER, &len, from), 0);
    struct xdr x = xdr_over(reply + 20, len - 20);
    CHECK_EQUAL(xdr_u32(&x), RPC_PROGRAM_UNAVAILABLE);
    datagram_close(d);
}

static void the_port_mapper_answers_datagrams(void **state)
{
    run_once(datagram_body);
}

/* ---- Figures ---- */

static void figures_body(void) may_yield
{
    struct client c, d;
    struct handle root, f;
    struct nfs_client_status clients[4];
    struct nfs_export_status e;
    uint32_t count;
    uint8_t b[10];
    bool eof;
    open_a(&c, &root);
    world.peer_ip = "10.0.0.9";
    CHECK_EQUAL(client_open(&d, ADDRESS), 0);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3ERR_EXIST);
    CHECK_EQUAL(client_write(&c, &f, 0, "abcdefgh", 8, NFS3_UNSTABLE, &count), NFS3_OK);
    CHECK_EQUAL(client_read(&c, &f, 0, b, 10, &count, &eof), NFS3_OK);
    CHECK_EQUAL(nfs_server_get_export(server, 0, &e), 0);
    CHECK_EQUAL(e.ops, 4);
    CHECK_EQUAL(e.errors, 1);
    CHECK_EQUAL(e.read_bytes, 8);
    CHECK_EQUAL(e.write_bytes, 8);
    CHECK_EQUAL(nfs_server_list_clients(server, clients, 4), 2);
    for (int i = 0; i < 2; i++) {
        bool first = strcmp(clients[i].ip, "127.0.0.1") == 0;
        CHECK(first || strcmp(clients[i].ip, "10.0.0.9") == 0);
        CHECK_EQUAL(clients[i].ops, first ? 5 : 0);
        CHECK_EQUAL(clients[i].connections, 1);
        CHECK((clients[i].bytes_in > 0) == first);
    }
    CHECK_EQUAL(nfs_server_list_clients(server, clients, 1), 1);
    client_close(&c);
    client_close(&d);
}

static void calls_and_bytes_are_counted_by_export_and_client(void **state)
{
    run_once(figures_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_cannot_be_served_get_the_right_error),
        cmocka_unit_test(records_come_in_fragments_of_any_size),
        cmocka_unit_test(too_long_records_end_the_connection_or_are_passed_over),
        cmocka_unit_test(calls_in_flight_do_not_wait_for_each_other),
        cmocka_unit_test(a_batch_of_calls_is_answered_with_few_sends),
        cmocka_unit_test(clients_that_do_not_read_hurt_only_themselves),
        cmocka_unit_test(idle_connections_displace_only_each_other),
        cmocka_unit_test(mounting_follows_paths_and_tells_only_what_the_client_may_see),
        cmocka_unit_test(rules_of_an_export_take_effect_with_the_next_call),
        cmocka_unit_test(handles_cannot_be_made_up_or_taken_elsewhere),
        cmocka_unit_test(nothing_leads_out_of_a_directory_that_is_exported),
        cmocka_unit_test(users_are_squashed_as_the_export_says),
        cmocka_unit_test(exports_that_make_no_sense_are_refused),
        cmocka_unit_test(removing_an_export_waits_for_its_calls),
        cmocka_unit_test(clients_of_a_paused_export_are_told_to_try_again),
        cmocka_unit_test(stopping_answers_what_is_under_way),
        cmocka_unit_test(a_call_that_is_sent_again_is_run_once),
        cmocka_unit_test(replies_of_an_earlier_run_are_given_again),
        cmocka_unit_test(the_port_mapper_tells_ports),
        cmocka_unit_test(the_port_mapper_answers_datagrams),
        cmocka_unit_test(calls_and_bytes_are_counted_by_export_and_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
