/* SPDX-License-Identifier: Apache-2.0 */
/* What clients do with file systems: operations, clients and files between two looks. */
#include "control/top.h"

#include <stdio.h>
#include <stdlib.h>

#define TOP_FILES 16u

struct look_fs {
    struct uuid id;
    char name[VOLUME_NAME_MAX + 1];
    struct fs_op_stats ops[FS_OP_COUNT];
    struct fs_client_stats clients[FS_CLIENTS_MAX];
    struct fs_file_stats files[TOP_FILES];
    char paths[TOP_FILES][256];
    uint32_t file_count;
};

/* ---- A look ---- */

static int fs_here(struct fs *fs, void *arg) may_yield
{
    struct look_fs *l = arg;
    for (enum fs_op op = 0; op < FS_OP_COUNT; op++)
        l->ops[op] = *fs_stats(fs, op);
    for (uint32_t i = 0; i < FS_CLIENTS_MAX; i++) {
        const struct fs_client_stats *c = fs_client_stats(fs, i);
        if (c != NULL)
            l->clients[i] = *c;
    }
    l->file_count = fs_file_stats(fs, l->files, TOP_FILES);
    for (uint32_t i = 0; i < l->file_count; i++) {
        int r = fs_path_of(fs, l->files[i].ino, l->paths[i], sizeof(l->paths[i]));
        if (r == ERR_FS_STALE) /* removed meanwhile: its traffic was there all the same */
            snprintf(l->paths[i], sizeof(l->paths[i]), "(removed, ino %llu)",
                     (unsigned long long)l->files[i].ino);
        else if (r < 0)
            return r;
    }
    return 0;
}

int look_fs_take(struct node *n, struct look_fs **ret, uint32_t *ret_count)
{
    struct node_volume **volumes;
    uint32_t count, found = 0;
    int r = node_volumes_snapshot(n, &volumes, &count);
    if (r < 0)
        return r;
    struct look_fs *all = calloc(count + 1, sizeof(*all));
    for (uint32_t i = 0; all != NULL && i < count; i++) {
        if (!volumes[i]->is_fs)
            continue;
        struct look_fs *l = &all[found];
        if (node_fs_call(n, volumes[i], fs_here, l) < 0) {
            memset(l, 0, sizeof(*l));
            continue;
        }
        l->id = volumes[i]->id;
        memcpy(l->name, volumes[i]->name, sizeof(l->name));
        found++;
    }
    node_volumes_release(volumes, count);
    if (all == NULL)
        return ERR_NO_MEMORY;
    *ret = all;
    *ret_count = found;
    return 0;
}

/* ---- The difference of two ---- */

static json_t *ops_json(const struct look_fs *now, const struct look_fs *before, double seconds)
{
    json_t *list = json_array();
    for (enum fs_op op = 0; op < FS_OP_COUNT; op++) {
        const struct fs_op_stats *a = &now->ops[op], *b = &before->ops[op];
        uint64_t ops = look_minus(a->ops, b->ops);
        if (ops == 0)
            continue;
        struct histogram h = look_histogram_minus(&a->latency, &b->latency);
        json_array_append_new(list, json_pack("{ss sf sf sI so}", "op", fs_op_name(op), "ops_per_s",
                                              (double)ops / seconds, "bytes_per_s",
                                              (double)look_minus(a->bytes, b->bytes) / seconds, "errors",
                                              (json_int_t)look_minus(a->errors, b->errors), "latency",
                                              control_latency_json(&h)));
    }
    return list;
}

static json_t *clients_json(const struct look_fs *now, const struct look_fs *before, double seconds)
{
    static const struct fs_client_stats none;
    json_t *list = json_array();
    for (uint32_t i = 0; i < FS_CLIENTS_MAX; i++) {
        const struct fs_client_stats *a = &now->clients[i], *b = &before->clients[i];
        if (strcmp(a->name, b->name) != 0) /* the slot was given to somebody else */
            b = &none;
        if (a->name[0] == '\0' || look_minus(a->ops, b->ops) == 0)
            continue;
        json_array_append_new(
            list, json_pack("{so sf sf sf}", "client", control_text(a->name), "ops_per_s",
                            (double)look_minus(a->ops, b->ops) / seconds, "read_bytes_per_s",
                            (double)look_minus(a->read_bytes, b->read_bytes) / seconds, "write_bytes_per_s",
                            (double)look_minus(a->write_bytes, b->write_bytes) / seconds));
    }
    return list;
}

static json_t *files_json(const struct look_fs *now, const struct look_fs *before, double seconds)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < now->file_count; i++) {
        struct fs_file_stats b = {0};
        for (uint32_t k = 0; k < before->file_count; k++)
            if (before->files[k].ino == now->files[i].ino)
                b = before->files[k];
        uint64_t ops = look_minus(now->files[i].ops, b.ops);
        if (ops == 0)
            continue;
        json_array_append_new(list, json_pack("{so sI sf sf}", "path", control_text(now->paths[i]), "ino",
                                              (json_int_t)now->files[i].ino, "ops_per_s",
                                              (double)ops / seconds, "bytes_per_s",
                                              (double)look_minus(now->files[i].bytes, b.bytes) / seconds));
    }
    return list;
}

json_t *look_fs_json(const struct look_fs *now, uint32_t count, const struct look_fs *before,
                     uint32_t before_count, double seconds)
{
    json_t *list = json_array();
    struct look_fs *none = calloc(1, sizeof(*none));
    for (uint32_t i = 0; none != NULL && i < count; i++) {
        const struct look_fs *b = none;
        for (uint32_t k = 0; k < before_count; k++)
            if (uuid_equal(before[k].id, now[i].id))
                b = &before[k];
        json_array_append_new(list, json_pack("{ss so so so}", "name", now[i].name, "ops",
                                              ops_json(&now[i], b, seconds), "clients",
                                              clients_json(&now[i], b, seconds), "files",
                                              files_json(&now[i], b, seconds)));
    }
    free(none);
    return list;
}
