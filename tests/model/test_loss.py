"""Losses: paired, in nats, independent of how sequences are batched; and the model learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.loss import evaluate, training_loss
from common.model.presets import PRESETS
from common.model.shards import plan_shards

NANO = PRESETS["nano"]
(WHOLE,) = plan_shards(NANO, 1)


def samples(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, 33), dtype=np.int64)


def test_a_model_without_opinion_loses_the_logarithm_of_the_vocabulary() -> None:
    model = build_shard(NANO, WHOLE).module
    losses = evaluate(model, samples(5), batch_size=2)
    assert losses.dtype == np.float64
    assert losses.shape == (5,)
    assert losses == pytest.approx(math.log(256), abs=1e-5)


def test_losses_are_per_sequence_whatever_the_batch() -> None:
    model = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE)).module
    data = samples(7)
    alone = np.concatenate([evaluate(model, data[i : i + 1], batch_size=1) for i in range(7)])
    assert evaluate(model, data, batch_size=3) == pytest.approx(alone, abs=1e-5)
    tokens = torch.from_numpy(data)
    assert training_loss(model(tokens[:, :-1]), tokens[:, 1:]).item() == pytest.approx(alone.mean(), abs=1e-5)


def test_nothing_to_evaluate() -> None:
    model = build_shard(NANO, WHOLE).module
    assert evaluate(model, samples(0), batch_size=2).shape == (0,)


def test_nano_learns_a_repeating_text() -> None:
    flat = build_shard(NANO, WHOLE, init_vector(NANO, WHOLE))
    text = np.frombuffer(b"a bucket brigade empties the pool. " * 8, dtype=np.uint8).astype(np.int64)
    data = np.stack([text[i : i + 49] for i in range(0, 36, 9)])
    optimizer = torch.optim.AdamW(flat.module.parameters(), lr=4e-3)
    tokens = torch.from_numpy(data)
    before = evaluate(flat.module, data, batch_size=8).mean()
    for _ in range(30):
        flat.zero_grads()
        training_loss(flat.module(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
    assert before > 5
    assert evaluate(flat.module, data, batch_size=8).mean() < 1
