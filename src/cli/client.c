/* SPDX-License-Identifier: Apache-2.0 */
/* One request to the node and its answer, over the control socket. Blocking: there is nothing else to do. */
#include "cli/cli.h"

#include "runtime/error.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int cli_error(struct cli *c, const struct control_error *e)
{
    cli_progress_end(c);
    if (c->json) {
        json_t *error = json_pack("{soso}", "code", control_text(e->code), "text", control_text(e->text));
        if (error != NULL && e->hint[0] != '\0')
            json_object_set_new(error, "hint", control_text(e->hint));
        (void)cli_print_json(c, json_pack("{so}", "error", error));
    }
    fprintf(c->err, "ashlar: %s\n", e->text);
    if (e->hint[0] != '\0')
        fprintf(c->err, "        %s\n", e->hint);
    return CLI_FAILED;
}

int cli_failed(struct cli *c, const char *hint, const char *fmt, ...)
{
    struct control_error e = {.code = "CLIENT"};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof(e.text), fmt, ap);
    va_end(ap);
    snprintf(e.hint, sizeof(e.hint), "%s", hint);
    return cli_error(c, &e);
}

static int node_connect(struct cli *c, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(c->socket) >= sizeof(address.sun_path))
        return cli_failed(c, "Change to the folder and give a shorter, relative one.",
                          "the path of the socket is too long: %s", c->socket);
    memcpy(address.sun_path, c->socket, strlen(c->socket));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
        *ret_fd = fd;
        return CLI_OK;
    }
    int error = errno;
    if (fd >= 0)
        close(fd);
    const char *hint =
        "Start one with `ashlard --dir DIR`, or name its socket: -s DIR/ashlar.sock or ASHLAR_SOCK.";
    if (error == EACCES || error == EPERM)
        hint = "Run it as root, or as a member of the group that owns the socket.";
    return cli_failed(c, hint, "no node answers at %s: %s", c->socket, strerror(error));
}

static int request_send(struct cli *c, int fd, json_t *request)
{
    char *text = request != NULL ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (text == NULL)
        return cli_failed(c, "", "the request cannot be written (is every word of it UTF-8?)");
    size_t len = strlen(text), sent = 0;
    text[len++] = '\n'; /* in place of the terminator */
    while (sent < len) {
        ssize_t n = send(fd, text + sent, len - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            break;
        sent += n > 0 ? (size_t)n : 0;
    }
    free(text);
    return sent == len ? CLI_OK : cli_failed(c, "", "the node hung up: %s", strerror(errno));
}

/* Lines of the answer; malloc'ed buffer that grows up to CONTROL_REPLY_MAX. */
struct reader {
    int fd;
    char *buf;
    size_t len, size, used; /* used: bytes of the line that was given out */
};

/* The next line, terminated, borrowed until the next call; NULL: the node hung up. */
static char *line_next(struct reader *r)
{
    if (r->used > 0)
        memmove(r->buf, r->buf + r->used, r->len - r->used);
    r->len -= r->used;
    r->used = 0;
    for (;;) {
        char *end = r->len > 0 ? memchr(r->buf, '\n', r->len) : NULL;
        if (end != NULL) {
            *end = '\0';
            r->used = (size_t)(end - r->buf) + 1;
            return r->buf;
        }
        if (r->len == r->size) {
            char *more = r->size < CONTROL_REPLY_MAX ? realloc(r->buf, MAX(r->size * 2, 65536u)) : NULL;
            if (more == NULL)
                return NULL;
            r->buf = more;
            r->size = MAX(r->size * 2, 65536u);
        }
        ssize_t n = recv(r->fd, r->buf + r->len, r->size - r->len, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return NULL;
        r->len += n > 0 ? (size_t)n : 0;
    }
}

static int answer_error(struct cli *c, const json_t *answer)
{
    struct control_error e = {0};
    const json_t *error = json_object_get(answer, "error");
    snprintf(e.code, sizeof(e.code), "%s", json_text(error, "code"));
    snprintf(e.text, sizeof(e.text), "%s", json_text(error, "text"));
    if (json_object_get(error, "hint") != NULL)
        snprintf(e.hint, sizeof(e.hint), "%s", json_text(error, "hint"));
    return cli_error(c, &e);
}

/* CLI_OK with *ret_last: go on, or done. */
static int answer_line(struct cli *c, json_t *answer, cli_news_fn *news, void *ctx, json_t **ret_result,
                       bool *ret_last)
{
    const json_t *ok = json_object_get(answer, "ok");
    *ret_last = json_is_boolean(ok);
    if (json_is_false(ok))
        return answer_error(c, answer);
    if (json_is_true(ok)) {
        cli_progress_end(c);
        if (ret_result != NULL)
            *ret_result = json_incref(json_object_get(answer, "result"));
        return CLI_OK;
    }
    const char *key;
    json_t *value;
    json_object_foreach(answer, key, value)
    {
        if (news != NULL && !news(c, key, value, ctx))
            *ret_last = true;
    }
    return CLI_OK;
}

int cli_ask(struct cli *c, json_t *request, cli_news_fn *news, void *ctx, json_t **ret_result)
{
    struct reader reader = {0};
    int r = node_connect(c, &reader.fd);
    if (r != CLI_OK) {
        json_decref(request);
        return r;
    }
    r = request_send(c, reader.fd, request);
    bool last = false;
    while (r == CLI_OK && !last) {
        char *line = line_next(&reader);
        if (line == NULL) {
            r = cli_failed(c, "Look at its log.", "the node hung up before it answered");
            break;
        }
        json_t *answer = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(answer))
            r = answer_line(c, answer, news, ctx, ret_result, &last);
        else
            r = cli_failed(c, "Are this program and the node of the same version?",
                           "the answer is not understood");
        json_decref(answer);
    }
    free(reader.buf);
    close(reader.fd);
    return r;
}
