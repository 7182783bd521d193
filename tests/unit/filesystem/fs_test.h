/* SPDX-License-Identifier: Apache-2.0 */
/* A file system on a small pool, with short calls for tests of names and attributes. Every call here is a
 * request of the user `t->cred`. */
#ifndef ASHLAR_FS_TEST_H
#define ASHLAR_FS_TEST_H

#include "../volume/volume_test.h"
#include "filesystem/names_internal.h"

#include <dirent.h>
#include <sys/stat.h>

struct fs_test {
    struct pool pool;
    struct uuid id;
    struct volume *v;
    struct fs *fs;
    struct fs_request rq;
    struct fs_attr at;    /* of the last call that returned some */
    struct fs_wcc wcc;    /* of the last call that returned one */
    struct fs_wcc wcc_to; /* of the last rename */
};

/* A new volume with a file system in it; open. */
bool fs_test_start(struct fs_test *t, bool case_insensitive) may_yield;
void fs_test_open(struct fs_test *t) may_yield;
void fs_test_close(struct fs_test *t) may_yield;
/* Stops as a killed process does, and opens again. */
void fs_test_crash(struct fs_test *t) may_yield;
/* Names and inodes, link counts, quotas agree; trees and space agree; then it ends. */
void fs_test_end(struct fs_test *t) may_yield;
bool fs_test_consistent(struct fs_test *t) may_yield;
/* Waits until the reaper has nothing to do. */
bool fs_test_reaped(struct fs_test *t) may_yield;

void as_user(struct fs_test *t, uint32_t uid, uint32_t gid);
static inline void as_root(struct fs_test *t)
{
    as_user(t, 0, 0);
}
void with_group(struct fs_test *t, uint32_t gid);

int make(struct fs_test *t, enum fs_type type, uint64_t dir, const char *name, uint32_t mode, uint64_t *ret)
    may_yield;
/* That must succeed. */
uint64_t file(struct fs_test *t, uint64_t dir, const char *name, uint32_t mode) may_yield;
uint64_t folder(struct fs_test *t, uint64_t dir, const char *name, uint32_t mode) may_yield;
int look(struct fs_test *t, uint64_t dir, const char *name, uint64_t *ret) may_yield;
/* 0: no such name. */
uint64_t ino_of(struct fs_test *t, uint64_t dir, const char *name) may_yield;
int ln(struct fs_test *t, uint64_t ino, uint64_t dir, const char *name) may_yield;
int rm(struct fs_test *t, uint64_t dir, const char *name) may_yield;
int rm_dir(struct fs_test *t, uint64_t dir, const char *name) may_yield;
int mv(struct fs_test *t, uint64_t from_dir, const char *from, uint64_t to_dir, const char *to,
       uint32_t flags) may_yield;
int set(struct fs_test *t, uint64_t ino, struct fs_setattr s) may_yield;
int ch_mode(struct fs_test *t, uint64_t ino, uint32_t mode) may_yield;
int ch_own(struct fs_test *t, uint64_t ino, uint32_t uid, uint32_t gid) may_yield;
/* -1: keep. */
#define KEEP UINT32_MAX
struct fs_attr attr_of(struct fs_test *t, uint64_t ino) may_yield;
int may(struct fs_test *t, uint64_t ino, uint32_t wanted) may_yield; /* 0 or ERR_FS_ACCESS */
/* Writes len bytes at the beginning. */
int fill(struct fs_test *t, uint64_t ino, uint64_t len) may_yield;

/* All names of a directory, `at_once` a call, in the order in which they come. */
struct listing {
    uint32_t count, calls, max;
    bool attributes;
    struct listed {
        uint64_t ino, cookie;
        char name[FS_NAME_MAX + 1];
        bool has_attr;
        uint8_t type;
    } * names;
};
int list_all(struct fs_test *t, uint64_t dir, uint32_t at_once, bool attributes, struct listing *ret)
    may_yield;
bool list_emit_for_tests(void *ctx, const struct fs_dirent *e); /* until l->max names were taken */
void listing_free(struct listing *l);
const struct listed *listing_find(const struct listing *l, const char *name);

/* In a fiber: a fresh file system, the body, checks, the end. */
void fs_test_run(void (*body)(struct fs_test *t));
void fs_test_run_insensitive(void (*body)(struct fs_test *t));

#endif
