/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read-only view of the real world with a memory of what was written.
 *
 * Each path that was opened has an inode, which all its handles share: the blocks that were written, in
 * chunks of CHUNK_BLOCKS pointers. A block of zeroes takes no memory of its own, since preparing a slab
 * writes many. A read goes to the file, and what memory has is laid over it when it completes; where memory
 * has all of it, the file is not asked. Small files (file_replace) are kept whole.
 *
 * Invariants
 *  O1  no descriptor that could write is ever open: FILE_OPEN_WRITE is taken off before the real open;
 *  O2  a write is visible to every read that is submitted after it completed, on whatever handle;
 *  O3  used_bytes is never above limit_bytes. A write that would go beyond is refused whole or after some of
 *      its blocks, and the overlay is `full` for ever: what was seen since then proves nothing.
 *
 * Not possible here, since opening a pool does neither: making files, and changing their size.
 */
#include "runtime/world_overlay.h"

#include "runtime/error.h"
#include "runtime/world_real_internal.h"

#include <pthread.h>
#include <stdlib.h>

#define CHUNK_BLOCKS 1024u

struct chunk {
    uint8_t *block[CHUNK_BLOCKS]; /* NULL: as on the file; zero_block; or BLOCK_SIZE bytes */
};

struct inode {
    struct list link;
    char *path;
    struct chunk **chunks;
    size_t chunk_room;
};

/* What file_replace or file_unlink made of a small file. */
struct whole {
    struct list link;
    char *path;
    char *data; /* NULL: removed */
    size_t len;
};

struct world_overlay {
    struct world_ops ops;
    pthread_mutex_t lock; /* of everything below */
    struct list inodes, wholes;
    uint64_t limit_bytes, used_bytes;
    bool full;
};

struct overlay_file {
    struct file base;
    struct file *real;
    struct inode *inode;
    struct world_overlay *overlay;
};

struct overlay_read {
    struct file_io inner;
    struct file_io *outer;
};

static uint8_t zero_block[BLOCK_SIZE]; /* only ever compared and copied from */

static struct overlay_file *overlay_file_of(struct file *f)
{
    return CONTAINER_OF(f, struct overlay_file, base);
}
static struct world_overlay *overlay_of(struct reactor *r)
{
    return reactor_world_ctx(r);
}
static void lock(struct world_overlay *o)
{
    int e = pthread_mutex_lock(&o->lock);
    assert(e == 0);
}
static void unlock(struct world_overlay *o)
{
    int e = pthread_mutex_unlock(&o->lock);
    assert(e == 0);
}

/* ---- Blocks; all under the lock ---- */

static bool charge(struct world_overlay *o, uint64_t bytes)
{
    if (bytes > o->limit_bytes - o->used_bytes) {
        o->full = true;
        return false;
    }
    o->used_bytes += bytes;
    return true;
}

/* Memory that counts (O3). */
static void *charged_alloc(struct world_overlay *o, size_t bytes)
{
    if (!charge(o, bytes))
        return NULL;
    void *p = calloc(1, bytes);
    if (p == NULL) {
        o->used_bytes -= bytes;
        o->full = true;
    }
    return p;
}

static const uint8_t *block_find(const struct inode *n, uint64_t block)
{
    uint64_t c = block / CHUNK_BLOCKS;
    return c < n->chunk_room && n->chunks[c] != NULL ? n->chunks[c]->block[block % CHUNK_BLOCKS] : NULL;
}

/* Where the block's pointer is; NULL: no memory. */
static uint8_t **block_slot(struct world_overlay *o, struct inode *n, uint64_t block)
{
    uint64_t c = block / CHUNK_BLOCKS;
    if (c >= n->chunk_room) {
        size_t room = MAX((size_t)c + 1, 2 * n->chunk_room), more = room - n->chunk_room;
        if (!charge(o, more * sizeof(struct chunk *)))
            return NULL;
        struct chunk **chunks = realloc(n->chunks, room * sizeof(struct chunk *));
        if (chunks == NULL) {
            o->used_bytes -= more * sizeof(struct chunk *);
            o->full = true;
            return NULL;
        }
        memset(chunks + n->chunk_room, 0, more * sizeof(struct chunk *));
        n->chunks = chunks;
        n->chunk_room = room;
    }
    if (n->chunks[c] == NULL)
        n->chunks[c] = charged_alloc(o, sizeof(struct chunk));
    return n->chunks[c] != NULL ? &n->chunks[c]->block[block % CHUNK_BLOCKS] : NULL;
}

static void block_free(struct world_overlay *o, uint8_t **slot)
{
    if (*slot != NULL && *slot != zero_block) {
        free(*slot);
        o->used_bytes -= BLOCK_SIZE;
    }
    *slot = NULL;
}

static int block_put(struct world_overlay *o, struct inode *n, uint64_t block, const uint8_t *data)
{
    uint8_t **slot = block_slot(o, n, block);
    if (slot == NULL)
        return ERR_NO_MEMORY;
    if (memcmp(data, zero_block, BLOCK_SIZE) == 0) {
        block_free(o, slot);
        *slot = zero_block;
        return 0;
    }
    if (*slot == NULL || *slot == zero_block) {
        uint8_t *copy = charged_alloc(o, BLOCK_SIZE);
        if (copy == NULL)
            return ERR_NO_MEMORY;
        *slot = copy;
    }
    memcpy(*slot, data, BLOCK_SIZE);
    return 0;
}

static bool covered(const struct inode *n, uint64_t offset, uint64_t len)
{
    for (uint64_t b = offset / BLOCK_SIZE; b <= (offset + len - 1) / BLOCK_SIZE; b++)
        if (block_find(n, b) == NULL)
            return false;
    return true;
}

/* ---- Vectors ---- */

struct walk {
    const struct iovec *iov;
    uint32_t left; /* elements */
    size_t at;     /* in the first one */
};

/* Up to max bytes at the walk's place. */
static uint8_t *walk_take(struct walk *w, size_t max, size_t *ret_len)
{
    while (w->left > 0 && w->at == w->iov->iov_len) {
        w->iov++;
        w->left--;
        w->at = 0;
    }
    assert(w->left > 0);
    uint8_t *p = (uint8_t *)w->iov->iov_base + w->at;
    *ret_len = MIN(max, w->iov->iov_len - w->at);
    w->at += *ret_len;
    return p;
}

/* Lays what memory has over what the vector has. */
static void patch(const struct inode *n, const struct file_io *io)
{
    struct walk w = {io->iov, io->iov_count, 0};
    uint64_t at = io->offset, end = io->offset + io->len;
    while (at < end) {
        size_t in_block = at % BLOCK_SIZE, want = MIN((uint64_t)BLOCK_SIZE - in_block, end - at), len;
        const uint8_t *block = block_find(n, at / BLOCK_SIZE);
        uint8_t *to = walk_take(&w, want, &len);
        if (block != NULL)
            memcpy(to, block + in_block, len);
        at += len;
    }
}

static int write_blocks(struct world_overlay *o, struct inode *n, const struct file_io *io)
{
    struct walk w = {io->iov, io->iov_count, 0};
    uint8_t whole[BLOCK_SIZE];
    if ((io->offset | io->len) % BLOCK_SIZE != 0)
        return ERR_INVALID;
    for (uint64_t at = io->offset; at < io->offset + io->len; at += BLOCK_SIZE) {
        size_t len;
        const uint8_t *from = walk_take(&w, BLOCK_SIZE, &len);
        if (len < BLOCK_SIZE) { /* a block in pieces */
            for (size_t have = 0;; have += len, from = walk_take(&w, BLOCK_SIZE - have, &len)) {
                memcpy(whole + have, from, len);
                if (have + len == BLOCK_SIZE)
                    break;
            }
            from = whole;
        }
        int err = block_put(o, n, at / BLOCK_SIZE, from);
        if (err != 0)
            return err;
    }
    return 0;
}

static int zero_blocks(struct world_overlay *o, struct inode *n, const struct file_io *io)
{
    if ((io->offset | io->len) % BLOCK_SIZE != 0)
        return ERR_INVALID;
    for (uint64_t b = io->offset / BLOCK_SIZE; b < (io->offset + io->len) / BLOCK_SIZE; b++) {
        int err = block_put(o, n, b, zero_block);
        if (err != 0)
            return err;
    }
    return 0;
}

/* Contents are undefined afterwards: those of the file will do. Keeps memory small where slabs are freed. */
static void discard_blocks(struct world_overlay *o, struct inode *n, const struct file_io *io)
{
    uint64_t first = DIV_ROUND_UP(io->offset, (uint64_t)BLOCK_SIZE),
             end = (io->offset + io->len) / BLOCK_SIZE;
    for (uint64_t b = first; b < end; b++)
        if (block_find(n, b) != NULL)
            block_free(o, &n->chunks[b / CHUNK_BLOCKS]->block[b % CHUNK_BLOCKS]);
}

/* ---- Operations on files ---- */

/* From the loop, at the end of the next wait. */
static void finish_later(struct file_io *io, int result)
{
    io->result = result;
    list_append(&real_world_of(io->file->reactor)->finished, &io->link);
}

static void read_done(struct file_io *inner)
{
    struct overlay_read *rd = inner->ctx;
    struct file_io *outer = rd->outer;
    struct overlay_file *f = overlay_file_of(outer->file);
    int result = inner->result;
    free(rd);
    if (result == 0) {
        lock(f->overlay);
        patch(f->inode, outer);
        unlock(f->overlay);
    }
    file_io_done(outer, result);
}

static void read_submit(struct overlay_file *f, struct file_io *io)
{
    lock(f->overlay);
    bool have = covered(f->inode, io->offset, io->len);
    if (have)
        patch(f->inode, io);
    unlock(f->overlay);
    struct overlay_read *rd = have ? NULL : malloc(sizeof(*rd));
    if (rd == NULL) {
        finish_later(io, have ? 0 : ERR_NO_MEMORY);
        return;
    }
    *rd = (struct overlay_read){.inner = *io, .outer = io};
    rd->inner.file = f->real;
    rd->inner.done = read_done;
    rd->inner.ctx = rd;
    f->real->pending++;
    real_file_submit(&rd->inner);
}

static void overlay_file_submit(struct file_io *io)
{
    struct overlay_file *f = overlay_file_of(io->file);
    struct world_overlay *o = f->overlay;
    int err = 0;
    if (io->op == FILE_READ) {
        read_submit(f, io);
        return;
    }
    lock(o);
    if (io->op == FILE_WRITE)
        err = write_blocks(o, f->inode, io);
    else if (io->op == FILE_ZERO)
        err = zero_blocks(o, f->inode, io);
    else if (io->op == FILE_DISCARD)
        discard_blocks(o, f->inode, io);
    unlock(o);
    finish_later(io, err);
}

/* ---- Opening ---- */

static struct inode *inode_get(struct world_overlay *o, const char *path)
{
    LIST_FOREACH (&o->inodes, it) {
        struct inode *n = CONTAINER_OF(it, struct inode, link);
        if (strcmp(n->path, path) == 0)
            return n;
    }
    struct inode *n = calloc(1, sizeof(*n));
    char *copy = strdup(path);
    if (n == NULL || copy == NULL) {
        free(n);
        free(copy);
        return NULL;
    }
    n->path = copy;
    list_append(&o->inodes, &n->link);
    return n;
}

static int overlay_file_open(struct reactor *r, const char *path, uint32_t flags, struct file **ret) may_yield
{
    struct world_overlay *o = overlay_of(r);
    if (flags & FILE_OPEN_CREATE)
        return ERR_SYS(EROFS);
    struct overlay_file *f = calloc(1, sizeof(*f));
    lock(o);
    struct inode *n = inode_get(o, path);
    unlock(o);
    if (f == NULL || n == NULL) {
        free(f);
        return ERR_NO_MEMORY;
    }
    struct file *real = NULL;
    int err = real_file_open(r, path, flags & ~(uint32_t)FILE_OPEN_WRITE, &real); /* O1 */
    if (err != 0) {
        free(f);
        return err;
    }
    *f = (struct overlay_file){.base = {.reactor = r, .flags = flags, .direct = real->direct},
                               .real = real,
                               .inode = n,
                               .overlay = o};
    *ret = &f->base;
    return 0;
}

static void overlay_file_close(struct file *file)
{
    struct overlay_file *f = overlay_file_of(file);
    assert(f->real->pending == 0);
    real_file_close(f->real);
    free(f);
}

static int overlay_file_get_info(struct file *f, struct file_info *ret) may_yield
{
    return real_file_get_info(overlay_file_of(f)->real, ret);
}

static int overlay_file_resize(struct file *f, uint64_t size_bytes)
{
    (void)f;
    (void)size_bytes;
    return ERR_SYS(EROFS);
}

/* ---- Small files ---- */

static struct whole *whole_find(const struct world_overlay *o, const char *path)
{
    LIST_FOREACH (&o->wholes, it) {
        struct whole *w = CONTAINER_OF(it, struct whole, link);
        if (strcmp(w->path, path) == 0)
            return w;
    }
    return NULL;
}

/* Under the lock. data is taken, also on an error. */
static int whole_set(struct world_overlay *o, const char *path, char *data, size_t len)
{
    struct whole *w = whole_find(o, path);
    if (w == NULL) {
        w = calloc(1, sizeof(*w));
        char *copy = strdup(path);
        if (w == NULL || copy == NULL) {
            free(w);
            free(copy);
            free(data);
            return ERR_NO_MEMORY;
        }
        w->path = copy;
        list_append(&o->wholes, &w->link);
    }
    free(w->data);
    w->data = data;
    w->len = len;
    return 0;
}

static int overlay_file_replace(struct reactor *r, const char *path, const void *data, size_t len)
{
    struct world_overlay *o = overlay_of(r);
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return ERR_NO_MEMORY;
    memcpy(copy, data, len);
    copy[len] = '\0';
    lock(o);
    int err = whole_set(o, path, copy, len);
    unlock(o);
    return err;
}

static int overlay_file_unlink(struct reactor *r, const char *path)
{
    struct world_overlay *o = overlay_of(r);
    lock(o);
    int err = whole_set(o, path, NULL, 0);
    unlock(o);
    return err;
}

static int overlay_file_read_all(struct reactor *r, const char *path, size_t max, char **ret_data,
                                 size_t *ret_len) may_yield
{
    struct world_overlay *o = overlay_of(r);
    char *copy = NULL;
    size_t len = 0;
    lock(o);
    const struct whole *w = whole_find(o, path);
    bool known = w != NULL, removed = known && w->data == NULL;
    if (known && !removed && w->len <= max) {
        len = w->len;
        copy = malloc(len + 1);
        if (copy != NULL)
            memcpy(copy, w->data, len + 1);
    }
    bool large = known && !removed && w->len > max;
    unlock(o);
    if (!known)
        return real_file_read_all(r, path, max, ret_data, ret_len);
    if (copy == NULL)
        return removed ? ERR_SYS(ENOENT) : large ? ERR_SYS(EFBIG) : ERR_NO_MEMORY;
    *ret_data = copy;
    *ret_len = len;
    return 0;
}

/* ---- Life ---- */

int world_overlay_new(uint64_t limit_bytes, struct world_overlay **ret)
{
    struct world_overlay *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return ERR_NO_MEMORY;
    int e = pthread_mutex_init(&o->lock, NULL);
    if (e != 0) {
        free(o);
        return ERR_SYS(e);
    }
    list_init(&o->inodes);
    list_init(&o->wholes);
    o->limit_bytes = limit_bytes;
    o->ops = world_real_ops;
    o->ops.name = "overlay";
    o->ops.file_open = overlay_file_open;
    o->ops.file_close = overlay_file_close;
    o->ops.file_get_info = overlay_file_get_info;
    o->ops.file_resize = overlay_file_resize;
    o->ops.file_replace = overlay_file_replace;
    o->ops.file_read_all = overlay_file_read_all;
    o->ops.file_unlink = overlay_file_unlink;
    o->ops.file_submit = overlay_file_submit;
    *ret = o;
    return 0;
}

static void inode_free(struct world_overlay *o, struct inode *n)
{
    for (size_t c = 0; c < n->chunk_room; c++) {
        for (uint32_t i = 0; n->chunks[c] != NULL && i < CHUNK_BLOCKS; i++)
            block_free(o, &n->chunks[c]->block[i]);
        free(n->chunks[c]);
    }
    free(n->chunks);
    free(n->path);
    free(n);
}

void world_overlay_free(struct world_overlay *o)
{
    struct list *it;
    while ((it = list_pop(&o->inodes)) != NULL)
        inode_free(o, CONTAINER_OF(it, struct inode, link));
    while ((it = list_pop(&o->wholes)) != NULL) {
        struct whole *w = CONTAINER_OF(it, struct whole, link);
        free(w->path);
        free(w->data);
        free(w);
    }
    pthread_mutex_destroy(&o->lock);
    free(o);
}

const struct world_ops *world_overlay_ops(const struct world_overlay *o)
{
    return &o->ops;
}

uint64_t world_overlay_used_bytes(struct world_overlay *o)
{
    lock(o);
    uint64_t used = o->used_bytes;
    unlock(o);
    return used;
}

bool world_overlay_full(struct world_overlay *o)
{
    lock(o);
    bool full = o->full;
    unlock(o);
    return full;
}
