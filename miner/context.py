"""What a session works with and never changes: the run, the identity, the clocks, and the doors to the outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.clock import Clock
from common.data.fetch import FileReader
from common.identity import KeypairSigner
from common.runlog.reader import LogReader
from common.spec import RunSpec
from miner.patience import AsyncSleep, Patience, Uniform
from miner.places import UploadCheck
from miner.worker import Worker


@dataclass(frozen=True)
class Context:
    """Facts and ports of one miner's process in one run."""

    spec: RunSpec
    signer: KeypairSigner
    clock: Clock
    sleep: AsyncSleep
    uniform: Uniform
    """Draws from [0, 1), for jitter."""
    reader: FileReader
    log: LogReader
    storage: UploadCheck
    """Where deltas are put, and nowhere else."""
    worker: Worker
    cache: Path
    """Folder that miners of one machine may share."""
    session: str
    """Random name of this process, as in its heartbeats."""
    started_s: float
    """On the monotonic clock."""

    def patience(self, what: str) -> Patience:
        """Backoff for one activity."""
        return Patience(what, self.sleep, self.uniform)

    def online_s(self) -> float:
        """Since the process started."""
        return self.clock.monotonic_s() - self.started_s
