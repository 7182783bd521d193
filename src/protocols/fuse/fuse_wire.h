/* SPDX-License-Identifier: Apache-2.0 */
/* From the bytes of fuse_format.h to native numbers and back: functions over bytes, without I/O. Whatever
 * comes in is checked; names and values are borrowed from it. */
#ifndef ASHLAR_PROTOCOLS_FUSE_WIRE_H
#define ASHLAR_PROTOCOLS_FUSE_WIRE_H

#include "protocols/fuse/fuse_format.h"

struct wire_text {
    const char *bytes; /* not terminated */
    uint32_t len;
};

struct fuse_hello {
    uint8_t session[16];
    struct wire_text name, label;
};
/* How many bytes the hello that begins so takes in all; 0: none of ours. */
uint32_t fuse_hello_len(const struct wire_hello *h);
/* bytes: fuse_hello_len() of them. False: not acceptable. */
bool fuse_hello_decode(const uint8_t *bytes, uint32_t len, struct fuse_hello *ret) MUST_CHECK;

struct fuse_request {
    uint32_t len; /* on the wire */
    uint16_t op;
    bool again;
    uint64_t unique, ino;
    uint32_t uid, gid;
    struct wire_text name, second; /* second: target, new name, value */
    union {
        struct {
            uint32_t valid, mode, uid, gid;
            uint64_t size;
            int64_t atime_ns, mtime_ns, ctime_ns;
        } setattr;
        struct {
            uint32_t mode, umask, rdev_major, rdev_minor, flags, open;
        } make;
        struct {
            uint64_t to_dir;
            uint32_t flags;
        } rename;
        struct {
            uint64_t dir;
        } link;
        struct {
            uint32_t flags, count;
        } open;
        struct {
            uint64_t offset;
            uint32_t len, flags;
        } range;
        struct {
            uint64_t cookie;
            uint32_t len;
            bool attributes;
        } readdir;
        struct {
            uint32_t max, how;
        } xattr;
        struct {
            uint32_t mask;
        } access;
        struct {
            uint64_t start, len, owner;
            uint32_t pid, type;
            bool wait, flock;
        } lock;
        struct {
            uint64_t owner;
        } lock_flush;
        struct {
            uint64_t offset, len;
            uint32_t mode;
        } allocate;
        struct {
            uint64_t offset;
            bool hole;
        } seek;
        struct {
            uint64_t offset, to, to_offset, len;
        } copy;
        struct {
            uint64_t unique;
        } interrupt;
    };
};

/* How many bytes of a request must be there before it can be decoded: all of it, or all but the data of a
 * write. 0: not a request; the connection is lost. */
uint32_t fuse_request_need(const struct wire_request *h);
/* bytes: fuse_request_need() of them. False: malformed, but well framed: EINVAL is the answer. ret's len, op,
 * unique and ino are set in any case. */
bool fuse_request_decode(const uint8_t *bytes, uint32_t len, struct fuse_request *ret) MUST_CHECK;
/* Its result counts only once: it is remembered with the change. */
bool fuse_request_once(const struct fuse_request *q);

/* What a name takes in the buffer of Linux's FUSE: readdir.len is counted in these. */
static inline uint32_t fuse_dirent_cost(uint32_t name_len, bool attributes)
{
    return ALIGN_UP((attributes ? 152u : 24u) + name_len, 8u);
}

/* The mount process's side: the longest a request gets without the bytes of its texts and data. */
#define FUSE_REQUEST_FIXED_MAX (sizeof(struct wire_request) + 48)
/* Writes header, arguments and texts to out, which must have room (fuse_request_size()). q->len counts for
 * nothing. Returns the length without a write's data, which the caller sends behind it. */
uint32_t fuse_request_encode(const struct fuse_request *q, uint8_t *out);
/* Of header, arguments and texts. */
uint32_t fuse_request_size(const struct fuse_request *q);

#endif
