"""What a plan will say, and what is left of it without suspects. Pure.

``without`` makes the next attempt; ``judgement_of`` takes a plan from the log up again, so that whoever leads by then
can go on with it. Invariant, property-tested: the log's rules accept a plan followed by what ``without`` makes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.merge.mean import member_scale
from common.merge.shares import Share, capped_weights
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.rules import counted_tokens, damping_for
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, Revision, RoundId
from validator.round.facts import Verdict

Merged = Collection[tuple[Hotkey, int]]
"""Hotkey and registration block of everybody merged before, as in ``RunState``."""
SUSPECT = "guard_suspect"
NOT_CONTENT = frozenset({"not_uploaded", "too_late", "no_tokens"})
"""Rejections that say nothing of what was delivered."""
MAX_REASON = 300


@dataclass(frozen=True)
class Judgement:
    """What the plan will say."""

    members: tuple[PlanMember, ...]
    damping: float
    """float32, see ``RoundFrozen``."""
    verdict: Verdict
    coldkeys: Mapping[Hotkey, Coldkey]
    """What groups members when weights are made again."""
    watched: Mapping[Hotkey, tuple[int, float]]
    """Validated tokens and seconds of the accepted ones whose work was watched: what a rate is proven by."""

    def plan(self, round_id: RoundId, base: Revision, attempt: int) -> RoundFrozen:
        """The content of the entry."""
        return RoundFrozen(round_id, base, attempt, self.damping, self.members)


def judgement(
    spec: RunSpec,
    base: Revision,
    members: Sequence[PlanMember],
    coldkeys: Mapping[Hotkey, Coldkey],
    watched: Mapping[Hotkey, tuple[int, float]],
) -> Judgement:
    """Members, with the figures that follow from them."""
    verdict = summary(spec, base, members)
    step = damping_for(spec, base, verdict.tokens)
    return Judgement(tuple(members), step, verdict, coldkeys, watched)


def judgement_of(spec: RunSpec, plan: RoundFrozen, coldkeys: Mapping[Hotkey, Coldkey]) -> Judgement:
    """A plan in the log as its judgement; nobody's work was watched."""
    return judgement(spec, plan.base_revision, plan.members, coldkeys, {})


def without(
    spec: RunSpec, base: Revision, merged: Merged, before: Judgement, suspects: Mapping[Hotkey, str]
) -> Judgement:
    """The next attempt: the accepted submissions of the ``suspects`` rejected, each with its reason; new weights.

    ValueError when none of them is accepted: such an attempt would break the log's rules.
    """
    if not any(member.decision == "accepted" and member.hotkey in suspects for member in before.members):
        raise ValueError("another attempt rejects at least one accepted member")
    left = [_unless_suspect(member, suspects) for member in before.members]
    members = list(left)
    for shard in sorted({member.shard for member in left}):
        own = [i for i, member in enumerate(left) if member.shard == shard and member.decision == "accepted"]
        for i, weight in zip(own, _weights(spec, base, merged, before, [left[i] for i in own]), strict=True):
            members[i] = _weighed(left[i], weight)
    watched = {hotkey: shown for hotkey, shown in before.watched.items() if hotkey not in suspects}
    return judgement(spec, base, members, before.coldkeys, watched)


def summary(spec: RunSpec, base: Revision, members: Sequence[PlanMember]) -> Verdict:
    """The figures that the round machine decides on."""
    accepted = [member for member in members if member.decision == "accepted"]
    rejected = [member for member in members if member.decision == "rejected"]
    return Verdict(
        tokens=sum(counted_tokens(spec, base, member) for member in accepted),
        accepted=len(accepted),
        rejected=len(rejected),
        shards=len({member.shard for member in accepted}),
        deferred=len(members) - len(accepted) - len(rejected),
        refused_tokens=sum(member.tokens for member in rejected if member.code not in NOT_CONTENT),
    )


def _unless_suspect(member: PlanMember, suspects: Mapping[Hotkey, str]) -> PlanMember:
    if member.decision != "accepted" or member.hotkey not in suspects:
        return member
    reason = suspects[member.hotkey][:MAX_REASON]
    return replace(member, decision="rejected", code=SUSPECT, reason=reason, weight=0.0, scale=0.0)


def _weights(
    spec: RunSpec, base: Revision, merged: Merged, before: Judgement, members: Sequence[PlanMember]
) -> list[float]:
    late = spec.round.late_weight
    shares = [
        Share(
            tokens=member.tokens * (1.0 if member.base_revision == base else late),
            group=before.coldkeys.get(member.hotkey, Coldkey(member.hotkey)),
            newcomer=(member.hotkey, member.registered_block) not in merged,
        )
        for member in members
    ]
    return capped_weights(shares, spec.gates.max_share, spec.gates.newcomer_share)


def _weighed(member: PlanMember, weight: float) -> PlanMember:
    clip = float(np.float32(member.scale / member.weight))
    return replace(member, weight=weight, scale=member_scale(weight, min(1.0, clip)))
