/* SPDX-License-Identifier: Apache-2.0 */
/* NFS version 3 and MOUNT version 3 (RFC 1813): numbers of the wire. */
#ifndef ASHLAR_PROTOCOLS_NFS_FORMAT_H
#define ASHLAR_PROTOCOLS_NFS_FORMAT_H

#include "runtime/base.h"

#define NFS3_VERSION    3u
#define NFS3_HANDLE_MAX 64u
#define NFS3_VERF_SIZE  8u

enum nfs3_proc {
    NFS3_NULL = 0,
    NFS3_GETATTR = 1,
    NFS3_SETATTR = 2,
    NFS3_LOOKUP = 3,
    NFS3_ACCESS = 4,
    NFS3_READLINK = 5,
    NFS3_READ = 6,
    NFS3_WRITE = 7,
    NFS3_CREATE = 8,
    NFS3_MKDIR = 9,
    NFS3_SYMLINK = 10,
    NFS3_MKNOD = 11,
    NFS3_REMOVE = 12,
    NFS3_RMDIR = 13,
    NFS3_RENAME = 14,
    NFS3_LINK = 15,
    NFS3_READDIR = 16,
    NFS3_READDIRPLUS = 17,
    NFS3_FSSTAT = 18,
    NFS3_FSINFO = 19,
    NFS3_PATHCONF = 20,
    NFS3_COMMIT = 21,
    NFS3_PROC_COUNT
};

enum nfs3_status {
    NFS3_OK = 0,
    NFS3ERR_PERM = 1,
    NFS3ERR_NOENT = 2,
    NFS3ERR_IO = 5,
    NFS3ERR_NXIO = 6,
    NFS3ERR_ACCES = 13,
    NFS3ERR_EXIST = 17,
    NFS3ERR_XDEV = 18,
    NFS3ERR_NODEV = 19,
    NFS3ERR_NOTDIR = 20,
    NFS3ERR_ISDIR = 21,
    NFS3ERR_INVAL = 22,
    NFS3ERR_FBIG = 27,
    NFS3ERR_NOSPC = 28,
    NFS3ERR_ROFS = 30,
    NFS3ERR_MLINK = 31,
    NFS3ERR_NAMETOOLONG = 63,
    NFS3ERR_NOTEMPTY = 66,
    NFS3ERR_DQUOT = 69,
    NFS3ERR_STALE = 70,
    NFS3ERR_REMOTE = 71,
    NFS3ERR_BADHANDLE = 10001,
    NFS3ERR_NOT_SYNC = 10002,
    NFS3ERR_BAD_COOKIE = 10003,
    NFS3ERR_NOTSUPP = 10004,
    NFS3ERR_TOOSMALL = 10005,
    NFS3ERR_SERVERFAULT = 10006,
    NFS3ERR_BADTYPE = 10007,
    NFS3ERR_JUKEBOX = 10008,
};

enum nfs3_type {
    NFS3_REG = 1,
    NFS3_DIR = 2,
    NFS3_BLK = 3,
    NFS3_CHR = 4,
    NFS3_LNK = 5,
    NFS3_SOCK = 6,
    NFS3_FIFO = 7,
};

enum nfs3_stable { NFS3_UNSTABLE = 0, NFS3_DATA_SYNC = 1, NFS3_FILE_SYNC = 2 };
enum nfs3_create_how { NFS3_UNCHECKED = 0, NFS3_GUARDED = 1, NFS3_EXCLUSIVE = 2 };
enum nfs3_set_time { NFS3_DONT_CHANGE = 0, NFS3_SERVER_TIME = 1, NFS3_CLIENT_TIME = 2 };

enum nfs3_access {
    NFS3_ACCESS_READ = 0x01,
    NFS3_ACCESS_LOOKUP = 0x02,
    NFS3_ACCESS_MODIFY = 0x04,
    NFS3_ACCESS_EXTEND = 0x08,
    NFS3_ACCESS_DELETE = 0x10,
    NFS3_ACCESS_EXECUTE = 0x20,
};
enum nfs3_properties {
    NFS3_FSF_LINK = 0x01,
    NFS3_FSF_SYMLINK = 0x02,
    NFS3_FSF_HOMOGENEOUS = 0x08,
    NFS3_FSF_CANSETTIME = 0x10,
};

#define NFS3_ATTR_SIZE 84u /* bytes of fattr3 */

/* ---- MOUNT ---- */

#define MOUNT3_VERSION  3u
#define MOUNT3_PATH_MAX 1024u
#define MOUNT3_NAME_MAX 255u

enum mount3_proc {
    MOUNT3_NULL = 0,
    MOUNT3_MNT = 1,
    MOUNT3_DUMP = 2,
    MOUNT3_UMNT = 3,
    MOUNT3_UMNTALL = 4,
    MOUNT3_EXPORT = 5,
    MOUNT3_PROC_COUNT
};
enum mount3_status {
    MNT3_OK = 0,
    MNT3ERR_PERM = 1,
    MNT3ERR_NOENT = 2,
    MNT3ERR_IO = 5,
    MNT3ERR_ACCES = 13,
    MNT3ERR_NOTDIR = 20,
    MNT3ERR_INVAL = 22,
    MNT3ERR_NAMETOOLONG = 63,
    MNT3ERR_NOTSUPP = 10004,
    MNT3ERR_SERVERFAULT = 10006,
};

/* ---- Our file handle: 40 bytes ---- */

struct nfs_handle {
    uint8_t version; /* NFS_HANDLE_VERSION */
    uint8_t reserved[3];
    struct be32 export_tag; /* hash of the export's path */
    struct be64 volume_tag; /* the volume's id, its first half */
    struct be64 ino;
    struct be32 generation;
    struct be32 reserved2;
    struct le64 mac; /* SipHash-2-4 of all before, by the file system's secret */
};
static_assert(sizeof(struct nfs_handle) == 40, "nfs_handle");
#define NFS_HANDLE_VERSION 1u

#endif
