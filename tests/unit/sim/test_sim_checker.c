/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- The model's rules ---- */

static struct model *model;

static int model_setup(void **state)
{
    (void)state;
    model = model_new(7, 16);
    return model == NULL;
}

static int model_teardown(void **state)
{
    (void)state;
    model_free(model);
    return 0;
}

static struct model_op *begin(uint64_t block, uint64_t blocks, bool fua)
{
    return model_begin(model, MODEL_WRITE, block, blocks, fua, true);
}

static struct model_op *written(uint64_t block, uint64_t blocks, bool fua)
{
    struct model_op *op = begin(block, blocks, fua);
    model_ack(model, op);
    return op;
}

/* A read that begins and ends now and shows what op wrote (NULL: zeroes). */
static bool shows(uint64_t block, const struct model_op *op)
{
    uint8_t data[BLOCK_SIZE] = {0};
    if (op != NULL)
        model_fill(model, op, block, data);
    struct model_read r = model_read_begin(model, block, 1);
    bool allowed = model_read_block(model, &r, block, data);
    model_read_end(model, &r);
    return allowed;
}

static void flushed(void)
{
    model_flush_ack(model, model_flush_begin(model));
}

static void a_read_shows_the_last_acknowledged_write(void **state)
{
    (void)state;
    assert_true(shows(3, NULL));
    struct model_op *a = written(3, 1, false);
    assert_false(shows(3, NULL));
    assert_true(shows(3, a));
    struct model_op *b = written(3, 1, false);
    assert_false(shows(3, a));
    assert_true(shows(3, b));
}

static void a_read_beside_a_write_may_show_either_and_pins_what_it_saw(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    struct model_op *b = begin(3, 1, false);
    assert_true(shows(3, a));
    assert_true(shows(3, b));
    assert_false(shows(3, a));
    model_ack(model, b);
    assert_true(shows(3, b));
}

static void a_read_that_began_before_an_acknowledgement_may_show_what_was_before(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    struct model_read r = model_read_begin(model, 3, 1);
    struct model_op *b = written(3, 1, false);
    uint8_t data[BLOCK_SIZE];
    model_fill(model, a, 3, data);
    assert_true(model_read_block(model, &r, 3, data));
    model_read_end(model, &r);
    assert_true(shows(3, b));
    assert_false(shows(3, a));
}

static void bytes_that_nobody_wrote_and_blocks_of_elsewhere_are_refused(void **state)
{
    (void)state;
    struct model_op *a = written(3, 2, false);
    uint8_t data[BLOCK_SIZE];
    model_fill(model, a, 3, data);
    struct model_read r = model_read_begin(model, 3, 2);
    assert_false(model_read_block(model, &r, 4, data));
    data[2000] ^= 1;
    assert_false(model_read_block(model, &r, 3, data));
    model_read_end(model, &r);
}

static void a_kill_loses_nothing_acknowledged_and_cuts_no_write(void **state)
{
    (void)state;
    struct model_op *a = written(3, 2, false);
    struct model_op *b = begin(3, 2, false);
    model_kill(model);
    assert_false(shows(3, NULL));
    assert_true(shows(3, b)); /* it happened: as a whole */
    assert_false(shows(4, a));
    assert_true(shows(4, b));

    struct model_op *c = begin(3, 2, false);
    model_kill(model);
    assert_true(shows(3, b)); /* it did not */
    assert_false(shows(4, c));
    assert_true(shows(4, b));
}

static void a_power_loss_may_take_back_what_was_not_flushed(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    flushed();
    struct model_op *b = written(3, 1, false);
    struct model_op *c = written(3, 1, false);
    struct model_op *d = written(5, 1, true);
    model_power_loss(model);
    assert_false(shows(3, NULL));
    assert_true(shows(3, a));
    assert_false(shows(3, b));
    assert_false(shows(3, c));
    assert_true(shows(5, d));
    assert_false(shows(5, NULL));
}

static void a_flush_covers_only_what_was_acknowledged_before_it_was_called(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    uint64_t begun = model_flush_begin(model);
    struct model_op *b = written(3, 1, false);
    model_flush_ack(model, begun);
    model_power_loss(model);
    assert_true(shows(3, a));
    assert_false(shows(3, b));
    assert_false(shows(3, NULL));
}

static void no_resurrection_after_an_unmap_that_was_flushed(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    model_ack(model, model_begin(model, MODEL_ZERO, 0, 8, false, false));
    flushed();
    model_power_loss(model);
    assert_false(shows(3, a));
    assert_true(shows(3, NULL));
}

static void an_error_is_allowed_only_where_the_last_copy_was_damaged(void **state)
{
    (void)state;
    struct model_op *a = written(3, 1, false);
    struct model_read r = model_read_begin(model, 3, 1);
    assert_false(model_read_error(model, &r));
    assert_true(model_damage(model, 3, a->id));
    assert_true(model_read_error(model, &r));
    model_read_end(model, &r);
    (void)written(3, 1, false);
    assert_false(model_is_damaged(model, 3));
}

/* ---- The checker as a whole, on the toy store ---- */

static struct runner_options toy_options(uint64_t first, uint64_t last)
{
    return (struct runner_options){.first = first,
                                   .last = last,
                                   .quiet = true,
                                   .failures_max = 1,
                                   .seed = {.out = stdout, .target = &sim_target_toy_ops}};
}

static void what_is_right_passes(void **state)
{
    (void)state;
    struct runner_options o = toy_options(1, 40);
    struct runner_summary sum;
    assert_int_equal(runner_run(&o, &sum), 0);
    assert_int_equal(sum.seeds, 40);
    assert_true(sum.fewest_acked >= 1000);
    assert_true(sum.crashes >= 40);
    assert_true(sum.faults[SIM_FAULT_PROCESS_KILL] > 0 && sum.faults[SIM_FAULT_POWER_LOSS] > 0);
    assert_true(sum.faults[SIM_FAULT_UNFLUSHED_LOST] > 0 && sum.faults[SIM_FAULT_UNFLUSHED_TORN] > 0);
}

static void every_mutant_is_found_within_200_seeds(void **state)
{
    (void)state;
    for (int m = SIM_MUTANT_NONE + 1; m < SIM_MUTANT_COUNT; m++) {
        struct runner_options o = toy_options(1, 200);
        o.seed.mutant = (enum sim_mutant)m;
        if (m == SIM_MUTANT_CHANGE_TORN) /* the toy has no changes */
            o.seed.target = &sim_target_volume_ops;
        struct runner_summary sum;
        (void)runner_run(&o, &sum);
        if (sum.failed == 0)
            fail_msg("the mutant %s was not found", sim_mutant_name((enum sim_mutant)m));
    }
}

static void the_same_seed_run_twice_gives_the_same_hash(void **state)
{
    (void)state;
    struct runner_options o = toy_options(300, 310);
    o.twice = true;
    struct runner_summary sum, other;
    assert_int_equal(runner_run(&o, &sum), 0);
    o.twice = false;
    o.first++;
    o.last++;
    assert_int_equal(runner_run(&o, &other), 0);
    assert_int_not_equal(sum.trace_hash, other.trace_hash);
}

#define MODEL_TEST(f) cmocka_unit_test_setup_teardown(f, model_setup, model_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MODEL_TEST(a_read_shows_the_last_acknowledged_write),
        MODEL_TEST(a_read_beside_a_write_may_show_either_and_pins_what_it_saw),
        MODEL_TEST(a_read_that_began_before_an_acknowledgement_may_show_what_was_before),
        MODEL_TEST(bytes_that_nobody_wrote_and_blocks_of_elsewhere_are_refused),
        MODEL_TEST(a_kill_loses_nothing_acknowledged_and_cuts_no_write),
        MODEL_TEST(a_power_loss_may_take_back_what_was_not_flushed),
        MODEL_TEST(a_flush_covers_only_what_was_acknowledged_before_it_was_called),
        MODEL_TEST(no_resurrection_after_an_unmap_that_was_flushed),
        MODEL_TEST(an_error_is_allowed_only_where_the_last_copy_was_damaged),
        cmocka_unit_test(what_is_right_passes),
        cmocka_unit_test(every_mutant_is_found_within_200_seeds),
        cmocka_unit_test(the_same_seed_run_twice_gives_the_same_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
