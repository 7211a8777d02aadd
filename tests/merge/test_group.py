"""The figures that the gates see: exact where they can be, and where they are sketched, right within their error."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.params import F32, F64
from common.merge import group
from common.merge.gates import Accepted, RejectedDelta, decide
from common.merge.group import PAIR_WORK, GroupStats, GroupStatsBuilder, is_exact, sketch_width
from common.merge.sketch import SPAN, Fold
from tests.merge.groups import BASE, POLICY, candidates, group_stats, honest

CHUNK = 4096


def cosines_of(deltas: F32) -> F64:
    wide = deltas.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    lengths = np.where(norms > 0, norms, 1)
    cosines: F64 = (wide @ wide.T) / lengths[:, None] / lengths
    return cosines


def told(stats: GroupStats) -> list[str]:
    decisions = decide(candidates(len(stats.norms)), stats, POLICY, {BASE: 1.0})
    return [d.code if isinstance(d, RejectedDelta) else "" for d in decisions]


def flipped(deltas: F32) -> F32:
    """A larger group in which every kind of cheat stands beside the honest ones that it harms or copies."""
    rng = np.random.default_rng(5)
    deltas = deltas.copy()
    noise = (1 + 0.4 * rng.standard_normal(deltas.shape[1])).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], dtype=np.float32), deltas.shape[1])
    deltas[-4:] = deltas[0], deltas[1] * noise, -deltas[2], deltas[3] * signs
    deltas[4:40:2] *= -1
    return deltas


@pytest.mark.parametrize("density", [64, 512])
def test_few_deltas_are_compared_exactly(density: int) -> None:
    deltas = honest(12, 20 * CHUNK + 3, density)
    stats = group_stats(deltas, deltas.shape[1])
    assert stats.error == 0
    np.testing.assert_allclose(stats.cosines, cosines_of(deltas), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(stats.norms, np.linalg.norm(deltas.astype(np.float64), axis=1), rtol=1e-12)
    assert stats.filled.tolist() == [int(np.count_nonzero(delta)) for delta in deltas]
    shared = np.count_nonzero(deltas[0].astype(bool) & deltas[1].astype(bool)) / min(stats.filled[:2])
    fill = max(stats.filled[:2]) / deltas.shape[1]
    assert stats.overlaps[0, 1] == pytest.approx((shared - fill) / (1 - fill))


@pytest.mark.parametrize(
    ("members", "count", "density"), [(256, 5 * CHUNK, 64), (1000, CHUNK, 64), (300, 4 * CHUNK, 512)]
)
def test_many_are_compared_within_the_error(members: int, count: int, density: int) -> None:
    deltas = honest(members, count, density)
    assert not is_exact(members, count)
    stats, exact = group_stats(deltas, count), cosines_of(deltas)
    assert 0 < stats.error <= (members**2 / PAIR_WORK) ** 0.5 * 2**0.5
    off = (stats.cosines - exact)[~np.eye(members, dtype=bool)]
    assert np.sqrt((off**2).mean()) < 1.2 * stats.error
    assert np.abs(off).max() < 6.5 * stats.error
    assert np.diagonal(stats.cosines).tolist() == [1.0] * members
    np.testing.assert_allclose(stats.norms, np.linalg.norm(deltas.astype(np.float64), axis=1), rtol=1e-12)


@pytest.mark.parametrize("density", [64, 512])
@pytest.mark.parametrize("agreement", [0.2, 0.5])
def test_256_honest_sparse_deltas_pass_the_sketch(density: int, agreement: float) -> None:
    """Pairwise cosines from .03 to .3, whatever the seed of the sketch."""
    deltas = honest(256, 5 * CHUNK, density, agreement)
    for seed in range(3):
        stats = group_stats(deltas, deltas.shape[1], seed)
        assert stats.error > 0
        decisions = decide(candidates(256), stats, POLICY, {BASE: 1.0})
        assert all(isinstance(d, Accepted) and d.clip == 1 for d in decisions), [d.reason for d in decisions]


@pytest.mark.parametrize(
    ("members", "count", "density"), [(256, 5 * CHUNK, 64), (256, 5 * CHUNK, 512), (1000, CHUNK, 64)]
)
def test_copies_and_flips_are_caught_through_the_sketch(members: int, count: int, density: int) -> None:
    found = told(group_stats(flipped(honest(members, count, density)), count))
    assert found[-4:] == ["duplicate"] * 4
    assert found[4:40:2] == ["wrong_direction"] * 18
    assert not any(found[40:-4] + found[:4] + found[5:40:2])


def test_dense_copies_with_noise_are_caught_through_the_sketch() -> None:
    deltas = honest(256, 5 * CHUNK, 4096)
    deltas[9] = deltas[8] + np.float32(1e-4) * np.random.default_rng(2).standard_normal(5 * CHUNK).astype(np.float32)
    assert told(group_stats(deltas, 5 * CHUNK)) == ["duplicate" if i == 9 else "" for i in range(256)]


@pytest.mark.parametrize("members", [6, 256])
def test_a_delta_on_few_coordinates_makes_no_copies_of_the_others(members: int) -> None:
    """It comes first and lies within the others' positions; they are not its copies for that."""
    deltas = honest(members, 5 * CHUNK)
    for i in range(members // 6):
        few = np.flatnonzero(deltas[-1])[i : i + 3]
        deltas[i] = 0
        deltas[i, few] = deltas[-1, few]
    assert not any(told(group_stats(deltas, 5 * CHUNK))[members // 6 :])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(5, 3 * 4096 + 7), (520, CHUNK), (2, 2 * SPAN + 99)]), st.booleans())
def test_blocks_of_any_shape_and_order_give_the_same(seed: int, shape: tuple[int, int], long: bool) -> None:
    """``long``: as if the vectors were too long to be kept, so that short ones go through the sketch too."""
    rng = np.random.default_rng(seed)
    deltas = np.zeros(shape, dtype=np.float32)
    deltas.reshape(-1)[rng.integers(0, deltas.size, 5000)] = rng.standard_normal(5000)
    rows = sorted({0, shape[0], int(rng.integers(shape[0]))})
    columns = sorted({0, shape[1], *rng.integers(0, shape[1], 3).tolist()})
    blocks = list(itertools.product(itertools.pairwise(rows), itertools.pairwise(columns)))
    with mock.patch.object(group, "MAX_EXACT_VALUES", 0 if long else group.MAX_EXACT_VALUES):
        builder = GroupStatsBuilder(*shape, 3)
        for k in rng.permutation(len(blocks)):
            (top, bottom), (left, right) = blocks[k]
            builder.add(top, left, deltas[top:bottom, left:right])
        stats, whole = builder.finish(), group_stats(deltas, shape[1], 3)
    for name in ("finite", "filled"):
        assert getattr(stats, name).tolist() == getattr(whole, name).tolist()
    for name in ("norms", "cosines", "overlaps"):
        np.testing.assert_allclose(getattr(stats, name), getattr(whole, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("members", "count"), [(4, CHUNK), (600, CHUNK)])
def test_what_is_not_finite_or_empty_says_nothing_about_others(members: int, count: int) -> None:
    deltas = honest(members, count)
    clean = group_stats(deltas, count)
    deltas[1, 5], deltas[2] = np.inf, 0
    deltas[1, 6] = np.nan
    stats = group_stats(deltas, count)
    assert stats.finite.tolist() == [i != 1 for i in range(members)]
    assert (stats.norms[1:3].tolist(), stats.filled[1:3].tolist()) == ([0, 0], [0, 0])
    assert not stats.cosines[1:3].any()
    kept = [0, *range(3, members)]
    for name in ("cosines", "overlaps"):
        np.testing.assert_allclose(getattr(stats, name)[np.ix_(kept, kept)], getattr(clean, name)[np.ix_(kept, kept)])


def test_extreme_magnitudes_do_not_overflow() -> None:
    deltas = honest(600, CHUNK)
    deltas[0] *= np.float32(1e37)
    deltas[1] = np.where(deltas[1] != 0, np.float32(1e-42), 0)
    stats = group_stats(deltas, CHUNK)
    assert np.isfinite(stats.cosines).all()
    assert np.isfinite(stats.norms).all()


def test_what_was_not_added_or_does_not_fit_is_an_error() -> None:
    builder = GroupStatsBuilder(2, 10, 0)
    builder.add(0, 0, np.zeros((2, 9), dtype=np.float32))
    with pytest.raises(ValueError, match=r"\[9, 9\] of 10"):
        builder.finish()
    with pytest.raises(ValueError, match="a block"):
        builder.add(1, 9, np.zeros((2, 1), dtype=np.float32))


def test_the_work_for_pairs_is_bounded() -> None:
    for members in (1, 2, 16, 100, 256, 1000, 2000):
        assert sketch_width(members) * members**2 <= PAIR_WORK
    assert (sketch_width(256), sketch_width(1000)) == (16384, 1024)


def test_a_fold_needs_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        Fold(10, 3, 0)
