"""The learning bench's engine: the same run twice, the tokens that were asked for, machines that die and are late."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import numpy as np
import pytest

from common.data.dataset import Dataset, TokenSequence
from common.data.index import DatasetIndex, TokenFile
from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.loss import evaluate
from common.model.shards import plan_shards
from common.spec import RunSpec
from common.units import Sha256
from scripts.benches.learning_engine import Churn, Run
from tests.support.specs import tiny_spec

MINERS = 4
ROUND_TOKENS = 1024
SPEC: RunSpec = tiny_spec(round=dataclasses.replace(tiny_spec().round, target_tokens=ROUND_TOKENS, quorum_tokens=1))
CHURN = Churn(life=12, away=4, slow_share=0.5, late_share=0.5, drip=3)


def dataset() -> Dataset:
    text = np.frombuffer(b"the bucket brigade empties the pool although every carrier is small. " * 40, dtype=np.uint8)
    half = len(text) // 2
    index = DatasetIndex(1, "bytes", 256, "u1", (TokenFile("train", Sha256("1" * 64), half, 1),))
    train, heldout = (TokenSequence((part,), tuple(accumulate([part.size]))) for part in (text[:half], text[half:]))
    return Dataset(Sha256("0" * 64), index, train, heldout)


DATA = dataset()


def played(tokens: int, churn: Churn | None = None, seed: int = 0) -> Run:
    run = Run(dataclasses.replace(SPEC, seed=seed), DATA, MINERS, 0.25, churn)
    for _ in run.play(tokens):
        pass
    return run


def loss(weights: np.ndarray) -> float:  # type: ignore[type-arg]
    flat = build_shard(SPEC.model, plan_shards(SPEC.model, 1)[0], weights)
    samples = np.stack([DATA.heldout.read(start, 17) for start in range(0, 512, 16)])
    return float(evaluate(flat.module, samples, 8).mean())


@pytest.fixture(scope="module")
def churned() -> Run:
    return played(12 * ROUND_TOKENS, CHURN)


def test_a_run_learns_and_is_the_same_bit_for_bit_again(churned: Run) -> None:
    one, again = churned, played(12 * ROUND_TOKENS, CHURN)
    assert np.array_equal(one.weights, again.weights)
    assert one.tally == again.tally
    before = init_vector(SPEC.model, plan_shards(SPEC.model, 1)[0])
    assert loss(one.weights) < loss(before) - 0.3


def test_without_churn_all_work_is_merged_but_for_what_came_after_the_last_mark() -> None:
    tally = played(4 * ROUND_TOKENS + ROUND_TOKENS // 2).tally
    assert tally.tokens_merged == 4 * ROUND_TOKENS + ROUND_TOKENS // 2
    assert tally.tokens_trained - tally.tokens_merged < ROUND_TOKENS
    assert (tally.rounds, tally.deaths, tally.late, tally.rejected) == (5, 0, 0, 0)


def test_under_churn_as_many_tokens_are_merged_though_machines_die_and_are_late(churned: Run) -> None:
    tally = churned.tally
    assert tally.deaths > 0
    assert tally.late > 0
    assert 12 * ROUND_TOKENS <= tally.tokens_merged <= tally.tokens_trained
