/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

int check_failures;

void check_failed(const char *file, int line, const char *what)
{
    check_failures++;
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
}

void check_failed_equal(const char *file, int line, const char *what, long long a, long long b)
{
    check_failures++;
    fprintf(stderr, "%s:%d: %s: %lld, %lld\n", file, line, what, a, b);
}

#define DEADLINE (reactor_now_ns() + 300 * NSEC_PER_SEC)

/* ---- Handshake ---- */

int client_greet(struct client *c, const char *address)
{
    struct nbd_hello h;
    memset(c, 0, sizeof(*c));
    int err = stream_connect(address, DEADLINE, &c->stream);
    if (err != 0)
        return err;
    err = stream_recv_all(c->stream, &h, sizeof(h), DEADLINE);
    struct be32 flags = be32_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
    if (err == 0 && be64_get(h.option_magic) != NBD_MAGIC_OPTION)
        err = ERR_PROTOCOL;
    if (err == 0)
        err = stream_send_all(c->stream, &flags, sizeof(flags), DEADLINE);
    return err;
}

int client_option(struct client *c, uint32_t option, const void *data, uint32_t len)
{
    struct nbd_option o = {be64_make(NBD_MAGIC_OPTION), be32_make(option), be32_make(len)};
    int err = stream_send_all(c->stream, &o, sizeof(o), DEADLINE);
    return err == 0 && len > 0 ? stream_send_all(c->stream, data, len, DEADLINE) : err;
}

int client_option_reply(struct client *c, uint32_t *ret_type, void *data, uint32_t *ret_len)
{
    struct nbd_option_reply r;
    int err = stream_recv_all(c->stream, &r, sizeof(r), DEADLINE);
    if (err != 0)
        return err;
    uint32_t len = be32_get(r.len);
    if (be64_get(r.magic) != NBD_MAGIC_OPT_REPLY || len > NBD_NAME_MAX)
        return ERR_PROTOCOL;
    err = len > 0 ? stream_recv_all(c->stream, data, len, DEADLINE) : 0;
    *ret_type = be32_get(r.type);
    *ret_len = len;
    return err;
}

static int option_until_ack(struct client *c, uint32_t option, const void *data, uint32_t len,
                            uint32_t *ret_refusal) may_yield
{
    uint8_t reply[NBD_NAME_MAX];
    uint32_t type, n;
    int err = client_option(c, option, data, len);
    while (err == 0) {
        err = client_option_reply(c, &type, reply, &n);
        if (err != 0 || type == NBD_REP_ACK)
            break;
        if (type & 0x80000000) {
            if (ret_refusal != NULL)
                *ret_refusal = type;
            return ERR_DENIED;
        }
        struct nbd_info_export e;
        if (type == NBD_REP_INFO && n == sizeof(e)) {
            memcpy(&e, reply, sizeof(e));
            if (be16_get(e.type) == NBD_INFO_EXPORT) {
                c->size_bytes = be64_get(e.size);
                c->flags = be16_get(e.flags);
            }
        }
    }
    return err;
}

static uint32_t put_name(uint8_t *out, const char *name)
{
    size_t len = strlen(name);
    struct be32 n = be32_make((uint32_t)len);
    memcpy(out, &n, 4);
    memcpy(out + 4, name, len);
    return (uint32_t)(4 + len);
}

static int export_name(struct client *c, const char *name) may_yield
{
    struct nbd_export_reply r;
    int err = client_option(c, NBD_OPT_EXPORT_NAME, name, (uint32_t)strlen(name));
    if (err == 0)
        err = stream_recv_all(c->stream, &r, offsetof(struct nbd_export_reply, zeroes), DEADLINE);
    if (err == 0) {
        c->size_bytes = be64_get(r.size);
        c->flags = be16_get(r.flags);
    }
    return err;
}

int client_go(struct client *c, const char *name, uint32_t wishes, uint32_t *ret_refusal)
{
    uint8_t data[512];
    int err = 0;
    if (wishes & CLIENT_STRUCTURED) {
        err = option_until_ack(c, NBD_OPT_STRUCTURED_REPLY, NULL, 0, ret_refusal);
        c->structured = true;
    }
    if (err == 0 && (wishes & CLIENT_ALLOCATION)) {
        uint32_t n = put_name(data, name);
        memcpy(data + n, "\0\0\0\1", 4);
        n += 4;
        n += put_name(data + n, "base:allocation");
        err = option_until_ack(c, NBD_OPT_SET_META_CONTEXT, data, n, ret_refusal);
    }
    if (err != 0)
        return err;
    if (wishes & CLIENT_EXPORT_NAME)
        return export_name(c, name);
    uint32_t n = put_name(data, name);
    memcpy(data + n, "\0\0", 2);
    return option_until_ack(c, NBD_OPT_GO, data, n + 2, ret_refusal);
}

int client_open(struct client *c, const char *address, const char *name, uint32_t wishes,
                uint32_t *ret_refusal)
{
    int err = client_greet(c, address);
    if (err == 0)
        err = client_go(c, name, wishes, ret_refusal);
    if (err != 0)
        client_close(c);
    return err;
}

void client_close(struct client *c)
{
    if (c->stream != NULL)
        stream_close(c->stream);
    c->stream = NULL;
}

int client_disconnect(struct client *c)
{
    uint8_t byte;
    client_send(c, NBD_CMD_DISC, 0, 0, 0, NULL);
    int err = stream_recv_all(c->stream, &byte, 1, DEADLINE);
    client_close(c);
    return err == ERR_CLOSED ? 0 : ERR_PROTOCOL;
}

/* ---- Requests ---- */

uint64_t client_send(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len,
                     const void *payload)
{
    uint64_t cookie = ++c->next_cookie;
    struct nbd_request_header h = {be32_make(NBD_MAGIC_REQUEST), be16_make(flags), be16_make(type),
                                   .offset = be64_make(offset), .len = be32_make(len)};
    memcpy(h.cookie, &cookie, sizeof(cookie));
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)(uintptr_t)payload, len}};
    /* The server may have hung up on purpose: the reply, or its absence, is what tests look at. */
    int err =
        stream_sendv(c->stream, iov, type == NBD_CMD_WRITE && len > 0 && payload != NULL ? 2 : 1, DEADLINE);
    (void)err;
    return cookie;
}

static int receive_data(struct client *c, void *buf, uint64_t skip, uint32_t len) may_yield
{
    if (len == 0)
        return 0;
    return stream_recv_all(c->stream, (uint8_t *)buf + skip, len, DEADLINE);
}

static int receive_error(struct client *c, struct client_reply *r, uint32_t payload) may_yield
{
    uint8_t data[512];
    if (payload < 6 || payload > sizeof(data))
        return ERR_PROTOCOL;
    int err = stream_recv_all(c->stream, data, payload, DEADLINE);
    uint32_t text_len = (uint32_t)data[4] << 8 | data[5];
    if (err != 0 || text_len + 6 > payload || text_len >= sizeof(r->text))
        return err != 0 ? err : ERR_PROTOCOL;
    r->error = (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    memcpy(r->text, data + 6, text_len);
    return 0;
}

static int receive_status(struct client *c, struct client_reply *r, uint32_t payload) may_yield
{
    uint8_t data[4 + 8 * 256];
    if (payload < 12 || payload > sizeof(data) || payload % 8 != 4)
        return ERR_PROTOCOL;
    int err = stream_recv_all(c->stream, data, payload, DEADLINE);
    if (err != 0)
        return err;
    r->extents = (payload - 4) / 8;
    for (uint32_t i = 0; i < MIN(r->extents, ARRAY_SIZE(r->extent)); i++) {
        struct nbd_status_extent e;
        memcpy(&e, data + 4 + 8 * i, sizeof(e));
        r->extent[i].len = be32_get(e.len);
        r->extent[i].flags = be32_get(e.flags);
    }
    return 0;
}

static int receive_chunk(struct client *c, struct client_reply *r, const struct nbd_chunk_header *h,
                         void *buf, uint64_t base) may_yield
{
    uint32_t payload = be32_get(h->len);
    struct be64 offset;
    r->type = be16_get(h->type);
    r->done = be16_get(h->flags) & NBD_REPLY_FLAG_DONE;
    if (r->type == NBD_REPLY_TYPE_NONE)
        return payload == 0 && r->done ? 0 : ERR_PROTOCOL;
    if (r->type == NBD_REPLY_TYPE_ERROR)
        return receive_error(c, r, payload);
    if (r->type == NBD_REPLY_TYPE_BLOCK_STATUS)
        return receive_status(c, r, payload);
    if (payload < 9)
        return ERR_PROTOCOL;
    int err = stream_recv_all(c->stream, &offset, sizeof(offset), DEADLINE);
    if (err != 0)
        return err;
    r->offset = be64_get(offset);
    if (r->offset < base)
        return ERR_PROTOCOL;
    if (r->type == NBD_REPLY_TYPE_OFFSET_DATA) {
        r->len = payload - 8;
        return receive_data(c, buf, r->offset - base, r->len);
    }
    struct be32 len;
    if (r->type != NBD_REPLY_TYPE_OFFSET_HOLE || payload != 12)
        return ERR_PROTOCOL;
    err = stream_recv_all(c->stream, &len, sizeof(len), DEADLINE);
    if (err != 0)
        return err;
    r->len = be32_get(len);
    memset((uint8_t *)buf + (r->offset - base), 0, r->len);
    return 0;
}

int client_receive(struct client *c, struct client_reply *r, void *buf, uint64_t base, uint32_t simple_len)
{
    struct nbd_chunk_header h;
    struct nbd_simple_reply simple;
    memset(r, 0, sizeof(*r));
    int err = stream_recv_all(c->stream, &simple, sizeof(simple), DEADLINE);
    if (err != 0)
        return err;
    memcpy(&r->cookie, simple.cookie, sizeof(r->cookie));
    if (be32_get(simple.magic) == NBD_MAGIC_SIMPLE) {
        r->type = UINT16_MAX;
        r->done = true;
        r->error = be32_get(simple.error);
        r->len = r->error == 0 ? simple_len : 0;
        return receive_data(c, buf, 0, r->len);
    }
    if (be32_get(simple.magic) != NBD_MAGIC_STRUCTURED || !c->structured)
        return ERR_PROTOCOL;
    memcpy(&h, &simple, sizeof(simple));
    err = stream_recv_all(c->stream, (uint8_t *)&h + sizeof(simple), sizeof(h) - sizeof(simple), DEADLINE);
    return err != 0 ? err : receive_chunk(c, r, &h, buf, base);
}

int client_do(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len, void *buf,
              struct client_result *ret)
{
    memset(ret, 0, sizeof(*ret));
    uint64_t cookie = client_send(c, type, flags, offset, len, buf);
    uint32_t covered = 0;
    do {
        int err = client_receive(c, &ret->last, buf, offset, type == NBD_CMD_READ ? len : 0);
        if (err != 0)
            return err;
        if (ret->last.cookie != cookie)
            return ERR_PROTOCOL;
        covered += ret->last.len;
        ret->data_chunks += ret->last.type == NBD_REPLY_TYPE_OFFSET_DATA;
        ret->hole_chunks += ret->last.type == NBD_REPLY_TYPE_OFFSET_HOLE;
        if (ret->last.error != 0)
            ret->error = ret->last.error;
    } while (!ret->last.done);
    return type == NBD_CMD_READ && ret->error == 0 && covered != len ? ERR_PROTOCOL : 0;
}
