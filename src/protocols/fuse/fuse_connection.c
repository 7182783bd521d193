/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of a connection
 *
 * Leading. One fiber at a time reads the stream: the leader. It takes a request off the buffer and runs it
 * itself, on the spot: most are served from the cache and never wait. Before it runs one that may wait it
 * gives the role up (fuse_connection_yield_lead) and makes sure that a follower is in the run queue. If the
 * request waits, the follower finds the role free and leads on; if not, the old leader takes the role back,
 * and the follower ends.
 *
 *      leader --request--> runs it --role still free--> leader
 *                             |
 *                             +----role taken, or closing--> ends
 *      follower ----role free--> leader
 *               ----role taken-> ends
 *
 * Waits for locks have fibers of their own, since they may be cancelled, and are counted apart: if they
 * filled the connection, the unlock that they wait for would never be read.
 *
 * Sending. Replies and notes gather in one queue; a writer fiber is started with the first one. It runs
 * behind all fibers that are ready then, so that what they answer goes out with the same system call. A note
 * stands in the queue behind every reply that may show what it invalidates.
 *
 * Ending. closing: nothing more is read; each request under way ends, its reply is sent. broken: sending
 * failed; replies are dropped: the mount asks again on its next connection. Whoever puts the last reference
 * closes the stream, and the session is away from then on.
 */
#include "protocols/fuse/fuse_internal.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define SEND_IOV      512u
#define SEND_BYTES    (2 * MIB)
#define BULK_WINDOW   1024u /* what is received beyond a bulk payload: some headers */
#define PAGES_TIMEOUT (60 * NSEC_PER_SEC)
#define PAGES_RETRY   (5 * NSEC_PER_MSEC)
#define ZERO_BLOCKS   16u

static const uint8_t zeroes[ZERO_BLOCKS * BLOCK_SIZE];

/* ---- References ---- */

void fuse_connection_get(struct fuse_connection *c)
{
    assert(c->refs > 0 && c->refs < UINT32_MAX);
    c->refs++;
}

void fuse_connection_put(struct fuse_connection *c)
{
    assert(c->refs > 0);
    if (--c->refs > 0)
        return;
    assert(c->closing && c->leader == NULL && !c->writing);
    assert(list_empty(&c->out) && list_empty(&c->jobs) && c->requests == 0 && c->admitted_bytes == 0);
    struct fuse_fs *f = c->fs;
    fiber_shield(); /* its fiber may have been cancelled, closing must go on */
    stream_close(c->stream);
    fiber_unshield();
    page_put(c->buffer, FUSE_BUFFER_PAGES);
    fuse_opens_put(f, &c->told);
    list_remove(&c->link);
    fuse_session_detach(c->session);
    __atomic_fetch_sub(&f->server->connections, 1, __ATOMIC_RELAXED);
    waitq_wake_all(&f->left);
    free(c);
}

/* ---- Jobs ---- */

static struct fuse_job *job_new(struct fuse_connection *c)
{
    struct fuse_fs *f = c->fs;
    struct list *l = list_pop(&f->free_jobs);
    struct fuse_job *j;
    if (l != NULL) {
        f->free_job_count--;
        j = CONTAINER_OF(l, struct fuse_job, link);
    } else {
        j = malloc(sizeof(*j)); /* most of it is never touched */
        if (j == NULL)
            return NULL;
    }
    list_init(&j->link);
    list_init(&j->active);
    j->connection = c;
    j->reserved = 0;
    j->waiting = NULL;
    j->counted = j->interrupted = j->is_note = j->holds_pages = false;
    j->text = j->tail = NULL;
    j->head_len = j->tail_len = j->tail_size = 0;
    j->skip = j->data_len = 0;
    return j;
}

static void job_free(struct fuse_fs *f, struct fuse_job *j)
{
    list_remove(&j->active);
    if (j->holds_pages)
        page_vec_put(&j->vec);
    free(j->text);
    free(j->tail);
    if (f->free_job_count == FUSE_FREE_JOBS) {
        free(j);
        return;
    }
    list_prepend(&f->free_jobs, &j->link);
    f->free_job_count++;
}

void fuse_jobs_free(struct fuse_fs *f)
{
    for (struct list *l; (l = list_pop(&f->free_jobs)) != NULL;)
        free(CONTAINER_OF(l, struct fuse_job, link));
    f->free_job_count = 0;
}

void fuse_job_uncount(struct fuse_job *j)
{
    struct fuse_connection *c = j->connection;
    if (!j->counted)
        return;
    assert(c->requests > 0 && c->admitted_bytes >= j->reserved);
    c->requests--;
    c->admitted_bytes -= j->reserved;
    j->counted = false;
    waitq_wake_all(&c->room);
}

void fuse_connection_drop(struct fuse_connection *c, struct fuse_job *j)
{
    assert(list_empty(&j->link));
    fuse_job_uncount(j);
    job_free(c->fs, j);
}

/* ---- Sending ---- */

static void drop_queue(struct fuse_connection *c, struct list *queue)
{
    for (struct list *l; (l = list_pop(queue)) != NULL;) {
        struct fuse_job *j = CONTAINER_OF(l, struct fuse_job, link);
        if (j->is_note)
            c->note_bytes -= j->tail_len;
        fuse_connection_drop(c, j);
    }
}

static void cancel_lock_waits(struct fuse_connection *c)
{
    LIST_FOREACH_SAFE (&c->jobs, l) {
        struct fuse_job *j = CONTAINER_OF(l, struct fuse_job, active);
        if (j->waiting != NULL)
            fiber_cancel(j->waiting);
    }
}

void fuse_connection_break(struct fuse_connection *c)
{
    c->closing = true;
    if (c->broken)
        return;
    c->broken = true;
    stream_shutdown(c->stream);
    drop_queue(c, &c->out);
    cancel_lock_waits(c);
    waitq_wake_all(&c->room);
}

static uint32_t add_run(struct iovec *iov, uint32_t count, const struct page_run *run, uint32_t skip,
                        uint32_t len)
{
    if (run->page != NULL) {
        iov[count++] = (struct iovec){run->page->data + skip, len};
        return count;
    }
    for (uint32_t n; len > 0; len -= n) {
        n = MIN(len, (uint32_t)sizeof(zeroes));
        iov[count++] = (struct iovec){(void *)(uintptr_t)zeroes, n};
    }
    return count;
}

/* The reply's vector behind `count` elements; 0: it does not fit. */
static uint32_t job_iov(const struct fuse_job *j, struct iovec *iov, uint32_t count)
{
    /* Runs of zeroes take an element for ZERO_BLOCKS blocks or less, so runs and blocks bound the elements.
     */
    uint32_t most = 2 + (j->data_len > 0 ? j->vec.run_count + j->vec.blocks / ZERO_BLOCKS + 1 : 0);
    if (most > SEND_IOV - count)
        return 0;
    if (j->head_len > 0)
        iov[count++] = (struct iovec){(void *)(uintptr_t)j->head, j->head_len};
    uint32_t skip = j->skip, left = j->data_len;
    for (uint32_t i = 0; left > 0; i++) {
        assert(i < j->vec.run_count);
        uint32_t n = MIN(left, j->vec.runs[i].count * BLOCK_SIZE - skip);
        count = add_run(iov, count, &j->vec.runs[i], skip, n);
        left -= n;
        skip = 0;
    }
    if (j->tail_len > 0)
        iov[count++] = (struct iovec){j->tail, j->tail_len};
    return count;
}

/* Moves jobs from the queue to `sending` while they fit. */
static uint32_t gather(struct fuse_connection *c, struct list *sending, struct iovec *iov)
{
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (!list_empty(&c->out) && bytes < SEND_BYTES) {
        struct fuse_job *j = CONTAINER_OF(c->out.next, struct fuse_job, link);
        uint32_t n = job_iov(j, iov, count);
        if (n == 0)
            break;
        count = n;
        bytes += j->head_len + j->data_len + j->tail_len;
        list_remove(&j->link);
        list_append(sending, &j->link);
    }
    assert(count > 0 && count <= SEND_IOV);
    return count;
}
static_assert(SEND_IOV >= 2 + PAGE_VEC_MAX + PAGE_VEC_MAX / ZERO_BLOCKS + 1, "each job fits into one vector");

static void connection_write(void *arg) may_yield
{
    struct fuse_connection *c = arg;
    struct iovec iov[SEND_IOV];
    struct list sending;
    list_init(&sending);
    while (!list_empty(&c->out)) {
        uint32_t count = gather(c, &sending, iov);
        int err = stream_sendv(c->stream, iov, count, DEADLINE_NEVER);
        drop_queue(c, &sending);
        if (err != 0)
            fuse_connection_break(c);
    }
    c->writing = false;
    fuse_connection_put(c);
}

static void writer_start(struct fuse_connection *c)
{
    c->writing = true;
    fuse_connection_get(c);
    if (fiber_spawn("fuse writer", connection_write, c) != 0) {
        c->writing = false;
        c->refs--; /* the caller has one */
        fuse_connection_break(c);
    }
}

static void queue(struct fuse_connection *c, struct fuse_job *j)
{
    list_append(&c->out, &j->link);
    if (c->broken)
        drop_queue(c, &c->out);
    else if (!c->writing)
        writer_start(c);
}

void fuse_connection_send(struct fuse_connection *c, struct fuse_job *j)
{
    assert(list_empty(&j->link) && j->head_len >= sizeof(struct wire_reply));
    list_remove(&j->active);
    counter_add(&c->fs->requests, 1);
    queue(c, j);
}

/* ---- Notes ---- */

static void note_put(struct fuse_connection *c, struct fuse_job *j, uint32_t kind, const void *body,
                     uint32_t body_len, const char *text, uint32_t text_len)
{
    uint32_t len = (uint32_t)sizeof(struct wire_reply) + body_len + text_len;
    struct wire_reply h = {.len = le32_make(len), .error = le32_make(kind)};
    uint8_t *at = j->tail + j->tail_len;
    memcpy(at, &h, sizeof(h));
    if (body_len > 0)
        memcpy(at + sizeof(h), body, body_len);
    if (text_len > 0)
        memcpy(at + sizeof(h) + body_len, text, text_len);
    j->tail_len += len;
    c->note_bytes += len;
}

/* The job at the end of the queue if it is one of notes with room, or a new one. */
static struct fuse_job *note_job(struct fuse_connection *c, uint32_t len)
{
    if (!list_empty(&c->out)) {
        struct fuse_job *last = CONTAINER_OF(c->out.prev, struct fuse_job, link);
        if (last->is_note && last->tail_size - last->tail_len >= len)
            return last;
    }
    struct fuse_job *j = job_new(c);
    if (j == NULL)
        return NULL;
    j->is_note = true;
    j->tail_size = 4 * KIB;
    j->tail = malloc(j->tail_size);
    if (j->tail == NULL) {
        job_free(c->fs, j);
        return NULL;
    }
    return j;
}

void fuse_connection_note(struct fuse_connection *c, uint32_t kind, const void *body, uint32_t body_len,
                          const char *text, uint32_t text_len)
{
    uint32_t len = (uint32_t)sizeof(struct wire_reply) + body_len + text_len;
    if (c->broken) {
        c->session->missed = true;
        return;
    }
    counter_add(&c->fs->invalidates, 1);
    if (c->note_bytes >= FUSE_NOTES_MAX) {
        /* Those that wait stay; one more says that there were others. Then silence until they are read. */
        bool over = c->note_bytes >= FUSE_NOTES_MAX + BLOCK_SIZE;
        if (over && !list_empty(&c->out) && /* the queue is empty while all of it is being sent */
            CONTAINER_OF(c->out.prev, struct fuse_job, link)->is_note)
            return;
        kind = WIRE_NOTE_ALL;
        body_len = text_len = 0;
        len = sizeof(struct wire_reply);
    }
    struct fuse_job *j = note_job(c, len);
    if (j == NULL) {
        c->session->missed = true;
        fuse_connection_break(c); /* it asks for everything again when it comes back */
        return;
    }
    note_put(c, j, kind, body, body_len, text, text_len);
    if (list_empty(&j->link))
        queue(c, j);
}

/* ---- Receiving ---- */

MUST_CHECK static int receive(struct fuse_connection *c, const struct iovec *iov, uint32_t count,
                              size_t *ret_len) may_yield
{
    size_t n;
    int err = stream_recvv(c->stream, iov, count, DEADLINE_NEVER, &n);
    if (err != 0)
        return err;
    *ret_len = n;
    return c->closing ? ERR_CLOSED : 0;
}

/* At least `want` bytes in the buffer. */
MUST_CHECK static int buffer_fill(struct fuse_connection *c, size_t want) may_yield
{
    size_t size = FUSE_BUFFER_PAGES * BLOCK_SIZE;
    assert(want <= size);
    while (c->end - c->start < want) {
        if (c->start == c->end) {
            c->start = c->end = 0;
        } else if (size - c->start < want) {
            memmove(c->buffer->data, c->buffer->data + c->start, c->end - c->start);
            c->end -= c->start;
            c->start = 0;
        }
        size_t room = size - c->end, n;
        if (c->bulk)
            room = MIN(room, MAX(BULK_WINDOW, want - (c->end - c->start)));
        struct iovec iov = {c->buffer->data + c->end, room};
        int err = receive(c, &iov, 1, &n);
        if (err != 0)
            return err;
        c->end += n;
    }
    return 0;
}

MUST_CHECK static int pages_try(uint32_t blocks, struct page_vec *v)
{
    v->run_count = 0;
    v->blocks = 0;
    uint32_t n = blocks;
    while (v->blocks < blocks) {
        struct page *p;
        n = MIN(n, blocks - v->blocks);
        int err = page_alloc(n, &p);
        if (err == 0) {
            v->runs[v->run_count++] = (struct page_run){p, n};
            v->blocks += n;
        } else if (n > 1) {
            n = DIV_ROUND_UP(n, 2); /* memory may be there, only not in one run */
        } else {
            page_vec_put(v);
            return err;
        }
    }
    return 0;
}

/* Waits without holding any: somebody else may need just these. */
MUST_CHECK static int pages_get(uint32_t blocks, struct page_vec *v) may_yield
{
    uint64_t until = reactor_now_ns() + PAGES_TIMEOUT;
    for (;;) {
        int err = pages_try(blocks, v);
        if (err == 0 || reactor_now_ns() >= until)
            return err;
        err = fiber_sleep(PAGES_RETRY);
        if (err != 0)
            return err;
    }
}

static void iov_advance(struct iovec *iov, uint32_t *at, size_t n)
{
    while (n > 0) {
        size_t step = MIN(n, iov[*at].iov_len);
        iov[*at].iov_base = (char *)iov[*at].iov_base + step;
        iov[*at].iov_len -= step;
        n -= step;
        if (iov[*at].iov_len == 0)
            (*at)++;
    }
}

/* Copies what the buffer has; returns how much that was. */
static size_t take_buffered(struct fuse_connection *c, struct iovec *iov, uint32_t *at, size_t len)
{
    size_t have = MIN(len, c->end - c->start);
    for (size_t left = have; left > 0;) {
        size_t n = MIN(left, iov[*at].iov_len);
        memcpy(iov[*at].iov_base, c->buffer->data + c->start, n);
        c->start += n;
        left -= n;
        iov_advance(iov, at, n);
    }
    return have;
}

int fuse_connection_receive(struct fuse_connection *c, uint64_t offset, uint32_t len, struct page_vec *ret)
{
    uint32_t skip = (uint32_t)(offset % BLOCK_SIZE);
    int err = pages_get(DIV_ROUND_UP(skip + len, BLOCK_SIZE), ret);
    if (err != 0)
        return err == ERR_CANCELLED ? err : ERR_NO_MEMORY;
    struct iovec iov[PAGE_VEC_MAX + 1];
    uint32_t count = 0, at = 0;
    size_t left = len;
    for (uint32_t i = 0; i < ret->run_count; i++) {
        size_t n = MIN(left, (size_t)ret->runs[i].count * BLOCK_SIZE - skip);
        iov[count++] = (struct iovec){ret->runs[i].page->data + skip, n};
        left -= n;
        skip = 0;
    }
    assert(left == 0);
    left = len - take_buffered(c, iov, &at, len);
    c->bulk = len >= FUSE_BULK;
    while (left > 0) {
        assert(c->start == c->end);
        c->start = c->end = 0;
        size_t room = c->bulk ? BULK_WINDOW : FUSE_BUFFER_PAGES * BLOCK_SIZE, n;
        iov[count] = (struct iovec){c->buffer->data, room};
        err = receive(c, iov + at, count + 1 - at, &n);
        if (err != 0)
            break;
        c->end = n > left ? n - left : 0;
        iov_advance(iov, &at, MIN(n, left));
        left -= MIN(n, left);
    }
    if (err != 0)
        page_vec_put(ret);
    return err;
}

int fuse_connection_discard(struct fuse_connection *c, uint64_t len)
{
    while (len > 0) {
        if (c->start == c->end) {
            int err = buffer_fill(c, 1);
            if (err != 0)
                return err;
        }
        size_t n = (size_t)MIN(len, c->end - c->start);
        c->start += n;
        len -= n;
    }
    return 0;
}

/* ---- Admission ---- */

/* One request is always admitted. */
MUST_CHECK static int admit(struct fuse_connection *c, struct fuse_job *j) may_yield
{
    const struct fuse_limits *l = &c->fs->server->limits;
    j->reserved = fuse_command_cost(&j->q);
    while (c->requests > 0 &&
           (c->requests >= l->requests || c->admitted_bytes + j->reserved > l->connection_bytes)) {
        int err = c->closing ? ERR_CLOSED : waitq_wait(&c->room, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    c->requests++;
    c->admitted_bytes += j->reserved;
    j->counted = true;
    return 0;
}

/* ---- Leading ---- */

static void follow(void *arg) may_yield;

void fuse_connection_yield_lead(struct fuse_connection *c)
{
    assert(c->leader == fiber_self());
    c->leader = NULL;
    if (c->follower_pending || c->closing)
        return;
    /* Without a follower the requests behind wait for this one: slower, not wrong. */
    if (fiber_spawn("fuse reader", follow, c) == 0) {
        c->follower_pending = true;
        fuse_connection_get(c);
    }
}

/* True: this fiber leads (again). */
static bool take_lead(struct fuse_connection *c)
{
    if (c->closing || c->leader != NULL)
        return c->leader == fiber_self() && !c->closing;
    c->leader = fiber_self();
    return true;
}

/* The buffer's bytes move when the next request is read: texts come along. */
MUST_CHECK static int keep_texts(struct fuse_job *j)
{
    struct fuse_request *q = &j->q;
    uint32_t len = q->name.len + q->second.len;
    uint8_t *to = j->names;
    if (len == 0)
        return 0;
    if (len > sizeof(j->names)) {
        to = j->text = malloc(len);
        if (to == NULL)
            return ERR_NO_MEMORY;
    }
    if (q->name.len > 0)
        memcpy(to, q->name.bytes, q->name.len);
    if (q->second.len > 0)
        memcpy(to + q->name.len, q->second.bytes, q->second.len);
    q->name.bytes = (char *)to;
    q->second.bytes = (char *)to + q->name.len;
    return 0;
}

static void identify(struct fuse_connection *c, struct fuse_job *j)
{
    const struct fuse_request *q = &j->q;
    struct fs_request *rq = &j->rq;
    rq->cred.uid = q->uid;
    rq->cred.gid = q->gid;
    rq->cred.group_count = 0;
    rq->cred.trusted = true;
    rq->durable = false;
    rq->read_only = false;
    rq->reply = NULL;
    rq->client = c->session->stats;
    rq->source = c->session;
    if (!fuse_request_once(q) || q->unique == 0)
        return;
    memcpy(j->key.client, c->session->id, sizeof(j->key.client));
    j->key.xid = (uint32_t)q->unique;
    j->key.procedure = q->op;
    j->key.checksum = (uint32_t)(q->unique >> 32);
    rq->reply = &j->key;
}

/* One request. Errors end the reading. */
MUST_CHECK static int lead_one(struct fuse_connection *c) may_yield
{
    struct wire_request h;
    int err = buffer_fill(c, sizeof(h));
    if (err != 0)
        return err;
    memcpy(&h, c->buffer->data + c->start, sizeof(h));
    uint32_t need = fuse_request_need(&h);
    if (need == 0)
        return ERR_PROTOCOL;
    err = buffer_fill(c, need);
    if (err != 0)
        return err;
    struct fuse_job *j = job_new(c);
    if (j == NULL)
        return ERR_NO_MEMORY;
    bool well_formed = fuse_request_decode(c->buffer->data + c->start, need, &j->q);
    c->start += need;
    if (j->q.op != WIRE_WRITE)
        c->bulk = false;
    err = well_formed ? keep_texts(j) : 0;
    if (err == 0 && !c->ready && j->q.op != WIRE_REOPEN && j->q.op != WIRE_REOPEN_DONE)
        err = ERR_PROTOCOL;
    if (err == 0)
        err = admit(c, j);
    if (err != 0) {
        fuse_connection_drop(c, j);
        return err;
    }
    identify(c, j);
    list_append(&c->jobs, &j->active);
    fuse_command_run(j, well_formed);
    return 0;
}

static void lead(struct fuse_connection *c) may_yield
{
    while (take_lead(c)) {
        int err = lead_one(c);
        if (err == 0)
            continue;
        if (err == ERR_PROTOCOL || err == ERR_NO_MEMORY)
            LOG_WARNING("fuse: a mount of %s is disconnected: %s", c->fs->name, error_text(err));
        c->closing = true;
        cancel_lock_waits(c);
    }
    if (c->leader == fiber_self())
        c->leader = NULL;
    fuse_connection_put(c);
}

static void follow(void *arg) may_yield
{
    struct fuse_connection *c = arg;
    c->follower_pending = false;
    lead(c);
}

static void lead_first(void *arg) may_yield
{
    lead(arg);
}

/* ---- Life ---- */

void fuse_connection_drain(struct fuse_connection *c)
{
    c->closing = true;
    if (c->leader != NULL)
        fiber_cancel(c->leader); /* it waits for the stream, for room or for memory */
    cancel_lock_waits(c);
    waitq_wake_all(&c->room);
}

MUST_CHECK static int send_welcome(struct stream *stream, bool coherent) may_yield
{
    struct wire_welcome w = {.version = le32_make(WIRE_VERSION),
                             .flags = le32_make(coherent ? WIRE_WELCOME_COHERENT : 0)};
    memcpy(w.magic, WIRE_MAGIC, WIRE_MAGIC_LEN);
    return stream_send_all(stream, &w, sizeof(w), reactor_now_ns() + 10 * NSEC_PER_SEC);
}

MUST_CHECK static int connection_new(struct fuse_fs *f, const void *leftover, size_t leftover_len,
                                     struct fuse_connection **ret) may_yield
{
    struct fuse_connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ERR_NO_MEMORY;
    int err = page_alloc_wait(FUSE_BUFFER_PAGES, reactor_now_ns() + 5 * NSEC_PER_SEC, &c->buffer);
    if (err != 0) {
        free(c);
        return err;
    }
    assert(leftover_len <= FUSE_BUFFER_PAGES * BLOCK_SIZE);
    if (leftover_len > 0)
        memcpy(c->buffer->data, leftover, leftover_len);
    c->end = leftover_len;
    c->fs = f;
    c->refs = 1;
    list_init(&c->link);
    list_init(&c->jobs);
    list_init(&c->out);
    waitq_init(&c->room);
    *ret = c;
    return 0;
}

int fuse_connection_start(struct fuse_fs *f, const struct fuse_hello *hello, struct stream *stream,
                          const void *leftover, size_t leftover_len)
{
    assert(f->reactor == reactor_current());
    struct fuse_connection *c;
    char label[WIRE_LABEL_MAX + 1];
    bool coherent;
    memcpy(label, hello->label.bytes, hello->label.len);
    label[hello->label.len] = '\0';
    int err = connection_new(f, leftover, leftover_len, &c);
    if (err != 0) {
        fiber_shield();
        stream_close(stream);
        fiber_unshield();
        return err;
    }
    c->stream = stream;
    err = fuse_session_attach(f, hello->session, label, c, &coherent);
    if (err != 0) {
        fiber_shield();
        stream_close(stream);
        fiber_unshield();
        page_put(c->buffer, FUSE_BUFFER_PAGES);
        free(c);
        return err;
    }
    /* From here on it ends as any other. The welcome goes out before any note can. */
    list_append(&f->connections, &c->link);
    __atomic_fetch_add(&f->server->connections, 1, __ATOMIC_RELAXED);
    c->writing = true;
    err = send_welcome(stream, coherent);
    c->writing = false;
    if (err == 0 && !list_empty(&c->out))
        writer_start(c);
    if (err == 0)
        err = fiber_spawn("fuse reader", lead_first, c);
    if (err != 0) {
        fuse_connection_break(c);
        fuse_connection_put(c);
    }
    return err;
}
