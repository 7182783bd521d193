/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/fuse/fuse_table.h"
#include "protocols/fuse/fuse_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint8_t bytes[WIRE_SMALL_MAX];

static struct wire_text text(const char *s)
{
    return (struct wire_text){s, (uint32_t)strlen(s)};
}

static uint32_t encode(const struct fuse_request *q)
{
    uint32_t size = fuse_request_size(q);
    assert_true(size <= sizeof(bytes));
    assert_int_equal(fuse_request_encode(q, bytes), size);
    return size;
}

static bool decode(uint32_t size, struct fuse_request *ret)
{
    struct wire_request h;
    memcpy(&h, bytes, sizeof(h));
    assert_int_equal(fuse_request_need(&h), size);
    return fuse_request_decode(bytes, size, ret);
}

/* One of each operation, as a mount would send it. */
static struct fuse_request sample(uint16_t op)
{
    struct fuse_request q = {.op = op, .unique = 77, .ino = 1234567890123, .uid = 1000, .gid = 100};
    switch (op) {
    case WIRE_LOOKUP:
    case WIRE_UNLINK:
    case WIRE_RMDIR:
    case WIRE_XATTR_REMOVE:
        q.name = text("a name");
        break;
    case WIRE_SETATTR:
        q.setattr.valid = WIRE_SET_SIZE | WIRE_SET_MTIME;
        q.setattr.size = 1ull << 40;
        q.setattr.mtime_ns = -5;
        break;
    case WIRE_MAKE:
        q.make.mode = 0120777;
        q.make.umask = 022;
        q.name = text("link");
        q.second = text("../target");
        break;
    case WIRE_RENAME:
        q.rename.to_dir = 99;
        q.rename.flags = WIRE_RENAME_NOREPLACE;
        q.name = text("old");
        q.second = text("new name");
        break;
    case WIRE_LINK:
        q.link.dir = 5;
        q.name = text("hard");
        break;
    case WIRE_OPEN:
    case WIRE_RELEASE:
    case WIRE_REOPEN:
        q.open.flags = WIRE_OPEN_READ | WIRE_OPEN_WRITE;
        q.open.count = op == WIRE_REOPEN ? 7 : 1;
        break;
    case WIRE_READ:
    case WIRE_WRITE:
        q.range.offset = 4097;
        q.range.len = 1 << 20;
        break;
    case WIRE_READDIR:
        q.readdir.cookie = UINT64_MAX;
        q.readdir.len = 4096;
        q.readdir.attributes = true;
        break;
    case WIRE_XATTR_GET:
        q.name = text("user.x");
        q.xattr.max = 100;
        break;
    case WIRE_XATTR_SET:
        q.name = text("user.x");
        q.second = text("value");
        q.xattr.how = WIRE_XATTR_REPLACE;
        break;
    case WIRE_LOCK_TEST:
    case WIRE_LOCK_SET:
        q.lock.start = 10;
        q.lock.len = 20;
        q.lock.owner = 0xabcdef;
        q.lock.pid = 42;
        q.lock.type = WIRE_LOCK_WRITE;
        q.lock.wait = true;
        break;
    case WIRE_LOCK_FLUSH:
        q.lock_flush.owner = 3;
        break;
    case WIRE_ALLOCATE:
        q.allocate.offset = 1;
        q.allocate.len = 2;
        q.allocate.mode = 3;
        break;
    case WIRE_SEEK:
        q.seek.offset = 9;
        q.seek.hole = true;
        break;
    case WIRE_COPY:
        q.copy.offset = 1;
        q.copy.to = 2;
        q.copy.to_offset = 3;
        q.copy.len = 4;
        break;
    case WIRE_ACCESS:
        q.access.mask = 5;
        break;
    case WIRE_INTERRUPT:
        q.interrupt.unique = 76;
        break;
    default:
        break;
    }
    return q;
}

static void assert_texts_equal(struct wire_text a, struct wire_text b)
{
    assert_int_equal(a.len, b.len);
    if (a.len > 0)
        assert_memory_equal(a.bytes, b.bytes, a.len);
}

static void every_request_is_decoded_as_it_was_encoded(void **state)
{
    (void)state;
    for (uint16_t op = 1; op < WIRE_OP_END; op++) {
        struct fuse_request q = sample(op), r;
        uint32_t size = encode(&q);
        assert_true(decode(size, &r));
        assert_texts_equal(q.name, r.name);
        assert_texts_equal(q.second, r.second);
        uint32_t data = op == WIRE_WRITE ? q.range.len : 0;
        assert_int_equal(r.len, size + data);
        q.name = q.second = r.name = r.second = (struct wire_text){0};
        q.len = r.len;
        if (op == WIRE_XATTR_SET)
            q.xattr.max = r.xattr.max;
        assert_int_equal(q.op, r.op);
        assert_int_equal(q.unique, r.unique);
        assert_int_equal(q.ino, r.ino);
        assert_int_equal(q.uid, r.uid);
        assert_int_equal(q.gid, r.gid);
        assert_false(r.again);
        assert_memory_equal(&q.setattr, &r.setattr, sizeof(q.setattr));
    }
}

static void a_request_cut_short_or_too_long_is_refused(void **state)
{
    (void)state;
    for (uint16_t op = 1; op < WIRE_OP_END; op++) {
        struct fuse_request q = sample(op), r;
        uint32_t size = encode(&q);
        struct wire_request h;
        bool open_ended = op == WIRE_LOOKUP || op == WIRE_UNLINK || op == WIRE_RMDIR || op == WIRE_LINK ||
                          op == WIRE_XATTR_REMOVE;
        for (int change = -1; change <= 1; change += 2) {
            memcpy(&h, bytes, sizeof(h));
            uint32_t len = le32_get(h.len) + (uint32_t)change;
            struct wire_request changed = h;
            changed.len = le32_make(len);
            memcpy(bytes, &changed, sizeof(changed));
            uint32_t need = fuse_request_need(&changed);
            if (need != 0 && !open_ended)
                assert_false(fuse_request_decode(bytes, need, &r));
            memcpy(bytes, &h, sizeof(h));
        }
        (void)size;
    }
}

static void lengths_that_no_mount_sends_lose_the_connection(void **state)
{
    (void)state;
    struct wire_request h = {.op = le16_make(WIRE_LOOKUP), .len = le32_make(sizeof(h) - 1)};
    assert_int_equal(fuse_request_need(&h), 0);
    h.len = le32_make(WIRE_SMALL_MAX + 1);
    assert_int_equal(fuse_request_need(&h), 0);
    h.len = le32_make(UINT32_MAX);
    assert_int_equal(fuse_request_need(&h), 0);
    h.op = le16_make(WIRE_WRITE);
    assert_int_equal(fuse_request_need(&h), 0);
    h.len = le32_make((uint32_t)sizeof(h) + 16 + WIRE_DATA_MAX);
    assert_int_equal(fuse_request_need(&h), sizeof(h) + 16);
    h.len = le32_make((uint32_t)sizeof(h) + 16 + WIRE_DATA_MAX + 1);
    assert_int_equal(fuse_request_need(&h), 0);
}

static void arguments_out_of_range_are_refused(void **state)
{
    (void)state;
    struct fuse_request q, r;
    q = sample(WIRE_READ);
    q.range.len = WIRE_DATA_MAX + 1;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_READ);
    q.range.offset = (uint64_t)INT64_MAX;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_OPEN);
    q.open.flags = 0;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_REOPEN);
    q.open.flags = WIRE_OPEN_READ | WIRE_OPEN_TRUNCATE;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_ALLOCATE);
    q.allocate.offset = INT64_MAX;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_LOCK_SET);
    q.lock.type = 3;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_LOCK_SET);
    q.lock.start = INT64_MAX;
    q.lock.len = UINT64_MAX;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_RENAME);
    q.rename.flags = 3;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_SETATTR);
    q.setattr.valid = 1u << 31;
    assert_false(decode(encode(&q), &r));
    q = sample(WIRE_XATTR_GET);
    q.name = (struct wire_text){"us\0er", 5};
    assert_false(decode(encode(&q), &r));
    assert_int_equal(r.unique, 77); /* so that it can be answered */
}

static void a_name_has_1_to_255_bytes(void **state)
{
    (void)state;
    char name[WIRE_NAME_MAX + 2];
    struct fuse_request q = sample(WIRE_LOOKUP), r;
    memset(name, 'x', sizeof(name));
    q.name = (struct wire_text){name, 0};
    assert_false(decode(encode(&q), &r));
    q.name.len = WIRE_NAME_MAX;
    assert_true(decode(encode(&q), &r));
    q.name.len = WIRE_NAME_MAX + 1;
    assert_false(decode(encode(&q), &r));
}

static void a_hello_is_checked(void **state)
{
    (void)state;
    uint8_t b[sizeof(struct wire_hello) + 8];
    struct wire_hello h = {.version = le32_make(WIRE_VERSION),
                           .name_len = le32_make(4),
                           .label_len = le32_make(4),
                           .session = {1}};
    struct fuse_hello r;
    memcpy(h.magic, WIRE_MAGIC, WIRE_MAGIC_LEN);
    memcpy(b, &h, sizeof(h));
    memcpy(b + sizeof(h), "homefuse", 8);
    assert_int_equal(fuse_hello_len(&h), sizeof(b));
    assert_true(fuse_hello_decode(b, sizeof(b), &r));
    assert_texts_equal(r.name, text("home"));
    assert_texts_equal(r.label, text("fuse"));
    assert_false(fuse_hello_decode(b, sizeof(b) - 1, &r));
    b[offsetof(struct wire_hello, session)] = 0; /* no session */
    assert_false(fuse_hello_decode(b, sizeof(b), &r));
    h.name_len = le32_make(0);
    assert_int_equal(fuse_hello_len(&h), 0);
    h.name_len = le32_make(WIRE_NAME_MAX + 1);
    assert_int_equal(fuse_hello_len(&h), 0);
    h.name_len = le32_make(4);
    h.magic[0] = 'B';
    assert_int_equal(fuse_hello_len(&h), 0);
}

static void a_table_finds_what_it_was_given_until_nothing_counts(void **state)
{
    (void)state;
    struct fuse_table t = {0};
    assert_null(fuse_table_find(&t, 1));
    for (uint64_t ino = 1; ino <= 5000; ino++)
        fuse_table_get(&t, ino * 4096)->lookups = ino;
    assert_int_equal(t.count, 5000);
    uint32_t seen = 0;
    FUSE_TABLE_FOREACH(&t, n)
    seen++;
    assert_int_equal(seen, 5000);
    struct fuse_node *n = fuse_table_find(&t, 77 * 4096);
    assert_int_equal(n->lookups, 77);
    n->opens[WIRE_OPEN_READ] = 1;
    n->lookups = 0;
    fuse_table_drop(&t, n);
    assert_ptr_equal(fuse_table_find(&t, 77 * 4096), n);
    n->opens[WIRE_OPEN_READ] = 0;
    fuse_table_drop(&t, n);
    assert_null(fuse_table_find(&t, 77 * 4096));
    assert_int_equal(t.count, 4999);
    fuse_table_done(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_is_decoded_as_it_was_encoded),
        cmocka_unit_test(a_request_cut_short_or_too_long_is_refused),
        cmocka_unit_test(lengths_that_no_mount_sends_lose_the_connection),
        cmocka_unit_test(arguments_out_of_range_are_refused),
        cmocka_unit_test(a_name_has_1_to_255_bytes),
        cmocka_unit_test(a_hello_is_checked),
        cmocka_unit_test(a_table_finds_what_it_was_given_until_nothing_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
