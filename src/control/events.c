/* SPDX-License-Identifier: Apache-2.0 */
/* The node's recent events, and following them as they come. */
#include "control/control_internal.h"

#include <stdlib.h>

#define EVENTS_AT_ONCE 256u
#define FOLLOW_NS      (200 * NSEC_PER_MSEC)

static json_t *event_json(const struct event *e)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    assert((unsigned)e->level < ARRAY_SIZE(levels));
    return json_pack("{sI sI ss so so}", "sequence", (json_int_t)e->sequence, "wall_ns",
                     (json_int_t)e->wall_ns, "level", levels[e->level], "kind", control_text(e->kind), "text",
                     control_text(e->text));
}

/* Sends, or appends to list, everything after *after, which becomes the last one's sequence. */
static int drain(struct control_call *call, json_t *list, struct event *buf, uint64_t *after) may_yield
{
    size_t count;
    while ((count = event_list(*after, buf, EVENTS_AT_ONCE)) > 0) {
        for (size_t i = 0; i < count; i++) {
            if (list != NULL) {
                json_array_append_new(list, event_json(&buf[i]));
                continue;
            }
            int r = control_send(call, "event", event_json(&buf[i]));
            if (r < 0)
                return r;
        }
        *after = buf[count - 1].sequence;
    }
    return 0;
}

int control_events(struct control_call *call, const json_t *request, json_t **ret_result)
{
    uint64_t after = control_arg_uint(request, "after", 0), last = control_arg_uint(request, "last", 1000);
    bool follow = control_arg_bool(request, "follow");
    struct event *buf = malloc(EVENTS_AT_ONCE * sizeof(*buf));
    json_t *list = json_array();
    if (buf == NULL || list == NULL) {
        free(buf);
        json_decref(list);
        return control_fail_err(call, ERR_NO_MEMORY, "the events cannot be listed");
    }
    int r = drain(call, list, buf, &after);
    while (json_array_size(list) > last)
        json_array_remove(list, 0);
    if (r == 0 && follow) {
        for (size_t i = 0; r == 0 && i < json_array_size(list); i++)
            r = control_send(call, "event", json_incref(json_array_get(list, i)));
        while (r == 0) {
            r = control_pause(call, FOLLOW_NS);
            if (r == 0)
                r = drain(call, NULL, buf, &after);
        }
    }
    free(buf);
    if (r < 0) {
        json_decref(list);
        return r == ERR_SHUTDOWN ? control_fail_err(call, r, "the node stops") : r;
    }
    *ret_result = list;
    return 0;
}
