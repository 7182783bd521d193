/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/error.h"

struct error_entry {
    const char *name;
    const char *text;
    int errno_class;
};

static const struct error_entry error_table[ERROR_COUNT] = {[ERROR_NONE] = {"OK", "success", 0},
#define X(name, errno_class, text) [ERROR_##name] = {#name, text, errno_class},
                                                            ASHLAR_ERRORS(X)
#undef X
};
static_assert(ERROR_COUNT < ERR_SYS_BASE, "private codes and errno values must not overlap");

/* An unknown code is a bug of ours, but reporting it must not make things worse. */
static const struct error_entry error_unknown = {"UNKNOWN", "an unknown error code", EIO};

static const struct error_entry *error_find(int err)
{
    if (err > 0 || err <= -(int)ERROR_COUNT)
        return &error_unknown;
    return &error_table[-err];
}

static bool error_is_sys(int err)
{
    return err <= -ERR_SYS_BASE;
}

int error_errno(int err)
{
    return error_is_sys(err) ? -err - ERR_SYS_BASE : error_find(err)->errno_class;
}

const char *error_text(int err)
{
    if (!error_is_sys(err))
        return error_find(err)->text;
    const char *text = strerrordesc_np(-err - ERR_SYS_BASE);
    return text != NULL ? text : error_unknown.text;
}

const char *error_name(int err)
{
    if (!error_is_sys(err))
        return error_find(err)->name;
    const char *name = strerrorname_np(-err - ERR_SYS_BASE);
    return name != NULL ? name : error_unknown.name;
}
