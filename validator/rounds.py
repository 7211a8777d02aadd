"""One round as the leader holds it: machine state, submissions, and what has been worked out so far.

Invariant: what the log says about the round always comes from the log's state, so that an append whose reply was lost,
a restart and a takeover all lead to the same facts. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loguru import logger

from common import keys
from common.errors import Rejected
from common.records import MAX_MANIFEST_BYTES, StoredSubmission, decode_submission
from common.runlog.entries import PlanMember
from common.runlog.remerge import read_plan
from common.runlog.state import OpenRound, RevisionNode, RunState
from common.spec import RunSpec
from common.store.port import ObjectMissing, ObjectReader, ObjectStore
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, Uid
from validator.checks import Finding
from validator.gating import Judgement
from validator.members import Members
from validator.membership import Membership, Seat
from validator.merging import Merged
from validator.outages import only_facts
from validator.round import core
from validator.round.facts import MemberFacts, Phase, RoundFacts, RoundPolicy, RoundState
from validator.round.tokens import Seen, Terms, round_usual, validated_tokens
from validator.submissions import Submission, Submissions

MOST_MADE_UP = 8
"""Rounds whose missing reports a new process makes up for."""


@dataclass
class Round:
    """The open round."""

    opened: OpenRound
    """As the log last showed it open."""
    watched: bool
    """Whether this process opened it; otherwise it came later, and times of members are unknown."""
    state: RoundState
    submissions: Submissions
    opened_s: float
    base_sha256: Sha256
    judgement: Judgement | None = None
    merged: Merged | None = None
    failure: str = ""
    failure_reason: str = ""

    @property
    def takes_submissions(self) -> bool:
        return self.state.phase in (Phase.OPEN, Phase.CLOSING) and not self.submissions.closed

    def seen(self, members: Members, hotkey: Hotkey, until_s: float) -> Seen:
        """What was seen of a member's work for this round."""
        return members.seen(hotkey, self.state.round, self.opened_s if self.watched else None, until_s)


@dataclass(frozen=True)
class Finished:
    """A round that the log has ended: what scoring needs, all of it from log and bucket."""

    run: RunState
    """The log after the end of the round."""
    round: RoundId
    base_revision: Revision
    committed: bool
    members: tuple[PlanMember, ...]
    """Of the plan, or of what would have been one when there was none."""
    plan_sha256: Sha256 | None
    """Hash of the slot that holds the plan."""


def begin(run: RunState, now_s: float, policy: RoundPolicy, watched: bool) -> Round:
    """Hold the log's open round, ``watched`` if it was opened just now; deadlines start now."""
    opened = run.open_round
    assert opened is not None
    state = core.resume(opened.round, opened.base_revision, opened.plan is not None, now_s, policy)
    submissions = Submissions(opened.round)
    submissions.closed = opened.plan is not None
    return Round(opened, watched, state, submissions, now_s, run.revisions[opened.base_revision].sha256)


def facts_of(current: Round, run: RunState, members: Members, now_s: float) -> RoundFacts:
    """Everything that bears on the round now."""
    round_id = current.state.round
    opened = run.open_round if run.open_round and run.open_round.round == round_id else None
    ended = None
    if opened is None:
        ended = Phase.COMMITTED if run.head_node.round == round_id else Phase.ABORTED
    claimed = members.facts(round_id, current.submissions.delivered(), now_s)
    return RoundFacts(
        members=_believed(claimed, current, run.spec, members, now_s),
        verdict=current.judgement.verdict if current.judgement else None,
        planned=opened is not None and opened.plan is not None,
        reduced=current.merged is not None,
        ended=ended,
        failure=current.failure,
    )


def terms_of(spec: RunSpec, members: Members, round_id: RoundId, count: int, now_s: float) -> Terms:
    """What bounds the claims in a round that ``count`` members share."""
    limits, usual = spec.round, round_usual(members.proven(), members.claimed_rates(round_id, now_s))
    return Terms(limits.target_tokens, count, limits.train_deadline_s, spec.gates.claim_slack, usual)


def _believed(
    claimed: tuple[MemberFacts, ...], current: Round, spec: RunSpec, members: Members, now_s: float
) -> tuple[MemberFacts, ...]:
    """The facts with tokens cut to what the plan could count: no heartbeat of one ends the round of all."""
    count = len(claimed)  # all who live, at work already or not: the first to speak has no larger share
    terms = terms_of(spec, members, current.state.round, count, now_s)
    supported = members.supported()
    return tuple(
        replace(
            fact,
            tokens=validated_tokens(
                fact.tokens, current.seen(members, fact.hotkey, now_s), supported.get(fact.hotkey), terms
            )[0],
        )
        for fact in claimed
    )


def finished(current: Round, run: RunState) -> Finished:
    """The round as the log ended it."""
    plan = current.opened.plan
    judged = current.judgement.members if current.judgement else ()
    committed = current.state.phase is Phase.COMMITTED
    return Finished(
        run,
        current.state.round,
        current.state.base_revision,
        committed,
        plan.members if plan else judged,
        current.opened.plan_sha256,
    )


def unreported(run: RunState, reader: ObjectReader, reported: RoundId | None) -> list[Finished]:
    """The rounds of the head's lineage after the newest reported one, oldest first, from log and bucket. Blocking.

    At most ``MOST_MADE_UP``, the newest: each takes a trial of every delta.
    """
    nodes = [node for node in run.lineage(run.head) if node.round is not None]
    missing = [node for node in nodes if reported is None or (node.round is not None and node.round > reported)]
    found = (_committed(run, reader, node) for node in missing[-MOST_MADE_UP:])
    return [finished for finished in found if finished is not None]


def _committed(run: RunState, reader: ObjectReader, node: RevisionNode) -> Finished | None:
    """A committed round, with the log as if its revision were the head still; None when its plan can't be read."""
    assert node.round is not None
    assert node.parent is not None
    try:
        plan = read_plan(reader, run, node)
    except Rejected as refusal:
        logger.error("round {} has no report and can't get one: {}", node.round, refusal)
        return None
    then = replace(run, head=node.revision)
    return Finished(then, node.round, node.parent, True, plan.members, node.plan_sha256)


def restore_submissions(
    store: ObjectStore, run: RunState, known: Mapping[Hotkey, Seat], received_s: float
) -> list[Submission]:
    """The checked submissions of the open round, from the manifest objects in the bucket. Blocking."""
    opened = run.open_round
    assert opened is not None
    found = []
    with only_facts():
        listed = list(store.list(keys.round_prefix(run.run, opened.round)))
    for info in listed:
        parts = keys.parse_key(run.run, info.key)
        if parts is None or parts.kind != "manifest":
            continue
        stored = read_manifest(store, run, info.key)
        if stored is not None and stored.manifest.base_revision == opened.base_revision:
            hotkey = stored.manifest.signer
            found.append(Submission(stored, known.get(hotkey, _lost_seat(hotkey)), received_s, Finding()))
    return found


def known_seats(membership: Membership, hotkeys: set[Hotkey]) -> dict[Hotkey, Seat]:
    """The seats of those that have one now."""
    seats = ((hotkey, membership.known(hotkey)) for hotkey in sorted(hotkeys))
    return {hotkey: seat for hotkey, seat in seats if seat is not None}


def read_manifest(store: ObjectStore, run: RunState, key: str) -> StoredSubmission | None:
    """The checked submission at a key, if there is one with the receipt of a leader. Blocking; ``Retryable``."""
    try:
        with only_facts():
            body = store.get(key, max_bytes=MAX_MANIFEST_BYTES).body
        stored = decode_submission(body, run.run)
    except (ObjectMissing, Rejected) as refusal:
        logger.warning("{} is no submission: {}", key, refusal)
        return None
    if run.leader_of(stored.receipt.term) != stored.receipt.signer or stored.manifest.key[:-6] != key[:-5]:
        logger.warning("{} has no receipt of a leader of this run", key)
        return None
    return stored


def _lost_seat(hotkey: Hotkey) -> Seat:
    """For a receipted submission whose sender left the subnet meanwhile: it stays in the plan and is never paid."""
    return Seat(hotkey, Coldkey(hotkey), Uid(0), 0)
