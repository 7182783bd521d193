/* SPDX-License-Identifier: Apache-2.0 */
/* XDR, heads of calls and replies, record marking and file handles: functions over bytes. */
#include "protocols/nfs/nfs_handle.h"
#include "protocols/nfs/rpc_message.h"
#include "protocols/nfs/rpc_record.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- XDR ---- */

static void numbers_and_opaque_come_back_as_they_were_written(void **state)
{
    uint8_t buf[64];
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    memset(buf, 0xee, sizeof(buf));
    xdr_put_u32(&o, 0x01020304);
    xdr_put_u64(&o, UINT64_C(0x0506070809));
    xdr_put_bool(&o, true);
    xdr_put_opaque(&o, "abcde", 5);
    xdr_put_opaque(&o, "", 0);
    assert_false(o.full);
    assert_int_equal(o.len, 4 + 8 + 4 + 4 + 8 + 4);
    static const uint8_t padded[] = {0, 0, 0, 5, 'a', 'b', 'c', 'd', 'e', 0, 0, 0};
    assert_memory_equal(buf + 16, padded, sizeof(padded));
    struct xdr x = xdr_over(buf, o.len);
    uint32_t len;
    assert_int_equal(xdr_u32(&x), 0x01020304);
    assert_int_equal(xdr_u64(&x), UINT64_C(0x0506070809));
    assert_true(xdr_bool(&x));
    const uint8_t *p = xdr_opaque(&x, 5, &len);
    assert_int_equal(len, 5);
    assert_ptr_equal(p, buf + 20); /* not a copy */
    xdr_opaque(&x, 0, &len);
    assert_int_equal(len, 0);
    assert_false(x.bad);
    assert_int_equal(xdr_left(&x), 0);
}

static void a_short_message_reads_as_zeroes_and_is_bad(void **state)
{
    static const uint8_t bytes[] = {0, 0, 0, 9, 'a', 'b', 'c', 'd'};
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        struct xdr x = xdr_over(bytes, len);
        uint32_t n = 77;
        assert_null(xdr_opaque(&x, 100, &n));
        assert_int_equal(n, 0);
        assert_true(x.bad);
        assert_int_equal(xdr_u32(&x), 0);
        assert_int_equal(xdr_u64(&x), 0);
    }
}

static void limits_and_bad_booleans_are_noticed(void **state)
{
    static const uint8_t bytes[] = {0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff};
    uint32_t n;
    struct xdr x = xdr_over(bytes, sizeof(bytes));
    assert_null(xdr_opaque(&x, 3, &n));
    assert_true(x.bad);
    x = xdr_over(bytes + 4, 4);
    assert_null(xdr_opaque(&x, UINT32_MAX, &n)); /* 4 GiB and its padding do not wrap */
    assert_true(x.bad);
    x = xdr_over(bytes, 4);
    assert_false(xdr_bool(&x));
    assert_true(x.bad);
    x = xdr_over(bytes, 4);
    assert_int_equal(xdr_enum(&x, 4), 4);
    assert_false(x.bad);
    x = xdr_over(bytes, 4);
    assert_int_equal(xdr_enum(&x, 3), 0);
    assert_true(x.bad);
}

static void what_does_not_fit_is_left_out(void **state)
{
    uint8_t buf[8];
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    xdr_put_u32(&o, 1);
    xdr_put_u64(&o, 2);
    assert_true(o.full);
    assert_int_equal(o.len, 4);
    xdr_put_u32(&o, 3); /* sticky, though it would fit */
    assert_int_equal(o.len, 4);
}

/* ---- Calls ---- */

struct call {
    uint8_t bytes[1024];
    struct xdr_out o;
};

static void call_begin(struct call *c, uint32_t rpc_version)
{
    c->o = xdr_into(c->bytes, sizeof(c->bytes));
    xdr_put_u32(&c->o, 0xabcd);
    xdr_put_u32(&c->o, RPC_CALL);
    xdr_put_u32(&c->o, rpc_version);
    xdr_put_u32(&c->o, RPC_PROGRAM_NFS);
    xdr_put_u32(&c->o, 3);
    xdr_put_u32(&c->o, 7);
}

static void call_sys(struct call *c, uint32_t groups)
{
    xdr_put_u32(&c->o, RPC_AUTH_SYS);
    uint32_t at = c->o.len;
    xdr_put_u32(&c->o, 0);
    xdr_put_u32(&c->o, 99);
    xdr_put_opaque(&c->o, "client", 6);
    xdr_put_u32(&c->o, 1000);
    xdr_put_u32(&c->o, 1001);
    xdr_put_u32(&c->o, groups);
    for (uint32_t i = 0; i < groups; i++)
        xdr_put_u32(&c->o, 2000 + i);
    xdr_set_u32(&c->o, at, c->o.len - at - 4);
}

static void call_verifier(struct call *c)
{
    xdr_put_u32(&c->o, RPC_AUTH_NONE);
    xdr_put_u32(&c->o, 0);
}

static enum rpc_verdict decode(const struct call *c, uint32_t len, struct rpc_header *h,
                               enum rpc_auth_error *auth, struct xdr *x)
{
    *x = xdr_over(c->bytes, len);
    *auth = RPC_AUTH_OK;
    return rpc_header_decode(x, h, auth);
}

static void a_call_with_sixteen_groups_is_understood(void **state)
{
    struct call c;
    struct rpc_header h;
    enum rpc_auth_error auth;
    struct xdr x;
    call_begin(&c, 2);
    call_sys(&c, 16);
    call_verifier(&c);
    xdr_put_u32(&c.o, 4711);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_RUN);
    assert_int_equal(h.xid, 0xabcd);
    assert_int_equal(h.program, RPC_PROGRAM_NFS);
    assert_int_equal(h.version, 3);
    assert_int_equal(h.procedure, 7);
    assert_int_equal(h.credential.flavor, RPC_AUTH_SYS);
    assert_int_equal(h.credential.uid, 1000);
    assert_int_equal(h.credential.gid, 1001);
    assert_int_equal(h.credential.group_count, 16);
    assert_int_equal(h.credential.groups[15], 2015);
    assert_int_equal(xdr_u32(&x), 4711);
}

static void every_cut_of_a_call_is_answered_or_ignored(void **state)
{
    struct call c;
    struct rpc_header h;
    enum rpc_auth_error auth;
    struct xdr x;
    call_begin(&c, 2);
    call_sys(&c, 3);
    call_verifier(&c);
    for (uint32_t len = 0; len < c.o.len; len++) {
        enum rpc_verdict v = decode(&c, len, &h, &auth, &x);
        assert_int_equal(v, len < 8 ? RPC_IGNORE : RPC_BAD_ARGUMENTS);
        assert_true(len < 8 || h.xid == 0xabcd);
    }
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_RUN);
}

static void wrong_versions_and_credentials_are_denied(void **state)
{
    struct call c;
    struct rpc_header h;
    enum rpc_auth_error auth;
    struct xdr x;
    call_begin(&c, 3);
    call_verifier(&c);
    call_verifier(&c);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_BAD_VERSION);
    call_begin(&c, 2);
    call_sys(&c, 17);
    call_verifier(&c);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_BAD_AUTH);
    assert_int_equal(auth, RPC_AUTH_BADCRED);
    call_begin(&c, 2);
    xdr_put_u32(&c.o, RPC_AUTH_SYS);
    xdr_put_opaque(&c.o, "too short", 9);
    call_verifier(&c);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_BAD_AUTH);
    call_begin(&c, 2);
    xdr_put_u32(&c.o, RPC_AUTH_NONE);
    xdr_put_u32(&c.o, 401);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_BAD_AUTH);
    assert_int_equal(auth, RPC_AUTH_BADCRED);
    call_begin(&c, 2);
    call_verifier(&c);
    xdr_put_u32(&c.o, RPC_AUTH_NONE);
    xdr_put_u32(&c.o, UINT32_MAX);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_BAD_AUTH);
    assert_int_equal(auth, RPC_AUTH_BADVERF);
    call_begin(&c, 2);
    xdr_put_u32(&c.o, 6); /* RPCSEC_GSS: what is in it is not looked into */
    xdr_put_opaque(&c.o, "gss", 3);
    call_verifier(&c);
    assert_int_equal(decode(&c, c.o.len, &h, &auth, &x), RPC_RUN);
    assert_int_equal(h.credential.flavor, 6);
}

static void replies_are_ignored(void **state)
{
    uint8_t buf[64];
    struct rpc_header h;
    enum rpc_auth_error auth;
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    rpc_reply_accept(&o, 1, RPC_SUCCESS);
    assert_int_equal(o.len, RPC_REPLY_HEAD);
    struct xdr x = xdr_over(buf, o.len);
    assert_int_equal(rpc_header_decode(&x, &h, &auth), RPC_IGNORE);
}

static void our_own_calls_understand_each_reply(void **state)
{
    uint8_t buf[64];
    for (uint32_t status = RPC_SUCCESS; status <= RPC_SYSTEM_ERROR; status++) {
        struct xdr_out o = xdr_into(buf, sizeof(buf));
        rpc_reply_accept(&o, 5, status);
        struct xdr x = xdr_over(buf, o.len);
        int want = status == 0 ? 0 : status <= RPC_PROCEDURE_UNAVAILABLE ? ERR_UNSUPPORTED : ERR_PROTOCOL;
        assert_int_equal(rpc_reply_decode(&x, 5), want);
        x = xdr_over(buf, o.len);
        assert_int_equal(rpc_reply_decode(&x, 6), ERR_PROTOCOL);
        x = xdr_over(buf, o.len - 1);
        assert_int_equal(rpc_reply_decode(&x, 5), ERR_PROTOCOL);
    }
    struct xdr_out o = xdr_into(buf, sizeof(buf));
    rpc_reply_auth_error(&o, 5, RPC_AUTH_TOOWEAK);
    struct xdr x = xdr_over(buf, o.len);
    assert_int_equal(rpc_reply_decode(&x, 5), ERR_DENIED);
    o = xdr_into(buf, sizeof(buf));
    rpc_call_begin(&o, 9, 100000, 2, 3);
    x = xdr_over(buf, o.len);
    struct rpc_header h;
    enum rpc_auth_error auth;
    assert_int_equal(rpc_header_decode(&x, &h, &auth), RPC_RUN);
    assert_int_equal(h.procedure, 3);
}

/* ---- Records ---- */

/* Feeds a stream in pieces of `piece` bytes; the records' bytes are gathered in out, each ended by '|'. */
static enum rpc_record_verdict feed(const uint8_t *data, size_t len, size_t piece, char *out)
{
    struct rpc_record r;
    size_t at = 0, have = 0, n = 0;
    rpc_record_init(&r);
    for (;;) {
        size_t skip, bytes;
        enum rpc_record_verdict v = rpc_record_step(&r, data + at, have - at, &skip, &bytes);
        assert_true(skip <= have - at);
        at += skip;
        assert_true(bytes <= have - at);
        if (v == RPC_RECORD_BYTES) {
            assert_true(bytes > 0);
            memcpy(out + n, data + at, bytes);
            n += bytes;
            at += bytes;
            rpc_record_take(&r, bytes);
        } else if (v == RPC_RECORD_END) {
            out[n++] = '|';
        } else if (v == RPC_RECORD_BAD || have == len) {
            out[n] = '\0';
            return v;
        } else {
            assert_int_equal(at, have);
            have = MIN(len, have + piece);
        }
    }
}

static void fragments_of_any_size_make_records_however_they_arrive(void **state)
{
    static const uint8_t stream[] = "\x80\0\0\3abc"
                                    "\0\0\0\2de\0\0\0\1f\0\0\0\0\x80\0\0\1g"
                                    "\x80\0\0\0"
                                    "\0\0\0\0\x80\0\0\2hi"
                                    "\0\0\0\1j\x80\0\0\0";
    char out[64];
    for (size_t piece = 1; piece < sizeof(stream); piece++) {
        assert_int_equal(feed(stream, sizeof(stream) - 1, piece, out), RPC_RECORD_MORE);
        assert_string_equal(out, "abc|defg||hi|j|");
    }
}

static void too_long_records_are_bad_at_their_mark(void **state)
{
    char out[64];
    assert_int_equal(feed((const uint8_t *)"\xff\xff\xff\xff", 4, 4, out), RPC_RECORD_BAD);
    assert_int_equal(feed((const uint8_t *)"\x7f\xff\xff\xff", 4, 4, out), RPC_RECORD_BAD);
    assert_int_equal(feed((const uint8_t *)"\0\x10\x40\1", 4, 4, out), RPC_RECORD_BAD);
    assert_int_equal(feed((const uint8_t *)"\0\x10\x40\0", 4, 4, out), RPC_RECORD_MORE);
    /* Their sum counts. */
    assert_int_equal(feed((const uint8_t *)"\0\0\0\1x\0\x10\x40\0", 9, 9, out), RPC_RECORD_BAD);
}

/* ---- Handles ---- */

static void siphash_gives_the_published_numbers(void **state)
{
    /* Test vectors of the paper's authors: key 00..0f, message 00..(len-1). */
    static const struct {
        size_t len;
        uint64_t hash;
    } vectors[] = {{0, UINT64_C(0x726fdb47dd0e0e31)},
                   {1, UINT64_C(0x74f839c593dc67fd)},
                   {8, UINT64_C(0x93f5f5799a932462)},
                   {15, UINT64_C(0xa129ca6149be45e5)}};
    uint8_t message[64];
    for (size_t i = 0; i < sizeof(message); i++)
        message[i] = (uint8_t)i;
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        uint64_t h =
            siphash24(UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908), message, vectors[i].len);
        assert_int_equal(h, vectors[i].hash);
    }
}

static void a_handle_with_any_bit_changed_is_refused(void **state)
{
    uint8_t secret[32] = {1, 2, 3}, other[32] = {1, 2, 4};
    struct nfs_handle_key key, foreign;
    nfs_handle_key_init(&key, secret);
    nfs_handle_key_init(&foreign, other);
    struct nfs_handle_fields f = {.export_tag = 7, .volume_tag = UINT64_MAX, .ino = 1 << 20, .generation = 5},
                             g;
    struct nfs_handle h;
    nfs_handle_make(&key, &f, &h);
    assert_true(nfs_handle_parse(&h, sizeof(h), &g));
    assert_int_equal(g.export_tag, f.export_tag);
    assert_int_equal(g.volume_tag, f.volume_tag);
    assert_int_equal(g.ino, f.ino);
    assert_int_equal(g.generation, f.generation);
    assert_true(nfs_handle_verify(&key, &h));
    assert_false(nfs_handle_verify(&foreign, &h));
    for (size_t bit = 0; bit < 8 * sizeof(h); bit++) {
        uint8_t forged[sizeof(h)];
        memcpy(forged, &h, sizeof(h));
        forged[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(nfs_handle_parse(forged, sizeof(forged), &g) && nfs_handle_verify(&key, forged));
    }
    for (uint32_t len = 0; len < NFS3_HANDLE_MAX; len++)
        assert_true(len == sizeof(h) || !nfs_handle_parse(&h, len, &g));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_opaque_come_back_as_they_were_written),
        cmocka_unit_test(a_short_message_reads_as_zeroes_and_is_bad),
        cmocka_unit_test(limits_and_bad_booleans_are_noticed),
        cmocka_unit_test(what_does_not_fit_is_left_out),
        cmocka_unit_test(a_call_with_sixteen_groups_is_understood),
        cmocka_unit_test(every_cut_of_a_call_is_answered_or_ignored),
        cmocka_unit_test(wrong_versions_and_credentials_are_denied),
        cmocka_unit_test(replies_are_ignored),
        cmocka_unit_test(our_own_calls_understand_each_reply),
        cmocka_unit_test(fragments_of_any_size_make_records_however_they_arrive),
        cmocka_unit_test(too_long_records_are_bad_at_their_mark),
        cmocka_unit_test(siphash_gives_the_published_numbers),
        cmocka_unit_test(a_handle_with_any_bit_changed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
