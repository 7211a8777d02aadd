"""Continuous training in the training thread: one vector x, and the trace of the steps since the last settled mark.

A *mark* is a point of the training that a submission is made at: frozen facts, and ``moved = x − base`` there. Training
goes on after it. When the plan of a committed round has settled a mark, ``rebase`` moves x onto the new revision
without what the mark held, ``x ← new + (x − base − moved)``, and drops its steps; with no mark all of the work comes
along. So every step's work is in exactly one place: in x, or in a settled mark.

Marks of one base share their beginning, so a later one holds all of an earlier one. After the trainer has gone back to
the base the next *life* begins: a mark of an earlier life may still be settled, but x holds nothing of it any more.

A ``RoundWork`` belongs to the thread that owns its trainer. What leaves the thread are frozen facts: ``Mark`` when the
work is wanted, ``Progress`` after each step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from common.model.layout import Vector
from common.runlog.restarts import Rewarming
from common.spec import InnerSpec
from common.units import Revision, RoundId, Sha256
from miner.adamw import OptimizerState
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
class Base:
    """A revision that the miner trains on."""

    revision: Revision
    sha256: Sha256
    """Hash of the whole revision."""
    weights: Vector


@dataclass(frozen=True)
class Stream:
    """Where the samples come from: the stream of ``round`` on ``base_revision``."""

    round: RoundId
    base_revision: Revision
    batches: Batches
    rewarming: Rewarming | None = None
    """How the learning rate rises after the last restart before the round."""


@dataclass(frozen=True)
class Work:
    """What was trained since the last settled mark."""

    moved: Vector
    """x − base."""
    trace: tuple[TraceStep, ...]
    tokens: int
    life: int
    """How often the trainer had gone back before."""

    @property
    def steps(self) -> int:
        return len(self.trace)

    @property
    def reach(self) -> tuple[int, int]:
        """Of two works on one base the one with the larger reach is the later one."""
        return self.life, self.steps

    def without(self, mark: Work | None) -> Work:
        """What was trained after ``mark``, on whatever base comes next."""
        if mark is None or mark.life != self.life:
            return self
        return Work(self.moved - mark.moved, self.trace[mark.steps :], self.tokens - mark.tokens, self.life)


@dataclass(frozen=True)
class Mark:
    """A point of the training: the base and all work on it so far."""

    base: Base
    work: Work


@dataclass(frozen=True)
class Progress:
    """What the rest of the process sees of the training thread."""

    steps: int = 0
    """Since the last settled mark."""
    work_tokens: int = 0
    """The same in tokens."""
    life: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    tokens: int = 0
    """Since the process started."""
    training_s: float = 0.0
    """The same for the time spent in steps."""
    lost_tokens: int = 0
    """The same for work that was given up when the trainer went back."""
    trouble: str = ""
    """Why the trainer went back or left a step out, last time."""


class RoundWork:
    """Steps on one trainer, through all rounds."""

    def __init__(self, trainer: Trainer, inner: InnerSpec) -> None:
        self.trainer = trainer
        self.progress = Progress()
        self._inner = inner
        self._speeds: deque[float] = deque(maxlen=SPEED_STEPS)
        self._base: Base | None = None
        self._stream: Stream | None = None
        self._next_sample = 0
        self._trace: list[TraceStep] = []

    @property
    def assigned(self) -> bool:
        """Whether there is something to train on."""
        return self._base is not None and self._stream is not None

    def begin(self, base: Base, stream: Stream, carried: Work | None = None) -> None:
        """Start on ``base``, or go on from the work that the disk held."""
        self._base, self._trace = base, []
        if carried is None:
            self.trainer.load(base.weights)
        else:
            self.trainer.resume(base.weights, carried.moved)
            self._trace = list(carried.trace)
        self.restream(stream)
        self._count_work(carried.tokens if carried else 0, carried.life if carried else self.progress.life)

    def restream(self, stream: Stream) -> None:
        """Take the samples of another round from here on."""
        name = (stream.round, stream.base_revision)
        self._next_sample = max((step.next_sample for step in self._trace if step.stream == name), default=0)
        self._stream = stream

    def step(self) -> StepResult:
        """One inner step."""
        base, stream = self._required()
        count, first = self._inner.batch_size, self._next_sample
        step = global_step(self._inner, base.revision, len(self._trace))
        result = self.trainer.step(stream.batches.batch(first, count), step, self._warmth(stream.rewarming))
        self._next_sample += count
        if result.taken:
            figures = (result.loss, result.grad_norm)
            self._trace.append(TraceStep(stream.round, stream.base_revision, step, first, count, *figures))
            self._count(result)
        else:
            self._refuse(result)
        return result

    def _warmth(self, rewarming: Rewarming | None) -> float:
        if rewarming is None:
            return 1.0
        return rewarming.factor(sum(step.round >= rewarming.round for step in self._trace))

    def mark(self) -> Mark:
        """The work so far; training may go on after it."""
        base, _ = self._required()
        moved = self.trainer.weights()
        moved -= base.weights
        return Mark(base, Work(moved, tuple(self._trace), self.progress.work_tokens, self.progress.life))

    def rebase(self, base: Base, settled: Work | None) -> OptimizerState:
        """Move the work that ``settled``, a mark of the present base, does not hold onto ``base``. Returns the
        optimizer's state as of now. Besides that copy it costs the thread a few passes over vectors, and no more.
        """
        old, _ = self._required()
        rest = self.trainer.weights()
        rest -= old.weights
        tokens = self.progress.work_tokens
        if settled is not None and settled.life == self.progress.life:
            rest -= settled.moved
            self._trace, tokens = self._trace[settled.steps :], tokens - settled.tokens
        self.trainer.resume(base.weights, rest)
        self._base = base
        self._count_work(tokens, self.progress.life)
        return self.trainer.optimizer_state()

    def give_up(self, why: str, mark: Mark) -> None:
        """Go back to the base with fresh moments: the work of ``mark`` is no good, nor what was trained on it.

        Nothing happens when another life has begun since, as after a rollback: it holds none of that work.
        """
        base, _ = self._required()
        if mark.work.life != self.progress.life:
            return
        self.trainer.load(base.weights)
        self.trainer.restore_optimizer(None)
        self._lose(why)

    def drop(self, why: str, fresh: bool) -> None:
        """The run went back to another revision: the work is void; ``fresh``: the moments are too."""
        base, _ = self._required()
        self.trainer.load(base.weights)
        if fresh:
            self.trainer.restore_optimizer(None)
        self._lose(why)

    def _count(self, result: StepResult) -> None:
        self._speeds.append(result.tokens / max(result.seconds, 1e-9))
        self._publish(
            steps=len(self._trace),
            work_tokens=self.progress.work_tokens + result.tokens,
            loss=result.loss,
            tokens_per_s=statistics.median(self._speeds),
            tokens=self.progress.tokens + result.tokens,
            training_s=self.progress.training_s + result.seconds,
        )

    def _refuse(self, result: StepResult) -> None:
        """A step that was not taken; after a return to the base the work begins anew."""
        if result.went_back:
            self._lose(result.went_back)
        else:
            self._publish(trouble=f"step left out: loss {result.loss}, gradient norm {result.grad_norm}")

    def _lose(self, why: str) -> None:
        lost = self.progress.work_tokens
        self._publish(trouble=f"{why}; {lost} tokens of work are lost", lost_tokens=self.progress.lost_tokens + lost)
        self._trace = []
        self._count_work(0, self.progress.life + 1)

    def _count_work(self, tokens: int, life: int) -> None:
        self._publish(steps=len(self._trace), work_tokens=tokens, life=life)

    def _publish(self, **changes: object) -> None:
        self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]  # fields by name

    def _required(self) -> tuple[Base, Stream]:
        assert self._base is not None, "nothing was begun"
        assert self._stream is not None, "nothing was begun"
        return self._base, self._stream
