/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/address.h"
#include "runtime/error.h"

static bool address_copy(char *to, size_t size, const char *from, size_t len)
{
    if (len == 0 || len >= size)
        return false;
    memcpy(to, from, len);
    to[len] = '\0';
    return true;
}

static bool address_port_valid(const char *port)
{
    uint32_t n = 0;
    for (const char *p = port; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            return false;
        n = n * 10 + (uint32_t)(*p - '0');
        if (n > UINT16_MAX)
            return false;
    }
    return *port != '\0';
}

static int address_parse_tcp(const char *text, struct address *a)
{
    const char *host = text, *host_end, *port;
    if (*text == '[') {
        host = text + 1;
        host_end = strchr(host, ']');
        if (host_end == NULL || host_end[1] != ':')
            return ERR_INVALID;
        port = host_end + 2;
    } else {
        host_end = strchr(host, ':');
        if (host_end == NULL)
            return ERR_INVALID;
        port = host_end + 1;
    }
    if (!address_copy(a->host, sizeof(a->host), host, (size_t)(host_end - host)))
        return ERR_INVALID;
    if (!address_port_valid(port) || !address_copy(a->port, sizeof(a->port), port, strlen(port)))
        return ERR_INVALID;
    return 0;
}

int address_parse(const char *text, struct address *ret)
{
    struct address a = {.kind = ADDRESS_TCP};
    if (strncmp(text, "tcp:", 4) == 0 || strncmp(text, "udp:", 4) == 0) {
        a.kind = *text == 't' ? ADDRESS_TCP : ADDRESS_UDP;
        int err = address_parse_tcp(text + 4, &a);
        if (err != 0)
            return err;
    } else if (strncmp(text, "unix:", 5) == 0) {
        a.kind = ADDRESS_UNIX;
        if (!address_copy(a.path, sizeof(a.path), text + 5, strlen(text + 5)))
            return ERR_INVALID;
    } else {
        return ERR_INVALID;
    }
    *ret = a;
    return 0;
}
