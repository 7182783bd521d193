/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "runtime/error.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct loop_world world;
struct volume *volume;
struct block_device *device;
struct nbd_server *server;
struct nbd_limits limits;

int add(const char *name, bool read_only, const char *allow)
{
    struct nbd_export_options o = {.name = name, .device = device, .read_only = read_only, .allow = allow};
    return nbd_server_add_export(server, &o);
}

static void body_run(void *arg) may_yield
{
    void (*fn)(void) = *(void (**)(void))arg;
    volume = fake_volume_new(SIZE);
    struct nbd_server_options o = {.limits = limits};
    struct nbd_listen_options l = {.address = ADDRESS};
    CHECK_EQUAL(block_device_new(volume, 1, &device), 0);
    CHECK_EQUAL(nbd_server_start(&o, &server), 0);
    CHECK_EQUAL(nbd_server_listen(server, &l), 0);
    CHECK_EQUAL(add("rw", false, NULL), 0);
    fn();
    if (server != NULL)
        nbd_server_stop(server);
    CHECK_EQUAL(block_open_count(device), 0);
    block_device_free(device);
    fake_volume_free(volume);
}

void run_in(void (*fn)(void), uint64_t memory_bytes)
{
    check_failures = 0;
    loop_run(&world, memory_bytes, body_run, &fn);
    loop_world_done(&world);
    memset(&limits, 0, sizeof(limits));
    assert_int_equal(check_failures, 0);
}

void run(void (*fn)(void))
{
    static const size_t recv_max[] = {0, 0, 0, 1, 27, 4097};
    struct nbd_limits wanted = limits;
    for (size_t i = 0; i < ARRAY_SIZE(recv_max); i++) {
        loop_world_init(&world);
        world.recv_max = recv_max[i];
        world.base.shuffle = i > 0;
        world.base.seed = i + 1;
        limits = wanted;
        run_in(fn, 256 * MIB);
    }
}

void run_once(void (*fn)(void))
{
    loop_world_init(&world);
    run_in(fn, 256 * MIB);
}

void pattern(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        buf[i] = (uint8_t)(seed >> 56);
    }
}

uint32_t do_error(struct client *c, uint16_t type, uint16_t flags, uint64_t offset, uint32_t len, void *buf)
{
    struct client_result r;
    int err = client_do(c, type, flags, offset, len, buf, &r);
    CHECK_EQUAL(err, 0);
    return err == 0 ? r.error : UINT32_MAX;
}

const uint32_t wishes[4] = {CLIENT_EXPORT_NAME, 0, CLIENT_STRUCTURED, CLIENT_STRUCTURED | CLIENT_ALLOCATION};
