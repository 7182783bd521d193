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
          FORCE),
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
    {"export", 0,
     ARGS(NAME, {"nbd", CONTROL_BOOL, true, 0}, {"read_only", CONTROL_BOOL, false, 0},
          {"allow", CONTROL_STRINGS, false, 47}),
     control_export},
    {"unexport", 0, ARGS(NAME), control_unexport},
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
