/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

int check_failures;

void check_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    check_failures++;
}

void check_failed_equal(const char *file, int line, const char *what, long long a, long long b)
{
    fprintf(stderr, "%s:%d: failed: %s (%lld, %lld)\n", file, line, what, a, b);
    check_failures++;
}

int client_open(struct client *c, const char *address)
{
    static uint32_t opened; /* numbers that another client used would be taken for its calls */
    *c = (struct client){.xid = ++opened * 100000, .flavor = RPC_AUTH_SYS};
    int err = stream_connect(address, DEADLINE_NEVER, &c->stream);
    if (err != 0)
        return err;
    c->out_bytes = malloc(CLIENT_BUFFER);
    c->in_bytes = malloc(CLIENT_BUFFER);
    assert(c->out_bytes != NULL && c->in_bytes != NULL);
    return 0;
}

void client_close(struct client *c)
{
    stream_close(c->stream);
    free(c->out_bytes);
    free(c->in_bytes);
}

void client_begin(struct client *c, uint32_t program, uint32_t version, uint32_t procedure)
{
    struct xdr_out *o = &c->out;
    *o = xdr_into(c->out_bytes, CLIENT_BUFFER);
    xdr_put_u32(o, c->xid);
    xdr_put_u32(o, RPC_CALL);
    xdr_put_u32(o, RPC_VERSION);
    xdr_put_u32(o, program);
    xdr_put_u32(o, version);
    xdr_put_u32(o, procedure);
    xdr_put_u32(o, c->flavor);
    uint32_t at = o->len;
    xdr_put_u32(o, 0);
    if (c->flavor == RPC_AUTH_SYS) {
        xdr_put_u32(o, 0);
        xdr_put_opaque(o, "test", 4);
        xdr_put_u32(o, c->uid);
        xdr_put_u32(o, c->gid);
        xdr_put_u32(o, c->group_count);
        for (uint32_t i = 0; i < c->group_count; i++)
            xdr_put_u32(o, c->groups[i]);
    }
    xdr_set_u32(o, at, o->len - at - 4);
    xdr_put_u32(o, RPC_AUTH_NONE);
    xdr_put_u32(o, 0);
}

uint32_t client_send(struct client *c)
{
    uint32_t done = 0, step = c->fragment != 0 ? c->fragment : UINT32_MAX;
    assert(!c->out.full);
    do {
        uint32_t n = MIN(step, c->out.len - done);
        struct be32 mark = be32_make(n | (done + n == c->out.len ? RPC_FRAGMENT_LAST : 0));
        struct iovec iov[2] = {{&mark, sizeof(mark)}, {c->out_bytes + done, n}};
        if (stream_sendv(c->stream, iov, 2, DEADLINE_NEVER) != 0)
            break;
        done += n;
    } while (done < c->out.len);
    return c->xid++;
}

int client_receive(struct client *c, struct answer *ret)
{
    struct be32 mark;
    int err = stream_recv_all(c->stream, &mark, sizeof(mark), DEADLINE_NEVER);
    if (err != 0)
        return err;
    uint32_t len = be32_get(mark) & ~RPC_FRAGMENT_LAST, verifier;
    assert((be32_get(mark) & RPC_FRAGMENT_LAST) && len <= CLIENT_BUFFER);
    err = stream_recv_all(c->stream, c->in_bytes, len, DEADLINE_NEVER);
    if (err != 0)
        return err;
    struct xdr *x = &ret->x;
    *x = xdr_over(c->in_bytes, len);
    ret->xid = xdr_u32(x);
    CHECK_EQUAL(xdr_u32(x), RPC_REPLY);
    ret->denied = xdr_bool(x);
    if (ret->denied) {
        bool auth = xdr_bool(x);
        ret->status = auth ? xdr_u32(x) : 100;
    } else {
        xdr_u32(x);
        xdr_opaque(x, 0, &verifier);
        ret->status = xdr_u32(x);
    }
    CHECK(!x->bad);
    return 0;
}

int client_call(struct client *c, struct answer *ret)
{
    uint32_t xid = client_send(c);
    int err = client_receive(c, ret);
    if (err == 0)
        CHECK_EQUAL(ret->xid, xid);
    return err;
}

/* ---- NFS ---- */

void put_handle(struct client *c, const struct handle *h)
{
    xdr_put_opaque(&c->out, h->bytes, h->len);
}

void put_name(struct client *c, const char *name)
{
    xdr_put_opaque(&c->out, name, (uint32_t)strlen(name));
}

void put_sattr(struct client *c, int mode)
{
    xdr_put_bool(&c->out, mode >= 0);
    if (mode >= 0)
        xdr_put_u32(&c->out, (uint32_t)mode);
    for (int i = 0; i < 5; i++)
        xdr_put_u32(&c->out, 0);
}

void client_begin_nfs(struct client *c, uint32_t procedure, const struct handle *h)
{
    client_begin(c, RPC_PROGRAM_NFS, 3, procedure);
    put_handle(c, h);
}

uint32_t client_nfs(struct client *c, struct xdr *ret_x)
{
    struct answer a;
    int err = client_call(c, &a);
    CHECK_EQUAL(err, 0);
    if (err != 0 || a.denied || a.status != RPC_SUCCESS)
        return UINT32_MAX;
    *ret_x = a.x;
    return xdr_u32(ret_x);
}

static void get_time(struct xdr *x, uint32_t t[2])
{
    t[0] = xdr_u32(x);
    t[1] = xdr_u32(x);
}

void get_attr(struct xdr *x, struct attr *ret)
{
    ret->known = true;
    ret->type = xdr_u32(x);
    ret->mode = xdr_u32(x);
    ret->nlink = xdr_u32(x);
    ret->uid = xdr_u32(x);
    ret->gid = xdr_u32(x);
    ret->size = xdr_u64(x);
    ret->used = xdr_u64(x);
    ret->major = xdr_u32(x);
    ret->minor = xdr_u32(x);
    ret->fsid = xdr_u64(x);
    ret->fileid = xdr_u64(x);
    get_time(x, ret->atime);
    get_time(x, ret->mtime);
    get_time(x, ret->ctime);
    CHECK(!x->bad && ret->type >= NFS3_REG && ret->type <= NFS3_FIFO);
}

void get_post(struct xdr *x, struct attr *ret)
{
    *ret = (struct attr){.known = false};
    if (xdr_bool(x))
        get_attr(x, ret);
    CHECK(!x->bad);
}

void get_wcc(struct xdr *x, struct wcc *ret)
{
    *ret = (struct wcc){.known = xdr_bool(x)};
    if (ret->known) {
        ret->size = xdr_u64(x);
        get_time(x, ret->mtime);
        get_time(x, ret->ctime);
    }
    get_post(x, &ret->after);
}

void get_handle(struct xdr *x, struct handle *ret)
{
    uint32_t len;
    const uint8_t *p = xdr_opaque(x, NFS3_HANDLE_MAX, &len);
    CHECK(p != NULL);
    *ret = (struct handle){.len = len};
    if (p != NULL)
        memcpy(ret->bytes, p, len);
}

uint32_t client_mount(struct client *c, const char *path, struct handle *ret)
{
    struct answer a;
    client_begin(c, RPC_PROGRAM_MOUNT, 3, MOUNT3_MNT);
    put_name(c, path);
    if (client_call(c, &a) != 0 || a.denied || a.status != RPC_SUCCESS)
        return UINT32_MAX;
    uint32_t status = xdr_u32(&a.x);
    if (status == MNT3_OK) {
        get_handle(&a.x, ret);
        uint32_t flavors = xdr_u32(&a.x);
        for (uint32_t i = 0; i < flavors; i++)
            xdr_u32(&a.x);
    }
    CHECK(!a.x.bad && xdr_left(&a.x) == 0);
    return status;
}

uint32_t client_lookup(struct client *c, const struct handle *dir, const char *name, struct handle *ret)
{
    struct xdr x;
    struct attr a;
    client_begin_nfs(c, NFS3_LOOKUP, dir);
    put_name(c, name);
    uint32_t status = client_nfs(c, &x);
    if (status == NFS3_OK) {
        get_handle(&x, ret);
        get_post(&x, &a);
    }
    if (status != UINT32_MAX) {
        get_post(&x, &a);
        CHECK(xdr_left(&x) == 0);
    }
    return status;
}

uint32_t client_create(struct client *c, const struct handle *dir, const char *name, struct handle *ret)
{
    struct xdr x;
    struct attr a;
    struct wcc w;
    client_begin_nfs(c, NFS3_CREATE, dir);
    put_name(c, name);
    xdr_put_u32(&c->out, NFS3_GUARDED);
    put_sattr(c, 0640);
    uint32_t status = client_nfs(c, &x);
    if (status == NFS3_OK) {
        CHECK(xdr_bool(&x));
        get_handle(&x, ret);
        get_post(&x, &a);
        CHECK(a.known && a.mode == 0640);
    }
    if (status != UINT32_MAX) {
        get_wcc(&x, &w);
        CHECK(xdr_left(&x) == 0);
    }
    return status;
}

uint32_t client_getattr(struct client *c, const struct handle *h, struct attr *ret)
{
    struct xdr x;
    client_begin_nfs(c, NFS3_GETATTR, h);
    uint32_t status = client_nfs(c, &x);
    if (status == NFS3_OK)
        get_attr(&x, ret);
    CHECK(status == UINT32_MAX || xdr_left(&x) == 0);
    return status;
}

uint32_t client_write(struct client *c, const struct handle *h, uint64_t offset, const void *data,
                      uint32_t len, uint32_t stable, uint32_t *ret_count)
{
    struct xdr x;
    struct wcc w;
    client_begin_nfs(c, NFS3_WRITE, h);
    xdr_put_u64(&c->out, offset);
    xdr_put_u32(&c->out, len);
    xdr_put_u32(&c->out, stable);
    xdr_put_opaque(&c->out, data, len);
    uint32_t status = client_nfs(c, &x);
    if (status == UINT32_MAX)
        return status;
    get_wcc(&x, &w);
    if (status == NFS3_OK) {
        *ret_count = xdr_u32(&x);
        uint32_t how = xdr_u32(&x);
        CHECK(how >= stable);
        xdr_u64(&x);
    }
    CHECK(!x.bad && xdr_left(&x) == 0);
    return status;
}

uint32_t client_read(struct client *c, const struct handle *h, uint64_t offset, void *data, uint32_t len,
                     uint32_t *ret_count, bool *ret_eof)
{
    struct xdr x;
    struct attr a;
    client_begin_nfs(c, NFS3_READ, h);
    xdr_put_u64(&c->out, offset);
    xdr_put_u32(&c->out, len);
    uint32_t status = client_nfs(c, &x), n;
    if (status == UINT32_MAX)
        return status;
    get_post(&x, &a);
    if (status == NFS3_OK) {
        *ret_count = xdr_u32(&x);
        *ret_eof = xdr_bool(&x);
        const uint8_t *p = xdr_opaque(&x, len, &n);
        CHECK(p != NULL && n == *ret_count);
        if (p != NULL)
            memcpy(data, p, n);
    }
    CHECK(!x.bad && xdr_left(&x) == 0);
    return status;
}

uint32_t client_remove(struct client *c, const struct handle *dir, const char *name)
{
    struct xdr x;
    struct wcc w;
    client_begin_nfs(c, NFS3_REMOVE, dir);
    put_name(c, name);
    uint32_t status = client_nfs(c, &x);
    if (status == UINT32_MAX)
        return status;
    get_wcc(&x, &w);
    CHECK(xdr_left(&x) == 0);
    return status;
}
