"""What the routes ask of a validator: heartbeats in, the leader's view of the round out. No effects but bookkeeping.

Every answer is a hint: the log is the truth, and ``next_seq`` says how far it reaches. Bounded and cached where
strangers may ask.
"""

from __future__ import annotations

from typing import Literal

from common import timeouts
from common.errors import Rejected
from common.typed import to_json
from common.units import Hotkey, RoundId
from common.wire import (
    MAX_STALLS,
    ComplaintReply,
    ComplaintRequest,
    CompleteReply,
    CompleteRequest,
    Findings,
    Health,
    Heartbeat,
    HeartbeatReply,
    MinerStatus,
    Phase,
    ProbeAnswer,
    ProbeReply,
    ReductionReply,
    ReductionRequest,
    ReportIndex,
    RoundView,
    StallView,
    Status,
    SubmissionReply,
    SubmissionRequest,
)
from validator import pausing
from validator.api.security import Caller
from validator.audits.complaints import Complaints
from validator.audits.convictions import Convictions
from validator.board import Board
from validator.butterfly import Butterfly
from validator.intake import Intake
from validator.members import Member, round_tokens, trains
from validator.probing import Probing
from validator.reports_place import FolderReports
from validator.round import core, deadlines
from validator.round.facts import Phase as RoundPhase
from validator.round.facts import RoundFacts
from validator.rounds import Round, facts_of
from validator.watchdog.facts import Stall

MAX_MINERS = 256
Instruction = Literal["train", "submit", "wait"]


class ValidatorService:
    """The service of one process, over its board."""

    def __init__(
        self,
        board: Board,
        intake: Intake,
        version: str,
        complaints: Complaints,
        convictions: Convictions,
        probing: Probing,
        butterfly: Butterfly | None = None,
    ) -> None:
        """``butterfly`` is None in a run whose leader reduces alone."""
        self._board = board
        self._intake = intake
        self._version = version
        self._complaints = complaints
        self._convictions = convictions
        self._probing = probing
        self._butterfly = butterfly
        self._cached: tuple[float, Status] | None = None
        self._found: tuple[float, Findings] | None = None
        self._looked: tuple[float, Round, RoundFacts] | None = None

    def health(self) -> Health:
        """Who serves here, and the time that requests must be signed with."""
        board = self._board
        return Health(
            run=board.spec.run,
            spec_sha256=board.spec_sha256,
            hotkey=board.signer.hotkey,
            server_ns=board.clock.wall_ns(),
            leading=board.leadership.leading,
            version=self._version,
        )

    def heartbeat(self, caller: Caller, beat: Heartbeat) -> HeartbeatReply:
        """Take in a heartbeat; the reply tells where the log stands and what the round needs of the sender."""
        board, now_s = self._board, self._board.now_s()
        current = board.round if board.leadership.leading else None
        if board.leadership.leading:
            board.health.vitals.heard(caller.hotkey, beat, now_s)
        if current is not None:
            board.membership.pin(caller.seat)
        board.members.hear(caller.hotkey, beat, now_s)
        board.members.seen_at(caller.hotkey, caller.host)
        state = board.journal.state
        return HeartbeatReply(
            server_ns=board.clock.wall_ns(),
            leader=state.leader or board.signer.hotkey,
            instance=board.leadership.instance,
            term=state.term,
            next_seq=state.next_seq,
            round=self._view(current, caller.hotkey) if current else None,
            delivered=current is not None and current.submissions.delivered(caller.hotkey),
            score=board.standing.averages.get((caller.hotkey, caller.seat.registered_block)),
            reduce=self._butterfly.view(caller.hotkey) if self._butterfly and current else None,
            stall=next((stall.text[:300] for stall in board.stalls if stall.holds), ""),
            probe=self._probing.order(caller.hotkey),
        )

    async def submit(self, caller: Caller, request: SubmissionRequest) -> SubmissionReply:
        """See ``Intake.submit``."""
        return await self._intake.submit(caller, request.manifest, request.parts)

    async def complete(self, caller: Caller, request: CompleteRequest) -> CompleteReply:
        """See ``Intake.complete``."""
        return await self._intake.complete(caller, request.round, request.shard, request.delta_sha256)

    async def reduced(self, caller: Caller, request: ReductionRequest) -> ReductionReply:
        """See ``Butterfly.hand_in``."""
        if self._butterfly is None:
            raise Rejected("no_butterfly", "in this run the leader reduces alone")
        return await self._butterfly.hand_in(caller, request.reduction)

    async def probed(self, caller: Caller, answer: ProbeAnswer) -> ProbeReply:
        """See ``Probing.answer``."""
        return await self._probing.answer(caller.hotkey, answer)

    async def complain(self, caller: Caller, request: ComplaintRequest) -> ComplaintReply:
        """See ``Complaints.hear``."""
        return await self._complaints.hear(caller, request)

    def report_index(self) -> ReportIndex:
        """What is kept here. ``Rejected('not_found')`` where reports lie in the run's bucket."""
        board = self._board
        names = list(self._own_reports().index())
        return ReportIndex(run=board.spec.run, hotkey=board.signer.hotkey, names=names)

    def report(self, name: str) -> bytes:
        """The signed bytes of a report. Blocking. Raises as ``report_index``, and ``ObjectMissing``."""
        return self._own_reports().read(name)

    def _own_reports(self) -> FolderReports:
        kept = self._board.reports
        if not isinstance(kept, FolderReports):
            raise Rejected("not_found", "this validator's reports lie in the run's bucket")
        return kept

    def status(self) -> Status:
        """The validator's view of everything, at most a fraction of a second old."""
        now_s = self._board.now_s()
        if self._cached is None or now_s - self._cached[0] >= timeouts.STATUS_CACHE_S:
            self._cached = (now_s, self._status())
        return self._cached[1]

    def findings(self) -> Findings:
        """Who is slow, by what this process has seen; at most a fraction of a second old."""
        now_s = self._board.now_s()
        if self._found is None or now_s - self._found[0] >= timeouts.STATUS_CACHE_S:
            self._found = (now_s, self._findings())
        return self._found[1]

    def _findings(self) -> Findings:
        board, known = self._board, self._board.health.report()
        told = None if known is None else to_json(known)
        assert told is None or isinstance(told, dict)
        return Findings(run=board.spec.run, hotkey=board.signer.hotkey, leading=board.leadership.leading, health=told)

    def _status(self) -> Status:
        board = self._board
        state, standing = board.journal.state, board.standing
        current = board.round if board.leadership.leading else None
        return Status(
            run=board.spec.run,
            spec_sha256=board.spec_sha256,
            hotkey=board.signer.hotkey,
            server_ns=board.clock.wall_ns(),
            leading=board.leadership.leading,
            term=state.term,
            next_seq=state.next_seq,
            head_revision=state.head,
            rounds_committed=state.rounds_committed,
            rounds_aborted=state.rounds_aborted,
            round=self._view(current, None) if current else None,
            waiting_for=board.waiting_for[:300],
            paused="" if state.paused is None else pausing.told(state, state.paused)[:1000],
            convicted=[told[:300] for told in self._convictions.told()],
            heldout_loss_first=standing.heldout_first,
            heldout_loss_head=standing.heldout_head,
            reported_round=standing.reported_round,
            weights_set_block=standing.weights_set_block,
            weights_round=standing.weights_round,
            miners=self._miners(current),
            stalls=[_stall(stall) for stall in board.stalls[:MAX_STALLS]],
        )

    def _view(self, current: Round, hotkey: Hotkey | None) -> RoundView:
        now_s = self._board.now_s()
        facts = self._facts(current, now_s)
        return RoundView(
            round=current.state.round,
            base_revision=current.state.base_revision,
            phase=current.state.phase.value,
            instruction=instruction(current, self._board.members.get(hotkey) if hotkey else None),
            seconds_left=deadlines.seconds_left(current.state, now_s, current.policy),
            freeze_in_s=deadlines.freeze_in_s(current.state, facts.members, now_s, current.policy),
            tokens=core.trained_tokens(facts),
            target_tokens=current.policy.target_tokens,
        )

    def _facts(self, current: Round, now_s: float) -> RoundFacts:
        """At most a fraction of a second old: every heartbeat asks, and each answer looks at all members."""
        if self._looked is not None:
            looked_s, looked_at, facts = self._looked
            if looked_at is current and now_s - looked_s < timeouts.STATUS_CACHE_S:
                return facts
        found = facts_of(current, self._board.journal.state, self._board.members, now_s)
        self._looked = (now_s, current, found)
        return found

    def _miners(self, current: Round | None) -> list[MinerStatus]:
        seen = sorted(self._board.members, key=lambda member: member.hotkey)
        rows = (self._miner(current, member) for member in seen[:MAX_MINERS])
        return [row for row in rows if row is not None]

    def _miner(self, current: Round | None, member: Member) -> MinerStatus | None:
        board, beat = self._board, member.beat
        seat = board.membership.known(member.hotkey)
        if beat is None or seat is None:
            return None
        delivered = current is not None and current.submissions.delivered(member.hotkey)
        live = board.members.is_live(member, board.now_s())
        care = board.members.cares.get(member.hotkey) if board.leadership.leading else None
        return MinerStatus(
            hotkey=member.hotkey,
            uid=seat.uid,
            live=live,
            phase=beat.phase,
            round_tokens=round_tokens(member, current.state.round) if current else 0,
            tokens_per_s=beat.tokens_per_s,
            upload=beat.upload if beat.phase is Phase.UPLOADING else None,
            delivered=delivered,
            score=board.standing.averages.get((seat.hotkey, seat.registered_block)),
            silent_s=max(0.0, board.now_s() - member.heard_s),
            note=beat.note,
            duties=board.members.bars.told(
                member.hotkey, current.state.round if current else board.journal.state.next_round
            )[:300],
            health="" if care is None else care.told[:300],
        )


def _stall(stall: Stall) -> StallView:
    return StallView(code=stall.code, since_s=max(0.0, stall.for_s), text=stall.text[:1000])


def instruction(current: Round, member: Member | None) -> Instruction:
    """What the sender of a heartbeat should do: train, submit what it has, or wait for the log."""
    done = member is not None and current.submissions.delivered(member.hotkey)
    if done or not current.takes_submissions:
        return "wait"
    if current.state.phase is RoundPhase.OPEN:
        return "train"
    at_work = member is None or trains(member, RoundId(current.state.round))
    return "submit" if at_work else "wait"
