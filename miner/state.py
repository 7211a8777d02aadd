"""What a miner keeps on disk, so that a kill at any instruction loses at most the inner steps of one round.

    memory.safetensors    after each round: residual, AdamW moments, and the round they are settled up to
    pending.safetensors   before an upload: target, delta bytes, signed manifest
    progress.safetensors  on an orderly stop in a round: the work so far and its trace

Each file is written whole beside its place, synced and renamed, and names the run, the spec and the hotkey. Order
matters: the memory that settles a round is written before the round's pending and progress go, and a pending of a
settled round counts for nothing, so a submission is settled exactly once. A file that is damaged or another run's is
set aside (``.bad``) and said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from loguru import logger
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from common.errors import Rejected, SetupError
from common.files import atomic_file, lock_file
from common.merge.feedback import Feedback
from common.model.layout import Vector
from common.spec import RunSpec, spec_hash
from common.units import Hotkey, Revision, RoundId, Sha256
from miner.adamw import OptimizerState
from miner.delta import Submission, reopen
from miner.trace import TraceStep
from miner.work import WorkDone

T = TypeVar("T")
Tensors = Mapping[str, npt.NDArray[Any]]
Facts = Mapping[str, str]
NO_ROUND = -1


@dataclass(frozen=True)
class Memory:
    """What lives from round to round."""

    feedback: Feedback
    optimizer: OptimizerState
    settled_round: int
    """Newest round whose outcome is in the residual; ``NO_ROUND`` at the start."""


class StateFolder:
    """The state of one hotkey in one run, for vectors of ``count`` values."""

    def __init__(self, folder: Path, spec: RunSpec, hotkey: Hotkey, count: int) -> None:
        self._folder = folder
        self._spec = spec
        self._count = count
        self._owner = {"schema": "1", "run": spec.run, "spec": spec_hash(spec), "hotkey": hotkey}
        folder.mkdir(parents=True, exist_ok=True)

    def load_memory(self) -> Memory | None:
        return self._load("memory", self._memory)

    def save_memory(self, memory: Memory) -> None:
        tensors: Tensors = {
            "residual": memory.feedback.residual,
            "first": memory.optimizer.first,
            "second": memory.optimizer.second,
        }
        facts = {"settled_round": str(memory.settled_round), "optimizer_steps": str(memory.optimizer.steps)}
        self._save("memory", tensors, facts)

    def load_pending(self) -> Submission | None:
        return self._load("pending", self._pending)

    def save_pending(self, sent: Submission) -> None:
        tensors: Tensors = {"target": sent.target, "delta": np.frombuffer(sent.delta, dtype=np.uint8)}
        facts = {"manifest": json.dumps(sent.record.to_json()), "cap_norm": repr(sent.cap_norm)}
        self._save("pending", tensors, facts)

    def load_progress(self) -> WorkDone | None:
        """The work of an interrupted round; its ``local`` is the work ``local − base``."""
        return self._load("progress", self._progress)

    def save_progress(self, done: WorkDone) -> None:
        """``done.local`` must hold ``local − base``."""
        trace = np.array([(s.global_step, s.sample_start, s.samples) for s in done.trace], dtype=np.int64)
        figures = np.array([(s.loss, s.grad_norm) for s in done.trace], dtype=np.float32)
        tensors: Tensors = {"work": done.local, "trace": trace.reshape(-1, 3), "figures": figures.reshape(-1, 2)}
        facts = {name: str(getattr(done, name)) for name in _PROGRESS_NUMBERS} | {"base_sha256": done.base_sha256}
        self._save("progress", tensors, facts)

    def drop_round(self) -> None:
        """Forget pending and progress: their round is in the memory."""
        for name in ("pending", "progress"):
            self._path(name).unlink(missing_ok=True)

    def drop_progress(self) -> None:
        self._path("progress").unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _save(self, name: str, tensors: Tensors, facts: Facts) -> None:
        data = to_safetensors(
            {key: np.ascontiguousarray(value) for key, value in tensors.items()}, {**self._owner, **facts}
        )
        with atomic_file(self._path(name), len(data)) as file:
            file.write(data)

    def _load(self, name: str, build: Callable[[Tensors, Facts], T]) -> T | None:
        path = self._path(name)
        if not path.exists():
            return None
        try:
            tensors, facts = _read(path)
            self._check_owner(facts)
            return build(tensors, facts)
        except (KeyError, ValueError, SafetensorError, Rejected) as error:
            aside = path.with_suffix(".bad")
            path.replace(aside)
            logger.warning("{} can't be used ({}); it is set aside as {}", path, error, aside)
            return None

    def _check_owner(self, facts: Facts) -> None:
        for name, value in self._owner.items():
            if facts.get(name) != value:
                raise ValueError(f"it belongs to {name} {facts.get(name)}, not {value}")

    def _memory(self, tensors: Tensors, facts: Facts) -> Memory:
        residual, first, second = (_vector(tensors, name, self._count) for name in ("residual", "first", "second"))
        optimizer = OptimizerState(first, second, int(facts["optimizer_steps"]))
        return Memory(Feedback(residual), optimizer, int(facts["settled_round"]))

    def _pending(self, tensors: Tensors, facts: Facts) -> Submission:
        target = _vector(tensors, "target", self._count)
        delta = tensors["delta"].astype(np.uint8).tobytes()
        return reopen(self._spec, json.loads(facts["manifest"]), target, delta, float(facts["cap_norm"]))

    def _progress(self, tensors: Tensors, facts: Facts) -> WorkDone:
        numbers = {name: int(facts[name]) for name in _PROGRESS_NUMBERS}
        rows = zip(tensors["trace"].tolist(), tensors["figures"].tolist(), strict=True)
        return WorkDone(
            round=RoundId(numbers["round"]),
            base_revision=Revision(numbers["base_revision"]),
            base_sha256=Sha256(facts["base_sha256"]),
            local=_vector(tensors, "work", self._count),
            tokens=numbers["tokens"],
            sample_start=numbers["sample_start"],
            sample_count=numbers["sample_count"],
            trace=tuple(TraceStep(*integers, *figures) for integers, figures in rows),
        )


_PROGRESS_NUMBERS = ("round", "base_revision", "tokens", "sample_start", "sample_count")


def lock_folder(folder: Path) -> BinaryIO:
    """Hold ``folder`` for this process until the returned file is closed. SetupError when another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = SetupError(f"another miner is using {folder}; stop it, or give this one a wallet of its own")
    return lock_file(folder / "lock", taken)


def _read(path: Path) -> tuple[Tensors, Facts]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping: only keys() lists it


def _vector(tensors: Tensors, name: str, count: int) -> Vector:
    vector = tensors[name]
    if vector.dtype != np.float32 or vector.shape != (count,) or not np.isfinite(vector).all():
        raise ValueError(f"{name} is not a finite float32 vector of {count} values")
    return vector
