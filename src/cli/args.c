/* SPDX-License-Identifier: Apache-2.0 */
/* From words to a command with its options; help and suggestions. Pure but for what it prints. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>

/* ---- Suggestions ---- */

uint32_t cli_distance(const char *a, const char *b)
{
    enum { MAX_LEN = 64 };
    uint32_t row[MAX_LEN + 1];
    uint32_t a_len = (uint32_t)strnlen(a, MAX_LEN), b_len = (uint32_t)strnlen(b, MAX_LEN);
    for (uint32_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (uint32_t i = 1; i <= a_len; i++) {
        uint32_t diagonal = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= b_len; j++) {
            uint32_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = MIN(change, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

static size_t first_word_len(const char *name)
{
    return strcspn(name, " ");
}

static bool is_group(const char *word)
{
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++)
        if (k->name[first_word_len(k->name)] == ' ' && strlen(word) == first_word_len(k->name) &&
            strncmp(k->name, word, strlen(word)) == 0)
            return true;
    return false;
}

/* The nearest command to what was typed, if it is near at all. */
static const char *suggestion(const char *typed)
{
    const char *best = NULL;
    uint32_t best_distance = UINT32_MAX;
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++) {
        uint32_t d = cli_distance(typed, k->name);
        if (d < best_distance) {
            best_distance = d;
            best = k->name;
        }
    }
    return best_distance <= MAX(strlen(typed) / 3, 1u) ? best : NULL;
}

/* ---- Help ---- */

static void option_print(const struct cli_option *o, FILE *out)
{
    char left[64];
    snprintf(left, sizeof(left), "--%s%s%s", o->name, o->value != NULL ? " " : "",
             o->value != NULL ? o->value : "");
    fprintf(out, "  %-20s %s\n", left, o->help);
}

static void summary_print(const struct cli_command *k, FILE *out)
{
    char left[64];
    snprintf(left, sizeof(left), "%s %s", k->name, k->args);
    fprintf(out, "  %-26s %s\n", left, k->summary);
}

static void globals_print(FILE *out)
{
    fputs("\nWith every command:\n", out);
    for (const struct cli_option *o = cli_global_options; o->name != NULL; o++)
        option_print(o, out);
}

void cli_help_all(FILE *out)
{
    fputs("Usage: ashlar [-s SOCKET] COMMAND …\n"
          "Talks to a node (ashlard) through its control socket.\n\n",
          out);
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++)
        summary_print(k, out);
    globals_print(out);
    fputs("\nashlar COMMAND --help tells more. Sizes: 4096, 512M, 10G, 1.5T. Exit codes: 0 done, 1 failed, 2 "
          "wrong\n"
          "usage.\n",
          out);
}

static void help_group(const char *group, FILE *out)
{
    size_t len = strlen(group);
    fprintf(out, "Usage: ashlar %s COMMAND …\n\n", group);
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++)
        if (strncmp(k->name, group, len) == 0 && k->name[len] == ' ')
            summary_print(k, out);
}

void cli_help_command(const struct cli_command *k, FILE *out)
{
    fprintf(out, "Usage: ashlar %s%s%s%s\n%s.\n", k->name, k->args[0] != '\0' ? " " : "", k->args,
            k->options != NULL ? " [OPTION]…" : "", k->summary);
    if (k->help != NULL)
        fprintf(out, "\n%s", k->help);
    if (k->options != NULL)
        fputc('\n', out);
    for (const struct cli_option *o = k->options; o != NULL && o->name != NULL; o++)
        option_print(o, out);
    globals_print(out);
}

int cli_wrong(struct cli *c, const char *fmt, ...)
{
    va_list ap;
    fputs("ashlar: ", c->err);
    va_start(ap, fmt);
    vfprintf(c->err, fmt, ap);
    va_end(ap);
    if (c->command != NULL)
        fprintf(c->err, "\nUsage: ashlar %s %s\nTry: ashlar %s --help\n", c->command->name, c->command->args,
                c->command->name);
    else
        fputs("\nTry: ashlar --help\n", c->err);
    return CLI_USAGE;
}

/* ---- Options ---- */

static const struct cli_option *option_find(const struct cli_option *list, const char *name, size_t len)
{
    for (const struct cli_option *o = list; o != NULL && o->name != NULL; o++)
        if (strlen(o->name) == len && strncmp(o->name, name, len) == 0)
            return o;
    return NULL;
}

static int option_keep(struct cli *c, const struct cli_option *o, const char *value)
{
    uint32_t i = 0;
    while (i < c->given_count && c->given[i].option != o)
        i++;
    if (i == c->given_count) {
        assert(c->given_count < CLI_OPTIONS_MAX);
        c->given[c->given_count].option = o;
        c->given[c->given_count++].count = 0;
    }
    if (!o->many)
        c->given[i].count = 0; /* the last one counts */
    if (c->given[i].count == CLI_LIST_MAX)
        return cli_wrong(c, "--%s takes at most %u values", o->name, CLI_LIST_MAX);
    c->given[i].values[c->given[i].count++] = value;
    return CLI_OK;
}

static void global_keep(struct cli *c, const struct cli_option *o, const char *value)
{
    if (strcmp(o->name, "socket") == 0)
        c->socket = value;
    else if (strcmp(o->name, "json") == 0)
        c->json = true;
    else
        c->help = true;
}

/* The words of a command line that are left. */
struct words {
    int count;
    char *const *at;
};

static const char *word_next(struct words *w)
{
    if (w->count == 0)
        return NULL;
    w->count--;
    return *w->at++;
}

/* One word that begins with '-'. */
static int option_parse(struct cli *c, const char *word, struct words *rest)
{
    const char *name = word + 2, *value = NULL;
    if (strcmp(word, "-s") == 0)
        name = "socket";
    else if (strcmp(word, "-h") == 0)
        name = "help";
    else if (strcmp(word, "-o") == 0) /* as mount(8) */
        name = "options";
    else if (strcmp(word, "-f") == 0)
        name = "foreground";
    else if (strncmp(word, "--", 2) != 0)
        return cli_wrong(c, "there is no option %s", word);
    size_t len = strcspn(name, "=");
    const struct cli_option *o = option_find(cli_global_options, name, len);
    bool global = o != NULL;
    if (o == NULL && c->command != NULL)
        o = option_find(c->command->options, name, len);
    if (o == NULL)
        return cli_wrong(c, "there is no option --%.*s here", (int)len, name);
    if (name[len] == '=')
        value = name + len + 1;
    if (o->value == NULL && value != NULL)
        return cli_wrong(c, "--%s takes no value", o->name);
    if (o->value != NULL && value == NULL)
        value = word_next(rest);
    if (o->value != NULL && (value == NULL || value[0] == '\0'))
        return cli_wrong(c, "--%s needs a value: %s", o->name, o->value);
    if (global) {
        global_keep(c, o, value);
        return CLI_OK;
    }
    int r = option_keep(c, o, value);
    /* A list goes on until the next option. */
    while (r == CLI_OK && o->many && rest->count > 0 && rest->at[0][0] != '-')
        r = option_keep(c, o, word_next(rest));
    return r;
}

/* ---- The command ---- */

static int command_unknown(struct cli *c, const char *typed)
{
    const char *near = suggestion(typed);
    fprintf(c->err, "ashlar: there is no command \"%s\"\n", typed);
    if (near != NULL)
        fprintf(c->err, "Did you mean: ashlar %s\n", near);
    else
        fputs("Try: ashlar --help\n", c->err);
    return CLI_USAGE;
}

static const struct cli_command *command_find(const char *name)
{
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static int command_parse(struct cli *c, const char *first, struct words *rest, bool *ret_done)
{
    c->command = command_find(first);
    if (c->command != NULL)
        return CLI_OK;
    if (!is_group(first))
        return command_unknown(c, first);
    const char *second = rest->count > 0 ? rest->at[0] : NULL;
    bool help = c->help || (second != NULL && (strcmp(second, "--help") == 0 || strcmp(second, "-h") == 0));
    if (help || second == NULL) {
        help_group(first, help ? c->out : c->err);
        *ret_done = help;
        return help ? CLI_OK : CLI_USAGE;
    }
    char name[128];
    snprintf(name, sizeof(name), "%s %s", first, second);
    c->command = command_find(name);
    if (c->command == NULL)
        return command_unknown(c, name);
    (void)word_next(rest);
    return CLI_OK;
}

static int check_args(struct cli *c)
{
    if (c->arg_count < c->command->args_min)
        return cli_wrong(c, "something is missing: %s", c->command->args);
    if (c->arg_count > c->command->args_max)
        return cli_wrong(c, "\"%s\" is too much", c->args[c->command->args_max]);
    return CLI_OK;
}

int cli_parse(struct cli *c, int argc, char *const *argv, bool *ret_done)
{
    struct words rest = {.count = argc, .at = argv};
    const char *word;
    int r = CLI_OK;
    bool only_args = false;
    *ret_done = false;
    while (r == CLI_OK && !*ret_done && (word = word_next(&rest)) != NULL) {
        if (!only_args && strcmp(word, "--") == 0)
            only_args = true;
        else if (!only_args && word[0] == '-' && word[1] != '\0' && c->command == NULL &&
                 strcmp(word, "--version") == 0)
            r = command_parse(c, "version", &rest, ret_done);
        else if (!only_args && word[0] == '-' && word[1] != '\0')
            r = option_parse(c, word, &rest);
        else if (c->command == NULL)
            r = command_parse(c, word, &rest, ret_done);
        else if (c->arg_count == CLI_ARGS_MAX)
            r = cli_wrong(c, "\"%s\" is too much", word);
        else
            c->args[c->arg_count++] = word;
    }
    if (r != CLI_OK || *ret_done)
        return r;
    if (c->help || c->command == NULL) {
        if (c->command != NULL)
            cli_help_command(c->command, c->out);
        else
            cli_help_all(c->help ? c->out : c->err);
        *ret_done = true;
        return c->help ? CLI_OK : CLI_USAGE;
    }
    return check_args(c);
}

bool cli_flag(const struct cli *c, const char *name)
{
    for (uint32_t i = 0; i < c->given_count; i++)
        if (strcmp(c->given[i].option->name, name) == 0)
            return true;
    return false;
}

const char *cli_value(const struct cli *c, const char *name)
{
    for (uint32_t i = 0; i < c->given_count; i++)
        if (strcmp(c->given[i].option->name, name) == 0 && c->given[i].count > 0)
            return c->given[i].values[c->given[i].count - 1];
    return NULL;
}

int cmd_help(struct cli *c)
{
    char name[128];
    if (c->arg_count == 0) {
        cli_help_all(c->out);
        return CLI_OK;
    }
    snprintf(name, sizeof(name), "%s%s%s", c->args[0], c->arg_count > 1 ? " " : "",
             c->arg_count > 1 ? c->args[1] : "");
    const struct cli_command *k = command_find(name);
    if (k != NULL)
        cli_help_command(k, c->out);
    else if (is_group(name))
        help_group(name, c->out);
    else
        return command_unknown(c, name);
    return CLI_OK;
}
