/* SPDX-License-Identifier: Apache-2.0 */
/* Each procedure of NFS version 3, over a file system in memory. */
#include "fixture.h"

#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

static void attributes_body(void) may_yield
{
    struct client c;
    struct handle root, file;
    struct attr a;
    struct wcc w;
    struct xdr x;
    open_a(&c, &root);
    CHECK_EQUAL(client_getattr(&c, &root, &a), NFS3_OK);
    CHECK_EQUAL(a.type, NFS3_DIR);
    CHECK_EQUAL(a.mode, 0755);
    CHECK_EQUAL(a.fileid, FS_INO_ROOT);
    CHECK_EQUAL(client_create(&c, &root, "f", &file), NFS3_OK);
    CHECK_EQUAL(client_create(&c, &root, "f", &file), NFS3ERR_EXIST);
    CHECK_EQUAL(client_lookup(&c, &root, "f", &file), NFS3_OK);
    CHECK_EQUAL(client_getattr(&c, &file, &a), NFS3_OK);
    CHECK_EQUAL(a.type, NFS3_REG);
    uint32_t ctime[2] = {a.ctime[0], a.ctime[1]};
    for (int right = 0; right < 2; right++) { /* the guard */
        client_begin_nfs(&c, NFS3_SETATTR, &file);
        put_sattr(&c, 0600);
        xdr_put_bool(&c.out, true);
        xdr_put_u32(&c.out, ctime[0]);
        xdr_put_u32(&c.out, ctime[1] + !right);
        CHECK_EQUAL(client_nfs(&c, &x), right ? NFS3_OK : NFS3ERR_NOT_SYNC);
        get_wcc(&x, &w);
        CHECK(w.known && w.after.known && w.ctime[1] == ctime[1]);
        CHECK_EQUAL(w.after.mode, right ? 0600 : 0640);
    }
    client_begin_nfs(&c, NFS3_SETATTR, &file); /* everything at once */
    for (int i = 0; i < 3; i++) {
        xdr_put_bool(&c.out, true);
        xdr_put_u32(&c.out, i == 0 ? 0604 : 500 + (uint32_t)i);
    }
    xdr_put_bool(&c.out, true);
    xdr_put_u64(&c.out, 12345);
    for (int i = 0; i < 2; i++) {
        xdr_put_u32(&c.out, NFS3_CLIENT_TIME);
        xdr_put_u32(&c.out, 4000000000u);
        xdr_put_u32(&c.out, 77 + (uint32_t)i);
    }
    xdr_put_bool(&c.out, false);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    CHECK_EQUAL(client_getattr(&c, &file, &a), NFS3_OK);
    CHECK_EQUAL(a.mode, 0604);
    CHECK_EQUAL(a.uid, 501);
    CHECK_EQUAL(a.gid, 502);
    CHECK_EQUAL(a.size, 12345);
    CHECK_EQUAL(a.atime[0], 4000000000u);
    CHECK_EQUAL(a.atime[1], 77);
    CHECK_EQUAL(a.mtime[1], 78);
    client_close(&c);
}

static void attributes_are_set_and_guarded(void **state)
{
    run(attributes_body);
}

static void make_body(void) may_yield
{
    static const struct {
        uint32_t type;
        uint32_t want;
    } nodes[] = {{NFS3_CHR, NFS3_OK},        {NFS3_BLK, NFS3_OK},         {NFS3_SOCK, NFS3_OK},
                 {NFS3_FIFO, NFS3_OK},       {NFS3_REG, NFS3ERR_BADTYPE}, {NFS3_DIR, NFS3ERR_BADTYPE},
                 {NFS3_LNK, NFS3ERR_BADTYPE}};
    struct client c;
    struct handle root, h;
    struct attr a;
    struct wcc w;
    struct xdr x;
    open_a(&c, &root);
    for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
        char name[2] = {(char)('0' + nodes[i].type), '\0'};
        client_begin_nfs(&c, NFS3_MKNOD, &root);
        put_name(&c, name);
        xdr_put_u32(&c.out, nodes[i].type);
        put_sattr(&c, 0612);
        xdr_put_u32(&c.out, 8);
        xdr_put_u32(&c.out, 9);
        CHECK_EQUAL(client_nfs(&c, &x), nodes[i].want);
        if (nodes[i].want != NFS3_OK)
            continue;
        CHECK(xdr_bool(&x));
        get_handle(&x, &h);
        get_post(&x, &a);
        get_wcc(&x, &w);
        CHECK_EQUAL(a.type, nodes[i].type);
        CHECK_EQUAL(a.mode, 0612);
        CHECK_EQUAL(a.major, nodes[i].type <= NFS3_CHR ? 8 : 0);
        CHECK(w.known && w.after.known && w.ctime[1] != w.after.ctime[1]);
    }
    client_begin_nfs(&c, NFS3_MKDIR, &root);
    put_name(&c, "d");
    put_sattr(&c, 0711);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    CHECK_EQUAL(client_lookup(&c, &root, "d", &h), NFS3_OK);
    for (size_t len = 0; len <= FS_SYMLINK_MAX + 1; len += len < 8 ? 1 : FS_SYMLINK_MAX - 7 - len % 2) {
        char *target = calloc(1, len + 1);
        assert(target != NULL);
        memset(target, 't', len);
        struct handle link;
        char name[16] = "l";
        name[1] = (char)('0' + len % 64);
        client_begin_nfs(&c, NFS3_SYMLINK, &h);
        put_name(&c, name);
        put_sattr(&c, 0777);
        put_name(&c, target);
        uint32_t status = client_nfs(&c, &x);
        CHECK_EQUAL(status, len == 0 ? NFS3ERR_INVAL : len > FS_SYMLINK_MAX ? NFS3ERR_NAMETOOLONG : NFS3_OK);
        if (status == NFS3_OK) {
            uint32_t n;
            CHECK_EQUAL(client_lookup(&c, &h, name, &link), NFS3_OK);
            client_begin_nfs(&c, NFS3_READLINK, &link);
            CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
            get_post(&x, &a);
            CHECK_EQUAL(a.type, NFS3_LNK);
            const uint8_t *p = xdr_opaque(&x, FS_SYMLINK_MAX, &n);
            CHECK(p != NULL && n == len && memcmp(p, target, n) == 0);
        }
        free(target);
    }
    client_begin_nfs(&c, NFS3_READLINK, &h);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_INVAL);
    client_close(&c);
}

static void all_kinds_of_objects_are_made(void **state)
{
    run(make_body);
}

static uint32_t exclusive(struct client *c, const struct handle *dir, uint64_t verifier) may_yield
{
    struct xdr x;
    client_begin_nfs(c, NFS3_CREATE, dir);
    put_name(c, "once");
    xdr_put_u32(&c->out, NFS3_EXCLUSIVE);
    xdr_put_u64(&c->out, verifier);
    return client_nfs(c, &x);
}

static void exclusive_body(void) may_yield
{
    struct client c;
    struct handle root;
    open_a(&c, &root);
    CHECK_EQUAL(exclusive(&c, &root, 99), NFS3_OK);
    CHECK_EQUAL(exclusive(&c, &root, 99), NFS3_OK);
    CHECK_EQUAL(exclusive(&c, &root, 98), NFS3ERR_EXIST);
    client_close(&c);
}

static void exclusive_create_is_repeated_with_its_verifier_only(void **state)
{
    run(exclusive_body);
}

static void names_body(void) may_yield
{
    static const char *const dots[] = {".", ".."};
    struct client c;
    struct handle root, f, d, found;
    struct xdr x;
    struct attr a;
    struct wcc w[2];
    char longest[300];
    memset(longest, 'n', sizeof(longest));
    open_a(&c, &root);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    client_begin_nfs(&c, NFS3_MKDIR, &root);
    put_name(&c, "d");
    put_sattr(&c, 0755);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    CHECK_EQUAL(client_lookup(&c, &root, "d", &d), NFS3_OK);
    client_begin_nfs(&c, NFS3_LINK, &f);
    put_handle(&c, &d);
    put_name(&c, "g");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_post(&x, &a);
    get_wcc(&x, &w[0]);
    CHECK_EQUAL(a.nlink, 2);
    CHECK(w[0].known && w[0].after.known && w[0].after.fileid != a.fileid);
    client_begin_nfs(&c, NFS3_RENAME, &root);
    put_name(&c, "f");
    put_handle(&c, &d);
    put_name(&c, "h");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_wcc(&x, &w[0]);
    get_wcc(&x, &w[1]);
    CHECK(w[0].after.fileid == FS_INO_ROOT && w[1].after.fileid != FS_INO_ROOT);
    CHECK(xdr_left(&x) == 0);
    CHECK_EQUAL(client_lookup(&c, &root, "f", &found), NFS3ERR_NOENT);
    CHECK_EQUAL(client_lookup(&c, &d, "h", &found), NFS3_OK);
    CHECK(found.len == f.len && memcmp(found.bytes, f.bytes, f.len) == 0);
    CHECK_EQUAL(client_remove(&c, &root, "d"), NFS3ERR_ISDIR);
    client_begin_nfs(&c, NFS3_RMDIR, &root);
    put_name(&c, "d");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_NOTEMPTY);
    CHECK_EQUAL(client_remove(&c, &d, "g"), NFS3_OK);
    CHECK_EQUAL(client_remove(&c, &d, "h"), NFS3_OK);
    CHECK_EQUAL(client_remove(&c, &d, "h"), NFS3ERR_NOENT);
    CHECK_EQUAL(client_getattr(&c, &f, &a), NFS3ERR_STALE);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(client_remove(&c, &d, dots[i]), NFS3ERR_INVAL);
        CHECK_EQUAL(client_create(&c, &d, dots[i], &found), NFS3ERR_EXIST);
        client_begin_nfs(&c, NFS3_RMDIR, &d);
        put_name(&c, dots[i]);
        CHECK_EQUAL(client_nfs(&c, &x), i == 0 ? NFS3ERR_INVAL : NFS3ERR_EXIST);
    }
    client_begin_nfs(&c, NFS3_LOOKUP, &root);
    xdr_put_opaque(&c.out, longest, sizeof(longest));
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_NAMETOOLONG);
    client_begin_nfs(&c, NFS3_RMDIR, &root);
    put_name(&c, "d");
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    client_close(&c);
}

static void names_are_linked_renamed_and_removed(void **state)
{
    run(names_body);
}

/* ---- Data ---- */

static void data_body(void) may_yield
{
    static const struct {
        uint64_t offset;
        uint32_t len;
    } pieces[] = {{0, 1},         {0, 4096},         {4095, 2},       {100, 3},        {5000, 20000},
                  {0, 1 << 20},   {4096, 1 << 20},   {1, 1 << 20},    {4095, 1 << 20}, {70000, 65536},
                  {3, 16 * 1024}, {2 << 20, 300000}, {12345, 1000000}};
    static uint8_t want[4 << 20], got[1 << 20], data[1 << 20];
    struct client c;
    struct handle root, f;
    struct fake_fs_counts *counts = fake_fs_counts(fs);
    uint64_t size = 0;
    memset(want, 0, sizeof(want));
    open_a(&c, &root);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        uint32_t count = 0, len = pieces[i].len;
        bool eof;
        c.fragment = i % 3 == 1 ? 1000 : 0;
        if (world.recv_max == 1 && len > 70000)
            continue; /* takes long, byte by byte */
        pattern(data, len, i + 1);
        memcpy(want + pieces[i].offset, data, len);
        size = MAX(size, pieces[i].offset + len);
        CHECK_EQUAL(client_write(&c, &f, pieces[i].offset, data, len, (uint32_t)i % 3, &count), NFS3_OK);
        CHECK_EQUAL(count, len);
        for (uint64_t at = 0; at < size; at += count) {
            uint32_t n = 100000 + (uint32_t)i * 4097;
            CHECK_EQUAL(client_read(&c, &f, at, got, n, &count, &eof), NFS3_OK);
            CHECK_EQUAL(count, MIN(n, size - at));
            CHECK_EQUAL(eof, at + n >= size);
            CHECK(memcmp(got, want + at, count) == 0);
            if (count == 0)
                break;
        }
    }
    CHECK(counts->durable_writes < counts->writes && counts->durable_writes > 0);
    client_close(&c);
}

static void data_is_written_and_read_at_any_offset(void **state)
{
    run(data_body);
}

static void edges_body(void) may_yield
{
    struct client c;
    struct handle root, f, sparse;
    struct xdr x;
    uint8_t buf[100];
    uint32_t count;
    bool eof;
    open_a(&c, &root);
    fake_fs_add(fs, FS_INO_ROOT, "s", S_IFREG | 0644, "", 0);
    CHECK_EQUAL(client_lookup(&c, &root, "s", &sparse), NFS3_OK);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK);
    CHECK_EQUAL(client_write(&c, &f, 10, "abc", 3, NFS3_UNSTABLE, &count), NFS3_OK);
    CHECK_EQUAL(client_write(&c, &f, 0, "", 0, NFS3_UNSTABLE, &count), NFS3_OK);
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(client_read(&c, &f, 13, buf, 100, &count, &eof), NFS3_OK);
    CHECK(count == 0 && eof);
    CHECK_EQUAL(client_read(&c, &f, UINT64_MAX, buf, 100, &count, &eof), NFS3_OK);
    CHECK(count == 0 && eof);
    CHECK_EQUAL(client_read(&c, &f, 0, buf, 0, &count, &eof), NFS3_OK);
    CHECK(count == 0 && !eof);
    CHECK_EQUAL(client_read(&c, &f, 9, buf, 3, &count, &eof), NFS3_OK);
    CHECK(count == 3 && !eof && memcmp(buf, "\0ab", 3) == 0);
    CHECK_EQUAL(client_read(&c, &root, 0, buf, 3, &count, &eof), NFS3ERR_ISDIR);
    CHECK_EQUAL(client_read(&c, &root, 0, buf, 0, &count, &eof), NFS3ERR_ISDIR);
    CHECK_EQUAL(client_write(&c, &f, UINT64_MAX, "a", 1, NFS3_UNSTABLE, &count), NFS3ERR_FBIG);
    client_begin_nfs(&c, NFS3_WRITE, &f); /* says one length, and has another */
    xdr_put_u64(&c.out, 0);
    xdr_put_u32(&c.out, 5);
    xdr_put_u32(&c.out, NFS3_UNSTABLE);
    xdr_put_opaque(&c.out, "abcd", 4);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_INVAL);
    client_begin_nfs(&c, NFS3_WRITE, &f); /* ends before its data does */
    xdr_put_u64(&c.out, 0);
    xdr_put_u32(&c.out, 50000);
    xdr_put_u32(&c.out, NFS3_UNSTABLE);
    xdr_put_u32(&c.out, 50000);
    struct answer a;
    for (int i = 0; i < 2; i++) {
        xdr_put_fixed(&c.out, buf, 100);
        CHECK_EQUAL(client_call(&c, &a), 0);
        CHECK_EQUAL(a.status, RPC_GARBAGE_ARGUMENTS);
        for (int k = 0; k < 40; k++) /* so that it does not fit into the head */
            xdr_put_fixed(&c.out, buf, 100);
        xdr_set_u32(&c.out, 0, c.xid);
    }
    uint64_t verifier[2];
    for (int i = 0; i < 2; i++) {
        struct wcc w;
        fake_fs_knobs(fs)->verifier = 5 + (uint64_t)i;
        client_begin_nfs(&c, NFS3_COMMIT, &f);
        xdr_put_u64(&c.out, 0);
        xdr_put_u32(&c.out, 0);
        CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
        get_wcc(&x, &w);
        verifier[i] = xdr_u64(&x);
        CHECK(!x.bad && xdr_left(&x) == 0);
    }
    CHECK(verifier[0] != verifier[1]);
    client_close(&c);
}

static void reads_and_writes_at_the_edges_are_answered_exactly(void **state)
{
    run(edges_body);
}

/* ---- Directories ---- */

static uint32_t readdir_all(struct client *c, const struct handle *dir, bool plus, uint32_t dircount,
                            uint32_t maxcount, uint32_t *ret_calls) may_yield
{
    uint64_t cookie = 0, verifier = 0;
    uint32_t names = 0, calls = 0;
    bool eof = false;
    while (!eof) {
        struct xdr x;
        struct attr a;
        client_begin_nfs(c, plus ? NFS3_READDIRPLUS : NFS3_READDIR, dir);
        xdr_put_u64(&c->out, cookie);
        xdr_put_u64(&c->out, verifier);
        if (plus)
            xdr_put_u32(&c->out, dircount);
        xdr_put_u32(&c->out, maxcount);
        uint32_t status = client_nfs(c, &x);
        CHECK_EQUAL(status, NFS3_OK);
        if (status != NFS3_OK)
            return 0;
        CHECK(xdr_left(&x) + 4 <= maxcount);
        get_post(&x, &a);
        CHECK(a.known && a.type == NFS3_DIR);
        verifier = xdr_u64(&x);
        uint32_t dir_bytes = 0;
        while (xdr_bool(&x)) {
            uint32_t len;
            uint64_t ino = xdr_u64(&x);
            const uint8_t *name = xdr_opaque(&x, FS_NAME_MAX, &len);
            CHECK(name != NULL && ino != 0);
            cookie = xdr_u64(&x);
            dir_bytes += 24 + len + XDR_PAD(len);
            names++;
            if (!plus)
                continue;
            get_post(&x, &a);
            CHECK(!a.known || a.fileid == ino);
            if (xdr_bool(&x)) {
                struct handle h;
                get_handle(&x, &h);
            }
        }
        CHECK(!plus || dir_bytes <= dircount);
        eof = xdr_bool(&x);
        CHECK(!x.bad && xdr_left(&x) == 0);
        calls++;
        if (x.bad)
            return 0;
    }
    *ret_calls = calls;
    return names;
}

static void readdir_body(void) may_yield
{
    struct client c;
    struct handle root, d;
    struct xdr x;
    char name[16];
    uint32_t calls;
    uint64_t ino = fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0755, NULL, 0);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof(name), "file%d", i * 37);
        fake_fs_add(fs, ino, name, S_IFDIR | 0700, NULL, 0);
    }
    open_a(&c, &root);
    CHECK_EQUAL(client_lookup(&c, &root, "d", &d), NFS3_OK);
    CHECK_EQUAL(readdir_all(&c, &d, false, 0, 1 << 20, &calls), 502);
    CHECK_EQUAL(calls, 1);
    CHECK_EQUAL(readdir_all(&c, &d, false, 0, 512, &calls), 502);
    CHECK(calls > 20);
    CHECK_EQUAL(readdir_all(&c, &d, true, UINT32_MAX, 1 << 20, &calls), 502);
    CHECK_EQUAL(calls, 1);
    CHECK_EQUAL(readdir_all(&c, &d, true, 1 << 20, 4096, &calls), 502);
    CHECK(calls >= 502 / (4096 / 160));
    CHECK_EQUAL(readdir_all(&c, &d, true, 512, 1 << 20, &calls), 502);
    CHECK(calls >= 502 / (512 / 32));
    for (int plus = 0; plus < 2; plus++) {
        client_begin_nfs(&c, plus ? NFS3_READDIRPLUS : NFS3_READDIR, &d);
        xdr_put_u64(&c.out, 0);
        xdr_put_u64(&c.out, 0);
        xdr_put_u32(&c.out, 120);
        xdr_put_u32(&c.out, 120);
        CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_TOOSMALL);
        client_begin_nfs(&c, plus ? NFS3_READDIRPLUS : NFS3_READDIR, &d);
        xdr_put_u64(&c.out, 3);
        xdr_put_u64(&c.out, 4711);
        xdr_put_u32(&c.out, 4000);
        xdr_put_u32(&c.out, 4000);
        CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_BAD_COOKIE);
    }
    client_begin_nfs(&c, NFS3_READDIR, &root);
    xdr_put_u64(&c.out, 0);
    xdr_put_u64(&c.out, 0);
    xdr_put_u32(&c.out, 10);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3ERR_TOOSMALL);
    client_close(&c);
}

static void directories_are_listed_within_the_limits_asked_for(void **state)
{
    run(readdir_body);
}

/* ---- The rest ---- */

static void info_body(void) may_yield
{
    struct client c;
    struct handle root;
    struct xdr x;
    struct attr a;
    open_a(&c, &root);
    client_begin_nfs(&c, NFS3_FSINFO, &root);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_post(&x, &a);
    CHECK(a.known);
    CHECK_EQUAL(xdr_u32(&x), MIB);
    CHECK_EQUAL(xdr_left(&x), 11 * 4);
    client_begin_nfs(&c, NFS3_FSSTAT, &root);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_post(&x, &a);
    CHECK_EQUAL(xdr_u64(&x), GIB);
    CHECK_EQUAL(xdr_left(&x), 5 * 8 + 4);
    fake_fs_knobs(fs)->case_insensitive = true;
    client_begin_nfs(&c, NFS3_PATHCONF, &root);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    get_post(&x, &a);
    CHECK_EQUAL(xdr_u32(&x), FS_LINK_MAX);
    CHECK_EQUAL(xdr_u32(&x), FS_NAME_MAX);
    CHECK(xdr_bool(&x) && xdr_bool(&x) && xdr_bool(&x) && xdr_bool(&x));
    CHECK_EQUAL(xdr_left(&x), 0);
    client_close(&c);
}

static void what_the_file_system_is_like_is_told(void **state)
{
    run_once(info_body);
}

static uint32_t access_of(struct client *c, const struct handle *h) may_yield
{
    struct xdr x;
    struct attr a;
    client_begin_nfs(c, NFS3_ACCESS, h);
    xdr_put_u32(&c->out, 0x3f);
    if (client_nfs(c, &x) != NFS3_OK)
        return UINT32_MAX;
    get_post(&x, &a);
    return xdr_u32(&x);
}

static void access_body(void) may_yield
{
    struct client c;
    struct handle root, f;
    uint8_t b[3];
    uint32_t count;
    bool eof;
    open_a(&c, &root);
    CHECK_EQUAL(access_of(&c, &root), 0x1f);
    CHECK_EQUAL(client_create(&c, &root, "f", &f), NFS3_OK); /* 0640 of root */
    CHECK_EQUAL(access_of(&c, &f), 0x0d);
    c.uid = c.gid = 1000;
    CHECK_EQUAL(access_of(&c, &root), 0x03);
    CHECK_EQUAL(access_of(&c, &f), 0);
    CHECK_EQUAL(client_read(&c, &f, 0, b, 3, &count, &eof), NFS3ERR_ACCES);
    c.gid = 77;
    c.group_count = 2;
    c.groups[0] = 5;
    c.groups[1] = 0;
    CHECK_EQUAL(access_of(&c, &f), 0x01);
    CHECK_EQUAL(client_create(&c, &root, "g", &f), NFS3ERR_ACCES);
    client_close(&c);
}

static void access_is_told_by_owner_group_and_others(void **state)
{
    run(access_body);
}

static void owner_body(void) may_yield
{
    struct client c;
    struct handle root, d, f;
    struct xdr x;
    uint8_t b[3];
    uint32_t count;
    bool eof;
    fake_fs_add(fs, FS_INO_ROOT, "d", S_IFDIR | 0777, NULL, 0);
    open_a(&c, &root);
    CHECK_EQUAL(client_lookup(&c, &root, "d", &d), NFS3_OK);
    c.uid = c.gid = 1000;
    CHECK_EQUAL(client_create(&c, &d, "f", &f), NFS3_OK);
    client_begin_nfs(&c, NFS3_SETATTR, &f);
    put_sattr(&c, 0);
    xdr_put_bool(&c.out, false);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    /* It is open at the client: what was checked then holds. */
    CHECK_EQUAL(client_write(&c, &f, 0, "abc", 3, NFS3_FILE_SYNC, &count), NFS3_OK);
    CHECK_EQUAL(client_read(&c, &f, 0, b, 3, &count, &eof), NFS3_OK);
    client_begin_nfs(&c, NFS3_SETATTR, &f);
    for (int i = 0; i < 3; i++)
        xdr_put_bool(&c.out, false);
    xdr_put_bool(&c.out, true);
    xdr_put_u64(&c.out, 1);
    for (int i = 0; i < 3; i++)
        xdr_put_u32(&c.out, 0);
    CHECK_EQUAL(client_nfs(&c, &x), NFS3_OK);
    c.uid = 1001;
    CHECK_EQUAL(client_write(&c, &f, 0, "abc", 3, NFS3_FILE_SYNC, &count), NFS3ERR_ACCES);
    CHECK_EQUAL(client_read(&c, &f, 0, b, 3, &count, &eof), NFS3ERR_ACCES);
    client_close(&c);
}

static void an_owner_reads_and_writes_what_he_has_open_whatever_its_mode(void **state)
{
    run(owner_body);
}

static void errors_body(void) may_yield
{
    static const struct {
        int err;
        uint32_t status;
    } table[] = {{ERR_VOLUME_FULL, NFS3ERR_NOSPC},        {ERR_FS_QUOTA, NFS3ERR_DQUOT},
                 {ERR_NO_GOOD_COPY, NFS3ERR_IO},          {ERR_VOLUME_READ_ONLY, NFS3ERR_ROFS},
                 {ERR_NO_MEMORY, NFS3ERR_JUKEBOX},        {ERR_FS_NOT_SYNC, NFS3ERR_NOT_SYNC},
                 {ERR_FS_BUSY, NFS3ERR_JUKEBOX},          {ERR_FS_TOO_MANY_LINKS, NFS3ERR_MLINK},
                 {ERR_FS_NOT_SUPPORTED, NFS3ERR_NOTSUPP}, {ERR_FS_LOOP, NFS3ERR_INVAL}};
    struct client c;
    struct handle root, h;
    open_a(&c, &root);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        fake_fs_knobs(fs)->error = table[i].err;
        CHECK_EQUAL(client_create(&c, &root, "f", &h), table[i].status);
    }
    client_close(&c);
}

static void errors_have_the_number_of_their_class(void **state)
{
    run_once(errors_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attributes_are_set_and_guarded),
        cmocka_unit_test(all_kinds_of_objects_are_made),
        cmocka_unit_test(exclusive_create_is_repeated_with_its_verifier_only),
        cmocka_unit_test(names_are_linked_renamed_and_removed),
        cmocka_unit_test(data_is_written_and_read_at_any_offset),
        cmocka_unit_test(reads_and_writes_at_the_edges_are_answered_exactly),
        cmocka_unit_test(directories_are_listed_within_the_limits_asked_for),
        cmocka_unit_test(what_the_file_system_is_like_is_told),
        cmocka_unit_test(access_is_told_by_owner_group_and_others),
        cmocka_unit_test(an_owner_reads_and_writes_what_he_has_open_whatever_its_mode),
        cmocka_unit_test(errors_have_the_number_of_their_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
