"""Scores to the u16 vector that goes on chain. Pure.

The chain scales every vector so that its largest entry is 65535 and compares shares only, so we scale the same way
and what we compute is what it stores. An entry below 1/131070 of the largest rounds to zero and is dropped, as a
zero is no weight on chain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from common.units import Uid

U16_MAX = 65535
Key = TypeVar("Key")


def to_u16(scores: Mapping[Key, float]) -> dict[Key, int]:
    """Scale to 65535, round half to even, drop zeros; keys keep their order.

    Raises ``ValueError`` for a negative or non-finite score. All zero gives an empty vector.
    """
    for key, score in scores.items():
        if not math.isfinite(score) or score < 0:
            raise ValueError(f"the score of {key} is {score}; it must be finite and not negative")
    top = max(scores.values(), default=0.0)
    if top <= 0:
        return {}
    scaled = {key: round(score / top * U16_MAX) for key, score in scores.items()}
    return {key: value for key, value in scaled.items() if value}


def upscale(values: list[int]) -> list[int]:
    """What the chain stores for a submitted vector: scaled so that the largest is 65535, rounded half up."""
    top = max(values, default=0)
    if top in (0, U16_MAX):
        return list(values)
    return [(value * U16_MAX * 2 + top) // (2 * top) for value in values]


def check_vector(weights: Mapping[Uid, int]) -> None:
    """Raise ``ValueError`` unless this is a vector that the chain stores unchanged."""
    if not weights or max(weights.values()) != U16_MAX or min(weights.values()) < 1:
        raise ValueError("weights must be u16 with the largest 65535 and none zero: use weights.to_u16")
    if any(not 0 <= uid <= U16_MAX for uid in weights):
        raise ValueError("uids must be u16")
