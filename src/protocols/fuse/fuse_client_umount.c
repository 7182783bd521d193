/* SPDX-License-Identifier: Apache-2.0 */
/* Unmounting. Nothing here asks the file system for anything: its node may be gone. Where it is mounted is
 * known from /proc, and umount2(2) does not look at the mounted root. */
#include "protocols/fuse/fuse_client.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* In place: mountinfo writes spaces and the like as \ooo. */
static void unescape(char *s)
{
    char *out = s;
    while (*s != '\0') {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' &&
            s[3] <= '7') {
            *out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
}

/* An absolute path without resolving its last part, which may be dead: that of the folder, and the name. */
static bool absolute(const char *dir, char out[PATH_MAX])
{
    char copy[PATH_MAX], folder[PATH_MAX];
    size_t len = strlen(dir);
    if (len == 0 || len >= sizeof(copy))
        return false;
    memcpy(copy, dir, len + 1);
    while (len > 1 && copy[len - 1] == '/')
        copy[--len] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash != NULL ? slash + 1 : copy;
    if (slash == copy && *name == '\0')
        return snprintf(out, PATH_MAX, "/") > 0;
    if (slash != NULL)
        *slash = '\0';
    if (realpath(slash == NULL ? "." : copy[0] != '\0' ? copy : "/", folder) == NULL)
        return false;
    int n = snprintf(out, PATH_MAX, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, name);
    return n > 0 && n < PATH_MAX && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

enum mounted { MOUNTED_NOT, MOUNTED_OTHER, MOUNTED_ASHLAR };

static enum mounted find_mount(const char *path)
{
    enum mounted found = MOUNTED_NOT;
    char *line = NULL;
    size_t size = 0;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (f == NULL)
        return MOUNTED_ASHLAR; /* without /proc: umount2() will say */
    while (getline(&line, &size, f) > 0) {
        char *rest = line, *where = NULL;
        for (int i = 0; i < 5; i++)
            where = strsep(&rest, " ");
        if (where == NULL || rest == NULL)
            continue;
        unescape(where);
        if (strcmp(where, path) == 0) /* the last one lies on top */
            found = strstr(rest, " - fuse.ashlar ") != NULL ? MOUNTED_ASHLAR : MOUNTED_OTHER;
    }
    free(line);
    fclose(f);
    return found;
}

bool fuse_client_mounted(const char *dir)
{
    char path[PATH_MAX];
    return absolute(dir, path) && access("/proc/self/mountinfo", R_OK) == 0 &&
           find_mount(path) == MOUNTED_ASHLAR;
}

/* Who is not root may unmount what he mounted through libfuse's helper. */
static int helper(const char *path, bool lazy)
{
    pid_t child = fork();
    if (child == 0) {
        execlp("fusermount3", "fusermount3", lazy ? "-uz" : "-u", "--", path, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

int fuse_client_unmount(const char *dir, bool force, bool lazy, FILE *err)
{
    char path[PATH_MAX];
    if (!absolute(dir, path)) {
        fprintf(err, "ashlar: %s is no path of a mount\n", dir);
        return 1;
    }
    enum mounted what = find_mount(path);
    if (what != MOUNTED_ASHLAR) {
        fprintf(err, "ashlar: %s\n",
                what == MOUNTED_NOT ? "nothing is mounted there" : "what is mounted there is not of Ashlar");
        return 1;
    }
    if (umount2(path, UMOUNT_NOFOLLOW | (force ? MNT_FORCE : 0) | (lazy ? MNT_DETACH : 0)) == 0)
        return 0;
    if (errno == EPERM)
        return helper(path, lazy);
    fprintf(err, "ashlar: %s: %s\n%s", path, strerror(errno),
            errno == EBUSY ? "        Something uses it (fuser -vm shows what); --lazy unmounts when nothing "
                             "does any more.\n"
                           : "");
    return 1;
}
