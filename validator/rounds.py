"""One round as the leader holds it: machine state, submissions, and what has been worked out so far.

Invariant: what the log says about the round always comes from the log's state, so that an append whose reply was lost,
a restart and a takeover all lead to the same facts. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from loguru import logger

from common.errors import Rejected
from common.runlog.entries import PlanMember
from common.runlog.remerge import read_plan
from common.runlog.rules import CONTENT_FAILURES
from common.runlog.state import OpenRound, RevisionNode, RunState
from common.store.port import ObjectReader
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256
from validator.judgement import Judgement, judgement_of
from validator.members import Members
from validator.merging import Merged
from validator.round import core
from validator.round.deadlines import Deadlines, policy_of
from validator.round.facts import Harm, Held, Phase, RoundFacts, RoundPolicy, RoundState
from validator.submissions import Line, Submissions

MOST_MADE_UP = 8
"""Rounds whose missing reports a new process makes up for."""


@dataclass
class Round:
    """The open round."""

    opened: OpenRound
    """As the log last showed it open."""
    state: RoundState
    policy: RoundPolicy
    submissions: Submissions
    why_frozen: str = ""
    dripped_s: dict[Line, float] = field(default_factory=dict)
    """When each line last announced a drip."""
    judgement: Judgement | None = None
    """What the newest plan says, or what the first one will say."""
    redo: Judgement | None = None
    """What the next plan will say, since the merge of the newest does harm."""
    merged: Merged | None = None
    harm: Harm | None = None
    measured: tuple[str, ...] = ()
    """What the guard measured of all plans that this process merged."""
    why_harm: str = ""
    """Of the newest of them, in one sentence."""
    lies: dict[Hotkey, str] = field(default_factory=dict)
    """Who handed in a wrong mean of a partition, and which."""
    failure: str = ""
    failure_evidence: tuple[str, ...] = ()

    @property
    def takes_submissions(self) -> bool:
        return self.state.phase in (Phase.OPEN, Phase.CLOSING) and not self.submissions.closed

    def follow(self, run: RunState, coldkeys: Callable[[], Mapping[Hotkey, Coldkey]]) -> None:
        """Take up what the log says of the round: of a plan that is new to us, nothing is worked out yet."""
        opened = run.open_round
        if opened is None or opened.round != self.state.round:
            return
        self.opened = opened
        plan = opened.plan
        if plan is None or (self.judgement is not None and self.judgement.members == plan.members):
            return
        known = self.redo is not None and self.redo.members == plan.members
        self.judgement = self.redo if known else judgement_of(run.spec, plan, coldkeys())
        self.redo = self.harm = self.merged = None

    def named(self) -> dict[Hotkey, Sha256]:
        """Of each hotkey the delta on the round's base that the plan names."""
        members = self.opened.plan.members if self.opened.plan else ()
        return {m.hotkey: m.delta.sha256 for m in members if m.base_revision == self.state.base_revision}

    def came(self) -> set[Hotkey]:
        """Who has brought anything whole, be it late."""
        return self.submissions.came()

    def give_up(self, code: str, *evidence: str) -> None:
        """Note that the plan can't be merged, ever."""
        self.failure, self.failure_evidence = code, evidence


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
    lies: Mapping[Hotkey, str] = field(default_factory=dict)
    """Who handed in a wrong mean of a partition, as this validator saw it."""


def carried_on(current: Round) -> Submissions | None:
    """What the next round takes over of one that has ended; None when only the bucket tells what may count still.

    What failed for its content is not taken over: the same deltas would fail the next round as well.
    """
    failed = current.state.phase is Phase.ABORTED and current.state.code in CONTENT_FAILURES
    return None if failed else current.submissions


def begin(run: RunState, now_s: float, held: Held | None = None) -> Round:
    """Hold the log's open round; deadlines start now, and ``held`` is the time before that none counts."""
    opened = run.open_round
    assert opened is not None
    base = opened.base_revision
    policy = policy_of(run.spec, base, aborted=opened.round - run.first_round)
    state = core.resume(opened.round, opened.base_revision, opened.plan is not None, now_s, policy, held)
    most = Deadlines.of(run.spec).most_manifests
    return Round(opened, state, policy, Submissions(opened.round, opened.base_revision, run.deferred, most))


def facts_of(current: Round, run: RunState, members: Members, now_s: float) -> RoundFacts:
    """Everything that bears on the round now."""
    round_id = current.state.round
    opened = run.open_round if run.open_round and run.open_round.round == round_id else None
    ended = None
    if opened is None:
        ended = Phase.COMMITTED if run.head_node.round == round_id else Phase.ABORTED
    terms = members.terms(run.spec, current.state, now_s)
    return RoundFacts(
        members=members.facts(round_id, current.submissions.held(), now_s, terms),
        verdict=current.judgement.verdict if current.judgement else None,
        attempt=opened.plan.attempt if opened is not None and opened.plan is not None else None,
        harm=current.harm,
        reduced=current.merged is not None,
        ended=ended,
        failure=current.failure,
        failure_evidence=current.failure_evidence,
        shards=_shards(current, run),
    )


def _shards(current: Round, run: RunState) -> int:
    """Shards of which something has come whole; of one shard the tokens tell as much."""
    if run.spec.num_shards == 1:
        return 1
    found = (standing.submission for standing in current.submissions.for_plan())
    return len({submission.manifest.shard for submission in found if submission is not None and submission.complete})


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
        dict(current.lies),
    )


def unreported(run: RunState, reader: ObjectReader, reported: RoundId | None) -> list[Finished]:
    """The committed rounds after the newest reported one, oldest first, from log and bucket; also those that a rollback
    left behind, since their work was done, but not what retention has deleted. Blocking.

    At most ``MOST_MADE_UP``, the newest: each takes a trial of every delta.
    """
    made = sorted(run.revisions.values(), key=lambda node: node.revision)
    nodes = [node for node in made if node.round is not None and node.revision > run.floor]
    missing = [node for node in nodes if reported is None or (node.round is not None and node.round > reported)]
    found = (finished_as_committed(run, reader, node) for node in missing[-MOST_MADE_UP:])
    return [finished for finished in found if finished is not None]


def finished_as_committed(run: RunState, reader: ObjectReader, node: RevisionNode) -> Finished | None:
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
