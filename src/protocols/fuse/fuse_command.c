/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests. Each function gets an admitted job, leads (see fuse_connection.c), gives the lead up before
 * it may wait, and ends the job with one reply.
 *
 * What was asked for again (WIRE_AGAIN) and counts only once is looked up first: its result stands in the
 * tree beside what it did, so it is known over a restart of the node, too.
 */
#include "protocols/fuse/fuse_internal.h"
#include "runtime/error.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- Replies ---- */

void fuse_command_end(struct fuse_job *j, int err)
{
    struct fuse_connection *c = j->connection;
    int number = error_errno(err);
    if (err == ERR_CANCELLED)
        number = EINTR;
    if (j->q.unique == 0) {
        fuse_connection_drop(c, j);
        return;
    }
    if (err != 0 || j->head_len == 0)
        j->head_len = sizeof(struct wire_reply);
    if (err != 0) {
        if (j->holds_pages)
            page_vec_put(&j->vec);
        j->holds_pages = false;
        j->data_len = j->tail_len = 0;
    }
    struct wire_reply h = {.len = le32_make(j->head_len + j->data_len + j->tail_len),
                           .error = le32_make((uint32_t)number),
                           .unique = le64_make(j->q.unique)};
    memcpy(j->head, &h, sizeof(h));
    fuse_connection_send(c, j);
}

void fuse_job_bytes(struct fuse_job *j, const void *bytes, uint32_t len)
{
    if (j->head_len == 0)
        j->head_len = sizeof(struct wire_reply);
    assert(len <= sizeof(j->head) - j->head_len);
    memcpy(j->head + j->head_len, bytes, len);
    j->head_len += len;
}

int fuse_job_tail(struct fuse_job *j, uint32_t size)
{
    assert(j->tail == NULL);
    j->tail = malloc(MAX(size, 1u));
    if (j->tail == NULL)
        return ERR_NO_MEMORY;
    j->tail_size = size;
    return 0;
}

void fuse_attr_encode(const struct fs_attr *a, struct wire_attr *out)
{
    *out = (struct wire_attr){
        .ino = le64_make(a->ino),
        .size = le64_make(a->size),
        .used_bytes = le64_make(a->used_bytes),
        .atime_ns = le64_make((uint64_t)a->atime_ns),
        .mtime_ns = le64_make((uint64_t)a->mtime_ns),
        .ctime_ns = le64_make((uint64_t)a->ctime_ns),
        .generation = le32_make(a->generation),
        .mode = le32_make(a->mode),
        .nlink = le32_make(a->nlink),
        .uid = le32_make(a->uid),
        .gid = le32_make(a->gid),
        .rdev_major = le32_make(a->rdev_major),
        .rdev_minor = le32_make(a->rdev_minor),
    };
}

void fuse_job_attr(struct fuse_job *j, const struct fs_attr *a)
{
    struct wire_attr w;
    fuse_attr_encode(a, &w);
    fuse_job_bytes(j, &w, sizeof(w));
}

void fuse_job_count(struct fuse_job *j, uint64_t value)
{
    struct wire_count w = {le64_make(value)};
    fuse_job_bytes(j, &w, sizeof(w));
}

uint64_t fuse_command_cost(const struct fuse_request *q)
{
    uint64_t cost = FUSE_REQUEST_COST + q->name.len + q->second.len;
    switch (q->op) {
    case WIRE_READ:
        return cost + q->range.len;
    case WIRE_WRITE:
        return cost + q->len;
    case WIRE_READDIR:
        return cost + MIN(q->readdir.len, WIRE_READDIR_MAX);
    case WIRE_XATTR_GET:
    case WIRE_XATTR_LIST:
        return cost + q->xattr.max;
    default:
        return cost;
    }
}

/* ---- Done already? ---- */

/* Answers a request that was done on an earlier connection. False: it was not. */
MUST_CHECK static bool answered_before(struct fuse_job *j) may_yield
{
    struct fuse_connection *c = j->connection;
    struct fuse_request *q = &j->q;
    struct fs_reply r;
    struct fs_attr a;
    if (!q->again || j->rq.reply == NULL || fs_reply_find(c->fs->fs, j->rq.reply, &r) != 0)
        return false;
    int err = r.status;
    if (err == 0 && (q->op == WIRE_MAKE || q->op == WIRE_LINK)) {
        err = fs_getattr(c->fs->fs, &j->rq, q->op == WIRE_MAKE ? r.ino : q->ino, 0, &a);
        if (err == 0 && q->op == WIRE_MAKE && (q->make.flags & WIRE_MAKE_OPEN))
            err = fuse_session_open(c->session, &j->rq, a.ino, q->make.open);
        if (err == 0)
            fuse_job_attr(j, &a);
    }
    fuse_command_end(j, err);
    return true;
}

/* ---- Attributes ---- */

static void command_getattr(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    int err = fs_getattr(j->connection->fs->fs, &j->rq, j->q.ino, 0, &a);
    if (err == 0)
        fuse_job_attr(j, &a);
    fuse_command_end(j, err);
}

static uint32_t set_bits(uint32_t wire)
{
    static const struct {
        uint32_t wire, set;
    } bits[] = {
        {WIRE_SET_MODE, FS_SET_MODE},
        {WIRE_SET_UID, FS_SET_UID},
        {WIRE_SET_GID, FS_SET_GID},
        {WIRE_SET_SIZE, FS_SET_SIZE},
        {WIRE_SET_ATIME, FS_SET_ATIME},
        {WIRE_SET_MTIME, FS_SET_MTIME},
        {WIRE_SET_ATIME_NOW, FS_SET_ATIME_NOW},
        {WIRE_SET_MTIME_NOW, FS_SET_MTIME_NOW},
        {WIRE_SET_CTIME, FS_SET_CTIME},
        {WIRE_SET_KILL_SUID, FS_SET_KILL_SUID},
        {WIRE_SET_OPEN, FS_SET_OPEN},
    };
    uint32_t set = 0;
    for (size_t i = 0; i < ARRAY_SIZE(bits); i++)
        set |= wire & bits[i].wire ? bits[i].set : 0;
    return set;
}

static void command_setattr(struct fuse_job *j) may_yield
{
    struct fs_wcc w = {0};
    struct fs_setattr s = {
        .valid = set_bits(j->q.setattr.valid),
        .mode = j->q.setattr.mode & 07777,
        .uid = j->q.setattr.uid,
        .gid = j->q.setattr.gid,
        .size = j->q.setattr.size,
        .atime_ns = j->q.setattr.atime_ns,
        .mtime_ns = j->q.setattr.mtime_ns,
        .ctime_ns = j->q.setattr.ctime_ns,
    };
    int err = fs_setattr(j->connection->fs->fs, &j->rq, j->q.ino, &s, &w);
    if (err == 0 && !w.has_after) /* attributes are part of the reply */
        err = fs_getattr(j->connection->fs->fs, &j->rq, j->q.ino, 0, &w.after);
    if (err == 0)
        fuse_job_attr(j, &w.after);
    fuse_command_end(j, err);
}

static void command_access(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    uint32_t granted, mask = j->q.access.mask;
    uint32_t wanted =
        (mask & 4 ? FS_MAY_READ : 0) | (mask & 2 ? FS_MAY_WRITE : 0) | (mask & 1 ? FS_MAY_EXECUTE : 0);
    j->rq.cred.trusted = false; /* here nobody else has checked */
    int err = fs_access(j->connection->fs->fs, &j->rq, j->q.ino, wanted, &granted, &a);
    if (err == 0 && (granted & wanted) != wanted)
        err = ERR_FS_ACCESS;
    fuse_command_end(j, err);
}

static void command_statfs(struct fuse_job *j) may_yield
{
    struct fs_statfs s;
    struct fs_attr a;
    int err = fs_statfs(j->connection->fs->fs, &j->rq, j->q.ino, &s, &a);
    if (err == 0) {
        struct wire_statfs w = {le64_make(s.total_bytes),     le64_make(s.free_bytes),
                                le64_make(s.available_bytes), le64_make(s.total_inodes),
                                le64_make(s.free_inodes),     le64_make(s.available_inodes)};
        fuse_job_bytes(j, &w, sizeof(w));
    }
    fuse_command_end(j, err);
}

/* ---- Names ---- */

static void command_lookup(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    int err = fs_lookup(j->connection->fs->fs, &j->rq, j->q.ino, j->q.name.bytes, j->q.name.len, &a, NULL);
    if (err == 0)
        fuse_job_attr(j, &a);
    fuse_command_end(j, err);
}

MUST_CHECK static int type_of_mode(uint32_t mode, enum fs_type *ret)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        *ret = FS_FILE;
        return 0;
    case S_IFDIR:
        *ret = FS_DIRECTORY;
        return 0;
    case S_IFLNK:
        *ret = FS_SYMLINK;
        return 0;
    case S_IFIFO:
        *ret = FS_FIFO;
        return 0;
    case S_IFSOCK:
        *ret = FS_SOCKET;
        return 0;
    case S_IFCHR:
        *ret = FS_CHAR;
        return 0;
    case S_IFBLK:
        *ret = FS_BLOCK;
        return 0;
    default:
        return ERR_INVALID;
    }
}

MUST_CHECK static int make(struct fuse_job *j, struct fs_attr *ret) may_yield
{
    const struct fuse_request *q = &j->q;
    bool open = q->make.flags & WIRE_MAKE_OPEN, created;
    struct fs_create c = {
        .how = open && !(q->make.flags & WIRE_MAKE_EXCLUSIVE) ? FS_CREATE_UNCHECKED : FS_CREATE_GUARDED,
        .attr = {.valid = FS_SET_MODE, .mode = q->make.mode & 07777},
        .umask = q->make.umask & 0777,
        .rdev_major = q->make.rdev_major,
        .rdev_minor = q->make.rdev_minor,
        .target = q->second.bytes,
        .target_len = q->second.len,
    };
    int err = type_of_mode(q->make.mode, &c.type);
    if (err == 0 && ((q->second.len > 0) != (c.type == FS_SYMLINK) || (open && c.type != FS_FILE)))
        err = ERR_INVALID;
    if (err != 0)
        return err;
    if (c.how == FS_CREATE_UNCHECKED && (q->make.flags & WIRE_MAKE_TRUNCATE))
        c.attr.valid |= FS_SET_SIZE; /* to 0 */
    struct fs_wcc dir = {0};
    err =
        fs_create(j->connection->fs->fs, &j->rq, q->ino, q->name.bytes, q->name.len, &c, ret, &created, &dir);
    if (err == 0 && open && !S_ISREG(ret->mode))
        err = ERR_FS_EXISTS;
    if (err == 0 && open)
        err = fuse_session_open(j->connection->session, &j->rq, ret->ino, q->make.open);
    return err;
}

static void command_make(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    if ((j->q.make.flags & WIRE_MAKE_OPEN) && !(j->q.make.open & (WIRE_OPEN_READ | WIRE_OPEN_WRITE))) {
        fuse_command_end(j, ERR_INVALID);
        return;
    }
    int err = make(j, &a);
    if (err == 0)
        fuse_job_attr(j, &a);
    fuse_command_end(j, err);
}

static void command_link(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    struct fs_wcc dir = {0};
    int err = fs_link(j->connection->fs->fs, &j->rq, j->q.ino, j->q.link.dir, j->q.name.bytes, j->q.name.len,
                      &a, &dir);
    if (err == 0)
        fuse_job_attr(j, &a);
    fuse_command_end(j, err);
}

static void command_remove(struct fuse_job *j) may_yield
{
    struct fs *fs = j->connection->fs->fs;
    struct fs_wcc dir = {0};
    uint64_t ino;
    int err;
    if (j->q.op == WIRE_RMDIR)
        err = fs_rmdir(fs, &j->rq, j->q.ino, j->q.name.bytes, j->q.name.len, &ino, &dir);
    else
        err = fs_unlink(fs, &j->rq, j->q.ino, j->q.name.bytes, j->q.name.len, &ino, &dir);
    fuse_command_end(j, err);
}

static void command_rename(struct fuse_job *j) may_yield
{
    const struct fuse_request *q = &j->q;
    struct fs_wcc from = {0}, to = {0};
    uint32_t flags = (q->rename.flags & WIRE_RENAME_NOREPLACE ? FS_RENAME_NOREPLACE : 0) |
                     (q->rename.flags & WIRE_RENAME_EXCHANGE ? FS_RENAME_EXCHANGE : 0);
    int err = fs_rename(j->connection->fs->fs, &j->rq, q->ino, q->name.bytes, q->name.len, q->rename.to_dir,
                        q->second.bytes, q->second.len, flags, &from, &to);
    fuse_command_end(j, err);
}

static void command_readlink(struct fuse_job *j) may_yield
{
    struct fs_attr a;
    uint32_t len;
    int err = fuse_job_tail(j, FS_SYMLINK_MAX + 1);
    if (err == 0)
        err = fs_readlink(j->connection->fs->fs, &j->rq, j->q.ino, (char *)j->tail, &len, &a);
    if (err == 0)
        j->tail_len = len;
    fuse_command_end(j, err);
}

/* ---- Opens ---- */

static void command_open(struct fuse_job *j) may_yield
{
    fuse_command_end(j, fuse_session_open(j->connection->session, &j->rq, j->q.ino, j->q.open.flags));
}

static void command_release(struct fuse_job *j)
{
    fuse_session_close(j->connection->session, j->q.ino, j->q.open.flags);
    fuse_command_end(j, 0);
}

/* In order, before anything else: the leader itself waits. */
static void command_reopen(struct fuse_job *j) may_yield
{
    struct fuse_connection *c = j->connection;
    int err =
        c->ready ? ERR_PROTOCOL : fuse_session_reopen(c, &j->rq, j->q.ino, j->q.open.flags, j->q.open.count);
    fuse_command_end(j, err);
}

static void command_reopen_done(struct fuse_job *j)
{
    struct fuse_connection *c = j->connection;
    if (!c->ready)
        fuse_session_reopened(c->session, &c->told);
    c->ready = true;
    fuse_command_end(j, 0);
}

/* ---- Extended attributes ---- */

static void command_xattr_read(struct fuse_job *j) may_yield
{
    struct fs *fs = j->connection->fs->fs;
    uint32_t max = j->q.xattr.max, len;
    int err = max > 0 ? fuse_job_tail(j, max) : 0;
    if (err != 0) {
        fuse_command_end(j, err);
        return;
    }
    if (j->q.op == WIRE_XATTR_GET)
        err = fs_xattr_get(fs, &j->rq, j->q.ino, j->q.name.bytes, j->q.name.len, j->tail, max, &len);
    else
        err = fs_xattr_list(fs, &j->rq, j->q.ino, (char *)j->tail, max, &len);
    if (err == 0 && max == 0)
        fuse_job_count(j, len);
    else if (err == 0)
        j->tail_len = len;
    fuse_command_end(j, err);
}

static void command_xattr_change(struct fuse_job *j) may_yield
{
    static const enum fs_xattr_set how[] = {
        [0] = FS_XATTR_ANY, [WIRE_XATTR_CREATE] = FS_XATTR_CREATE, [WIRE_XATTR_REPLACE] = FS_XATTR_REPLACE};
    struct fs *fs = j->connection->fs->fs;
    const struct fuse_request *q = &j->q;
    int err;
    if (q->op == WIRE_XATTR_REMOVE)
        err = fs_xattr_remove(fs, &j->rq, q->ino, q->name.bytes, q->name.len);
    else
        err = fs_xattr_set(fs, &j->rq, q->ino, q->name.bytes, q->name.len, q->second.bytes, q->second.len,
                           how[q->xattr.how]);
    fuse_command_end(j, err);
}

/* ---- The rest ---- */

static void command_fsync(struct fuse_job *j) may_yield
{
    struct fs_wcc w = {0};
    fuse_command_end(j, fs_commit(j->connection->fs->fs, &j->rq, j->q.ino, &w));
}

static void command_allocate(struct fuse_job *j) may_yield
{
    enum { KEEP_SIZE = 1, PUNCH_HOLE = 2, ZERO_RANGE = 16 };
    enum fs_allocate_mode mode;
    struct fs_wcc w = {0};
    switch (j->q.allocate.mode) {
    case 0:
        mode = FS_ALLOCATE;
        break;
    case KEEP_SIZE:
        mode = FS_ALLOCATE_KEEP_SIZE;
        break;
    case PUNCH_HOLE | KEEP_SIZE:
        mode = FS_PUNCH_HOLE;
        break;
    case ZERO_RANGE:
        mode = FS_ZERO_RANGE;
        break;
    case ZERO_RANGE | KEEP_SIZE:
        mode = FS_ZERO_RANGE_KEEP_SIZE;
        break;
    default:
        fuse_command_end(j, ERR_FS_NOT_SUPPORTED);
        return;
    }
    fuse_command_end(j, fs_allocate(j->connection->fs->fs, &j->rq, j->q.ino, mode, j->q.allocate.offset,
                                    j->q.allocate.len, &w));
}

static void command_seek(struct fuse_job *j) may_yield
{
    uint64_t offset;
    int err = fs_seek(j->connection->fs->fs, &j->rq, j->q.ino, j->q.seek.offset, j->q.seek.hole, &offset);
    if (err == 0)
        fuse_job_count(j, offset);
    fuse_command_end(j, err);
}

static void command_copy(struct fuse_job *j) may_yield
{
    const struct fuse_request *q = &j->q;
    struct fs_wcc w = {0};
    uint64_t len;
    int err = fs_copy_range(j->connection->fs->fs, &j->rq, q->ino, q->copy.offset, q->copy.to,
                            q->copy.to_offset, q->copy.len, false, &len, &w);
    if (err == 0)
        fuse_job_count(j, len);
    fuse_command_end(j, err);
}

static void command_bye(struct fuse_job *j)
{
    j->connection->session->bye = true;
    fuse_command_end(j, 0);
}

/* ---- Which one ---- */

static void run_names(struct fuse_job *j) may_yield
{
    switch (j->q.op) {
    case WIRE_LOOKUP:
        command_lookup(j);
        return;
    case WIRE_MAKE:
        command_make(j);
        return;
    case WIRE_LINK:
        command_link(j);
        return;
    case WIRE_UNLINK:
    case WIRE_RMDIR:
        command_remove(j);
        return;
    case WIRE_RENAME:
        command_rename(j);
        return;
    case WIRE_READLINK:
        command_readlink(j);
        return;
    default:
        assert(j->q.op == WIRE_READDIR);
        fuse_command_readdir(j);
    }
}

static void run_files(struct fuse_job *j) may_yield
{
    switch (j->q.op) {
    case WIRE_OPEN:
        command_open(j);
        return;
    case WIRE_RELEASE:
        command_release(j);
        return;
    case WIRE_FSYNC:
        command_fsync(j);
        return;
    case WIRE_LOCK_TEST:
    case WIRE_LOCK_FLUSH:
        fuse_command_lock_test(j);
        return;
    case WIRE_ALLOCATE:
        command_allocate(j);
        return;
    case WIRE_SEEK:
        command_seek(j);
        return;
    default:
        assert(j->q.op == WIRE_COPY);
        command_copy(j);
    }
}

static void run_attributes(struct fuse_job *j) may_yield
{
    switch (j->q.op) {
    case WIRE_GETATTR:
        command_getattr(j);
        return;
    case WIRE_SETATTR:
        command_setattr(j);
        return;
    case WIRE_STATFS:
        command_statfs(j);
        return;
    case WIRE_ACCESS:
        command_access(j);
        return;
    case WIRE_XATTR_GET:
    case WIRE_XATTR_LIST:
        command_xattr_read(j);
        return;
    default:
        assert(j->q.op == WIRE_XATTR_SET || j->q.op == WIRE_XATTR_REMOVE);
        command_xattr_change(j);
    }
}

/* Those that the leader handles itself: in order, with the stream, or on a fiber of their own. */
MUST_CHECK static bool run_leading(struct fuse_job *j) may_yield
{
    switch (j->q.op) {
    case WIRE_REOPEN:
        command_reopen(j);
        return true;
    case WIRE_REOPEN_DONE:
        command_reopen_done(j);
        return true;
    case WIRE_BYE:
        command_bye(j);
        return true;
    case WIRE_INTERRUPT:
        fuse_command_interrupt(j);
        return true;
    case WIRE_WRITE:
        fuse_command_write(j);
        return true;
    case WIRE_LOCK_SET:
        fuse_command_lock_set(j);
        return true;
    default:
        return false;
    }
}

static void refuse(struct fuse_job *j) may_yield
{
    struct fuse_connection *c = j->connection;
    if (j->q.op == WIRE_WRITE &&
        fuse_connection_discard(c, j->q.len - sizeof(struct wire_request) - sizeof(struct wire_range)) != 0) {
        c->closing = true;
        fuse_connection_drop(c, j);
        return;
    }
    fuse_command_end(j, j->q.op == 0 || j->q.op >= WIRE_OP_END ? ERR_UNSUPPORTED : ERR_INVALID);
}

void fuse_command_run(struct fuse_job *j, bool well_formed)
{
    if (!well_formed) {
        refuse(j);
        return;
    }
    if (j->q.op != WIRE_WRITE && answered_before(j))
        return;
    if (run_leading(j))
        return;
    if (j->q.op == WIRE_READ) {
        fuse_command_read(j);
        return;
    }
    fuse_connection_yield_lead(j->connection);
    switch (j->q.op) {
    case WIRE_GETATTR:
    case WIRE_SETATTR:
    case WIRE_STATFS:
    case WIRE_ACCESS:
    case WIRE_XATTR_GET:
    case WIRE_XATTR_LIST:
    case WIRE_XATTR_SET:
    case WIRE_XATTR_REMOVE:
        run_attributes(j);
        return;
    case WIRE_LOOKUP:
    case WIRE_MAKE:
    case WIRE_LINK:
    case WIRE_UNLINK:
    case WIRE_RMDIR:
    case WIRE_RENAME:
    case WIRE_READLINK:
    case WIRE_READDIR:
        run_names(j);
        return;
    default:
        run_files(j);
    }
}
