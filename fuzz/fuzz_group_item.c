/* SPDX-License-Identifier: Apache-2.0 */
/* A group's description out of the pool tree: whatever is accepted must hold what the code relies on, and
 * must be encoded to the same bytes again. */
#include "protect/group_format.h"
#include "protect/group_internal.h"

#include "runtime/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(struct group *g, const struct uuid *ids, const uint8_t *data, size_t size)
{
    static struct group_drive drives[GROUP_MEMBERS_MAX];
    assert(g->member_count >= 1 && g->member_count <= GROUP_MEMBERS_MAX);
    assert(g->blocks > 0);
    assert(g->kind == PROTECT_MIRROR || (g->kind == PROTECT_NONE && g->member_count == 1));
    for (uint32_t m = 0; m < g->member_count; m++) {
        assert(!uuid_is_none(ids[m]));
        assert(g->members[m].drive == NULL);
        assert(g->members[m].state != MEMBER_CURRENT || g->members[m].stale_since_txg == 0);
        drives[m].id = ids[m];
        g->members[m].drive = &drives[m];
        for (uint32_t before = 0; before < m; before++)
            assert(!uuid_equal(ids[before], ids[m]));
    }
    uint8_t again[GROUP_ITEM_MAX], expect[GROUP_ITEM_MAX];
    uint32_t len = group_encode(g, again);
    assert(len == size);
    memcpy(expect, data, size);
    memset(expect + offsetof(struct group_item_head, compatible), 0, sizeof(struct le32)); /* ignored bits */
    assert(memcmp(again, expect, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 2 * GROUP_ITEM_MAX)
        return 0;
    struct group g;
    struct uuid ids[GROUP_MEMBERS_MAX];
    int err = group_decode(data, (uint32_t)size, &g, ids);
    assert(err == 0 || err == ERR_VOLUME_CORRUPT || err == ERR_UNSUPPORTED);
    if (err == 0)
        check_accepted(&g, ids, data, size);
    return 0;
}
