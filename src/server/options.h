/* SPDX-License-Identifier: Apache-2.0 */
/* ashlard's command line, checked. */
#ifndef ASHLAR_SERVER_OPTIONS_H
#define ASHLAR_SERVER_OPTIONS_H

#include "control/node.h"
#include "runtime/log.h"

#define OPTIONS_DRIVES_MAX 256u

struct server_options {
    const char *dir;
    uint64_t memory_bytes;
    uint16_t nbd_port; /* 0: any free one */
    const char *nbd_listen;
    uint16_t nfs_port;   /* 0: any free one */
    bool nfs_port_given; /* else one that is in use is only told */
    const char *nfs_listen;
    bool portmap;
    uint32_t drives; /* file drives of a new pool */
    uint64_t drive_bytes;
    bool drive_size_given, drives_given;
    uint32_t path_count;
    const char *paths[OPTIONS_DRIVES_MAX]; /* --drive; of argv */
    uint32_t reactors;
    const char *tls_cert, *tls_key, *tls_ca;
    bool tls_required;
    enum log_level log_level;
    bool help, version;
};

/* 0, or ERR_NODE_CONFIG with a sentence in why. Defaults are filled in. */
int server_options_parse(int argc, char *const *argv, struct server_options *ret, char *why, size_t why_size)
    MUST_CHECK;
extern const char server_options_help[];

#endif
