/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between reactors: an inbox per reactor that any thread pushes to (a stack, by compare-and-set) and
 * that the owner empties at once and reverses. Only the push that finds the inbox empty wakes the target.
 *
 * Helper threads for what must block: started as needed, up to a limit, and kept. They end with the process.
 */
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define HELPERS_MAX 8

void reactor_post(struct reactor *to, struct message *m)
{
    /* The target may act on m and be freed before its wake-up below; reactor_free() waits for us. */
    __atomic_fetch_add(&to->posting, 1, __ATOMIC_SEQ_CST);
    struct message *head = __atomic_load_n(&to->inbox, __ATOMIC_RELAXED);
    do {
        m->next = head;
    } while (!__atomic_compare_exchange_n(&to->inbox, &head, m, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    /* The loop looks into the inbox between its turn and its wait, so its own posts need no wake-up. */
    if (head == NULL && to != reactor_tls)
        to->ops->wake(to);
    __atomic_fetch_sub(&to->posting, 1, __ATOMIC_SEQ_CST);
}

bool message_run_all(struct reactor *r)
{
    if (__atomic_load_n(&r->inbox, __ATOMIC_RELAXED) == NULL)
        return false;
    struct message *newest = __atomic_exchange_n(&r->inbox, NULL, __ATOMIC_SEQ_CST);
    struct message *oldest = NULL;
    while (newest != NULL) {
        struct message *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct message *m = oldest;
        oldest = m->next; /* m is the sender's again from now on */
        m->fn(m);
    }
    return true;
}

/* ---- reactor_spawn ---- */

struct spawn_message {
    struct message message;
    const char *name;
    void (*fn)(void *arg);
    void *arg;
};

static void spawn_arrived(struct message *m)
{
    struct spawn_message *s = CONTAINER_OF(m, struct spawn_message, message);
    int err = fiber_spawn(s->name, s->fn, s->arg);
    if (err != 0)
        LOG_ERROR("cannot start fiber %s: %s", s->name, error_text(err));
    free(s);
}

int reactor_spawn(struct reactor *r, const char *name, void (*fn)(void *arg), void *arg)
{
    struct spawn_message *s = malloc(sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    *s = (struct spawn_message){.message.fn = spawn_arrived, .name = name, .fn = fn, .arg = arg};
    reactor_post(r, &s->message);
    return 0;
}

/* ---- reactor_call and reactor_block ---- */

struct call {
    struct message message; /* there, then back */
    struct reactor *from;
    struct fiber *caller;
    int (*fn)(void *arg);
    void *arg;
    int result;
    bool done;
    struct helper_job job;
};

static void call_returned(struct message *m)
{
    struct call *c = CONTAINER_OF(m, struct call, message);
    c->done = true;
    fiber_wake(c->caller);
}

static void call_reply(struct call *c, int result)
{
    c->result = result;
    c->message.fn = call_returned;
    reactor_post(c->from, &c->message);
}

/* The call is on the caller's stack, so the wait cannot be given up. */
static may_yield int call_wait(struct call *c, const char *what)
{
    fiber_shield();
    while (!c->done) {
        int err = fiber_park_for(what, DEADLINE_NEVER);
        assert(err == 0);
    }
    fiber_unshield();
    return c->result;
}

static void call_fiber(void *arg)
{
    struct call *c = arg;
    call_reply(c, c->fn(c->arg));
}

static void call_arrived(struct message *m)
{
    struct call *c = CONTAINER_OF(m, struct call, message);
    int err = fiber_spawn("call", call_fiber, c);
    if (err != 0)
        call_reply(c, err);
}

int reactor_call(struct reactor *to, int (*fn)(void *arg), void *arg)
{
    struct fiber *self = fiber_self();
    assert(self != NULL);
    if (to == reactor_tls)
        return fn(arg);
    struct call c = {.message.fn = call_arrived, .from = reactor_tls, .caller = self, .fn = fn, .arg = arg};
    reactor_post(to, &c.message);
    return call_wait(&c, "call");
}

/* ---- Helper threads ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct helper_job *first, **last;
    uint32_t threads, idle, queued;
} helpers = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .last = &helpers.first};

/* Threads do not live on in the child of a fork; nor may what they had in hand. */
static void helpers_forget(void)
{
    pthread_mutex_init(&helpers.lock, NULL);
    pthread_cond_init(&helpers.more, NULL);
    helpers.first = NULL;
    helpers.last = &helpers.first;
    helpers.threads = helpers.idle = helpers.queued = 0;
}

static void *helper_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&helpers.lock);
    for (;;) {
        helpers.idle++;
        while (helpers.first == NULL)
            pthread_cond_wait(&helpers.more, &helpers.lock);
        helpers.idle--;
        struct helper_job *job = helpers.first;
        helpers.first = job->next;
        helpers.queued--;
        if (helpers.first == NULL)
            helpers.last = &helpers.first;
        pthread_mutex_unlock(&helpers.lock);
        job->run(job);
        pthread_mutex_lock(&helpers.lock);
    }
    return NULL;
}

/* With the lock held. Signals are the main thread's business. */
static void helper_start(void)
{
    static bool prepared;
    if (!prepared)
        pthread_atfork(NULL, NULL, helpers_forget);
    prepared = true;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    if (pthread_create(&thread, NULL, helper_main, NULL) == 0) {
        pthread_detach(thread);
        helpers.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int helper_queue(struct helper_job *job)
{
    int err = 0;
    pthread_mutex_lock(&helpers.lock);
    if (helpers.idle <= helpers.queued && helpers.threads < HELPERS_MAX)
        helper_start();
    if (helpers.threads == 0) {
        err = ERR_NO_MEMORY;
    } else {
        job->next = NULL;
        *helpers.last = job;
        helpers.last = &job->next;
        helpers.queued++;
        pthread_cond_signal(&helpers.more);
    }
    pthread_mutex_unlock(&helpers.lock);
    return err;
}

static void block_run(struct helper_job *job)
{
    struct call *c = CONTAINER_OF(job, struct call, job);
    call_reply(c, c->fn(c->arg));
}

int reactor_block(int (*fn)(void *arg), void *arg)
{
    struct reactor *r = reactor_tls;
    struct call c = {.job.run = block_run, .from = r, .caller = fiber_self(), .fn = fn, .arg = arg};
    assert(c.caller != NULL);
    if (r->ops->block != NULL)
        return r->ops->block(r, fn, arg);
    int err = helper_queue(&c.job);
    return err != 0 ? err : call_wait(&c, "helper thread");
}
