/* SPDX-License-Identifier: Apache-2.0 */
/* The node's folder and its lock: two nodes on one folder would each believe that it owns the drives. */
#include "server/server.h"

#include "runtime/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct server *s, int error, const char *hint, const char *what)
{
    control_error_set(&s->error, ERR_SYS(error), hint, "%s %s: %s", s->options.dir, what, strerror(error));
    return ERR_SYS(error);
}

static void pid_read(int fd, char *out, size_t size)
{
    ssize_t len = pread(fd, out, size - 1, 0);
    out[len > 0 ? len : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static int lock_take(struct server *s)
{
    char path[NODE_PATH_MAX + 16], pid[24];
    snprintf(path, sizeof(path), "%s/ashlard.lock", s->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0)
        return fail(s, errno, "Run ashlard as a user who may write there, or give another --dir.",
                    "is not writable");
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int error = errno;
        pid_read(fd, pid, sizeof(pid));
        close(fd);
        if (error != EWOULDBLOCK)
            return fail(s, error, "", "cannot be locked");
        control_error_set(&s->error, ERR_EXISTS, "Stop that one first, or give another --dir.",
                          "%s is in use by another ashlard%s%s", s->dir, pid[0] != '\0' ? ", process " : "",
                          pid);
        return ERR_EXISTS;
    }
    int len = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)len, 0) != len) {
        int error = errno;
        close(fd);
        return fail(s, error, "Make room on its file system.", "cannot be written");
    }
    s->lock_fd = fd;
    return 0;
}

int server_dir_open(struct server *s)
{
    s->lock_fd = -1;
    if (mkdir(s->options.dir, 0750) < 0 && errno != EEXIST)
        return fail(s, errno, errno == ENOENT ? "Make the folder above it first." : "Give another --dir.",
                    "cannot be made");
    char *real = realpath(s->options.dir, NULL);
    if (real == NULL)
        return fail(s, errno, "Give another --dir.", "cannot be used");
    /* The control socket's path must fit into a socket address. */
    if (strlen(real) > 90) {
        free(real);
        return fail(s, ENAMETOOLONG, "Give a --dir of at most 90 bytes.", "cannot be used");
    }
    snprintf(s->dir, sizeof(s->dir), "%s", real);
    free(real);
    snprintf(s->socket_path, sizeof(s->socket_path), "%s/ashlar.sock", s->dir);
    struct stat st;
    if (stat(s->dir, &st) < 0 || !S_ISDIR(st.st_mode))
        return fail(s, ENOTDIR, "Give another --dir.", "cannot be used");
    return lock_take(s);
}

void server_dir_close(struct server *s)
{
    if (s->lock_fd < 0)
        return;
    /* The file stays: removing it would let a third node lock another one of that name. */
    if (ftruncate(s->lock_fd, 0) < 0)
        LOG_DEBUG("the lock file keeps our process id: %s", strerror(errno));
    close(s->lock_fd);
    s->lock_fd = -1;
}
