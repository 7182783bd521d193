/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is destroyed without --yes or a person who says so. */
#include "cli/cli.h"

#include <ctype.h>
#include <stdarg.h>
#include <unistd.h>

bool confirm_answer(const char *line)
{
    while (isspace((unsigned char)*line))
        line++;
    size_t len = strcspn(line, " \t\r\n");
    if (line[len + strspn(line + len, " \t\r\n")] != '\0')
        return false;
    return (len == 1 && (line[0] == 'y' || line[0] == 'Y')) || (len == 3 && strncasecmp(line, "yes", 3) == 0);
}

bool cli_confirm(struct cli *c, const char *fmt, ...)
{
    char question[512], answer[64];
    va_list ap;
    if (cli_flag(c, "yes"))
        return true;
    va_start(ap, fmt);
    vsnprintf(question, sizeof(question), fmt, ap);
    va_end(ap);
    if (!isatty(STDIN_FILENO)) {
        (void)cli_failed(c, "Nobody is there to ask: give --yes if you mean it.", "%s", question);
        return false;
    }
    fprintf(c->err, "%s\nGo on? [y/N] ", question);
    fflush(c->err);
    if (fgets(answer, sizeof(answer), stdin) != NULL && confirm_answer(answer))
        return true;
    fputs("Nothing was done.\n", c->err);
    return false;
}
