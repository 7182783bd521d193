/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atomic changes (volume/change.h) beside the block clients: a few objects with items and blocks, which
 * clients put, delete, write and clone, several at once; and what may be seen of them.
 *
 * The target says in which order the instants of the changes came, so the model is simple: a row of states,
 * one after each change.
 *
 * Rules
 *  C1  an instant finds the newest state;
 *  C2  a reader finds what some state from its beginning to its end has; what it was told to be seen
 * (volume_seen()) survives the death of the process, as what was acknowledged does;
 *  C3  after a crash the objects are as in *one* state: whole changes, none missing before one that is there;
 *  C4  and that state is none before what a death, or a power loss, must have left.
 */
#ifndef ASHLAR_SIM_CHANGES_H
#define ASHLAR_SIM_CHANGES_H

#include "runtime/base.h"

struct seed;
struct changes;

struct changes *changes_new(uint64_t seed);
void changes_crash(struct changes *c, bool power);
/* Flushing: what is durable once a flush that begins now has ended. */
uint64_t changes_flush_begin(const struct changes *c);
void changes_flush_ack(struct changes *c, uint64_t begun);

/* After opening: finds the state in which the objects are (C3, C4). */
void changes_verify(struct seed *s) may_yield;
/* A client: until s->stop. */
void changes_client(struct seed *s) may_yield;

#endif
