/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/network.h"
#include "runtime/error.h"

#include <arpa/inet.h>

/* Returns the number of bits of the address as it was written (32 or 128), 0 if it is none. */
static unsigned text_parse(const char *text, uint8_t out[16])
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

static int rule_parse(const char *text, size_t len, struct network *ret)
{
    char copy[64];
    if (len >= sizeof(copy))
        return ERR_INVALID;
    memcpy(copy, text, len);
    copy[len] = '\0';
    char *slash = strchr(copy, '/');
    if (slash != NULL)
        *slash = '\0';
    struct network r;
    unsigned width = text_parse(copy, r.address), bits = width;
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

int network_list_parse(const char *text, struct network_list *ret)
{
    struct network_list list = {0};
    static const char separators[] = ", \t\n";
    for (text += strspn(text, separators); *text != '\0'; text += strspn(text, separators)) {
        size_t len = strcspn(text, separators);
        if (list.count == NETWORK_LIST_MAX)
            return ERR_INVALID;
        int err = rule_parse(text, len, &list.rules[list.count]);
        if (err != 0)
            return err;
        list.count++;
        text += len;
    }
    *ret = list;
    return 0;
}

int network_address_parse(const char *ip, uint8_t ret[16])
{
    char copy[64];
    uint8_t address[16];
    size_t len = strcspn(ip, "%");
    if (len >= sizeof(copy))
        return ERR_INVALID;
    memcpy(copy, ip, len);
    copy[len] = '\0';
    if (text_parse(copy, address) == 0)
        return ERR_INVALID;
    memcpy(ret, address, sizeof(address));
    return 0;
}

bool network_list_contains(const struct network_list *list, const uint8_t address[16])
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (bits_agree(address, list->rules[i].address, list->rules[i].bits))
            return true;
    }
    return list->count == 0;
}

bool network_list_allows(const struct network_list *list, const char *ip)
{
    uint8_t address[16];
    if (list->count == 0 || ip[0] == '\0')
        return true;
    return network_address_parse(ip, address) == 0 && network_list_contains(list, address);
}
