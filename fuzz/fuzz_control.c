/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket's requests: any bytes, parsed and checked against the table of every command. What
 * passes must have every required argument, with the type that handlers rely on. */
#include "control/control.h"
#include "control/size.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_promise(const json_t *request, const struct control_arg *args)
{
    for (const struct control_arg *a = args; a != NULL && a->name != NULL; a++) {
        const json_t *value = json_object_get(request, a->name);
        assert(value != NULL || !a->required);
        if (value == NULL)
            continue;
        switch (a->type) {
        case CONTROL_STRING:
            assert(strlen(control_arg_string(request, a->name, "")) <= a->max);
            break;
        case CONTROL_UINT:
            assert(control_arg_uint(request, a->name, 0) <= a->max);
            break;
        case CONTROL_BOOL:
            assert(control_arg_bool(request, a->name) == json_is_true(value));
            break;
        case CONTROL_STRINGS:
            for (size_t i = 0; i < json_array_size(value); i++)
                assert(strlen(json_string_value(json_array_get(value, i))) <= a->max);
            break;
        }
    }
}

static void check_request(const json_t *request)
{
    for (const struct control_command *c = control_commands; c->name != NULL; c++) {
        struct control_error e = {0};
        if (control_args_check(request, c->args, &e) == 0)
            check_promise(request, c->args);
        else
            assert(e.text[0] != '\0');
    }
}

static void check_size(const char *text)
{
    uint64_t bytes = 0;
    char shown[SIZE_TEXT_SIZE];
    if (size_parse(text, &bytes) < 0)
        return;
    assert(bytes <= INT64_MAX);
    size_format(bytes, shown);
    assert(strlen(shown) < sizeof(shown));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct control_error e = {0};
    json_t *request = NULL;
    if (control_request_parse((const char *)data, size, &request, &e) == 0) {
        check_request(request);
        json_decref(request);
    } else {
        assert(request == NULL && e.text[0] != '\0');
        char *line = control_error_encode(&e);
        assert(line != NULL && strchr(line, '\n') == line + strlen(line) - 1);
        free(line);
    }
    /* Exports come from a record that may be damaged. */
    char *text = malloc(size + 1);
    struct node_export x;
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    check_size(text);
    if (node_export_decode(text, &x) == 0)
        assert(x.allow_count <= ARRAY_SIZE(x.allow));
    free(text);
    return 0;
}
