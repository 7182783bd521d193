/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFS: file handles, and the heads of RPC messages. Whatever bytes claim to be a handle, they are accepted
 * only if they are the very ones that would be made for what they say; a handle of ours with the input's
 * bytes laid over it is refused unless nothing was changed. The same bytes are read as an RPC call.
 */
#include "protocols/nfs/nfs_handle.h"
#include "protocols/nfs/rpc_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_handle(const struct nfs_handle_key *key, const uint8_t *bytes, size_t len)
{
    struct nfs_handle_fields f;
    struct nfs_handle again;
    if (!nfs_handle_parse(bytes, (uint32_t)len, &f))
        return;
    assert(len == sizeof(again));
    nfs_handle_make(key, &f, &again);
    assert(nfs_handle_verify(key, bytes) == (memcmp(bytes, &again, sizeof(again)) == 0));
}

static void try_changed(const struct nfs_handle_key *key, const uint8_t *data, size_t size)
{
    struct nfs_handle_fields f = {.export_tag = 7, .volume_tag = 8, .ino = 9, .generation = 10}, g;
    struct nfs_handle h, changed;
    nfs_handle_make(key, &f, &h);
    memcpy(&changed, &h, sizeof(h));
    for (size_t i = 0; i + 1 < size; i += 2)
        ((uint8_t *)&changed)[data[i] % sizeof(h)] ^= data[i + 1];
    bool good = nfs_handle_parse(&changed, sizeof(changed), &g) && nfs_handle_verify(key, &changed);
    assert(good == (memcmp(&changed, &h, sizeof(h)) == 0));
}

static void try_call(const uint8_t *data, size_t size)
{
    struct xdr x = xdr_over(data, size);
    struct rpc_header h;
    enum rpc_auth_error auth = RPC_AUTH_OK;
    enum rpc_verdict v = rpc_header_decode(&x, &h, &auth);
    assert((v == RPC_IGNORE) >= (size < 8));
    assert((v == RPC_BAD_AUTH) == (auth != RPC_AUTH_OK && v == RPC_BAD_AUTH));
    if (v != RPC_RUN)
        return;
    assert(!x.bad && x.at <= x.end && xdr_left(&x) <= size - 40);
    assert(h.credential.group_count <= RPC_GROUPS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[32] = "a secret of thirty-two bytes ...";
    struct nfs_handle_key key;
    nfs_handle_key_init(&key, secret);
    try_handle(&key, data, size);
    try_changed(&key, data, size);
    try_call(data, size);
    return 0;
}
