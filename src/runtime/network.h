/* SPDX-License-Identifier: Apache-2.0 */
/* IP addresses and networks in CIDR notation, and lists of them: who may come in. */
#ifndef ASHLAR_RUNTIME_NETWORK_H
#define ASHLAR_RUNTIME_NETWORK_H

#include "runtime/base.h"

#define NETWORK_LIST_MAX 64u

struct network {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint8_t bits;        /* that must agree, from the first */
};
struct network_list { /* no rules: everybody */
    uint32_t count;
    struct network rules[NETWORK_LIST_MAX];
};

/* An address as bytes (IPv4 mapped into IPv6), perhaps with a zone ("fe80::1%eth0"), which is left out.
 * ERR_INVALID. */
int network_address_parse(const char *ip, uint8_t ret[16]) MUST_CHECK;

/* "10.0.0.0/8, 192.168.1.7, fd00::/8": separated by commas or blanks; an address alone is itself only; "" is
 * everybody. Bits beyond the mask must be zero, so that a slip is noticed. ERR_INVALID. */
int network_list_parse(const char *text, struct network_list *ret) MUST_CHECK;
bool network_list_contains(const struct network_list *list, const uint8_t address[16]);
/* ip: text of an address, perhaps with a zone, or "" for a local socket, which the permissions of its file
 * guard: always allowed. What is not an address is allowed nothing. */
bool network_list_allows(const struct network_list *list, const char *ip);

#endif
