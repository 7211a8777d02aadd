"""Weights by validated tokens, with caps on what one coldkey and what all newcomers together may have of the total.

All caps are on the shares *after* capping. A coldkey's miners are scaled alike, and so are the newcomers, hotkeys
that no round ever merged. A small share can't be kept by few (four have a quarter each), so a coldkey's cap never goes
below twice an equal share, newcomers' coldkeys not counted beside others: with one or two nothing is capped. Where all
miners belong to one coldkey, which says nothing then, each stands for itself. Newcomers among themselves have no cap
in common.

The weights are those at the largest total T at which what the caps leave, each a share of T, still adds up to T. What
they leave, divided by T, can only fall as T grows, so bisection finds it; at a small enough T every coldkey is at its
cap, which makes twice the total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.codec.params import F64, I64, Bool

_ROUNDING = 1e-12
_HALVINGS = 50


@dataclass(frozen=True)
class Share:
    """One member's claim to weight."""

    tokens: float
    """What it brings; positive."""
    group: str
    """Its coldkey."""
    newcomer: bool = False


def capped_weights(members: Sequence[Share], max_share: float, newcomer_share: float) -> list[float]:
    """float32 weights of the members, in their order."""
    if not members:
        return []
    caps = _Caps.of(members, max_share, newcomer_share)
    tokens = np.array([member.tokens for member in members], dtype=np.float64)
    level = _largest_total(tokens, caps)
    return [float(weight) for weight in caps.apply(tokens, level).astype(np.float32)]


@dataclass(frozen=True)
class _Caps:
    groups: I64
    """Index of each member's group."""
    group_share: float
    newcomers: Bool
    newcomer_share: float

    @classmethod
    def of(cls, members: Sequence[Share], max_share: float, newcomer_share: float) -> _Caps:
        names = [member.group for member in members]
        if len(set(names)) == 1:
            names = [str(i) for i in range(len(members))]
        _, groups = np.unique(names, return_inverse=True)
        newcomers = np.array([member.newcomer for member in members], dtype=np.bool_)
        if newcomers.all():
            newcomers = ~newcomers
        share = max(max_share, 2.0 / len(np.unique(groups[~newcomers])))
        return cls(groups.astype(np.int64), share, newcomers, newcomer_share)

    def apply(self, tokens: F64, total: float) -> F64:
        """What the caps leave of ``tokens`` where a share is one of ``total``."""
        together = tokens[self.newcomers].sum()
        left = tokens.copy()
        if together > self.newcomer_share * total:
            left[self.newcomers] *= self.newcomer_share * total / together
        sums = np.bincount(self.groups, left)
        factors = np.minimum(1.0, self.group_share * total / sums)
        return np.asarray(left * factors[self.groups], dtype=np.float64)


def _largest_total(tokens: F64, caps: _Caps) -> float:
    def kept(total: float) -> bool:
        return bool(caps.apply(tokens, total).sum() >= total * (1 - _ROUNDING))

    low = high = float(tokens.sum())
    while not kept(low):
        low, high = low / 2, low
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def cap_level(amounts: Sequence[float], max_share: float) -> float:
    """The largest amount that one of ``amounts`` may count for; infinite if none is above its share.

    The level L solves ``L = share · Σ min(amount, L)``; the share is at least twice an equal one.
    """
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
