"""A miner's error feedback: what the codec left out of a delta is sent later (Seide et al. 2014; arXiv:1901.09847).

``target = β·residual + (local − base)`` is what a miner wants merged; it sends the codec's view of it. The residual
changes only when a plan says what was merged::

    named      residual ← target − sent       (whatever weight the merge gave it)
    not named  residual ← target              (nothing is lost), capped in norm after a rejection

Accounting invariant: residual + sent (or dropped) = target, to the rounding of one float32 operation a
coordinate. What a cap drops is returned as a number, never lost in silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from common.codec.params import F32

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Feedback:
    """A miner's memory of one shard between rounds."""

    residual: F32

    @classmethod
    def empty(cls, count: int) -> Feedback:
        """At the start, and after a rollback."""
        return cls(np.zeros(count, dtype=np.float32))


@dataclass(frozen=True)
class Settled:
    """The new memory and, in L2 norms, what became of the mass."""

    feedback: Feedback
    residual_norm: float
    dropped_norm: float
    reason: str


def target(feedback: Feedback, local: F32, base: F32, beta: float) -> F32:
    """What the next delta should say: ``β·residual + (local − base)``."""
    wanted = feedback.residual * np.float32(beta)
    wanted += local - base
    return wanted


def named(feedback: Feedback, wanted: F32, sent: F32) -> Settled:
    """The plan accepted ``sent`` (the decoded delta that it names, be it an earlier drip of the same round)."""
    return _settled(replace(feedback, residual=wanted - sent), "the plan named the delta")


def not_named(feedback: Feedback, wanted: F32) -> Settled:
    """The round named nothing of this miner: it was aborted, or nothing arrived. All of it is kept."""
    return _settled(replace(feedback, residual=wanted), "nothing was named; all is kept")


def rejected(feedback: Feedback, wanted: F32, cap_norm: float) -> Settled:
    """The plan rejected the delta. It is kept up to ``cap_norm``, lest what is refused grow without bound."""
    kept, dropped = _capped(wanted, cap_norm)
    return _settled(replace(feedback, residual=kept), "the delta was rejected", dropped)


def norm(values: F32) -> float:
    """L2 norm in float64; for information and caps, not for anything that machines must agree on."""
    squares = (values[i : i + _BLOCK].astype(np.float64) for i in range(0, len(values), _BLOCK))
    return math.sqrt(sum(float(np.dot(block, block)) for block in squares))


def _capped(values: F32, cap_norm: float) -> tuple[F32, float]:
    """``values`` scaled to ``cap_norm`` at most, and the norm of what that took away."""
    if not cap_norm >= 0:
        raise ValueError(f"cap_norm must not be negative, but is {cap_norm}")
    before = norm(values)
    if before <= cap_norm:
        return values, 0.0
    kept = values * np.float32(cap_norm / before)
    return kept, norm(values - kept)


def _settled(feedback: Feedback, reason: str, dropped_norm: float = 0.0) -> Settled:
    text = reason if dropped_norm == 0 else f"{reason}; its cap dropped a norm of {dropped_norm:.4g}"
    return Settled(feedback, norm(feedback.residual), dropped_norm, text)
