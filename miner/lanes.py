"""The parts of one upload, put a few at a time.

Invariants: a part is retried on its own; one that fails for good lets no new part begin, those under way end first,
and a failure is raised, so that the next attempt finds in the store all that went through; a caller that is cancelled
leaves threads behind that end at their next block, as the meter refuses it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from common.blocking import in_thread
from common.errors import Rejected
from common.store.multipart import part_count, part_range
from common.wire import MultipartTarget, PartTarget
from miner.meter import UploadMeter

LANES = 3
"""Parts at a time: enough that one connection's slow start or loss leaves the link busy; R2 was seen to take no more of
one upload."""
PutPart = Callable[[PartTarget, memoryview, Callable[[int], None]], object]


class Total:
    """Adds up what the parts report, for one meter. Threads may share it."""

    def __init__(self, already_bytes: int, report: Callable[[int], None]) -> None:
        self._already_bytes = already_bytes
        self._report = report
        self._sent_bytes: dict[int, int] = {}
        self._lock = threading.Lock()

    def of(self, number: int) -> Callable[[int], None]:
        """What the transfer of part ``number`` calls with its bytes so far."""

        def told(sent_bytes: int) -> None:
            with self._lock:
                self._sent_bytes[number] = sent_bytes
                total_bytes = self._already_bytes + sum(self._sent_bytes.values())
            self._report(total_bytes)

        return told


class Lanes:
    """One attempt at an upload in parts of ``delta``."""

    def __init__(self, delta: bytes, part_bytes: int, put: PutPart) -> None:
        """``put`` blocks; it sends one part and reports its progress."""
        self.count = part_count(len(delta), part_bytes)
        """Parts that the delta has."""
        self.through = 0
        """Parts that went through."""
        self._delta = memoryview(delta)
        self._part_bytes = part_bytes
        self._put = put

    def check(self, parts: Sequence[PartTarget]) -> None:
        """Raise ``Rejected('url_refused')`` for parts that the delta does not have, or that went through already."""
        numbers = {part.number for part in parts}
        if self.count == 1 or len(numbers) < len(parts) or any(number > self.count for number in numbers):
            raise Rejected("url_refused", f"the leader asks for parts that a delta of {self.count} does not have")
        if self.through + len(parts) > self.count:
            raise Rejected("url_refused", "the leader asks again for parts that it has")

    async def run(self, target: MultipartTarget, meter: UploadMeter) -> None:
        """Put the parts that ``target`` names. Raises what one of them was refused with."""
        whole_bytes = len(self._delta)
        already_bytes = max(0, whole_bytes - target.missing * self._part_bytes)
        progress = Total(already_bytes, meter.begin(whole_bytes, already_bytes))
        waiting = deque(target.parts)
        lanes = (self._lane(waiting, progress) for _ in range(min(LANES, len(target.parts))))
        ends = await asyncio.gather(*lanes, return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        meter.end()

    async def _lane(self, waiting: deque[PartTarget], progress: Total) -> None:
        while waiting:
            try:
                await self._one(waiting.popleft(), progress)
            except BaseException:
                waiting.clear()
                raise
            self.through += 1

    async def _one(self, part: PartTarget, progress: Total) -> None:
        start, end = part_range(len(self._delta), self._part_bytes, part.number)
        await in_thread(lambda: self._put(part, self._delta[start:end], progress.of(part.number)))
