/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small NFSv3 client for tests, on libnfs:
 *
 *      nfstree put DIR URL [JOBS]       copies the tree DIR into the export
 *      nfstree compare DIR URL [JOBS]   names, types, modes, times, hard links, contents
 *
 * Files are spread over JOBS connections (8). It waits for a server that is gone, as a kernel's hard mount
 * does, and sends its requests again; so a server may be killed in the middle.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <nfsc/libnfs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define JOBS_MAX  64
#define COPY_SIZE (256u * 1024)

struct entry {
    char *path; /* in the tree; "" is its root */
    struct stat st;
    struct entry *same; /* the first one of its inode: a hard link */
};

static const char *root;
static size_t root_len;
static struct entry *entries;
static size_t entry_count, entry_capacity;
static const char *url_text;
static bool comparing;
static atomic_size_t next_entry;
static atomic_ulong failures;

static void fail(const char *path, const char *what, const char *why)
{
    if (atomic_fetch_add(&failures, 1) < 50)
        fprintf(stderr, "nfstree: %s: %s: %s\n", path[0] != '\0' ? path : "/", what, why != NULL ? why : "?");
}

/* ---- The local tree ---- */

static int found(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (entry_count == entry_capacity) {
        entry_capacity = entry_capacity != 0 ? 2 * entry_capacity : 1024;
        entries = realloc(entries, entry_capacity * sizeof(*entries));
        assert(entries != NULL);
    }
    entries[entry_count] = (struct entry){.path = strdup(path + root_len), .st = *st};
    assert(entries[entry_count].path != NULL);
    entry_count++;
    return 0;
}

static int by_inode(const void *a, const void *b)
{
    const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
    if (x->st.st_ino != y->st.st_ino)
        return x->st.st_ino < y->st.st_ino ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void links_find(void)
{
    struct entry **order = calloc(entry_count, sizeof(*order));
    assert(order != NULL);
    for (size_t i = 0; i < entry_count; i++)
        order[i] = &entries[i];
    qsort(order, entry_count, sizeof(*order), by_inode);
    for (size_t i = 1; i < entry_count; i++)
        if (!S_ISDIR(order[i]->st.st_mode) && order[i]->st.st_ino == order[i - 1]->st.st_ino)
            order[i]->same = order[i - 1]->same != NULL ? order[i - 1]->same : order[i - 1];
    free(order);
}

/* ---- Connections ---- */

static struct nfs_context *connect_export(void)
{
    struct nfs_context *nfs = nfs_init_context();
    assert(nfs != NULL);
    nfs_set_autoreconnect(nfs, -1);
    struct nfs_url *url = nfs_parse_url_dir(nfs, url_text);
    if (url == NULL || nfs_mount(nfs, url->server, url->path) < 0) {
        fprintf(stderr, "nfstree: %s: %s\n", url_text, nfs_get_error(nfs));
        exit(1);
    }
    nfs_destroy_url(url);
    return nfs;
}

static void path_of(const struct entry *e, char *out, size_t size)
{
    snprintf(out, size, "/%s", e->path[0] == '/' ? e->path + 1 : e->path);
}

/* ---- Copying ---- */

static bool put_content(struct nfs_context *nfs, const struct entry *e, const char *to, char *buffer)
{
    char from[8192];
    struct nfsfh *fh = NULL;
    snprintf(from, sizeof(from), "%s%s", root, e->path);
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fail(e->path, "open here", strerror(errno));
        return false;
    }
    /* The same again after a restart of this program is no error. */
    int r = nfs_open2(nfs, to, O_CREAT | O_TRUNC | O_WRONLY, (int)(e->st.st_mode & 07777), &fh);
    uint64_t offset = 0;
    ssize_t n = 0;
    while (r >= 0 && (n = read(fd, buffer, COPY_SIZE)) > 0) {
        r = nfs_pwrite(nfs, fh, offset, (uint64_t)n, buffer);
        if (r >= 0 && r != n)
            r = -EIO;
        offset += (uint64_t)n;
    }
    if (fh != NULL) {
        int closed = nfs_close(nfs, fh);
        r = r < 0 ? r : closed;
    }
    close(fd);
    if (r < 0 || n < 0)
        fail(e->path, "copy", nfs_get_error(nfs));
    return r >= 0 && n >= 0;
}

static void put_attributes(struct nfs_context *nfs, const struct entry *e, const char *to)
{
    struct timeval times[2] = {{e->st.st_atim.tv_sec, e->st.st_atim.tv_nsec / 1000},
                               {e->st.st_mtim.tv_sec, e->st.st_mtim.tv_nsec / 1000}};
    if (!S_ISLNK(e->st.st_mode) && nfs_chmod(nfs, to, (int)(e->st.st_mode & 07777)) < 0)
        fail(e->path, "chmod", nfs_get_error(nfs));
    if (nfs_lutimes(nfs, to, times) < 0)
        fail(e->path, "utimes", nfs_get_error(nfs));
}

static void put_symlink(struct nfs_context *nfs, const struct entry *e, const char *to)
{
    char from[8192], target[4096];
    snprintf(from, sizeof(from), "%s%s", root, e->path);
    ssize_t n = readlink(from, target, sizeof(target) - 1);
    target[n > 0 ? n : 0] = '\0';
    int r = n > 0 ? nfs_symlink(nfs, target, to) : -errno;
    if (r < 0 && r != -EEXIST)
        fail(e->path, "symlink", nfs_get_error(nfs));
}

static void put_entry(struct nfs_context *nfs, const struct entry *e, char *buffer)
{
    char to[8192];
    path_of(e, to, sizeof(to));
    if (e->same != NULL || S_ISDIR(e->st.st_mode))
        return; /* before, and after all files */
    if (S_ISREG(e->st.st_mode)) {
        if (!put_content(nfs, e, to, buffer))
            return;
    } else if (S_ISLNK(e->st.st_mode)) {
        put_symlink(nfs, e, to);
    } else if (nfs_mknod(nfs, to, (int)e->st.st_mode, (int)e->st.st_rdev) < 0) {
        fail(e->path, "mknod", nfs_get_error(nfs));
    }
    put_attributes(nfs, e, to);
}

static void put_directories(struct nfs_context *nfs)
{
    for (size_t i = 0; i < entry_count; i++) { /* parents come first */
        char to[8192];
        path_of(&entries[i], to, sizeof(to));
        if (!S_ISDIR(entries[i].st.st_mode) || entries[i].path[0] == '\0')
            continue;
        int r = nfs_mkdir2(nfs, to, 0700);
        if (r < 0 && r != -EEXIST)
            fail(entries[i].path, "mkdir", nfs_get_error(nfs));
    }
}

/* What changes directories is over: links first, then their own times, children before parents. */
static void put_rest(struct nfs_context *nfs)
{
    for (size_t i = 0; i < entry_count; i++) {
        char to[8192], first[8192];
        if (entries[i].same == NULL)
            continue;
        path_of(&entries[i], to, sizeof(to));
        path_of(entries[i].same, first, sizeof(first));
        int r = nfs_link(nfs, first, to);
        if (r < 0 && r != -EEXIST)
            fail(entries[i].path, "link", nfs_get_error(nfs));
    }
    for (size_t i = entry_count; i-- > 0;) {
        char to[8192];
        path_of(&entries[i], to, sizeof(to));
        if (S_ISDIR(entries[i].st.st_mode))
            put_attributes(nfs, &entries[i], to);
    }
}

/* ---- Comparing ---- */

static void compare_content(struct nfs_context *nfs, const struct entry *e, const char *there, char *buffer)
{
    char here[8192];
    char *other = buffer + COPY_SIZE;
    struct nfsfh *fh = NULL;
    snprintf(here, sizeof(here), "%s%s", root, e->path);
    int fd = open(here, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || nfs_open(nfs, there, O_RDONLY, &fh) < 0) {
        fail(e->path, "open", nfs_get_error(nfs));
    } else {
        uint64_t offset = 0;
        for (;;) {
            ssize_t a = read(fd, buffer, COPY_SIZE);
            int b = a >= 0 ? nfs_pread(nfs, fh, offset, COPY_SIZE, other) : -1;
            if (a < 0 || a != b || memcmp(buffer, other, (size_t)a) != 0) {
                fail(e->path, "content", b < 0 ? nfs_get_error(nfs) : "is another one");
                break;
            }
            if (a == 0)
                break;
            offset += (uint64_t)a;
        }
    }
    if (fh != NULL && nfs_close(nfs, fh) < 0)
        fail(e->path, "close", nfs_get_error(nfs));
    if (fd >= 0)
        close(fd);
}

static void compare_symlink(struct nfs_context *nfs, const struct entry *e, const char *there)
{
    char here[8192], a[4096] = "", b[4096] = "";
    snprintf(here, sizeof(here), "%s%s", root, e->path);
    ssize_t n = readlink(here, a, sizeof(a) - 1);
    if (n < 0 || nfs_readlink(nfs, there, b, sizeof(b)) < 0 || strcmp(a, b) != 0)
        fail(e->path, "symbolic link", "points elsewhere");
}

static void compare_attributes(const struct entry *e, const struct nfs_stat_64 *st)
{
    char why[160];
    bool names = S_ISDIR(e->st.st_mode); /* their link counts and sizes are the file system's own business */
    if (st->nfs_mode != e->st.st_mode) {
        snprintf(why, sizeof(why), "%o, not %o", (unsigned)st->nfs_mode, e->st.st_mode);
        fail(e->path, "mode", why);
    }
    if (!names && (st->nfs_size != (uint64_t)e->st.st_size || st->nfs_nlink != e->st.st_nlink)) {
        snprintf(why, sizeof(why), "%llu bytes, %llu links", (unsigned long long)st->nfs_size,
                 (unsigned long long)st->nfs_nlink);
        fail(e->path, "size or links", why);
    }
    if (st->nfs_mtime != (uint64_t)e->st.st_mtim.tv_sec ||
        st->nfs_mtime_nsec / 1000 != (uint64_t)e->st.st_mtim.tv_nsec / 1000) {
        snprintf(why, sizeof(why), "%llu.%09llu, not %lld.%09ld", (unsigned long long)st->nfs_mtime,
                 (unsigned long long)st->nfs_mtime_nsec, (long long)e->st.st_mtim.tv_sec,
                 e->st.st_mtim.tv_nsec);
        fail(e->path, "mtime", why);
    }
}

/* As many names there as here: together with every one of ours being there, the same ones. */
static void compare_names(struct nfs_context *nfs, const struct entry *e, const char *there)
{
    struct nfsdir *dir;
    size_t here = 0, count = 0, len = strlen(e->path);
    if (nfs_opendir(nfs, there, &dir) < 0) {
        fail(e->path, "opendir", nfs_get_error(nfs));
        return;
    }
    for (struct nfsdirent *d; (d = nfs_readdir(nfs, dir)) != NULL;)
        count += strcmp(d->name, ".") != 0 && strcmp(d->name, "..") != 0;
    nfs_closedir(nfs, dir);
    /* nftw() goes depth first: what is in a directory follows it. */
    for (const struct entry *x = e + 1;
         x < entries + entry_count && strncmp(x->path, e->path, len) == 0 && x->path[len] == '/'; x++)
        here += strchr(x->path + len + 1, '/') == NULL;
    if (here != count) {
        char why[80];
        snprintf(why, sizeof(why), "%zu names, not %zu", count, here);
        fail(e->path, "directory", why);
    }
}

static void compare_link(struct nfs_context *nfs, const struct entry *e, const struct nfs_stat_64 *st)
{
    char first[8192];
    struct nfs_stat_64 other;
    path_of(e->same, first, sizeof(first));
    if (nfs_lstat64(nfs, first, &other) < 0 || other.nfs_ino != st->nfs_ino)
        fail(e->path, "hard link", "is a file of its own");
}

static void compare_entry(struct nfs_context *nfs, const struct entry *e, char *buffer)
{
    char there[8192];
    struct nfs_stat_64 st;
    path_of(e, there, sizeof(there));
    if (nfs_lstat64(nfs, there, &st) < 0) {
        fail(e->path, "stat", nfs_get_error(nfs));
        return;
    }
    compare_attributes(e, &st);
    if (e->same != NULL)
        compare_link(nfs, e, &st);
    if (S_ISREG(e->st.st_mode))
        compare_content(nfs, e, there, buffer);
    else if (S_ISLNK(e->st.st_mode))
        compare_symlink(nfs, e, there);
    else if (S_ISDIR(e->st.st_mode))
        compare_names(nfs, e, there);
}

/* ---- Many at once ---- */

static void *job(void *arg)
{
    (void)arg;
    struct nfs_context *nfs = connect_export();
    char *buffer = malloc(2 * COPY_SIZE);
    assert(buffer != NULL);
    for (size_t i; (i = atomic_fetch_add(&next_entry, 1)) < entry_count;) {
        if (comparing)
            compare_entry(nfs, &entries[i], buffer);
        else
            put_entry(nfs, &entries[i], buffer);
    }
    free(buffer);
    nfs_destroy_context(nfs);
    return NULL;
}

static void run_jobs(int count)
{
    pthread_t threads[JOBS_MAX];
    for (int i = 0; i < count; i++) {
        int r = pthread_create(&threads[i], NULL, job, NULL);
        assert(r == 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "put") != 0 && strcmp(argv[1], "compare") != 0)) {
        fprintf(stderr, "usage: nfstree put|compare DIR nfs://HOST/EXPORT?options [JOBS]\n");
        return 2;
    }
    unsigned long jobs = argc > 4 ? strtoul(argv[4], NULL, 10) : 8;
    if (jobs < 1 || jobs > JOBS_MAX) {
        fprintf(stderr, "nfstree: 1 to %d connections\n", JOBS_MAX);
        return 2;
    }
    comparing = strcmp(argv[1], "compare") == 0;
    root = argv[2];
    root_len = strlen(root);
    url_text = argv[3];
    if (nftw(root, found, 64, FTW_PHYS) != 0 || entry_count == 0) {
        fprintf(stderr, "nfstree: %s: %s\n", root, strerror(errno));
        return 1;
    }
    links_find();
    struct nfs_context *nfs = connect_export();
    if (!comparing)
        put_directories(nfs);
    run_jobs((int)jobs);
    if (!comparing)
        put_rest(nfs);
    nfs_destroy_context(nfs);
    for (size_t i = 0; i < entry_count; i++)
        free(entries[i].path);
    free(entries);
    printf("%zu names %s, %lu failures\n", entry_count, comparing ? "compared" : "copied",
           atomic_load(&failures));
    return atomic_load(&failures) == 0 ? 0 : 1;
}
