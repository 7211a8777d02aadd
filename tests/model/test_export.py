"""An exported revision is a Llama model for transformers, with the same logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from common.model.export import export_hf
from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.llama import compose
from common.model.presets import PRESETS
from common.model.shards import plan_shards
from common.spec import ModelSpec

SPEC = dataclasses.replace(PRESETS["nano"], num_layers=4, rope_theta=50_000.0, init_std=0.1)


@pytest.mark.parametrize(("spec", "num_shards"), [(SPEC, 1), (SPEC, 3), (dataclasses.replace(SPEC, tied_head=True), 1)])
def test_transformers_loads_it(tmp_path: Path, spec: ModelSpec, num_shards: int) -> None:
    shards = plan_shards(spec, num_shards)
    flats = [build_shard(spec, shard, init_vector(spec, shard)) for shard in shards]
    export_hf(spec, [flat.take() for flat in flats], tmp_path / "model")
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info.values())
    tokens = torch.arange(100).view(2, 50)
    with torch.no_grad():
        difference = compose([flat.module for flat in flats], tokens) - theirs(tokens).logits
    assert float(difference.abs().max()) < 1e-4
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_vectors_that_do_not_fit_leave_no_file(tmp_path: Path) -> None:
    (shard,) = plan_shards(SPEC, 1)
    with pytest.raises(ValueError, match="contiguous float32"):
        export_hf(SPEC, [init_vector(SPEC, shard)[:-1]], tmp_path / "model")
    assert not (tmp_path / "model").exists()
