"""From what was submitted to the members of the plan: who is merged, with which exact weight and scale, and why.

Joins three judgements in order: whether the bytes came, what their check found, and the gates of ``common.merge``.
Three kinds of entrants: of this round, adopted from an aborted round on the same base, and late (what the last plan
deferred). Pure but for ``read``, which gives the bytes of a checked delta. Invariants, property-tested: every entrant
becomes exactly one member, members are ordered by shard, hotkey and round, and the log's rules accept the plan; weight
and scale are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from common.codec.params import delta_params
from common.merge.gates import Accepted, Candidate, Decision, decide
from common.merge.group import GroupStats
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, ShardId
from validator.comparing import Source, Unreadable, compare, seed_of
from validator.judgement import Judgement, Merged, judgement
from validator.round.tokens import Seen, Terms, validated_tokens
from validator.submissions import Standing, Submission

ReadDelta = Callable[[Submission], bytes]
"""The bytes of a checked delta. Raises ``Rejected`` for a delta that is not what was announced, else ``Retryable``."""
MAX_REASON = 300
Outside = Literal["rejected", "deferred"]


@dataclass(frozen=True)
class Entrant:
    """One member of the plan to be, and what was seen of its sender's work for it."""

    standing: Standing
    seen: Seen
    support: float | None
    """Times the usual rate that the drops of its earlier deltas have shown; None before."""

    @property
    def hotkey(self) -> Hotkey:
        return self.standing.order[1]


@dataclass(frozen=True)
class _Runner:
    """An entrant that reached the gates: its member but for the decision, and its submission."""

    member: PlanMember
    submission: Submission


def judge(
    spec: RunSpec,
    base: Revision,
    merged: Merged,
    entrants: Sequence[Entrant],
    counts: Mapping[ShardId, int],
    read: ReadDelta,
    terms: Terms,
) -> Judgement:
    """Judge all entrants of a round on ``base``; ``counts`` gives each shard's number of values.

    Raises ``Retryable`` when ``read`` does: then nothing was decided.
    """
    gates = _Gates(spec, base, merged, read, terms)
    members: list[PlanMember] = []
    for shard in sorted({entrant.standing.order[0] for entrant in entrants}):
        own = [entrant for entrant in entrants if entrant.standing.order[0] == shard]
        members += gates.judge_shard(own, counts[shard])
    members.sort(key=lambda member: (member.shard, member.hotkey, member.round))
    submissions = [e.standing.submission for e in entrants if e.standing.submission is not None]
    coldkeys = {submission.seat.hotkey: submission.seat.coldkey for submission in submissions}
    return judgement(spec, base, members, coldkeys, _watched(entrants, members, base))


def _watched(
    entrants: Sequence[Entrant], members: Sequence[PlanMember], base: Revision
) -> dict[Hotkey, tuple[int, float]]:
    tokens: dict[Hotkey, int] = {}
    for member in members:
        if member.decision == "accepted" and member.base_revision == base:
            tokens[member.hotkey] = tokens.get(member.hotkey, 0) + member.tokens
    timed = (e for e in entrants if e.standing.kind != "late" and e.seen.watched)
    seconds = {e.hotkey: e.seen.seconds for e in timed if e.seen.seconds is not None}
    return {hotkey: (tokens[hotkey], seconds[hotkey]) for hotkey in tokens.keys() & seconds.keys()}


@dataclass(frozen=True)
class _Gates:
    """The arguments of ``judge`` that hold for all shards."""

    spec: RunSpec
    base: Revision
    merged: Merged
    read: ReadDelta
    terms: Terms

    def judge_shard(self, entrants: Sequence[Entrant], count: int) -> list[PlanMember]:
        found = [_early(entrant, self.terms) for entrant in entrants]
        members = [member for member in found if isinstance(member, PlanMember)]
        runners = sorted((r for r in found if isinstance(r, _Runner)), key=lambda r: r.member.base_revision)
        stats = self._compare(runners, count)
        while isinstance(stats, Unreadable):
            lost = runners.pop(stats.index)
            members.append(_out(lost.member, "rejected", stats.refusal.code, stats.refusal.message))
            stats = self._compare(runners, count)
        decisions = self._decide(runners, stats)
        return members + [_decided(r.member, decision) for r, decision in zip(runners, decisions, strict=True)]

    def _compare(self, runners: Sequence[_Runner], count: int) -> GroupStats | Unreadable:
        sources = [
            Source(delta_params(self.spec.codec, runner.member.base_revision), partial(self.read, runner.submission))
            for runner in runners
        ]
        return compare(sources, count, seed_of([runner.submission.receipt for runner in runners]))

    def _decide(self, runners: Sequence[_Runner], stats: GroupStats) -> tuple[Decision, ...]:
        order = sorted(range(len(runners)), key=lambda i: _arrival(runners[i].submission))
        rank = {i: place for place, i in enumerate(order)}
        candidates = [self._candidate(runner, rank[i]) for i, runner in enumerate(runners)]
        bases = {runner.member.base_revision: self.spec.round.late_weight for runner in runners} | {self.base: 1.0}
        return decide(candidates, stats, self.spec.gates, bases)

    def _candidate(self, runner: _Runner, rank: int) -> Candidate:
        member = runner.member
        return Candidate(
            hotkey=member.hotkey,
            coldkey=runner.submission.seat.coldkey,
            base=member.base_revision,
            tokens=member.tokens,
            received=rank,
            newcomer=(member.hotkey, member.registered_block) not in self.merged,
        )


def _early(entrant: Entrant, terms: Terms) -> _Runner | PlanMember:
    """What needs no comparison with the others: the member, or what the gates have to look at."""
    submission = entrant.standing.submission
    member = _member(entrant, terms)
    if submission is None or submission.finding is None:
        if entrant.standing.kind == "late":
            return _out(member, "rejected", "too_late", "the last plan deferred it, and it has not come whole since")
        return _out(member, "deferred", "incomplete", "receipted, but not all of it was there at the freeze")
    if not submission.finding.ok:
        return _out(member, "rejected", submission.finding.code, submission.finding.reason)
    return _Runner(member, submission)


def _member(entrant: Entrant, terms: Terms) -> PlanMember:
    """The entrant as plan member, with its validated tokens, not yet decided."""
    deferred, submission = entrant.standing.deferred, entrant.standing.submission
    if deferred is not None:
        return replace(deferred, reason=f"late: {deferred.tokens} tokens, validated by the plan that deferred it")
    assert submission is not None
    manifest, seat = submission.manifest, submission.seat
    tokens, told = validated_tokens(manifest.tokens, entrant.seen, entrant.support, terms)
    return PlanMember(
        shard=manifest.shard,
        hotkey=manifest.signer,
        round=manifest.round,
        base_revision=manifest.base_revision,
        uid=seat.uid,
        registered_block=seat.registered_block,
        delta=manifest.delta,
        manifest_sha256=submission.receipt.manifest_sha256,
        tokens_claimed=manifest.tokens,
        tokens=tokens,
        decision="deferred",
        code="",
        reason=told,
        weight=0.0,
        scale=0.0,
    )


def _out(member: PlanMember, decision: Outside, code: str, reason: str) -> PlanMember:
    return replace(member, decision=decision, code=code, reason=reason[:MAX_REASON], weight=0.0, scale=0.0)


def _decided(member: PlanMember, decision: Decision) -> PlanMember:
    if not isinstance(decision, Accepted):
        return _out(member, "rejected", decision.code, decision.reason)
    reason = f"{decision.reason}; {member.reason}"[:MAX_REASON]
    return replace(member, decision="accepted", code="", reason=reason, weight=decision.weight, scale=decision.scale)


def _arrival(submission: Submission) -> tuple[int, str]:
    return submission.receipt.received_ms, submission.manifest.signer
