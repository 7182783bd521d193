/* SPDX-License-Identifier: Apache-2.0 */
/* What a dying process leaves on its standard error. Each case dies in a child. */
#include "runtime/list.h"
#include "runtime/log.h"
#include "test_world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static fiber_role_assumed void wait_for_a_semaphore(void *arg)
{
    struct semaphore s;
    semaphore_init(&s, 0);
    int err = semaphore_take(&s, 1, DEADLINE_NEVER);
    assert(err == 0 || arg == NULL);
}

static fiber_role_assumed void abort_body(void *arg)
{
    (void)arg;
    int err = fiber_spawn("lonely-waiter", wait_for_a_semaphore, NULL);
    assert(err == 0);
    fiber_yield();
    ring_event("before-the-end", 7, 11);
    abort();
}

/* Recursion that no compiler turns into a loop. */
static uint64_t deeper(volatile uint64_t *above, uint64_t depth)
{
    volatile uint64_t frame[64];
    frame[depth % 64] = *above + depth;
    return depth == UINT64_MAX ? 0 : deeper(frame, depth + 1) + frame[depth % 64];
}

static void overflow_body(void *arg)
{
    volatile uint64_t start = 1;
    (void)arg;
    ring_event("result", deeper(&start, 0), 0);
}

static void die_in_child(void (*body)(void *arg), char *out, size_t size, int *ret_status)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(pipe_fds[1], STDERR_FILENO);
        crash_handler_install();
        test_run(body, NULL);
        _exit(0);
    }
    close(pipe_fds[1]);
    size_t len = 0;
    for (ssize_t n; len + 1 < size && (n = read(pipe_fds[0], out + len, size - 1 - len)) > 0;)
        len += (size_t)n;
    out[len] = '\0';
    close(pipe_fds[0]);
    assert_int_equal(waitpid(pid, ret_status, 0), pid);
}

static void abort_dumps_events_and_fibers(void **state)
{
    (void)state;
    static char out[64 * 1024];
    int status;
    die_in_child(abort_body, out, sizeof(out), &status);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(out, "died of signal 6"));
    assert_non_null(strstr(out, "before-the-end 7 11"));
    assert_non_null(strstr(out, "lonely-waiter parked in semaphore"));
    assert_non_null(strstr(out, "test running"));
}

static void overflow_of_a_stack_hits_its_guard(void **state)
{
    (void)state;
    static char out[64 * 1024];
    int status;
    die_in_child(overflow_body, out, sizeof(out), &status);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_non_null(strstr(out, "died of signal 11"));
    assert_non_null(strstr(out, "test running"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(abort_dumps_events_and_fibers),
        cmocka_unit_test(overflow_of_a_stack_hits_its_guard),
    };
    return cmocka_run_group_tests_name("crashes", tests, NULL, NULL);
}
