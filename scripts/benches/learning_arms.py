"""The sides that are compared, and one run of one of them. All of it follows from the job: a process needs no more.

one     one machine, at each step the batch of all miners together
alone   one machine, at each step the batch of one miner
many    eight miners and their rounds, with dense (bf16) or sparse (the defaults' densities) deltas
churn   the same eight under churn, until as many tokens are merged
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from common.data.dataset import Dataset, Samples, open_dataset
from common.data.stream import SampleStream, heldout_batches
from common.defaults import Choices, make_spec
from common.identity import KeypairSigner
from common.model.flat import build_shard
from common.model.init import init_vector
from common.model.layout import Vector, weights_hash
from common.model.loss import evaluate
from common.model.shards import plan_shards
from common.spec import RunSpec
from common.units import Hotkey, RoundId
from miner.trainer import Trainer
from scripts.benches.learning_engine import Churn, Run, Tally

Kind = Literal["adamw", "muon"]
MINERS = 8
PRESET = "nano"
LAG_SHARE = 0.1
"""A round's upload and merge take a tenth of the round, during which miners go on training."""
CHURN = Churn(life=100, away=20, slow_share=0.2, late_share=0.1, drip=3)
"""In rounds of 10 steps: a machine lives for ten and is gone for two; one in five is at half speed, one delta in ten
late; what a machine has done is safe three times a round."""
CURVE_SEQUENCES, FINAL_SEQUENCES = 32, 192
CURVE_POINTS = 12


@dataclass(frozen=True)
class Arm:
    """One side of the comparison."""

    name: str
    miners: int
    """0: one machine without rounds, with the batch of all miners."""
    codec: str = "bf16"
    churn: bool = False
    rate_of: str = ""
    """The arm whose learning rate it takes; empty when it is tuned itself."""


ARMS = (
    Arm("one", miners=0),
    Arm("many-dense", MINERS),
    Arm("many-sparse", MINERS, "topk"),
    Arm("churn-dense", MINERS, churn=True, rate_of="many-dense"),
    Arm("churn-sparse", MINERS, "topk", churn=True, rate_of="many-sparse"),
    Arm("alone", miners=1),
)


@dataclass(frozen=True)
class Job:
    """One run."""

    arm: Arm
    seed: int
    rate: float
    steps: int
    """Sequential steps of one machine; the learning rate has fallen when they are over."""
    kind: Kind
    """The inner optimizer."""
    round_steps: int
    """Inner steps of a round."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    job: Job
    loss: float
    """Nats a token on held-out text."""
    curve: tuple[tuple[float, float], ...]
    """(steps, loss) on less of the held-out text."""
    tally: Tally | None
    seconds: float


def spec_of(job: Job, dataset: Dataset) -> RunSpec:
    """The defaults' run of eight miners, with the job's optimizer, rate and lengths."""
    choices = Choices("bench", PRESET, job.seed, MINERS, codec=job.arm.codec, steps=job.round_steps)
    owner = KeypairSigner.from_uri("//Owner").hotkey
    spec = make_spec(choices, 1, owner, (owner,), dataset.id, dataset.index.tokenizer)
    warmup = min(spec.inner.warmup_steps, job.steps // 8)
    inner = dataclasses.replace(spec.inner, kind=job.kind, lr=job.rate, warmup_steps=warmup, decay_steps=job.steps)
    return dataclasses.replace(spec, inner=inner)


def run_job(job: Job, folder: Path) -> Result:
    """Train and measure, on one thread."""
    torch.set_num_threads(1)
    dataset = open_dataset(folder, verify=False)
    spec, started_s = spec_of(job, dataset), time.monotonic()
    curve: list[tuple[float, float]] = []
    weights, tally = init_vector(spec.model, plan_shards(spec.model, 1)[0]), None
    for done, weights, tally in _played(spec, job, dataset):  # noqa: B007 - the last one's is wanted
        if done >= len(curve) * job.steps / CURVE_POINTS:
            curve.append((done, held_out_loss(spec, dataset, weights, CURVE_SEQUENCES)))
    loss = held_out_loss(spec, dataset, weights, FINAL_SEQUENCES)
    return Result(job, loss, tuple(curve), tally, time.monotonic() - started_s)


def held_out_loss(spec: RunSpec, dataset: Dataset, weights: Vector, sequences: int) -> float:
    """Mean over the same sequences for everybody."""
    flat = build_shard(spec.model, plan_shards(spec.model, 1)[0], weights)
    return float(np.mean(evaluate(flat.module, heldout_batches(dataset, sequences, spec.data.seq_len), 8)))


def _played(spec: RunSpec, job: Job, dataset: Dataset) -> Iterator[tuple[float, Vector, Tally | None]]:
    """(sequential steps done, weights, tally) as the run goes on, and at its end."""
    if job.arm.miners <= 1:
        batch = spec.inner.batch_size * (job.arm.miners or MINERS)
        yield from ((float(done), weights, None) for done, weights in _lone(spec, dataset, batch, job.steps))
        return
    run = Run(spec, dataset, job.arm.miners, LAG_SHARE, CHURN if job.arm.churn else None)
    step_tokens = spec.inner.batch_size * spec.data.seq_len * job.arm.miners
    for tally in run.play(job.steps * step_tokens):
        yield tally.tokens_merged / step_tokens, run.weights, tally


def _lone(spec: RunSpec, dataset: Dataset, batch: int, steps: int) -> Iterator[tuple[int, Vector]]:
    """One machine that nobody waits for; its weights every few steps."""
    layers = plan_shards(spec.model, 1)[0]
    trainer, base = Trainer(spec, layers), init_vector(spec.model, layers)
    trainer.load(base)
    stream = SampleStream(dataset, weights_hash(base), RoundId(0), Hotkey("lone"), spec.data.seq_len)
    for step in range(steps):
        trainer.step(_batch(stream, step, batch), step)
        if (step + 1) % max(1, steps // CURVE_POINTS) == 0 or step + 1 == steps:
            yield step + 1, trainer.weights()


def _batch(stream: SampleStream, step: int, count: int) -> Samples:
    return stream.batch(step * count, count)
