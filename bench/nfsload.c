/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NFS version 3 load of one thread: any mixture of operations, several connections, several requests under
 * way on each.
 *
 *      nfsload PORT MOUNT_PORT EXPORT --make [--files N] [--bytes N]       lays out the data (nfs_data.h)
 *      nfsload PORT MOUNT_PORT EXPORT --mix OP=WEIGHT,… [OPTIONS]          works on it
 *
 * Prints one JSON object as nbdload does. With --sync it waits for a line on standard input before and after
 * the timed part. "smallfile" is CREATE, WRITE of one block and, unless the write is durable by itself,
 * COMMIT: what a client does for a small file; it counts once.
 */
#include "load.h"
#include "nfs_data.h"
#include "nfs_engine.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#define KIND_SMALLFILE OP_COUNT       /* kinds of work are the operations, and this */
#define KIND_EXTRA     (OP_COUNT + 1) /* a COMMIT between writes: not counted by itself */
#define BLOCK_MAX      (UINT32_C(1) << 20)
#define PAYLOADS       64u /* places that a WRITE's data may begin at */
#define ERRORS_SHOWN   5

struct options {
    uint16_t port, mount_port;
    const char *path;
    unsigned weights[OP_COUNT + 1], weights_sum;
    unsigned connections, depth;
    uint32_t block; /* 0: as sizes[] says */
    uint32_t stable;
    uint32_t listing; /* bytes of one answer */
    unsigned commit_every;
    uint64_t preload;
    double seconds, warmup;
    bool sequential, entries, sync, make;
    uint64_t seed;
};

/* The sizes of reads and writes of a mixture ("--block mix"), in per cent. */
static const struct {
    unsigned percent;
    uint32_t bytes;
} sizes[] = {{55, 4 * KIB}, {25, 16 * KIB}, {12, 32 * KIB}, {5, 64 * KIB}, {3, 128 * KIB}};

static struct options opt = {
    .connections = 1, .depth = 1, .block = 4096, .listing = 65536, .seconds = 5, .warmup = 0.5, .seed = 1};
static struct nfs_data data;
static uint8_t *payload;
static uint64_t random_state;
static bool timed;
static struct load_latencies latencies;
static uint64_t entries, bytes, errors;

/* Of each connection: where its stream and its listings stand, and how much is to be committed. */
static struct {
    uint64_t offset;
    unsigned since_commit;
    struct nfs_place place[2]; /* READDIR, READDIRPLUS */
} at[NFS_CONNECTIONS_MAX];

/* The numbers of the files of our own that are there, in no order. */
static uint64_t *own, own_count, own_capacity, own_next;

static uint64_t pick(uint64_t below)
{
    return load_random(&random_state) % below;
}

static uint32_t pick_size(void)
{
    unsigned roll = (unsigned)pick(100), i = 0;
    if (opt.block != 0)
        return opt.block;
    while (roll >= sizes[i].percent)
        roll -= sizes[i++].percent;
    return sizes[i].bytes;
}

/* ---- One operation ---- */

static void own_name(struct nfs_slot *s, uint64_t number)
{
    s->number = number;
    snprintf(s->r.name, sizeof(s->r.name), "n%llu", (unsigned long long)number);
}

static void own_add(uint64_t number)
{
    if (own_count == own_capacity) {
        own_capacity = own_capacity != 0 ? 2 * own_capacity : 4096;
        own = reallocarray(own, own_capacity, sizeof(*own));
        assert(own != NULL);
    }
    own[own_count++] = number;
}

static void choose_range(struct nfs_slot *s)
{
    struct nfs_request *r = &s->r;
    r->len = pick_size();
    if (!opt.sequential) {
        r->object = data.data[pick(NFS_DATA_FILES)];
        r->offset = pick(data.file_bytes / r->len) * r->len;
        return;
    }
    r->object = data.data[s->connection % NFS_DATA_FILES];
    r->offset = at[s->connection].offset;
    at[s->connection].offset += r->len;
    if (at[s->connection].offset + r->len > data.file_bytes)
        at[s->connection].offset = 0;
}

static void choose_write(struct nfs_slot *s)
{
    at[s->connection].since_commit++;
    s->r.data = payload + pick(PAYLOADS) * 512;
    s->r.stable = opt.stable;
}

static bool choose_name(struct nfs_slot *s)
{
    s->r.object = data.fresh;
    if (s->kind != OP_REMOVE) {
        s->r.op = s->kind == OP_MKDIR ? OP_MKDIR : OP_CREATE;
        own_name(s, own_next++);
        return true;
    }
    if (own_count > 0) {
        own_name(s, own[--own_count]);
        return true;
    }
    if (opt.weights[OP_REMOVE] == opt.weights_sum)
        return false; /* all gone */
    s->kind = OP_CREATE;
    return choose_name(s);
}

static bool choose(struct nfs_slot *s)
{
    struct nfs_request *r = &s->r;
    r->op = s->kind < OP_COUNT ? s->kind : OP_CREATE;
    switch (s->kind) {
    case OP_READ:
        choose_range(s);
        break;
    case OP_WRITE:
        choose_range(s);
        choose_write(s);
        break;
    case OP_COMMIT:
        r->object = data.data[pick(NFS_DATA_FILES)];
        break;
    case OP_LOOKUP:
        r->object = data.tree;
        nfs_data_name(r->name, (uint32_t)pick(data.files));
        break;
    case OP_READLINK:
        r->object = data.links[pick(NFS_DATA_LINKS)];
        break;
    case OP_READDIR:
    case OP_READDIRPLUS:
        r->object = data.tree;
        r->len = opt.listing;
        r->place = at[s->connection].place[s->kind == OP_READDIRPLUS];
        break;
    case OP_FSSTAT:
        r->object = data.root;
        break;
    case OP_CREATE:
    case OP_MKDIR:
    case OP_REMOVE:
    case KIND_SMALLFILE:
        return choose_name(s);
    case OP_NULL:
        break;
    default: /* GETATTR, SETATTR, ACCESS */
        r->object = data.file[pick(data.files)];
        break;
    }
    return true;
}

static bool next(struct nfs_slot *s)
{
    if (opt.commit_every != 0 && at[s->connection].since_commit >= opt.commit_every) {
        at[s->connection].since_commit = 0;
        s->kind = KIND_EXTRA;
        s->r.op = OP_COMMIT;
        s->r.object = data.data[s->connection % NFS_DATA_FILES];
        return true;
    }
    unsigned roll = (unsigned)pick(opt.weights_sum);
    s->kind = 0;
    while (roll >= opt.weights[s->kind])
        roll -= opt.weights[s->kind++];
    return choose(s);
}

static void failed(const struct nfs_slot *s, uint32_t status)
{
    if (errors++ < ERRORS_SHOWN)
        fprintf(stderr, "nfsload: %s: status %u\n", nfs_op_name(s->r.op), status);
}

/* CREATE was answered, then WRITE, then COMMIT: true with the next of them. */
static bool small_file_goes_on(struct nfs_slot *s, const struct nfs_answer *a)
{
    struct nfs_request *r = &s->r;
    if (s->kind != KIND_SMALLFILE || s->step == (opt.stable == NFS3_UNSTABLE ? 2u : 1u))
        return false;
    if (s->step++ == 0) {
        r->op = OP_WRITE;
        r->object = a->object;
        r->offset = 0;
        r->len = opt.block;
        choose_write(s);
    } else
        r->op = OP_COMMIT;
    return true;
}

static bool done(struct nfs_slot *s, const struct nfs_answer *a)
{
    if (a->status != NFS3_OK) {
        failed(s, a->status);
        return false;
    }
    if (small_file_goes_on(s, a))
        return true;
    if (s->kind == OP_READDIR || s->kind == OP_READDIRPLUS)
        at[s->connection].place[s->kind == OP_READDIRPLUS] = a->place;
    if (s->kind == OP_CREATE || s->kind == KIND_SMALLFILE)
        own_add(s->number);
    if (timed && s->kind != KIND_EXTRA) {
        load_latency_add(&latencies, load_now_ns() - s->began_ns);
        entries += a->entries;
        if (s->kind == OP_READ || s->kind == OP_WRITE || s->kind == KIND_SMALLFILE)
            bytes += s->r.len;
    }
    return false;
}

/* ---- The run ---- */

static bool preload_next(struct nfs_slot *s)
{
    if (own_next == opt.preload)
        return false;
    s->kind = OP_CREATE;
    return choose(s);
}

static uint64_t after(double seconds)
{
    return load_now_ns() + (uint64_t)(seconds * 1e9);
}

static void measure(void)
{
    const struct nfs_work work = {next, done, opt.connections, opt.depth};
    const struct nfs_work preload = {preload_next, done, opt.connections, 8};
    nfs_engine_run_all(&preload);
    nfs_engine_run(&work, after(opt.warmup));
    load_wait_for_line(opt.sync, "ready");
    double cpu_s = load_own_cpu_s();
    uint64_t start = load_now_ns();
    timed = true;
    nfs_engine_run(&work, after(opt.seconds));
    timed = false;
    struct load_result result = {.seconds = (double)(load_now_ns() - start) / 1e9,
                                 .cpu_s = load_own_cpu_s() - cpu_s,
                                 .operations = opt.entries ? entries : latencies.count,
                                 .bytes = bytes};
    load_wait_for_line(opt.sync, "done");
    nfs_engine_drain();
    result.errors = errors;
    load_print(&result, &latencies);
}

/* ---- Options ---- */

static void usage(void)
{
    fputs(
        "usage: nfsload PORT MOUNT_PORT EXPORT --make [--files N] [--bytes N] [--seed N]\n"
        "       nfsload PORT MOUNT_PORT EXPORT --mix OP=WEIGHT,… [--files N] [--bytes N] [--seed N]\n"
        "               [--connections N] [--depth N] [--block BYTES|mix] [--sequential]\n"
        "               [--stable unstable|data|file] [--commit-every WRITES] [--listing BYTES] [--entries]\n"
        "               [--preload FILES] [--seconds S] [--warmup S] [--sync]\n",
        stderr);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    uint64_t n;
    if (!load_number(text, &n) || n < least || n > most)
        usage();
    return n;
}

static double seconds(const char *text)
{
    char *end;
    double s = strtod(text, &end);
    if (end == text || *end != '\0' || !(s >= 0 && s < 86400))
        usage();
    return s;
}

static void parse_mix(char *text)
{
    for (char *word; (word = strsep(&text, ",")) != NULL;) {
        size_t len = strcspn(word, "=");
        unsigned kind = nfs_op_by_name(word, len);
        if (kind == OP_COUNT && (len != 9 || memcmp(word, "smallfile", len) != 0))
            usage();
        if (word[len] == '\0' || kind == OP_SYMLINK)
            usage();
        opt.weights[kind] = (unsigned)number(word + len + 1, 1, 1000);
        opt.weights_sum += opt.weights[kind];
    }
}

static void parse_block(const char *text)
{
    opt.block = strcmp(text, "mix") == 0 ? 0 : (uint32_t)number(text, 512, BLOCK_MAX);
    if (opt.block % 512 != 0)
        usage();
}

static void parse_stable(const char *text)
{
    static const char *const names[] = {"unstable", "data", "file"};
    for (opt.stable = 0; opt.stable < ARRAY_SIZE(names); opt.stable++)
        if (strcmp(names[opt.stable], text) == 0)
            return;
    usage();
}

static void parse_one(int c)
{
    switch (c) {
    case 'm':
        parse_mix(optarg);
        break;
    case 'c':
        opt.connections = (unsigned)number(optarg, 1, NFS_CONNECTIONS_MAX);
        break;
    case 'd':
        opt.depth = (unsigned)number(optarg, 1, NFS_DEPTH_MAX);
        break;
    case 'b':
        parse_block(optarg);
        break;
    case 'q':
        opt.sequential = true;
        break;
    case 's':
        parse_stable(optarg);
        break;
    case 'e':
        opt.commit_every = (unsigned)number(optarg, 1, 1 << 20);
        break;
    case 'l':
        opt.listing = (uint32_t)number(optarg, 1024, BLOCK_MAX);
        break;
    case 'E':
        opt.entries = true;
        break;
    case 'p':
        opt.preload = number(optarg, 0, 1 << 24);
        break;
    case 'f':
        data.files = (uint32_t)number(optarg, 1, 999999);
        break;
    case 'B':
        data.file_bytes = ALIGN_DOWN(number(optarg, 8 * MIB, TIB) / NFS_DATA_FILES, MIB);
        break;
    case 't':
        opt.seconds = seconds(optarg);
        break;
    case 'w':
        opt.warmup = seconds(optarg);
        break;
    case 'S':
        opt.seed = number(optarg, 0, UINT64_MAX);
        break;
    case 'y':
        opt.sync = true;
        break;
    case 'M':
        opt.make = true;
        break;
    default:
        usage();
    }
}

/* Whether the mixture needs what was not named with --files or --bytes. */
static bool needs_more(void)
{
    bool uses_data = opt.weights[OP_READ] + opt.weights[OP_WRITE] + opt.weights[OP_COMMIT] != 0;
    bool uses_tree = opt.weights[OP_GETATTR] + opt.weights[OP_SETATTR] + opt.weights[OP_LOOKUP] +
                         opt.weights[OP_ACCESS] + opt.weights[OP_READLINK] + opt.weights[OP_READDIR] +
                         opt.weights[OP_READDIRPLUS] !=
                     0;
    return (uses_data && data.file_bytes == 0) || (uses_tree && data.files == 0);
}

static void parse(int argc, char **argv)
{
    static const struct option table[] = {
        {"mix", required_argument, NULL, 'm'},     {"connections", required_argument, NULL, 'c'},
        {"depth", required_argument, NULL, 'd'},   {"block", required_argument, NULL, 'b'},
        {"sequential", no_argument, NULL, 'q'},    {"stable", required_argument, NULL, 's'},
        {"listing", required_argument, NULL, 'l'}, {"commit-every", required_argument, NULL, 'e'},
        {"entries", no_argument, NULL, 'E'},       {"preload", required_argument, NULL, 'p'},
        {"files", required_argument, NULL, 'f'},   {"bytes", required_argument, NULL, 'B'},
        {"seconds", required_argument, NULL, 't'}, {"warmup", required_argument, NULL, 'w'},
        {"seed", required_argument, NULL, 'S'},    {"sync", no_argument, NULL, 'y'},
        {"make", no_argument, NULL, 'M'},          {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;)
        parse_one(c);
    if (optind + 3 != argc || opt.make == (opt.weights_sum > 0) || needs_more() ||
        (opt.block == 0 && opt.weights[KIND_SMALLFILE] > 0))
        usage();
    opt.port = (uint16_t)number(argv[optind], 1, UINT16_MAX);
    opt.mount_port = (uint16_t)number(argv[optind + 1], 1, UINT16_MAX);
    opt.path = argv[optind + 2];
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    random_state = opt.seed;
    payload = malloc(BLOCK_MAX + PAYLOADS * 512);
    assert(payload != NULL);
    load_random_fill(&random_state, payload, BLOCK_MAX + PAYLOADS * 512);
    nfs_mount(opt.mount_port, opt.path, &data.root);
    nfs_engine_open(opt.port, opt.connections);
    if (opt.make)
        nfs_data_make(&data, opt.seed);
    else {
        nfs_data_find(&data);
        measure();
    }
    nfs_engine_close();
    free(data.file);
    free(payload);
    free(own);
    return errors > 0 ? 1 : 0;
}
