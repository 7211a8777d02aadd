"""How long a member's upload takes, from what the receiver saw of its earlier ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

NEWEST = 0.5
"""Weight of the newest upload against all before."""
LEAST_S = 0.05


@dataclass(slots=True)
class Uplink:
    """The uploads of one member: size over the time between receipt and arrival, the newest counting most."""

    bytes_per_s: float | None = None
    last_bytes: int = 0

    def observe(self, size_bytes: int, took_s: float) -> None:
        """An object came so long after its receipt."""
        rate = size_bytes / max(LEAST_S, took_s)
        before = self.bytes_per_s
        self.bytes_per_s = rate if before is None else NEWEST * rate + (1 - NEWEST) * before
        self.last_bytes = size_bytes

    def eta_s(
        self, coming_bytes: int, since_s: float, now_s: float, most_bytes_per_s: float | None = None
    ) -> float | None:
        """Seconds until an announced object will be there, or the next one if none is announced (0 bytes).

        ``most_bytes_per_s``: what is left of its rate, if that is known. None when nothing predicts it: no earlier
        upload, or it takes longer than predicted.
        """
        if self.bytes_per_s is None:
            return None
        rate = self.bytes_per_s if most_bytes_per_s is None else min(self.bytes_per_s, most_bytes_per_s)
        if coming_bytes == 0:
            return self.last_bytes / rate
        left_s = coming_bytes / rate - (now_s - since_s)
        return left_s if left_s > 0 else None
