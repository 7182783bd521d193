/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's requests, as libfuse decodes them, in main: each becomes one for the node, or is answered
 * here.
 *
 * A node id of the kernel is the inode number itself, so there is nothing to look up and nothing to forget at
 * the node. What is answered here:
 *   FORGET    only we count it
 *   FLUSH     (every close) unless a byte-range lock was taken on the file: nothing of ours is unwritten
 *   RELEASE   nobody waits for it: it is told with the next request, or soon
 *   OPENDIR   not wanted by the kernel, after it was refused once: directories have no state
 */
#include "protocols/fuse/fuse_client_internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

/* From linux/fuse.h of newer kernels; numbers of the interface, which stay. */
#define SETATTR_KILL_SUID (1u << 11)
#define WRITE_KILL_SUID   (1u << 2)

static struct client *client_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static struct fuse_request request_of(fuse_req_t req, uint16_t op, fuse_ino_t ino)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    return (struct fuse_request){.op = op, .ino = ino, .uid = ctx->uid, .gid = ctx->gid};
}

static struct wire_text text_of(const char *s)
{
    return (struct wire_text){s, (uint32_t)strlen(s)};
}

static struct client_request *create_request(fuse_req_t req, const struct fuse_request *q)
{
    return client_request_new(client_of(req), req, q, NULL, 0);
}

static void begin(fuse_req_t req, const struct fuse_request *q)
{
    struct client_request *r = create_request(req, q);
    if (r != NULL)
        client_request_begin(client_of(req), r);
}

/* One with a name; ENAMETOOLONG is said here, the wire has no room for it. */
static bool name_fits(fuse_req_t req, const char *name)
{
    if (strlen(name) <= WIRE_NAME_MAX)
        return true;
    fuse_reply_err(req, ENAMETOOLONG);
    return false;
}

static uint32_t open_kind(const struct fuse_file_info *fi)
{
    switch (fi->flags & O_ACCMODE) {
    case O_RDONLY:
        return WIRE_OPEN_READ;
    case O_WRONLY:
        return WIRE_OPEN_WRITE;
    default:
        return WIRE_OPEN_READ | WIRE_OPEN_WRITE;
    }
}

/* ---- What the kernel knows (lock is held) ---- */

void client_node_looked_up(struct client *c, uint64_t ino)
{
    struct fuse_node *n = fuse_table_get(&c->nodes, ino);
    if (n == NULL)
        abort(); /* its invalidations would be lost */
    n->lookups++;
}

void client_node_forget(struct client *c, uint64_t ino, uint64_t lookups)
{
    struct fuse_node *n = fuse_table_find(&c->nodes, ino);
    if (n == NULL)
        return;
    n->lookups -= MIN(lookups, n->lookups);
    fuse_table_drop(&c->nodes, n);
}

/* ---- Life ---- */

static void want(struct fuse_conn_info *conn, unsigned capability, bool wanted)
{
    if (wanted && (conn->capable & capability))
        conn->want |= capability;
    else
        conn->want &= ~capability;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct client *c = userdata;
    conn->max_write = WIRE_DATA_MAX;
    conn->max_background = 128;
    conn->congestion_threshold = 96;
    conn->time_gran = 1;
    want(conn, FUSE_CAP_ASYNC_READ, true);
    want(conn, FUSE_CAP_POSIX_LOCKS, true);
    want(conn, FUSE_CAP_FLOCK_LOCKS, true);
    want(conn, FUSE_CAP_ATOMIC_O_TRUNC, true);
    want(conn, FUSE_CAP_EXPORT_SUPPORT, true);
    want(conn, FUSE_CAP_DONT_MASK, true);
    want(conn, FUSE_CAP_READDIRPLUS, true);
    want(conn, FUSE_CAP_READDIRPLUS_AUTO, true);
    want(conn, FUSE_CAP_ASYNC_DIO, true);
    want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
    want(conn, FUSE_CAP_POSIX_ACL, true);
    want(conn, FUSE_CAP_CACHE_SYMLINKS, true);
    want(conn, FUSE_CAP_NO_OPENDIR_SUPPORT, true);
    want(conn, FUSE_CAP_WRITEBACK_CACHE, c->options.writeback);
    /* We say what changed; guessing it from times would drop what was just written here. */
    want(conn, FUSE_CAP_AUTO_INVAL_DATA, false);
    want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA, true);
    /* Requests are read whole with one call; data goes out of the receiver's buffer with one more. Pipes
     * would be two calls more for each. */
    want(conn, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE, false);
}

/* ---- Names ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_request q = request_of(req, WIRE_LOOKUP, parent);
    q.name = text_of(name);
    if (name_fits(req, name))
        begin(req, &q);
}

static void forget(struct client *c, fuse_ino_t ino, uint64_t lookups)
{
    pthread_mutex_lock(&c->lock);
    client_node_forget(c, ino, lookups);
    pthread_mutex_unlock(&c->lock);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
    forget(client_of(req), ino, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        forget(client_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static void make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev,
                 const char *target, const struct fuse_file_info *fi)
{
    struct fuse_request q = request_of(req, WIRE_MAKE, parent);
    q.name = text_of(name);
    if (target != NULL)
        q.second = text_of(target);
    q.make.mode = mode;
    q.make.umask = fuse_req_ctx(req)->umask;
    q.make.rdev_major = major(rdev);
    q.make.rdev_minor = minor(rdev);
    if (fi != NULL) {
        q.make.flags = WIRE_MAKE_OPEN | (fi->flags & O_EXCL ? WIRE_MAKE_EXCLUSIVE : 0) |
                       (fi->flags & O_TRUNC ? WIRE_MAKE_TRUNCATE : 0);
        q.make.open = open_kind(fi);
    }
    if (!name_fits(req, name))
        return;
    if (q.second.len > WIRE_TARGET_MAX) {
        fuse_reply_err(req, ENAMETOOLONG);
        return;
    }
    struct client_request *r = create_request(req, &q);
    if (r == NULL)
        return;
    if (fi != NULL) {
        r->creates = true;
        r->open = q.make.open;
        r->file = *fi;
    }
    client_request_begin(client_of(req), r);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    make(req, parent, name, mode & S_IFMT ? mode : mode | S_IFREG, rdev, NULL, NULL);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    make(req, parent, name, (mode & 07777) | S_IFDIR, 0, NULL, NULL);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    make(req, parent, name, 0777 | S_IFLNK, 0, target, NULL);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    make(req, parent, name, (mode & 07777) | S_IFREG, 0, NULL, fi);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_request q = request_of(req, WIRE_UNLINK, parent);
    q.name = text_of(name);
    if (name_fits(req, name))
        begin(req, &q);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_request q = request_of(req, WIRE_RMDIR, parent);
    q.name = text_of(name);
    if (name_fits(req, name))
        begin(req, &q);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to_parent,
                      const char *to, unsigned flags)
{
    struct fuse_request q = request_of(req, WIRE_RENAME, parent);
    q.name = text_of(name);
    q.second = text_of(to);
    q.rename.to_dir = to_parent;
    q.rename.flags = (flags & RENAME_NOREPLACE ? WIRE_RENAME_NOREPLACE : 0) |
                     (flags & RENAME_EXCHANGE ? WIRE_RENAME_EXCHANGE : 0);
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
        fuse_reply_err(req, EINVAL);
    else if (name_fits(req, name) && name_fits(req, to))
        begin(req, &q);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t to_parent, const char *name)
{
    struct fuse_request q = request_of(req, WIRE_LINK, ino);
    q.name = text_of(name);
    q.link.dir = to_parent;
    if (name_fits(req, name))
        begin(req, &q);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct fuse_request q = request_of(req, WIRE_READLINK, ino);
    begin(req, &q);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    (void)fi;
    fuse_reply_err(req, ENOSYS); /* and the kernel asks no more; it caches what it reads */
}

static void readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t cookie, bool plus)
{
    struct fuse_request q = request_of(req, WIRE_READDIR, ino);
    q.readdir.cookie = (uint64_t)cookie;
    q.readdir.len = (uint32_t)MIN(size, WIRE_READDIR_MAX);
    q.readdir.attributes = plus;
    struct client_request *r = create_request(req, &q);
    if (r == NULL)
        return;
    r->plus = plus;
    r->size = q.readdir.len;
    client_request_begin(client_of(req), r);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t cookie, struct fuse_file_info *fi)
{
    (void)fi;
    readdir(req, ino, size, cookie, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t cookie,
                           struct fuse_file_info *fi)
{
    (void)fi;
    readdir(req, ino, size, cookie, true);
}

/* ---- Attributes ---- */

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    struct fuse_request q = request_of(req, WIRE_GETATTR, ino);
    begin(req, &q);
}

static int64_t time_ns(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* Arguments of the raw request that libfuse does not hand on. */
static const void *raw_args(const struct client *c, size_t size)
{
    if (c->raw == NULL || c->raw_len < sizeof(struct fuse_in_header) + size)
        return NULL;
    return c->raw + sizeof(struct fuse_in_header);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    static const struct {
        int fuse;
        uint32_t wire;
    } bits[] = {
        {FUSE_SET_ATTR_MODE, WIRE_SET_MODE},
        {FUSE_SET_ATTR_UID, WIRE_SET_UID},
        {FUSE_SET_ATTR_GID, WIRE_SET_GID},
        {FUSE_SET_ATTR_SIZE, WIRE_SET_SIZE},
        {FUSE_SET_ATTR_ATIME, WIRE_SET_ATIME},
        {FUSE_SET_ATTR_MTIME, WIRE_SET_MTIME},
        {FUSE_SET_ATTR_ATIME_NOW, WIRE_SET_ATIME_NOW},
        {FUSE_SET_ATTR_MTIME_NOW, WIRE_SET_MTIME_NOW},
        {FUSE_SET_ATTR_CTIME, WIRE_SET_CTIME},
    };
    struct fuse_request q = request_of(req, WIRE_SETATTR, ino);
    const struct fuse_setattr_in *raw = raw_args(client_of(req), sizeof(*raw));
    for (size_t i = 0; i < ARRAY_SIZE(bits); i++)
        q.setattr.valid |= to_set & bits[i].fuse ? bits[i].wire : 0;
    if (q.setattr.valid & WIRE_SET_ATIME_NOW)
        q.setattr.valid &= ~WIRE_SET_ATIME;
    if (q.setattr.valid & WIRE_SET_MTIME_NOW)
        q.setattr.valid &= ~WIRE_SET_MTIME;
    if (fi != NULL)
        q.setattr.valid |= WIRE_SET_OPEN;
    if (raw != NULL && (raw->valid & SETATTR_KILL_SUID))
        q.setattr.valid |= WIRE_SET_KILL_SUID;
    q.setattr.mode = attr->st_mode & 07777;
    q.setattr.uid = attr->st_uid;
    q.setattr.gid = attr->st_gid;
    q.setattr.size = (uint64_t)attr->st_size;
    q.setattr.atime_ns = time_ns(&attr->st_atim);
    q.setattr.mtime_ns = time_ns(&attr->st_mtim);
    q.setattr.ctime_ns = time_ns(&attr->st_ctim);
    begin(req, &q);
}

static void op_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
    struct fuse_request q = request_of(req, WIRE_ACCESS, ino);
    q.access.mask = (uint32_t)mask & 7;
    begin(req, &q);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct fuse_request q = request_of(req, WIRE_STATFS, ino == 0 ? FUSE_ROOT_ID : ino);
    begin(req, &q);
}

/* ---- Files ---- */

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fuse_request q = request_of(req, WIRE_OPEN, ino);
    q.open.count = 1;
    q.open.flags = open_kind(fi) | (fi->flags & O_TRUNC ? WIRE_OPEN_TRUNCATE : 0);
    struct client_request *r = create_request(req, &q);
    if (r == NULL)
        return;
    r->open = open_kind(fi);
    r->file = *fi;
    client_request_begin(client_of(req), r);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)fi;
    struct fuse_request q = request_of(req, WIRE_READ, ino);
    q.range.offset = (uint64_t)offset;
    q.range.len = (uint32_t)MIN(size, WIRE_DATA_MAX);
    begin(req, &q);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    struct client *c = client_of(req);
    struct fuse_request q = request_of(req, WIRE_WRITE, ino);
    const struct fuse_write_in *raw = raw_args(c, sizeof(*raw));
    if (size > WIRE_DATA_MAX) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    q.range.offset = (uint64_t)offset;
    q.range.len = (uint32_t)size;
    if ((fi->flags & O_APPEND) && !fi->writepage && !c->options.writeback)
        q.range.flags |= WIRE_WRITE_APPEND;
    if (raw != NULL && (raw->write_flags & WRITE_KILL_SUID))
        q.range.flags |= WIRE_WRITE_KILL_SUID;
    struct client_request *r = client_request_new(c, req, &q, data, (uint32_t)size);
    if (r == NULL)
        return;
    r->size = (uint32_t)size;
    client_request_begin(c, r);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct client *c = client_of(req);
    pthread_mutex_lock(&c->lock);
    const struct fuse_node *n = fuse_table_find(&c->nodes, ino);
    bool locked = n != NULL && n->locked;
    pthread_mutex_unlock(&c->lock);
    if (!locked) {
        fuse_reply_err(req, 0);
        return;
    }
    struct fuse_request q = request_of(req, WIRE_LOCK_FLUSH, ino);
    q.lock_flush.owner = fi->lock_owner;
    begin(req, &q);
}

static void unlock_flock(fuse_req_t req, fuse_ino_t ino, uint64_t owner)
{
    struct fuse_request q = request_of(req, WIRE_LOCK_SET, ino);
    q.lock.owner = owner;
    q.lock.flock = true;
    struct client_request *r = client_request_new(client_of(req), NULL, &q, NULL, 0);
    if (r == NULL)
        return;
    r->must = true;
    client_request_begin(client_of(req), r);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct client *c = client_of(req);
    struct fuse_request q = request_of(req, WIRE_RELEASE, ino);
    uint32_t kind = open_kind(fi);
    if (fi->flock_release)
        unlock_flock(req, ino, fi->lock_owner);
    q.open.flags = kind;
    q.open.count = 1;
    struct client_request *r = client_request_new(c, NULL, &q, NULL, 0);
    /* Both at once, as a connect tells it. */
    pthread_mutex_lock(&c->lock);
    struct fuse_node *n = fuse_table_find(&c->nodes, ino);
    if (n != NULL && n->opens[kind] > 0) {
        n->opens[kind]--;
        if (!fuse_node_is_open(n))
            n->locked = false;
        fuse_table_drop(&c->nodes, n);
    }
    pthread_mutex_unlock(&c->lock);
    if (r != NULL)
        client_request_begin(c, r);
    fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync;
    (void)fi;
    struct fuse_request q = request_of(req, WIRE_FSYNC, ino);
    begin(req, &q);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                         struct fuse_file_info *fi)
{
    (void)fi;
    struct fuse_request q = request_of(req, WIRE_ALLOCATE, ino);
    q.allocate.offset = (uint64_t)offset;
    q.allocate.len = (uint64_t)length;
    q.allocate.mode = (uint32_t)mode;
    begin(req, &q);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
    (void)fi;
    struct fuse_request q = request_of(req, WIRE_SEEK, ino);
    q.seek.offset = (uint64_t)offset;
    q.seek.hole = whence == SEEK_HOLE;
    if (whence != SEEK_HOLE && whence != SEEK_DATA)
        fuse_reply_err(req, EINVAL);
    else if (offset < 0)
        fuse_reply_err(req, ENXIO);
    else
        begin(req, &q);
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t ino, off_t offset, struct fuse_file_info *fi,
                               fuse_ino_t to, off_t to_offset, struct fuse_file_info *to_fi, size_t len,
                               int flags)
{
    (void)fi;
    (void)to_fi;
    struct fuse_request q = request_of(req, WIRE_COPY, ino);
    q.copy.offset = (uint64_t)offset;
    q.copy.to = to;
    q.copy.to_offset = (uint64_t)to_offset;
    q.copy.len = MIN(len, (size_t)1 << 30); /* the reply's number has 32 bits */
    if (flags != 0)
        fuse_reply_err(req, EINVAL);
    else
        begin(req, &q);
}

/* ---- Extended attributes ---- */

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fuse_request q = request_of(req, WIRE_XATTR_GET, ino);
    q.name = text_of(name);
    q.xattr.max = (uint32_t)MIN(size, WIRE_VALUE_MAX);
    if (!name_fits(req, name))
        return;
    struct client_request *r = create_request(req, &q);
    if (r == NULL)
        return;
    r->size = q.xattr.max;
    client_request_begin(client_of(req), r);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fuse_request q = request_of(req, WIRE_XATTR_LIST, ino);
    q.xattr.max = (uint32_t)MIN(size, WIRE_VALUE_MAX);
    struct client_request *r = create_request(req, &q);
    if (r == NULL)
        return;
    r->size = q.xattr.max;
    client_request_begin(client_of(req), r);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                        int flags)
{
    struct fuse_request q = request_of(req, WIRE_XATTR_SET, ino);
    q.name = text_of(name);
    q.second = (struct wire_text){value, (uint32_t)size};
    q.xattr.how =
        (flags & XATTR_CREATE ? WIRE_XATTR_CREATE : 0) | (flags & XATTR_REPLACE ? WIRE_XATTR_REPLACE : 0);
    if (size > WIRE_VALUE_MAX)
        fuse_reply_err(req, E2BIG);
    else if (q.xattr.how > WIRE_XATTR_REPLACE)
        fuse_reply_err(req, EINVAL);
    else if (name_fits(req, name))
        begin(req, &q);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct fuse_request q = request_of(req, WIRE_XATTR_REMOVE, ino);
    q.name = text_of(name);
    if (name_fits(req, name))
        begin(req, &q);
}

/* ---- Locks ---- */

static bool lock_of(const struct flock *l, struct fuse_request *q)
{
    q->lock.start = (uint64_t)l->l_start;
    q->lock.len = (uint64_t)l->l_len;
    q->lock.pid = (uint32_t)l->l_pid;
    q->lock.type = l->l_type == F_UNLCK   ? WIRE_LOCK_NONE
                   : l->l_type == F_WRLCK ? WIRE_LOCK_WRITE
                                          : WIRE_LOCK_READ;
    return l->l_start >= 0 && l->l_len >= 0;
}

static void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    struct fuse_request q = request_of(req, WIRE_LOCK_TEST, ino);
    q.lock.owner = fi->lock_owner;
    if (lock_of(lock, &q))
        begin(req, &q);
    else
        fuse_reply_err(req, EINVAL);
}

static void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep)
{
    struct client *c = client_of(req);
    struct fuse_request q = request_of(req, WIRE_LOCK_SET, ino);
    q.lock.owner = fi->lock_owner;
    q.lock.wait = sleep;
    if (!lock_of(lock, &q)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    pthread_mutex_lock(&c->lock);
    struct fuse_node *n = fuse_table_find(&c->nodes, ino);
    if (n != NULL)
        n->locked = true;
    pthread_mutex_unlock(&c->lock);
    begin(req, &q);
}

static void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    struct fuse_request q = request_of(req, WIRE_LOCK_SET, ino);
    q.lock.owner = fi->lock_owner;
    q.lock.flock = true;
    q.lock.wait = !(op & LOCK_NB);
    q.lock.type = op & LOCK_EX ? WIRE_LOCK_WRITE : op & LOCK_SH ? WIRE_LOCK_READ : WIRE_LOCK_NONE;
    begin(req, &q);
}

const struct fuse_lowlevel_ops client_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .fsyncdir = op_fsync,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .access = op_access,
    .create = op_create,
    .getlk = op_getlk,
    .setlk = op_setlk,
    .flock = op_flock,
    .fallocate = op_fallocate,
    .copy_file_range = op_copy_file_range,
    .lseek = op_lseek,
};
