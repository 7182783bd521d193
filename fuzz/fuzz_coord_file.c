/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the local coordinator. */
#include "cluster/coord_file.h"
#include "runtime/checksum.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const char *text, size_t len)
{
    struct coord_table t, again;
    if (coord_file_decode(text, len, &t) != 0)
        return;
    for (size_t i = 1; i < t.count; i++)
        assert(strcmp(t.entries[i - 1].key, t.entries[i].key) < 0);
    char *back;
    size_t back_len;
    int err = coord_file_encode(&t, &back, &back_len);
    assert(err == 0);
    err = coord_file_decode(back, back_len, &again);
    assert(err == 0);
    assert(again.count == t.count && again.revision == t.revision && again.generation == t.generation);
    free(back);
    coord_table_done(&t);
    coord_table_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode((const char *)data, size);
    /* The input as the body, with the head that belongs to it. */
    char *text = malloc(size + 64);
    if (text == NULL)
        return 0;
    int n = snprintf(text, 64, "ashlar-coord 1 crc32c %08x bytes %010zu\n", crc32c(0, data, size), size);
    assert(n == 48);
    memcpy(text + n, data, size);
    decode(text, size + (size_t)n);
    free(text);
    return 0;
}
