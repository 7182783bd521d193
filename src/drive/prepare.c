/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker of a drive: writes the space of free slabs ahead of their use, and gives the space of freed ones
 * back to the host.
 *
 * Why written once: in a file whose extents are allocated but unwritten, the first write of each block
 * changes the file system's metadata, so a durable 4 KiB write costs a journal commit. A block device needs
 * nothing of it.
 *
 * Neither is in anybody's way: preparing goes on only while few slabs are ready, and a discard that the host
 * cannot do is not an error.
 */
#include "drive/internal.h"

#include "runtime/error.h"
#include "runtime/log.h"

#define ZERO_BYTES        (256 * KIB)
#define PREPARE_IO_BYTES  (4 * MIB)
#define HOST_FULL_WAIT_NS (5 * NSEC_PER_SEC)

static const uint8_t zeroes[ZERO_BYTES] __attribute__((aligned(4096)));

static uint64_t slab_offset(const struct drive_home *h, uint32_t slab)
{
    assert(slab < h->sb.layout.slabs_total);
    return h->sb.layout.slab_offset + (uint64_t)slab * h->sb.slab_bytes;
}

static int write_zeroes(struct drive_home *h, uint64_t offset, uint64_t len) may_yield
{
    struct iovec iov[PREPARE_IO_BYTES / ZERO_BYTES];
    uint32_t n = 0;
    assert(len <= PREPARE_IO_BYTES);
    for (uint64_t at = 0; at < len; at += ZERO_BYTES)
        iov[n++] = (struct iovec){(void *)(uintptr_t)zeroes, MIN(ZERO_BYTES, len - at)};
    struct file_io io = {
        .file = h->file, .op = FILE_WRITE, .offset = offset, .len = len, .iov = iov, .iov_count = n};
    return file_do(&io);
}

int home_slab_prepare(struct drive_home *h, uint32_t slab)
{
    struct drive_slab_live *live = &h->slabs[slab];
    assert(live->entry.state == DRIVE_SLAB_FREE && !live->busy);
    live->busy = true;
    int err = 0;
    for (uint64_t at = 0; at < h->sb.slab_bytes && err == 0; at += PREPARE_IO_BYTES)
        err = write_zeroes(h, slab_offset(h, slab) + at, MIN(PREPARE_IO_BYTES, h->sb.slab_bytes - at));
    if (err == ERR_SYS(ENOSPC) || err == ERR_SYS(EDQUOT)) {
        /* Gives back the part that was written: the coordinator's file needs some room on a full host, too.
         */
        struct file_io io = {
            .file = h->file, .op = FILE_DISCARD, .offset = slab_offset(h, slab), .len = h->sb.slab_bytes};
        if (file_do(&io) != 0)
            LOG_DEBUG("%s: the host keeps the space of a slab that was prepared in part", h->path);
    }
    live->busy = false;
    waitq_wake_all(&h->settled);
    if (err == 0) {
        h->host_full = false;
        live->entry.flags |= DRIVE_SLAB_PREPARED;
        /* Written with the next change of this block: if that is lost the slab is only prepared again. */
        drive_table_changed(&h->slab_table, slab);
        return 0;
    }
    if (err == ERR_SYS(ENOSPC) || err == ERR_SYS(EDQUOT)) {
        if (!h->host_full)
            event_raise(LOG_ERROR_, "drive-host-full",
                        "%s: the file system under the drive is full: make room there, or the pool takes no "
                        "new data on this drive",
                        h->path);
        h->host_full = true;
        return ERR_DRIVE_NO_SPACE;
    }
    home_set_state(h, DRIVE_LOST, "preparing a slab failed: %s", error_text(err));
    return ERR_DRIVE_GONE;
}

/* ---- Worker ---- */

static void slab_discard(struct drive_home *h, uint32_t slab) may_yield
{
    struct drive_slab_live *live = &h->slabs[slab];
    assert(!live->busy && live->entry.state != DRIVE_SLAB_ALLOCATED);
    live->busy = true;
    struct file_io io = {
        .file = h->file, .op = FILE_DISCARD, .offset = slab_offset(h, slab), .len = h->sb.slab_bytes};
    int err = file_do(&io);
    live->busy = false;
    waitq_wake_all(&h->settled);
    /* A host that cannot discard keeps the space: then it is as good as prepared. */
    live->entry = (struct drive_slab){.flags = err == 0 ? 0 : DRIVE_SLAB_PREPARED};
    drive_table_changed(&h->slab_table, slab);
}

/* The next slab to discard, and how many are ready for use; UINT32_MAX for none. */
static void work_look(const struct drive_home *h, uint32_t *ret_discard, uint32_t *ret_raw,
                      uint32_t *ret_ready)
{
    *ret_discard = *ret_raw = UINT32_MAX;
    *ret_ready = 0;
    for (uint32_t i = h->sb.layout.slabs_total; i-- > 0;) {
        const struct drive_slab_live *s = &h->slabs[i];
        if (s->busy || s->entry.state == DRIVE_SLAB_ALLOCATED)
            continue;
        if ((s->entry.flags & DRIVE_SLAB_UNDISCARDED) != 0)
            *ret_discard = i;
        else if ((s->entry.flags & DRIVE_SLAB_PREPARED) != 0)
            ++*ret_ready;
        else
            *ret_raw = i;
    }
}

void home_worker_fiber(void *arg)
{
    struct drive_home *h = arg;
    uint64_t retry_ns = 0; /* after the host was full */
    while (!h->closing) {
        uint32_t discard = UINT32_MAX, raw = UINT32_MAX, ready = 0;
        if (home_state(h) == DRIVE_OK)
            work_look(h, &discard, &raw, &ready);
        if (discard != UINT32_MAX) {
            slab_discard(h, discard);
            continue;
        }
        bool wanted = raw != UINT32_MAX && h->needs_prepare && h->alloc_seen && ready < h->prepare_ahead;
        if (wanted && reactor_now_ns() >= retry_ns) {
            if (home_slab_prepare(h, raw) != 0)
                retry_ns = reactor_now_ns() + HOST_FULL_WAIT_NS;
            continue;
        }
        int err = waitq_wait(&h->work, wanted ? retry_ns : DEADLINE_NEVER);
        if (err == ERR_CANCELLED)
            break;
    }
}
