/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small store on one file, right under process kill and power loss on good drives: an append-only log of
 * records, each a header block and its data blocks, and a map in memory. It exists to show that the checker
 * passes what is right and catches the mutants of the world; it reuses nothing of the product.
 *
 * A record is acknowledged when it and all before it are written (and synced, for FUA). Replay ends at the
 * first record that does not verify, or whose epoch is lower than that of the one before it.
 */
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/list.h"
#include "sim/target.h"

#include "sim/alloc.h"

#define TOY_PATH  "/toy"
#define TOY_MAGIC UINT64_C(0x31304d4953594f54)
#define TOY_BYTES (512 * MIB)
#define HOLE      UINT64_MAX

enum toy_kind { TOY_WRITE = 1, TOY_ZERO = 2, TOY_GROW = 3 };

struct toy_header { /* one block; crc over the rest of it */
    uint32_t crc;
    uint32_t kind;
    uint64_t magic, epoch, sequence, block, blocks;
    uint32_t sums[64];
    uint8_t reserved[BLOCK_SIZE - 48 - 256];
};
static_assert(sizeof(struct toy_header) == BLOCK_SIZE, "toy_header");

struct toy_slot {
    const struct toy_header *header; /* NULL: not written yet */
    uint64_t at;
};

struct toy {
    struct sim_target base;
    struct file *file;
    uint64_t *map; /* file block of each block, or HOLE */
    uint64_t blocks, blocks_max;
    uint64_t epoch, sequence, end; /* of the next record; end in file blocks */
    uint64_t written;              /* all records below this sequence are written */
    uint64_t synced;               /* … and these are on stable media */
    struct toy_slot *slots;        /* ring by sequence: written, but not all before it */
    struct waitq moved;
};
#define TOY_RING 4096u

static struct toy *toy_of(struct sim_target *t)
{
    return CONTAINER_OF(t, struct toy, base);
}

static int toy_create(struct sim_node *n, const struct sim_swarm *w)
{
    (void)w;
    if (sim_file_find(n, TOY_PATH) == NULL)
        sim_file_new(n, TOY_PATH, TOY_BYTES);
    return 0;
}

/* Puts a record's effect into the map. */
static void toy_apply(struct toy *t, const struct toy_header *h, uint64_t at)
{
    if (h->kind == TOY_GROW) {
        t->blocks = h->blocks;
        return;
    }
    for (uint64_t i = 0; i < h->blocks; i++)
        t->map[h->block + i] = h->kind == TOY_WRITE ? at + 1 + i : HOLE;
}

static bool toy_header_good(const struct toy *t, const struct toy_header *h)
{
    uint32_t crc = crc32c(0, (const uint8_t *)h + 4, BLOCK_SIZE - 4);
    return h->crc == crc && h->magic == TOY_MAGIC && h->sequence == t->sequence && h->epoch >= t->epoch;
}

static int toy_replay(struct toy *t) may_yield;
static int toy_replay(struct toy *t)
{
    struct page *p;
    int err = page_alloc(1 + 64, &p);
    if (err != 0)
        return err;
    for (;;) {
        struct toy_header *h = (void *)p->data;
        err = file_read(t->file, t->end * BLOCK_SIZE, h, BLOCK_SIZE);
        if (err != 0 || !toy_header_good(t, h))
            break;
        uint64_t data = h->kind == TOY_WRITE ? h->blocks : 0;
        bool good = true;
        if (data > 0)
            err = file_read(t->file, (t->end + 1) * BLOCK_SIZE, p->data + BLOCK_SIZE, data * BLOCK_SIZE);
        for (uint64_t i = 0; err == 0 && i < data; i++)
            good = good && crc32c(0, p->data + (1 + i) * BLOCK_SIZE, BLOCK_SIZE) == h->sums[i];
        if (err != 0 || !good)
            break;
        toy_apply(t, h, t->end);
        t->end += 1 + data;
        t->sequence++;
        t->epoch = h->epoch;
    }
    page_put(p, 1 + 64);
    return err;
}

static int toy_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret) may_yield;
static int toy_open(struct sim_node *n, const struct sim_swarm *w, struct sim_target **ret)
{
    (void)n;
    struct toy *t = calloc(1, sizeof(*t));
    assert(t != NULL);
    t->base.ops = &sim_target_toy_ops;
    t->blocks = w->volume_blocks;
    t->blocks_max = w->volume_blocks_max;
    t->map = malloc(t->blocks_max * sizeof(*t->map));
    t->slots = calloc(TOY_RING, sizeof(struct toy_slot));
    assert(t->map != NULL && t->slots != NULL);
    for (uint64_t i = 0; i < t->blocks_max; i++)
        t->map[i] = HOLE;
    t->sequence = 1;
    waitq_init(&t->moved);
    int err = file_open(TOY_PATH, FILE_OPEN_WRITE | FILE_OPEN_DIRECT | FILE_OPEN_LOCK, &t->file);
    if (err == 0)
        err = toy_replay(t);
    if (err != 0)
        return err;
    t->epoch++;
    t->written = t->sequence;
    *ret = &t->base;
    return 0;
}

static int toy_close(struct sim_target *target) may_yield;
static int toy_close(struct sim_target *target)
{
    struct toy *t = toy_of(target);
    int err = file_sync(t->file);
    file_close(t->file);
    free(t->map);
    free(t->slots);
    free(t);
    return err;
}

static int toy_sync(struct toy *t) may_yield;
static int toy_sync(struct toy *t)
{
    uint64_t covers = t->written;
    int err = file_sync(t->file);
    if (err == 0)
        t->synced = MAX(t->synced, covers);
    return err;
}

/* Writes one record behind those before it and waits for all of them. Effects become visible in the order of
 * the log. */
static int toy_append(struct toy *t, struct toy_header *h, const struct page_vec *data, bool fua) may_yield;
static int toy_append(struct toy *t, struct toy_header *h, const struct page_vec *data, bool fua)
{
    uint64_t at = t->end;
    uint64_t data_blocks = data != NULL ? data->blocks : 0;
    uint64_t sequence = t->sequence++;
    t->end += 1 + data_blocks;
    if (t->end * BLOCK_SIZE > TOY_BYTES)
        return ERR_VOLUME_FULL;
    h->magic = TOY_MAGIC;
    h->epoch = t->epoch;
    h->sequence = sequence;
    h->crc = crc32c(0, (const uint8_t *)h + 4, BLOCK_SIZE - 4);
    struct iovec iov[PAGE_VEC_MAX + 1] = {{h, BLOCK_SIZE}};
    uint32_t runs = data != NULL ? data->run_count : 0;
    for (uint32_t i = 0; i < runs; i++)
        iov[1 + i] = (struct iovec){data->runs[i].page->data, (size_t)data->runs[i].count * BLOCK_SIZE};
    struct file_io io = {.file = t->file,
                         .op = FILE_WRITE,
                         .offset = at * BLOCK_SIZE,
                         .len = (1 + data_blocks) * BLOCK_SIZE,
                         .iov = iov,
                         .iov_count = 1 + runs};
    io.dsync = fua && t->synced == sequence; /* nothing before it needs a sync */
    int err = file_do(&io);
    if (err != 0)
        return err;
    assert(sequence - t->written < TOY_RING);
    t->slots[sequence % TOY_RING] = (struct toy_slot){h, at};
    for (struct toy_slot *s; (s = &t->slots[t->written % TOY_RING])->header != NULL; t->written++) {
        toy_apply(t, s->header, s->at);
        *s = (struct toy_slot){0};
        waitq_wake_all(&t->moved);
    }
    while (t->written <= sequence) {
        err = waitq_wait(&t->moved, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    if (io.dsync)
        t->synced = MAX(t->synced, sequence + 1);
    return fua && !io.dsync ? toy_sync(t) : 0;
}

static int toy_change(struct toy *t, enum toy_kind kind, uint64_t block, uint64_t blocks,
                      const struct page_vec *data, bool fua) may_yield;
static int toy_change(struct toy *t, enum toy_kind kind, uint64_t block, uint64_t blocks,
                      const struct page_vec *data, bool fua)
{
    struct page *p;
    int err = page_alloc_wait(1, DEADLINE_NEVER, &p);
    if (err != 0)
        return err;
    struct toy_header *h = (void *)p->data;
    memset(h, 0, sizeof(*h));
    h->kind = kind;
    h->block = block;
    h->blocks = blocks;
    uint32_t k = 0;
    for (uint32_t i = 0; data != NULL && i < data->run_count; i++)
        for (uint32_t j = 0; j < data->runs[i].count; j++)
            h->sums[k++] = crc32c(0, page_at(data->runs[i].page, j)->data, BLOCK_SIZE);
    err = toy_append(t, h, data, fua);
    page_put(p, 1);
    return err;
}

static uint64_t toy_blocks(struct sim_target *target)
{
    return toy_of(target)->blocks;
}

static int toy_read(struct sim_target *target, uint64_t block, uint32_t blocks, struct page_vec *ret)
    may_yield;
static int toy_read(struct sim_target *target, uint64_t block, uint32_t blocks, struct page_vec *ret)
{
    struct toy *t = toy_of(target);
    struct page *p;
    int err = page_alloc_wait(blocks, DEADLINE_NEVER, &p);
    if (err != 0)
        return err;
    for (uint32_t i = 0; err == 0 && i < blocks; i++) {
        uint64_t at = t->map[block + i];
        if (at == HOLE)
            memset(page_at(p, i)->data, 0, BLOCK_SIZE);
        else
            err = file_read(t->file, at * BLOCK_SIZE, page_at(p, i)->data, BLOCK_SIZE);
    }
    if (err != 0) {
        page_put(p, blocks);
        return err;
    }
    ret->run_count = 1;
    ret->blocks = blocks;
    ret->runs[0] = (struct page_run){p, blocks};
    return 0;
}

static int toy_write(struct sim_target *t, uint64_t block, const struct page_vec *data, bool fua) may_yield;
static int toy_write(struct sim_target *t, uint64_t block, const struct page_vec *data, bool fua)
{
    return toy_change(toy_of(t), TOY_WRITE, block, data->blocks, data, fua);
}

static int toy_zero(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua) may_yield;
static int toy_zero(struct sim_target *t, uint64_t block, uint64_t blocks, bool fua)
{
    return toy_change(toy_of(t), TOY_ZERO, block, blocks, NULL, fua);
}

static int toy_flush(struct sim_target *t) may_yield;
static int toy_flush(struct sim_target *t)
{
    return toy_sync(toy_of(t));
}

static int toy_grow(struct sim_target *target, uint64_t blocks) may_yield;
static int toy_grow(struct sim_target *target, uint64_t blocks)
{
    struct toy *t = toy_of(target);
    assert(blocks <= t->blocks_max);
    return toy_change(t, TOY_GROW, 0, blocks, NULL, true);
}

static int toy_map(struct sim_target *target, uint64_t block, uint64_t blocks, struct volume_map_entry *out,
                   uint32_t max, uint32_t *ret_count)
{
    struct toy *t = toy_of(target);
    uint32_t n = 0;
    for (uint64_t b = block; b < block + blocks; b++) {
        enum volume_map_kind kind = t->map[b] == HOLE ? MAP_HOLE : MAP_DATA;
        if (n > 0 && out[n - 1].kind == kind)
            out[n - 1].blocks++;
        else if (n == max)
            break;
        else
            out[n++] = (struct volume_map_entry){b, 1, kind};
    }
    *ret_count = n;
    return 0;
}

static int toy_nothing(struct sim_target *t)
{
    (void)t;
    return 0;
}

static void toy_get_status(struct sim_target *t, struct sim_target_status *ret)
{
    (void)t;
    *ret = (struct sim_target_status){.healthy = true};
}

static void toy_check(struct sim_target *target)
{
    struct toy *t = toy_of(target);
    assert(t->written <= t->sequence);
    for (uint64_t b = 0; b < t->blocks; b++)
        assert(t->map[b] == HOLE || t->map[b] < t->end);
}

static int64_t toy_verify(struct sim_target *t, char *why, size_t why_size)
{
    (void)t, (void)why, (void)why_size;
    return 0; /* it never reuses space */
}

const struct sim_target_ops sim_target_toy_ops = {
    .name = "toy",
    .create = toy_create,
    .open = toy_open,
    .close = toy_close,
    .blocks = toy_blocks,
    .read = toy_read,
    .write = toy_write,
    .unmap = toy_zero,
    .zero = toy_zero,
    .flush = toy_flush,
    .commit = toy_flush,
    .grow = toy_grow,
    .map = toy_map,
    .scrub = toy_nothing,
    .repair = toy_nothing,
    .get_status = toy_get_status,
    .check = toy_check,
    .verify = toy_verify,
};
