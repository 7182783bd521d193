/* SPDX-License-Identifier: Apache-2.0 */
#include "volume/shortage.h"

#include "volume/volume_internal.h"

#define LOOK_NS (10 * NSEC_PER_MSEC)

void shortage_set_coming(struct volume *v, bool coming)
{
    struct volume_shortage *s = v->env.shortage;

    if (!s || v->space.coming == coming)
        return;
    v->space.coming = coming;
    if (coming) {
        __atomic_add_fetch(&s->coming, 1, __ATOMIC_RELAXED);
        waitq_wake_all(&v->commit_wake); /* it may be urgent */
    } else {
        uint32_t before = __atomic_fetch_sub(&s->coming, 1, __ATOMIC_RELAXED);
        assert(before > 0);
    }
}

void shortage_returned(struct volume *v)
{
    if (v->env.shortage)
        __atomic_add_fetch(&v->env.shortage->returned, 1, __ATOMIC_RELAXED);
}

bool shortage_is_felt(const struct volume *v)
{
    return v->env.shortage && __atomic_load_n(&v->env.shortage->waiting, __ATOMIC_RELAXED) > 0;
}

bool shortage_wait(const struct volume_env *env, const struct volume *v, uint64_t *until_ns)
{
    struct volume_shortage *s = env->shortage;

    if (!s || __atomic_load_n(&s->coming, __ATOMIC_RELAXED) == 0)
        return false;
    if (*until_ns == 0)
        *until_ns = reactor_now_ns() + SHORTAGE_WAIT_NS;
    uint64_t returned = __atomic_load_n(&s->returned, __ATOMIC_RELAXED);
    bool came = false, coming = true;
    __atomic_add_fetch(&s->waiting, 1, __ATOMIC_RELAXED);
    while (!came && coming && reactor_now_ns() < *until_ns && !(v && (v->state || v->closing))) {
        if (fiber_sleep(LOOK_NS))
            break;
        coming = __atomic_load_n(&s->coming, __ATOMIC_RELAXED) > 0;
        came = __atomic_load_n(&s->returned, __ATOMIC_RELAXED) != returned;
    }
    __atomic_sub_fetch(&s->waiting, 1, __ATOMIC_RELAXED);
    return came;
}
