/* SPDX-License-Identifier: Apache-2.0 */
#include "data_test.h"

#include "volume/verify.h"

#include <sys/stat.h>

const struct fs_request data_request = {0};
const struct fs_request data_durable = {.durable = true};

static void print_problem(void *ctx, const char *sentence)
{
    (void)ctx;
    fprintf(stderr, "verify: %s\n", sentence);
}

bool data_start(struct data_test *t, const char *protection)
{
    struct fs_format_options o = {0};

    *t = (struct data_test){.next_ino = 1000000};
    pool_open(&t->pool);
    t->id = pool_volume(&t->pool, protection, GIB);
    if (!CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0))
        return false;
    bool good = CHECK_EQ(fs_format(t->v, &o), 0);
    CHECK_EQ(volume_close(t->v), 0);
    t->v = NULL;
    return good && data_open(t);
}

bool data_open(struct data_test *t)
{
    return CHECK_EQ(volume_open(&t->pool.env, t->id, &t->v), 0) && CHECK_EQ(fs_open(t->v, 0, &t->fs), 0);
}

void data_close(struct data_test *t)
{
    fs_close(t->fs);
    CHECK_EQ(volume_close(t->v), 0);
    t->v = NULL;
}

void data_crash(struct data_test *t)
{
    volume_fail(t->v, ERR_SHORT_IO, "the test");
    fs_close(t->fs);
    CHECK(volume_close(t->v) != 0);
    t->v = NULL;
}

void data_end(struct data_test *t)
{
    if (t->v) {
        struct volume_verify r = {.problem = print_problem};
        CHECK_EQ(volume_verify(t->v, &r), 0);
        CHECK_EQ(r.problems, 0);
        data_close(t);
    }
    pool_close(&t->pool);
}

/* ---- Inodes ---- */

uint64_t data_make(struct data_test *t, uint64_t quota)
{
    struct inode n = {.ino = t->next_ino++, .mode = S_IFREG | 0644, .nlink = 1, .quota = quota};
    struct change c;
    int r;

    n.generation = 7;
    n.atime_ns = n.mtime_ns = n.ctime_ns = n.btime_ns = fs_now_ns();
    change_init(&c, t->v);
    do {
        change_clear(&c);
        inode_want(&c, n.ino);
        r = change_begin(&c);
        if (!r)
            inode_put(&c, &n);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    CHECK_EQ(r, 0);
    return n.ino;
}

int data_remove(struct data_test *t, uint64_t ino)
{
    struct removal rm = {0};
    struct change c;
    struct inode n;
    int r;

    change_init(&c, t->v);
    do {
        change_clear(&c);
        inode_want(&c, ino);
        r = inode_read(t->fs, ino, 0, &n);
        if (r)
            return r;
        remove_will(t->fs, &c, &n, &rm);
        r = change_begin(&c);
        if (!r)
            r = inode_get(t->fs, &c, ino, &n);
        if (!r)
            r = remove_plan(t->fs, &c, &n, &rm);
        if (!r) {
            n.nlink = 0;
            remove_apply(t->fs, &c, &n, &rm);
        }
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

int data_truncate(struct data_test *t, const struct fs_request *rq, uint64_t ino, uint64_t size)
{
    struct truncate cut;
    struct change c;
    struct inode n;
    int r;

    change_init(&c, t->v);
    do {
        change_clear(&c);
        inode_want(&c, ino);
        r = truncate_prepare(&cut, t->fs, &c, ino, size);
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = inode_get(t->fs, &c, ino, &n);
        if (!r)
            r = truncate_plan(&cut, t->fs, &c, &n);
        if (!r) {
            truncate_apply(&cut, t->fs, &c, &n);
            n.mtime_ns = n.ctime_ns = fs_now_ns();
            inode_put(&c, &n);
        }
        r = change_end(&c, r, rq->durable ? CHANGE_DURABLE : 0);
        truncate_done(&cut);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

int data_inode(struct data_test *t, uint64_t ino, struct inode *ret)
{
    return inode_read(t->fs, ino, 0, ret);
}

/* ---- Data ---- */

/* A page for each block; a run of their own for some of them, so that seams are met. */
static may_yield bool vec_make(struct page_vec *v, uint32_t blocks, uint32_t cut)
{
    v->run_count = v->blocks = 0;
    while (v->blocks < blocks) {
        uint32_t n = blocks - v->blocks;
        struct page *page;
        if (cut && n > cut)
            n = cut;
        if (!CHECK_EQ(page_alloc_wait(n, DEADLINE_NEVER, &page), 0))
            return false;
        memset(page->data, 0xee, (size_t)n * BLOCK_SIZE);
        v->runs[v->run_count++] = (struct page_run){page, n};
        v->blocks += n;
    }
    return true;
}

static uint8_t *vec_byte(struct page_vec *v, uint64_t at)
{
    uint32_t block = (uint32_t)(at / BLOCK_SIZE), i = 0;

    while (block >= v->runs[i].count)
        block -= v->runs[i++].count;
    return v->runs[i].page ? page_at(v->runs[i].page, block)->data + at % BLOCK_SIZE : NULL;
}

int data_write(struct data_test *t, const struct fs_request *rq, uint64_t ino, uint64_t offset,
               const uint8_t *bytes, uint64_t len, uint32_t flags)
{
    struct page_vec *v = calloc(1, sizeof(*v));
    int r = 0;

    for (uint64_t done = 0; !r && done < len;) {
        uint32_t n = fs_piece_len(offset + done, len - done), in = (uint32_t)((offset + done) % BLOCK_SIZE);
        uint64_t where;
        struct fs_wcc wcc;
        if (!vec_make(v, (in + n + BLOCK_SIZE - 1) / BLOCK_SIZE, (uint32_t)(bytes[done] % 8)))
            break;
        for (uint32_t i = 0; i < n;) {
            uint32_t part = MIN(n - i, BLOCK_SIZE - (in + i) % BLOCK_SIZE);
            memcpy(vec_byte(v, in + i), bytes + done + i, part);
            i += part;
        }
        r = fs_write(t->fs, rq, ino, offset + done, n, v, flags | FS_WRITE_OPEN, &where, &wcc);
        page_vec_put(v);
        if (!r) {
            CHECK(wcc.has_before && wcc.has_after);
            CHECK(wcc.after.size >= where + n);
        }
        done += n;
    }
    free(v);
    return r;
}

int data_read(struct data_test *t, uint64_t ino, uint64_t offset, uint8_t *bytes, uint64_t len,
              uint64_t *ret_len)
{
    struct page_vec *v = calloc(1, sizeof(*v));
    uint64_t done = 0;
    bool eof = false;
    int r = 0;

    while (!r && done < len && !eof) {
        uint32_t n = fs_piece_len(offset + done, len - done), in = (uint32_t)((offset + done) % BLOCK_SIZE);
        uint32_t got = 0;
        struct fs_attr attr;
        r = fs_read(t->fs, &data_request, ino, offset + done, n, v, &got, &eof, &attr);
        if (r)
            break;
        CHECK(got == n || eof);
        CHECK_EQ(eof, offset + done + got >= attr.size);
        for (uint32_t i = 0; i < got; i++) {
            const uint8_t *b = vec_byte(v, in + i);
            bytes[done + i] = b ? *b : 0;
        }
        page_vec_put(v);
        done += got;
        if (got == 0)
            break;
    }
    free(v);
    if (!r)
        *ret_len = done;
    return r;
}

bool data_reaped(struct data_test *t)
{
    struct tree_cursor c;

    for (int i = 0; i < 20000; i++) {
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

bool data_agrees(struct data_test *t, uint64_t ino)
{
    struct tree_cursor c;
    struct inode n;
    uint64_t held = 0, last = 0;
    int r = data_inode(t, ino, &n);

    if (!CHECK_EQ(r, 0))
        return false;
    r = volume_item_seek(t->v, data_key(ino, 0), SEEK_GE, &c);
    while (!r && c.key.object == ino && c.key.type == ITEM_EXTENT) {
        struct span s;
        if (!CHECK_EQ(span_decode(&c, &s), 0))
            return false;
        CHECK(s.start >= last);
        held += s.blocks;
        last = s.start + s.blocks;
        r = tree_next(&c);
    }
    bool good = CHECK_EQ(n.blocks, held);
    if (n.flags & INODE_INLINE)
        good &= CHECK_EQ(held, 0) && CHECK(n.size > 0 && n.size <= FS_INLINE_MAX);
    return good;
}

/* ---- The model ---- */

void model_write(struct model *m, uint64_t offset, const uint8_t *bytes, uint64_t len)
{
    assert(offset + len <= MODEL_MAX);
    memcpy(m->bytes + offset, bytes, len);
    m->size = MAX(m->size, offset + len);
}

void model_truncate(struct model *m, uint64_t size)
{
    assert(size <= MODEL_MAX);
    if (size < m->size)
        memset(m->bytes + size, 0, m->size - size);
    m->size = size;
}

void model_zero(struct model *m, uint64_t offset, uint64_t len)
{
    if (offset < m->size)
        memset(m->bytes + offset, 0, MIN(len, m->size - offset));
}

bool model_holds(struct data_test *t, const struct model *m, uint64_t offset, uint64_t len)
{
    uint8_t *bytes = malloc(len + 1);
    uint64_t got = 0, want = offset < m->size ? MIN(len, m->size - offset) : 0;
    bool good = CHECK_EQ(data_read(t, m->ino, offset, bytes, len, &got), 0) && CHECK_EQ(got, want);

    if (good && memcmp(bytes, m->bytes + offset, want) != 0) {
        uint64_t at = 0;
        while (bytes[at] == m->bytes[offset + at])
            at++;
        fprintf(stderr, "byte %llu of %llu: %02x, not %02x\n", (unsigned long long)(offset + at),
                (unsigned long long)m->size, bytes[at], m->bytes[offset + at]);
        good = CHECK(!"the file is as the model");
    }
    free(bytes);
    return good;
}
