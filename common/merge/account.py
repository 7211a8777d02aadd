"""The exact account of one miner and shard: what it trained, and where every part of that went.

Error feedback (Seide et al. 2014; arXiv:1901.09847) whose memory changes only on a committed plan. A submission is made
at a mark of the training: ``target = β·residual + moved``, where ``moved`` is everything since the last settled mark.
The miner sends the codec's view of the target; the plan of the committed round says what became of it::

    accepted      residual ← target − sent         whatever weight the merge gave it
    rejected      residual ← capped(target)        else what is refused would grow without bound
    not capped    residual ← target                too late, or not all there
    deferred      residual ← 0, pending ← target   the upload goes on; the next committed plan settles it
    nothing named, or the round aborted: no call; all work stays in the miner's trace

and of a pending one, accepted: ``residual += target − sent``; rejected: ``residual += capped(target)``; returned:
``residual += target`` (also when that plan does not name it). What is pending is in no other target.

Order within one plan: the round's own submission first, then the pending one, since the own target was made before the
pending one came back.

Conservation, over any history, to the rounding of each float32 operation (half a unit in the last place)::

    Σ moved = merged + clipped + weighed_down + decayed + rejected + rolled_back + residual + pending

β is applied by ``wanted``, which may be asked for many drips; the decay is booked once, when a target is settled.
``merged`` is what the plan let through of ``sent``: scale over tokens. Damping and outer step act on the whole mean,
not on one miner's part, and are not in this account. Vectors must not be changed once they were handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from common.codec.params import F32
from common.merge.flows import Flow, Flows, Merged, norm
from common.merge.mean import BLOCK_VALUES
from common.units import Revision, RoundId, Sha256

__all__ = [
    "Account", "Flow", "Flows", "Merged", "Pending", "Settled", "accepted", "deferred", "norm", "not_capped",
    "pending_accepted", "pending_rejected", "pending_returned", "rejected", "rolled_back", "wanted",
]  # fmt: skip


@dataclass(frozen=True)
class Pending:
    """A submission that the last committed plan deferred."""

    round: RoundId
    base_revision: Revision
    delta_sha256: Sha256
    target: F32
    sent: F32
    """What the delta decodes to."""
    cap_norm: float
    """Norm that the residual keeps of the target at most, if it is rejected."""

    def __post_init__(self) -> None:
        for values, what in ((self.target, "the pending target"), (self.sent, "the pending delta")):
            _check_shape(values, len(self.target), what)
            _check_finite(values, what)
        _check_cap(self.cap_norm)


@dataclass(frozen=True)
class Account:
    """What a miner holds of a shard between plans. Invariant: every value is finite; ``ValueError`` otherwise."""

    residual: F32
    pending: Pending | None = None
    due: Pending | None = None
    """The pending one of the plan before, while ``pending`` is already this plan's: set by ``deferred``, and taken away
    by the ``pending_…`` call that must follow for the same plan."""

    def __post_init__(self) -> None:
        _check_shape(self.residual, len(self.residual), "the residual")
        _check_finite(self.residual, "the residual")
        for held in (self.pending, self.due):
            if held is not None and len(held.target) != len(self.residual):
                raise ValueError(f"{len(held.target)} pending values, but a residual of {len(self.residual)}")

    @classmethod
    def empty(cls, count: int) -> Account:
        """At the start of a run, and after a rollback."""
        return cls(np.zeros(count, dtype=np.float32))


@dataclass(frozen=True)
class Settled:
    """The account after a settlement, where mass went, and why in plain words."""

    account: Account
    flows: Flows
    reason: str


def wanted(account: Account, moved: F32, beta: float) -> F32:
    """What the next submission should say: ``β·residual + moved``. ``ValueError`` unless all of it is finite."""
    _check_shape(moved, len(account.residual), "the work")
    target = account.residual * np.float32(beta)
    with np.errstate(over="ignore"):
        target += moved
    _check_finite(target, "the residual plus the work")  # and so is the work
    return target


def accepted(account: Account, target: F32, sent: F32, terms: Merged, beta: float) -> Settled:
    """The plan accepted ``sent`` (the decoded delta that it names, be it an earlier drip) of the mark of ``target``."""
    _check_shape(target, len(account.residual), "the target")
    _check_shape(sent, len(account.residual), "the delta")
    return Settled(
        _with(account, _minus(target, sent)),
        _flows(account, beta, sent=(terms, sent)),
        f"the plan accepted it: {_told(terms)}",
    )


def rejected(account: Account, target: F32, cap_norm: float, beta: float) -> Settled:
    """The plan rejected the submission: the residual keeps at most ``cap_norm`` of its norm."""
    _check_shape(target, len(account.residual), "the target")
    _check_finite(target, "the target")
    kept, share, told = _capped(target, cap_norm)
    flows = _flows(account, beta, dropped=(1.0 - share, target))
    return Settled(_with(account, kept), flows, f"the plan rejected it{told}")


def not_capped(account: Account, target: F32, beta: float) -> Settled:
    """The plan named the submission but could not judge it (``too_late``, ``not_uploaded``): all is kept."""
    _check_shape(target, len(account.residual), "the target")
    return Settled(_with(account, target), _flows(account, beta), "it was not there in time; all is kept")


def deferred(account: Account, pending: Pending, beta: float) -> Settled:
    """The plan deferred the submission: its target leaves the residual until the next committed plan."""
    if account.due is not None:
        raise ValueError(f"the pending submission of round {account.due.round} must be settled first")
    if len(pending.target) != len(account.residual):
        raise ValueError(f"{len(pending.target)} pending values, but a residual of {len(account.residual)}")
    after = Account(np.zeros_like(account.residual), pending, account.pending)
    return Settled(after, _flows(account, beta), "it is pending: the next committed plan settles it")


def pending_accepted(account: Account, terms: Merged) -> Settled:
    """The next plan accepted the pending submission."""
    old, after = _released(account)
    flows = _flows(account, 1.0, sent=(terms, old.sent))
    return Settled(
        _plus(after, _minus(old.target, old.sent)), flows, f"the plan accepted what was pending: {_told(terms)}"
    )


def pending_rejected(account: Account) -> Settled:
    """The next plan rejected the pending submission: the residual takes it back, up to its cap."""
    old, after = _released(account)
    kept, share, told = _capped(old.target, old.cap_norm)
    flows = _flows(account, 1.0, dropped=(1.0 - share, old.target))
    return Settled(_plus(after, kept), flows, f"the plan rejected what was pending{told}")


def pending_returned(account: Account) -> Settled:
    """The next plan did not take the pending submission since it was still not all there: all of it comes back."""
    old, after = _released(account)
    return Settled(_plus(after, old.target), _flows(account, 1.0), "what was pending came too late; all is kept")


def rolled_back(account: Account) -> Settled:
    """The run went back to an earlier revision: residual and pendings are void."""
    held = [account.residual] + [one.target for one in (account.pending, account.due) if one is not None]
    count = len(account.residual)
    flow = Flow(count)
    for vector in held:
        flow = flow.plus(1.0, vector)
    flows = replace(_flows(account, 1.0), rolled_back=flow)
    return Settled(Account.empty(count), flows, "a rollback voided residual and pending work")


def _flows(
    account: Account, beta: float, sent: tuple[Merged, F32] | None = None, dropped: tuple[float, F32] | None = None
) -> Flows:
    none = Flow(len(account.residual))
    merged, clipped, weighed_down = none, none, none
    if sent is not None:
        merged, clipped, weighed_down = (none.plus(share, sent[1]) for share in sent[0].parts)
    decayed = none.plus(1.0 - float(np.float32(beta)), account.residual)
    rejected = none if dropped is None else none.plus(*dropped)
    return Flows(merged, clipped, weighed_down, decayed, rejected, rolled_back=none)


def _released(account: Account) -> tuple[Pending, Account]:
    """The oldest pending submission, and the account without it."""
    if account.due is not None:
        return account.due, replace(account, due=None)
    if account.pending is None:
        raise ValueError("nothing is pending")
    return account.pending, replace(account, pending=None)


def _plus(account: Account, values: F32) -> Account:
    with np.errstate(over="ignore"):
        return _with(account, account.residual + values)


def _with(account: Account, residual: F32) -> Account:
    """The account with this residual. It refuses one that is not finite, and that is what comes of any operand that
    is not: so no operand need be looked at for itself."""
    return Account(residual, account.pending, account.due)


def _minus(target: F32, sent: F32) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        return target - sent


def _capped(values: F32, cap_norm: float) -> tuple[F32, float, str]:
    """``values`` scaled to ``cap_norm`` at most, the factor (a float32) and a text that says what that dropped."""
    _check_cap(cap_norm)
    before = norm(values)
    if before <= cap_norm:
        return values, 1.0, "; all is kept"
    share = np.float32(cap_norm / before)
    return values * share, float(share), f"; its cap dropped a norm of {(1.0 - float(share)) * before:.4g}"


def _told(terms: Merged) -> str:
    merged, clipped, weighed_down = terms.parts
    if merged == 1:
        return "all of what was sent is merged"
    return f"{merged:.1%} of what was sent is merged ({clipped:.1%} clipped, {weighed_down:.1%} weighed down)"


def _check_cap(cap_norm: float) -> None:
    if not 0 <= cap_norm < math.inf:
        raise ValueError(f"cap_norm must be finite and not negative, but is {cap_norm}")


def _check_shape(values: F32, count: int, what: str) -> None:
    if values.dtype != np.float32 or values.shape != (count,):
        raise ValueError(f"{what} is {values.dtype} {values.shape}, not {count} float32")


def _check_finite(values: F32, what: str) -> None:
    starts = range(0, len(values), BLOCK_VALUES)
    bad = sum(int(np.count_nonzero(~np.isfinite(values[i : i + BLOCK_VALUES]))) for i in starts)
    if bad:
        raise ValueError(f"{what} has {bad} of {len(values)} values that are infinite or not a number")
