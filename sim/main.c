/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of the simulator. */
#include "sim/runner.h"
#include "sim/sweep.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>

static void usage(FILE *out)
{
    fprintf(out,
            "usage: sim --seed N [--trace]            one history; the same one each time\n"
            "       sim --seeds A..B [--minutes M]    many, one process each, on all cores\n"
            "       sim --replay-file FILE            the seeds of a file: NUMBER, then why it is kept\n"
            "       sim --sweep io|alloc|malloc [--phase start|commit|replay|repair|grow] [--seed N]\n"
            "                                         fails each I/O, page allocation or malloc of a phase "
            "in turn\n"
            "options:\n"
            "  --point N          of a sweep: this one alone (with --trace)\n"
            "  --twice            run each seed twice: the trace hashes must be the same\n"
            "  --jobs N           processes at a time (default: one a core)\n"
            "  --max-failures N   stop after so many (default 10; 0: never)\n"
            "  --in-process       of --seed: not in a child, for a debugger\n"
            "  --target NAME      volume (default), fs or toy\n"
            "  --mutant NAME      a bug of the simulated world that the checker must find within the seeds:\n"
            "                     no-sync early-ack no-dsync stale-read wrong-block\n"
            "                     change-torn\n");
}

static bool parse_u64(const char *text, char stop, const char **ret_end, uint64_t *ret)
{
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (end == text || errno != 0 || text[0] == '-' || (*end != stop && *end != '\0'))
        return false;
    *ret = n;
    *ret_end = end;
    return true;
}

static bool parse_range(const char *text, uint64_t *ret_first, uint64_t *ret_last)
{
    const char *end;
    if (!parse_u64(text, '.', &end, ret_first) || strncmp(end, "..", 2) != 0)
        return false;
    return parse_u64(end + 2, '\0', &end, ret_last) && *end == '\0' && *ret_first <= *ret_last;
}

static int run_one(const struct runner_options *o, uint64_t seed, bool in_process)
{
    struct seed_options so = o->seed;
    so.seed = seed;
    struct sim_swarm w;
    swarm_draw(seed, &w);
    if (so.target == &sim_target_fs_ops)
        swarm_for_files(&w);
    swarm_print(&w, stdout);
    fflush(stdout);
    struct seed_result r;
    if (in_process)
        seed_run(&so, &r);
    else
        runner_one(&so, &r);
    if (o->twice && !r.failed) {
        struct seed_result again;
        runner_one(&so, &again);
        if (again.trace_hash != r.trace_hash) {
            r.failed = true;
            snprintf(r.why, sizeof(r.why), "a second run gave the trace hash %016" PRIx64, again.trace_hash);
        }
    }
    printf("%" PRIu64 " operations acknowledged, %" PRIu64 " crashes, %.6f s simulated, %" PRIu64
           " events, %.1f ms of CPU\n",
           r.acked, r.crashes, (double)r.sim_ns / 1e9, r.events, (double)r.cpu_ns / 1e6);
    printf("trace-hash %016" PRIx64 "\n", r.trace_hash);
    if (r.failed)
        printf("%s\nfailing seed: %" PRIu64 "\n", r.why, seed);
    return r.failed ? 1 : 0;
}

static int run_file(const struct runner_options *o, const char *path)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        fprintf(stderr, "sim: cannot open %s: %s\n", path, strerror(errno));
        return 2;
    }
    char line[512];
    uint64_t seeds = 0, failed = 0, last = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *end;
        uint64_t seed;
        line[strcspn(line, " \t\n")] = '\0';
        if (line[0] == '\0' || line[0] == '#')
            continue;
        if (!parse_u64(line, '\0', &end, &seed)) {
            fprintf(stderr, "sim: %s: '%s' is no seed\n", path, line);
            fclose(f);
            return 2;
        }
        struct seed_options so = o->seed;
        so.seed = seed;
        struct seed_result r;
        runner_one(&so, &r);
        seeds++;
        if (r.failed) {
            failed++;
            last = seed;
            printf("seed %" PRIu64 " failed: %s\n", seed, r.why);
        }
    }
    fclose(f);
    printf("%" PRIu64 " kept seeds, %" PRIu64 " failed\n", seeds, failed);
    if (failed > 0)
        printf("failing seed: %" PRIu64 "\n", last);
    return failed > 0 ? 1 : 0;
}

/* "": the default. NULL: there is none of this name. */
static const struct sim_target_ops *target_of(const char *name)
{
    static const struct sim_target_ops *const targets[] = {&sim_target_volume_ops, &sim_target_fs_ops,
                                                           &sim_target_toy_ops};
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++)
        if (name[0] == '\0' || strcmp(name, targets[i]->name) == 0)
            return targets[i];
    return NULL;
}

static bool mutant_of(const char *name, enum sim_mutant *ret)
{
    for (int i = 0; i < SIM_MUTANT_COUNT; i++) {
        if (strcmp(name, sim_mutant_name((enum sim_mutant)i)) == 0) {
            *ret = (enum sim_mutant)i;
            return true;
        }
    }
    return false;
}

enum option_key {
    OPT_SEED = 256,
    OPT_SEEDS,
    OPT_TRACE,
    OPT_MINUTES,
    OPT_TWICE,
    OPT_JOBS,
    OPT_MAX,
    OPT_REPLAY,
    OPT_TARGET,
    OPT_MUTANT,
    OPT_SWEEP,
    OPT_PHASE,
    OPT_POINT,
    OPT_IN_PROCESS,
    OPT_HELP
};
static const struct option long_options[] = {
    {"seed", required_argument, NULL, OPT_SEED},
    {"seeds", required_argument, NULL, OPT_SEEDS},
    {"trace", no_argument, NULL, OPT_TRACE},
    {"minutes", required_argument, NULL, OPT_MINUTES},
    {"twice", no_argument, NULL, OPT_TWICE},
    {"jobs", required_argument, NULL, OPT_JOBS},
    {"max-failures", required_argument, NULL, OPT_MAX},
    {"replay-file", required_argument, NULL, OPT_REPLAY},
    {"target", required_argument, NULL, OPT_TARGET},
    {"mutant", required_argument, NULL, OPT_MUTANT},
    {"sweep", required_argument, NULL, OPT_SWEEP},
    {"phase", required_argument, NULL, OPT_PHASE},
    {"point", required_argument, NULL, OPT_POINT},
    {"in-process", no_argument, NULL, OPT_IN_PROCESS},
    {"help", no_argument, NULL, OPT_HELP},
    {0},
};

struct command {
    bool one, many, sweep, all_phases, in_process;
    enum sweep_kind kind;
    enum sweep_phase phase;
    uint64_t point;
    uint64_t seed;
    const char *replay;
    struct runner_options o;
};

static bool option_number(const char *text, uint64_t *ret)
{
    const char *end;
    return parse_u64(text, '\0', &end, ret);
}

/* false: not understood. */
static bool option_take(struct command *c, int key, const char *arg)
{
    uint64_t n = 0;
    switch (key) {
    case OPT_SEED:
        c->one = true;
        return option_number(arg, &c->seed);
    case OPT_SEEDS:
        c->many = true;
        return parse_range(arg, &c->o.first, &c->o.last);
    case OPT_TRACE:
        c->o.seed.trace = true;
        return true;
    case OPT_MINUTES:
        return option_number(arg, &c->o.minutes);
    case OPT_TWICE:
        c->o.twice = true;
        return true;
    case OPT_JOBS:
    case OPT_MAX:
        if (!option_number(arg, &n) || n > 100000)
            return false;
        *(key == OPT_JOBS ? &c->o.jobs : &c->o.failures_max) = (uint32_t)n;
        return true;
    case OPT_REPLAY:
        c->replay = arg;
        return true;
    case OPT_TARGET:
        c->o.seed.target = target_of(arg);
        return c->o.seed.target != NULL;
    case OPT_SWEEP:
        c->sweep = true;
        return sweep_kind_parse(arg, &c->kind);
    case OPT_PHASE:
        c->all_phases = strcmp(arg, "all") == 0;
        return c->all_phases || sweep_phase_parse(arg, &c->phase);
    case OPT_POINT:
        return option_number(arg, &c->point);
    case OPT_IN_PROCESS:
        c->in_process = true;
        return true;
    case OPT_MUTANT:
        return mutant_of(arg, &c->o.seed.mutant);
    default:
        return false;
    }
}

/* A mutant that nobody notices is a hole in the checker. */
static int run_mutant(struct command *c)
{
    struct runner_summary sum;
    c->o.quiet = true;
    c->o.failures_max = 1;
    (void)runner_run(&c->o, &sum);
    if (sum.failed == 0) {
        printf("the mutant %s was not found in %" PRIu64 " seeds\n", sim_mutant_name(c->o.seed.mutant),
               sum.seeds);
        return 1;
    }
    printf("the mutant %s was found by seed %" PRIu64 " of %" PRIu64 "\n", sim_mutant_name(c->o.seed.mutant),
           sum.last_failed, sum.seeds);
    return 0;
}

static int run_sweep(const struct command *c)
{
    struct seed_options so = c->o.seed;
    so.seed = c->one ? c->seed : 1;
    if (!c->all_phases)
        return sweep_run(c->kind, c->phase, c->point, &so);
    int result = 0;
    for (int phase = 0; phase < SWEEP_PHASES; phase++)
        result |= sweep_run(c->kind, (enum sweep_phase)phase, 0, &so);
    return result;
}

int main(int argc, char **argv)
{
    struct command c = {
        .all_phases = true,
        .o = {.failures_max = 10, .need_all_faults = true, .seed = {.out = stdout, .target = target_of("")}}};
    int key;
    while ((key = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (key == OPT_HELP) {
            usage(stdout);
            return 0;
        }
        if (!option_take(&c, key, optarg)) {
            usage(stderr);
            return 2;
        }
    }
    if (optind != argc || (c.sweep ? 0 : c.one) + c.many + c.sweep + (c.replay != NULL) != 1) {
        usage(stderr);
        return 2;
    }
    if (c.o.seed.target == &sim_target_toy_ops)
        c.o.need_all_faults = false; /* its drives are good */
    if (c.sweep)
        return run_sweep(&c);
    if (c.replay != NULL)
        return run_file(&c.o, c.replay);
    if (c.one)
        return run_one(&c.o, c.seed, c.in_process);
    if (c.o.seed.mutant != SIM_MUTANT_NONE)
        return run_mutant(&c);
    struct runner_summary sum;
    return runner_run(&c.o, &sum);
}
