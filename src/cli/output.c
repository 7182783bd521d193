/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, numbers and progress for people; JSON for programs. */
#include "cli/cli.h"

#include "control/size.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- Tables ---- */

/* Characters, not bytes: continuation bytes of UTF-8 take no place. */
static uint32_t text_width(const char *text)
{
    uint32_t width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void row_begin(struct table *t)
{
    char **more = realloc(t->cells, (size_t)(t->rows + 1) * t->columns * sizeof(char *));
    assert(more != NULL);
    t->cells = more;
}

void table_init(struct table *t, const char *const *headings, uint32_t columns)
{
    assert(columns <= TABLE_COLUMNS_MAX);
    *t = (struct table){.columns = columns};
    row_begin(t);
    for (uint32_t i = 0; i < columns; i++) {
        t->right[i] = headings[i][0] == '>';
        t->cells[i] = strdup(headings[i] + t->right[i]);
        assert(t->cells[i] != NULL);
    }
    t->rows = 1;
}

void table_row(struct table *t, ...)
{
    va_list ap;
    row_begin(t);
    va_start(ap, t);
    for (uint32_t i = 0; i < t->columns; i++) {
        const char *text = va_arg(ap, const char *);
        t->cells[t->rows * t->columns + i] = strdup(text != NULL ? text : "-");
        assert(t->cells[t->rows * t->columns + i] != NULL);
    }
    va_end(ap);
    t->rows++;
}

void table_print(struct table *t, FILE *out)
{
    uint32_t widths[TABLE_COLUMNS_MAX] = {0};
    for (uint32_t i = 0; i < t->rows * t->columns; i++)
        widths[i % t->columns] = MAX(widths[i % t->columns], text_width(t->cells[i]));
    for (uint32_t row = 0; row < t->rows; row++) {
        for (uint32_t i = 0; i < t->columns; i++) {
            const char *text = t->cells[row * t->columns + i];
            int pad = (int)(widths[i] - text_width(text));
            bool last = i + 1 == t->columns;
            if (t->right[i])
                fprintf(out, "%*s%s%s", pad, "", text, last ? "" : "  ");
            else
                fprintf(out, "%s%*s", text, last ? 0 : pad + 2, "");
        }
        fputc('\n', out);
    }
}

void table_done(struct table *t)
{
    for (uint32_t i = 0; i < t->rows * t->columns; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (struct table){0};
}

/* ---- JSON ---- */

int cli_print_json(struct cli *c, json_t *value)
{
    if (value == NULL)
        value = json_null();
    json_dumpf(value, c->out, JSON_INDENT(2) | JSON_ENCODE_ANY);
    fputc('\n', c->out);
    json_decref(value);
    return CLI_OK;
}

void cli_print_json_line(struct cli *c, json_t *value)
{
    json_dumpf(value, c->out, JSON_COMPACT | JSON_ENCODE_ANY);
    fputc('\n', c->out);
    fflush(c->out);
}

const char *json_text(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text != NULL ? text : "-";
}

uint64_t json_number(const json_t *o, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(o, key));
    return value > 0 ? (uint64_t)value : 0;
}

double json_double(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* ---- Numbers ---- */

#define TEXT_BUFFERS 16u
static char *text_buffer(void)
{
    static char buffers[TEXT_BUFFERS][32];
    static uint32_t next;
    return buffers[next++ % TEXT_BUFFERS];
}

const char *text_size(const json_t *o, const char *key)
{
    static_assert(SIZE_TEXT_SIZE <= 32, "a size fits into a text buffer");
    if (!json_is_number(json_object_get(o, key)))
        return "-";
    char *text = text_buffer();
    double value = json_double(o, key);
    size_format(value > 0 ? (uint64_t)value : 0, text);
    return text;
}

const char *text_count(uint64_t value)
{
    char *text = text_buffer();
    snprintf(text, 32, "%llu", (unsigned long long)value);
    return text;
}

const char *text_number(double value)
{
    char *text = text_buffer();
    if (value < 10 && value > 0)
        snprintf(text, 32, "%.1f", value);
    else
        snprintf(text, 32, "%.0f", value);
    return text;
}

/* ---- Progress ---- */

void progress_format(const json_t *value, const char *what, char *out, size_t size)
{
    uint64_t done = json_number(value, "done"), total = json_number(value, "total");
    char left[DURATION_TEXT_SIZE + 16] = "", duration[DURATION_TEXT_SIZE];
    if (json_is_number(json_object_get(value, "left_s"))) {
        duration_format((uint64_t)(json_double(value, "left_s") * (double)NSEC_PER_SEC), duration);
        snprintf(left, sizeof(left), ", about %s left", duration);
    }
    const json_t *volume = json_object_get(value, "volume");
    if (total == 0)
        snprintf(out, size, "%s: working", what);
    else
        snprintf(out, size, "%s%s%s: %.1f %%%s", what, volume != NULL ? " " : "",
                 volume != NULL ? json_string_value(volume) : "",
                 100.0 * (double)MIN(done, total) / (double)total, left);
}

static bool progress_shown;

bool cli_progress(struct cli *c, const char *key, json_t *value, void *what)
{
    static time_t last;
    char line[160];
    if (c->json || strcmp(key, "progress") != 0)
        return true;
    progress_format(value, what, line, sizeof(line));
    time_t now = time(NULL);
    if (isatty(STDERR_FILENO)) {
        fprintf(c->err, "\r%s\033[K", line);
        progress_shown = true;
    } else if (last == 0) {
        last = now;
    } else if (now - last >= 10) {
        fprintf(c->err, "%s\n", line);
        last = now;
    }
    fflush(c->err);
    return true;
}

void cli_progress_end(struct cli *c)
{
    if (progress_shown)
        fputs("\r\033[K", c->err);
    progress_shown = false;
}
