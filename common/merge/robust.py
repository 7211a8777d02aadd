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


def usual_norms(norms: F64, tokens: F64, weights: F64) -> F64 | None:
    """The norm that is usual for the tokens of each: the weighted median, as if all had the middle number of tokens.

    Noisy steps add up like a random walk, so one with more tokens than the middle may be larger by the root of how many
    times more: else the short drips of some dead would make a survivor's long work look like an attack. One with fewer
    is not held to less, since what error feedback brings along does not depend on the round's work. None for fewer than
    three members, where it would be one of the suspects'.
    """
    if len(norms) < MIN_VOICES_FOR_NORM:
        return None
    longer = np.sqrt(np.maximum(1.0, tokens / weighted_median(tokens, weights)))
    found: F64 = longer * weighted_median(norms / longer, weights)
    return found


def weighted_median(values: F64, weights: F64) -> float:
    """The value that half of the weight lies at or below; between two of them, their middle. ``values`` is not empty
    and may hold infinity."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (values[order][np.searchsorted(reached, half)] for half in (0.5 - _EPSILON, 0.5 + _EPSILON))
    return float((low + high) / 2)


def directions(cosines: F64, weights: F64, floor: float) -> Directions:
    """Takes out, one at a time, the member that agrees least with the mean of the others, while it is below ``floor``.

    ``cosines`` ``(n, n)`` are pairwise. Deltas enter the mean with norm 1, so size buys no influence. Who was taken
    out before the mean was clean is tried against the clean one and let back in. One who goes changes the sums by its
    own row, so that a round costs n² in all, however many go.
    """
    kept = np.ones(len(cosines), dtype=np.bool_)
    voice = weights.copy()
    along = cosines @ voice
    for _ in range(len(cosines) - 1):
        to_others = _to_mean_of_others(along, voice)
        worst = int(np.argmin(np.where(kept, to_others, np.inf)))
        if to_others[worst] >= floor:
            break
        along -= cosines[worst] * voice[worst]
        kept[worst], voice[worst] = False, 0.0
    to_others = _to_mean_of_others(cosines @ voice, voice)
    outside = ~kept & (to_others < floor)
    undecided = bool(outside.any() and weights[outside].sum() + _EPSILON >= weights[~outside].sum())
    return Directions(to_others, outside & (not undecided), undecided)


def _to_mean_of_others(along: F64, voice: F64) -> F64:
    """Cosine of every member to the weighted sum of the kept ones without itself; 1 if there is none.

    ``along`` is the inner product of each with the weighted sum of the kept ones, itself among them.
    """
    square = voice @ along - 2 * voice * along + voice**2
    length = np.sqrt(np.maximum(square, 0.0))
    alone = length <= _EPSILON
    return np.where(alone, 1.0, (along - voice) / np.where(alone, 1.0, length))
