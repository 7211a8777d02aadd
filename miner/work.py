"""The work of one round in the training thread: batches from the miner's stream, the trace, the counters.

A ``RoundWork`` belongs to the thread that owns its trainer. What leaves the thread are frozen facts: ``WorkDone`` when
the work is wanted, ``Progress`` after each step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from common.model.layout import Vector
from common.spec import InnerSpec
from common.units import Revision, RoundId, Sha256
from miner.schedule import global_step
from miner.trace import TraceStep
from miner.trainer import Samples, StepResult, Trainer

SPEED_STEPS = 31
"""Steps whose median gives the speed."""


class Batches(Protocol):
    """A miner's endless stream of samples in one round."""

    def batch(self, start: int, count: int) -> Samples:
        """Samples ``start`` to ``start + count``, int64 [count, seq_len + 1]."""
        ...


@dataclass(frozen=True)
class Assignment:
    """What to train on."""

    round: RoundId
    base_revision: Revision
    base_sha256: Sha256
    base: Vector
    stream: Batches


@dataclass(frozen=True)
class WorkDone:
    """What a round's training came to so far."""

    round: RoundId
    base_revision: Revision
    base_sha256: Sha256
    local: Vector
    tokens: int
    sample_start: int
    sample_count: int
    """Samples trained on; a step that was left out is not counted, and the trace shows the gap."""
    trace: tuple[TraceStep, ...]

    @property
    def steps(self) -> int:
        return len(self.trace)

    @property
    def next_sample(self) -> int:
        """First sample of the stream behind the work."""
        return self.trace[-1].sample_start + self.trace[-1].samples if self.trace else self.sample_start


@dataclass(frozen=True)
class Progress:
    """What the heartbeat tells of the training thread."""

    round: RoundId | None = None
    round_tokens: int = 0
    round_steps: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    tokens: int = 0
    """Of all rounds since the process started."""
    training_s: float = 0.0
    """The same for the time spent in steps."""
    trouble: str = ""
    """Why the trainer went back or left a step out, last time."""


class RoundWork:
    """Steps on one trainer, round after round."""

    def __init__(self, trainer: Trainer, inner: InnerSpec) -> None:
        self.trainer = trainer
        self.progress = Progress()
        self._inner = inner
        self._speeds: deque[float] = deque(maxlen=SPEED_STEPS)
        self._assignment: Assignment | None = None
        self._trace: list[TraceStep] = []
        self._sample_start = self._next_sample = 0

    @property
    def assigned(self) -> bool:
        return self._assignment is not None

    def begin(self, assignment: Assignment, carried: WorkDone | None = None) -> None:
        """Start a round on its base, or go on from ``carried``: the same round's work from before a restart, whose
        ``local`` is the work ``local − base``."""
        self.trainer.load(assignment.base)
        self._assignment = assignment
        self._trace, self._sample_start, self._next_sample, tokens = [], 0, 0, 0
        if carried is not None:
            self.trainer.resume(assignment.base, carried.local)
            self._trace, tokens = list(carried.trace), carried.tokens
            self._sample_start, self._next_sample = carried.sample_start, carried.next_sample
        self._publish(round=assignment.round, round_tokens=tokens, round_steps=len(self._trace))

    def drop(self) -> None:
        """Forget the round: its work has been settled."""
        self._assignment = None
        self._trace = []
        self._publish(round=None, round_tokens=0, round_steps=0)

    def step(self) -> StepResult:
        """One inner step of the assigned round."""
        assignment = self._required()
        count, first = self._inner.batch_size, self._next_sample
        step = global_step(self._inner, assignment.base_revision, len(self._trace))
        result = self.trainer.step(assignment.stream.batch(first, count), step)
        self._next_sample += count
        if result.taken:
            self._trace.append(TraceStep(step, first, count, result.loss, result.grad_norm))
            self._count(result)
        else:
            self._refuse(result)
        return result

    def done(self) -> WorkDone:
        """The round's work so far; training may go on after it."""
        assignment = self._required()
        return WorkDone(
            round=assignment.round,
            base_revision=assignment.base_revision,
            base_sha256=assignment.base_sha256,
            local=self.trainer.weights(),
            tokens=self.progress.round_tokens,
            sample_start=self._sample_start,
            sample_count=sum(step.samples for step in self._trace),
            trace=tuple(self._trace),
        )

    def _count(self, result: StepResult) -> None:
        self._speeds.append(result.tokens / max(result.seconds, 1e-9))
        self._publish(
            round_tokens=self.progress.round_tokens + result.tokens,
            round_steps=len(self._trace),
            loss=result.loss,
            tokens_per_s=statistics.median(self._speeds),
            tokens=self.progress.tokens + result.tokens,
            training_s=self.progress.training_s + result.seconds,
        )

    def _refuse(self, result: StepResult) -> None:
        """A step that was not taken; after a return to the base the round's work begins anew behind it."""
        trouble = result.went_back or f"step left out: loss {result.loss}, gradient norm {result.grad_norm}"
        self._publish(trouble=trouble)
        if result.went_back:
            self._trace, self._sample_start = [], self._next_sample
            self._publish(round_tokens=0, round_steps=0)

    def _publish(self, **changes: object) -> None:
        self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]  # fields by name

    def _required(self) -> Assignment:
        assert self._assignment is not None, "no round was begun"
        return self._assignment
