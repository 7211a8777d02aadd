"""Revisions that can't be merged again from what the bucket holds: why, and when each is looked at again. Pure.

An accepted delta may be gone only once a ``gc`` entry has named it, so one that is missing earlier is somebody's fault.
It convicts nobody all the same. That an object is missing now proves neither that it was missing when it was looked
for, nor who took it away: every validator with the storage's keys can delete, a bucket that was restored loses what is
newest, and who puts the object back makes an honest accuser a liar. So a third party has nothing to check again.

What is left is doubt, and it is kept: the revision counts as unproved, nobody here leads on from it, and it is looked
at again with growing pauses, until it is proved, found wrong, passed by retention or rolled back by the owner. Else a
leader that deletes one delta of a wrong merge would have hidden it. The doubt is this process's: after a restart only
those after the newest reported round are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from common.units import Revision

FIRST_PAUSE_S = 5.0
MOST_PAUSE_S = 600.0
"""A look reads the round's deltas up to the one that is missing."""


@dataclass(frozen=True)
class Doubt:
    """One unproved revision."""

    why: str
    looks: int
    next_s: float
    """When it is looked at again."""


class Unproved:
    """Those of one process."""

    def __init__(self) -> None:
        self._doubts: dict[Revision, Doubt] = {}

    def __contains__(self, revision: Revision) -> bool:
        return revision in self._doubts

    def add(self, revision: Revision, why: str, now_s: float) -> None:
        """It could not be checked now."""
        known = self._doubts.get(revision)
        looks = 1 if known is None else known.looks + 1
        pause_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(looks - 1, 32))
        self._doubts[revision] = Doubt(why, looks, now_s + pause_s)

    def put_off(self, revision: Revision, now_s: float) -> None:
        """The storage stayed away: look again after the first pause, and nothing is learnt."""
        self._doubts[revision] = replace(self._doubts[revision], next_s=now_s + FIRST_PAUSE_S)

    def settle(self, revision: Revision) -> None:
        """It was checked, and is right or convicted."""
        self._doubts.pop(revision, None)

    def forget_up_to(self, floor: Revision) -> list[Revision]:
        """Drop those that retention has passed: nothing can prove them any more, and the log says why."""
        gone = sorted(revision for revision in self._doubts if revision <= floor)
        for revision in gone:
            del self._doubts[revision]
        return gone

    def due(self, now_s: float) -> Revision | None:
        """The oldest that is to be looked at again now."""
        return min((at for at, doubt in self._doubts.items() if now_s >= doubt.next_s), default=None)

    def of(self, lineage: Iterable[Revision]) -> str:
        """What is unproved among these, in a sentence; empty for nothing."""
        found = sorted(revision for revision in lineage if revision in self._doubts)
        if not found:
            return ""
        more = f", and {len(found) - 1} after it" if len(found) > 1 else ""
        return f"revision {found[0]}{more} is unproved: {self._doubts[found[0]].why}"
