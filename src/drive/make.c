/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats a drive. Order: both ends are wiped first, then the tables are written, then the last block, then
 * the first: a drive whose formatting was cut short has no superblock, or only the last one with whole
 * tables.
 */
#include "drive/internal.h"

#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define TABLE_IO_BLOCKS 64u

struct making {
    const struct drive_format_options *o;
    struct file *file;
    struct file_info info;
    struct drive_superblock sb;
    char *why;
    size_t why_size;
    bool created;
};

static int refuse(struct making *m, int err, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int refuse(struct making *m, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->why, m->why_size, fmt, ap);
    va_end(ap);
    return err;
}

static int open_or_create(struct making *m) may_yield
{
    const char *path = m->o->path;
    uint32_t flags = FILE_OPEN_WRITE | FILE_OPEN_DIRECT | FILE_OPEN_LOCK;
    int err = file_open(path, flags, &m->file);
    if (err == ERR_SYS(ENOENT)) {
        if (m->o->size_bytes == 0)
            return refuse(m, err, "%s does not exist: give a size to create it as a file", path);
        err = file_open(path, flags | FILE_OPEN_CREATE, &m->file);
        m->created = err == 0;
    }
    if (err == ERR_SYS(EBUSY) || err == ERR_SYS(EAGAIN) || err == ERR_SYS(EWOULDBLOCK))
        return refuse(m, ERR_DRIVE_IN_USE,
                      "%s is mounted or in use by another process: unmount or stop that first", path);
    if (err == ERR_SYS(EISDIR))
        return refuse(m, err, "%s is a folder: name a device, or a file in it", path);
    if (err != 0)
        return refuse(m, err, "%s cannot be opened for writing: %s", path, error_text(err));
    err = file_get_info(m->file, &m->info);
    if (err != 0)
        return refuse(m, err, "%s: its size cannot be read: %s", path, error_text(err));
    if (m->info.io_align > BLOCK_SIZE)
        return refuse(m, ERR_UNSUPPORTED, "%s wants I/O in units of %u bytes; at most 4096 are supported",
                      path, m->info.io_align);
    return 0;
}

static bool all_zero(const uint8_t *data, size_t len)
{
    return len == 0 || (data[0] == 0 && memcmp(data, data + 1, len - 1) == 0);
}

static int judge_contents(struct making *m, const uint8_t *head, size_t head_len, const uint8_t *tail,
                          size_t tail_len)
{
    const char *path = m->o->path;
    struct drive_superblock sb;
    int err = drive_superblock_decode(head, &sb);
    if (err == 0) {
        char pool[UUID_TEXT_SIZE];
        uuid_format(sb.pool_id, pool);
        return refuse(m, ERR_DRIVE_FOREIGN, "%s is a drive of %s pool %s already: use force to erase it",
                      path, uuid_equal(sb.pool_id, m->o->pool_id) ? "this" : "the other", pool);
    }
    if (err != ERR_DRIVE_NOT_FORMATTED)
        return refuse(m, ERR_DRIVE_FOREIGN, "%s has the rest of an Ashlar drive: use force to erase it",
                      path);
    const char *foreign = drive_foreign_signature(head, head_len, tail, tail_len);
    if (foreign != NULL)
        return refuse(m, ERR_DRIVE_FOREIGN, "%s holds %s: check the path; use force to erase it", path,
                      foreign);
    /* An old device may hold anything; a file that someone filled is a slip of the finger. */
    if (!m->info.is_block_device && !(all_zero(head, head_len) && all_zero(tail, tail_len)))
        return refuse(m, ERR_DRIVE_FOREIGN,
                      "%s is a file with other contents: check the path; use force to erase it", path);
    return 0;
}

static int check_contents(struct making *m) may_yield
{
    uint64_t size = ALIGN_DOWN(m->info.size_bytes, (uint64_t)BLOCK_SIZE);
    if (m->o->force || m->info.size_bytes == 0)
        return 0;
    if (size == 0)
        return refuse(m, ERR_DRIVE_FOREIGN,
                      "%s is a file with other contents: check the path; use force to erase it", m->o->path);
    size_t len = (size_t)MIN(DRIVE_SIGNATURE_BYTES, size);
    uint8_t *head = aligned_alloc(BLOCK_SIZE, 2 * len);
    if (head == NULL)
        return refuse(m, ERR_NO_MEMORY, "out of memory");
    int err = file_read(m->file, 0, head, len);
    if (err == 0)
        err = file_read(m->file, size - len, head + len, len);
    if (err != 0)
        err = refuse(m, err, "%s cannot be read: %s", m->o->path, error_text(err));
    else
        err = judge_contents(m, head, len, head + len, len);
    free(head);
    return err;
}

static int settle_size(struct making *m) may_yield
{
    const char *path = m->o->path;
    uint64_t size = m->info.size_bytes;
    if (m->o->size_bytes != 0 && !m->info.is_block_device && size < m->o->size_bytes) {
        int err = file_resize(m->file, m->o->size_bytes);
        if (err != 0)
            return refuse(m, err, "%s cannot be made %llu bytes long: %s", path,
                          (unsigned long long)m->o->size_bytes, error_text(err));
        size = m->o->size_bytes;
    }
    if (m->o->size_bytes != 0 && m->o->size_bytes > size)
        return refuse(m, ERR_DRIVE_TOO_SMALL, "%s has only %llu bytes", path, (unsigned long long)size);
    if (m->o->size_bytes != 0)
        size = m->o->size_bytes;
    size = ALIGN_DOWN(size, (uint64_t)BLOCK_SIZE);

    m->sb.size_bytes = size;
    m->sb.slab_bytes = m->o->slab_bytes != 0 ? m->o->slab_bytes : drive_slab_bytes_default(size);
    int err = drive_layout_compute(size, m->sb.slab_bytes, &m->sb.layout);
    if (err == ERR_DRIVE_TOO_SMALL)
        return refuse(m, err,
                      "%s is too small: %llu bytes; a drive has at least 64 MiB and room for one slab", path,
                      (unsigned long long)size);
    if (err != 0)
        return refuse(m, err, "a slab of %u bytes is not possible: a power of two from 64 KiB to 256 MiB",
                      m->sb.slab_bytes);
    return 0;
}

/* ---- Writing ---- */

static int write_table(struct making *m, enum drive_table_kind kind, int copy) may_yield
{
    const struct drive_layout *l = &m->sb.layout;
    uint64_t offset = kind == DRIVE_TABLE_SLABS ? l->table_offset[copy] : l->fence_offset[copy];
    uint32_t blocks = kind == DRIVE_TABLE_SLABS ? l->table_blocks : l->fence_blocks;
    struct drive_table_disk *buffer = aligned_alloc(BLOCK_SIZE, TABLE_IO_BLOCKS * sizeof(*buffer));
    if (buffer == NULL)
        return ERR_NO_MEMORY;
    int err = 0;
    for (uint32_t first = 0; first < blocks && err == 0; first += TABLE_IO_BLOCKS) {
        uint32_t n = MIN(TABLE_IO_BLOCKS, blocks - first);
        memset(buffer, 0, n * sizeof(*buffer));
        for (uint32_t i = 0; i < n; i++) {
            struct drive_table_header header = {kind, first + i, m->sb.drive_id, 1};
            drive_table_seal(&header, &buffer[i]);
        }
        err = file_write(m->file, offset + (uint64_t)first * BLOCK_SIZE, buffer, n * sizeof(*buffer));
    }
    free(buffer);
    return err;
}

static int write_ends(struct making *m, const void *block) may_yield
{
    int err = file_write(m->file, m->sb.size_bytes - BLOCK_SIZE, block, BLOCK_SIZE);
    if (err == 0)
        err = file_sync(m->file);
    if (err == 0)
        err = file_write(m->file, 0, block, BLOCK_SIZE);
    if (err == 0)
        err = file_sync(m->file);
    return err;
}

/* Whatever the head and the tail held would be taken for a foreign signature later, beside the superblock. */
static int wipe(struct making *m) may_yield
{
    uint64_t len = DRIVE_HEAD_BYTES;
    uint8_t *zero = aligned_alloc(BLOCK_SIZE, len);
    if (zero == NULL)
        return ERR_NO_MEMORY;
    memset(zero, 0, len);
    int err = file_write(m->file, m->sb.size_bytes - len, zero, len);
    if (err == 0)
        err = file_write(m->file, 0, zero, len);
    if (err == 0)
        err = file_sync(m->file);
    free(zero);
    return err;
}

static int write_all(struct making *m) may_yield
{
    void *block = aligned_alloc(BLOCK_SIZE, BLOCK_SIZE);
    if (block == NULL)
        return ERR_NO_MEMORY;
    int err = wipe(m);
    for (int copy = 0; copy < 2 && err == 0; copy++) {
        err = write_table(m, DRIVE_TABLE_SLABS, copy);
        if (err == 0)
            err = write_table(m, DRIVE_TABLE_FENCES, copy);
    }
    if (err == 0)
        err = file_sync(m->file);
    if (err == 0) {
        drive_superblock_encode(&m->sb, block);
        err = write_ends(m, block);
    }
    free(block);
    return err;
}

static int make(struct making *m) may_yield
{
    int err = open_or_create(m);
    if (err == 0)
        err = check_contents(m);
    if (err == 0)
        err = settle_size(m);
    if (err != 0)
        return err;
    err = write_all(m);
    if (err == ERR_SYS(ENOSPC))
        return refuse(m, err, "%s: the file system under it is full", m->o->path);
    if (err != 0)
        return refuse(m, err, "%s cannot be written: %s", m->o->path, error_text(err));
    return 0;
}

int drive_format(const struct drive_format_options *o, struct uuid *ret_id, char *ret_why, size_t why_size)
{
    assert(o->path != NULL && !uuid_is_none(o->pool_id) && why_size > 0);
    struct making m = {.o = o, .why = ret_why, .why_size = why_size};
    m.sb.pool_id = o->pool_id;
    m.sb.drive_id = world_random_uuid();
    m.sb.generation = 1;
    m.sb.created_ns = world_wall_ns();
    m.sb.clean = true;
    int err = make(&m);
    if (m.file != NULL)
        file_close(m.file);
    if (err != 0) {
        /* A file that this call made goes again; if even that fails, the first reason is the one to tell. */
        int unlinked = m.created ? file_unlink(o->path) : 0;
        (void)unlinked;
        return err;
    }
    *ret_id = m.sb.drive_id;
    return 0;
}
