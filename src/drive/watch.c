/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the medium. A file that is truncated, deleted or replaced under the running process takes writes
 * without an error, so I/O errors alone would notice it only at the next read. About each second with
 * traffic, and each two seconds without, the path is opened anew and must still lead to a drive of full size
 * with this drive's identity and incarnation at both ends.
 */
#include "drive/internal.h"

#include "runtime/error.h"
#include "runtime/log.h"

#define WATCH_BUSY_NS (1 * NSEC_PER_SEC)

static uint64_t traffic_of(struct drive_home *h)
{
    uint64_t sum = 0;
    LIST_FOREACH (&h->handles, it) {
        const struct drive_counters *c = &CONTAINER_OF(it, struct local_drive, link)->counters;
        sum += counter_get(&c->reads) + counter_get(&c->writes) + counter_get(&c->flushes);
    }
    return sum;
}

/* Out of file descriptors or memory says nothing about the drive. */
static bool error_is_ours(int err)
{
    return err == ERR_SYS(EMFILE) || err == ERR_SYS(ENFILE) || err == ERR_SYS(ENOMEM) ||
           err == ERR_NO_MEMORY || err == ERR_CANCELLED || err == ERR_TIMEOUT;
}

static bool copy_is_ours(const struct drive_home *h, const struct superblock_pair *p, int copy)
{
    return p->err[copy] == 0 && uuid_equal(p->copy[copy].drive_id, h->sb.drive_id) &&
           p->copy[copy].incarnation == h->incarnation;
}

/* Under sb_lock, so that a change of the superblock is not seen half done. */
static void check_locked(struct drive_home *h, struct file *f) may_yield
{
    struct file_info info;
    struct superblock_pair pair;
    int err = file_get_info(f, &info);
    if (err == 0 && info.size_bytes < h->sb.size_bytes) {
        home_set_state(h, DRIVE_LOST, "shrunken: it has %llu bytes of %llu",
                       (unsigned long long)info.size_bytes, (unsigned long long)h->sb.size_bytes);
        return;
    }
    if (err == 0)
        err = superblock_read_pair(f, h->sb.size_bytes, &pair);
    if (err != 0) {
        if (!error_is_ours(err))
            home_set_state(h, DRIVE_LOST, "its size cannot be read: %s", error_text(err));
        return;
    }
    /* A cut takes the end first, so a missing end is a cut even if the size is right again. The beginning
     * alone can only have rotted. */
    if (!copy_is_ours(h, &pair, 1)) {
        home_set_state(h, DRIVE_LOST, "its end was cut off or replaced by something else");
        return;
    }
    if (!copy_is_ours(h, &pair, 0)) {
        if (pair.err[0] == 0) {
            home_set_state(h, DRIVE_LOST, "another drive stands in its place");
            return;
        }
        event_raise(LOG_WARNING_, "drive-superblock-repaired", "%s: the first superblock was damaged",
                    h->path);
        err = home_write_superblock(h, false);
        if (err != 0)
            home_set_state(h, DRIVE_LOST, "its superblock cannot be written: %s", error_text(err));
    }
}

void home_check_medium(struct drive_home *h)
{
    assert(reactor_current() == h->reactor);
    if (home_state(h) != DRIVE_OK)
        return;
    struct file *f;
    int err = file_open(h->path, FILE_OPEN_DIRECT, &f);
    if (err != 0) {
        if (!error_is_ours(err))
            home_set_state(h, DRIVE_LOST, "it cannot be opened any more: %s", error_text(err));
        return;
    }
    fmutex_lock(&h->sb_lock);
    check_locked(h, f);
    fmutex_unlock(&h->sb_lock);
    file_close(f);
}

struct state_call {
    struct local_drive *handle;
};

static int take_state_on_handle(void *arg)
{
    handle_take_state(((struct state_call *)arg)->handle);
    return 0;
}

/* Tells every reactor's handle, so that its drive_set wakes who waits for a change. */
static void tell_handles(struct drive_home *h) may_yield
{
    fmutex_lock(&h->handles_lock);
    LIST_FOREACH (&h->handles, it) {
        struct state_call c = {CONTAINER_OF(it, struct local_drive, link)};
        /* Best effort: a handle looks itself, too, at each request. */
        if (reactor_call(c.handle->reactor, take_state_on_handle, &c) != 0)
            break;
    }
    fmutex_unlock(&h->handles_lock);
}

void home_watch_fiber(void *arg)
{
    struct drive_home *h = arg;
    bool idle = false;
    bool told = false;
    while (!h->closing) {
        bool down = home_state(h) != DRIVE_OK;
        if (down && !told) {
            tell_handles(h);
            told = true;
            continue;
        }
        int err = waitq_wait(&h->watch, down ? DEADLINE_NEVER : reactor_now_ns() + WATCH_BUSY_NS);
        if (err == ERR_CANCELLED)
            break;
        if (err != ERR_TIMEOUT || h->closing)
            continue;
        uint64_t traffic = traffic_of(h);
        if (traffic != h->traffic_seen || idle) {
            home_check_medium(h);
            idle = false;
        } else {
            idle = true;
        }
        h->traffic_seen = traffic;
    }
}
