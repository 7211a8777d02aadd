"""Trying deltas on data: losses with and without each accepted delta, on the same sequences. Runs in a worker thread.

One set of model shards serves all evaluations, their weights are replaced in place; nothing is allocated for each
miner but one vector. Assigned sequences come from the ranges that the manifest names, evenly spread over all of them;
unseen ones are drawn from the hash of the plan, which nobody knew before the freeze.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from common.codec.container import decode
from common.codec.params import F32, delta_params
from common.data.dataset import Dataset, Samples
from common.data.stream import SampleStream, heldout_batches, unseen_batch
from common.errors import Rejected
from common.model.flat import build_shard
from common.model.llama import compose
from common.model.loss import Losses, evaluate
from common.model.shards import plan_shards
from common.records import Manifest, SampleRange
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId
from validator.scoring.policy import Drops

HELDOUT_SEQUENCES = 64
BATCH_TOKENS = 4096
Weights = Mapping[ShardId, F32]
"""The flat weights of every shard."""
Place = tuple[ShardId, Hotkey, RoundId]
"""Names a member of a plan."""


@dataclass(frozen=True)
class Stream:
    """A part of a miner's stream of one round, whose base had this revision hash."""

    base_sha256: Sha256
    part: SampleRange


@dataclass(frozen=True)
class Trial:
    """One accepted delta to be tried."""

    member: PlanMember
    streams: tuple[Stream, ...]
    """What it was trained on."""
    body: bytes


def place_of(member: PlanMember) -> Place:
    """A plan names nobody twice at one place."""
    return member.shard, member.hotkey, member.round


class Evaluator:
    """Losses of this run's model on this run's data. Threads take turns, each of which loads what it needs."""

    def __init__(self, spec: RunSpec, dataset: Dataset, device: str = "cpu") -> None:
        self._spec = spec
        self._dataset = dataset
        self._device = device
        self._turn = threading.Lock()
        layers = plan_shards(spec.model, spec.num_shards)
        self._shards = [build_shard(spec.model, shard, device=device) for shard in layers]
        self._heldout = heldout_batches(dataset, HELDOUT_SEQUENCES, spec.data.seq_len)
        self._batch = max(1, BATCH_TOKENS // spec.data.seq_len)

    def heldout_loss(self, weights: Weights) -> float:
        """Mean nats per token on the held-out text; infinite when the model's output is not finite."""
        with self._turn:
            self._load(weights)
            loss = float(self._losses(self._heldout).mean())
        return loss if np.isfinite(loss) else float("inf")

    def heldout_alone(self, base: Weights, member: PlanMember, body: bytes) -> float:
        """Held-out loss of the base with this one delta, as ``heldout_loss``. Raises the decoder's ``Rejected``."""
        with self._turn:
            self._load(base)
            self._apply(base, member, body)
            loss = float(self._losses(self._heldout).mean())
        return loss if np.isfinite(loss) else float("inf")

    def drops(self, base: Weights, plan_sha256: Sha256, trials: Sequence[Trial]) -> dict[Place, Drops]:
        """The paired drops of every trial; late deltas too are tried on the plan's base, which they were added to."""
        if not trials:
            return {}
        unseen = unseen_batch(self._dataset, plan_sha256, self._spec.scoring.unseen_sequences, self._spec.data.seq_len)
        with self._turn:
            self._load(base)
            unseen_base = self._losses(unseen)
        return {place_of(trial.member): self._try(base, trial, unseen, unseen_base) for trial in trials}

    def _try(self, base: Weights, trial: Trial, unseen: Samples, unseen_base: Losses) -> Drops:
        """One turn: a merge that waits to evaluate its result comes in between two trials."""
        assigned = self._assigned(trial)
        with self._turn:
            self._load(base)
            assigned_base = self._losses(assigned)
            self._apply(base, trial.member, trial.body)
            return Drops(_drops(assigned_base, self._losses(assigned)), _drops(unseen_base, self._losses(unseen)))

    def _assigned(self, trial: Trial) -> Samples:
        total = sum(stream.part.count for stream in trial.streams)
        wanted = min(self._spec.scoring.assigned_sequences, total)
        return np.stack([self._sample(trial, i * total // wanted) for i in range(wanted)])

    def _sample(self, trial: Trial, index: int) -> Samples:
        """The ``index``-th of all samples that the delta was trained on."""
        for stream in trial.streams:
            if index < stream.part.count:
                drawn = SampleStream(
                    self._dataset,
                    stream.base_sha256,
                    stream.part.round,
                    trial.member.hotkey,
                    self._spec.data.seq_len,
                )
                return drawn.sample(stream.part.start + index)
            index -= stream.part.count
        raise IndexError(f"the delta was trained on {index} samples fewer")

    def _apply(self, base: Weights, member: PlanMember, body: bytes) -> None:
        """The base with this delta as the plan merges it: clipped, at full weight."""
        params = delta_params(self._spec.codec, member.base_revision)
        values = decode(body, expect=params, count=len(base[member.shard]))
        values *= np.float32(member.scale / member.weight)
        values += base[member.shard]
        self._load_shard(member.shard, values)

    def _load(self, weights: Weights) -> None:
        for shard, vector in weights.items():
            self._load_shard(shard, vector)

    def _load_shard(self, shard: ShardId, vector: F32) -> None:
        self._shards[shard].replace(vector)

    def _losses(self, samples: Samples) -> Losses:
        forward: Callable[[torch.Tensor], torch.Tensor] = partial(compose, [flat.module for flat in self._shards])
        return evaluate(forward, samples, self._batch, self._device)


def read_trials(
    members: Sequence[PlanMember],
    manifests: Mapping[Place, Manifest],
    hashes: Mapping[Revision, Sha256],
    read: Callable[[PlanMember], bytes],
) -> list[Trial]:
    """The accepted members whose manifest and bytes are at hand; one that is gone is not tried.

    ``hashes`` are those of the revisions; samples of a stream that nobody knows say nothing.
    """
    trials = []
    for member in members:
        manifest = manifests.get(place_of(member))
        if member.decision != "accepted" or manifest is None:
            continue
        known = [part for part in manifest.samples if part.base_revision in hashes]
        streams = tuple(Stream(hashes[part.base_revision], part) for part in known)
        try:
            trials += [Trial(member, streams, read(member))] if streams else []
        except Rejected:
            continue  # deleted or damaged after the merge: `brigade run verify` names it; there is nothing to try
    return trials


def _drops(before: Losses, after: Losses) -> tuple[float, ...]:
    """Paired; a loss that is not finite counts as a rise of ten nats, so that it can't be averaged away."""
    return tuple(float(drop) if np.isfinite(drop) else -10.0 for drop in before - after)
