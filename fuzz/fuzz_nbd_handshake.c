/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NBD: the handshake. The first byte chooses how TLS is offered, the second how many bytes arrive at a time;
 * the rest is what a client sends. Whatever it is: no more is consumed than there was, no more is asked for
 * than an option may have, and every reply is well formed.
 */
#include "protocols/nbd/nbd_handshake.h"
#include "runtime/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int lookup(void *ctx, const char *name, size_t len, struct nbd_export_info *ret)
{
    (void)ctx;
    volatile uint8_t sum = 0; /* each byte of it can be read */
    for (size_t i = 0; i < len; i++)
        sum = (uint8_t)(sum + (uint8_t)name[i]);
    if (len == 4 && memcmp(name, "full", 4) == 0)
        return ERR_TOO_MANY_CLIENTS;
    if (len == 4 && memcmp(name, "stop", 4) == 0)
        return ERR_SHUTDOWN;
    if (len > 2)
        return ERR_NOT_FOUND;
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->name, len > 0 ? name : "a", len > 0 ? len : 1);
    for (size_t i = 0; i < len; i++) {
        if (ret->name[i] == '\0')
            return ERR_NOT_FOUND;
    }
    memcpy(ret->description, "text", 4);
    ret->size_bytes = UINT64_C(1) << 40;
    ret->read_only = ret->name[0] == 'r';
    return 0;
}

static int list(void *ctx, uint32_t index, struct nbd_export_info *ret)
{
    char name = (char)('a' + index);
    return index < 3 ? lookup(ctx, &name, 1, ret) : ERR_NOT_FOUND;
}

/* All of it must be whole replies, but for EXPORT_NAME's. */
static void check_out(const struct nbd_out *o, bool export_name)
{
    size_t at = 0;
    while (o->len - at >= sizeof(struct nbd_option_reply)) {
        struct nbd_option_reply r;
        memcpy(&r, o->data + at, sizeof(r));
        if (be64_get(r.magic) != NBD_MAGIC_OPT_REPLY)
            break;
        at += sizeof(r) + be32_get(r.len);
        assert(at <= o->len);
    }
    assert(at == o->len || (export_name && (o->len - at == 10 || o->len - at == 134)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    static const struct nbd_handshake_env env = {.lookup = lookup, .list = list};
    struct nbd_handshake hs;
    nbd_handshake_init(&hs, &env, (enum nbd_tls_mode)(data[0] % 3));
    hs.out.len = 0;
    size_t step = data[1] == 0 ? size : data[1], at = 2, have = MIN(size, at + step);
    for (bool going = true; going;) {
        size_t consumed;
        enum nbd_handshake_verdict v = nbd_handshake_step(&hs, data + at, have - at, &consumed);
        assert(consumed <= have - at);
        at += consumed;
        check_out(&hs.out, v == NBD_HANDSHAKE_GO);
        hs.out.len = 0;
        switch (v) {
        case NBD_HANDSHAKE_MORE:
            assert(consumed == 0 && hs.need > have - at);
            assert(hs.need <= sizeof(struct nbd_option) + NBD_OPTION_MAX);
            going = have < size;
            have = MIN(size, have + step);
            break;
        case NBD_HANDSHAKE_AGAIN:
            assert(consumed > 0);
            break;
        case NBD_HANDSHAKE_STARTTLS:
            assert(hs.tls != NBD_TLS_NONE && !hs.tls_active);
            nbd_handshake_tls_started(&hs);
            break;
        case NBD_HANDSHAKE_GO:
            assert(hs.chosen.name[0] != '\0');
            assert(hs.tls != NBD_TLS_REQUIRED || hs.tls_active);
            assert(!hs.allocation || hs.structured);
            going = false;
            break;
        case NBD_HANDSHAKE_CLOSE:
            going = false;
        }
    }
    nbd_handshake_done(&hs);
    return 0;
}
