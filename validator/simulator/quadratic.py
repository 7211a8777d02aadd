"""What is trained: a quadratic bowl with noisy gradients, whose k-step progress has a closed form.

``loss(x) = ½ Σ hᵢ (xᵢ − oᵢ)²``; a step of gradient descent with rate η gives ``e ← (1 − ηh)·e + η·noise`` of the error
``e = x − o``, so k steps give ``(1 − ηh)^k·e + spread_k·gauss``. Curvatures hᵢ spread over two decades, so that some
directions are learned at once and others slowly, as in a real model. Invariants: the same steps from the same state
with the same seed give the same bits; powers are made by squaring, elementwise, and never by a library's ``pow``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.codec.params import F32

LR = 0.05
NOISE = 0.5
"""Standard deviation of a step's gradient noise, in units of the first gradient's root mean square."""
_POOL = 1 << 20
_PRIME = 7919


@dataclass(frozen=True)
class _Powers:
    decay: F32
    spread: F32


class Quadratic:
    """One problem of ``dimension`` values."""

    def __init__(self, dimension: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0x5EED])
        ladder = np.linspace(0.0, 1.0, dimension)
        self._curvature = (0.02 + 0.98 * ladder * ladder)[rng.permutation(dimension)]
        self.optimum: F32 = rng.standard_normal(dimension).astype(np.float32)
        self._pool: F32 = rng.standard_normal(_POOL + dimension, dtype=np.float32)
        self._known: dict[int, _Powers] = {}
        self._rms = float(np.sqrt(np.mean((self._curvature * self.optimum) ** 2)))

    def start(self) -> F32:
        """The first weights."""
        return np.zeros_like(self.optimum)

    def loss(self, x: F32) -> float:
        """Half the weighted squared distance per value, exact enough to compare by."""
        error = x.astype(np.float64) - self.optimum
        return float(0.5 * np.mean(self._curvature * error * error))

    def train(self, x: F32, steps: int, draw: int) -> F32:
        """``x`` after ``steps`` more steps; ``draw`` names the noise."""
        if steps <= 0:
            return x
        powers = self._powers(steps)
        first = (draw * _PRIME) % _POOL
        noise = self._pool[first : first + len(x)]
        return self.optimum + powers.decay * (x - self.optimum) + powers.spread * noise

    def _powers(self, steps: int) -> _Powers:
        known = self._known.get(steps)
        if known is None:
            base = 1.0 - LR * self._curvature
            decay = _power(base, steps)
            # The variance of the sum of k decayed noises: η²σ² (1 − q^k) / (1 − q) with q = (1 − ηh)².
            square = base * base
            variance = (LR * NOISE * self._rms) ** 2 * (1.0 - _power(square, steps)) / (1.0 - square)
            known = _Powers(decay.astype(np.float32), np.sqrt(variance).astype(np.float32))
            self._known[steps] = known
        return known


def _power(
    base: np.ndarray[tuple[int, ...], np.dtype[np.float64]], exponent: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result
