/* SPDX-License-Identifier: Apache-2.0 */
/* Real mounts by real mount processes, with the node's side in a thread here, over a file system in memory.
 * Needs root and /dev/fuse; without them the tests are skipped. */
#include "fake_fs.h"
#include "protocols/fuse/fuse_client.h"
#include "protocols/fuse/fuse_server.h"
#include "runtime/error.h"
#include "runtime/world_real.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], mount_a[80], mount_b[80], socket_path[80], address[90];
static struct memory_budget budget = {.limit_bytes = 256 * MIB};
static struct reactor *reactor;
static pthread_t thread;
static struct fs *fs;
static struct fuse_server *server;
static bool can_mount;

/* ---- The node ---- */

struct job {
    void (*fn)(void);
    sem_t done;
};

static void job_run(void *arg)
{
    struct job *j = arg;
    j->fn();
    sem_post(&j->done);
}

/* Runs fn on a fiber of the node. */
static void on_node(void (*fn)(void))
{
    struct job j = {.fn = fn};
    sem_init(&j.done, 0, 0);
    assert_int_equal(reactor_spawn(reactor, "test", job_run, &j), 0);
    while (sem_wait(&j.done) != 0)
        continue;
    sem_destroy(&j.done);
}

static void fs_make(void)
{
    fs = fake_fs_new(&(struct fake_fs_options){0});
}
static void server_start(void) may_yield
{
    struct fuse_server_options o = {.address = address, .limits = {.away_ns = 2 * NSEC_PER_SEC}};
    int err = fuse_server_start(&o, &server);
    assert(err == 0);
    err = fuse_server_add_fs(server, "home", fs);
    assert(err == 0);
}
/* Its end, as sudden as it gets without a process of its own: nothing of it is left but the file system. */
static void server_stop(void) may_yield
{
    fuse_server_stop(server);
    fake_fs_restart(fs);
}
static void node_stop(void)
{
    fake_fs_free(fs);
    reactor_stop(reactor);
}

static void *node_run(void *arg)
{
    (void)arg;
    int err = reactor_run(reactor);
    assert(err == 0);
    return NULL;
}

/* In a program of its own: a mere fork would keep the node's sockets open. */
static int mount_main(const char *socket, const char *dir)
{
    struct fuse_mount_options o = {.socket = socket,
                                   .name = "home",
                                   .dir = dir,
                                   .allow_other = true,
                                   .attr_timeout_ms = 60000,
                                   .entry_timeout_ms = 60000,
                                   .wait_ms = 2000};
    return fuse_client_mount(&o, stderr);
}

static int mount_on(const char *dir)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_fuse_mount", socket_path, dir, (char *)NULL);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child ? status : 1;
}

static int setup(void **state)
{
    (void)state;
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget, .chunk_bytes = 4 * MIB};
    can_mount = geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0;
    if (!can_mount)
        return 0;
    snprintf(folder, sizeof(folder), "/tmp/ashlar-fuse-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(mount_a, sizeof(mount_a), "%s/a", folder);
    snprintf(mount_b, sizeof(mount_b), "%s/b", folder);
    snprintf(socket_path, sizeof(socket_path), "%s/fs.sock", folder);
    snprintf(address, sizeof(address), "unix:%s", socket_path);
    if (mkdir(mount_a, 0755) != 0 || mkdir(mount_b, 0755) != 0)
        return 1;
    if (reactor_new(&o, &reactor) != 0 || pthread_create(&thread, NULL, node_run, NULL) != 0)
        return 1;
    on_node(fs_make);
    on_node(server_start);
    if (mount_on(mount_a) != 0 || mount_on(mount_b) != 0)
        return 1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (!can_mount)
        return 0;
    int err =
        fuse_client_unmount(mount_a, false, true, stderr) | fuse_client_unmount(mount_b, false, true, stderr);
    on_node(server_stop);
    on_node(node_stop);
    pthread_join(thread, NULL);
    reactor_free(reactor);
    unlink(socket_path);
    rmdir(mount_a);
    rmdir(mount_b);
    rmdir(folder);
    return err;
}

#define NEED_MOUNT()    \
    do {                \
        if (!can_mount) \
            skip();     \
    } while (0)

static const char *in(const char *mount, const char *name)
{
    static char paths[4][512];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof(paths[0]), "%s/%s", mount, name);
    return p;
}

static void fill(uint8_t *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
}

/* ---- Tests ---- */

static void data_is_read_back_as_it_was_written(void **state)
{
    (void)state;
    enum { LEN = 3 * 1000 * 1000 };
    NEED_MOUNT();
    uint8_t *a = malloc(LEN), *b = malloc(LEN);
    fill(a, LEN, 1);
    int fd = open(in(mount_a, "data"), O_RDWR | O_CREAT | O_EXCL, 0640);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, a, LEN, 0), LEN);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    memset(b, 0, LEN);
    assert_int_equal(pread(fd, b, LEN, 0), LEN);
    assert_memory_equal(a, b, LEN);
    assert_int_equal(pwrite(fd, "hello", 5, 12345), 5);
    assert_int_equal(ftruncate(fd, 12348), 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 12348);
    assert_int_equal(st.st_mode, S_IFREG | 0640);
    close(fd);
    fd = open(in(mount_b, "data"), O_RDONLY | O_DIRECT);
    assert_true(fd >= 0);
    void *aligned = NULL;
    assert_int_equal(posix_memalign(&aligned, 4096, 2 * MIB), 0);
    assert_int_equal(pread(fd, aligned, 1 * MIB, 4096), 12348 - 4096);
    assert_memory_equal((uint8_t *)aligned + 12345 - 4096, "hel", 3);
    close(fd);
    free(aligned);
    free(a);
    free(b);
    assert_int_equal(unlink(in(mount_a, "data")), 0);
}

static void names_are_what_was_made(void **state)
{
    (void)state;
    NEED_MOUNT();
    struct stat st;
    char target[64];
    assert_int_equal(mkdir(in(mount_a, "d"), 0700), 0);
    assert_int_equal(mkdir(in(mount_a, "d"), 0700), -1);
    assert_int_equal(errno, EEXIST);
    for (int i = 0; i < 200; i++) {
        char name[64];
        snprintf(name, sizeof(name), "d/some-longer-name-of-a-file-%03d", i);
        int fd = open(in(mount_a, name), O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0);
        close(fd);
    }
    int count = 0;
    DIR *dir = opendir(in(mount_a, "d"));
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        assert_int_equal(fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
        count += e->d_name[0] == 's';
    }
    closedir(dir);
    assert_int_equal(count, 200);
    assert_int_equal(symlink("d/some-longer-name-of-a-file-001", in(mount_a, "s")), 0);
    ssize_t n = readlink(in(mount_a, "s"), target, sizeof(target));
    assert_int_equal(n, strlen("d/some-longer-name-of-a-file-001"));
    assert_int_equal(link(in(mount_a, "d/some-longer-name-of-a-file-002"), in(mount_a, "hard")), 0);
    assert_int_equal(stat(in(mount_a, "hard"), &st), 0);
    assert_int_equal(st.st_nlink, 2);
    assert_int_equal(rename(in(mount_a, "hard"), in(mount_a, "moved")), 0);
    assert_int_equal(stat(in(mount_a, "hard"), &st), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(mkfifo(in(mount_a, "fifo"), 0600), 0);
    assert_int_equal(stat(in(mount_a, "fifo"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(rmdir(in(mount_a, "d")), -1);
    assert_int_equal(errno, ENOTEMPTY);
    for (int i = 0; i < 200; i++) {
        char name[64];
        snprintf(name, sizeof(name), "d/some-longer-name-of-a-file-%03d", i);
        assert_int_equal(unlink(in(mount_a, name)), 0);
    }
    assert_int_equal(rmdir(in(mount_a, "d")), 0);
    assert_int_equal(unlink(in(mount_a, "s")), 0);
    assert_int_equal(unlink(in(mount_a, "moved")), 0);
    assert_int_equal(unlink(in(mount_a, "fifo")), 0);
    struct statvfs v;
    assert_int_equal(statvfs(mount_a, &v), 0);
    assert_int_equal((uint64_t)v.f_blocks * v.f_frsize, GIB);
    char longer[300];
    memset(longer, 'x', sizeof(longer));
    longer[256] = '\0';
    assert_int_equal(mkdir(in(mount_a, longer), 0700), -1);
    assert_int_equal(errno, ENAMETOOLONG);
}

static void attributes_are_set(void **state)
{
    (void)state;
    NEED_MOUNT();
    struct stat st;
    char value[16];
    int fd = open(in(mount_a, "f"), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1234567890, .tv_nsec = 987654321}};
    assert_int_equal(fchmod(fd, 04711), 0);
    assert_int_equal(fchown(fd, 12, 34), 0);
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_uid, 12);
    assert_int_equal(st.st_gid, 34);
    assert_int_equal(st.st_mtim.tv_sec, 1234567890);
    assert_int_equal(st.st_mtim.tv_nsec, 987654321);
    assert_int_equal(fsetxattr(fd, "user.k", "value", 5, XATTR_CREATE), 0);
    assert_int_equal(fsetxattr(fd, "user.k", "value", 5, XATTR_CREATE), -1);
    assert_int_equal(errno, EEXIST);
    assert_int_equal(fgetxattr(fd, "user.k", value, 2), -1);
    assert_int_equal(errno, ERANGE);
    assert_int_equal(fgetxattr(fd, "user.k", NULL, 0), 5);
    assert_int_equal(fgetxattr(fd, "user.k", value, sizeof(value)), 5);
    assert_memory_equal(value, "value", 5);
    assert_int_equal(flistxattr(fd, value, sizeof(value)), 7);
    assert_int_equal(fremovexattr(fd, "user.k"), 0);
    assert_int_equal(fgetxattr(fd, "user.k", value, sizeof(value)), -1);
    assert_int_equal(errno, ENODATA);
    assert_int_equal(fallocate(fd, 0, 0, 10000), 0);
    assert_int_equal(lseek(fd, 5, SEEK_HOLE), 10000);
    assert_int_equal(lseek(fd, 10000, SEEK_DATA), -1);
    assert_int_equal(errno, ENXIO);
    close(fd);
    assert_int_equal(unlink(in(mount_a, "f")), 0);
}

static void appends_of_two_mounts_follow_each_other(void **state)
{
    (void)state;
    NEED_MOUNT();
    char text[64] = "";
    int a = open(in(mount_a, "log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    int b = open(in(mount_b, "log"), O_WRONLY | O_APPEND);
    assert_true(a >= 0 && b >= 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write(a, "ab", 2), 2);
        assert_int_equal(write(b, "cde", 3), 3);
    }
    close(a);
    close(b);
    int fd = open(in(mount_a, "log"), O_RDONLY);
    assert_int_equal(read(fd, text, sizeof(text)), 15);
    assert_string_equal(text, "abcdeabcdeabcde");
    close(fd);
    assert_int_equal(unlink(in(mount_a, "log")), 0);
}

/* Notes travel beside replies: a moment passes. */
static bool becomes(bool (*fn)(void))
{
    for (int i = 0; i < 200; i++) {
        if (fn())
            return true;
        usleep(10000);
    }
    return false;
}

static int watched_fd;
static bool reads_two(void)
{
    char c = 0;
    return pread(watched_fd, &c, 1, 0) == 1 && c == '2';
}
static bool size_is_5000(void)
{
    struct stat st;
    return stat(in(mount_b, "shared"), &st) == 0 && st.st_size == 5000;
}
static bool is_gone(void)
{
    return access(in(mount_b, "shared"), F_OK) != 0;
}
static bool is_there(void)
{
    return access(in(mount_b, "later"), F_OK) == 0;
}

static void what_one_mount_changes_the_other_sees_despite_its_caches(void **state)
{
    (void)state;
    NEED_MOUNT();
    char c;
    struct stat st;
    int a = open(in(mount_a, "shared"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(a, "1", 1), 1);
    watched_fd = open(in(mount_b, "shared"), O_RDONLY);
    assert_int_equal(pread(watched_fd, &c, 1, 0), 1);
    assert_int_equal(c, '1');
    assert_int_equal(pwrite(a, "2", 1, 0), 1);
    assert_true(becomes(reads_two));
    assert_int_equal(stat(in(mount_b, "shared"), &st), 0);
    assert_int_equal(ftruncate(a, 5000), 0);
    assert_true(becomes(size_is_5000));
    assert_int_equal(access(in(mount_b, "later"), F_OK), -1); /* that there is none is cached, too */
    assert_int_equal(rename(in(mount_a, "shared"), in(mount_a, "later")), 0);
    assert_true(becomes(is_gone));
    assert_true(becomes(is_there));
    close(a);
    close(watched_fd);
    assert_int_equal(unlink(in(mount_a, "later")), 0);
}

static int lock_fd(int fd, short type, int how)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET};
    return fcntl(fd, how, &l);
}

static void on_alarm(int number)
{
    (void)number;
}

static void locks_of_two_mounts_exclude_each_other_and_a_wait_ends_by_unlock_or_signal(void **state)
{
    (void)state;
    NEED_MOUNT();
    int a = open(in(mount_a, "lock"), O_RDWR | O_CREAT, 0600), b = open(in(mount_b, "lock"), O_RDWR);
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(lock_fd(a, F_WRLCK, F_SETLK), 0);
    assert_int_equal(lock_fd(b, F_WRLCK, F_SETLK), -1);
    assert_int_equal(errno, EAGAIN);
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(b, F_GETLK, &l), 0);
    assert_int_equal(l.l_type, F_WRLCK);
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    alarm(1);
    assert_int_equal(lock_fd(b, F_WRLCK, F_SETLKW), -1);
    assert_int_equal(errno, EINTR);
    pid_t child = fork();
    if (child == 0)
        _exit(lock_fd(b, F_WRLCK, F_SETLKW) == 0 ? 0 : 1);
    usleep(200000);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    int other = dup(a);
    close(other); /* by POSIX, any close drops the locks of the process */
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(flock(a, LOCK_EX), 0);
    assert_int_equal(flock(b, LOCK_EX | LOCK_NB), -1);
    assert_int_equal(errno, EAGAIN);
    close(a);
    assert_int_equal(flock(b, LOCK_EX), 0);
    close(b);
    assert_int_equal(unlink(in(mount_a, "lock")), 0);
}

/* ---- The node goes and comes back ---- */

static void *works(void *arg)
{
    (void)arg;
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof(name), "w%02d", i);
        if (mkdir(in(mount_a, name), 0700) != 0)
            return (void *)(intptr_t)errno;
        usleep(2000);
        if (rmdir(in(mount_a, name)) != 0)
            return (void *)(intptr_t)errno;
    }
    return NULL;
}

static void work_goes_on_when_the_node_is_back(void **state)
{
    (void)state;
    NEED_MOUNT();
    pthread_t worker;
    void *result;
    char text[8] = "";
    int fd = open(in(mount_a, "orphan"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, "here", 4), 4);
    assert_int_equal(unlink(in(mount_a, "orphan")), 0);
    assert_int_equal(pthread_create(&worker, NULL, works, NULL), 0);
    for (int i = 0; i < 4; i++) {
        usleep(30000);
        on_node(server_stop);
        usleep(30000);
        on_node(server_start);
    }
    pthread_join(worker, &result);
    assert_int_equal((intptr_t)result, 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    assert_int_equal(pread(fd, text, 4, 0), 4);
    assert_string_equal(text, "here");
    assert_int_equal(pwrite(fd, "X", 1, 0), 1);
    close(fd);
}

static void who_waits_for_a_node_that_is_gone_can_be_killed(void **state)
{
    (void)state;
    NEED_MOUNT();
    on_node(server_stop);
    usleep(100000);
    pid_t child = fork();
    if (child == 0)
        _exit(mkdir(in(mount_a, "never"), 0700) == 0 ? 0 : 1);
    usleep(200000);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    kill(child, SIGKILL);
    int status = 0;
    for (int i = 0; i < 100 && waitpid(child, &status, WNOHANG) == 0; i++)
        usleep(20000);
    assert_true(WIFSIGNALED(status));
    on_node(server_start);
    assert_int_equal(mkdir(in(mount_a, "again"), 0700), 0);
    assert_int_equal(rmdir(in(mount_a, "again")), 0);
}

static void heard(int number)
{
    (void)number;
}

/* Makes a directory with a handler for SIGUSR1; 0, or the errno. */
static pid_t start_maker(const char *name)
{
    pid_t child = fork();
    if (child == 0) {
        struct sigaction a = {.sa_handler = heard};
        (void)sigaction(SIGUSR1, &a, NULL);
        _exit(mkdir(in(mount_a, name), 0700) == 0 ? 0 : errno);
    }
    return child;
}

static void a_signal_that_is_survived_does_not_make_a_call_fail(void **state)
{
    (void)state;
    NEED_MOUNT();
    on_node(server_stop);
    usleep(100000);
    pid_t waits = start_maker("survived"), dies = start_maker("killed");
    usleep(200000);
    kill(waits, SIGUSR1);
    kill(dies, SIGUSR1);
    usleep(100000);
    kill(waits, SIGSTOP);
    kill(waits, SIGCONT);
    usleep(700000); /* the mount tries to connect meanwhile */
    assert_int_equal(waitpid(waits, NULL, WNOHANG), 0);
    assert_int_equal(waitpid(dies, NULL, WNOHANG), 0);
    kill(dies, SIGKILL); /* which the kernel does not tell: it told the first one */
    int status = 0;
    for (int i = 0; i < 200 && waitpid(dies, &status, WNOHANG) == 0; i++)
        usleep(20000);
    assert_true(WIFSIGNALED(status));
    on_node(server_start);
    assert_int_equal(waitpid(waits, &status, 0), waits);
    assert_int_equal(status, 0);
    assert_int_equal(rmdir(in(mount_a, "survived")), 0);
}

static void unmounting_needs_no_node(void **state)
{
    (void)state;
    NEED_MOUNT();
    on_node(server_stop);
    usleep(50000);
    time_t before = time(NULL);
    assert_int_equal(fuse_client_unmount(mount_b, false, false, stderr), 0);
    assert_true(time(NULL) - before <= 2);
    assert_int_equal(fuse_client_unmount(mount_b, false, false, fopen("/dev/null", "w")), 1);
    on_node(server_start);
    assert_int_equal(mount_on(mount_b), 0);
}

/* Their closes are answered by nobody, and gather: more than one message takes. */
static void many_files_are_closed_at_once(void **state)
{
    (void)state;
    NEED_MOUNT();
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 400; i++)
                if (open(in(mount_a, "many"), O_RDWR | O_CREAT, 0600) < 0)
                    _exit(1);
            _exit(0);
        }
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_int_equal(unlink(in(mount_a, "many")), 0);
}

static void nothing_stays_open(void **state)
{
    (void)state;
    NEED_MOUNT();
    struct stat st;
    assert_int_equal(stat(mount_a, &st), 0);
    for (int i = 0; i < 300 && (fake_fs_opens(fs) != 0 || fake_fs_locks(fs) != 0); i++)
        usleep(10000);
    assert_int_equal(fake_fs_opens(fs), 0);
    assert_int_equal(fake_fs_locks(fs), 0);
    assert_int_equal(fake_fs_inodes(fs), 1);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return mount_main(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_read_back_as_it_was_written),
        cmocka_unit_test(names_are_what_was_made),
        cmocka_unit_test(attributes_are_set),
        cmocka_unit_test(appends_of_two_mounts_follow_each_other),
        cmocka_unit_test(what_one_mount_changes_the_other_sees_despite_its_caches),
        cmocka_unit_test(locks_of_two_mounts_exclude_each_other_and_a_wait_ends_by_unlock_or_signal),
        cmocka_unit_test(many_files_are_closed_at_once),
        cmocka_unit_test(nothing_stays_open),
        cmocka_unit_test(work_goes_on_when_the_node_is_back),
        cmocka_unit_test(who_waits_for_a_node_that_is_gone_can_be_killed),
        cmocka_unit_test(a_signal_that_is_survived_does_not_make_a_call_fail),
        cmocka_unit_test(unmounting_needs_no_node),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
