/* SPDX-License-Identifier: Apache-2.0 */
/* The drive commands. */
#include "cli/cli.h"

#include "control/size.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The node has another working folder: paths are sent whole. Ids and absolute ones stay as they are. */
static const char *absolute(const char *path, char out[PATH_MAX])
{
    struct uuid id;
    char cwd[PATH_MAX];
    if (path[0] == '/' || uuid_parse(path, &id) == 0 || getcwd(cwd, sizeof(cwd)) == NULL)
        return path;
    int len = snprintf(out, PATH_MAX, "%s/%s", cwd, path);
    return len > 0 && len < PATH_MAX ? out : path;
}

int cmd_drive_list(struct cli *c)
{
    static const char *const headings[] = {"DRIVE", "STATE", ">SIZE",   ">USED",
                                           ">FREE", ">SLAB", ">ERRORS", "ID"};
    json_t *list = NULL, *d;
    bool all = cli_flag(c, "all");
    int r = cli_ask(c, json_pack("{ss sb}", "cmd", "drive-list", "all", (int)all), NULL, NULL, &list);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, list);
    struct table t;
    size_t i;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(list, i, d) table_row(
        &t, json_text(d, "path"), json_text(d, "state"), text_size(d, "size_bytes"),
        text_size(d, "used_bytes"), text_size(d, "free_bytes"), text_size(d, "slab_bytes"),
        text_number((double)json_number(json_object_get(d, "counters"), "errors")), json_text(d, "id"));
    table_print(&t, c->out);
    table_done(&t);
    json_array_foreach(list, i, d) if (json_object_get(d, "why") != NULL)
        fprintf(c->out, "  ! %s: %s\n", json_text(d, "path"), json_text(d, "why"));
    json_decref(list);
    return CLI_OK;
}

int cmd_drive_add(struct cli *c)
{
    char path[PATH_MAX];
    bool force = cli_flag(c, "force");
    const char *where = absolute(c->args[0], path), *size = cli_value(c, "size");
    uint64_t size_bytes = 0;
    if (size != NULL && size_parse(size, &size_bytes) < 0)
        return cli_wrong(c, "\"%s\" is not a size, as 10G or 1.5T", size);
    struct stat st;
    bool device = stat(where, &st) == 0 && S_ISBLK(st.st_mode);
    if (force && !cli_confirm(c, "Whatever is on %s will be overwritten.", where))
        return CLI_FAILED;
    if (device && !force &&
        !cli_confirm(c, "Unless it is a drive of this pool, whatever is on %s will be overwritten.", where))
        return CLI_FAILED;
    json_t *request = json_pack("{ss so sb sb}", "cmd", "drive-add", "path", control_text(where), "force",
                                (int)force, "confirmed", (int)device);
    json_t *drive = NULL;
    if (size != NULL)
        json_object_set_new(request, "size_bytes", json_integer((json_int_t)size_bytes));
    int r = cli_ask(c, request, NULL, NULL, &drive);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, drive);
    fprintf(c->out, "%s (%s) is in use.\n", json_text(drive, "path"), text_size(drive, "size_bytes"));
    json_decref(drive);
    return CLI_OK;
}

/* What repair made of the volumes. */
static int repair_report(struct cli *c, json_t *result)
{
    const json_t *list = json_object_get(result, "repair");
    size_t i;
    json_t *v;
    int r = CLI_OK;
    json_array_foreach(list, i, v)
    {
        bool healthy = json_is_true(json_object_get(v, "healthy"));
        if (!healthy)
            r = CLI_FAILED;
        if (!c->json && !healthy)
            fprintf(c->err, "The volume %s is not healthy yet: see `ashlar status`.\n",
                    json_text(v, "volume"));
    }
    if (!c->json && r == CLI_OK && json_array_size(list) > 0)
        fprintf(c->out, "All volumes are healthy.\n");
    return r;
}

int cmd_drive_remove(struct cli *c)
{
    char path[PATH_MAX];
    const char *drive = absolute(c->args[0], path);
    if (!cli_confirm(c,
                     "The drive %s will be taken out of the pool, and what it holds restored on the others.",
                     drive))
        return CLI_FAILED;
    bool no_wait = cli_flag(c, "no-wait");
    json_t *result = NULL;
    json_t *request =
        json_pack("{ss so sb}", "cmd", "drive-remove", "drive", control_text(drive), "no_wait", (int)no_wait);
    int r = cli_ask(c, request, cli_progress, "repair", &result);
    if (r != CLI_OK)
        return r;
    if (!c->json)
        fprintf(c->out, "%s was removed.\n", drive);
    r = repair_report(c, result);
    if (c->json)
        (void)cli_print_json(c, json_incref(result));
    json_decref(result);
    return r;
}

int cmd_drive_replace(struct cli *c)
{
    char old_path[PATH_MAX], new_path[PATH_MAX];
    const char *old = absolute(c->args[0], old_path);
    const char *new = c->arg_count > 1 ? absolute(c->args[1], new_path) : NULL;
    if (!cli_confirm(c, "The drive %s will be taken out of the pool for ever, and %s will be overwritten.",
                     old, new != NULL ? new : "what is left at its path"))
        return CLI_FAILED;
    bool force = cli_flag(c, "force"), no_wait = cli_flag(c, "no-wait");
    json_t *request = json_pack("{ss so sb sb}", "cmd", "drive-replace", "drive", control_text(old), "force",
                                (int)force, "no_wait", (int)no_wait);
    json_t *result = NULL;
    if (new != NULL)
        json_object_set_new(request, "path", control_text(new));
    int r = cli_ask(c, request, cli_progress, "repair", &result);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, result);
    fprintf(c->out, "%s takes the place of %s.\n", json_text(json_object_get(result, "added"), "path"), old);
    /* The drive was replaced: a volume that another loss keeps from being healthy is told, and no failure. */
    (void)repair_report(c, result);
    json_decref(result);
    return CLI_OK;
}

int cmd_drive_locate(struct cli *c)
{
    char path[PATH_MAX];
    const char *seconds = cli_value(c, "seconds");
    char *end = NULL;
    unsigned long n = seconds != NULL ? strtoul(seconds, &end, 10) : 10;
    if (seconds != NULL && (*end != '\0' || seconds[0] == '-' || n < 1 || n > 3600))
        return cli_wrong(c, "--seconds takes a number from 1 to 3600, not \"%s\"", seconds);
    json_t *drive = NULL;
    json_t *request = json_pack("{ss so sI}", "cmd", "drive-locate", "drive",
                                control_text(absolute(c->args[0], path)), "seconds", (json_int_t)n);
    int r = cli_ask(c, request, cli_progress, "blinking", &drive);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, drive);
    fprintf(c->out, "%s: its light blinked for %lu s.\n", json_text(drive, "path"), n);
    json_decref(drive);
    return CLI_OK;
}
