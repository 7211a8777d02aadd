"""What a leader sees of the owners while it waits for their means: who asked for its duties, and when it was done.

Invariant: all times are the leader's own; an owner's word moves none of them. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import Retryable
from common.units import Hotkey
from validator.bars import Owner
from validator.reducing import Reducing


class Attending:
    """Of one reduction."""

    def __init__(self, dealt_s: float) -> None:
        """``dealt_s``: when the duties were dealt."""
        self._dealt_s = dealt_s
        self._told: dict[Hotkey, float] = {}
        """Who was given its duties, and when first."""
        self._spoke: set[Hotkey] = set()
        self._turned_away: set[Hotkey] = set()
        self._done_s: dict[Hotkey, float] = {}

    def told(self, hotkey: Hotkey, now_s: float) -> None:
        """It was given its duties."""
        self._told.setdefault(hotkey, now_s)

    def read_s(self, hotkey: Hotkey, now_s: float) -> float | None:
        """It tells of means: how long it has read for its first ones. None for later ones, since it puts the earlier
        ones meanwhile."""
        told_s = self._told.get(hotkey)
        if told_s is None or hotkey in self._spoke:
            return None
        self._spoke.add(hotkey)
        return now_s - told_s

    def done(self, hotkey: Hotkey, now_s: float) -> None:
        """All that was due from it is there."""
        self._done_s.setdefault(hotkey, now_s)

    @contextmanager
    def serving(self, hotkey: Hotkey) -> Iterator[None]:
        """It hands in: when the storage does not answer us meanwhile, that is no fault of its own."""
        try:
            yield
        except Retryable:
            self._turned_away.add(hotkey)
            raise

    def allowed_s(self, reducing: Reducing) -> float:
        """That its owners had, or would have had if all had been done before."""
        return reducing.deadline_s - self._dealt_s

    def owners(self, reducing: Reducing, lives: Callable[[Hotkey], bool]) -> dict[Hotkey, Owner]:
        """What everybody has done since the deal."""
        return {owner: self._owner(owner, lives(owner)) for owner in reducing.owners}

    def _owner(self, hotkey: Hotkey, lives: bool) -> Owner:
        done_s = self._done_s.get(hotkey)
        reached = lives and hotkey in self._told and hotkey not in self._turned_away
        return Owner(None if done_s is None else done_s - self._dealt_s, reached)
