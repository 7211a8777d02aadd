"""The heartbeat of a session: what it tells the leader. Reads, never changes."""

from __future__ import annotations

from dataclasses import dataclass

from common.units import RoundId
from common.wire import Counters, Heartbeat, UploadProgress
from miner.meter import UploadMeter
from miner.session import Session
from miner.survey import delta_bytes, of_round, phase

NOTE_CHARS = 300


@dataclass(frozen=True)
class Share:
    """What of the work since the last settled mark is for one round, and what for a later one."""

    round: RoundId | None
    tokens: int
    steps: int
    ahead: int


class Reporter:
    """Makes the heartbeats of one process; each has the next number."""

    def __init__(self, session: Session, meter: UploadMeter) -> None:
        self._session = session
        self._meter = meter
        self.made = 0
        """Number of the newest."""

    def describe(self) -> Heartbeat:
        """The present state."""
        self.made += 1
        session, context, share = self._session, self._session.context, self._share()
        progress, held = context.worker.progress(), session.held
        return Heartbeat(
            session=context.session,
            seq=self.made,
            phase=phase(session),
            round=share.round,
            revision=held.revision if held else None,
            weights_sha256=held.sha256 if held else None,
            round_tokens=share.tokens,
            round_steps=share.steps,
            ahead_tokens=share.ahead,
            tokens_per_s=progress.tokens_per_s,
            loss=None if progress.loss is None else max(progress.loss, 0.0),
            counters=Counters(tokens=progress.tokens, training_s=progress.training_s, online_s=context.online_s()),
            upload=self._upload(),
            note=self._note(progress.trouble),
        )

    def _share(self) -> Share:
        """After the final submission, or the round's end, only what was handed in counts for the round."""
        session, opened = self._session, self._session.view.state.open_round
        progress, for_open = session.context.worker.progress(), opened and session.base == opened.base_revision
        round_id = opened.round if opened and for_open else session.stream
        newest = of_round(session, round_id)
        closed = not for_open or (opened and opened.plan is not None) or session.gave_up == round_id
        if newest is not None and (closed or newest.sent.final):
            manifest, work = newest.sent.manifest, newest.work
            ahead = progress.work_tokens - (work.tokens if work.life == progress.life else 0)
            return Share(round_id, manifest.tokens, manifest.steps, max(0, ahead))
        if closed:
            return Share(round_id, 0, 0, progress.work_tokens)
        return Share(round_id, progress.work_tokens, progress.steps, 0)

    def _upload(self) -> UploadProgress | None:
        """What is being sent; of a miner that is stopping, from the first moment on, what it is going to send."""
        view, session = self._meter.view(), self._session
        if view is not None or not session.draining or session.left:
            return view
        return UploadProgress(size_bytes=delta_bytes(session), sent_bytes=0, rate_bps=0.0)

    def _note(self, training_trouble: str) -> str:
        """What stands still, the last trouble, and what the miner does or waits for."""
        session = self._session
        parts = (session.still, session.trouble, session.desk.trouble, training_trouble, session.waiting_for)
        return "; ".join(part for part in parts if part)[:NOTE_CHARS]
