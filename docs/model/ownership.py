#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executable specification of Ashlar's ownership protocol (ARCHITECTURE.md, invariants 1-4).

Explores every interleaving of small worlds: one volume, its record in the coordinator,
members (drives that hold full copies), owners that claim, fence, write, shrink and grow,
crashes, and member-granted leases. Checks in every state that

  durable    an owner that finished opening in the current epoch knows every write that was
             acknowledged, or returned by a read;
  readable   an owner that may serve a read knows every write acknowledged or read anywhere;
  ordered    no late write lies on top of a newer one in a log that an owner opened.

Every world is the basic protocol plus one behaviour, explored within one or more bounds, so
that each stays small:

  basic      crashes keep data; requests and compare-and-sets are answered at once
  queue      a drive admits a write first and executes it later; a fence arrives first and
             is answered later
  cas        the result of a compare-and-set may stay unknown, and the request may take
             effect at any later time, after its owner's death too
  reboot     a member that reboots has a new incarnation and may have lost what it had not
             flushed. An acknowledged write may be lost only when every member that held it
             rebooted; a write whose flush was acknowledged never. No leases and reads here
  lease      a restarted drive has forgotten the lease that it granted
  host       owner and members live on one host (steps of its own, below): the process is killed
             and what was written stays; power fails and each member loses any suffix of what it
             had not flushed; one drive goes, for ever or to come back. An owner opens with any
             members of the set that answer, in whatever incarnation; opening takes many steps

  ownership.py                           explore every world: number of states, verdict (4 minutes)
  ownership.py --world queue             explore one of them
  ownership.py --world basic --epochs 4 --crashes 1    a differently bounded world
  ownership.py --quick                   smaller bounds, without mutants (10 seconds)
  ownership.py --mutants                 drop each rule in turn: every mutant must be caught
  ownership.py --mutant NAME             show the shortest history that breaks without it

Simplifications: a write is (epoch of its owner, place in the log), and a log is a tuple of
writes; a message is an atomic visit of an owner to a member (late and reordered visits are
covered, since an owner acts on old knowledge at any later time); opening levels its members
and writes the record in one step; time is the single event "lease runs out". Owners are
interchangeable: an owner is named by its epoch, and a dead one leaves no state.
"""
import argparse
import sys
import time
from collections import deque, namedtuple

MEMBERS = (0, 1)
MAX_OWNERS = 2              # alive at the same time
Bounds = namedtuple("Bounds", "epochs writes crashes members", defaults=(len(MEMBERS),))
WORLDS = {                  # bounds of the explorations, bounds for the mutants
    "basic": ([Bounds(3, 2, 1), Bounds(2, 2, 2)], Bounds(4, 2, 1)),
    "queue": ([Bounds(3, 2, 0), Bounds(2, 2, 1)], Bounds(3, 2, 0)),
    "cas": ([Bounds(3, 2, 0), Bounds(2, 2, 1)], Bounds(2, 2, 0)),
    "reboot": ([Bounds(3, 1, 1), Bounds(2, 2, 1), Bounds(2, 1, 2)], Bounds(2, 2, 2)),
    "lease": ([Bounds(3, 2, 1), Bounds(2, 2, 2)], Bounds(2, 2, 1)),
    "host": ([Bounds(3, 2, 3)], Bounds(3, 1, 3)),
}
QUICK = {
    "basic": Bounds(2, 1, 1), "queue": Bounds(2, 1, 0), "cas": Bounds(2, 1, 0), "reboot": Bounds(2, 1, 1),
    "lease": Bounds(2, 1, 0), "host": Bounds(2, 1, 2),
}

# The record: epoch, insync, rinc (incarnation of each member), flight (in-sync sets of the
# compare-and-sets that were sent and may still take effect). acked: writes that must not be
# lost; firm: writes whose flush was acknowledged; lost: writes that every holder lost by a reboot.
World = namedtuple("World", "epoch insync rinc flight members owners acked firm lost nwrite ncrash")
# lease: epoch that holds it, or 0; queue: the write admitted but not executed, or None;
# inc: incarnation; stable: length of the log on stable media; quiet: restarted less than a lease ago;
# copy: caught up with an owner's log, but not recorded as a member since
Member = namedtuple("Member", "up fence log lease queue inc stable quiet copy")
# state: claim or active; view: in-sync set as it knows it; seen: members that it fenced; inc: the
# incarnations it knows; pend: members that have the pending write, or None; leases: members whose
# lease it believes alive; level: members outside the set that it brought level with its log;
# cas: compare-and-set without a known result (what, member), or None
Owner = namedtuple("Owner", "state epoch view log seen inc pend leases level cas")
NONE = frozenset()
NO_LEASES = {"reboot"}      # worlds without leases and reads
ZERO = tuple(0 for _ in MEMBERS)

RULES = {
    "ack_all": ("basic", "a write is acknowledged only when every in-sync member has it"),
    "shrink_cas": ("basic", "shrinking is conditional on the epoch"),
    "shrink_first": ("basic", "a member that missed a write leaves the set before the acknowledgement"),
    "fence_check": ("basic", "a member refuses requests below its fence"),
    "fence_before_read": ("basic", "a new owner fences an in-sync member before it reads the log"),
    "fence_raises": ("basic", "a fence, or the first request of a higher epoch, raises the member's epoch"),
    "insync_source": ("basic", "only an in-sync member is a source for the log"),
    "drop_unreached": ("basic", "an owner starts only with members that it fenced and brought level; "
                       "the others leave the set"),
    "grow_level": ("basic", "a member joins the set only when it holds the whole log"),
    "grow_cas": ("basic", "growing is conditional on the epoch"),
    "lease_read": ("basic", "an owner serves reads only while the leases of all in-sync members are alive"),
    "read_committed": ("basic", "a read returns only what every in-sync member has"),
    "fence_waits": ("basic", "a member answers a fence only after a lower epoch's lease has run out"),
    "fence_drains": ("queue", "a drive answers a fence only when everything admitted under lower epochs has completed"),
    "request_drains": ("queue", "a drive serves the first request of a higher epoch only after that, too"),
    "fence_no_lease": ("queue", "a drive grants lower epochs no lease once a fence has arrived"),
    "level_drains": ("queue", "a member is brought level only when the owner's own earlier writes there "
                     "have completed"),
    "cas_revision": ("cas", "every compare-and-set is conditional on the record's revision"),
    "cas_grow_acks": ("cas", "a member must acknowledge from the moment its grow is sent"),
    "cas_settle": ("cas", "an unknown result is settled by another compare-and-set, not by reading the record"),
    "inc_alone": ("reboot", "a member opens a volume alone only in its recorded incarnation; otherwise every "
                  "recorded member is fenced first"),
    "inc_highest": ("reboot", "where no member is in its recorded incarnation, the highest (epoch, sequence) log wins"),
    "inc_check": ("reboot", "an owner takes no answer from another incarnation than it knows; "
                  "such a member leaves first"),
    "shrink_flush": ("reboot", "before a shrink is sent all remaining members flush"),
    "shrink_inc": ("reboot", "a shrink is sent only when all remaining members are in their recorded incarnations"),
    "restart_lease": ("lease", "a restarted drive answers no fence for one full lease"),
    "host_drop_absent": ("host", "a member that did not answer leaves the set before anything is served"),
    "host_record_first": ("host", "the set is recorded before anything is written to the members that answered"),
    "host_level": ("host", "what was replayed is on all opened members before it is served"),
    "host_level_flush": ("host", "what was replayed is flushed on all opened members before it is served"),
    "host_highest": ("host", "the highest (epoch, sequence) of the members that answered wins"),
    "host_insync": ("host", "only a member of the recorded set is opened: one that came back is a copy's target"),
    "host_shrink": ("host", "a member whose drive went leaves the set before anything is acknowledged without it"),
    "host_session": ("host", "a drive that went and came back under an owner serves it no more: it missed writes"),
    "host_grow_flush": ("host", "a member joins the set only when its copy is flushed"),
}


def put(t, i, v):
    return t[:i] + (v,) + t[i + 1:]


def show(writes):
    return " ".join(f"{e}.{n}" for e, n in sorted(writes))


def must(O, off):
    """The members that must have a write before it is acknowledged, and whose leases a read needs."""
    if O.cas and O.cas[0] == "grow" and "cas_grow_acks" not in off:
        return O.view | {O.cas[1]}
    return O.view


def steps(w, world, bound, off):
    """All next worlds, with a label each; `off` is the set of rules left out."""
    on = lambda r: r not in off
    out = []

    def add(label, **kw):
        out.append((label, w._replace(**kw)))

    def own(i, **kw):
        return put(w.owners, i, w.owners[i]._replace(**kw))

    def mem(m, **kw):
        return put(w.members, m, w.members[m]._replace(**kw))

    def gone(i):
        return w.owners[:i] + w.owners[i + 1:]

    def raised(M, e):
        return max(M.fence, e) if on("fence_raises") else M.fence

    def waits(M, e, drains="request_drains"):
        """The member may not yet serve a fence, or a first request, of epoch e."""
        return (M.lease and M.lease < e and on("fence_waits")
                or M.queue and M.queue[0] < e and on(drains)
                or M.quiet and M.fence < e and on("restart_lease"))

    def record(**kw):
        """A change of the record: whatever was sent on an earlier revision, or epoch, comes too late."""
        return dict(kw, flight=NONE) if on("cas_revision") or "epoch" in kw else kw

    def opening(i, O):
        """Steps of an owner that has raised the epoch: fence members, then open."""
        e, me = O.epoch, f"owner {O.epoch}"
        # a fenced member counts in the incarnation in which it answered
        valid = frozenset(x for x in O.seen if w.members[x].inc == O.inc[x])
        for m in MEMBERS:
            M = w.members[m]
            if not M.up or m in valid:
                continue
            if M.fence > e and on("fence_check"):
                add(f"{me} is refused by member {m}", owners=gone(i))
            elif world == "queue" and M.fence < e:
                add(f"the fence of {me} arrives at member {m}", members=mem(m, fence=e))
            elif not waits(M, e, "fence_drains"):
                add(f"{me} fences member {m}", members=mem(m, fence=raised(M, e)),
                    owners=own(i, seen=O.seen | {m}, inc=put(O.inc, m, M.inc)))

        src = valid if on("fence_before_read") else frozenset(MEMBERS)
        if on("insync_source"):
            src &= O.view
        # alone only in the recorded incarnation (the record's, which this epoch alone can change)
        best = frozenset(x for x in src if w.members[x].inc == w.rinc[x])
        if not on("inc_alone"):
            best = src
        if O.view <= valid:
            last = lambda x: (w.members[x].log[-1:], len(w.members[x].log))
            top = max(map(last, O.view))
            best |= frozenset(x for x in O.view if last(x) == top or not on("inc_highest"))
        for s in best:
            if not w.members[s].up:
                continue
            # open: take the source's log, bring the other fenced in-sync members level, drop the rest
            log = w.members[s].log
            keep = frozenset(x for x in O.view & valid if w.members[x].up) | {s}
            if on("fence_check") and any(w.members[x].fence > e for x in keep):
                add(f"{me} is refused on opening", owners=gone(i))
                continue
            if w.epoch != e and on("shrink_cas"):
                add(f"{me} is deposed on opening", owners=gone(i))
                continue
            new = O.view if not on("drop_unreached") else keep & O.view if on("insync_source") else keep
            members = w.members
            for x in keep:
                M = members[x]
                stable = M.stable if M.log == log else 0
                if world == "reboot" and new != O.view and on("shrink_flush"):
                    stable = len(log)
                members = put(members, x, M._replace(log=log, fence=raised(M, e), stable=stable, copy=False,
                                                    lease=0 if world in NO_LEASES else e))
            rinc = tuple(w.members[x].inc if x in keep else w.rinc[x] for x in MEMBERS)
            leases = NONE if world in NO_LEASES else keep
            n = O._replace(state="active", view=new, log=log, leases=leases, inc=rinc, seen=NONE)
            add(f"{me} opens from member {s}", members=members, rinc=rinc, owners=put(w.owners, i, n),
                **record(insync=new))
            if world == "cas":
                add(f"{me} opens from member {s}, hears nothing and gives up", members=members, owners=gone(i),
                    flight=w.flight | {new})

    for m in MEMBERS:
        M = w.members[m]
        if M.up and w.ncrash < bound.crashes:
            n = w.ncrash + 1
            if world == "reboot":
                for kept in {M.stable, len(M.log)}:
                    members = mem(m, up=False, inc=M.inc + 1, log=M.log[:kept])
                    # a copy counts as long as its member is in the set, or left it and has not rebooted since
                    held = [y.log for k, y in enumerate(members)
                            if k in w.insync or not y.copy and y.inc == w.rinc[k]]
                    lost = frozenset(x for x in M.log[kept:] if all(x not in log for log in held))
                    add(f"member {m} reboots with {'[' + show(M.log[:kept]) + ']'}", members=members, ncrash=n,
                        acked=w.acked - lost, lost=w.lost | lost)
            elif world == "lease":
                add(f"member {m} crashes and forgets its lease", members=mem(m, up=False, lease=0), ncrash=n)
            else:
                add(f"member {m} crashes", members=mem(m, up=False, queue=None), ncrash=n)
        if not M.up:
            add(f"member {m} restarts", members=mem(m, up=True, quiet=world == "lease"))
        if M.lease:
            # the owner counts from before it asked, so its belief ends no later than the member's grant
            h = M.lease
            owners = tuple(x._replace(leases=x.leases - {m}) if x.epoch == h else x for x in w.owners)
            add(f"lease of epoch {h} at member {m} runs out", members=mem(m, lease=0), owners=owners)
        if M.up and M.quiet:
            owners = tuple(x._replace(leases=x.leases - {m}) if x.epoch != M.lease else x for x in w.owners)
            add(f"member {m} is up for a full lease", members=mem(m, quiet=False), owners=owners)
        if M.up and M.queue:
            e, x = M.queue
            owners = tuple(y._replace(pend=y.pend | {m}) if y.epoch == e and y.pend is not None and y.log[-1] == x
                           else y for y in w.owners)
            log = M.log if M.log and M.log[-1] == x else M.log + (x,)
            add(f"member {m} executes write {show([x])}", members=mem(m, log=log, queue=None), owners=owners)
        if world == "reboot" and M.up and M.stable < len(M.log):
            add(f"member {m} flushes", members=mem(m, stable=len(M.log)))

    for new in w.flight:
        add(f"the coordinator sets {sorted(new)}, unheard", insync=new,
            **(record() if on("cas_revision") else {"flight": w.flight - {new}}))

    if w.epoch < bound.epochs and len(w.owners) < MAX_OWNERS:
        e = w.epoch + 1
        add(f"owner {e} claims epoch {e}", **record(epoch=e), owners=w.owners + (
            Owner("claim", e, w.insync, (), NONE, w.rinc, None, NONE, NONE, None),))

    for i, O in enumerate(w.owners):
        e, me = O.epoch, f"owner {O.epoch}"
        add(f"{me} dies", owners=gone(i))
        if O.state == "claim":
            opening(i, O)
            continue
        if O.pend is None and w.nwrite < bound.writes:
            x = (e, len(O.log) + 1)
            add(f"{me} writes {show([x])}", nwrite=w.nwrite + 1,
                owners=own(i, log=O.log + (x,), pend=NONE, level=NONE))
        need = must(O, off)
        leased = world not in NO_LEASES
        other = lambda m: w.members[m].inc != O.inc[m] and on("inc_check")      # another incarnation than it knows
        for m in MEMBERS:
            M = w.members[m]
            if world == "lease" and m in O.leases and M.lease != e:
                add(f"{me} counts its lease at member {m} as over", owners=own(i, leases=O.leases - {m}))
            if not M.up:
                continue
            refused = M.fence > e and on("fence_check")
            if O.pend is not None and m not in O.pend and m in need and not other(m):
                x = O.log[-1]
                if refused:
                    add(f"{me} is refused by member {m}", owners=gone(i))
                elif world == "queue":
                    if not M.queue and not waits(M, e):
                        add(f"member {m} admits write {show([x])}", members=mem(m, fence=raised(M, e), queue=(e, x)))
                else:  # a drive does not know what came before: it stores what it is given
                    add(f"member {m} takes write {show([x])}", members=mem(m, log=M.log + (x,), fence=raised(M, e)),
                        owners=own(i, pend=O.pend | {m}))
            if leased and m in need and m not in O.leases and M.lease in (0, e) and not other(m):
                if not refused or not on("fence_no_lease"):
                    add(f"member {m} grants {me} a lease", members=mem(m, lease=e),
                        owners=own(i, leases=O.leases | {m}))
            if m not in need and not refused and not waits(M, e) and O.pend is None and m not in O.level:
                if not M.queue or M.queue[0] != e or not on("level_drains"):
                    add(f"{me} brings member {m} level",
                        members=mem(m, log=O.log, stable=0, fence=raised(M, e), copy=world == "reboot"),
                        owners=own(i, level=O.level | {m}, inc=put(O.inc, m, M.inc)))
        for m in MEMBERS:
            if m not in need and not O.cas and O.pend is None and (m in O.level or not on("grow_level")):
                if world == "cas" and w.epoch == e:
                    add(f"{me} sends the grow by member {m}", flight=w.flight | {O.view | {m}},
                        owners=own(i, cas=("grow", m), level=O.level - {m}))
                elif world != "cas" and (w.epoch == e or not on("grow_cas")):
                    add(f"{me} adds member {m} to the set", insync=w.insync | {m}, rinc=put(w.rinc, m, O.inc[m]),
                        members=mem(m, copy=False),
                        owners=own(i, view=O.view | {m}, level=O.level - {m}))
        if leased and (need <= O.leases or not on("lease_read")):
            got = frozenset(O.log[:-1] if O.pend is not None and on("read_committed") else O.log)
            if got - w.acked - w.lost:
                add(f"{me} serves a read that returns {show(got)}", acked=w.acked | (got - w.lost))

        # a member that missed the write, or came back as another incarnation, leaves the set
        missed = NONE if O.pend is None else O.view - O.pend
        for m in missed | frozenset(x for x in O.view if other(x)):
            rest, members = O.view - {m}, w.members
            if not rest or O.cas:
                continue
            if world == "reboot":
                if any(not w.members[x].up or w.members[x].fence > e or other(x) and on("shrink_inc") for x in rest):
                    continue
                for x in rest if on("shrink_flush") else ():
                    members = put(members, x, members[x]._replace(stable=len(members[x].log)))
            if world == "cas" and w.epoch == e:
                add(f"{me} sends the shrink by member {m}", flight=w.flight | {rest}, owners=own(i, cas=("shrink", m)))
            elif w.epoch == e or not on("shrink_cas"):
                add(f"{me} drops member {m} from the set", insync=w.insync - {m}, members=members,
                    owners=own(i, view=rest))
            else:
                add(f"{me} is deposed on shrinking", owners=gone(i))
        if O.cas and w.epoch != e:
            add(f"{me} is deposed", owners=gone(i))
        elif O.cas:
            what, m = O.cas
            new = O.view | {m} if what == "grow" else O.view - {m}
            if new in w.flight:
                add(f"{me} hears that its {what} is done", insync=new, owners=own(i, view=new, cas=None),
                    **(record() if on("cas_revision") else {"flight": w.flight - {new}}))
            if on("cas_settle"):
                add(f"{me} settles its {what} by another compare-and-set: {sorted(w.insync)}",
                    owners=own(i, view=w.insync, cas=None), **record())
            else:
                add(f"{me} reads the record: {sorted(w.insync)}", owners=own(i, view=w.insync, cas=None))

        if O.pend is not None:
            if not on("ack_all"):
                done = True
            elif not on("shrink_first"):
                done = len(O.pend) >= 1
            else:
                done = need <= O.pend
            if done:
                add(f"{me} acknowledges {show(O.log[-1:])}", acked=w.acked | (frozenset(O.log[-1:]) - w.lost),
                    owners=own(i, pend=None))
        elif world == "reboot" and not w.firm >= frozenset(O.log):
            # every flush was answered: the log is on stable media at every in-sync member
            if all(w.members[x].log[:w.members[x].stable] == O.log for x in need):
                add(f"{me} acknowledges a flush of {show(O.log)}", firm=w.firm | frozenset(O.log))
    return out


# ---- The world "host" ----
# root: epoch of the owner that levelled the member last; base: length of the log that this root contains;
# droot, dlog: what is on stable media. here: the drive answers.
HostMember = namedtuple("HostMember", "here root base log droot dlog")
# state: claim (fencing), load (has replayed), active; seen: members with a live session; held: everything
# that the answering members held when it replayed; written, flushed: members levelled; stored: the record names exactly `seen`;
# pend: as above
HostOwner = namedtuple("HostOwner", "state epoch seen held log written flushed stored pend")
# glitch: some power was lost, so what was only acknowledged may be gone
HostWorld = namedtuple("HostWorld", "epoch insync members owner acked firm lost glitch nwrite ncrash")


def host_power(M):
    """What a member may hold after its power failed: what it had flushed, or more of what it had written."""
    out = {(M.droot, min(M.base, len(M.dlog)), M.dlog)}
    first = len(M.dlog) if M.root == M.droot else M.base
    out |= {(M.root, min(M.base, k), M.log[:k]) for k in range(first, len(M.log) + 1)}
    return [M._replace(root=r, base=b, log=log, droot=r, dlog=log) for r, b, log in sorted(out)]


def host_combinations(members):
    if not members:
        return [()]
    return [(m,) + rest for m in host_power(members[0]) for rest in host_combinations(members[1:])]


def host_steps(w, bound, off):
    on = lambda r: r not in off
    out = []
    O = w.owner

    def add(label, **kw):
        out.append((label, w._replace(**kw)))

    def mem(m, **kw):
        return put(w.members, m, w.members[m]._replace(**kw))

    def own(**kw):
        return O._replace(**kw)

    if w.ncrash < bound.crashes:
        n = w.ncrash + 1
        if O:
            add(f"the process is killed (owner {O.epoch})", owner=None, ncrash=n)
        for members in host_combinations(w.members):
            if members != w.members or O:
                held = " ".join("[" + show(M.log) + "]" for M in members)
                add(f"power fails; the members hold {held}", owner=None, members=members, glitch=True, ncrash=n)
        for m, M in enumerate(w.members):
            for after in host_power(M) if M.here else ():
                seen = O and (O.seen - {m} if on("host_session") else O.seen)
                add(f"drive {m} goes; it holds {'[' + show(after.log) + ']'}", ncrash=n,
                    members=put(w.members, m, after._replace(here=False)), glitch=w.glitch or after.log != M.log,
                    owner=O and own(seen=seen, stored=O.stored and seen == O.seen))
    for m, M in enumerate(w.members):
        if not M.here:
            add(f"drive {m} is back", members=mem(m, here=True))
    if not O:
        if w.epoch < bound.epochs:
            add(f"owner {w.epoch + 1} claims", epoch=w.epoch + 1, owner=HostOwner(
                "claim", w.epoch + 1, NONE, NONE, (), NONE, NONE, False, None))
        return out

    e, me = O.epoch, f"owner {O.epoch}"
    if O.state == "claim":
        for m, M in enumerate(w.members):
            if M.here and m not in O.seen and (m in w.insync or not on("host_insync")):
                add(f"member {m} answers {me}", owner=own(seen=O.seen | {m}))
        there = frozenset(m for m in O.seen if w.members[m].here)
        if there:
            place = lambda m: (w.members[m].root, len(w.members[m].log))
            top = max(map(place, there))
            held = frozenset(x for m in there for x in w.members[m].log)
            for m in sorted(there):
                if place(m) == top or not on("host_highest"):
                    add(f"{me} replays what member {m} has: [{show(w.members[m].log)}]",
                        owner=own(state="load", log=w.members[m].log, held=held, stored=O.seen == w.insync))
        return out
    if O.state == "load":
        if not O.seen:
            add(f"{me} has no member left", owner=None)
            return out
        if not O.stored:
            new = O.seen if on("host_drop_absent") else w.insync
            add(f"{me} records the set {sorted(new)}", insync=new, owner=own(stored=True))
        for m in sorted(O.seen):
            M = w.members[m]
            if not M.here:
                continue
            if m not in O.written and (O.stored or not on("host_record_first")):
                add(f"{me} levels member {m}", members=mem(m, root=e, base=len(O.log), log=O.log),
                    owner=own(written=O.written | {m}))
            if m in O.written and m not in O.flushed:
                add(f"member {m} flushes", members=mem(m, droot=M.root, dlog=M.log), owner=own(flushed=O.flushed | {m}))
        level = O.flushed if on("host_level_flush") else O.written
        if not on("host_level"):
            level = O.seen if level else NONE
        if O.stored and O.seen <= level:
            # a reader sees everything at once: from now on it must not go
            missing = w.acked - frozenset(O.log)
            lost = missing - O.held if w.glitch else NONE
            add(f"{me} serves [{show(O.log)}]", owner=own(state="active", held=NONE),
                acked=w.acked - lost, lost=w.lost | lost, firm=w.firm | frozenset(O.log))
        return out

    # active: acknowledges to clients, and the set is O.seen or on its way to it
    if O.pend is None and w.nwrite < bound.writes:
        add(f"{me} writes {show([(e, len(O.log) + 1)])}", nwrite=w.nwrite + 1,
            owner=own(log=O.log + ((e, len(O.log) + 1),), pend=NONE))
    for m in sorted(O.seen):
        M = w.members[m]
        if M.here and O.pend is not None and m not in O.pend:
            add(f"member {m} takes write {show(O.log[-1:])}", members=mem(m, log=M.log + O.log[-1:]),
                owner=own(pend=O.pend | {m}))
        if M.here and (M.droot, M.dlog) != (M.root, M.log):
            add(f"member {m} flushes", members=mem(m, droot=M.root, dlog=M.log))
    if not O.stored:
        if O.seen:
            add(f"{me} records the set {sorted(O.seen)}", insync=O.seen, owner=own(stored=True))
        else:
            add(f"{me} has no member left", owner=None)
    done = O.stored or not on("host_shrink")
    if O.pend is not None and O.seen and done:
        if O.seen <= (O.pend if on("host_session") else
                      O.pend | frozenset(m for m in O.seen if not w.members[m].here)):
            add(f"{me} acknowledges {show(O.log[-1:])}", acked=w.acked | frozenset(O.log[-1:]), owner=own(pend=None))
    elif O.pend is None and O.seen and done and not w.firm >= frozenset(O.log):
        if all(w.members[m].dlog == w.members[m].log for m in O.seen):
            add(f"{me} acknowledges a flush of [{show(O.log)}]", firm=w.firm | frozenset(O.log))
    if O.pend is None and O.stored:
        for m, M in enumerate(w.members):
            if not M.here or m in O.seen:
                continue
            if (M.root, M.log) != (e, O.log):
                add(f"{me} copies everything to member {m}", members=mem(m, root=e, base=len(O.log), log=O.log))
            elif M.droot == e and M.dlog == O.log or not on("host_grow_flush"):
                add(f"{me} adds member {m} to the set", insync=w.insync | {m}, owner=own(seen=O.seen | {m}))
            else:
                add(f"member {m} flushes its copy", members=mem(m, droot=M.root, dlog=M.log))
    return out


def host_bad(w):
    O = w.owner
    if not O or O.state != "active":
        return None
    lacks = w.firm - frozenset(O.log)
    if lacks:
        return f"firm: owner {O.epoch} does not know {show(lacks)}, which was flushed, or shown after an open"
    lacks = w.acked - frozenset(O.log)
    if lacks and not w.glitch:
        return f"acknowledged: owner {O.epoch} does not know {show(lacks)}, and power never failed"
    if lacks:
        return f"held: owner {O.epoch} does not know {show(lacks)}, which a member that it opened held"
    if any(a >= b for a, b in zip(O.log, O.log[1:])):
        return f"ordered: owner {O.epoch} has a late write on a newer one"
    return None


def bad(w, off):
    need = w.acked | w.firm
    for O in w.owners:
        if O.state != "active":
            continue
        lacks = need - frozenset(O.log)
        if lacks and O.epoch == w.epoch:
            return f"durable: owner {O.epoch} does not know {show(lacks)}"
        if lacks and (must(O, off) <= O.leases or "lease_read" in off):
            return f"readable: owner {O.epoch} would serve a stale read, missing {show(lacks)}"
        if any(a >= b for a, b in zip(O.log, O.log[1:])):
            return f"ordered: owner {O.epoch} opened a log in which a late write lies on a newer one: " + \
                " ".join(show([x]) for x in O.log)
    return None


def explore(world, bound, off, limit=12_000_000):
    members = tuple(Member(True, 0, (), 0, None, 0, 0, False, False) for _ in MEMBERS)
    first = World(0, frozenset(MEMBERS), ZERO, NONE, members, (), NONE, NONE, NONE, 0, 0)
    if world == "host":
        members = tuple(HostMember(True, 0, 0, (), 0, ()) for _ in range(bound.members))
        first = HostWorld(0, frozenset(range(bound.members)), members, None, NONE, NONE, NONE, False, 0, 0)
    seen = {first: None}
    todo = deque([first])
    while todo:
        w = todo.popleft()
        for label, n in host_steps(w, bound, off) if world == "host" else steps(w, world, bound, off):
            if n in seen:
                continue
            seen[n] = (label, w)
            why = host_bad(n) if world == "host" else bad(n, off)
            if why:
                path = []
                while seen[n]:
                    path.append(seen[n][0])
                    n = seen[n][1]
                return len(seen), why, path[::-1]
            todo.append(n)
        if len(seen) > limit:
            return len(seen), "too many states: not fully explored", []
    return len(seen), None, []


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--world", choices=list(WORLDS) + ["all"], default="all")
    a.add_argument("--mutants", action="store_true")
    a.add_argument("--quick", action="store_true")
    a.add_argument("--mutant", choices=sorted(RULES))
    a.add_argument("--epochs", type=int)
    a.add_argument("--writes", type=int)
    a.add_argument("--crashes", type=int)
    a = a.parse_args()

    def bounds(world, mutant=False):
        given = (a.epochs, a.writes, a.crashes)
        full, one = WORLDS[world]
        chosen = [one] if mutant else [QUICK[world]] if a.quick else full if given == (None,) * 3 else full[:1]
        return [Bounds(*(d if g is None else g for g, d in zip(given + (None,), b))) for b in chosen]

    if a.mutant:
        world = RULES[a.mutant][0]
        n, why, path = explore(world, bounds(world, True)[0], {a.mutant})
        print("\n".join(f"{i + 1:3} {s}" for i, s in enumerate(path)))
        print(f"{world}: {why or f'not caught in {n} states'}")
        return 0 if path else 1
    wanted = list(WORLDS) if a.world == "all" else [a.world]
    failed = 0
    if a.mutants:
        for r, (world, text) in RULES.items():
            if world in wanted:
                n, why, path = explore(world, bounds(world, True)[0], {r})
                found = f"caught in {len(path)} steps: {why.split(':')[0]}" if path else f"NOT CAUGHT ({n} states)"
                print(f"{world:7} {r:18} {found}   [{text}]", flush=True)
                failed += not path
        return 1 if failed else 0
    for world in wanted:
        for b in bounds(world):
            t = time.process_time()
            n, why, path = explore(world, b, NONE)
            for i, step in enumerate(path):
                print(f"{i + 1:3} {step}")
            print(f"{world:7} {b.epochs} epochs, {b.writes} writes, {b.crashes} crashes: {n:8} states, "
                  f"{time.process_time() - t:3.0f} s; {why or 'holds'}", flush=True)
            failed += bool(why)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
