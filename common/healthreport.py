"""What a validator's report tells of its miners' rates: who is under which verdict, and what each usually does.

A part of the signed report, so that a restarted validator and a new leader go on from it, and anybody can read why a
machine has no duties. Rates are natural logarithms of units per second. Readers clamp foreign figures:
``validator.scoring.healthreports``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.typed import ADDED
from common.units import Hotkey, RoundId


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """How the verdict over one machine goes on."""

    hotkey: Hotkey
    at: RoundId
    """Round of the verdict."""
    next_probe: RoundId
    clean: int
    dirty: int
    rest: int
    """Rounds between its probes. Of what breaks or is claimed, these are as ``validator.scoring.breakreports`` says."""
    rung: str
    """What is done about the machine: nothing, no_duties, smaller_share, quarantine."""


@dataclass(frozen=True, kw_only=True)
class FindingReport:
    """One thing that is slower than it was, that breaks, or that is claimed and not shown."""

    kind: str
    """compute, uplink, downlink: a rate; flap, truncate, unreachable: what breaks; claims, busy: told only. A reader
    leaves out kinds that it does not know."""
    blame: str
    """node, group, self (the validator's own link), storage."""
    name: str
    """The hotkey, or what its machines share."""
    observed: bool
    """Whether the validator sees for itself what they share."""
    since: RoundId
    departure: float
    """Mean fall, logarithm; below 0."""
    sigmas: float
    stage: str
    """watch: to be probed; verdict."""
    probed: bool
    """Whether a probe has said the same."""
    members: tuple[Hotkey, ...]
    """Of a watch whom it strikes; of a verdict ``cases`` tell that."""
    cases: tuple[CaseReport, ...]
    """Of a verdict those who are not released yet."""


@dataclass(frozen=True, kw_only=True)
class RateReport:
    """One machine in one kind of rate."""

    usual: float | None
    """None while too few rounds are known: then nobody is blamed."""
    spread: float
    """Standard deviation of the logarithm."""
    seen: int
    """Rounds that stand behind it, or of which it will be made."""
    newest: float | None
    """In the last round in which something was seen."""


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """What one machine usually does."""

    hotkey: Hotkey
    compute: RateReport | None = field(default=None, metadata=ADDED)
    uplink: RateReport | None = field(default=None, metadata=ADDED)
    downlink: RateReport | None = field(default=None, metadata=ADDED)


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """All of them, after the evidence of one round."""

    round: RoundId
    findings: tuple[FindingReport, ...]
    machines: tuple[MachineReport, ...]
