/* SPDX-License-Identifier: Apache-2.0 */
/* A token bucket in bytes for background work (scrub, repair), so that clients keep their share. */
#ifndef ASHLAR_PROTECT_THROTTLE_H
#define ASHLAR_PROTECT_THROTTLE_H

#include "runtime/world.h"

struct throttle {
    uint64_t rate_bytes_per_s; /* 0: no limit */
    uint64_t burst_bytes;
    uint64_t tokens;
    uint64_t refilled_ns;
};
void throttle_init(struct throttle *t, uint64_t rate_bytes_per_s, uint64_t burst_bytes);
/* Waits until len bytes may pass. 0 or ERR_CANCELLED. */
int throttle_take(struct throttle *t, uint64_t len) MUST_CHECK may_yield;

#endif
