/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The offline tools: what `ashlar check` and `ashlar inspect` share. They open a stopped pool with the
 * ordinary code on a world that writes nothing (runtime/world_overlay.h).
 */
#ifndef ASHLAR_CLI_OFFLINE_H
#define ASHLAR_CLI_OFFLINE_H

#include "cli/cli.h"
#include "control/node.h"
#include "runtime/world_overlay.h"

#define OFFLINE_CLEAN  0
#define OFFLINE_DAMAGE 1
#define OFFLINE_FAILED 2 /* could not look */

struct offline {
    struct cli *c;
    char dir[NODE_PATH_MAX];
    int lock_fd;
    struct memory_budget budget;
    struct world_overlay *overlay;
    struct reactor *reactor;
    struct node node;
    bool creating;            /* the pool's first start was interrupted: nothing is in it yet */
    int result;               /* OFFLINE_… */
    json_t *problems, *notes; /* arrays of {"about", "name", "text"} */
    void (*body)(struct offline *o);
};

/* dir is a node's folder, or something else: then o->dir is "". Locks the folder, makes a reactor on the
 * overlay with the memory of --memory, runs body(o) on a fiber there, and takes everything down. Returns
 * OFFLINE_FAILED after it said why on c->err, else o->result. */
int offline_run(struct offline *o, struct cli *c, const char *dir, void (*body)(struct offline *o))
    MUST_CHECK;

/* Says on c->err why it cannot look; sets o->result, and returns OFFLINE_FAILED. */
int offline_fail(struct offline *o, const char *hint, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Something is damaged: one sentence, and what to do. about: "pool", "drive", "volume". */
void offline_problem(struct offline *o, const char *about, const char *name, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Worth telling, not damage. */
void offline_note(struct offline *o, const char *about, const char *name, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* Coordination file and identity; o->node.coord is open afterwards unless it was damaged, which is a problem:
 * then ERR_COORD_CORRUPT. Other errors were said. */
int offline_records_open(struct offline *o) MUST_CHECK may_yield;
/* The node's drives, on the overlay. Drives that are missing or refused are problems. Errors were said. */
int offline_drives_open(struct offline *o) MUST_CHECK may_yield;
void offline_close(struct offline *o) may_yield;

/* offline_check_copies.c: roots and log of one volume, before it is opened. */
void offline_copies_check(struct offline *o, const char *name, const struct volume_env *env, struct uuid id)
    may_yield;

#endif
