"""Muon: orthogonal steps of AdamW's size on the hidden matrices, AdamW on the rest, one state that restores it all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model.init import init_vector
from common.model.layout import Layout, TensorSlot, layout_of
from common.model.shards import plan_shards
from common.spec import InnerSpec
from miner.adamw import FlatAdamW
from miner.muon import USUAL_RMS, FlatMuon, by_gram, by_iterates, is_hidden_matrix, orthogonal
from miner.optimizer import make_optimizer
from miner.trainer import Trainer
from tests.support.specs import tiny_spec

SPEC = replace(tiny_spec(), inner=replace(tiny_spec().inner, kind="muon", weight_decay=0.1))
INNER: InnerSpec = SPEC.inner
SHARD = plan_shards(SPEC.model, 1)[0]
LAYOUT: Layout = layout_of(SPEC.model, SHARD)
RATE = 1e-2


def gradient(number: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(number).standard_normal(LAYOUT.total).astype(np.float32))


def stepped(steps: int = 1, inner: InnerSpec = INNER) -> tuple[FlatMuon, Tensor]:
    weights, grads = torch.from_numpy(init_vector(SPEC.model, SHARD).copy()), torch.zeros(LAYOUT.total)
    optimizer = FlatMuon(inner, LAYOUT, weights, grads)
    for number in range(steps):
        grads.copy_(gradient(number))
        optimizer.step(RATE)
    return optimizer, weights


def matrix(vector: Tensor, slot: TensorSlot) -> Tensor:
    return vector[slot.start : slot.end].view(slot.shape)


def test_singular_values_are_brought_near_one() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 12, 40, generator=torch.Generator().manual_seed(0))))
    assert 0.6 < values.min() < values.max() < 1.3


@pytest.mark.parametrize("shape", [(3, 12, 40), (2, 40, 12), (1, 16, 16)])
def test_both_ways_to_multiply_give_the_same(shape: tuple[int, ...]) -> None:
    some = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(some, full_matrices=False)
    narrow = left @ torch.logspace(0, -5, min(shape[1:])).diag() @ right
    for matrices in (some, narrow):
        unit = matrices / torch.linalg.matrix_norm(matrices, keepdim=True)
        expected = by_iterates(unit.double())
        assert torch.allclose(by_iterates(unit).double(), expected, atol=1e-4)
        assert torch.allclose(by_gram(unit).double(), expected, atol=1e-3)


def test_the_scale_of_a_gradient_does_not_matter() -> None:
    some = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(orthogonal(some), orthogonal(1e3 * some), atol=1e-4)


def test_a_zero_gradient_gives_a_zero_step() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 4, 8)), torch.zeros(2, 4, 8))


def test_hidden_matrices_step_by_the_size_of_adamws_step_along_their_own_directions() -> None:
    _, weights = stepped(inner=replace(INNER, weight_decay=0.0))
    before = torch.from_numpy(init_vector(SPEC.model, SHARD))
    for slot in filter(is_hidden_matrix, LAYOUT.slots):
        moved = matrix(weights - before, slot)
        assert moved.square().mean().sqrt() == pytest.approx(RATE * USUAL_RMS, rel=0.3)
        left, _, right = torch.linalg.svd(matrix(gradient(0), slot), full_matrices=False)
        inside = left.mT @ moved @ right.mT
        assert torch.linalg.vector_norm(inside - inside.diag().diag()) < 0.01 * torch.linalg.vector_norm(inside)
        assert (inside.diag() < 0).all()


def test_hidden_matrices_step_as_under_pytorchs_muon_which_rounds_to_bfloat16() -> None:
    _, weights = stepped(3)
    before = torch.from_numpy(init_vector(SPEC.model, SHARD))
    for slot in filter(is_hidden_matrix, LAYOUT.slots):
        theirs = torch.nn.Parameter(matrix(before, slot).clone())
        optimizer = torch.optim.Muon([theirs], lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for number in range(3):
            theirs.grad = matrix(gradient(number), slot).clone()
            optimizer.step()
        ours, moved = matrix(weights - before, slot), theirs.detach() - matrix(before, slot)
        assert torch.linalg.vector_norm(ours - moved) < 0.03 * torch.linalg.vector_norm(moved)


def test_everything_else_is_adamws() -> None:
    _, weights = stepped(3)
    same, grads = torch.from_numpy(init_vector(SPEC.model, SHARD).copy()), torch.zeros(LAYOUT.total)
    adamw = FlatAdamW(replace(INNER, kind="adamw"), LAYOUT, same, grads)
    for number in range(3):
        grads.copy_(gradient(number))
        adamw.step(RATE)
    others = [slot for slot in LAYOUT.slots if not is_hidden_matrix(slot)]
    assert {slot.name.split(".")[-2] for slot in others} >= {"embed_tokens", "norm", "input_layernorm"}
    assert all(torch.equal(matrix(weights, slot), matrix(same, slot)) for slot in others)


def test_weights_decay_by_rate_times_decay() -> None:
    _, plain = stepped(inner=replace(INNER, weight_decay=0.0))
    _, decayed = stepped()
    before = torch.from_numpy(init_vector(SPEC.model, SHARD))
    for slot in filter(is_hidden_matrix, LAYOUT.slots):
        lost = matrix(plain - decayed, slot)
        assert torch.allclose(lost, RATE * INNER.weight_decay * matrix(before, slot), atol=1e-6)


def test_a_restored_optimizer_goes_on_bit_for_bit() -> None:
    first, weights = stepped(3)
    resumed, grads = weights.clone(), torch.zeros(LAYOUT.total)
    second = FlatMuon(INNER, LAYOUT, resumed, grads)
    second.restore(first.state())
    grads.copy_(gradient(3))
    second.step(RATE)
    assert torch.equal(resumed, stepped(4)[1])
    assert second.state().steps == 4
    second.restore(None)
    assert not second.state().first.any()


def test_the_spec_chooses() -> None:
    weights = torch.zeros(LAYOUT.total)
    assert isinstance(make_optimizer(INNER, LAYOUT, weights, weights.clone()), FlatMuon)
    adamw = replace(INNER, kind="adamw")
    assert isinstance(make_optimizer(adamw, LAYOUT, weights, weights.clone()), FlatAdamW)


def test_a_trainer_learns_with_it() -> None:
    trainer = Trainer(SPEC, SHARD)
    trainer.load(init_vector(SPEC.model, SHARD))
    words = np.random.default_rng(0).integers(97, 105, (SPEC.inner.batch_size, SPEC.data.seq_len + 1))
    losses = [trainer.step(words.astype(np.int64), i).loss for i in range(30)]
    assert losses[-1] < losses[0] - 1
