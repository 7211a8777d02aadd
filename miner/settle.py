"""What the plans of committed rounds do to a miner's account. Pure; the arithmetic is ``common/merge/account.py``.

Plan by plan, in the order of the log. Of the miner's submissions on a plan's base at most one is settled: they are
cumulative, so only one of them can hold what was merged. Its work leaves the training; what no plan names stays there.
A plan that names what this miner never sent is told as an alarm and treated as if it named nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.merge import account as acc
from common.merge.account import Account, Flows, Merged, Pending, Settled
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Revision
from miner.delta import Outstanding, Submission, decoded

NOT_JUDGED = frozenset({"too_late", "not_uploaded"})
"""Codes of a rejection that says nothing against the delta."""


@dataclass(frozen=True)
class OwnPlan:
    """What the plan of a committed round says of this miner."""

    revision: Revision
    base_revision: Revision
    members: tuple[PlanMember, ...]


@dataclass(frozen=True)
class Standing:
    """What a miner holds between two plans."""

    account: Account
    live: tuple[Outstanding, ...] = ()
    """On the base of the next plan."""
    pending: Submission | None = None
    """The delta of ``account.pending``: its upload goes on."""


@dataclass(frozen=True)
class Settlement:
    """The standing after some plans, and what happened on the way."""

    standing: Standing
    mark: Outstanding | None = None
    """Whose work has left the training; None when all of it stays."""
    reasons: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """What a leader must not do, in plain words."""
    flows: tuple[Flows, ...] = ()
    """Where mass went. They refer to old vectors: let them go when they have been read."""


def settle(spec: RunSpec, standing: Standing, plans: Sequence[OwnPlan]) -> Settlement:
    """Go through the plans of all revisions since the last settlement; only the first is on the base of ``live``."""
    done = Settlement(standing)
    for plan in plans:
        done = _through(spec, done, plan)
    return done


def _through(spec: RunSpec, done: Settlement, plan: OwnPlan) -> Settlement:
    """One plan: the round's own submission first, then what the plan before had deferred."""
    live, due = done.standing.live, done.standing.pending
    done = replace(
        done,
        standing=replace(done.standing, live=(), pending=None),
        alarms=(*done.alarms, *_strange(plan, live, due)),
    )
    chosen = _choose(plan, live)
    if chosen is not None:
        done = _own(spec, done, plan, *chosen)
    return done if due is None else _late(done, plan, due)


def _own(spec: RunSpec, done: Settlement, plan: OwnPlan, member: PlanMember, mine: Outstanding) -> Settlement:
    settled = _word(spec, done.standing.account, member, mine)
    pending = mine.sent if member.decision == "deferred" else None
    done = replace(done, standing=replace(done.standing, pending=pending), mark=mine)
    return _booked(done, plan, member, settled)


def _word(spec: RunSpec, account: Account, member: PlanMember, mine: Outstanding) -> Settled:
    """The plan's decision on this round's own submission, in the account."""
    sent, beta = mine.sent, spec.codec.feedback
    target = acc.wanted(account, mine.work.moved, beta)
    if member.decision == "accepted":
        return acc.accepted(account, target, decoded(spec, sent, len(target)), _terms(member), beta)
    if member.decision == "deferred":
        said = decoded(spec, sent, len(target))
        return acc.deferred(account, Pending(*sent.origin, target, said, mine.cap_norm), beta)
    if member.code in NOT_JUDGED:
        return acc.not_capped(account, target, beta)
    return acc.rejected(account, target, mine.cap_norm, beta)


def _late(done: Settlement, plan: OwnPlan, due: Submission) -> Settlement:
    """The plan after the one that deferred ``due`` takes or rejects it; one that is silent has not seen its bytes."""
    account = done.standing.account
    member = next((m for m in plan.members if (m.round, m.delta.sha256) == due.name), None)
    if member is None or member.code in NOT_JUDGED or member.decision == "deferred":
        settled = acc.pending_returned(account)
    elif member.decision == "accepted":
        settled = acc.pending_accepted(account, _terms(member))
    else:
        settled = acc.pending_rejected(account)
    return _booked(done, plan, member, settled)


def _booked(done: Settlement, plan: OwnPlan, member: PlanMember | None, settled: Settled) -> Settlement:
    said = f" ({member.code}: {member.reason})" if member and member.code else ""
    return replace(
        done,
        standing=replace(done.standing, account=settled.account),
        reasons=(*done.reasons, f"revision {plan.revision}: {settled.reason}{said}"),
        flows=(*done.flows, settled.flows),
    )


def _choose(plan: OwnPlan, live: Sequence[Outstanding]) -> tuple[PlanMember, Outstanding] | None:
    """The one submission that the plan settles: the merged one, else the deferred one, else the latest."""
    by_name = {one.sent.name: one for one in live}
    found = [(m, one) for m in plan.members if (one := by_name.get((m.round, m.delta.sha256))) is not None]
    return max(found, key=lambda pair: (rank(pair[0]), pair[1].order), default=None)


def rank(member: PlanMember) -> int:
    """Of several decisions on cumulative submissions the highest is settled."""
    if member.decision == "rejected":
        return 0 if member.code in NOT_JUDGED else 1
    return 3 if member.decision == "accepted" else 2


def _strange(plan: OwnPlan, live: Sequence[Outstanding], due: Submission | None) -> list[str]:
    """What the plan says of submissions that this miner does not know, or of too many."""
    known = {one.sent.name for one in live} | ({due.name} if due else set())
    unknown = [m for m in plan.members if (m.round, m.delta.sha256) not in known]
    taken = [m for m in plan.members if m.base_revision == plan.base_revision and m.decision != "rejected"]
    alarms = [
        f"the plan of revision {plan.revision} has {m.decision} delta {m.delta.sha256[:16]}… of round {m.round}, "
        "which this miner does not hold; it counts as nothing named"
        for m in unknown
    ]
    if len(taken) > 1:
        alarms.append(f"the plan of revision {plan.revision} takes {len(taken)} submissions of this miner on one base")
    return alarms


def _terms(member: PlanMember) -> Merged:
    return Merged(member.tokens, member.weight, member.scale)
