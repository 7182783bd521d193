/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured log for people (stderr or journal), and a ring of recent events per reactor that a crash dumps.
 * Libraries return errors and do not log; whoever is at the boundary logs once: operation, object, state,
 * action. Anomalies that an operator must see (a repaired block, a lost drive) are events: event_raise().
 */
#ifndef ASHLAR_RUNTIME_LOG_H
#define ASHLAR_RUNTIME_LOG_H

#include "runtime/base.h"

enum log_level { LOG_DEBUG_, LOG_INFO_, LOG_WARNING_, LOG_ERROR_ };

void log_set_level(enum log_level level);
/* One line: time, level, reactor, fiber, text. The sink is replaceable (simulator: its trace). */
void log_message(enum log_level level, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);
void log_set_sink(void (*sink)(void *ctx, enum log_level level, const char *text), void *ctx);
#define LOG_DEBUG(...)   log_message(LOG_DEBUG_, __FILE__, __LINE__, __VA_ARGS__)
#define LOG_INFO(...)    log_message(LOG_INFO_, __FILE__, __LINE__, __VA_ARGS__)
#define LOG_WARNING(...) log_message(LOG_WARNING_, __FILE__, __LINE__, __VA_ARGS__)
#define LOG_ERROR(...)   log_message(LOG_ERROR_, __FILE__, __LINE__, __VA_ARGS__)

/* Cheap trace of what a reactor did lately: a literal and two numbers; a ring of 4096, dumped on a crash. */
void ring_event(const char *what, uint64_t a, uint64_t b);
/* Prints the rings, the fibers and what they wait for; async-signal-safe. Installed on SIGSEGV, SIGABRT,
 * SIGBUS. */
void crash_handler_install(void);
/* The same dump to a file descriptor, without dying. */
void crash_dump(int fd);

/* An operator's event, kept in memory for `ashlar events` (the newest 1000) and logged. kind is a stable
 * word ("block-repaired", "drive-lost", …). */
void event_raise(enum log_level level, const char *kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
struct event {
    uint64_t sequence;
    uint64_t wall_ns;
    enum log_level level;
    char kind[32];
    char text[224];
};
/* Copies up to max events with sequence > after, oldest first; returns how many. Thread-safe. */
size_t event_list(uint64_t after, struct event *out, size_t max);

#endif
