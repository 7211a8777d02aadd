"""Inner training of one shard on one device, in the caller's thread. Knows nothing of rounds, network or disk.

Weights, gradients and the optimizer's two vectors are flat float32 in layout order; the model's tensors are views of
them, so that saving, loading and hashing are single copies.

Invariant: weights and moments are finite after every step. A step whose loss or gradient is not finite is not taken:
the state before it *is* the last finite one. Several in a row mean that the weights themselves lead nowhere; then the
trainer goes back to the vector that was last loaded, with fresh moments, and says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from common.model.flat import FlatShard, build_shard
from common.model.layout import Vector
from common.model.loss import training_loss
from common.model.shards import ShardLayers
from common.spec import RunSpec
from miner.adamw import OptimizerState
from miner.optimizer import make_optimizer
from miner.schedule import learning_rate

Samples = npt.NDArray[np.int64]

STUCK_STEPS = 5
"""Steps without a finite result, one after the other, before the trainer goes back to the loaded vector."""
_TINY = 1e-6


@dataclass(frozen=True)
class StepResult:
    """One inner step."""

    loss: float
    """Mean nats per token before the step."""
    grad_norm: float
    """L2 norm before clipping."""
    tokens: int
    seconds: float
    taken: bool
    """False when loss or gradient was not finite: nothing changed."""
    went_back: str
    """Why the trainer returned to the loaded vector; empty when it did not."""


class Trainer:
    """The run's optimizer on one shard. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        spec: RunSpec,
        shard: ShardLayers,
        device: str = "cpu",
        threads: int = 1,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``device``: cpu, cuda or cuda:i. ``threads``: PyTorch's threads of this process. ``now_s``: for durations."""
        assert shard.has_embedding, "it trains whole models"
        assert shard.has_head, "it trains whole models"
        torch.set_num_threads(threads)
        self._inner = spec.inner
        self._device = torch.device(device)
        self._now_s = now_s
        self._flat: FlatShard = build_shard(spec.model, shard, device=device)
        self._optimizer = make_optimizer(spec.inner, self._flat.layout, self._flat.weights, self._flat.grads)
        self._loaded: Vector = self._flat.take()
        self._not_finite = 0

    @property
    def count(self) -> int:
        """Length of the vectors."""
        return self._flat.layout.total

    def load(self, vector: Vector) -> None:
        """Train on from ``vector``, which is also where the trainer goes back to. Keeps the moments."""
        self._flat.replace(vector)
        self._loaded = vector
        self._not_finite = 0

    def resume(self, loaded: Vector, work: Vector) -> None:
        """Train on from ``loaded + work``, with ``loaded`` as the place to go back to."""
        self.load(loaded)
        self._flat.replace(loaded + work)

    def weights(self) -> Vector:
        """A copy of the weights."""
        return self._flat.take()

    def step(self, batch: Samples, global_step: int, warmth: float = 1.0) -> StepResult:
        """One inner step on int64 [batch, seq_len + 1]; on the CPU the overhead over a bare loop is below 2 %.

        ``warmth`` in [0, 1] multiplies the learning rate, see ``common/runlog/restarts.py``."""
        started_s = self._now_s()
        loss, norm = self._gradient(batch)
        taken = math.isfinite(loss) and math.isfinite(norm)
        if taken:
            self._update(norm, warmth * learning_rate(self._inner, global_step))
        went_back = self._after(taken)
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        return StepResult(loss, norm, tokens, self._now_s() - started_s, taken, went_back)

    def optimizer_state(self) -> OptimizerState:
        """A copy of the moments in the host's memory."""
        return self._optimizer.state()

    def restore_optimizer(self, state: OptimizerState | None) -> None:
        """Set the moments, or clear them. Raises ValueError for vectors of another length."""
        self._optimizer.restore(state)

    def _gradient(self, batch: Samples) -> tuple[float, float]:
        """Loss and gradient norm; the gradient is left in the flat vector."""
        tokens = torch.from_numpy(batch).to(self._device, non_blocking=True)
        self._flat.zero_grads()
        with self._precision():
            logits = self._flat.module(tokens[:, :-1])
        loss = training_loss(logits, tokens[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        norm = torch.linalg.vector_norm(self._flat.grads)
        figures: list[float] = torch.stack((loss.detach(), norm)).tolist()
        return figures[0], figures[1]

    def _update(self, norm: float, rate: float) -> None:
        if norm > self._inner.grad_clip:
            self._flat.grads.mul_(self._inner.grad_clip / (norm + _TINY))
        self._optimizer.step(rate)

    def _after(self, taken: bool) -> str:
        """Count steps that were not taken; the reason when it is time to go back, else nothing."""
        self._not_finite = 0 if taken else self._not_finite + 1
        if self._not_finite < STUCK_STEPS:
            return ""
        self.load(self._loaded)
        self.restore_optimizer(None)
        return f"{STUCK_STEPS} steps in a row had no finite loss or gradient: back to the base, with fresh moments"

    def _precision(self) -> AbstractContextManager[object]:
        if self._device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()
