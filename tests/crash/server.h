/* SPDX-License-Identifier: Apache-2.0 */
/* The server under test: started, killed and checked as an administrator would, by its programs alone. */
#ifndef TESTS_CRASH_SERVER_H
#define TESTS_CRASH_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum server_kind {
    SERVER_ASHLARD,
    SERVER_NBDKIT_FILE,   /* keeps what the kernel has: passes */
    SERVER_NBDKIT_MEMORY, /* forgets everything when killed: must be found out */
};

struct server {
    enum server_kind kind;
    const char *build;   /* folder with ashlard and ashlar */
    const char *dir;     /* temporary; the node's folder is inside */
    const char *protect; /* of the volume */
    uint64_t size_bytes; /* of the volume */
    char node_dir[512];
    char uri[640];
    uint16_t port;
    pid_t pid; /* 0: does not run */
};

/* Fills in the derived fields; the pointers are borrowed. */
void server_init(struct server *s);
/* Starts it and waits until it answers; *ret_ns: how long that took. False with a message on stderr. */
bool server_start(struct server *s, uint64_t *ret_ns);
/* Makes the volume and exports it. Once. */
bool server_create_volume(struct server *s);
/* Is it still there, of itself? */
bool server_is_alive(struct server *s);
void server_kill(struct server *s);
/* Orderly stop; false if it took more than 60 s or exited with an error. */
bool server_stop(struct server *s);
/* `ashlar check` on the stopped node; *ret_status its exit code. Always 0 for nbdkit. */
bool server_check_offline(struct server *s, int *ret_status, uint64_t *ret_ns);
/* Writes one block into the volume past the server: nbdkit-file only, to show that damage is found. */
void server_damage(struct server *s, uint64_t offset, const void *buf, size_t len);

uint64_t server_clock_ns(void);
/* Waiting times are multiplied by ASHLAR_SLOW, for sanitizer builds. */
uint64_t server_patience_ns(uint64_t ns);

#endif
