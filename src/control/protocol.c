/* SPDX-License-Identifier: Apache-2.0 */
#include "control/protocol.h"

#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void control_error_set(struct control_error *e, int err, const char *hint, const char *fmt, ...)
{
    assert(err < 0);
    snprintf(e->code, sizeof(e->code), "%s", error_name(err));
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    snprintf(e->hint, sizeof(e->hint), "%s", hint != NULL ? hint : "");
}

/* jansson recurses once a level, and we run on a fiber's small stack: the depth is bounded before it sees the
 * text. Brackets inside of strings count for nothing. */
static bool nesting_is_bounded(const char *text, size_t len)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > CONTROL_DEPTH_MAX)
                return false;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return true;
}

int control_request_parse(const char *line, size_t len, json_t **ret_request, struct control_error *e)
{
    static const char hint[] = "Send one JSON object a line, as {\"cmd\": \"status\"}.";
    if (len > CONTROL_LINE_MAX || !nesting_is_bounded(line, len)) {
        control_error_set(e, ERR_CONTROL_REQUEST, hint, "the request is too long or too deeply nested");
        return ERR_CONTROL_REQUEST;
    }
    json_error_t where;
    json_t *request = json_loadb(line, len, JSON_REJECT_DUPLICATES, &where);
    if (request == NULL) {
        control_error_set(e, ERR_CONTROL_REQUEST, hint, "the request is not JSON: %s", where.text);
        return ERR_CONTROL_REQUEST;
    }
    if (!json_is_object(request) || !json_is_string(json_object_get(request, "cmd"))) {
        json_decref(request);
        control_error_set(e, ERR_CONTROL_REQUEST, hint, "the request is not an object with a string \"cmd\"");
        return ERR_CONTROL_REQUEST;
    }
    *ret_request = request;
    return 0;
}

static const struct control_arg *arg_find(const struct control_arg *args, const char *name)
{
    for (const struct control_arg *a = args; a != NULL && a->name != NULL; a++)
        if (strcmp(a->name, name) == 0)
            return a;
    return NULL;
}

static bool string_fits(const json_t *value, uint64_t max)
{
    return json_is_string(value) && json_string_length(value) > 0 && json_string_length(value) <= max;
}

static int arg_check(const struct control_arg *a, const json_t *value, struct control_error *e)
{
    const char *expected = NULL;
    switch (a->type) {
    case CONTROL_STRING:
        if (!string_fits(value, a->max))
            expected = "a text that is not empty";
        break;
    case CONTROL_UINT:
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (uint64_t)json_integer_value(value) > a->max)
            expected = "a whole number, not negative";
        break;
    case CONTROL_BOOL:
        if (!json_is_boolean(value))
            expected = "true or false";
        break;
    case CONTROL_STRINGS:
        if (!json_is_array(value) || json_array_size(value) > CONTROL_LIST_MAX) {
            expected = "a list of texts";
            break;
        }
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!string_fits(json_array_get(value, i), a->max))
                expected = "a list of texts that are not empty";
        break;
    }
    if (expected == NULL)
        return 0;
    control_error_set(e, ERR_CONTROL_REQUEST, "", "\"%s\" must be %s, at most %llu", a->name, expected,
                      (unsigned long long)a->max);
    return ERR_CONTROL_REQUEST;
}

int control_args_check(const json_t *request, const struct control_arg *args, struct control_error *e)
{
    assert(json_is_object(request));
    for (const struct control_arg *a = args; a != NULL && a->name != NULL; a++) {
        if (a->required && json_object_get(request, a->name) == NULL) {
            control_error_set(e, ERR_CONTROL_REQUEST, "", "the argument \"%s\" is missing", a->name);
            return ERR_CONTROL_REQUEST;
        }
    }
    const char *key;
    json_t *value;
    /* jansson's iterator wants a mutable object, but only reads it. */
    json_t *object = (json_t *)(uintptr_t)request;
    json_object_foreach(object, key, value)
    {
        if (strcmp(key, "cmd") == 0)
            continue;
        const struct control_arg *a = arg_find(args, key);
        if (a == NULL) {
            control_error_set(e, ERR_CONTROL_REQUEST, "", "there is no argument \"%.60s\"", key);
            return ERR_CONTROL_REQUEST;
        }
        int r = arg_check(a, value, e);
        if (r < 0)
            return r;
    }
    return 0;
}

const char *control_arg_string(const json_t *request, const char *name, const char *otherwise)
{
    const json_t *value = json_object_get(request, name);
    return value != NULL ? json_string_value(value) : otherwise;
}

uint64_t control_arg_uint(const json_t *request, const char *name, uint64_t otherwise)
{
    const json_t *value = json_object_get(request, name);
    return value != NULL ? (uint64_t)json_integer_value(value) : otherwise;
}

bool control_arg_bool(const json_t *request, const char *name)
{
    return json_is_true(json_object_get(request, name));
}

/* jansson has no way to append a newline without a second copy; replies are small. */
static char *encode_line(json_t *object)
{
    if (object == NULL)
        return NULL;
    char *text = json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(object);
    if (text == NULL)
        return NULL;
    size_t len = strlen(text);
    char *line = realloc(text, len + 2);
    if (line == NULL) {
        free(text);
        return NULL;
    }
    line[len] = '\n';
    line[len + 1] = '\0';
    return line;
}

char *control_line_encode(const char *key, json_t *value)
{
    return encode_line(json_pack("{so}", key, value));
}

char *control_result_encode(json_t *result)
{
    return encode_line(json_pack("{sbso}", "ok", 1, "result", result != NULL ? result : json_null()));
}

json_t *control_text(const char *text)
{
    json_t *value = json_string(text);
    if (value != NULL)
        return value;
    /* Not UTF-8: a path of other bytes, or a sentence cut in the middle of a character. */
    char *copy = strdup(text);
    if (copy == NULL)
        return NULL;
    for (char *p = copy; *p != '\0'; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    value = json_string(copy);
    free(copy);
    return value;
}

char *control_error_encode(const struct control_error *e)
{
    json_t *error = json_pack("{soso}", "code", control_text(e->code), "text", control_text(e->text));
    if (error != NULL && e->hint[0] != '\0')
        json_object_set_new(error, "hint", control_text(e->hint));
    return encode_line(json_pack("{sbso}", "ok", 0, "error", error));
}
