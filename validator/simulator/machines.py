"""One simulated machine: when it is there, what its time went into, how it is connected.

Invariant: every second that a machine is online is booked once, under the mode it was in. Training stands still while
the process is stopped. A machine knows nothing of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from validator.simulator.events import Queue
from validator.simulator.links import Link


class Mode(StrEnum):
    """What a machine does with its time."""

    OFF = "off"
    BOOT = "boot"
    SYNC = "sync"
    TRAIN = "train"
    IDLE = "idle"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Power:
    """What a machine can do."""

    tokens_per_s: float
    step_tokens: int

    @property
    def step_s(self) -> float:
        return self.step_tokens / self.tokens_per_s


@dataclass
class Machine:
    """Power, links, and the book of its time."""

    queue: Queue
    power: Power
    up: Link
    down: Link
    spent_s: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(Mode, 0.0))
    mode: Mode = Mode.OFF
    faults: set[str] = field(default_factory=set)
    """Why it can't be reached: link_cut, stop."""
    _since_s: float = 0.0
    _before_stop: Mode = Mode.OFF
    _trained_s: float = 0.0

    def enter(self, mode: Mode) -> None:
        """Do something else from now on."""
        if self.mode is Mode.STOPPED and mode is not Mode.OFF:
            self._before_stop = mode
            return
        self._book()
        self.mode = mode

    def stop(self) -> None:
        """SIGSTOP: everything stands still."""
        if self.mode in (Mode.OFF, Mode.STOPPED):
            return
        self._before_stop = self.mode
        self.enter(Mode.STOPPED)
        self._block("stop")

    def go_on(self) -> None:
        """SIGCONT."""
        if self.mode is Mode.STOPPED:
            self._book()
            self.mode = self._before_stop
        self._unblock("stop")

    def cut(self) -> None:
        """Nothing gets in or out."""
        self._block("link_cut")

    def join(self) -> None:
        """The link is back."""
        self._unblock("link_cut")

    def slow(self, share: float) -> None:
        """Both directions have this share of their capacity."""
        for link in (self.up, self.down):
            link.scale(share)

    @property
    def online(self) -> bool:
        return self.mode is not Mode.OFF

    @property
    def reachable(self) -> bool:
        """Whether messages come and go."""
        return self.online and not self.faults

    def trained_s(self) -> float:
        """Seconds of training since ``restart_training``."""
        now_s = self.queue.now_s - self._since_s if self.mode is Mode.TRAIN else 0.0
        return self._trained_s + now_s

    def set_trained_s(self, seconds: float) -> None:
        """A process began that has its work from the disk, or none."""
        self._book()
        self._trained_s = seconds

    def close(self) -> None:
        """Book the time until now."""
        self._book()

    def _book(self) -> None:
        passed_s = self.queue.now_s - self._since_s
        self.spent_s[self.mode] += passed_s
        if self.mode is Mode.TRAIN:
            self._trained_s += passed_s
        self._since_s = self.queue.now_s

    def _block(self, why: str) -> None:
        self.faults.add(why)
        self._rescale()

    def _unblock(self, why: str) -> None:
        self.faults.discard(why)
        self._rescale()

    def _rescale(self) -> None:
        for link in (self.up, self.down):
            link.block(bool(self.faults))
