/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for shells, made from the table of commands. Names of volumes and drives are asked of the node.
 */
#include "cli/cli.h"

static const char *completer(enum cli_complete what)
{
    switch (what) {
    case COMPLETE_FILE:
        return "file";
    case COMPLETE_VOLUME:
        return "volume";
    case COMPLETE_DRIVE:
        return "drive";
    case COMPLETE_PROTECTION:
        return "protection";
    case COMPLETE_SHELL:
        return "shell";
    case COMPLETE_NOTHING:
        break;
    }
    return "nothing";
}

static void print_options(const struct cli_option *list, FILE *out)
{
    for (const struct cli_option *o = list; o != NULL && o->name != NULL; o++)
        fprintf(out, " --%s", o->name);
}

/* One line a command, the same for both shells: name|what its arguments are|its options. Then one line an
 * option that takes a value. */
static void print_tables(FILE *out)
{
    fputs("_ashlar_commands='\n", out);
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++) {
        fprintf(out, "%s|%s|", k->name, completer(k->complete));
        print_options(k->options, out);
        print_options(cli_global_options, out);
        fputc('\n', out);
    }
    fputs("'\n_ashlar_values='\n", out);
    for (const struct cli_command *k = cli_commands; k->name != NULL; k++)
        for (const struct cli_option *o = k->options; o != NULL && o->name != NULL; o++)
            if (o->value != NULL)
                fprintf(out, "%s|--%s|%s\n", k->name, o->name, completer(o->complete));
    fputs("'\n", out);
}

/* Needs: cur, words (array without the program), and leaves candidates, one a line, on standard output. */
static const char common[] =
    "_ashlar_names() {\n"
    "    case $1 in\n"
    "    volume) ashlar ${_ashlar_sock:+-s \"$_ashlar_sock\"} volume list --json 2>/dev/null |\n"
    "        sed -n 's/^ *\"name\": \"\\(.*\\)\",*$/\\1/p' ;;\n"
    "    drive) ashlar ${_ashlar_sock:+-s \"$_ashlar_sock\"} drive list --json 2>/dev/null |\n"
    "        sed -n 's/^ *\"path\": \"\\(.*\\)\",*$/\\1/p' ;;\n"
    "    protection) printf '%s\\n' none mirror:2 mirror:3 ;;\n"
    "    shell) printf '%s\\n' bash zsh ;;\n"
    "    file) printf '%s\\n' :file ;;\n"
    "    esac\n"
    "}\n"
    "# _ashlar_candidates PREVIOUS CURRENT WORD...: the words before the current one\n"
    "_ashlar_candidates() {\n"
    "    local previous=$1 current=$2 first= second= name= line= kind= value=\n"
    "    shift 2\n"
    "    _ashlar_sock=\n"
    "    while [ $# -gt 0 ]; do\n"
    "        case $1 in\n"
    "        -s|--socket) _ashlar_sock=${2-}; [ $# -gt 1 ] && shift ;;\n"
    "        -*) ;;\n"
    "        *) if [ -z \"$first\" ]; then first=$1; elif [ -z \"$second\" ]; then second=$1; fi ;;\n"
    "        esac\n"
    "        shift\n"
    "    done\n"
    "    case $previous in -s|--socket) echo :file; return ;; esac\n"
    "    while IFS='|' read -r name kind value; do\n"
    "        [ -n \"$name\" ] || continue\n"
    "        if [ \"$name\" = \"$first $second\" ] || [ \"$name\" = \"$first\" ]; then "
    "line=\"$name|$kind|$value\"; fi\n"
    "    done <<<\"$_ashlar_commands\"\n"
    "    if [ -z \"$line\" ]; then\n"
    "        while IFS='|' read -r name kind value; do\n"
    "            if [ -z \"$first\" ]; then printf '%s\\n' \"${name%% *}\"\n"
    "            elif [ \"${name%% *}\" = \"$first\" ]; then printf '%s\\n' \"${name#* }\"; fi\n"
    "        done <<<\"$_ashlar_commands\" | sort -u\n"
    "        return\n"
    "    fi\n"
    "    name=${line%%|*}; kind=${line#*|}; kind=${kind%%|*}; value=${line##*|}\n"
    "    local option_name option option_kind\n"
    "    while IFS='|' read -r option_name option option_kind; do\n"
    "        if [ \"$option_name\" = \"$name\" ] && [ \"$option\" = \"$previous\" ]; then\n"
    "            _ashlar_names \"$option_kind\"; return\n"
    "        fi\n"
    "    done <<<\"$_ashlar_values\"\n"
    "    case $current in\n"
    "    -*) printf '%s\\n' $value ;;\n"
    "    *) _ashlar_names \"$kind\" ;;\n"
    "    esac\n"
    "}\n";

static const char bash_part[] =
    "_ashlar() {\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} candidates\n"
    "    COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"
    "    candidates=$(_ashlar_candidates \"${COMP_WORDS[COMP_CWORD-1]}\" \"$current\" "
    "\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n"
    "    if [ \"$candidates\" = :file ]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
    "    else\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$candidates\" -- \"$current\")\n"
    "    fi\n"
    "}\n"
    "complete -F _ashlar ashlar\n";

static const char zsh_part[] =
    "_ashlar() {\n"
    "    setopt localoptions shwordsplit\n"
    "    local candidates\n"
    "    candidates=$(_ashlar_candidates \"${words[CURRENT-1]}\" \"${words[CURRENT]}\" "
    "\"${(@)words[2,CURRENT-1]}\")\n"
    "    if [ \"$candidates\" = :file ]; then _files; else compadd -- ${(f)candidates}; fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _ashlar ]; then _ashlar \"$@\"; else compdef _ashlar ashlar; fi\n";

int cmd_completion(struct cli *c)
{
    bool zsh = strcmp(c->args[0], "zsh") == 0;
    if (!zsh && strcmp(c->args[0], "bash") != 0)
        return cli_wrong(c, "\"%s\" is not known here: bash or zsh", c->args[0]);
    fputs(zsh ? "#compdef ashlar\n" : "# bash completion for ashlar\n", c->out);
    print_tables(c->out);
    fputs(common, c->out);
    fputs(zsh ? zsh_part : bash_part, c->out);
    return CLI_OK;
}
