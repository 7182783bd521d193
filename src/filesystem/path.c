/* SPDX-License-Identifier: Apache-2.0 */
/* Paths, for people and for exports: inside of the file system nothing has one. */
#include "filesystem/names_internal.h"

#include <stdio.h>
#include <sys/stat.h>

static const struct fs_request as_root = {.cred = {.trusted = true}};

int fs_path_find(struct fs *fs, const char *path, struct fs_attr *ret)
{
    struct fs_attr at;
    int r = fs_getattr(fs, &as_root, FS_INO_ROOT, 0, &at);

    while (!r) {
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        if (len == 0)
            break;
        r = len > FS_NAME_MAX ? ERR_FS_NAME_TOO_LONG
                              : fs_lookup(fs, &as_root, at.ino, path, (uint32_t)len, &at, NULL);
        path += len;
    }
    if (!r)
        *ret = at;
    return r;
}

struct search {
    uint64_t ino;
    uint64_t cookie;
    uint32_t left; /* names to look at, so that a huge directory does not hold people up */
    uint32_t len;
    char name[FS_NAME_MAX];
};
#define SEARCH_NAMES_MAX 200000u

static bool search_emit(void *ctx, const struct fs_dirent *e)
{
    struct search *s = ctx;

    if (s->len > 0 || s->left == 0)
        return false;
    s->left--;
    s->cookie = e->cookie;
    if (e->ino == s->ino && e->cookie >= FS_COOKIE_FIRST) {
        s->len = e->name_len;
        memcpy(s->name, e->name, e->name_len);
    }
    return true;
}

/* The name of ino in dir. */
static may_yield int name_of(struct fs *fs, uint64_t dir, uint64_t ino, struct search *s)
{
    bool eof = false;
    int r = 0;

    *s = (struct search){.ino = ino, .left = SEARCH_NAMES_MAX};
    while (!r && !eof && s->len == 0 && s->left > 0)
        r = fs_readdir(fs, &as_root, dir, s->cookie, false, search_emit, s, &eof, NULL);
    return r ? r : s->len > 0 ? 0 : ERR_FS_NOT_FOUND;
}

int fs_path_of(struct fs *fs, uint64_t ino, char *buf, size_t size)
{
    struct inode n;
    struct search s;
    size_t at;
    int r = inode_read(fs, ino, 0, &n);

    if (r)
        return r;
    if (size < 32)
        return ERR_INVALID;
    if (ino == FS_INO_ROOT) {
        (void)snprintf(buf, size, "/");
        return 0;
    }
    /* From the end of the buffer towards its beginning. */
    at = size - 1;
    buf[at] = 0;
    while (!r && n.ino != FS_INO_ROOT) {
        uint64_t dir = n.parent;
        r = dir == 0 ? ERR_FS_NOT_FOUND : name_of(fs, dir, n.ino, &s);
        if (!r && s.len + 1 > at)
            r = ERR_FS_NAME_TOO_LONG;
        if (r)
            break;
        at -= s.len;
        memcpy(buf + at, s.name, s.len);
        buf[--at] = '/';
        r = inode_read(fs, dir, 0, &n);
    }
    if (r == 0)
        memmove(buf, buf + at, size - at);
    else
        (void)snprintf(buf, size, "(ino %llu)", (unsigned long long)ino);
    return 0;
}
