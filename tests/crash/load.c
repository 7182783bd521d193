/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread drives several libnbd handles by poll(). A request owns a slot with its buffer; its blocks are
 * marked busy in the model from sending to the answer. When the server is killed, libnbd ends each request
 * that is under way with an error: those changes stay pending in the model, and either content is right.
 */
#include "tests/crash/load.h"

#include <assert.h>
#include <errno.h>
#include <libnbd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONNECTIONS     2
#define SLOTS           32 /* of all connections together */
#define BLOCKS_MAX      32 /* of one request */
#define VERIFY_BLOCKS   64
#define FINDINGS_SHOWN  10
#define MILLISECOND     INT64_C(1000000)
#define CONNECT_WAIT_NS UINT64_C(10000000000)

enum kind { WRITE, ZERO, TRIM, FLUSH, READ };

struct load;
struct slot {
    struct load *load;
    enum kind kind;
    bool in_use;
    bool fua;
    size_t block;
    size_t count;
    unsigned char *buf;
};

struct load {
    struct model *model;
    struct load_counts *counts;
    struct nbd_handle *handles[CONNECTIONS];
    struct slot slots[SLOTS];
    size_t in_flight;
    bool killed;
    bool failed;
    size_t findings;
};

static void show_finding(struct load *l, const struct model_finding *f, const char *when)
{
    l->failed = true;
    if (++l->findings > FINDINGS_SHOWN)
        return;
    fprintf(stderr, "kill9: %s: block %zu (offset %zu) holds %s", when, f->block, f->block * MODEL_BLOCK,
            f->what);
    if (f->found_generation)
        fprintf(stderr, " (block %llu, generation %u)", (unsigned long long)f->found_block,
                f->found_generation);
    fprintf(stderr, "; acknowledged was generation %u", f->acked);
    if (f->has_pending)
        fprintf(stderr, ", unanswered is %u", f->pending);
    fprintf(stderr, "\n");
}

static struct nbd_handle *connect_one(struct server *s)
{
    uint64_t limit = server_clock_ns() + server_patience_ns(CONNECT_WAIT_NS);
    for (;;) {
        struct nbd_handle *h = nbd_create();
        assert(h);
        if (nbd_connect_uri(h, s->uri) == 0)
            return h;
        if (server_clock_ns() > limit) {
            fprintf(stderr, "kill9: cannot connect to %s: %s\n", s->uri, nbd_get_error());
            nbd_close(h);
            return NULL;
        }
        nbd_close(h);
        struct timespec wait = {0, 20 * MILLISECOND};
        nanosleep(&wait, NULL);
    }
}

static bool load_open(struct load *l, struct server *s, struct model *m, size_t slot_blocks)
{
    *l = (struct load){.model = m};
    for (size_t i = 0; i < SLOTS; i++) {
        l->slots[i].load = l;
        l->slots[i].buf = aligned_alloc(MODEL_BLOCK, slot_blocks * MODEL_BLOCK);
        assert(l->slots[i].buf);
    }
    for (size_t i = 0; i < CONNECTIONS; i++) {
        l->handles[i] = connect_one(s);
        if (!l->handles[i])
            return false;
    }
    int64_t size = nbd_get_size(l->handles[0]);
    if (size != (int64_t)(m->block_count * MODEL_BLOCK)) {
        fprintf(stderr, "kill9: the volume has %lld bytes, not %zu\n", (long long)size,
                m->block_count * MODEL_BLOCK);
        return false;
    }
    return true;
}

/* libnbd calls the completion of all that is still under way when a handle is closed, so handles go first. */
static void load_close(struct load *l)
{
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (l->handles[i])
            nbd_close(l->handles[i]);
    assert(l->in_flight == 0);
    for (size_t i = 0; i < SLOTS; i++)
        free(l->slots[i].buf);
}

static void count_answer(const struct slot *s, struct load_counts *c)
{
    switch (s->kind) {
    case WRITE:
        c->writes++;
        c->fua += s->fua;
        c->bytes_written += s->count * MODEL_BLOCK;
        break;
    case ZERO:
    case TRIM:
        c->zeroes++;
        break;
    case FLUSH:
        c->flushes++;
        break;
    case READ:
        c->reads++;
        break;
    }
}

static void verify_read(struct load *l, struct slot *s, const char *when)
{
    struct model_finding finding;
    for (size_t i = 0; i < s->count; i++)
        if (!model_verify(l->model, s->buf + i * MODEL_BLOCK, s->block + i, &finding))
            show_finding(l, &finding, when);
}

static const char *const kind_names[] = {"write", "write zeroes", "trim", "flush", "read"};

static void answer_error(struct load *l, struct slot *s, int error)
{
    if (l->killed) {
        if (l->counts)
            l->counts->unanswered++;
        return;
    }
    l->failed = true;
    if (++l->findings <= FINDINGS_SHOWN)
        fprintf(stderr, "kill9: %s of %zu blocks at block %zu failed on a running server: %s\n",
                kind_names[s->kind], s->count, s->block, strerror(error));
}

/* A read pins its blocks, so that no change of them is under way beside it. */
static void unpin(struct load *l, struct slot *s)
{
    for (size_t i = s->block; i < s->block + s->count; i++)
        l->model->blocks[i].busy = false;
}

static int answered(void *ctx, int *error)
{
    struct slot *s = ctx;
    struct load *l = s->load;
    assert(s->in_use && l->in_flight > 0);
    s->in_use = false;
    l->in_flight--;
    bool changes = s->kind == WRITE || s->kind == ZERO || s->kind == TRIM;
    if (*error) {
        answer_error(l, s, *error);
        if (changes)
            model_unanswered(l->model, s->block, s->count);
        else if (s->kind == READ)
            unpin(l, s);
        return 1;
    }
    if (l->counts)
        count_answer(s, l->counts);
    if (changes)
        model_acked(l->model, s->block, s->count);
    else if (s->kind == READ) {
        unpin(l, s);
        verify_read(l, s, l->counts ? "a read beside the writes" : "after the restart");
    }
    return 1;
}

/* Half of the requests go to a small part of the volume, so that blocks are overwritten many times between
 * commits; the rest spreads. */
static bool choose_blocks(struct load *l, struct slot *s)
{
    struct model *m = l->model;
    for (int attempt = 0; attempt < 8; attempt++) {
        size_t range = model_random(m) % 2 && m->block_count > 2048 ? 2048 : m->block_count;
        size_t longest = model_random(m) % 4 ? 4 : BLOCKS_MAX;
        size_t count = 1 + model_random_below(m, longest);
        size_t block = model_random_below(m, range - count + 1);
        bool free_of_others = true;
        for (size_t i = block; i < block + count; i++)
            free_of_others &= !m->blocks[i].busy;
        if (free_of_others) {
            s->block = block;
            s->count = count;
            return true;
        }
    }
    return false;
}

static void choose_kind(struct load *l, struct slot *s)
{
    uint64_t dice = model_random_below(l->model, 100);
    s->kind = dice < 78 ? WRITE : dice < 82 ? ZERO : dice < 86 ? TRIM : dice < 89 ? FLUSH : READ;
    s->fua = s->kind == WRITE && model_random_below(l->model, 4) == 0;
}

static int64_t send_one(struct load *l, struct slot *s, struct nbd_handle *h)
{
    nbd_completion_callback done = {.callback = answered, .user_data = s};
    uint64_t offset = s->block * MODEL_BLOCK, len = s->count * MODEL_BLOCK;
    uint32_t generation = l->model->next_generation;
    switch (s->kind) {
    case WRITE:
        l->model->next_generation++;
        for (size_t i = 0; i < s->count; i++)
            model_fill(l->model, s->buf + i * MODEL_BLOCK, s->block + i, generation);
        model_sent(l->model, s->block, s->count, generation);
        return nbd_aio_pwrite(h, s->buf, len, offset, done, s->fua ? LIBNBD_CMD_FLAG_FUA : 0);
    case ZERO:
        model_sent(l->model, s->block, s->count, 0);
        return nbd_aio_zero(h, len, offset, done, 0);
    case TRIM:
        model_sent(l->model, s->block, s->count, 0);
        return nbd_aio_trim(h, len, offset, done, 0);
    case FLUSH:
        return nbd_aio_flush(h, done, 0);
    case READ:
        for (size_t i = s->block; i < s->block + s->count; i++)
            l->model->blocks[i].busy = true;
        return nbd_aio_pread(h, s->buf, len, offset, done, 0);
    }
    return -1;
}

/* Marks the slot as used first: libnbd may answer before the call returns. */
static void submit(struct load *l, struct slot *s, struct nbd_handle *h)
{
    s->in_use = true;
    l->in_flight++;
    if (send_one(l, s, h) >= 0 || !s->in_use)
        return;
    int error = nbd_get_errno();
    answered(s, error ? &error : &(int){EIO});
}

static void pump(struct load *l, int timeout_ms)
{
    struct pollfd fds[CONNECTIONS];
    for (size_t i = 0; i < CONNECTIONS; i++) {
        unsigned direction = nbd_aio_get_direction(l->handles[i]);
        int fd = nbd_aio_get_fd(l->handles[i]);
        fds[i] = (struct pollfd){.fd = fd};
        if (direction & LIBNBD_AIO_DIRECTION_READ)
            fds[i].events |= POLLIN;
        if (direction & LIBNBD_AIO_DIRECTION_WRITE)
            fds[i].events |= POLLOUT;
    }
    if (poll(fds, CONNECTIONS, timeout_ms) < 0)
        assert(errno == EINTR);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        unsigned direction = nbd_aio_get_direction(l->handles[i]);
        if (direction & LIBNBD_AIO_DIRECTION_READ && fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            nbd_aio_notify_read(l->handles[i]);
        else if (direction & LIBNBD_AIO_DIRECTION_WRITE && fds[i].revents & (POLLOUT | POLLHUP | POLLERR))
            nbd_aio_notify_write(l->handles[i]);
    }
}

static bool usable(struct nbd_handle *h)
{
    return nbd_aio_is_ready(h) || nbd_aio_is_processing(h);
}

static bool any_usable(struct load *l)
{
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (usable(l->handles[i]))
            return true;
    return false;
}

static void fill_slots(struct load *l)
{
    for (size_t i = 0; i < SLOTS; i++) {
        struct slot *s = &l->slots[i];
        struct nbd_handle *h = l->handles[i % CONNECTIONS];
        if (s->in_use || !usable(h))
            continue;
        choose_kind(l, s);
        s->block = s->count = 0;
        if (s->kind != FLUSH && !choose_blocks(l, s))
            continue;
        submit(l, s, h);
    }
}

bool load_until_killed(struct server *s, struct model *m, uint64_t run_ns, struct load_counts *counts)
{
    struct load l;
    bool opened = load_open(&l, s, m, BLOCKS_MAX);
    uint64_t end = server_clock_ns() + run_ns;
    l.counts = counts;
    while (opened && !l.failed && server_clock_ns() < end) {
        fill_slots(&l);
        pump(&l, 1);
        if (!any_usable(&l) || !server_is_alive(s)) {
            fprintf(stderr, "kill9: the server closed all connections of itself\n");
            l.failed = true;
        }
    }
    l.killed = true;
    server_kill(s);
    /* Answers that it had sent before it died are acknowledgements too. */
    while (opened && any_usable(&l) && l.in_flight > 0)
        pump(&l, 100);
    load_close(&l);
    return opened && !l.failed;
}

bool load_verify_all(struct server *s, struct model *m, uint64_t *ret_bytes)
{
    struct load l;
    size_t next = 0;
    if (!load_open(&l, s, m, VERIFY_BLOCKS)) {
        load_close(&l);
        return false;
    }
    while (any_usable(&l) && (next < m->block_count || l.in_flight > 0)) {
        for (size_t i = 0; i < SLOTS && next < m->block_count; i++) {
            struct slot *slot = &l.slots[i];
            struct nbd_handle *h = l.handles[i % CONNECTIONS];
            if (slot->in_use || !usable(h))
                continue;
            slot->kind = READ;
            slot->block = next;
            slot->count = m->block_count - next < VERIFY_BLOCKS ? m->block_count - next : VERIFY_BLOCKS;
            next += slot->count;
            submit(&l, slot, h);
        }
        pump(&l, 1000);
    }
    bool complete = next == m->block_count && l.in_flight == 0;
    if (!complete)
        fprintf(stderr, "kill9: the connection was lost while everything was read back\n");
    load_close(&l);
    *ret_bytes = (uint64_t)m->block_count * MODEL_BLOCK;
    return complete && !l.failed;
}
