"""What the detectors found, as it is told, reported and acted on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from common.units import Hotkey, RoundId
from validator.health.evidence import Kind


class Stage(StrEnum):
    """How far a finding has come."""

    WATCH = "watch"
    """The rounds show it; a probe has to say the same before anything is done."""
    VERDICT = "verdict"
    """Confirmed."""


class Blame(StrEnum):
    """Whose fault it is."""

    NODE = "node"
    GROUP = "group"
    SELF = "self"
    """The validator's own link."""
    STORAGE = "storage"


@dataclass(frozen=True)
class Finding:
    """One thing that is slower than it was."""

    kind: Kind
    blame: Blame
    members: frozenset[Hotkey]
    """Whom it strikes; of a group those that fell with it."""
    name: str
    """The hotkey, the group under all its names, or what else is at fault."""
    observed: bool
    """Whether the validator itself sees what the members share; true of a node."""
    since: RoundId
    """First round in which it shows."""
    departure: float
    """Mean fall, natural logarithm of the rate; below 0."""
    sigmas: float
    """How far beyond chance the fall is."""
    stage: Stage
    probed: bool = False
    """Whether a transfer made for it has said the same."""

    @property
    def left(self) -> float:
        """The share of the usual rate that is left."""
        return math.exp(self.departure)

    def __str__(self) -> str:
        what = {Kind.COMPUTE: "trains", Kind.UPLINK: "uploads", Kind.DOWNLINK: "downloads"}[self.kind]
        whom = f"{self.name} ({len(self.members)} machines)" if self.blame is Blame.GROUP else self.name
        sure = "probed" if self.probed else "not probed"
        since = f"since round {self.since}"
        return f"{whom} {what} at {self.left:.0%} of its own past {since}: {self.sigmas:.1f} sigma, {sure}"
