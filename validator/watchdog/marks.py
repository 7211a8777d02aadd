"""When something last moved: what the watchdog remembers between two looks. Pure.

A mark holds a value and the moment at which it was first seen as it is. A process that slept saw nothing: its marks
begin anew, so that its own sleep is nobody's standstill.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Marks:
    """Values by name, each with the moment of its last change."""

    def __init__(self, now_s: float) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}
        self.awake_s = now_s
        """No mark is older: since then this process has looked."""

    def since(self, name: Hashable, value: object, now_s: float) -> float:
        """When ``name`` took its present value."""
        known = self._seen.get(name)
        if known is None or known[0] != value:
            known = self._seen[name] = (value, now_s)
        return max(known[1], self.awake_s)

    def keep(self, kind: str, names: Iterable[Hashable]) -> None:
        """Forget those of ``kind`` (the first of their name's parts) that are not among ``names``."""
        wanted = set(names)
        for name in [name for name in self._seen if isinstance(name, tuple) and name[0] == kind]:
            if name not in wanted:
                del self._seen[name]

    def wake(self, now_s: float) -> None:
        """Until now nothing could move that this process would have seen."""
        self.awake_s = now_s
