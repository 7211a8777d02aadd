"""What heartbeats claim of speed and work between two looks, per second of this process's clock of the miner's work.

Two claims: the counter of tokens, and the miner's own speed for the share of the time that it says to have trained, so
that a machine that is told to go slow, and rests between two steps, claims no more than it does. Both are compared with
what was handed in. Bounded by the members that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.units import Hotkey, Revision
from validator.health.claims import Said
from validator.judgement import Judgement
from validator.members import Member


@dataclass(frozen=True, slots=True)
class _Noted:
    """One member's totals at a look."""

    session: str
    tokens: int
    training_s: float
    worked_s: float
    """On the receiver's clock."""


class Hearsay:
    """Of one leading process."""

    def __init__(self) -> None:
        self._noted: dict[Hotkey, _Noted] = {}

    def take(self, members: Iterable[Member], shown: Mapping[Hotkey, float]) -> dict[Hotkey, Said]:
        """Since the last call; ``shown`` as in ``Said``. A machine that is new here, or began anew, says nothing."""
        before, self._noted, found = self._noted, {}, {}
        for member in members:
            if member.beat is None:
                continue
            counters = member.beat.counters
            now = _Noted(member.beat.session, counters.tokens, counters.training_s, member.work.worked_s)
            self._noted[member.hotkey] = now
            last = before.get(member.hotkey)
            if last is not None and last.session == now.session and member.hotkey in shown:
                found[member.hotkey] = _said(last, now, member.beat.tokens_per_s, shown[member.hotkey])
        return found

    def clear(self) -> None:
        """What was claimed up to now lies in a time that does not count."""
        self._noted.clear()


def handed_in(judgement: Judgement, base: Revision) -> dict[Hotkey, float]:
    """Tokens per second of watched work in what a plan accepts: as the manifests say, since what a plan counts less for
    shows no lower speed."""
    tokens: dict[Hotkey, int] = {}
    for member in judgement.members:
        if member.decision == "accepted" and member.base_revision == base:
            tokens[member.hotkey] = tokens.get(member.hotkey, 0) + member.tokens_claimed
    watched = {hotkey: seconds for hotkey, (_, seconds) in judgement.watched.items() if seconds > 0}
    return {hotkey: tokens[hotkey] / watched[hotkey] for hotkey in tokens.keys() & watched.keys()}


def _said(last: _Noted, now: _Noted, tokens_per_s: float, shown: float) -> Said:
    worked_s = now.worked_s - last.worked_s
    if worked_s <= 0:
        return Said(None, None, shown)
    trained_s = max(0.0, now.training_s - last.training_s)
    return Said(tokens_per_s * trained_s / worked_s, max(0, now.tokens - last.tokens) / worked_s, shown)
