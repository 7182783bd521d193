/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nfs/rpc_message.h"
#include "runtime/error.h"

/* ---- Calls ---- */

/* The body of AUTH_SYS: stamp, machine name, uid, gid, groups. */
static bool auth_sys_decode(const uint8_t *body, uint32_t len, struct rpc_credential *ret)
{
    struct xdr x = xdr_over(body, len);
    uint32_t machine_len;
    xdr_u32(&x);
    xdr_opaque(&x, RPC_MACHINE_MAX, &machine_len);
    ret->uid = xdr_u32(&x);
    ret->gid = xdr_u32(&x);
    uint32_t count = xdr_enum(&x, RPC_GROUPS_MAX);
    for (uint32_t i = 0; i < count; i++)
        ret->groups[i] = xdr_u32(&x);
    ret->group_count = count;
    return !x.bad && xdr_left(&x) == 0;
}

enum rpc_verdict rpc_header_decode(struct xdr *x, struct rpc_header *ret, enum rpc_auth_error *ret_auth)
{
    ret->xid = xdr_u32(x);
    uint32_t type = xdr_u32(x);
    if (x->bad || type != RPC_CALL)
        return RPC_IGNORE;
    if (xdr_u32(x) != RPC_VERSION)
        return x->bad ? RPC_BAD_ARGUMENTS : RPC_BAD_VERSION;
    ret->program = xdr_u32(x);
    ret->version = xdr_u32(x);
    ret->procedure = xdr_u32(x);
    ret->credential.flavor = xdr_u32(x);
    ret->credential.group_count = 0;
    uint32_t len = xdr_u32(x);
    if (x->bad)
        return RPC_BAD_ARGUMENTS;
    *ret_auth = RPC_AUTH_BADCRED;
    if (len > RPC_AUTH_BODY_MAX)
        return RPC_BAD_AUTH;
    const uint8_t *body = xdr_fixed(x, len);
    if (x->bad)
        return RPC_BAD_ARGUMENTS;
    if (ret->credential.flavor == RPC_AUTH_SYS && !auth_sys_decode(body, len, &ret->credential))
        return RPC_BAD_AUTH;
    xdr_u32(x); /* the verifier's flavor: of no meaning to the flavors that are served */
    len = xdr_u32(x);
    if (x->bad)
        return RPC_BAD_ARGUMENTS;
    if (len > RPC_AUTH_BODY_MAX) {
        *ret_auth = RPC_AUTH_BADVERF;
        return RPC_BAD_AUTH;
    }
    xdr_fixed(x, len);
    return x->bad ? RPC_BAD_ARGUMENTS : RPC_RUN;
}

/* ---- Replies ---- */

void rpc_reply_accept(struct xdr_out *o, uint32_t xid, enum rpc_accept status)
{
    xdr_put_u32(o, xid);
    xdr_put_u32(o, RPC_REPLY);
    xdr_put_u32(o, RPC_ACCEPTED);
    xdr_put_u32(o, RPC_AUTH_NONE);
    xdr_put_u32(o, 0);
    xdr_put_u32(o, status);
}

void rpc_reply_program_mismatch(struct xdr_out *o, uint32_t xid, uint32_t low, uint32_t high)
{
    rpc_reply_accept(o, xid, RPC_PROGRAM_MISMATCH);
    xdr_put_u32(o, low);
    xdr_put_u32(o, high);
}

static void reply_denied(struct xdr_out *o, uint32_t xid, uint32_t why)
{
    xdr_put_u32(o, xid);
    xdr_put_u32(o, RPC_REPLY);
    xdr_put_u32(o, RPC_DENIED);
    xdr_put_u32(o, why);
}

void rpc_reply_mismatch(struct xdr_out *o, uint32_t xid)
{
    reply_denied(o, xid, RPC_MISMATCH);
    xdr_put_u32(o, RPC_VERSION);
    xdr_put_u32(o, RPC_VERSION);
}

void rpc_reply_auth_error(struct xdr_out *o, uint32_t xid, enum rpc_auth_error e)
{
    assert(e != RPC_AUTH_OK);
    reply_denied(o, xid, RPC_AUTH_ERROR);
    xdr_put_u32(o, e);
}

/* ---- As a client ---- */

void rpc_call_begin(struct xdr_out *o, uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure)
{
    xdr_put_u32(o, xid);
    xdr_put_u32(o, RPC_CALL);
    xdr_put_u32(o, RPC_VERSION);
    xdr_put_u32(o, program);
    xdr_put_u32(o, version);
    xdr_put_u32(o, procedure);
    for (int i = 0; i < 2; i++) { /* credential, verifier */
        xdr_put_u32(o, RPC_AUTH_NONE);
        xdr_put_u32(o, 0);
    }
}

int rpc_reply_decode(struct xdr *x, uint32_t xid)
{
    uint32_t len;
    if (xdr_u32(x) != xid || xdr_u32(x) != RPC_REPLY)
        return ERR_PROTOCOL;
    uint32_t how = xdr_u32(x);
    if (x->bad || how > RPC_DENIED)
        return ERR_PROTOCOL;
    if (how == RPC_DENIED)
        return ERR_DENIED;
    xdr_u32(x);
    xdr_opaque(x, RPC_AUTH_BODY_MAX, &len);
    uint32_t status = xdr_u32(x);
    if (x->bad)
        return ERR_PROTOCOL;
    switch (status) {
    case RPC_SUCCESS:
        return 0;
    case RPC_PROGRAM_UNAVAILABLE:
    case RPC_PROGRAM_MISMATCH:
    case RPC_PROCEDURE_UNAVAILABLE:
        return ERR_UNSUPPORTED;
    default:
        return ERR_PROTOCOL;
    }
}
