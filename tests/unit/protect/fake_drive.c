/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_drive.h"

#include "runtime/error.h"

#include <stdlib.h>

volatile uint32_t fake_drive_allocates;

static void *fake_zalloc(size_t count, size_t size)
{
    fake_drive_allocates++;
    void *p = calloc(count, size);
    fake_drive_allocates--;
    return p;
}

struct fake_op {
    struct timer timer;
    struct list link;
    struct drive_io *io;
};

static struct fake_drive *fake_of(struct drive *d)
{
    return (struct fake_drive *)d;
}

static size_t slab_bytes(const struct fake_drive *f)
{
    return (size_t)f->base.slab_blocks * BLOCK_SIZE;
}

/* ---- Requests ---- */

static bool range_is_bad(const struct fake_drive *f, const struct drive_io *io)
{
    if (f->bad_block_to == 0)
        return true;
    return io->slab == f->bad_slab && io->block < f->bad_block_to &&
           f->bad_block_from < io->block + io->blocks;
}

static int fake_judge(const struct fake_drive *f, const struct drive_io *io)
{
    if (f->gone)
        return ERR_DRIVE_GONE;
    if (io->session->epoch < f->epoch)
        return ERR_DRIVE_FENCED;
    if (io->op == DRIVE_FLUSH)
        return f->flush_error;
    if (io->slab >= f->slabs_total || !f->slabs[io->slab].used ||
        !uuid_equal(f->slabs[io->slab].volume, io->session->volume) || io->block >= f->base.slab_blocks ||
        io->blocks > f->base.slab_blocks - io->block)
        return ERR_DRIVE_BAD_SLAB;
    if (io->op == DRIVE_WRITE)
        return f->write_error;
    return range_is_bad(f, io) ? f->read_error : 0;
}

static void fake_transfer(struct fake_drive *f, struct drive_io *io)
{
    if (io->op == DRIVE_FLUSH) {
        for (uint32_t i = 0; i < f->slabs_total; i++) {
            if (f->slabs[i].used)
                memcpy(f->slabs[i].stable, f->slabs[i].now, slab_bytes(f));
        }
        return;
    }
    if (io->op == DRIVE_WRITE && f->swallow_writes)
        return;
    struct fake_slab *s = &f->slabs[io->slab];
    size_t at = (size_t)io->block * BLOCK_SIZE;
    for (uint32_t i = 0; i < io->iov_count; i++) {
        const struct iovec *v = &io->iov[i];
        if (io->op == DRIVE_READ) {
            memcpy(v->iov_base, s->now + at, v->iov_len);
        } else {
            memcpy(s->now + at, v->iov_base, v->iov_len);
            if (io->dsync)
                memcpy(s->stable + at, v->iov_base, v->iov_len);
        }
        at += v->iov_len;
    }
}

static void fake_answer(struct fake_op *op)
{
    struct drive_io *io = op->io;
    struct fake_drive *f = fake_of(io->session->drive);
    free(op);
    io->result = fake_judge(f, io);
    if (io->result == 0)
        fake_transfer(f, io);
    if (io->result == 0)
        io->session->lease_until_ns = MAX(io->session->lease_until_ns, io->submitted_ns + DRIVE_LEASE_NS);
    assert(f->base.queue_depth > 0);
    f->base.queue_depth--;
    io->session->in_flight--;
    io->done(io);
}

static void fake_due(struct timer *t)
{
    struct fake_op *op = CONTAINER_OF(t, struct fake_op, timer);
    struct fake_drive *f = fake_of(op->io->session->drive);
    if (f->hold)
        list_append(&f->held, &op->link);
    else
        fake_answer(op);
}

static void fake_submit(struct drive_io *io)
{
    struct fake_drive *f = fake_of(io->session->drive);
    struct fake_op *op = fake_zalloc(1, sizeof(*op));
    assert(op != NULL);
    op->io = io;
    op->timer.fn = fake_due;
    list_init(&op->link);
    io->submitted_ns = reactor_now_ns();
    f->base.queue_depth++;
    f->max_queue = MAX(f->max_queue, f->base.queue_depth);
    io->session->in_flight++;
    uint64_t *count = io->op == DRIVE_READ ? &f->reads : io->op == DRIVE_WRITE ? &f->writes : &f->flushes;
    ++*count;
    uint64_t delay = io->op == DRIVE_READ    ? f->read_delay_ns
                     : io->op == DRIVE_WRITE ? f->write_delay_ns
                                             : f->flush_delay_ns;
    timer_start(&op->timer, reactor_now_ns() + delay);
}

void fake_drive_release(struct fake_drive *f)
{
    f->hold = false;
    for (struct list *l; (l = list_pop(&f->held)) != NULL;) {
        struct fake_op *op = CONTAINER_OF(l, struct fake_op, link);
        timer_start(&op->timer, reactor_now_ns());
    }
}

/* ---- Sessions ---- */

static may_yield int fake_session_open(struct drive *d, struct uuid volume, uint64_t epoch,
                                       uint64_t generation, struct drive_session **ret)
{
    struct fake_drive *f = fake_of(d);
    fiber_yield();
    if (f->gone)
        return ERR_DRIVE_GONE;
    if (epoch < f->epoch)
        return ERR_DRIVE_FENCED;
    struct drive_session *s = fake_zalloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    f->epoch = epoch;
    f->sessions++;
    f->open = true;
    *s = (struct drive_session){.drive = d,
                                .volume = volume,
                                .epoch = epoch,
                                .incarnation = f->incarnation,
                                .lease_until_ns = reactor_now_ns() + DRIVE_LEASE_NS};
    *ret = s;
    return 0;
}

static void fake_session_close(struct drive_session *s)
{
    fake_of(s->drive)->open = false;
    free(s);
}

static may_yield int fake_session_renew(struct drive_session *s)
{
    struct fake_drive *f = fake_of(s->drive);
    uint64_t asked = reactor_now_ns();
    fiber_yield();
    if (f->gone)
        return ERR_DRIVE_GONE;
    if (s->epoch < f->epoch)
        return ERR_DRIVE_FENCED;
    if (!f->no_renew)
        s->lease_until_ns = asked + DRIVE_LEASE_NS;
    return 0;
}

/* ---- Slabs ---- */

static may_yield int fake_slab_alloc(struct drive_session *s, uint32_t group, uint32_t member,
                                     uint32_t *ret_slab)
{
    struct fake_drive *f = fake_of(s->drive);
    fiber_yield();
    int err = f->alloc_delay_ns > 0 ? fiber_sleep(f->alloc_delay_ns) : 0;
    if (err != 0)
        return err;
    if (f->gone)
        return ERR_DRIVE_GONE;
    if (s->epoch < f->epoch)
        return ERR_DRIVE_FENCED;
    if (f->alloc_error != 0)
        return f->alloc_error;
    uint32_t unused = f->slabs_total;
    for (uint32_t i = 0; i < f->slabs_total; i++) {
        struct fake_slab *slab = &f->slabs[i];
        if (!slab->used) {
            unused = MIN(unused, i);
        } else if (uuid_equal(slab->volume, s->volume) && slab->group == group && slab->member == member) {
            *ret_slab = i;
            return 0;
        }
    }
    if (unused == f->slabs_total)
        return ERR_DRIVE_NO_SPACE;
    struct fake_slab *slab = &f->slabs[unused];
    *slab = (struct fake_slab){.used = true, .volume = s->volume, .group = group, .member = member};
    slab->now = fake_zalloc(1, slab_bytes(f));
    slab->stable = fake_zalloc(1, slab_bytes(f));
    assert(slab->now != NULL && slab->stable != NULL);
    *ret_slab = unused;
    return 0;
}

static void fake_slab_drop(struct fake_slab *slab)
{
    free(slab->now);
    free(slab->stable);
    *slab = (struct fake_slab){0};
}

static may_yield int fake_slab_free(struct drive_session *s, uint32_t slab)
{
    struct fake_drive *f = fake_of(s->drive);
    fiber_yield();
    if (f->gone)
        return ERR_DRIVE_GONE;
    if (slab >= f->slabs_total || !f->slabs[slab].used || !uuid_equal(f->slabs[slab].volume, s->volume))
        return ERR_DRIVE_BAD_SLAB;
    fake_slab_drop(&f->slabs[slab]);
    return 0;
}

static int fake_slab_list(struct drive *d, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
{
    struct fake_drive *f = fake_of(d);
    if (f->gone)
        return ERR_DRIVE_GONE;
    struct slab_entry *entries = fake_zalloc(f->slabs_total, sizeof(*entries));
    if (entries == NULL)
        return ERR_NO_MEMORY;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->slabs_total; i++) {
        const struct fake_slab *s = &f->slabs[i];
        if (s->used && (uuid_is_none(volume) || uuid_equal(volume, s->volume)))
            entries[n++] = (struct slab_entry){
                .slab = i, .volume = s->volume, .group = s->group, .member = s->member, .epoch = f->epoch};
    }
    *ret = entries;
    *ret_count = n;
    return 0;
}

static int fake_get_info(struct drive *d, struct drive_info *ret)
{
    struct fake_drive *f = fake_of(d);
    if (f->gone)
        return ERR_DRIVE_GONE;
    *ret = (struct drive_info){.id = d->id,
                               .incarnation = f->incarnation,
                               .state = DRIVE_OK,
                               .slab_bytes = (uint32_t)slab_bytes(f),
                               .slabs_total = f->slabs_total,
                               .slabs_free = fake_drive_free_slabs(f)};
    return 0;
}

static int fake_volume_purge(struct drive *d, struct uuid volume, uint64_t epoch)
{
    return ERR_UNSUPPORTED;
}

static const struct drive_ops fake_ops = {
    .get_info = fake_get_info,
    .session_open = fake_session_open,
    .session_close = fake_session_close,
    .session_renew = fake_session_renew,
    .submit = fake_submit,
    .slab_alloc = fake_slab_alloc,
    .slab_free = fake_slab_free,
    .slab_list = fake_slab_list,
    .volume_purge = fake_volume_purge,
};

/* ---- From outside ---- */

int fake_drive_new(uint8_t id, uint32_t slabs, uint32_t slab_blocks, struct fake_drive **ret)
{
    struct fake_drive *f = fake_zalloc(1, sizeof(*f));
    struct fake_slab *table = fake_zalloc(slabs, sizeof(*table));
    if (f == NULL || table == NULL) {
        free(f);
        free(table);
        return ERR_NO_MEMORY;
    }
    f->base = (struct drive){.ops = &fake_ops, .id = {{0xd0, id}}, .slab_blocks = slab_blocks};
    f->slabs_total = slabs;
    f->slabs = table;
    f->incarnation = 100 + id;
    list_init(&f->held);
    *ret = f;
    return 0;
}

void fake_drive_free(struct fake_drive *f)
{
    assert(f->base.queue_depth == 0);
    assert(!f->open);
    for (uint32_t i = 0; i < f->slabs_total; i++)
        fake_slab_drop(&f->slabs[i]);
    free(f->slabs);
    free(f);
}

static void fake_state(struct fake_drive *f, enum drive_state state)
{
    f->base.state = state;
    if (f->base.set == NULL)
        return;
    f->base.set->generation++;
    waitq_wake_all(&f->base.set->changed);
}

void fake_drive_lose(struct fake_drive *f)
{
    f->gone = true;
    fake_state(f, DRIVE_LOST);
}

void fake_drive_return(struct fake_drive *f, bool power_was_lost)
{
    f->gone = false;
    f->incarnation += 1000;
    for (uint32_t i = 0; power_was_lost && i < f->slabs_total; i++) {
        if (f->slabs[i].used)
            memcpy(f->slabs[i].now, f->slabs[i].stable, slab_bytes(f));
    }
    fake_state(f, DRIVE_OK);
}

uint32_t fake_drive_free_slabs(const struct fake_drive *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->slabs_total; i++)
        n += !f->slabs[i].used;
    return n;
}

uint8_t *fake_drive_block(struct fake_drive *f, uint32_t slab, uint32_t block)
{
    assert(f->slabs[slab].used);
    return f->slabs[slab].now + (size_t)block * BLOCK_SIZE;
}

uint8_t *fake_drive_stable_block(struct fake_drive *f, uint32_t slab, uint32_t block)
{
    assert(f->slabs[slab].used);
    return f->slabs[slab].stable + (size_t)block * BLOCK_SIZE;
}
