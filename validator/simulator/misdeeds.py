"""What a miner does wrong at the moment, by order of the scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from validator.simulator.scenario import Fault

ONE_SHOT = frozenset(
    {"die_before_upload", "die_during_upload", "die_after_upload", "corrupt", "missing", "late", "lost_reply"}
)
"""Faults that happen once, at the next occasion."""
LIES = frozenset({"nan", "scale", "flip", "copy", "average"})


@dataclass
class Misdeeds:
    """Faults of one machine that are armed."""

    armed: dict[str, Fault] = field(default_factory=dict)

    def take(self, kind: str) -> Fault | None:
        """The fault of this kind, which is used up by it."""
        return self.armed.pop(kind, None)

    def take_for(self, kind: str, final: bool) -> Fault | None:
        """The same, of those that wait for a final submission."""
        return self.take(kind) if final else None

    def disarm(self, kind: str, fault: Fault) -> None:
        """That fault is over; a later one of its kind is not."""
        if self.armed.get(kind) is fault:
            del self.armed[kind]

    @property
    def lie(self) -> Fault | None:
        """What its next submissions are made of, if not of its work."""
        return next((self.armed[kind] for kind in sorted(LIES & self.armed.keys())), None)
