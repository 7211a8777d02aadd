"""Processes whose machines are gone for good: what they have handed in may still be merged, and is booked here.

Invariant: every step of a dead process ends in its miner's tally once: merged or refused by the plans on its base, lost
with the machine, or undecided when the simulation ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.units import Revision
from validator.simulator.tally import Tally
from validator.simulator.work import Session

if TYPE_CHECKING:
    from validator.simulator.world import World


@dataclass
class _Ghost:
    session: Session
    tally: Tally


class Ghosts:
    """All of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ghosts: list[_Ghost] = []

    def held(self) -> list[Revision]:
        """The revisions that they stand on."""
        return [ghost.session.held for ghost in self._ghosts]

    def bury(self, session: Session, tally: Tally) -> None:
        """A machine is gone with its disk; what the log has done meanwhile comes first."""
        session.forget_the_missing()
        ghost = _Ghost(session, tally)
        undecided = True
        for number in range(session.held + 1, self._world.head + 1):
            undecided = undecided and self._follow(ghost, Revision(number))
        if undecided:
            self._ghosts.append(ghost)

    def follow(self, revision: Revision) -> None:
        """A plan became the head."""
        self._ghosts = [ghost for ghost in self._ghosts if self._follow(ghost, revision)]

    def close_books(self) -> None:
        """At the end: of those that a plan may still name, nothing more is decided."""
        for ghost in self._ghosts:
            ghost.tally.unfinished += ghost.session.undecided_tokens(ghost.session.newest_there())

    def _follow(self, ghost: _Ghost, revision: Revision) -> bool:
        """Book what a plan says of one; whether the next plan may say more."""
        session, world, mark = ghost.session, self._world, ghost.session.newest_there()
        for fate in session.follow(revision, world.named(revision, session.hotkey), mark):
            world.note_fate(fate)
            ghost.tally.settle(fate, world.spec, dead=True)
        ghost.tally.lose("death", mark - session.settled)
        session.settled = mark
        return session.pending is not None
