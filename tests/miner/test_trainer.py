"""The trainer: learns, does what PyTorch's AdamW does, restores bit for bit, and never keeps what is not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.layout import Vector
from common.model.loss import training_loss
from common.model.shards import plan_shards
from common.spec import RunSpec
from common.units import Revision, RoundId, Sha256
from miner.schedule import global_step, learning_rate
from miner.trainer import STUCK_STEPS, Samples, Trainer
from miner.work import Base, Batches
from miner.work import Stream as Streamed
from tests.support.specs import tiny_spec

SPEC = replace(tiny_spec(), inner=replace(tiny_spec().inner, weight_decay=0.1, grad_clip=0.5))
SHARD = plan_shards(SPEC.model, 1)[0]
BASE = init_vector(SPEC.model, SHARD)


def batch(number: int, spec: RunSpec = SPEC) -> Samples:
    words = np.random.default_rng(number % 4).integers(97, 105, (spec.inner.batch_size, spec.data.seq_len + 1))
    return words.astype(np.int64)


def trainer(vector: Vector = BASE) -> Trainer:
    made = Trainer(SPEC, SHARD)
    made.load(vector)
    return made


class Stream:
    """Batches by position; those in ``bad`` blow the loss up."""

    def __init__(self, made: Trainer | None = None, bad: range = range(0)) -> None:
        self.made, self.bad, self.asked = made, bad, []  # type: ignore[var-annotated]

    def batch(self, start: int, count: int) -> Samples:
        self.asked.append(start)
        return batch(start) if start not in self.bad else np.full((count, SPEC.data.seq_len + 1), 1, np.int64)


def base(revision: int = 0, vector: Vector = BASE) -> Base:
    return Base(Revision(revision), Sha256("0" * 64), vector)


def stream(batches: Batches, round_id: int = 0, revision: int = 0) -> Streamed:
    return Streamed(RoundId(round_id), Revision(revision), batches)


def test_the_loss_falls() -> None:
    made = trainer()
    losses = [made.step(batch(i), i).loss for i in range(40)]
    assert losses[0] > 5
    assert np.mean(losses[-4:]) < losses[0] - 1


def test_steps_are_those_of_pytorchs_adamw() -> None:
    made, flat = trainer(), build_shard(SPEC.model, SHARD, BASE)
    matrices = [p for p in flat.module.parameters() if p.ndim > 1]
    vectors = [p for p in flat.module.parameters() if p.ndim == 1]
    inner = SPEC.inner
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": inner.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(inner.beta1, inner.beta2),
        eps=inner.eps,
        fused=True,
    )
    for number in range(6):
        made.step(batch(number), number)
        tokens = torch.from_numpy(batch(number))
        flat.zero_grads()
        training_loss(flat.module(tokens[:, :-1]), tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(flat.module.parameters(), inner.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(inner, number)
        optimizer.step()
    assert np.allclose(made.weights(), flat.take(), rtol=1e-5, atol=1e-7)


def test_a_restored_trainer_goes_on_bit_for_bit() -> None:
    first = trainer()
    for number in range(3):
        first.step(batch(number), number)
    second = trainer(first.weights())
    second.restore_optimizer(first.optimizer_state())
    for number in range(3, 6):
        assert first.step(batch(number), number).loss == second.step(batch(number), number).loss
    assert np.array_equal(first.weights(), second.weights())
    assert first.optimizer_state().steps == 6


def test_a_step_without_a_finite_loss_changes_nothing() -> None:
    made = trainer()
    made.step(batch(0), 0)
    broken = made.weights()
    broken[-1] = np.nan  # the final norm: every loss is NaN
    healthy, moments = made.weights(), made.optimizer_state()
    made.load(broken)
    result = made.step(batch(1), 1)
    assert not result.taken
    assert np.array_equal(made.optimizer_state().first, moments.first)
    made.load(healthy)
    assert made.step(batch(1), 1).taken


def test_a_bad_start_of_a_round_does_not_end_it() -> None:
    poisoned = BASE.copy()
    poisoned[0] = np.nan
    made = Trainer(SPEC, SHARD)
    made.load(poisoned)
    assert [made.step(batch(i), i).taken for i in range(STUCK_STEPS + 1)] == [False] * (STUCK_STEPS + 1)


def test_vectors_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        trainer().load(BASE[:-1].copy())


@given(st.integers(0, 1000), st.integers(0, 10_000))
def test_the_schedule_counts_by_revision_and_never_overtakes_the_next(revision: int, local: int) -> None:
    inner = replace(SPEC.inner, steps_schedule=(1, 2, 5))
    step, first = global_step(inner, Revision(revision), local), inner.first_step(Revision(revision))
    assert first <= step <= inner.first_step(Revision(revision + 1)) == first + inner.steps_of(Revision(revision))


@given(st.integers(0, 10_000))
def test_the_rate_rises_falls_and_stays(step: int) -> None:
    inner = SPEC.inner
    rate = learning_rate(inner, step)
    assert 0 < rate <= inner.lr
    if step >= inner.decay_steps:
        assert rate == pytest.approx(inner.lr * inner.min_lr_ratio)
    elif step < inner.warmup_steps:
        assert rate == pytest.approx(inner.lr * (step + 1) / inner.warmup_steps)
