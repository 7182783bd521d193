/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/fuse/fuse_table.h"

#include <stdlib.h>

#define SIZE_MIN 64u

static uint32_t slot(const struct fuse_table *t, uint64_t ino)
{
    return (uint32_t)((ino * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (t->size - 1);
}

void fuse_table_done(struct fuse_table *t)
{
    for (uint32_t i = 0; i < t->size; i++) {
        for (struct fuse_node *n = t->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            free(n);
        }
    }
    free(t->buckets);
    *t = (struct fuse_table){0};
}

struct fuse_node *fuse_table_find(const struct fuse_table *t, uint64_t ino)
{
    if (t->size == 0)
        return NULL;
    struct fuse_node *n = t->buckets[slot(t, ino)];
    while (n != NULL && n->ino != ino)
        n = n->next;
    return n;
}

static bool resize(struct fuse_table *t, uint32_t size)
{
    struct fuse_table bigger = {.size = size, .count = t->count};
    bigger.buckets = calloc(size, sizeof(*bigger.buckets));
    if (bigger.buckets == NULL)
        return false;
    for (uint32_t i = 0; i < t->size; i++) {
        for (struct fuse_node *n = t->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            struct fuse_node **head = &bigger.buckets[slot(&bigger, n->ino)];
            n->next = *head;
            *head = n;
        }
    }
    free(t->buckets);
    *t = bigger;
    return true;
}

struct fuse_node *fuse_table_get(struct fuse_table *t, uint64_t ino)
{
    struct fuse_node *n = fuse_table_find(t, ino);
    if (n != NULL)
        return n;
    if (t->count >= t->size && t->size < (1u << 30) && !resize(t, MAX(t->size * 2, SIZE_MIN)) && t->size == 0)
        return NULL;
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return NULL;
    n->ino = ino;
    struct fuse_node **head = &t->buckets[slot(t, ino)];
    n->next = *head;
    *head = n;
    t->count++;
    return n;
}

bool fuse_node_is_open(const struct fuse_node *n)
{
    return n->opens[1] != 0 || n->opens[2] != 0 || n->opens[3] != 0;
}

void fuse_table_drop(struct fuse_table *t, struct fuse_node *n)
{
    if (n->lookups != 0 || fuse_node_is_open(n))
        return;
    struct fuse_node **at = &t->buckets[slot(t, n->ino)];
    while (*at != n) {
        assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = n->next;
    t->count--;
    free(n);
}
