/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of file systems and quotas. */
#include "cli/cli.h"

#include "control/size.h"

#include <stdlib.h>

static json_t *request_for(struct cli *c, const char *command)
{
    return json_pack("{ss so}", "cmd", command, "name", control_text(c->args[0]));
}

/* A size as an argument; 0 for "none" where that has a meaning. */
static int size_of(struct cli *c, const char *text, bool none, uint64_t *ret)
{
    uint64_t bytes = 0;
    if (!(none && strcmp(text, "none") == 0) &&
        (size_parse(text, &bytes) < 0 || bytes == 0 || bytes > INT64_MAX))
        return cli_wrong(c, "\"%s\" is not a size, as 10G or 1.5T%s", text, none ? ", or none" : "");
    *ret = bytes;
    return CLI_OK;
}

int cmd_fs_create(struct cli *c)
{
    json_t *request = request_for(c, "fs-create"), *fs = NULL;
    const char *protect = cli_value(c, "protect"), *quota = cli_value(c, "quota");
    uint64_t quota_bytes = 0;
    int r = quota != NULL ? size_of(c, quota, false, &quota_bytes) : CLI_OK;
    if (r != CLI_OK) {
        json_decref(request);
        return r;
    }
    if (protect != NULL)
        json_object_set_new(request, "protection", control_text(protect));
    if (quota_bytes != 0)
        json_object_set_new(request, "quota_bytes", json_integer((json_int_t)quota_bytes));
    json_object_set_new(request, "case_insensitive", json_boolean(cli_flag(c, "case-insensitive")));
    r = cli_ask(c, request, NULL, NULL, &fs);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, fs);
    fprintf(c->out,
            "The file system %s (%s) was created. Mount it here: ashlar mount %s DIR\n"
            "Offer it to NFS clients: ashlar export %s --nfs\n",
            c->args[0], json_text(fs, "protection"), c->args[0], c->args[0]);
    json_decref(fs);
    return CLI_OK;
}

static const char *quota_text(const json_t *o, const char *key)
{
    return json_number(o, key) != 0 ? text_size(o, key) : "-";
}

int cmd_fs_list(struct cli *c)
{
    static const char *const headings[] = {"FILE SYSTEM", "STATE",  "PROTECTION", ">USED",
                                           ">AVAILABLE",  ">QUOTA", ">INODES",    "HEALTHY"};
    json_t *list = NULL, *v;
    size_t i;
    int r = cli_ask(c, json_pack("{ss}", "cmd", "fs-list"), NULL, NULL, &list);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, list);
    struct table t;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(list, i, v) table_row(
        &t, json_text(v, "name"), json_text(v, "state"), json_text(v, "protection"),
        text_size(v, "used_bytes"), text_size(v, "available_bytes"), quota_text(v, "quota_bytes"),
        text_count(json_number(v, "inodes")), json_is_true(json_object_get(v, "healthy")) ? "yes" : "no");
    table_print(&t, c->out);
    table_done(&t);
    json_decref(list);
    return CLI_OK;
}

int cmd_fs_show(struct cli *c)
{
    json_t *fs = NULL;
    int r = cli_ask(c, request_for(c, "fs-show"), NULL, NULL, &fs);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, fs);
    volume_print(c, fs);
    json_decref(fs);
    return CLI_OK;
}

int cmd_fs_grow(struct cli *c)
{
    uint64_t bytes;
    json_t *fs = NULL;
    int r = size_of(c, c->args[1], true, &bytes);
    if (r != CLI_OK)
        return r;
    json_t *request = request_for(c, "fs-grow");
    json_object_set_new(request, "size_bytes", json_integer((json_int_t)bytes));
    r = cli_ask(c, request, NULL, NULL, &fs);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, fs);
    if (bytes == 0)
        fprintf(c->out, "The file system %s may take all of the pool.\n", c->args[0]);
    else
        fprintf(c->out, "The file system %s may take %s now.\n", c->args[0], text_size(fs, "quota_bytes"));
    json_decref(fs);
    return CLI_OK;
}

int cmd_fs_pattern(struct cli *c)
{
    json_t *request = request_for(c, "fs-pattern"), *done = NULL;
    const char *path = cli_value(c, "path");
    json_object_set_new(request, "pattern", control_text(c->args[1]));
    if (path != NULL)
        json_object_set_new(request, "path", control_text(path));
    int r = cli_ask(c, request, NULL, NULL, &done);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, done);
    fprintf(c->out, "%s in %s is read as %s; what is made in it from now on, too.\n", json_text(done, "path"),
            c->args[0], c->args[1]);
    json_decref(done);
    return CLI_OK;
}

int cmd_fs_check(struct cli *c)
{
    bool repair = cli_flag(c, "repair");
    json_t *request = request_for(c, "fs-check"), *report = NULL, *f;
    size_t i;
    if (repair &&
        !cli_confirm(c, "What does not fit together in %s will be changed; see ashlar-fs(1).", c->args[0])) {
        json_decref(request);
        return CLI_FAILED;
    }
    json_object_set_new(request, "repair", json_boolean(repair));
    int r = cli_ask(c, request, NULL, NULL, &report);
    if (r != CLI_OK)
        return r;
    uint64_t problems = json_number(report, "problems");
    if (c->json) {
        (void)cli_print_json(c, report);
        return problems > 0 ? CLI_FAILED : CLI_OK;
    }
    json_array_foreach(json_object_get(report, "findings"), i, f)
        fprintf(c->out, "%s; %s%s\n", json_text(f, "text"), repair ? "" : "repair: ", json_text(f, "repair"));
    fprintf(c->out, "%s inodes, %s names: ", text_count(json_number(report, "inodes")),
            text_count(json_number(report, "names")));
    if (repair)
        fprintf(c->out, "%s repaired, ", text_count(json_number(report, "repaired")));
    fprintf(c->out, "%s problems%s.\n", text_count(problems), repair ? " left" : "");
    json_decref(report);
    return problems > 0 ? CLI_FAILED : CLI_OK;
}

/* ---- Quotas ---- */

int cmd_quota_set(struct cli *c)
{
    const char *size = cli_value(c, "size"), *inodes = cli_value(c, "inodes");
    uint64_t bytes = 0, count = 0;
    char *end = NULL;
    if (size == NULL && inodes == NULL)
        return cli_wrong(c, "--size or --inodes is needed; \"none\" takes a limit away");
    int r = size != NULL ? size_of(c, size, true, &bytes) : CLI_OK;
    if (r != CLI_OK)
        return r;
    if (inodes != NULL && strcmp(inodes, "none") != 0) {
        count = strtoull(inodes, &end, 10);
        if (*end != '\0' || inodes[0] == '-' || count == 0 || count > INT64_MAX)
            return cli_wrong(c, "\"%s\" is not a number of inodes, or none", inodes);
    }
    json_t *request = request_for(c, "quota-set"), *done = NULL;
    json_object_set_new(request, "path", control_text(c->args[1]));
    json_object_set_new(request, "limit_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(request, "limit_inodes", json_integer((json_int_t)count));
    r = cli_ask(c, request, NULL, NULL, &done);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, done);
    fprintf(c->out, "The quota of %s in %s was %s.\n", c->args[1], c->args[0],
            bytes == 0 && count == 0 ? "taken away" : "set");
    json_decref(done);
    return CLI_OK;
}

int cmd_quota_list(struct cli *c)
{
    static const char *const headings[] = {"DIRECTORY", ">LIMIT", ">USED", ">INODES", ">USED", "STATE"};
    json_t *list = NULL, *q;
    size_t i;
    int r = cli_ask(c, request_for(c, "quota-list"), NULL, NULL, &list);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, list);
    struct table t;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(list, i, q)
        table_row(&t, json_text(q, "path"), quota_text(q, "limit_bytes"), text_size(q, "used_bytes"),
                  json_number(q, "limit_inodes") != 0 ? text_count(json_number(q, "limit_inodes")) : "-",
                  text_count(json_number(q, "used_inodes")),
                  json_is_true(json_object_get(q, "scanning")) ? "counting" : "ok");
    table_print(&t, c->out);
    table_done(&t);
    json_decref(list);
    return CLI_OK;
}
