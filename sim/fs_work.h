/* SPDX-License-Identifier: Apache-2.0 */
/* File systems in the simulator: what target_volume.c and fs_workload.c share. */
#ifndef ASHLAR_SIM_FS_WORK_H
#define ASHLAR_SIM_FS_WORK_H

#include "filesystem/fs.h"
#include "sim/seed.h"

/* Of the living process. */
struct fs *fs_work_of(struct seed *s);
/* A client's directory in the root. */
void fs_work_directory(uint32_t client, char out[24]);

/* The clients of a file system, in the place of those of a block device. */
extern const struct sim_work_ops fs_work_ops;

#endif
