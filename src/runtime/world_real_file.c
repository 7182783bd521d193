/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and block devices of the real world. Opening, sizes and whole small files are rare and may block for
 * long, so they run on helper threads; reads, writes and syncs go through the ring.
 */
#include "runtime/error.h"
#include "runtime/world_real_internal.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define ZERO_STEP_BYTES MIB
#define READS_EARLY     2u /* entries in the ring that one submission is worth */

/* How a write is made durable; see file_dsync_way(). */
enum dsync_way { DSYNC_FLAG, DSYNC_PAIR };

struct real_file {
    struct file base;
    int fd;
    int slot; /* among the ring's registered files, or -1 */
    bool is_block_device;
    uint32_t io_align;
    uint64_t
        dsync_ns[2]; /* by way: how long it takes, a mean that one late answer moves little; 0: unknown */
    uint64_t dsync_spent_ns; /* by the faster way since the other was tried */
};

static struct real_file *real_file_of(struct file *f)
{
    return CONTAINER_OF(f, struct real_file, base);
}

static void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

/* ---- On helper threads ---- */

/* What O_DIRECT wants here; ERR_UNSUPPORTED where it would only fail later. */
static int file_stat_align(int fd, uint32_t *ret_align)
{
    struct statx st;
    uint32_t align = BLOCK_SIZE; /* kernels before 6.1 do not tell; every device takes this */
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN) != 0)
        align = MAX(st.stx_dio_mem_align, st.stx_dio_offset_align);
    if (align == 0 || align > BLOCK_SIZE)
        return ERR_UNSUPPORTED;
    *ret_align = align;
    return 0;
}

static int file_lock(int fd, bool shared)
{
    struct flock l = {.l_type = shared ? F_RDLCK : F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &l) == 0)
        return 0;
    return errno == EAGAIN || errno == EACCES ? ERR_SYS(EBUSY) : ERR_SYS(errno);
}

/* Makes a new, renamed or removed name durable. */
static int folder_sync(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash != NULL ? (size_t)(slash - path) : 0;
    if (len >= sizeof(folder))
        return ERR_SYS(ENAMETOOLONG);
    memcpy(folder, path, len);
    folder[len] = '\0';
    int fd CLEANUP(fd_close) = open(slash == NULL ? "."
                                    : len == 0    ? "/"
                                                  : folder,
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        return ERR_SYS(errno);
    return 0;
}

struct open_job {
    const char *path;
    uint32_t flags;
    int fd;
    bool is_block_device, direct;
    uint32_t io_align;
};

static int open_flags(const struct open_job *j, bool is_block_device, bool direct)
{
    int flags = O_CLOEXEC | (j->flags & FILE_OPEN_WRITE ? O_RDWR : O_RDONLY);
    if (j->flags & FILE_OPEN_CREATE)
        flags |= O_CREAT | O_EXCL;
    else if (is_block_device && j->flags & FILE_OPEN_LOCK)
        flags |= O_EXCL; /* no mounted file system, no other such opener */
    if (direct)
        flags |= O_DIRECT;
    return flags;
}

static int open_run(void *arg)
{
    struct open_job *j = arg;
    struct stat st;
    bool exists = stat(j->path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return ERR_SYS(EISDIR);
    j->is_block_device = exists && S_ISBLK(st.st_mode);
    j->direct = (j->flags & FILE_OPEN_DIRECT) != 0;
    int fd CLEANUP(fd_close) = open(j->path, open_flags(j, j->is_block_device, j->direct), 0600);
    if (fd < 0 && errno == EINVAL && j->direct) {
        /* With O_CREAT some file systems refuse O_DIRECT only after they made the file. */
        if (!exists && j->flags & FILE_OPEN_CREATE)
            unlink(j->path);
        j->direct = false;
        fd = open(j->path, open_flags(j, j->is_block_device, false), 0600);
    }
    if (fd < 0)
        return ERR_SYS(errno);
    j->io_align = 1;
    if (j->direct && file_stat_align(fd, &j->io_align) != 0) {
        int now = fcntl(fd, F_GETFL);
        if (now < 0 || fcntl(fd, F_SETFL, now & ~O_DIRECT) != 0)
            return ERR_SYS(errno);
        j->direct = false;
    }
    int err = j->flags & FILE_OPEN_LOCK ? file_lock(fd, !(j->flags & FILE_OPEN_WRITE)) : 0;
    if (err == 0 && j->flags & FILE_OPEN_CREATE)
        err = folder_sync(j->path);
    if (err != 0)
        return err;
    j->fd = fd;
    fd = -1;
    return 0;
}

int real_file_open(struct reactor *r, const char *path, uint32_t flags, struct file **ret)
{
    struct open_job j = {.path = path, .flags = flags, .fd = -1};
    struct real_file *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return ERR_NO_MEMORY;
    int err = reactor_block(open_run, &j);
    if (err != 0) {
        free(f);
        return err;
    }
    *f = (struct real_file){.base = {.reactor = r, .flags = flags, .direct = j.direct},
                            .fd = j.fd,
                            /* The ring lets go of a registered file some time after it was closed, and
                             * only then of its lock: what is locked is not registered. */
                            .slot = flags & FILE_OPEN_LOCK ? -1 : real_file_register(real_world_of(r), j.fd),
                            .is_block_device = j.is_block_device,
                            .io_align = j.io_align};
    *ret = &f->base;
    return 0;
}

void real_file_close(struct file *file)
{
    struct real_file *f = real_file_of(file);
    if (f->slot >= 0)
        real_file_unregister(real_world_of(file->reactor), f->slot);
    close(f->fd);
    free(f);
}

/* The serial number, from where the kinds of drives keep it. */
static void device_serial(dev_t dev, char *out, size_t size)
{
    static const char *const places[] = {"serial",      "device/serial",    "wwid",
                                         "device/wwid", "../device/serial", "../serial"};
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(places) && out[0] == '\0'; i++) {
        char path[96];
        snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s", major(dev), minor(dev), places[i]);
        int fd CLEANUP(fd_close) = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, out, size - 1) : -1;
        while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == ' '))
            n--;
        out[n > 0 ? n : 0] = '\0';
    }
}

struct info_job {
    struct real_file *file;
    struct file_info info;
};

static int info_run(void *arg)
{
    struct info_job *j = arg;
    struct real_file *f = j->file;
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return ERR_SYS(errno);
    j->info = (struct file_info){.size_bytes = (uint64_t)st.st_size,
                                 .is_block_device = f->is_block_device,
                                 .direct = f->base.direct,
                                 .io_align = f->io_align};
    if (f->is_block_device) {
        if (ioctl(f->fd, BLKGETSIZE64, &j->info.size_bytes) != 0)
            return ERR_SYS(errno);
        device_serial(st.st_rdev, j->info.serial, sizeof(j->info.serial));
    }
    return 0;
}

int real_file_get_info(struct file *file, struct file_info *ret)
{
    struct info_job j = {.file = real_file_of(file)};
    int err = reactor_block(info_run, &j);
    if (err == 0)
        *ret = j.info;
    return err;
}

struct resize_job {
    int fd;
    uint64_t size_bytes;
};

static int resize_run(void *arg)
{
    struct resize_job *j = arg;
    return ftruncate(j->fd, (off_t)j->size_bytes) == 0 ? 0 : ERR_SYS(errno);
}

int real_file_resize(struct file *file, uint64_t size_bytes)
{
    struct resize_job j = {.fd = real_file_of(file)->fd, .size_bytes = size_bytes};
    return size_bytes > INT64_MAX ? ERR_INVALID : reactor_block(resize_run, &j);
}

struct replace_job {
    const char *path;
    const char *data;
    size_t len;
};

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR)
            return ERR_SYS(errno);
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int replace_run(void *arg)
{
    struct replace_job *j = arg;
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof(temporary), "%s.new", j->path);
    if (n < 0 || (size_t)n >= sizeof(temporary))
        return ERR_SYS(ENAMETOOLONG);
    int fd CLEANUP(fd_close) = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return ERR_SYS(errno);
    int err = write_all(fd, j->data, j->len);
    if (err == 0 && (fsync(fd) != 0 || rename(temporary, j->path) != 0))
        err = ERR_SYS(errno);
    if (err != 0) {
        unlink(temporary);
        return err;
    }
    return folder_sync(j->path);
}

int real_file_replace(struct reactor *r, const char *path, const void *data, size_t len)
{
    (void)r;
    struct replace_job j = {.path = path, .data = data, .len = len};
    return reactor_block(replace_run, &j);
}

struct read_all_job {
    const char *path;
    size_t max;
    char *data;
    size_t len;
};

static int read_all_run(void *arg)
{
    struct read_all_job *j = arg;
    int fd CLEANUP(fd_close) = open(j->path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return ERR_SYS(errno);
    if (st.st_size < 0 || (uint64_t)st.st_size > j->max)
        return ERR_SYS(EFBIG);
    size_t size = (size_t)st.st_size, len = 0;
    char *data = malloc(size + 1);
    if (data == NULL)
        return ERR_NO_MEMORY;
    while (len < size) {
        ssize_t n = read(fd, data + len, size - len);
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR) {
            int err = ERR_SYS(errno);
            free(data);
            return err;
        }
        len += n > 0 ? (size_t)n : 0;
    }
    data[len] = '\0';
    j->data = data;
    j->len = len;
    return 0;
}

int real_file_read_all(struct reactor *r, const char *path, size_t max, char **ret_data, size_t *ret_len)
{
    (void)r;
    struct read_all_job j = {.path = path, .max = max};
    int err = reactor_block(read_all_run, &j);
    if (err != 0)
        return err;
    *ret_data = j.data;
    *ret_len = j.len;
    return 0;
}

static int unlink_run(void *arg)
{
    const char *path = arg;
    return unlink(path) == 0 ? folder_sync(path) : ERR_SYS(errno);
}

int real_file_unlink(struct reactor *r, const char *path)
{
    (void)r;
    return reactor_block(unlink_run, (void *)(uintptr_t)path);
}

/* ---- Operations that the ring cannot do, on helper threads ---- */

struct file_job {
    struct helper_job job;
    struct message message;
    struct reactor *reactor;
    struct file_io *io;
    int fd;
    int result;
};

static void file_job_done(struct message *m)
{
    struct file_job *j = CONTAINER_OF(m, struct file_job, message);
    struct file_io *io = j->io;
    int result = j->result;
    free(j);
    file_io_done(io, result);
}

/* For file systems that cannot zero a range: writes of zeroes, whatever O_DIRECT wants of their memory. */
static int zero_by_writing(int fd, uint64_t offset, uint64_t len)
{
    static const _Alignas(BLOCK_SIZE) uint8_t zeroes[ZERO_STEP_BYTES];
    while (len > 0) {
        ssize_t n = pwrite(fd, zeroes, MIN(len, ZERO_STEP_BYTES), (off_t)offset);
        if (n < 0 && errno != EINTR)
            return ERR_SYS(errno);
        if (n == 0)
            return ERR_SHORT_IO;
        offset += n > 0 ? (uint64_t)n : 0;
        len -= n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static void file_job_run(struct helper_job *job)
{
    struct file_job *j = CONTAINER_OF(job, struct file_job, job);
    struct file_io *io = j->io;
    if (io->op == FILE_ZERO) {
        j->result = zero_by_writing(j->fd, io->offset, io->len);
    } else {
        uint64_t range[2] = {io->offset, io->len};
        bool done = ioctl(j->fd, BLKDISCARD, range) == 0 || errno == EOPNOTSUPP;
        j->result = done ? 0 : ERR_SYS(errno); /* a device without discard keeps its space; that is allowed */
    }
    reactor_post(j->reactor, &j->message);
}

/* What ended without the ring completes at the end of the next wait. */
static void file_finish(struct real_world *w, struct file_io *io, int result)
{
    io->result = result;
    list_append(&w->finished, &io->link);
}

static void file_to_helper(struct real_world *w, struct file_io *io)
{
    struct file_job *j = malloc(sizeof(*j));
    if (j == NULL) {
        file_finish(w, io, ERR_NO_MEMORY);
        return;
    }
    *j = (struct file_job){.job.run = file_job_run,
                           .message.fn = file_job_done,
                           .reactor = io->file->reactor,
                           .io = io,
                           .fd = real_file_of(io->file)->fd};
    int err = helper_queue(&j->job);
    if (err != 0) {
        free(j);
        file_finish(w, io, err);
    }
}

/* ---- Durable writes ---- */

/*
 * There are two ways, and which is faster depends on the drive and on what else the machine does:
 *
 * DSYNC_FLAG  RWF_DSYNC. One write with FUA where the drive has that. Elsewhere the kernel flushes from a
 * work queue: fewer wake-ups than a sync of ours, so about a fifth faster and at half the CPU, but the worker
 * is bound to one core and waits, for milliseconds if need be, behind what keeps it busy. DSYNC_PAIR  a
 * write, and when it completed a sync, which the kernel runs on whatever core is idle.
 *
 * So both are measured. The slower one is tried again when the faster one has been used for DSYNC_RETRY times
 * as long as a try takes: that costs one part in DSYNC_RETRY at most.
 */
#define DSYNC_RETRY 64u

static enum dsync_way file_dsync_way(struct real_file *f)
{
    const uint64_t *ns = f->dsync_ns;
    /* The flag also spares CPU: it may be a little slower. */
    enum dsync_way best = ns[DSYNC_FLAG] <= ns[DSYNC_PAIR] + ns[DSYNC_PAIR] / 8 ? DSYNC_FLAG : DSYNC_PAIR;
    enum dsync_way other = best == DSYNC_FLAG ? DSYNC_PAIR : DSYNC_FLAG;
    if (f->dsync_spent_ns < ns[other] * DSYNC_RETRY)
        return best;
    f->dsync_spent_ns = 0;
    return other;
}

static void file_dsync_took(struct real_file *f, enum dsync_way way, uint64_t ns)
{
    uint64_t *mean = &f->dsync_ns[way];
    if (*mean == 0)
        *mean = MAX(ns, 1);
    ns = MIN(ns, 2 * *mean);
    *mean = MAX(*mean - *mean / 16 + ns / 16, 16);
    f->dsync_spent_ns += ns;
}

/* ---- Through the ring ---- */

static void prepare_transfer(struct real_world *w, struct file_io *io, struct io_uring_sqe *sqe, int fd)
{
    bool write = io->op == FILE_WRITE;
    if (io->iov_count != 1 || io->len > INT32_MAX) {
        if (write)
            io_uring_prep_writev(sqe, fd, io->iov, io->iov_count, io->offset);
        else
            io_uring_prep_readv(sqe, fd, io->iov, io->iov_count, io->offset);
    } else {
        unsigned len = (unsigned)io->len;
        bool fixed = io->page != NULL && w->chunk_registered[io->page->chunk % CHUNK_REGISTER_MAX] &&
                     io->page->chunk < CHUNK_REGISTER_MAX;
        if (write && fixed)
            io_uring_prep_write_fixed(sqe, fd, io->iov->iov_base, len, io->offset, io->page->chunk);
        else if (write)
            io_uring_prep_write(sqe, fd, io->iov->iov_base, len, io->offset);
        else if (fixed)
            io_uring_prep_read_fixed(sqe, fd, io->iov->iov_base, len, io->offset, io->page->chunk);
        else
            io_uring_prep_read(sqe, fd, io->iov->iov_base, len, io->offset);
    }
}

static void queue_sync(struct real_world *w, struct file_io *io, uint64_t tag)
{
    const struct real_file *f = real_file_of(io->file);
    struct io_uring_sqe *sqe = real_sqe(w);
    io_uring_prep_fsync(sqe, f->slot >= 0 ? f->slot : f->fd, IORING_FSYNC_DATASYNC);
    if (f->slot >= 0)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, (uintptr_t)io | tag);
}

/* Reads go to the kernel a few at a time, so that the drive works while the rest of the turn does; but not
 * neighbours, which the kernel joins when they come together. Writes wait for the turn's log batch anyway. */
static void read_early(struct real_world *w, const struct file_io *io)
{
    bool neighbour = io->file == w->read_file && io->offset == w->read_end;
    w->read_file = io->file;
    w->read_end = io->offset + io->len;
    if (!neighbour && io_uring_sq_ready(&w->ring) >= READS_EARLY)
        (void)io_uring_submit(&w->ring); /* what it does not take now stays for the end of the turn */
}

void real_file_submit(struct file_io *io)
{
    struct real_world *w = real_world_of(io->file->reactor);
    struct real_file *f = real_file_of(io->file);
    if (io->op == FILE_DISCARD && f->is_block_device) {
        file_to_helper(w, io);
        return;
    }
    if (io->op == FILE_SYNC) {
        queue_sync(w, io, TAG_FILE);
        return;
    }
    struct io_uring_sqe *sqe = real_sqe(w);
    int fd = f->slot >= 0 ? f->slot : f->fd;
    uint64_t tag = TAG_FILE;
    switch (io->op) {
    case FILE_READ:
    case FILE_WRITE:
        prepare_transfer(w, io, sqe, fd);
        if (io->op == FILE_WRITE && io->dsync && file_dsync_way(f) == DSYNC_PAIR)
            tag = TAG_PAIR;
        else if (io->op == FILE_WRITE && io->dsync)
            sqe->rw_flags = RWF_DSYNC;
        break;
    case FILE_SYNC: /* above */
        break;
    case FILE_ZERO:
    case FILE_DISCARD: {
        int mode = io->op == FILE_ZERO ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        io_uring_prep_fallocate(sqe, fd, mode, (off_t)io->offset, (off_t)io->len);
        break;
    }
    }
    if (f->slot >= 0)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, (uintptr_t)io | tag);
    if (io->op == FILE_READ)
        read_early(w, io);
}

void real_file_completed(struct real_world *w, struct file_io *io, uint64_t tag, int32_t result)
{
    struct real_file *f = real_file_of(io->file);
    if (result == -EAGAIN || result == -EINTR) {
        real_file_submit(io);
        return;
    }
    if (result == -EOPNOTSUPP && io->op == FILE_ZERO) {
        file_to_helper(w, io);
        return;
    }
    if (result == -EOPNOTSUPP && io->op == FILE_DISCARD)
        result = 0; /* contents are undefined anyway, only the space is not given back */
    if (tag == TAG_PAIR && result >= 0 && (uint32_t)result == io->len) {
        queue_sync(w, io, TAG_SYNC);
        return;
    }
    if (result < 0)
        result = result == -ECANCELED ? ERR_CANCELLED : ERR_SYS(-result);
    else if ((io->op != FILE_READ && io->op != FILE_WRITE) || tag == TAG_SYNC)
        result = 0;
    else if ((uint32_t)result == io->len)
        result = 0;
    else if (io->op == FILE_WRITE && !f->is_block_device)
        result = ERR_SYS(ENOSPC); /* nothing else cuts a write to a regular file */
    else
        result = ERR_SHORT_IO;
    if (io->op == FILE_WRITE && io->dsync && result == 0)
        file_dsync_took(f, tag == TAG_SYNC ? DSYNC_PAIR : DSYNC_FLAG, reactor_now_ns() - io->submitted_ns);
    file_io_done(io, result);
}
