/* SPDX-License-Identifier: Apache-2.0 */
/* ashlard: options, threads, signals. What a node is made of is in start.c. */
#include "server/server.h"

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/world_real.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STOP_DEADLINE_S 45u
#define AGAIN_NS        (2 * NSEC_PER_SEC)

static int complain(const struct control_error *e)
{
    fprintf(stderr, "ashlard: %s\n", e->text);
    if (e->hint[0] != '\0')
        fprintf(stderr, "         %s\n", e->hint);
    return EXIT_FAILURE;
}

/* Many drives and clients are many descriptors; registered buffers are locked memory. */
static void limits_raise(void)
{
    static const __rlimit_resource_t which[] = {RLIMIT_NOFILE, RLIMIT_MEMLOCK};
    for (unsigned i = 0; i < ARRAY_SIZE(which); i++) {
        struct rlimit limit;
        if (getrlimit(which[i], &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            if (setrlimit(which[i], &limit) < 0)
                LOG_DEBUG("a resource limit could not be raised");
        }
    }
}

/* ---- Reactors ---- */

static void *reactor_thread(void *arg)
{
    struct server *s = ((void **)arg)[0];
    struct reactor *r = ((void **)arg)[1];
    free(arg);
    int err = reactor_run(r);
    if (err != 0) {
        __atomic_store_n(&s->thread_error, err, __ATOMIC_RELEASE);
        pthread_kill(s->main_thread, SIGUSR1);
    }
    return NULL;
}

static int thread_start(struct server *s, uint32_t i)
{
    void **arg = malloc(2 * sizeof(*arg));
    if (arg == NULL)
        return ENOMEM;
    arg[0] = s;
    arg[1] = s->reactors[i];
    int error = pthread_create(&s->threads[i], NULL, reactor_thread, arg);
    if (error != 0)
        free(arg);
    return error;
}

static int reactors_make(struct server *s)
{
    /* A chunk must hold the longest run of pages; small budgets are cut finer, so that reactors share them.
     */
    size_t chunk =
        (size_t)MIN(MAX(s->budget.limit_bytes / 64, PAGE_RUN_MAX * (uint64_t)BLOCK_SIZE), 16 * MIB);
    for (uint32_t i = 0; i < s->options.reactors; i++) {
        struct reactor_options o = {.world = &world_real_ops,
                                    .budget = &s->budget,
                                    .chunk_bytes = ALIGN_DOWN(chunk, PAGE_RUN_MAX * (size_t)BLOCK_SIZE),
                                    .index = i};
        int r = reactor_new(&o, &s->reactors[i]);
        if (r < 0) {
            control_error_set(&s->error, r, "", "reactor %u cannot be made: %s", i, error_text(r));
            return r;
        }
    }
    return 0;
}

/* ---- Signals ---- */

static void too_late(int sig)
{
    static const char text[] =
        "ashlard: stopping took too long; ending now. What was acknowledged is safe: the "
        "logs are replayed at the next start.\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(n > 0 ? EXIT_FAILURE : EXIT_FAILURE);
}

static sigset_t signals_block(void)
{
    sigset_t set;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, alarm_action = {.sa_handler = too_late};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
    sigaction(SIGALRM, &alarm_action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return set;
}

/* Until the life of the node has ended, or a reactor could not run. */
static void signals_serve(struct server *s, const sigset_t *set)
{
    uint64_t asked_ns = 0;
    for (;;) {
        int sig = sigwaitinfo(set, NULL);
        if (sig == SIGUSR1)
            return;
        if (sig < 0)
            continue;
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now); /* banned-ok: the main thread has no reactor */
        uint64_t now_ns = (uint64_t)now.tv_sec * NSEC_PER_SEC + (uint64_t)now.tv_nsec;
        if (asked_ns != 0 && now_ns - asked_ns < AGAIN_NS)
            continue; /* one request reached us twice: as a process and as one of its group */
        if (asked_ns != 0) {
            fprintf(stderr, "ashlard: asked again: ending now; the logs are replayed at the next start\n");
            _exit(EXIT_FAILURE);
        }
        if (reactor_spawn(s->reactors[0], "stop", server_stop_ask, s) < 0)
            continue; /* no memory for a message: the next signal tries again */
        asked_ns = now_ns;
        alarm(STOP_DEADLINE_S);
    }
}

static int serve(struct server *s)
{
    sigset_t set = signals_block();
    int r = reactors_make(s);
    if (r < 0)
        return r;
    node_setup(&s->node, s->dir, &s->budget, s->reactors, s->options.reactors);
    s->node.nbd_port = s->options.nbd_port;
    snprintf(s->node.nbd_listen, sizeof(s->node.nbd_listen), "%s", s->options.nbd_listen);
    snprintf(s->node.nfs_listen, sizeof(s->node.nfs_listen), "%s", s->options.nfs_listen);
    waitq_init(&s->stop_waiters);
    r = reactor_spawn(s->reactors[0], "life", server_life, s);
    for (uint32_t i = 0; r == 0 && i < s->options.reactors; i++)
        r = thread_start(s, i) == 0 ? 0 : ERR_SYS(EAGAIN);
    if (r < 0) {
        control_error_set(&s->error, r, "", "the threads cannot be started: %s", error_text(r));
        return r;
    }
    signals_serve(s, &set);
    int broken = __atomic_load_n(&s->thread_error, __ATOMIC_ACQUIRE);
    if (broken != 0) {
        control_error_set(&s->error, broken,
                          "Ashlar needs Linux 6.1 or later with io_uring allowed (sysctl "
                          "kernel.io_uring_disabled, the container's seccomp profile).",
                          "a reactor cannot run: %s", error_text(broken));
        complain(&s->error);
        _exit(EXIT_FAILURE); /* other threads may wait for ever for the one that is not there */
    }
    for (uint32_t i = 0; i < s->options.reactors; i++)
        pthread_join(s->threads[i], NULL);
    for (uint32_t i = 0; i < s->options.reactors; i++)
        reactor_free(s->reactors[i]);
    return s->failed ? ERR_NODE_CONFIG : 0;
}

int main(int argc, char **argv)
{
    static struct server s; /* large; zeroed */
    char why[256];
    if (server_options_parse(argc, argv, &s.options, why, sizeof(why)) < 0) {
        fprintf(stderr, "ashlard: %s\nTry ashlard --help.\n", why);
        return 2;
    }
    if (s.options.help) {
        fputs(server_options_help, stdout);
        return EXIT_SUCCESS;
    }
    if (s.options.version) {
        puts("ashlard " ASHLAR_VERSION);
        return EXIT_SUCCESS;
    }
    log_set_level(s.options.log_level);
    crash_handler_install();
    limits_raise();
    umask(S_IWGRP | S_IRWXO);
    s.main_thread = pthread_self();
    s.budget.limit_bytes = s.options.memory_bytes;
    if (server_dir_open(&s) < 0)
        return complain(&s.error);
    int r = serve(&s);
    if (r < 0)
        complain(&s.error);
    server_dir_close(&s);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
