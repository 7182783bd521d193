/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line client: what its files share. One table (table.c) says which commands there are, what they
 * take, and what runs them; help, completion and suggestions come from it.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage; of the offline tools 0 clean, 1 damaged, 2 could not look.
 */
#ifndef ASHLAR_CLI_CLI_H
#define ASHLAR_CLI_CLI_H

#include "control/protocol.h"

#include <stdio.h>

#define CLI_OK     0
#define CLI_FAILED 1
#define CLI_USAGE  2

#define CLI_ARGS_MAX    8u
#define CLI_OPTIONS_MAX 20u
#define CLI_LIST_MAX    32u
#define CLI_SOCKET      "/var/lib/ashlar/ashlar.sock"

struct cli;

/* What completes a word in a shell. */
enum cli_complete {
    COMPLETE_NOTHING,
    COMPLETE_FILE,
    COMPLETE_VOLUME,
    COMPLETE_DRIVE,
    COMPLETE_PROTECTION,
    COMPLETE_SHELL
};

struct cli_option {
    const char *name;  /* without dashes; NULL ends the list */
    const char *value; /* what it takes, for help; NULL: nothing */
    const char *help;
    bool many; /* takes one or more values */
    enum cli_complete complete;
};

struct cli_command {
    const char *name; /* "status", "volume create" */
    const char *args; /* for help: "NAME SIZE" */
    uint32_t args_min, args_max;
    enum cli_complete complete; /* of the arguments */
    const struct cli_option *options;
    const char *summary; /* one line, no full stop */
    const char *help;    /* more, or NULL; ends with a newline */
    int (*run)(struct cli *c);
};
extern const struct cli_command cli_commands[]; /* ends with a NULL name */
extern const struct cli_option cli_global_options[];

/* ---- A command line, understood (args.c) ---- */

struct cli {
    const struct cli_command *command;
    const char *socket;
    bool json, help;
    uint32_t arg_count;
    const char *args[CLI_ARGS_MAX];
    struct {
        const struct cli_option *option;
        uint32_t count;
        const char *values[CLI_LIST_MAX];
    } given[CLI_OPTIONS_MAX];
    uint32_t given_count;
    FILE *out, *err; /* tests look at them */
};

/* argv without the program's name. CLI_OK, or CLI_USAGE after it said on err what is wrong. *ret_done: help
 * was printed, nothing is left to do. */
int cli_parse(struct cli *c, int argc, char *const *argv, bool *ret_done) MUST_CHECK;
bool cli_flag(const struct cli *c, const char *name);
/* The (last) value, or NULL. */
const char *cli_value(const struct cli *c, const char *name);
/* Says what is wrong with the usage; returns CLI_USAGE. */
int cli_wrong(struct cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Edit distance, for suggestions; at most 64 bytes of each count. */
uint32_t cli_distance(const char *a, const char *b);
void cli_help_all(FILE *out);
void cli_help_command(const struct cli_command *command, FILE *out);

/* ---- Asking the node (client.c) ---- */

/* Called for every line before the last; false: stop listening. */
typedef bool cli_news_fn(struct cli *c, const char *key, json_t *value, void *ctx);
/* Takes request. CLI_OK with a new reference in *ret_result (if not NULL), else after it said what is wrong.
 */
int cli_ask(struct cli *c, json_t *request, cli_news_fn *news, void *ctx, json_t **ret_result) MUST_CHECK;
/* The error as this command line prints it: text and hint, or JSON. Returns CLI_FAILED. */
int cli_error(struct cli *c, const struct control_error *e);
int cli_failed(struct cli *c, const char *hint, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- Showing (output.c) ---- */

#define TABLE_COLUMNS_MAX 12u
struct table {
    uint32_t columns, rows;
    bool right[TABLE_COLUMNS_MAX]; /* numbers */
    char **cells;                  /* rows x columns, malloc'ed */
};
/* headings: one a column; one that begins with '>' is set to the right. */
void table_init(struct table *t, const char *const *headings, uint32_t columns);
/* A row of strings. */
void table_row(struct table *t, ...);
void table_print(struct table *t, FILE *out);
void table_done(struct table *t);

/* Prints as JSON and frees. Returns CLI_OK. */
int cli_print_json(struct cli *c, json_t *value);
void cli_print_json_line(struct cli *c, json_t *value);
const char *json_text(const json_t *o, const char *key);
uint64_t json_number(const json_t *o, const char *key);
double json_double(const json_t *o, const char *key);
/* Into one of a few static buffers: good for the arguments of one call. "-" where it is absent. */
const char *text_size(const json_t *o, const char *key);
const char *text_number(double value);
const char *text_count(uint64_t value);

/* Everything about a volume or a file system, as a person reads it. */
void volume_print(struct cli *c, const json_t *v);

/* Progress lines of long work on standard error: redrawn on a terminal, else one each ten seconds. */
bool cli_progress(struct cli *c, const char *key, json_t *value, void *what);
void cli_progress_end(struct cli *c);
void progress_format(const json_t *value, const char *what, char *out, size_t size);

/* ---- Asking the person (confirm.c) ---- */

/* True with --yes, or after "yes" on a terminal. Says on err why not. */
bool cli_confirm(struct cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* What counts as a yes. */
bool confirm_answer(const char *line);

/* ---- Commands ---- */

int cmd_status(struct cli *c);
int cmd_drive_list(struct cli *c);
int cmd_drive_add(struct cli *c);
int cmd_drive_remove(struct cli *c);
int cmd_drive_replace(struct cli *c);
int cmd_drive_locate(struct cli *c);
int cmd_volume_create(struct cli *c);
int cmd_volume_list(struct cli *c);
int cmd_volume_show(struct cli *c);
int cmd_volume_grow(struct cli *c);
int cmd_volume_delete(struct cli *c);
int cmd_fs_create(struct cli *c);
int cmd_fs_list(struct cli *c);
int cmd_fs_show(struct cli *c);
int cmd_fs_grow(struct cli *c);
int cmd_fs_pattern(struct cli *c);
int cmd_fs_check(struct cli *c);
int cmd_quota_set(struct cli *c);
int cmd_quota_list(struct cli *c);
int cmd_export(struct cli *c);
int cmd_unexport(struct cli *c);
int cmd_mount(struct cli *c);
int cmd_umount(struct cli *c);
int cmd_scrub(struct cli *c);
int cmd_repair(struct cli *c);
int cmd_top(struct cli *c);
int cmd_events(struct cli *c);
int cmd_check(struct cli *c);
int cmd_inspect(struct cli *c);
int cmd_version(struct cli *c);
int cmd_completion(struct cli *c);
int cmd_help(struct cli *c);

#endif
