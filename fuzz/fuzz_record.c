/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's record in the coordinator, and the text of a protection. */
#include "cluster/record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    struct protection p;
    if (protection_parse(text, &p) == 0) {
        char out[24];
        protection_format(p, out);
        assert(strcmp(out, text) == 0);
    }
    struct volume_record r = {0}, again = {0};
    if (volume_record_decode(text, 1, &r) == 0) {
        char *back = NULL, *back_again = NULL;
        int err = volume_record_encode(&r, &back);
        assert(err == 0);
        err = volume_record_decode(back, 1, &again);
        assert(err == 0);
        err = volume_record_encode(&again, &back_again);
        assert(err == 0 && strcmp(back, back_again) == 0);
        assert(r.epoch == again.epoch && r.member_count == again.member_count);
        free(back);
        free(back_again);
    }
    free(text);
    return 0;
}
