/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that carry much: reading, writing, directories; and locks, which may wait for long. */
#include "protocols/fuse/fuse_internal.h"
#include "runtime/error.h"

/* ---- Reading ---- */

/* What lies behind the first piece (fs_piece_len): less than a block, copied. */
MUST_CHECK static int read_rest(struct fuse_job *j, uint64_t offset, uint32_t len) may_yield
{
    struct page_vec v;
    struct fs_attr a;
    uint32_t got;
    bool eof;
    assert(len < BLOCK_SIZE);
    int err = fuse_job_tail(j, len);
    if (err == 0)
        err = fs_read(j->connection->fs->fs, &j->rq, j->q.ino, offset, len, &v, &got, &eof, &a);
    if (err != 0)
        return err;
    assert(got <= len && offset % BLOCK_SIZE == 0);
    if (got > 0 && v.runs[0].page != NULL)
        memcpy(j->tail, v.runs[0].page->data, got);
    else
        memset(j->tail, 0, got);
    j->tail_len = got;
    page_vec_put(&v);
    return 0;
}

void fuse_command_read(struct fuse_job *j)
{
    struct fuse_connection *c = j->connection;
    uint64_t offset = j->q.range.offset;
    uint32_t len = j->q.range.len, got = 0;
    struct fs_attr a;
    bool eof;
    fuse_connection_yield_lead(c);
    if (len == 0) {
        fuse_command_end(j, 0);
        return;
    }
    uint32_t piece = fs_piece_len(offset, len);
    int err = fs_read(c->fs->fs, &j->rq, j->q.ino, offset, piece, &j->vec, &got, &eof, &a);
    if (err == 0) {
        j->holds_pages = true;
        j->skip = (uint32_t)(offset % BLOCK_SIZE);
        j->data_len = got;
        if (got == piece && piece < len && !eof)
            err = read_rest(j, offset + piece, len - piece);
    }
    fuse_command_end(j, err);
}

/* ---- Writing ---- */

/* Receives a piece of the payload and, with all of it there, lets others read on. *ret_received: it was. */
MUST_CHECK static int write_piece(struct fuse_job *j, uint64_t offset, uint32_t len, bool last,
                                  uint32_t flags, uint64_t *ret_offset, bool *ret_received) may_yield
{
    struct fuse_connection *c = j->connection;
    struct fs_wcc w = {0};
    *ret_received = false;
    int err = fuse_connection_receive(c, offset, len, &j->vec);
    if (err != 0)
        return err;
    *ret_received = true;
    j->holds_pages = true;
    if (last)
        fuse_connection_yield_lead(c);
    err = fs_write(c->fs->fs, &j->rq, j->q.ino, offset, len, &j->vec, flags, ret_offset, &w);
    page_vec_put(&j->vec);
    j->holds_pages = false;
    return err;
}

static void write_lost(struct fuse_job *j)
{
    j->connection->closing = true; /* the stream is lost, or out of step */
    fuse_connection_drop(j->connection, j);
}

/* Not received: reads the rest of the payload away and answers. */
static void write_failed(struct fuse_job *j, uint32_t left, int err) may_yield
{
    if (fuse_connection_discard(j->connection, left) != 0) {
        write_lost(j);
        return;
    }
    fuse_command_end(j, err);
}

/* Was the append made, or its beginning, by a node that died before it answered? Then it is written again
 * where it began: the end of the file has moved, and how much of it was written is not known. */
static bool appended_before(const struct fuse_job *j, uint64_t *ret_offset)
{
    struct fs_reply r;
    if (!j->q.again || j->rq.reply == NULL || fs_reply_find(j->connection->fs->fs, j->rq.reply, &r) != 0)
        return false;
    *ret_offset = r.ino;
    return true;
}

void fuse_command_write(struct fuse_job *j)
{
    uint64_t offset = j->q.range.offset, at = offset;
    uint32_t len = j->q.range.len, done = 0;
    uint32_t flags = FS_WRITE_OPEN | (j->q.range.flags & WIRE_WRITE_APPEND ? FS_WRITE_APPEND : 0);
    int err = 0;
    if (len == 0) {
        fuse_job_count(j, offset);
        fuse_command_end(j, 0);
        return;
    }
    if (appended_before(j, &offset)) {
        at = offset;
        flags &= ~(uint32_t)FS_WRITE_APPEND;
        j->rq.reply = NULL;
    }
    while (done < len) {
        uint32_t n = fs_piece_len(offset + done, len - done);
        bool last = done + n == len, received;
        uint64_t where;
        err = write_piece(j, offset + done, n, last, flags, &where, &received);
        if (!received && err != ERR_NO_MEMORY) {
            write_lost(j);
            return;
        }
        if (!received || (err != 0 && !last)) { /* we lead still */
            write_failed(j, len - done - (received ? n : 0), err);
            return;
        }
        if (err != 0)
            break;
        if (done == 0)
            at = offset = where; /* what was appended goes on behind its first piece */
        flags &= ~(uint32_t)FS_WRITE_APPEND;
        j->rq.reply = NULL;
        done += n;
    }
    if (err == 0)
        fuse_job_count(j, at);
    fuse_command_end(j, err);
}

/* ---- Directories ---- */

struct emission {
    struct fuse_job *job;
    uint32_t room; /* of the kernel's buffer on the other side */
};

static bool emit(void *ctx, const struct fs_dirent *e)
{
    struct emission *m = ctx;
    struct fuse_job *j = m->job;
    uint32_t cost = fuse_dirent_cost(e->name_len, j->q.readdir.attributes);
    uint32_t attr_len = e->attr != NULL ? (uint32_t)sizeof(struct wire_attr) : 0;
    uint32_t len = (uint32_t)sizeof(struct wire_dirent) + attr_len + e->name_len;
    if (cost > m->room || len > j->tail_size - j->tail_len)
        return false;
    m->room -= cost;
    struct wire_dirent d = {.ino = le64_make(e->ino),
                            .cookie = le64_make(e->cookie),
                            .type = e->type,
                            .has_attr = e->attr != NULL,
                            .name_len = le16_make(e->name_len)};
    uint8_t *at = j->tail + j->tail_len;
    memcpy(at, &d, sizeof(d));
    at += sizeof(d);
    if (e->attr != NULL) {
        struct wire_attr a;
        fuse_attr_encode(e->attr, &a);
        memcpy(at, &a, sizeof(a));
        at += sizeof(a);
    }
    memcpy(at, e->name, e->name_len);
    j->tail_len += len;
    return true;
}

void fuse_command_readdir(struct fuse_job *j)
{
    uint32_t room = MIN(j->q.readdir.len, WIRE_READDIR_MAX);
    struct emission m = {.job = j, .room = room};
    struct fs_attr dir;
    bool eof;
    int err = fuse_job_tail(j, room);
    if (err == 0)
        err = fs_readdir(j->connection->fs->fs, &j->rq, j->q.ino, j->q.readdir.cookie,
                         j->q.readdir.attributes, emit, &m, &eof, &dir);
    fuse_command_end(j, err);
}

/* ---- Locks ---- */

static void lock_make(const struct fuse_job *j, struct fs_lock *l)
{
    const struct fuse_session *s = j->connection->session;
    struct le64 owner = le64_make(j->q.op == WIRE_LOCK_FLUSH ? j->q.lock_flush.owner : j->q.lock.owner);
    *l = (struct fs_lock){.protocol = j->q.lock.flock ? FS_LOCK_FLOCK : FS_LOCK_FUSE,
                          .start = j->q.lock.start,
                          .len = j->q.lock.len,
                          .exclusive = j->q.lock.type == WIRE_LOCK_WRITE,
                          .pid = j->q.lock.pid,
                          .owner_len = sizeof(owner),
                          .client_len = FUSE_CLIENT_TEXT - 1};
    memcpy(l->owner, &owner, sizeof(owner));
    memcpy(l->client, s->client, FUSE_CLIENT_TEXT);
}

static void lock_flush(struct fuse_job *j) may_yield
{
    struct le64 owner = le64_make(j->q.lock_flush.owner);
    int err = fs_lock_clear_client(j->connection->fs->fs, FS_LOCK_FUSE, j->connection->session->client,
                                   j->q.ino, owner.b, sizeof(owner));
    fuse_command_end(j, err);
}

void fuse_command_lock_test(struct fuse_job *j)
{
    if (j->q.op == WIRE_LOCK_FLUSH) {
        lock_flush(j);
        return;
    }
    struct fs_lock l, other = {0};
    lock_make(j, &l);
    int err = fs_lock_test(j->connection->fs->fs, &j->rq, j->q.ino, &l, &other);
    bool conflict = err == ERR_FS_LOCKED;
    if (conflict)
        err = 0;
    if (err == 0) {
        uint32_t type = other.exclusive ? WIRE_LOCK_WRITE : WIRE_LOCK_READ;
        struct wire_lock w = {.start = le64_make(conflict ? other.start : j->q.lock.start),
                              .len = le64_make(conflict ? other.len : j->q.lock.len),
                              .pid = le32_make(other.pid),
                              .type = le32_make(conflict ? type : WIRE_LOCK_NONE)};
        fuse_job_bytes(j, &w, sizeof(w));
    }
    fuse_command_end(j, err);
}

static int lock_set(struct fuse_job *j, uint64_t until_ns) may_yield
{
    struct fs *fs = j->connection->fs->fs;
    struct fs_lock l, other;
    lock_make(j, &l);
    if (j->q.lock.type == WIRE_LOCK_NONE)
        return fs_lock_clear(fs, &j->rq, j->q.ino, &l);
    return fs_lock_set(fs, &j->rq, j->q.ino, &l, j->q.again, until_ns, &other);
}

static void lock_wait_run(void *arg) may_yield
{
    struct fuse_job *j = arg;
    struct fuse_connection *c = j->connection;
    j->waiting = fiber_self();
    int err = c->closing || j->interrupted ? ERR_CANCELLED : lock_set(j, DEADLINE_NEVER);
    j->waiting = NULL;
    c->lock_waits--;
    if (err == ERR_CANCELLED && c->closing)
        fuse_connection_drop(c, j); /* it is asked for again when the mount is back */
    else
        fuse_command_end(j, err);
    fuse_connection_put(c);
}

void fuse_command_lock_set(struct fuse_job *j)
{
    struct fuse_connection *c = j->connection;
    if (!j->q.lock.wait || j->q.lock.type == WIRE_LOCK_NONE) {
        fuse_connection_yield_lead(c);
        fuse_command_end(j, lock_set(j, 0));
        return;
    }
    if (c->lock_waits >= c->fs->server->limits.lock_waits) {
        fuse_command_end(j, ERR_FS_NO_LOCKS);
        return;
    }
    fuse_job_uncount(j);
    if (fiber_spawn("fuse lock", lock_wait_run, j) != 0) {
        fuse_command_end(j, ERR_FS_NO_LOCKS);
        return;
    }
    c->lock_waits++;
    fuse_connection_get(c);
}

void fuse_command_interrupt(struct fuse_job *j)
{
    struct fuse_connection *c = j->connection;
    LIST_FOREACH (&c->jobs, l) {
        struct fuse_job *other = CONTAINER_OF(l, struct fuse_job, active);
        if (other->q.unique != j->q.interrupt.unique || other->q.op != WIRE_LOCK_SET)
            continue;
        other->interrupted = true; /* its fiber may not have begun */
        if (other->waiting != NULL)
            fiber_cancel(other->waiting);
    }
    fuse_command_end(j, 0);
}
