/* SPDX-License-Identifier: Apache-2.0 */
#include "fs_test.h"

#include "filesystem/fs_verify.h"
#include "volume/verify.h"

/* ---- Life ---- */

bool fs_test_start(struct fs_test *t, bool case_insensitive)
{
    struct volume_create_options o = {.name = "f", .kind = "fs", .size_bytes = GIB, .system_runs = 64};
    struct fs_format_options f = {.case_insensitive = case_insensitive, .root_mode = 0777};

    *t = (struct fs_test){0};
    pool_open(&t->pool);
    CHECK_EQ(protection_parse("none", &o.protection), 0);
    if (!CHECK_EQ(volume_create(&t->pool.env, &o, &t->id), 0) ||
        !CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0))
        return false;
    CHECK_EQ(fs_format(t->v, &f), 0);
    CHECK_EQ(fs_format(t->v, &f), ERR_EXISTS);
    return CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
}

void fs_test_open(struct fs_test *t)
{
    CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0);
    CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
}

void fs_test_close(struct fs_test *t)
{
    fs_check_memory(t->fs);
    fs_close(t->fs);
    CHECK_EQ(volume_close(t->v), 0);
    t->v = NULL;
}

void fs_test_crash(struct fs_test *t)
{
    volume_fail(t->v, ERR_SHORT_IO, "the test");
    fs_close(t->fs);
    CHECK(volume_close(t->v) != 0);
    fs_test_open(t);
}

static void print_problem(void *ctx, const char *sentence)
{
    (void)ctx;
    fprintf(stderr, "verify: %s\n", sentence);
}

static may_yield void verify_names(struct fs_test *t);

void fs_test_end(struct fs_test *t)
{
    if (t->v) {
        struct volume_verify r = {.problem = print_problem};
        (void)fs_test_reaped(t);
        (void)fs_test_consistent(t);
        verify_names(t);
        CHECK_EQ(volume_verify(t->v, &r), 0);
        CHECK_EQ(r.problems, 0);
        fs_test_close(t);
    }
    pool_close(&t->pool);
}

static void (*the_body)(struct fs_test *t);
static bool the_case;

static may_yield void run_fiber(void *arg)
{
    struct fs_test *t = calloc(1, sizeof(*t));

    (void)arg;
    if (fs_test_start(t, the_case)) {
        the_body(t);
        fs_test_end(t);
    }
    free(t);
}

void fs_test_run(void (*body)(struct fs_test *t))
{
    the_body = body;
    the_case = false;
    drive_test_run(run_fiber, NULL);
}

void fs_test_run_insensitive(void (*body)(struct fs_test *t))
{
    the_body = body;
    the_case = true;
    drive_test_run(run_fiber, NULL);
}

bool fs_test_reaped(struct fs_test *t)
{
    struct tree_cursor c;

    for (int i = 0; i < 10000; i++) {
        struct tree_key key = {FS_OBJECT_LISTS, ITEM_ORPHAN, 0};
        int r = volume_item_seek(t->v, key, SEEK_GE, &c);
        if (r == ERR_NOT_FOUND || (!r && (c.key.object != FS_OBJECT_LISTS || c.key.type != ITEM_ORPHAN)))
            return true;
        if (!CHECK_EQ(r, 0))
            return false;
        (void)fiber_sleep(NSEC_PER_MSEC);
    }
    return CHECK(!"orphans are left");
}

/* ---- Does it all agree? ---- */

#define INODES_MAX (1u << 20)
struct census {
    uint32_t names[INODES_MAX];   /* how often each inode has a name */
    uint32_t entries[INODES_MAX]; /* of directories: names in it */
    uint32_t subdirs[INODES_MAX];
    uint32_t bad;
};

static void census_bad(struct census *c, const char *what, uint64_t ino)
{
    fprintf(stderr, "inode %llu: %s\n", (unsigned long long)ino, what);
    c->bad++;
}

static may_yield void census_bucket(struct fs_test *t, struct census *c, const struct tree_cursor *cursor)
{
    uint64_t dir = cursor->key.object;
    struct entry e;

    if (bucket_decode(cursor->value, cursor->len)) {
        census_bad(c, "a bucket that cannot be read", dir);
        return;
    }
    for (uint32_t at = 0; at < cursor->len;) {
        struct name n;
        if (entry_decode(cursor->value, cursor->len, &at, &e) || e.ino >= INODES_MAX || dir >= INODES_MAX) {
            census_bad(c, "an entry that cannot be", dir);
            return;
        }
        if (name_init(t->fs, e.name, e.name_len, &n) || n.base != cursor->key.offset)
            census_bad(c, "a name in the wrong bucket", dir);
        c->names[e.ino]++;
        c->entries[dir]++;
        c->subdirs[dir] += e.type == DT_DIR;
    }
}

static void census_inode(struct census *c, const struct inode *n)
{
    if (n->ino >= INODES_MAX)
        return;
    uint32_t names = c->names[n->ino];
    if (S_ISDIR(n->mode)) {
        if (n->size != c->entries[n->ino])
            census_bad(c, "a directory's size is not its number of names", n->ino);
        if (n->subdirs != c->subdirs[n->ino])
            census_bad(c, "a directory's count of directories", n->ino);
        if (n->nlink != 0 && n->nlink != n->subdirs + 2)
            census_bad(c, "a directory's links", n->ino);
        if (n->ino != FS_INO_ROOT && names != (n->nlink ? 1u : 0u))
            census_bad(c, "a directory's names", n->ino);
    } else if (n->nlink != names) {
        census_bad(c, "links are not names", n->ino);
    }
}

bool fs_test_consistent(struct fs_test *t)
{
    struct census *c = calloc(1, sizeof(*c));
    struct tree_cursor cursor;
    struct inode n;
    uint64_t inodes = 0;

    for (int pass = 0; pass < 2; pass++) {
        int r = volume_item_seek(t->v, (struct tree_key){0, 0, 0}, SEEK_GE, &cursor);
        for (; !r; r = tree_next(&cursor)) {
            if (pass == 0 && cursor.key.type == ITEM_DIRENT)
                census_bucket(t, c, &cursor);
            if (pass == 1 && cursor.key.type == ITEM_INODE) {
                inodes++;
                if (CHECK_EQ(inode_decode(cursor.key.object, cursor.value, cursor.len, &n), 0))
                    census_inode(c, &n);
            }
        }
        CHECK_EQ(r, ERR_NOT_FOUND);
    }
    CHECK_EQ(inodes, volume_inode_count(t->v));
    bool good = CHECK_EQ(c->bad, 0);
    free(c);
    fs_check_memory(t->fs);
    return good;
}

static void print_finding(void *ctx, const struct fs_finding *f, const char *sentence)
{
    (void)ctx;
    fprintf(stderr, "fs_verify: %s: %s\n", fs_finding_name(f->kind), sentence);
}

static may_yield void verify_names(struct fs_test *t)
{
    struct fs_verify r = {.found = print_finding};

    CHECK_EQ(fs_verify(t->v, &r), 0);
    CHECK_EQ(r.problems, 0);
}

/* ---- Short calls ---- */

void as_user(struct fs_test *t, uint32_t uid, uint32_t gid)
{
    t->rq.cred = (struct fs_cred){.uid = uid, .gid = gid};
}

void with_group(struct fs_test *t, uint32_t gid)
{
    t->rq.cred.groups[t->rq.cred.group_count++] = gid;
}

int make(struct fs_test *t, enum fs_type type, uint64_t dir, const char *name, uint32_t mode, uint64_t *ret)
{
    struct fs_create c = {.type = type,
                          .how = FS_CREATE_GUARDED,
                          .attr = {.valid = FS_SET_MODE, .mode = mode},
                          .target = "where/it/leads",
                          .target_len = 14};
    bool created = false;
    int r = fs_create(t->fs, &t->rq, dir, name, (uint32_t)strlen(name), &c, &t->at, &created, &t->wcc);

    if (!r) {
        CHECK(created);
        *ret = t->at.ino;
    }
    return r;
}

uint64_t file(struct fs_test *t, uint64_t dir, const char *name, uint32_t mode)
{
    uint64_t ino = 0;

    CHECK_EQ(make(t, FS_FILE, dir, name, mode, &ino), 0);
    return ino;
}

uint64_t folder(struct fs_test *t, uint64_t dir, const char *name, uint32_t mode)
{
    uint64_t ino = 0;

    CHECK_EQ(make(t, FS_DIRECTORY, dir, name, mode, &ino), 0);
    return ino;
}

int look(struct fs_test *t, uint64_t dir, const char *name, uint64_t *ret)
{
    int r = fs_lookup(t->fs, &t->rq, dir, name, (uint32_t)strlen(name), &t->at, NULL);

    if (!r)
        *ret = t->at.ino;
    return r;
}

uint64_t ino_of(struct fs_test *t, uint64_t dir, const char *name)
{
    uint64_t ino = 0;
    int r = look(t, dir, name, &ino);

    CHECK(r == 0 || r == ERR_FS_NOT_FOUND);
    return ino;
}

int ln(struct fs_test *t, uint64_t ino, uint64_t dir, const char *name)
{
    return fs_link(t->fs, &t->rq, ino, dir, name, (uint32_t)strlen(name), &t->at, &t->wcc);
}

int rm(struct fs_test *t, uint64_t dir, const char *name)
{
    uint64_t ino;
    return fs_unlink(t->fs, &t->rq, dir, name, (uint32_t)strlen(name), &ino, &t->wcc);
}

int rm_dir(struct fs_test *t, uint64_t dir, const char *name)
{
    uint64_t ino;
    return fs_rmdir(t->fs, &t->rq, dir, name, (uint32_t)strlen(name), &ino, &t->wcc);
}

int mv(struct fs_test *t, uint64_t from_dir, const char *from, uint64_t to_dir, const char *to,
       uint32_t flags)
{
    return fs_rename(t->fs, &t->rq, from_dir, from, (uint32_t)strlen(from), to_dir, to, (uint32_t)strlen(to),
                     flags, &t->wcc, &t->wcc_to);
}

int set(struct fs_test *t, uint64_t ino, struct fs_setattr s)
{
    return fs_setattr(t->fs, &t->rq, ino, &s, &t->wcc);
}

int ch_mode(struct fs_test *t, uint64_t ino, uint32_t mode)
{
    return set(t, ino, (struct fs_setattr){.valid = FS_SET_MODE, .mode = mode});
}

int ch_own(struct fs_test *t, uint64_t ino, uint32_t uid, uint32_t gid)
{
    return set(t, ino,
               (struct fs_setattr){.valid = (uid != KEEP ? FS_SET_UID : 0) | (gid != KEEP ? FS_SET_GID : 0),
                                   .uid = uid,
                                   .gid = gid});
}

struct fs_attr attr_of(struct fs_test *t, uint64_t ino)
{
    struct fs_attr a = {0};

    CHECK_EQ(fs_getattr(t->fs, &t->rq, ino, 0, &a), 0);
    return a;
}

int may(struct fs_test *t, uint64_t ino, uint32_t wanted)
{
    uint32_t granted = 0;
    int r = fs_access(t->fs, &t->rq, ino, wanted, &granted, &t->at);

    return r ? r : granted == wanted ? 0 : ERR_FS_ACCESS;
}

int fill(struct fs_test *t, uint64_t ino, uint64_t len)
{
    struct page_vec *v = calloc(1, sizeof(*v));
    uint64_t offset;
    int r = 0;

    for (uint64_t done = 0; !r && done < len;) {
        uint32_t n = fs_piece_len(done, len - done), blocks = DIV_ROUND_UP(n, BLOCK_SIZE);
        struct page *page;
        r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);
        if (r)
            break;
        memset(page->data, 0x5a, (size_t)blocks * BLOCK_SIZE);
        v->run_count = 1;
        v->blocks = blocks;
        v->runs[0] = (struct page_run){page, blocks};
        r = fs_write(t->fs, &t->rq, ino, done, n, v, 0, &offset, &t->wcc);
        page_put(page, blocks);
        done += n;
    }
    free(v);
    return r;
}

/* ---- Listings ---- */

bool list_emit_for_tests(void *ctx, const struct fs_dirent *e)
{
    struct listing *l = ctx;

    if (l->max == 0)
        return false;
    l->max--;
    l->names = realloc(l->names, (l->count + 1) * sizeof(*l->names));
    struct listed *n = &l->names[l->count++];
    *n = (struct listed){.ino = e->ino, .cookie = e->cookie, .has_attr = e->attr != NULL, .type = e->type};
    memcpy(n->name, e->name, e->name_len);
    return true;
}

int list_all(struct fs_test *t, uint64_t dir, uint32_t at_once, bool attributes, struct listing *ret)
{
    bool eof = false;
    int r = 0;

    *ret = (struct listing){0};
    while (!r && !eof) {
        uint32_t before = ret->count;
        ret->max = at_once;
        ret->calls++;
        r = fs_readdir(t->fs, &t->rq, dir, before ? ret->names[before - 1].cookie : 0, attributes,
                       list_emit_for_tests, ret, &eof, &t->at);
        if (!r && !eof && !CHECK(ret->count > before))
            break;
    }
    return r;
}

void listing_free(struct listing *l)
{
    free(l->names);
    *l = (struct listing){0};
}

const struct listed *listing_find(const struct listing *l, const char *name)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (strcmp(l->names[i].name, name) == 0)
            return &l->names[i];
    return NULL;
}
