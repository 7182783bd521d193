/* SPDX-License-Identifier: Apache-2.0 */
/* Several at once with one file. */
#include "data_test.h"

#define WRITERS 6u

struct crowd {
    struct data_test t;
    uint64_t ino;
    struct latch latch;
    uint32_t next; /* number of the fiber that starts */
    bool good;
};

static may_yield void together(struct crowd *w, const char *name, void (*body)(void *), uint32_t count)
{
    latch_init(&w->latch, count);
    w->next = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!CHECK_EQ(fiber_spawn(name, body, w), 0))
            latch_down(&w->latch);
    latch_wait(&w->latch);
}

/* ---- Appends ---- */

#define RECORDS 40u
struct record {
    uint32_t writer, number, len, check;
};

static void record_fill(uint8_t *bytes, uint32_t writer, uint32_t number, uint32_t len)
{
    struct record r = {writer, number, len, writer * 1000 + number};

    memcpy(bytes, &r, sizeof(r));
    memset(bytes + sizeof(r), (int)(writer * 40 + number % 40 + 1), len - sizeof(r));
}

static may_yield void append_main(void *arg)
{
    struct crowd *w = arg;
    uint32_t me = w->next++;
    uint64_t rng = me + 77;
    uint8_t *bytes = malloc(20000);

    for (uint32_t i = 0; i < RECORDS && w->good; i++) {
        uint32_t len = (uint32_t)(sizeof(struct record) + draw(&rng, i % 5 == 0 ? 15000 : 700));
        record_fill(bytes, me, i, len);
        uint64_t foreseen = draw(&rng, 100000);
        len = fs_piece_len(foreseen, len);
        w->good &=
            CHECK_EQ(data_write(&w->t, &data_request, w->ino, foreseen, bytes, len, FS_WRITE_APPEND), 0);
    }
    free(bytes);
    latch_down(&w->latch);
}

static may_yield void appends(void *arg)
{
    struct crowd *w = calloc(1, sizeof(*w));
    uint8_t *bytes = malloc(4 * MIB), *want = malloc(20000);
    uint32_t seen[WRITERS] = {0};
    uint64_t len = 0, at = 0;

    (void)arg;
    w->good = data_start(&w->t, "none");
    w->ino = data_make(&w->t, 0);
    together(w, "append", append_main, WRITERS);
    if (w->good && CHECK_EQ(data_read(&w->t, w->ino, 0, bytes, 4 * MIB, &len), 0))
        while (at < len) {
            struct record r;
            memcpy(&r, bytes + at, sizeof(r));
            if (!CHECK(r.writer < WRITERS && r.check == r.writer * 1000 + r.number && at + r.len <= len))
                break;
            CHECK_EQ(r.number, seen[r.writer]++); /* each writer's come in order */
            record_fill(want, r.writer, r.number, r.len);
            if (!CHECK(memcmp(bytes + at, want, r.len) == 0))
                break;
            at += r.len;
        }
    for (uint32_t i = 0; i < WRITERS; i++)
        CHECK_EQ(seen[i], RECORDS);
    data_end(&w->t);
    free(bytes);
    free(want);
    free(w);
}

static void appends_of_many_writers_are_all_there_and_whole(void **state)
{
    (void)state;
    drive_test_run(appends, NULL);
}

/* ---- Parts of blocks ---- */

#define SECTOR  512u
#define SECTORS 8u /* of a block: one for each fiber */
#define BLOCKS  12u

static uint8_t generations[SECTORS][BLOCKS];

static may_yield void sector_main(void *arg)
{
    struct crowd *w = arg;
    uint32_t me = w->next++;
    uint64_t rng = me * 7 + 1;
    uint8_t bytes[SECTOR];

    for (uint32_t i = 0; i < 60 && w->good; i++) {
        uint32_t block = (uint32_t)draw(&rng, BLOCKS);
        uint8_t generation = (uint8_t)(1 + draw(&rng, 255));
        memset(bytes, generation, SECTOR);
        w->good &= CHECK_EQ(data_write(&w->t, i % 16 ? &data_request : &data_durable, w->ino,
                                       (uint64_t)block * BLOCK_SIZE + me * SECTOR, bytes, SECTOR, 0),
                            0);
        generations[me][block] = generation;
        if (draw(&rng, 4) == 0)
            fiber_yield();
    }
    latch_down(&w->latch);
}

/* A sector is all of one writing, at any time. */
static may_yield bool sectors_whole(struct crowd *w, uint8_t *bytes, bool exact)
{
    uint64_t len = 0;

    if (!CHECK_EQ(data_read(&w->t, w->ino, 0, bytes, BLOCKS * BLOCK_SIZE, &len), 0))
        return false;
    for (uint64_t at = 0; at < len; at += SECTOR) {
        for (uint64_t i = 1; i < SECTOR; i++)
            if (bytes[at + i] != bytes[at])
                return CHECK(!"a sector is of one writing");
        if (exact && !CHECK_EQ(bytes[at], generations[at / SECTOR % SECTORS][at / BLOCK_SIZE]))
            return false;
    }
    return true;
}

static may_yield void sector_reader(void *arg)
{
    struct crowd *w = arg;
    uint8_t *bytes = malloc(BLOCKS * BLOCK_SIZE);

    while (w->good && w->latch.count > 1) {
        w->good &= sectors_whole(w, bytes, false);
        fiber_yield();
    }
    free(bytes);
    latch_down(&w->latch);
}

static may_yield void sector_or_reader(void *arg)
{
    struct crowd *w = arg;

    if (w->next == SECTORS)
        sector_reader(w);
    else
        sector_main(w);
}

static may_yield void sectors(void *arg)
{
    struct crowd *w = calloc(1, sizeof(*w));
    uint8_t *bytes = calloc(1, BLOCKS * BLOCK_SIZE);

    (void)arg;
    memset(generations, 0, sizeof(generations));
    w->good = data_start(&w->t, "mirror:2");
    w->ino = data_make(&w->t, 0);
    CHECK_EQ(data_write(&w->t, &data_request, w->ino, 0, bytes, BLOCKS * BLOCK_SIZE, 0), 0);
    together(w, "sector", sector_or_reader, SECTORS + 1);
    CHECK(sectors_whole(w, bytes, true));
    CHECK(data_agrees(&w->t, w->ino));
    data_end(&w->t);
    free(bytes);
    free(w);
}

static void writers_of_parts_of_a_block_do_not_undo_each_other(void **state)
{
    (void)state;
    drive_test_run(sectors, NULL);
}

/* ---- Cutting meanwhile ---- */

/* Every writer writes whole records of its own byte at places of its own; one cuts and extends. Whatever is
 * read is of the writer whose place it is, or zero. */
#define AREA (16u * BLOCK_SIZE)

/* Holes, zeroes, room set aside, copies by sharing and by bytes, within the area at `base`. */
static may_yield bool area_change(struct crowd *w, uint64_t *rng, uint64_t base)
{
    uint64_t at = draw(rng, AREA / 2), len = 1 + draw(rng, AREA / 2 - at), done;
    enum fs_allocate_mode mode = (enum fs_allocate_mode)draw(rng, 5);
    struct fs_wcc wcc;

    if (draw(rng, 3) > 0)
        return CHECK_EQ(fs_allocate(w->t.fs, &data_request, w->ino, mode, base + at, len, &wcc), 0);
    if (draw(rng, 2))
        at = ALIGN_DOWN(at, (uint64_t)BLOCK_SIZE);
    return CHECK_EQ(fs_copy_range(w->t.fs, &data_request, w->ino, base + at, w->ino, base + at + AREA / 2,
                                  len, false, &done, &wcc),
                    0);
}

static may_yield void area_main(void *arg)
{
    struct crowd *w = arg;
    uint32_t me = w->next++;
    uint64_t rng = me + 5;
    uint8_t *bytes = malloc(AREA);

    memset(bytes, (int)me + 1, AREA);
    for (uint32_t i = 0; i < 80 && w->good; i++) {
        uint64_t at = draw(&rng, AREA), len = 1 + draw(&rng, AREA - at);
        if (me == 1 && i % 2)
            w->good &= area_change(w, &rng, AREA);
        else if (me == 0)
            w->good &= CHECK_EQ(data_truncate(&w->t, &data_request, w->ino, draw(&rng, WRITERS * AREA)), 0);
        else
            w->good &= CHECK_EQ(data_write(&w->t, &data_request, w->ino, me * AREA + at, bytes, len, 0), 0);
    }
    free(bytes);
    latch_down(&w->latch);
}

static may_yield void areas(void *arg)
{
    struct crowd *w = calloc(1, sizeof(*w));
    uint8_t *bytes = calloc(1, WRITERS * AREA);
    uint64_t len = 0;

    (void)arg;
    w->good = data_start(&w->t, "none");
    w->ino = data_make(&w->t, 0);
    for (uint32_t round = 0; round < 3 && w->good; round++) {
        together(w, "area", area_main, WRITERS);
        if (!CHECK_EQ(data_read(&w->t, w->ino, 0, bytes, WRITERS * AREA, &len), 0))
            break;
        for (uint64_t i = 0; i < len; i++)
            if (bytes[i] && !CHECK_EQ(bytes[i], i / AREA + 1))
                break;
        CHECK(data_agrees(&w->t, w->ino));
    }
    data_end(&w->t);
    free(bytes);
    free(w);
}

static void cutting_while_others_write_shows_nothing_of_another_place(void **state)
{
    (void)state;
    drive_test_run(areas, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(appends_of_many_writers_are_all_there_and_whole, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(writers_of_parts_of_a_block_do_not_undo_each_other, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(cutting_while_others_write_shows_nothing_of_another_place,
                                        drive_test_setup, drive_test_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
