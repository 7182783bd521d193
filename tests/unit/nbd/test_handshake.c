/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake without I/O: dialogues as bytes. */
#include "protocols/nbd/nbd_handshake.h"
#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct nbd_export_info exports[] = {
    {.name = "alpha", .description = "the first", .size_bytes = 1 << 20},
    {.name = "beta", .size_bytes = (UINT64_C(1) << 63) - 4096, .read_only = true},
};
static int lookup_error;

static int lookup(void *ctx, const char *name, size_t len, struct nbd_export_info *ret)
{
    (void)ctx;
    if (lookup_error != 0)
        return lookup_error;
    for (size_t i = 0; i < ARRAY_SIZE(exports); i++) {
        if (strlen(exports[i].name) == len && memcmp(exports[i].name, name, len) == 0) {
            *ret = exports[i];
            return 0;
        }
    }
    return ERR_NOT_FOUND;
}

static int list(void *ctx, uint32_t index, struct nbd_export_info *ret)
{
    (void)ctx;
    if (index >= ARRAY_SIZE(exports))
        return ERR_NOT_FOUND;
    *ret = exports[index];
    return 0;
}

static const struct nbd_handshake_env env = {.lookup = lookup, .list = list};

/* ---- A client's bytes ---- */

static uint8_t sent[64 * 1024];
static size_t sent_len;

static void put(const void *data, size_t len)
{
    assert(sent_len + len <= sizeof(sent));
    memcpy(sent + sent_len, data, len);
    sent_len += len;
}
static void put32(uint32_t v)
{
    struct be32 b = be32_make(v);
    put(&b, sizeof(b));
}
static void put16(uint16_t v)
{
    struct be16 b = be16_make(v);
    put(&b, sizeof(b));
}
static void put_string(const char *s)
{
    put32((uint32_t)strlen(s));
    put(s, strlen(s));
}
static void put_option(uint32_t option, uint32_t len)
{
    struct nbd_option o = {be64_make(NBD_MAGIC_OPTION), be32_make(option), be32_make(len)};
    put(&o, sizeof(o));
}
static void put_go(uint32_t option, const char *name)
{
    put_option(option, (uint32_t)(4 + strlen(name) + 2 + 6));
    put_string(name);
    put16(3);
    put16(NBD_INFO_NAME);
    put16(NBD_INFO_DESCRIPTION);
    put16(NBD_INFO_BLOCK_SIZE);
}
/* query NULL: none. */
static void put_meta(uint32_t option, const char *name, const char *query)
{
    put_option(option, (uint32_t)(4 + strlen(name) + 4 + (query != NULL ? 4 + strlen(query) : 0)));
    put_string(name);
    put32(query != NULL);
    if (query != NULL)
        put_string(query);
}
static void begin(uint32_t flags)
{
    sent_len = 0;
    put32(flags);
}
#define FIXED (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)

/* ---- Driving it ---- */

static struct nbd_handshake hs;
static uint8_t got[64 * 1024]; /* what the server sent, greeting excluded */
static size_t got_len, got_at;
static size_t consumed_total;

/* Feeds `sent`, at most `step` new bytes at a time; stops when it runs out or the handshake ends. */
static enum nbd_handshake_verdict drive_from(enum nbd_tls_mode tls, size_t step, size_t limit)
{
    nbd_handshake_init(&hs, &env, tls);
    assert(hs.out.len == sizeof(struct nbd_hello));
    hs.out.len = 0;
    got_len = got_at = consumed_total = 0;
    size_t have = 0;
    enum nbd_handshake_verdict v = NBD_HANDSHAKE_AGAIN;
    while (v == NBD_HANDSHAKE_AGAIN || v == NBD_HANDSHAKE_STARTTLS || v == NBD_HANDSHAKE_MORE) {
        size_t consumed;
        v = nbd_handshake_step(&hs, sent + consumed_total, have - consumed_total, &consumed);
        consumed_total += consumed;
        assert(got_len + hs.out.len <= sizeof(got));
        memcpy(got + got_len, hs.out.data, hs.out.len);
        got_len += hs.out.len;
        hs.out.len = 0;
        if (v == NBD_HANDSHAKE_STARTTLS)
            nbd_handshake_tls_started(&hs);
        if (v == NBD_HANDSHAKE_MORE) {
            assert(hs.need > have - consumed_total);
            if (have == limit)
                break;
            have = MIN(have + step, limit);
        }
    }
    nbd_handshake_done(&hs);
    return v;
}

static enum nbd_handshake_verdict drive(void)
{
    return drive_from(NBD_TLS_NONE, SIZE_MAX / 2, sent_len);
}

static struct nbd_option_reply reply; /* the last that was taken */
static const uint8_t *reply_data;

static uint32_t take_reply(uint32_t option)
{
    if (got_len - got_at < sizeof(reply))
        return 0;
    memcpy(&reply, got + got_at, sizeof(reply));
    assert_true(be64_get(reply.magic) == NBD_MAGIC_OPT_REPLY);
    assert_int_equal(be32_get(reply.option), option);
    reply_data = got + got_at + sizeof(reply);
    got_at += sizeof(reply) + be32_get(reply.len);
    assert_true(got_at <= got_len);
    return be32_get(reply.type);
}

/* ---- Tests ---- */

static void go_tells_size_flags_and_what_was_asked(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_go(NBD_OPT_GO, "alpha");
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_int_equal(take_reply(NBD_OPT_STRUCTURED_REPLY), NBD_REP_ACK);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_INFO);
    struct nbd_info_export e;
    assert_int_equal(be32_get(reply.len), sizeof(e));
    memcpy(&e, reply_data, sizeof(e));
    assert_int_equal(be16_get(e.type), NBD_INFO_EXPORT);
    assert_int_equal(be64_get(e.size), 1 << 20);
    assert_int_equal(be16_get(e.flags), NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA |
                                            NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES |
                                            NBD_FLAG_SEND_DF | NBD_FLAG_CAN_MULTI_CONN | NBD_FLAG_SEND_CACHE |
                                            NBD_FLAG_SEND_FAST_ZERO);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_INFO);
    assert_memory_equal(reply_data, "\0\1alpha", 7);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_INFO);
    assert_memory_equal(reply_data, "\0\2the first", 11);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_INFO);
    assert_memory_equal(reply_data, "\0\3\0\0\0\1\0\0\x10\0\2\0\0\0", 14);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_ACK);
    assert_int_equal(got_at, got_len);
    assert_string_equal(hs.chosen.name, "alpha");
    assert_true(hs.structured);
}

static void info_leaves_the_handshake_open(void **state)
{
    begin(FIXED);
    put_go(NBD_OPT_INFO, "beta");
    put_go(NBD_OPT_INFO, "none");
    assert_int_equal(drive(), NBD_HANDSHAKE_MORE);
    assert_int_equal(take_reply(NBD_OPT_INFO), NBD_REP_INFO);
    struct nbd_info_export e;
    memcpy(&e, reply_data, sizeof(e));
    assert_true(be64_get(e.size) == (UINT64_C(1) << 63) - 4096);
    assert_true(be16_get(e.flags) & NBD_FLAG_READ_ONLY);
    assert_false(be16_get(e.flags) & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_DF));
    assert_int_equal(take_reply(NBD_OPT_INFO), NBD_REP_INFO); /* its name; it has no description */
    assert_int_equal(take_reply(NBD_OPT_INFO), NBD_REP_INFO); /* block size */
    assert_int_equal(take_reply(NBD_OPT_INFO), NBD_REP_ACK);
    assert_true(take_reply(NBD_OPT_INFO) == NBD_REP_ERR_UNKNOWN);
    assert_int_equal(hs.state, NBD_HANDSHAKE_OPTIONS);
}

static void list_names_all_exports(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_LIST, 0);
    put_option(NBD_OPT_LIST, 1);
    put("x", 1);
    drive();
    assert_int_equal(take_reply(NBD_OPT_LIST), NBD_REP_SERVER);
    assert_memory_equal(reply_data, "\0\0\0\5alphathe first", 18);
    assert_int_equal(take_reply(NBD_OPT_LIST), NBD_REP_SERVER);
    assert_memory_equal(reply_data, "\0\0\0\4beta", 8);
    assert_int_equal(be32_get(reply.len), 8);
    assert_int_equal(take_reply(NBD_OPT_LIST), NBD_REP_ACK);
    assert_true(take_reply(NBD_OPT_LIST) == NBD_REP_ERR_INVALID);
}

static void export_name_answers_without_a_reply_header(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_EXPORT_NAME, 5);
    put("alpha", 5);
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_int_equal(got_len, 10);
    begin(NBD_FLAG_FIXED_NEWSTYLE); /* with 124 zeroes */
    put_option(NBD_OPT_EXPORT_NAME, 4);
    put("beta", 4);
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_int_equal(got_len, 134);
    assert_memory_equal(got, "\x7f\xff\xff\xff\xff\xff\xf0\0", 8);
    begin(0); /* plain newstyle */
    put_option(NBD_OPT_EXPORT_NAME, 4);
    put("beta", 4);
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    begin(FIXED);
    put_option(NBD_OPT_EXPORT_NAME, 4);
    put("gama", 4);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
    assert_int_equal(got_len, 0);
}

static void unknown_options_are_answered_and_skipped(void **state)
{
    begin(FIXED);
    put_option(4711, 3);
    put("abc", 3);
    put_option(NBD_OPT_STARTTLS, 0);
    put_option(UINT32_MAX, 0);
    put_option(NBD_OPT_ABORT, 0);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
    assert_true(take_reply(4711) == NBD_REP_ERR_UNSUP);
    assert_true(take_reply(NBD_OPT_STARTTLS) == NBD_REP_ERR_POLICY);
    assert_true(take_reply(UINT32_MAX) == NBD_REP_ERR_UNSUP);
    assert_int_equal(take_reply(NBD_OPT_ABORT), NBD_REP_ACK);
    assert_int_equal(consumed_total, sent_len);
}

static void too_long_options_are_skipped_and_refused(void **state)
{
    static uint8_t junk[NBD_OPTION_MAX + 1];
    begin(FIXED);
    put_option(NBD_OPT_GO, sizeof(junk));
    put(junk, sizeof(junk));
    put_option(NBD_OPT_LIST, 0);
    for (size_t step = 1000; step < 100000; step *= 10) {
        assert_int_equal(drive_from(NBD_TLS_NONE, step, sent_len), NBD_HANDSHAKE_MORE);
        assert_true(take_reply(NBD_OPT_GO) == NBD_REP_ERR_TOO_BIG);
        assert_int_equal(take_reply(NBD_OPT_LIST), NBD_REP_SERVER);
    }
    begin(FIXED);
    put_option(NBD_OPT_GO, NBD_OPTION_SKIP_MAX + 1);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
    begin(FIXED);
    put_option(NBD_OPT_EXPORT_NAME, NBD_NAME_MAX + 1);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
}

static void wrong_magic_and_unknown_flags_end_it(void **state)
{
    begin(FIXED | 4);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
    begin(FIXED);
    put("IHAVEOPX\0\0\0\3\0\0\0\0", 16);
    assert_int_equal(drive(), NBD_HANDSHAKE_CLOSE);
}

static void lengths_that_do_not_fit_are_invalid(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_GO, 4 + 5 + 2 + 2); /* says two infos, has one */
    put_string("alpha");
    put16(2);
    put16(0);
    put_option(NBD_OPT_GO, 8); /* the name is longer than the option */
    put32(UINT32_MAX);
    put32(0);
    put_option(NBD_OPT_INFO, 3);
    put("abc", 3);
    put_option(NBD_OPT_STRUCTURED_REPLY, 1);
    put("x", 1);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_option(NBD_OPT_SET_META_CONTEXT, 4 + 5 + 4);
    put_string("alpha");
    put32(UINT32_MAX); /* so many queries */
    put_option(NBD_OPT_LIST_META_CONTEXT, 4 + 5 + 4 + 1);
    put_string("alpha");
    put32(0);
    put("x", 1);
    assert_int_equal(drive(), NBD_HANDSHAKE_MORE);
    assert_true(take_reply(NBD_OPT_GO) == NBD_REP_ERR_INVALID);
    assert_true(take_reply(NBD_OPT_GO) == NBD_REP_ERR_INVALID);
    assert_true(take_reply(NBD_OPT_INFO) == NBD_REP_ERR_INVALID);
    assert_true(take_reply(NBD_OPT_STRUCTURED_REPLY) == NBD_REP_ERR_INVALID);
    assert_int_equal(take_reply(NBD_OPT_STRUCTURED_REPLY), NBD_REP_ACK);
    assert_true(take_reply(NBD_OPT_SET_META_CONTEXT) == NBD_REP_ERR_INVALID);
    assert_true(take_reply(NBD_OPT_LIST_META_CONTEXT) == NBD_REP_ERR_INVALID);
}

static uint32_t contexts_of(uint32_t option, const char *query)
{
    begin(FIXED);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_meta(option, "alpha", query);
    drive();
    take_reply(NBD_OPT_STRUCTURED_REPLY);
    uint32_t n = 0, type;
    while ((type = take_reply(option)) == NBD_REP_META_CONTEXT) {
        assert_int_equal(be32_get(reply.len), 4 + 15);
        assert_memory_equal(reply_data + 4, "base:allocation", 15);
        n++;
    }
    assert_int_equal(type, NBD_REP_ACK);
    return n;
}

static void meta_contexts_are_listed_and_selected(void **state)
{
    assert_int_equal(contexts_of(NBD_OPT_LIST_META_CONTEXT, NULL), 1);
    assert_int_equal(contexts_of(NBD_OPT_LIST_META_CONTEXT, "base:"), 1);
    assert_int_equal(contexts_of(NBD_OPT_LIST_META_CONTEXT, "base:allocation"), 1);
    assert_int_equal(contexts_of(NBD_OPT_LIST_META_CONTEXT, "qemu:"), 0);
    assert_false(hs.allocation);
    assert_int_equal(contexts_of(NBD_OPT_SET_META_CONTEXT, NULL), 0);
    assert_int_equal(contexts_of(NBD_OPT_SET_META_CONTEXT, "base:"), 0);
    assert_false(hs.allocation);
    assert_int_equal(contexts_of(NBD_OPT_SET_META_CONTEXT, "base:allocation"), 1);
    assert_true(hs.allocation);
}

static void contexts_count_only_for_their_export_and_the_last_selection(void **state)
{
    begin(FIXED);
    put_meta(NBD_OPT_SET_META_CONTEXT, "alpha", "base:allocation"); /* before structured replies */
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_meta(NBD_OPT_SET_META_CONTEXT, "none", "base:allocation");
    put_meta(NBD_OPT_SET_META_CONTEXT, "alpha", "base:allocation");
    put_go(NBD_OPT_GO, "beta");
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_true(take_reply(NBD_OPT_SET_META_CONTEXT) == NBD_REP_ERR_INVALID);
    assert_int_equal(take_reply(NBD_OPT_STRUCTURED_REPLY), NBD_REP_ACK);
    assert_true(take_reply(NBD_OPT_SET_META_CONTEXT) == NBD_REP_ERR_UNKNOWN);
    assert_false(hs.allocation);
    begin(FIXED);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_meta(NBD_OPT_SET_META_CONTEXT, "beta", "base:allocation");
    put_meta(NBD_OPT_SET_META_CONTEXT, "none", "base:allocation"); /* an error clears as well */
    put_go(NBD_OPT_GO, "beta");
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_false(hs.allocation);
    begin(FIXED);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_meta(NBD_OPT_SET_META_CONTEXT, "beta", "base:allocation");
    put_go(NBD_OPT_GO, "beta");
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    assert_true(hs.allocation);
}

static void required_tls_shows_nothing_before_it(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_LIST, 0);
    put_go(NBD_OPT_GO, "alpha");
    put_option(NBD_OPT_STARTTLS, 0);
    put_option(NBD_OPT_STARTTLS, 0);
    put_go(NBD_OPT_GO, "alpha");
    assert_int_equal(drive_from(NBD_TLS_REQUIRED, 1, sent_len), NBD_HANDSHAKE_GO);
    assert_true(take_reply(NBD_OPT_LIST) == NBD_REP_ERR_TLS_REQD);
    assert_true(take_reply(NBD_OPT_GO) == NBD_REP_ERR_TLS_REQD);
    assert_int_equal(take_reply(NBD_OPT_STARTTLS), NBD_REP_ACK);
    assert_true(take_reply(NBD_OPT_STARTTLS) == NBD_REP_ERR_INVALID);
    assert_int_equal(take_reply(NBD_OPT_GO), NBD_REP_INFO);
    begin(FIXED);
    put_option(NBD_OPT_EXPORT_NAME, 5);
    put("alpha", 5);
    assert_int_equal(drive_from(NBD_TLS_REQUIRED, 1, sent_len), NBD_HANDSHAKE_CLOSE);
}

static void tls_forgets_what_was_agreed_in_the_clear(void **state)
{
    begin(FIXED);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_meta(NBD_OPT_SET_META_CONTEXT, "alpha", "base:allocation");
    put_option(NBD_OPT_STARTTLS, 0);
    put_go(NBD_OPT_GO, "alpha");
    assert_int_equal(drive_from(NBD_TLS_ALLOWED, 1, sent_len), NBD_HANDSHAKE_GO);
    assert_false(hs.structured);
    assert_false(hs.allocation);
}

static void reasons_reach_the_client(void **state)
{
    const struct {
        int err;
        uint32_t type;
    } cases[] = {{ERR_SHUTDOWN, NBD_REP_ERR_SHUTDOWN}, {ERR_TOO_MANY_CLIENTS, NBD_REP_ERR_POLICY}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        lookup_error = cases[i].err;
        begin(FIXED);
        put_go(NBD_OPT_GO, "alpha");
        assert_int_equal(drive(), NBD_HANDSHAKE_MORE);
        lookup_error = 0;
        assert_true(take_reply(NBD_OPT_GO) == cases[i].type);
        assert_true(be32_get(reply.len) > 0);
    }
}

/* A dialogue cut at each byte asks for more and answers what was complete; fed byte by byte it ends as fed at
 * once. */
static void any_cut_of_a_dialogue_waits_for_more(void **state)
{
    static uint8_t whole[sizeof(got)];
    begin(FIXED);
    put_option(NBD_OPT_LIST, 0);
    put_option(NBD_OPT_STRUCTURED_REPLY, 0);
    put_option(99, 7);
    put("seven..", 7);
    put_meta(NBD_OPT_LIST_META_CONTEXT, "alpha", NULL);
    put_meta(NBD_OPT_SET_META_CONTEXT, "alpha", "base:allocation");
    put_go(NBD_OPT_INFO, "beta");
    put_go(NBD_OPT_GO, "alpha");
    assert_int_equal(drive(), NBD_HANDSHAKE_GO);
    size_t whole_len = got_len;
    memcpy(whole, got, got_len);
    for (size_t step = 1; step < 40; step++) {
        assert_int_equal(drive_from(NBD_TLS_NONE, step, sent_len), NBD_HANDSHAKE_GO);
        assert_int_equal(got_len, whole_len);
        assert_memory_equal(got, whole, whole_len);
        assert_true(hs.allocation);
    }
    for (size_t cut = 0; cut < sent_len; cut++) {
        assert_int_equal(drive_from(NBD_TLS_NONE, 1, cut), NBD_HANDSHAKE_MORE);
        assert_true(got_len < whole_len);
        assert_memory_equal(got, whole, got_len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(go_tells_size_flags_and_what_was_asked),
        cmocka_unit_test(info_leaves_the_handshake_open),
        cmocka_unit_test(list_names_all_exports),
        cmocka_unit_test(export_name_answers_without_a_reply_header),
        cmocka_unit_test(unknown_options_are_answered_and_skipped),
        cmocka_unit_test(too_long_options_are_skipped_and_refused),
        cmocka_unit_test(wrong_magic_and_unknown_flags_end_it),
        cmocka_unit_test(lengths_that_do_not_fit_are_invalid),
        cmocka_unit_test(meta_contexts_are_listed_and_selected),
        cmocka_unit_test(contexts_count_only_for_their_export_and_the_last_selection),
        cmocka_unit_test(required_tls_shows_nothing_before_it),
        cmocka_unit_test(tls_forgets_what_was_agreed_in_the_clear),
        cmocka_unit_test(reasons_reach_the_client),
        cmocka_unit_test(any_cut_of_a_dialogue_waits_for_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
