/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: serves the commands of control/commands.c on a Unix socket, on the home reactor.
 * Who may connect is the file's mode (0660) and its folder's.
 */
#ifndef ASHLAR_CONTROL_CONTROL_H
#define ASHLAR_CONTROL_CONTROL_H

#include "control/node.h"

struct control_server;

/* Listens at path ("DIR/ashlar.sock"); borrows the node until control_server_stop(). */
int control_server_start(struct node *n, const char *path, struct control_server **ret,
                         struct control_error *e) MUST_CHECK may_yield;
/* No new connections; requests under way end, with ERR_SHUTDOWN where they wait for something long. */
void control_server_stop(struct control_server *s) may_yield;

/* ---- Commands ---- */

struct control_call; /* control_internal.h */
enum control_command_flags {
    CONTROL_ANYTIME = 1 << 0, /* does not wait until the node is ready */
};
struct control_command {
    const char *name;
    uint32_t flags;
    const struct control_arg *args; /* NULL: none */
    int (*handler)(struct control_call *call, const json_t *request, json_t **ret_result);
};
/* Ends with a NULL name. */
extern const struct control_command control_commands[];
const struct control_command *control_command_find(const char *name);

#endif
