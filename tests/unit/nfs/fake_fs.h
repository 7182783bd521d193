/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system in memory, for tests of the NFS server: the functions of filesystem/fs.h that it calls, with
 * knobs. Permissions are the plain mode bits. What is written is copied; what is read are fresh pages.
 */
#ifndef ASHLAR_FAKE_FS_H
#define ASHLAR_FAKE_FS_H

#include "filesystem/fs.h"

struct fake_fs_knobs {
    uint64_t delay_ns; /* of each call on the inode slow_ino, or on all where that is 0 */
    uint64_t slow_ino;
    int error; /* returned by every call that changes something; 0: none */
    uint64_t verifier;
    bool case_insensitive;
    bool forgetful; /* fs_reply_find() finds nothing */
};
struct fake_fs_counts {
    uint64_t calls, creates, unlinks, writes, durable_writes, reads, commits;
    uint32_t under_way, most_under_way;
};

/* On the current reactor. id: of its volume. */
struct fs *fake_fs_new(uint8_t id);
void fake_fs_free(struct fs *fs);
struct fake_fs_knobs *fake_fs_knobs(struct fs *fs);
struct fake_fs_counts *fake_fs_counts(struct fs *fs);
/* Without a fiber: makes a file or directory, owned by root. Its number. */
uint64_t fake_fs_add(struct fs *fs, uint64_t dir, const char *name, uint32_t mode, const void *data,
                     size_t len);
/* Moves a directory to another one, as somebody on the server does. */
void fake_fs_move(struct fs *fs, uint64_t from, const char *name, uint64_t to);
const void *fake_fs_data(struct fs *fs, uint64_t ino, size_t *ret_len);

#endif
