"""What is done about a machine that is slow: the least that helps, with its reason and the way back. Pure policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from common.units import Hotkey
from validator.health.evidence import Kind
from validator.health.findings import Blame
from validator.health.monitor import Case

QUARANTINE_LEFT = 0.4
"""Share of its usual rate below which a machine alone at fault may be put aside."""
QUARANTINE_DIRTY = 3
"""Probes after the verdict, or rounds of work, that must have said the same before it is."""


class Rung(IntEnum):
    """The ladder, from the mildest."""

    NOTHING = 0
    NO_DUTIES = 1
    """It is dealt no partitions to reduce: others would wait for it."""
    SMALLER_SHARE = 2
    """It is counted on for what it does now, not for what it did."""
    QUARANTINE = 3
    """No round waits for it or counts on it; what it delivers in time is still merged and paid."""


@dataclass(frozen=True)
class Action:
    """What is done about one machine."""

    rung: Rung
    share: float
    """Of its usual rate that rounds count on."""
    strike: bool
    """Whether its record suffers: never for what it shares with its group as the validator sees it."""
    reason: str
    way_back: str


def actions(cases: Mapping[tuple[Kind, Hotkey], Case]) -> dict[Hotkey, Action]:
    """The action for every machine under a verdict; of several the strictest, under all their reasons."""
    held: dict[Hotkey, list[Case]] = {}
    for (_, hotkey), case in sorted(cases.items()):
        held.setdefault(hotkey, []).append(case)
    return {hotkey: _action(of_it) for hotkey, of_it in held.items()}


def _action(cases: Iterable[Case]) -> Action:
    rungs = {case: _rung(case) for case in cases}
    worst = max(rungs, key=lambda case: (rungs[case], -case.finding.left))
    back = (
        "its next rounds of work at its old rate release it"
        if worst.finding.kind is Kind.COMPUTE
        else f"probes go on by themselves; two clean ones in a row release it, the next in round {worst.next_probe}"
    )
    return Action(
        rung=rungs[worst],
        share=min((1.0, *(case.finding.left for case in rungs))),
        strike=any(rungs[case] is Rung.QUARANTINE for case in rungs),
        reason="; ".join(str(case.finding) for case in rungs),
        way_back=back,
    )


def _rung(case: Case) -> Rung:
    finding = case.finding
    if finding.blame is Blame.NODE and finding.left <= QUARANTINE_LEFT and case.dirty >= QUARANTINE_DIRTY:
        return Rung.QUARANTINE
    return Rung.NO_DUTIES if finding.kind is Kind.DOWNLINK else Rung.SMALLER_SHARE
