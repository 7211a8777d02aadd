"""Two plain rules that others use, for comparison on the same seeds: a fixed timeout, and a z-score over the fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, pstdev

from common.units import Hotkey
from validator.health.evidence import Evidence, Kind, level

TIMEOUT_SHARE = 0.5
"""A timeout is set for the slowest class of machines: who has less than this share of its rate is out of time."""
SLOWEST = 1.0
Z = 3.0
"""Standard deviations below the mean of the fleet."""


def fixed_timeout(evidence: Evidence) -> Mapping[Kind, frozenset[Hotkey]]:
    """Whoever needs more than twice as long as a machine of the slowest class."""
    limit = math.log(TIMEOUT_SHARE * SLOWEST)
    return {
        kind: frozenset(hotkey for hotkey, value in _logs(evidence, kind).items() if value < limit) for kind in Kind
    }


def z_score(evidence: Evidence) -> Mapping[Kind, frozenset[Hotkey]]:
    """Whoever lies three standard deviations below the fleet's mean in this round."""
    found = {}
    for kind in Kind:
        logs = _logs(evidence, kind)
        mean, deviation = (fmean(logs.values()), pstdev(logs.values())) if len(logs) > 1 else (0.0, 0.0)
        found[kind] = frozenset(h for h, value in logs.items() if deviation and value < mean - Z * deviation)
    return found


def _logs(evidence: Evidence, kind: Kind) -> dict[Hotkey, float]:
    levels = {hotkey: level(samples) for hotkey, samples in evidence.samples[kind].items()}
    return {hotkey: found.log_rate for hotkey, found in levels.items() if found is not None}
