/* SPDX-License-Identifier: Apache-2.0 */
#include "volume/bulk.h"

#include <stdlib.h>

void bulk_init(struct bulk *b, struct volume *v)
{
    *b = (struct bulk){.volume = v};
    waitq_init(&b->free);
}

static void bulk_done(struct group_write *w)
{
    struct bulk_write *bw = w->ctx;
    struct bulk *b = bw->bulk;

    if (w->result && !b->result)
        b->result = w->result;
    if (w->failed)
        membership_kick(b->volume);
    bw->busy = false;
    b->under_way--;
    waitq_wake_all(&b->free);
}

static void bulk_send(struct bulk *b)
{
    struct bulk_write *bw = b->open;

    if (!bw)
        return;
    b->open = NULL;
    bw->write.iov = bw->iov;
    bw->write.done = bulk_done;
    bw->write.ctx = bw;
    if (bw->write.iov_count > 1)
        bw->write.page = NULL;
    b->under_way++;
    group_write_submit(&bw->write);
}

static may_yield struct bulk_write *bulk_take(struct bulk *b)
{
    if (!b->writes) {
        b->writes = calloc(BULK_WRITES, sizeof(*b->writes));
        if (!b->writes) {
            b->result = ERR_NO_MEMORY;
            return NULL;
        }
    }
    fiber_shield();
    for (;;) {
        for (uint32_t i = 0; i < BULK_WRITES; i++)
            if (!b->writes[i].busy) {
                fiber_unshield();
                b->writes[i].busy = true;
                b->writes[i].bulk = b;
                return &b->writes[i];
            }
        (void)waitq_wait(&b->free, DEADLINE_NEVER);
    }
}

void bulk_add(struct bulk *b, uint32_t space, uint64_t block, struct page *page, uint32_t count)
{
    struct bulk_write *bw = b->open;

    if (b->result)
        return;
    if (bw && (bw->write.group->id != space || bw->write.block + bw->write.blocks != block ||
               bw->write.iov_count == BULK_IOV || bw->write.blocks + count > BULK_BLOCKS)) {
        bulk_send(b);
        bw = NULL;
    }
    if (!bw) {
        bw = bulk_take(b);
        if (!bw)
            return;
        struct group *g = group_find(b->volume->groups, space);
        assert(g);
        bw->write = (struct group_write){.group = g, .block = (uint32_t)block, .page = page};
        b->open = bw;
    }
    bw->iov[bw->write.iov_count++] =
        (struct iovec){.iov_base = page->data, .iov_len = (size_t)count * BLOCK_SIZE};
    bw->write.blocks += count;
}

int bulk_finish(struct bulk *b)
{
    bulk_send(b);
    fiber_shield();
    while (b->under_way > 0)
        (void)waitq_wait(&b->free, DEADLINE_NEVER);
    fiber_unshield();
    free(b->writes);
    b->writes = NULL;
    return b->result;
}
