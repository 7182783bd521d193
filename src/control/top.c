/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live figures: two looks at all counters, and what happened between them. Latencies are of that time alone,
 * so the histograms of both looks are subtracted.
 */
#include "control/top.h"

#include <stdlib.h>

/* The counters of one drive or one volume, by id. */
struct look_item {
    struct uuid id;
    char name[NODE_PATH_MAX];
    uint64_t reads, writes, flushes, read_bytes, write_bytes, errors;
    uint32_t queue;
    struct histogram read_latency, write_latency, flush_latency;
};
struct look_cache {
    struct cache_stats stats;
    uint64_t used_bytes, held_bytes;
};
struct look {
    uint64_t at_ns;
    uint32_t drive_count, volume_count;
    struct look_item *drives, *volumes;
    struct look_fs *file_systems;
    uint32_t fs_count;
    struct look_cache caches[NODE_REACTORS_MAX];
};

static void look_free(struct look *l)
{
    if (l == NULL)
        return;
    free(l->drives);
    free(l->volumes);
    free(l->file_systems);
    free(l);
}

/* ---- Taking a look ---- */

struct queue_work {
    struct drive *handle;
    uint32_t depth;
};

static int queue_here(void *arg)
{
    struct queue_work *w = arg;
    w->depth = drive_queue_depth(w->handle);
    return 0;
}

static int drives_look(struct node *n, struct look *l) may_yield
{
    uint32_t count = 0;
    LIST_FOREACH (&n->drives, it) {
        count++;
    }
    l->drives = calloc(count + 1, sizeof(struct look_item));
    if (l->drives == NULL)
        return ERR_NO_MEMORY;
    LIST_FOREACH (&n->drives, it) {
        struct node_drive *d = CONTAINER_OF(it, struct node_drive, link);
        struct drive_info info;
        if (l->drive_count == count || d->state != NODE_DRIVE_IN_USE || d->handles[0] == NULL ||
            drive_get_info(d->handles[0], &info) < 0)
            continue;
        struct look_item *i = &l->drives[l->drive_count++];
        *i = (struct look_item){.id = d->id,
                                .reads = info.reads,
                                .writes = info.writes,
                                .flushes = info.flushes,
                                .read_bytes = info.read_bytes,
                                .write_bytes = info.write_bytes,
                                .errors = info.errors,
                                .read_latency = info.read_latency,
                                .write_latency = info.write_latency,
                                .flush_latency = info.flush_latency};
        memcpy(i->name, d->path, sizeof(i->name));
        for (uint32_t r = 0; r < n->reactor_count; r++) {
            struct queue_work w = {.handle = d->handles[r]};
            if (w.handle != NULL && reactor_call(n->reactors[r].reactor, queue_here, &w) == 0)
                i->queue += w.depth;
        }
    }
    return 0;
}

static int volumes_look(struct node *n, struct look *l) may_yield
{
    struct node_volume **volumes;
    uint32_t count;
    int r = node_volumes_snapshot(n, &volumes, &count);
    if (r < 0)
        return r;
    l->volumes = calloc(count + 1, sizeof(struct look_item));
    for (uint32_t i = 0; l->volumes != NULL && i < count; i++) {
        struct volume_status s;
        if (node_volume_status(n, volumes[i], &s) < 0)
            continue;
        struct look_item *v = &l->volumes[l->volume_count++];
        *v = (struct look_item){.id = volumes[i]->id,
                                .reads = s.reads,
                                .writes = s.writes,
                                .flushes = s.flushes,
                                .read_bytes = s.read_blocks * BLOCK_SIZE,
                                .write_bytes = s.write_blocks * BLOCK_SIZE};
        memcpy(v->name, volumes[i]->name, sizeof(volumes[i]->name));
        node_export_stats(n, volumes[i], &v->queue, &v->read_latency, &v->write_latency, &v->flush_latency);
    }
    node_volumes_release(volumes, count);
    return l->volumes != NULL ? 0 : ERR_NO_MEMORY;
}

struct cache_work {
    struct node_reactor *at;
    struct look_cache *ret;
};

static int cache_here(void *arg)
{
    struct cache_work *w = arg;
    cache_get_stats(w->at->cache, &w->ret->stats);
    memory_usage(reactor_memory(w->at->reactor), &w->ret->used_bytes, &w->ret->held_bytes);
    return 0;
}

static int look_take(struct node *n, struct look **ret) may_yield
{
    struct look *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return ERR_NO_MEMORY;
    l->at_ns = reactor_now_ns();
    int r = drives_look(n, l);
    if (r == 0)
        r = volumes_look(n, l);
    if (r == 0)
        r = look_fs_take(n, &l->file_systems, &l->fs_count);
    for (uint32_t i = 0; r == 0 && i < n->reactor_count; i++) {
        struct cache_work w = {.at = &n->reactors[i], .ret = &l->caches[i]};
        r = reactor_call(n->reactors[i].reactor, cache_here, &w);
    }
    if (r < 0) {
        look_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

/* ---- The difference of two ---- */

struct histogram look_histogram_minus(const struct histogram *now, const struct histogram *before)
{
    struct histogram h = *now;
    if (now->count < before->count)
        return h;
    h.count -= before->count;
    h.sum_ns = look_minus(now->sum_ns, before->sum_ns);
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        h.buckets[i] = (uint32_t)look_minus(now->buckets[i], before->buckets[i]);
    return h;
}

json_t *control_latency_json(const struct histogram *h)
{
    if (h->count == 0)
        return json_null();
    return json_pack("{sf sf sf}", "mean_us", (double)h->sum_ns / (double)h->count / 1000.0, "p50_us",
                     (double)histogram_percentile_ns(h, 0.5) / 1000.0, "p99_us",
                     (double)histogram_percentile_ns(h, 0.99) / 1000.0);
}

static const struct look_item *item_find(const struct look_item *items, uint32_t count, struct uuid id)
{
    static const struct look_item none;
    for (uint32_t i = 0; i < count; i++)
        if (uuid_equal(items[i].id, id))
            return &items[i];
    return &none;
}

static json_t *latency_between(const struct histogram *now, const struct histogram *before)
{
    struct histogram h = look_histogram_minus(now, before);
    return control_latency_json(&h);
}

static json_t *item_json(const struct look_item *now, const struct look_item *before, double seconds,
                         const char *name_key)
{
    return json_pack("{so sf sf sf sf sf sI si so so so}", name_key, control_text(now->name), "reads_per_s",
                     (double)look_minus(now->reads, before->reads) / seconds, "writes_per_s",
                     (double)look_minus(now->writes, before->writes) / seconds, "flushes_per_s",
                     (double)look_minus(now->flushes, before->flushes) / seconds, "read_bytes_per_s",
                     (double)look_minus(now->read_bytes, before->read_bytes) / seconds, "write_bytes_per_s",
                     (double)look_minus(now->write_bytes, before->write_bytes) / seconds, "errors",
                     (json_int_t)now->errors, "queue", (int)now->queue, "read_latency",
                     latency_between(&now->read_latency, &before->read_latency), "write_latency",
                     latency_between(&now->write_latency, &before->write_latency), "flush_latency",
                     latency_between(&now->flush_latency, &before->flush_latency));
}

static json_t *items_json(const struct look_item *now, uint32_t count, const struct look_item *before,
                          uint32_t before_count, double seconds, const char *name_key)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(
            list, item_json(&now[i], item_find(before, before_count, now[i].id), seconds, name_key));
    return list;
}

static json_t *cache_json(struct node *n, const struct look *now, const struct look *before)
{
    struct cache_stats sum = {0};
    uint64_t used = 0, held = 0, hits = 0, misses = 0, evictions = 0;
    for (uint32_t i = 0; i < n->reactor_count; i++) {
        const struct look_cache *c = &now->caches[i], *b = &before->caches[i];
        hits += look_minus(c->stats.hits, b->stats.hits);
        misses += look_minus(c->stats.misses, b->stats.misses);
        evictions += look_minus(c->stats.evictions, b->stats.evictions);
        sum.pages += c->stats.pages;
        sum.dirty_pages += c->stats.dirty_pages;
        used += c->used_bytes;
        held += c->held_bytes;
    }
    json_t *o =
        json_pack("{sI sI sI sI sI sI sI sI}", "hits", (json_int_t)hits, "misses", (json_int_t)misses,
                  "evictions", (json_int_t)evictions, "cached_bytes", (json_int_t)(sum.pages * BLOCK_SIZE),
                  "dirty_bytes", (json_int_t)(sum.dirty_pages * BLOCK_SIZE), "used_bytes", (json_int_t)used,
                  "held_bytes", (json_int_t)held, "limit_bytes", (json_int_t)n->budget->limit_bytes);
    if (o != NULL && hits + misses > 0)
        json_object_set_new(o, "hit_ratio", json_real((double)hits / (double)(hits + misses)));
    return o;
}

static json_t *sample_json(struct node *n, const struct look *now, const struct look *before)
{
    double seconds = (double)(now->at_ns - before->at_ns) / (double)NSEC_PER_SEC;
    if (seconds <= 0)
        seconds = 1;
    return json_pack(
        "{sf so so so so}", "seconds", seconds, "drives",
        items_json(now->drives, now->drive_count, before->drives, before->drive_count, seconds, "path"),
        "volumes",
        items_json(now->volumes, now->volume_count, before->volumes, before->volume_count, seconds, "name"),
        "file_systems",
        look_fs_json(now->file_systems, now->fs_count, before->file_systems, before->fs_count, seconds),
        "cache", cache_json(n, now, before));
}

int control_top(struct control_call *call, const json_t *request, json_t **ret_result)
{
    uint64_t interval_ms = MAX(control_arg_uint(request, "interval_ms", 1000), 50u);
    uint64_t count = control_arg_uint(request, "count", 0); /* 0: until the client leaves */
    struct look *before = NULL;
    int r = look_take(call->node, &before);
    for (uint64_t i = 0; r == 0 && (count == 0 || i < count); i++) {
        struct look *now = NULL;
        r = control_pause(call, interval_ms * NSEC_PER_MSEC);
        if (r == 0)
            r = look_take(call->node, &now);
        if (r == 0)
            r = control_send(call, "sample", sample_json(call->node, now, before));
        if (now != NULL) {
            look_free(before);
            before = now;
        }
    }
    look_free(before);
    if (r == ERR_SHUTDOWN || r == ERR_NO_MEMORY)
        return control_fail_err(call, r, "no figures");
    return r;
}
