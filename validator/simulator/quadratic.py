"""What is trained: a quadratic bowl with noisy gradients, whose k-step progress has a closed form.

``loss(x) = ½ mean hᵢ (xᵢ − oᵢ)²``; a step of gradient descent with rate η gives ``e ← (1 − ηh)·e + η·noise`` of the
error ``e = x − o``, so k steps give ``(1 − ηh)^k·e + spread_k·gauss``. Curvatures hᵢ differ up to fifty times, so that
some directions are learned soon and others late. The noise is in proportion to the gradient at the beginning of the k
steps, so that honest deltas agree as much in the thousandth round as in the first: two of k steps by a cosine of about
``k / (k + NOISE²)``, .23 at 60 steps, as sparse deltas of real models do. Invariants: the same steps from the same
state with the same seed give the same bits; powers are made by squaring, elementwise, never by a library's ``pow``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from common.codec.params import F32

F64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LR = 0.005
NOISE = 14.0
"""Standard deviation of a step's gradient noise, in units of the gradient's root mean square."""
_POOL = 1 << 20
_PRIMES = (7919, 1_299_709)


@dataclass(frozen=True)
class _Powers:
    decay: F32
    spread: F32


class Quadratic:
    """One problem of ``dimension`` values."""

    def __init__(self, dimension: int, seed: int) -> None:
        self._curvature, self.optimum, self._pool = _drawn(dimension, seed)
        self._known: dict[int, _Powers] = {}
        self._slope: F32 = self._curvature.astype(np.float32)

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
        noise = self._noise(draw, len(x))
        error = x - self.optimum
        slope = self._slope * error
        # Three digits: so that the order in which a machine adds the squares up changes no bit of the result.
        rms = float(f"{math.sqrt(float(np.dot(slope, slope)) / len(x)):.3g}")
        return self.optimum + powers.decay * error + (np.float32(rms) * powers.spread) * noise

    def _noise(self, draw: int, count: int) -> F32:
        """The sum of two stretches of the pool: no two draws of a run share both."""
        first, second = (draw * _PRIMES[0]) % _POOL, (draw * _PRIMES[1] // _POOL) % _POOL
        return self._pool[first : first + count] + self._pool[second : second + count]

    def _powers(self, steps: int) -> _Powers:
        known = self._known.get(steps)
        if known is None:
            base = 1.0 - LR * self._curvature
            decay = _power(base, steps)
            # The variance of the sum of k decayed noises: η²σ² (1 − q^k) / (1 − q) with q = (1 − ηh)².
            square = base * base
            variance = (LR * NOISE) ** 2 * (1.0 - _power(square, steps)) / (1.0 - square)
            known = _Powers(decay.astype(np.float32), np.sqrt(variance).astype(np.float32))
            self._known[steps] = known
        return known


@lru_cache(maxsize=2)
def _drawn(dimension: int, seed: int) -> tuple[F64, F32, F32]:
    """Curvature, optimum and the pool of noise, not to be written to; problems of one seed share them."""
    rng = np.random.default_rng([seed, 0x5EED])
    ladder = np.linspace(0.0, 1.0, dimension)
    curvature: F64 = (0.02 + 0.98 * ladder * ladder)[rng.permutation(dimension)]
    optimum: F32 = rng.standard_normal(dimension).astype(np.float32)
    pool: F32 = rng.standard_normal(_POOL + dimension, dtype=np.float32) * np.float32(math.sqrt(0.5))
    for values in (curvature, optimum, pool):
        values.flags.writeable = False
    return curvature, optimum, pool


def _power(base: F64, exponent: int) -> F64:
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result
