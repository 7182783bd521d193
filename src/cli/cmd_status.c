/* SPDX-License-Identifier: Apache-2.0 */
/* status, version, events. */
#include "cli/cli.h"

#include "control/size.h"

#include <stdlib.h>
#include <time.h>

static void print_problems(struct cli *c, const json_t *status)
{
    const json_t *problems = json_object_get(status, "problems");
    size_t i;
    json_t *text;
    json_array_foreach(problems, i, text) fprintf(c->out, "  ! %s\n", json_string_value(text));
}

static void print_drives(struct cli *c, const json_t *status)
{
    static const char *const headings[] = {"DRIVE", "STATE", ">SIZE", ">USED", ">FREE"};
    struct table t;
    size_t i;
    json_t *d;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(json_object_get(status, "drives"), i, d)
        table_row(&t, json_text(d, "path"), json_text(d, "state"), text_size(d, "size_bytes"),
                  text_size(d, "used_bytes"), text_size(d, "free_bytes"));
    if (t.rows > 1) {
        fputc('\n', c->out);
        table_print(&t, c->out);
    }
    table_done(&t);
}

static const char *export_text(const json_t *v)
{
    const json_t *exports = json_object_get(v, "exports");
    if (json_array_size(exports) == 0)
        return "-";
    return json_is_true(json_object_get(json_array_get(exports, 0), "read_only")) ? "nbd (ro)" : "nbd";
}

static const char *health_text(const json_t *v)
{
    if (json_object_get(v, "damage_count") == NULL)
        return "-";
    if (json_number(v, "damage_count") > 0)
        return "damaged";
    return json_is_true(json_object_get(v, "healthy")) ? "healthy" : "degraded";
}

static void print_volumes(struct cli *c, const json_t *status)
{
    static const char *const headings[] = {"VOLUME", "STATE", "HEALTH",     "PROTECTION",
                                           ">SIZE",  ">USED", ">ON DRIVES", "EXPORT"};
    struct table t;
    size_t i;
    json_t *v;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(json_object_get(status, "volumes"), i, v) table_row(
        &t, json_text(v, "name"), json_text(v, "state"), health_text(v), json_text(v, "protection"),
        text_size(v, "size_bytes"), text_size(v, "used_bytes"), text_size(v, "raw_bytes"), export_text(v));
    if (t.rows > 1) {
        fputc('\n', c->out);
        table_print(&t, c->out);
    }
    table_done(&t);
}

static void print_damage(struct cli *c, const json_t *status)
{
    size_t i, k;
    json_t *v, *range;
    json_array_foreach(json_object_get(status, "volumes"), i, v)
    {
        uint64_t count = json_number(v, "damage_count");
        json_array_foreach(json_object_get(v, "damage"), k, range)
            fprintf(c->out, "%s%s: %llu bytes at %llu cannot be read\n", i + k == 0 ? "\n" : "",
                    json_text(v, "name"), (unsigned long long)json_number(range, "length"),
                    (unsigned long long)json_number(range, "offset"));
        if (count > json_array_size(json_object_get(v, "damage")))
            fprintf(c->out, "%s: and %llu more ranges\n", json_text(v, "name"),
                    (unsigned long long)(count - json_array_size(json_object_get(v, "damage"))));
    }
}

int cmd_status(struct cli *c)
{
    json_t *status = NULL;
    bool no_wait = cli_flag(c, "no-wait");
    int r = cli_ask(c, json_pack("{ss sb}", "cmd", "status", "no_wait", (int)no_wait), NULL, NULL, &status);
    if (r != CLI_OK)
        return r;
    if (c->json)
        return cli_print_json(c, status);
    char up[DURATION_TEXT_SIZE];
    duration_format((uint64_t)(json_double(status, "up_s") * (double)NSEC_PER_SEC), up);
    fprintf(c->out, "node %s in %s is %s, %s; up %s, version %s\n", json_text(status, "node"),
            json_text(status, "dir"), json_text(status, "state"), json_text(status, "health"), up,
            json_text(status, "version"));
    const json_t *capacity = json_object_get(status, "capacity"), *memory = json_object_get(status, "memory");
    fprintf(c->out, "drives: %s used of %s; memory: %s held of %s\n", text_size(capacity, "used_bytes"),
            text_size(capacity, "raw_bytes"), text_size(memory, "held_bytes"),
            text_size(memory, "limit_bytes"));
    print_problems(c, status);
    print_drives(c, status);
    print_volumes(c, status);
    print_damage(c, status);
    json_decref(status);
    return CLI_OK;
}

int cmd_version(struct cli *c)
{
    json_t *node = NULL;
    FILE *err = c->err;
    FILE *quiet = fopen("/dev/null", "we");
    bool json = c->json;
    /* No node is no error here. */
    c->json = false;
    c->err = quiet != NULL ? quiet : err;
    int r = cli_ask(c, json_pack("{ss}", "cmd", "version"), NULL, NULL, &node);
    c->err = err;
    c->json = json;
    if (quiet != NULL)
        fclose(quiet);
    if (c->json) {
        json_t *o = json_pack("{ss}", "ashlar", ASHLAR_VERSION);
        if (r == CLI_OK)
            json_object_set(o, "node", json_object_get(node, "version"));
        json_decref(node);
        return cli_print_json(c, o);
    }
    fprintf(c->out, "ashlar %s\n", ASHLAR_VERSION);
    if (r == CLI_OK)
        fprintf(c->out, "node   %s\n", json_text(node, "version"));
    json_decref(node);
    return CLI_OK;
}

/* ---- events ---- */

static void event_print(struct cli *c, json_t *e)
{
    if (c->json) {
        cli_print_json_line(c, e);
        return;
    }
    time_t seconds = (time_t)(json_number(e, "wall_ns") / NSEC_PER_SEC);
    struct tm at;
    char when[32];
    localtime_r(&seconds, &at);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &at);
    fprintf(c->out, "%s  %-7s  %-20s  %s\n", when, json_text(e, "level"), json_text(e, "kind"),
            json_text(e, "text"));
    fflush(c->out);
}

static bool event_news(struct cli *c, const char *key, json_t *value, void *ctx)
{
    if (strcmp(key, "event") == 0)
        event_print(c, value);
    return !ferror(c->out);
}

int cmd_events(struct cli *c)
{
    bool follow = cli_flag(c, "follow");
    json_t *request = json_pack("{ss sb}", "cmd", "events", "follow", (int)follow), *events = NULL;
    const char *last = cli_value(c, "last");
    if (last != NULL) {
        char *end;
        unsigned long n = strtoul(last, &end, 10);
        if (*end != '\0' || last[0] == '-' || n > 1000) {
            json_decref(request);
            return cli_wrong(c, "--last takes a number up to 1000, not \"%s\"", last);
        }
        json_object_set_new(request, "last", json_integer((json_int_t)n));
    }
    int r = cli_ask(c, request, event_news, NULL, &events);
    if (r == CLI_OK && !follow) {
        size_t i;
        json_t *e;
        if (c->json)
            return cli_print_json(c, events);
        json_array_foreach(events, i, e) event_print(c, e);
    }
    json_decref(events);
    return r;
}
