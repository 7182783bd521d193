/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system's items out of the tree: whatever is accepted must hold what the code relies on, and where
 * there is an encoder it must give the same bytes again. The first byte says which item it is.
 */
#include "filesystem/lock_internal.h"

#include "runtime/error.h"

#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_bucket(const uint8_t *data, uint32_t len)
{
    static struct bucket b;
    struct fs fs = {0};
    struct entry e, found;
    uint32_t entries = 0;

    int r = bucket_decode(data, len);
    assert(r == 0 || r == ERR_VOLUME_CORRUPT);
    if (r)
        return;
    assert(len <= BUCKET_MAX);
    memcpy(b.bytes, data, len);
    b.len = len;
    for (uint32_t at = 0; at < b.len; entries++) {
        struct name n;
        r = entry_decode(b.bytes, b.len, &at, &e);
        assert(r == 0 && e.ino != 0 && e.slot < BUCKET_SLOTS);
        r = name_init(&fs, e.name, e.name_len, &n);
        assert(r == 0);
        bool there = bucket_find(&fs, &b, &n, &found);
        assert(there);
    }
    assert(entries <= BUCKET_SLOTS);
    /* Changing what was accepted keeps it acceptable. */
    struct name n;
    r = name_init(&fs, "another", 7, &n);
    assert(r == 0);
    r = bucket_add(&b, &n, 99, 1, S_IFREG);
    assert(r == 0 || (r == ERR_FS_DIR_FULL && entries == BUCKET_SLOTS));
    r = bucket_decode(b.bytes, b.len);
    assert(r == 0);
    while (b.len > 0) {
        uint32_t at = 0;
        r = entry_decode(b.bytes, b.len, &at, &e);
        assert(r == 0);
        bucket_remove(&b, e.slot);
        assert(b.len == 0 || bucket_decode(b.bytes, b.len) == 0);
    }
}

static void check_inode(const uint8_t *data, uint32_t len)
{
    struct disk_inode d;
    struct fs_attr attr;
    struct inode n, again;

    if (inode_decode(77, data, len, &n))
        return;
    inode_encode(&n, &d);
    int r = inode_decode(77, &d, sizeof(d), &again);
    assert(r == 0);
    assert(n.size == again.size && n.mode == again.mode && n.reap_from == again.reap_from);
    assert(n.size < FS_SIZE_MAX);
    inode_attr(&n, &attr);
    assert(attr.ino == 77);
}

static void check_xattr(const uint8_t *data, uint32_t len)
{
    struct xattr_head h;

    if (xattr_head_decode(data, len, &h))
        return;
    assert((const uint8_t *)h.name >= data && h.value + h.first_len == data + len);
    if (h.value_len == XATTR_DELETED)
        return;
    assert(h.value_len <= FS_XATTR_VALUE_MAX && h.first_len <= h.value_len && h.name_len > 0);
    assert(xattr_chunks(h.name_len, h.value_len) <= 17 + 1);
}

static void check_acl(const uint8_t *data, uint32_t len)
{
    static struct acl a;
    static uint8_t out[ACL_BYTES_MAX];
    struct fs_cred cred = {.uid = 5, .gid = 6};
    struct inode n = {.uid = 7, .gid = 8};

    if (acl_decode(data, len, &a))
        return;
    uint32_t again = acl_encode(&a, out);
    assert(again == len && memcmp(out, data, len) == 0);
    uint32_t mode = 0640;
    (void)acl_check(&a, &cred, &n, 6);
    assert(acl_to_mode(&a) <= 0777);
    acl_set_mode(&a, 0751);
    assert(acl_to_mode(&a) == 0751);
    acl_inherit(&a, &mode);
    assert(mode == (0640 & 0751));
}

static void check_lock(const uint8_t *data, uint32_t len)
{
    static struct fs_lock l;
    static uint8_t out[LOCK_ITEM_MAX];
    uint64_t end;

    if (lock_decode(data, len, &l))
        return;
    int r = lock_end(&l, &end);
    assert(r == 0 && end >= l.start);
    struct held *h = held_new(&l);
    assert(h != NULL);
    h->start = l.start;
    h->end = end;
    uint32_t again = lock_encode(h, out);
    assert(again == len);
    free(h);
}

static void check_fold(const uint8_t *data, uint32_t len)
{
    char once[400], twice[600];
    uint32_t n = MIN(len, FS_NAME_MAX);

    n = casefold((const char *)data, n, once, sizeof(once));
    uint32_t m = casefold(once, MIN(n, FS_NAME_MAX), twice, sizeof(twice));
    assert(n > FS_NAME_MAX || (m == n && memcmp(once, twice, n) == 0)); /* folding again changes nothing */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct disk_quota quota;
    struct disk_reply reply;
    struct disk_fs fs;

    if (size < 1 || size > 70000)
        return 0;
    uint32_t len = (uint32_t)size - 1;
    switch (*data++ % 9) {
    case 0:
        check_bucket(data, len);
        break;
    case 1:
        check_inode(data, len);
        break;
    case 2:
        check_xattr(data, len);
        break;
    case 3:
        check_acl(data, len);
        break;
    case 4:
        check_lock(data, len);
        break;
    case 5:
        check_fold(data, len);
        break;
    case 6:
        if (quota_decode(data, len, &quota) == 0)
            assert((le32_get(quota.flags) & ~7u) == 0);
        break;
    case 7:
        if (reply_decode(data, len, &reply) == 0)
            assert(len == sizeof(reply));
        break;
    default:
        if (disk_fs_decode(data, len, &fs) == 0)
            assert(le64_get(fs.next_ino) >= FS_INO_FIRST && le64_get(fs.next_ino) <= FS_INO_MAX);
    }
    return 0;
}
