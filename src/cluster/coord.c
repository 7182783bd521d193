/* SPDX-License-Identifier: Apache-2.0 */
/* The gate in front of every coordinator: checks the contract of coord.h. */
#include "cluster/coord.h"

#include "runtime/error.h"

#include <stdlib.h>

void coord_records_free(struct coord_record *records, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(records[i].key);
        free(records[i].value);
    }
    free(records);
}

static bool key_valid(const char *key)
{
    size_t n = strlen(key);
    return key[0] == '/' && n > 1 && n <= COORD_KEY_MAX;
}

int coord_get(struct coord *c, const char *key, char **ret_value, uint64_t *ret_revision)
{
    assert(ret_value != NULL && ret_revision != NULL);
    if (!key_valid(key))
        return ERR_INVALID;
    int err = c->ops->get(c, key, ret_value, ret_revision);
    if (err == 0)
        assert(*ret_revision != 0);
    return err;
}

int coord_list(struct coord *c, const char *prefix, struct coord_record **ret, size_t *ret_count)
{
    assert(ret != NULL && ret_count != NULL);
    return c->ops->list(c, prefix, ret, ret_count);
}

int coord_commit(struct coord *c, const struct coord_change *changes, size_t count, uint64_t *ret_revision)
{
    assert(count > 0 && ret_revision != NULL);
    for (size_t i = 0; i < count; i++) {
        if (!key_valid(changes[i].key) ||
            (changes[i].value != NULL && strlen(changes[i].value) > COORD_VALUE_MAX))
            return ERR_INVALID;
        for (size_t j = 0; j < i; j++)
            if (strcmp(changes[i].key, changes[j].key) == 0)
                return ERR_INVALID;
    }
    return c->ops->commit(c, changes, count, ret_revision);
}

uint64_t coord_generation(const struct coord *c)
{
    return c->ops->generation(c);
}

int coord_watch(struct coord *c, const char *prefix, uint64_t after, uint64_t deadline_ns,
                uint64_t *ret_revision)
{
    int err = c->ops->watch(c, prefix, after, deadline_ns, ret_revision);
    if (err == 0)
        assert(*ret_revision > after);
    return err;
}

int coord_lease_grant(struct coord *c, uint64_t ttl_ns, uint64_t *ret_lease)
{
    assert(ttl_ns > 0);
    return c->ops->lease_grant(c, ttl_ns, ret_lease);
}
int coord_lease_keep(struct coord *c, uint64_t lease)
{
    return c->ops->lease_keep(c, lease);
}
int coord_put_leased(struct coord *c, const char *key, const char *value, uint64_t lease)
{
    if (!key_valid(key) || strlen(value) > COORD_VALUE_MAX)
        return ERR_INVALID;
    return c->ops->put_leased(c, key, value, lease);
}

void coord_tend(struct coord *c)
{
    if (c->ops->tend != NULL)
        c->ops->tend(c);
}

void coord_close(struct coord *c)
{
    c->ops->close(c);
}
