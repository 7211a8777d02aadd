"""What a miner keeps on disk: a kill at any instruction loses at most what was trained since the last submission.

    memory.safetensors                      after each settlement: residual, what is pending, the optimizer's vectors,
                                            the settled revision, and work that was submitted and that no plan named
    submission-<round>-<hash>.safetensors   before its first byte is sent: moved, trace, manifest and delta
    confirmed                               hash of the delta that the leader has confirmed last

Each file is written whole beside its place, synced and renamed, and those of vectors name the run, the spec and the
hotkey. One rename, that of the memory, moves everything from one revision to the next: a submission counts only while
its base is the memory's settled revision. So it is settled exactly once, and what an interrupted clean-up left behind
counts for nothing. A file that is damaged or another run's is set aside (``.bad``) and said.
"""

from __future__ import annotations

import json
import math
import zlib
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
from common.files import atomic_file, lock_file, remove_leftovers, write_atomically
from common.merge.account import Account, Pending
from common.model.layout import Vector
from common.spec import RunSpec, spec_hash
from common.units import Hotkey, Revision, RoundId, Sha256, is_sha256
from miner.adamw import OptimizerState
from miner.delta import Outstanding, Submission, decoded, reopen
from miner.trace import TraceStep
from miner.work import Work

T = TypeVar("T")
Tensors = Mapping[str, npt.NDArray[Any]]
Facts = Mapping[str, str]
SCHEMA = "4"
_FIRST_ROUND = RoundId(0)


@dataclass(frozen=True)
class Memory:
    """What lives from revision to revision."""

    account: Account
    optimizer: OptimizerState
    settled: Revision
    """The revision up to which every plan's word is in the account; what is trained and submitted is on it."""
    pending: Submission | None = None
    """The delta of ``account.pending``."""
    carried: Work | None = None
    """Work on the settled revision that an earlier submission held, or that was put away at an orderly stop."""
    honoured: int = 0
    """How many of the log's restarts (rollbacks, cold starts) are behind it."""
    since: RoundId = _FIRST_ROUND
    """The first round after the last rollback: what was made for an earlier one counts for nothing."""


class StateFolder:
    """The state of one hotkey in one run, for vectors of ``count`` values."""

    def __init__(self, folder: Path, spec: RunSpec, hotkey: Hotkey, count: int) -> None:
        self._folder = folder
        self._spec = spec
        self._count = count
        self._owner = {"schema": SCHEMA, "run": spec.run, "spec": spec_hash(spec), "hotkey": hotkey}
        folder.mkdir(parents=True, exist_ok=True)

    def load_memory(self) -> Memory | None:
        return self._load(self._folder / "memory.safetensors", self._memory)

    def save_memory(self, memory: Memory) -> None:
        held, optimizer = memory.account, memory.optimizer
        tensors: dict[str, npt.NDArray[Any]] = {"residual": held.residual}
        tensors |= {"first": optimizer.first, "second": optimizer.second}
        facts = {"settled": str(memory.settled), "optimizer_steps": str(optimizer.steps)}
        facts |= {"honoured": str(memory.honoured), "since": str(memory.since)}
        if held.pending is not None and memory.pending is not None:
            tensors |= {"pending": held.pending.target, "delta": _bytes(memory.pending.delta)}
            facts |= {"manifest": json.dumps(memory.pending.record.to_json()), "cap_norm": repr(held.pending.cap_norm)}
        if memory.carried is not None:
            tensors |= _work_tensors(memory.carried)
            facts |= _work_facts(memory.carried)
        self._save(self._folder / "memory.safetensors", tensors, facts)

    def load_submissions(self) -> list[Outstanding]:
        """All of them, in any order."""
        paths = sorted(self._folder.glob("submission-*.safetensors"))
        found = [self._load(path, self._outstanding) for path in paths]
        return [one for one in found if one is not None]

    def save_submission(self, one: Outstanding) -> None:
        tensors = {**_work_tensors(one.work), "delta": _bytes(one.sent.delta)}
        facts = {"manifest": json.dumps(one.sent.record.to_json()), "cap_norm": repr(one.cap_norm)}
        self._save(self._submission_path(one.sent), tensors, facts | _work_facts(one.work))

    def load_confirmed(self) -> Sha256 | None:
        """The delta that the leader has confirmed last; None when nothing, or nothing readable, says so."""
        try:
            text = self._confirmed.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        return Sha256(text) if is_sha256(text) else None

    def save_confirmed(self, sha256: Sha256) -> None:
        write_atomically(self._confirmed, f"{sha256}\n".encode())

    @property
    def _confirmed(self) -> Path:
        return self._folder / "confirmed"

    def drop_submission(self, sent: Submission) -> None:
        """Forget it: it is settled, or a later one holds all of it. Idempotent."""
        self._submission_path(sent).unlink(missing_ok=True)

    def _submission_path(self, sent: Submission) -> Path:
        return self._folder / f"submission-{sent.round:09d}-{sent.manifest.delta.sha256[:16]}.safetensors"

    def _save(self, path: Path, tensors: Tensors, facts: Facts) -> None:
        whole = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
        data = to_safetensors(whole, {**self._owner, **facts, "checksum": _checksum(whole, facts)})
        with atomic_file(path, len(data)) as file:
            file.write(data)

    def _load(self, path: Path, build: Callable[[Tensors, Facts], T]) -> T | None:
        if not path.exists():
            return None
        try:
            tensors, facts = _read(path)
            self._check_owner(facts)
            own = {name: value for name, value in facts.items() if name not in self._owner}
            if own.pop("checksum", "") != _checksum(tensors, own):
                raise ValueError("its checksum is not that of its content")
            return build(tensors, facts)
        except (KeyError, ValueError, TypeError, RecursionError, SafetensorError, Rejected) as error:
            aside = path.with_suffix(".bad")
            path.replace(aside)
            logger.warning("{} can't be used ({}); it is set aside as {}", path, error, aside)
            return None

    def _check_owner(self, facts: Facts) -> None:
        for name, value in self._owner.items():
            if facts.get(name) != value:
                raise ValueError(f"it belongs to {name} {facts.get(name)}, not {value}")

    def _memory(self, tensors: Tensors, facts: Facts) -> Memory:
        residual, first, second = (self._vector(tensors, name) for name in ("residual", "first", "second"))
        sent = self._sent(tensors, facts) if "manifest" in facts else None
        pending = self._pending(sent, tensors, facts) if sent is not None else None
        return Memory(
            account=Account(residual, pending),
            optimizer=OptimizerState(first, second, _whole(facts, "optimizer_steps")),
            settled=Revision(_whole(facts, "settled")),
            pending=sent,
            carried=self._work(tensors, facts) if "life" in facts else None,
            honoured=_whole(facts, "honoured"),
            since=RoundId(_whole(facts, "since")),
        )

    def _pending(self, sent: Submission, tensors: Tensors, facts: Facts) -> Pending:
        said, target = decoded(self._spec, sent, self._count), self._vector(tensors, "pending")
        return Pending(*sent.origin, target, said, _cap_norm(facts))

    def _outstanding(self, tensors: Tensors, facts: Facts) -> Outstanding:
        return Outstanding(self._sent(tensors, facts), self._work(tensors, facts), _cap_norm(facts))

    def _sent(self, tensors: Tensors, facts: Facts) -> Submission:
        return reopen(self._spec, json.loads(facts["manifest"]), tensors["delta"].astype(np.uint8).tobytes())

    def _work(self, tensors: Tensors, facts: Facts) -> Work:
        rows = zip(tensors["trace"].tolist(), tensors["figures"].tolist(), strict=True)
        trace = tuple(TraceStep(*integers, *figures) for integers, figures in rows)
        return Work(self._vector(tensors, "moved"), trace, _whole(facts, "tokens"), _whole(facts, "life"))

    def _vector(self, tensors: Tensors, name: str) -> Vector:
        vector = tensors[name]
        if vector.dtype != np.float32 or vector.shape != (self._count,) or not np.isfinite(vector).all():
            raise ValueError(f"{name} is not a finite float32 vector of {self._count} values")
        return vector


def lock_folder(folder: Path) -> BinaryIO:
    """Hold ``folder`` for this process until the returned file is closed, without what killed ones left half written.

    SetupError when another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = SetupError(f"another miner is using {folder}; stop it, or give this one a wallet of its own")
    held = lock_file(folder / "lock", taken)
    for name in ("*.safetensors", "confirmed", "receipts.json"):
        remove_leftovers(folder, name)
    return held


def _work_tensors(work: Work) -> dict[str, npt.NDArray[Any]]:
    steps = [(s.round, s.base_revision, s.global_step, s.sample_start, s.samples) for s in work.trace]
    figures = [(s.loss, s.grad_norm) for s in work.trace]
    return {
        "moved": work.moved,
        "trace": np.array(steps, dtype=np.int64).reshape(-1, 5),
        "figures": np.array(figures, dtype=np.float32).reshape(-1, 2),
    }


def _work_facts(work: Work) -> dict[str, str]:
    return {"tokens": str(work.tokens), "life": str(work.life)}


def _checksum(tensors: Tensors, facts: Facts) -> str:
    """Against damage on the disk: a flipped bit of a weight would go unnoticed, and be signed and sent. A CRC, since
    nobody else writes here and a hash of gigabytes would take longer than writing them."""
    check = zlib.crc32(json.dumps(sorted(facts.items())).encode())
    for name in sorted(tensors):
        check = zlib.crc32(tensors[name].data, zlib.crc32(name.encode(), check))
    return f"{check:08x}"


def _whole(facts: Facts, name: str) -> int:
    value = int(facts[name])
    if value < 0:
        raise ValueError(f"{name} is {value}")
    return value


def _cap_norm(facts: Facts) -> float:
    value = float(facts["cap_norm"])
    if not 0 <= value < math.inf:
        raise ValueError(f"cap_norm is {value}")
    return value


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _read(path: Path) -> tuple[Tensors, Facts]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping: only keys() lists it
