/* SPDX-License-Identifier: Apache-2.0 */
/* A file system on a small pool, and a file beside a model of it in memory, for tests of files' data. */
#ifndef ASHLAR_DATA_TEST_H
#define ASHLAR_DATA_TEST_H

#include "../volume/volume_test.h"
#include "filesystem/fs_internal.h"

struct data_test {
    struct pool pool;
    struct uuid id;
    struct volume *v;
    struct fs *fs;
    uint64_t next_ino;
};

/* A new volume with a file system in it; open. */
bool data_start(struct data_test *t, const char *protection) may_yield;
bool data_open(struct data_test *t) may_yield;
void data_close(struct data_test *t) may_yield;
/* Stops as a killed process does: what was acknowledged stays, nothing else is written. */
void data_crash(struct data_test *t) may_yield;
/* Ends it: the trees and the space agree. */
void data_end(struct data_test *t) may_yield;

extern const struct fs_request data_request, data_durable;

/* An inode without a name in any directory, with one link. */
uint64_t data_make(struct data_test *t, uint64_t quota) may_yield;
/* Its last name goes. */
int data_remove(struct data_test *t, uint64_t ino) may_yield;
int data_truncate(struct data_test *t, const struct fs_request *rq, uint64_t ino, uint64_t size) may_yield;
int data_inode(struct data_test *t, uint64_t ino, struct inode *ret) may_yield;
/* Any number of bytes, in pieces; pages in runs of their own now and then. */
int data_write(struct data_test *t, const struct fs_request *rq, uint64_t ino, uint64_t offset,
               const uint8_t *bytes, uint64_t len, uint32_t flags) may_yield;
/* *ret_len: bytes that were read. */
int data_read(struct data_test *t, uint64_t ino, uint64_t offset, uint8_t *bytes, uint64_t len,
              uint64_t *ret_len) may_yield;
/* Waits until no orphan is left. */
bool data_reaped(struct data_test *t) may_yield;
/* The inode's blocks are those that its extents hold, and its flags fit. */
bool data_agrees(struct data_test *t, uint64_t ino) may_yield;

struct model {
    uint64_t ino, size;
    uint8_t *bytes; /* MODEL_MAX, zeroes behind size */
};
#define MODEL_MAX (2 * MIB)
void model_write(struct model *m, uint64_t offset, const uint8_t *bytes, uint64_t len);
void model_truncate(struct model *m, uint64_t size);
void model_zero(struct model *m, uint64_t offset, uint64_t len);
/* A range of the file is that of the model. */
bool model_holds(struct data_test *t, const struct model *m, uint64_t offset, uint64_t len) may_yield;

static inline uint64_t draw(uint64_t *rng, uint64_t below)
{
    *rng = hash_mix64(*rng + UINT64_C(0x9e3779b97f4a7c15));
    return (*rng >> 11) % below;
}

#endif
