/* SPDX-License-Identifier: Apache-2.0 */
/* Access lists by address: networks of IPv4 and IPv6 in CIDR notation. */
#ifndef ASHLAR_PROTOCOLS_NBD_ACL_H
#define ASHLAR_PROTOCOLS_NBD_ACL_H

#include "runtime/base.h"

#define NBD_ACL_MAX 64u

struct nbd_acl_rule {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint8_t bits;        /* that must agree, from the first */
};
struct nbd_acl { /* no rules: everybody */
    uint32_t count;
    struct nbd_acl_rule rules[NBD_ACL_MAX];
};

/* "10.0.0.0/8, 192.168.1.7, fd00::/8": separated by commas or blanks; an address alone is itself only; "" is
 * everybody. Bits beyond the mask must be zero, so that a slip is noticed. ERR_INVALID. */
int nbd_acl_parse(const char *text, struct nbd_acl *ret) MUST_CHECK;
/* ip: text of an address, perhaps with a zone ("fe80::1%eth0"), or "" for a local socket, which the
 * permissions of its file guard: always allowed. What is not an address is allowed nothing. */
bool nbd_acl_allows(const struct nbd_acl *acl, const char *ip);

#endif
