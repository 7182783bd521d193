/* SPDX-License-Identifier: Apache-2.0 */
/* Text forms of where a stream goes: "tcp:HOST:PORT", "tcp:[IPV6]:PORT", "unix:PATH"; or a datagram:
 * "udp:HOST:PORT". */
#ifndef ASHLAR_RUNTIME_ADDRESS_H
#define ASHLAR_RUNTIME_ADDRESS_H

#include "runtime/base.h"

enum address_kind { ADDRESS_TCP, ADDRESS_UNIX, ADDRESS_UDP };
struct address {
    enum address_kind kind;
    char host[72]; /* without brackets */
    char port[8];  /* decimal, 0..65535 */
    char path[108];
};

/* 0, or ERR_INVALID. */
int address_parse(const char *text, struct address *ret) MUST_CHECK;

#endif
