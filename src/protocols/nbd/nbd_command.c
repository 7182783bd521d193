/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands. Each function gets an admitted request, leads (see nbd_connection.c), gives the lead up
 * before it may wait for the volume, and ends the request with exactly one message marked as its last (or,
 * when the stream was lost, with nbd_connection_end_request()).
 *
 * Ranges longer than a piece (1 MiB) go piece by piece, some at a time:
 *  - a read with structured replies sends each piece as a chunk when it is there, in any order;
 *  - a read with a simple reply, or one that must not be fragmented, gathers all pieces first: once a header
 *    without an error is out, nothing can be taken back;
 *  - a write begins with its first piece while the others are still on the wire, and with FUA it ends with a
 *    flush.
 */
#include "protocols/nbd/nbd_internal.h"
#include "runtime/error.h"

#include <stdlib.h>

#define PIECES_MAX (NBD_REQUEST_MAX / BLOCK_PIECE_MAX + 1)
#define MAP_BATCH  32u

static uint32_t piece_count(const struct nbd_request *q)
{
    assert(q->len > 0);
    return (uint32_t)((q->offset + q->len - 1) / BLOCK_PIECE_MAX - q->offset / BLOCK_PIECE_MAX + 1);
}

static bool gathers(const struct nbd_request *q, bool structured)
{
    return !structured || (q->flags & NBD_CMD_FLAG_DF);
}

uint64_t nbd_command_cost(const struct nbd_request *q, const struct nbd_session *s)
{
    bool payload = q->type == NBD_CMD_READ || q->type == NBD_CMD_WRITE;
    if (!payload || nbd_request_check(q, s) != 0)
        return NBD_REQUEST_COST;
    bool whole = q->type == NBD_CMD_READ && gathers(q, s->structured);
    return NBD_REQUEST_COST + (whole ? q->len : MIN(q->len, NBD_STREAM_BYTES));
}

/* Ends a request with a reply that has no payload, in m or in a fresh message (NULL). */
static void answer(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved,
                   uint32_t wire_error, const char *text, struct nbd_message *m)
{
    if (wire_error != 0)
        counter_add(&c->export->errors, 1);
    if (m == NULL)
        m = nbd_connection_message(c);
    if (m == NULL) {
        nbd_connection_end_request(c, reserved);
        return;
    }
    assert(!m->holds_pages && m->iov_count == 0);
    m->reserved = reserved;
    nbd_message_reply(m, q, &c->session, wire_error, text);
    nbd_connection_send(c, m);
}

static void answer_result(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved, int err)
{
    answer(c, q, reserved, nbd_error_number(err), err != 0 ? error_text(err) : "", NULL);
}

/* ---- Reading ---- */

static void read_piece(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    struct nbd_message *m = nbd_connection_message(c);
    if (m == NULL) {
        nbd_connection_end_request(c, reserved);
        return;
    }
    int err = block_read(c->device, q->offset, q->len, &m->vec);
    if (err != 0) {
        answer(c, q, reserved, nbd_error_number(err), error_text(err), m);
        return;
    }
    m->holds_pages = true;
    m->reserved = reserved;
    if (gathers(q, c->session.structured)) {
        nbd_message_read_header(m, q, c->session.structured);
        nbd_message_read_data(m, q->offset, q->len);
        m->last = true;
    } else {
        nbd_message_read_chunks(m, q, q->offset, q->len, true);
    }
    nbd_connection_send(c, m);
}

struct read_job {
    struct nbd_connection *connection;
    const struct nbd_request *request;
    struct nbd_message *pieces[PIECES_MAX]; /* gathering: by their place */
};

static int read_streamed(void *ctx, uint64_t offset, uint32_t len) may_yield
{
    struct read_job *j = ctx;
    struct nbd_connection *c = j->connection;
    while (c->out_bytes >= NBD_STREAM_QUEUE && !c->broken) {
        int err = waitq_wait(&c->room, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    struct nbd_message *m = c->broken ? NULL : nbd_connection_message(c);
    if (m == NULL)
        return ERR_CLOSED;
    int err = block_read(c->device, offset, len, &m->vec);
    if (err != 0) {
        nbd_connection_drop(c, m);
        return err;
    }
    m->holds_pages = true;
    nbd_message_read_chunks(m, j->request, offset, len, false);
    nbd_connection_send(c, m);
    return 0;
}

static int read_gathered(void *ctx, uint64_t offset, uint32_t len) may_yield
{
    struct read_job *j = ctx;
    struct nbd_connection *c = j->connection;
    struct nbd_message *m = nbd_connection_message(c);
    if (m == NULL)
        return ERR_CLOSED;
    int err = block_read(c->device, offset, len, &m->vec);
    if (err != 0) {
        nbd_connection_drop(c, m);
        return err;
    }
    m->holds_pages = true;
    uint64_t place = offset / BLOCK_PIECE_MAX - j->request->offset / BLOCK_PIECE_MAX;
    assert(place < PIECES_MAX && j->pieces[place] == NULL);
    if (place == 0)
        nbd_message_read_header(m, j->request, c->session.structured);
    nbd_message_read_data(m, offset, len);
    j->pieces[place] = m;
    return 0;
}

static void read_long(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    struct read_job j = {.connection = c, .request = q};
    bool gather = gathers(q, c->session.structured);
    int err = block_for_pieces(q->offset, q->len, NBD_PARALLEL, gather ? read_gathered : read_streamed, &j);
    uint32_t count = gather ? piece_count(q) : 0;
    if (err != 0 || !gather) {
        for (uint32_t i = 0; i < count; i++) {
            if (j.pieces[i] != NULL)
                nbd_connection_drop(c, j.pieces[i]);
        }
        answer_result(c, q, reserved, err);
        return;
    }
    assert(count <= PIECES_MAX);
    j.pieces[count - 1]->last = true;
    j.pieces[count - 1]->reserved = reserved;
    for (uint32_t i = 0; i < count; i++)
        nbd_connection_send(c, j.pieces[i]);
}

static void command_read(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    nbd_connection_yield_lead(c);
    if (q->len == 0)
        answer_result(c, q, reserved, 0);
    else if (piece_count(q) == 1)
        read_piece(c, q, reserved);
    else
        read_long(c, q, reserved);
}

/* ---- Writing ---- */

static void write_piece(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    struct nbd_message *m = nbd_connection_message(c);
    int err = m != NULL ? nbd_connection_receive(c, q->offset, q->len, &m->vec) : ERR_CLOSED;
    if (err == ERR_NO_MEMORY && nbd_connection_discard(c, q->len) == 0) {
        answer(c, q, reserved, NBD_ENOMEM, error_text(err), m);
        return;
    }
    if (err != 0) {
        if (m != NULL)
            nbd_connection_drop(c, m);
        nbd_connection_end_request(c, reserved);
        c->closing = true; /* the stream is lost, or out of step */
        return;
    }
    nbd_connection_yield_lead(c);
    err = block_write(c->device, q->offset, q->len, &m->vec, q->flags & NBD_CMD_FLAG_FUA ? BLOCK_FUA : 0);
    page_vec_put(&m->vec);
    answer(c, q, reserved, nbd_error_number(err), err != 0 ? error_text(err) : "", m);
}

/* A write of several pieces; freed by whoever ends the last. */
struct write_job {
    struct nbd_connection *connection;
    struct nbd_request request;
    uint64_t reserved;
    uint32_t left;  /* pieces not ended, those not begun included */
    uint32_t begun; /* and not ended */
    int error;      /* the first */
    bool lost;      /* the stream ended within the payload: no reply */
};

struct write_job_piece {
    struct write_job *job;
    struct nbd_message *message; /* lends its vector */
    uint64_t offset;
    uint32_t len;
};

/* `count` pieces ended (or will never begin); with the last one the request ends. */
static void write_ended(struct write_job *j, uint32_t count, int err) may_yield
{
    struct nbd_connection *c = j->connection;
    assert(j->left >= count);
    if (err != 0 && j->error == 0)
        j->error = err;
    j->left -= count;
    waitq_wake_all(&c->room);
    if (j->left > 0)
        return;
    if (j->error == 0 && (j->request.flags & NBD_CMD_FLAG_FUA))
        j->error = block_flush(c->device);
    if (j->lost)
        nbd_connection_end_request(c, j->reserved);
    else
        answer_result(c, &j->request, j->reserved, j->error);
    free(j);
}

static void write_run(struct write_job_piece *p) may_yield
{
    struct write_job *j = p->job;
    struct nbd_connection *c = j->connection;
    int err = block_write(c->device, p->offset, p->len, &p->message->vec, 0);
    page_vec_put(&p->message->vec);
    nbd_connection_drop(c, p->message);
    free(p);
    j->begun--;
    write_ended(j, 1, err);
}

static void write_run_fiber(void *arg) may_yield
{
    struct write_job_piece *p = arg;
    struct nbd_connection *c = p->job->connection;
    write_run(p);
    nbd_connection_put(c);
}

/* Receives one piece and starts writing it. The last one is written on the spot, without the lead. */
MUST_CHECK static int write_begin_piece(struct write_job *j, uint64_t offset, uint32_t len, bool last)
    may_yield
{
    struct nbd_connection *c = j->connection;
    while (j->begun >= NBD_STREAM_BYTES / BLOCK_PIECE_MAX) {
        int err = waitq_wait(&c->room, DEADLINE_NEVER);
        if (err != 0)
            return err;
    }
    struct write_job_piece *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ERR_NO_MEMORY;
    p->job = j;
    p->offset = offset;
    p->len = len;
    p->message = nbd_connection_message(c);
    int err = p->message != NULL ? nbd_connection_receive(c, offset, len, &p->message->vec) : ERR_CLOSED;
    if (err != 0) {
        if (p->message != NULL)
            nbd_connection_drop(c, p->message);
        free(p);
        return err;
    }
    j->begun++;
    if (last) {
        nbd_connection_yield_lead(c);
        write_run(p);
        return 0;
    }
    nbd_connection_get(c);
    if (fiber_spawn("nbd write", write_run_fiber, p) != 0) {
        c->refs--; /* the caller has one */
        write_run(p);
    }
    return 0;
}

static void write_long(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    struct write_job *j = calloc(1, sizeof(*j));
    uint32_t left = piece_count(q);
    if (j == NULL) {
        int err = nbd_connection_discard(c, q->len);
        c->closing |= err != 0;
        answer_result(c, q, reserved, ERR_NO_MEMORY);
        return;
    }
    *j = (struct write_job){.connection = c, .request = *q, .reserved = reserved, .left = left};
    uint64_t at = q->offset, end = q->offset + q->len;
    while (at < end) {
        uint32_t len = block_piece_len(at, end - at);
        int err = write_begin_piece(j, at, len, at + len == end);
        if (err != 0) {
            j->lost = err != ERR_NO_MEMORY || nbd_connection_discard(c, end - at) != 0;
            c->closing |= j->lost;
            write_ended(j, left, err);
            return;
        }
        at += len; /* j may be gone after the last */
        left--;
    }
}

/* The payload must leave the stream, whatever is wrong with the request. */
static void refuse_write(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved,
                         uint32_t wire_error, const char *text) may_yield
{
    if (nbd_connection_discard(c, q->len) != 0) {
        c->closing = true;
        nbd_connection_end_request(c, reserved);
        return;
    }
    answer(c, q, reserved, wire_error, text, NULL);
}

static void command_write(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    if (q->len == 0)
        answer_result(c, q, reserved, 0);
    else if (piece_count(q) == 1)
        write_piece(c, q, reserved);
    else
        write_long(c, q, reserved);
}

/* ---- The others ---- */

static void command_zero(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    uint32_t flags = (q->flags & NBD_CMD_FLAG_FUA ? BLOCK_FUA : 0) |
                     (q->flags & NBD_CMD_FLAG_NO_HOLE ? 0 : BLOCK_MAY_TRIM);
    /* Fast zero asks for an error rather than for writing zeroes; clearing blocks writes none. */
    nbd_connection_yield_lead(c);
    answer_result(c, q, reserved, block_zero(c->device, q->offset, q->len, flags));
}

static void command_trim(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    nbd_connection_yield_lead(c);
    uint32_t flags = q->flags & NBD_CMD_FLAG_FUA ? BLOCK_FUA : 0;
    answer_result(c, q, reserved, block_trim(c->device, q->offset, q->len, flags));
}

static uint32_t status_flags(enum volume_map_kind kind)
{
    switch (kind) {
    case MAP_HOLE:
        return NBD_STATE_HOLE | NBD_STATE_ZERO;
    case MAP_ZERO:
        return NBD_STATE_ZERO;
    default:
        return 0;
    }
}

/* Extents into m until the range ends or the message is full. */
MUST_CHECK static int collect_status(struct nbd_connection *c, const struct nbd_request *q,
                                     struct nbd_message *m) may_yield
{
    struct block_extent extents[MAP_BATCH];
    uint64_t at = q->offset, end = q->offset + q->len;
    uint32_t max = q->flags & NBD_CMD_FLAG_REQ_ONE ? 1 : MAP_BATCH;
    while (at < end) {
        uint32_t count;
        int err = block_map(c->device, at, end - at, extents, max, &count);
        if (err != 0)
            return at > q->offset ? 0 : err; /* less than was asked for is an answer too */
        for (uint32_t i = 0; i < count; i++) {
            if (!nbd_message_status_add(m, extents[i].len, status_flags(extents[i].kind)))
                return 0;
            at += extents[i].len;
        }
        if (max == 1)
            return 0;
    }
    return 0;
}

static void command_status(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved) may_yield
{
    nbd_connection_yield_lead(c);
    struct nbd_message *m = nbd_connection_message(c);
    if (m == NULL) {
        nbd_connection_end_request(c, reserved);
        return;
    }
    int err = collect_status(c, q, m);
    if (err != 0) {
        answer(c, q, reserved, nbd_error_number(err), error_text(err), m);
        return;
    }
    m->reserved = reserved;
    nbd_message_status_finish(m, q);
    nbd_connection_send(c, m);
}

/* A sentence for people. */
static const char *refusal_text(const struct nbd_request *q, uint32_t wire_error)
{
    if (wire_error == NBD_EPERM)
        return "the export is read-only";
    if (q->type > NBD_CMD_BLOCK_STATUS)
        return "unknown command";
    if (q->len > NBD_REQUEST_MAX && (q->type == NBD_CMD_READ || q->type == NBD_CMD_WRITE))
        return "the request is longer than 32 MiB";
    if (wire_error == NBD_ENOSPC)
        return "beyond the end of the device";
    return "invalid flags, range, or not negotiated";
}

void nbd_command_run(struct nbd_connection *c, const struct nbd_request *q, uint64_t reserved)
{
    uint32_t wire_error = nbd_request_check(q, &c->session);
    if (wire_error != 0) {
        const char *text = refusal_text(q, wire_error);
        if (q->type == NBD_CMD_WRITE)
            refuse_write(c, q, reserved, wire_error, text);
        else
            answer(c, q, reserved, wire_error, text, NULL);
        return;
    }
    switch (q->type) {
    case NBD_CMD_READ:
        command_read(c, q, reserved);
        return;
    case NBD_CMD_WRITE:
        command_write(c, q, reserved);
        return;
    case NBD_CMD_FLUSH:
        nbd_connection_yield_lead(c);
        answer_result(c, q, reserved, block_flush(c->device));
        return;
    case NBD_CMD_TRIM:
        command_trim(c, q, reserved);
        return;
    case NBD_CMD_WRITE_ZEROES:
        command_zero(c, q, reserved);
        return;
    case NBD_CMD_CACHE:
        nbd_connection_yield_lead(c);
        answer_result(c, q, reserved, block_prefetch(c->device, q->offset, q->len));
        return;
    default:
        assert(q->type == NBD_CMD_BLOCK_STATUS);
        command_status(c, q, reserved);
    }
}
