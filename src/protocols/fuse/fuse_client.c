/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount process: connects, mounts, serves until it is unmounted.
 *
 * A request costs four system calls of ours: read it from the kernel, send it, receive the reply, write it to
 * the kernel. The two halves are threads that each wait in one call, so nothing polls: only when other
 * requests are under way main asks, before it sends, whether there is one more to go along.
 */
#include "protocols/fuse/fuse_client_internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define HANDLE_KILLPRIV_V2 (1u << 28) /* linux/fuse.h; libfuse does not know it */
#define GATHER_MAX         32u
#define LAZY_MS            50 /* how long a RELEASE waits for company */
#define BYE_MS             1000
#define READ_AHEAD_KIB     2048

static volatile sig_atomic_t signalled;

void client_log(const struct client *c, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (c->silent)
        syslog(LOG_NOTICE, "%s on %s: %s", c->options.name, c->options.dir, text);
    else
        fprintf(stderr, "ashlar: %s on %s: %s\n", c->options.name, c->options.dir, text);
}

static void sleep_ms(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* ---- Replies of libfuse ---- */

/* The reply to INIT lacks what this libfuse does not know: that we take setuid away ourselves, so that the
 * kernel need not ask for an attribute before each write. */
static ssize_t on_writev(int fd, struct iovec *iov, int count, void *userdata)
{
    struct client *c = userdata;
    struct fuse_init_out out;
    const struct fuse_out_header *h = iov[0].iov_base;
    if (c->init_flags == 0 || count != 2 || h->error != 0)
        return writev(fd, iov, count);
    struct iovec changed[2] = {iov[0], iov[1]};
    if (iov[1].iov_len <= sizeof(out) && iov[1].iov_len >= offsetof(struct fuse_init_out, unused)) {
        memcpy(&out, iov[1].iov_base, iov[1].iov_len);
        out.flags |= (uint32_t)c->init_flags & HANDLE_KILLPRIV_V2;
        changed[1].iov_base = &out;
    }
    return writev(fd, changed, count);
}

static ssize_t on_read(int fd, void *buf, size_t len, void *userdata)
{
    (void)userdata;
    return read(fd, buf, len);
}

/* ---- Serving ---- */

static void process(struct client *c, size_t len)
{
    const struct fuse_in_header *h = (const void *)c->buffer->bytes;
    struct fuse_buf buf = {.size = len, .mem = c->buffer->bytes};
    c->raw = c->buffer->bytes;
    c->raw_len = len;
    c->buffer_taken = false;
    if (len >= sizeof(*h) + offsetof(struct fuse_init_in, flags) + 4 && h->opcode == FUSE_INIT)
        c->init_flags = ((const struct fuse_init_in *)(h + 1))->flags;
    fuse_session_process_buf(c->se, &buf);
    c->init_flags = 0;
    c->raw = NULL;
    if (!c->buffer_taken)
        return;
    struct client_buffer *next;
    while ((next = client_buffer_get(c)) == NULL)
        sleep_ms(10);
    c->buffer = next;
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) > 0;
}

/* Sends what gathered; what nobody waits for may wait a little for company. */
static void send_gathered(struct client *c)
{
    pthread_mutex_lock(&c->lock);
    bool any = !list_empty(&c->unsent), urgent = c->urgent;
    uint32_t under_way = c->request_count;
    pthread_mutex_unlock(&c->lock);
    if (!any)
        return;
    if (!urgent && readable(c->fuse_fd, LAZY_MS))
        return;
    if (urgent && under_way > 1 && ++c->gathered < GATHER_MAX && readable(c->fuse_fd, 0))
        return;
    c->gathered = 0;
    client_flush(c);
}

static void serve(struct client *c)
{
    while (!fuse_session_exited(c->se) && !signalled) {
        ssize_t n = read(c->fuse_fd, c->buffer->bytes, CLIENT_RECEIVE_BYTES);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (n <= 0) {
            if (n < 0 && errno != ENODEV)
                client_log(c, "the kernel's requests cannot be read: %s", strerror(errno));
            return;
        }
        process(c, (size_t)n);
        send_gathered(c);
    }
}

/* ---- Starting ---- */

/* One that comes just before main reads would be heard only with the next request: so it comes again. */
static void on_signal(int number)
{
    (void)number;
    signalled = 1;
    alarm(1);
}

static void signals_set(void)
{
    struct sigaction end = {.sa_handler = on_signal}; /* without SA_RESTART: read() returns */
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    sigaction(SIGALRM, &end, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
}

/* The first connection, which may have to wait for the node. */
static int connect_first(struct client *c, FILE *err)
{
    const struct fuse_mount_options *o = &c->options;
    bool coherent;
    uint32_t waited_ms = 0;
    int fd = client_connect(c, &coherent);
    while (fd < 0 && waited_ms < o->wait_ms && fd != -EPROTONOSUPPORT && fd != -EACCES) {
        sleep_ms(100);
        waited_ms += 100;
        fd = client_connect(c, &coherent);
    }
    if (fd == -ENOENT && access(o->socket, F_OK) == 0)
        fprintf(err,
                "ashlar: the node has no file system \"%s\"\n        ashlar fs list shows those it has.\n",
                o->name);
    else if (fd == -EACCES || fd == -EPERM)
        fprintf(err, "ashlar: %s: %s\n        Only the node's owner may mount; run it as root.\n", o->socket,
                strerror(-fd));
    else if (fd == -EPROTONOSUPPORT)
        fprintf(err, "ashlar: the node at %s is of another version, or is something else\n", o->socket);
    else if (fd < 0)
        fprintf(err,
                "ashlar: no node answers at %s: %s\n        Start one with `ashlard --dir DIR`, or name "
                "its socket with --fs-socket.\n",
                o->socket, strerror(-fd));
    return fd;
}

static int session_new(struct client *c, FILE *err)
{
    static const struct fuse_custom_io io = {.writev = on_writev, .read = on_read};
    const struct fuse_mount_options *o = &c->options;
    char name[WIRE_NAME_MAX + 64], options[sizeof(name) + FUSE_CLIENT_EXTRA_MAX + 128];
    snprintf(name, sizeof(name), "ashlar#%s", o->name);
    snprintf(options, sizeof(options), "default_permissions,subtype=ashlar,fsname=%s%s%s%s%s", name,
             o->allow_other ? ",allow_other" : "", geteuid() == 0 ? ",suid,dev" : "",
             o->extra[0] != '\0' ? "," : "", o->extra);
    char *argv[] = {(char *)"ashlar", (char *)"-o", options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    c->se = fuse_session_new(&args, &client_ops, sizeof(client_ops), c);
    fuse_opt_free_args(&args);
    if (c->se == NULL) {
        fprintf(err, "ashlar: the mount options are not accepted: %s\n", options);
        return 1;
    }
    if (fuse_session_mount(c->se, o->dir) != 0) {
        fprintf(err, "ashlar: %s cannot be mounted on %s\n", o->name, o->dir);
        return 1;
    }
    c->fuse_fd = fuse_session_fd(c->se);
    return fuse_session_custom_io(c->se, &io, c->fuse_fd) != 0;
}

/* Streams want more than the kernel's 128 KiB of read-ahead. Only root may say so; else it stays. */
static void read_ahead_set(const struct client *c)
{
    struct stat st;
    char path[96], text[16];
    if (stat(c->options.dir, &st) != 0)
        return;
    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev), minor(st.st_dev));
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    int len = snprintf(text, sizeof(text), "%u", READ_AHEAD_KIB);
    ssize_t n = write(fd, text, (size_t)len);
    (void)n;
    close(fd);
}

static void *tune(void *arg)
{
    read_ahead_set(arg); /* the stat() is a request: main must be serving */
    return NULL;
}

static int threads_start(struct client *c, int fd)
{
    sigset_t all, before;
    pthread_t tuner;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are main's */
    client_link_start(c, fd);
    int err = pthread_create(&c->receiver, NULL, client_receiver, c);
    if (err == 0)
        err = pthread_create(&c->notifier, NULL, client_notifier, c);
    if (err == 0 && geteuid() == 0 && pthread_create(&tuner, NULL, tune, c) == 0)
        pthread_detach(tuner);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

/* Says goodbye, so that locks and open files go at once and not after a time. */
static void say_bye(struct client *c)
{
    struct fuse_request q = {.op = WIRE_BYE};
    struct client_request *r = client_request_new(c, NULL, &q, NULL, 0);
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    bool connected = c->state == CLIENT_CONNECTED;
    if (r != NULL)
        list_append(&c->unsent, &r->unsent);
    pthread_mutex_unlock(&c->lock);
    if (!connected || r == NULL)
        return;
    /* The node may be hung: the kernel has no request any more, so the only loss is a little time. */
    struct timeval limit = {.tv_sec = BYE_MS / 1000};
    (void)setsockopt(c->socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    client_flush(c);
}

static int client_init(struct client *c, const struct fuse_mount_options *o)
{
    char host[32] = "";
    c->options = *o;
    c->socket = -1;
    c->notes_end = &c->notes;
    list_init(&c->requests);
    list_init(&c->unsent);
    pthread_mutex_init(&c->send_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->note_lock, NULL);
    pthread_cond_init(&c->note_there, NULL);
    gethostname(host, sizeof(host) - 1);
    snprintf(c->label, sizeof(c->label), "fuse:%s:%s", host, o->dir);
    c->buffer = client_buffer_get(c);
    return c->buffer == NULL || getrandom(c->session, sizeof(c->session), 0) != sizeof(c->session);
}

static void go_silent(struct client *c)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    openlog("ashlar-mount", LOG_PID, LOG_DAEMON);
    c->silent = true;
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
}

/* In the process that serves. ready_fd: told when the mount is there; -1: nobody waits. */
static int mount_and_serve(const struct fuse_mount_options *o, int ready_fd, FILE *err)
{
    static struct client c; /* there is one a process, and its threads outlive this call */
    if (client_init(&c, o) != 0) {
        fprintf(err, "ashlar: out of memory\n");
        return 1;
    }
    signals_set();
    int fd = connect_first(&c, err);
    if (fd < 0)
        return 1;
    if (session_new(&c, err) != 0)
        return 1;
    if (threads_start(&c, fd) != 0) {
        fprintf(err, "ashlar: threads cannot be started\n");
        fuse_session_unmount(c.se);
        return 1;
    }
    if (ready_fd >= 0) {
        ssize_t n = write(ready_fd, "", 1);
        (void)n;
        close(ready_fd);
        if (chdir("/") != 0)
            client_log(&c, "chdir: %s", strerror(errno));
        go_silent(&c);
    }
    serve(&c);
    /* With MNT_DETACH this never waits, whoever still uses the mount. */
    fuse_session_unmount(c.se);
    say_bye(&c);
    return 0;
}

/* ---- Checks that give better messages than the kernel's ---- */

static int check(const struct fuse_mount_options *o, FILE *err)
{
    struct stat st;
    if (strlen(o->socket) >= 108) {
        fprintf(err, "ashlar: the path of the socket is too long: %s\n", o->socket);
        return 1;
    }
    if (o->name[0] == '\0' || strlen(o->name) > WIRE_NAME_MAX) {
        fprintf(err, "ashlar: \"%s\" is no name of a file system\n", o->name);
        return 1;
    }
    if (access("/dev/fuse", F_OK) != 0) {
        fprintf(err, "ashlar: there is no /dev/fuse\n        Load the kernel's module (modprobe fuse); in a "
                     "container, give it the device.\n");
        return 1;
    }
    if (stat(o->dir, &st) != 0) {
        fprintf(err, "ashlar: %s: %s\n%s", o->dir, strerror(errno),
                errno == ENOTCONN ? "        A mount process died there: ashlar umount it first.\n" : "");
        return 1;
    }
    /* The kernel would lay it on top, and a mount whose process died may still answer from its cache. */
    if (fuse_client_mounted(o->dir)) {
        fprintf(err, "ashlar: %s is a mount of Ashlar already\n        ashlar umount it first.\n", o->dir);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) {
        fprintf(err, "ashlar: %s is not a directory\n", o->dir);
        return 1;
    }
    return 0;
}

int fuse_client_mount(const struct fuse_mount_options *o, FILE *err)
{
    struct fuse_mount_options absolute = *o;
    int pipe_fds[2];
    char done;
    if (check(o, err) != 0)
        return 1;
    char *dir = realpath(o->dir, NULL), *socket = realpath(o->socket, NULL);
    if (dir != NULL)
        absolute.dir = dir;
    if (socket != NULL && strlen(socket) < 108)
        absolute.socket = socket;
    if (o->foreground)
        return mount_and_serve(&absolute, -1, err);
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        fprintf(err, "ashlar: %s\n", strerror(errno));
        return 1;
    }
    fflush(err);
    pid_t child = fork();
    if (child == 0) {
        close(pipe_fds[0]);
        setsid();
        exit(mount_and_serve(&absolute, pipe_fds[1], err));
    }
    close(pipe_fds[1]);
    bool mounted = child > 0 && read(pipe_fds[0], &done, 1) == 1;
    if (child < 0)
        fprintf(err, "ashlar: %s\n", strerror(errno));
    close(pipe_fds[0]);
    free(dir);
    free(socket);
    return mounted ? 0 : 1;
}
