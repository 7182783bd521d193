/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/fuse/fuse_wire.h"

/* ---- Hello ---- */

uint32_t fuse_hello_len(const struct wire_hello *h)
{
    uint32_t name_len = le32_get(h->name_len), label_len = le32_get(h->label_len);
    if (memcmp(h->magic, WIRE_MAGIC, WIRE_MAGIC_LEN) != 0)
        return 0;
    if (name_len == 0 || name_len > WIRE_NAME_MAX || label_len > WIRE_LABEL_MAX)
        return 0;
    return (uint32_t)sizeof(*h) + name_len + label_len;
}

bool fuse_hello_decode(const uint8_t *bytes, uint32_t len, struct fuse_hello *ret)
{
    static const uint8_t none[16];
    struct wire_hello h;
    if (len < sizeof(h))
        return false;
    memcpy(&h, bytes, sizeof(h));
    if (fuse_hello_len(&h) != len || memcmp(h.session, none, sizeof(none)) == 0)
        return false;
    memcpy(ret->session, h.session, sizeof(ret->session));
    ret->name = (struct wire_text){(const char *)bytes + sizeof(h), le32_get(h.name_len)};
    ret->label = (struct wire_text){ret->name.bytes + ret->name.len, le32_get(h.label_len)};
    return memchr(ret->name.bytes, '\0', ret->name.len) == NULL &&
           memchr(ret->label.bytes, '\0', ret->label.len) == NULL;
}

/* ---- What each operation looks like ---- */

enum text_kind {
    TEXT_NONE,
    TEXT_NAME, /* the rest is one name */
    TEXT_MAKE, /* name and target, lengths in the arguments */
    TEXT_RENAME,
    TEXT_XATTR,
    TEXT_DATA, /* the rest is a write's data, received elsewhere */
};
struct op_layout {
    uint8_t args; /* bytes of the arguments */
    uint8_t text;
    bool known;
};
static const struct op_layout layouts[WIRE_OP_END] = {
    [WIRE_LOOKUP] = {0, TEXT_NAME, true},
    [WIRE_GETATTR] = {0, TEXT_NONE, true},
    [WIRE_SETATTR] = {sizeof(struct wire_setattr), TEXT_NONE, true},
    [WIRE_READLINK] = {0, TEXT_NONE, true},
    [WIRE_MAKE] = {sizeof(struct wire_make), TEXT_MAKE, true},
    [WIRE_UNLINK] = {0, TEXT_NAME, true},
    [WIRE_RMDIR] = {0, TEXT_NAME, true},
    [WIRE_RENAME] = {sizeof(struct wire_rename), TEXT_RENAME, true},
    [WIRE_LINK] = {sizeof(struct wire_link), TEXT_NAME, true},
    [WIRE_OPEN] = {sizeof(struct wire_open), TEXT_NONE, true},
    [WIRE_RELEASE] = {sizeof(struct wire_open), TEXT_NONE, true},
    [WIRE_READ] = {sizeof(struct wire_range), TEXT_NONE, true},
    [WIRE_WRITE] = {sizeof(struct wire_range), TEXT_DATA, true},
    [WIRE_FSYNC] = {0, TEXT_NONE, true},
    [WIRE_READDIR] = {sizeof(struct wire_readdir), TEXT_NONE, true},
    [WIRE_STATFS] = {0, TEXT_NONE, true},
    [WIRE_XATTR_GET] = {sizeof(struct wire_xattr), TEXT_XATTR, true},
    [WIRE_XATTR_SET] = {sizeof(struct wire_xattr), TEXT_XATTR, true},
    [WIRE_XATTR_LIST] = {sizeof(struct wire_xattr), TEXT_XATTR, true},
    [WIRE_XATTR_REMOVE] = {0, TEXT_NAME, true},
    [WIRE_ACCESS] = {sizeof(struct wire_access), TEXT_NONE, true},
    [WIRE_LOCK_TEST] = {sizeof(struct wire_lock), TEXT_NONE, true},
    [WIRE_LOCK_SET] = {sizeof(struct wire_lock), TEXT_NONE, true},
    [WIRE_LOCK_FLUSH] = {sizeof(struct wire_lock_flush), TEXT_NONE, true},
    [WIRE_ALLOCATE] = {sizeof(struct wire_allocate), TEXT_NONE, true},
    [WIRE_SEEK] = {sizeof(struct wire_seek), TEXT_NONE, true},
    [WIRE_COPY] = {sizeof(struct wire_copy), TEXT_NONE, true},
    [WIRE_INTERRUPT] = {sizeof(struct wire_interrupt), TEXT_NONE, true},
    [WIRE_REOPEN] = {sizeof(struct wire_open), TEXT_NONE, true},
    [WIRE_REOPEN_DONE] = {0, TEXT_NONE, true},
    [WIRE_BYE] = {0, TEXT_NONE, true},
};
static_assert(sizeof(struct wire_setattr) <= FUSE_REQUEST_FIXED_MAX - sizeof(struct wire_request),
              "the longest arguments");
static_assert(FUSE_REQUEST_FIXED_MAX + WIRE_NAME_MAX + WIRE_VALUE_MAX <= WIRE_SMALL_MAX, "all texts fit");

static const struct op_layout *layout_of(uint16_t op)
{
    static const struct op_layout unknown = {0, TEXT_NONE, false};
    return op < WIRE_OP_END ? &layouts[op] : &unknown;
}

uint32_t fuse_request_need(const struct wire_request *h)
{
    uint32_t len = le32_get(h->len);
    const struct op_layout *l = layout_of(le16_get(h->op));
    if (len < sizeof(*h))
        return 0;
    if (l->text == TEXT_DATA) {
        uint32_t fixed = (uint32_t)sizeof(*h) + l->args;
        return len < fixed || len - fixed > WIRE_DATA_MAX ? 0 : fixed;
    }
    return len > WIRE_SMALL_MAX ? 0 : len;
}

/* ---- Decoding ---- */

static bool decode_make(struct fuse_request *q, const uint8_t *args, const char *text, uint32_t text_len)
{
    struct wire_make a;
    memcpy(&a, args, sizeof(a));
    q->make.mode = le32_get(a.mode);
    q->make.umask = le32_get(a.umask);
    q->make.rdev_major = le32_get(a.rdev_major);
    q->make.rdev_minor = le32_get(a.rdev_minor);
    q->make.flags = le32_get(a.flags);
    q->make.open = le32_get(a.open);
    q->name = (struct wire_text){text, le32_get(a.name_len)};
    if (q->name.len == 0 || q->name.len > WIRE_NAME_MAX || q->name.len > text_len)
        return false;
    q->second = (struct wire_text){text + q->name.len, le32_get(a.target_len)};
    return q->second.len == text_len - q->name.len && q->second.len <= WIRE_TARGET_MAX &&
           !(q->make.flags & ~WIRE_MAKE_ALL) && !(q->make.open & ~(WIRE_OPEN_READ | WIRE_OPEN_WRITE));
}

static bool decode_rename(struct fuse_request *q, const uint8_t *args, const char *text, uint32_t text_len)
{
    struct wire_rename a;
    memcpy(&a, args, sizeof(a));
    q->rename.to_dir = le64_get(a.to_dir);
    q->rename.flags = le32_get(a.flags);
    q->name = (struct wire_text){text, le32_get(a.name_len)};
    if (q->name.len == 0 || q->name.len > WIRE_NAME_MAX || q->name.len > text_len)
        return false;
    q->second = (struct wire_text){text + q->name.len, le32_get(a.to_len)};
    return q->second.len == text_len - q->name.len && q->second.len > 0 && q->second.len <= WIRE_NAME_MAX &&
           q->rename.flags <= WIRE_RENAME_EXCHANGE;
}

static bool decode_xattr(struct fuse_request *q, const uint8_t *args, const char *text, uint32_t text_len)
{
    struct wire_xattr a;
    memcpy(&a, args, sizeof(a));
    uint32_t value_len = le32_get(a.value_len);
    q->xattr.how = le32_get(a.how);
    q->xattr.max = value_len;
    q->name = (struct wire_text){text, le32_get(a.name_len)};
    if (q->name.len > text_len || q->name.len > WIRE_NAME_MAX || value_len > WIRE_VALUE_MAX)
        return false;
    if ((q->name.len == 0) != (q->op == WIRE_XATTR_LIST) || q->xattr.how > WIRE_XATTR_REPLACE)
        return false;
    q->second = (struct wire_text){text + q->name.len, text_len - q->name.len};
    if (q->name.len > 0 && memchr(text, 0, q->name.len) != NULL)
        return false;
    return q->second.len == (q->op == WIRE_XATTR_SET ? value_len : 0);
}

static bool decode_setattr(struct fuse_request *q, const uint8_t *args)
{
    struct wire_setattr a;
    memcpy(&a, args, sizeof(a));
    q->setattr.valid = le32_get(a.valid);
    q->setattr.mode = le32_get(a.mode);
    q->setattr.uid = le32_get(a.uid);
    q->setattr.gid = le32_get(a.gid);
    q->setattr.size = le64_get(a.size);
    q->setattr.atime_ns = (int64_t)le64_get(a.atime_ns);
    q->setattr.mtime_ns = (int64_t)le64_get(a.mtime_ns);
    q->setattr.ctime_ns = (int64_t)le64_get(a.ctime_ns);
    return !(q->setattr.valid & ~WIRE_SET_ALL);
}

static bool decode_open(struct fuse_request *q, const uint8_t *args)
{
    struct wire_open a;
    memcpy(&a, args, sizeof(a));
    q->open.flags = le32_get(a.flags);
    q->open.count = le32_get(a.count);
    uint32_t allowed = WIRE_OPEN_READ | WIRE_OPEN_WRITE;
    if (q->op == WIRE_OPEN)
        allowed |= WIRE_OPEN_TRUNCATE;
    if (q->open.count == 0 || (q->op != WIRE_REOPEN && q->open.count != 1))
        return false;
    return !(q->open.flags & ~allowed) && (q->open.flags & (WIRE_OPEN_READ | WIRE_OPEN_WRITE));
}

static bool decode_range(struct fuse_request *q, const uint8_t *args)
{
    struct wire_range a;
    memcpy(&a, args, sizeof(a));
    q->range.offset = le64_get(a.offset);
    q->range.len = le32_get(a.len);
    q->range.flags = le32_get(a.flags);
    if (q->range.len > WIRE_DATA_MAX || q->range.offset > (uint64_t)INT64_MAX - q->range.len)
        return false;
    if (q->op == WIRE_READ)
        return q->range.flags == 0;
    return q->len - sizeof(struct wire_request) - sizeof(a) == q->range.len &&
           !(q->range.flags & ~WIRE_WRITE_ALL);
}

static bool decode_lock(struct fuse_request *q, const uint8_t *args)
{
    struct wire_lock a;
    memcpy(&a, args, sizeof(a));
    uint32_t flags = le32_get(a.flags);
    q->lock.start = le64_get(a.start);
    q->lock.len = le64_get(a.len);
    q->lock.owner = le64_get(a.owner);
    q->lock.pid = le32_get(a.pid);
    q->lock.type = le32_get(a.type);
    q->lock.wait = flags & WIRE_LOCK_WAIT;
    q->lock.flock = flags & WIRE_LOCK_FLOCK;
    uint64_t end;
    return q->lock.type <= WIRE_LOCK_WRITE && !(flags & ~(WIRE_LOCK_WAIT | WIRE_LOCK_FLOCK)) &&
           q->lock.start <= INT64_MAX && !__builtin_add_overflow(q->lock.start, q->lock.len, &end);
}

static bool decode_readdir(struct fuse_request *q, const uint8_t *args)
{
    struct wire_readdir a;
    memcpy(&a, args, sizeof(a));
    q->readdir.cookie = le64_get(a.cookie);
    q->readdir.len = le32_get(a.len);
    q->readdir.attributes = le32_get(a.attributes) != 0;
    return le32_get(a.attributes) <= 1;
}

static bool decode_allocate(struct fuse_request *q, const uint8_t *args)
{
    struct wire_allocate a;
    memcpy(&a, args, sizeof(a));
    q->allocate.offset = le64_get(a.offset);
    q->allocate.len = le64_get(a.len);
    q->allocate.mode = le32_get(a.mode);
    return q->allocate.offset <= INT64_MAX && q->allocate.len > 0 &&
           q->allocate.len <= (uint64_t)INT64_MAX - q->allocate.offset;
}

static bool decode_copy(struct fuse_request *q, const uint8_t *args)
{
    struct wire_copy a;
    memcpy(&a, args, sizeof(a));
    q->copy.offset = le64_get(a.offset);
    q->copy.to = le64_get(a.to);
    q->copy.to_offset = le64_get(a.to_offset);
    q->copy.len = le64_get(a.len);
    return q->copy.offset <= INT64_MAX && q->copy.to_offset <= INT64_MAX && q->copy.len <= INT64_MAX;
}

/* Arguments of eight bytes or less. */
static bool decode_short(struct fuse_request *q, const uint8_t *args)
{
    struct le64 number = {{0}};
    memcpy(&number, args, layout_of(q->op)->args);
    switch (q->op) {
    case WIRE_LINK:
        q->link.dir = le64_get(number);
        return true;
    case WIRE_ACCESS:
        q->access.mask = (uint32_t)le64_get(number);
        return q->access.mask <= 7;
    case WIRE_LOCK_FLUSH:
        q->lock_flush.owner = le64_get(number);
        return true;
    default:
        assert(q->op == WIRE_INTERRUPT);
        q->interrupt.unique = le64_get(number);
        return true;
    }
}

static bool decode_seek(struct fuse_request *q, const uint8_t *args)
{
    struct wire_seek a;
    memcpy(&a, args, sizeof(a));
    q->seek.offset = le64_get(a.offset);
    q->seek.hole = le32_get(a.hole) != 0;
    return le32_get(a.hole) <= 1 && q->seek.offset <= INT64_MAX;
}

static bool decode_args(struct fuse_request *q, const uint8_t *args, const char *text, uint32_t text_len)
{
    switch (q->op) {
    case WIRE_SETATTR:
        return decode_setattr(q, args);
    case WIRE_MAKE:
        return decode_make(q, args, text, text_len);
    case WIRE_RENAME:
        return decode_rename(q, args, text, text_len);
    case WIRE_OPEN:
    case WIRE_RELEASE:
    case WIRE_REOPEN:
        return decode_open(q, args);
    case WIRE_READ:
    case WIRE_WRITE:
        return decode_range(q, args);
    case WIRE_READDIR:
        return decode_readdir(q, args);
    case WIRE_XATTR_GET:
    case WIRE_XATTR_SET:
    case WIRE_XATTR_LIST:
        return decode_xattr(q, args, text, text_len);
    case WIRE_LOCK_TEST:
    case WIRE_LOCK_SET:
        return decode_lock(q, args);
    case WIRE_ALLOCATE:
        return decode_allocate(q, args);
    case WIRE_SEEK:
        return decode_seek(q, args);
    case WIRE_COPY:
        return decode_copy(q, args);
    case WIRE_LINK:
    case WIRE_ACCESS:
    case WIRE_LOCK_FLUSH:
    case WIRE_INTERRUPT:
        return decode_short(q, args);
    default:
        return true;
    }
}

bool fuse_request_decode(const uint8_t *bytes, uint32_t len, struct fuse_request *ret)
{
    struct wire_request h;
    assert(len >= sizeof(h));
    memcpy(&h, bytes, sizeof(h));
    const struct op_layout *l = layout_of(le16_get(h.op));
    memset(ret, 0, sizeof(*ret));
    ret->len = le32_get(h.len);
    ret->op = le16_get(h.op);
    ret->again = le16_get(h.flags) & WIRE_AGAIN;
    ret->unique = le64_get(h.unique);
    ret->ino = le64_get(h.ino);
    ret->uid = le32_get(h.uid);
    ret->gid = le32_get(h.gid);
    if (!l->known || (le16_get(h.flags) & ~WIRE_AGAIN) || len < sizeof(h) + l->args)
        return false;
    const uint8_t *args = bytes + sizeof(h);
    const char *text = (const char *)args + l->args;
    uint32_t text_len = len - (uint32_t)sizeof(h) - l->args;
    if (l->text == TEXT_NAME) {
        ret->name = (struct wire_text){text, text_len};
        if (text_len == 0 || text_len > WIRE_NAME_MAX)
            return false;
    }
    if ((l->text == TEXT_NONE || l->text == TEXT_DATA) && text_len != 0)
        return false;
    return decode_args(ret, args, text, text_len);
}

bool fuse_request_once(const struct fuse_request *q)
{
    switch (q->op) {
    case WIRE_MAKE:
    case WIRE_UNLINK:
    case WIRE_RMDIR:
    case WIRE_RENAME:
    case WIRE_LINK:
        return true;
    case WIRE_XATTR_SET:
        return q->xattr.how != 0;
    case WIRE_XATTR_REMOVE:
        return true;
    case WIRE_WRITE:
        return q->range.flags & WIRE_WRITE_APPEND;
    default:
        return false;
    }
}

/* ---- Encoding ---- */

uint32_t fuse_request_size(const struct fuse_request *q)
{
    assert(layout_of(q->op)->known);
    return (uint32_t)sizeof(struct wire_request) + layout_of(q->op)->args + q->name.len + q->second.len;
}

static void put(uint8_t *out, const void *args, size_t len)
{
    memcpy(out, args, len);
}
#define PUT(type, ...) put(out, &(struct type){__VA_ARGS__}, sizeof(struct type))

static void encode_setattr(const struct fuse_request *q, uint8_t *out)
{
    PUT(wire_setattr, .valid = le32_make(q->setattr.valid), .mode = le32_make(q->setattr.mode),
        .uid = le32_make(q->setattr.uid), .gid = le32_make(q->setattr.gid),
        .size = le64_make(q->setattr.size), .atime_ns = le64_make((uint64_t)q->setattr.atime_ns),
        .mtime_ns = le64_make((uint64_t)q->setattr.mtime_ns),
        .ctime_ns = le64_make((uint64_t)q->setattr.ctime_ns));
}

static void encode_make(const struct fuse_request *q, uint8_t *out)
{
    PUT(wire_make, .mode = le32_make(q->make.mode), .umask = le32_make(q->make.umask),
        .rdev_major = le32_make(q->make.rdev_major), .rdev_minor = le32_make(q->make.rdev_minor),
        .flags = le32_make(q->make.flags), .open = le32_make(q->make.open),
        .name_len = le32_make(q->name.len), .target_len = le32_make(q->second.len));
}

static void encode_lock(const struct fuse_request *q, uint8_t *out)
{
    uint32_t flags = (q->lock.wait ? WIRE_LOCK_WAIT : 0) | (q->lock.flock ? WIRE_LOCK_FLOCK : 0);
    PUT(wire_lock, .start = le64_make(q->lock.start), .len = le64_make(q->lock.len),
        .owner = le64_make(q->lock.owner), .pid = le32_make(q->lock.pid), .type = le32_make(q->lock.type),
        .flags = le32_make(flags));
}

static void encode_xattr(const struct fuse_request *q, uint8_t *out)
{
    uint32_t value_len = q->op == WIRE_XATTR_SET ? q->second.len : q->xattr.max;
    PUT(wire_xattr, .name_len = le32_make(q->name.len), .value_len = le32_make(value_len),
        .how = le32_make(q->xattr.how));
}

static void encode_args(const struct fuse_request *q, uint8_t *out)
{
    switch (q->op) {
    case WIRE_SETATTR:
        encode_setattr(q, out);
        return;
    case WIRE_MAKE:
        encode_make(q, out);
        return;
    case WIRE_RENAME:
        PUT(wire_rename, le64_make(q->rename.to_dir), le32_make(q->rename.flags), le32_make(q->name.len),
            le32_make(q->second.len));
        return;
    case WIRE_OPEN:
    case WIRE_RELEASE:
    case WIRE_REOPEN:
        PUT(wire_open, le32_make(q->open.flags), le32_make(q->open.count));
        return;
    case WIRE_READ:
    case WIRE_WRITE:
        PUT(wire_range, le64_make(q->range.offset), le32_make(q->range.len), le32_make(q->range.flags));
        return;
    case WIRE_READDIR:
        PUT(wire_readdir, le64_make(q->readdir.cookie), le32_make(q->readdir.len),
            le32_make(q->readdir.attributes));
        return;
    case WIRE_XATTR_GET:
    case WIRE_XATTR_SET:
    case WIRE_XATTR_LIST:
        encode_xattr(q, out);
        return;
    case WIRE_LOCK_TEST:
    case WIRE_LOCK_SET:
        encode_lock(q, out);
        return;
    case WIRE_ALLOCATE:
        PUT(wire_allocate, le64_make(q->allocate.offset), le64_make(q->allocate.len),
            le32_make(q->allocate.mode));
        return;
    case WIRE_SEEK:
        PUT(wire_seek, le64_make(q->seek.offset), le32_make(q->seek.hole));
        return;
    case WIRE_COPY:
        PUT(wire_copy, le64_make(q->copy.offset), le64_make(q->copy.to), le64_make(q->copy.to_offset),
            le64_make(q->copy.len));
        return;
    case WIRE_LINK:
        PUT(wire_link, le64_make(q->link.dir));
        return;
    case WIRE_ACCESS:
        PUT(wire_access, le32_make(q->access.mask));
        return;
    case WIRE_LOCK_FLUSH:
        PUT(wire_lock_flush, le64_make(q->lock_flush.owner));
        return;
    case WIRE_INTERRUPT:
        PUT(wire_interrupt, le64_make(q->interrupt.unique));
        return;
    default:
        assert(layout_of(q->op)->args == 0);
    }
}

uint32_t fuse_request_encode(const struct fuse_request *q, uint8_t *out)
{
    uint32_t size = fuse_request_size(q), args = layout_of(q->op)->args;
    uint32_t data = q->op == WIRE_WRITE ? q->range.len : 0;
    struct wire_request h = {
        .len = le32_make(size + data),
        .op = le16_make(q->op),
        .flags = le16_make(q->again ? WIRE_AGAIN : 0),
        .unique = le64_make(q->unique),
        .ino = le64_make(q->ino),
        .uid = le32_make(q->uid),
        .gid = le32_make(q->gid),
    };
    memcpy(out, &h, sizeof(h));
    encode_args(q, out + sizeof(h));
    uint8_t *text = out + sizeof(h) + args;
    if (q->name.len > 0)
        memcpy(text, q->name.bytes, q->name.len);
    if (q->second.len > 0)
        memcpy(text + q->name.len, q->second.bytes, q->second.len);
    return size;
}
