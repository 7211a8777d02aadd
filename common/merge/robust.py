"""Robust figures on a group of which a minority may lie: the usual norm, and who points the other way.

Members of one coldkey share one voice, so that a crowd of hotkeys does not outvote the others. Everything here names
somebody only when a strict majority of the voices stands against it: of two members that disagree, neither can be
told to be the liar, and both stay (the held-out-loss guard stands before the commit).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.codec.params import F64, Bool

MIN_VOICES_FOR_NORM = 3
_EPSILON = 1e-9


@dataclass(frozen=True)
class Directions:
    """Cosine of each member to the mean of the others that were kept, and who falls below the floor."""

    cosines: F64
    outside: Bool
    undecided: bool
    """Some fell below the floor, but not against a majority: nobody is named."""


def voices(groups: Sequence[str]) -> F64:
    """Weight of each member's voice: one per group, shared by its members."""
    sizes = Counter(groups)
    return np.array([1.0 / sizes[group] for group in groups], dtype=np.float64)


def usual_norm(norms: F64, weights: F64) -> float | None:
    """Weighted median of the norms; None for fewer than three members, where it would be one of the suspects'."""
    if len(norms) < MIN_VOICES_FOR_NORM:
        return None
    order = np.argsort(norms, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    low = norms[order][np.searchsorted(reached, 0.5 - _EPSILON)]
    high = norms[order][np.searchsorted(reached, 0.5 + _EPSILON)]
    return float((low + high) / 2)


def directions(cosines: F64, weights: F64, floor: float) -> Directions:
    """Takes out, one at a time, the member that agrees least with the mean of the others, while it is below ``floor``.

    ``cosines`` ``(n, n)`` are pairwise. Deltas enter the mean with norm 1, so size buys no influence. Who was taken
    out before the mean was clean is tried against the clean one and let back in.
    """
    kept = np.ones(len(cosines), dtype=np.bool_)
    while kept.sum() >= 2:
        to_others = _to_mean_of_others(cosines, weights, kept)
        worst = int(np.argmin(np.where(kept, to_others, np.inf)))
        if to_others[worst] >= floor:
            break
        kept[worst] = False
    to_others = _to_mean_of_others(cosines, weights, kept)
    outside = ~kept & (to_others < floor)
    undecided = bool(outside.any() and weights[outside].sum() + _EPSILON >= weights[~outside].sum())
    return Directions(to_others, outside & (not undecided), undecided)


def _to_mean_of_others(cosines: F64, weights: F64, kept: Bool) -> F64:
    """Cosine of every member to the weighted sum of the kept ones without itself; 1 if there is none."""
    voice = np.where(kept, weights, 0.0)
    along = cosines @ voice - voice
    square = voice @ cosines @ voice - 2 * voice * (cosines @ voice) + voice**2
    length = np.sqrt(np.maximum(square, 0.0))
    alone = length <= _EPSILON
    return np.where(alone, 1.0, along / np.where(alone, 1.0, length))
