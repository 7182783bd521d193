/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of `top`: two looks at all counters, and what happened between them. */
#ifndef ASHLAR_CONTROL_TOP_H
#define ASHLAR_CONTROL_TOP_H

#include "control/control_internal.h"

/* Counters of something that was opened anew begin at 0 again. */
static inline uint64_t look_minus(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}
struct histogram look_histogram_minus(const struct histogram *now, const struct histogram *before);

/* The file systems that are open now: malloc'ed. */
struct look_fs;
int look_fs_take(struct node *n, struct look_fs **ret, uint32_t *ret_count) MUST_CHECK may_yield;
json_t *look_fs_json(const struct look_fs *now, uint32_t count, const struct look_fs *before,
                     uint32_t before_count, double seconds);

#endif
