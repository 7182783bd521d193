/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nbd/nbd_acl.h"
#include "runtime/error.h"

#include <arpa/inet.h>

/* Returns the number of bits of the address as it was written (32 or 128), 0 if it is none. */
static unsigned address_parse(const char *text, uint8_t out[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (inet_pton(AF_INET, text, out + 12) == 1) {
        memcpy(out, mapped, sizeof(mapped));
        return 32;
    }
    return inet_pton(AF_INET6, text, out) == 1 ? 128 : 0;
}

static bool bits_agree(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned bytes = bits / 8, rest = bits % 8;
    if (memcmp(a, b, bytes) != 0)
        return false;
    return rest == 0 || (a[bytes] ^ b[bytes]) >> (8 - rest) == 0;
}

static bool bits_beyond_are_zero(const uint8_t *a, unsigned bits)
{
    for (unsigned i = bits; i < 128; i++) {
        if (a[i / 8] & (0x80 >> i % 8))
            return false;
    }
    return true;
}

static int rule_parse(const char *text, size_t len, struct nbd_acl_rule *ret)
{
    char copy[64];
    if (len >= sizeof(copy))
        return ERR_INVALID;
    memcpy(copy, text, len);
    copy[len] = '\0';
    char *slash = strchr(copy, '/');
    if (slash != NULL)
        *slash = '\0';
    struct nbd_acl_rule r;
    unsigned width = address_parse(copy, r.address), bits = width;
    if (width == 0)
        return ERR_INVALID;
    if (slash != NULL) {
        bits = 0;
        const char *p = slash + 1;
        if (*p == '\0' || strlen(p) > 3)
            return ERR_INVALID;
        for (; *p != '\0'; p++) {
            if (*p < '0' || *p > '9')
                return ERR_INVALID;
            bits = bits * 10 + (unsigned)(*p - '0');
        }
        if (bits > width)
            return ERR_INVALID;
    }
    r.bits = (uint8_t)(128 - width + bits);
    if (!bits_beyond_are_zero(r.address, r.bits))
        return ERR_INVALID;
    *ret = r;
    return 0;
}

int nbd_acl_parse(const char *text, struct nbd_acl *ret)
{
    struct nbd_acl acl = {0};
    static const char separators[] = ", \t\n";
    for (text += strspn(text, separators); *text != '\0'; text += strspn(text, separators)) {
        size_t len = strcspn(text, separators);
        if (acl.count == NBD_ACL_MAX)
            return ERR_INVALID;
        int err = rule_parse(text, len, &acl.rules[acl.count]);
        if (err != 0)
            return err;
        acl.count++;
        text += len;
    }
    *ret = acl;
    return 0;
}

bool nbd_acl_allows(const struct nbd_acl *acl, const char *ip)
{
    if (acl->count == 0 || ip[0] == '\0')
        return true;
    char copy[64];
    size_t len = strcspn(ip, "%");
    if (len >= sizeof(copy))
        return false;
    memcpy(copy, ip, len);
    copy[len] = '\0';
    uint8_t address[16];
    if (address_parse(copy, address) == 0)
        return false;
    for (uint32_t i = 0; i < acl->count; i++) {
        if (bits_agree(address, acl->rules[i].address, acl->rules[i].bits))
            return true;
    }
    return false;
}
