/* SPDX-License-Identifier: Apache-2.0 */
/* Live figures. On a terminal each sample is drawn over the one before. */
#include "cli/cli.h"

#include <stdlib.h>
#include <unistd.h>

static const char *latency(const json_t *item, const char *key, const char *which)
{
    const json_t *l = json_object_get(item, key);
    return json_is_object(l) ? text_number(json_double(l, which)) : "-";
}

static void items_print(struct cli *c, const json_t *items, const char *heading, const char *name_key)
{
    const char *const headings[] = {heading,  ">READ/S",  ">WRITE/S", ">FLUSH/S", ">READ B/S", ">WRITE B/S",
                                    ">QUEUE", ">R p50us", ">R p99us", ">W p50us", ">W p99us"};
    struct table t;
    size_t i;
    json_t *item;
    table_init(&t, headings, ARRAY_SIZE(headings));
    json_array_foreach(items, i, item)
        table_row(&t, json_text(item, name_key), text_number(json_double(item, "reads_per_s")),
                  text_number(json_double(item, "writes_per_s")),
                  text_number(json_double(item, "flushes_per_s")), text_size(item, "read_bytes_per_s"),
                  text_size(item, "write_bytes_per_s"), text_number((double)json_number(item, "queue")),
                  latency(item, "read_latency", "p50_us"), latency(item, "read_latency", "p99_us"),
                  latency(item, "write_latency", "p50_us"), latency(item, "write_latency", "p99_us"));
    table_print(&t, c->out);
    table_done(&t);
}

/* ---- File systems: who does what with them ---- */

enum view { VIEW_ALL, VIEW_OPS, VIEW_CLIENTS, VIEW_FILES };

static double rate_of(const json_t *o)
{
    return json_double(o, "ops_per_s");
}

/* Busiest first. */
static int busier(const void *a, const void *b)
{
    double x = rate_of(*(json_t *const *)a), y = rate_of(*(json_t *const *)b);
    return (x < y) - (x > y);
}

static void ranked_row(struct table *t, enum view view, const char *fs, const json_t *o)
{
    if (view == VIEW_OPS)
        table_row(t, fs, json_text(o, "op"), text_number(rate_of(o)), text_size(o, "bytes_per_s"),
                  text_count(json_number(o, "errors")), latency(o, "latency", "p50_us"),
                  latency(o, "latency", "p99_us"));
    else if (view == VIEW_CLIENTS)
        table_row(t, fs, json_text(o, "client"), text_number(rate_of(o)), text_size(o, "read_bytes_per_s"),
                  text_size(o, "write_bytes_per_s"));
    else
        table_row(t, fs, json_text(o, "path"), text_number(rate_of(o)), text_size(o, "bytes_per_s"));
}

static void ranked_print(struct cli *c, const json_t *file_systems, enum view view)
{
    static const char *const op_headings[] = {"FILE SYSTEM", "OPERATION", ">OPS/S", ">B/S",
                                              ">ERRORS",     ">p50us",    ">p99us"};
    static const char *const client_headings[] = {"FILE SYSTEM", "CLIENT", ">OPS/S", ">READ B/S",
                                                  ">WRITE B/S"};
    static const char *const file_headings[] = {"FILE SYSTEM", "FILE", ">OPS/S", ">B/S"};
    static const char *const keys[] = {NULL, "ops", "clients", "files"};
    size_t i, k;
    json_t *fs, *o;
    struct table t;
    if (view == VIEW_OPS)
        table_init(&t, op_headings, ARRAY_SIZE(op_headings));
    else if (view == VIEW_CLIENTS)
        table_init(&t, client_headings, ARRAY_SIZE(client_headings));
    else
        table_init(&t, file_headings, ARRAY_SIZE(file_headings));
    json_array_foreach(file_systems, i, fs)
    {
        const json_t *list = json_object_get(fs, keys[view]);
        size_t count = json_array_size(list);
        json_t **order = calloc(count + 1, sizeof(json_t *));
        if (order == NULL)
            continue;
        json_array_foreach(list, k, o) order[k] = o;
        qsort(order, count, sizeof(json_t *), busier);
        for (k = 0; k < count; k++)
            ranked_row(&t, view, json_text(fs, "name"), order[k]);
        free(order);
    }
    table_print(&t, c->out);
    table_done(&t);
}

static enum view view_of(const struct cli *c)
{
    if (cli_flag(c, "ops"))
        return VIEW_OPS;
    if (cli_flag(c, "clients"))
        return VIEW_CLIENTS;
    return cli_flag(c, "files") ? VIEW_FILES : VIEW_ALL;
}

static void sample_print(struct cli *c, const json_t *sample)
{
    const json_t *cache = json_object_get(sample, "cache");
    const json_t *ratio = json_object_get(cache, "hit_ratio");
    if (isatty(STDOUT_FILENO))
        fputs("\033[H\033[J", c->out);
    if (view_of(c) != VIEW_ALL) {
        ranked_print(c, json_object_get(sample, "file_systems"), view_of(c));
        fflush(c->out);
        return;
    }
    fprintf(c->out, "cache: %s, %s dirty; hits %s%%; memory %s used, %s held of %s\n\n",
            text_size(cache, "cached_bytes"), text_size(cache, "dirty_bytes"),
            ratio != NULL ? text_number(100.0 * json_number_value(ratio)) : "-",
            text_size(cache, "used_bytes"), text_size(cache, "held_bytes"), text_size(cache, "limit_bytes"));
    items_print(c, json_object_get(sample, "volumes"), "VOLUME", "name");
    fputc('\n', c->out);
    if (json_array_size(json_object_get(sample, "file_systems")) > 0) {
        ranked_print(c, json_object_get(sample, "file_systems"), VIEW_OPS);
        fputc('\n', c->out);
    }
    items_print(c, json_object_get(sample, "drives"), "DRIVE", "path");
    fflush(c->out);
}

static bool sample_news(struct cli *c, const char *key, json_t *value, void *ctx)
{
    if (strcmp(key, "sample") != 0)
        return true;
    if (c->json)
        cli_print_json_line(c, value);
    else
        sample_print(c, value);
    return !ferror(c->out);
}

int cmd_top(struct cli *c)
{
    const char *interval = cli_value(c, "interval");
    double seconds = 1;
    char *end;
    if (interval != NULL) {
        seconds = strtod(interval, &end);
        if (*end != '\0' || !(seconds >= 0.05 && seconds <= 60))
            return cli_wrong(c, "--interval takes seconds from 0.05 to 60, not \"%s\"", interval);
    }
    json_t *request = json_pack("{ss sI sI}", "cmd", "top", "interval_ms", (json_int_t)(seconds * 1000),
                                "count", (json_int_t)(cli_flag(c, "once") ? 1 : 0));
    return cli_ask(c, request, sample_news, NULL, NULL);
}
