/* SPDX-License-Identifier: Apache-2.0 */
/* Who wants to know of changes: called in the instant of each, so that the order of events is that of the
 * changes. */
#include "filesystem/names_internal.h"

void fs_watch_add(struct fs *fs, struct fs_watch *w)
{
    assert(w->event != NULL);
    list_append(&fs->watches, &w->link);
}

void fs_watch_remove(struct fs *fs, struct fs_watch *w)
{
    assert(!list_empty(&fs->watches));
    list_remove(&w->link);
}

void notify(struct fs *fs, const struct fs_request *cause, const struct fs_event *e)
{
    LIST_FOREACH_SAFE (&fs->watches, it) {
        struct fs_watch *w = CONTAINER_OF(it, struct fs_watch, link);
        w->event(w, cause, e);
    }
}

void notify_name(struct fs *fs, const struct fs_request *rq, enum fs_event_kind kind, uint64_t dir,
                 const struct name *n, uint64_t child)
{
    if (PREDICT_TRUE(list_empty(&fs->watches)))
        return;
    notify(
        fs, rq,
        &(struct fs_event){.kind = kind, .ino = dir, .child = child, .name = n->bytes, .name_len = n->len});
}

void notify_attr(struct fs *fs, const struct fs_request *rq, uint64_t ino)
{
    if (PREDICT_TRUE(list_empty(&fs->watches)))
        return;
    notify(fs, rq, &(struct fs_event){.kind = FS_EVENT_ATTR, .ino = ino});
}
