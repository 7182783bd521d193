/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base.h"
#include "runtime/error.h"

/* A dash stands before these bytes of the text form. */
static bool uuid_dash_before(size_t byte)
{
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void uuid_format(struct uuid id, char out[UUID_TEXT_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    char *p = out;
    for (size_t i = 0; i < sizeof(id.b); i++) {
        if (uuid_dash_before(i))
            *p++ = '-';
        *p++ = digits[id.b[i] >> 4];
        *p++ = digits[id.b[i] & 15];
    }
    *p = '\0';
    assert(p - out == UUID_TEXT_SIZE - 1);
}

static int uuid_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int uuid_parse(const char *text, struct uuid *ret_id)
{
    struct uuid id;
    const char *p = text;
    for (size_t i = 0; i < sizeof(id.b); i++) {
        if (uuid_dash_before(i) && *p++ != '-')
            return ERR_UUID_SYNTAX;
        int high = uuid_digit(p[0]);
        int low = high < 0 ? -1 : uuid_digit(p[1]); /* never looks beyond the terminating NUL */
        if (low < 0)
            return ERR_UUID_SYNTAX;
        id.b[i] = (uint8_t)(high << 4 | low);
        p += 2;
    }
    if (*p != '\0')
        return ERR_UUID_SYNTAX;
    *ret_id = id;
    return 0;
}
