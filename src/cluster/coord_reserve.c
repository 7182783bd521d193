/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/coord_reserve.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define SUFFIX ".reserve"

static const char explanation[] =
    "This file only holds some space, so that ashlard can start and delete volumes on a full file system.\n"
    "It is removed when a change of coord.json finds no room, and made again once there is some.\n"
    "Its content means nothing.\n\n";

int coord_reserve_init(struct coord_reserve *v, const char *path)
{
    size_t len = strlen(path);
    *v = (struct coord_reserve){.path = malloc(len + sizeof(SUFFIX))};
    if (v->path == NULL)
        return ERR_NO_MEMORY;
    memcpy(v->path, path, len);
    memcpy(v->path + len, SUFFIX, sizeof(SUFFIX));
    struct file *f;
    struct file_info info;
    if (file_open(v->path, 0, &f) != 0)
        return 0; /* it is made after the first change */
    if (file_get_info(f, &info) == 0)
        v->size_bytes = info.size_bytes;
    file_close(f);
    return 0;
}

void coord_reserve_done(struct coord_reserve *v)
{
    free(v->path);
    v->path = NULL;
}

bool coord_reserve_wanted(int err)
{
    return err == ERR_SYS(ENOSPC) || err == ERR_SYS(EDQUOT);
}

/* Written, not just allocated, and with bytes that no file system compresses or leaves out. */
static void fill(char *out, size_t len)
{
    uint64_t x = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = (char)(x >> 56);
    }
    memcpy(out, explanation, sizeof(explanation) - 1);
}

void coord_reserve_keep(struct coord_reserve *v, uint64_t file_bytes)
{
    uint64_t want = COORD_RESERVE_MIN_BYTES;
    while (want < 4 * file_bytes)
        want *= 2;
    if (v->size_bytes >= want)
        return;
    char *data = malloc(want);
    int err = data == NULL ? ERR_NO_MEMORY : 0;
    if (err == 0) {
        fill(data, want);
        err = file_replace(v->path, data, want);
    }
    free(data);
    if (err == 0) {
        v->size_bytes = want;
        v->told = false;
        return;
    }
    if (!v->told)
        event_raise(
            LOG_WARNING_, "coord-reserve-missing",
            "%s cannot be made: %s: make room on its file system, or the node may not be able to start "
            "or to delete volumes once that is full",
            v->path, error_text(err));
    v->told = true;
}

bool coord_reserve_give(struct coord_reserve *v)
{
    if (v->size_bytes == 0)
        return false;
    int err = file_unlink(v->path);
    if (err != 0 && err != ERR_SYS(ENOENT)) {
        LOG_WARNING("%s could not be removed: %s", v->path, error_text(err));
        return false;
    }
    v->size_bytes = 0;
    event_raise(LOG_WARNING_, "coord-reserve-used",
                "the file system under %s is full: the space kept for this gave way to a change", v->path);
    return true;
}
