"""The simulated object store's behaviour: latency, outages, throttling. What it holds is in ``records.py``.

Requests draw from seeded dice in the order in which they come, so equal runs see equal refusals.
"""

from __future__ import annotations

import random

from common.errors import Retryable


class Storage:
    """Whether requests are answered."""

    def __init__(self, seed: int, latency_s: float) -> None:
        self.latency_s = latency_s
        self.down = False
        self.refused_share = 0.0
        """Of requests that are answered with 429 or 503."""
        self._dice = random.Random(seed)

    @property
    def healthy(self) -> bool:
        """Whether every request is answered at once."""
        return not self.down and self.refused_share == 0

    def check(self) -> None:
        """One request. Raises ``Retryable``."""
        if self.down:
            raise Retryable("the storage does not answer")
        if self.refused_share > 0 and self._dice.random() < self.refused_share:
            raise Retryable("the storage asks for a pause (503)", 1.0)
