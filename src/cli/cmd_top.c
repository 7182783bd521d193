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

static void sample_print(struct cli *c, const json_t *sample)
{
    const json_t *cache = json_object_get(sample, "cache");
    const json_t *ratio = json_object_get(cache, "hit_ratio");
    if (isatty(STDOUT_FILENO))
        fputs("\033[H\033[J", c->out);
    fprintf(c->out, "cache: %s, %s dirty; hits %s%%; memory %s used, %s held of %s\n\n",
            text_size(cache, "cached_bytes"), text_size(cache, "dirty_bytes"),
            ratio != NULL ? text_number(100.0 * json_number_value(ratio)) : "-",
            text_size(cache, "used_bytes"), text_size(cache, "held_bytes"), text_size(cache, "limit_bytes"));
    items_print(c, json_object_get(sample, "volumes"), "VOLUME", "name");
    fputc('\n', c->out);
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
