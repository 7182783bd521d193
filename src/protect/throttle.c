/* SPDX-License-Identifier: Apache-2.0 */
#include "protect/throttle.h"

#include "runtime/error.h"

#define THROTTLE_SLEEP_MIN_NS NSEC_PER_MSEC

void throttle_init(struct throttle *t, uint64_t rate_bytes_per_s, uint64_t burst_bytes)
{
    assert(burst_bytes > 0);
    *t = (struct throttle){.rate_bytes_per_s = rate_bytes_per_s,
                           .burst_bytes = burst_bytes,
                           .tokens = burst_bytes,
                           .refilled_ns = reactor_now_ns()};
}

static void throttle_refill(struct throttle *t)
{
    uint64_t now = reactor_now_ns();
    unsigned __int128 earned = (unsigned __int128)(now - t->refilled_ns) * t->rate_bytes_per_s / NSEC_PER_SEC;
    if (earned == 0)
        return; /* refilled_ns stays, so that short waits add up */
    t->refilled_ns = now;
    t->tokens = earned >= t->burst_bytes - MIN(t->tokens, t->burst_bytes) ? t->burst_bytes
                                                                          : t->tokens + (uint64_t)earned;
}

int throttle_take(struct throttle *t, uint64_t len)
{
    /* What is larger than the bucket passes in pieces. The rate may be changed while somebody waits. */
    while (len > 0) {
        if (t->rate_bytes_per_s == 0) {
            t->refilled_ns = reactor_now_ns();
            return fiber_cancelled() ? ERR_CANCELLED : 0;
        }
        throttle_refill(t);
        uint64_t piece = MIN(len, t->burst_bytes);
        if (t->tokens >= piece) {
            t->tokens -= piece;
            len -= piece;
            continue;
        }
        unsigned __int128 wait = (unsigned __int128)(piece - t->tokens) * NSEC_PER_SEC / t->rate_bytes_per_s;
        /* At most a second at a time, so that a higher rate takes effect soon. */
        uint64_t wait_ns = wait > NSEC_PER_SEC ? NSEC_PER_SEC : (uint64_t)wait;
        int err = fiber_sleep(MAX(wait_ns, THROTTLE_SLEEP_MIN_NS));
        if (err != 0)
            return err;
    }
    return 0;
}
