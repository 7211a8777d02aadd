"""What the log says of work: which of it was merged, and what the miners signed to have trained. Pure.

Invariant: a plan counts as merged once its round has committed, and what was merged late counts by its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.runlog.entries import PlanMember, RevisionCommitted, RoundFrozen
from common.runlog.replay import Step
from common.runlog.rules import counted_tokens
from common.units import Hotkey, Revision, RoundId


@dataclass(frozen=True)
class Claim:
    """Tokens that a plan's member, accepted or not, said it had trained on a base: all since it took up that base.

    So of several claims on one base the largest holds the others: a plan tried again, an aborted round, a late one.
    """

    round: RoundId
    """The plan's."""
    base_revision: Revision
    hotkey: Hotkey
    tokens: int


@dataclass(frozen=True)
class Merged:
    """What the log says was merged."""

    members: tuple[PlanMember, ...]
    """Accepted members of committed rounds."""
    counted: Mapping[Hotkey, int]
    """Their tokens, late ones by their weight."""
    late: int
    """Tokens, in full number, that came late."""
    claims: tuple[Claim, ...]

    def claimed(self, within: RoundId | None = None) -> dict[Hotkey, int]:
        """Tokens that each miner signed for, in all plans or in those of rounds up to ``within``."""
        most: dict[tuple[Hotkey, Revision], int] = {}
        for claim in self.claims:
            if within is None or claim.round <= within:
                place = (claim.hotkey, claim.base_revision)
                most[place] = max(most.get(place, 0), claim.tokens)
        totals: dict[Hotkey, int] = {}
        for (hotkey, _), tokens in most.items():
            totals[hotkey] = totals.get(hotkey, 0) + tokens
        return totals


def merged_members(steps: Iterable[Step]) -> Merged:
    """Collect the plans of a log's history; a plan counts as merged once its round has committed."""
    members: list[PlanMember] = []
    counted: dict[Hotkey, int] = {}
    claims: list[Claim] = []
    late = 0
    plan: RoundFrozen | None = None
    for step in steps:
        if step.entry is None or step.void is not None:
            continue
        data = step.entry.data
        if isinstance(data, RoundFrozen):
            plan = data
            claims += [Claim(data.round, m.base_revision, m.hotkey, m.tokens_claimed) for m in data.members]
        elif isinstance(data, RevisionCommitted) and plan is not None:
            taken = [member for member in plan.members if member.decision == "accepted"]
            members += taken
            for member in taken:
                tokens = counted_tokens(step.state.spec, plan.base_revision, member)
                counted[member.hotkey] = counted.get(member.hotkey, 0) + tokens
                late += member.tokens if member.base_revision != plan.base_revision else 0
    return Merged(tuple(members), counted, late, tuple(claims))
