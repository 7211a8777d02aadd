"""What validators say of leaders and miners: as much of it as one verification looks at.

Checking a conviction again may mean merging a revision again, or reading a plan's deltas, and whoever may lead can
write any number of them. So of each signer the newest few are kept, of one slot fewer, and how many were not is told.
Invariants: a flood hides only what its own signer has found; in one slot what is said most often makes room for what is
said of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from common.convictions import Conviction
from common.units import Hotkey

MOST_OF_A_SIGNER = 64
MOST_OF_A_SLOT = 8
"""Of one signer in one slot."""
MOST_IN_A_SLOT = 32
"""Of all signers together in one slot, unless there are more signers: each keeps one."""


class Heard:
    """The convictions of one bucket, as they are read one by one."""

    def __init__(self) -> None:
        self._kept: dict[Hotkey, list[Conviction]] = {}
        self._unheard: Counter[Hotkey] = Counter()

    def add(self, conviction: Conviction) -> None:
        """Keep it, or others of the same signer, or of the signer that says most of its slot."""
        own = self._kept.setdefault(conviction.signer, [])
        own.append(conviction)
        seq = conviction.seq
        if len(_of_slot(own, seq)) > MOST_OF_A_SLOT:
            self._drop(conviction.signer, _most_alike(_of_slot(own, seq)))
        elif len(own) > MOST_OF_A_SIGNER:
            self._drop(conviction.signer, min(own, key=lambda one: (one.round, one.seq)))
        said = {signer: _of_slot(kept, seq) for signer, kept in self._kept.items()}
        loudest = max(said, key=lambda signer: len(said[signer]))
        if sum(map(len, said.values())) > MOST_IN_A_SLOT and len(said[loudest]) > 1:
            self._drop(loudest, _most_alike(said[loudest]))

    @property
    def kept(self) -> tuple[Conviction, ...]:
        """All that are looked at, signer after signer."""
        return tuple(one for own in self._kept.values() for one in own)

    @property
    def unheard(self) -> Mapping[Hotkey, int]:
        """How many of each signer are not looked at."""
        return dict(self._unheard)

    def _drop(self, signer: Hotkey, one: Conviction) -> None:
        self._kept[signer].remove(one)
        self._unheard[signer] += 1


def _of_slot(convictions: list[Conviction], seq: int) -> list[Conviction]:
    return [one for one in convictions if one.seq == seq]


def _most_alike(convictions: list[Conviction]) -> Conviction:
    """The last of those of which there are most of one kind against one accused."""
    alike = Counter((one.kind, one.accused) for one in convictions)
    return max(reversed(convictions), key=lambda one: alike[one.kind, one.accused])
