/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recent replies of operations that are not idempotent. The reply is an item that the operation's own change
 * puts: a client that asks again, of whoever owns the volume by then, gets the same answer.
 *
 * A slot follows from who asked and the number of the request, so it is known before the change, needs no
 * search, and a client's requests, which are numbered one after the other, lie side by side. A later request
 * in the same slot takes it over: 8192 requests later, or another client's by chance.
 */
#include "filesystem/names_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>

struct reply_slot {
    struct fs_reply_key key;
    int status;
    uint64_t ino;
    bool used;
};
struct fs_replies {
    struct reply_slot slots[FS_REPLY_SLOTS];
};

static uint32_t slot_of(const uint8_t client[16], uint32_t xid)
{
    return (uint32_t)((hash64(client, 16, 0) + xid) % FS_REPLY_SLOTS);
}

static struct tree_key reply_key(uint32_t slot)
{
    return (struct tree_key){FS_OBJECT_LISTS, ITEM_REPLY, slot};
}

int reply_decode(const void *bytes, uint32_t len, struct disk_reply *ret)
{
    if (len != sizeof(*ret))
        return ERR_VOLUME_CORRUPT;
    memcpy(ret, bytes, sizeof(*ret));
    return 0;
}

static void slot_load(struct fs *fs, uint64_t slot, const struct disk_reply *d)
{
    struct reply_slot s = {.key = {.xid = le32_get(d->xid),
                                   .procedure = le32_get(d->procedure),
                                   .checksum = le32_get(d->checksum)},
                           .status = (int)le32_get(d->status),
                           .ino = le64_get(d->ino),
                           .used = true};

    memcpy(s.key.client, d->client, sizeof(s.key.client));
    if (slot < FS_REPLY_SLOTS && slot_of(d->client, s.key.xid) == slot)
        fs->replies->slots[slot] = s;
}

int replies_load(struct fs *fs)
{
    struct tree_cursor cursor;
    struct disk_reply d;

    fs->replies = calloc(1, sizeof(*fs->replies));
    if (!fs->replies)
        return ERR_NO_MEMORY;
    int r = volume_item_seek(fs->volume, reply_key(0), SEEK_GE, &cursor);
    while (!r && cursor.key.object == FS_OBJECT_LISTS && cursor.key.type == ITEM_REPLY) {
        /* A damaged one is one that nobody will ask for. */
        if (reply_decode(cursor.value, cursor.len, &d) == 0)
            slot_load(fs, cursor.key.offset, &d);
        r = tree_next(&cursor);
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}

void replies_free(struct fs *fs)
{
    free(fs->replies);
    fs->replies = NULL;
}

static bool key_equal(const struct fs_reply_key *a, const struct fs_reply_key *b)
{
    return memcmp(a->client, b->client, sizeof(a->client)) == 0 && a->xid == b->xid &&
           a->procedure == b->procedure && a->checksum == b->checksum;
}

int fs_reply_find(struct fs *fs, const struct fs_reply_key *k, struct fs_reply *ret)
{
    const struct reply_slot *s = &fs->replies->slots[slot_of(k->client, k->xid)];

    if (!s->used || !key_equal(&s->key, k))
        return ERR_NOT_FOUND;
    *ret = (struct fs_reply){.status = s->status, .ino = s->ino};
    return 0;
}

void reply_will_put(struct fs *fs, struct change *c, const struct fs_request *rq)
{
    (void)fs;
    if (!rq->reply)
        return;
    change_want(c, reply_key(slot_of(rq->reply->client, rq->reply->xid)));
    change_will_put(c, sizeof(struct disk_reply));
}

void reply_put(struct fs *fs, struct change *c, const struct fs_request *rq, int status, uint64_t ino)
{
    const struct fs_reply_key *k = rq->reply;

    if (!k)
        return;
    uint32_t slot = slot_of(k->client, k->xid);
    struct disk_reply d = {.xid = le32_make(k->xid),
                           .procedure = le32_make(k->procedure),
                           .checksum = le32_make(k->checksum),
                           .status = le32_make((uint32_t)status),
                           .ino = le64_make(ino),
                           .when_ns = le64_make(world_wall_ns())};
    memcpy(d.client, k->client, sizeof(d.client));
    change_put(c, reply_key(slot), &d, sizeof(d));
    fs->replies->slots[slot] = (struct reply_slot){.key = *k, .status = status, .ino = ino, .used = true};
}
