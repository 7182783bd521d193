/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity and the first start.
 *
 * A first start writes its plan before it formats anything: /pool says "creating" and names the paths. If it
 * is interrupted, the next start goes on with the same plan; no volume can exist before /pool says "ready".
 * Then all drives' records and "ready" appear in one commit. What the plan did not make itself (a path that
 * holds something already) is never overwritten: drive_format() refuses it.
 *
 * DIR/node.json repeats who we are, so that a lost DIR/coord.json is noticed instead of taken for a first
 * start.
 */
#include "server/server.h"

#include "control/size.h"
#include "runtime/error.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define IDENTITY_MAX 4096u

static int fail(struct control_error *e, int err, const char *hint, const char *what)
{
    control_error_set(e, err, hint, "%s: %s", what, error_text(err));
    return err;
}

/* ---- node.json ---- */

static void identity_path(const struct server *s, char out[NODE_PATH_MAX + 16])
{
    snprintf(out, NODE_PATH_MAX + 16, "%s/node.json", s->dir);
}

static int identity_write(struct server *s, struct control_error *e) may_yield
{
    char path[NODE_PATH_MAX + 16], node[UUID_TEXT_SIZE], pool[UUID_TEXT_SIZE], text[256];
    identity_path(s, path);
    uuid_format(s->node.id, node);
    uuid_format(s->node.pool_id, pool);
    int len =
        snprintf(text, sizeof(text), "{\"version\": 1, \"node\": \"%s\", \"pool\": \"%s\"}\n", node, pool);
    int r = file_replace(path, text, (size_t)len);
    return r < 0 ? fail(e, r, "Make room on the file system, or make the folder writable.",
                        "node.json cannot be written")
                 : 0;
}

/* ERR_SYS(ENOENT): there is none. */
static int identity_read(struct server *s, struct uuid *ret_node, struct uuid *ret_pool) may_yield
{
    char path[NODE_PATH_MAX + 16];
    char *text = NULL;
    size_t len = 0;
    identity_path(s, path);
    int r = file_read_all(path, IDENTITY_MAX, &text, &len);
    if (r < 0)
        return r;
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    const char *node = json_string_value(json_object_get(o, "node"));
    const char *pool = json_string_value(json_object_get(o, "pool"));
    r = node != NULL && pool != NULL && uuid_parse(node, ret_node) == 0 && uuid_parse(pool, ret_pool) == 0
            ? 0
            : ERR_COORD_CORRUPT;
    json_decref(o);
    return r;
}

static int records_lost(struct server *s, struct control_error *e)
{
    control_error_set(e, ERR_COORD_NOT_FOUND,
                      "Restore coord.json from a backup of the folder; nothing was changed.",
                      "%s has been a node's folder, but its coord.json is gone or empty", s->dir);
    return ERR_COORD_NOT_FOUND;
}

int server_records_check(struct server *s, struct control_error *e)
{
    static const char *const records[] = {"coord.json", "coord.json.prev"};
    char path[NODE_PATH_MAX + 32];
    identity_path(s, path);
    if (access(path, F_OK) < 0)
        return 0;
    for (unsigned i = 0; i < ARRAY_SIZE(records); i++) {
        snprintf(path, sizeof(path), "%s/%s", s->dir, records[i]);
        if (access(path, F_OK) == 0)
            return 0;
    }
    return records_lost(s, e);
}

/* ---- /pool and /nodes ---- */

struct pool_record {
    struct uuid id;
    bool creating;
    uint64_t drive_bytes;
    json_t *planned; /* paths; owned */
    uint64_t revision;
};

static int pool_decode(const char *text, struct pool_record *ret)
{
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *id = json_string_value(json_object_get(o, "id"));
    const char *state = json_string_value(json_object_get(o, "state"));
    json_t *planned = json_object_get(o, "planned");
    json_int_t bytes = json_integer_value(json_object_get(o, "drive_size_bytes"));
    int r = ERR_COORD_CORRUPT;
    if (id != NULL && state != NULL && bytes >= 0 && json_is_array(planned) &&
        uuid_parse(id, &ret->id) == 0) {
        ret->creating = strcmp(state, "creating") == 0;
        ret->drive_bytes = (uint64_t)bytes;
        ret->planned = json_incref(planned);
        r = 0;
    }
    json_decref(o);
    return r;
}

/* malloc'ed; NULL: no memory. */
static char *pool_encode(const struct pool_record *p, bool creating)
{
    char id[UUID_TEXT_SIZE];
    uuid_format(p->id, id);
    json_t *o = json_pack("{ss ss sI sO}", "id", id, "state", creating ? "creating" : "ready",
                          "drive_size_bytes", (json_int_t)p->drive_bytes, "planned", p->planned);
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

static int pool_read(struct server *s, struct pool_record *ret, struct control_error *e) may_yield
{
    char *text = NULL;
    uint64_t revision = 0;
    int r = coord_get(s->node.coord, "/pool", &text, &revision);
    if (r == ERR_COORD_NOT_FOUND)
        return r;
    if (r == 0)
        r = pool_decode(text, ret);
    free(text);
    if (r < 0)
        return fail(e, r, "", "the pool's record cannot be read");
    ret->revision = revision;
    return 0;
}

/* Where the drives of a new pool will be, absolute. */
static json_t *pool_plan(struct server *s)
{
    json_t *planned = json_array();
    const struct server_options *o = &s->options;
    for (uint32_t i = 0; i < o->path_count; i++) {
        char path[NODE_PATH_MAX], cwd[NODE_PATH_MAX];
        char *real = realpath(o->paths[i], NULL);
        if (real != NULL)
            snprintf(path, sizeof(path), "%s", real);
        else if (o->paths[i][0] == '/' || getcwd(cwd, sizeof(cwd)) == NULL)
            snprintf(path, sizeof(path), "%s", o->paths[i]);
        else if (snprintf(path, sizeof(path), "%s/%s", cwd, o->paths[i]) >= (int)sizeof(path))
            path[0] = '\0'; /* too long: formatting says that it is not there */
        free(real);
        json_array_append_new(planned, control_text(path));
    }
    for (uint32_t i = 0; o->path_count == 0 && i < o->drives; i++) {
        char path[NODE_PATH_MAX + 32];
        snprintf(path, sizeof(path), "%s/drives/drive-%02u", s->dir, i);
        json_array_append_new(planned, control_text(path));
    }
    return planned;
}

/* The plan and our name, in one commit; then node.json. */
static int pool_begin(struct server *s, struct control_error *e) may_yield
{
    struct pool_record p = {
        .id = world_random_uuid(), .drive_bytes = s->options.drive_bytes, .planned = pool_plan(s)};
    s->node.id = world_random_uuid();
    char node[UUID_TEXT_SIZE], key[UUID_TEXT_SIZE + 16];
    uuid_format(s->node.id, node);
    snprintf(key, sizeof(key), "/nodes/%s", node);
    json_t *o = json_pack("{ss so}", "id", node, "dir", control_text(s->dir));
    char *node_text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    char *pool_text = pool_encode(&p, true);
    json_decref(o);
    json_decref(p.planned);
    int r = ERR_NO_MEMORY;
    if (node_text != NULL && pool_text != NULL) {
        struct coord_change changes[] = {{"/pool", 0, pool_text}, {key, 0, node_text}};
        uint64_t revision;
        r = coord_commit(s->node.coord, changes, ARRAY_SIZE(changes), &revision);
    }
    free(node_text);
    free(pool_text);
    if (r < 0)
        return fail(e, r, "Make room on the file system, or make the folder writable.",
                    "the new pool cannot be recorded");
    s->node.pool_id = p.id;
    return identity_write(s, e);
}

/* node.json is missing or damaged, the records are there: they know who we are. */
static int identity_recover(struct server *s, struct control_error *e) may_yield
{
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(s->node.coord, "/nodes/", &records, &count);
    if (r < 0)
        return fail(e, r, "", "the nodes' records cannot be read");
    r = count == 1 ? uuid_parse(records[0].key + strlen("/nodes/"), &s->node.id) : ERR_COORD_CORRUPT;
    coord_records_free(records, count);
    if (r < 0)
        return fail(e, r, "Restore node.json from a backup of the folder.",
                    "node.json is missing or damaged, and the records name no single node");
    LOG_WARNING("%s/node.json was missing or damaged: written anew from the records", s->dir);
    return identity_write(s, e);
}

int server_identity_start(struct server *s, struct control_error *e)
{
    struct uuid node, pool;
    struct pool_record p;
    int named = identity_read(s, &node, &pool);
    int r = pool_read(s, &p, e);
    if (r == ERR_COORD_NOT_FOUND && named == ERR_SYS(ENOENT))
        return pool_begin(s, e);
    if (r == ERR_COORD_NOT_FOUND)
        return records_lost(s, e);
    if (r < 0)
        return r;
    s->node.pool_id = p.id;
    s->node.drive_size_bytes = p.drive_bytes;
    json_decref(p.planned);
    if (named == 0 && !uuid_equal(pool, p.id)) {
        control_error_set(e, ERR_COORD_CORRUPT, "Restore the folder from one backup; nothing was changed.",
                          "node.json and coord.json of %s are of different pools", s->dir);
        return ERR_COORD_CORRUPT;
    }
    if (named < 0)
        return identity_recover(s, e);
    s->node.id = node;
    return 0;
}

/* ---- Making the drives ---- */

/* Without O_DIRECT all is well but slower, and memory is used twice. */
static void direct_check(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    else if (errno == EINVAL)
        event_raise(LOG_WARNING_, "no-direct-io",
                    "the file system of %s has no O_DIRECT: drives there are buffered and made durable with "
                    "fdatasync, which is slower",
                    dir);
}

static void space_check(struct server *s, const char *dir)
{
    struct statvfs fs;
    uint64_t wanted = (uint64_t)s->options.drives * s->options.drive_bytes;
    if (statvfs(dir, &fs) < 0)
        return;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= wanted)
        return;
    char is[SIZE_TEXT_SIZE], may[SIZE_TEXT_SIZE];
    size_format(room, is);
    size_format(wanted, may);
    LOG_WARNING("the pool's files may grow to %s and their file system has %s left: watch it, or make a "
                "smaller pool with --drives and --drive-size",
                may, is);
}

static int drive_create(struct server *s, const char *path, struct node_drive *ret, struct control_error *e)
    may_yield
{
    struct stat st;
    char why[256] = "";
    struct drive_home *home = NULL;
    int r = drive_home_open(path, s->node.pool_id, 0, &home, why, sizeof(why));
    if (r == 0) { /* an earlier start, interrupted, came as far as this one */
        ret->id = drive_home_id(home);
        drive_home_close(home);
        return 0;
    }
    bool exists = stat(path, &st) == 0;
    struct drive_format_options o = {.path = path, .pool_id = s->node.pool_id};
    if (!exists && s->options.path_count > 0 && !s->options.drive_size_given) {
        control_error_set(e, ERR_NODE_CONFIG, "Check the path; --drive-size makes a file of that size there.",
                          "the drive %s does not exist", path);
        return ERR_NODE_CONFIG;
    }
    if (!exists || (S_ISREG(st.st_mode) && st.st_size == 0))
        o.size_bytes = s->options.drive_bytes;
    else if (s->options.drive_size_given && (uint64_t)st.st_size != s->options.drive_bytes)
        LOG_WARNING("--drive-size is for files that are made: %s exists and keeps its size", path);
    r = drive_format(&o, &ret->id, why, sizeof(why));
    if (r < 0)
        control_error_set(e, r,
                          r == ERR_SYS(ENOSPC) || r == ERR_SYS(EFBIG)
                              ? "Make room on the file system, or make a smaller pool with --drives and "
                                "--drive-size."
                              : "Nothing of it was changed. Take another path, or remove what is there.",
                          "%s cannot become a drive: %s", path, why[0] != '\0' ? why : error_text(r));
    return r;
}

/* All drives' records and the pool's "ready". */
static int pool_commit(struct server *s, struct pool_record *p, const struct node_drive *drives, size_t count,
                       struct control_error *e) may_yield
{
    struct coord_change *changes = calloc(count + 1, sizeof(*changes));
    char(*keys)[UUID_TEXT_SIZE + 16] = calloc(count + 1, sizeof(*keys));
    char *pool_text = pool_encode(p, false);
    int r = changes != NULL && keys != NULL && pool_text != NULL ? 0 : ERR_NO_MEMORY;
    for (size_t i = 0; r == 0 && i < count; i++) {
        char *text = NULL, id[UUID_TEXT_SIZE];
        r = node_drive_encode(&s->node, &drives[i], &text);
        uuid_format(drives[i].id, id);
        snprintf(keys[i], sizeof(keys[i]), "/drives/%s", id);
        changes[i] = (struct coord_change){.key = keys[i], .value = text};
    }
    if (r == 0) {
        uint64_t revision;
        changes[count] =
            (struct coord_change){.key = "/pool", .if_revision = p->revision, .value = pool_text};
        r = coord_commit(s->node.coord, changes, count + 1, &revision);
    }
    for (size_t i = 0; changes != NULL && i < count; i++)
        free((char *)(uintptr_t)changes[i].value);
    free(changes);
    free(keys);
    free(pool_text);
    return r < 0 ? fail(e, r, "Start again: it goes on where it stopped.", "the new pool cannot be recorded")
                 : 0;
}

static int pool_make(struct server *s, struct pool_record *p, struct control_error *e) may_yield
{
    char folder[NODE_PATH_MAX + 16];
    size_t count = json_array_size(p->planned);
    snprintf(folder, sizeof(folder), "%s/drives", s->dir);
    if (s->options.path_count == 0) {
        if (mkdir(folder, 0750) < 0 && errno != EEXIST)
            return fail(e, ERR_SYS(errno), "Make the folder writable.",
                        "the folder of the drives cannot be made");
        direct_check(folder);
        space_check(s, folder);
    }
    struct node_drive *drives = calloc(count + 1, sizeof(*drives));
    if (drives == NULL)
        return fail(e, ERR_NO_MEMORY, "", "the pool cannot be made");
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        const char *path = json_string_value(json_array_get(p->planned, i));
        snprintf(drives[i].path, sizeof(drives[i].path), "%s", path != NULL ? path : "");
        r = drive_create(s, drives[i].path, &drives[i], e);
    }
    if (r == 0)
        r = pool_commit(s, p, drives, count, e);
    free(drives);
    if (r == 0)
        event_raise(LOG_INFO_, "pool-created", "a pool of %zu drives was made", count);
    return r;
}

int server_pool_start(struct server *s, struct control_error *e)
{
    struct pool_record p;
    int r = pool_read(s, &p, e);
    if (r == ERR_COORD_NOT_FOUND)
        return fail(e, r, "", "the pool's record is gone");
    if (r < 0)
        return r;
    if (p.creating) {
        /* So may its size; the rest of a plan that is gone on with is made as its beginning was. */
        if (s->options.drive_size_given)
            p.drive_bytes = s->options.drive_bytes;
        s->options.drive_bytes = p.drive_bytes;
        /* The plan of an interrupted first start may be thrown away for another one: nothing is in it. */
        json_t *planned = pool_plan(s);
        if (s->options.path_count > 0 || s->options.drives_given) {
            json_decref(p.planned);
            p.planned = json_incref(planned);
        }
        json_decref(planned);
        r = pool_make(s, &p, e);
        s->node.drive_size_bytes = p.drive_bytes;
    } else if (s->options.drive_size_given && s->options.drive_bytes != p.drive_bytes) {
        LOG_WARNING(
            "--drive-size is for the first start: the pool exists; `ashlar drive add PATH --size SIZE` "
            "makes a drive of another size");
    } else if (s->options.drives_given && json_array_size(p.planned) != s->options.drives) {
        LOG_INFO("--drives is for the first start: the pool exists; add drives with `ashlar drive add PATH`");
    }
    json_decref(p.planned);
    return r;
}
