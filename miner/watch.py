"""The watchdog of a miner: looks every second at training, upload and downloads, whatever they hang on.

What stands still is said once, and once more when it moves again: on the console and in the log, and meanwhile in the
heartbeat's note, so that `brigade status` shows it. It changes nothing else.
"""

from __future__ import annotations

from loguru import logger

from common import timeouts
from common.units import format_bytes
from miner.jobs import Job
from miner.session import Session
from miner.stillness import Effort, Seen, look, step_limit_s

DOWNLOADS = {Job.FETCH: "fetching the dataset", Job.SYNC: "fetching the revision"}


class Watch:
    """Watches one session. The event loop owns it."""

    def __init__(self, session: Session, max_tokens_per_s: float | None) -> None:
        self._session = session
        self._max_tokens_per_s = max_tokens_per_s
        self._seen: Seen = {}
        self._told: set[str] = set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self.look()
            await self._session.context.sleep(timeouts.WATCH_LOOK_S)

    def look(self) -> None:
        """One look."""
        now_s = self._session.context.clock.monotonic_s()
        self._seen = look(self._seen, self._efforts(), now_s)
        still: dict[str, str] = {what: one.text(now_s) for what, one in self._seen.items() if one.due(now_s)}
        for what in sorted(still.keys() - self._told):
            logger.bind(event="stall", what=what).warning("{}", still[what])
        for what in sorted(self._told - still.keys()):
            logger.bind(event="stall_over", what=what).info("{} goes on", what)
        self._told = set(still)
        self._session.still = "; ".join(still[what] for what in sorted(still))

    def _efforts(self) -> list[Effort]:
        found = (self._training(), self._sending(), self._download())
        return [effort for effort in found if effort is not None]

    def _training(self) -> Effort | None:
        session = self._session
        if not session.training or session.base is None:
            return None
        progress, spec = session.context.worker.progress(), session.context.spec
        speeds = [speed for speed in (progress.tokens_per_s, self._max_tokens_per_s) if speed]
        step_s = spec.inner.batch_size * spec.data.seq_len / min(speeds) if progress.tokens and speeds else None
        mark = (progress.tokens, progress.steps, progress.life, progress.trouble)
        told = "training waits for the end of its inner step, on the device and the data; if it does not come, restart"
        return Effort("training", mark, step_limit_s(step_s), told)

    def _sending(self) -> Effort | None:
        session = self._session
        if Job.DELIVER not in session.jobs:
            return None
        view, trouble = session.meter.view(), session.desk.trouble
        why = f" ({trouble})" if trouble else ""
        if view is None:
            sending = session.desk.sending
            told = f"the delivery waits for the leader's answer{why}; it is tried again"
            return Effort("delivery", sending.name if sending else None, timeouts.STILL_S, told)
        size = f"{format_bytes(view.sent_bytes)} of {format_bytes(view.size_bytes)}"
        told = f"the upload stands at {size}, it waits for the storage or for this machine's line{why}"
        return Effort("upload", (view.size_bytes, view.sent_bytes), timeouts.STILL_S, told)

    def _download(self) -> Effort | None:
        for job, what in DOWNLOADS.items():
            patience = self._session.downloads.get(job)
            if job in self._session.jobs and patience is not None and patience.trouble:
                told = f"{what} waits for the storage ({patience.trouble}); it is tried again"
                return Effort("download", job, timeouts.STILL_S, told)
        return None
