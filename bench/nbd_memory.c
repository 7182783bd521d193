/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NBD server over volumes in memory: what the protocol and the sockets cost, without a volume's work.
 *
 *    nbd_memory ADDRESS SIZE_MIB [fill]      as "tcp:127.0.0.1:10810" or "unix:/tmp/x.sock"
 *
 * Exports "mem" and the read-only "ro". Ends with SIGTERM or SIGINT, and then says what it served.
 */
#include "fake_volume.h"
#include "protocols/nbd/nbd.h"
#include "runtime/error.h"
#include "runtime/world_real.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *address;
static uint64_t size_bytes;
static bool fill;
static int ending; /* atomic; set by the signal */

static void on_signal(int number)
{
    (void)number;
    __atomic_store_n(&ending, 1, __ATOMIC_RELAXED);
}

static void fill_volume(struct volume *v)
{
    uint64_t *buf = malloc(MIB), x = 1;
    assert(buf != NULL);
    for (uint64_t at = 0; at < size_bytes; at += MIB) {
        for (size_t i = 0; i < MIB / 8; i++)
            buf[i] = x = x * UINT64_C(6364136223846793005) + 1;
        fake_volume_poke(v, at, buf, MIB);
    }
    free(buf);
}

static void serve(void *arg) may_yield
{
    (void)arg;
    struct volume *v = fake_volume_new(size_bytes);
    if (fill)
        fill_volume(v);
    struct block_device *d;
    struct nbd_server *s;
    struct nbd_server_options o = {0};
    struct nbd_listen_options l = {.address = address};
    struct nbd_export_options rw = {.name = "mem", .description = "in memory", .device = NULL};
    int err = block_device_new(v, 1, &d);
    rw.device = d;
    struct nbd_export_options ro = {.name = "ro", .device = d, .read_only = true};
    if (err == 0)
        err = nbd_server_start(&o, &s);
    if (err == 0)
        err = nbd_server_listen(s, &l);
    if (err == 0)
        err = nbd_server_add_export(s, &rw);
    if (err == 0)
        err = nbd_server_add_export(s, &ro);
    if (err != 0) {
        fprintf(stderr, "nbd_memory: %s\n", error_text(err));
        exit(1);
    }
    printf("%s\n", nbd_server_address(s, 0));
    fflush(stdout);
    while (!__atomic_load_n(&ending, __ATOMIC_RELAXED) && fiber_sleep(100 * NSEC_PER_MSEC) == 0) {
    }
    struct nbd_export_status status;
    err = nbd_server_get_export(s, "mem", &status);
    assert(err == 0);
    printf("%lu requests, %lu errors, %lu bytes in, %lu out, %lu merges\n", status.requests, status.errors,
           status.bytes_in, status.bytes_out, block_merge_count(d));
    nbd_server_stop(s);
    block_device_free(d);
    fake_volume_free(v);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: nbd_memory ADDRESS SIZE_MIB [fill]\n");
        return 2;
    }
    address = argv[1];
    size_bytes = strtoull(argv[2], NULL, 10) * MIB;
    fill = argc > 3;
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    struct memory_budget budget = {.limit_bytes = size_bytes + 256 * MIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    if (err == 0)
        err = reactor_spawn(r, "serve", serve, NULL);
    if (err != 0) {
        fprintf(stderr, "nbd_memory: %s\n", error_text(err));
        return 1;
    }
    reactor_stop(r);
    err = reactor_run(r);
    reactor_free(r);
    return err != 0;
}
