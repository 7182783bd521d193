/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel is told what others changed, in the order in which the node told it, behind the replies that
 * came before. What the kernel does not know is not told. See fuse_client_internal.h for why a thread of its
 * own does this. */
#include "protocols/fuse/fuse_client_internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define NOTIFY_INC_EPOCH 8 /* of Linux 6.16: all names must be looked up again */

static void drop_all(struct client *c)
{
    for (struct client_note *n = c->notes, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    c->notes = NULL;
    c->notes_end = &c->notes;
    c->note_count = 0;
}

void client_note_add(struct client *c, const struct client_note *n, const char *name, uint32_t name_len)
{
    struct client_note *copy = malloc(sizeof(*copy) + name_len + 1);
    if (copy == NULL)
        abort(); /* it must not be forgotten */
    *copy = *n;
    copy->next = NULL;
    copy->name_len = name_len;
    if (name_len > 0)
        memcpy(copy->name, name, name_len);
    copy->name[name_len] = '\0';
    pthread_mutex_lock(&c->note_lock);
    if (c->note_count >= CLIENT_NOTES_MAX)
        copy->kind = WIRE_NOTE_ALL;
    if (copy->kind == WIRE_NOTE_ALL)
        drop_all(c);
    *c->notes_end = copy;
    c->notes_end = &copy->next;
    c->note_count++;
    pthread_cond_signal(&c->note_there);
    pthread_mutex_unlock(&c->note_lock);
}

static struct client_note *note_next(struct client *c)
{
    pthread_mutex_lock(&c->note_lock);
    while (c->notes == NULL)
        pthread_cond_wait(&c->note_there, &c->note_lock);
    struct client_note *n = c->notes;
    c->notes = n->next;
    if (c->notes == NULL)
        c->notes_end = &c->notes;
    c->note_count--;
    pthread_mutex_unlock(&c->note_lock);
    return n;
}

static bool is_known(struct client *c, uint64_t ino)
{
    if (ino == FUSE_ROOT_ID)
        return true;
    pthread_mutex_lock(&c->lock);
    bool known = fuse_table_find(&c->nodes, ino) != NULL;
    pthread_mutex_unlock(&c->lock);
    return known;
}

static void tell_inode(struct client *c, uint64_t ino, bool data, uint64_t offset, uint64_t len)
{
    off_t from = data ? (off_t)MIN(offset, (uint64_t)INT64_MAX) : -1;
    off_t count = (off_t)MIN(len, (uint64_t)INT64_MAX - (data ? (uint64_t)from : 0));
    (void)fuse_lowlevel_notify_inval_inode(c->se, ino, from, count); /* ENOENT: it was just forgotten */
}

static void tell_entry(struct client *c, const struct client_note *n)
{
    int err = -EINVAL;
    if (n->removed && n->child != 0)
        err = fuse_lowlevel_notify_delete(c->se, n->ino, n->child, n->name, n->name_len);
    if (err != 0 && err != -ENOENT)
        err = fuse_lowlevel_notify_inval_entry(c->se, n->ino, n->name, n->name_len);
    /* The directory's own times and what was read of it. */
    tell_inode(c, n->ino, true, 0, 0);
}

/* Names first: who looks one up afterwards gets new attributes, too. */
static void tell_all(struct client *c)
{
    struct fuse_out_header epoch = {.len = sizeof(epoch), .error = NOTIFY_INC_EPOCH};
    ssize_t n = write(c->fuse_fd, &epoch, sizeof(epoch)); /* older kernels: names live for their time-out */
    (void)n;
    pthread_mutex_lock(&c->lock);
    uint32_t count = 0, size = c->nodes.count;
    uint64_t *inodes = malloc(((size_t)size + 1) * sizeof(*inodes));
    if (inodes == NULL)
        abort();
    FUSE_TABLE_FOREACH(&c->nodes, node)
    inodes[count++] = node->ino;
    pthread_mutex_unlock(&c->lock);
    assert(count == size);
    tell_inode(c, FUSE_ROOT_ID, true, 0, 0);
    for (uint32_t i = 0; i < count; i++)
        tell_inode(c, inodes[i], true, 0, 0);
    free(inodes);
}

void *client_notifier(void *arg)
{
    struct client *c = arg;
    for (;;) {
        struct client_note *n = note_next(c);
        if (n->kind == WIRE_NOTE_ALL)
            tell_all(c);
        else if (is_known(c, n->ino) && n->kind == WIRE_NOTE_INODE)
            tell_inode(c, n->ino, n->data, n->offset, n->len);
        else if (is_known(c, n->ino) && n->kind == WIRE_NOTE_ENTRY)
            tell_entry(c, n);
        free(n);
    }
    return NULL;
}
