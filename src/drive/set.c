/* SPDX-License-Identifier: Apache-2.0 */
/* One reactor's drives, by id. */
#include "drive/internal.h"

#include "runtime/error.h"

#include <stdlib.h>

void drive_set_init(struct drive_set *s)
{
    *s = (struct drive_set){0};
    waitq_init(&s->changed);
}

void drive_set_done(struct drive_set *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        s->drives[i]->set = NULL;
    free(s->drives);
    s->drives = NULL;
    s->count = 0;
}

static void set_changed(struct drive_set *s)
{
    s->generation++;
    waitq_wake_all(&s->changed);
}

int drive_set_add(struct drive_set *s, struct drive *d)
{
    assert(d->set == NULL);
    if (drive_set_find(s, d->id) != NULL)
        return ERR_EXISTS;
    struct drive **more = realloc(s->drives, (s->count + 1) * sizeof(struct drive *));
    if (more == NULL)
        return ERR_NO_MEMORY;
    s->drives = more;
    s->drives[s->count++] = d;
    d->set = s;
    set_changed(s);
    return 0;
}

void drive_set_remove(struct drive_set *s, struct drive *d)
{
    assert(d->set == s);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->drives[i] != d)
            continue;
        s->drives[i] = s->drives[--s->count];
        d->set = NULL;
        set_changed(s);
        return;
    }
    assert(!"a drive that names this set is in it");
}

struct drive *drive_set_find(const struct drive_set *s, struct uuid id)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (uuid_equal(s->drives[i]->id, id))
            return s->drives[i];
    return NULL;
}

void drive_state_changed(struct drive *d, enum drive_state state)
{
    if (d->state == state)
        return;
    d->state = state;
    if (d->set != NULL)
        set_changed(d->set);
}
