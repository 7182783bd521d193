/* SPDX-License-Identifier: Apache-2.0 */
#include "server/options.h"

#include "control/size.h"
#include "runtime/error.h"

#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MEMORY_MIN_BYTES (64 * MIB)
#define DRIVE_MIN_BYTES  (64 * MIB)

const char server_options_help[] =
    "Usage: ashlard --dir DIR [OPTION]…\n"
    "Runs a storage node in the foreground. The first start makes a pool, by default of file drives in\n"
    "DIR/drives; later starts open the drives that the pool has.\n"
    "\n"
    "  --dir DIR            where the node keeps its state and its control socket (made if it is not there)\n"
    "  --memory SIZE        budget for buffers and cache (a quarter of the memory; at least 64M)\n"
    "  --reactors N         threads that serve (one per core)\n"
    "  --log-level LEVEL    debug, info, warning or error (info)\n"
    "\n"
    "A new pool:\n"
    "  --drives N           number of sparse file drives (8)\n"
    "  --drive-size SIZE    size of each (8G)\n"
    "  --drive PATH         take this device or file as a drive instead; may be given many times. At a "
    "later\n"
    "                       start: where a drive of the pool is now\n"
    "\n"
    "NBD:\n"
    "  --nbd-port N         TCP port (10809; 0: any free one); clients find DIR/nbd.sock as well\n"
    "  --nbd-listen ADDR    address of the TCP port (127.0.0.1)\n"
    "  --tls-cert FILE      certificate chain, PEM; clients may then use TLS\n"
    "  --tls-key FILE       its key, PEM\n"
    "  --tls-ca FILE        clients must show a certificate signed by one of these\n"
    "  --tls-required       clients of the TCP port see nothing without TLS\n"
    "\n"
    "NFS:\n"
    "  --nfs-port N         TCP port of NFS, MOUNT and the lock manager (2049; 0: any free one)\n"
    "  --nfs-listen ADDR    address of that port (127.0.0.1)\n"
    "  --portmap            answer clients on port 111 as well, where no rpcbind runs\n"
    "\n"
    "  --help, --version\n"
    "\n"
    "Sizes: 256M, 8G, 1.5T. Exit codes: 0 stopped in order, 1 failed, 2 wrong usage. See ashlard(8).\n";

enum option_id {
    OPT_DIR = 256,
    OPT_MEMORY,
    OPT_NBD_PORT,
    OPT_NBD_LISTEN,
    OPT_NFS_PORT,
    OPT_NFS_LISTEN,
    OPT_PORTMAP,
    OPT_DRIVES,
    OPT_DRIVE_SIZE,
    OPT_DRIVE,
    OPT_REACTORS,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CA,
    OPT_TLS_REQUIRED,
    OPT_LOG_LEVEL,
    OPT_VERSION,
    OPT_HELP = 'h',
};

static const struct option long_options[] = {
    {"dir", required_argument, NULL, OPT_DIR},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"nbd-port", required_argument, NULL, OPT_NBD_PORT},
    {"nbd-listen", required_argument, NULL, OPT_NBD_LISTEN},
    {"nfs-port", required_argument, NULL, OPT_NFS_PORT},
    {"nfs-listen", required_argument, NULL, OPT_NFS_LISTEN},
    {"portmap", no_argument, NULL, OPT_PORTMAP},
    {"drives", required_argument, NULL, OPT_DRIVES},
    {"drive-size", required_argument, NULL, OPT_DRIVE_SIZE},
    {"drive", required_argument, NULL, OPT_DRIVE},
    {"reactors", required_argument, NULL, OPT_REACTORS},
    {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
    {"tls-key", required_argument, NULL, OPT_TLS_KEY},
    {"tls-ca", required_argument, NULL, OPT_TLS_CA},
    {"tls-required", no_argument, NULL, OPT_TLS_REQUIRED},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

struct parse {
    struct server_options *o;
    char *why;
    size_t why_size;
};

static int wrong(struct parse *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int wrong(struct parse *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->why, p->why_size, fmt, ap);
    va_end(ap);
    return ERR_NODE_CONFIG;
}

static int parse_number(struct parse *p, const char *name, const char *text, uint64_t min, uint64_t max,
                        uint64_t *ret)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < min || value > max)
        return wrong(p, "--%s takes a number from %llu to %llu, not \"%s\"", name, (unsigned long long)min,
                     (unsigned long long)max, text);
    *ret = value;
    return 0;
}

static int parse_size(struct parse *p, const char *name, const char *text, uint64_t min, uint64_t *ret)
{
    uint64_t value;
    char least[SIZE_TEXT_SIZE];
    size_format(min, least);
    if (size_parse(text, &value) < 0 || value < min)
        return wrong(p, "--%s takes a size of at least %s, as 256M or 8G, not \"%s\"", name, least, text);
    *ret = value;
    return 0;
}

static int parse_level(struct parse *p, const char *text)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(names[i], text) == 0) {
            p->o->log_level = (enum log_level)i;
            return 0;
        }
    }
    return wrong(p, "--log-level takes debug, info, warning or error, not \"%s\"", text);
}

static int parse_drive(struct parse *p, const char *text)
{
    if (p->o->path_count == OPTIONS_DRIVES_MAX)
        return wrong(p, "at most %u drives can be named", OPTIONS_DRIVES_MAX);
    if (text[0] == '\0' || strlen(text) >= NODE_PATH_MAX)
        return wrong(p, "--drive takes a path of at most %u bytes", NODE_PATH_MAX - 1);
    for (uint32_t i = 0; i < p->o->path_count; i++)
        if (strcmp(p->o->paths[i], text) == 0)
            return wrong(p, "--drive %s is given twice", text);
    p->o->paths[p->o->path_count++] = text;
    return 0;
}

static int parse_one(struct parse *p, int id, const char *text)
{
    struct server_options *o = p->o;
    uint64_t number = 0;
    int r = 0;
    switch ((enum option_id)id) {
    case OPT_DIR:
        o->dir = text;
        break;
    case OPT_MEMORY:
        return parse_size(p, "memory", text, MEMORY_MIN_BYTES, &o->memory_bytes);
    case OPT_NBD_PORT:
        r = parse_number(p, "nbd-port", text, 0, 65535, &number);
        o->nbd_port = (uint16_t)number;
        break;
    case OPT_NBD_LISTEN:
        if (text[0] == '\0' || strlen(text) >= 64)
            return wrong(p, "--nbd-listen takes an address");
        o->nbd_listen = text;
        break;
    case OPT_NFS_PORT:
        r = parse_number(p, "nfs-port", text, 0, 65535, &number);
        o->nfs_port = (uint16_t)number;
        o->nfs_port_given = true;
        break;
    case OPT_NFS_LISTEN:
        if (text[0] == '\0' || strlen(text) >= 64)
            return wrong(p, "--nfs-listen takes an address");
        o->nfs_listen = text;
        break;
    case OPT_PORTMAP:
        o->portmap = true;
        break;
    case OPT_DRIVES:
        r = parse_number(p, "drives", text, 1, OPTIONS_DRIVES_MAX, &number);
        o->drives = (uint32_t)number;
        o->drives_given = true;
        break;
    case OPT_DRIVE_SIZE:
        o->drive_size_given = true;
        return parse_size(p, "drive-size", text, DRIVE_MIN_BYTES, &o->drive_bytes);
    case OPT_DRIVE:
        return parse_drive(p, text);
    case OPT_REACTORS:
        r = parse_number(p, "reactors", text, 1, NODE_REACTORS_MAX, &number);
        o->reactors = (uint32_t)number;
        break;
    case OPT_TLS_CERT:
        o->tls_cert = text;
        break;
    case OPT_TLS_KEY:
        o->tls_key = text;
        break;
    case OPT_TLS_CA:
        o->tls_ca = text;
        break;
    case OPT_TLS_REQUIRED:
        o->tls_required = true;
        break;
    case OPT_LOG_LEVEL:
        return parse_level(p, text);
    case OPT_VERSION:
        o->version = true;
        break;
    case OPT_HELP:
        o->help = true;
        break;
    }
    return r;
}

/* A quarter of what this process may use: the machine's memory, or less in a container. */
static uint64_t memory_default(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "re");
    unsigned long long limit;
    if (f != NULL) {
        if (fscanf(f, "%llu", &limit) == 1 && limit < bytes)
            bytes = limit;
        fclose(f);
    }
    return MAX(bytes / 4, MEMORY_MIN_BYTES);
}

static uint32_t reactors_default(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return MIN(MAX((uint32_t)count, 1u), NODE_REACTORS_MAX);
}

static int check_together(struct parse *p)
{
    const struct server_options *o = p->o;
    if (o->help || o->version)
        return 0;
    if (o->dir == NULL || o->dir[0] == '\0')
        return wrong(p, "--dir DIR is needed: the folder where the node keeps its state");
    if (o->path_count > 0 && o->drives_given)
        return wrong(p, "--drives makes file drives and --drive takes given ones: use one of them");
    if ((o->tls_cert == NULL) != (o->tls_key == NULL))
        return wrong(p, "--tls-cert and --tls-key go together");
    if (o->tls_cert == NULL && (o->tls_ca != NULL || o->tls_required))
        return wrong(p, "--tls-ca and --tls-required need --tls-cert and --tls-key");
    return 0;
}

int server_options_parse(int argc, char *const *argv, struct server_options *ret, char *why, size_t why_size)
{
    struct server_options o = {.nbd_port = 10809,
                               .nbd_listen = "127.0.0.1",
                               .nfs_port = NFS_PORT,
                               .nfs_listen = "127.0.0.1",
                               .drives = 8,
                               .drive_bytes = 8 * GIB,
                               .log_level = LOG_INFO_};
    struct parse p = {.o = &o, .why = why, .why_size = why_size};
    optind = 0; /* anew, whoever parsed before */
    opterr = 0;
    int id;
    while ((id = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
        if (id == ':')
            return wrong(&p, "the option %s needs a value", argv[optind - 1]);
        if (id == '?')
            return wrong(&p, "there is no option %s", argv[optind - 1]);
        int r = parse_one(&p, id, optarg);
        if (r < 0)
            return r;
    }
    if (optind < argc)
        return wrong(&p, "\"%s\" is too much: ashlard takes options only", argv[optind]);
    int r = check_together(&p);
    if (r < 0)
        return r;
    o.memory_bytes = o.memory_bytes != 0 ? o.memory_bytes : memory_default();
    o.reactors = o.reactors != 0 ? o.reactors : reactors_default();
    *ret = o;
    return 0;
}
