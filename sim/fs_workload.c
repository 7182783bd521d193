/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of a file system: fibers that do one operation after another in a directory of their own, tell the
 * model, and compare every answer. Half of them are as NFS clients are (every change durable), the others as
 * a mount is (changes acknowledged, a commit now and then).
 */
#include "runtime/error.h"
#include "sim/seed.h"

#include "filesystem/fs.h"
#include "sim/fs_model.h"
#include "sim/fs_work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define VALUE_MIN 8u /* the tag lies in front */

struct client {
    struct seed *seed;
    uint32_t number;
    uint64_t directory; /* its inode */
    bool durable;
};

static struct fs_request request_of(const struct client *c)
{
    return (struct fs_request){.cred = {.trusted = true}, .durable = c->durable};
}

/* ---- Finding things ---- */

static int find(const struct client *c, const struct fsm_path *p, uint8_t depth, uint64_t *ret_ino) may_yield;
static int find(const struct client *c, const struct fsm_path *p, uint8_t depth, uint64_t *ret_ino)
{
    struct fs *fs = fs_work_of(c->seed);
    struct fs_request rq = request_of(c);
    uint64_t at = c->directory;
    for (uint8_t i = 0; i < depth; i++) {
        char name[24];
        struct fs_attr attr;
        fsm_name(p->names[i], name);
        int r = fs_lookup(fs, &rq, at, name, (uint32_t)strlen(name), &attr, NULL);
        if (r != 0)
            return r;
        at = attr.ino;
    }
    *ret_ino = at;
    return 0;
}

struct place { /* a name in a directory */
    uint64_t dir;
    char name[24];
    uint32_t len;
};

static int find_place(const struct client *c, const struct fsm_path *p, struct place *ret) may_yield;
static int find_place(const struct client *c, const struct fsm_path *p, struct place *ret)
{
    fsm_name(p->names[p->depth - 1], ret->name);
    ret->len = (uint32_t)strlen(ret->name);
    return find(c, p, p->depth - 1, &ret->dir);
}

/* ---- Doing one operation ---- */

static int do_make(const struct client *c, const struct fs_request *rq, const struct fsm_op *op) may_yield;
static int do_make(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
{
    struct place at;
    struct fs_attr attr;
    bool created;
    char target[FSM_TARGET_MAX];
    struct fs_create create = {.type = op->kind == FSM_MKDIR     ? FS_DIRECTORY
                                       : op->kind == FSM_SYMLINK ? FS_SYMLINK
                                                                 : FS_FILE,
                               .how = op->tag % 4 == 0 ? FS_CREATE_EXCLUSIVE : FS_CREATE_GUARDED,
                               .verifier = op->tag,
                               .attr = {.valid = FS_SET_MODE, .mode = op->mode}};
    struct fs_request as = *rq;
    int r = find_place(c, &op->a, &at);
    if (r != 0)
        return r;
    as.cred.uid = op->uid;
    as.cred.gid = op->gid;
    if (op->kind == FSM_SYMLINK) {
        snprintf(target, sizeof(target), "to-%llx", (unsigned long long)op->tag);
        create.target = target;
        create.target_len = (uint32_t)strlen(target);
    }
    r = fs_create(fs_work_of(c->seed), &as, at.dir, at.name, at.len, &create, &attr, &created, NULL);
    /* Some servers leave the mode out of an exclusive create: the client sets it. */
    return r;
}

static int do_two_names(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
    may_yield;
static int do_two_names(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
{
    struct fs *fs = fs_work_of(c->seed);
    struct place a, b;
    struct fs_attr attr;
    uint64_t ino = 0;
    int r = op->kind == FSM_LINK ? find(c, &op->a, op->a.depth, &ino) : find_place(c, &op->a, &a);
    if (r == 0)
        r = find_place(c, &op->b, &b);
    if (r != 0)
        return r;
    if (op->kind == FSM_LINK)
        return fs_link(fs, rq, ino, b.dir, b.name, b.len, &attr, NULL);
    uint32_t flags = op->exchange ? FS_RENAME_EXCHANGE : op->noreplace ? FS_RENAME_NOREPLACE : 0;
    return fs_rename(fs, rq, a.dir, a.name, a.len, b.dir, b.name, b.len, flags, NULL, NULL);
}

static int do_remove(const struct client *c, const struct fs_request *rq, const struct fsm_op *op) may_yield;
static int do_remove(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
{
    struct fs *fs = fs_work_of(c->seed);
    struct place at;
    uint64_t ino;
    int r = find_place(c, &op->a, &at);
    if (r != 0)
        return r;
    return op->kind == FSM_UNLINK ? fs_unlink(fs, rq, at.dir, at.name, at.len, &ino, NULL)
                                  : fs_rmdir(fs, rq, at.dir, at.name, at.len, &ino, NULL);
}

/* Payload at its place in fresh pages; everything else in them is garbage that must not be seen. */
static int payload(uint64_t offset, uint64_t len, uint64_t tag, struct page_vec *ret) may_yield;
static int payload(uint64_t offset, uint64_t len, uint64_t tag, struct page_vec *ret)
{
    uint32_t skip = (uint32_t)(offset % BLOCK_SIZE), blocks = (uint32_t)DIV_ROUND_UP(skip + len, BLOCK_SIZE);
    struct page *page;
    int r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);
    if (r != 0)
        return r;
    memset(page->data, 0x55, (size_t)blocks * BLOCK_SIZE);
    for (uint64_t i = 0; i < len; i++)
        page->data[skip + i] = fsm_byte(tag, i);
    ret->run_count = 1;
    ret->blocks = blocks;
    ret->runs[0] = (struct page_run){page, blocks};
    return 0;
}

static int do_write(const struct client *c, const struct fs_request *rq, const struct fsm_op *op,
                    uint64_t ino) may_yield;
static int do_write(const struct client *c, const struct fs_request *rq, const struct fsm_op *op,
                    uint64_t ino)
{
    struct fs *fs = fs_work_of(c->seed);
    bool append = op->kind == FSM_APPEND;
    uint64_t offset = op->offset, at;
    struct page_vec *v = calloc(1, sizeof(*v));
    assert(v != NULL);
    /* Where an append lands is the server's to find: what the client thinks is wrong by purpose. */
    int r = payload(offset, op->len, op->tag, v);
    if (r == 0) {
        r = fs_write(fs, rq, ino, offset, (uint32_t)op->len, v, append ? FS_WRITE_APPEND : 0, &at, NULL);
        page_vec_put(v);
    }
    free(v);
    return r;
}

static int do_data(const struct client *c, const struct fs_request *rq, const struct fsm_op *op) may_yield;
static int do_data(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
{
    struct fs *fs = fs_work_of(c->seed);
    uint64_t ino, to, done = 0;
    int r = find(c, &op->a, op->a.depth, &ino);
    if (r == 0 && op->kind == FSM_CLONE)
        r = find(c, &op->b, op->b.depth, &to);
    if (r != 0)
        return r;
    switch (op->kind) {
    case FSM_TRUNCATE: {
        struct fs_setattr set = {.valid = FS_SET_SIZE, .size = op->len};
        return fs_setattr(fs, rq, ino, &set, NULL);
    }
    case FSM_PUNCH:
        return fs_allocate(fs, rq, ino, FS_PUNCH_HOLE, op->offset, op->len, NULL);
    case FSM_ZERO:
        return fs_allocate(fs, rq, ino, FS_ZERO_RANGE, op->offset, op->len, NULL);
    case FSM_CLONE:
        return fs_copy_range(fs, rq, ino, op->offset, to, op->offset, op->len, true, &done, NULL);
    default:
        return do_write(c, rq, op, ino);
    }
}

static uint32_t attribute_name(uint64_t number, char out[24])
{
    return (uint32_t)snprintf(out, 24, "user.attribute-%" PRIu64, number);
}

static int do_attribute(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
    may_yield;
static int do_attribute(const struct client *c, const struct fs_request *rq, const struct fsm_op *op)
{
    struct fs *fs = fs_work_of(c->seed);
    struct fs_setattr set = {.valid = op->kind == FSM_CHMOD ? FS_SET_MODE : FS_SET_UID | FS_SET_GID,
                             .mode = op->mode,
                             .uid = op->uid,
                             .gid = op->gid};
    char name[24];
    uint64_t ino;
    int r = find(c, &op->a, op->a.depth, &ino);
    if (r != 0)
        return r;
    if (op->kind == FSM_CHMOD || op->kind == FSM_CHOWN)
        return fs_setattr(fs, rq, ino, &set, NULL);
    uint32_t name_len = attribute_name(op->offset, name);
    if (op->kind == FSM_XATTR_REMOVE)
        return fs_xattr_remove(fs, rq, ino, name, name_len);
    uint8_t *value = malloc(FSM_XATTR_MAX);
    assert(value != NULL && op->len >= VALUE_MIN && op->len <= FSM_XATTR_MAX);
    memcpy(value, &op->tag, sizeof(op->tag));
    for (uint64_t i = VALUE_MIN; i < op->len; i++)
        value[i] = fsm_byte(op->tag, i);
    r = fs_xattr_set(fs, rq, ino, name, name_len, value, (uint32_t)op->len, FS_XATTR_ANY);
    free(value);
    return r;
}

static int do_op(const struct client *c, const struct fsm_op *op) may_yield;
static int do_op(const struct client *c, const struct fsm_op *op)
{
    struct fs_request rq = request_of(c);
    switch (op->kind) {
    case FSM_CREATE:
    case FSM_MKDIR:
    case FSM_SYMLINK:
        return do_make(c, &rq, op);
    case FSM_LINK:
    case FSM_RENAME:
        return do_two_names(c, &rq, op);
    case FSM_UNLINK:
    case FSM_RMDIR:
        return do_remove(c, &rq, op);
    case FSM_WRITE:
    case FSM_APPEND:
    case FSM_TRUNCATE:
    case FSM_PUNCH:
    case FSM_ZERO:
    case FSM_CLONE:
        return do_data(c, &rq, op);
    case FSM_CHMOD:
    case FSM_CHOWN:
    case FSM_XATTR_SET:
    case FSM_XATTR_REMOVE:
        return do_attribute(c, &rq, op);
    case FSM_KINDS:
        break;
    }
    assert(false);
    return ERR_INVALID;
}

/* ---- Reading a client's whole directory ---- */

struct names {
    uint32_t count;
    struct {
        char name[FS_NAME_MAX + 1];
        uint64_t ino;
    } entries[FSM_NAMES + 2];
    bool too_many;
};

static bool names_take(void *ctx, const struct fs_dirent *e)
{
    struct names *n = ctx;
    if ((e->name_len == 1 && e->name[0] == '.') || (e->name_len == 2 && memcmp(e->name, "..", 2) == 0))
        return true;
    if (n->count == ARRAY_SIZE(n->entries)) {
        n->too_many = true;
        return true;
    }
    memcpy(n->entries[n->count].name, e->name, e->name_len);
    n->entries[n->count].name[e->name_len] = '\0';
    n->entries[n->count++].ino = e->ino;
    return true;
}

struct reading {
    const struct client *client;
    struct fsm_tree *tree;
    uint64_t inos[FSM_NODES_MAX];
    uint32_t count;
};

static bool failed(const struct client *c, const char *what, uint64_t ino, int r)
{
    seed_fail(c->seed, "client %" PRIu32 ": %s of inode %" PRIu64 ": %s (%s)", c->number, what, ino,
              error_text(r), error_name(r));
    return false;
}

static bool read_bytes(struct reading *rd, uint64_t ino, struct fsm_node *n) may_yield;
static bool read_bytes(struct reading *rd, uint64_t ino, struct fsm_node *n)
{
    struct fs_request rq = request_of(rd->client);
    struct page_vec *v = calloc(1, sizeof(*v));
    uint32_t len = 0;
    bool eof;
    assert(v != NULL);
    int r = fs_read(fs_work_of(rd->client->seed), &rq, ino, 0, n->size, v, &len, &eof, NULL);
    if (r != 0) {
        free(v);
        return failed(rd->client, "read", ino, r);
    }
    uint8_t *bytes = fsm_node_bytes(n);
    uint32_t at = 0;
    for (uint32_t i = 0; i < v->run_count; i++)
        for (uint32_t k = 0; k < v->runs[i].count && at < len; k++, at += BLOCK_SIZE)
            if (v->runs[i].page != NULL)
                memcpy(bytes + at, page_at(v->runs[i].page, k)->data, MIN(len - at, BLOCK_SIZE));
    page_vec_put(v);
    free(v);
    if (len == n->size && eof)
        return true;
    seed_fail(rd->client->seed,
              "client %" PRIu32 ": a read of inode %" PRIu64 " gave %" PRIu32 " bytes of %" PRIu32,
              rd->client->number, ino, len, n->size);
    return false;
}

static bool read_xattrs(struct reading *rd, uint64_t ino, struct fsm_node *n) may_yield;
static bool read_xattrs(struct reading *rd, uint64_t ino, struct fsm_node *n)
{
    struct fs_request rq = request_of(rd->client);
    uint8_t *value = malloc(FSM_XATTR_MAX);
    bool good = true;
    assert(value != NULL);
    for (uint32_t i = 0; good && i < FSM_XATTRS; i++) {
        char name[24];
        uint32_t name_len = attribute_name(i, name), len = 0;
        int r =
            fs_xattr_get(fs_work_of(rd->client->seed), &rq, ino, name, name_len, value, FSM_XATTR_MAX, &len);
        if (r == ERR_FS_NO_XATTR)
            continue;
        if (r != 0) {
            good = failed(rd->client, "getxattr", ino, r);
            break;
        }
        n->xattrs[i].len = len;
        memcpy(&n->xattrs[i].tag, value, sizeof(n->xattrs[i].tag));
        for (uint32_t k = VALUE_MIN; good && k < len; k++)
            if (value[k] != fsm_byte(n->xattrs[i].tag, k))
                good = failed(rd->client, "an extended attribute with wrong bytes", ino, ERR_VOLUME_CORRUPT);
    }
    free(value);
    return good;
}

static int read_node(struct reading *rd, uint64_t ino, uint32_t depth) may_yield;

static bool read_names(struct reading *rd, uint64_t ino, uint32_t index, uint32_t depth) may_yield;
static bool read_names(struct reading *rd, uint64_t ino, uint32_t index, uint32_t depth)
{
    struct fs_request rq = request_of(rd->client);
    struct names *n = calloc(1, sizeof(*n));
    bool eof = false, good = true;
    assert(n != NULL);
    int r = fs_readdir(fs_work_of(rd->client->seed), &rq, ino, 0, false, names_take, n, &eof, NULL);
    if (r != 0 || !eof || n->too_many)
        good = failed(rd->client, "readdir", ino, r != 0 ? r : ERR_VOLUME_CORRUPT);
    for (uint32_t i = 0; good && i < n->count; i++) {
        uint8_t number = 0;
        char name[24];
        for (; number < FSM_NAMES; number++) {
            fsm_name(number, name);
            if (strcmp(name, n->entries[i].name) == 0)
                break;
        }
        if (number == FSM_NAMES || rd->tree->nodes[index].children[number] != 0) {
            good = failed(rd->client, "a name that nobody made, or twice,", ino, ERR_VOLUME_CORRUPT);
            break;
        }
        int child = read_node(rd, n->entries[i].ino, depth + 1);
        good = child > 0;
        if (good)
            rd->tree->nodes[index].children[number] = (uint8_t)child;
    }
    free(n);
    return good;
}

/* Index of its node; -1: failed. */
static int read_node(struct reading *rd, uint64_t ino, uint32_t depth)
{
    struct fs_request rq = request_of(rd->client);
    struct fs_attr attr;
    for (uint32_t i = 0; i < rd->count; i++)
        if (rd->inos[i] == ino)
            return (int)i;
    int r = fs_getattr(fs_work_of(rd->client->seed), &rq, ino, 0, &attr);
    if (r != 0 || rd->count == FSM_NODES_MAX || depth > FSM_DEPTH_MAX) {
        (void)failed(rd->client, "getattr", ino, r != 0 ? r : ERR_VOLUME_CORRUPT);
        return -1;
    }
    uint32_t index = rd->count++;
    struct fsm_node *n = &rd->tree->nodes[index];
    rd->inos[index] = ino;
    n->used = true;
    n->mode = attr.mode;
    n->uid = attr.uid;
    n->gid = attr.gid;
    n->nlink = attr.nlink;
    bool good = true;
    if (!S_ISDIR(attr.mode)) {
        if (attr.size > FSM_FILE_MAX) {
            (void)failed(rd->client, "a size that nobody set", ino, ERR_VOLUME_CORRUPT);
            return -1;
        }
        n->size = (uint32_t)attr.size;
    }
    if (S_ISLNK(attr.mode)) {
        char *target = malloc(FS_SYMLINK_MAX + 1);
        uint32_t len = 0;
        assert(target != NULL);
        r = fs_readlink(fs_work_of(rd->client->seed), &rq, ino, target, &len, &attr);
        if (r == 0 && len < FSM_TARGET_MAX)
            memcpy(n->target, target, len);
        free(target);
        good = r == 0 ? true : failed(rd->client, "readlink", ino, r);
    }
    if (good && S_ISREG(attr.mode) && n->size > 0)
        good = read_bytes(rd, ino, n);
    if (good && !S_ISLNK(attr.mode))
        good = read_xattrs(rd, ino, n);
    if (good && S_ISDIR(attr.mode))
        good = read_names(rd, ino, index, depth);
    return good ? (int)index : -1;
}

static bool client_find(struct client *c) may_yield;
static bool client_find(struct client *c)
{
    char name[24];
    struct fs_attr attr;
    struct fs_request rq = request_of(c);
    fs_work_directory(c->number, name);
    int r = fs_lookup(fs_work_of(c->seed), &rq, FS_INO_ROOT, name, (uint32_t)strlen(name), &attr, NULL);
    if (r != 0)
        return failed(c, "lookup of its directory, in", FS_INO_ROOT, r);
    c->directory = attr.ino;
    return true;
}

static struct client client_of(struct seed *s, uint32_t number)
{
    return (struct client){.seed = s, .number = number, .durable = number % 2 == 0};
}

static bool client_read(struct client *c, struct fsm_tree *ret) may_yield;
static bool client_read(struct client *c, struct fsm_tree *ret)
{
    struct reading rd = {.client = c, .tree = ret};
    memset(ret, 0, sizeof(*ret));
    return client_find(c) && read_node(&rd, c->directory, 0) == 0;
}

static void fs_workload_verify(struct seed *s) may_yield;
static void fs_workload_verify(struct seed *s)
{
    struct fsm_tree *found = calloc(s->fsm->count, sizeof(*found));
    char why[600];
    assert(found != NULL);
    for (uint32_t i = 0; i < s->fsm->count && !s->failed; i++) {
        struct client c = client_of(s, i);
        (void)client_read(&c, &found[i]);
    }
    if (!s->failed && s->fsm->crashed && !fsm_recovered(s->fsm, found, why, sizeof(why)))
        seed_fail(s, "%s", why);
    for (uint32_t i = 0; i < s->fsm->count && !s->failed; i++) {
        if (fsm_tree_hash(&found[i]) == fsm_tree_hash(&s->fsm->clients[i].now))
            continue;
        fsm_tree_difference(&s->fsm->clients[i].now, &found[i], why, sizeof(why));
        seed_fail(s, "client %" PRIu32 "'s directory: %s", i, why);
    }
    for (uint32_t i = 0; i < s->fsm->count; i++)
        fsm_tree_done(&found[i]);
    free(found);
    s->last_progress_ns = sim_now_ns(s->sim);
}

/* ---- Drawing operations ---- */

static struct fsm_path draw_path(struct seed *s)
{
    struct fsm_path p = {.depth = (uint8_t)sim_random_between(&s->random, 1, FSM_DEPTH_MAX - 1)};
    if (sim_random_below(&s->random, 2) == 0)
        p.depth = 1;
    for (uint8_t i = 0; i < p.depth; i++) /* few names above, so that directories are hit */
        p.names[i] = (uint8_t)sim_random_below(&s->random, i + 1 < p.depth ? 3 : FSM_NAMES);
    return p;
}

/* One that is there, mostly: the model knows. */
static struct fsm_path draw_existing(struct seed *s, const struct fsm_tree *t, uint32_t type)
{
    struct fsm_path p = draw_path(s);
    for (int i = 0; i < 20; i++) {
        int err, index = fsm_tree_find(t, &p, &err);
        if (index >= 0 && (type == 0 || (t->nodes[index].mode & S_IFMT) == type))
            break;
        p = draw_path(s);
    }
    return p;
}

static enum fsm_kind draw_kind(struct seed *s)
{
    static const uint8_t weights[FSM_KINDS] = {
        [FSM_CREATE] = 16,   [FSM_MKDIR] = 6,       [FSM_SYMLINK] = 3, [FSM_LINK] = 4,   [FSM_UNLINK] = 7,
        [FSM_RMDIR] = 3,     [FSM_RENAME] = 8,      [FSM_WRITE] = 22,  [FSM_APPEND] = 6, [FSM_TRUNCATE] = 5,
        [FSM_PUNCH] = 3,     [FSM_ZERO] = 2,        [FSM_CLONE] = 3,   [FSM_CHMOD] = 3,  [FSM_CHOWN] = 2,
        [FSM_XATTR_SET] = 3, [FSM_XATTR_REMOVE] = 1};
    uint32_t sum = 0;
    for (uint32_t i = 0; i < FSM_KINDS; i++)
        sum += weights[i];
    uint64_t n = sim_random_below(&s->random, sum);
    for (uint32_t i = 0; i < FSM_KINDS; i++) {
        if (n < weights[i])
            return (enum fsm_kind)i;
        n -= weights[i];
    }
    return FSM_WRITE;
}

static uint64_t draw_len(struct seed *s)
{
    switch (sim_random_below(&s->random, 6)) {
    case 0:
        return sim_random_between(&s->random, 1, 64);
    case 1:
        return sim_random_between(&s->random, 1, 3000); /* about where inline data ends */
    case 2:
        return BLOCK_SIZE;
    case 3:
        return sim_random_between(&s->random, 1, 3) * BLOCK_SIZE;
    case 4:
        return sim_random_between(&s->random, 1, 5 * BLOCK_SIZE);
    default:
        return sim_random_between(&s->random, 1, 40 * KIB);
    }
}

static uint64_t draw_offset(struct seed *s)
{
    switch (sim_random_below(&s->random, 4)) {
    case 0:
        return 0;
    case 1:
        return sim_random_below(&s->random, 6) * BLOCK_SIZE;
    case 2:
        return sim_random_below(&s->random, 4000);
    default:
        return sim_random_below(&s->random, 50 * KIB);
    }
}

static struct fsm_op draw_op(struct seed *s, const struct client *c)
{
    const struct fsm_tree *t = &s->fsm->clients[c->number].now;
    struct fsm_op op = {.kind = draw_kind(s), .durable = c->durable};
    op.tag = sim_random_below(&s->random, UINT64_MAX >> 1);
    op.mode = (uint32_t)sim_random_below(&s->random, 01000);
    op.uid = (uint32_t)sim_random_below(&s->random, 3) * 1000;
    op.gid = (uint32_t)sim_random_below(&s->random, 3) * 100;
    op.offset = draw_offset(s);
    op.len = draw_len(s);
    switch (op.kind) {
    case FSM_CREATE:
    case FSM_MKDIR:
    case FSM_SYMLINK:
        op.a = draw_path(s);
        break;
    case FSM_LINK:
    case FSM_RENAME:
        op.a = draw_existing(s, t, 0);
        op.b = sim_random_below(&s->random, 4) == 0 ? draw_existing(s, t, 0) : draw_path(s);
        op.exchange = sim_random_below(&s->random, 8) == 0;
        op.noreplace = !op.exchange && sim_random_below(&s->random, 8) == 0;
        break;
    case FSM_RMDIR:
        op.a = draw_existing(s, t, S_IFDIR);
        break;
    case FSM_CLONE:
        op.a = draw_existing(s, t, S_IFREG);
        op.b = draw_existing(s, t, S_IFREG);
        op.offset = sim_random_below(&s->random, 3) * BLOCK_SIZE;
        op.len = sim_random_between(&s->random, 1, 4) * BLOCK_SIZE;
        break;
    case FSM_TRUNCATE:
        op.len = sim_random_below(&s->random, 3) == 0 ? 0 : draw_offset(s);
        op.a = draw_existing(s, t, S_IFREG);
        break;
    case FSM_XATTR_SET:
    case FSM_XATTR_REMOVE:
        op.offset = sim_random_below(&s->random, FSM_XATTRS);
        op.len = sim_random_between(&s->random, VALUE_MIN,
                                    sim_random_below(&s->random, 4) == 0 ? FSM_XATTR_MAX : 200);
        op.a = draw_existing(s, t, 0);
        break;
    default:
        op.a = draw_existing(
            s, t, op.kind == FSM_CHMOD || op.kind == FSM_CHOWN || op.kind == FSM_UNLINK ? 0 : S_IFREG);
    }
    /* The mode of a symbolic link says nothing, and not every caller may set it. */
    int err, index = fsm_tree_find(t, &op.a, &err);
    if (op.kind == FSM_CHMOD && index >= 0 && S_ISLNK(t->nodes[index].mode))
        op.kind = FSM_UNLINK;
    return op;
}

/* ---- Clients ---- */

static void acknowledged(struct seed *s, const struct client *c, const struct fsm_op *op)
{
    s->acked++;
    s->last_progress_ns = sim_now_ns(s->sim);
    sim_trace(s->sim, "ack", fsm_kind_name(op->kind), c->number, op->tag, op->len);
    if (s->acked >= s->acked_goal)
        s->stop = true;
}

/* A full file system: removing must work. */
static bool full_allowed(enum fsm_kind kind)
{
    return kind != FSM_UNLINK && kind != FSM_RMDIR;
}

static void one_op(struct seed *s, const struct client *c) may_yield;
static void one_op(struct seed *s, const struct client *c)
{
    struct fsm_op op = draw_op(s, c);
    if (s->full_seen && full_allowed(op.kind) && sim_random_below(&s->random, 2) == 0)
        op.kind = FSM_UNLINK;
    int expected = 0;
    if (!fsm_begin(s->fsm, c->number, &op, &expected))
        return;
    sim_trace(s->sim, "call", fsm_kind_name(op.kind), c->number, op.tag, op.len);
    int r = do_op(c, &op);
    fsm_end(s->fsm, c->number, r == 0 && expected == 0);
    if (r != 0 && error_errno(r) == ENOSPC && full_allowed(op.kind)) {
        sim_count_fault(s->sim, SIM_FAULT_POOL_FULL);
        s->full_seen = true;
        return;
    }
    if ((r == 0) != (expected == 0)) {
        seed_fail(s, "client %" PRIu32 ": %s ended with %s (%s), expected was %s", c->number,
                  fsm_kind_name(op.kind), r == 0 ? "success" : error_text(r), error_name(r),
                  expected == 0 ? "success" : strerror(expected));
        return;
    }
    /* Where two reasons to refuse meet, either will do. */
    bool either = expected == EINVAL || op.kind == FSM_RENAME || op.kind == FSM_CLONE ||
                  (op.kind == FSM_LINK && expected == EPERM && error_errno(r) == EEXIST);
    if (r != 0 && error_errno(r) != expected && !either) {
        seed_fail(s, "client %" PRIu32 ": %s was refused with %s (%s), expected was %s", c->number,
                  fsm_kind_name(op.kind), error_text(r), error_name(r), strerror(expected));
        return;
    }
    acknowledged(s, c, &op);
}

static void one_commit(struct seed *s, const struct client *c) may_yield;
static void one_commit(struct seed *s, const struct client *c)
{
    struct fs_request rq = request_of(c);
    uint64_t mark = fsm_commit_begin(s->fsm);
    int r = fs_commit(fs_work_of(s), &rq, c->directory, NULL);
    if (r != 0)
        (void)failed(c, "commit", c->directory, r);
    else
        fsm_commit_end(s->fsm, mark);
}

/* Its own directory must be as the model has it at any time. */
static void one_look(struct seed *s, struct client *c) may_yield;
static void one_look(struct seed *s, struct client *c)
{
    struct fsm_tree *found = calloc(1, sizeof(*found));
    assert(found != NULL);
    if (client_read(c, found) && fsm_tree_hash(found) != fsm_tree_hash(&s->fsm->clients[c->number].now)) {
        char what[400];
        fsm_tree_difference(&s->fsm->clients[c->number].now, found, what, sizeof(what));
        seed_fail(s, "client %" PRIu32 " finds in its directory: %s", c->number, what);
    }
    fsm_tree_done(found);
    free(found);
}

static void client_main(void *arg) fiber_role_assumed
{
    struct client *c = arg;
    struct seed *s = c->seed;
    while (!s->stop && !s->failed) {
        uint64_t what = sim_random_below(&s->random, 100);
        if (what < 2)
            one_look(s, c);
        else if (what < 6 && !c->durable)
            one_commit(s, c);
        else
            one_op(s, c);
        if (s->w.think_us != 0)
            (void)fiber_sleep(sim_random_below(&s->random, s->w.think_us * NSEC_PER_USEC));
        else
            fiber_yield();
    }
    s->clients_running--;
}

static void fs_workload_run(struct seed *s) may_yield;
static void fs_workload_run(struct seed *s)
{
    struct fiber *fibers[64];
    struct client clients[64];
    assert(s->fsm->count <= ARRAY_SIZE(fibers));
    s->stop = s->acked >= s->acked_goal;
    s->clients_running = s->fsm->count;
    for (uint32_t i = 0; i < s->fsm->count; i++) {
        clients[i] = client_of(s, i);
        if (!client_find(&clients[i]))
            s->stop = true;
    }
    for (uint32_t i = 0; i < s->fsm->count; i++) {
        int err = fiber_spawn_joinable("client", client_main, &clients[i], &fibers[i]);
        assert(err == 0);
    }
    for (uint32_t i = 0; i < s->fsm->count; i++)
        fiber_join(fibers[i]);
}

/* ---- In the life of a seed ---- */

void fs_work_directory(uint32_t client, char out[24])
{
    snprintf(out, 24, "client-%" PRIu32, client);
}

static void setup(struct seed *s)
{
    s->fsm = fsm_new(s->w.clients);
}

static void crash(struct seed *s, bool power)
{
    fsm_crash(s->fsm, power);
}

const struct sim_work_ops fs_work_ops = {
    .setup = setup,
    .verify = fs_workload_verify,
    .run = fs_workload_run,
    .crash = crash,
};
