/* SPDX-License-Identifier: Apache-2.0 */
/* The node's replies, in the receiver: each goes to the kernel with one call. Lengths are checked: a reply
 * that is too short ends the connection, it does not end us. */
#include "protocols/fuse/fuse_client_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

struct reply {
    const uint8_t *bytes; /* behind the header */
    uint32_t len;
};

static struct timespec time_of(struct le64 ns)
{
    int64_t n = (int64_t)le64_get(ns), s = n / 1000000000, rest = n % 1000000000;
    if (rest < 0) {
        s--;
        rest += 1000000000;
    }
    return (struct timespec){.tv_sec = s, .tv_nsec = rest};
}

static void stat_of(const struct wire_attr *a, struct stat *ret)
{
    *ret = (struct stat){
        .st_ino = le64_get(a->ino),
        .st_mode = le32_get(a->mode),
        .st_nlink = le32_get(a->nlink),
        .st_uid = le32_get(a->uid),
        .st_gid = le32_get(a->gid),
        .st_rdev = makedev(le32_get(a->rdev_major), le32_get(a->rdev_minor)),
        .st_size = (off_t)MIN(le64_get(a->size), (uint64_t)INT64_MAX),
        .st_blksize = 4096,
        .st_blocks = (blkcnt_t)(le64_get(a->used_bytes) / 512),
        .st_atim = time_of(a->atime_ns),
        .st_mtim = time_of(a->mtime_ns),
        .st_ctim = time_of(a->ctime_ns),
    };
}

MUST_CHECK static bool attr_of(const struct reply *p, struct wire_attr *ret)
{
    if (p->len < sizeof(*ret))
        return false;
    memcpy(ret, p->bytes, sizeof(*ret));
    return le64_get(ret->ino) != 0;
}

static void entry_of(const struct client *c, const struct wire_attr *a, struct fuse_entry_param *ret)
{
    *ret = (struct fuse_entry_param){
        .ino = le64_get(a->ino),
        .generation = le32_get(a->generation),
        .attr_timeout = c->options.attr_timeout_ms / 1000.0,
        .entry_timeout = c->options.entry_timeout_ms / 1000.0,
    };
    stat_of(a, &ret->attr);
}

/* Before the kernel is told: it may forget at once. */
static void looked_up(struct client *c, uint64_t ino)
{
    pthread_mutex_lock(&c->lock);
    client_node_looked_up(c, ino);
    pthread_mutex_unlock(&c->lock);
}

static void not_looked_up(struct client *c, uint64_t ino)
{
    pthread_mutex_lock(&c->lock);
    client_node_forget(c, ino, 1);
    pthread_mutex_unlock(&c->lock);
}

/* ---- Opens ---- */

static void opened(struct client *c, uint64_t ino, uint32_t kind)
{
    pthread_mutex_lock(&c->lock);
    struct fuse_node *n = fuse_table_get(&c->nodes, ino);
    if (n == NULL)
        abort(); /* it would be lost with the next connect */
    n->opens[kind]++;
    pthread_mutex_unlock(&c->lock);
}

/* The kernel did not take the open: its process was killed. */
static void not_opened(struct client *c, uint64_t ino, uint32_t kind)
{
    struct fuse_request q = {.op = WIRE_RELEASE, .ino = ino, .open = {.flags = kind, .count = 1}};
    struct client_request *r = client_request_new(c, NULL, &q, NULL, 0);
    pthread_mutex_lock(&c->lock);
    struct fuse_node *n = fuse_table_find(&c->nodes, ino);
    if (n != NULL && n->opens[kind] > 0) {
        n->opens[kind]--;
        fuse_table_drop(&c->nodes, n);
    }
    if (r != NULL)
        list_append(&c->unsent, &r->unsent); /* goes with whatever is sent next */
    pthread_mutex_unlock(&c->lock);
}

static bool reply_open(struct client *c, struct client_request *r)
{
    opened(c, r->ino, r->open);
    r->file.keep_cache = true; /* what changes is invalidated */
    r->file.fh = 0;
    if (fuse_reply_open(r->req, &r->file) == -ENOENT)
        not_opened(c, r->ino, r->open);
    return true;
}

static bool reply_entry(struct client *c, struct client_request *r, const struct reply *p)
{
    struct wire_attr a;
    struct fuse_entry_param e;
    if (!attr_of(p, &a))
        return false;
    entry_of(c, &a, &e);
    looked_up(c, e.ino);
    int err;
    if (r->creates) {
        opened(c, e.ino, r->open);
        r->file.keep_cache = true;
        err = fuse_reply_create(r->req, &e, &r->file);
        if (err == -ENOENT)
            not_opened(c, e.ino, r->open);
    } else {
        err = fuse_reply_entry(r->req, &e);
    }
    if (err == -ENOENT)
        not_looked_up(c, e.ino);
    return true;
}

static bool reply_attr(struct client *c, struct client_request *r, const struct reply *p)
{
    struct wire_attr a;
    struct stat st;
    if (!attr_of(p, &a))
        return false;
    stat_of(&a, &st);
    fuse_reply_attr(r->req, &st, c->options.attr_timeout_ms / 1000.0);
    return true;
}

/* ---- Directories ---- */

/* One name into the kernel's buffer; how much it took, 0: no room. */
static size_t add_name(struct client *c, struct client_request *r, char *to, size_t room,
                       const struct wire_dirent *d, const struct wire_attr *a, const char *name)
{
    struct fuse_entry_param e = {0};
    uint64_t cookie = le64_get(d->cookie);
    size_t took;
    if (!r->plus) {
        struct stat st = {.st_ino = le64_get(d->ino), .st_mode = (mode_t)d->type << 12};
        took = fuse_add_direntry(r->req, to, room, name, &st, (off_t)cookie);
        return took <= room ? took : 0;
    }
    bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    if (a != NULL)
        entry_of(c, a, &e);
    if (a == NULL || dots) { /* only the name: the kernel looks it up when it wants to know */
        e.ino = 0;
        e.attr.st_ino = le64_get(d->ino);
        e.attr.st_mode = (mode_t)d->type << 12;
    }
    took = fuse_add_direntry_plus(r->req, to, room, name, &e, (off_t)cookie);
    if (took > room)
        return 0;
    if (e.ino != 0)
        looked_up(c, e.ino);
    return took;
}

static bool reply_names(struct client *c, struct client_request *r, const struct reply *p)
{
    const uint8_t *at = p->bytes, *end = p->bytes + p->len;
    size_t used = 0;
    char name[WIRE_NAME_MAX + 1];
    char *out = malloc(MAX(r->size, 1u));
    bool good = true;
    if (out == NULL) {
        fuse_reply_err(r->req, ENOMEM);
        return true;
    }
    while (at < end) {
        struct wire_dirent d;
        struct wire_attr a;
        good = (size_t)(end - at) >= sizeof(d);
        if (!good)
            break;
        memcpy(&d, at, sizeof(d));
        at += sizeof(d);
        uint32_t name_len = le16_get(d.name_len);
        good = name_len > 0 && name_len <= WIRE_NAME_MAX &&
               (size_t)(end - at) >= (d.has_attr ? sizeof(a) : 0) + name_len;
        if (!good)
            break;
        if (d.has_attr) {
            memcpy(&a, at, sizeof(a));
            at += sizeof(a);
        }
        memcpy(name, at, name_len);
        name[name_len] = '\0';
        at += name_len;
        size_t n = add_name(c, r, out + used, r->size - used, &d, d.has_attr ? &a : NULL, name);
        if (n == 0)
            break;
        used += n;
    }
    if (good)
        fuse_reply_buf(r->req, out, used);
    free(out);
    return good;
}

/* ---- The rest ---- */

static bool reply_statfs(struct client_request *r, const struct reply *p)
{
    struct wire_statfs w;
    if (p->len < sizeof(w))
        return false;
    memcpy(&w, p->bytes, sizeof(w));
    struct statvfs s = {
        .f_bsize = 4096,
        .f_frsize = 4096,
        .f_blocks = le64_get(w.total_bytes) / 4096,
        .f_bfree = le64_get(w.free_bytes) / 4096,
        .f_bavail = le64_get(w.available_bytes) / 4096,
        .f_files = le64_get(w.total_inodes),
        .f_ffree = le64_get(w.free_inodes),
        .f_favail = le64_get(w.available_inodes),
        .f_namemax = WIRE_NAME_MAX,
    };
    fuse_reply_statfs(r->req, &s);
    return true;
}

static bool reply_lock(struct client_request *r, const struct reply *p)
{
    struct wire_lock w;
    if (p->len < sizeof(w))
        return false;
    memcpy(&w, p->bytes, sizeof(w));
    uint32_t type = le32_get(w.type);
    struct flock l = {
        .l_type = type == WIRE_LOCK_NONE    ? F_UNLCK
                  : type == WIRE_LOCK_WRITE ? F_WRLCK
                                            : F_RDLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)le64_get(w.start),
        .l_len = (off_t)le64_get(w.len),
        .l_pid = (pid_t)le32_get(w.pid),
    };
    fuse_reply_lock(r->req, &l);
    return true;
}

static bool reply_link_target(struct client_request *r, const struct reply *p)
{
    char target[WIRE_TARGET_MAX + 1];
    if (p->len > WIRE_TARGET_MAX)
        return false;
    memcpy(target, p->bytes, p->len);
    target[p->len] = '\0';
    fuse_reply_readlink(r->req, target);
    return true;
}

static bool reply_count(struct client_request *r, const struct reply *p)
{
    struct wire_count w;
    if (p->len < sizeof(w))
        return false;
    memcpy(&w, p->bytes, sizeof(w));
    if (r->op == WIRE_SEEK)
        fuse_reply_lseek(r->req, (off_t)le64_get(w.value));
    else if (r->op == WIRE_COPY)
        fuse_reply_write(r->req, (size_t)le64_get(w.value));
    else if (r->op == WIRE_WRITE)
        fuse_reply_write(r->req, r->size);
    else
        fuse_reply_xattr(r->req, (size_t)le64_get(w.value));
    return true;
}

static void reply_error(struct client *c, struct client_request *r, int error)
{
    if (r->op == WIRE_LOOKUP && error == ENOENT) {
        /* That there is none may be kept, too. */
        struct fuse_entry_param e = {.entry_timeout = c->options.entry_timeout_ms / 1000.0};
        fuse_reply_entry(r->req, &e);
        return;
    }
    fuse_reply_err(r->req, error);
}

MUST_CHECK static bool reply_success(struct client *c, struct client_request *r, const struct reply *p)
{
    switch (r->op) {
    case WIRE_LOOKUP:
    case WIRE_MAKE:
    case WIRE_LINK:
        return reply_entry(c, r, p);
    case WIRE_GETATTR:
    case WIRE_SETATTR:
        return reply_attr(c, r, p);
    case WIRE_OPEN:
        return reply_open(c, r);
    case WIRE_READ:
        fuse_reply_buf(r->req, (const char *)p->bytes, p->len);
        return true;
    case WIRE_READDIR:
        return reply_names(c, r, p);
    case WIRE_READLINK:
        return reply_link_target(r, p);
    case WIRE_STATFS:
        return reply_statfs(r, p);
    case WIRE_LOCK_TEST:
        return reply_lock(r, p);
    case WIRE_WRITE:
    case WIRE_SEEK:
    case WIRE_COPY:
        return reply_count(r, p);
    case WIRE_XATTR_GET:
    case WIRE_XATTR_LIST:
        if (r->size == 0)
            return reply_count(r, p);
        fuse_reply_buf(r->req, (const char *)p->bytes, MIN(p->len, r->size));
        return true;
    default:
        fuse_reply_err(r->req, 0);
        return true;
    }
}

/* ---- Notes ---- */

MUST_CHECK static bool note(struct client *c, uint32_t kind, const struct reply *p)
{
    struct client_note n = {.kind = kind};
    if (kind == WIRE_NOTE_ALL) {
        client_note_add(c, &n, NULL, 0);
        return true;
    }
    if (kind == WIRE_NOTE_INODE) {
        struct wire_note_inode w;
        if (p->len < sizeof(w))
            return false;
        memcpy(&w, p->bytes, sizeof(w));
        n.ino = le64_get(w.ino);
        n.offset = le64_get(w.offset);
        n.len = le64_get(w.len);
        n.data = le32_get(w.data) != 0;
        client_note_add(c, &n, NULL, 0);
        return true;
    }
    struct wire_note_entry w;
    if (kind != WIRE_NOTE_ENTRY || p->len <= sizeof(w) || p->len - sizeof(w) > WIRE_NAME_MAX)
        return false;
    memcpy(&w, p->bytes, sizeof(w));
    n.ino = le64_get(w.dir);
    n.child = le64_get(w.child);
    n.removed = le32_get(w.removed) != 0;
    client_note_add(c, &n, (const char *)p->bytes + sizeof(w), p->len - (uint32_t)sizeof(w));
    return true;
}

bool client_reply(struct client *c, const uint8_t *bytes, uint32_t len)
{
    struct wire_reply h;
    assert(len >= sizeof(h));
    memcpy(&h, bytes, sizeof(h));
    struct reply p = {bytes + sizeof(h), len - (uint32_t)sizeof(h)};
    uint32_t error = le32_get(h.error);
    if (le64_get(h.unique) == 0)
        return note(c, error, &p);
    struct client_request *r = client_request_take(c, le64_get(h.unique));
    if (r == NULL)
        return true; /* its process did not wait for it */
    bool good = true;
    if (r->req == NULL)
        good = true;
    else if (error != 0)
        reply_error(c, r, error < 4096 ? (int)error : EIO);
    else
        good = reply_success(c, r, &p);
    if (!good)
        fuse_reply_err(r->req, EIO);
    client_request_free(c, r);
    return good;
}
