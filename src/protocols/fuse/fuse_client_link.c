/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the node, and what is under way on it.
 *
 *      AWAY --connect, hello, welcome--> RESENDING --nothing is unsent--> CONNECTED
 *       ^                                    |                               |
 *       +------------------------------------+-------the stream ended--------+
 *
 * A request stays in memory until its reply is there. When a connection breaks, all that were sent are sent
 * again on the next one, in their order and marked so; before them go the files that are open. Main, which
 * would wait for room in the socket, does not do that: the receiver must read what the node answers
 * meanwhile, and main must hear of interrupts; so a thread of its own does.
 */
#include "protocols/fuse/fuse_client_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define REPLY_BYTES       ((size_t)(2 * MIB) + 64 * KIB) /* a whole reply fits, and others beside it */
#define REPLY_MAX         ((uint32_t)(1 * MIB) + 64 * KIB)
#define BATCH             64u
#define CONNECT_TIMEOUT_S 10
#define RETRY_MIN_MS      10u
#define RETRY_MAX_MS      500u

/* ---- Buffers ---- */

struct client_buffer *client_buffer_get(struct client *c)
{
    pthread_mutex_lock(&c->lock);
    struct client_buffer *b = c->spare;
    if (b != NULL) {
        c->spare = b->next;
        c->spare_count--;
    }
    pthread_mutex_unlock(&c->lock);
    if (b != NULL)
        return b;
    b = malloc(sizeof(*b));
    if (b == NULL)
        return NULL;
    b->bytes = mmap(NULL, CLIENT_RECEIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->bytes == MAP_FAILED) {
        free(b);
        return NULL;
    }
    return b;
}

static void buffer_put_locked(struct client *c, struct client_buffer *b)
{
    if (c->spare_count < CLIENT_BUFFERS) {
        b->next = c->spare;
        c->spare = b;
        c->spare_count++;
        return;
    }
    munmap(b->bytes, CLIENT_RECEIVE_BYTES);
    free(b);
}

void client_buffer_put(struct client *c, struct client_buffer *b)
{
    pthread_mutex_lock(&c->lock);
    buffer_put_locked(c, b);
    pthread_mutex_unlock(&c->lock);
}

/* ---- Requests ---- */

static struct client_request **bucket_of(struct client *c, uint64_t unique)
{
    return &c->buckets[unique % CLIENT_BUCKETS];
}

struct client_request *client_request_new(struct client *c, fuse_req_t req, const struct fuse_request *q,
                                          const void *data, uint32_t data_len)
{
    bool keep = data_len >= CLIENT_KEEP_BYTES;
    uint32_t size = fuse_request_size(q);
    struct client_request *r = malloc(sizeof(*r) + size + (keep ? 0 : data_len));
    if (r == NULL) {
        if (req != NULL)
            fuse_reply_err(req, ENOMEM);
        return NULL;
    }
    memset(r, 0, sizeof(*r));
    list_init(&r->order);
    list_init(&r->unsent);
    r->req = req;
    r->pid = req != NULL ? fuse_req_ctx(req)->pid : 0;
    r->ino = q->ino;
    r->op = q->op;
    r->len = fuse_request_encode(q, r->bytes);
    r->data_len = data_len;
    if (keep) {
        r->buffer = c->buffer; /* main gets itself another one */
        r->data = data;
        c->buffer_taken = true;
    } else if (data_len > 0) {
        memcpy(r->bytes + r->len, data, data_len);
        r->data = r->bytes + r->len;
    }
    return r;
}

void client_request_free(struct client *c, struct client_request *r)
{
    if (r->buffer != NULL)
        client_buffer_put(c, r->buffer);
    free(r);
}

static void request_off(struct client *c, struct client_request *r)
{
    list_remove(&r->order);
    list_remove(&r->unsent);
    if (r->unique == 0)
        return;
    struct client_request **at = bucket_of(c, r->unique);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    c->request_count--;
}

static void request_on(struct client *c, struct client_request *r)
{
    list_append(&c->unsent, &r->unsent);
    c->urgent |= r->req != NULL;
    if (r->unique == 0)
        return;
    list_append(&c->requests, &r->order);
    r->next = *bucket_of(c, r->unique);
    *bucket_of(c, r->unique) = r;
    c->request_count++;
}

static struct client_request *request_find(struct client *c, uint64_t unique)
{
    struct client_request *r = unique != 0 ? *bucket_of(c, unique) : NULL;
    while (r != NULL && r->unique != unique)
        r = r->next;
    return r;
}

struct client_request *client_request_take(struct client *c, uint64_t unique)
{
    pthread_mutex_lock(&c->lock);
    struct client_request *r = request_find(c, unique);
    if (r != NULL)
        request_off(c, r);
    pthread_mutex_unlock(&c->lock);
    return r;
}

static void set_unique(struct client_request *r, uint64_t unique)
{
    struct le64 n = le64_make(unique);
    r->unique = unique;
    memcpy(r->bytes + offsetof(struct wire_request, unique), &n, sizeof(n));
}

static void set_again(struct client_request *r)
{
    struct le16 flags = le16_make(WIRE_AGAIN);
    memcpy(r->bytes + offsetof(struct wire_request, flags), &flags, sizeof(flags));
}

/* Has the thread a SIGKILL pending? The kernel gives one to each thread of a process that a signal ends. */
static bool is_dying(pid_t thread)
{
    char path[40], text[4096];
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[MAX(n, 0)] = '\0';
    const char *own = strstr(text, "\nSigPnd:"), *shared = strstr(text, "\nShdPnd:");
    if (own == NULL || shared == NULL)
        return true;
    unsigned long long pending = strtoull(own + 8, NULL, 16) | strtoull(shared + 8, NULL, 16);
    return pending & 1ULL << (SIGKILL - 1);
}

/* While the node is away: does who waits for r go on without it? A signal that he survives (a timer's, a
 * child's, a stop) must not make a call fail that he does not expect to fail so, and that may have been done:
 * he waits on. The kernel does not tell a second signal, so who was signalled once is looked at again and
 * again. Waiting for a lock is different: the kernel begins it anew. */
static bool gives_up(const struct client_request *r)
{
    return r->interrupted && (r->op == WIRE_LOCK_SET || r->pid == 0 || is_dying(r->pid));
}

static void on_interrupt(fuse_req_t req, void *data);

void client_request_begin(struct client *c, struct client_request *r)
{
    fuse_req_t req = r->req;
    set_unique(r, req != NULL || r->must ? ++c->next_unique : 0); /* the counter is main's alone */
    if (req != NULL) {
        c->interrupted_now = false;
        fuse_req_interrupt_func(req, on_interrupt, (void *)(uintptr_t)r->unique);
        r->interrupted = c->interrupted_now;
    }
    pthread_mutex_lock(&c->lock);
    bool refuse = c->state == CLIENT_AWAY && gives_up(r);
    if (!refuse)
        request_on(c, r);
    pthread_mutex_unlock(&c->lock);
    if (refuse) {
        fuse_reply_err(req, EINTR);
        client_request_free(c, r);
    }
}

/* ---- Interrupts ---- */

/* In main, while it decodes an interrupt, or when it registers this for one that came before. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct client *c = fuse_req_userdata(req);
    client_interrupt(c, (uint64_t)(uintptr_t)data);
}

static void tell_interrupt(struct client *c, uint64_t unique)
{
    struct fuse_request q = {.op = WIRE_INTERRUPT, .interrupt = {.unique = unique}};
    struct client_request *r = client_request_new(c, NULL, &q, NULL, 0);
    if (r == NULL)
        return; /* the process waits on, as if the signal came later */
    set_unique(r, 0);
    pthread_mutex_lock(&c->lock);
    request_on(c, r);
    c->urgent = true;
    pthread_mutex_unlock(&c->lock);
}

void client_interrupt(struct client *c, uint64_t unique)
{
    bool tell = false;
    fuse_req_t answer = NULL;
    pthread_mutex_lock(&c->lock);
    struct client_request *r = request_find(c, unique);
    if (r == NULL) {
        c->interrupted_now = true;
    } else {
        r->interrupted = true;
        if (c->state != CLIENT_AWAY) {
            tell = r->op == WIRE_LOCK_SET; /* nothing else waits for others */
        } else if (gives_up(r)) {
            answer = r->req;
            request_off(c, r);
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (answer != NULL) {
        fuse_reply_err(answer, EINTR);
        client_request_free(c, r);
    }
    if (tell)
        tell_interrupt(c, unique);
}

/* ---- Sending ---- */

struct batch {
    struct iovec iov[2 * BATCH];
    uint32_t count;
    struct client_request
        *done[2 * BATCH]; /* go when they were sent: no reply comes; each has an iov at least */
    uint32_t done_count;
};

/* lock is held. */
static void batch_fill(struct client *c, struct batch *b)
{
    b->count = b->done_count = 0;
    while (!list_empty(&c->unsent) && b->count + 2 <= ARRAY_SIZE(b->iov)) {
        struct client_request *r = CONTAINER_OF(c->unsent.next, struct client_request, unsent);
        list_remove(&r->unsent);
        r->sent = true;
        b->iov[b->count++] = (struct iovec){r->bytes, r->len};
        if (r->data_len > 0)
            b->iov[b->count++] = (struct iovec){(void *)(uintptr_t)r->data, r->data_len};
        if (r->unique == 0) {
            assert(b->done_count < ARRAY_SIZE(b->done));
            b->done[b->done_count++] = r;
        }
    }
    c->urgent = !list_empty(&c->unsent);
}

/* All of it, or -errno. */
static int send_all(int fd, struct iovec *iov, uint32_t count)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = count};
    while (m.msg_iovlen > 0) {
        /* The reply to a request may come, and free it, before this call has returned: nothing but the kernel
         * may look at its bytes. The C library's function is wrapped by sanitizers, which do. */
        ssize_t n = syscall(SYS_sendmsg, fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        size_t left = (size_t)n;
        while (m.msg_iovlen > 0 && left >= m.msg_iov->iov_len) {
            left -= m.msg_iov->iov_len;
            m.msg_iov++;
            m.msg_iovlen--;
        }
        if (m.msg_iovlen > 0 && left > 0) {
            m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + left;
            m.msg_iov->iov_len -= left;
        }
    }
    return 0;
}

/* send_lock is held. What was not sent for an error goes again with the next connection. */
static int batch_send(struct client *c, struct batch *b)
{
    int err = b->count > 0 ? send_all(c->socket, b->iov, b->count) : 0;
    for (uint32_t i = 0; i < b->done_count; i++)
        client_request_free(c, b->done[i]);
    return err;
}

void client_flush(struct client *c)
{
    struct batch b;
    bool more = true;
    pthread_mutex_lock(&c->send_lock);
    while (more) {
        pthread_mutex_lock(&c->lock);
        more = c->state == CLIENT_CONNECTED && !list_empty(&c->unsent);
        if (more)
            batch_fill(c, &b);
        pthread_mutex_unlock(&c->lock);
        if (more && batch_send(c, &b) != 0)
            more = false; /* the receiver sees the end of the stream, too */
    }
    pthread_mutex_unlock(&c->send_lock);
}

/* ---- Connecting ---- */

int client_connect(struct client *c, bool *ret_coherent)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = CONNECT_TIMEOUT_S};
    size_t name_len = strlen(c->options.name), label_len = strlen(c->label);
    uint8_t hello[sizeof(struct wire_hello) + WIRE_NAME_MAX + WIRE_LABEL_MAX];
    struct wire_hello h = {.version = le32_make(WIRE_VERSION),
                           .name_len = le32_make((uint32_t)name_len),
                           .label_len = le32_make((uint32_t)label_len)};
    struct wire_welcome w;
    assert(strlen(c->options.socket) < sizeof(address.sun_path) && name_len <= WIRE_NAME_MAX);
    memcpy(address.sun_path, c->options.socket, strlen(c->options.socket));
    memcpy(h.magic, WIRE_MAGIC, WIRE_MAGIC_LEN);
    memcpy(h.session, c->session, sizeof(h.session));
    memcpy(hello, &h, sizeof(h));
    memcpy(hello + sizeof(h), c->options.name, name_len);
    memcpy(hello + sizeof(h) + name_len, c->label, label_len);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    struct iovec iov = {hello, sizeof(h) + name_len + label_len};
    int err = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    if (err == 0)
        err = send_all(fd, &iov, 1);
    if (err == 0) {
        ssize_t n = recv(fd, &w, sizeof(w), MSG_WAITALL);
        err = n < 0 ? -errno : n != sizeof(w) ? -ECONNRESET : -(int)le32_get(w.error);
        if (n == sizeof(w) && memcmp(w.magic, WIRE_MAGIC, WIRE_MAGIC_LEN) != 0)
            err = -EPROTONOSUPPORT;
    }
    if (err != 0) {
        close(fd);
        return err;
    }
    timeout = (struct timeval){0};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    *ret_coherent = le32_get(w.flags) & WIRE_WELCOME_COHERENT;
    return fd;
}

static void request_prepend(struct client *c, const struct fuse_request *q)
{
    struct client_request *r = client_request_new(c, NULL, q, NULL, 0);
    if (r == NULL)
        abort(); /* without it an open file might vanish: better no mount than a wrong one */
    set_unique(r, 0);
    list_append(&c->unsent, &r->unsent);
}

/* lock is held: the open files, then all that was not answered, in order. Replies to RELEASE were given
 * already, and what is open now is told: those that wait are not needed. */
static void queue_again(struct client *c)
{
    for (struct list *l; (l = list_pop(&c->unsent)) != NULL;) {
        struct client_request *r = CONTAINER_OF(l, struct client_request, unsent);
        if (r->unique == 0)
            free(r);
    }
    FUSE_TABLE_FOREACH(&c->nodes, n)
    {
        for (uint32_t kind = 1; kind < FUSE_OPEN_KINDS; kind++) {
            struct fuse_request q = {
                .op = WIRE_REOPEN, .ino = n->ino, .open = {.flags = kind, .count = n->opens[kind]}};
            if (n->opens[kind] > 0)
                request_prepend(c, &q);
        }
    }
    request_prepend(c, &(struct fuse_request){.op = WIRE_REOPEN_DONE});
    LIST_FOREACH (&c->requests, l) {
        struct client_request *r = CONTAINER_OF(l, struct client_request, order);
        if (r->sent)
            set_again(r);
        list_append(&c->unsent, &r->unsent);
    }
}

static void *resend(void *arg)
{
    struct client *c = arg;
    struct batch b;
    int err = 0;
    bool done = false;
    pthread_mutex_lock(&c->send_lock);
    while (err == 0 && !done) {
        pthread_mutex_lock(&c->lock);
        batch_fill(c, &b);
        if (b.count == 0) {
            c->state = CLIENT_CONNECTED;
            done = true;
        }
        pthread_mutex_unlock(&c->lock);
        err = batch_send(c, &b);
    }
    pthread_mutex_unlock(&c->send_lock);
    return NULL;
}

void client_link_start(struct client *c, int fd)
{
    pthread_mutex_lock(&c->send_lock);
    c->socket = fd;
    pthread_mutex_lock(&c->lock);
    queue_again(c);
    c->state = CLIENT_RESENDING;
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->send_lock);
    if (pthread_create(&c->resender, NULL, resend, c) != 0)
        abort(); /* as above */
    c->resender_runs = true;
}

/* Processes that end wait no longer for a node that is gone. */
static void answer_interrupted(struct client *c)
{
    for (;;) {
        struct client_request *found = NULL;
        pthread_mutex_lock(&c->lock);
        LIST_FOREACH (&c->requests, l) {
            struct client_request *r = CONTAINER_OF(l, struct client_request, order);
            if (!gives_up(r))
                continue;
            found = r;
            request_off(c, r);
            break;
        }
        pthread_mutex_unlock(&c->lock);
        if (found == NULL)
            return;
        fuse_reply_err(found->req, EINTR);
        client_request_free(c, found);
    }
}

static void link_stop(struct client *c)
{
    shutdown(c->socket, SHUT_RDWR); /* whoever sends gets an error and lets go of the lock */
    if (c->resender_runs)
        pthread_join(c->resender, NULL);
    c->resender_runs = false;
    pthread_mutex_lock(&c->send_lock);
    pthread_mutex_lock(&c->lock);
    c->state = CLIENT_AWAY;
    pthread_mutex_unlock(&c->lock);
    close(c->socket);
    c->socket = -1;
    pthread_mutex_unlock(&c->send_lock);
    answer_interrupted(c);
}

static bool is_ending(struct client *c)
{
    pthread_mutex_lock(&c->lock);
    bool ending = c->ending;
    pthread_mutex_unlock(&c->lock);
    return ending;
}

/* For ever; false: unmounted meanwhile. */
static bool connect_again(struct client *c)
{
    uint32_t wait_ms = RETRY_MIN_MS;
    bool coherent;
    while (!is_ending(c)) {
        int fd = client_connect(c, &coherent);
        if (fd >= 0) {
            if (!coherent)
                client_note_add(c, &(struct client_note){.kind = WIRE_NOTE_ALL}, NULL, 0);
            client_link_start(c, fd);
            return true;
        }
        struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)wait_ms * 1000000};
        nanosleep(&pause, NULL);
        answer_interrupted(c);
        wait_ms = MIN(wait_ms * 2, RETRY_MAX_MS);
    }
    return false;
}

/* ---- Receiving ---- */

/* Whole replies at the beginning of the buffer; how many bytes they were; SIZE_MAX: nonsense. */
static size_t replies(struct client *c, const uint8_t *bytes, size_t len)
{
    size_t done = 0;
    while (len - done >= sizeof(struct wire_reply)) {
        struct wire_reply h;
        memcpy(&h, bytes + done, sizeof(h));
        uint32_t need = le32_get(h.len);
        if (need < sizeof(h) || need > REPLY_MAX)
            return SIZE_MAX;
        if (len - done < need)
            break;
        if (!client_reply(c, bytes + done, need))
            return SIZE_MAX;
        done += need;
    }
    return done;
}

/* Until the stream ends. */
static void receive(struct client *c, uint8_t *buffer)
{
    size_t len = 0;
    for (;;) {
        ssize_t n = recv(c->socket, buffer + len, REPLY_BYTES - len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        len += (size_t)n;
        size_t done = replies(c, buffer, len);
        if (done == SIZE_MAX) {
            client_log(c, "the node sent what is no reply; connecting again");
            return;
        }
        if (done > 0 && done < len)
            memmove(buffer, buffer + done, len - done);
        len -= done;
    }
}

void *client_receiver(void *arg)
{
    struct client *c = arg;
    uint8_t *buffer = mmap(NULL, REPLY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        abort();
    for (;;) {
        receive(c, buffer);
        link_stop(c);
        if (is_ending(c))
            return NULL;
        client_log(c, "the node is gone; waiting for it to come back");
        if (!connect_again(c))
            return NULL;
        client_log(c, "the node is back");
    }
}
