/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each seed runs in a child: it leaks on purpose, may die of an assertion, and must not see what another seed
 * left in memory. The child sends its result through a pipe; a child that says nothing has died.
 */
#include "sim/runner.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SEED_SECONDS_MAX 300u /* of CPU: a seed that loops for ever is killed */
#define ALL_FAULTS_SEEDS 500u

struct job {
    pid_t pid;
    int fd;
    uint64_t seed;
    struct seed_result result;
    size_t have;
};

static uint64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void child_run(const struct seed_options *o, uint64_t seed, int fd)
{
    struct rlimit cpu = {SEED_SECONDS_MAX, SEED_SECONDS_MAX};
    setrlimit(RLIMIT_CPU, &cpu);
    struct rlimit core = {0, 0};
    setrlimit(RLIMIT_CORE, &core);
    struct seed_options so = *o;
    so.seed = seed;
    if (so.trace)
        setvbuf(so.out, NULL, _IOLBF, 0); /* so that an assertion stands behind what led to it */
    struct seed_result r = {0};
    (so.run != NULL ? so.run : seed_run)(&so, &r);
    fflush(so.out);
    const char *p = (const char *)&r;
    for (size_t done = 0; done < sizeof(r);) {
        ssize_t n = write(fd, p + done, sizeof(r) - done);
        if (n <= 0)
            _exit(3);
        done += (size_t)n;
    }
    _exit(r.failed ? 1 : 0);
}

static void job_start(struct job *j, const struct seed_options *o, uint64_t seed)
{
    int fds[2];
    fflush(NULL);
    if (pipe(fds) != 0) {
        perror("sim: pipe");
        exit(2);
    }
    j->seed = seed;
    j->have = 0;
    j->pid = fork();
    if (j->pid < 0) {
        perror("sim: fork");
        exit(2);
    }
    if (j->pid == 0) {
        close(fds[0]);
        child_run(o, seed, fds[1]);
    }
    close(fds[1]);
    j->fd = fds[0];
}

/* Reads what has come; true once the child has ended. */
static bool job_read(struct job *j)
{
    ssize_t n = read(j->fd, (char *)&j->result + j->have, sizeof(j->result) - j->have);
    if (n < 0 && errno == EINTR)
        return false;
    if (n > 0) {
        j->have += (size_t)n;
        if (j->have < sizeof(j->result))
            return false;
    }
    close(j->fd);
    int status = 0;
    struct rusage usage;
    while (wait4(j->pid, &status, 0, &usage) < 0 && errno == EINTR)
        continue;
    if (j->have != sizeof(j->result)) {
        j->result = (struct seed_result){.seed = j->seed, .failed = true};
        if (WIFSIGNALED(status))
            snprintf(j->result.why, sizeof(j->result.why), "its process died of signal %d (%s)",
                     WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(j->result.why, sizeof(j->result.why), "its process ended with code %d",
                     WEXITSTATUS(status));
    }
    j->result.cpu_ns = ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * NSEC_PER_SEC +
                       ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * NSEC_PER_USEC;
    j->pid = 0;
    return true;
}

void runner_one(const struct seed_options *o, struct seed_result *ret)
{
    struct job j;
    job_start(&j, o, o->seed);
    while (!job_read(&j))
        continue;
    *ret = j.result;
}

static void summary_add(struct runner_summary *sum, const struct seed_result *r)
{
    sum->seeds++;
    sum->acked += r->acked;
    sum->crashes += r->crashes;
    sum->events += r->events;
    sum->sim_ns += r->sim_ns;
    sum->cpu_ns += r->cpu_ns;
    sum->trace_hash ^= r->trace_hash; /* seeds end in any order */
    if (!r->failed)
        sum->fewest_acked = MIN(sum->fewest_acked, r->acked);
    for (int i = 0; i < SIM_FAULT_COUNT; i++)
        sum->faults[i] += r->faults[i];
}

static void seed_finished(const struct runner_options *o, struct runner_summary *sum, struct seed_result *r)
{
    if (o->twice && !r->failed) {
        struct seed_options so = o->seed;
        so.seed = r->seed;
        struct seed_result again;
        runner_one(&so, &again);
        if (again.trace_hash != r->trace_hash) {
            r->failed = true;
            snprintf(r->why, sizeof(r->why), "two runs gave the trace hashes %016" PRIx64 " and %016" PRIx64,
                     r->trace_hash, again.trace_hash);
        }
    }
    summary_add(sum, r);
    if (!r->failed)
        return;
    sum->failed++;
    sum->last_failed = r->seed;
    if (!o->quiet)
        printf("seed %" PRIu64 " failed: %s\n", r->seed, r->why);
}

/* The kinds that a single node with its drives can have; the network's come with the second node. */
static bool fault_expected(int fault)
{
    return fault < SIM_FAULT_NET_DELAY;
}

static void summary_print(const struct runner_options *o, struct runner_summary *sum)
{
    double n = sum->seeds > 0 ? (double)sum->seeds : 1;
    printf("%" PRIu64 " seeds, %" PRIu64 " failed; %" PRIu64 " operations acknowledged (fewest %" PRIu64
           "), %" PRIu64 " crashes, %.1f s simulated, %" PRIu64 " events\n",
           sum->seeds, sum->failed, sum->acked, sum->seeds > sum->failed ? sum->fewest_acked : 0,
           sum->crashes, (double)sum->sim_ns / 1e9, sum->events);
    printf("%.1f s of wall time, %.1f ms of CPU a seed\n", (double)sum->wall_ns / 1e9,
           (double)sum->cpu_ns / 1e6 / n);
    printf("faults:");
    for (int i = 0; i < SIM_FAULT_COUNT; i++)
        if (fault_expected(i))
            printf(" %s %" PRIu64, sim_fault_name((enum sim_fault)i), sum->faults[i]);
    printf("\n");
    if (!o->need_all_faults || sum->seeds < ALL_FAULTS_SEEDS)
        return;
    for (int i = 0; i < SIM_FAULT_COUNT; i++) {
        if (fault_expected(i) && sum->faults[i] == 0) {
            printf("failed: the fault %s never occurred\n", sim_fault_name((enum sim_fault)i));
            sum->fault_missing = true;
        }
    }
}

static void wait_some(struct job *jobs, uint32_t count, const struct runner_options *o,
                      struct runner_summary *sum)
{
    struct pollfd fds[256];
    uint32_t index[256], n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (jobs[i].pid == 0)
            continue;
        index[n] = i;
        fds[n++] = (struct pollfd){.fd = jobs[i].fd, .events = POLLIN};
    }
    if (n == 0 || poll(fds, n, -1) < 0)
        return;
    for (uint32_t k = 0; k < n; k++)
        if (fds[k].revents != 0 && job_read(&jobs[index[k]]))
            seed_finished(o, sum, &jobs[index[k]].result);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

int runner_run(const struct runner_options *o, struct runner_summary *ret)
{
    struct runner_summary sum = {.fewest_acked = UINT64_MAX};
    uint32_t count = o->jobs != 0 ? o->jobs : (uint32_t)MAX(1, sysconf(_SC_NPROCESSORS_ONLN));
    count = MIN(count, 256u);
    struct job *jobs = calloc(count, sizeof(*jobs));
    assert(jobs != NULL);
    /* What was done until then is told, too. */
    struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &interrupt, NULL);
    sigaction(SIGTERM, &interrupt, NULL);
    uint64_t began = wall_ns();
    uint64_t until = o->minutes != 0 ? began + o->minutes * 60 * NSEC_PER_SEC : UINT64_MAX;
    uint64_t next = o->first;
    bool more = o->first <= o->last;
    for (;;) {
        uint32_t running = 0;
        if (interrupted || wall_ns() >= until || (o->failures_max != 0 && sum.failed >= o->failures_max))
            more = false;
        for (uint32_t i = 0; i < count; i++) {
            if (jobs[i].pid == 0 && more) {
                job_start(&jobs[i], &o->seed, next);
                more = next != o->last;
                next++;
            }
            running += jobs[i].pid != 0;
        }
        if (running == 0)
            break;
        wait_some(jobs, count, o, &sum);
    }
    free(jobs);
    sum.wall_ns = wall_ns() - began;
    if (!o->quiet) {
        summary_print(o, &sum);
        printf("trace-hash %016" PRIx64 "\n", sum.trace_hash);
        if (sum.failed > 0)
            printf("failing seed: %" PRIu64 "\n", sum.last_failed);
    }
    *ret = sum;
    if (interrupted)
        printf("interrupted before the last seed\n");
    return sum.failed > 0 || sum.fault_missing || interrupted ? 1 : 0;
}
