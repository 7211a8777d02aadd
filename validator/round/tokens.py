"""How many tokens of a claim count: ``min(claimed, time seen × proven rate × slack)``. Pure.

A member's proven rate comes from its own history, timed on the receiver's clock, never from comparing it with
others. Invariants: the result lies in [0, claimed]; without enough history, or when the leader did not watch the
whole round (it came later than the member), the claim counts as it is and the reason says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 5
"""Intervals between heartbeats before a rate is a proof."""
PROVEN_QUANTILE = 0.9
"""A machine that speeds up when its neighbours leave must not be cut to its own slow past."""


@dataclass(frozen=True)
class Seen:
    """What the leader saw of one member in one round, on its own clock."""

    seconds: float
    """From the first to the last sign that the member worked for this round, plus one heartbeat at each end."""
    rates_tokens_per_s: tuple[float, ...]
    """Of intervals between two heartbeats in training, this round's and earlier ones."""
    whole: bool
    """Whether the leader watched since the member began this round."""


def proven_rate(rates_tokens_per_s: Sequence[float]) -> float | None:
    """The rate that a member has shown, or None while there are too few samples."""
    if len(rates_tokens_per_s) < LEAST_SAMPLES:
        return None
    ordered = sorted(rates_tokens_per_s)
    return ordered[min(len(ordered) - 1, int(PROVEN_QUANTILE * len(ordered)))]


def validated_tokens(claimed: int, seen: Seen | None, slack: float) -> tuple[int, str]:
    """Tokens that count, and why."""
    if seen is None or not seen.whole:
        return claimed, f"{claimed} tokens as claimed: the leader did not watch the whole round"
    rate = proven_rate(seen.rates_tokens_per_s)
    if rate is None:
        return claimed, f"{claimed} tokens as claimed: too little history for a proven rate"
    most = int(seen.seconds * rate * slack)
    if claimed <= most:
        return claimed, f"{claimed} tokens, as its {rate:.0f} tokens/s over {seen.seconds:.1f} s allow"
    return max(0, most), f"{most} of {claimed} claimed: {seen.seconds:.1f} s at {rate:.0f} tokens/s × {slack:g}"
