"""The training speed of a machine, measured with real inner steps of the run's model on random tokens.

The production trainer takes the steps. They begin small and grow to the spec's batch, as far as the time allows that
the last ones took: a slow machine is measured with smaller steps, which is said, and never for long. The speed of a
step does not depend on what its tokens are; weights of zero would be too easy for some GPUs, so they are random.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from common.codec.container import encode
from common.codec.params import delta_params
from common.model.layout import Vector, layout_of
from common.model.shards import ShardLayers
from common.spec import RunSpec
from common.units import Revision
from miner.doctor.facts import Machine, Speed
from miner.doctor.machine import resident_bytes
from miner.trainer import Samples, Trainer

SHORT_TOKENS = 128
GROWTH = 4
STEPS = 5
"""Timed steps of the largest size, more where they are quick."""
MOST_STEPS = 31
BLOCK = 1 << 20
"""Random values that the weights repeat, and values of a delta that are really compressed."""

Now = Callable[[], float]
Tell = Callable[[Speed], None]


@dataclass(frozen=True)
class SpeedLimits:
    """Seconds."""

    budget_s: float = 12.0
    """No further step is begun after it."""
    longest_s: float = 90.0
    """No size is tried whose steps might end later."""


def measure_speed(
    spec: RunSpec, shard: ShardLayers, machine: Machine, head: Revision, limits: SpeedLimits, now_s: Now, tell: Tell
) -> None:
    """Blocks. ``tell`` gets what is known after each size, the best last."""
    weights = _weights(layout_of(spec.model, shard).total, spec.model.init_std)  # the base, which the account counts
    before_bytes = _used_bytes(machine, peak=False)
    trainer = Trainer(spec, shard, machine.device, machine.threads, now_s)
    trainer.load(weights)
    encode_s = _encode_s(spec, trainer.count, head, now_s)
    began_s, random = now_s(), np.random.default_rng(0)
    full_tokens = spec.inner.batch_size * spec.data.seq_len
    last: Speed | None = None
    for sequences, length in _sizes(spec):
        tokens = sequences * length
        if last is not None and 2 * tokens / last.tokens_per_s > limits.longest_s - (now_s() - began_s):
            break
        whole, seconds = tokens == full_tokens, list[float]()
        trainer.step(_samples(random, spec, sequences, length), 0)  # compiles kernels, touches memory
        while not seconds or (whole and _goes_on(len(seconds), now_s() - began_s, limits)):
            seconds.append(trainer.step(_samples(random, spec, sequences, length), 0).seconds)
        peak_bytes = _used_bytes(machine, peak=True) - before_bytes if whole else None
        last = Speed(tokens / statistics.median(seconds), len(seconds), tokens, whole, encode_s, peak_bytes)
        tell(last)


def _goes_on(steps: int, passed_s: float, limits: SpeedLimits) -> bool:
    if passed_s >= limits.budget_s:
        return False
    return steps < STEPS or (steps < MOST_STEPS and passed_s < limits.budget_s / 4)


def _sizes(spec: RunSpec) -> Iterator[tuple[int, int]]:
    """(sequences, tokens of each), growing up to the spec's."""
    if spec.data.seq_len > SHORT_TOKENS:
        yield 1, SHORT_TOKENS
    sequences = 1
    while sequences < spec.inner.batch_size:
        yield sequences, spec.data.seq_len
        sequences *= GROWTH
    yield spec.inner.batch_size, spec.data.seq_len


def _samples(random: np.random.Generator, spec: RunSpec, sequences: int, length: int) -> Samples:
    return random.integers(0, spec.model.vocab_size, (sequences, length + 1), dtype=np.int64)


def _weights(count: int, std: float) -> Vector:
    block = np.random.default_rng(1).standard_normal(min(count, BLOCK), dtype=np.float32) * np.float32(std)
    return np.resize(block, count)


def _encode_s(spec: RunSpec, count: int, head: Revision, now_s: Now) -> float:
    """For a whole delta, from a piece of one."""
    values, params = _weights(min(count, BLOCK), 1.0), delta_params(spec.codec, head)
    began_s = now_s()
    encode(values, params)
    return (now_s() - began_s) * count / len(values)


def _used_bytes(machine: Machine, peak: bool) -> int:
    if not machine.on_gpu:
        return resident_bytes(peak)
    return torch.cuda.max_memory_allocated(machine.device) if peak else torch.cuda.memory_allocated(machine.device)
