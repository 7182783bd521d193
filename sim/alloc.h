/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the simulator itself. The sweep over allocations lets malloc fail inside of nodes
 * (malloc_wrap.c); what the world and the checker allocate on a node's behalf is exempt. Include it last: it
 * renames.
 */
#ifndef ASHLAR_SIM_ALLOC_H
#define ASHLAR_SIM_ALLOC_H

#include <stdint.h>
#include <stdlib.h>

extern volatile uint32_t
    sim_alloc_exempt; /* > 0: an allocation of the simulator; volatile: malloc looks at it */

static inline void *sim_malloc(size_t n)
{
    sim_alloc_exempt++;
    void *p = malloc(n);
    sim_alloc_exempt--;
    return p;
}
static inline void *sim_calloc(size_t n, size_t size)
{
    sim_alloc_exempt++;
    void *p = calloc(n, size);
    sim_alloc_exempt--;
    return p;
}
static inline void *sim_reallocarray(void *old, size_t n, size_t size)
{
    sim_alloc_exempt++;
    void *p = reallocarray(old, n, size);
    sim_alloc_exempt--;
    return p;
}
#define malloc       sim_malloc
#define calloc       sim_calloc
#define reallocarray sim_reallocarray

#endif
