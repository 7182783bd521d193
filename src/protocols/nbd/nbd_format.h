/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the NBD protocol on the wire: all integers are big-endian, layouts are packed. */
#ifndef ASHLAR_PROTOCOLS_NBD_FORMAT_H
#define ASHLAR_PROTOCOLS_NBD_FORMAT_H

#include "runtime/base.h"

/* ---- Handshake ---- */

#define NBD_MAGIC_INIT      UINT64_C(0x4e42444d41474943) /* "NBDMAGIC" */
#define NBD_MAGIC_OPTION    UINT64_C(0x49484156454f5054) /* "IHAVEOPT" */
#define NBD_MAGIC_OPT_REPLY UINT64_C(0x0003e889045565a9)
#define NBD_NAME_MAX        4096u

enum { /* server's handshake flags, and the client's answer to them */
       NBD_FLAG_FIXED_NEWSTYLE = 1 << 0,
       NBD_FLAG_NO_ZEROES = 1 << 1,
};

struct nbd_hello {
    struct be64 magic;
    struct be64 option_magic;
    struct be16 flags;
};
static_assert(sizeof(struct nbd_hello) == 18, "server's greeting");

struct nbd_option {
    struct be64 magic;
    struct be32 option;
    struct be32 len;
};
static_assert(sizeof(struct nbd_option) == 16, "option header");

struct nbd_option_reply {
    struct be64 magic;
    struct be32 option;
    struct be32 type;
    struct be32 len;
};
static_assert(sizeof(struct nbd_option_reply) == 20, "option reply header");

enum nbd_option_number {
    NBD_OPT_EXPORT_NAME = 1,
    NBD_OPT_ABORT = 2,
    NBD_OPT_LIST = 3,
    NBD_OPT_STARTTLS = 5,
    NBD_OPT_INFO = 6,
    NBD_OPT_GO = 7,
    NBD_OPT_STRUCTURED_REPLY = 8,
    NBD_OPT_LIST_META_CONTEXT = 9,
    NBD_OPT_SET_META_CONTEXT = 10,
};

enum nbd_reply_number {
    NBD_REP_ACK = 1,
    NBD_REP_SERVER = 2,
    NBD_REP_INFO = 3,
    NBD_REP_META_CONTEXT = 4,
};
#define NBD_REP_ERR(n)       (UINT32_C(0x80000000) + (n))
#define NBD_REP_ERR_UNSUP    NBD_REP_ERR(1)
#define NBD_REP_ERR_POLICY   NBD_REP_ERR(2)
#define NBD_REP_ERR_INVALID  NBD_REP_ERR(3)
#define NBD_REP_ERR_TLS_REQD NBD_REP_ERR(5)
#define NBD_REP_ERR_UNKNOWN  NBD_REP_ERR(6)
#define NBD_REP_ERR_SHUTDOWN NBD_REP_ERR(7)
#define NBD_REP_ERR_TOO_BIG  NBD_REP_ERR(9)

enum nbd_info_number {
    NBD_INFO_EXPORT = 0,
    NBD_INFO_NAME = 1,
    NBD_INFO_DESCRIPTION = 2,
    NBD_INFO_BLOCK_SIZE = 3,
};

struct nbd_info_export {
    struct be16 type;
    struct be64 size;
    struct be16 flags;
};
static_assert(sizeof(struct nbd_info_export) == 12, "NBD_INFO_EXPORT");

struct nbd_info_block_size {
    struct be16 type;
    struct be32 minimum, preferred, maximum;
};
static_assert(sizeof(struct nbd_info_block_size) == 14, "NBD_INFO_BLOCK_SIZE");

/* The answer to NBD_OPT_EXPORT_NAME; the zeroes only without NBD_FLAG_NO_ZEROES. */
struct nbd_export_reply {
    struct be64 size;
    struct be16 flags;
    uint8_t zeroes[124];
};
static_assert(sizeof(struct nbd_export_reply) == 134, "answer to NBD_OPT_EXPORT_NAME");

enum nbd_transmission_flags {
    NBD_FLAG_HAS_FLAGS = 1 << 0,
    NBD_FLAG_READ_ONLY = 1 << 1,
    NBD_FLAG_SEND_FLUSH = 1 << 2,
    NBD_FLAG_SEND_FUA = 1 << 3,
    NBD_FLAG_SEND_TRIM = 1 << 5,
    NBD_FLAG_SEND_WRITE_ZEROES = 1 << 6,
    NBD_FLAG_SEND_DF = 1 << 7,
    NBD_FLAG_CAN_MULTI_CONN = 1 << 8,
    NBD_FLAG_SEND_CACHE = 1 << 10,
    NBD_FLAG_SEND_FAST_ZERO = 1 << 11,
};

/* ---- Transmission ---- */

#define NBD_MAGIC_REQUEST    UINT32_C(0x25609513)
#define NBD_MAGIC_SIMPLE     UINT32_C(0x67446698)
#define NBD_MAGIC_STRUCTURED UINT32_C(0x668e33ef)

struct nbd_request_header {
    struct be32 magic;
    struct be16 flags;
    struct be16 type;
    uint8_t cookie[8]; /* the client's; returned as it came */
    struct be64 offset;
    struct be32 len;
};
static_assert(sizeof(struct nbd_request_header) == 28, "request header");

struct nbd_simple_reply {
    struct be32 magic;
    struct be32 error;
    uint8_t cookie[8];
};
static_assert(sizeof(struct nbd_simple_reply) == 16, "simple reply");

struct nbd_chunk_header {
    struct be32 magic;
    struct be16 flags;
    struct be16 type;
    uint8_t cookie[8];
    struct be32 len; /* of what follows */
};
static_assert(sizeof(struct nbd_chunk_header) == 20, "structured reply chunk");

struct nbd_offset_data {
    struct nbd_chunk_header header;
    struct be64 offset; /* the data follows */
};
static_assert(sizeof(struct nbd_offset_data) == 28, "NBD_REPLY_TYPE_OFFSET_DATA");

struct nbd_offset_hole {
    struct nbd_chunk_header header;
    struct be64 offset;
    struct be32 len;
};
static_assert(sizeof(struct nbd_offset_hole) == 32, "NBD_REPLY_TYPE_OFFSET_HOLE");

struct nbd_error_chunk {
    struct nbd_chunk_header header;
    struct be32 error;
    struct be16 text_len; /* the text follows */
};
static_assert(sizeof(struct nbd_error_chunk) == 26, "NBD_REPLY_TYPE_ERROR");

struct nbd_status_chunk {
    struct nbd_chunk_header header;
    struct be32 context; /* nbd_status_extent[] follows */
};
struct nbd_status_extent {
    struct be32 len;
    struct be32 flags;
};
static_assert(sizeof(struct nbd_status_chunk) == 24, "NBD_REPLY_TYPE_BLOCK_STATUS");

enum nbd_command {
    NBD_CMD_READ = 0,
    NBD_CMD_WRITE = 1,
    NBD_CMD_DISC = 2,
    NBD_CMD_FLUSH = 3,
    NBD_CMD_TRIM = 4,
    NBD_CMD_CACHE = 5,
    NBD_CMD_WRITE_ZEROES = 6,
    NBD_CMD_BLOCK_STATUS = 7,
};

enum nbd_command_flags {
    NBD_CMD_FLAG_FUA = 1 << 0,
    NBD_CMD_FLAG_NO_HOLE = 1 << 1,
    NBD_CMD_FLAG_DF = 1 << 2,
    NBD_CMD_FLAG_REQ_ONE = 1 << 3,
    NBD_CMD_FLAG_FAST_ZERO = 1 << 4,
};

enum nbd_chunk_type {
    NBD_REPLY_TYPE_NONE = 0,
    NBD_REPLY_TYPE_OFFSET_DATA = 1,
    NBD_REPLY_TYPE_OFFSET_HOLE = 2,
    NBD_REPLY_TYPE_BLOCK_STATUS = 5,
    NBD_REPLY_TYPE_ERROR = 0x8001,
};
enum { NBD_REPLY_FLAG_DONE = 1 << 0 };

enum { /* of base:allocation */
       NBD_STATE_HOLE = 1 << 0,
       NBD_STATE_ZERO = 1 << 1,
};

enum nbd_error { /* errno values that the protocol knows, by its own numbers */
                 NBD_EPERM = 1,
                 NBD_EIO = 5,
                 NBD_ENOMEM = 12,
                 NBD_EINVAL = 22,
                 NBD_ENOSPC = 28,
                 NBD_EOVERFLOW = 75,
                 NBD_ENOTSUP = 95,
                 NBD_ESHUTDOWN = 108,
};

#endif
