"""The flat vector: order, hash, shared memory with the layers, and reproducible first weights."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.layout import layout_of, schema, weights_hash
from common.model.presets import PRESETS
from common.model.shards import plan_shards

NANO = PRESETS["nano"]
(WHOLE,) = plan_shards(NANO, 1)
PINNED = "90dc4287189199cef3b68b6bf1514f4613f8936bba84cec5de73e9421150195b"


def test_vector_is_the_tensors_in_name_order() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    state = flat.module.state_dict()
    assert list(schema(NANO, WHOLE)) == sorted(state)
    joined = b"".join(state[name].numpy().astype("<f4").tobytes() for name in sorted(state))
    assert flat.take().astype("<f4").tobytes() == joined
    assert weights_hash(flat.take()) == hashlib.sha256(joined).hexdigest()


def test_layers_and_vector_share_memory_both_ways() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    address = flat.module.lm_head.weight.data_ptr()
    flat.replace(np.full(flat.layout.total, 2.0, dtype=np.float32))
    assert flat.module.lm_head.weight.data_ptr() == address
    assert float(flat.module.lm_head.weight.detach().min()) == 2.0
    with torch.no_grad():
        flat.module.model.norm.weight.fill_(5.0)
    slot = next(slot for slot in flat.layout.slots if slot.name == "model.norm.weight")
    assert (flat.take()[slot.start : slot.end] == 5.0).all()


def test_taken_weights_are_a_copy() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    before = flat.take()
    flat.replace(np.zeros_like(before))
    assert before.any()


def test_an_optimizer_step_moves_the_flat_vector() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    before = flat.take()
    optimizer = torch.optim.AdamW(flat.module.parameters(), lr=1e-2)
    flat.zero_grads()
    flat.module(torch.arange(64).view(1, 64)).logsumexp(-1).sum().backward()
    assert float(flat.grads.norm()) > 0
    optimizer.step()
    assert (flat.take() != before).mean() > 0.9


def test_zero_grads_empties_every_parameters_gradient_in_place() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    flat.module(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()
    flat.zero_grads()
    assert all(p.grad is not None and not p.grad.any() for p in flat.module.parameters())


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), np.zeros((843_648, 1), np.float32), np.zeros(843_648)])
def test_a_vector_that_does_not_fit_is_refused(bad: np.ndarray) -> None:
    flat = build_shard(NANO, WHOLE)
    with pytest.raises(ValueError, match="843648 contiguous float32"):
        flat.replace(bad)


def test_first_weights_are_the_same_bits_everywhere() -> None:
    """The hash is pinned: revision 0 of a run may not depend on machine or library version."""
    assert weights_hash(init_vector(NANO, WHOLE)) == PINNED


def test_first_weights_do_not_depend_on_the_split() -> None:
    whole = dict(layout_of(NANO, WHOLE).views(init_vector(NANO, WHOLE)))
    for shard in plan_shards(NANO, 3):
        for name, tensor in layout_of(NANO, shard).views(init_vector(NANO, shard)):
            assert np.array_equal(tensor, whole.pop(name))
    assert whole == {}


def test_first_weights_have_the_specs_spread() -> None:
    tensors = dict(layout_of(NANO, WHOLE).views(init_vector(NANO, WHOLE)))
    gate = tensors["model.layers.0.mlp.gate_proj.weight"]
    assert abs(float(gate.mean())) < 1e-3
    assert float(gate.std()) == pytest.approx(NANO.init_std, rel=0.01)
    assert (tensors["model.norm.weight"] == 1.0).all()
