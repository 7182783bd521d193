/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ashlar inspect: any structure of a stopped pool, as the drives have it. Nothing is replayed and nothing is
 * written. Each view is a JSON value; without --json it is printed as indented lines.
 */
#include "cli/offline_inspect.h"

#include "runtime/error.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- Small values ---- */

json_t *inspect_uuid(struct uuid id)
{
    char text[UUID_TEXT_SIZE];
    uuid_format(id, text);
    return json_string(text);
}

json_t *inspect_number(uint64_t n)
{
    char text[24];
    if (n <= INT64_MAX)
        return json_integer((json_int_t)n);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
    return json_string(text);
}

json_t *inspect_pointer(const struct disk_node_pointer *p)
{
    struct le32 sum;
    json_t *j = json_object();
    memcpy(&sum, p->checksum, sizeof(sum));
    json_object_set_new(j, "group", inspect_number(le32_get(p->space)));
    json_object_set_new(j, "block", inspect_number(le64_get(p->block)));
    json_object_set_new(j, "blocks", inspect_number(le32_get(p->blocks)));
    json_object_set_new(j, "level", json_integer(p->level));
    json_object_set_new(j, "birth", inspect_number(le64_get(p->birth_logical)));
    json_object_set_new(j, "crc32c", json_integer(le32_get(sum)));
    return j;
}

/* ---- The whole pool ---- */

static json_t *records_view(struct offline *o) may_yield
{
    json_t *list = json_array();
    struct coord_record *records = NULL;
    size_t count = 0;
    int r = coord_list(o->node.coord, "/", &records, &count);
    if (r < 0)
        offline_problem(o, "pool", o->dir, "its records cannot be read: %s", error_text(r));
    for (size_t i = 0; i < count; i++) {
        json_t *value = json_loads(records[i].value, JSON_REJECT_DUPLICATES, NULL);
        json_array_append_new(list, json_pack("{so sI so}", "key", control_text(records[i].key), "revision",
                                              (json_int_t)records[i].revision, "value",
                                              value != NULL ? value : control_text(records[i].value)));
    }
    coord_records_free(records, count);
    return list;
}

static json_t *drives_view(struct offline *o) may_yield
{
    json_t *list = json_array();
    LIST_FOREACH (&o->node.drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        struct drive_info info;
        bool open = d->home != NULL && d->handles[0] != NULL && drive_get_info(d->handles[0], &info) == 0;
        json_t *j =
            json_pack("{so so ss}", "path", control_text(d->path), "drive", inspect_uuid(d->id), "state",
                      d->state == NODE_DRIVE_REMOVED ? "removed"
                      : open                         ? "ok"
                                                     : "missing");
        if (open && j != NULL) {
            json_object_set_new(j, "size_bytes", inspect_number(info.size_bytes));
            json_object_set_new(j, "slab_bytes", json_integer(info.slab_bytes));
            json_object_set_new(j, "slabs_total", json_integer(info.slabs_total));
            json_object_set_new(j, "slabs_free", json_integer(info.slabs_free));
        }
        json_array_append_new(list, j);
    }
    return list;
}

static void inspect_pool(struct offline *o) may_yield
{
    json_t *view = json_object();
    json_object_set_new(view, "dir", control_text(o->dir));
    json_object_set_new(view, "coordination_generation", inspect_number(coord_generation(o->node.coord)));
    json_object_set_new(view, "records", records_view(o));
    json_object_set_new(view, "drives", drives_view(o));
    inspect_of(o)->view = view;
}

static void inspect_body(struct offline *o) may_yield
{
    const char *blocks = cli_value(o->c, "blocks"), *volume = cli_value(o->c, "volume");
    if (o->dir[0] == '\0') {
        inspect_drive(o, o->c->args[0]);
        return;
    }
    if (offline_records_open(o) != 0 || offline_drives_open(o) != 0)
        return;
    if (blocks != NULL)
        inspect_blocks(o, blocks);
    else if (volume != NULL)
        inspect_volume(o, volume);
    else
        inspect_pool(o);
}

/* ---- Text ---- */

#define PRINT_DEPTH_MAX 8u

static bool is_flat(const json_t *value)
{
    return !json_is_object(value) && !json_is_array(value);
}

static void print_flat(FILE *out, const json_t *value)
{
    if (json_is_string(value)) {
        fputs(json_string_value(value), out);
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    fputs(text != NULL ? text : "?", out);
    free(text);
}

/* An object is a line of its flat members, and its others indented below it; an array one line an element.
 * Recursion ends at PRINT_DEPTH_MAX; views are not that deep. */
static void print_value(FILE *out, const json_t *value, uint32_t depth)
{
    const char *key;
    json_t *member;
    size_t i;
    bool first = true;
    if (depth > PRINT_DEPTH_MAX)
        return;
    if (is_flat(value)) {
        fprintf(out, "%*s", (int)(2 * depth), "");
        print_flat(out, value);
        fputc('\n', out);
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, member) print_value(out, member, depth);
    } else {
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            if (!is_flat(member))
                continue;
            fprintf(out, first ? "%*s%s=" : "%*s  %s=", first ? (int)(2 * depth) : 0, "", key);
            print_flat(out, member);
            first = false;
        }
        if (!first)
            fputc('\n', out);
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            if (is_flat(member))
                continue;
            fprintf(out, "%*s%s:\n", (int)(2 * depth), "", key);
            print_value(out, member, depth + 1);
        }
    }
}

static void problems_print(struct offline *o)
{
    size_t i;
    json_t *p;
    json_array_foreach(o->problems, i, p) fprintf(o->c->err, "! %s %s: %s\n", json_text(p, "about"),
                                                  json_text(p, "name"), json_text(p, "text"));
}

int cmd_inspect(struct cli *c)
{
    bool of_volume = cli_flag(c, "roots") || cli_flag(c, "log") || cli_flag(c, "tree") ||
                     cli_flag(c, "head") || cli_flag(c, "groups") || cli_flag(c, "extents") ||
                     cli_value(c, "block") != NULL;
    if (of_volume && cli_value(c, "volume") == NULL)
        return cli_wrong(c, "name the volume with --volume");
    if (cli_value(c, "blocks") != NULL && cli_value(c, "volume") != NULL)
        return cli_wrong(c, "--blocks is of all volumes: leave out --volume");
    struct inspect *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        (void)cli_failed(c, "", "%s", error_text(ERR_NO_MEMORY));
        return OFFLINE_FAILED;
    }
    int r = offline_run(&k->base, c, c->args[0], inspect_body);
    if (r != OFFLINE_FAILED) {
        if (c->json)
            (void)cli_print_json(c, json_incref(k->view));
        else if (k->view != NULL)
            print_value(c->out, k->view, 0);
        problems_print(&k->base);
    }
    json_decref(k->view);
    json_decref(k->base.problems);
    json_decref(k->base.notes);
    free(k);
    return r;
}
