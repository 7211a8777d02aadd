"""Marks, submissions and a trainer of a few values, for tests of the accounting without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from common.identity import KeypairSigner
from common.merge.account import Account
from common.model.layout import Vector
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, Uid, sha256_hex
from miner.adamw import OptimizerState
from miner.delta import Outstanding, Submission, build
from miner.state import StateFolder
from miner.trace import TraceStep
from miner.trainer import Samples, StepResult
from miner.work import Base, Mark, Work
from tests.support.specs import tiny_spec

SIGNER = KeypairSigner.from_uri("//Miner0")
SPEC: RunSpec = tiny_spec()
COUNT = 48
TOKENS = SPEC.inner.batch_size * SPEC.data.seq_len
"""Of one step."""


def noise(seed: int, size: float = 1e-3, count: int = COUNT) -> Vector:
    return (np.random.default_rng(seed).standard_normal(count) * size).astype(np.float32)


def base_of(revision: int, count: int = COUNT) -> Base:
    return Base(Revision(revision), sha256_hex(f"revision {revision}".encode()), noise(revision, 1.0, count))


def work(moved: Vector, steps: int = 4, round_id: int = 3, revision: int = 1, life: int = 0) -> Work:
    size = SPEC.inner.batch_size
    trace = [TraceStep(RoundId(round_id), Revision(revision), i, size * i, size, 4.0, 1.0) for i in range(steps)]
    return Work(moved, tuple(trace), steps * TOKENS, life)


def outstanding(
    done: Work,
    account: Account | None = None,
    round_id: int = 3,
    revision: int = 1,
    final: bool = True,
    spec: RunSpec = SPEC,
) -> Outstanding:
    """A submission of ``done``."""
    count = len(done.moved)
    mark = Mark(base_of(revision, count), done)
    return build(spec, account or Account.empty(count), mark, RoundId(round_id), final, SIGNER)


def place(sent: Submission, decision: str = "accepted", code: str = "", delta: Sha256 | None = None) -> PlanMember:
    """What a plan says of it; with ``delta`` of another one instead."""
    manifest, accepted = sent.manifest, decision == "accepted"
    usual = {"accepted": "", "rejected": "norm_too_large", "deferred": "not_uploaded"}
    return PlanMember(
        shard=manifest.shard,
        hotkey=Hotkey(SIGNER.hotkey),
        round=manifest.round,
        base_revision=manifest.base_revision,
        uid=Uid(1),
        registered_block=1,
        delta=replace(manifest.delta, sha256=delta) if delta else manifest.delta,
        manifest_sha256=sent.record.sha256,
        tokens_claimed=manifest.tokens,
        tokens=manifest.tokens if accepted else 0,
        decision=decision,  # type: ignore[arg-type]
        code=code or usual[decision],
        reason="as the test says",
        weight=float(manifest.tokens) if accepted else 0.0,
        scale=manifest.tokens / 2 if accepted else 0.0,
    )


def folder(path: Path, spec: RunSpec = SPEC, hotkey: Hotkey = SIGNER.hotkey, count: int = COUNT) -> StateFolder:
    return StateFolder(path, spec, hotkey, count)


class FewValues:
    """A trainer whose steps add noise."""

    def __init__(self, count: int = COUNT) -> None:
        self._x = np.zeros(count, dtype=np.float32)
        self._steps = 0

    def load(self, vector: Vector) -> None:
        self._x = vector.copy()

    def resume(self, loaded: Vector, moved: Vector) -> None:
        self._x = loaded + moved

    def weights(self) -> Vector:
        return self._x.copy()

    def step(self, batch: Samples, global_step: int, warmth: float = 1.0) -> StepResult:
        self._steps += 1
        self._x = self._x + noise(1000 + self._steps, 1e-3, len(self._x))
        return StepResult(4.0, 1.0, TOKENS, 1.0, True, "")

    def optimizer_state(self) -> OptimizerState:
        return OptimizerState(np.zeros_like(self._x), np.zeros_like(self._x), self._steps)

    def restore_optimizer(self, state: OptimizerState | None) -> None:
        pass


class NoBatches:
    """A stream whose batches nobody looks at."""

    def batch(self, start: int, count: int) -> Samples:
        return np.zeros((count, SPEC.data.seq_len + 1), dtype=np.int64)
