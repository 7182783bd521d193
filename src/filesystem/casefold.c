/* SPDX-License-Identifier: Apache-2.0 */
/* Names that differ only in case: Unicode's simple folding, code point by code point. No normalisation: what
 * looks the same but is composed differently is another name, as on other servers. */
#include "filesystem/casefold_table.h"
#include "filesystem/names_internal.h"

uint32_t casefold_point(uint32_t point)
{
    uint32_t low = 0, high = ARRAY_SIZE(casefold_runs);

    if (point < 0x80)
        return point >= 'A' && point <= 'Z' ? point + 32 : point;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        const struct casefold_run *run = &casefold_runs[mid];
        if (point < run->first)
            high = mid;
        else if (point > run->last)
            low = mid + 1;
        else
            return (point - run->first) % run->step == 0 ? (uint32_t)((int32_t)point + run->delta) : point;
    }
    return point;
}

/* Length of the well-formed UTF-8 character at p, 0 if it is none (overlong and surrogates are none). */
static uint32_t utf8_get(const uint8_t *p, uint32_t len, uint32_t *ret_point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t n = p[0] < 0x80 ? 1 : (p[0] & 0xe0) == 0xc0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : 4;
    uint32_t point = n == 1 ? p[0] : p[0] & (0x7fu >> n);

    if (n > len || (n == 4 && (p[0] & 0xf8) != 0xf0))
        return 0;
    for (uint32_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (p[i] & 0x3f);
    }
    if (point < least[n] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
        return 0;
    *ret_point = point;
    return n;
}

static uint32_t utf8_put(uint32_t point, uint8_t *out)
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    uint32_t n = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (uint32_t i = n - 1; i > 0; i--, point >>= 6)
        out[i] = (uint8_t)(0x80 | (point & 0x3f));
    out[0] = (uint8_t)((0xf00u >> n & 0xff) | point);
    return n;
}

uint32_t casefold(const char *bytes, uint32_t len, char *out, uint32_t max)
{
    const uint8_t *p = (const uint8_t *)bytes;
    uint32_t n = 0;

    /* The longest growth is from two bytes to three. */
    assert(max >= len + len / 2 + 4);
    for (uint32_t i = 0; i < len;) {
        uint32_t point, used = utf8_get(p + i, len - i, &point);
        if (used == 0) {
            out[n++] = bytes[i++];
            continue;
        }
        n += utf8_put(casefold_point(point), (uint8_t *)out + n);
        i += used;
    }
    assert(n <= max);
    return n;
}
