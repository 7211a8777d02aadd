"""Named model sizes.

``nano`` is sized for two CPU cores and for the codec: its parameters fill 206 chunks of 4,096 but for 128 values, so
hardly a record of a delta is wasted on padding. Its ``init_std`` is twice the usual: measured on the default corpus,
the held-out loss after 200 steps of 8 × 128 is 2.11 instead of 2.19 nats a token.
"""

from __future__ import annotations

from common.errors import OperatorError
from common.spec import ModelSpec

BYTE_VOCAB = 256
SUBWORD_VOCAB = 32_768  # leaves room for a subword tokenizer; a multiple of 128, as matrix units like it

PRESETS: dict[str, ModelSpec] = {
    "nano": ModelSpec(
        vocab_size=BYTE_VOCAB,
        hidden_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=1,
        ffn_size=568,
        max_seq_len=256,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied_head=False,
        init_std=0.04,
        init_seed=0,
    ),
    "125m": ModelSpec(
        vocab_size=SUBWORD_VOCAB,
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        ffn_size=2048,
        max_seq_len=2048,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied_head=False,
        init_std=0.02,
        init_seed=0,
    ),
    "1b": ModelSpec(
        vocab_size=SUBWORD_VOCAB,
        hidden_size=2048,
        num_layers=20,
        num_heads=16,
        num_kv_heads=4,
        ffn_size=5632,
        max_seq_len=4096,
        rope_theta=500_000.0,
        norm_eps=1e-5,
        tied_head=False,
        init_std=0.02,
        init_seed=0,
    ),
}


def preset(name: str) -> ModelSpec:
    """The model named ``name``. Raises OperatorError with the names there are."""
    if name not in PRESETS:
        raise OperatorError(f"unknown preset {name[:40]!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
