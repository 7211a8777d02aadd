"""Weights by validated tokens, with a cap on what one miner and one coldkey may have of the total.

The cap is on the share *after* capping: the level L solves ``L = share · Σ min(tokens, L)``. With few members a small
share can't be kept (four members have a quarter each), so it never goes below twice an equal share: with one or two
members nothing is capped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def capped_weights(tokens: Sequence[float], groups: Sequence[str], max_share: float) -> list[float]:
    """float32 weights for positive ``tokens``, capped first per group (its members scaled alike), then per member."""
    totals: dict[str, float] = {}
    for amount, group in zip(tokens, groups, strict=True):
        totals[group] = totals.get(group, 0.0) + amount
    level = cap_level(list(totals.values()), max_share)
    scaled = [amount * min(1.0, level / totals[group]) for amount, group in zip(tokens, groups, strict=True)]
    level = cap_level(scaled, max_share)
    return [float(np.float32(min(amount, level))) for amount in scaled]


def cap_level(amounts: Sequence[float], max_share: float) -> float:
    """The largest amount that one may count for; infinite if none is above its share."""
    if not amounts:
        return math.inf
    share = max(max_share, 2.0 / len(amounts))
    ordered = sorted(amounts, reverse=True)
    rest, level = math.fsum(ordered), math.inf
    for capped, amount in enumerate(ordered):
        if share * capped >= 1:
            break  # only rounding leads here: the level of the step before is right to the last digits
        level = share * rest / (1 - share * capped)
        if amount <= level:
            return level if capped else math.inf
        rest -= amount
    return level
