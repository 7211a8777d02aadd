"""Update and outer step: formulas to the bit, nothing lost, inputs untouched."""

from __future__ import annotations

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import F32, CodecParams
from common.merge.outer import OuterState, compress_update, outer_step

SPARSE = CodecParams("topk", 512, 16)


def normal(seed: int, count: int = 70_000) -> F32:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_plain_step() -> None:
    base, u = normal(0), normal(1)
    new, momentum = outer_step(base, u, None, 0.7, 0.0)
    step = np.float32(0.7)
    assert momentum is None
    assert all(new[i] == np.float32(base[i] + np.float32(step * u[i])) for i in range(0, len(base), 997))


def test_nesterov_step() -> None:
    base, u, v = normal(0), normal(1), normal(2)
    before = (base.copy(), u.copy(), v.copy())
    new, velocity = outer_step(base, u, v, 0.7, 0.9)
    lr, mu = np.float32(0.7), np.float32(0.9)
    assert velocity is not None
    for i in range(0, len(base), 997):
        expected_v = np.float32(np.float32(mu * v[i]) + u[i])
        assert velocity[i] == expected_v
        assert new[i] == np.float32(base[i] + np.float32(lr * np.float32(u[i] + np.float32(mu * expected_v))))
    assert all(np.array_equal(a, b) for a, b in zip(before, (base, u, v), strict=True))


def test_momentum_and_mu_must_agree() -> None:
    base = normal(0, 10)
    for momentum, mu in ((None, 0.9), (base, 0.0)):
        with pytest.raises(ValueError, match="momentum"):
            outer_step(base, base, momentum, 1.0, mu)


def test_a_step_out_of_float32_is_refused() -> None:
    huge = np.full(3, 3e38, dtype=np.float32)
    with pytest.raises(ValueError, match="the new revision has 3 of 3"):
        outer_step(huge, huge, None, 1.0, 0.0)


def test_zero_state_fits_the_momentum() -> None:
    assert OuterState.zero(5, 0.0).momentum is None
    state = OuterState.zero(5, 0.9)
    assert state.momentum is not None
    assert state.momentum.tolist() == state.residual.tolist() == [0] * 5


def test_what_the_update_lacks_stays_as_residual() -> None:
    mean, residual = normal(3), normal(4)
    update = compress_update(mean, residual, SPARSE)
    assert update.values.tobytes() == decode(update.data, expect=SPARSE, count=len(mean)).tobytes()
    assert update.residual.tobytes() == (mean + residual - update.values).tobytes()
    assert 0 < np.linalg.norm(update.residual) < np.linalg.norm(mean + residual)


def test_residual_brings_a_constant_mean_through_over_rounds() -> None:
    """With feedback the average of the updates tends to the mean; without it the small values never arrive."""
    mean = normal(5, 8192)
    residual, total, rounds = np.zeros_like(mean), np.zeros(len(mean)), 60
    for _ in range(rounds):
        update = compress_update(mean, residual, SPARSE)
        residual, total = update.residual, total + update.values
    error = np.linalg.norm(total / rounds - mean) / np.linalg.norm(mean)
    once = np.linalg.norm(compress_update(mean, np.zeros_like(mean), SPARSE).values - mean) / np.linalg.norm(mean)
    assert error < 0.15 < 0.5 < once


def test_an_infinite_mean_is_refused() -> None:
    huge = np.full(4, 3e38, dtype=np.float32)
    with pytest.raises(ValueError, match="infinite"):
        compress_update(huge, huge, SPARSE)
