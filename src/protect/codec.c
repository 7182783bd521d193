/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a group's description. */
#include "protect/group_format.h"
#include "protect/group_internal.h"

#include "runtime/error.h"

static_assert(sizeof(struct group_item_head) + GROUP_MEMBERS_MAX * sizeof(struct group_item_member) ==
                  GROUP_ITEM_MAX,
              "the largest item");
static_assert((int)GROUP_ITEM_KIND_MIRROR == (int)PROTECT_MIRROR, "kinds are the same on disk");
static_assert((int)GROUP_ITEM_SYSTEM == (int)GROUP_SYSTEM && (int)GROUP_ITEM_TREE == (int)GROUP_TREE &&
                  (int)GROUP_ITEM_DATA == (int)GROUP_DATA,
              "purposes are the same on disk");
static_assert((int)GROUP_ITEM_CURRENT == (int)MEMBER_CURRENT && (int)GROUP_ITEM_STALE == (int)MEMBER_STALE &&
                  (int)GROUP_ITEM_FILLING == (int)MEMBER_FILLING,
              "states are the same on disk");

#define GROUP_BLOCKS_MAX (1u << 24) /* 64 GiB: far above any slab times any K */

uint32_t group_encode(const struct group *g, uint8_t out[GROUP_ITEM_MAX])
{
    assert(g->member_count >= 1);
    assert(g->member_count <= GROUP_MEMBERS_MAX);
    assert(g->kind == PROTECT_NONE || g->kind == PROTECT_MIRROR);
    struct group_item_head head = {
        .version = GROUP_ITEM_VERSION,
        .purpose = (uint8_t)g->purpose,
        .kind = (uint8_t)g->kind,
        .data = 1,
        .spare = (uint8_t)(g->member_count - 1),
        .member_count = (uint8_t)g->member_count,
        .member_bytes = sizeof(struct group_item_member),
        .domains = 1,
        .id = le32_make(g->id),
        .blocks = le32_make(g->blocks),
    };
    memcpy(out, &head, sizeof(head));
    for (uint32_t m = 0; m < g->member_count; m++) {
        const struct group_member *member = &g->members[m];
        struct group_item_member item = {
            .drive_id = group_drive_id(member->drive),
            .slab = le32_make(member->slab),
            .state = (uint8_t)member->state,
            .role = GROUP_ITEM_ROLE_DATA,
            .stale_since_txg = le64_make(member->stale_since_txg),
            .incarnation = le64_make(member->incarnation),
        };
        memcpy(out + sizeof(head) + m * sizeof(item), &item, sizeof(item));
    }
    return (uint32_t)(sizeof(head) + g->member_count * sizeof(struct group_item_member));
}

static bool all_zero(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (p[i] != 0)
            return false;
    }
    return true;
}

static int decode_head(const struct group_item_head *head, struct group *ret)
{
    if (head->version != GROUP_ITEM_VERSION || le32_get(head->incompatible) != 0)
        return ERR_UNSUPPORTED;
    if (head->kind > GROUP_ITEM_KIND_MIRROR && head->kind <= GROUP_ITEM_KIND_NESTED_PARITY)
        return ERR_UNSUPPORTED;
    uint32_t blocks = le32_get(head->blocks);
    if (head->kind > GROUP_ITEM_KIND_NESTED_PARITY || head->purpose > GROUP_ITEM_DATA ||
        head->member_bytes != sizeof(struct group_item_member) || head->member_count == 0 ||
        head->member_count > GROUP_MEMBERS_MAX || blocks == 0 || blocks > GROUP_BLOCKS_MAX)
        return ERR_VOLUME_CORRUPT;
    if (head->data != 1 || head->domains != 1 || head->spare != head->member_count - 1 ||
        le32_get(head->stripe_unit_blocks) != 0 || le32_get(head->virtual_stripe_base) != 0 ||
        !all_zero(head->reserved, sizeof(head->reserved)))
        return ERR_VOLUME_CORRUPT;
    if (head->kind == GROUP_ITEM_KIND_NONE && head->member_count != 1)
        return ERR_VOLUME_CORRUPT;
    memset(ret, 0, sizeof(*ret));
    ret->id = le32_get(head->id);
    ret->purpose = (enum group_purpose)head->purpose;
    ret->kind = (enum protection_kind)head->kind;
    ret->blocks = blocks;
    ret->member_count = head->member_count;
    return 0;
}

static int decode_member(const struct group_item_member *item, struct group_member *ret)
{
    uint64_t since = le64_get(item->stale_since_txg);
    if (uuid_is_none(item->drive_id) || item->state > GROUP_ITEM_FILLING ||
        item->role != GROUP_ITEM_ROLE_DATA || item->flags[0] != 0 || item->flags[1] != 0 ||
        !all_zero(item->reserved, sizeof(item->reserved)))
        return ERR_VOLUME_CORRUPT;
    if (item->state != GROUP_ITEM_STALE && le32_get(item->slab) == GROUP_SLAB_NONE)
        return ERR_VOLUME_CORRUPT;
    if (item->state == GROUP_ITEM_CURRENT && since != 0)
        return ERR_VOLUME_CORRUPT;
    *ret = (struct group_member){.slab = le32_get(item->slab),
                                 .state = (enum member_state)item->state,
                                 .stale_since_txg = since,
                                 .incarnation = le64_get(item->incarnation)};
    return 0;
}

int group_decode(const uint8_t *in, uint32_t len, struct group *ret,
                 struct uuid ret_drives[GROUP_MEMBERS_MAX])
{
    struct group_item_head head;
    struct group g;
    struct uuid drives[GROUP_MEMBERS_MAX];
    if (len < sizeof(head))
        return ERR_VOLUME_CORRUPT;
    memcpy(&head, in, sizeof(head));
    int err = decode_head(&head, &g);
    if (err != 0)
        return err;
    if (len != sizeof(head) + g.member_count * sizeof(struct group_item_member))
        return ERR_VOLUME_CORRUPT;
    for (uint32_t m = 0; m < g.member_count; m++) {
        struct group_item_member item;
        memcpy(&item, in + sizeof(head) + m * sizeof(item), sizeof(item));
        err = decode_member(&item, &g.members[m]);
        if (err != 0)
            return err;
        drives[m] = item.drive_id;
        for (uint32_t before = 0; before < m; before++) {
            if (uuid_equal(drives[before], drives[m]))
                return ERR_VOLUME_CORRUPT; /* two copies on one drive protect nothing */
        }
    }
    *ret = g;
    memcpy(ret_drives, drives, g.member_count * sizeof(drives[0]));
    return 0;
}
