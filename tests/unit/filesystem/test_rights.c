/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what: modes, owners, times, ACLs, extended attributes. */
#include "fs_test.h"

#define ROOT FS_INO_ROOT

static may_yield void bits(struct fs_test *t)
{
    as_user(t, 10, 100);
    uint64_t f = file(t, ROOT, "f", 0640), d = folder(t, ROOT, "d", 0750), x;

    CHECK_EQ(may(t, f, FS_MAY_READ | FS_MAY_WRITE), 0);
    CHECK_EQ(may(t, f, FS_MAY_EXECUTE), ERR_FS_ACCESS);
    as_user(t, 11, 50);
    with_group(t, 100); /* by a supplementary group */
    CHECK_EQ(may(t, f, FS_MAY_READ), 0);
    CHECK_EQ(may(t, f, FS_MAY_WRITE), ERR_FS_ACCESS);
    CHECK_EQ(may(t, d, FS_MAY_READ | FS_MAY_EXECUTE), 0);
    CHECK_EQ(look(t, d, "none", &x), ERR_FS_NOT_FOUND);
    CHECK_EQ(make(t, FS_FILE, d, "x", 0644, &x), ERR_FS_ACCESS);
    as_user(t, 12, 50);
    CHECK_EQ(may(t, f, FS_MAY_READ), ERR_FS_ACCESS);
    CHECK_EQ(look(t, d, "none", &x), ERR_FS_ACCESS);
    CHECK_EQ(rm(t, d, "none"), ERR_FS_ACCESS);
    t->rq.cred.trusted = true; /* the kernel has said yes */
    CHECK_EQ(look(t, d, "none", &x), ERR_FS_NOT_FOUND);
    as_root(t);
    CHECK_EQ(may(t, f, FS_MAY_READ | FS_MAY_WRITE), 0);
    CHECK_EQ(may(t, f, FS_MAY_EXECUTE), ERR_FS_ACCESS); /* no x bit at all */
    CHECK_EQ(ch_mode(t, f, 0010), 0);
    CHECK_EQ(may(t, f, FS_MAY_EXECUTE), 0);
    t->rq.read_only = true;
    CHECK_EQ(may(t, f, FS_MAY_READ), 0);
    CHECK_EQ(may(t, f, FS_MAY_WRITE), ERR_FS_ACCESS);
    CHECK_EQ(ch_mode(t, f, 0600), ERR_FS_READ_ONLY);
    t->rq.read_only = false;
}

static may_yield void modes(struct fs_test *t)
{
    as_user(t, 10, 100);
    uint64_t f = file(t, ROOT, "f", 0644), d = folder(t, ROOT, "d", 0755);
    struct fs_attr before = attr_of(t, f);

    as_user(t, 11, 100);
    CHECK_EQ(ch_mode(t, f, 0600), ERR_FS_NOT_OWNER);
    CHECK_EQ(attr_of(t, f).ctime_ns, before.ctime_ns); /* only success changes it */
    as_user(t, 10, 100);
    CHECK_EQ(ch_mode(t, f, 06755), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 06755);
    CHECK(attr_of(t, f).ctime_ns > before.ctime_ns);
    CHECK_EQ(ch_own(t, f, KEEP, 200), ERR_FS_NOT_OWNER); /* not in it */
    with_group(t, 200);
    CHECK_EQ(ch_own(t, f, KEEP, 200), 0);
    CHECK_EQ(attr_of(t, f).gid, 200);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0755); /* setuid and setgid went */
    CHECK_EQ(ch_own(t, f, 10, KEEP), 0);          /* to himself */
    CHECK_EQ(ch_own(t, f, 12, KEEP), ERR_FS_NOT_OWNER);
    as_user(t, 10, 100);
    CHECK_EQ(ch_mode(t, f, 02755), 0); /* 200 is not his now: no setgid for it */
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0755);
    as_root(t);
    CHECK_EQ(ch_mode(t, f, 06755), 0);
    CHECK_EQ(ch_own(t, f, 12, 12), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0755);
    CHECK_EQ(ch_mode(t, f, 02644), 0);
    CHECK_EQ(ch_own(t, f, 13, KEEP), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 02644); /* no x for the group: it is not that setgid */
    CHECK_EQ(ch_mode(t, d, 06755), 0);
    CHECK_EQ(ch_own(t, d, 12, 12), 0);
    CHECK_EQ(attr_of(t, d).mode, S_IFDIR | 06755);
    /* Writing and cutting by others take them away. */
    CHECK_EQ(ch_mode(t, f, 06777), 0);
    as_user(t, 99, 99);
    CHECK_EQ(fill(t, f, 10), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0777);
    as_root(t);
    CHECK_EQ(ch_mode(t, f, 06777), 0);
    as_user(t, 99, 99);
    CHECK_EQ(set(t, f, (struct fs_setattr){.valid = FS_SET_SIZE, .size = 5}), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0777);
    CHECK_EQ(attr_of(t, f).size, 5);
    as_root(t);
}

static may_yield void times(struct fs_test *t)
{
    struct fs_setattr now = {.valid = FS_SET_ATIME_NOW | FS_SET_MTIME_NOW};
    struct fs_setattr given = {
        .valid = FS_SET_ATIME | FS_SET_MTIME, .atime_ns = -1000000001, .mtime_ns = 123456789};
    int64_t before = (int64_t)world_wall_ns();

    as_user(t, 10, 100);
    uint64_t f = file(t, ROOT, "f", 0662);
    CHECK_EQ(set(t, f, given), 0);
    CHECK_EQ(attr_of(t, f).atime_ns, -1000000001);
    CHECK_EQ(attr_of(t, f).mtime_ns, 123456789);
    CHECK(attr_of(t, f).ctime_ns >= before);
    as_user(t, 11, 11);
    CHECK_EQ(set(t, f, given), ERR_FS_NOT_OWNER);
    CHECK_EQ(set(t, f, now), 0); /* who may write, may */
    CHECK(attr_of(t, f).mtime_ns >= before);
    as_user(t, 10, 100);
    CHECK_EQ(ch_mode(t, f, 0644), 0);
    as_user(t, 11, 11);
    CHECK_EQ(set(t, f, now), ERR_FS_ACCESS);
    CHECK_EQ(set(t, f, (struct fs_setattr){.valid = FS_SET_SIZE}), ERR_FS_ACCESS);
    as_root(t);
    struct fs_attr a = attr_of(t, f);
    struct fs_setattr guard = {
        .valid = FS_SET_MODE | FS_SET_GUARD, .mode = 0600, .guard_ctime_ns = a.ctime_ns - 1};
    CHECK_EQ(set(t, f, guard), ERR_FS_NOT_SYNC);
    CHECK(t->wcc.has_before && t->wcc.has_after && t->wcc.before_ctime_ns == a.ctime_ns);
    guard.guard_ctime_ns = a.ctime_ns;
    CHECK_EQ(set(t, f, guard), 0);
    CHECK_EQ(t->wcc.before_ctime_ns, a.ctime_ns);
    CHECK_EQ(t->wcc.after.mode, S_IFREG | 0600);
    CHECK(t->wcc.after.change > a.change);
    CHECK_EQ(set(t, ROOT, (struct fs_setattr){.valid = FS_SET_SIZE}), ERR_FS_IS_DIRECTORY);
    CHECK_EQ(set(t, f, (struct fs_setattr){.valid = FS_SET_SIZE, .size = FS_SIZE_MAX}), ERR_FS_TOO_BIG);
    uint64_t fifo;
    CHECK_EQ(make(t, FS_FIFO, ROOT, "p", 0644, &fifo), 0);
    CHECK_EQ(set(t, fifo, (struct fs_setattr){.valid = FS_SET_SIZE}), ERR_FS_INVALID);
}

static may_yield void inherited(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "d", 02777), e, f;

    CHECK_EQ(ch_own(t, d, 10, 100), 0);
    CHECK_EQ(ch_mode(t, d, 02777), 0);
    as_user(t, 20, 20);
    f = file(t, d, "f", 0644);
    CHECK_EQ(attr_of(t, f).uid, 20);
    CHECK_EQ(attr_of(t, f).gid, 100);
    e = folder(t, d, "e", 0755);
    CHECK_EQ(attr_of(t, e).gid, 100);
    CHECK_EQ(attr_of(t, e).mode, S_IFDIR | 02755);
    CHECK_EQ(attr_of(t, file(t, d, "s", 02755)).mode, S_IFREG | 0755); /* not in the group */
    struct fs_create c = {.type = FS_FILE, .attr = {.valid = FS_SET_MODE, .mode = 0666}, .umask = 027};
    CHECK_EQ(fs_create(t->fs, &t->rq, ROOT, "u", 1, &c, &t->at, NULL, NULL), 0);
    CHECK_EQ(t->at.mode, S_IFREG | 0640);
    as_root(t);
    CHECK_EQ(fs_pattern_set(t->fs, d, FS_PATTERN_STREAMING), 0);
    CHECK_EQ(attr_of(t, folder(t, d, "p", 0755)).pattern, FS_PATTERN_STREAMING);
    CHECK_EQ(attr_of(t, file(t, d, "q", 0755)).pattern, FS_PATTERN_STREAMING);
}

static may_yield void sticky(struct fs_test *t)
{
    uint64_t d = folder(t, ROOT, "tmp", 01777);

    as_user(t, 10, 10);
    (void)file(t, d, "mine", 0666);
    (void)folder(t, d, "dir", 0777);
    as_user(t, 11, 11);
    CHECK_EQ(rm(t, d, "mine"), ERR_FS_NOT_OWNER);
    CHECK_EQ(rm_dir(t, d, "dir"), ERR_FS_NOT_OWNER);
    as_user(t, 10, 10);
    CHECK_EQ(rm_dir(t, d, "dir"), 0);
    as_root(t);
    CHECK_EQ(rm(t, d, "mine"), 0);
}

/* ---- ACLs ---- */

static uint32_t acl_bytes(uint8_t *out, const struct acl_entry *e, uint32_t count)
{
    struct acl a = {.count = count};

    memcpy(a.entries, e, count * sizeof(*e));
    return acl_encode(&a, out);
}

static may_yield int acl_set(struct fs_test *t, uint64_t ino, enum acl_which which, const struct acl_entry *e,
                             uint32_t count)
{
    uint8_t bytes[ACL_BYTES_MAX];
    uint32_t len = acl_bytes(bytes, e, count);

    return fs_xattr_set(t->fs, &t->rq, ino, acl_name(which), (uint32_t)strlen(acl_name(which)), bytes, len,
                        FS_XATTR_ANY);
}

static may_yield int acl_of(struct fs_test *t, uint64_t ino, enum acl_which which, struct acl *ret)
{
    uint8_t bytes[ACL_BYTES_MAX];
    uint32_t len = 0;
    int r = fs_xattr_get(t->fs, &t->rq, ino, acl_name(which), (uint32_t)strlen(acl_name(which)), bytes,
                         sizeof(bytes), &len);

    return r ? r : acl_decode(bytes, len, ret);
}

static may_yield void acls(struct fs_test *t)
{
    const struct acl_entry list[] = {{ACL_USER_OBJ, 7, 0},  {ACL_USER, 6, 30},   {ACL_USER, 7, 31},
                                     {ACL_GROUP_OBJ, 4, 0}, {ACL_GROUP, 2, 300}, {ACL_MASK, 6, 0},
                                     {ACL_OTHER, 0, 0}};
    struct acl a;

    as_user(t, 10, 100);
    uint64_t f = file(t, ROOT, "f", 0700);
    as_user(t, 11, 100);
    CHECK_EQ(acl_set(t, f, ACL_ACCESS, list, 7), ERR_FS_NOT_OWNER);
    as_user(t, 10, 100);
    CHECK_EQ(acl_set(t, f, ACL_ACCESS, list, 7), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0760); /* the mask is the group's bits */
    CHECK_EQ(acl_set(t, f, ACL_DEFAULT, list, 7), ERR_FS_ACCESS);
    as_user(t, 30, 1);
    CHECK_EQ(may(t, f, FS_MAY_READ | FS_MAY_WRITE), 0);
    as_user(t, 31, 1);
    CHECK_EQ(may(t, f, FS_MAY_EXECUTE), ERR_FS_ACCESS); /* the mask keeps it back */
    as_user(t, 32, 100);
    CHECK_EQ(may(t, f, FS_MAY_READ), 0);
    CHECK_EQ(may(t, f, FS_MAY_WRITE), ERR_FS_ACCESS);
    with_group(t, 300);
    CHECK_EQ(may(t, f, FS_MAY_WRITE), 0);
    struct inode n;
    CHECK_EQ(inode_read(t->fs, f, 0, &n), 0);
    CHECK_EQ(access_read(t->fs, &t->rq.cred, &n, FS_MAY_READ | FS_MAY_WRITE),
             ERR_FS_ACCESS); /* none has both */
    as_user(t, 33, 1);
    CHECK_EQ(may(t, f, FS_MAY_READ), ERR_FS_ACCESS);
    /* chmod changes the mask, and the list says so. */
    as_user(t, 10, 100);
    CHECK_EQ(ch_mode(t, f, 0644), 0);
    CHECK_EQ(acl_of(t, f, ACL_ACCESS, &a), 0);
    CHECK_EQ(a.count, 7);
    CHECK_EQ(acl_to_mode(&a), 0644);
    CHECK_EQ(a.entries[1].perm, 6);
    as_user(t, 30, 1);
    CHECK_EQ(may(t, f, FS_MAY_WRITE), ERR_FS_ACCESS);
    CHECK_EQ(may(t, f, FS_MAY_READ), 0);
    /* A list that says no more than a mode is none. */
    as_root(t);
    const struct acl_entry plain[] = {{ACL_USER_OBJ, 6, 0}, {ACL_GROUP_OBJ, 0, 0}, {ACL_OTHER, 4, 0}};
    CHECK_EQ(acl_set(t, f, ACL_ACCESS, plain, 3), 0);
    CHECK_EQ(attr_of(t, f).mode, S_IFREG | 0604);
    CHECK_EQ(acl_of(t, f, ACL_ACCESS, &a), ERR_FS_NO_XATTR);
    const struct acl_entry wrong[] = {
        {ACL_USER_OBJ, 6, 0}, {ACL_USER, 0, 5}, {ACL_GROUP_OBJ, 0, 0}, {ACL_OTHER, 4, 0}};
    CHECK_EQ(acl_set(t, f, ACL_ACCESS, wrong, 4), ERR_FS_INVALID); /* no mask */
}

static may_yield void default_acls(struct fs_test *t)
{
    const struct acl_entry list[] = {
        {ACL_USER_OBJ, 7, 0}, {ACL_USER, 7, 30}, {ACL_GROUP_OBJ, 5, 0}, {ACL_MASK, 7, 0}, {ACL_OTHER, 0, 0}};
    struct fs_create c = {.type = FS_FILE, .attr = {.valid = FS_SET_MODE, .mode = 0666}, .umask = 077};
    uint64_t d = folder(t, ROOT, "d", 0755), e;
    struct acl a;

    CHECK_EQ(acl_set(t, d, ACL_DEFAULT, list, 5), 0);
    CHECK_EQ(fs_create(t->fs, &t->rq, d, "f", 1, &c, &t->at, NULL, NULL), 0);
    CHECK_EQ(t->at.mode, S_IFREG | 0660); /* not the umask: the list */
    uint64_t f = t->at.ino;
    CHECK_EQ(acl_of(t, f, ACL_ACCESS, &a), 0);
    CHECK_EQ(a.count, 5);
    CHECK_EQ(acl_to_mode(&a), 0660);
    as_user(t, 30, 1);
    CHECK_EQ(may(t, f, FS_MAY_READ | FS_MAY_WRITE), 0);
    as_root(t);
    e = folder(t, d, "e", 0777);
    CHECK_EQ(attr_of(t, e).mode, S_IFDIR | 0770);
    CHECK_EQ(acl_of(t, e, ACL_DEFAULT, &a), 0);
    CHECK_EQ(a.count, 5);
    CHECK_EQ(fs_xattr_remove(t->fs, &t->rq, d, acl_name(ACL_DEFAULT), 24), 0);
    CHECK_EQ(fs_create(t->fs, &t->rq, d, "g", 1, &c, &t->at, NULL, NULL), 0);
    CHECK_EQ(t->at.mode, S_IFREG | 0600);
    CHECK_EQ(rm(t, d, "f"), 0); /* with its list */
}

/* ---- Extended attributes ---- */

static may_yield int x_set(struct fs_test *t, uint64_t ino, const char *name, const void *v, uint32_t len,
                           enum fs_xattr_set how)
{
    return fs_xattr_set(t->fs, &t->rq, ino, name, (uint32_t)strlen(name), v, len, how);
}

static may_yield int x_get(struct fs_test *t, uint64_t ino, const char *name, void *v, uint32_t max,
                           uint32_t *len)
{
    return fs_xattr_get(t->fs, &t->rq, ino, name, (uint32_t)strlen(name), v, max, len);
}

static may_yield int x_remove(struct fs_test *t, uint64_t ino, const char *name)
{
    return fs_xattr_remove(t->fs, &t->rq, ino, name, (uint32_t)strlen(name));
}

static may_yield void xattrs(struct fs_test *t)
{
    static const uint32_t sizes[] = {0, 1, 4000, 4079, 4080, 4081, 4096, 8192, 20000, 65535, 65536, 5};
    uint8_t *v = malloc(70000), *got = malloc(70000);
    uint64_t f = file(t, ROOT, "f", 0644);
    char list[64];
    uint32_t len = 0;

    CHECK_EQ(x_get(t, f, "user.a", got, 100, &len), ERR_FS_NO_XATTR);
    CHECK_EQ(x_set(t, f, "user.a", "x", 1, FS_XATTR_REPLACE), ERR_FS_NO_XATTR);
    for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        for (uint32_t k = 0; k < sizes[i]; k++)
            v[k] = (uint8_t)hash_mix64(i * 70000 + k);
        CHECK_EQ(x_set(t, f, "user.a", v, sizes[i], FS_XATTR_ANY), 0);
        CHECK_EQ(x_get(t, f, "user.a", NULL, 0, &len), 0);
        CHECK_EQ(len, sizes[i]);
        CHECK_EQ(x_get(t, f, "user.a", got, 70000, &len), 0);
        CHECK(len == sizes[i] && memcmp(v, got, len) == 0);
        if (sizes[i] > 1)
            CHECK_EQ(x_get(t, f, "user.a", got, sizes[i] - 1, &len), ERR_FS_XATTR_RANGE);
        if (i == 8)
            fs_test_crash(t);
    }
    CHECK_EQ(x_set(t, f, "user.a", v, 65537, FS_XATTR_ANY), ERR_FS_XATTR_TOO_BIG);
    CHECK_EQ(x_set(t, f, "user.a", "x", 1, FS_XATTR_CREATE), ERR_FS_EXISTS);
    CHECK_EQ(x_set(t, f, "user.b", "bb", 2, FS_XATTR_CREATE), 0);
    CHECK_EQ(x_set(t, f, "trusted.c", "c", 1, FS_XATTR_CREATE), 0);
    CHECK_EQ(x_set(t, f, "os2.x", "c", 1, FS_XATTR_CREATE), ERR_FS_NOT_SUPPORTED);
    CHECK_EQ(fs_xattr_list(t->fs, &t->rq, f, NULL, 0, &len), 0);
    CHECK_EQ(len, 7 + 7 + 10);
    CHECK_EQ(fs_xattr_list(t->fs, &t->rq, f, list, 23, &len), ERR_FS_XATTR_RANGE);
    CHECK_EQ(fs_xattr_list(t->fs, &t->rq, f, list, sizeof(list), &len), 0);
    as_user(t, 10, 10);
    CHECK_EQ(fs_xattr_list(t->fs, &t->rq, f, list, sizeof(list), &len), 0);
    CHECK_EQ(len, 7 + 7); /* not root's */
    CHECK_EQ(x_get(t, f, "trusted.c", got, 10, &len), ERR_FS_NO_XATTR);
    CHECK_EQ(x_get(t, f, "user.b", got, 10, &len), 0);
    CHECK_EQ(x_set(t, f, "user.b", "x", 1, FS_XATTR_ANY), ERR_FS_ACCESS);
    CHECK_EQ(x_set(t, f, "security.x", "x", 1, FS_XATTR_ANY), ERR_FS_NOT_OWNER);
    as_root(t);
    CHECK_EQ(x_remove(t, f, "user.b"), 0);
    CHECK_EQ(x_remove(t, f, "user.b"), ERR_FS_NO_XATTR);
    CHECK_EQ(x_get(t, f, "user.a", got, 10, &len), 0);
    CHECK_EQ(len, 5);
    uint64_t link;
    CHECK_EQ(make(t, FS_SYMLINK, ROOT, "l", 0777, &link), 0);
    CHECK_EQ(x_set(t, link, "user.a", "x", 1, FS_XATTR_ANY), ERR_FS_NOT_OWNER);
    CHECK_EQ(x_set(t, link, "trusted.a", "x", 1, FS_XATTR_ANY), 0);
    CHECK_EQ(rm(t, ROOT, "f"), 0);
    CHECK_EQ(rm(t, ROOT, "l"), 0);
    free(v);
    free(got);
}

/* Names whose hashes meet lie one behind the other; one that goes in between leaves the rest to be found. */
static may_yield void xattr_row(struct fs_test *t)
{
    struct xattr_name n[3];
    static const char *const names[3] = {"user.x", "user.y", "user.z"};
    uint64_t f = file(t, ROOT, "f", 0644);
    struct xattr_place at;
    struct change c;
    int r;

    for (uint32_t i = 0; i < 3; i++) {
        xattr_name_init(t->fs, names[i], 6, &n[i]);
        n[i].number = 4711; /* as if they met */
    }
    for (uint32_t i = 0; i < 6; i++) {
        change_init(&c, t->v);
        do {
            change_clear(&c);
            xattr_want(&c, f, 4711, 6, 9000, 4);
            xattr_want(&c, f, 4712, 6, 9000, 4);
            xattr_want(&c, f, 4713, 6, 9000, 4);
            r = change_begin(&c);
            if (!r)
                r = xattr_find(&c, f, &n[i % 3], &at);
            if (!r) {
                CHECK_EQ(at.number, 4711 + i % 3);
                CHECK_EQ(at.exists, i >= 3);
                static const uint8_t value[9000];
                xattr_put(&c, f, &n[i % 3], &at, value, i < 3 ? 9000 : 10);
            }
            r = change_end(&c, r, 0);
        } while (r == ERR_CHANGE_AGAIN);
        CHECK_EQ(r, 0);
    }
}

#define RUN(name, body)            \
    static void name(void **state) \
    {                              \
        (void)state;               \
        fs_test_run(body);         \
    }
RUN(mode_bits_rule_owner_group_and_others, bits)
RUN(only_owners_change_modes_and_setuid_goes_with_the_owner, modes)
RUN(explicit_times_are_the_owners_and_now_is_the_writers, times)
RUN(a_new_inode_inherits_what_its_directory_hands_down, inherited)
RUN(in_a_sticky_directory_everybody_removes_only_his_own, sticky)
RUN(an_acl_grants_what_its_mask_allows, acls)
RUN(a_default_acl_replaces_the_umask, default_acls)
RUN(extended_attributes_hold_up_to_64_kib, xattrs)
RUN(attributes_of_one_hash_are_kept_apart, xattr_row)

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, drive_test_setup, drive_test_teardown)
        T(mode_bits_rule_owner_group_and_others),
        T(only_owners_change_modes_and_setuid_goes_with_the_owner),
        T(explicit_times_are_the_owners_and_now_is_the_writers),
        T(a_new_inode_inherits_what_its_directory_hands_down),
        T(in_a_sticky_directory_everybody_removes_only_his_own),
        T(an_acl_grants_what_its_mask_allows),
        T(a_default_acl_replaces_the_umask),
        T(extended_attributes_hold_up_to_64_kib),
        T(attributes_of_one_hash_are_kept_apart),
    };
    return cmocka_run_group_tests_name("filesystem rights", tests, NULL, NULL);
}
