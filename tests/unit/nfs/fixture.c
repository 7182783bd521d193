/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct loop_world world;
struct fs *fs;
struct nfs_server *server;
struct nfs_limits limits;
#define EXPORT_A                                                                                     \
    {                                                                                                \
        .path = "/a", .squash = NFS_SQUASH_NONE, .anon_uid = 65534, .anon_gid = 65534, .clients = "" \
    }
struct nfs_export_options export_a = EXPORT_A;

static void body_run(void *arg) may_yield
{
    void (*fn)(void) = *(void (**)(void))arg;
    struct nfs_server_options o = {.limits = limits};
    fs = fake_fs_new(1);
    export_a.fs = fs;
    CHECK_EQUAL(nfs_server_start(&o, &server), 0);
    CHECK_EQUAL(nfs_server_add_export(server, &export_a), 0);
    CHECK_EQUAL(nfs_server_listen(server, ADDRESS), 0);
    fn();
    if (server != NULL)
        nfs_server_stop(server);
    fake_fs_free(fs);
}

static void run_in(void (*fn)(void))
{
    check_failures = 0;
    loop_run(&world, 256 * MIB, body_run, &fn);
    loop_world_done(&world);
    assert_int_equal(check_failures, 0);
}

void run(void (*fn)(void))
{
    static const size_t recv_max[] = {0, 0, 0, 1, 27, 4097};
    for (size_t i = 0; i < ARRAY_SIZE(recv_max); i++) {
        loop_world_init(&world);
        world.recv_max = recv_max[i];
        world.base.shuffle = i > 0;
        world.base.seed = i + 1;
        run_in(fn);
    }
    memset(&limits, 0, sizeof(limits));
    export_a = (struct nfs_export_options)EXPORT_A;
}

void run_once(void (*fn)(void))
{
    loop_world_init(&world);
    run_in(fn);
    memset(&limits, 0, sizeof(limits));
    export_a = (struct nfs_export_options)EXPORT_A;
}

void open_a(struct client *c, struct handle *root)
{
    CHECK_EQUAL(client_open(c, ADDRESS), 0);
    CHECK_EQUAL(client_mount(c, "/a", root), MNT3_OK);
}

void pattern(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        buf[i] = (uint8_t)(seed >> 56);
    }
}
