"""What the driver is at and what keeps it, written by the driver and read by the watchdog beside it.

Invariant: the driver only writes; nothing that it decides rests on this. Times are of the board's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.units import Revision
from validator.watchdog.facts import Fault, FaultKind, Step

MOST_CODES = 16


@dataclass
class Diary:
    """One driver's present step, its trouble, and the rounds that were aborted on one base."""

    step: Step | None = None
    fault: Fault | None = None
    aborted: list[str] = field(default_factory=list)
    """Codes of the newest rounds that were aborted on ``aborted_on``, as far as this process saw them."""
    aborted_on: Revision | None = None
    aborted_s: float = 0.0
    """When the first of them was."""

    def at(self, doing: str, now_s: float, merging: bool = False) -> None:
        """The driver begins something."""
        self.step = Step(doing, now_s, merging)

    def done(self) -> None:
        """The driver has come back from it."""
        self.step = None

    def trouble(self, kind: FaultKind, said: str, now_s: float) -> None:
        """A step has failed: the same kind of trouble lasts since it began."""
        same = self.fault is not None and self.fault.kind == kind
        self.fault = Fault(kind, said, self.fault.since_s if same and self.fault else now_s)

    def well(self) -> None:
        """A step went through."""
        self.fault = None

    def abort(self, code: str, base: Revision, now_s: float) -> None:
        """A round on ``base`` was aborted."""
        if base != self.aborted_on:
            self.aborted, self.aborted_on, self.aborted_s = [], base, now_s
        self.aborted = [*self.aborted, code][-MOST_CODES:]
