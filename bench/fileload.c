/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on the files of a mounted folder, one kind at a time, by one thread or several:
 *
 *      fileload DIR --make [--files N] [--bytes N]     lays out the data
 *      fileload DIR --op OP [OPTIONS]                  works on it
 *
 *      stat      of files by name, at random, again and again
 *      lookup    each name of the folder once, in no order; only looked up (O_PATH)
 *      create    new files: open, close         mkdir     new folders
 *      unlink    what was made before           rename    from one name to another and back
 *      read      4 KiB at random, O_DIRECT: the kernel's page cache has no part in it
 *
 * Each thread has names of its own. Ends when the time is over, or when there is nothing more to do. Prints
 * one JSON object as nbdload does. With --sync it waits for a line on standard input before and after the
 * timed part.
 */
#include "load.h"

#include "runtime/base.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS_MAX 16u
#define NAME_SIZE   32
#define READ_SIZE   4096u
#define RENAMED     1000u /* files of each thread that are renamed in turn */

enum op { STAT, LOOKUP, CREATE, MKDIR, UNLINK, RENAME, READ, OP_COUNT };
static const char *const op_names[OP_COUNT] = {"stat",   "lookup", "create", "mkdir",
                                               "unlink", "rename", "read"};

static struct {
    const char *dir;
    enum op op;
    unsigned threads;
    uint64_t files, bytes,
        preload; /* files in tree; bytes of the large file; names to unlink, for each thread */
    double seconds;
    bool sync, make;
    uint64_t seed;
} opt = {.op = OP_COUNT, .threads = 1, .seconds = 5, .seed = 1};

struct worker {
    pthread_t thread;
    unsigned index;
    uint64_t random;
    uint64_t next; /* the number of the next name */
    int tree, own; /* the folder of all, and this thread's */
    int large;
    uint8_t *buf;
    uint32_t *order; /* of lookup */
    uint64_t order_count;
    struct load_latencies latencies;
    uint64_t errors;
};
static struct worker workers[THREADS_MAX];
static pthread_barrier_t barrier;

static void must(bool good, const char *what)
{
    if (!good)
        load_fail("%s: %s", what, strerror(errno));
}

static void name_of(char name[NAME_SIZE], char kind, uint64_t number)
{
    snprintf(name, NAME_SIZE, "%c%06llu", kind, (unsigned long long)number);
}

static bool make_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd >= 0 && close(fd) == 0;
}

/* ---- One operation: 1 done, 0 failed, -1 nothing more to do ---- */

static int do_stat(struct worker *w)
{
    char name[NAME_SIZE];
    struct stat st;
    name_of(name, 'f', load_random(&w->random) % opt.files);
    return fstatat(w->tree, name, &st, 0) == 0;
}

static int do_lookup(struct worker *w)
{
    char name[NAME_SIZE];
    if (w->next == w->order_count)
        return -1;
    name_of(name, 'f', w->order[w->next++]);
    int fd = openat(w->tree, name, O_PATH | O_CLOEXEC);
    return fd >= 0 && close(fd) == 0;
}

static int do_create(struct worker *w)
{
    char name[NAME_SIZE];
    name_of(name, 'n', w->next++);
    return make_file(w->own, name);
}

static int do_mkdir(struct worker *w)
{
    char name[NAME_SIZE];
    name_of(name, 'n', w->next++);
    return mkdirat(w->own, name, 0755) == 0;
}

static int do_unlink(struct worker *w)
{
    char name[NAME_SIZE];
    if (w->next == opt.preload)
        return -1;
    name_of(name, 'n', w->next++);
    return unlinkat(w->own, name, 0) == 0;
}

/* Round by round: a… to b…, and back. */
static int do_rename(struct worker *w)
{
    char from[NAME_SIZE], to[NAME_SIZE];
    bool back = w->next / RENAMED % 2 != 0;
    uint64_t number = w->next++ % RENAMED;
    name_of(from, back ? 'b' : 'a', number);
    name_of(to, back ? 'a' : 'b', number);
    return renameat(w->own, from, w->own, to) == 0;
}

static int do_read(struct worker *w)
{
    off_t offset = (off_t)(load_random(&w->random) % (opt.bytes / READ_SIZE) * READ_SIZE);
    return pread(w->large, w->buf, READ_SIZE, offset) == READ_SIZE;
}

static int (*const doers[OP_COUNT])(struct worker *) = {do_stat,   do_lookup, do_create, do_mkdir,
                                                        do_unlink, do_rename, do_read};

/* ---- Before the timed part ---- */

/* A share of the names, shuffled. */
static void prepare_order(struct worker *w)
{
    uint64_t share = opt.files / opt.threads, first = share * w->index;
    w->order = calloc(share, sizeof(*w->order));
    must(w->order != NULL, "memory");
    for (uint64_t i = 0; i < share; i++) {
        uint64_t k = load_random(&w->random) % (i + 1);
        w->order[i] = w->order[k];
        w->order[k] = (uint32_t)(first + i);
    }
    w->order_count = share;
}

static void prepare_own(struct worker *w, int top)
{
    char name[NAME_SIZE * 2], file[NAME_SIZE];
    snprintf(name, sizeof(name), "new-%d-%u", getpid(), w->index);
    must(mkdirat(top, name, 0755) == 0, name);
    w->own = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(w->own >= 0, name);
    uint64_t count = opt.op == UNLINK ? opt.preload : opt.op == RENAME ? RENAMED : 0;
    for (uint64_t i = 0; i < count; i++) {
        name_of(file, opt.op == RENAME ? 'a' : 'n', i);
        must(make_file(w->own, file), file);
    }
}

/* Only what the operation needs: opening a folder or a file asks the server for it. */
static void prepare(struct worker *w, int top)
{
    w->random = opt.seed * THREADS_MAX + w->index;
    w->tree = w->own = w->large = -1;
    if (opt.op == STAT || opt.op == LOOKUP) {
        w->tree = openat(top, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        must(w->tree >= 0, "tree");
    } else if (opt.op == READ) {
        w->large = openat(top, "large", O_RDONLY | O_DIRECT | O_CLOEXEC);
        must(w->large >= 0, "large");
        w->buf = aligned_alloc(READ_SIZE, READ_SIZE);
        must(w->buf != NULL, "memory");
    } else
        prepare_own(w, top);
    if (opt.op == LOOKUP)
        prepare_order(w);
}

static void release(struct worker *w)
{
    for (int i = 0, fds[] = {w->tree, w->own, w->large}; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(w->buf);
    free(w->order);
}

/* ---- The run ---- */

static void *work(void *arg)
{
    struct worker *w = arg;
    pthread_barrier_wait(&barrier);
    uint64_t now = load_now_ns(), end = now + (uint64_t)(opt.seconds * 1e9);
    for (;;) {
        int good = doers[opt.op](w);
        if (good < 0)
            break;
        uint64_t then = load_now_ns();
        if (good > 0)
            load_latency_add(&w->latencies, then - now);
        else if (w->errors++ == 0)
            fprintf(stderr, "fileload: %s: %s\n", op_names[opt.op], strerror(errno));
        now = then;
        if (now >= end || w->errors > 100)
            break;
    }
    return NULL;
}

static void measure(int top)
{
    static struct load_latencies all;
    struct load_result result = {.errors = 0};
    pthread_barrier_init(&barrier, NULL, opt.threads + 1);
    for (unsigned i = 0; i < opt.threads; i++) {
        workers[i].index = i;
        prepare(&workers[i], top);
        errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        must(errno == 0, "thread");
    }
    load_wait_for_line(opt.sync, "ready");
    double cpu_s = load_own_cpu_s();
    uint64_t start = load_now_ns();
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < opt.threads; i++)
        pthread_join(workers[i].thread, NULL);
    result.seconds = (double)(load_now_ns() - start) / 1e9;
    result.cpu_s = load_own_cpu_s() - cpu_s;
    load_wait_for_line(opt.sync, "done");
    for (unsigned i = 0; i < opt.threads; i++) {
        load_latencies_merge(&all, &workers[i].latencies);
        result.errors += workers[i].errors;
        release(&workers[i]);
    }
    result.operations = all.count;
    result.bytes = opt.op == READ ? all.count * READ_SIZE : 0;
    load_print(&result, &all);
    if (result.errors > 0)
        exit(1);
}

static void make_tree(int top)
{
    char name[NAME_SIZE];
    must(mkdirat(top, "tree", 0755) == 0, "tree");
    int tree = openat(top, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(tree >= 0, "tree");
    for (uint64_t i = 0; i < opt.files; i++) {
        name_of(name, 'f', i);
        must(make_file(tree, name), name);
    }
    close(tree);
}

static void make_large(int top)
{
    static uint8_t buf[MIB];
    uint64_t random = opt.seed;
    int fd = openat(top, "large", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    must(fd >= 0, "large");
    for (uint64_t done = 0; done < opt.bytes; done += sizeof(buf)) {
        load_random_fill(&random, buf, sizeof(buf));
        must(write(fd, buf, sizeof(buf)) == sizeof(buf), "large");
    }
    must(fsync(fd) == 0 && close(fd) == 0, "large");
}

/* ---- Options ---- */

static void usage(void)
{
    fputs("usage: fileload DIR --make [--files N] [--bytes N] [--seed N]\n"
          "       fileload DIR --op stat|lookup|create|mkdir|unlink|rename|read [--threads N] [--files N]\n"
          "               [--bytes N] [--preload N] [--seconds S] [--seed N] [--sync]\n",
          stderr);
    exit(2);
}

static uint64_t number(const char *text, uint64_t most)
{
    uint64_t n;
    if (!load_number(text, &n) || n > most)
        usage();
    return n;
}

static void parse_one(int c)
{
    switch (c) {
    case 'o':
        for (opt.op = 0; opt.op < OP_COUNT && strcmp(op_names[opt.op], optarg) != 0;)
            opt.op++;
        break;
    case 't':
        opt.threads = (unsigned)number(optarg, THREADS_MAX);
        break;
    case 'f':
        opt.files = number(optarg, 999999);
        break;
    case 'b':
        opt.bytes = ALIGN_DOWN(number(optarg, TIB), MIB);
        break;
    case 'p':
        opt.preload = number(optarg, 999999);
        break;
    case 's':
        opt.seconds = (double)number(optarg, 86400);
        break;
    case 'S':
        opt.seed = number(optarg, UINT32_MAX);
        break;
    case 'y':
        opt.sync = true;
        break;
    case 'm':
        opt.make = true;
        break;
    default:
        usage();
    }
}

static void parse(int argc, char **argv)
{
    static const struct option table[] = {
        {"op", required_argument, NULL, 'o'},      {"threads", required_argument, NULL, 't'},
        {"files", required_argument, NULL, 'f'},   {"bytes", required_argument, NULL, 'b'},
        {"preload", required_argument, NULL, 'p'}, {"seconds", required_argument, NULL, 's'},
        {"seed", required_argument, NULL, 'S'},    {"sync", no_argument, NULL, 'y'},
        {"make", no_argument, NULL, 'm'},          {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;)
        parse_one(c);
    bool lacks = ((opt.op == STAT || opt.op == LOOKUP) && opt.files < opt.threads) ||
                 (opt.op == READ && opt.bytes == 0) || (opt.op == UNLINK && opt.preload == 0);
    if (optind + 1 != argc || opt.threads == 0 || opt.make == (opt.op < OP_COUNT) || lacks)
        usage();
    opt.dir = argv[optind];
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    int top = open(opt.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(top >= 0, opt.dir);
    if (!opt.make)
        measure(top);
    else {
        if (opt.files > 0)
            make_tree(top);
        if (opt.bytes > 0)
            make_large(top);
    }
    close(top);
    return 0;
}
