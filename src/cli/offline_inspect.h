/* SPDX-License-Identifier: Apache-2.0 */
/* ashlar inspect: what its files share. Each view is JSON; text for people is made from it. */
#ifndef ASHLAR_CLI_OFFLINE_INSPECT_H
#define ASHLAR_CLI_OFFLINE_INSPECT_H

#include "cli/offline.h"
#include "volume/inspect.h"

struct inspect {
    struct offline base;
    json_t *view; /* what is shown */
};
static inline struct inspect *inspect_of(struct offline *o)
{
    return CONTAINER_OF(o, struct inspect, base);
}

/* New references; never NULL but when memory is out. */
json_t *inspect_uuid(struct uuid id);
json_t *inspect_number(uint64_t n);
json_t *inspect_pointer(const struct disk_node_pointer *p);

/* offline_inspect_drive.c: one drive's own structures. */
void inspect_drive(struct offline *o, const char *path) may_yield;
/* offline_inspect_blocks.c: what lies where on one drive; see tests/demo/README.md for the form. */
void inspect_blocks(struct offline *o, const char *path) may_yield;
/* offline_inspect_volume.c: structures of one volume. */
void inspect_volume(struct offline *o, const char *name) may_yield;
/* The record of the volume of this name. ERR_VOLUME_NOT_FOUND was said. */
int inspect_volume_find(struct offline *o, const char *name, struct volume_record *ret) MUST_CHECK may_yield;

#endif
