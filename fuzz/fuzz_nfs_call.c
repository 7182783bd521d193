/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFS: calls of every procedure of every program against a whole server, over a file system and a network in
 * memory and in virtual time. The first byte chooses how receives are cut and how slow the file system is.
 * Then comes call after call: a byte for the procedure, a byte for what is wrong with it (nothing, cut, too
 * long, a number changed, fragments, credentials), and its arguments, built by the procedure's grammar out of
 * handles that are good, names that are there, and the input's numbers. Every reply must be well framed and
 * belong to a call; afterwards nothing may be left: no stream, no page, no call.
 */
#include "fake_fs.h"
#include "loop_world.h"
#include "protocols/nfs/nfs.h"
#include "protocols/nfs/nfs_format.h"
#include "protocols/nfs/rpc_format.h"
#include "protocols/nfs/xdr.h"
#include "runtime/error.h"
#include "runtime/list.h"
#include "runtime/log.h"

#include <stdlib.h>
#include <sys/stat.h>

#define ADDRESS    "tcp:127.0.0.1:2049"
#define CALLS_MAX  48u
#define CALL_BYTES (192 * KIB)
#define HANDLES    6u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    const uint8_t *at, *end;
    uint8_t choice;
    struct fs *fs;
    struct nfs_server *server;
    struct stream *stream;
    struct latch done;
    uint32_t calls, replies;
    uint8_t call[CALL_BYTES + 4], reply[2 * MIB];
    struct {
        uint32_t len;
        uint8_t bytes[NFS3_HANDLE_MAX];
    } handles[HANDLES];
} fuzz;

/* ---- The input ---- */

static uint64_t take(uint32_t bytes)
{
    uint64_t v = 0;
    for (; bytes > 0 && fuzz.at < fuzz.end; bytes--)
        v = v << 8 | *fuzz.at++;
    return v;
}

/* Small numbers most of the time, and edges. */
static uint64_t take_number(void)
{
    static const uint64_t edges[] = {0,       1,          4095,      4096,       65535,
                                     1 << 20, UINT32_MAX, INT64_MAX, UINT64_MAX, (1 << 20) + 1};
    uint8_t b = (uint8_t)take(1);
    if (b < 160)
        return b;
    return b < 200 ? edges[b % ARRAY_SIZE(edges)] : take(b < 230 ? 2 : 8);
}

/* ---- Calls ---- */

/* h handle, n name, u number, U long number, s attributes, g guard, c how to create, d data, t node's type
 * and what belongs to it, p path. */
static const char *const nfs_grammar[NFS3_PROC_COUNT] = {
    [NFS3_NULL] = "",        [NFS3_GETATTR] = "h",         [NFS3_SETATTR] = "hsg",  [NFS3_LOOKUP] = "hn",
    [NFS3_ACCESS] = "hu",    [NFS3_READLINK] = "h",        [NFS3_READ] = "hUu",     [NFS3_WRITE] = "hUd",
    [NFS3_CREATE] = "hnc",   [NFS3_MKDIR] = "hns",         [NFS3_SYMLINK] = "hnsp", [NFS3_MKNOD] = "hnt",
    [NFS3_REMOVE] = "hn",    [NFS3_RMDIR] = "hn",          [NFS3_RENAME] = "hnhn",  [NFS3_LINK] = "hhn",
    [NFS3_READDIR] = "hUvu", [NFS3_READDIRPLUS] = "hUvuu", [NFS3_FSSTAT] = "h",     [NFS3_FSINFO] = "h",
    [NFS3_PATHCONF] = "h",   [NFS3_COMMIT] = "hUu"};
static const char *const mount_grammar[MOUNT3_PROC_COUNT] = {
    [MOUNT3_NULL] = "",  [MOUNT3_MNT] = "p",    [MOUNT3_DUMP] = "",
    [MOUNT3_UMNT] = "p", [MOUNT3_UMNTALL] = "", [MOUNT3_EXPORT] = ""};

static void put_handle(struct xdr_out *o)
{
    uint8_t b = (uint8_t)take(1);
    uint32_t i = b % HANDLES;
    xdr_put_opaque(o, fuzz.handles[i].bytes, fuzz.handles[i].len);
    if (b >= 192 && fuzz.handles[i].len > 0) /* forged */
        o->data[o->len - 1 - take(1) % fuzz.handles[i].len] ^= (uint8_t)(1 << b % 8);
}

static void put_name(struct xdr_out *o)
{
    static const char *const names[] = {"f", "d", "x", "y", ".", "..", "", "a/b", "l"};
    static const uint8_t longest[300] = "n";
    uint8_t b = (uint8_t)take(1);
    if (b < 240)
        xdr_put_opaque(o, names[b % ARRAY_SIZE(names)], (uint32_t)strlen(names[b % ARRAY_SIZE(names)]));
    else
        xdr_put_opaque(o, longest, 40 + b);
}

static void put_path(struct xdr_out *o)
{
    static const char *const paths[] = {"/a", "/a/d", "/a/d/f",   "/sub",  "/a/../a",
                                        "/",  "",     "/nothing", "/a//d/"};
    const char *p = paths[take(1) % ARRAY_SIZE(paths)];
    xdr_put_opaque(o, p, (uint32_t)strlen(p));
}

static void put_sattr(struct xdr_out *o)
{
    uint8_t b = (uint8_t)take(1);
    for (int i = 0; i < 3; i++) {
        xdr_put_bool(o, b >> i & 1);
        if (b >> i & 1)
            xdr_put_u32(o, (uint32_t)take_number());
    }
    xdr_put_bool(o, b >> 3 & 1);
    if (b >> 3 & 1)
        xdr_put_u64(o, take_number() % MIB);
    for (int i = 4; i < 8; i += 2) {
        xdr_put_u32(o, b >> i & 3);
        if ((b >> i & 3) == NFS3_CLIENT_TIME)
            xdr_put_u64(o, take_number());
    }
}

static void put_data(struct xdr_out *o)
{
    static const uint8_t bytes[128 * KIB] = {1, 2, 3};
    uint64_t n = take_number() * (take(1) % 4 == 0 ? 999 : 1);
    uint32_t len = (uint32_t)(n % sizeof(bytes));
    xdr_put_u32(o, take(1) > 250 ? 17 : len);
    xdr_put_u32(o, (uint32_t)take(1) % 4);
    xdr_put_opaque(o, bytes, len);
}

static void put_item(struct xdr_out *o, char what)
{
    uint32_t n;
    switch (what) {
    case 'h':
        put_handle(o);
        return;
    case 'n':
        put_name(o);
        return;
    case 'p':
        put_path(o);
        return;
    case 'u':
        xdr_put_u32(o, (uint32_t)take_number());
        return;
    case 'U':
        xdr_put_u64(o, take_number());
        return;
    case 'v': /* a verifier: none, or whatever */
        xdr_put_u64(o, take(1) < 200 ? 0 : take_number());
        return;
    case 's':
        put_sattr(o);
        return;
    case 'g':
        n = (uint32_t)take(1);
        xdr_put_bool(o, n > 200);
        if (n > 200)
            xdr_put_u64(o, take_number());
        return;
    case 'c':
        n = (uint32_t)take(1) % 4;
        xdr_put_u32(o, n);
        if (n == NFS3_EXCLUSIVE)
            xdr_put_u64(o, take_number());
        else
            put_sattr(o);
        return;
    case 't':
        xdr_put_u32(o, (uint32_t)take(1) % 9);
        put_sattr(o);
        xdr_put_u64(o, take_number());
        return;
    default:
        assert(what == 'd');
        put_data(o);
    }
}

static void put_head(struct xdr_out *o, uint32_t program, uint32_t version, uint32_t procedure, uint8_t wrong)
{
    xdr_put_u32(o, fuzz.calls);
    xdr_put_u32(o, RPC_CALL);
    xdr_put_u32(o, wrong == 1 ? 3 : RPC_VERSION);
    xdr_put_u32(o, wrong == 2 ? (uint32_t)take_number() : program);
    xdr_put_u32(o, wrong == 3 ? (uint32_t)take_number() : version);
    xdr_put_u32(o, wrong == 4 ? (uint32_t)take_number() : procedure);
    if (wrong == 5) { /* any credential */
        uint8_t body[64];
        uint32_t len = (uint32_t)take(1) % sizeof(body);
        for (uint32_t i = 0; i < len; i++)
            body[i] = (uint8_t)take(1);
        xdr_put_u32(o, (uint32_t)take(1) % 3);
        xdr_put_opaque(o, body, len);
    } else {
        uint32_t uid = take(1) % 2 ? 0 : 1000;
        xdr_put_u32(o, RPC_AUTH_SYS);
        xdr_put_u32(o, 20);
        xdr_put_u32(o, 0);
        xdr_put_u32(o, 0);
        xdr_put_u32(o, uid);
        xdr_put_u32(o, uid);
        xdr_put_u32(o, 0);
    }
    xdr_put_u32(o, RPC_AUTH_NONE);
    xdr_put_u32(o, 0);
}

/* Builds one call; its length. */
static uint32_t build(uint8_t *ret_wrong)
{
    uint8_t what = (uint8_t)take(1) % (NFS3_PROC_COUNT + MOUNT3_PROC_COUNT + 1), wrong = (uint8_t)take(1);
    struct xdr_out o = xdr_into(fuzz.call, CALL_BYTES);
    const char *grammar = "uuuu";
    if (what < NFS3_PROC_COUNT) {
        put_head(&o, RPC_PROGRAM_NFS, 3, what, wrong);
        grammar = nfs_grammar[what];
    } else if (what < NFS3_PROC_COUNT + MOUNT3_PROC_COUNT) {
        put_head(&o, RPC_PROGRAM_MOUNT, 3, what - NFS3_PROC_COUNT, wrong);
        grammar = mount_grammar[what - NFS3_PROC_COUNT];
    } else {
        put_head(&o, RPC_PROGRAM_PORTMAP, 2 + (uint32_t)take(1) % 3, (uint32_t)take(1) % 10, wrong);
    }
    for (; *grammar != '\0'; grammar++)
        put_item(&o, *grammar);
    if (wrong == 6)
        xdr_set_u32(&o, (uint32_t)take(2) % (o.len / 4) * 4, (uint32_t)take_number());
    if (wrong == 7)
        o.len -= (uint32_t)take(2) % o.len;
    if (wrong == 8)
        o.len = (uint32_t)MIN(o.len + take_number(), CALL_BYTES);
    *ret_wrong = wrong;
    return o.len;
}

static void sender(void *arg) may_yield
{
    (void)arg;
    int err = 0;
    while (err == 0 && fuzz.at < fuzz.end && fuzz.calls < CALLS_MAX) {
        uint8_t wrong;
        uint32_t len = build(&wrong), done = 0;
        uint32_t step = wrong >= 9 && wrong < 40 ? wrong * 7u : UINT32_MAX;
        step = MAX(step, len / 200 + 1);
        fuzz.calls++;
        do {
            uint32_t n = MIN(step, len - done);
            struct be32 mark = be32_make(n | (done + n == len ? RPC_FRAGMENT_LAST : 0));
            struct iovec iov[2] = {{&mark, sizeof(mark)}, {fuzz.call + done, n}};
            err = stream_sendv(fuzz.stream, iov, 2, DEADLINE_NEVER);
            done += n;
        } while (err == 0 && done < len);
    }
    latch_down(&fuzz.done);
}

static void reader(void *arg) may_yield
{
    (void)arg;
    struct be32 mark;
    while (stream_recv_all(fuzz.stream, &mark, sizeof(mark), DEADLINE_NEVER) == 0) {
        uint32_t len = be32_get(mark) & ~RPC_FRAGMENT_LAST;
        assert((be32_get(mark) & RPC_FRAGMENT_LAST) && len >= 20 && len <= sizeof(fuzz.reply));
        if (stream_recv_all(fuzz.stream, fuzz.reply, len, DEADLINE_NEVER) != 0)
            break;
        struct xdr x = xdr_over(fuzz.reply, len);
        xdr_u32(&x); /* the xid may have been changed by the input */
        assert(xdr_u32(&x) == RPC_REPLY);
        assert(xdr_u32(&x) <= RPC_DENIED && len % 4 == 0);
        fuzz.replies++;
        assert(fuzz.replies <= fuzz.calls);
    }
    latch_down(&fuzz.done);
}

/* ---- The server ---- */

static void get_handle(uint32_t index, const char *path) may_yield
{
    uint32_t len;
    struct be32 mark;
    struct xdr_out o = xdr_into(fuzz.call, CALL_BYTES);
    put_head(&o, RPC_PROGRAM_MOUNT, 3, MOUNT3_MNT, 0);
    xdr_put_opaque(&o, path, (uint32_t)strlen(path));
    mark = be32_make(o.len | RPC_FRAGMENT_LAST);
    int err = stream_send_all(fuzz.stream, &mark, sizeof(mark), DEADLINE_NEVER);
    assert(err == 0);
    err = stream_send_all(fuzz.stream, fuzz.call, o.len, DEADLINE_NEVER);
    assert(err == 0);
    err = stream_recv_all(fuzz.stream, &mark, sizeof(mark), DEADLINE_NEVER);
    assert(err == 0);
    len = be32_get(mark) & ~RPC_FRAGMENT_LAST;
    err = stream_recv_all(fuzz.stream, fuzz.reply, len, DEADLINE_NEVER);
    assert(err == 0);
    struct xdr x = xdr_over(fuzz.reply + 28, len - 28);
    const uint8_t *p = xdr_opaque(&x, NFS3_HANDLE_MAX, &fuzz.handles[index].len);
    assert(p != NULL);
    memcpy(fuzz.handles[index].bytes, p, fuzz.handles[index].len);
}

static void session(void) may_yield
{
    int err = stream_connect(ADDRESS, DEADLINE_NEVER, &fuzz.stream);
    assert(err == 0);
    get_handle(0, "/a");
    get_handle(1, "/a/d");
    get_handle(2, "/sub");
    get_handle(3, "/a/d/e");
    fuzz.handles[4].len = 0;
    fuzz.handles[5] = fuzz.handles[0];
    fuzz.handles[5].len = 63;
    fake_fs_knobs(fuzz.fs)->delay_ns = fuzz.choice & 16 ? 100000 : 0;
    fake_fs_knobs(fuzz.fs)->slow_ino = fuzz.choice & 8 ? FS_INO_ROOT : 0;
    latch_init(&fuzz.done, 2);
    err = fiber_spawn("sender", sender, NULL);
    assert(err == 0);
    err = fiber_spawn("reader", reader, NULL);
    assert(err == 0);
    err = fiber_sleep(fuzz.choice & 4 ? 150000 : 10 * NSEC_PER_SEC); /* or while it is at work */
    assert(err == 0);
    stream_shutdown(fuzz.stream);
    latch_wait(&fuzz.done);
    stream_close(fuzz.stream);
}

static void run(void *arg) may_yield
{
    (void)arg;
    struct nfs_server_options o = {.limits = {.requests = 8}};
    fuzz.fs = fake_fs_new(1);
    uint64_t d = fake_fs_add(fuzz.fs, FS_INO_ROOT, "d", S_IFDIR | 0777, NULL, 0);
    fake_fs_add(fuzz.fs, FS_INO_ROOT, "f", S_IFREG | 0666, "content", 7);
    fake_fs_add(fuzz.fs, d, "e", S_IFDIR | 0777, NULL, 0);
    struct nfs_export_options e = {.path = "/a", .fs = fuzz.fs, .squash = NFS_SQUASH_NONE};
    int err = nfs_server_start(&o, &fuzz.server);
    assert(err == 0);
    err = nfs_server_add_export(fuzz.server, &e);
    assert(err == 0);
    e.path = "/sub";
    e.root_ino = d;
    e.read_only = fuzz.choice & 1;
    err = nfs_server_add_export(fuzz.server, &e);
    assert(err == 0);
    err = nfs_server_listen(fuzz.server, ADDRESS);
    assert(err == 0);
    session();
    nfs_server_stop(fuzz.server);
    fake_fs_free(fuzz.fs);
}

/* One reactor for all inputs: making one costs more than most of them. */
static struct loop_world world;
static struct memory_budget budget = {.limit_bytes = 128 * MIB};
static struct reactor *reactor;

static void start(void)
{
    struct reactor_options o = {
        .world = &loop_world_ops, .world_ctx = &world, .budget = &budget, .chunk_bytes = 4 * MIB};
    log_set_level(LOG_ERROR_);
    loop_world_init(&world);
    world.base.shuffle = true;
    world.pipe_bytes = 16 * KIB;
    int err = reactor_new(&o, &reactor);
    assert(err == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t recv_max[] = {0, 0, 0, 0, 1, 29, 4097, 333};
    if (size < 1)
        return 0;
    if (reactor == NULL)
        start();
    fuzz.choice = data[0];
    fuzz.at = data + 1;
    fuzz.end = data + size;
    fuzz.calls = fuzz.replies = 0;
    world.recv_max = recv_max[data[0] >> 5];
    world.base.seed = size;
    int err = reactor_spawn(reactor, "fuzz", run, NULL);
    assert(err == 0);
    do {
        reactor_turn(reactor);
        struct reactor *before = reactor_enter(reactor);
        if (reactor_fiber_count(reactor) > 0)
            loop_world_ops.wait(reactor, reactor_next_deadline(reactor));
        reactor_enter(before);
    } while (reactor_fiber_count(reactor) > 0);
    uint64_t used, held;
    memory_usage(reactor_memory(reactor), &used, &held);
    assert(used == 0);
    assert(world.streams == 0 && list_empty(&world.listeners));
    return 0;
}
