/* SPDX-License-Identifier: Apache-2.0 */
/* The linker sends the program's calls of malloc and the like here (--wrap); those inside of shared libraries
 * are not affected. */
#include "sim/world.h"

#include <stddef.h>

/* The linker gives these names. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t n);
void *__real_reallocarray(void *old, size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t n);
void *__wrap_reallocarray(void *old, size_t n, size_t size);

void *__wrap_malloc(size_t n)
{
    return sim_malloc_fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return sim_malloc_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t n)
{
    return sim_malloc_fails() ? NULL : __real_realloc(old, n);
}

void *__wrap_reallocarray(void *old, size_t n, size_t size)
{
    return sim_malloc_fails() ? NULL : __real_reallocarray(old, n, size);
}
