"""What validators say of leaders and miners: as much of it as one verification looks at.

Checking a conviction again may mean merging a revision again, and whoever may lead can write any number of them. So of
each signer the newest few are kept, and how many were not is told: a flood hides only what its own signer has found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from common.convictions import Conviction
from common.units import Hotkey

MOST_OF_A_SIGNER = 64


class Heard:
    """The convictions of one bucket, as they are read one by one."""

    def __init__(self) -> None:
        self._kept: dict[Hotkey, list[Conviction]] = {}
        self._unheard: Counter[Hotkey] = Counter()

    def add(self, conviction: Conviction) -> None:
        """Keep it, or the newer ones of the same signer."""
        own = self._kept.setdefault(conviction.signer, [])
        own.append(conviction)
        if len(own) > MOST_OF_A_SIGNER:
            own.remove(min(own, key=lambda one: (one.round, one.seq)))
            self._unheard[conviction.signer] += 1

    @property
    def kept(self) -> tuple[Conviction, ...]:
        """All that are looked at, signer after signer."""
        return tuple(one for own in self._kept.values() for one in own)

    @property
    def unheard(self) -> Mapping[Hotkey, int]:
        """How many of each signer are not looked at."""
        return dict(self._unheard)
