"""The facts of one moment, from the board of one validator process. Reads, never changes anything but the marks.

Invariant: nothing here waits, so the watchdog sees whatever the driver, a thread or the storage hangs on.
"""

from __future__ import annotations

from common.units import Hotkey, Revision, format_bytes
from common.wire import Heartbeat, Phase
from validator import pausing
from validator.board import Board
from validator.members import Member, round_tokens, trains
from validator.round import core
from validator.round.facts import RoundFacts
from validator.rounds import Round, facts_of
from validator.watchdog.facts import Facts, Fault, Following, Miner, RoundLook, Step, Transfer
from validator.watchdog.marks import Marks


def gather(board: Board, marks: Marks, until: Revision | None) -> Facts:
    """What is to be known now."""
    now_s, run, diary = board.now_s(), board.journal.state, board.diary
    leading = board.leadership.leading
    current = board.round if leading else None
    pause = "" if run.paused is None else pausing.told(run, run.paused)
    resting = until is not None and run.head >= until and run.open_round is None
    entry_s = marks.since("entry", run.next_seq, now_s)
    aborted = tuple(diary.aborted) if diary.aborted_on == run.head else ()
    return Facts(
        now_s=now_s,
        head=run.head,
        committed_s=marks.since("head", (run.head, resting, run.paused is None), now_s),
        resting=resting,
        paused=pause,
        paused_s=marks.since("paused", pause, now_s),
        step=_step(diary.step, marks),
        fault=_fault(board),
        round=None if current is None else _round(board, current, marks),
        transfers=(*_uploads(board, current, marks), *_reads(board, marks)),
        following=None if leading else _following(board, entry_s),
        aborted=aborted,
        aborted_s=diary.aborted_s,
        chain=None if board.membership.metagraph is None else board.membership.trouble,
        seat_lost_s=_seat_lost_s(board, marks),
    )


def _step(step: Step | None, marks: Marks) -> Step | None:
    """A step that began before this process slept is counted from its waking."""
    return None if step is None else Step(step.doing, max(step.since_s, marks.awake_s), step.merging)


def _fault(board: Board) -> Fault | None:
    """Where nobody's seat was ever known, it is the chain that is away."""
    fault, chain = board.diary.fault, board.membership.trouble
    if fault is not None and chain is not None and board.membership.metagraph is None:
        return Fault("chain", chain.said, fault.since_s)
    return fault


def _following(board: Board, entry_s: float) -> Following:
    run = board.journal.state
    leader = None if run.leader is None else run.leader[:8]
    return Following(leader, run.term, board.leadership.lease_since_s, entry_s, board.leadership.reason)


def _seat_lost_s(board: Board, marks: Marks) -> float | None:
    metagraph = board.membership.metagraph
    lost = metagraph is not None and metagraph.by_hotkey(board.signer.hotkey) is None
    since_s = marks.since("seat", lost, board.now_s())
    return since_s if lost else None


def _round(board: Board, current: Round, marks: Marks) -> RoundLook:
    now_s, run, state = board.now_s(), board.journal.state, current.state
    facts = facts_of(current, run, board.members, now_s)
    moved = (run.next_seq, state.phase, _signs(board, current, facts))
    live = any(member.live for member in facts.members)
    busy = any(member.live and member.trains for member in facts.members)
    name = state.round
    return RoundLook(
        round=name,
        phase=state.phase.value,
        since_s=max(state.since_s, marks.awake_s),
        deadline_s=None if state.deadline_s is None else max(state.deadline_s, marks.awake_s),
        moved_s=marks.since("round", moved, now_s),
        lived_s=marks.since("live", (name, live), now_s),
        trained_s=marks.since("busy", (name, busy), now_s),
        tokens=core.trained_tokens(facts),
        quorum_tokens=current.policy.quorum_tokens,
        miners=_miners(board, current, facts),
    )


def _signs(board: Board, current: Round, facts: RoundFacts) -> tuple[int, ...]:
    """What grows while a round makes progress: tokens, what came and was checked, bytes on their way, reads."""
    came = sum(found.complete + (found.finding is not None) for found in current.submissions.everything())
    beats = [member.beat for member in board.members if member.beat is not None]
    sent = sum(beat.upload.sent_bytes for beat in beats if beat.upload is not None)
    trained = sum(beat.counters.tokens for beat in beats)
    return core.trained_tokens(facts), trained, came, sent, board.reads.ended


def _miners(board: Board, current: Round, facts: RoundFacts) -> tuple[Miner, ...]:
    awaited = {member.hotkey: member for member in facts.members}
    found = []
    for member in sorted(board.members, key=lambda one: one.heard_s):
        known = awaited.get(member.hotkey)
        waits = known is not None and known.awaited and not known.delivered
        rate = known.rate if known is not None and waits else 0.0
        live = board.members.is_live(member, board.now_s())
        found.append(_miner(member, current, live, waits, rate, board.now_s()))
    return tuple(found)


def _miner(member: Member, current: Round, live: bool, waits: bool, rate: float, now_s: float) -> Miner:
    beat = member.beat
    doing = "" if beat is None else doing_of(beat)
    if beat is not None and trains(member, current.state.round):
        doing = f"{doing}, {round_tokens(member, current.state.round)} tokens"
    return Miner(short(member.hotkey), live, waits, doing, max(0.0, now_s - member.heard_s), rate)


def doing_of(beat: Heartbeat) -> str:
    """What a miner says that it does."""
    upload = beat.upload
    if upload is None or beat.phase is not Phase.UPLOADING:
        return beat.phase.value
    return f"{beat.phase.value} {format_bytes(upload.sent_bytes)} of {format_bytes(upload.size_bytes)}"


def short(hotkey: Hotkey) -> str:
    """A miner's name in a sentence."""
    return hotkey[:8]


def _uploads(board: Board, current: Round | None, marks: Marks) -> tuple[Transfer, ...]:
    """Of miners that live, what they say to be sending; and what they announced, when they don't say."""
    found: dict[tuple[str, str], Transfer] = {}
    now_s = board.now_s()
    for member in board.members:
        beat = member.beat
        if beat is None or not board.members.is_live(member, now_s):
            continue
        sending, name = beat.upload, ("upload", member.hotkey)
        announced_s = None if current is None else coming_since_s(current, member.hotkey)
        if sending is None and announced_s is None:
            continue
        value = None if sending is None else (sending.size_bytes, sending.sent_bytes)
        moved_s = marks.since(name, value, now_s)
        size_bytes = None if sending is None else sending.size_bytes
        what = "of a delta" if current is None else f"for round {current.state.round}"
        sent_bytes = None if sending is None else sending.sent_bytes
        found[name] = Transfer(short(member.hotkey), what, moved_s, sent_bytes, size_bytes, beat.note)
    marks.keep("upload", found)
    return tuple(found.values())


def coming_since_s(current: Round, hotkey: Hotkey) -> float | None:
    """When a final was announced that has not arrived; None when none is on its way."""
    held = current.submissions.held().get(hotkey)
    return held.coming_since_s if held is not None and held.coming_bytes and current.takes_submissions else None


def _reads(board: Board, marks: Marks) -> tuple[Transfer, ...]:
    under_way = board.reads.under_way()
    return tuple(Transfer("", one.key, max(one.since_s, marks.awake_s), None, one.size_bytes) for one in under_way)
