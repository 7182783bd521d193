/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of a local drive: one reactor's way to it. The hot path is local_submit() and io_done(). */
#include "drive/internal.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

/* ---- Completion ---- */

/* Fills result and counters, and decides what an error means for the drive. */
static int io_result(struct local_drive *ld, const struct drive_io *io, int err)
{
    struct drive_home *h = ld->home;
    if (err == 0)
        return 0;
    counter_add(&ld->counters.errors, 1);
    ring_event("drive-io-error", (uint64_t)io->op, (uint64_t)-err);
    /* A read that fails is one bad place, which the layer above repairs from another copy. A short read is a
     * file that was cut. A failed write or flush leaves unknown what is on the medium. */
    if (io->op == DRIVE_READ && err != ERR_SHORT_IO)
        return err;
    static const char *const names[] = {
        [DRIVE_READ] = "read", [DRIVE_WRITE] = "write", [DRIVE_FLUSH] = "flush"};
    home_set_state(h, DRIVE_LOST, "a %s failed: %s", names[io->op], error_text(err));
    return ERR_DRIVE_GONE;
}

static void wake_drained(struct local_drive *ld)
{
    if (ld->drain_waiters > 0)
        waitq_wake_all(&ld->drained);
}

static void renew_lease(struct local_session *s, uint64_t from_ns)
{
    /* Invariant 4: none after a fence; the fence reads it when this session has drained. */
    if (session_current(s->volume, s->serial))
        s->base.lease_until_ns = MAX(s->base.lease_until_ns, from_ns + DRIVE_LEASE_NS);
}

static void io_complete(struct local_drive *ld, struct drive_io *io, uint32_t phase, int err)
{
    struct local_session *s = local_session_of(io->session);
    assert(s->base.in_flight > 0 && s->phase_in_flight[phase] > 0 && ld->base.queue_depth > 0);
    io->result = io_result(ld, io, err);
    uint64_t latency = reactor_now_ns() - io->submitted_ns;
    switch (io->op) {
    case DRIVE_READ:
        histogram_add(&ld->counters.read_latency, latency);
        break;
    case DRIVE_WRITE:
        histogram_add(&ld->counters.write_latency, latency);
        break;
    case DRIVE_FLUSH:
        histogram_add(&ld->counters.flush_latency, latency);
        break;
    }
    if (io->result == 0)
        renew_lease(s, io->submitted_ns);
    s->base.in_flight--;
    s->phase_in_flight[phase]--;
    ld->base.queue_depth--;
    wake_drained(ld);
    if (PREDICT_FALSE(home_state(ld->home) != DRIVE_OK))
        handle_take_state(ld);
    io->done(io);
}

/* The phase of admission is remembered by which of the two functions was registered. */
static void io_done_even(struct file_io *f)
{
    struct drive_io *io = f->ctx;
    io_complete(local_of(io->session->drive), io, 0, f->result);
}
static void io_done_odd(struct file_io *f)
{
    struct drive_io *io = f->ctx;
    io_complete(local_of(io->session->drive), io, 1, f->result);
}

/* ---- Flush: those that come while one is under way share the next one ---- */

static void flush_done(struct file_io *f);

static void flush_start(struct local_drive *ld)
{
    assert(!ld->flushing && list_empty(&ld->flush_riding));
    while (!list_empty(&ld->flush_waiting))
        list_append(&ld->flush_riding, list_pop(&ld->flush_waiting));
    ld->flushing = true;
    ld->flush_io = (struct file_io){.file = ld->file, .op = FILE_SYNC, .done = flush_done, .ctx = ld};
    file_submit(&ld->flush_io);
}

static void flush_done(struct file_io *f)
{
    struct local_drive *ld = f->ctx;
    int err = f->result;
    struct list ready;
    list_init(&ready);
    while (!list_empty(&ld->flush_riding))
        list_append(&ready, list_pop(&ld->flush_riding));
    ld->flushing = false;
    /* The next one first: what done() below submits came after it began and must wait for yet another. */
    if (!list_empty(&ld->flush_waiting))
        flush_start(ld);
    struct list *it;
    while ((it = list_pop(&ready)) != NULL) {
        struct drive_io *io = CONTAINER_OF(it, struct drive_io, file.link);
        io_complete(ld, io, io->file.done == io_done_odd, err);
    }
}

/* ---- Submit ---- */

static void rejected_done(struct message *m)
{
    struct local_drive *ld = CONTAINER_OF(m, struct local_drive, reject_message);
    ld->reject_posted = false;
    struct list ready;
    list_init(&ready);
    while (!list_empty(&ld->rejected))
        list_append(&ready, list_pop(&ld->rejected));
    struct list *it;
    while ((it = list_pop(&ready)) != NULL) {
        struct drive_io *io = CONTAINER_OF(it, struct drive_io, file.link);
        struct local_session *s = local_session_of(io->session);
        s->base.in_flight--;
        s->phase_in_flight[io->file.done == io_done_odd]--;
        ld->base.queue_depth--;
        wake_drained(ld);
        io->done(io);
    }
}

/* done() is called from the loop, never from inside of submit. */
static void reject(struct local_drive *ld, struct drive_io *io, int err)
{
    io->result = err;
    list_append(&ld->rejected, &io->file.link);
    if (ld->reject_posted)
        return;
    ld->reject_posted = true;
    ld->reject_message.fn = rejected_done;
    reactor_post(ld->reactor, &ld->reject_message);
}

static int submit_check(struct local_drive *ld, const struct drive_io *io)
{
    const struct drive_home *h = ld->home;
    const struct local_session *s = local_session_of(io->session);
    if (PREDICT_FALSE(home_state(h) != DRIVE_OK))
        return ERR_DRIVE_GONE;
    if (PREDICT_FALSE(!session_current(s->volume, s->serial)))
        return ERR_DRIVE_FENCED;
    if (io->op == DRIVE_FLUSH)
        return 0;
    if (PREDICT_FALSE(h->inspect && io->op == DRIVE_WRITE))
        return ERR_DRIVE_READ_ONLY;
    if (PREDICT_FALSE(io->slab >= h->sb.layout.slabs_total ||
                      __atomic_load_n(&h->owner[io->slab], __ATOMIC_ACQUIRE) != s->volume->tag ||
                      io->block >= ld->base.slab_blocks || io->blocks > ld->base.slab_blocks - io->block))
        return ERR_DRIVE_BAD_SLAB;
    return 0;
}

static void local_submit(struct drive_io *io)
{
    struct local_session *s = local_session_of(io->session);
    struct local_drive *ld = local_of(s->base.drive);
    assert(reactor_current() == ld->reactor);
    io->submitted_ns = reactor_now_ns();
    io->file =
        (struct file_io){.file = ld->file, .done = s->phase == 0 ? io_done_even : io_done_odd, .ctx = io};
    s->base.in_flight++;
    s->phase_in_flight[s->phase]++;
    ld->base.queue_depth++;

    int err = submit_check(ld, io);
    if (PREDICT_FALSE(err != 0)) {
        if (err == ERR_DRIVE_GONE)
            handle_take_state(ld);
        reject(ld, io, err);
        return;
    }
    if (PREDICT_FALSE(io->op == DRIVE_FLUSH && ld->home->inspect)) {
        reject(ld, io, 0);
        return;
    }
    if (io->op == DRIVE_FLUSH) {
        counter_add(&ld->counters.flushes, 1);
        list_append(&ld->flush_waiting, &io->file.link);
        if (!ld->flushing)
            flush_start(ld);
        return;
    }
    uint64_t len = (uint64_t)io->blocks * BLOCK_SIZE;
    bool read = io->op == DRIVE_READ;
    counter_add(read ? &ld->counters.reads : &ld->counters.writes, 1);
    counter_add(read ? &ld->counters.read_bytes : &ld->counters.write_bytes, len);
    io->file.op = read ? FILE_READ : FILE_WRITE;
    io->file.dsync = !read && io->dsync;
    io->file.offset = ld->home->sb.layout.slab_offset + (uint64_t)io->slab * ld->home->sb.slab_bytes +
                      (uint64_t)io->block * BLOCK_SIZE;
    io->file.len = len;
    io->file.iov = io->iov;
    io->file.iov_count = io->iov_count;
    io->file.page = io->iov_count == 1 ? io->page : NULL;
    file_submit(&io->file);
}

/* ---- Sessions ---- */

static bool session_busy(const struct local_session *s)
{
    return s->base.in_flight > 0 || s->calls > 0;
}

int handle_drain(struct local_drive *ld, const struct drive_volume *v, uint64_t serial, uint64_t epoch,
                 uint64_t *lease_until_ns)
{
    assert(reactor_current() == ld->reactor);
    bool busy = true;
    while (busy) {
        busy = false;
        LIST_FOREACH (&ld->sessions, it) {
            const struct local_session *s = CONTAINER_OF(it, struct local_session, link);
            if (s->volume != v || s->serial >= serial)
                continue;
            busy = busy || session_busy(s);
            if (s->base.epoch < epoch)
                *lease_until_ns = MAX(*lease_until_ns, s->base.lease_until_ns);
        }
        if (!busy)
            return 0;
        ld->drain_waiters++;
        int err = waitq_wait(&ld->drained, DEADLINE_NEVER);
        ld->drain_waiters--;
        if (err != 0)
            return err;
    }
    return 0;
}

/* Waits until all I/O that the session submitted before has completed; later I/O goes on meanwhile. */
static void session_drain_before(struct local_drive *ld, struct local_session *s) may_yield
{
    fiber_shield(); /* the slab is revoked already: the rest must follow */
    fmutex_lock(&s->drain_lock);
    uint32_t old = s->phase;
    s->phase = 1 - old;
    while (s->phase_in_flight[old] > 0) {
        ld->drain_waiters++;
        int err = waitq_wait(&ld->drained, DEADLINE_NEVER);
        assert(err == 0);
        ld->drain_waiters--;
    }
    fmutex_unlock(&s->drain_lock);
    fiber_unshield();
}

struct home_call {
    struct drive_home *home;
    struct local_session *session;
    struct local_drive *handle;
    struct uuid volume;
    uint64_t epoch, generation, serial;
    struct drive_volume *ret_volume;
    uint32_t group, member, slab;
    struct slab_entry *list;
    uint32_t count;
    struct drive_info *info;
};

static int fence_call(void *arg) may_yield
{
    struct home_call *c = arg;
    return home_fence(c->home, c->volume, c->epoch, c->generation, &c->ret_volume, &c->serial);
}

static int local_session_open(struct drive *d, struct uuid volume, uint64_t epoch, uint64_t generation,
                              struct drive_session **ret) may_yield
{
    struct local_drive *ld = local_of(d);
    assert(reactor_current() == ld->reactor);
    struct local_session *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    struct home_call c = {.home = ld->home, .volume = volume, .epoch = epoch, .generation = generation};
    uint64_t asked_ns = reactor_now_ns();
    int err = reactor_call(ld->home->reactor, fence_call, &c);
    if (err != 0) {
        free(s);
        return err;
    }
    s->base = (struct drive_session){
        .drive = d, .volume = volume, .epoch = epoch, .incarnation = ld->home->incarnation};
    s->volume = c.ret_volume;
    s->serial = c.serial;
    fmutex_init(&s->drain_lock);
    list_append(&ld->sessions, &s->link);
    renew_lease(s, asked_ns);
    *ret = &s->base;
    return 0;
}

static void local_session_close(struct drive_session *base)
{
    struct local_session *s = local_session_of(base);
    struct local_drive *ld = local_of(base->drive);
    assert(reactor_current() == ld->reactor);
    assert(!session_busy(s));
    list_remove(&s->link);
    volume_unpin(s->volume);
    free(s);
    wake_drained(ld);
}

static int local_session_renew(struct drive_session *base)
{
    struct local_session *s = local_session_of(base);
    struct local_drive *ld = local_of(base->drive);
    if (home_state(ld->home) != DRIVE_OK)
        return ERR_DRIVE_GONE;
    if (!session_current(s->volume, s->serial))
        return ERR_DRIVE_FENCED;
    renew_lease(s, reactor_now_ns());
    return 0;
}

/* ---- Slabs ---- */

static int alloc_call(void *arg) may_yield
{
    struct home_call *c = arg;
    return home_slab_alloc(c->home, c->session, c->group, c->member, &c->slab);
}
static int revoke_call(void *arg)
{
    struct home_call *c = arg;
    return home_slab_revoke(c->home, c->session, c->slab);
}
static int release_call(void *arg) may_yield
{
    struct home_call *c = arg;
    return home_slab_release(c->home, c->slab);
}
static int list_call(void *arg)
{
    struct home_call *c = arg;
    return home_slab_list(c->home, c->volume, &c->list, &c->count);
}
static int purge_call(void *arg) may_yield
{
    struct home_call *c = arg;
    return home_volume_purge(c->home, c->volume, c->epoch);
}

/* A fence waits for these calls as for I/O. */
static void call_end(struct local_drive *ld, struct local_session *s)
{
    assert(s->calls > 0);
    s->calls--;
    wake_drained(ld);
}

static int local_slab_alloc(struct drive_session *base, uint32_t group, uint32_t member, uint32_t *ret_slab)
    may_yield
{
    struct local_session *s = local_session_of(base);
    struct local_drive *ld = local_of(base->drive);
    struct home_call c = {.home = ld->home, .session = s, .group = group, .member = member};
    uint64_t asked_ns = reactor_now_ns();
    s->calls++;
    int err = reactor_call(ld->home->reactor, alloc_call, &c);
    if (err == 0) {
        renew_lease(s, asked_ns);
        *ret_slab = c.slab;
    }
    call_end(ld, s);
    return err;
}

static int local_slab_free(struct drive_session *base, uint32_t slab) may_yield
{
    struct local_session *s = local_session_of(base);
    struct local_drive *ld = local_of(base->drive);
    struct home_call c = {.home = ld->home, .session = s, .slab = slab};
    s->calls++;
    int err = reactor_call(ld->home->reactor, revoke_call, &c);
    if (err == 0) {
        session_drain_before(ld, s);
        err = reactor_call(ld->home->reactor, release_call, &c);
    }
    call_end(ld, s);
    return err;
}

static int local_slab_list(struct drive *d, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
    may_yield
{
    struct local_drive *ld = local_of(d);
    struct home_call c = {.home = ld->home, .volume = volume};
    int err = reactor_call(ld->home->reactor, list_call, &c);
    if (err != 0)
        return err;
    *ret = c.list;
    *ret_count = c.count;
    return 0;
}

static int local_volume_purge(struct drive *d, struct uuid volume, uint64_t epoch) may_yield
{
    struct home_call c = {.home = local_of(d)->home, .volume = volume, .epoch = epoch};
    return reactor_call(c.home->reactor, purge_call, &c);
}

/* ---- What people see ---- */

static void info_add(struct drive_info *info, const struct drive_counters *c)
{
    info->reads += counter_get(&c->reads);
    info->writes += counter_get(&c->writes);
    info->flushes += counter_get(&c->flushes);
    info->read_bytes += counter_get(&c->read_bytes);
    info->write_bytes += counter_get(&c->write_bytes);
    info->errors += counter_get(&c->errors);
    histogram_merge(&info->read_latency, &c->read_latency);
    histogram_merge(&info->write_latency, &c->write_latency);
    histogram_merge(&info->flush_latency, &c->flush_latency);
}

static int info_call(void *arg) may_yield
{
    struct home_call *c = arg;
    struct drive_home *h = c->home;
    struct drive_info *info = c->info;
    *info = (struct drive_info){.id = h->sb.drive_id,
                                .pool_id = h->sb.pool_id,
                                .incarnation = h->incarnation,
                                .state = home_state(h),
                                .size_bytes = h->sb.size_bytes,
                                .slab_bytes = h->sb.slab_bytes,
                                .slabs_total = h->sb.layout.slabs_total,
                                .slabs_free = h->slabs_free};
    memcpy(info->path, h->path, sizeof(info->path));
    if (info->state != DRIVE_OK)
        memcpy(info->why, h->why, sizeof(info->why));
    fmutex_lock(&h->handles_lock);
    info_add(info, &h->detached);
    LIST_FOREACH (&h->handles, it)
        info_add(info, &CONTAINER_OF(it, struct local_drive, link)->counters);
    fmutex_unlock(&h->handles_lock);
    return 0;
}

static int local_get_info(struct drive *d, struct drive_info *ret) may_yield
{
    struct home_call c = {.home = local_of(d)->home, .info = ret};
    return reactor_call(c.home->reactor, info_call, &c);
}

void handle_take_state(struct local_drive *ld)
{
    drive_state_changed(&ld->base, home_state(ld->home));
}

/* ---- Attach and detach ---- */

static const struct drive_ops local_ops = {
    .get_info = local_get_info,
    .session_open = local_session_open,
    .session_close = local_session_close,
    .session_renew = local_session_renew,
    .submit = local_submit,
    .slab_alloc = local_slab_alloc,
    .slab_free = local_slab_free,
    .slab_list = local_slab_list,
    .volume_purge = local_volume_purge,
};

static int attach_call(void *arg) may_yield
{
    struct home_call *c = arg;
    struct drive_home *h = c->home;
    assert(!h->closing);
    fmutex_lock(&h->handles_lock);
    list_append(&h->handles, &c->handle->link);
    fmutex_unlock(&h->handles_lock);
    return 0;
}

static int detach_call(void *arg) may_yield
{
    struct home_call *c = arg;
    struct drive_home *h = c->home;
    fmutex_lock(&h->handles_lock);
    list_remove(&c->handle->link);
    struct drive_info sum = {0};
    info_add(&sum, &h->detached);
    info_add(&sum, &c->handle->counters);
    h->detached = (struct drive_counters){.reads = sum.reads,
                                          .writes = sum.writes,
                                          .flushes = sum.flushes,
                                          .read_bytes = sum.read_bytes,
                                          .write_bytes = sum.write_bytes,
                                          .errors = sum.errors,
                                          .read_latency = sum.read_latency,
                                          .write_latency = sum.write_latency,
                                          .flush_latency = sum.flush_latency};
    fmutex_unlock(&h->handles_lock);
    return 0;
}

int drive_attach(struct drive_home *h, struct drive **ret)
{
    struct local_drive *ld = calloc(1, sizeof(*ld));
    if (ld == NULL)
        return ERR_NO_MEMORY;
    ld->base = (struct drive){.ops = &local_ops,
                              .id = h->sb.drive_id,
                              .slab_blocks = h->sb.slab_bytes / BLOCK_SIZE,
                              .state = home_state(h)};
    ld->home = h;
    ld->reactor = reactor_current();
    list_init(&ld->sessions);
    list_init(&ld->rejected);
    list_init(&ld->flush_riding);
    list_init(&ld->flush_waiting);
    waitq_init(&ld->drained);
    int err = file_open(h->path, (h->inspect ? 0 : FILE_OPEN_WRITE) | FILE_OPEN_DIRECT, &ld->file);
    if (err != 0) {
        free(ld);
        return err;
    }
    struct home_call c = {.home = h, .handle = ld};
    err = reactor_call(h->reactor, attach_call, &c);
    if (err != 0) {
        file_close(ld->file);
        free(ld);
        return err;
    }
    *ret = &ld->base;
    return 0;
}

void drive_detach(struct drive *d)
{
    struct local_drive *ld = local_of(d);
    assert(reactor_current() == ld->reactor);
    assert(list_empty(&ld->sessions) && !ld->flushing && !ld->reject_posted);
    assert(d->queue_depth == 0);
    if (d->set != NULL)
        drive_set_remove(d->set, d);
    struct home_call c = {.home = ld->home, .handle = ld};
    fiber_shield();
    int err = reactor_call(ld->home->reactor, detach_call, &c);
    fiber_unshield();
    assert(err == 0);
    file_close(ld->file);
    free(ld);
}
