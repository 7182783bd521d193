/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is printed when the process dies of a fault: for each reactor the newest events of its ring and its
 * fibers with what they wait for. Only async-signal-safe calls: write(2) and own formatting. Other threads go
 * on running meanwhile, so what it reads may change under it; lists are followed for a bounded number of
 * steps.
 */
#include "runtime/log.h"
#include "runtime/reactor_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define DUMP_EVENTS 64u
#define DUMP_FIBERS 20000u

static struct reactor *crash_reactors; /* list by reactor.next */
static pthread_mutex_t crash_lock = PTHREAD_MUTEX_INITIALIZER;

void crash_register_reactor(struct reactor *r)
{
    pthread_mutex_lock(&crash_lock);
    r->next = crash_reactors;
    __atomic_store_n(&crash_reactors, r, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&crash_lock);
}

void crash_unregister_reactor(struct reactor *r)
{
    pthread_mutex_lock(&crash_lock);
    struct reactor **p = &crash_reactors;
    while (*p != NULL && *p != r)
        p = &(*p)->next;
    assert(*p == r);
    __atomic_store_n(p, r->next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&crash_lock);
}

/* ---- Formatting without stdio ---- */

struct dump {
    int fd;
    size_t len;
    char buf[512];
};

static void dump_flush(struct dump *d)
{
    ssize_t written = write(d->fd, d->buf, d->len);
    (void)written; /* we are dying; nobody to tell */
    d->len = 0;
}

static void dump_text(struct dump *d, const char *s)
{
    for (; *s != '\0'; s++) {
        if (d->len == sizeof(d->buf))
            dump_flush(d);
        d->buf[d->len++] = *s;
    }
}

static void dump_number(struct dump *d, uint64_t n)
{
    char digits[21];
    char *p = &digits[20];
    *p = '\0';
    do {
        *--p = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    dump_text(d, p);
}

static void dump_ring(struct dump *d, const struct reactor *r)
{
    uint64_t count = r->ring_count;
    uint64_t first = count > DUMP_EVENTS ? count - DUMP_EVENTS : 0;
    for (uint64_t i = first; i < count; i++) {
        const struct ring_entry *e = &r->ring[i % RING_EVENTS];
        dump_text(d, "  event -");
        dump_number(d, (r->now_ns - e->when_ns) / NSEC_PER_USEC);
        dump_text(d, "us ");
        dump_text(d, e->what != NULL ? e->what : "?");
        dump_text(d, " ");
        dump_number(d, e->a);
        dump_text(d, " ");
        dump_number(d, e->b);
        dump_text(d, "\n");
    }
}

static void dump_fibers(struct dump *d, const struct reactor *r)
{
    static const char *const states[] = {"ready", "running", "parked", "done"};
    uint32_t n = 0;
    for (struct list *l = r->fibers.next; l != &r->fibers && n < DUMP_FIBERS; l = l->next, n++) {
        const struct fiber *f = CONTAINER_OF(l, struct fiber, all_link);
        dump_text(d, "  fiber ");
        dump_number(d, f->id);
        dump_text(d, " ");
        dump_text(d, f->name);
        dump_text(d, " ");
        dump_text(d, f->state < ARRAY_SIZE(states) ? states[f->state] : "?");
        if (f->waits_for != NULL) {
            dump_text(d, " in ");
            dump_text(d, f->waits_for);
        }
        if (f->cancelled)
            dump_text(d, " cancelled");
        dump_text(d, "\n");
    }
}

void crash_dump(int fd)
{
    struct dump d = {.fd = fd};
    for (const struct reactor *r = __atomic_load_n(&crash_reactors, __ATOMIC_ACQUIRE); r != NULL;
         r = r->next) {
        dump_text(&d, "reactor ");
        dump_number(&d, r->index);
        dump_text(&d, r == reactor_tls ? " (this thread), fibers: " : ", fibers: ");
        dump_number(&d, r->fiber_count);
        dump_text(&d, "\n");
        dump_ring(&d, r);
        dump_fibers(&d, r);
    }
    dump_flush(&d);
}

static void crash_handler(int sig)
{
    static int entered;
    if (__atomic_exchange_n(&entered, 1, __ATOMIC_SEQ_CST) == 0) {
        struct dump d = {.fd = STDERR_FILENO};
        dump_text(&d, "ashlar " ASHLAR_VERSION " died of signal ");
        dump_number(&d, (uint64_t)sig);
        dump_text(&d, "\n");
        dump_flush(&d);
        crash_dump(STDERR_FILENO);
    }
    raise(sig); /* the default action is back (SA_RESETHAND): dies with the right status and a core */
}

void crash_handler_install(void)
{
    /* A fiber's stack may be what overflowed. The alternative stack is the installing thread's; other
     * threads that want it install the handler too. */
    static __thread char *alternative;
    size_t bytes = 64 * KIB;
    if (alternative == NULL)
        alternative = malloc(bytes);
    if (alternative != NULL) {
        stack_t ss = {.ss_sp = alternative, .ss_size = bytes};
        sigaltstack(&ss, NULL);
    }
    static const int signals[] = {SIGSEGV, SIGABRT, SIGBUS};
    struct sigaction sa = {.sa_handler = crash_handler, .sa_flags = (int)SA_RESETHAND | SA_ONSTACK};
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        sigaction(signals[i], &sa, NULL);
}
