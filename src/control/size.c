/* SPDX-License-Identifier: Apache-2.0 */
#include "control/size.h"

#include "runtime/error.h"

#include <ctype.h>
#include <stdio.h>

static const char size_units[] = "KMGTPE";

/* The power of 1024 of a unit's text, "" being 0; -1 if it is none. */
static int unit_power(const char *text)
{
    if (text[0] == '\0')
        return 0;
    if ((text[0] == 'b' || text[0] == 'B') && text[1] == '\0')
        return 0;
    const char *at = strchr(size_units, toupper((unsigned char)text[0]));
    if (at == NULL)
        return -1;
    const char *rest = text + 1;
    if (rest[0] == 'i' || rest[0] == 'I') {
        if (rest[1] != 'b' && rest[1] != 'B')
            return -1;
        rest++;
    }
    if (rest[0] == 'b' || rest[0] == 'B')
        rest++;
    return rest[0] == '\0' ? (int)(at - size_units) + 1 : -1;
}

int size_parse(const char *text, uint64_t *ret_bytes)
{
    unsigned __int128 whole = 0, fraction = 0, scale = 1;
    const char *p = text;
    if (!isdigit((unsigned char)*p))
        return ERR_INVALID;
    for (; isdigit((unsigned char)*p); p++) {
        whole = whole * 10 + (unsigned)(*p - '0');
        if (whole > INT64_MAX)
            return ERR_INVALID;
    }
    if (*p == '.') {
        p++;
        if (!isdigit((unsigned char)*p))
            return ERR_INVALID;
        for (; isdigit((unsigned char)*p); p++) {
            if (scale >= UINT64_C(1000000000000))
                continue; /* further digits are less than a byte of any unit that people use with them */
            fraction = fraction * 10 + (unsigned)(*p - '0');
            scale *= 10;
        }
    }
    while (*p == ' ')
        p++;
    int power = unit_power(p);
    if (power < 0)
        return ERR_INVALID;
    unsigned __int128 unit = (unsigned __int128)1 << (10 * power);
    unsigned __int128 bytes = whole * unit + fraction * unit / scale;
    if (bytes > INT64_MAX)
        return ERR_INVALID;
    *ret_bytes = (uint64_t)bytes;
    return 0;
}

void size_format(uint64_t bytes, char out[SIZE_TEXT_SIZE])
{
    if (bytes < KIB) {
        snprintf(out, SIZE_TEXT_SIZE, "%u B", (unsigned)bytes);
        return;
    }
    int power = (63 - __builtin_clzll(bytes)) / 10;
    uint64_t unit = UINT64_C(1) << (10 * power);
    /* Tenths, rounded to the nearest; 1023.96 KiB becomes 1 MiB rather than "1024.0 KiB". */
    uint64_t tenths = (uint64_t)(((unsigned __int128)bytes * 10 + unit / 2) / unit);
    if (tenths >= 10240 && power < 6) {
        power++;
        unit <<= 10;
        tenths = 10;
    }
    if (bytes % unit == 0 || tenths % 10 == 0)
        snprintf(out, SIZE_TEXT_SIZE, "%u %ciB", (unsigned)(tenths / 10), size_units[power - 1]);
    else
        snprintf(out, SIZE_TEXT_SIZE, "%u.%u %ciB", (unsigned)(tenths / 10), (unsigned)(tenths % 10),
                 size_units[power - 1]);
}

void duration_format(uint64_t ns, char out[DURATION_TEXT_SIZE])
{
    uint64_t s = ns / NSEC_PER_SEC;
    if (ns < NSEC_PER_MSEC)
        snprintf(out, DURATION_TEXT_SIZE, "%u us", (unsigned)(ns / NSEC_PER_USEC));
    else if (ns < NSEC_PER_SEC)
        snprintf(out, DURATION_TEXT_SIZE, "%.1f ms", (double)ns / (double)NSEC_PER_MSEC);
    else if (s < 60)
        snprintf(out, DURATION_TEXT_SIZE, "%u s", (unsigned)s);
    else if (s < 3600)
        snprintf(out, DURATION_TEXT_SIZE, "%u min %u s", (unsigned)(s / 60), (unsigned)(s % 60));
    else if (s < 86400)
        snprintf(out, DURATION_TEXT_SIZE, "%u h %u min", (unsigned)(s / 3600), (unsigned)(s % 3600 / 60));
    else
        snprintf(out, DURATION_TEXT_SIZE, "%u d %u h", (unsigned)MIN(s / 86400, 999999u),
                 (unsigned)(s % 86400 / 3600));
}
