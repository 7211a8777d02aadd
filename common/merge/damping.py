"""A round of few tokens makes a smaller step: its mean is noisier, and the outer step must not follow the noise whole.

The variance of a mean of gradients falls with the tokens behind it, so the step that keeps its noise at the usual
level goes with their square root. The damping is fixed in the plan as float32 bits; it acts through the divisor, so
that the mean stays one sum, one division and one rounding, as ``mean.py`` promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from common.merge.mean import divisor_of, exact_f32


def damping(tokens: float, target_tokens: int, damping_at: float) -> float:
    """float32 in (0, 1]: √(tokens / (damping_at · target)), 1 from there on. Raises ``ValueError`` without tokens."""
    if not (0 < tokens < math.inf and target_tokens > 0 and 0 < damping_at <= 1):
        raise ValueError(f"no damping for {tokens} tokens of {target_tokens} from a share of {damping_at} on")
    return float(np.float32(math.sqrt(min(1.0, tokens / (damping_at * target_tokens)))))


def damped_divisor(weights: Iterable[float], damping: float) -> float:
    """Σ weights / damping: one division in float64, which IEEE 754 rounds the same way everywhere.

    By it the mean is divided as before, so that damping adds no second rounding to the values. ``weights`` and
    ``damping`` are the plan's float32; raises ``ValueError`` unless damping is in (0, 1].
    """
    if not 0 < exact_f32(damping) <= 1:
        raise ValueError(f"the damping of a plan is in (0, 1], not {damping}")
    return divisor_of(weights) / damping
