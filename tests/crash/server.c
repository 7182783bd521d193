/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/crash/server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NSEC UINT64_C(1000000000)

uint64_t server_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NSEC + (uint64_t)t.tv_nsec;
}

uint64_t server_patience_ns(uint64_t ns)
{
    const char *slow = getenv("ASHLAR_SLOW");
    unsigned long factor = slow ? strtoul(slow, NULL, 10) : 1;
    return ns * (factor > 0 && factor < 100 ? factor : 1);
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Below the range of outgoing connections, so that none of those has it when a killed server comes back. */
static uint16_t free_port(void)
{
    uint16_t port = (uint16_t)(20000 + getpid() % 12000);
    int error, on = 1;
    do {
        port = port < 32000 ? port + 1 : 20000;
        struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        error = bind(fd, (struct sockaddr *)&a, sizeof(a));
        close(fd);
    } while (error);
    return port;
}

/* Starts a program, output appended to DIR/server.log; it dies with us. */
static pid_t spawn(struct server *s, char *const argv[])
{
    char log[600];
    snprintf(log, sizeof(log), "%s/server.log", s->dir);
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = fork();
    assert(pid >= 0);
    if (pid > 0)
        return pid;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    execvp(argv[0], argv);
    _exit(127);
}

static int run(struct server *s, char *const argv[])
{
    int status;
    pid_t pid = spawn(s, argv);
    while (waitpid(pid, &status, 0) < 0)
        assert(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_ashlar(struct server *s, const char *a, const char *b, const char *c, const char *d,
                      const char *e, const char *f, const char *g)
{
    char program[600], socket_path[600];
    snprintf(program, sizeof(program), "%s/ashlar", s->build);
    snprintf(socket_path, sizeof(socket_path), "%s/ashlar.sock", s->node_dir);
    const char *argv[] = {program, "-s", socket_path, a, b, c, d, e, f, g, NULL};
    char *copy[11];
    memcpy(copy, argv, sizeof(copy));
    return run(s, copy);
}

void server_init(struct server *s)
{
    snprintf(s->node_dir, sizeof(s->node_dir), "%s/node", s->dir);
    mkdir(s->node_dir, 0755);
    s->port = free_port();
    if (s->kind == SERVER_ASHLARD)
        snprintf(s->uri, sizeof(s->uri), "nbd+unix:///v?socket=%s/nbd.sock", s->node_dir);
    else
        snprintf(s->uri, sizeof(s->uri), "nbd+unix:///?socket=%s/nbd.sock", s->node_dir);
}

static void launch_nbdkit(struct server *s)
{
    char socket_path[600], size[64], image[600];
    snprintf(socket_path, sizeof(socket_path), "%s/nbd.sock", s->node_dir);
    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)s->size_bytes);
    snprintf(image, sizeof(image), "%s/image", s->node_dir);
    unlink(socket_path);
    if (s->kind == SERVER_NBDKIT_MEMORY) {
        char *argv[] = {"nbdkit", "-f", "-U", socket_path, "memory", size, NULL};
        s->pid = spawn(s, argv);
        return;
    }
    int fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert(fd >= 0);
    int error = ftruncate(fd, (off_t)s->size_bytes);
    assert(!error);
    close(fd);
    char *argv[] = {"nbdkit", "-f", "-U", socket_path, "file", image, NULL};
    s->pid = spawn(s, argv);
}

static void launch(struct server *s)
{
    if (s->kind != SERVER_ASHLARD) {
        launch_nbdkit(s);
        return;
    }
    char program[600], port[16];
    snprintf(program, sizeof(program), "%s/ashlard", s->build);
    snprintf(port, sizeof(port), "%u", s->port);
    char *argv[] = {program,        "--dir",      s->node_dir, "--drives", "4",
                    "--drive-size", "2G",         "--memory",  "128M",     "--nbd-port",
                    port,           "--nfs-port", "0",         NULL};
    s->pid = spawn(s, argv);
}

static bool answers(struct server *s)
{
    char path[600];
    if (s->kind == SERVER_ASHLARD)
        return run_ashlar(s, "status", NULL, NULL, NULL, NULL, NULL, NULL) == 0;
    snprintf(path, sizeof(path), "%s/nbd.sock", s->node_dir);
    return access(path, F_OK) == 0;
}

bool server_is_alive(struct server *s)
{
    int status;
    if (s->pid == 0)
        return false;
    if (waitpid(s->pid, &status, WNOHANG) == 0)
        return true;
    if (WIFSIGNALED(status))
        fprintf(stderr, "kill9: the server died of signal %d; see %s/server.log\n", WTERMSIG(status), s->dir);
    else
        fprintf(stderr, "kill9: the server exited with %d; see %s/server.log\n", WEXITSTATUS(status), s->dir);
    s->pid = 0;
    return false;
}

bool server_start(struct server *s, uint64_t *ret_ns)
{
    uint64_t start = server_clock_ns();
    uint64_t limit = start + server_patience_ns(10 * NSEC);
    assert(s->pid == 0);
    launch(s);
    while (!answers(s)) {
        if (!server_is_alive(s))
            return false;
        if (server_clock_ns() > limit) {
            fprintf(stderr, "kill9: the server does not answer; see %s/server.log\n", s->dir);
            return false;
        }
        pause_ms(10);
    }
    *ret_ns = server_clock_ns() - start;
    return true;
}

bool server_create_volume(struct server *s)
{
    char size[32];
    if (s->kind != SERVER_ASHLARD)
        return true;
    snprintf(size, sizeof(size), "%lluM", (unsigned long long)(s->size_bytes >> 20));
    int status = run_ashlar(s, "volume", "create", "v", "--size", size, "--protect", s->protect);
    if (status == 0)
        status = run_ashlar(s, "export", "v", "--nbd", NULL, NULL, NULL, NULL);
    if (status != 0)
        fprintf(stderr, "kill9: the volume could not be made (exit %d); see %s/server.log\n", status, s->dir);
    return status == 0;
}

void server_kill(struct server *s)
{
    int status;
    if (s->pid == 0)
        return;
    kill(s->pid, SIGKILL);
    while (waitpid(s->pid, &status, 0) < 0)
        assert(errno == EINTR);
    s->pid = 0;
}

bool server_stop(struct server *s)
{
    int status;
    uint64_t limit = server_clock_ns() + server_patience_ns(60 * NSEC);
    if (s->pid == 0)
        return false;
    kill(s->pid, SIGTERM);
    while (waitpid(s->pid, &status, WNOHANG) == 0) {
        if (server_clock_ns() > limit) {
            fprintf(stderr, "kill9: the server did not stop within 60 s of SIGTERM\n");
            server_kill(s);
            return false;
        }
        pause_ms(10);
    }
    s->pid = 0;
    return s->kind != SERVER_ASHLARD || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

bool server_check_offline(struct server *s, int *ret_status, uint64_t *ret_ns)
{
    uint64_t start = server_clock_ns();
    int status = 0;
    if (s->kind == SERVER_ASHLARD)
        status = run_ashlar(s, "check", s->node_dir, NULL, NULL, NULL, NULL, NULL);
    *ret_status = status;
    *ret_ns = server_clock_ns() - start;
    return status == 0;
}

void server_damage(struct server *s, uint64_t offset, const void *buf, size_t len)
{
    char image[600];
    assert(s->kind == SERVER_NBDKIT_FILE);
    snprintf(image, sizeof(image), "%s/image", s->node_dir);
    int fd = open(image, O_WRONLY | O_CLOEXEC);
    assert(fd >= 0);
    ssize_t n = pwrite(fd, buf, len, (off_t)offset);
    assert(n == (ssize_t)len);
    close(fd);
}
