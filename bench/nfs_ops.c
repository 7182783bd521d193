/* SPDX-License-Identifier: Apache-2.0 */
#include "nfs_ops.h"

#include "load.h"

#define PRE_OP_SIZE 24u /* wcc_attr: size, mtime, ctime */

static const struct {
    const char *name;
    uint32_t procedure;
} ops[OP_COUNT] = {
    [OP_NULL] = {"null", NFS3_NULL},
    [OP_GETATTR] = {"getattr", NFS3_GETATTR},
    [OP_SETATTR] = {"setattr", NFS3_SETATTR},
    [OP_LOOKUP] = {"lookup", NFS3_LOOKUP},
    [OP_ACCESS] = {"access", NFS3_ACCESS},
    [OP_READLINK] = {"readlink", NFS3_READLINK},
    [OP_READ] = {"read", NFS3_READ},
    [OP_WRITE] = {"write", NFS3_WRITE},
    [OP_COMMIT] = {"commit", NFS3_COMMIT},
    [OP_CREATE] = {"create", NFS3_CREATE},
    [OP_MKDIR] = {"mkdir", NFS3_MKDIR},
    [OP_SYMLINK] = {"symlink", NFS3_SYMLINK},
    [OP_REMOVE] = {"remove", NFS3_REMOVE},
    [OP_READDIR] = {"readdir", NFS3_READDIR},
    [OP_READDIRPLUS] = {"readdirplus", NFS3_READDIRPLUS},
    [OP_FSSTAT] = {"fsstat", NFS3_FSSTAT},
};

enum nfs_op nfs_op_by_name(const char *name, size_t len)
{
    enum nfs_op op = 0;
    while (op < OP_COUNT && (strlen(ops[op].name) != len || memcmp(ops[op].name, name, len) != 0))
        op++;
    return op;
}

const char *nfs_op_name(enum nfs_op op)
{
    return ops[op].name;
}

/* ---- Arguments ---- */

/* Only the mode is set. */
static void put_sattr(struct xdr_out *o, uint32_t mode)
{
    xdr_put_bool(o, true);
    xdr_put_u32(o, mode);
    for (int i = 0; i < 5; i++) /* uid, gid, size, atime, mtime */
        xdr_put_u32(o, 0);
}

static void put_name(struct xdr_out *o, const char *name)
{
    xdr_put_opaque(o, name, (uint32_t)strlen(name));
}

static void put_listing(struct xdr_out *o, const struct nfs_request *r)
{
    xdr_put_u64(o, r->place.cookie);
    xdr_put_fixed(o, r->place.verifier, sizeof(r->place.verifier));
    xdr_put_u32(o, r->len);
    if (r->op == OP_READDIRPLUS)
        xdr_put_u32(o, r->len); /* dircount, maxcount */
}

static void put_arguments(struct xdr_out *o, const struct nfs_request *r)
{
    switch (r->op) {
    case OP_SETATTR:
        put_sattr(o, 0644);
        xdr_put_bool(o, false); /* no guard */
        break;
    case OP_LOOKUP:
    case OP_REMOVE:
        put_name(o, r->name);
        break;
    case OP_ACCESS:
        xdr_put_u32(o, NFS3_ACCESS_READ | NFS3_ACCESS_LOOKUP | NFS3_ACCESS_MODIFY | NFS3_ACCESS_EXTEND |
                           NFS3_ACCESS_DELETE | NFS3_ACCESS_EXECUTE);
        break;
    case OP_READ:
        xdr_put_u64(o, r->offset);
        xdr_put_u32(o, r->len);
        break;
    case OP_WRITE:
        xdr_put_u64(o, r->offset);
        xdr_put_u32(o, r->len);
        xdr_put_u32(o, r->stable);
        xdr_put_u32(o, r->len);
        break;
    case OP_COMMIT: /* the whole file */
        xdr_put_u64(o, 0);
        xdr_put_u32(o, 0);
        break;
    case OP_CREATE:
        put_name(o, r->name);
        xdr_put_u32(o, NFS3_UNCHECKED);
        put_sattr(o, 0644);
        break;
    case OP_MKDIR:
        put_name(o, r->name);
        put_sattr(o, 0755);
        break;
    case OP_SYMLINK:
        put_name(o, r->name);
        put_sattr(o, 0777);
        put_name(o, r->target);
        break;
    case OP_READDIR:
    case OP_READDIRPLUS:
        put_listing(o, r);
        break;
    default: /* nothing but the object */
        break;
    }
}

void nfs_request_send(struct nfs_connection *c, struct nfs_request *r)
{
    nfs_call_begin(c, &r->call, RPC_PROGRAM_NFS, NFS3_VERSION, ops[r->op].procedure);
    if (r->op != OP_NULL)
        xdr_put_opaque(&r->call.out, r->object.bytes, r->object.len);
    put_arguments(&r->call.out, r);
    bool writes = r->op == OP_WRITE;
    nfs_call_end(c, &r->call, writes ? r->data : NULL, writes ? r->len : 0);
}

/* ---- Answers ---- */

static void skip_post(struct xdr *x)
{
    if (xdr_bool(x))
        xdr_fixed(x, NFS3_ATTR_SIZE);
}

static void skip_wcc(struct xdr *x)
{
    if (xdr_bool(x))
        xdr_fixed(x, PRE_OP_SIZE);
    skip_post(x);
}

static void get_object(struct xdr *x, struct nfs_object *ret)
{
    uint32_t len;
    const uint8_t *bytes = xdr_opaque(x, NFS3_HANDLE_MAX, &len);
    *ret = (struct nfs_object){.len = len};
    if (bytes != NULL)
        memcpy(ret->bytes, bytes, len);
}

/* Nobody asks for a handle of a symbolic link. */
static void get_made(const struct nfs_request *r, struct xdr *x, struct nfs_answer *ret)
{
    if (xdr_bool(x))
        get_object(x, &ret->object);
    else if (r->op != OP_SYMLINK)
        load_fail("%s: no handle in the answer", ops[r->op].name);
    skip_post(x);
    skip_wcc(x);
}

static void get_listing(struct xdr *x, bool plus, struct nfs_answer *ret)
{
    uint32_t len;
    skip_post(x);
    const uint8_t *verifier = xdr_fixed(x, NFS3_VERF_SIZE);
    while (xdr_bool(x)) {
        xdr_u64(x);
        xdr_opaque(x, UINT32_MAX, &len);
        ret->place.cookie = xdr_u64(x);
        ret->entries++;
        if (plus) {
            skip_post(x);
            if (xdr_bool(x))
                xdr_opaque(x, NFS3_HANDLE_MAX, &len);
        }
    }
    bool end = xdr_bool(x);
    if (x->bad || (!end && ret->entries == 0))
        load_fail("a listing that goes nowhere");
    if (end)
        ret->place = (struct nfs_place){.cookie = 0};
    else
        memcpy(ret->place.verifier, verifier, NFS3_VERF_SIZE);
}

static void get_read(const struct nfs_request *r, struct xdr *x)
{
    uint32_t len;
    skip_post(x);
    uint32_t count = xdr_u32(x);
    xdr_bool(x);
    xdr_opaque(x, r->len, &len);
    if (count != r->len || len != r->len)
        load_fail("READ of %u bytes: got %u", r->len, len);
}

static void get_written(const struct nfs_request *r, struct xdr *x)
{
    skip_wcc(x);
    uint32_t count = xdr_u32(x), how = xdr_u32(x);
    xdr_fixed(x, NFS3_VERF_SIZE);
    if (count != r->len)
        load_fail("WRITE of %u bytes: %u written", r->len, count);
    if (how < r->stable)
        load_fail("WRITE is less durable than was asked for: %u, not %u", how, r->stable);
}

static void get_results(const struct nfs_request *r, struct xdr *x, struct nfs_answer *ret)
{
    uint32_t len;
    switch (r->op) {
    case OP_GETATTR:
        xdr_fixed(x, 20); /* type, mode, nlink, uid, gid */
        ret->size = xdr_u64(x);
        xdr_fixed(x, NFS3_ATTR_SIZE - 28);
        break;
    case OP_SETATTR:
    case OP_REMOVE:
        skip_wcc(x);
        break;
    case OP_LOOKUP:
        get_object(x, &ret->object);
        skip_post(x);
        skip_post(x);
        break;
    case OP_ACCESS:
        skip_post(x);
        xdr_u32(x);
        break;
    case OP_READLINK:
        skip_post(x);
        xdr_opaque(x, UINT32_MAX, &len);
        break;
    case OP_READ:
        get_read(r, x);
        break;
    case OP_WRITE:
        get_written(r, x);
        break;
    case OP_COMMIT:
        skip_wcc(x);
        xdr_fixed(x, NFS3_VERF_SIZE);
        break;
    case OP_CREATE:
    case OP_MKDIR:
    case OP_SYMLINK:
        get_made(r, x, ret);
        break;
    case OP_READDIR:
    case OP_READDIRPLUS:
        get_listing(x, r->op == OP_READDIRPLUS, ret);
        break;
    case OP_FSSTAT:
        skip_post(x);
        xdr_fixed(x, 6 * 8 + 4);
        break;
    default:
        break;
    }
}

void nfs_request_answer(const struct nfs_request *r, struct xdr *x, struct nfs_answer *ret)
{
    *ret = (struct nfs_answer){.status = NFS3_OK, .place = r->place};
    if (r->op == OP_NULL)
        return;
    ret->status = xdr_u32(x);
    if (ret->status == NFS3_OK)
        get_results(r, x, ret);
    if (x->bad)
        load_fail("%s: a malformed answer", ops[r->op].name);
    if (ret->status == NFS3_OK && xdr_left(x) != 0)
        load_fail("%s: %zu bytes behind the answer", ops[r->op].name, xdr_left(x));
}

/* ---- MOUNT ---- */

static struct nfs_object mounted_root;
static uint32_t mount_status;

static void mount_answered(struct nfs_connection *c, struct nfs_call *call, struct xdr *x)
{
    (void)c;
    (void)call;
    mount_status = xdr_u32(x);
    if (mount_status == MNT3_OK)
        get_object(x, &mounted_root);
    if (x->bad)
        load_fail("MNT: a malformed answer");
}

void nfs_mount(uint16_t port, const char *path, struct nfs_object *ret)
{
    struct nfs_connection c;
    struct nfs_call call;
    nfs_client_open(&c, port, load_now_ns(), mount_answered);
    nfs_call_begin(&c, &call, RPC_PROGRAM_MOUNT, MOUNT3_VERSION, MOUNT3_MNT);
    put_name(&call.out, path);
    nfs_call_end(&c, &call, NULL, 0);
    while (c.under_way > 0)
        nfs_client_turn(&c, 1, 1000);
    nfs_client_close(&c);
    if (mount_status != MNT3_OK)
        load_fail("%s cannot be mounted: %u", path, mount_status);
    *ret = mounted_root;
}
