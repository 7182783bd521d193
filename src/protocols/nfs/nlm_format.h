/* SPDX-License-Identifier: Apache-2.0 */
/* Network Lock Manager version 4 (RFC 1813, appendix II; The Open Group, XNFS, chapter 10) and Network Status
 * Monitor version 1 (XNFS, chapter 11): numbers of the wire. */
#ifndef ASHLAR_PROTOCOLS_NFS_NLM_FORMAT_H
#define ASHLAR_PROTOCOLS_NFS_NLM_FORMAT_H

#include "runtime/base.h"

#define NLM4_VERSION   4u
#define NLM_NAME_MAX   1024u
#define NLM_NETOBJ_MAX 1024u
#define NSM1_VERSION   1u

enum nlm4_proc {
    NLM4_NULL = 0,
    NLM4_TEST = 1,
    NLM4_LOCK = 2,
    NLM4_CANCEL = 3,
    NLM4_UNLOCK = 4,
    NLM4_GRANTED = 5,
    /* The same without waiting for the answer, which is a call of its own in the other direction. */
    NLM4_TEST_MSG = 6,
    NLM4_LOCK_MSG = 7,
    NLM4_CANCEL_MSG = 8,
    NLM4_UNLOCK_MSG = 9,
    NLM4_GRANTED_MSG = 10,
    NLM4_TEST_RES = 11,
    NLM4_LOCK_RES = 12,
    NLM4_CANCEL_RES = 13,
    NLM4_UNLOCK_RES = 14,
    NLM4_GRANTED_RES = 15,
    NLM4_SHARE = 20,
    NLM4_UNSHARE = 21,
    NLM4_NM_LOCK = 22,
    NLM4_FREE_ALL = 23,
    NLM4_PROC_COUNT
};

enum nlm4_status {
    NLM4_LOCK_GRANTED = 0,
    NLM4_DENIED = 1,
    NLM4_DENIED_NOLOCKS = 2,
    NLM4_BLOCKED = 3,
    NLM4_DENIED_GRACE_PERIOD = 4,
    NLM4_DEADLCK = 5,
    NLM4_ROFS = 6,
    NLM4_STALE_FH = 7,
    NLM4_FBIG = 8,
    NLM4_FAILED = 9,
};

/* Share modes of SHARE: what others may not do, what the caller will do. */
enum { NLM_DENY_NONE = 0, NLM_DENY_READ = 1, NLM_DENY_WRITE = 2, NLM_DENY_BOTH = 3 };
enum { NLM_ACCESS_NONE = 0, NLM_ACCESS_READ = 1, NLM_ACCESS_WRITE = 2, NLM_ACCESS_BOTH = 3 };

enum nsm1_proc {
    NSM1_NULL = 0,
    NSM1_STAT = 1,
    NSM1_MON = 2,
    NSM1_UNMON = 3,
    NSM1_UNMON_ALL = 4,
    NSM1_SIMU_CRASH = 5,
    NSM1_NOTIFY = 6,
    NSM1_PROC_COUNT
};
enum { NSM1_SUCCESS = 0, NSM1_FAIL = 1 };

#endif
