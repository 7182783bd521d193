/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, operators' events, and the ring of what a reactor did lately. */
#include "runtime/log.h"
#include "runtime/reactor_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 768
#define EVENTS_MAX 1000u

static enum log_level log_level = LOG_INFO_;
static void (*log_sink)(void *ctx, enum log_level level, const char *text);
static void *log_sink_ctx;

void log_set_level(enum log_level level)
{
    __atomic_store_n(&log_level, level, __ATOMIC_RELAXED);
}

void log_set_sink(void (*sink)(void *ctx, enum log_level level, const char *text), void *ctx)
{
    log_sink = sink;
    log_sink_ctx = ctx;
}

static const char *log_level_word(enum log_level level)
{
    static const char *const words[] = {"debug", "info", "warning", "error"};
    assert((size_t)level < ARRAY_SIZE(words));
    return words[level];
}

/* "2026-11-30 16:30:01.123 warning r0/fiber file.c:12: text\n" */
static void log_line(enum log_level level, const char *file, int line, const char *text)
{
    char out[LINE_BYTES + 160];
    char when[32];
    uint64_t wall = world_wall_ns();
    time_t seconds = (time_t)(wall / NSEC_PER_SEC);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(when, sizeof(when), "%F %T", &tm);
    const struct reactor *r = reactor_tls;
    const struct fiber *f = fiber_self();
    const char *base = strrchr(file, '/');
    int n = snprintf(out, sizeof(out), "%s.%03u %s r%d/%s %s:%d: %s\n", when,
                     (unsigned)(wall / NSEC_PER_MSEC % 1000), log_level_word(level),
                     r != NULL ? (int)r->index : -1, f != NULL ? f->name : "-",
                     base != NULL ? base + 1 : file, line, text);
    size_t len = MIN((size_t)n, sizeof(out) - 1);
    /* One write a line, so that lines of several threads do not mix. Nobody to tell if it fails. */
    ssize_t written = write(STDERR_FILENO, out, len);
    (void)written;
}

void log_message(enum log_level level, const char *file, int line, const char *fmt, ...)
{
    if (level < __atomic_load_n(&log_level, __ATOMIC_RELAXED))
        return;
    char text[LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (log_sink != NULL)
        log_sink(log_sink_ctx, level, text);
    else
        log_line(level, file, line, text);
}

/* ---- Ring of a reactor ---- */

void ring_event_at(struct reactor *r, const char *what, uint64_t a, uint64_t b)
{
    r->ring[r->ring_count++ % RING_EVENTS] = (struct ring_entry){r->now_ns, what, a, b};
}

void ring_event(const char *what, uint64_t a, uint64_t b)
{
    if (reactor_tls != NULL)
        ring_event_at(reactor_tls, what, a, b);
}

/* ---- Operators' events ---- */

static struct {
    pthread_mutex_t lock;
    uint64_t last_sequence;
    struct event ring[EVENTS_MAX]; /* sequence s is at s % EVENTS_MAX */
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

void event_raise(enum log_level level, const char *kind, const char *fmt, ...)
{
    struct event e = {.wall_ns = world_wall_ns(), .level = level};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof(e.text), fmt, ap);
    va_end(ap);
    snprintf(e.kind, sizeof(e.kind), "%s", kind);
    pthread_mutex_lock(&events.lock);
    e.sequence = ++events.last_sequence;
    events.ring[e.sequence % EVENTS_MAX] = e;
    pthread_mutex_unlock(&events.lock);
    ring_event("event", e.sequence, (uint64_t)level);
    log_message(level, "event", 0, "%s: %s", e.kind, e.text);
}

size_t event_list(uint64_t after, struct event *out, size_t max)
{
    size_t n = 0;
    pthread_mutex_lock(&events.lock);
    uint64_t oldest = events.last_sequence >= EVENTS_MAX ? events.last_sequence - EVENTS_MAX + 1 : 1;
    uint64_t first = after < oldest ? oldest : after + 1;
    for (uint64_t s = first; s <= events.last_sequence && n < max; s++)
        out[n++] = events.ring[s % EVENTS_MAX];
    pthread_mutex_unlock(&events.lock);
    return n;
}
