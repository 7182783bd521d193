/* SPDX-License-Identifier: Apache-2.0 */
/* The client: changes blocks with many requests under way on several connections, and reads all of them back.
 */
#ifndef TESTS_CRASH_LOAD_H
#define TESTS_CRASH_LOAD_H

#include "tests/crash/model.h"
#include "tests/crash/server.h"

struct load_counts {
    uint64_t writes; /* acknowledged, of them: */
    uint64_t fua;
    uint64_t zeroes; /* write zeroes and trims, acknowledged */
    uint64_t flushes;
    uint64_t reads;      /* verified while writing */
    uint64_t unanswered; /* requests under way when the server was killed */
    uint64_t bytes_written;
};

/* Writes for run_ns, then kills the server under the load. False if the server gave an error, a wrong
 * content, or died of itself. */
bool load_until_killed(struct server *s, struct model *m, uint64_t run_ns, struct load_counts *counts);

/* Reads the whole volume and compares; *ret_bytes how much. Prints up to ten findings. */
bool load_verify_all(struct server *s, struct model *m, uint64_t *ret_bytes);

#endif
