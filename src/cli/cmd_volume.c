/* SPDX-License-Identifier: Apache-2.0 */
/* The volume and export commands. */
#include "cli/cli.h"

#include "control/size.h"

#include <stdlib.h>

/* Sizes are multiples of 4 KiB; people's are rounded up to them. */
static int size_arg(struct cli *c, const char *text, uint64_t *ret)
{
    uint64_t bytes;
    if (size_parse(text, &bytes) < 0 || bytes == 0)
        return cli_wrong(c, "\"%s\" is not a size, as 10G or 1.5T", text);
    if (bytes > INT64_MAX - BLOCK_SIZE)
        bytes = ALIGN_DOWN((uint64_t)INT64_MAX, (uint64_t)BLOCK_SIZE);
    *ret = ALIGN_UP(bytes, (uint64_t)BLOCK_SIZE);
    return CLI_OK;
}

int cmd_volume_create(struct cli *c)
{
    const char *size = cli_value(c, "size"), *protect = cli_value(c, "protect");
    uint64_t size_bytes = 0;
    if (size == NULL)
        return cli_wrong(c, "--size is needed, as --size 10G");
    if (protect == NULL)
        return cli_wrong(c, "--protect is needed: none, mirror:2 or mirror:3");
    int r = size_arg(c, size, &size_bytes);
    if (r != CLI_OK)
        return r;
    json_t *volume = NULL;
    json_t *request = json_pack("{ss so sI so}", "cmd", "volume-create", "name", control_text(c->args[0]),
                                "size_bytes", (json_int_t)size_bytes, "protection", control_text(protect));
    r = cli_ask(c, request, NULL, NULL, &volume);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, volume);
    fprintf(c->out, "The volume %s (%s, %s) was created. Offer it to clients: ashlar export %s --nbd\n",
            c->args[0], text_size(volume, "size_bytes"), json_text(volume, "protection"), c->args[0]);
    json_decref(volume);
    return CLI_OK;
}

int cmd_volume_list(struct cli *c)
{
    static const char *const headings[] = {"VOLUME", "STATE",      "PROTECTION", ">SIZE",
                                           ">USED",  ">ON DRIVES", "HEALTHY"};
    json_t *list = NULL, *v;
    int r = cli_ask(c, json_pack("{ss}", "cmd", "volume-list"), NULL, NULL, &list);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, list);
    struct table t;
    size_t i;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(list, i, v)
        table_row(&t, json_text(v, "name"), json_text(v, "state"), json_text(v, "protection"),
                  text_size(v, "size_bytes"), text_size(v, "used_bytes"), text_size(v, "raw_bytes"),
                  json_is_true(json_object_get(v, "healthy")) ? "yes" : "no");
    table_print(&t, c->out);
    table_done(&t);
    json_decref(list);
    return CLI_OK;
}

static void job_print(struct cli *c, const json_t *v, const char *kind)
{
    const json_t *job = json_object_get(v, kind);
    char elapsed[DURATION_TEXT_SIZE], left[DURATION_TEXT_SIZE];
    if (!json_is_object(job))
        return;
    duration_format((uint64_t)(json_double(job, "elapsed_s") * (double)NSEC_PER_SEC), elapsed);
    fprintf(c->out, "%-16s %s, %s; %llu bad copies, %llu repaired, %llu blocks lost", kind,
            json_is_true(json_object_get(job, "running")) ? "running" : json_text(job, "result"), elapsed,
            (unsigned long long)json_number(job, "bad_copies"),
            (unsigned long long)json_number(job, "repaired_copies"),
            (unsigned long long)json_number(job, "lost_blocks"));
    if (json_is_number(json_object_get(job, "left_s"))) {
        duration_format((uint64_t)(json_double(job, "left_s") * (double)NSEC_PER_SEC), left);
        fprintf(c->out, "; about %s left", left);
    }
    fputc('\n', c->out);
}

void volume_print(struct cli *c, const json_t *v)
{
    size_t i, k;
    json_t *x, *cidr;
    fprintf(c->out, "%-16s %s\n%-16s %s\n%-16s %s\n", "name", json_text(v, "name"), "id", json_text(v, "id"),
            "state", json_text(v, "state"));
    if (json_object_get(v, "why") != NULL)
        fprintf(c->out, "%-16s %s\n", "why", json_text(v, "why"));
    fprintf(c->out, "%-16s %s\n", "protection", json_text(v, "protection"));
    if (json_object_get(v, "size_bytes") != NULL)
        fprintf(c->out, "%-16s %s\n", "size", text_size(v, "size_bytes"));
    if (json_object_get(v, "available_bytes") != NULL)
        fprintf(c->out, "%-16s %s\n%-16s %llu\n", "available", text_size(v, "available_bytes"), "inodes",
                (unsigned long long)json_number(v, "inodes"));
    if (json_number(v, "quota_bytes") != 0)
        fprintf(c->out, "%-16s %s\n", "quota", text_size(v, "quota_bytes"));
    fprintf(c->out, "%-16s %s in the volume, %s on drives\n", "used", text_size(v, "used_bytes"),
            text_size(v, "raw_bytes"));
    if (json_object_get(v, "redundancy_left") != NULL)
        fprintf(c->out, "%-16s %s; %lld more drive(s) may be lost\n", "health",
                json_is_true(json_object_get(v, "healthy")) ? "healthy" : "not fully protected at present",
                (long long)json_integer_value(json_object_get(v, "redundancy_left")));
    json_array_foreach(json_object_get(v, "damage"), i, x)
        fprintf(c->out, "%-16s %llu bytes at %llu cannot be read\n", "damage",
                (unsigned long long)json_number(x, "length"), (unsigned long long)json_number(x, "offset"));
    job_print(c, v, "scrub");
    job_print(c, v, "repair");
    json_array_foreach(json_object_get(v, "exports"), i, x)
    {
        bool nfs = strcmp(json_text(x, "protocol"), "nfs") == 0;
        fprintf(c->out, "%-16s %s%s%s\n%-16s %s\n", "export", json_text(x, nfs ? "source" : "uri"),
                json_is_true(json_object_get(x, "read_only")) ? " (read-only)" : "",
                json_is_true(json_object_get(x, "active")) ? "" : " (not active)", "",
                json_text(x, nfs ? "mount_options" : "unix_uri"));
        json_array_foreach(json_object_get(x, nfs ? "clients" : "allow"), k, cidr)
            fprintf(c->out, "%-16s %s\n", k == 0 ? "  allowed" : "", json_string_value(cidr));
    }
    const json_t *n = json_object_get(v, "counters");
    fprintf(c->out, "%-16s %llu reads, %llu writes, %llu flushes, %llu commits\n", "since opened",
            (unsigned long long)json_number(n, "reads"), (unsigned long long)json_number(n, "writes"),
            (unsigned long long)json_number(n, "flushes"), (unsigned long long)json_number(n, "commits"));
    fprintf(c->out, "%-16s %llu wrong, %llu blocks repaired, %llu lost\n", "checksums",
            (unsigned long long)json_number(n, "checksum_errors"),
            (unsigned long long)json_number(n, "blocks_repaired"),
            (unsigned long long)json_number(n, "blocks_lost"));
}

int cmd_volume_show(struct cli *c)
{
    json_t *volume = NULL;
    json_t *request = json_pack("{ss so}", "cmd", "volume-show", "name", control_text(c->args[0]));
    int r = cli_ask(c, request, NULL, NULL, &volume);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, volume);
    volume_print(c, volume);
    json_decref(volume);
    return CLI_OK;
}

int cmd_volume_grow(struct cli *c)
{
    const char *size = c->arg_count > 1 ? c->args[1] : cli_value(c, "size");
    uint64_t size_bytes = 0;
    if (size == NULL || (c->arg_count > 1 && cli_value(c, "size") != NULL))
        return cli_wrong(c, "the new size is needed, once");
    int r = size_arg(c, size, &size_bytes);
    if (r != CLI_OK)
        return r;
    json_t *volume = NULL;
    json_t *request = json_pack("{ss so sI}", "cmd", "volume-grow", "name", control_text(c->args[0]),
                                "size_bytes", (json_int_t)size_bytes);
    r = cli_ask(c, request, NULL, NULL, &volume);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, volume);
    fprintf(c->out, "The volume %s has %s now.\n", c->args[0], text_size(volume, "size_bytes"));
    json_decref(volume);
    return CLI_OK;
}

int cmd_volume_delete(struct cli *c)
{
    if (!cli_confirm(c, "%s and all its data will be deleted. There is no way back.", c->args[0]))
        return CLI_FAILED;
    bool no_wait = cli_flag(c, "no-wait");
    json_t *result = NULL;
    json_t *request = json_pack("{ss so sb}", "cmd", "volume-delete", "name", control_text(c->args[0]),
                                "no_wait", (int)no_wait);
    int r = cli_ask(c, request, cli_progress, "delete", &result);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, result);
    fprintf(c->out, "%s %s deleted.\n", c->args[0], no_wait ? "is being" : "was");
    json_decref(result);
    return CLI_OK;
}

/* ---- Exports ---- */

static void add_list(const struct cli *c, const char *option, json_t *request, const char *key)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->given_count; i++)
        for (uint32_t k = 0; strcmp(c->given[i].option->name, option) == 0 && k < c->given[i].count; k++) {
            /* "10.0.0.0/8,host" and "10.0.0.0/8 host" are the same */
            const char *at = c->given[i].values[k];
            while (*at != '\0') {
                size_t n = strcspn(at, ",");
                if (n > 0)
                    json_array_append_new(list, json_stringn(at, n));
                at += n + (at[n] == ',');
            }
        }
    json_object_set_new(request, key, list);
}

static int add_id(struct cli *c, const char *option, json_t *request, const char *key)
{
    const char *text = cli_value(c, option);
    char *end;
    if (text == NULL)
        return CLI_OK;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || value > UINT32_MAX)
        return cli_wrong(c, "--%s takes a number, not \"%s\"", option, text);
    json_object_set_new(request, key, json_integer((json_int_t)value));
    return CLI_OK;
}

static int nfs_options(struct cli *c, json_t *request)
{
    uint32_t squash = cli_flag(c, "root-squash") + cli_flag(c, "no-root-squash") + cli_flag(c, "all-squash");
    if (squash > 1)
        return cli_wrong(c, "--root-squash, --no-root-squash and --all-squash exclude each other");
    if (cli_flag(c, "rw") && (cli_flag(c, "ro") || cli_flag(c, "read-only")))
        return cli_wrong(c, "--rw and --ro exclude each other");
    json_object_set_new(request, "squash",
                        json_string(cli_flag(c, "no-root-squash") ? "none"
                                    : cli_flag(c, "all-squash")   ? "all"
                                                                  : "root"));
    json_object_set_new(request, "secure", json_boolean(cli_flag(c, "secure")));
    add_list(c, "clients", request, "clients");
    if (cli_value(c, "path") != NULL)
        json_object_set_new(request, "path", control_text(cli_value(c, "path")));
    if (cli_value(c, "as") != NULL)
        json_object_set_new(request, "as", control_text(cli_value(c, "as")));
    int r = add_id(c, "anon-uid", request, "anon_uid");
    return r != CLI_OK ? r : add_id(c, "anon-gid", request, "anon_gid");
}

static void exports_print(struct cli *c, const json_t *volume)
{
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(volume, "exports"), i, x)
    {
        if (strcmp(json_text(x, "protocol"), "nfs") == 0)
            fprintf(c->out, "mount -t nfs -o %s %s DIR\n", json_text(x, "mount_options"),
                    json_text(x, "source"));
        else
            fprintf(c->out, "%s\n%s\n", json_text(x, "uri"), json_text(x, "unix_uri"));
    }
}

int cmd_export(struct cli *c)
{
    bool nbd = cli_flag(c, "nbd"), nfs = cli_flag(c, "nfs");
    if (nbd == nfs)
        return cli_wrong(c, "name a protocol: --nbd, or --nfs");
    json_t *volume = NULL;
    json_t *request =
        json_pack("{ss so sb sb sb}", "cmd", "export", "name", control_text(c->args[0]), "nbd", (int)nbd,
                  "nfs", (int)nfs, "read_only", (int)(cli_flag(c, "read-only") || cli_flag(c, "ro")));
    int r = CLI_OK;
    if (nfs)
        r = nfs_options(c, request);
    else
        add_list(c, "allow", request, "allow");
    if (r != CLI_OK) {
        json_decref(request);
        return r;
    }
    r = cli_ask(c, request, NULL, NULL, &volume);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, volume);
    exports_print(c, volume);
    json_decref(volume);
    return CLI_OK;
}

int cmd_unexport(struct cli *c)
{
    json_t *volume = NULL;
    json_t *request = json_pack("{ss so}", "cmd", "unexport", "name", control_text(c->args[0]));
    if (cli_value(c, "as") != NULL)
        json_object_set_new(request, "as", control_text(cli_value(c, "as")));
    int r = cli_ask(c, request, NULL, NULL, &volume);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, volume);
    fprintf(c->out, "%s is %s.\n", c->args[0],
            json_array_size(json_object_get(volume, "exports")) > 0 ? "not exported there any more"
                                                                    : "not exported any more");
    json_decref(volume);
    return CLI_OK;
}
