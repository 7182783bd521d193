/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NSM version 1: who restarted. Clients tell us when they did (NOTIFY), and their locks go. We tell clients
 * with locks when we did; their locks are still here, and claiming them again does no harm.
 *
 * We monitor nobody for others: MON and its like are for the programs of one machine.
 */
#include "protocols/nfs/nlm.h"

#include "protocols/nfs/rpc_client.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- A client restarted ---- */

struct restarted {
    struct nfs_shard *shard;
    struct nfs_export *export;
    const char *client;
};

static int clear_here(void *arg) may_yield
{
    struct restarted *w = arg;
    return fs_lock_clear_client(w->export->fs, FS_LOCK_NLM, w->client, 0, NULL, 0);
}

/* The call may run on any reactor: of the exports it may look at its shard's table only, and that changes
 * whenever it waits. So their tags are taken first. */
static uint32_t *tags_of(const struct nfs_shard *shard, uint32_t *ret_count)
{
    uint32_t count = 0, *tags = calloc(shard->table_size + 1, sizeof(*tags));
    for (uint32_t i = 0; tags != NULL && i < shard->table_size; i++) {
        if (shard->table[i] != NULL && shard->table[i]->fs != NULL)
            tags[count++] = shard->table[i]->tag;
    }
    *ret_count = count;
    return tags;
}

/* In every file system that is exported; in one with several exports more than once, which does no harm. */
static void clear_everywhere(struct nfs_call *call, const char *client) may_yield
{
    uint32_t count, *tags = tags_of(call->shard, &count);
    if (tags == NULL)
        LOG_WARNING("the locks of %s could not be taken back: %s", client, error_text(ERR_NO_MEMORY));
    for (uint32_t i = 0; i < count; i++) {
        struct nfs_export *e = nfs_export_hold(call->shard, tags[i]);
        if (e == NULL)
            continue;
        struct restarted w = {.shard = e->shard, .export = e, .client = client};
        int r = e->fs != NULL ? nfs_call_on(call, e->shard, clear_here, &w) : 0;
        nfs_export_release(e);
        if (r < 0)
            LOG_WARNING("the locks of %s could not be taken back: %s", client, error_text(r));
    }
    free(tags);
}

void nsm_client_restarted(struct nfs_call *call, const char *name, uint32_t len)
{
    char client[FS_LOCK_CLIENT_MAX + 1];
    const char *dot = memchr(name, '.', len);
    uint32_t lens[2] = {len, dot != NULL ? (uint32_t)(dot - name) : len};
    if (memchr(name, 0, len) != NULL)
        return;
    /* It may call itself by its full name here, and by the short one there. */
    for (int i = 0; i < (lens[1] != lens[0] ? 2 : 1); i++) {
        int n = snprintf(client, sizeof(client), "%s/%.*s", call->peer->ip, (int)lens[i], name);
        if (n > 0 && n < (int)sizeof(client))
            clear_everywhere(call, client);
    }
}

static int nsm_notify(struct nfs_call *call) may_yield
{
    uint32_t len;
    const char *name = (const char *)xdr_opaque(&call->args, NLM_NAME_MAX, &len);
    (void)xdr_u32(&call->args);
    if (call->args.bad)
        return RPC_GARBAGE_ARGUMENTS;
    nsm_client_restarted(call, name, len);
    return RPC_SUCCESS;
}

/* ---- Questions ---- */

/* Odd while we run, and more with every start. */
static uint32_t nsm_state(void)
{
    return (uint32_t)(world_wall_ns() / NSEC_PER_SEC) << 1 | 1;
}

static int nsm_null(struct nfs_call *call)
{
    (void)call;
    return RPC_SUCCESS;
}

static int nsm_refuse(struct nfs_call *call)
{
    xdr_put_u32(&call->out, NSM1_FAIL);
    xdr_put_u32(&call->out, nsm_state());
    return RPC_SUCCESS;
}

static int nsm_state_only(struct nfs_call *call)
{
    xdr_put_u32(&call->out, nsm_state());
    return RPC_SUCCESS;
}

static const struct rpc_procedure nsm1_procedures[NSM1_PROC_COUNT] = {
    [NSM1_NULL] = {"NULL", nsm_null},
    [NSM1_STAT] = {"STAT", nsm_refuse},
    [NSM1_MON] = {"MON", nsm_refuse},
    [NSM1_UNMON] = {"UNMON", nsm_state_only},
    [NSM1_UNMON_ALL] = {"UNMON_ALL", nsm_state_only},
    [NSM1_SIMU_CRASH] = {"SIMU_CRASH", nsm_null},
    [NSM1_NOTIFY] = {"NOTIFY", nsm_notify},
};
static const struct rpc_version nsm_versions[] = {{nsm1_procedures, NSM1_PROC_COUNT}};
const struct rpc_program nsm_program = {
    .name = "status",
    .number = RPC_PROGRAM_NSM,
    .low = NSM1_VERSION,
    .high = NSM1_VERSION,
    .versions = nsm_versions,
    .datagrams = true,
    .local = true,
};
