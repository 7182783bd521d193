/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and drives of the simulated world.
 *
 * A write takes a copy of its data when it is submitted and changes the file when it completes. Between the
 * two it is under way: a crash then leaves all, some or nothing of it. Completions come in the order of drawn
 * latencies, so they overtake each other. A sync notes at its submission how far writes had completed, and
 * makes just that stable when it completes (S4).
 *
 * Faults of a drive are drawn at completion, one chance each. A write that fails may still have changed the
 * blocks that it names.
 */
#include "sim/content.h"
#include "sim/world_internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

#include "sim/alloc.h"

#define OPEN_US    20u
#define REPLACE_US 200u
/* Of a slow I/O on a slow drive: longer, and a kernel would have given it up. */
#define LATENCY_MAX_NS (2 * NSEC_PER_SEC)

struct sim_file {
    struct list link; /* node.files */
    struct sim_node *node;
    char path[SIM_PATH_SIZE];
    struct sim_content content;
    struct sim_drive_faults faults;
    bool durable; /* its name survives a power loss */
    bool unlinked;
    uint64_t lock_boot; /* of the process that holds its lock; 0: nobody */
};

struct sim_handle {
    struct file base;
    struct sim_file *file;
    bool locked;
};

struct sim_io {
    struct sim_event event;
    struct list link; /* node.in_flight, or sim.free_ios */
    struct file_io *io;
    struct sim_file *file;
    uint8_t *data;
    size_t data_capacity;
    uint64_t offset, len;
    uint64_t covers; /* FILE_SYNC: content.sequence at submission */
    enum file_op op;
    bool dsync, acknowledged;
    bool zeroes; /* a write of nothing but zeroes: data is not used */
    uint32_t crc;
};

/* ---- The harness's side ---- */

struct sim_file *sim_file_find(struct sim_node *n, const char *path)
{
    LIST_FOREACH (&n->files, l) {
        struct sim_file *f = CONTAINER_OF(l, struct sim_file, link);
        if (!f->unlinked && strcmp(f->path, path) == 0)
            return f;
    }
    return NULL;
}

struct sim_file *sim_file_new(struct sim_node *n, const char *path, uint64_t size_bytes)
{
    if (sim_file_find(n, path) != NULL || strlen(path) >= SIM_PATH_SIZE)
        return NULL;
    struct sim_file *f = calloc(1, sizeof(*f));
    assert(f != NULL);
    f->node = n;
    snprintf(f->path, sizeof(f->path), "%s", path);
    sim_content_init(&f->content, size_bytes, &n->sim->random);
    f->durable = true;
    list_append(&n->files, &f->link);
    return f;
}

struct sim_drive_faults *sim_file_faults(struct sim_file *f)
{
    return &f->faults;
}

uint64_t sim_file_size(const struct sim_file *f)
{
    return f->content.size_bytes;
}

uint64_t sim_file_blocks_used(const struct sim_file *f)
{
    return f->content.blocks_used;
}

const uint8_t *sim_file_block(const struct sim_file *f, uint64_t block)
{
    const struct sim_block *b = sim_content_find(&f->content, block);
    return b == NULL || (b->stable == NULL && b->cached == NULL) ? NULL
                                                                 : sim_content_bytes(&f->content, block);
}

bool sim_file_rot_block(struct sim_file *f, uint64_t block)
{
    if (!sim_content_flip(&f->content, block))
        return false;
    sim_count_fault(f->node->sim, SIM_FAULT_BIT_ROT);
    sim_trace(f->node->sim, "bit-rot", f->path, block, 0, 0);
    return true;
}

bool sim_file_pick_block(struct sim_file *f, uint64_t first, uint64_t end, uint64_t *ret_block)
{
    return sim_content_pick(&f->content, &f->node->sim->random, first, end, ret_block);
}

void sim_file_cut(struct sim_file *f, uint64_t size_bytes)
{
    sim_count_fault(f->node->sim, SIM_FAULT_DRIVE_CUT);
    sim_trace(f->node->sim, "truncate", f->path, size_bytes, 0, 0);
    sim_content_resize(&f->content, size_bytes);
}

void sim_file_wipe(struct sim_file *f, uint64_t size_bytes)
{
    sim_trace(f->node->sim, "wipe", f->path, size_bytes, 0, 0);
    sim_content_clear(&f->content);
    f->content.size_bytes = f->content.stable_size_bytes = size_bytes;
}

uint64_t sim_file_unflushed(const struct sim_file *f)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->content.dirty_count; i++) {
        const struct sim_block *b = sim_content_find(&f->content, f->content.dirty[i]);
        n += b != NULL && b->cached != NULL;
    }
    return n;
}

/* ---- Open and the like ---- */

/* For the sweep: the Nth operation of any kind fails. */
static bool op_should_fail(struct sim_node *n, const char *path, const char *what)
{
    if (n->fail_io_path != NULL && strcmp(n->fail_io_path, path) != 0)
        return false;
    if (n->fail_io_in == 0 || --n->fail_io_in > 0)
        return false;
    n->failed = true;
    sim_trace(n->sim, "fail-io", what, n->index, 0, 0);
    return true;
}

int may_yield sim_op_file_open(struct reactor *r, const char *path, uint32_t flags, struct file **ret)
{
    struct sim_node *n = sim_node_of(r);
    sim_pause(r, OPEN_US);
    if (op_should_fail(n, path, "open"))
        return ERR_SYS(EIO);
    struct sim_file *f = sim_file_find(n, path);
    if ((flags & FILE_OPEN_CREATE) != 0) {
        if (f != NULL)
            return ERR_SYS(EEXIST);
        f = sim_file_new(n, path, 0);
        if (f == NULL)
            return ERR_SYS(ENAMETOOLONG);
        f->durable = false;
    }
    if (f == NULL)
        return ERR_SYS(ENOENT);
    if (f->faults.lost)
        return ERR_SYS(EIO);
    if ((flags & FILE_OPEN_LOCK) != 0 && f->lock_boot == n->boot)
        return ERR_SYS(EBUSY);
    struct sim_handle *h = calloc(1, sizeof(*h));
    assert(h != NULL);
    h->base.reactor = r;
    h->base.direct = (flags & FILE_OPEN_DIRECT) != 0;
    h->file = f;
    if ((flags & FILE_OPEN_LOCK) != 0) {
        h->locked = true;
        f->lock_boot = n->boot;
    }
    sim_trace(n->sim, "open", path, flags, 0, 0);
    *ret = &h->base;
    return 0;
}

void sim_op_file_close(struct file *file)
{
    struct sim_handle *h = CONTAINER_OF(file, struct sim_handle, base);
    if (h->locked)
        h->file->lock_boot = 0;
    sim_trace(h->file->node->sim, "close", h->file->path, 0, 0, 0);
    free(h);
}

int sim_op_file_get_info(struct file *file, struct file_info *ret)
{
    struct sim_handle *h = CONTAINER_OF(file, struct sim_handle, base);
    if (h->file->faults.lost)
        return ERR_SYS(EIO);
    *ret = (struct file_info){
        .size_bytes = h->file->content.size_bytes, .direct = file->direct, .io_align = BLOCK_SIZE};
    return 0;
}

int may_yield sim_op_file_resize(struct file *file, uint64_t size_bytes)
{
    struct sim_handle *h = CONTAINER_OF(file, struct sim_handle, base);
    struct sim_file *f = h->file;
    sim_pause(file->reactor, OPEN_US);
    if (f->faults.lost || op_should_fail(f->node, f->path, "resize"))
        return ERR_SYS(EIO);
    sim_trace(f->node->sim, "resize", f->path, size_bytes, 0, 0);
    sim_content_resize(&f->content, size_bytes);
    return 0;
}

/* Atomic and durable; a crash falls before or after it. */
int may_yield sim_op_file_replace(struct reactor *r, const char *path, const void *data, size_t len)
{
    struct sim_node *n = sim_node_of(r);
    uint8_t *copy = malloc(len + 1);
    assert(copy != NULL);
    memcpy(copy, data, len);
    sim_pause(r, REPLACE_US / 2);
    int err = op_should_fail(n, path, "replace") ? ERR_SYS(EIO) : 0;
    struct sim_file *f = sim_file_find(n, path);
    if (f == NULL && err == 0) {
        f = sim_file_new(n, path, 0);
        err = f == NULL ? ERR_SYS(ENAMETOOLONG) : 0;
    }
    if (err == 0) {
        sim_content_resize(&f->content, 0);
        sim_content_write(&f->content, 0, copy, len, true);
        f->durable = true;
        sim_trace(n->sim, "replace", path, len, 0, crc32c(0, copy, len));
    }
    free(copy);
    sim_pause(r, REPLACE_US / 2);
    return err;
}

int may_yield sim_op_file_read_all(struct reactor *r, const char *path, size_t max, char **ret_data,
                                   size_t *ret_len)
{
    struct sim_node *n = sim_node_of(r);
    sim_pause(r, OPEN_US);
    if (op_should_fail(n, path, "read_all"))
        return ERR_SYS(EIO);
    struct sim_file *f = sim_file_find(n, path);
    if (f == NULL)
        return ERR_SYS(ENOENT);
    size_t len = f->content.size_bytes;
    if (len > max)
        return ERR_SYS(EFBIG);
    char *data = malloc(len + 1);
    if (data == NULL)
        return ERR_NO_MEMORY;
    for (size_t at = 0; at < len; at += BLOCK_SIZE)
        memcpy(data + at, sim_content_bytes(&f->content, at / BLOCK_SIZE), MIN(len - at, BLOCK_SIZE));
    data[len] = '\0';
    *ret_data = data;
    *ret_len = len;
    return 0;
}

int may_yield sim_op_file_unlink(struct reactor *r, const char *path)
{
    struct sim_node *n = sim_node_of(r);
    sim_pause(r, OPEN_US);
    if (op_should_fail(n, path, "unlink"))
        return ERR_SYS(EIO);
    struct sim_file *f = sim_file_find(n, path);
    if (f == NULL)
        return ERR_SYS(ENOENT);
    f->unlinked = true; /* open handles still read it */
    sim_trace(n->sim, "unlink", path, 0, 0, 0);
    return 0;
}

/* ---- I/O ---- */

static struct sim_io *io_get(struct sim *s)
{
    struct list *l = list_pop(&s->free_ios);
    if (l != NULL)
        return CONTAINER_OF(l, struct sim_io, link);
    struct sim_io *i = calloc(1, sizeof(*i));
    assert(i != NULL);
    list_init(&i->link);
    return i;
}

static void io_put(struct sim *s, struct sim_io *i)
{
    list_remove(&i->link);
    list_prepend(&s->free_ios, &i->link);
}

/* Preparing a slab writes the same zeroes again and again: looked at once, and not copied. */
static bool io_is_zero(const struct file_io *io)
{
    const uint8_t *first = io->iov->iov_base;
    if (first[0] != 0 || memcmp(first, first + 1, io->iov->iov_len - 1) != 0)
        return false;
    for (uint32_t k = 1; k < io->iov_count; k++)
        if (io->iov[k].iov_base != first || io->iov[k].iov_len > io->iov->iov_len)
            return false;
    return true;
}

static void io_gather(struct sim_io *i, const struct file_io *io)
{
    i->zeroes = io_is_zero(io);
    if (i->zeroes)
        return;
    if (i->data_capacity < io->len) {
        free(i->data);
        i->data = malloc(io->len);
        assert(i->data != NULL);
        i->data_capacity = io->len;
    }
    size_t at = 0;
    for (uint32_t k = 0; k < io->iov_count; k++) {
        assert(io->iov[k].iov_len <= io->len - at);
        memcpy(i->data + at, io->iov[k].iov_base, io->iov[k].iov_len);
        at += io->iov[k].iov_len;
    }
    assert(at == io->len);
    i->crc = crc32c(0, i->data, at);
}

/* Whoever submitted a write must not have changed its memory meanwhile. */
static bool io_unchanged(const struct sim_io *i)
{
    size_t at = 0;
    for (uint32_t k = 0; !i->zeroes && k < i->io->iov_count; k++) {
        if (memcmp(i->data + at, i->io->iov[k].iov_base, i->io->iov[k].iov_len) != 0)
            return false;
        at += i->io->iov[k].iov_len;
    }
    return true;
}

/* What it writes from its byte `at` on; NULL: zeroes. */
static const uint8_t *io_data(const struct sim_io *i, uint64_t at)
{
    return i->op == FILE_WRITE && !i->zeroes ? i->data + at : NULL;
}

static void io_scatter(const struct sim_io *i, bool stale)
{
    const struct sim_content *c = &i->file->content;
    uint64_t at = i->offset;
    for (uint32_t k = 0; k < i->io->iov_count; k++) {
        uint8_t *to = i->io->iov[k].iov_base;
        for (size_t left = i->io->iov[k].iov_len; left > 0;) {
            size_t in = at % BLOCK_SIZE;
            size_t n = MIN(BLOCK_SIZE - in, left);
            const uint8_t *from =
                stale ? sim_content_stable_bytes(c, at / BLOCK_SIZE) : sim_content_bytes(c, at / BLOCK_SIZE);
            memcpy(to, from + in, n);
            to += n;
            at += n;
            left -= n;
        }
    }
    assert(at == i->offset + i->len);
}

static bool io_allocates(const struct sim_io *i)
{
    for (uint64_t b = i->offset / BLOCK_SIZE; b * BLOCK_SIZE < i->offset + i->len; b++)
        if (sim_file_block(i->file, b) == NULL)
            return true;
    return false;
}

/* Whole blocks of it, each: done, not done, or torn. */
static void io_apply_some(struct sim_io *i, uint32_t done_ppm, uint32_t torn_ppm)
{
    struct sim *s = i->file->node->sim;
    struct sim_content *c = &i->file->content;
    for (uint64_t at = 0; at < i->len; at += BLOCK_SIZE) {
        uint64_t draw = sim_random_below(&s->random, 1000000);
        uint64_t n = MIN(BLOCK_SIZE, i->len - at);
        if (draw < done_ppm)
            sim_content_write(c, i->offset + at, io_data(i, at), n, false);
        else if (draw < (uint64_t)done_ppm + torn_ppm && io_data(i, at) != NULL && n == BLOCK_SIZE &&
                 i->offset % BLOCK_SIZE == 0 && i->offset + at + n <= c->size_bytes)
            sim_content_tear(c, (i->offset + at) / BLOCK_SIZE, i->data + at);
    }
}

/* Where a misdirected write lands instead; returns false if there is no other place. */
static bool io_misdirect(struct sim_io *i)
{
    uint64_t block;
    uint64_t blocks = DIV_ROUND_UP(i->len, (uint64_t)BLOCK_SIZE);
    if (i->file->content.size_bytes / BLOCK_SIZE <= blocks ||
        !sim_file_pick_block(i->file, 0, i->file->content.size_bytes / BLOCK_SIZE - blocks, &block) ||
        block * BLOCK_SIZE == i->offset)
        return false;
    sim_count_fault(i->file->node->sim, SIM_FAULT_MISDIRECTED);
    sim_trace(i->file->node->sim, "misdirected", i->file->path, i->offset, block * BLOCK_SIZE, i->len);
    i->offset = block * BLOCK_SIZE;
    return true;
}

static int io_write(struct sim_io *i)
{
    struct sim *s = i->file->node->sim;
    struct sim_drive_faults *f = &i->file->faults;
    const uint8_t *data = io_data(i, 0);
    if (f->full && io_allocates(i)) {
        sim_count_fault(s, SIM_FAULT_HOST_FULL);
        return ERR_SYS(ENOSPC);
    }
    if (sim_chance(&s->random, f->write_error_ppm)) {
        sim_count_fault(s, SIM_FAULT_WRITE_ERROR);
        io_apply_some(i, 400000, 200000);
        return ERR_SYS(EIO);
    }
    if (i->op == FILE_WRITE && sim_chance(&s->random, f->drop_ppm)) {
        sim_count_fault(s, SIM_FAULT_DROPPED);
        sim_trace(s, "dropped", i->file->path, i->offset, i->len, 0);
        return 0;
    }
    if (i->op == FILE_WRITE && sim_chance(&s->random, f->misdirect_ppm))
        (void)io_misdirect(i);
    if (s->o.mutant == SIM_MUTANT_WRONG_BLOCK && i->op == FILE_WRITE && i->crc % 256 == 0 &&
        i->offset + i->len + BLOCK_SIZE <= i->file->content.size_bytes)
        i->offset += BLOCK_SIZE;
    sim_content_write(&i->file->content, i->offset, data, i->len,
                      i->dsync && s->o.mutant != SIM_MUTANT_NO_DSYNC);
    return 0;
}

static int io_perform(struct sim_io *i)
{
    struct sim *s = i->file->node->sim;
    struct sim_content *c = &i->file->content;
    if (i->file->faults.lost)
        return ERR_SYS(EIO);
    switch (i->op) {
    case FILE_READ:
        if (sim_chance(&s->random, i->file->faults.read_error_ppm)) {
            sim_count_fault(s, SIM_FAULT_READ_ERROR);
            return ERR_SYS(EIO);
        }
        if (i->offset + i->len > c->size_bytes)
            return ERR_SHORT_IO;
        io_scatter(i, s->o.mutant == SIM_MUTANT_STALE_READ && sim_random_below(&s->random, 4) == 0);
        return 0;
    case FILE_WRITE:
    case FILE_ZERO:
        return io_write(i);
    case FILE_SYNC:
        if (sim_chance(&s->random, i->file->faults.sync_error_ppm)) {
            sim_count_fault(s, SIM_FAULT_SYNC_ERROR);
            return ERR_SYS(EIO);
        }
        if (s->o.mutant != SIM_MUTANT_NO_SYNC)
            sim_content_sync(c, i->covers);
        i->file->durable = true;
        return 0;
    case FILE_DISCARD: /* contents are undefined: they stay, or they go */
        if (sim_random_below(&s->random, 2) == 0)
            sim_content_write(c, i->offset, NULL, i->len, false);
        return 0;
    }
    assert(!"an operation that world.h does not have");
    return 0;
}

static const char *const op_names[] = {"read", "write", "sync", "zero", "discard"};

static void io_answer(struct sim_io *i, int result)
{
    struct sim *s = i->file->node->sim;
    struct file_io *io = i->io;
    struct reactor *r = io->file->reactor;
    sim_trace(s, op_names[i->op], i->file->path, i->offset, i->len, (uint64_t)-result);
    sim_mark_turn(r);
    reactor_enter(r);
    file_io_done(io, result);
    reactor_enter(NULL);
}

/* The bug of SIM_MUTANT_EARLY_ACK: completes first, happens later. */
static bool io_early(struct sim_io *i)
{
    struct sim *s = i->file->node->sim;
    if (s->o.mutant != SIM_MUTANT_EARLY_ACK || i->op != FILE_WRITE || i->acknowledged)
        return false;
    i->acknowledged = true;
    sim_event_post(s, &i->event, s->now_ns + sim_draw_latency_ns(s, 4 * s->o.io_latency_us), i->file->node);
    io_answer(i, 0);
    return true;
}

static void io_due(struct sim_event *e)
{
    struct sim_io *i = CONTAINER_OF(e, struct sim_io, event);
    struct sim *s = i->file->node->sim;
    if (io_early(i))
        return;
    assert(i->op != FILE_WRITE || i->acknowledged || io_unchanged(i));
    bool fail = !i->acknowledged && op_should_fail(i->file->node, i->file->path, op_names[i->op]);
    if (fail && (i->op == FILE_WRITE || i->op == FILE_ZERO))
        io_apply_some(i, 400000, 200000);
    int result = fail ? ERR_SYS(EIO) : io_perform(i);
    if (!i->acknowledged)
        io_answer(i, result);
    io_put(s, i);
}

void sim_op_file_submit(struct file_io *io)
{
    struct sim_handle *h = CONTAINER_OF(io->file, struct sim_handle, base);
    struct sim_file *f = h->file;
    struct sim_node *n = f->node;
    struct sim *s = n->sim;
    n->submissions++;
    if (n->cut_at != 0 && n->submissions >= n->cut_at)
        n->cut = true;
    if (n->cut)
        return; /* the process is dead as seen from here: it never learns */
    struct sim_io *i = io_get(s);
    i->io = io;
    i->file = f;
    i->op = io->op;
    i->dsync = io->dsync;
    i->offset = io->offset;
    i->len = io->len;
    i->acknowledged = i->zeroes = false;
    i->crc = 0;
    i->event.fn = io_due;
    if (io->op == FILE_WRITE)
        io_gather(i, io);
    if (io->op == FILE_SYNC) {
        i->covers = f->content.sequence;
        f->content.syncing = f->content.sequence;
    }
    sim_trace(s, "submit", op_names[io->op], io->offset, io->len, i->crc + (io->dsync ? 1 : 0));
    uint64_t latency = sim_draw_latency_ns(s, s->o.io_latency_us + (uint32_t)(io->len / (256 * KIB)) * 50);
    if (sim_chance(&s->random, f->faults.slow_ppm)) {
        sim_count_fault(s, SIM_FAULT_SLOW_IO);
        latency *= sim_random_between(&s->random, 10, 1000);
    }
    if (f->faults.slow_factor > 1)
        latency *= f->faults.slow_factor;
    list_append(&n->in_flight, &i->link);
    sim_event_post(s, &i->event, s->now_ns + MIN(latency, LATENCY_MAX_NS), n);
}

/* ---- Crash ---- */

/* What was under way: a killed process's kernel finishes it, or had not begun, or stops between two blocks;
 * without power each block is on its own. */
static void io_crash(struct sim_io *i, const struct sim_power_loss *p)
{
    struct sim *s = i->file->node->sim;
    if (i->file->faults.lost || (i->op != FILE_WRITE && i->op != FILE_ZERO))
        return;
    if (i->file->faults.full && io_allocates(i))
        return;
    sim_count_fault(s, SIM_FAULT_CRASH_IN_FLIGHT);
    uint64_t draw = sim_random_below(&s->random, 3);
    if (draw == 0)
        return;
    if (p != NULL) {
        uint32_t done_ppm = (uint32_t)sim_random_below(&s->random, 1000001 - p->torn_ppm);
        io_apply_some(i, done_ppm, p->torn_ppm);
    } else if (draw == 1) {
        sim_content_write(&i->file->content, i->offset, io_data(i, 0), i->len, false);
    } else {
        uint64_t part = ALIGN_DOWN(sim_random_below(&s->random, i->len), (uint64_t)BLOCK_SIZE);
        if (part > 0)
            sim_content_write(&i->file->content, i->offset, io_data(i, 0), part, false);
    }
}

void sim_files_crash(struct sim_node *n, const struct sim_power_loss *p)
{
    struct sim *s = n->sim;
    LIST_FOREACH (&n->in_flight, l) {
        io_crash(CONTAINER_OF(l, struct sim_io, link), p);
    }
    LIST_FOREACH_SAFE (&n->files, l) {
        struct sim_file *f = CONTAINER_OF(l, struct sim_file, link);
        f->lock_boot = 0;
        f->content.syncing = 0;
        if (p == NULL)
            continue;
        uint64_t lost, torn;
        sim_content_power_loss(&f->content, p->lost_ppm, p->torn_ppm, &lost, &torn);
        s->faults[SIM_FAULT_UNFLUSHED_LOST] += lost;
        s->faults[SIM_FAULT_UNFLUSHED_TORN] += torn;
        sim_trace(s, "unflushed", f->path, lost, torn, f->content.blocks_used);
        if (!f->durable && sim_random_below(&s->random, 2) == 0)
            f->unlinked = true;
        f->durable = true;
    }
}
