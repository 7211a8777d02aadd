"""What a validator has seen of its miners in one round: rates by its own clock or the storage's, never by theirs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from common.units import Hotkey, RoundId

MAX_SAMPLES = 64
"""Of one machine and kind in one round that are looked at, the newest."""


class Kind(StrEnum):
    """In what a machine can be slow."""

    COMPUTE = "compute"
    """Validated tokens per second of work."""
    UPLINK = "uplink"
    """Bytes per second from the moment that an upload was allowed until its object was there."""
    DOWNLINK = "downlink"
    """Bytes per second of what it fetched under a nonce, until its answer came."""


LINKS = (Kind.UPLINK, Kind.DOWNLINK)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured transfer, or one stretch of work."""

    rate: float
    """Units per second, above 0."""
    censored: bool = False
    """It was not over when we stopped looking: the true rate is at most this."""


@dataclass(frozen=True)
class Evidence:
    """What one round has shown, by kind and machine; a machine without samples is unknown, which is no fault."""

    round: RoundId
    samples: Mapping[Kind, Mapping[Hotkey, tuple[Sample, ...]]]
    own: Mapping[Kind, tuple[Sample, ...]] = field(default_factory=dict)
    """Of the validator's own transfers to and from the storage."""


@dataclass(frozen=True, slots=True)
class Level:
    """What the samples of one machine and round come to."""

    log_rate: float
    """Natural logarithm of the median rate."""
    at_most: bool
    """The true rate is this or less."""


def level(samples: Iterable[Sample]) -> Level | None:
    """The median of the newest samples; None when none is usable.

    Half of the transfers may be spoilt by a burst without moving it. A censored sample stands at its bound, above the
    true rate: a median that falls on one is a bound as well.
    """
    usable = [s for s in samples if math.isfinite(s.rate) and s.rate > 0][-MAX_SAMPLES:]
    if not usable:
        return None
    middle = median(math.log(s.rate) for s in usable)
    return Level(middle, any(s.censored and math.log(s.rate) <= middle for s in usable))
