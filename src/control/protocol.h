/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's language. A client sends one JSON object a line,
 *
 *     {"cmd": "volume-create", "name": "v1", "size_bytes": 1073741824, "protection": "mirror:2"}
 *
 * and gets any number of lines with news of the work ({"progress": …}, {"sample": …}, {"event": …}), then
 * exactly one last line:
 *
 *     {"ok": true, "result": …}
 *     {"ok": false, "error": {"code": "VOLUME_NOT_FOUND", "text": "…", "hint": "…"}}
 *
 * Requests of one connection are served one after the other. This header is the pure part: parsing and
 * checking of requests against a command's arguments, and the last line. Input is untrusted.
 */
#ifndef ASHLAR_CONTROL_PROTOCOL_H
#define ASHLAR_CONTROL_PROTOCOL_H

#include "runtime/base.h"

#include <jansson.h>

#define CONTROL_LINE_MAX   (64u * 1024) /* bytes of a request without its newline */
#define CONTROL_REPLY_MAX  (64u << 20)  /* a client gives up on longer lines */
#define CONTROL_DEPTH_MAX  6            /* nesting of a request; the parser recurses on a fiber's stack */
#define CONTROL_LIST_MAX   64           /* strings of a list argument */
#define CONTROL_ERROR_TEXT 400

struct control_error {
    char code[40]; /* error_name(): a stable word for programs */
    char text[CONTROL_ERROR_TEXT];
    char hint[CONTROL_ERROR_TEXT]; /* what to do; may be "" */
};

enum control_arg_type { CONTROL_STRING, CONTROL_UINT, CONTROL_BOOL, CONTROL_STRINGS };
struct control_arg {
    const char *name; /* NULL ends a table */
    enum control_arg_type type;
    bool required;
    uint64_t max; /* bytes of a string (each one of a list), or the value of a number */
};

void control_error_set(struct control_error *e, int err, const char *hint, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* A line of any bytes, without its newline. ERR_CONTROL_REQUEST with *e set, else a new reference to an
 * object that has a string "cmd". */
int control_request_parse(const char *line, size_t len, json_t **ret_request, struct control_error *e)
    MUST_CHECK;
/* Every required argument is there, of its type and within its bounds, and nothing else is there. */
int control_args_check(const json_t *request, const struct control_arg *args, struct control_error *e)
    MUST_CHECK;

/* For arguments that were checked; the default where it is absent. */
const char *control_arg_string(const json_t *request, const char *name, const char *otherwise);
uint64_t control_arg_uint(const json_t *request, const char *name, uint64_t otherwise);
bool control_arg_bool(const json_t *request, const char *name);

/* A JSON string of any text: what is not UTF-8 is shown with question marks. NULL: out of memory. */
json_t *control_text(const char *text);
/* {"key": value} as one line with its newline, malloc'ed; takes value. NULL: out of memory. */
char *control_line_encode(const char *key, json_t *value);
/* The last line. result is taken, may be NULL (null). */
char *control_result_encode(json_t *result);
char *control_error_encode(const struct control_error *e);

#endif
