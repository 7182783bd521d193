/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in the tree. A directory's names lie under its number in the order of a secret hash; those of one
 * hash share an item (a bucket) with a slot each. A name's cookie is hash and slot: it depends on nothing
 * else, so a reader of a directory goes on behind it whatever was made or removed meanwhile (F3).
 *
 * What is read here comes from the drives and is checked by bucket_decode() before anything is believed.
 */
#include "filesystem/names_internal.h"
#include "runtime/checksum.h"

#include <dirent.h>
#include <sys/stat.h>

uint8_t mode_dt(uint32_t mode)
{
    return (uint8_t)IFTODT(mode);
}

/* ---- Names ---- */

bool name_is_dot(const char *bytes, uint32_t len)
{
    return len == 1 && bytes[0] == '.';
}

bool name_is_dotdot(const char *bytes, uint32_t len)
{
    return len == 2 && bytes[0] == '.' && bytes[1] == '.';
}

static uint64_t name_hash(const struct fs *fs, const char *bytes, uint32_t len)
{
    char folded[FS_NAME_MAX * 3 / 2 + 8];
    uint64_t seed[2];

    memcpy(seed, fs->hash_seed, sizeof(seed));
    if (fs->flags & FS_CASE_INSENSITIVE) {
        len = casefold(bytes, len, folded, sizeof(folded));
        bytes = folded;
    }
    return hash_mix64(hash64(bytes, len, seed[0]) ^ seed[1]);
}

int name_init(const struct fs *fs, const char *bytes, uint32_t len, struct name *ret)
{
    if (len == 0)
        return ERR_FS_BAD_NAME;
    if (len > FS_NAME_MAX)
        return ERR_FS_NAME_TOO_LONG;
    if (memchr(bytes, '/', len) || memchr(bytes, 0, len))
        return ERR_FS_BAD_NAME;
    uint64_t base = name_hash(fs, bytes, len) & (FS_COOKIE_MAX - 1) & ~(uint64_t)(BUCKET_SLOTS - 1);
    *ret = (struct name){.bytes = bytes, .len = len, .base = MAX(base, FS_COOKIE_FIRST)};
    return 0;
}

static bool name_equal(const struct fs *fs, const struct name *n, const char *bytes, uint32_t len)
{
    char a[FS_NAME_MAX * 3 / 2 + 8], b[FS_NAME_MAX * 3 / 2 + 8];

    if (n->len == len && memcmp(n->bytes, bytes, len) == 0)
        return true;
    if (!(fs->flags & FS_CASE_INSENSITIVE))
        return false;
    uint32_t a_len = casefold(n->bytes, n->len, a, sizeof(a)), b_len = casefold(bytes, len, b, sizeof(b));
    return a_len == b_len && memcmp(a, b, a_len) == 0;
}

/* ---- Buckets ---- */

static bool entry_type_ok(uint8_t type)
{
    return type == DT_REG || type == DT_DIR || type == DT_LNK || type == DT_FIFO || type == DT_SOCK ||
           type == DT_CHR || type == DT_BLK;
}

int entry_decode(const void *bytes, uint32_t len, uint32_t *at, struct entry *ret)
{
    struct disk_dirent d;
    const uint8_t *p = bytes;

    if (*at > len || len - *at < sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, p + *at, sizeof(d));
    if (d.name_len == 0 || d.name_len > len - *at - sizeof(d) || d.slot >= BUCKET_SLOTS ||
        !entry_type_ok(d.type) || le64_get(d.ino) == 0)
        return ERR_VOLUME_CORRUPT;
    const char *name = (const char *)p + *at + sizeof(d);
    if (memchr(name, '/', d.name_len) || memchr(name, 0, d.name_len) || name_is_dot(name, d.name_len) ||
        name_is_dotdot(name, d.name_len))
        return ERR_VOLUME_CORRUPT;
    *ret = (struct entry){.ino = le64_get(d.ino),
                          .generation = le32_get(d.generation),
                          .type = d.type,
                          .slot = d.slot,
                          .name_len = d.name_len,
                          .name = name};
    *at += (uint32_t)sizeof(d) + d.name_len;
    return 0;
}

/* Entries are in the order of their slots, so that none is there twice. */
int bucket_decode(const void *bytes, uint32_t len)
{
    struct entry e;
    uint32_t at = 0;
    int last = -1;

    if (len == 0 || len > BUCKET_MAX)
        return ERR_VOLUME_CORRUPT;
    while (at < len) {
        int r = entry_decode(bytes, len, &at, &e);
        if (r)
            return r;
        if (e.slot <= last)
            return ERR_VOLUME_CORRUPT;
        last = e.slot;
    }
    return 0;
}

void bucket_want(struct change *c, uint64_t dir, const struct name *n, uint32_t known_len, uint32_t more)
{
    change_want(c, bucket_key(dir, n->base));
    change_will_put(c, MIN(known_len + more, (uint32_t)BUCKET_MAX));
    change_will_delete(c);
}

int bucket_get(struct change *c, uint64_t dir, const struct name *n, struct bucket *ret)
{
    const void *value;
    uint32_t len;

    ret->key = bucket_key(dir, n->base);
    ret->len = 0;
    ret->stored = false;
    int r = change_get(c, ret->key, &value, &len);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (!r)
        r = bucket_decode(value, len);
    if (r)
        return r;
    memcpy(ret->bytes, value, len);
    ret->len = len;
    ret->stored = true;
    return 0;
}

int bucket_read(struct fs *fs, uint64_t dir, const struct name *n, struct bucket *ret)
{
    uint32_t len;

    ret->key = bucket_key(dir, n->base);
    ret->len = 0;
    ret->stored = false;
    int r = volume_item_get(fs->volume, ret->key, ret->bytes, sizeof(ret->bytes), &len);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (!r)
        r = bucket_decode(ret->bytes, len);
    if (r)
        return r == ERR_INVALID ? ERR_VOLUME_CORRUPT : r;
    ret->len = len;
    ret->stored = true;
    return 0;
}

bool bucket_find(const struct fs *fs, const struct bucket *b, const struct name *n, struct entry *ret)
{
    for (uint32_t at = 0; at < b->len;) {
        struct entry e;
        int r = entry_decode(b->bytes, b->len, &at, &e);
        assert(r == 0); /* was checked when it was copied */
        if (name_equal(fs, n, e.name, e.name_len)) {
            *ret = e;
            return true;
        }
    }
    return false;
}

int bucket_add(struct bucket *b, const struct name *n, uint64_t ino, uint32_t generation, uint32_t mode)
{
    struct disk_dirent d = {.ino = le64_make(ino),
                            .generation = le32_make(generation),
                            .type = mode_dt(mode),
                            .name_len = (uint8_t)n->len};
    uint32_t at = 0, next = 0;
    struct entry e;

    while (next < b->len) { /* the first slot that is free, and where its entry belongs */
        int r = entry_decode(b->bytes, b->len, &next, &e);
        assert(r == 0);
        if (e.slot != d.slot)
            break;
        d.slot++;
        at = next;
    }
    if (d.slot >= BUCKET_SLOTS)
        return ERR_FS_DIR_FULL;
    uint32_t add = name_bytes(n);
    assert(b->len + add <= BUCKET_MAX);
    memmove(b->bytes + at + add, b->bytes + at, b->len - at);
    memcpy(b->bytes + at, &d, sizeof(d));
    memcpy(b->bytes + at + sizeof(d), n->bytes, n->len);
    b->len += add;
    return 0;
}

/* Where the entry of a slot lies, and its length. */
static uint32_t bucket_at(const struct bucket *b, uint8_t slot, uint32_t *ret_len)
{
    struct entry e;
    uint32_t at = 0;

    for (;;) {
        uint32_t begin = at;
        assert(at < b->len);
        int r = entry_decode(b->bytes, b->len, &at, &e);
        assert(r == 0);
        if (e.slot == slot) {
            *ret_len = at - begin;
            return begin;
        }
    }
}

void bucket_remove(struct bucket *b, uint8_t slot)
{
    uint32_t len, at = bucket_at(b, slot, &len);

    memmove(b->bytes + at, b->bytes + at + len, b->len - at - len);
    b->len -= len;
}

void bucket_replace(struct bucket *b, uint8_t slot, uint64_t ino, uint32_t generation, uint32_t mode)
{
    struct disk_dirent d;
    uint32_t len, at = bucket_at(b, slot, &len);

    memcpy(&d, b->bytes + at, sizeof(d));
    d.ino = le64_make(ino);
    d.generation = le32_make(generation);
    d.type = mode_dt(mode);
    memcpy(b->bytes + at, &d, sizeof(d));
}

void bucket_put(struct change *c, struct bucket *b)
{
    if (b->len > 0)
        change_put(c, b->key, b->bytes, b->len);
    else if (b->stored)
        change_delete(c, b->key);
    b->stored = b->len > 0;
}

int dir_get(struct fs *fs, struct change *c, uint64_t ino, struct inode *ret, struct fs_wcc *w)
{
    int r = inode_get(fs, c, ino, ret);

    if (r)
        return r;
    wcc_before(w, ret);
    wcc_after(w, ret);
    if (!S_ISDIR(ret->mode))
        return ERR_FS_NOT_DIRECTORY;
    return ret->nlink == 0 ? ERR_FS_NOT_FOUND : 0;
}
