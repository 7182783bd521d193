/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volume's record as JSON text. Strict in both directions: a field that is missing, of another type, out
 * of range or unknown makes the record unreadable, since a compare-and-set by code that dropped a field it
 * did not know would lose it for everyone. 64-bit random numbers are text in hex; JSON's own integers end at
 * 2^63-1, which is enough for epochs.
 */
#include "cluster/record.h"

#include "runtime/error.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define RECORD_VERSION 1

/* ---- Protection ---- */

int protection_parse(const char *text, struct protection *ret)
{
    if (strcmp(text, "none") == 0)
        *ret = (struct protection){PROTECT_NONE, 1, 0};
    else if (strcmp(text, "mirror:2") == 0)
        *ret = (struct protection){PROTECT_MIRROR, 1, 1};
    else if (strcmp(text, "mirror:3") == 0)
        *ret = (struct protection){PROTECT_MIRROR, 1, 2};
    else
        return ERR_BAD_PROTECTION;
    return 0;
}

void protection_format(struct protection p, char out[24])
{
    switch (p.kind) {
    case PROTECT_NONE:
        snprintf(out, 24, "none");
        break;
    case PROTECT_MIRROR:
        snprintf(out, 24, "mirror:%u", p.spare + 1u);
        break;
    case PROTECT_PARITY:
        snprintf(out, 24, "parity:%u+%u", p.data, p.spare);
        break;
    case PROTECT_NESTED_MIRROR:
        snprintf(out, 24, "nested-mirror");
        break;
    case PROTECT_NESTED_PARITY:
        snprintf(out, 24, "nested-parity");
        break;
    }
}

uint32_t protection_system_copies(struct protection p)
{
    return p.spare + 1u;
}

uint32_t protection_tree_copies(struct protection p, uint32_t drives)
{
    if (p.kind == PROTECT_NONE)
        return drives >= 2 ? 2 : 1;
    return p.spare + 1u;
}

/* ---- Encode ---- */

static bool name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > VOLUME_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '/')
            return false;
    return true;
}

static bool record_valid(const struct volume_record *r)
{
    if (uuid_is_none(r->id) || !name_valid(r->name) || r->epoch > INT64_MAX || r->system_runs == 0 ||
        r->system_runs > SYSTEM_RUNS_MAX || r->slab_blocks == 0 || r->member_count > SYSTEM_MEMBERS_MAX)
        return false;
    if (strcmp(r->kind, "block") != 0 && strcmp(r->kind, "fs") != 0)
        return false;
    for (uint32_t i = 0; i < r->member_count; i++) {
        if (uuid_is_none(r->members[i].drive_id))
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (uuid_equal(r->members[i].drive_id, r->members[j].drive_id))
                return false;
    }
    return true;
}

/* JSON objects take ownership of what is set, also on failure. */
static bool set_uuid(json_t *o, const char *key, struct uuid id)
{
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    return json_object_set_new(o, key, json_string(text)) == 0;
}

static json_t *encode_members(const struct volume_record *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < r->member_count; i++) {
        const struct system_member *m = &r->members[i];
        json_t *o = json_object();
        char incarnation[24];
        snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, m->incarnation);
        bool ok = o != NULL && set_uuid(o, "drive", m->drive_id) &&
                  json_object_set_new(o, "incarnation", json_string(incarnation)) == 0 &&
                  json_object_set_new(o, "in_sync", json_boolean(m->in_sync)) == 0 &&
                  json_array_append(list, o) == 0;
        json_decref(o);
        if (!ok) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

int volume_record_encode(const struct volume_record *r, char **ret_text)
{
    if (!record_valid(r))
        return ERR_INVALID;
    char protection[24];
    protection_format(r->protection, protection);
    json_t *o = json_object();
    if (o == NULL)
        return ERR_NO_MEMORY;
    bool ok = json_object_set_new(o, "version", json_integer(RECORD_VERSION)) == 0 &&
              set_uuid(o, "id", r->id) && json_object_set_new(o, "name", json_string(r->name)) == 0 &&
              json_object_set_new(o, "kind", json_string(r->kind)) == 0 &&
              json_object_set_new(o, "protection", json_string(protection)) == 0 &&
              json_object_set_new(o, "epoch", json_integer((json_int_t)r->epoch)) == 0 &&
              set_uuid(o, "owner", r->owner) &&
              json_object_set_new(o, "system_runs", json_integer(r->system_runs)) == 0 &&
              json_object_set_new(o, "slab_blocks", json_integer(r->slab_blocks)) == 0 &&
              json_object_set_new(o, "members", encode_members(r)) == 0 &&
              json_object_set_new(o, "deleted", json_boolean(r->deleted)) == 0 &&
              json_object_set_new(o, "exports", json_string(r->exports)) == 0;
    char *text = ok ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text == NULL)
        return ERR_INVALID; /* a name that is not UTF-8, or no memory */
    *ret_text = text;
    return 0;
}

/* ---- Decode ---- */

static const json_t *field(const json_t *o, const char *key, json_type type)
{
    const json_t *v = json_object_get(o, key);
    return v != NULL && json_typeof(v) == type ? v : NULL;
}

static bool get_text(const json_t *o, const char *key, char *out, size_t size)
{
    const json_t *v = field(o, key, JSON_STRING);
    if (v == NULL || json_string_length(v) >= size || strlen(json_string_value(v)) != json_string_length(v))
        return false;
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return true;
}

static bool get_number(const json_t *o, const char *key, uint64_t max, uint64_t *out)
{
    const json_t *v = field(o, key, JSON_INTEGER);
    if (v == NULL || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static bool get_bool(const json_t *o, const char *key, bool *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_boolean(v))
        return false;
    *out = json_is_true(v);
    return true;
}

static bool get_uuid(const json_t *o, const char *key, struct uuid *out)
{
    char text[UUID_TEXT_SIZE];
    return get_text(o, key, text, sizeof(text)) && uuid_parse(text, out) == 0;
}

static bool get_hex64(const json_t *o, const char *key, uint64_t *out)
{
    char text[17];
    if (!get_text(o, key, text, sizeof(text)) || strlen(text) != 16)
        return false;
    for (int i = 0; i < 16; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

static bool decode_members(const json_t *o, struct volume_record *r)
{
    const json_t *list = field(o, "members", JSON_ARRAY);
    if (list == NULL || json_array_size(list) > SYSTEM_MEMBERS_MAX)
        return false;
    r->member_count = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < r->member_count; i++) {
        const json_t *m = json_array_get(list, i);
        if (!json_is_object(m) || json_object_size(m) != 3 ||
            !get_uuid(m, "drive", &r->members[i].drive_id) ||
            !get_hex64(m, "incarnation", &r->members[i].incarnation) ||
            !get_bool(m, "in_sync", &r->members[i].in_sync))
            return false;
    }
    return true;
}

static bool decode_fields(const json_t *o, struct volume_record *r)
{
    char protection[24];
    uint64_t version = 0, runs = 0, slab_blocks = 0;
    if (!json_is_object(o) || json_object_size(o) != 12 ||
        !get_number(o, "version", RECORD_VERSION, &version) || version != RECORD_VERSION)
        return false;
    if (!get_uuid(o, "id", &r->id) || !get_text(o, "name", r->name, sizeof(r->name)) ||
        !get_text(o, "kind", r->kind, sizeof(r->kind)) ||
        !get_text(o, "protection", protection, sizeof(protection)) ||
        !get_number(o, "epoch", INT64_MAX, &r->epoch) || !get_uuid(o, "owner", &r->owner) ||
        !get_number(o, "system_runs", SYSTEM_RUNS_MAX, &runs) ||
        !get_number(o, "slab_blocks", UINT32_MAX, &slab_blocks) || !get_bool(o, "deleted", &r->deleted) ||
        !get_text(o, "exports", r->exports, sizeof(r->exports)) || !decode_members(o, r))
        return false;
    r->system_runs = (uint32_t)runs;
    r->slab_blocks = (uint32_t)slab_blocks;
    return protection_parse(protection, &r->protection) == 0;
}

int volume_record_decode(const char *text, uint64_t revision, struct volume_record *ret)
{
    struct volume_record r = {.revision = revision};
    json_error_t error;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    bool ok = o != NULL && decode_fields(o, &r) && record_valid(&r);
    json_decref(o);
    if (!ok)
        return ERR_COORD_CORRUPT;
    *ret = r;
    return 0;
}

/* ---- In the coordinator ---- */

void volume_record_key(struct uuid id, char out[VOLUME_KEY_SIZE])
{
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    snprintf(out, VOLUME_KEY_SIZE, "/volumes/%s", text);
}

int volume_record_load(struct coord *c, struct uuid id, struct volume_record *ret)
{
    char key[VOLUME_KEY_SIZE];
    volume_record_key(id, key);
    char *text;
    uint64_t revision;
    int err = coord_get(c, key, &text, &revision);
    if (err != 0)
        return err;
    struct volume_record r;
    err = volume_record_decode(text, revision, &r);
    free(text);
    /* A record under another volume's key would fence and write the wrong slabs. */
    if (err == 0 && !uuid_equal(r.id, id))
        err = ERR_COORD_CORRUPT;
    if (err == 0)
        *ret = r;
    return err;
}

int volume_record_store(struct coord *c, struct volume_record *r)
{
    char key[VOLUME_KEY_SIZE];
    volume_record_key(r->id, key);
    char *text;
    int err = volume_record_encode(r, &text);
    if (err != 0)
        return err;
    struct coord_change change = {.key = key, .if_revision = r->revision, .value = text};
    uint64_t revision;
    err = coord_commit(c, &change, 1, &revision);
    free(text);
    if (err == 0)
        r->revision = revision;
    return err;
}
