/* SPDX-License-Identifier: Apache-2.0 */
/* Mount options as fstab and mount(8) write them. */
#include "protocols/fuse/fuse_client.h"
#include "runtime/error.h"

#include <stdlib.h>

/* Handled by mount(8), systemd or libmount; the kernel would refuse them. */
static const char *const ignored[] = {"defaults", "auto",  "noauto", "nofail", "_netdev", "user",
                                      "nouser",   "users", "owner",  "group",  "rw",      "comment"};
static const char *const kernel[] = {"ro",      "suid",     "nosuid",  "dev",        "nodev",
                                     "exec",    "noexec",   "atime",   "noatime",    "sync",
                                     "dirsync", "max_read", "context", "rootcontext"};

static bool is_one_of(const char *word, size_t len, const char *const *list, size_t count)
{
    size_t name_len = 0;
    while (name_len < len && word[name_len] != '=')
        name_len++;
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == name_len && memcmp(word, list[i], name_len) == 0)
            return true;
    return false;
}

static bool is_word(const char *word, size_t len, const char *text)
{
    return strlen(text) == len && memcmp(word, text, len) == 0;
}

/* "key=SECONDS", with a fraction. */
static bool seconds(const char *word, size_t len, const char *key, uint32_t *ret_ms)
{
    char text[32];
    size_t key_len = strlen(key);
    if (len <= key_len || memcmp(word, key, key_len) != 0 || len - key_len >= sizeof(text))
        return false;
    memcpy(text, word + key_len, len - key_len);
    text[len - key_len] = '\0';
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= 86400))
        return false;
    *ret_ms = (uint32_t)(value * 1000);
    return true;
}

static bool socket_path(struct fuse_mount_options *o, const char *word, size_t len)
{
    static char path[108];
    static const char key[] = "socket=";
    size_t key_len = sizeof(key) - 1;
    if (len <= key_len || memcmp(word, key, key_len) != 0 || len - key_len >= sizeof(path))
        return false;
    memcpy(path, word + key_len, len - key_len);
    path[len - key_len] = '\0';
    o->socket = path;
    return true;
}

static bool keep(struct fuse_mount_options *o, const char *word, size_t len)
{
    size_t used = strlen(o->extra);
    if (used + len + 2 > sizeof(o->extra))
        return false;
    if (used > 0)
        o->extra[used++] = ',';
    memcpy(o->extra + used, word, len);
    o->extra[used + len] = '\0';
    return true;
}

MUST_CHECK static bool add_one(struct fuse_mount_options *o, const char *word, size_t len)
{
    if (is_word(word, len, "writeback"))
        o->writeback = true;
    else if (is_word(word, len, "allow_other"))
        o->allow_other = true;
    else if (is_word(word, len, "noallow_other"))
        o->allow_other = false;
    else if (is_word(word, len, "foreground"))
        o->foreground = true;
    else if (seconds(word, len, "attr_timeout=", &o->attr_timeout_ms) ||
             seconds(word, len, "entry_timeout=", &o->entry_timeout_ms) ||
             seconds(word, len, "wait=", &o->wait_ms) || socket_path(o, word, len))
        return true;
    else if (is_one_of(word, len, kernel, ARRAY_SIZE(kernel)))
        return keep(o, word, len);
    else
        return is_one_of(word, len, ignored, ARRAY_SIZE(ignored)) ||
               (len > 2 && (memcmp(word, "x-", 2) == 0 || memcmp(word, "X-", 2) == 0));
    return true;
}

int fuse_mount_options_add(struct fuse_mount_options *o, const char *text, char *bad, size_t bad_size)
{
    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        if (len > 0 && !add_one(o, text, len)) {
            size_t n = MIN(len, bad_size - 1);
            memcpy(bad, text, n);
            bad[n] = '\0';
            return ERR_INVALID;
        }
        text += len;
        if (*text == ',')
            text++;
    }
    return 0;
}
