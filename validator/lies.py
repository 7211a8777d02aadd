"""What this validator holds against miners that handed in wrong means: convicted, barred, and told to its scoring.

Invariants: a lie is written down when it is found, so that neither a restart between commit and report nor a takeover
forgives it; who lied reduces nothing for ``BARRED_ROUNDS``. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.convictions import ReducedWrongly
from common.merge.butterfly import WRONG_MEAN
from common.runlog.reduced import WrongMean
from common.units import Hotkey, Revision, RoundId
from validator.audits.convictions import Accused, Convictions
from validator.bars import Bar
from validator.members import Members

BARRED_ROUNDS = 16
"""For which a miner that handed in a wrong mean gets no duties."""


class Lies:
    """Those of one validator in one run."""

    def __init__(self, members: Members, convictions: Convictions) -> None:
        """Bars whom an earlier process of this validator has convicted."""
        self._members = members
        self._convictions = convictions
        for conviction in convictions.everything():
            if conviction.reduced_wrongly is not None:
                self._bar(conviction.accused, conviction.round)

    def note(self, plan: Accused, wrong: WrongMean, revision: Revision | None = None, rise: float = 0.0) -> None:
        """A miner handed in this, of the plan in that slot.

        ``revision`` holds it, None: it was found before the commit; ``rise``: what that does to the held-out loss.
        """
        told = f"{wrong.hotkey} handed in a {wrong.told}"
        if revision is not None:
            told += f"; revision {revision} holds it, and takes the held-out loss up by {rise:+.3f}"
        self._convictions.note(plan, told, ReducedWrongly(wrong, revision, rise))
        self._bar(wrong.hotkey, plan.round)

    def of(self, round_id: RoundId) -> Mapping[Hotkey, str]:
        """Who lied in a round, and how: its first lie."""
        found: dict[Hotkey, str] = {}
        for conviction in self._convictions.everything():
            if conviction.reduced_wrongly is not None and conviction.round == round_id:
                found.setdefault(conviction.accused, conviction.reduced_wrongly.mean.told)
        return found

    def _bar(self, hotkey: Hotkey, round_id: RoundId) -> None:
        self._members.bars.add(hotkey, Bar(round_id + BARRED_ROUNDS, WRONG_MEAN))
