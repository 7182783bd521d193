/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nfs/nfs_handle.h"

/* ---- SipHash-2-4 (Aumasson and Bernstein, 2012), 64-bit output ---- */

static inline uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

static inline void sip_word(uint64_t v[4], uint64_t m)
{
    v[3] ^= m;
    sip_round(v);
    sip_round(v);
    v[0] ^= m;
}

uint64_t siphash24(uint64_t k0, uint64_t k1, const void *data, size_t len)
{
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    const uint8_t *p = data;
    size_t left = len;
    for (; left >= 8; left -= 8, p += 8) {
        struct le64 word;
        memcpy(&word, p, sizeof(word));
        sip_word(v, le64_get(word));
    }
    uint64_t last = (uint64_t)(len & 0xff) << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << (8 * i);
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- Handles ---- */

void nfs_handle_key_init(struct nfs_handle_key *k, const uint8_t *secret)
{
    struct le64 word;
    memcpy(&word, secret, sizeof(word));
    k->k0 = le64_get(word);
    memcpy(&word, secret + 8, sizeof(word));
    k->k1 = le64_get(word);
}

static uint64_t handle_mac(const struct nfs_handle_key *k, const void *bytes)
{
    return siphash24(k->k0, k->k1, bytes, offsetof(struct nfs_handle, mac));
}

void nfs_handle_make(const struct nfs_handle_key *k, const struct nfs_handle_fields *f,
                     struct nfs_handle *ret)
{
    *ret = (struct nfs_handle){
        .version = NFS_HANDLE_VERSION,
        .export_tag = be32_make(f->export_tag),
        .volume_tag = be64_make(f->volume_tag),
        .ino = be64_make(f->ino),
        .generation = be32_make(f->generation),
    };
    ret->mac = le64_make(handle_mac(k, ret));
}

bool nfs_handle_parse(const void *bytes, uint32_t len, struct nfs_handle_fields *ret)
{
    struct nfs_handle h;
    if (len != sizeof(h))
        return false;
    memcpy(&h, bytes, sizeof(h));
    if (h.version != NFS_HANDLE_VERSION || (h.reserved[0] | h.reserved[1] | h.reserved[2]) != 0 ||
        be32_get(h.reserved2) != 0)
        return false;
    ret->export_tag = be32_get(h.export_tag);
    ret->volume_tag = be64_get(h.volume_tag);
    ret->ino = be64_get(h.ino);
    ret->generation = be32_get(h.generation);
    return true;
}

bool nfs_handle_verify(const struct nfs_handle_key *k, const void *bytes)
{
    struct le64 mac;
    memcpy(&mac, (const uint8_t *)bytes + offsetof(struct nfs_handle, mac), sizeof(mac));
    return le64_get(mac) == handle_mac(k, bytes);
}
