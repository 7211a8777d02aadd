"""The split: contiguous, complete, balanced, and refused where it can't be."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import OperatorError
from common.model.layout import run_layouts
from common.model.presets import PRESETS, preset
from common.model.shards import layer_parameters, parameter_count, plan_shards
from common.spec import ModelSpec

NANO = PRESETS["nano"]


@given(st.integers(1, 24), st.integers(1, 24), st.sampled_from([64, 4096, 65_536]))
def test_every_split_is_contiguous_complete_and_balanced(layers: int, num_shards: int, vocab_size: int) -> None:
    spec = dataclasses.replace(NANO, num_layers=layers, vocab_size=vocab_size)
    if num_shards > layers:
        with pytest.raises(OperatorError, match="num_shards"):
            plan_shards(spec, num_shards)
        return
    shards = plan_shards(spec, num_shards)
    assert [index for shard in shards for index in shard.layers] == list(range(layers))
    assert [shard.shard for shard in shards] == list(range(num_shards))
    assert all(len(shard.layers) >= 1 for shard in shards)
    assert [s.has_embedding for s in shards] == [i == 0 for i in range(num_shards)]
    assert [s.has_head for s in shards] == [i == num_shards - 1 for i in range(num_shards)]
    assert max_size(spec, num_shards) <= parameter_count(spec) / num_shards + largest_indivisible(spec)


def max_size(spec: ModelSpec, num_shards: int) -> int:
    return max(layout.total for layout in run_layouts(spec, num_shards))


def largest_indivisible(spec: ModelSpec) -> int:
    return layer_parameters(spec) + (spec.vocab_size + 1) * spec.hidden_size


def test_the_ends_count_when_balancing() -> None:
    """With a large vocabulary the first and last shard hold fewer layers than those between."""
    shards = plan_shards(PRESETS["125m"], 4)
    assert len(shards[0].layers) < len(shards[1].layers)
    assert len(shards[3].layers) < len(shards[2].layers)


@pytest.mark.parametrize("name", list(PRESETS))
def test_shard_sizes_add_up_to_the_model(name: str) -> None:
    spec = PRESETS[name]
    for num_shards in (1, 2, 3):
        assert sum(layout.total for layout in run_layouts(spec, num_shards)) == parameter_count(spec)


def test_a_tied_head_counts_once_and_cannot_be_split() -> None:
    tied = dataclasses.replace(NANO, tied_head=True)
    assert run_layouts(tied, 1)[0].total == parameter_count(tied)
    assert parameter_count(NANO) - parameter_count(tied) == NANO.vocab_size * NANO.hidden_size
    with pytest.raises(OperatorError, match="tied"):
        plan_shards(tied, 2)


@pytest.mark.parametrize("num_shards", [0, -1, 4])
def test_impossible_counts_are_refused(num_shards: int) -> None:
    with pytest.raises(OperatorError, match="between 1 and the model's 3 layers"):
        plan_shards(NANO, num_shards)


def test_nano_fits_chunks_of_4096_and_the_promised_compression() -> None:
    """At 64 of 4,096, 84 bytes a record and the largest header allowed, a delta is below 1/190 of dense float32."""
    count = parameter_count(NANO)
    chunks = -(-count // 4096)
    assert 840_000 <= count <= 850_000
    assert 4096 * chunks - count < 4096 // 8
    assert 4 * count / (84 * chunks + 380) >= 190


def test_presets_have_the_size_of_their_name() -> None:
    assert parameter_count(preset("125m")) == pytest.approx(125e6, rel=0.02)
    assert parameter_count(preset("1b")) == pytest.approx(1e9, rel=0.05)
    with pytest.raises(OperatorError, match="nano, 125m, 1b"):
        preset("gpt5")
