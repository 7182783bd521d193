/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/coord_file.h"

#include "runtime/checksum.h"
#include "runtime/error.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* "ashlar-coord 1 crc32c 0123abcd bytes 0000000123\n" */
#define HEADER_FORMAT "ashlar-coord 1 crc32c %08x bytes %010zu\n"
#define HEADER_LEN    48u

/* ---- Table ---- */

void coord_table_done(struct coord_table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->entries[i].key);
        free(t->entries[i].value);
    }
    free(t->entries);
    *t = (struct coord_table){0};
}

/* The first entry whose key is not below. */
static size_t lower_bound(const struct coord_table *t, const char *key)
{
    size_t low = 0, high = t->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strcmp(t->entries[mid].key, key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct coord_entry *coord_table_find(const struct coord_table *t, const char *key)
{
    size_t at = lower_bound(t, key);
    if (at == t->count || strcmp(t->entries[at].key, key) != 0)
        return NULL;
    return &t->entries[at];
}

int coord_table_put(struct coord_table *t, const char *key, const char *value, uint64_t revision,
                    uint64_t lease)
{
    struct coord_entry e = {strdup(key), strdup(value), revision, lease};
    if (e.key == NULL || e.value == NULL) {
        free(e.key);
        free(e.value);
        return ERR_NO_MEMORY;
    }
    size_t at = lower_bound(t, key);
    if (at < t->count && strcmp(t->entries[at].key, key) == 0) {
        free(t->entries[at].key);
        free(t->entries[at].value);
        t->entries[at] = e;
        return 0;
    }
    struct coord_entry *more = realloc(t->entries, (t->count + 1) * sizeof(*more));
    if (more == NULL) {
        free(e.key);
        free(e.value);
        return ERR_NO_MEMORY;
    }
    t->entries = more;
    memmove(more + at + 1, more + at, (t->count - at) * sizeof(*more));
    more[at] = e;
    t->count++;
    return 0;
}

void coord_table_remove(struct coord_table *t, const char *key)
{
    struct coord_entry *e = coord_table_find(t, key);
    if (e == NULL)
        return;
    free(e->key);
    free(e->value);
    size_t at = (size_t)(e - t->entries);
    memmove(e, e + 1, (t->count - at - 1) * sizeof(*e));
    t->count--;
}

int coord_table_copy(const struct coord_table *from, struct coord_table *ret)
{
    struct coord_table t = {.revision = from->revision, .generation = from->generation};
    for (size_t i = 0; i < from->count; i++) {
        const struct coord_entry *e = &from->entries[i];
        int err = coord_table_put(&t, e->key, e->value, e->revision, e->lease);
        if (err != 0) {
            coord_table_done(&t);
            return err;
        }
    }
    *ret = t;
    return 0;
}

/* ---- Bytes ---- */

static json_t *encode_entry(const struct coord_entry *e)
{
    return json_pack("{s:s, s:I, s:s}", "key", e->key, "revision", (json_int_t)e->revision, "value",
                     e->value);
}

static char *encode_body(const struct coord_table *t)
{
    json_t *records = json_array();
    json_t *o = json_pack("{s:I, s:I, s:o}", "generation", (json_int_t)t->generation, "revision",
                          (json_int_t)t->revision, "records", records);
    bool ok = o != NULL;
    for (size_t i = 0; i < t->count && ok; i++)
        if (t->entries[i].lease == 0)
            ok = json_array_append_new(records, encode_entry(&t->entries[i])) == 0;
    char *body = ok ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return body;
}

int coord_file_encode(const struct coord_table *t, char **ret_text, size_t *ret_len)
{
    char *body = encode_body(t);
    if (body == NULL)
        return ERR_INVALID; /* a value that is not UTF-8, or no memory */
    size_t len = strlen(body);
    char *text = malloc(HEADER_LEN + len + 1);
    if (text == NULL || len > COORD_FILE_MAX_BYTES - HEADER_LEN) {
        free(text);
        free(body);
        return ERR_NO_MEMORY;
    }
    int n = snprintf(text, HEADER_LEN + 1, HEADER_FORMAT, crc32c(0, body, len), len);
    assert(n == (int)HEADER_LEN);
    memcpy(text + HEADER_LEN, body, len + 1);
    free(body);
    *ret_text = text;
    *ret_len = HEADER_LEN + len;
    return 0;
}

static bool get_number(const json_t *o, const char *key, uint64_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static int decode_body(const json_t *o, struct coord_table *t)
{
    const json_t *records = json_object_get(o, "records");
    if (!json_is_object(o) || !json_is_array(records) || !get_number(o, "generation", &t->generation) ||
        !get_number(o, "revision", &t->revision) || t->generation == 0)
        return ERR_COORD_CORRUPT;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *r = json_array_get(records, i);
        const char *key = json_string_value(json_object_get(r, "key"));
        const char *value = json_string_value(json_object_get(r, "value"));
        uint64_t revision = 0;
        if (key == NULL || value == NULL || key[0] != '/' || strlen(key) > COORD_KEY_MAX ||
            strlen(value) > COORD_VALUE_MAX || !get_number(r, "revision", &revision) || revision == 0 ||
            revision > t->revision || coord_table_find(t, key) != NULL)
            return ERR_COORD_CORRUPT;
        int err = coord_table_put(t, key, value, revision, 0);
        if (err != 0)
            return err;
    }
    return 0;
}

int coord_file_decode(const char *text, size_t len, struct coord_table *ret)
{
    char header[HEADER_LEN + 1];
    if (len < HEADER_LEN || len > COORD_FILE_MAX_BYTES)
        return ERR_COORD_CORRUPT;
    size_t body_len = len - HEADER_LEN;
    int n = snprintf(header, sizeof(header), HEADER_FORMAT, crc32c(0, text + HEADER_LEN, body_len), body_len);
    if (n != (int)HEADER_LEN || memcmp(header, text, HEADER_LEN) != 0)
        return ERR_COORD_CORRUPT;
    json_error_t error;
    json_t *o = json_loadb(text + HEADER_LEN, body_len, JSON_REJECT_DUPLICATES, &error);
    if (o == NULL)
        return ERR_COORD_CORRUPT;
    struct coord_table t = {0};
    int err = decode_body(o, &t);
    json_decref(o);
    if (err != 0) {
        coord_table_done(&t);
        return err;
    }
    *ret = t;
    return 0;
}
