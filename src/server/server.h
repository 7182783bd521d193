/* SPDX-License-Identifier: Apache-2.0 */
/* A running ashlard: what main.c, start.c and pool.c share. */
#ifndef ASHLAR_SERVER_SERVER_H
#define ASHLAR_SERVER_SERVER_H

#include "control/control.h"
#include "control/node.h"
#include "runtime/tls.h"
#include "server/options.h"

#include <pthread.h>

struct server {
    struct server_options options;
    char dir[NODE_PATH_MAX];
    char socket_path[NODE_PATH_MAX + 16];
    int lock_fd;
    struct memory_budget budget;
    struct reactor *reactors[NODE_REACTORS_MAX];
    pthread_t threads[NODE_REACTORS_MAX];
    pthread_t main_thread;
    int thread_error; /* a reactor could not run; atomic */
    struct node node;
    struct control_server *control;
    struct tls_context *tls;
    bool nfs_wanted;  /* its port was free */
    bool stop_wanted; /* home reactor's */
    struct waitq stop_waiters;
    struct control_error error; /* why the start failed */
    bool failed;
};

/* ---- lock.c: nothing of the reactors ---- */

/* The folder is there (made if need be), is ours to write, and no other ashlard uses it. */
int server_dir_open(struct server *s) MUST_CHECK;
void server_dir_close(struct server *s);

/* ---- pool.c ---- */

/* Refuses a node's folder that has lost its records, before anything would make new ones. */
int server_records_check(struct server *s, struct control_error *e) MUST_CHECK;
/* Who we are and which pool this is: read from the records, or made at the first start. */
int server_identity_start(struct server *s, struct control_error *e) MUST_CHECK may_yield;
/* The first start: formats the drives. Later: nothing. */
int server_pool_start(struct server *s, struct control_error *e) MUST_CHECK may_yield;

/* ---- start.c: the order of everything ---- */

/* The fiber that is the life of the node: starts, waits for server_stop_ask(), stops. Then stops the reactors
 * and tells the main thread by SIGUSR1. */
void server_life(void *arg) may_yield;
/* On the home reactor. */
void server_stop_ask(void *arg);

/* ---- notify.c ---- */

/* Tells systemd, if it asked to be told (NOTIFY_SOCKET). */
void server_notify(const char *state);

#endif
