"""Write a revision as a folder that ``transformers`` loads as a Llama model: model.safetensors and config.json.

Invariant: the tensors are the shards' vectors, unchanged and in their own order, so exporting rounds nothing. Files
are written beside their final names and renamed, the config last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.errors import OperatorError
from common.files import PUBLIC, atomic_file, write_atomically
from common.model.layout import Shape, Vector, little_endian_bytes, run_layouts
from common.model.safetensors import header_bytes
from common.spec import ModelSpec

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"


def check_folder(folder: Path) -> None:
    """Raise OperatorError when ``folder`` is no folder and can't be made one, since a file is in its way."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise OperatorError(f"--out {folder}: {there} is no folder; name one, new or old")


def export_hf(spec: ModelSpec, shards: Sequence[Vector], folder: Path) -> None:
    """Write the model whose shards, in order, have these flat weights. Raises ValueError for misfit vectors."""
    parts = list(_parts(spec, shards))
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / WEIGHTS_NAME, sum(memoryview(part).nbytes for part in parts), PUBLIC) as file:
        file.writelines(parts)
    write_atomically(folder / CONFIG_NAME, json.dumps(hf_config(spec), indent=2).encode("ascii") + b"\n", PUBLIC)


def hf_config(spec: ModelSpec) -> dict[str, Any]:
    """The ``config.json`` of a Llama model; the rotary base stands where old and where new versions look for it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.hidden_size // spec.num_heads,
        "max_position_embeddings": spec.max_seq_len,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": spec.init_std,
        "tie_word_embeddings": spec.tied_head,
        "torch_dtype": "float32",
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _parts(spec: ModelSpec, shards: Sequence[Vector]) -> Iterator[bytes | memoryview]:
    layouts = run_layouts(spec, len(shards))
    shapes: dict[str, Shape] = {}
    for layout, vector in zip(layouts, shards, strict=True):
        layout.check(vector)
        shapes |= {slot.name: slot.shape for slot in layout.slots}
    yield header_bytes(shapes)
    yield from (little_endian_bytes(vector) for vector in shards)
