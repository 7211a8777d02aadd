"""A round's submissions as a new leader finds them again in the bucket.

A manifest object says that its delta has arrived; that of a final that it was checked as well. Read are those of the
open round, those of aborted rounds on the same base, and those of the late ones that the last plan deferred. What a
round held that was aborted for its content is not adopted, since the same deltas would fail the next one as well:
their senders bring more work on the same base. Blocking; ``Retryable`` when the store stays away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loguru import logger

from common import keys
from common.errors import Rejected, Retryable
from common.records import MAX_MANIFEST_BYTES, StoredSubmission, decode_submission
from common.runlog.entries import PlanMember
from common.runlog.state import OpenRound, RunState
from common.store.port import ObjectInfo, ObjectMissing, ObjectReader, ObjectStore
from common.units import Coldkey, Hotkey, RoundId, ShardId, Uid
from validator.checks import Finding
from validator.logtail import last_content_failure
from validator.membership import Membership, Seat
from validator.outages import only_facts
from validator.submissions import Submission

MOST_ADOPTED = 32
"""Aborted rounds, the newest, from which work is adopted."""
NEWEST_READ = 2
"""Of each line and round: the newest counts, and the one before it should that be damaged."""


def restore(
    store: ObjectStore,
    reader: ObjectReader,
    run: RunState,
    opened: OpenRound,
    seats: Mapping[Hotkey, Seat],
    now_s: float,
    patient: bool = True,
) -> list[Submission]:
    """Everything in the bucket that may count for the open round, oldest round first.

    Not ``patient``: a manifest that the storage does not give is left out; its sender, if it lives, announces it again.
    """
    read = read_manifest if patient else _read_or_leave_out
    found = [_late(read, reader, run, member, seats, now_s) for member in run.deferred]
    for round_id in range(_first_round(reader, run, opened), opened.round + 1):
        for info in _newest(store, run, RoundId(round_id)):
            stored = read(reader, run, info.key)
            if stored is not None and stored.manifest.base_revision == opened.base_revision:
                found.append(_restored(stored, seats, now_s))
    return [submission for submission in found if submission is not None]


def oldest_adopted(run: RunState, opened: OpenRound) -> RoundId:
    """The oldest round whose work the open one may take over, if none failed for its content since. Pure."""
    return RoundId(max(run.first_round, opened.round - MOST_ADOPTED))


def known_seats(membership: Membership, hotkeys: set[Hotkey]) -> dict[Hotkey, Seat]:
    """The seats of those that have one now."""
    seats = ((hotkey, membership.known(hotkey)) for hotkey in sorted(hotkeys))
    return {hotkey: seat for hotkey, seat in seats if seat is not None}


def read_manifest(reader: ObjectReader, run: RunState, key: str) -> StoredSubmission | None:
    """The submission at a key, if there is one with the receipt of a leader.

    ``Retryable`` for the receipt of a term later than the log as read so far: who sees that was replaced without
    knowing it, and must not take the object for nobody's.
    """
    try:
        with only_facts():
            body = reader.fetch(key, max_bytes=MAX_MANIFEST_BYTES)
        stored = decode_submission(body, run.run)
    except ObjectMissing:
        return None
    except Rejected as refusal:
        logger.warning("{} is no submission: {}", key, refusal)
        return None
    if stored.receipt.term > run.term:
        raise Retryable(f"{key} has a receipt of term {stored.receipt.term}: the log, as read so far, has not begun it")
    if run.leader_of(stored.receipt.term) != stored.receipt.signer or stored.manifest.key[:-6] != key[:-5]:
        logger.warning("{} has no receipt of a leader of this run", key)
        return None
    return stored


def _read_or_leave_out(reader: ObjectReader, run: RunState, key: str) -> StoredSubmission | None:
    try:
        return read_manifest(reader, run, key)
    except Retryable as fault:
        logger.warning("{} is left out of the round: {}", key, fault)
        return None


def _first_round(reader: ObjectReader, run: RunState, opened: OpenRound) -> RoundId:
    """The first round on the open one's base whose work may count still."""
    first = oldest_adopted(run, opened)
    failed = None if first == opened.round else last_content_failure(reader, run, first)
    return first if failed is None else RoundId(failed + 1)


def _newest(store: ObjectStore, run: RunState, round_id: RoundId) -> list[ObjectInfo]:
    """The manifest objects of a round, of each line the newest."""
    lines: dict[tuple[ShardId | None, Hotkey | None], list[ObjectInfo]] = {}
    with only_facts():
        for info in store.list(keys.round_prefix(run.run, round_id)):
            parts = keys.parse_key(run.run, info.key)
            if parts is not None and parts.kind == "manifest":
                lines.setdefault((parts.shard, parts.hotkey), []).append(info)
    newest = (sorted(line, key=lambda info: info.modified_s)[-NEWEST_READ:] for line in lines.values())
    return [info for line in newest for info in line]


def _restored(stored: StoredSubmission, seats: Mapping[Hotkey, Seat], now_s: float) -> Submission:
    """A final was read before its manifest object was put; a drip is read at the freeze."""
    hotkey, final = stored.manifest.signer, stored.manifest.final
    seat = seats.get(hotkey, _lost_seat(hotkey))
    return Submission(stored, seat, now_s, final, now_s, Finding() if final else None)


def _late(
    read: Callable[[ObjectReader, RunState, str], StoredSubmission | None],
    reader: ObjectReader,
    run: RunState,
    member: PlanMember,
    seats: Mapping[Hotkey, Seat],
    now_s: float,
) -> Submission | None:
    key = keys.manifest_key(run.run, member.round, member.shard, member.hotkey, member.delta.sha256)
    stored = read(reader, run, key)
    if stored is None or stored.manifest_record.sha256 != member.manifest_sha256:
        return None
    known = seats.get(member.hotkey)
    seat = Seat(member.hotkey, known.coldkey if known else Coldkey(member.hotkey), member.uid, member.registered_block)
    return Submission(stored, seat, now_s, stored.manifest.final, now_s)


def _lost_seat(hotkey: Hotkey) -> Seat:
    """For a receipted submission whose sender left the subnet meanwhile: it stays in the plan and is never paid."""
    return Seat(hotkey, Coldkey(hotkey), Uid(0), 0)
