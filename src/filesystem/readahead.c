/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead that follows each stream.
 *
 * A stream is a reader that goes through a file from block to block. Several of one file are told apart by
 * where they are. Clients send many requests at once, which arrive a little out of order: a request near the
 * place that is expected belongs to the stream. Whenever the reader has used up half of what was fetched, the
 * next window is, twice as large as the last one, up to what the pattern of the file allows; a reader without
 * a stream (random) costs one look into a table and fetches nothing.
 *
 * The table is small and of fixed size; a bucket's idlest stream gives way. Fetching is done by fibers whose
 * number and whose blocks are bounded; when there is no room, read-ahead is left out: nobody waits for it. A
 * fetch that finds everything in the cache makes its stream pause for some windows.
 */
#include "filesystem/fs_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>

#define BUCKETS       128u
#define WAYS          8u
#define FETCHES_MAX   32u
#define FETCH_BLOCKS  128u
#define WINDOW_FIRST  32u /* blocks */
#define WINDOW_STREAM 1024u
#define WINDOW_SHARED 256u
#define NEAR_BLOCKS   64u  /* of a stream that is not sure yet */
#define SLACK_BLOCKS  512u /* of one that is */
#define PAUSE_WINDOWS 8u
#define CACHED_NS     (2 * NSEC_PER_USEC) /* a block: it was not read from a drive */

struct reader {
    uint64_t ino;   /* 0: free */
    uint64_t next;  /* block behind the furthest one that was asked for */
    uint64_t ahead; /* fetched up to here */
    uint32_t window;
    uint32_t pause; /* windows that are not fetched: they are cached */
    uint64_t used;  /* tick */
};

struct fetch {
    struct fs *fs; /* NULL: free */
    uint64_t ino, block;
    uint32_t blocks;
    struct reader *stream;
};

struct fs_streams {
    uint64_t tick;
    uint32_t fetching_blocks, blocks_max;
    struct waitq fetched;
    struct reader streams[BUCKETS][WAYS];
    struct fetch fetches[FETCHES_MAX];
};

int readahead_init(struct fs *fs)
{
    struct fs_streams *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NO_MEMORY;
    uint64_t memory = memory_limit_bytes(reactor_memory(fs->reactor)) / BLOCK_SIZE;
    waitq_init(&s->fetched);
    s->blocks_max = (uint32_t)MIN(memory / 16, FETCHES_MAX * FETCH_BLOCKS);
    fs->streams = s;
    return 0;
}

void readahead_done(struct fs *fs)
{
    if (fs->streams)
        assert(fs->streams->fetching_blocks == 0);
    free(fs->streams);
    fs->streams = NULL;
}

/* ---- Fetching ---- */

static may_yield void fetch_main(void *arg)
{
    struct fetch *f = arg;
    struct fs *fs = f->fs;
    uint64_t began = reactor_clock_ns();
    int r = fs->closing ? ERR_CANCELLED : volume_prefetch(fs->volume, f->ino, f->block, f->blocks);

    if (!r && f->stream->ino == f->ino && reactor_clock_ns() - began < f->blocks * CACHED_NS)
        f->stream->pause = PAUSE_WINDOWS;
    fs->streams->fetching_blocks -= f->blocks;
    f->fs = NULL;
    waitq_wake_all(&fs->streams->fetched);
    fs->background--;
    waitq_wake_all(&fs->background_wait);
}

static bool fetch_start(struct fs *fs, struct reader *s, uint64_t block, uint32_t blocks)
{
    struct fs_streams *t = fs->streams;
    struct fetch *f = t->fetches;

    while (f < t->fetches + FETCHES_MAX && f->fs)
        f++;
    if (f == t->fetches + FETCHES_MAX || t->fetching_blocks + blocks > t->blocks_max || fs->closing)
        return false;
    *f = (struct fetch){.fs = fs, .ino = s->ino, .block = block, .blocks = blocks, .stream = s};
    if (fiber_spawn("readahead", fetch_main, f)) {
        f->fs = NULL;
        return false;
    }
    t->fetching_blocks += blocks;
    fs->background++;
    return true;
}

static bool is_fetching(const struct fs_streams *t, uint64_t ino, uint64_t block, uint32_t blocks)
{
    for (const struct fetch *f = t->fetches; f < t->fetches + FETCHES_MAX; f++)
        if (f->fs && f->ino == ino && f->block < block + blocks && block < f->block + f->blocks)
            return true;
    return false;
}

void readahead_wait(struct fs *fs, uint64_t ino, uint64_t block, uint32_t blocks)
{
    struct fs_streams *t = fs->streams;

    while (t->fetching_blocks > 0 && is_fetching(t, ino, block, blocks))
        if (waitq_wait(&t->fetched, DEADLINE_NEVER))
            return; /* cancelled: the read will say so */
}

/* ---- Streams ---- */

static bool belongs(const struct reader *s, uint64_t block)
{
    uint64_t back = s->window ? SLACK_BLOCKS : NEAR_BLOCKS;
    uint64_t forth = s->window ? MAX(SLACK_BLOCKS, s->window) : NEAR_BLOCKS;

    return block + back >= s->next && block <= s->next + forth;
}

static struct reader *stream_find(struct fs_streams *t, uint64_t ino, uint64_t block, bool *ret_found)
{
    struct reader *bucket = t->streams[hash_mix64(ino) % BUCKETS], *oldest = bucket;

    for (struct reader *s = bucket; s < bucket + WAYS; s++) {
        if (s->ino == ino && belongs(s, block)) {
            *ret_found = true;
            return s;
        }
        if (s->used < oldest->used)
            oldest = s;
    }
    *ret_found = false;
    return oldest;
}

static void advance(struct fs *fs, struct reader *s, uint32_t window_max, uint64_t file_end)
{
    uint64_t from = MAX(s->ahead, s->next);

    if (from >= file_end || from - s->next > s->window / 2)
        return;
    s->window = MIN(MAX(s->window * 2, WINDOW_FIRST), window_max);
    uint64_t to = MIN(from + s->window, file_end);
    if (s->pause > 0) {
        s->pause--;
        s->ahead = to;
        return;
    }
    while (from < to) {
        uint32_t n = (uint32_t)MIN(to - from, FETCH_BLOCKS);
        if (!fetch_start(fs, s, from, n))
            break;
        from += n;
    }
    s->ahead = from;
}

void readahead_follow(struct fs *fs, const struct inode *n, uint64_t block, uint32_t blocks)
{
    struct fs_streams *t = fs->streams;
    uint64_t file_end = DIV_ROUND_UP(n->size, BLOCK_SIZE);
    uint32_t window_max = n->pattern == FS_PATTERN_STREAMING ? WINDOW_STREAM : WINDOW_SHARED;
    bool found;

    if (n->pattern == FS_PATTERN_RANDOM || file_end <= blocks)
        return;
    if (n->flags & INODE_REAPING)
        file_end = MIN(file_end, n->reap_from / BLOCK_SIZE);
    struct reader *s = stream_find(t, n->ino, block, &found);
    s->used = ++t->tick;
    if (!found) {
        *s = (struct reader){.ino = n->ino, .next = block + blocks, .used = t->tick};
        if (block != 0) /* who begins at the beginning will go on */
            return;
        s->ahead = s->next;
        advance(fs, s, window_max, file_end);
        return;
    }
    if (block + blocks > s->next)
        s->next = block + blocks;
    else if (!s->window)
        return; /* the same again, not on */
    advance(fs, s, window_max, file_end);
}
