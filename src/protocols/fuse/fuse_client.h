/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE, the mount process's side: a file system of the node, mounted on this machine. It knows neither
 * reactors nor file systems, only the wire, the kernel and libfuse.
 */
#ifndef ASHLAR_PROTOCOLS_FUSE_CLIENT_H
#define ASHLAR_PROTOCOLS_FUSE_CLIENT_H

#include "runtime/base.h"

#include <stdio.h>

#define FUSE_CLIENT_EXTRA_MAX 512u

struct fuse_mount_options {
    const char *socket; /* the node's fs.sock */
    const char *name;   /* of the file system */
    const char *dir;
    bool foreground;
    bool allow_other; /* users beside the one who mounts; default_permissions holds in any case */
    bool writeback;   /* the kernel keeps writes for a while; only coherent while nobody else writes */
    uint32_t attr_timeout_ms, entry_timeout_ms;
    uint32_t wait_ms;                  /* for the node and the file system to be there; 0: they must be */
    char extra[FUSE_CLIENT_EXTRA_MAX]; /* mount options for the kernel, comma-separated, or "" */
};

/* As in fstab: "ro,nosuid,socket=/x,writeback,_netdev". Sets what it knows, keeps those of the kernel, and
 * passes over those that only mount(8) and systemd care about. ERR_INVALID with the bad one in bad. */
int fuse_mount_options_add(struct fuse_mount_options *o, const char *text, char *bad, size_t bad_size)
    MUST_CHECK;

/* Mounts and serves until it is unmounted. In the background unless o->foreground: then it returns in the
 * caller's process when the mount is there. 0, or after it said on err what is wrong, 1. */
int fuse_client_mount(const struct fuse_mount_options *o, FILE *err);

/* force: requests under way fail; lazy: it goes when nobody uses it any more. Never waits for the node. 0, or
 * after it said on err what is wrong, 1. */
int fuse_client_unmount(const char *dir, bool force, bool lazy, FILE *err);

/* A mount of ours is there, alive or dead. False also where that cannot be told. */
bool fuse_client_mounted(const char *dir);

#endif
