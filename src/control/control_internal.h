/* SPDX-License-Identifier: Apache-2.0 */
/* Between the control server and its handlers. */
#ifndef ASHLAR_CONTROL_CONTROL_INTERNAL_H
#define ASHLAR_CONTROL_CONTROL_INTERNAL_H

#include "control/control.h"
#include "control/node_internal.h"

struct control_call {
    struct node *node;
    struct stream *stream;
    const bool *stopping;
    struct control_error error;
};

/* Sets the call's error and returns err. */
int control_fail(struct control_call *call, int err, const char *hint, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* The same with the error's own sentence behind what could not be done. */
int control_fail_err(struct control_call *call, int err, const char *what);
/* Sends {"key": value}, takes value. An error means that the client is gone: give up quietly. */
int control_send(struct control_call *call, const char *key, json_t *value) MUST_CHECK may_yield;
/* Lets time pass. ERR_CLOSED: the client left; ERR_SHUTDOWN: the node stops. */
int control_pause(struct control_call *call, uint64_t duration_ns) MUST_CHECK may_yield;
/* The volume of the request's "name", with a reference; NULL with the call's error set. */
struct node_volume *control_volume(struct control_call *call, const json_t *request);

/* ---- Pieces of results, shared by several commands ---- */

json_t *control_uuid(struct uuid id);
json_t *control_drive_json(struct node *n, struct node_drive *d) may_yield;
/* detail: with counters and members. */
json_t *control_volume_json(struct node *n, struct node_volume *v, bool detail) may_yield;
json_t *control_export_json(struct node *n, struct node_volume *v);
json_t *control_job_json(const struct volume_job *job, uint64_t now_ns);
/* p50, p99, max in microseconds. */
json_t *control_latency_json(const struct histogram *h);

/* ---- Handlers ---- */

#define CONTROL_HANDLER(name) \
    int name(struct control_call *call, const json_t *request, json_t **ret_result) MUST_CHECK may_yield

CONTROL_HANDLER(control_status);
CONTROL_HANDLER(control_version);
CONTROL_HANDLER(control_drive_list);
CONTROL_HANDLER(control_drive_add);
CONTROL_HANDLER(control_drive_remove);
CONTROL_HANDLER(control_drive_replace);
CONTROL_HANDLER(control_drive_locate);
CONTROL_HANDLER(control_volume_create);
CONTROL_HANDLER(control_volume_list);
CONTROL_HANDLER(control_volume_show);
CONTROL_HANDLER(control_volume_grow);
CONTROL_HANDLER(control_volume_delete);
CONTROL_HANDLER(control_export);
CONTROL_HANDLER(control_unexport);
CONTROL_HANDLER(control_fs_create);
CONTROL_HANDLER(control_fs_list);
CONTROL_HANDLER(control_fs_show);
CONTROL_HANDLER(control_fs_grow);
CONTROL_HANDLER(control_fs_pattern);
CONTROL_HANDLER(control_fs_check);
CONTROL_HANDLER(control_quota_set);
CONTROL_HANDLER(control_quota_list);
CONTROL_HANDLER(control_job_start);
CONTROL_HANDLER(control_top);
CONTROL_HANDLER(control_events);

/* Waits until all volumes have their copies or cannot get them, with progress lines. *ret_result: a list of
 * {"volume", "healthy", "job"}. */
int control_repair_wait(struct control_call *call, json_t **ret_result) MUST_CHECK may_yield;

#endif
