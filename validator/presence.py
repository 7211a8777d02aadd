"""Whose connection comes and goes, by the heartbeats that arrived and those that were due. Pure.

Time between two looks is cut into stretches, the same for everybody. A stretch fails for a machine that returns in it,
in the same process, after a silence of several heartbeats. No failure: a silence that has not ended (its machine may
have left for good), a new process, a silence after a farewell, and time that does not count for this process.
Bounded by the machines that ``forget`` keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.spec import RoundSpec
from common.units import Hotkey
from validator.health.breaks import Attempts

HEARTBEATS = 3
"""Missed in a row, at least: the spec gives no machine less before it counts as gone. Measured on full cores: of 599
heartbeats that were due each half second, the latest came after .82 s."""
TIMEOUTS = 0.5
"""Of the member timeout, at least: one lost answer keeps a miner waiting for ``CONTROL_READ_S``, and a silence that
nears the timeout is what rounds suffer from."""
STRETCH_TIMEOUTS = 6.0
"""Member timeouts in a stretch, a minute by default: who is cut off every minute fails each, every two minutes every
other one; who is cut off once in six minutes is borne (``validator.health.breaks``)."""


@dataclass(slots=True)
class _Heard:
    session: str
    at_s: float
    begun_s: float
    """First heard since the last look that counted."""
    leaving: bool
    failed: int = 0
    failed_in: int = -1
    """The newest stretch that failed."""


class Presence:
    """Of one leading process."""

    def __init__(self, silence_s: float = 5.0, stretch_s: float = 60.0) -> None:
        """A silence of more than ``silence_s`` is a break; see ``of``."""
        self._silence_s = silence_s
        self._stretch_s = stretch_s
        self._since_s: float | None = None
        self._heard: dict[Hotkey, _Heard] = {}

    @classmethod
    def of(cls, spec: RoundSpec) -> Presence:
        """By a run's times."""
        silence_s = max(HEARTBEATS * spec.heartbeat_s, TIMEOUTS * spec.member_timeout_s)
        return cls(silence_s, STRETCH_TIMEOUTS * spec.member_timeout_s)

    def heard(self, hotkey: Hotkey, session: str, leaving: bool, now_s: float) -> None:
        """A heartbeat came from a process; ``leaving``: it was a farewell."""
        if self._since_s is None:
            self._since_s = now_s
        held = self._heard.get(hotkey)
        if held is None:
            self._heard[hotkey] = _Heard(session, now_s, now_s, leaving)
            return
        stayed = held.session == session and not held.leaving
        if stayed and now_s - held.at_s > self._silence_s:
            stretch = int((now_s - self._since_s) / self._stretch_s)
            held.failed += stretch != held.failed_in
            held.failed_in = stretch
        held.session, held.at_s, held.leaving = session, now_s, leaving

    def take(self, now_s: float) -> dict[Hotkey, Attempts]:
        """The stretches since the last call that gave any; none before one stretch is over."""
        if self._since_s is None or now_s - self._since_s < self._stretch_s:
            return {}
        found = {}
        for hotkey, held in self._heard.items():
            made = max(held.failed, int((held.at_s - held.begun_s) / self._stretch_s))
            if made:
                found[hotkey] = Attempts(made, held.failed)
            held.begun_s, held.failed, held.failed_in = now_s, 0, -1
        self._since_s = now_s
        return found

    def clear(self) -> None:
        """Time has passed that does not count, or another lead begins: nobody's silence in it is one."""
        self._since_s = None
        self._heard.clear()

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self._heard = {hotkey: held for hotkey, held in self._heard.items() if keep(hotkey)}
