/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole-file-system consistency: names against inodes, link counts, sizes of directories, extents against
 * inodes, orphans, quotas. For `ashlar check`, `ashlar fs check`, tests and the simulator. Reads the head
 * tree only; that its blocks agree with the allocator is volume_verify()'s, that data is right is scrub's.
 */
#ifndef ASHLAR_FILESYSTEM_VERIFY_H
#define ASHLAR_FILESYSTEM_VERIFY_H

#include "filesystem/fs_format.h"
#include "volume/volume.h"

/* X(NAME, "its name", what repair does) */
#define FS_FINDINGS(X)                                                                                \
    X(NO_FS_ITEM, "no-fs-item", "nothing: the file system cannot be opened")                          \
    X(ITEM_BAD, "item-bad", "the item is removed; what it named goes to lost+found")                  \
    X(ITEM_UNKNOWN, "item-unknown", "nothing: a newer version may know it")                           \
    X(ITEMS_WITHOUT_INODE, "items-without-inode",                                                     \
      "an inode is made for them in lost+found, readable by root alone")                              \
    X(INODE_NUMBER, "inode-number", "the counter of inode numbers is raised")                         \
    X(NAME_DANGLING, "name-dangling", "the name is removed")                                          \
    X(NAME_TYPE, "name-type", "the name is given the type and generation of its inode")               \
    X(NAME_PLACE, "name-place", "the name is moved to where it is looked for")                        \
    X(LINK_COUNT, "link-count", "it is set to the number of names")                                   \
    X(NO_NAME, "no-name", "it is given a name in lost+found")                                         \
    X(DIRECTORY_NAMES, "directory-names", "it keeps the name in the directory that it says it is in") \
    X(DIRECTORY_PARENT, "directory-parent", "it is set to the directory that has its name")           \
    X(DIRECTORY_LOOP, "directory-loop", "one of the loop is given a name in lost+found")              \
    X(DIRECTORY_SIZE, "directory-size", "the counts are set to what is there")                        \
    X(ORPHAN_NAMED, "orphan-named", "it is taken off the list of orphans")                            \
    X(ORPHAN_GONE, "orphan-gone", "it is taken off the list of orphans")                              \
    X(DATA_OF_OTHER_TYPE, "data-of-other-type", "the data is removed")                                \
    X(EXTENT_OVERLAP, "extent-overlap",                                                               \
      "nothing: which one is right cannot be told; copy the file and delete it")                      \
    X(BLOCK_COUNT, "block-count", "it is set to the blocks that are there")                           \
    X(QUOTA_USAGE, "quota-usage", "it is set to what is counted")                                     \
    X(QUOTA_PARENT, "quota-parent", "it is counted for no other quota")                               \
    X(QUOTA_OF_INODE, "quota-of-inode", "it is counted for no quota")

enum fs_finding_kind {
#define X(name, text, repair) FS_FINDING_##name,
    FS_FINDINGS(X)
#undef X
        FS_FINDING_COUNT
};
const char *fs_finding_name(enum fs_finding_kind kind);
const char *fs_finding_repair(enum fs_finding_kind kind);

struct fs_finding {
    enum fs_finding_kind kind;
    uint64_t ino;         /* whose; of names: the directory */
    uint64_t child;       /* of names: what it names; DIRECTORY_PARENT: the right one */
    uint64_t number;      /* the right value of a count; ITEMS_WITHOUT_INODE: where its last extent ends */
    uint64_t other;       /* DIRECTORY_SIZE: the right count of subdirectories; QUOTA_USAGE: of inodes;
                           * ITEMS_WITHOUT_INODE: of       names in it */
    uint8_t item_type;    /* ITEM_BAD */
    uint64_t item_offset; /* the same; of names: the cookie */
};

struct fs_verify {
    /* Each inconsistency, once, with a sentence for people. May yield. NULL: only counted. */
    void (*found)(void *ctx, const struct fs_finding *f, const char *sentence);
    void *ctx;
    uint64_t problems;
    uint64_t inodes, names, extents; /* seen */
};

/* v: an open volume of a file system; nothing changes it meanwhile. 0 even if there are problems; an error
 * when it could not look (memory, an unreadable node). */
int fs_verify(struct volume *v, struct fs_verify *r) MUST_CHECK may_yield;

/* Mends what fs_verify() finds, until it finds nothing more, or only what it does not mend. Every repair is
 * told as a finding before it is made. The file system is not open (no struct fs). *ret_repaired: how many.
 */
int fs_repair(struct volume *v, struct fs_verify *r, uint64_t *ret_repaired) MUST_CHECK may_yield;

#endif
