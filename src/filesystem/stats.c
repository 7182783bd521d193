/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is counted: each operation, each client, and which files are busy. All of it is an add or two, since
 * it is on the way of every call.
 *
 * Busy files are found by a sketch (space-saving): a table of the counted; an unknown file takes the place of
 * the least one and inherits its count, so that a file with more than 1/n of all operations is always in it.
 * One operation in FILES_SAMPLE is counted, and everything is halved now and then: "lately".
 */
#include "filesystem/names_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define FILES_SLOTS  64u
#define FILES_SAMPLE 8u
#define FILES_HALVE  65536u /* samples */

struct fs_files {
    uint32_t count, tick, samples;
    uint64_t ino[FILES_SLOTS];
    uint64_t ops[FILES_SLOTS];
    uint64_t bytes[FILES_SLOTS];
};

int files_new(struct fs_files **ret)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? 0 : ERR_NO_MEMORY;
}

void files_free(struct fs_files *f)
{
    free(f);
}

static void files_halve(struct fs_files *f)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < f->count; i++) {
        if (f->ops[i] / 2 == 0)
            continue;
        f->ino[kept] = f->ino[i];
        f->ops[kept] = f->ops[i] / 2;
        f->bytes[kept++] = f->bytes[i] / 2;
    }
    f->count = kept;
    f->samples = 0;
}

static void files_count(struct fs_files *f, uint64_t ino, uint64_t bytes)
{
    uint32_t at = 0, least = 0;

    if (f->tick++ % FILES_SAMPLE != 0)
        return;
    if (++f->samples >= FILES_HALVE)
        files_halve(f);
    while (at < f->count && f->ino[at] != ino) {
        if (f->ops[at] < f->ops[least])
            least = at;
        at++;
    }
    if (at == f->count) {
        at = f->count < FILES_SLOTS ? f->count++ : least;
        if (at != least || f->count < FILES_SLOTS)
            f->ops[at] = 0;
        f->ino[at] = ino;
        f->bytes[at] = 0;
    }
    f->ops[at] += FILES_SAMPLE;
    f->bytes[at] += bytes * FILES_SAMPLE;
}

uint32_t fs_file_stats(const struct fs *fs, struct fs_file_stats *ret, uint32_t max)
{
    const struct fs_files *f = fs->files;
    bool taken[FILES_SLOTS] = {false};
    uint32_t n = 0;

    for (; n < max && n < f->count; n++) {
        uint32_t best = FILES_SLOTS;
        for (uint32_t i = 0; i < f->count; i++)
            if (!taken[i] && (best == FILES_SLOTS || f->ops[i] > f->ops[best]))
                best = i;
        taken[best] = true;
        ret[n] = (struct fs_file_stats){.ino = f->ino[best], .ops = f->ops[best], .bytes = f->bytes[best]};
    }
    return n;
}

uint64_t fs_begin(const struct fs *fs, const struct fs_request *rq, enum fs_op op)
{
    assert(!fs->closing && op < FS_OP_COUNT && rq->client < FS_CLIENTS_MAX);
    return reactor_now_ns();
}

int fs_end(struct fs *fs, const struct fs_request *rq, enum fs_op op, uint64_t began_ns, uint64_t ino,
           uint64_t bytes, int result)
{
    struct fs_op_stats *s = &fs->stats[op];
    uint64_t now = reactor_now_ns();

    counter_add(&s->ops, 1);
    counter_add(&s->bytes, bytes);
    if (result)
        counter_add(&s->errors, 1);
    histogram_add(&s->latency, now - began_ns);
    if (rq->client != 0) {
        struct fs_client_stats *c = &fs->clients[rq->client];
        counter_add(&c->ops, 1);
        counter_add(op == FS_OP_WRITE ? &c->write_bytes : &c->read_bytes, bytes);
        c->last_ns = now;
    }
    if (ino != 0)
        files_count(fs->files, ino, bytes);
    return result;
}

const char *fs_op_name(enum fs_op op)
{
    static const char *const names[FS_OP_COUNT] = {
        [FS_OP_LOOKUP] = "lookup",   [FS_OP_GETATTR] = "getattr",  [FS_OP_SETATTR] = "setattr",
        [FS_OP_ACCESS] = "access",   [FS_OP_READ] = "read",        [FS_OP_WRITE] = "write",
        [FS_OP_COMMIT] = "commit",   [FS_OP_CREATE] = "create",    [FS_OP_REMOVE] = "remove",
        [FS_OP_RENAME] = "rename",   [FS_OP_LINK] = "link",        [FS_OP_READLINK] = "readlink",
        [FS_OP_READDIR] = "readdir", [FS_OP_STATFS] = "statfs",    [FS_OP_XATTR] = "xattr",
        [FS_OP_LOCK] = "lock",       [FS_OP_ALLOCATE] = "allocate"};
    return op < FS_OP_COUNT ? names[op] : "?";
}

const struct fs_op_stats *fs_stats(const struct fs *fs, enum fs_op op)
{
    assert(op < FS_OP_COUNT);
    return &fs->stats[op];
}

uint32_t fs_client(struct fs *fs, const char *name)
{
    uint32_t best = 1;

    for (uint32_t i = 1; i < FS_CLIENTS_MAX; i++) {
        struct fs_client_stats *c = &fs->clients[i];
        if (strncmp(c->name, name, sizeof(c->name) - 1) == 0)
            return i;
        if (fs->clients[best].name[0] && (!c->name[0] || c->last_ns < fs->clients[best].last_ns))
            best = i;
    }
    fs->clients[best] = (struct fs_client_stats){.last_ns = reactor_now_ns()};
    (void)snprintf(fs->clients[best].name, sizeof(fs->clients[best].name), "%s", name);
    return best;
}

const struct fs_client_stats *fs_client_stats(const struct fs *fs, uint32_t index)
{
    return index > 0 && index < FS_CLIENTS_MAX && fs->clients[index].name[0] ? &fs->clients[index] : NULL;
}
