"""A validator's process in virtual time: it lives or not, is stopped, or is cut off from storage, chain or miners.

Invariants: a call of a process that has died is never made; those of a stopped one wait until it goes on, and then are
made with what it had in hand. Its clocks are its own: the wall clock may be off, the monotonic one may run fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import timeouts
from common.errors import Retryable
from validator.simulator.events import Queue, Timer

if TYPE_CHECKING:
    from validator.simulator.world import World

EVERYWHERE = frozenset({"storage", "chain", "miners"})


@dataclass
class OwnClock:
    """``common.clock.Clock`` of one machine."""

    queue: Queue
    off_s: float = 0.0
    """How far its wall clock is ahead."""
    rate: float = 1.0
    _gone_s: float = 0.0
    _since_s: float = 0.0

    def monotonic_s(self) -> float:
        return self._gone_s + (self.queue.now_s - self._since_s) * self.rate

    def wall_ns(self) -> int:
        return self.queue.wall_ns() + round(self.off_s * 1e9)

    def run_at(self, rate: float) -> None:
        """From now on so many of its seconds pass in one."""
        self._gone_s, self._since_s = self.monotonic_s(), self.queue.now_s
        self.rate = rate


class Process:
    """One process after the other on one machine."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.clock = OwnClock(world.queue)
        self.alive = False
        self.stopped = False
        self.cut: set[str] = set()
        """From what it is cut off; see ``EVERYWHERE``."""
        self._world = world
        self._life = 0
        self._slept_from_s = 0.0

    @property
    def listening(self) -> bool:
        """Whether requests are answered."""
        return self.alive and not self.stopped and "miners" not in self.cut

    def end(self) -> None:
        """SIGKILL."""
        self._life += 1
        self.alive = False

    def check_store(self) -> None:
        """One request to the storage. Raises ``Retryable``."""
        if "storage" in self.cut:
            raise Retryable("the storage can't be reached from here")
        self._world.storage.check()

    def reaches_chain(self) -> bool:
        """Whether the chain answers it."""
        return not self._world.chain_down and "chain" not in self.cut

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call in so many seconds, unless this process has died by then."""
        life = self._life

        def due() -> None:
            if life != self._life or not self.alive:
                return
            if self.stopped:
                self._world.queue.after(timeouts.RETRY_FIRST_S, due)
            else:
                call()

        return self._world.queue.after(delay_s, due)
