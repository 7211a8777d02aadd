"""Which manifests go with their deltas: those that no plan names and that prove nothing against a leader. Pure.

A drip is cumulative and replaces its sender's earlier ones, so most manifests of a round are of no further use once
their deltas are gone. For ever stay those that a plan names, for whoever verifies the plan asks for their receipts, and
those of a miner whom the first plan of their round names nothing of on its base: their receipts may convict its leader
(``leftout.py``). Whether the time to complain is over is not asked, since it is counted in plans, and retention keeps
fewer. A round without a plan has broken no promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.keys import KeyParts
from common.runlog.entries import RoundFrozen
from common.runlog.retention import is_named
from common.runlog.state import RunState
from common.units import Hotkey, RoundId, Sha256, ShardId

Line = tuple[ShardId, Hotkey]


@dataclass(frozen=True)
class Planned:
    """What plans that count say of submissions."""

    named: frozenset[tuple[RoundId, ShardId, Hotkey, Sha256]] = frozenset()
    """The deltas that they name, and the rounds that these were made for."""
    lines: Mapping[RoundId, frozenset[Line]] = field(default_factory=dict)
    """Whom each round's plan names something of on its own base."""


def planned(plans: Iterable[RoundFrozen]) -> Planned:
    """What these plans say; of a round one attempt is enough, for all of them name the same."""
    named: set[tuple[RoundId, ShardId, Hotkey, Sha256]] = set()
    lines: dict[RoundId, frozenset[Line]] = {}
    for plan in plans:
        named |= {(member.round, member.shard, member.hotkey, member.delta.sha256) for member in plan.members}
        lines[plan.round] = frozenset(
            (member.shard, member.hotkey) for member in plan.members if member.base_revision == plan.base_revision
        )
    return Planned(frozenset(named), lines)


def is_spent(state: RunState, plans: Planned, parts: KeyParts) -> bool:
    """Whether a key is that of a manifest whose delta a ``gc`` entry has named, and that nothing needs without it.

    ``plans`` are those of the manifest's round and of all later ones.
    """
    if parts.kind != "manifest" or not is_named(state, replace(parts, kind="delta")):
        return False
    assert parts.round_id is not None
    assert parts.shard is not None
    assert parts.hotkey is not None
    assert parts.sha256 is not None
    if (parts.round_id, parts.shard, parts.hotkey, parts.sha256) in plans.named:
        return False
    lines = plans.lines.get(parts.round_id)
    return lines is None or (parts.shard, parts.hotkey) in lines
