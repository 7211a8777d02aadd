"""What must hold at every moment of a soak, read from the bucket and from what the processes said."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common import keys
from common.errors import Retryable
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Sha256
from tests.support.rig import Rig

FAULTY = (" ERROR ", " CRITICAL ", "Traceback (most recent call last)")
"""What no process may say."""


class Broken(Exception):
    """An invariant does not hold."""


@dataclass
class History:
    """The log as it was seen so far. What stood in a slot stands there for ever, and no delta is merged twice."""

    slots: dict[int, Sha256] = field(default_factory=dict)
    convicted: list[str] = field(default_factory=list)
    """Keys of the convictions in the bucket: none is to be there, since nobody lies."""

    def check(self, rig: Rig) -> None:
        """Read the whole log anew, and who was convicted. Raises ``Broken``; the storage has to be there."""
        try:
            steps = list(LogReader(StoreReader(rig.store), rig.spec).steps())
            self.convicted = convictions(rig)
        except Retryable as away:
            raise Broken(f"the storage does not answer although nothing is wrong with it: {away}") from away
        for step in steps:
            seq = step.state.next_seq - 1
            if self.slots.setdefault(seq, step.state.head_sha256) != step.state.head_sha256:
                raise Broken(f"slot {seq} of the log has changed")
        if len(steps) < len(self.slots):
            raise Broken(f"the log has lost slots: {len(steps)} of {len(self.slots)} are left")
        _merged_once(rig)
        if self.convicted:
            raise Broken(f"nobody lies here, and there are {len(self.convicted)} convictions: {self.convicted[0]}")


def _merged_once(rig: Rig) -> None:
    merged = Counter(
        (member.hotkey, member.delta.sha256)
        for plan in rig.committed()
        for members in plan.members.values()
        for member in members
        if member.decision == "accepted"
    )
    for (hotkey, _), times in merged.items():
        if times > 1:
            raise Broken(f"a delta of {hotkey} was merged {times} times")


def convictions(rig: Rig) -> list[str]:
    """Keys of the convictions in the bucket. Raises ``Retryable``."""
    run = rig.spec.run
    listed = (info.key for hotkey in rig.spec.validators for info in rig.store.list(keys.reports_prefix(run, hotkey)))
    parsed = ((keys.parse_key(run, key), key) for key in listed)
    return sorted(key for parts, key in parsed if parts is not None and parts.kind == "conviction")


def check_logs(folder: Path) -> None:
    """Nobody has said an error in the files of this folder. Raises ``Broken``."""
    for path in sorted(folder.glob("**/*")):
        text = path.read_text(errors="replace") if path.is_file() else ""
        found = next((line for line in text.splitlines() if any(word in line for word in FAULTY)), None)
        if found is not None:
            raise Broken(f"{path}: {found.strip()}")
