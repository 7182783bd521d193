/* SPDX-License-Identifier: Apache-2.0 */
/* scrub and repair. */
#include "cli/cli.h"

#include "control/size.h"

static int job_failed(const json_t *v, const char *kind)
{
    const json_t *job = json_object_get(v, "job");
    if (!json_is_object(job) || json_is_true(json_object_get(job, "running")))
        return CLI_OK;
    /* What a scrub found lost is a failure: nobody who runs it each week reads its lines. */
    bool lost = strcmp(kind, "scrub") == 0 && json_number(job, "lost_blocks") > 0;
    return strcmp(json_text(job, "result"), "ok") == 0 && !lost ? CLI_OK : CLI_FAILED;
}

static void report_one(struct cli *c, const json_t *v, const char *kind)
{
    const json_t *job = json_object_get(v, "job");
    const char *name = json_text(v, "volume");
    if (!json_is_object(job)) {
        fprintf(c->out, "%s: no %s (%s)\n", name, kind, json_text(v, "why"));
        return;
    }
    if (json_is_true(json_object_get(job, "running"))) {
        fprintf(c->out, "%s: %s is running\n", name, kind);
        return;
    }
    char elapsed[DURATION_TEXT_SIZE];
    duration_format((uint64_t)(json_double(job, "elapsed_s") * (double)NSEC_PER_SEC), elapsed);
    fprintf(c->out, "%s: %s %s after %s: %llu bad copies, %llu repaired, %llu blocks lost; %s\n", name, kind,
            strcmp(json_text(job, "result"), "ok") == 0 ? "done" : json_text(job, "why"), elapsed,
            (unsigned long long)json_number(job, "bad_copies"),
            (unsigned long long)json_number(job, "repaired_copies"),
            (unsigned long long)json_number(job, "lost_blocks"),
            json_is_true(json_object_get(v, "healthy")) ? "healthy" : "not healthy");
}

static int run_job(struct cli *c, const char *kind)
{
    bool all = cli_flag(c, "all"), no_wait = cli_flag(c, "no-wait");
    const char *rate = cli_value(c, "rate");
    uint64_t rate_bytes = 0;
    if (all == (c->arg_count > 0))
        return cli_wrong(c, "name one volume, or --all");
    if (no_wait && cli_flag(c, "wait"))
        return cli_wrong(c, "--wait and --no-wait contradict each other");
    if (rate != NULL && (size_parse(rate, &rate_bytes) < 0 || rate_bytes == 0))
        return cli_wrong(c, "\"%s\" is not a rate, as 100M", rate);
    json_t *request = json_pack("{ss ss sb sI}", "cmd", "job", "kind", kind, "no_wait", (int)no_wait,
                                "rate_bytes_per_s", (json_int_t)rate_bytes);
    json_t *list = NULL, *v;
    char what[16];
    snprintf(what, sizeof(what), "%s", kind);
    if (!all)
        json_object_set_new(request, "name", control_text(c->args[0]));
    int r = cli_ask(c, request, cli_progress, what, &list);
    if (r != CLI_OK)
        return r;
    size_t i;
    json_array_foreach(list, i, v)
    {
        if (job_failed(v, kind) != CLI_OK)
            r = CLI_FAILED;
        if (!c->json)
            report_one(c, v, kind);
    }
    if (c->json)
        (void)cli_print_json(c, json_incref(list));
    json_decref(list);
    return r;
}

int cmd_scrub(struct cli *c)
{
    return run_job(c, "scrub");
}

int cmd_repair(struct cli *c)
{
    return run_job(c, "repair");
}
