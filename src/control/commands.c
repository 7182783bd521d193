/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all commands and their arguments. Sizes and rates are bytes. */
#include "control/control_internal.h"

#define NAME                                          \
    {                                                 \
        "name", CONTROL_STRING, true, VOLUME_NAME_MAX \
    }
#define END                          \
    {                                \
        NULL, CONTROL_BOOL, false, 0 \
    }
#define NO_WAIT                           \
    {                                     \
        "no_wait", CONTROL_BOOL, false, 0 \
    }
#define FORCE                           \
    {                                   \
        "force", CONTROL_BOOL, false, 0 \
    }
#define PATH                                \
    {                                       \
        "path", CONTROL_STRING, false, 1023 \
    }
#define DRIVE                                            \
    {                                                    \
        "drive", CONTROL_STRING, true, NODE_PATH_MAX - 1 \
    }

#define ARGS(...)                \
    (const struct control_arg[]) \
    {                            \
        __VA_ARGS__, END         \
    }

const struct control_command control_commands[] = {
    {"status", CONTROL_ANYTIME, ARGS(NO_WAIT), control_status},
    {"version", CONTROL_ANYTIME, NULL, control_version},
    {"drive-list", CONTROL_ANYTIME, ARGS({"all", CONTROL_BOOL, false, 0}), control_drive_list},
    {"drive-add", 0,
     ARGS({"path", CONTROL_STRING, true, NODE_PATH_MAX - 1}, {"size_bytes", CONTROL_UINT, false, INT64_MAX},
          {"confirmed", CONTROL_BOOL, false, 0}, FORCE),
     control_drive_add},
    {"drive-remove", 0, ARGS(DRIVE, NO_WAIT), control_drive_remove},
    {"drive-replace", 0, ARGS(DRIVE, {"path", CONTROL_STRING, false, NODE_PATH_MAX - 1}, FORCE, NO_WAIT),
     control_drive_replace},
    {"drive-locate", 0, ARGS(DRIVE, {"seconds", CONTROL_UINT, false, 3600}), control_drive_locate},
    {"volume-create", 0,
     ARGS(NAME, {"size_bytes", CONTROL_UINT, true, INT64_MAX}, {"protection", CONTROL_STRING, true, 32}),
     control_volume_create},
    {"volume-list", CONTROL_ANYTIME, NULL, control_volume_list},
    {"volume-show", 0, ARGS(NAME), control_volume_show},
    {"volume-grow", 0, ARGS(NAME, {"size_bytes", CONTROL_UINT, true, INT64_MAX}), control_volume_grow},
    {"volume-delete", 0, ARGS(NAME, NO_WAIT), control_volume_delete},
    {"fs-create", 0,
     ARGS(NAME, {"protection", CONTROL_STRING, false, 32}, {"quota_bytes", CONTROL_UINT, false, INT64_MAX},
          {"case_insensitive", CONTROL_BOOL, false, 0}),
     control_fs_create},
    {"fs-list", CONTROL_ANYTIME, NULL, control_fs_list},
    {"fs-show", 0, ARGS(NAME), control_fs_show},
    {"fs-grow", 0, ARGS(NAME, {"size_bytes", CONTROL_UINT, true, INT64_MAX}), control_fs_grow},
    {"fs-pattern", 0, ARGS(NAME, PATH, {"pattern", CONTROL_STRING, true, 32}), control_fs_pattern},
    {"fs-check", 0, ARGS(NAME, {"repair", CONTROL_BOOL, false, 0}), control_fs_check},
    {"quota-set", 0,
     ARGS(NAME, PATH, {"limit_bytes", CONTROL_UINT, false, INT64_MAX},
          {"limit_inodes", CONTROL_UINT, false, INT64_MAX}),
     control_quota_set},
    {"quota-list", 0, ARGS(NAME), control_quota_list},
    {"export", 0,
     ARGS(NAME, {"nbd", CONTROL_BOOL, false, 0}, {"nfs", CONTROL_BOOL, false, 0},
          {"read_only", CONTROL_BOOL, false, 0}, {"allow", CONTROL_STRINGS, false, 47},
          {"clients", CONTROL_STRINGS, false, 127}, PATH, {"as", CONTROL_STRING, false, NFS_EXPORT_MAX},
          {"squash", CONTROL_STRING, false, 8}, {"anon_uid", CONTROL_UINT, false, UINT32_MAX},
          {"anon_gid", CONTROL_UINT, false, UINT32_MAX}, {"secure", CONTROL_BOOL, false, 0}),
     control_export},
    {"unexport", 0, ARGS(NAME, {"as", CONTROL_STRING, false, NFS_EXPORT_MAX}), control_unexport},
    {"job", 0,
     ARGS({"kind", CONTROL_STRING, true, 8}, {"name", CONTROL_STRING, false, VOLUME_NAME_MAX},
          {"rate_bytes_per_s", CONTROL_UINT, false, INT64_MAX}, NO_WAIT),
     control_job_start},
    {"top", 0, ARGS({"interval_ms", CONTROL_UINT, false, 60000}, {"count", CONTROL_UINT, false, UINT32_MAX}),
     control_top},
    {"events", CONTROL_ANYTIME,
     ARGS({"after", CONTROL_UINT, false, INT64_MAX}, {"follow", CONTROL_BOOL, false, 0},
          {"last", CONTROL_UINT, false, 1000}),
     control_events},
    {NULL, 0, NULL, NULL},
};

const struct control_command *control_command_find(const char *name)
{
    for (const struct control_command *c = control_commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}
