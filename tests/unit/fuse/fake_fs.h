/* SPDX-License-Identifier: Apache-2.0 */
/* A file system in memory behind fs.h, for tests of protocols: names, data, attributes, opens, recent
 * replies, whole-file locks, watches. It checks no permissions and counts what is asked of it. */
#ifndef ASHLAR_FAKE_FS_H
#define ASHLAR_FAKE_FS_H

#include "filesystem/fs.h"

struct fake_fs_options {
    uint64_t delay_ns; /* each call that may yield takes so long */
};

struct fs *fake_fs_new(const struct fake_fs_options *o);
void fake_fs_free(struct fs *fs);
/* As if it was closed and opened again: opens are forgotten, orphans stay. */
void fake_fs_restart(struct fs *fs);

uint32_t fake_fs_opens(const struct fs *fs);   /* fs_open_get() without fs_open_put() */
uint32_t fake_fs_locks(const struct fs *fs);   /* held */
uint32_t fake_fs_inodes(const struct fs *fs);  /* the root and orphans too */
uint32_t fake_fs_creates(const struct fs *fs); /* fs_create() that made something */
uint32_t fake_fs_watches(const struct fs *fs);
/* Somebody else changes it: watchers are told. */
void fake_fs_touch(struct fs *fs, uint64_t ino, bool data);

#endif
