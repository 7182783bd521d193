/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    struct cli c = {.out = stdout, .err = stderr, .socket = getenv("ASHLAR_SOCK")};
    bool done = false;
    if (c.socket == NULL || c.socket[0] == '\0')
        c.socket = CLI_SOCKET;
    int r = cli_parse(&c, argc - 1, argv + 1, &done);
    if (r == CLI_OK && !done)
        r = c.command->run(&c);
    if ((fflush(stdout) != 0 || ferror(stdout)) && r == CLI_OK) {
        /* A full disk: what was asked for was not delivered. */
        fputs("ashlar: the answer could not be written\n", stderr);
        r = CLI_FAILED;
    }
    return r;
}
