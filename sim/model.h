/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client of a block volume may see: for each block the set of contents that are possible now, and the
 * set that a power loss could leave. Everything a client does is told to the model, and every answer is
 * checked against it.
 *
 * Every write is an operation with a beginning and an acknowledgement on a logical clock. Writes stamp each
 * block with (block, operation, seed), so that a read tells which operation it saw. Unmap and zero are
 * operations whose content is zeroes.
 *
 * Rules
 *  M1  an operation that began after another one was acknowledged takes effect after it (per block);
 *  M2  a read returns what was current at some moment between its beginning and its end; what it saw pins the
 *      order: nothing that had ended before the read began comes back later;
 *  M3  the death of a process loses nothing acknowledged; what was under way happened or did not, a write as
 * a whole; M4  a power loss may take a block back to an older content of its own, but not behind a FUA
 * operation or a flush that was called after the newer operation had been acknowledged; each write as a
 * whole; M5  an error is allowed only where the harness destroyed the last copy of something that may be
 * current.
 */
#ifndef ASHLAR_SIM_MODEL_H
#define ASHLAR_SIM_MODEL_H

#include "runtime/base.h"

struct model;

enum model_kind { MODEL_WRITE, MODEL_ZERO };
enum model_state {
    MODEL_IN_FLIGHT,
    MODEL_ACKED,
    MODEL_UNKNOWN, /* after a crash, or an error that does not say: it happened or it did not */
    MODEL_APPLIED, /* was unknown; a read showed that it had happened */
    MODEL_NOT_APPLIED,
};

struct model_op {
    uint64_t id; /* stamps; 0: the beginning, all zeroes */
    enum model_kind kind;
    enum model_state state;
    bool fua;
    bool atomic;  /* happens as a whole or not at all */
    bool durable; /* known to survive a power loss */
    uint64_t block, blocks;
    uint64_t begun;
    uint64_t acked; /* UINT64_MAX while in flight; the time of the crash if it never was */
    uint32_t index; /* in the list of those in flight */
};

struct model_read {
    uint64_t block, blocks;
    uint64_t begun;
};

struct model *model_new(uint64_t seed, uint64_t blocks);
void model_free(struct model *m);
uint64_t model_blocks(const struct model *m);
/* Block devices only grow. */
void model_grow(struct model *m, uint64_t blocks);

/* The content that op writes to the block. */
void model_fill(const struct model *m, const struct model_op *op, uint64_t block, uint8_t out[BLOCK_SIZE]);
/* Which operation stamped these bytes for which block; false: nobody did. Zeroes: id 0. */
bool model_parse(const struct model *m, const uint8_t data[BLOCK_SIZE], uint64_t *ret_id,
                 uint64_t *ret_block);

struct model_op *model_begin(struct model *m, enum model_kind kind, uint64_t block, uint64_t blocks, bool fua,
                             bool atomic);
void model_ack(struct model *m, struct model_op *op);
/* It failed. nothing_happened: the error promises that. */
void model_fail(struct model *m, struct model_op *op, bool nothing_happened);

struct model_read model_read_begin(struct model *m, uint64_t block, uint64_t blocks);
/* One block of the answer; data NULL: zeroes. false: not allowed, and model_why() says what and why. Call it
 * for each block in turn and then model_read_end(). */
bool model_read_block(struct model *m, const struct model_read *r, uint64_t block, const uint8_t *data);
void model_read_end(struct model *m, const struct model_read *r);
/* The read failed with an error: allowed only if some block of it was damaged (M5). */
bool model_read_error(struct model *m, const struct model_read *r);
/* What volume_map says: data, or reads as zeroes, or lost. */
enum model_map { MODEL_MAP_DATA, MODEL_MAP_ZERO, MODEL_MAP_LOST };
bool model_map_block(struct model *m, const struct model_read *r, uint64_t block, enum model_map what);

/* Returns the time to give to model_flush_ack(). */
uint64_t model_flush_begin(struct model *m);
void model_flush_ack(struct model *m, uint64_t begun);

void model_kill(struct model *m);
void model_power_loss(struct model *m);

/* Everything acknowledged before `begun` is in a committed root now (model_flush_begin() gives the time). */
void model_settle(struct model *m, uint64_t begun);
/* The content is in a committed root. Damage to what only the log names may end replay at that place, as if
 * it had never been acknowledged: without a second copy nobody can tell. */
bool model_is_settled(struct model *m, uint64_t block, uint64_t op_id);
/* The harness destroyed the last copy of this content. Returns whether anybody may still see it. */
bool model_damage(struct model *m, uint64_t block, uint64_t op_id);
/* From now on any block may answer with an error: its only copy was on a drive that failed. Never wrong
 * bytes. */
void model_allow_errors(struct model *m);
/* True if a content that may be current was damaged. */
bool model_is_damaged(struct model *m, uint64_t block);
/* Blocks that may hold data now: the least that the volume must store. */
uint64_t model_data_blocks(struct model *m);

/* The sentence about what was not allowed. */
const char *model_why(const struct model *m);

#endif
