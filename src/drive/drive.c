/* SPDX-License-Identifier: Apache-2.0 */
/* The gate in front of every implementation: it checks the contract of drive.h before and after each call. */
#include "drive/drive.h"

#include "runtime/error.h"

struct uuid drive_id(const struct drive *d)
{
    return d->id;
}
uint32_t drive_slab_blocks(const struct drive *d)
{
    return d->slab_blocks;
}
enum drive_state drive_get_state(const struct drive *d)
{
    return d->state;
}
uint32_t drive_queue_depth(const struct drive *d)
{
    return d->queue_depth;
}

int drive_get_info(struct drive *d, struct drive_info *ret)
{
    int err = d->ops->get_info(d, ret);
    if (err == 0)
        assert((ret->state == DRIVE_OK) == (ret->why[0] == '\0'));
    return err;
}

/* ---- Sessions ---- */

int drive_session_open(struct drive *d, struct uuid volume, uint64_t epoch, uint64_t generation,
                       struct drive_session **ret)
{
    assert(ret != NULL);
    int err = d->ops->session_open(d, volume, epoch, generation, ret);
    if (err == 0) {
        assert((*ret)->drive == d && (*ret)->epoch == epoch);
        assert((*ret)->in_flight == 0);
    }
    return err;
}

void drive_session_close(struct drive_session *s)
{
    assert(s->in_flight == 0);
    s->drive->ops->session_close(s);
}

uint64_t drive_session_incarnation(const struct drive_session *s)
{
    return s->incarnation;
}
uint64_t drive_session_lease_until_ns(const struct drive_session *s)
{
    return s->lease_until_ns;
}
int drive_session_renew(struct drive_session *s)
{
    return s->drive->ops->session_renew(s);
}

/* ---- I/O ---- */

static void check_io(const struct drive_io *io)
{
    assert(io->session != NULL && io->done != NULL);
    if (io->op == DRIVE_FLUSH)
        return;
    assert(io->op == DRIVE_READ || io->op == DRIVE_WRITE);
    assert(io->blocks > 0);
    assert(io->iov_count >= 1 && io->iov_count <= 1024);
    assert(io->page == NULL || io->iov_count == 1);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < io->iov_count; i++) {
        assert((uintptr_t)io->iov[i].iov_base % BLOCK_SIZE == 0);
        sum += io->iov[i].iov_len;
    }
    assert(sum == (uint64_t)io->blocks * BLOCK_SIZE);
}

void drive_submit(struct drive_io *io)
{
    check_io(io);
    io->session->drive->ops->submit(io);
}

static void wake_latch(struct drive_io *io)
{
    latch_down(io->ctx);
}

int drive_do(struct drive_io *io)
{
    struct latch l;
    latch_init(&l, 1);
    io->done = wake_latch;
    io->ctx = &l;
    drive_submit(io);
    latch_wait(&l);
    return io->result;
}

int drive_flush(struct drive_session *s)
{
    struct drive_io io = {.session = s, .op = DRIVE_FLUSH};
    return drive_do(&io);
}

/* ---- Slabs ---- */

int drive_slab_alloc(struct drive_session *s, uint32_t group, uint32_t member, uint32_t *ret_slab)
{
    assert(ret_slab != NULL);
    return s->drive->ops->slab_alloc(s, group, member, ret_slab);
}
int drive_slab_free(struct drive_session *s, uint32_t slab)
{
    return s->drive->ops->slab_free(s, slab);
}
int drive_slab_list(struct drive *d, struct uuid volume, struct slab_entry **ret, uint32_t *ret_count)
{
    assert(ret != NULL && ret_count != NULL);
    return d->ops->slab_list(d, volume, ret, ret_count);
}
int drive_volume_purge(struct drive *d, struct uuid volume, uint64_t epoch)
{
    if (uuid_is_none(volume))
        return ERR_INVALID;
    return d->ops->volume_purge(d, volume, epoch);
}
