"""A session seen from outside: what its next move rests on, its phase, its estimates. Reads, never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from common import timeouts
from common.codec.container import encoded_size
from common.codec.params import delta_params
from common.units import Revision, RoundId
from common.wire import Phase
from miner.deadlines import AHEAD_ROUNDS
from miner.delta import Outstanding
from miner.jobs import Job
from miner.policy import Facts, Made, Order

if TYPE_CHECKING:
    from miner.session import Session

IDLE_REPLIES = 3
"""Answers without a round: one may be given between two rounds."""


def survey(session: Session) -> Facts:
    """What ``policy.decide`` wants to know."""
    state, progress = session.view.state, session.context.worker.progress()
    opened, spec, now_s = state.open_round, session.context.spec, session.context.clock.monotonic_s()
    newest = of_round(session, opened.round) if opened else None
    base = Revision(0) if session.base is None else session.base
    same_life = newest is not None and newest.work.life == progress.life
    return Facts(
        head=state.head,
        open_round=opened.round if opened else None,
        open_base=opened.base_revision if opened else None,
        frozen=opened is not None and opened.plan is not None,
        behind=session.reply is not None and session.reply.next_seq > state.next_seq,
        order=_order(session),
        freeze_in_s=_freeze_in_s(session, now_s),
        idle=session.roundless >= IDLE_REPLIES,
        restart=(session.ledger.honoured or 0) < len(state.restarts) and session.ledger.honoured is not None,
        ready=session.dataset is not None,
        fetching=Job.FETCH in session.jobs,
        held=session.held.revision if session.held else None,
        syncing=Job.SYNC in session.jobs,
        settled=session.ledger.settled,
        base=session.base,
        stream=session.stream,
        steps=progress.steps,
        nominal_steps=spec.inner.steps_of(base),
        fresh_steps=progress.steps - (newest.work.steps if newest is not None and same_life else 0),
        sated=progress.work_tokens >= AHEAD_ROUNDS * spec.target_tokens(base),
        making=session.making,
        newest=_newest(session, newest),
        since_s=now_s - session.marked_s,
        upload_s=_upload_s(session),
        to_deliver=session.desk.next(session.view) is not None,
        delivering=_delivering(session),
        recall=session.desk.recall(session.view) and not _worth_ending(session),
        left_s=_left_s(session),
        draining=session.draining,
        hurry=session.hurried,
        stalled="" if session.joined else _stalled(session),
        asking=not session.joined and session.reply is None and session.context.online_s() < timeouts.ASK_FIRST_S,
    )


def phase(session: Session) -> Phase:
    """What the training thread does; while it rests, what it waits for."""
    if session.draining:
        return Phase.DRAINING
    if session.training:
        return Phase.TRAINING
    if session.base is None and session.held is None:
        return Phase.SYNCING if Job.SYNC in session.jobs else Phase.STARTING
    resting = {Job.MAKE: Phase.ENCODING, Job.DELIVER: Phase.UPLOADING, Job.SYNC: Phase.APPLYING}
    return next((phase for job, phase in resting.items() if job in session.jobs), Phase.WAITING)


def of_round(session: Session, round_id: RoundId | None) -> Outstanding | None:
    """The newest submission for a round that is not settled yet."""
    mine = [one for one in session.ledger.live if one.sent.round == round_id]
    return max(mine, key=lambda one: one.order, default=None)


def delta_bytes(session: Session) -> int:
    """Size of a delta on the present base."""
    base = Revision(0) if session.base is None else session.base
    return encoded_size(session.ledger.count, delta_params(session.context.spec.codec, base))


def _order(session: Session) -> Order | None:
    """The leader's word, if it is about the round that the log has open."""
    opened, told = session.view.state.open_round, session.reply.round if session.reply else None
    return told.instruction if opened and told and told.round == opened.round else None


def _stalled(session: Session) -> str:
    """Why nobody new should begin: the log's pause, or what the leader last said."""
    paused = session.view.state.paused
    if paused is not None:
        return f"it is paused ({paused.code})"
    return session.reply.stall if session.reply else ""


def _freeze_in_s(session: Session, now_s: float) -> float | None:
    told = session.reply.round if session.reply else None
    if told is None or _order(session) is None:
        return None
    return max(0.0, told.freeze_in_s - (now_s - session.heard_s))


def _newest(session: Session, newest: Outstanding | None) -> Made | None:
    opened = session.view.state.open_round
    if opened is not None and session.gave_up == opened.round:
        return "final"
    if newest is None:
        return None
    return "final" if newest.sent.final else "drip"


def _delivering(session: Session) -> Made | Literal["pending"] | None:
    sending, pending = session.desk.sending, session.ledger.pending
    if sending is None:
        return None
    if pending is not None and pending.name == sending.name:
        return "pending"
    return "final" if sending.final else "drip"


def _upload_s(session: Session) -> float | None:
    """From the mark until the bytes are there, by what the last ones took."""
    rate_bps = session.meter.rate_bps()
    return None if rate_bps is None else session.encode_s + 8 * delta_bytes(session) / rate_bps


def _worth_ending(session: Session) -> bool:
    """Whether what is on its way to a round that was aborted is nearer to its end than to its beginning: the leader
    takes it for the next round on the same base, and what replaces it would have to be sent from the first byte on."""
    opened, sending, view = session.view.state.open_round, session.desk.sending, session.meter.view()
    if opened is None or opened.plan is not None or sending is None or view is None:
        return False
    lives = any(one.sent.name == sending.name for one in session.ledger.live)
    return lives and sending.round < opened.round and 2 * view.sent_bytes >= view.size_bytes


def _left_s(session: Session) -> float | None:
    view, rate_bps = session.meter.view(), session.meter.rate_bps()
    if view is None or rate_bps is None:
        return None
    return 8 * (view.size_bytes - view.sent_bytes) / rate_bps
