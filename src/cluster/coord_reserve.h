/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for the coordinator's file on a full file system: a file beside it that holds some space and gives way
 * when a change finds none. Without it a host that something else filled could neither start the node (a new
 * owner raises the epoch) nor delete a volume, which is what would make room.
 */
#ifndef ASHLAR_CLUSTER_COORD_RESERVE_H
#define ASHLAR_CLUSTER_COORD_RESERVE_H

#include "runtime/world.h"

/* Enough for both files of some thousand records, each once more. */
#define COORD_RESERVE_MIN_BYTES (256 * KIB)

struct coord_reserve {
    char *path;
    uint64_t size_bytes; /* 0: it is not there */
    bool told;           /* that it could not be made */
};

/* Beside the file at path. ERR_NO_MEMORY. Looks what is there. */
int coord_reserve_init(struct coord_reserve *v, const char *path) MUST_CHECK may_yield;
void coord_reserve_done(struct coord_reserve *v);
/* Made (again) if it is not there, or small for a file of this size; tells once if there is no room. */
void coord_reserve_keep(struct coord_reserve *v, uint64_t file_bytes) may_yield;
/* Gives the space back; false: there was none, or it could not be removed. */
bool coord_reserve_give(struct coord_reserve *v) may_yield;
/* Of a write: the file system (or the quota) is full. */
bool coord_reserve_wanted(int err);

#endif
