"""From the mean of a round's deltas to the next weights.

The mean plus the update residual is compressed with the run's codec; the bytes are the update. What the codec lost
stays as residual. Every node decodes the same bytes and does the same outer step (DiLoCo, arXiv:2311.08105)::

    new = base + lr·u                              without momentum
    v   = μ·v + u;  new = base + lr·(u + μ·v)      Nesterov

Determinism: float32, elementwise, each multiplication and each addition a separate operation with its own rounding;
nothing is fused. Failed rounds never come here, so weights and outer state stay untouched by them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.codec.container import decode, encode
from common.codec.params import F32, CodecParams
from common.merge.mean import BLOCK_VALUES, require_finite


@dataclass(frozen=True)
class OuterState:
    """What a shard's outer step carries from revision to revision."""

    momentum: F32 | None
    """Nesterov's v; none in a run with μ = 0."""
    residual: F32
    """What the updates' codec has lost so far."""

    @classmethod
    def zero(cls, count: int, mu: float) -> OuterState:
        """The state of a run's first revision, and after a rollback that resets it."""
        return cls(np.zeros(count, dtype=np.float32) if mu else None, np.zeros(count, dtype=np.float32))


@dataclass(frozen=True)
class Update:
    """A compressed mean: the bytes that go into the bucket, what they mean, and what they lack."""

    data: bytes
    values: F32
    residual: F32


def compress_update(mean: F32, residual: F32, params: CodecParams) -> Update:
    """Compresses ``mean + residual``. Raises ``ValueError`` if the sum is not finite."""
    with np.errstate(over="ignore"):
        total = mean + residual
    data = encode(total, params)
    values = decode(data, expect=params, count=len(total))
    with np.errstate(over="ignore"):
        left = total - values
    require_finite(left, "the update's residual")
    return Update(data, values, left)


def outer_step(base: F32, u: F32, momentum: F32 | None, lr: float, mu: float) -> tuple[F32, F32 | None]:
    """The new weights and momentum; the inputs are left alone. ``lr`` and ``mu`` are rounded to float32.

    ``momentum`` is present exactly if ``mu`` is not 0. Raises ``ValueError`` otherwise, or if a result is not finite.
    """
    if (momentum is None) != (mu == 0):
        raise ValueError(f"momentum μ is {mu}, but the outer state {'lacks' if momentum is None else 'holds'} one")
    step, decay = np.float32(lr), np.float32(mu)
    new = np.empty_like(base)
    velocity = None if momentum is None else np.empty_like(momentum)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(base), BLOCK_VALUES):
            part = slice(start, start + BLOCK_VALUES)
            direction = u[part]
            if momentum is not None and velocity is not None:
                velocity[part] = decay * momentum[part]
                velocity[part] += u[part]
                direction = decay * velocity[part]
                direction += u[part]
            new[part] = step * direction
            new[part] += base[part]
    require_finite(new, "the new revision")
    if velocity is not None:
        require_finite(velocity, "the outer momentum")
    return new, velocity
