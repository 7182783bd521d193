/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private error codes. A function that can fail returns 0 or a negative code of this table; each code is
 * raised in as few places as possible, so that it names what happened. Protocols translate by the errno
 * class at their boundary (error_errno); people read the sentence (error_text).
 *
 * Errors of the operating system come in as ERR_SYS(errno): -(ERR_SYS_BASE + errno).
 */
#ifndef ASHLAR_RUNTIME_ERROR_H
#define ASHLAR_RUNTIME_ERROR_H

#include "runtime/base.h"

#include <errno.h>

#define ERR_SYS_BASE 10000
#define ERR_SYS(e)   (-(ERR_SYS_BASE + (e)))

/* X(name, errno class, sentence). One section a folder; add at the end of yours. */
#define ASHLAR_ERRORS(X)                                                                          \
    /* runtime */                                                                                 \
    X(NO_MEMORY, ENOMEM, "out of memory within the configured budget")                            \
    X(TIMEOUT, ETIMEDOUT, "the deadline passed")                                                  \
    X(CANCELLED, ECANCELED, "cancelled")                                                          \
    X(CLOSED, EPIPE, "the connection was closed by the peer")                                     \
    X(SHORT_IO, EIO, "the device transferred fewer bytes than asked")                             \
    X(UUID_SYNTAX, EINVAL, "not a UUID")                                                          \
    X(TOO_MANY_FIBERS, EAGAIN, "too many fibers")                                                 \
    X(SHUTDOWN, ESHUTDOWN, "shutting down")                                                       \
    X(INVALID, EINVAL, "invalid argument")                                                        \
    X(TLS_FILES, EINVAL, "the TLS certificate, key or CA file cannot be used")                    \
    /* drive */                                                                                   \
    X(DRIVE_NOT_FORMATTED, ENODEV, "the drive has no Ashlar superblock")                          \
    X(DRIVE_FENCED, ESTALE, "the drive has accepted a higher epoch for this volume")              \
    X(DRIVE_NO_SPACE, ENOSPC, "the drive has no free slab")                                       \
    X(DRIVE_BAD_SLAB, EINVAL, "the slab does not belong to this volume or is out of range")       \
    X(DRIVE_GONE, EIO, "the drive is not available")                                              \
    X(DRIVE_TOO_SMALL, ENOSPC, "too small for a drive (at least 64 MiB)")                         \
    X(DRIVE_DAMAGED, EIO, "a structure of the drive itself is damaged")                           \
    X(DRIVE_NEWER, ENOTSUP, "the drive was formatted by a newer version")                         \
    X(DRIVE_FOREIGN, EEXIST, "the drive or device belongs to something else")                     \
    X(DRIVE_ROLLED_BACK, ESTALE, "the drive's content is older than the pool remembers")          \
    X(DRIVE_SHRUNKEN, EIO, "the drive is smaller than it was formatted")                          \
    X(DRIVE_IN_USE, EBUSY, "another process or a mount uses the drive")                           \
    X(DRIVE_READ_ONLY, EROFS, "the drive is open for inspection only")                            \
    /* cluster */                                                                                 \
    X(COORD_CONFLICT, EAGAIN, "the record was changed by another owner (compare-and-set failed)") \
    X(COORD_NOT_FOUND, ENOENT, "no such record")                                                  \
    X(COORD_UNKNOWN, EAGAIN, "the result of a compare-and-set is unknown")                        \
    X(COORD_CORRUPT, EIO, "the coordination file is damaged")                                     \
    /* protect */                                                                                 \
    X(NO_GOOD_COPY, EIO, "no copy with the right checksum is left")                               \
    X(GROUP_DEGRADED_BELOW, EIO, "too many members of the group are missing")                     \
    X(NOT_ENOUGH_DRIVES, ENOSPC, "not enough drives for this protection")                         \
    X(BAD_PROTECTION, EINVAL, "unknown protection level")                                         \
    /* volume */                                                                                  \
    X(VOLUME_FULL, ENOSPC, "no space left in the pool for this volume")                           \
    X(VOLUME_FAILED, EIO, "the volume is in the failed state: memory and drives may disagree")    \
    X(VOLUME_READ_ONLY, EROFS, "the volume is open read-only")                                    \
    X(VOLUME_CORRUPT, EIO, "a structure of the volume is damaged")                                \
    X(VOLUME_NO_ROOT, EIO, "no valid root was found")                                             \
    X(VOLUME_EXISTS, EEXIST, "a volume of this name exists")                                      \
    X(VOLUME_NOT_FOUND, ENOENT, "no such volume")                                                 \
    X(VOLUME_BUSY, EBUSY, "the volume is in use")                                                 \
    X(NOT_FOUND, ENOENT, "not found")                                                             \
    X(EXISTS, EEXIST, "already exists")                                                           \
    X(LOST_RANGE, EIO, "data that was acknowledged here cannot be read any more")                 \
    /* block and protocols */                                                                     \
    X(OUT_OF_RANGE, EINVAL, "beyond the end of the device")                                       \
    X(UNALIGNED, EINVAL, "not aligned to the block size")                                         \
    X(PROTOCOL, EPROTO, "the peer broke the protocol")                                            \
    X(DENIED, EPERM, "not allowed by the access list")                                            \
    X(UNSUPPORTED, EOPNOTSUPP, "not supported")                                                   \
    X(TOO_MANY_CLIENTS, EAGAIN, "too many clients are connected")                                 \
    /* file system */                                                                             \
    X(CHANGE_AGAIN, EAGAIN, "the change needs more of the tree: it is made again")                \
    X(FS_NOT_FOUND, ENOENT, "no such file or directory")                                          \
    X(FS_EXISTS, EEXIST, "the name exists")                                                       \
    X(FS_NOT_DIRECTORY, ENOTDIR, "not a directory")                                               \
    X(FS_IS_DIRECTORY, EISDIR, "is a directory")                                                  \
    X(FS_NOT_EMPTY, ENOTEMPTY, "the directory is not empty")                                      \
    X(FS_ACCESS, EACCES, "permission denied")                                                     \
    X(FS_NOT_OWNER, EPERM, "only its owner may do that")                                          \
    X(FS_STALE, ESTALE, "the file is gone")                                                       \
    X(FS_BAD_HANDLE, EBADF, "not a file handle of this server")                                   \
    X(FS_NAME_TOO_LONG, ENAMETOOLONG, "the name is too long")                                     \
    X(FS_BAD_NAME, EINVAL, "not a name")                                                          \
    X(FS_INVALID, EINVAL, "the file system cannot do that with this file")                        \
    X(FS_LOOP, ELOOP, "too many symbolic links")                                                  \
    X(FS_CROSS_QUOTA, EXDEV, "the directories have different quotas")                             \
    X(FS_QUOTA, EDQUOT, "the quota of the directory is used up")                                  \
    X(FS_TOO_MANY_LINKS, EMLINK, "too many links")                                                \
    X(FS_TOO_BIG, EFBIG, "beyond the largest file")                                               \
    X(FS_READ_ONLY, EROFS, "read-only")                                                           \
    X(FS_LOCKED, EAGAIN, "somebody else has a lock there")                                        \
    X(FS_DEADLOCK, EDEADLK, "waiting would be a deadlock")                                        \
    X(FS_NO_LOCKS, ENOLCK, "too many locks")                                                      \
    X(FS_GRACE, EAGAIN, "in the grace period only reclaims are granted")                          \
    X(FS_BUSY, EBUSY, "in use")                                                                   \
    X(FS_NO_XATTR, ENODATA, "no such extended attribute")                                         \
    X(FS_XATTR_RANGE, ERANGE, "the buffer is too small for the extended attribute")               \
    X(FS_XATTR_TOO_BIG, E2BIG, "the extended attribute is too large")                             \
    X(FS_NO_DATA, ENXIO, "there is no data behind the offset")                                    \
    X(FS_NOT_SUPPORTED, EOPNOTSUPP, "the file system does not support that")                      \
    X(FS_NOT_SYNC, EAGAIN, "the file has changed meanwhile")                                      \
    X(FS_DIR_FULL, ENOSPC, "too many names of the directory have the same hash")                  \
    /* control and server */                                                                      \
    X(NODE_NOT_READY, EAGAIN, "not open at the moment")                                           \
    X(CONTROL_REQUEST, EINVAL, "the request is not understood")                                   \
    X(NODE_CONFIG, EINVAL, "the node cannot start as configured")

enum error_code {
    ERROR_NONE = 0,
#define X(name, errno_class, text) ERROR_##name,
    ASHLAR_ERRORS(X)
#undef X
        ERROR_COUNT
};

enum {
#define X(name, errno_class, text) ERR_##name = -ERROR_##name,
    ASHLAR_ERRORS(X)
#undef X
};

/* The positive errno class of a negative code; 0 for 0. */
int error_errno(int err);
/* The sentence; static, never NULL. */
const char *error_text(int err);
/* The short name, as "DRIVE_FENCED" or "ENOENT"; static, never NULL. */
const char *error_name(int err);

#endif
