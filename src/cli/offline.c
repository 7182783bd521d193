/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a stopped pool without touching it.
 *
 * A running node is noticed twice: by the lock on its folder, and by the locks on its drives. Both are taken
 * shared and kept, so that no node starts while we look. After a SIGKILL the kernel may hold the files of the
 * dead process for a moment longer: a lock that is taken is tried again for LOCK_PATIENCE.
 */
#include "cli/offline.h"

#include "cluster/coord_file.h"
#include "control/size.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_PATIENCE_STEPS 30u
#define LOCK_STEP_NS        (100 * NSEC_PER_MSEC)
#define MEMORY_MIN          (256 * MIB)
#define CACHE_MIN           (128 * MIB)
#define IDENTITY_MAX        4096u

/* ---- What is found ---- */

int offline_fail(struct offline *o, const char *hint, const char *fmt, ...)
{
    char text[CONTROL_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (o->result != OFFLINE_FAILED) /* the first reason is the one that helps */
        (void)cli_failed(o->c, hint, "%s", text);
    o->result = OFFLINE_FAILED;
    return OFFLINE_FAILED;
}

static void found(json_t *list, const char *about, const char *name, const char *fmt, va_list ap)
    PRINTF_LIKE(4, 0);
static void found(json_t *list, const char *about, const char *name, const char *fmt, va_list ap)
{
    char text[1024];
    vsnprintf(text, sizeof(text), fmt, ap);
    json_t *o =
        json_pack("{ss so so}", "about", about, "name", control_text(name), "text", control_text(text));
    if (o != NULL)
        json_array_append_new(list, o);
}

void offline_problem(struct offline *o, const char *about, const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    found(o->problems, about, name, fmt, ap);
    va_end(ap);
    if (o->result == OFFLINE_CLEAN)
        o->result = OFFLINE_DAMAGE;
}

void offline_note(struct offline *o, const char *about, const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    found(o->notes, about, name, fmt, ap);
    va_end(ap);
}

/* ---- Folder, memory, reactor ---- */

static void no_log(void *ctx, enum log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

/* A node on this folder holds its lock file from before it opens anything. */
static int folder_lock(struct offline *o)
{
    char path[NODE_PATH_MAX + 16], pid[24] = "";
    snprintf(path, sizeof(path), "%s/ashlard.lock", o->dir);
    o->lock_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (o->lock_fd < 0)
        return errno == ENOENT ? 0
                               : offline_fail(o, "Run it as the user that ashlard runs as.", "%s: %s", path,
                                              strerror(errno));
    for (uint32_t i = 0; flock(o->lock_fd, LOCK_SH | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return offline_fail(o, "", "%s cannot be locked: %s", path, strerror(errno));
        ssize_t n = pread(o->lock_fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        if (pid[0] != '\0' && i > 0)
            return offline_fail(o,
                                "Stop it first; of a running node, `ashlar status` and `ashlar scrub` tell.",
                                "a node is running on %s, process %s", o->dir, pid);
        if (i == LOCK_PATIENCE_STEPS)
            return offline_fail(o, "Stop the node first.", "%s is in use", o->dir);
        nanosleep(&(struct timespec){.tv_nsec = (long)LOCK_STEP_NS}, NULL);
    }
    return 0;
}

static int folder_open(struct offline *o, const char *dir)
{
    struct stat st;
    char *real = realpath(dir, NULL);
    if (real == NULL)
        return offline_fail(o, "", "%s: %s", dir, strerror(errno));
    int n = snprintf(o->dir, sizeof(o->dir), "%s", real);
    free(real);
    if (n < 0 || (size_t)n >= sizeof(o->dir) || stat(o->dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return offline_fail(o, "Name the folder that ashlard was given with --dir.",
                            "%s is not a node's folder", dir);
    return folder_lock(o);
}

/* Three quarters for what is written in memory only, the rest for pages. */
static int memory_size(struct offline *o, uint64_t *ret_overlay)
{
    const char *text = cli_value(o->c, "memory");
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
    bytes = MAX(bytes, 2 * MEMORY_MIN);
    if (text != NULL && (size_parse(text, &bytes) < 0 || bytes < MEMORY_MIN))
        return offline_fail(o, "As 2G; at least 256M.", "\"%s\" is not a good size for --memory", text);
    o->budget.limit_bytes = MAX(bytes / 4, CACHE_MIN);
    *ret_overlay = bytes - o->budget.limit_bytes;
    return 0;
}

static void limits_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        LOG_DEBUG("the limit of open files could not be raised");
}

static void life(void *arg) may_yield
{
    struct offline *o = arg;
    o->body(o);
    offline_close(o);
    reactor_stop(o->reactor);
}

static int reactor_life(struct offline *o)
{
    uint64_t overlay_bytes = 0;
    if (memory_size(o, &overlay_bytes) != 0)
        return OFFLINE_FAILED;
    int r = world_overlay_new(overlay_bytes, &o->overlay);
    if (r < 0)
        return offline_fail(o, "", "%s", error_text(r));
    size_t chunk =
        ALIGN_DOWN((size_t)MIN(o->budget.limit_bytes / 16, 16 * MIB), PAGE_RUN_MAX * (size_t)BLOCK_SIZE);
    struct reactor_options ro = {.world = world_overlay_ops(o->overlay),
                                 .world_ctx = o->overlay,
                                 .budget = &o->budget,
                                 .chunk_bytes = chunk};
    r = reactor_new(&ro, &o->reactor);
    if (r == 0) {
        node_setup(&o->node, o->dir, &o->budget, &o->reactor, 1);
        r = reactor_spawn(o->reactor, "offline", life, o);
        if (r == 0)
            r = reactor_run(o->reactor);
        reactor_free(o->reactor);
    }
    if (r < 0)
        offline_fail(o, "Ashlar needs Linux 6.1 or later with io_uring allowed.", "a reactor cannot run: %s",
                     error_text(r));
    if (world_overlay_full(o->overlay))
        offline_fail(o, "Give more memory with --memory SIZE.",
                     "replaying the log in memory needs more memory than the limit: nothing can be said");
    world_overlay_free(o->overlay);
    return o->result;
}

int offline_run(struct offline *o, struct cli *c, const char *dir, void (*body)(struct offline *o))
{
    *o = (struct offline){.c = c, .lock_fd = -1, .body = body};
    o->problems = json_array();
    o->notes = json_array();
    log_set_sink(no_log, NULL);
    limits_raise();
    struct stat st;
    bool is_drive = stat(dir, &st) == 0 && !S_ISDIR(st.st_mode);
    int r = is_drive ? 0 : folder_open(o, dir);
    if (r == 0)
        r = reactor_life(o);
    if (o->lock_fd >= 0)
        close(o->lock_fd);
    return r;
}

/* ---- Records ---- */

/* Either of the two files alone is enough; that one of them is not right is damage all the same. */
static int coord_files_check(struct offline *o) may_yield
{
    static const char *const names[2] = {"coord.json", "coord.json.prev"};
    char path[NODE_PATH_MAX + 24];
    int err[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct coord_table t = {0};
        char *text = NULL;
        size_t len = 0;
        snprintf(path, sizeof(path), "%s/%s", o->dir, names[i]);
        err[i] = file_read_all(path, COORD_FILE_MAX_BYTES, &text, &len);
        if (err[i] == 0)
            err[i] = coord_file_decode(text, len, &t);
        coord_table_done(&t);
        free(text);
    }
    snprintf(path, sizeof(path), "%s/node.json", o->dir);
    bool gone = err[0] == ERR_SYS(ENOENT) && err[1] == ERR_SYS(ENOENT);
    if (gone && access(path, F_OK) != 0)
        return offline_fail(o, "Name the folder that ashlard was given with --dir.", "there is no pool in %s",
                            o->dir);
    if (err[0] != 0 && err[1] != 0) {
        offline_problem(
            o, "pool", o->dir,
            "coord.json and coord.json.prev are both missing or damaged: restore one of them from a "
            "backup of the folder");
        return ERR_COORD_CORRUPT;
    }
    for (uint32_t i = 0; i < 2; i++)
        if (err[i] != 0)
            offline_problem(
                o, "pool", o->dir,
                "%s: %s; %s is whole and is used instead: the next start of the node makes it anew", names[i],
                error_text(err[i]), names[1 - i]);
    return 0;
}

static int pool_record_read(struct offline *o) may_yield
{
    char *text = NULL;
    uint64_t revision;
    int r = coord_get(o->node.coord, "/pool", &text, &revision);
    json_t *pool = r == 0 ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *id = json_string_value(json_object_get(pool, "id"));
    const char *state = json_string_value(json_object_get(pool, "state"));
    free(text);
    r = id != NULL && state != NULL && uuid_parse(id, &o->node.pool_id) == 0 ? 0 : ERR_COORD_CORRUPT;
    o->creating = state != NULL && strcmp(state, "creating") == 0;
    json_decref(pool);
    if (r < 0)
        offline_problem(o, "pool", o->dir, "the pool's own record is missing or damaged");
    else if (o->creating)
        offline_note(o, "pool", o->dir, "its first start was interrupted: the next start goes on with it");
    return r;
}

/* node.json only repeats what the records say. */
static void identity_check(struct offline *o) may_yield
{
    char path[NODE_PATH_MAX + 16];
    char *text = NULL;
    size_t len = 0;
    struct uuid pool;
    snprintf(path, sizeof(path), "%s/node.json", o->dir);
    int r = file_read_all(path, IDENTITY_MAX, &text, &len);
    json_t *j = r == 0 ? json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *node = json_string_value(json_object_get(j, "node"));
    const char *id = json_string_value(json_object_get(j, "pool"));
    free(text);
    if (node == NULL || id == NULL || uuid_parse(node, &o->node.id) != 0 || uuid_parse(id, &pool) != 0)
        offline_problem(o, "pool", o->dir,
                        "node.json is missing or damaged: the next start of the node writes it anew");
    else if (!uuid_equal(pool, o->node.pool_id))
        offline_problem(
            o, "pool", o->dir,
            "node.json and coord.json are of different pools: restore the folder from one backup");
    json_decref(j);
}

int offline_records_open(struct offline *o)
{
    char path[NODE_PATH_MAX + 16];
    int r = coord_files_check(o);
    if (r != 0)
        return r;
    snprintf(path, sizeof(path), "%s/coord.json", o->dir);
    r = coord_local_open(path, &o->node.coord);
    if (r < 0)
        return offline_fail(o, "", "%s cannot be read: %s", path, error_text(r));
    r = pool_record_read(o);
    if (r == 0)
        identity_check(o);
    return r;
}

/* ---- Drives ---- */

/* A drive that somebody uses, or that we may not read, makes it impossible to say anything. */
static int drive_probe(struct offline *o, const char *path) may_yield
{
    for (uint32_t i = 0;; i++) {
        struct file *f = NULL;
        int r = file_open(path, FILE_OPEN_DIRECT | FILE_OPEN_LOCK, &f);
        if (r == 0) {
            file_close(f);
            return 0;
        }
        if (r == ERR_SYS(EACCES) || r == ERR_SYS(EPERM))
            return offline_fail(o, "Run it as the user that ashlard runs as.", "%s cannot be read: %s", path,
                                error_text(r));
        if (r != ERR_SYS(EBUSY))
            return 0; /* missing or broken: opening it says so */
        if (i == LOCK_PATIENCE_STEPS)
            return offline_fail(o, "Stop the node that uses it first.", "%s is in use", path);
        (void)fiber_sleep(LOCK_STEP_NS);
    }
}

static int drives_probe(struct offline *o) may_yield
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(o->node.coord, "/drives/", &records, &count);
    if (r < 0)
        return offline_fail(o, "", "the records of the drives cannot be read: %s", error_text(r));
    for (size_t i = 0; r == 0 && i < count; i++) {
        json_t *j = json_loads(records[i].value, JSON_REJECT_DUPLICATES, NULL);
        const char *path = json_string_value(json_object_get(j, "path"));
        const char *state = json_string_value(json_object_get(j, "state"));
        if (path != NULL && (state == NULL || strcmp(state, "removed") != 0))
            r = drive_probe(o, path);
        json_decref(j);
    }
    coord_records_free(records, count);
    return r;
}

static uint32_t option_values(const struct cli *c, const char *name, const char *const **ret)
{
    for (uint32_t i = 0; i < c->given_count; i++)
        if (strcmp(c->given[i].option->name, name) == 0) {
            *ret = c->given[i].values;
            return c->given[i].count;
        }
    *ret = NULL;
    return 0;
}

int offline_drives_open(struct offline *o)
{
    struct control_error e = {0};
    const char *const *paths;
    uint32_t path_count = option_values(o->c, "drive", &paths);
    int r = drives_probe(o);
    if (r != 0)
        return r;
    r = node_reactors_start(&o->node, &e);
    if (r < 0)
        return offline_fail(o, e.hint, "%s", e.text);
    o->node.reactors[0].env.no_repair = true;
    r = node_drives_start(&o->node, paths, path_count, &e);
    LIST_FOREACH (&o->node.drives, it) {
        const struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        if (d->state == NODE_DRIVE_MISSING)
            offline_problem(o, "drive", d->path, "%s", d->why);
    }
    if (r == ERR_NO_MEMORY)
        return offline_fail(o, "Give more memory with --memory SIZE.", "%s", e.text);
    if (r < 0 && r != ERR_DRIVE_GONE) /* that one was told of each drive */
        offline_problem(o, "pool", o->dir, "%s", e.text);
    return r;
}

void offline_close(struct offline *o)
{
    node_drives_stop(&o->node);
    node_reactors_stop(&o->node);
    if (o->node.coord != NULL)
        coord_close(o->node.coord);
    o->node.coord = NULL;
}
