/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake's state machine; nbd_handshake.h has its picture. Nothing here is trusted: lengths are
 * checked against what is there before a byte is read, strings are never taken for terminated. */
#include "protocols/nbd/nbd_handshake.h"
#include "runtime/error.h"

#include <stdlib.h>

#define OUT_MAX (4 * MIB)

/* ---- What goes out ---- */

static void out_append(struct nbd_out *o, const void *data, size_t len)
{
    if (o->failed || len == 0)
        return;
    if (len > o->capacity - o->len) {
        size_t capacity = MAX(o->capacity * 2, o->len + len);
        uint8_t *grown = capacity <= OUT_MAX ? realloc(o->data, capacity) : NULL;
        if (grown == NULL) {
            o->failed = true;
            return;
        }
        o->data = grown;
        o->capacity = capacity;
    }
    memcpy(o->data + o->len, data, len);
    o->len += len;
}

static void reply_begin(struct nbd_handshake *hs, uint32_t option, uint32_t type, size_t len)
{
    assert(len <= OUT_MAX);
    struct nbd_option_reply r = {be64_make(NBD_MAGIC_OPT_REPLY), be32_make(option), be32_make(type),
                                 be32_make((uint32_t)len)};
    out_append(&hs->out, &r, sizeof(r));
}

static void reply_text(struct nbd_handshake *hs, uint32_t option, uint32_t type, const char *text)
{
    size_t len = strlen(text);
    reply_begin(hs, option, type, len);
    out_append(&hs->out, text, len);
}

static void reply_ack(struct nbd_handshake *hs, uint32_t option)
{
    reply_begin(hs, option, NBD_REP_ACK, 0);
}

static void reply_info_text(struct nbd_handshake *hs, uint32_t option, uint16_t type, const char *text)
{
    struct be16 t = be16_make(type);
    size_t len = strlen(text);
    reply_begin(hs, option, NBD_REP_INFO, sizeof(t) + len);
    out_append(&hs->out, &t, sizeof(t));
    out_append(&hs->out, text, len);
}

static void reply_lookup_error(struct nbd_handshake *hs, uint32_t option, int err)
{
    if (err == ERR_NOT_FOUND)
        reply_text(hs, option, NBD_REP_ERR_UNKNOWN, "no such export");
    else if (err == ERR_SHUTDOWN)
        reply_text(hs, option, NBD_REP_ERR_SHUTDOWN, "the server is shutting down");
    else
        reply_text(hs, option, NBD_REP_ERR_POLICY, error_text(err));
}

/* ---- What comes in ---- */

/* A cursor over an option's data. After a failed take everything else fails too. */
struct option_data {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static uint32_t take_u32(struct option_data *d)
{
    struct be32 v;
    if (d->bad || d->left < sizeof(v)) {
        d->bad = true;
        return 0;
    }
    memcpy(&v, d->at, sizeof(v));
    d->at += sizeof(v);
    d->left -= sizeof(v);
    return be32_get(v);
}

static uint16_t take_u16(struct option_data *d)
{
    struct be16 v;
    if (d->bad || d->left < sizeof(v)) {
        d->bad = true;
        return 0;
    }
    memcpy(&v, d->at, sizeof(v));
    d->at += sizeof(v);
    d->left -= sizeof(v);
    return be16_get(v);
}

/* A string with its length before it. */
static const char *take_string(struct option_data *d, size_t *ret_len)
{
    uint32_t len = take_u32(d);
    if (d->bad || len > NBD_NAME_MAX || len > d->left) {
        d->bad = true;
        *ret_len = 0;
        return "";
    }
    const char *s = (const char *)d->at;
    d->at += len;
    d->left -= len;
    *ret_len = len;
    return s;
}

static bool text_is(const char *s, size_t len, const char *literal)
{
    return len == strlen(literal) && memcmp(s, literal, len) == 0;
}

/* ---- Options ---- */

uint16_t nbd_transmission_flags(bool read_only, bool structured)
{
    uint16_t f = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_CAN_MULTI_CONN |
                 NBD_FLAG_SEND_CACHE;
    if (structured)
        f |= NBD_FLAG_SEND_DF;
    if (read_only)
        f |= NBD_FLAG_READ_ONLY;
    else
        f |= NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
    return f;
}

/* The contexts that were selected count only for the export for which they were. */
static void choose(struct nbd_handshake *hs, const struct nbd_export_info *info)
{
    if (strcmp(hs->meta_name, info->name) != 0)
        hs->allocation = false;
    hs->chosen = *info;
    hs->state = NBD_HANDSHAKE_DONE;
}

static enum nbd_handshake_verdict option_export_name(struct nbd_handshake *hs, struct option_data *d)
{
    struct nbd_export_info info;
    if (hs->tls == NBD_TLS_REQUIRED && !hs->tls_active)
        return NBD_HANDSHAKE_CLOSE; /* this option has no way to report an error */
    if (hs->env->lookup(hs->env->ctx, (const char *)d->at, d->left, &info) != 0)
        return NBD_HANDSHAKE_CLOSE;
    choose(hs, &info);
    struct nbd_export_reply r = {
        .size = be64_make(info.size_bytes),
        .flags = be16_make(nbd_transmission_flags(info.read_only, hs->structured)),
    };
    out_append(&hs->out, &r, hs->no_zeroes ? offsetof(struct nbd_export_reply, zeroes) : sizeof(r));
    return NBD_HANDSHAKE_GO;
}

static enum nbd_handshake_verdict option_list(struct nbd_handshake *hs, struct option_data *d)
{
    if (d->left != 0) {
        reply_text(hs, NBD_OPT_LIST, NBD_REP_ERR_INVALID, "NBD_OPT_LIST has no data");
        return NBD_HANDSHAKE_AGAIN;
    }
    struct nbd_export_info info;
    for (uint32_t i = 0; hs->env->list(hs->env->ctx, i, &info) == 0; i++) {
        size_t name_len = strlen(info.name), text_len = strlen(info.description);
        struct be32 len = be32_make((uint32_t)name_len);
        reply_begin(hs, NBD_OPT_LIST, NBD_REP_SERVER, sizeof(len) + name_len + text_len);
        out_append(&hs->out, &len, sizeof(len));
        out_append(&hs->out, info.name, name_len);
        out_append(&hs->out, info.description, text_len);
    }
    reply_ack(hs, NBD_OPT_LIST);
    return NBD_HANDSHAKE_AGAIN;
}

static enum nbd_handshake_verdict option_starttls(struct nbd_handshake *hs, struct option_data *d)
{
    if (d->left != 0 || hs->tls_active) {
        reply_text(hs, NBD_OPT_STARTTLS, NBD_REP_ERR_INVALID,
                   hs->tls_active ? "TLS is active already" : "NBD_OPT_STARTTLS has no data");
        return NBD_HANDSHAKE_AGAIN;
    }
    if (hs->tls == NBD_TLS_NONE || !hs->fixed) {
        reply_text(hs, NBD_OPT_STARTTLS, NBD_REP_ERR_POLICY, "TLS is not offered here");
        return NBD_HANDSHAKE_AGAIN;
    }
    reply_ack(hs, NBD_OPT_STARTTLS);
    return NBD_HANDSHAKE_STARTTLS;
}

static void reply_infos(struct nbd_handshake *hs, uint32_t option, const struct nbd_export_info *info,
                        const struct option_data *asked)
{
    bool name = false, description = false, block_size = false;
    for (size_t i = 0; i + 2 <= asked->left; i += 2) {
        uint16_t type = (uint16_t)(asked->at[i] << 8 | asked->at[i + 1]);
        name |= type == NBD_INFO_NAME;
        description |= type == NBD_INFO_DESCRIPTION;
        block_size |= type == NBD_INFO_BLOCK_SIZE;
    }
    struct nbd_info_export e = {be16_make(NBD_INFO_EXPORT), be64_make(info->size_bytes),
                                be16_make(nbd_transmission_flags(info->read_only, hs->structured))};
    reply_begin(hs, option, NBD_REP_INFO, sizeof(e));
    out_append(&hs->out, &e, sizeof(e));
    if (name)
        reply_info_text(hs, option, NBD_INFO_NAME, info->name);
    if (description && info->description[0] != '\0')
        reply_info_text(hs, option, NBD_INFO_DESCRIPTION, info->description);
    if (block_size) {
        struct nbd_info_block_size b = {be16_make(NBD_INFO_BLOCK_SIZE), be32_make(1), be32_make(BLOCK_SIZE),
                                        be32_make(NBD_REQUEST_MAX)};
        reply_begin(hs, option, NBD_REP_INFO, sizeof(b));
        out_append(&hs->out, &b, sizeof(b));
    }
}

static enum nbd_handshake_verdict option_info_go(struct nbd_handshake *hs, uint32_t option,
                                                 struct option_data *d)
{
    size_t name_len;
    const char *name = take_string(d, &name_len);
    uint16_t count = take_u16(d);
    if (d->bad || d->left != count * 2u) {
        reply_text(hs, option, NBD_REP_ERR_INVALID, "lengths do not fit");
        return NBD_HANDSHAKE_AGAIN;
    }
    struct nbd_export_info info;
    int err = hs->env->lookup(hs->env->ctx, name, name_len, &info);
    if (err != 0) {
        reply_lookup_error(hs, option, err);
        return NBD_HANDSHAKE_AGAIN;
    }
    reply_infos(hs, option, &info, d);
    reply_ack(hs, option);
    if (option == NBD_OPT_INFO)
        return NBD_HANDSHAKE_AGAIN;
    choose(hs, &info);
    return NBD_HANDSHAKE_GO;
}

static enum nbd_handshake_verdict option_structured(struct nbd_handshake *hs, struct option_data *d)
{
    if (d->left != 0) {
        reply_text(hs, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ERR_INVALID, "NBD_OPT_STRUCTURED_REPLY has no data");
        return NBD_HANDSHAKE_AGAIN;
    }
    hs->structured = true;
    reply_ack(hs, NBD_OPT_STRUCTURED_REPLY);
    return NBD_HANDSHAKE_AGAIN;
}

/* Whether a query names base:allocation; the wildcards ("base:" for all of the name space) serve to list, not
 * to select. A query outside of our name space finds nothing, which is no error. */
static bool query_matches(const char *query, size_t len, bool listing)
{
    return text_is(query, len, "base:allocation") || (listing && text_is(query, len, "base:"));
}

static enum nbd_handshake_verdict option_meta_context(struct nbd_handshake *hs, uint32_t option,
                                                      struct option_data *d)
{
    bool listing = option == NBD_OPT_LIST_META_CONTEXT;
    if (!listing)
        hs->allocation = false; /* the new selection replaces the old one, also if it fails */
    if (!hs->structured) {
        reply_text(hs, option, NBD_REP_ERR_INVALID, "needs structured replies first");
        return NBD_HANDSHAKE_AGAIN;
    }
    size_t name_len, len;
    const char *name = take_string(d, &name_len);
    uint32_t count = take_u32(d);
    bool found = listing && count == 0;
    for (uint32_t i = 0; i < count && !d->bad; i++) {
        const char *query = take_string(d, &len);
        found |= !d->bad && query_matches(query, len, listing);
    }
    if (d->bad || d->left != 0) {
        reply_text(hs, option, NBD_REP_ERR_INVALID, "lengths do not fit");
        return NBD_HANDSHAKE_AGAIN;
    }
    struct nbd_export_info info;
    int err = hs->env->lookup(hs->env->ctx, name, name_len, &info);
    if (err != 0) {
        reply_lookup_error(hs, option, err);
        return NBD_HANDSHAKE_AGAIN;
    }
    if (found) {
        struct be32 id = be32_make(listing ? 0 : NBD_CONTEXT_ALLOCATION);
        static const char context[] = "base:allocation";
        reply_begin(hs, option, NBD_REP_META_CONTEXT, sizeof(id) + sizeof(context) - 1);
        out_append(&hs->out, &id, sizeof(id));
        out_append(&hs->out, context, sizeof(context) - 1);
    }
    if (found && !listing) {
        hs->allocation = true;
        memcpy(hs->meta_name, info.name, sizeof(hs->meta_name));
    }
    reply_ack(hs, option);
    return NBD_HANDSHAKE_AGAIN;
}

static enum nbd_handshake_verdict handle_option(struct nbd_handshake *hs, uint32_t option,
                                                struct option_data *d)
{
    if (option == NBD_OPT_EXPORT_NAME)
        return option_export_name(hs, d);
    if (option == NBD_OPT_ABORT) {
        reply_ack(hs, option);
        return NBD_HANDSHAKE_CLOSE;
    }
    if (option == NBD_OPT_STARTTLS)
        return option_starttls(hs, d);
    if (hs->tls == NBD_TLS_REQUIRED && !hs->tls_active) {
        reply_text(hs, option, NBD_REP_ERR_TLS_REQD, "TLS is required here");
        return NBD_HANDSHAKE_AGAIN;
    }
    switch (option) {
    case NBD_OPT_LIST:
        return option_list(hs, d);
    case NBD_OPT_INFO:
    case NBD_OPT_GO:
        return option_info_go(hs, option, d);
    case NBD_OPT_STRUCTURED_REPLY:
        return option_structured(hs, d);
    case NBD_OPT_LIST_META_CONTEXT:
    case NBD_OPT_SET_META_CONTEXT:
        return option_meta_context(hs, option, d);
    default:
        reply_text(hs, option, NBD_REP_ERR_UNSUP, "unknown option");
        return NBD_HANDSHAKE_AGAIN;
    }
}

/* ---- Steps ---- */

void nbd_handshake_init(struct nbd_handshake *hs, const struct nbd_handshake_env *env, enum nbd_tls_mode tls)
{
    memset(hs, 0, sizeof(*hs));
    hs->env = env;
    hs->tls = tls;
    hs->state = NBD_HANDSHAKE_FLAGS;
    struct nbd_hello hello = {be64_make(NBD_MAGIC_INIT), be64_make(NBD_MAGIC_OPTION),
                              be16_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)};
    out_append(&hs->out, &hello, sizeof(hello));
}

void nbd_handshake_done(struct nbd_handshake *hs)
{
    free(hs->out.data);
    hs->out = (struct nbd_out){0};
}

/* What was agreed in the clear may have been tampered with. */
void nbd_handshake_tls_started(struct nbd_handshake *hs)
{
    assert(hs->state == NBD_HANDSHAKE_OPTIONS && !hs->tls_active);
    hs->tls_active = true;
    hs->structured = false;
    hs->allocation = false;
    hs->meta_name[0] = '\0';
}

static enum nbd_handshake_verdict need_more(struct nbd_handshake *hs, size_t need)
{
    assert(need <= sizeof(struct nbd_option) + NBD_OPTION_MAX);
    hs->need = need;
    return NBD_HANDSHAKE_MORE;
}

static enum nbd_handshake_verdict step_flags(struct nbd_handshake *hs, const uint8_t *data, size_t len,
                                             size_t *ret_consumed)
{
    struct be32 wire;
    if (len < sizeof(wire))
        return need_more(hs, sizeof(wire));
    memcpy(&wire, data, sizeof(wire));
    *ret_consumed = sizeof(wire);
    uint32_t flags = be32_get(wire);
    if (flags & ~(uint32_t)(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES))
        return NBD_HANDSHAKE_CLOSE;
    hs->fixed = flags & NBD_FLAG_FIXED_NEWSTYLE;
    hs->no_zeroes = flags & NBD_FLAG_NO_ZEROES;
    hs->state = NBD_HANDSHAKE_OPTIONS;
    return NBD_HANDSHAKE_AGAIN;
}

static enum nbd_handshake_verdict step_skip(struct nbd_handshake *hs, size_t len, size_t *ret_consumed)
{
    if (len == 0)
        return need_more(hs, 1);
    size_t n = (size_t)MIN(hs->skip, len);
    *ret_consumed = n;
    hs->skip -= n;
    if (hs->skip == 0)
        reply_text(hs, hs->skip_option, NBD_REP_ERR_TOO_BIG, "the option is too long");
    return NBD_HANDSHAKE_AGAIN;
}

static enum nbd_handshake_verdict step_option(struct nbd_handshake *hs, const uint8_t *data, size_t len,
                                              size_t *ret_consumed)
{
    struct nbd_option o;
    if (len < sizeof(o))
        return need_more(hs, sizeof(o));
    memcpy(&o, data, sizeof(o));
    uint32_t option = be32_get(o.option), size = be32_get(o.len);
    if (be64_get(o.magic) != NBD_MAGIC_OPTION || size > NBD_OPTION_SKIP_MAX)
        return NBD_HANDSHAKE_CLOSE;
    if (size > (option == NBD_OPT_EXPORT_NAME ? NBD_NAME_MAX : NBD_OPTION_MAX)) {
        if (option == NBD_OPT_EXPORT_NAME)
            return NBD_HANDSHAKE_CLOSE;
        hs->skip = size;
        hs->skip_option = option;
        *ret_consumed = sizeof(o);
        return NBD_HANDSHAKE_AGAIN;
    }
    if (len - sizeof(o) < size)
        return need_more(hs, sizeof(o) + size);
    *ret_consumed = sizeof(o) + size;
    struct option_data d = {.at = data + sizeof(o), .left = size};
    return handle_option(hs, option, &d);
}

enum nbd_handshake_verdict nbd_handshake_step(struct nbd_handshake *hs, const uint8_t *data, size_t len,
                                              size_t *ret_consumed)
{
    assert(hs->state != NBD_HANDSHAKE_DONE);
    enum nbd_handshake_verdict v;
    *ret_consumed = 0;
    if (hs->state == NBD_HANDSHAKE_FLAGS)
        v = step_flags(hs, data, len, ret_consumed);
    else if (hs->skip > 0)
        v = step_skip(hs, len, ret_consumed);
    else
        v = step_option(hs, data, len, ret_consumed);
    assert(*ret_consumed <= len);
    if (hs->out.failed || v == NBD_HANDSHAKE_CLOSE) {
        hs->state = NBD_HANDSHAKE_DONE;
        return NBD_HANDSHAKE_CLOSE;
    }
    return v;
}
