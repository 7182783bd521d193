/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a server under load, again and again, and shows that nothing it acknowledged is lost.
 *
 * A SIGKILL takes nothing from the kernel, so every acknowledged write must be there afterwards, FUA or not.
 * One round: write at random until a moment drawn from the seed, SIGKILL, `ashlar check` on the stopped node,
 * start it again, read back every block. What was read back is what the next round expects: a change without
 * an answer may be there or not, but not first the one and then the other.
 *
 * --server nbdkit-file and nbdkit-memory, and --plant, are there to show that the tool finds what it should.
 */
#include "tests/crash/load.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEC 1e9

enum plant { PLANT_NOTHING, PLANT_FLIP, PLANT_STALE, PLANT_ZERO, PLANT_MISPLACED };

struct options {
    struct server server;
    uint64_t seed;
    unsigned long rounds;
    unsigned long max_run_ms;
    enum plant plant;
    bool keep;
    bool check_offline;
};

struct totals {
    struct load_counts counts;
    uint64_t bytes_verified;
    uint64_t slowest_start_ns;
};

static void usage(void)
{
    fputs("usage: kill9 --build DIR [--protect P] [--rounds N] [--seed S] [--size-mib N] [--run-ms N]\n"
          "             [--no-check] [--keep] [--server ashlard|nbdkit-file|nbdkit-memory]\n"
          "             [--plant flip|stale|zero|misplaced]\n",
          stderr);
    exit(2);
}

static unsigned long number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (errno || end == text || *end)
        usage();
    return n;
}

static unsigned choose(const char *text, const char *const *names)
{
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    usage();
    return 0;
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option table[] = {
        {"build", required_argument, NULL, 'b'},
        {"protect", required_argument, NULL, 'p'},
        {"rounds", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 's'},
        {"size-mib", required_argument, NULL, 'm'},
        {"run-ms", required_argument, NULL, 't'},
        {"server", required_argument, NULL, 'S'},
        {"plant", required_argument, NULL, 'P'},
        {"keep", no_argument, NULL, 'k'},
        {"no-check", no_argument, NULL, 'n'},
        {0},
    };
    static const char *const servers[] = {"ashlard", "nbdkit-file", "nbdkit-memory", NULL};
    static const char *const plants[] = {"nothing", "flip", "stale", "zero", "misplaced", NULL};
    *o = (struct options){.rounds = 5, .seed = 1, .max_run_ms = 1500, .check_offline = true};
    o->server.protect = "none";
    o->server.size_bytes = UINT64_C(192) << 20;
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        switch (c) {
        case 'b':
            o->server.build = optarg;
            break;
        case 'p':
            o->server.protect = optarg;
            break;
        case 'r':
            o->rounds = number(optarg);
            break;
        case 's':
            o->seed = number(optarg);
            break;
        case 'm':
            o->server.size_bytes = (uint64_t)number(optarg) << 20;
            break;
        case 't':
            o->max_run_ms = number(optarg);
            break;
        case 'S':
            o->server.kind = (enum server_kind)choose(optarg, servers);
            break;
        case 'P':
            o->plant = (enum plant)choose(optarg, plants);
            break;
        case 'k':
            o->keep = true;
            break;
        case 'n':
            o->check_offline = false;
            break;
        default:
            usage();
        }
    }
    if (optind != argc || o->server.size_bytes == 0 || o->max_run_ms == 0)
        usage();
    if (o->server.kind == SERVER_ASHLARD && !o->server.build)
        usage();
    if (o->plant && o->server.kind != SERVER_NBDKIT_FILE)
        usage();
}

/* Damages one block that was written, as a faulty server would have left it. */
static bool plant(struct options *o, struct model *m)
{
    _Alignas(8) unsigned char buf[MODEL_BLOCK];
    for (size_t i = 0; i < m->block_count; i++) {
        if (m->blocks[i].acked < 2 || m->blocks[i].has_pending)
            continue;
        uint32_t generation = m->blocks[i].acked;
        if (o->plant == PLANT_STALE)
            generation--;
        if (o->plant == PLANT_ZERO)
            generation = 0;
        model_fill(m, buf, o->plant == PLANT_MISPLACED ? i + 1 : i, generation);
        if (o->plant == PLANT_FLIP)
            buf[1234] ^= 4;
        server_damage(&o->server, i * MODEL_BLOCK, buf, sizeof(buf));
        return true;
    }
    return false;
}

static void add(struct totals *t, const struct load_counts *c)
{
    t->counts.writes += c->writes;
    t->counts.fua += c->fua;
    t->counts.zeroes += c->zeroes;
    t->counts.flushes += c->flushes;
    t->counts.reads += c->reads;
    t->counts.unanswered += c->unanswered;
    t->counts.bytes_written += c->bytes_written;
}

/* The server runs at the beginning and at the end. */
static bool one_round(struct options *o, struct model *m, unsigned long round, struct totals *t)
{
    struct load_counts c = {0};
    uint64_t run_ms = 20 + model_random_below(m, o->max_run_ms);
    uint64_t check_ns = 0, start_ns = 0, bytes = 0;
    int status = 0;
    if (!load_until_killed(&o->server, m, run_ms * 1000000, &c))
        return false;
    add(t, &c);
    if (o->plant && !plant(o, m)) {
        fprintf(stderr, "kill9: nothing was written that could be damaged\n");
        return false;
    }
    if (o->check_offline && !server_check_offline(&o->server, &status, &check_ns)) {
        fprintf(stderr, "kill9: ashlar check exits with %d; see %s/server.log\n", status, o->server.dir);
        return false;
    }
    if (!server_start(&o->server, &start_ns) || !load_verify_all(&o->server, m, &bytes))
        return false;
    t->bytes_verified += bytes;
    t->slowest_start_ns = start_ns > t->slowest_start_ns ? start_ns : t->slowest_start_ns;
    printf("round %lu/%lu: killed after %llu ms: %llu writes acknowledged (%llu FUA), %llu zeroes, %llu "
           "flushes, "
           "%llu reads, %llu unanswered; check %.2f s, start %.2f s, %llu MiB verified\n",
           round, o->rounds, (unsigned long long)run_ms, (unsigned long long)c.writes,
           (unsigned long long)c.fua, (unsigned long long)c.zeroes, (unsigned long long)c.flushes,
           (unsigned long long)c.reads, (unsigned long long)c.unanswered, (double)check_ns / SEC,
           (double)start_ns / SEC, (unsigned long long)bytes >> 20);
    fflush(stdout);
    return true;
}

/* After the last round an orderly stop must leave the same, too. */
static bool orderly_end(struct options *o, struct model *m, struct totals *t)
{
    int status = 0;
    uint64_t ns, bytes;
    if (!server_stop(&o->server)) {
        fprintf(stderr, "kill9: the orderly stop failed\n");
        return false;
    }
    if (o->server.kind == SERVER_NBDKIT_MEMORY)
        return true;
    if (o->check_offline && !server_check_offline(&o->server, &status, &ns)) {
        fprintf(stderr, "kill9: ashlar check after an orderly stop exits with %d\n", status);
        return false;
    }
    if (!server_start(&o->server, &ns) || !load_verify_all(&o->server, m, &bytes))
        return false;
    t->bytes_verified += bytes;
    return server_stop(&o->server);
}

static void remove_tree(const char *dir)
{
    char command[700];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command) != 0)
        fprintf(stderr, "kill9: %s could not be removed\n", dir);
}

static bool run_rounds(struct options *o, struct model *m, struct totals *t)
{
    uint64_t ns;
    if (!server_start(&o->server, &ns) || !server_create_volume(&o->server))
        return false;
    for (unsigned long i = 1; i <= o->rounds; i++)
        if (!one_round(o, m, i, t))
            return false;
    return orderly_end(o, m, t);
}

int main(int argc, char **argv)
{
    struct options o;
    struct model m;
    struct totals t = {0};
    parse(argc, argv, &o);
    signal(SIGPIPE, SIG_IGN); /* banned-ok: ignoring is the one use that is defined everywhere */
    const char *tmp = getenv("TMPDIR");
    char dir[400];
    snprintf(dir, sizeof(dir), "%s/ashlar-kill9.XXXXXX", tmp ? tmp : "/var/tmp");
    if (!mkdtemp(dir)) {
        perror(dir);
        return 2;
    }
    o.server.dir = dir;
    server_init(&o.server);
    model_init(&m, o.seed, o.server.size_bytes / MODEL_BLOCK);
    bool held = run_rounds(&o, &m, &t);
    server_kill(&o.server);
    printf("kill9 %s: seed %llu, %lu rounds: %llu writes acknowledged (%llu FUA), %llu zeroes and trims, "
           "%llu flushes, "
           "%llu MiB written, %llu MiB verified, slowest start %.2f s: %s\n",
           o.server.protect, (unsigned long long)o.seed, o.rounds, (unsigned long long)t.counts.writes,
           (unsigned long long)t.counts.fua, (unsigned long long)t.counts.zeroes,
           (unsigned long long)t.counts.flushes, (unsigned long long)t.counts.bytes_written >> 20,
           (unsigned long long)t.bytes_verified >> 20, (double)t.slowest_start_ns / SEC,
           held ? "nothing acknowledged was lost" : "FAILED");
    model_done(&m);
    if (held && !o.keep)
        remove_tree(dir);
    else
        printf("kept: %s\n", dir);
    return held ? 0 : 1;
}
