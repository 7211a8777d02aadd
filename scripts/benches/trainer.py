"""What the miner's training thread costs: its tokens a second over those of a bare PyTorch loop, side by side.

Both train the same model on batches of the same size with the same optimizer on one thread, in turns, within one
process; each pair of turns gives a ratio, and the order within a pair alternates. The miner's side is all of it:
worker, sample stream, trace, counters, trainer. The bare side's batches are ready-made and its AdamW is PyTorch's own;
Muon is ours on both sides, since PyTorch's rounds to bfloat16, which costs a CPU more than it saves.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from common.data.corpus import stdlib_corpus
from common.data.dataset import Dataset, open_dataset
from common.data.prepare import prepare
from common.data.stream import SampleStream
from common.data.tokenizer import tokenizer_named
from common.defaults import Choices, make_spec
from common.identity import KeypairSigner
from common.model.flat import FlatShard, build_shard
from common.model.init import init_vector
from common.model.layout import Vector, weights_hash
from common.model.loss import training_loss
from common.model.shards import plan_shards
from common.spec import RunSpec
from common.units import Revision, RoundId
from miner.optimizer import make_optimizer
from miner.schedule import learning_rate
from miner.trainer import Trainer
from miner.work import Base, RoundWork, Stream
from miner.worker import Worker

Kind = Literal["adamw", "muon"]
KINDS: tuple[Kind, ...] = ("adamw", "muon")
GOAL = 0.98
READY_BATCHES = 8
HEARTBEAT_S = 1.0
Update = Callable[[float], None]


def main(arguments: Sequence[str]) -> None:
    """``scripts/bench trainer``."""
    parser = argparse.ArgumentParser("scripts/bench trainer", description=__doc__)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--pairs", type=int, default=50, help="pairs of turns")
    parser.add_argument("--seconds", type=float, default=1.2, help="length of a turn")
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(_machine())
    with tempfile.TemporaryDirectory() as folder:
        prepare(stdlib_corpus(), tokenizer_named("bytes"), Path(folder))
        dataset = open_dataset(Path(folder), verify=False)
        for kind in (kind for kind in KINDS if kind in parsed.kinds):
            spec = _spec(parsed.preset, kind, dataset)
            print(asyncio.run(_compare(spec, dataset, parsed.pairs, parsed.seconds)), flush=True)


def _machine() -> str:
    cpu = next((x.split(":")[1] for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?")
    return f"{cpu.strip()}, one thread; Python {platform.python_version()}, PyTorch {torch.__version__}"


def _spec(preset: str, kind: Kind, dataset: Dataset) -> RunSpec:
    owner = KeypairSigner.from_uri("//Owner").hotkey
    choices = Choices(run="bench", preset=preset, seed=0, miners=1)
    spec = make_spec(choices, 1, owner, (owner,), dataset.id, dataset.index.tokenizer)
    return dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, kind=kind))


@dataclass(frozen=True)
class Speed:
    """Of one turn, in tokens a second: by the clock, and of the process's CPU time, which others' load spares."""

    clock: float
    cpu: float

    def over(self, other: Speed) -> Speed:
        return Speed(self.clock / other.clock, self.cpu / other.cpu)


class _Turn:
    """Takes the time of a turn."""

    def __init__(self) -> None:
        self._clock_s, self._cpu_s = time.perf_counter(), time.process_time()

    @property
    def passed_s(self) -> float:
        return time.perf_counter() - self._clock_s

    def speed(self, tokens: int) -> Speed:
        return Speed(tokens / self.passed_s, tokens / (time.process_time() - self._cpu_s))


async def _compare(spec: RunSpec, dataset: Dataset, pairs: int, turn_s: float) -> str:
    layers = plan_shards(spec.model, 1)[0]
    weights = init_vector(spec.model, layers)
    stream = _stream(spec, dataset, weights)
    worker = Worker(lambda: RoundWork(Trainer(spec, layers), spec.inner))
    worker.start()
    base = Base(Revision(0), weights_hash(weights), weights)
    await worker.call(lambda work: work.begin(base, Stream(RoundId(0), Revision(0), stream)))
    bare = _Bare(spec, stream, weights)
    await _miners_turn(worker, turn_s)
    bare.turn(turn_s)
    speeds: list[tuple[Speed, Speed]] = []
    for pair in range(pairs):
        first = await _miners_turn(worker, turn_s) if pair % 2 == 0 else None
        other = bare.turn(turn_s)
        speeds.append((first or await _miners_turn(worker, turn_s), other))
    await worker.stop()
    return _told(spec, speeds)


async def _miners_turn(worker: Worker, turn_s: float) -> Speed:
    """The whole path, with a look at the progress as often as a heartbeat takes one."""
    before, turn = worker.progress().tokens, _Turn()
    await worker.train(on=True)
    while (left_s := turn_s - turn.passed_s) > 0:
        await asyncio.sleep(min(HEARTBEAT_S, left_s))
        worker.progress()
    await worker.train(on=False)
    return turn.speed(worker.progress().tokens - before)


class _Bare:
    """The loop that one would write without Brigade."""

    def __init__(self, spec: RunSpec, stream: SampleStream, weights: Vector) -> None:
        self._spec, self._steps = spec, 0
        self._flat: FlatShard = build_shard(spec.model, plan_shards(spec.model, 1)[0], weights)
        count = spec.inner.batch_size
        self._batches = [torch.from_numpy(stream.batch(i * count, count)) for i in range(READY_BATCHES)]
        self._update = _pytorch_adamw(spec, self._flat) if spec.inner.kind == "adamw" else _muon(spec, self._flat)

    def turn(self, turn_s: float) -> Speed:
        """As many steps as fit."""
        tokens, turn = 0, _Turn()
        while turn.passed_s < turn_s:
            tokens += self._step(self._batches[self._steps % READY_BATCHES])
        return turn.speed(tokens)

    def _step(self, batch: Tensor) -> int:
        self._flat.zero_grads()
        loss = training_loss(self._flat.module(batch[:, :-1]), batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        torch.nn.utils.clip_grad_norm_(self._flat.module.parameters(), self._spec.inner.grad_clip)
        self._update(learning_rate(self._spec.inner, self._steps))
        self._steps += 1
        return batch.shape[0] * (batch.shape[1] - 1)


def _pytorch_adamw(spec: RunSpec, flat: FlatShard) -> Update:
    inner, parameters = spec.inner, list(flat.module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": inner.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(inner.beta1, inner.beta2), eps=inner.eps, fused=True)

    def update(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()

    return update


def _muon(spec: RunSpec, flat: FlatShard) -> Update:
    return make_optimizer(spec.inner, flat.layout, flat.weights, flat.grads).step


def _stream(spec: RunSpec, dataset: Dataset, weights: Vector) -> SampleStream:
    owner = KeypairSigner.from_uri("//Miner").hotkey
    return SampleStream(dataset, weights_hash(weights), RoundId(0), owner, spec.data.seq_len)


def _told(spec: RunSpec, speeds: Sequence[tuple[Speed, Speed]]) -> str:
    ratios = [mine.over(bare) for mine, bare in speeds]
    mine, bare = (statistics.median(speed.clock for speed in side) for side in zip(*speeds, strict=True))
    verdict = "holds" if statistics.median(ratio.clock for ratio in ratios) >= GOAL else "MISSED"
    return "\n".join(
        (
            f"{spec.inner.kind}, {spec.inner.batch_size} × {spec.data.seq_len} tokens a step: "
            f"miner {mine:.0f} tokens/s, bare loop {bare:.0f}",
            f"  ratio by the clock     {_spread([ratio.clock for ratio in ratios])}; at least {GOAL}: {verdict}",
            f"  ratio by CPU seconds   {_spread([ratio.cpu for ratio in ratios])}",
        )
    )


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    extremes = f"all {min(ratios):.3f} to {max(ratios):.3f}"
    return f"{middle:.3f} (median of {len(ratios)} pairs, quartiles {low:.3f} to {high:.3f}, {extremes})"


if __name__ == "__main__":
    main(sys.argv[1:])
