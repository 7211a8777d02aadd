"""A machine's link in one direction: its capacity is shared evenly by all transfers under way.

Invariants: the bytes of a transfer that ended equal those it was given, whatever stops, cuts and slow spells lay
between (a cut transfer goes on where it stood: parts and ranges are resumed); ``moved_bytes`` never goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from validator.simulator.events import Queue, Timer

_DONE_BYTES = 1e-6


@dataclass(slots=True, eq=False)
class Transfer:
    """Some bytes on their way."""

    left_bytes: float
    size_bytes: float
    done: Callable[[], None] = field(repr=False)


class Link:
    """One direction of one machine's connection."""

    def __init__(self, queue: Queue, rate_bps: float, transfer_bps: float) -> None:
        """``rate_bps``: capacity in bits per second; ``transfer_bps``: the most that the storage gives one transfer."""
        if min(rate_bps, transfer_bps) <= 0:
            raise ValueError("rates must be positive")
        self.moved_bytes = 0.0
        self._queue = queue
        self._rate = rate_bps / 8
        self._most = transfer_bps / 8
        self._share = 1.0
        self._blocked = False
        self._open: list[Transfer] = []
        self._since_s = 0.0
        self._timer: Timer | None = None

    def send(self, size_bytes: float, done: Callable[[], None]) -> Transfer:
        """Begin a transfer; ``done`` is called when its last byte has arrived."""
        self._settle()
        transfer = Transfer(size_bytes, size_bytes, done)
        self._open.append(transfer)
        self._plan()
        return transfer

    def cancel(self, transfer: Transfer | None) -> None:
        """Break a transfer off."""
        if transfer in self._open:
            self._settle()
            self._open.remove(transfer)
            self._plan()

    def cancel_all(self) -> None:
        """The machine is gone."""
        self._settle()
        self._open.clear()
        self._plan()

    def scale(self, share: float) -> None:
        """From now on the capacity is this share of the usual one."""
        self._settle()
        self._share = share
        self._plan()

    def block(self, blocked: bool) -> None:
        """Nothing gets through, or it goes on."""
        self._settle()
        self._blocked = blocked
        self._plan()

    def left_bytes(self, transfer: Transfer) -> float:
        """What of a transfer has not arrived yet."""
        self._settle()
        return transfer.left_bytes

    def moved_until_now(self) -> float:
        """Bytes that have arrived, those of transfers under way with them."""
        self._settle()
        return self.moved_bytes

    def seconds_for(self, size_bytes: float) -> float:
        """How long so many bytes take on the link alone."""
        return size_bytes / min(self._rate * self._share, self._most)

    def _each(self) -> float:
        if self._blocked or not self._open:
            return 0.0
        return min(self._rate * self._share / len(self._open), self._most)

    def _settle(self) -> None:
        now_s = self._queue.now_s
        moved = self._each() * (now_s - self._since_s)
        self._since_s = now_s
        for transfer in self._open:
            part = min(moved, transfer.left_bytes)
            transfer.left_bytes -= part
            self.moved_bytes += part

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        each = self._each()
        if each > 0:
            least = min(transfer.left_bytes for transfer in self._open)
            self._timer = self._queue.after(least / each, self._finish)

    def _finish(self) -> None:
        self._timer = None
        self._settle()
        least = min(transfer.left_bytes for transfer in self._open)
        ended = [t for t in self._open if t.left_bytes <= max(least, _DONE_BYTES * t.size_bytes)]
        for transfer in ended:
            self.moved_bytes += transfer.left_bytes
            self._open.remove(transfer)
        self._plan()
        for transfer in ended:
            transfer.done()
