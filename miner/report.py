"""The heartbeat of a session: what it tells the leader. Reads, never changes."""

from __future__ import annotations

from common.wire import Counters, Heartbeat
from miner.meter import UploadMeter
from miner.session import Session

NOTE_CHARS = 300


class Reporter:
    """Makes the heartbeats of one process; each has the next number."""

    def __init__(self, session: Session, meter: UploadMeter) -> None:
        self._session = session
        self._meter = meter
        self._count = 0

    def describe(self) -> Heartbeat:
        """The present state."""
        self._count += 1
        session, context = self._session, self._session.context
        progress, held, pending = context.worker.progress(), session.held, session.ledger.pending
        round_id, tokens, steps = progress.round, progress.round_tokens, progress.round_steps
        if pending is not None:
            round_id, tokens, steps = pending.round, pending.manifest.tokens, pending.manifest.steps
        elif session.gave_up:
            tokens = steps = 0  # nothing of it will reach the plan
        return Heartbeat(
            session=context.session,
            seq=self._count,
            phase=session.phase,
            round=round_id,
            revision=held.revision if held else None,
            weights_sha256=held.sha256 if held else None,
            round_tokens=tokens,
            round_steps=steps,
            tokens_per_s=progress.tokens_per_s,
            loss=None if progress.loss is None else max(progress.loss, 0.0),
            counters=Counters(tokens=progress.tokens, training_s=progress.training_s, online_s=context.online_s()),
            upload=self._meter.view(),
            note=self._note(progress.trouble),
        )

    def _note(self, training_trouble: str) -> str:
        """The last trouble, and in phases of waiting what for."""
        parts = (self._session.trouble, training_trouble, self._session.waiting_for)
        return "; ".join(part for part in parts if part)[:NOTE_CHARS]
