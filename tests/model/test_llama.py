"""The model is Llama: same logits as transformers, same logits however it is split."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common.model.export import hf_config
from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.llama import ShardModel, compose
from common.model.presets import PRESETS
from common.model.shards import plan_shards
from common.spec import ModelSpec

TINY = ModelSpec(
    vocab_size=96,
    hidden_size=64,
    num_layers=5,
    num_heads=4,
    num_kv_heads=2,
    ffn_size=112,
    max_seq_len=64,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    tied_head=False,
    init_std=0.2,
    init_seed=3,
)


def tokens_for(spec: ModelSpec, batch: int = 3, time: int = 48) -> torch.Tensor:
    return torch.randint(0, spec.vocab_size, (batch, time), generator=torch.Generator().manual_seed(1))


def sharded(spec: ModelSpec, num_shards: int) -> list[ShardModel]:
    return [build_shard(spec, shard, init_vector(spec, shard)).module for shard in plan_shards(spec, num_shards)]


@pytest.mark.parametrize(
    "spec",
    [
        TINY,
        dataclasses.replace(TINY, tied_head=True),
        dataclasses.replace(TINY, num_kv_heads=4, rope_theta=500_000.0, norm_eps=1e-6),
        PRESETS["nano"],
    ],
    ids=["grouped", "tied", "full-attention", "nano"],
)
def test_logits_match_transformers(spec: ModelSpec) -> None:
    (ours,) = sharded(spec, 1)
    config = {k: v for k, v in hf_config(spec).items() if k not in ("architectures", "model_type")}
    theirs = LlamaForCausalLM(LlamaConfig(**config)).eval()
    loaded = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert loaded.unexpected_keys == []
    assert loaded.missing_keys == (["lm_head.weight"] if spec.tied_head else [])
    tokens = tokens_for(spec)
    with torch.no_grad():
        difference = (ours(tokens) - theirs(tokens).logits).abs().max().item()
    assert difference < 1e-4


@pytest.mark.parametrize("num_shards", [2, 3, 5])
def test_composed_shards_are_bit_equal_to_the_whole(num_shards: int) -> None:
    tokens = tokens_for(TINY)
    with torch.no_grad():
        whole = compose(sharded(TINY, 1), tokens)
        parts = compose(sharded(TINY, num_shards), tokens)
    assert whole.shape == (3, 48, TINY.vocab_size)
    assert np.array_equal(whole.numpy().view(np.uint32), parts.numpy().view(np.uint32))


def test_nano_splits_into_all_its_layers_bit_equal() -> None:
    spec = PRESETS["nano"]
    tokens = tokens_for(spec, batch=2, time=128)
    with torch.no_grad():
        whole = compose(sharded(spec, 1), tokens)
        parts = compose(sharded(spec, spec.num_layers), tokens)
    assert torch.equal(whole, parts)


def test_gradients_flow_through_composed_shards() -> None:
    flats = [build_shard(TINY, shard, init_vector(TINY, shard)) for shard in plan_shards(TINY, 2)]
    compose([flat.module for flat in flats], tokens_for(TINY)).square().mean().backward()
    for flat in flats:
        assert all(flat.grads[slot.start : slot.end].abs().max() > 0 for slot in flat.layout.slots)


def test_a_token_sees_only_those_before_it() -> None:
    (model,) = sharded(TINY, 1)
    tokens = tokens_for(TINY, batch=1)
    changed = tokens.clone()
    changed[0, 30] = (changed[0, 30] + 1) % TINY.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.equal(before[:, 30], after[:, 30])


def test_longer_than_max_seq_len_is_refused() -> None:
    (model,) = sharded(TINY, 1)
    with pytest.raises(ValueError, match="max_seq_len 64"):
        model(torch.zeros(1, 65, dtype=torch.int64))
