"""The folder of a local run: its places, the lock on it, and ``run.json``, what the run was begun with.

    wallets/ cache/ data/ storage/ chain/ validator/ miner-<n>/ logs/     ports.json run.json summary.json up.lock

Invariants: one ``brigade up`` works in a folder at a time; a second start with settings that the run's spec fixes
otherwise is refused, naming the setting, instead of being quietly ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import OperatorError, SetupError
from common.files import lock_file, write_atomically

RUN_NAME = "brigade-run"
SCHEMA = 1


class Busy(OperatorError):
    """Another process holds the folder."""


@dataclass(frozen=True)
class Folder:
    """Where everything of one local run lies."""

    root: Path

    @property
    def wallets(self) -> Path:
        return self.root / "wallets"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def storage_config(self) -> Path:
        return self.storage / "storage.json"

    @property
    def chain(self) -> Path:
        return self.root / "chain"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"


@dataclass(frozen=True)
class Begun:
    """What a run was begun with: every setting that can't change any more."""

    schema: int
    run: str
    preset: str
    seed: int
    target_miners: int
    """Miners that the token target of a round was made for; more or fewer may work later."""
    density: int | None
    steps: int | None
    data: str | None
    """The text given, or None for Python's library."""
    block_time_s: float
    netuid: int | None = None
    """None until the subnet exists."""
    spec_sha256: str | None = None
    """What the chain holds; None until the run is created."""
    reduce: str = "leader"
    """Who adds the deltas up."""


FIXED = {
    "preset": "--preset",
    "seed": "--seed",
    "density": "--density",
    "steps": "--steps",
    "data": "--data",
    "reduce": "--reduce",
}


def load_begun(path: Path) -> Begun | None:
    """What ``run.json`` says, or None in a new folder. SetupError when it is damaged."""
    try:
        return Begun(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise SetupError(f"{path} is damaged ({error}); start in another --dir") from error


def save_begun(begun: Begun, path: Path) -> None:
    """Write ``run.json`` whole."""
    write_atomically(path, (json.dumps(asdict(begun), indent=2) + "\n").encode())


def continue_with(begun: Begun, wish: Begun) -> Begun:
    """The settings of a second start. OperatorError when ``wish`` contradicts what the run was begun with."""
    for name, flag in FIXED.items():
        old, new = getattr(begun, name), getattr(wish, name)
        if old != new:
            raise OperatorError(
                f"this folder holds a run that was begun with {flag} {_told(old)}, not {_told(new)}: "
                "give the same, or use another --dir"
            )
    if begun.block_time_s != wish.block_time_s:
        raise OperatorError(f"the chain here has --block-time {begun.block_time_s:g}: give the same, or another --dir")
    return begun


def _told(value: Any) -> str:
    return "unset" if value is None else str(value)


@contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Hold the folder. ``Busy`` when another ``brigade up``, or a command that runs its storage, works in it."""
    taken = Busy(f"another brigade up is at work in {folder.root}: end it, or use another --dir")
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        held = lock_file(folder.root / "up.lock", taken)
    except OSError as error:
        raise OperatorError(f"--dir {folder.root}: {error.strerror}") from error
    with held:
        yield
