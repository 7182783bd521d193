/* SPDX-License-Identifier: Apache-2.0 */
/* mount and umount: the only commands that become a process of their own and do not ask the node over its
 * control socket. */
#include "cli/cli.h"
#include "protocols/fuse/fuse_client.h"

#include <stdlib.h>
#include <unistd.h>

#define TIMEOUT_MS 60000u
#define WAIT_MS    3000u

/* fs.sock beside the control socket. */
static const char *fs_socket(const struct cli *c, char *out, size_t size)
{
    const char *given = cli_value(c, "fs-socket");
    if (given != NULL)
        return given;
    const char *slash = strrchr(c->socket, '/');
    int folder_len = slash != NULL ? (int)(slash - c->socket) + 1 : 0;
    snprintf(out, size, "%.*sfs.sock", folder_len, c->socket);
    return out;
}

int cmd_mount(struct cli *c)
{
    char path[4200], bad[64];
    const char *options = cli_value(c, "options");
    struct fuse_mount_options o = {
        .socket = fs_socket(c, path, sizeof(path)),
        .name = c->args[0],
        .dir = c->args[1],
        .foreground = cli_flag(c, "foreground"),
        .allow_other = geteuid() == 0,
        .writeback = cli_flag(c, "writeback"),
        .attr_timeout_ms = TIMEOUT_MS,
        .entry_timeout_ms = TIMEOUT_MS,
        .wait_ms = WAIT_MS,
    };
    if (options != NULL && fuse_mount_options_add(&o, options, bad, sizeof(bad)) != 0)
        return cli_wrong(c, "\"%s\" is not a mount option", bad);
    return fuse_client_mount(&o, c->err) == 0 ? CLI_OK : CLI_FAILED;
}

int cmd_umount(struct cli *c)
{
    bool force = cli_flag(c, "force"), lazy = cli_flag(c, "lazy");
    return fuse_client_unmount(c->args[0], force, lazy, c->err) == 0 ? CLI_OK : CLI_FAILED;
}
