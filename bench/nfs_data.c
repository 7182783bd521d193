/* SPDX-License-Identifier: Apache-2.0 */
#include "nfs_data.h"

#include "load.h"
#include "nfs_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DEPTH      32u
#define SMALL_SIZE 1024u
#define FILL_SIZE  (512 * KIB)

void nfs_data_name(char name[NFS_NAME_SIZE], uint32_t number)
{
    snprintf(name, NFS_NAME_SIZE, "f%06u", number);
}

static void check(const struct nfs_request *r, const struct nfs_answer *a)
{
    if (a->status != NFS3_OK)
        load_fail("%s of the data, \"%s\": status %u", nfs_op_name(r->op), r->name, a->status);
}

/* LOOKUP, MKDIR, CREATE or SYMLINK of a name. */
static struct nfs_object name_op(enum nfs_op op, const struct nfs_object *dir, const char *name)
{
    struct nfs_request r = {.op = op, .object = *dir, .target = "../data/d0"};
    struct nfs_answer a;
    snprintf(r.name, sizeof(r.name), "%s", name);
    nfs_engine_ask(&r, &a);
    check(&r, &a);
    return a.object;
}

/* ---- Making ---- */

static const struct nfs_data *making;
static struct nfs_object making_dir, making_data[NFS_DATA_FILES];
static uint64_t made;
static uint8_t *payload;

static bool tree_next(struct nfs_slot *s)
{
    if (made == making->files)
        return false;
    s->r.op = OP_CREATE;
    s->r.object = making_dir;
    nfs_data_name(s->r.name, (uint32_t)made++);
    return true;
}

static bool tree_done(struct nfs_slot *s, const struct nfs_answer *a)
{
    check(&s->r, a);
    if (s->step++ > 0)
        return false;
    s->r.op = OP_WRITE;
    s->r.object = a->object;
    s->r.offset = 0;
    s->r.len = SMALL_SIZE;
    s->r.stable = NFS3_UNSTABLE;
    s->r.data = payload;
    return true;
}

static bool fill_next(struct nfs_slot *s)
{
    uint64_t each = making->file_bytes / FILL_SIZE;
    if (made == each * NFS_DATA_FILES)
        return false;
    s->r.op = OP_WRITE;
    s->r.object = making_data[made / each];
    s->r.offset = made % each * FILL_SIZE;
    s->r.len = FILL_SIZE;
    s->r.stable = NFS3_UNSTABLE;
    s->r.data = payload + made % 64 * 512; /* no two neighbours alike */
    made++;
    return true;
}

static bool fill_done(struct nfs_slot *s, const struct nfs_answer *a)
{
    check(&s->r, a);
    return false;
}

static void make_tree(const struct nfs_data *d)
{
    static const struct nfs_work work = {tree_next, tree_done, 1, DEPTH};
    making_dir = name_op(OP_MKDIR, &d->root, "tree");
    made = 0;
    nfs_engine_run_all(&work);
    struct nfs_object links = name_op(OP_MKDIR, &d->root, "links");
    for (unsigned i = 0; i < NFS_DATA_LINKS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "l%u", i);
        name_op(OP_SYMLINK, &links, name);
    }
}

static void make_data(const struct nfs_data *d)
{
    static const struct nfs_work work = {fill_next, fill_done, 1, 4};
    struct nfs_object dir = name_op(OP_MKDIR, &d->root, "data");
    for (unsigned i = 0; i < NFS_DATA_FILES; i++) {
        char name[8];
        snprintf(name, sizeof(name), "d%u", i);
        making_data[i] = name_op(OP_CREATE, &dir, name);
    }
    made = 0;
    nfs_engine_run_all(&work);
    for (unsigned i = 0; i < NFS_DATA_FILES; i++) {
        struct nfs_request r = {.op = OP_COMMIT, .object = making_data[i]};
        struct nfs_answer a;
        nfs_engine_ask(&r, &a);
        check(&r, &a);
    }
}

void nfs_data_make(const struct nfs_data *d, uint64_t seed)
{
    assert(d->file_bytes % FILL_SIZE == 0);
    making = d;
    payload = malloc(FILL_SIZE + 64 * 512);
    assert(payload != NULL);
    load_random_fill(&seed, payload, FILL_SIZE + 64 * 512);
    if (d->files > 0)
        make_tree(d);
    if (d->file_bytes > 0)
        make_data(d);
    free(payload);
}

/* ---- Finding ---- */

static struct nfs_data *finding;
static uint32_t found;

static bool find_next(struct nfs_slot *s)
{
    if (found == finding->files)
        return false;
    s->r.op = OP_LOOKUP;
    s->r.object = finding->tree;
    s->number = found;
    nfs_data_name(s->r.name, found++);
    return true;
}

static bool find_done(struct nfs_slot *s, const struct nfs_answer *a)
{
    check(&s->r, a);
    finding->file[s->number] = a->object;
    return false;
}

/* The whole directory: a server that keeps listings in memory has it there afterwards, as it would have in
 * use. */
static void list_tree(const struct nfs_data *d)
{
    struct nfs_request r = {.op = OP_READDIRPLUS, .object = d->tree, .len = 65536};
    uint64_t entries = 0;
    do {
        struct nfs_answer a;
        nfs_engine_ask(&r, &a);
        check(&r, &a);
        entries += a.entries;
        r.place = a.place;
    } while (r.place.cookie != 0);
    if (entries < d->files)
        load_fail("the listing of %u files has %llu", d->files, (unsigned long long)entries);
}

static void find_tree(struct nfs_data *d)
{
    static const struct nfs_work work = {find_next, find_done, 1, DEPTH};
    d->tree = name_op(OP_LOOKUP, &d->root, "tree");
    d->file = calloc(d->files, sizeof(*d->file));
    assert(d->file != NULL);
    finding = d;
    found = 0;
    nfs_engine_run_all(&work);
    list_tree(d);
    struct nfs_object links = name_op(OP_LOOKUP, &d->root, "links");
    for (unsigned i = 0; i < NFS_DATA_LINKS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "l%u", i);
        d->links[i] = name_op(OP_LOOKUP, &links, name);
    }
}

static void find_data(struct nfs_data *d)
{
    struct nfs_object dir = name_op(OP_LOOKUP, &d->root, "data");
    for (unsigned i = 0; i < NFS_DATA_FILES; i++) {
        char name[8];
        snprintf(name, sizeof(name), "d%u", i);
        d->data[i] = name_op(OP_LOOKUP, &dir, name);
        struct nfs_request r = {.op = OP_GETATTR, .object = d->data[i]};
        struct nfs_answer a;
        nfs_engine_ask(&r, &a);
        check(&r, &a);
        if (a.size != d->file_bytes)
            load_fail("%s has %llu bytes", name, (unsigned long long)a.size);
    }
}

void nfs_data_find(struct nfs_data *d)
{
    char name[NFS_NAME_SIZE];
    snprintf(name, sizeof(name), "new-%d-%llx", getpid(), (unsigned long long)load_now_ns());
    d->fresh = name_op(OP_MKDIR, &d->root, name);
    if (d->files > 0)
        find_tree(d);
    if (d->file_bytes > 0)
        find_data(d);
}
