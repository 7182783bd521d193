/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a group's description, an item of the pool tree: one head, then one record a member.
 * docs/formats/group.md has the same tables with their meaning. The tree node around an item carries the
 * checksum; here every field is checked for sense all the same.
 */
#ifndef ASHLAR_PROTECT_GROUP_FORMAT_H
#define ASHLAR_PROTECT_GROUP_FORMAT_H

#include "runtime/base.h"

#define GROUP_ITEM_VERSION 1u

enum group_item_kind {
    GROUP_ITEM_KIND_NONE = 0,
    GROUP_ITEM_KIND_MIRROR = 1,
    GROUP_ITEM_KIND_PARITY = 2,        /* reserved */
    GROUP_ITEM_KIND_NESTED_MIRROR = 3, /* reserved */
    GROUP_ITEM_KIND_NESTED_PARITY = 4, /* reserved */
};
enum group_item_purpose { GROUP_ITEM_SYSTEM = 0, GROUP_ITEM_TREE = 1, GROUP_ITEM_DATA = 2 };
enum group_item_state { GROUP_ITEM_CURRENT = 0, GROUP_ITEM_STALE = 1, GROUP_ITEM_FILLING = 2 };
enum group_item_role { GROUP_ITEM_ROLE_DATA = 0, GROUP_ITEM_ROLE_PARITY = 1 /* reserved */ };

struct group_item_head {
    uint8_t version;      /* GROUP_ITEM_VERSION */
    uint8_t purpose;      /* enum group_item_purpose */
    uint8_t kind;         /* enum group_item_kind */
    uint8_t data;         /* K of parity; 1 else */
    uint8_t spare;        /* members that may be lost: 0, members-1 of a mirror, M of parity */
    uint8_t member_count; /* 1 .. GROUP_MEMBERS_MAX */
    uint8_t member_bytes; /* size of a member record: 48 */
    uint8_t domains;      /* nested kinds: failure domains of equal size, members in their order; 1 else */
    struct le32 id;
    struct le32 blocks;              /* that can be addressed */
    struct le32 incompatible;        /* an unknown bit set here: do not touch the group */
    struct le32 compatible;          /* unknown bits are kept out of the way: ignored */
    struct le32 stripe_unit_blocks;  /* parity: blocks of a shard; 0 else */
    struct le32 virtual_stripe_base; /* parity: first virtual stripe; 0 else */
    uint8_t reserved[32];            /* zero */
};
static_assert(sizeof(struct group_item_head) == 64, "group item head");
static_assert(offsetof(struct group_item_head, id) == 8, "group item head");
static_assert(offsetof(struct group_item_head, incompatible) == 16, "group item head");
static_assert(offsetof(struct group_item_head, stripe_unit_blocks) == 24, "group item head");
static_assert(offsetof(struct group_item_head, reserved) == 32, "group item head");

struct group_item_member {
    struct uuid drive_id;
    struct le32 slab;
    uint8_t state; /* enum group_item_state */
    uint8_t role;  /* enum group_item_role */
    uint8_t flags[2];
    struct le64 stale_since_txg; /* first txg that it may lack; 0 when current */
    struct le64 incarnation;     /* of the drive when the member was made or last levelled; 0: not known */
    uint8_t reserved[8];         /* zero */
};
static_assert(sizeof(struct group_item_member) == 48, "group item member");
static_assert(offsetof(struct group_item_member, slab) == 16, "group item member");
static_assert(offsetof(struct group_item_member, state) == 20, "group item member");
static_assert(offsetof(struct group_item_member, stale_since_txg) == 24, "group item member");
static_assert(offsetof(struct group_item_member, incarnation) == 32, "group item member");

#endif
