"""When a merge does harm: who did it? Each accepted delta is tried alone on the held-out text.

Invariants: whoever's bytes can't be read any more, or don't decode, is named without a trial; trials end at a set time,
and the rest is told as not tried; the same bytes lead to the same suspects, so another leader goes on the same way.
Blocking: for worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import Rejected
from common.merge.suspects import Trial, suspects
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.rules import counted_tokens
from common.spec import RunSpec
from common.units import Coldkey, Hotkey
from validator.merging import MOST_RISE_NATS

LossAlone = Callable[[PlanMember], float]
"""Held-out loss of the base with one delta, as the plan scales it. ``Rejected`` for bytes that are no delta."""
Tried = tuple[PlanMember, Trial]


@dataclass(frozen=True)
class Trouble:
    """Why the merge of a plan is not committed, and who should be left out of the next attempt."""

    evidence: tuple[str, ...]
    suspects: Mapping[Hotkey, str] = field(default_factory=dict)
    """With the figures that name each."""


@dataclass(frozen=True)
class Search:
    """What a search for suspects rests on."""

    spec: RunSpec
    coldkeys: Mapping[Hotkey, Coldkey]
    base_loss: float
    loss_alone: LossAlone
    now_s: Callable[[], float]
    until_s: float
    """When no further delta is tried."""


def examine(plan: RoundFrozen, told: str, search: Search) -> Trouble:
    """Try the accepted members of a plan whose merge does what ``told`` says. Raises ``Retryable`` on outages."""
    accepted = [member for member in plan.members if member.decision == "accepted"]
    tried: list[Tried] = []
    gone: dict[Hotkey, str] = {}
    for member in accepted:
        if search.now_s() >= search.until_s:
            break
        try:
            tried.append((member, _trial(plan, member, search)))
        except Rejected as refusal:
            gone[member.hotkey] = f"its delta can't be merged any more: {refusal}"
    untried = len(accepted) - len(tried) - len(gone)
    lines = [told, *(f"{hotkey}: {reason}" for hotkey, reason in gone.items()), *_lines(tried, search.base_loss)]
    lines += [f"{untried} more were not tried, for want of time"] if untried else []
    return Trouble(tuple(lines), gone or _named(plan, tried, search))


def _trial(plan: RoundFrozen, member: PlanMember, search: Search) -> Trial:
    tokens = counted_tokens(search.spec, plan.base_revision, member)
    coldkey = search.coldkeys.get(member.hotkey, Coldkey(member.hotkey))
    return Trial(search.loss_alone(member), coldkey, tokens)


def _named(plan: RoundFrozen, tried: Sequence[Tried], search: Search) -> dict[Hotkey, str]:
    trials = [trial for _, trial in tried]
    quorum = search.spec.quorum_tokens(plan.base_revision)
    indices, why = suspects(search.base_loss, trials, MOST_RISE_NATS, quorum)
    named = [tried[i] for i in indices]
    return {m.hotkey: f"{why}: {trial.loss:.3f} where the base has {search.base_loss:.3f}" for m, trial in named}


def _lines(tried: Sequence[Tried], base_loss: float) -> list[str]:
    worst = sorted(tried, key=lambda one: -one[1].loss)
    return [f"{m.hotkey} alone would make {trial.loss:.3f} of {base_loss:.3f}" for m, trial in worst]
