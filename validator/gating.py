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

from common.codec.params import F32, delta_params
from common.errors import Rejected
from common.merge.gates import Accepted, Candidate, Decision, decide
from common.merge.group import GroupStats
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, ShardId
from validator.comparing import Source, Unreadable, compare, compare_values, seed_of
from validator.judgement import Judgement, Merged, judgement
from validator.outages import FACTS
from validator.round.tokens import Seen, Terms, validated_tokens
from validator.submissions import Standing, Submission

ReadDelta = Callable[[Submission], bytes]
"""The bytes of a checked delta. Raises ``Rejected`` for a delta that is not what was announced, else ``Retryable``."""
ValuesOf = Callable[[Submission], F32]
"""What a checked delta decodes to."""
MAX_REASON = 300
Verb = Literal["accepted", "rejected", "deferred"]


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


@dataclass(slots=True)
class _Runner:
    """An entrant with its validated tokens."""

    entrant: Entrant
    submission: Submission | None
    base: Revision
    """What it was made on."""
    registered_block: int
    tokens: int
    told: str
    """Why so many."""

    def decided(self, decision: Verb, code: str, reason: str, weight: float = 0.0, scale: float = 0.0) -> PlanMember:
        """The member of the plan."""
        reason, deferred = reason[:MAX_REASON], self.entrant.standing.deferred
        if deferred is not None:
            return replace(deferred, decision=decision, code=code, reason=reason, weight=weight, scale=scale)
        assert self.submission is not None
        manifest, seat = self.submission.manifest, self.submission.seat
        return PlanMember(
            shard=manifest.shard,
            hotkey=manifest.signer,
            round=manifest.round,
            base_revision=manifest.base_revision,
            uid=seat.uid,
            registered_block=seat.registered_block,
            delta=manifest.delta,
            manifest_sha256=self.submission.receipt.manifest_sha256,
            tokens_claimed=manifest.tokens,
            tokens=self.tokens,
            decision=decision,
            code=code,
            reason=reason,
            weight=weight,
            scale=scale,
        )


def sharing(entrants: Sequence[Entrant], lives: Callable[[Hotkey], bool]) -> int:
    """How many share a round's target: who has brought something to it, or lives. Not the dead whose work of aborted
    rounds is adopted: each abort would leave less to the living."""
    return len({e.hotkey for e in entrants if e.standing.kind == "fresh" or lives(e.hotkey)})


def judge(
    spec: RunSpec,
    base: Revision,
    merged: Merged,
    entrants: Sequence[Entrant],
    counts: Mapping[ShardId, int],
    read: ReadDelta,
    terms: Terms,
    values_of: ValuesOf | None = None,
) -> Judgement:
    """Judge all entrants of a round on ``base``; ``counts`` gives each shard's number of values.

    ``values_of`` is for whoever has the deltas decoded already.

    Raises ``Retryable`` when ``read`` does: then nothing was decided.
    """
    gates = _Gates(spec, base, merged, read, terms, values_of)
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
    seconds = {e.hotkey: e.seen.proof_s for e in timed if e.seen.proof_s is not None}
    return {hotkey: (tokens[hotkey], seconds[hotkey]) for hotkey in tokens.keys() & seconds.keys()}


@dataclass(frozen=True)
class _Gates:
    """The arguments of ``judge`` that hold for all shards."""

    spec: RunSpec
    base: Revision
    merged: Merged
    read: ReadDelta
    terms: Terms
    values_of: ValuesOf | None

    def judge_shard(self, entrants: Sequence[Entrant], count: int) -> list[PlanMember]:
        runners, members = [], []
        for entrant in entrants:
            runner = _runner(entrant, self.terms)
            early = _early(runner)
            if early is None:
                runners.append(runner)
            else:
                members.append(early)
        runners.sort(key=lambda runner: runner.base)
        stats = self._compare(runners, count)
        while isinstance(stats, Unreadable):
            refusal = stats.refusal
            members.append(_unread(runners.pop(stats.index), refusal))
            stats = self._compare(runners, count)
        decisions = self._decide(runners, stats)
        return members + [_judged(runner, decision) for runner, decision in zip(runners, decisions, strict=True)]

    def _compare(self, runners: Sequence[_Runner], count: int) -> GroupStats | Unreadable:
        params = {base: delta_params(self.spec.codec, base) for base in {runner.base for runner in runners}}
        submissions = [_submission(runner) for runner in runners]
        seed = seed_of([submission.receipt for submission in submissions])
        if self.values_of is not None:
            return compare_values([self.values_of(submission) for submission in submissions], count, seed)
        sources = [Source(params[s.manifest.base_revision], partial(self.read, s)) for s in submissions]
        return compare(sources, count, seed)

    def _decide(self, runners: Sequence[_Runner], stats: GroupStats) -> tuple[Decision, ...]:
        arrivals = [_arrival(_submission(runner)) for runner in runners]
        rank = {i: place for place, i in enumerate(sorted(range(len(runners)), key=arrivals.__getitem__))}
        candidates = [self._candidate(runner, rank[i]) for i, runner in enumerate(runners)]
        bases = {runner.base: self.spec.round.late_weight for runner in runners} | {self.base: 1.0}
        return decide(candidates, stats, self.spec.gates, bases)

    def _candidate(self, runner: _Runner, rank: int) -> Candidate:
        seat = _submission(runner).seat
        return Candidate(
            hotkey=seat.hotkey,
            coldkey=seat.coldkey,
            base=runner.base,
            tokens=runner.tokens,
            received=rank,
            newcomer=(seat.hotkey, runner.registered_block) not in self.merged,
        )


def _runner(entrant: Entrant, terms: Terms) -> _Runner:
    submission, deferred = entrant.standing.submission, entrant.standing.deferred
    if deferred is not None:
        told = f"late: {deferred.tokens} tokens, validated by the plan that deferred it"
        return _Runner(entrant, submission, deferred.base_revision, deferred.registered_block, deferred.tokens, told)
    assert submission is not None
    manifest = submission.manifest
    tokens, told = validated_tokens(manifest.tokens, entrant.seen, entrant.support, terms)
    return _Runner(entrant, submission, manifest.base_revision, submission.seat.registered_block, tokens, told)


def _unread(runner: _Runner, refusal: Rejected) -> PlanMember:
    """It was whole when it was checked: what the storage has lost since is not its sender's fault."""
    code = "not_uploaded" if refusal.code in FACTS else refusal.code
    return runner.decided("rejected", code, refusal.message)


def _early(runner: _Runner) -> PlanMember | None:
    """What needs no comparison with the others."""
    finding = None if runner.submission is None else runner.submission.finding
    if finding is None and runner.entrant.standing.kind == "late":
        return runner.decided("rejected", "too_late", "the last plan deferred it, and it has not come whole since")
    if finding is None:
        return runner.decided("deferred", "incomplete", "receipted, but not all of it was there at the freeze")
    return None if finding.ok else runner.decided("rejected", finding.code, finding.reason)


def _judged(runner: _Runner, decision: Decision) -> PlanMember:
    if not isinstance(decision, Accepted):
        return runner.decided("rejected", decision.code, decision.reason)
    reason = f"{decision.reason}; {runner.told}"
    return runner.decided("accepted", "", reason, decision.weight, decision.scale)


def _submission(runner: _Runner) -> Submission:
    assert runner.submission is not None
    return runner.submission


def _arrival(submission: Submission) -> tuple[int, str]:
    return submission.receipt.received_ms, submission.manifest.signer
