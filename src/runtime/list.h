/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list; the head is a struct list of its own. */
#ifndef ASHLAR_RUNTIME_LIST_H
#define ASHLAR_RUNTIME_LIST_H

#include "runtime/fiber.h"

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}
static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_insert(struct list *prev, struct list *n)
{
    n->prev = prev;
    n->next = prev->next;
    prev->next->prev = n;
    prev->next = n;
}
static inline void list_append(struct list *head, struct list *n)
{
    list_insert(head->prev, n);
}
static inline void list_prepend(struct list *head, struct list *n)
{
    list_insert(head, n);
}

/* The node is left pointing to itself, so removing twice is harmless. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}
static inline struct list *list_pop(struct list *head)
{
    struct list *n = head->next;
    if (n == head)
        return NULL;
    list_remove(n);
    return n;
}

#define LIST_FOREACH(head, it) for (struct list *it = (head)->next; it != (head); it = it->next)
#define LIST_FOREACH_SAFE(head, it)                                           \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head); \
         it = it##_next, it##_next = it->next)

#endif
