/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fs_model.h"

#include "runtime/checksum.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

void fsm_name(uint8_t number, char out[24])
{
    /* A long one, and one whose letters differ from another's in case only. */
    static const char *const names[FSM_NAMES] = {
        "a", "b", "c", "d", "File", "file", "x.o", "y y", "\xc3\xa4", "longer-name", "~", "0123456789"};
    assert(number < FSM_NAMES);
    snprintf(out, 24, "%s", names[number]);
}

const char *fsm_kind_name(enum fsm_kind kind)
{
    static const char *const names[FSM_KINDS] = {
        "create",   "mkdir", "symlink", "link",  "unlink", "rmdir", "rename",    "write",       "append",
        "truncate", "punch", "zero",    "clone", "chmod",  "chown", "xattr-set", "xattr-remove"};
    assert(kind < FSM_KINDS);
    return names[kind];
}

/* ---- Trees ---- */

void fsm_tree_init(struct fsm_tree *t)
{
    memset(t, 0, sizeof(*t));
    t->nodes[0] = (struct fsm_node){.used = true, .mode = S_IFDIR | 0755, .nlink = 2};
}

static void bytes_put(struct fsm_node *n)
{
    if (n->bytes != NULL && --n->bytes->refs == 0)
        free(n->bytes);
    n->bytes = NULL;
}

void fsm_tree_done(struct fsm_tree *t)
{
    for (uint32_t i = 0; i < FSM_NODES_MAX; i++)
        bytes_put(&t->nodes[i]);
}

void fsm_tree_copy(struct fsm_tree *to, const struct fsm_tree *from)
{
    fsm_tree_done(to);
    memcpy(to, from, sizeof(*to));
    for (uint32_t i = 0; i < FSM_NODES_MAX; i++)
        if (to->nodes[i].bytes != NULL)
            to->nodes[i].bytes->refs++;
}

uint8_t *fsm_node_bytes(struct fsm_node *n)
{
    struct fsm_bytes *old = n->bytes;
    if (old == NULL || old->refs > 1) {
        n->bytes = calloc(1, sizeof(*n->bytes));
        assert(n->bytes != NULL);
        if (old != NULL) {
            memcpy(n->bytes->data, old->data, n->size);
            old->refs--;
        }
        n->bytes->refs = 1;
    }
    n->bytes->hashed = false;
    return n->bytes->data;
}

static bool is_dir(const struct fsm_node *n)
{
    return S_ISDIR(n->mode);
}

int fsm_tree_find(const struct fsm_tree *t, const struct fsm_path *p, int *ret_errno)
{
    int at = 0;
    for (uint8_t i = 0; i < p->depth; i++) {
        if (!is_dir(&t->nodes[at])) {
            *ret_errno = ENOTDIR;
            return -1;
        }
        at = t->nodes[at].children[p->names[i]];
        if (at == 0) {
            *ret_errno = ENOENT;
            return -1;
        }
    }
    return at;
}

/* The directory in which the path's last name is. */
static int find_parent(const struct fsm_tree *t, const struct fsm_path *p, int *ret_errno)
{
    struct fsm_path up = *p;
    assert(p->depth > 0);
    up.depth--;
    int at = fsm_tree_find(t, &up, ret_errno);
    if (at >= 0 && !is_dir(&t->nodes[at])) {
        *ret_errno = ENOTDIR;
        return -1;
    }
    return at;
}

static uint8_t last_name(const struct fsm_path *p)
{
    return p->names[p->depth - 1];
}

static int node_new(const struct fsm_tree *t)
{
    for (int i = 1; i < (int)FSM_NODES_MAX; i++)
        if (!t->nodes[i].used)
            return i;
    return -1;
}

static bool dir_empty(const struct fsm_node *n)
{
    for (uint32_t i = 0; i < FSM_NAMES; i++)
        if (n->children[i] != 0)
            return false;
    return true;
}

static void node_drop_name(struct fsm_tree *t, int index)
{
    struct fsm_node *n = &t->nodes[index];
    if (is_dir(n) || --n->nlink == 0) {
        bytes_put(n);
        *n = (struct fsm_node){0};
    }
}

static int apply_make(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, dir = find_parent(t, &op->a, &err);
    if (dir < 0)
        return err;
    if (t->nodes[dir].children[last_name(&op->a)] != 0)
        return EEXIST;
    int index = node_new(t);
    if (index < 0)
        return ENOSPC;
    uint32_t type = op->kind == FSM_MKDIR ? S_IFDIR : op->kind == FSM_SYMLINK ? S_IFLNK : S_IFREG;
    struct fsm_node *n = &t->nodes[index];
    *n = (struct fsm_node){.used = true,
                           .mode = type | (type == S_IFLNK ? 0777 : op->mode),
                           .uid = op->uid,
                           .gid = op->gid,
                           .nlink = type == S_IFDIR ? 2 : 1};
    if (type == S_IFLNK) {
        snprintf(n->target, sizeof(n->target), "to-%llx", (unsigned long long)op->tag);
        n->size = (uint32_t)strlen(n->target);
    }
    if (type == S_IFDIR)
        t->nodes[dir].nlink++;
    t->nodes[dir].children[last_name(&op->a)] = (uint8_t)index;
    return 0;
}

static int apply_link(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, from = fsm_tree_find(t, &op->a, &err);
    int dir = from < 0 ? -1 : find_parent(t, &op->b, &err);
    if (from < 0 || dir < 0)
        return err;
    if (is_dir(&t->nodes[from]))
        return EPERM;
    if (t->nodes[dir].children[last_name(&op->b)] != 0)
        return EEXIST;
    t->nodes[dir].children[last_name(&op->b)] = (uint8_t)from;
    t->nodes[from].nlink++;
    return 0;
}

static int apply_remove(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, dir = find_parent(t, &op->a, &err);
    if (dir < 0)
        return err;
    int index = t->nodes[dir].children[last_name(&op->a)];
    if (index == 0)
        return ENOENT;
    struct fsm_node *n = &t->nodes[index];
    if (op->kind == FSM_UNLINK && is_dir(n))
        return EISDIR;
    if (op->kind == FSM_RMDIR && !is_dir(n))
        return ENOTDIR;
    if (op->kind == FSM_RMDIR && !dir_empty(n))
        return ENOTEMPTY;
    if (is_dir(n))
        t->nodes[dir].nlink--;
    t->nodes[dir].children[last_name(&op->a)] = 0;
    node_drop_name(t, index);
    return 0;
}

/* Whether `top` is `at`, or above it. */
static bool is_above(const struct fsm_tree *t, int top, const struct fsm_path *p)
{
    int at = 0;
    if (top == 0)
        return true;
    for (uint8_t i = 0; i + 1 < p->depth; i++) {
        at = t->nodes[at].children[p->names[i]];
        if (at == top)
            return true;
        if (at == 0)
            return false;
    }
    return false;
}

static void count_dir(struct fsm_tree *t, int dir, int index, int more)
{
    if (is_dir(&t->nodes[index]))
        t->nodes[dir].nlink = (uint32_t)((int)t->nodes[dir].nlink + more);
}

static int apply_exchange(struct fsm_tree *t, const struct fsm_op *op, int from_dir, int from, int to_dir,
                          int to)
{
    if (to == 0)
        return ENOENT;
    if (is_dir(&t->nodes[to]) && is_above(t, to, &op->a))
        return EINVAL;
    count_dir(t, from_dir, from, -1);
    count_dir(t, to_dir, to, -1);
    t->nodes[from_dir].children[last_name(&op->a)] = (uint8_t)to;
    t->nodes[to_dir].children[last_name(&op->b)] = (uint8_t)from;
    count_dir(t, from_dir, to, 1);
    count_dir(t, to_dir, from, 1);
    return 0;
}

static int apply_rename(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, from_dir = find_parent(t, &op->a, &err), to_dir = -1;
    if (from_dir >= 0)
        to_dir = find_parent(t, &op->b, &err);
    if (from_dir < 0 || to_dir < 0)
        return err;
    int from = t->nodes[from_dir].children[last_name(&op->a)],
        to = t->nodes[to_dir].children[last_name(&op->b)];
    if (from == 0)
        return ENOENT;
    if (to != 0 && op->noreplace)
        return EEXIST;
    if (is_dir(&t->nodes[from]) && is_above(t, from, &op->b))
        return EINVAL;
    if (from == to) /* two names of one file, or the name itself: nothing is done */
        return 0;
    if (op->exchange)
        return apply_exchange(t, op, from_dir, from, to_dir, to);
    if (to != 0) {
        const struct fsm_node *f = &t->nodes[from], *n = &t->nodes[to];
        if (is_dir(f) && !is_dir(n))
            return ENOTDIR;
        if (!is_dir(f) && is_dir(n))
            return is_above(t, to, &op->a) ? ENOTEMPTY : EISDIR;
        if (is_dir(n) && !dir_empty(n))
            return ENOTEMPTY;
        count_dir(t, to_dir, to, -1);
        node_drop_name(t, to);
    }
    count_dir(t, from_dir, from, -1);
    t->nodes[from_dir].children[last_name(&op->a)] = 0;
    t->nodes[to_dir].children[last_name(&op->b)] = (uint8_t)from;
    count_dir(t, to_dir, from, 1);
    return 0;
}

static int apply_data(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, index = fsm_tree_find(t, &op->a, &err);
    if (index < 0)
        return err;
    struct fsm_node *n = &t->nodes[index];
    if (is_dir(n))
        return EISDIR;
    if (!S_ISREG(n->mode))
        return EINVAL;
    uint64_t offset = op->kind == FSM_APPEND ? n->size : op->offset, end = offset + op->len;
    uint8_t *bytes = fsm_node_bytes(n);
    switch (op->kind) {
    case FSM_WRITE:
    case FSM_APPEND:
        if (end > FSM_FILE_MAX)
            return ENOSPC;
        for (uint64_t i = 0; i < op->len; i++)
            bytes[offset + i] = fsm_byte(op->tag, i);
        n->size = MAX(n->size, (uint32_t)end);
        break;
    case FSM_TRUNCATE:
        if (op->len < n->size)
            memset(bytes + op->len, 0, n->size - op->len);
        n->size = (uint32_t)op->len;
        break;
    case FSM_PUNCH:
    case FSM_ZERO:
        if (end > FSM_FILE_MAX)
            return ENOSPC;
        if (offset < n->size)
            memset(bytes + offset, 0, MIN(end, (uint64_t)n->size) - offset);
        if (op->kind == FSM_ZERO)
            n->size = MAX(n->size, (uint32_t)end);
        break;
    default:
        assert(false);
    }
    return 0;
}

/* From a's bytes [offset, +len) into b at the same place; both ends in blocks, a is as long at least. */
static int apply_clone(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, from = fsm_tree_find(t, &op->a, &err), to = -1;
    if (from >= 0)
        to = fsm_tree_find(t, &op->b, &err);
    if (from < 0 || to < 0)
        return err;
    struct fsm_node *f = &t->nodes[from], *n = &t->nodes[to];
    if (is_dir(f) || is_dir(n))
        return EISDIR;
    if (!S_ISREG(f->mode) || !S_ISREG(n->mode) || from == to || op->offset + op->len > f->size)
        return EINVAL;
    uint8_t *to_bytes = fsm_node_bytes(n);
    if (f->bytes != NULL)
        memcpy(to_bytes + op->offset, f->bytes->data + op->offset, op->len);
    else
        memset(to_bytes + op->offset, 0, op->len);
    n->size = MAX(n->size, (uint32_t)(op->offset + op->len));
    return 0;
}

static int apply_attributes(struct fsm_tree *t, const struct fsm_op *op)
{
    int err = 0, index = fsm_tree_find(t, &op->a, &err);
    if (index < 0)
        return err;
    struct fsm_node *n = &t->nodes[index];
    if (op->kind == FSM_CHMOD) {
        n->mode = (n->mode & S_IFMT) | op->mode;
    } else if (op->kind == FSM_CHOWN) {
        n->uid = op->uid;
        n->gid = op->gid;
    } else if (S_ISLNK(n->mode)) { /* user.* is for files and directories */
        return EPERM;
    } else if (op->kind == FSM_XATTR_SET) {
        n->xattrs[op->offset].len = (uint32_t)op->len;
        n->xattrs[op->offset].tag = op->tag;
    } else {
        if (n->xattrs[op->offset].len == 0)
            return ENODATA;
        n->xattrs[op->offset].len = 0;
    }
    return 0;
}

int fsm_tree_apply(struct fsm_tree *t, const struct fsm_op *op)
{
    switch (op->kind) {
    case FSM_CREATE:
    case FSM_MKDIR:
    case FSM_SYMLINK:
        return apply_make(t, op);
    case FSM_LINK:
        return apply_link(t, op);
    case FSM_UNLINK:
    case FSM_RMDIR:
        return apply_remove(t, op);
    case FSM_RENAME:
        return apply_rename(t, op);
    case FSM_WRITE:
    case FSM_APPEND:
    case FSM_TRUNCATE:
    case FSM_PUNCH:
    case FSM_ZERO:
        return apply_data(t, op);
    case FSM_CLONE:
        return apply_clone(t, op);
    case FSM_CHMOD:
    case FSM_CHOWN:
    case FSM_XATTR_SET:
    case FSM_XATTR_REMOVE:
        return apply_attributes(t, op);
    case FSM_KINDS:
        break;
    }
    assert(false);
    return EINVAL;
}

/* ---- Comparing ---- */

struct walk {
    const struct fsm_tree *tree;
    uint64_t hash;
    uint8_t order[FSM_NODES_MAX]; /* of nodes with several names: the number of the first one */
    uint8_t seen;
};

static void mix(struct walk *w, const void *data, size_t len)
{
    w->hash = hash64(data, len, w->hash);
}

static uint64_t bytes_hash(const struct fsm_node *n)
{
    static const uint8_t zeroes[FSM_FILE_MAX];
    struct fsm_bytes *b = n->bytes;
    if (b == NULL)
        return hash64(zeroes, n->size, 2);
    if (!b->hashed || b->hashed_size != n->size) {
        b->hash = hash64(b->data, n->size, 2);
        b->hashed_size = n->size;
        b->hashed = true;
    }
    return b->hash;
}

static void walk_node(struct walk *w, uint8_t index)
{
    const struct fsm_node *n = &w->tree->nodes[index];
    if (w->order[index] != 0) { /* a hard link: the same file */
        mix(w, &w->order[index], 1);
        return;
    }
    w->order[index] = ++w->seen;
    mix(w, &n->mode, sizeof(n->mode));
    mix(w, &n->uid, sizeof(n->uid));
    mix(w, &n->gid, sizeof(n->gid));
    mix(w, &n->nlink, sizeof(n->nlink));
    for (uint32_t i = 0; i < FSM_XATTRS; i++) {
        mix(w, &n->xattrs[i].len, sizeof(n->xattrs[i].len));
        if (n->xattrs[i].len != 0)
            mix(w, &n->xattrs[i].tag, sizeof(n->xattrs[i].tag));
    }
    if (!is_dir(n))
        mix(w, &n->size, sizeof(n->size));
    if (S_ISLNK(n->mode))
        mix(w, n->target, strlen(n->target));
    if (S_ISREG(n->mode) && n->size > 0) {
        uint64_t hash = bytes_hash(n);
        mix(w, &hash, sizeof(hash));
    }
    for (uint8_t i = 0; is_dir(n) && i < FSM_NAMES; i++) {
        if (n->children[i] == 0)
            continue;
        mix(w, &i, 1); /* depth of the walk is bounded by the depth of paths */
        walk_node(w, n->children[i]);
    }
    uint8_t end = 0xff;
    mix(w, &end, 1);
}

uint64_t fsm_tree_hash(const struct fsm_tree *t)
{
    struct walk w = {.tree = t, .hash = 1};
    walk_node(&w, 0);
    return w.hash;
}

static bool difference(const struct fsm_tree *a, int x, const struct fsm_tree *b, int y, char *path,
                       size_t path_size, char *out, size_t size)
{
    const struct fsm_node *m = &a->nodes[x], *n = &b->nodes[y];
    size_t len = strlen(path);
    if (m->mode != n->mode || m->uid != n->uid || m->gid != n->gid || m->nlink != n->nlink ||
        (!is_dir(m) && m->size != n->size)) {
        snprintf(out, size, "%s: mode %o, owner %u:%u, %u links, %u bytes, should be %o, %u:%u, %u, %u", path,
                 n->mode, n->uid, n->gid, n->nlink, n->size, m->mode, m->uid, m->gid, m->nlink, m->size);
        return true;
    }
    for (uint32_t i = 0; S_ISREG(m->mode) && i < m->size; i++) {
        uint8_t p = m->bytes != NULL ? m->bytes->data[i] : 0, q = n->bytes != NULL ? n->bytes->data[i] : 0;
        if (p != q) {
            snprintf(out, size, "%s: byte %u is %02x, should be %02x", path, i, q, p);
            return true;
        }
    }
    for (uint32_t i = 0; i < FSM_XATTRS; i++) {
        if (m->xattrs[i].len != n->xattrs[i].len ||
            (m->xattrs[i].len != 0 && m->xattrs[i].tag != n->xattrs[i].tag)) {
            snprintf(out, size, "%s: extended attribute %u has %u bytes, should have %u", path, i,
                     n->xattrs[i].len, m->xattrs[i].len);
            return true;
        }
    }
    for (uint8_t i = 0; is_dir(m) && i < FSM_NAMES; i++) {
        char name[24];
        fsm_name(i, name);
        snprintf(path + len, path_size - len, "/%s", name);
        if ((m->children[i] != 0) != (n->children[i] != 0)) {
            snprintf(out, size, "%s %s", path, n->children[i] != 0 ? "is there" : "is not there");
            return true;
        }
        if (m->children[i] != 0 &&
            difference(a, m->children[i], b, n->children[i], path, path_size, out, size))
            return true;
        path[len] = '\0';
    }
    return false;
}

void fsm_tree_difference(const struct fsm_tree *expected, const struct fsm_tree *found, char *out,
                         size_t size)
{
    char path[160] = "";
    if (!difference(expected, 0, found, 0, path, sizeof(path), out, size))
        snprintf(out, size, "hard links or symbolic links differ");
}

/* ---- Clients ---- */

struct fsm *fsm_new(uint32_t clients)
{
    struct fsm *m = calloc(1, sizeof(*m));
    assert(m != NULL);
    m->clients = calloc(clients, sizeof(*m->clients));
    assert(m->clients != NULL);
    m->count = clients;
    m->clock = 1;
    for (uint32_t i = 0; i < clients; i++) {
        fsm_tree_init(&m->clients[i].base);
        fsm_tree_init(&m->clients[i].now);
    }
    return m;
}

void fsm_free(struct fsm *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        fsm_tree_done(&m->clients[i].base);
        fsm_tree_done(&m->clients[i].now);
        free(m->clients[i].journal);
    }
    free(m->clients);
    free(m);
}

bool fsm_begin(struct fsm *m, uint32_t client, const struct fsm_op *op, int *ret_errno)
{
    struct fsm_client *c = &m->clients[client];
    struct fsm_tree *after = calloc(1, sizeof(*after));
    assert(after != NULL && !c->under_way);
    fsm_tree_copy(after, &c->now);
    int err = fsm_tree_apply(after, op);
    fsm_tree_done(after);
    free(after);
    if (err == ENOSPC)
        return false;
    if (c->count == c->capacity) {
        c->capacity = c->capacity != 0 ? 2 * c->capacity : 64;
        c->journal = realloc(c->journal, c->capacity * sizeof(*c->journal));
        assert(c->journal != NULL);
    }
    c->journal[c->count] = *op;
    c->journal[c->count].begun = m->clock++;
    c->journal[c->count].acked = 0;
    c->count++;
    c->under_way = true;
    *ret_errno = err;
    return true;
}

/* Everything that had been acknowledged at that time is on stable media. */
static void durable_before(struct fsm *m, uint64_t when)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct fsm_client *c = &m->clients[i];
        while (c->durable < c->count && c->journal[c->durable].acked != 0 &&
               c->journal[c->durable].acked < when)
            c->durable++;
    }
}

void fsm_end(struct fsm *m, uint32_t client, bool done)
{
    struct fsm_client *c = &m->clients[client];
    struct fsm_op *op = &c->journal[c->count - 1];
    assert(c->under_way);
    c->under_way = false;
    if (!done) {
        c->count--;
        return;
    }
    uint64_t before = fsm_tree_hash(&c->now);
    int err = fsm_tree_apply(&c->now, op);
    assert(err == 0);
    op->acked = m->clock++;
    /* What changed nothing had nothing to make durable, and says nothing about others. */
    if (op->durable && fsm_tree_hash(&c->now) != before) {
        durable_before(m, op->begun);
        c->durable = c->count; /* its own came one after the other */
    }
}

uint64_t fsm_commit_begin(struct fsm *m)
{
    return m->clock++;
}

void fsm_commit_end(struct fsm *m, uint64_t mark)
{
    durable_before(m, mark);
}

void fsm_crash(struct fsm *m, bool power)
{
    m->power = m->power || power;
    for (uint32_t i = 0; i < m->count; i++) {
        struct fsm_client *c = &m->clients[i];
        c->under_way = false;
        /* What a process leaves in the kernel is on its drives only when the next one has opened them: a
         * power loss before that may still take it. */
        c->survives = c->durable;
        while (!m->power && c->survives < c->count && c->journal[c->survives].acked != 0)
            c->survives++;
    }
    m->crashed = true;
}

/* How many of its operations survived: at least and at most (some change nothing that can be seen). */
struct survived {
    size_t least, most;
};

static bool match(struct fsm_client *c, uint32_t number, const struct fsm_tree *found, struct survived *ret,
                  char *why, size_t why_size)
{
    struct fsm_tree *t = calloc(1, sizeof(*t));
    uint64_t wanted = fsm_tree_hash(found);
    bool any = false;
    assert(t != NULL);
    fsm_tree_copy(t, &c->base);
    for (size_t k = 0; k <= c->count; k++) {
        if (k >= c->survives && fsm_tree_hash(t) == wanted) {
            ret->least = any ? ret->least : k;
            ret->most = k;
            any = true;
        }
        if (k < c->count)
            (void)fsm_tree_apply(t, &c->journal[k]); /* the last one may be refused: then it did nothing */
    }
    if (!any) {
        char what[300];
        fsm_tree_difference(&c->now, found, what, sizeof(what));
        snprintf(why, why_size,
                 "client %u: its directory is none of the states after %zu to %zu of its operations; against "
                 "the last "
                 "one acknowledged: %s",
                 number, c->survives, c->count, what);
    }
    fsm_tree_done(t);
    free(t);
    return any;
}

/* F3 */
static bool in_order(const struct fsm *m, const struct survived *s, char *why, size_t why_size)
{
    for (uint32_t i = 0; i < m->count; i++) {
        if (s[i].least == 0)
            continue;
        const struct fsm_op *newest = &m->clients[i].journal[s[i].least - 1];
        for (uint32_t k = 0; k < m->count; k++) {
            const struct fsm_client *c = &m->clients[k];
            if (s[k].most == c->count)
                continue;
            const struct fsm_op *lost = &c->journal[s[k].most];
            if (lost->acked != 0 && lost->acked < newest->begun) {
                snprintf(why, why_size,
                         "client %u's %s survived, and client %u's %s, acknowledged before it began, did not",
                         i, fsm_kind_name(newest->kind), k, fsm_kind_name(lost->kind));
                return false;
            }
        }
    }
    return true;
}

bool fsm_recovered(struct fsm *m, const struct fsm_tree *found, char *why, size_t why_size)
{
    struct survived *s = calloc(m->count, sizeof(*s));
    bool good = true;
    assert(s != NULL);
    for (uint32_t i = 0; good && i < m->count; i++)
        good = match(&m->clients[i], i, &found[i], &s[i], why, why_size);
    good = good && in_order(m, s, why, why_size);
    for (uint32_t i = 0; good && i < m->count; i++) {
        struct fsm_client *c = &m->clients[i];
        for (size_t k = 0; k < s[i].most; k++)
            (void)fsm_tree_apply(&c->base, &c->journal[k]);
        fsm_tree_copy(&c->now, &c->base);
        c->count = c->durable = 0;
    }
    free(s);
    m->crashed = m->crashed && !good;
    m->power = m->power && !good;
    return good;
}
