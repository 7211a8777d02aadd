"""From a round's submissions to the members of its plan: who is merged, with which exact weight and scale, and why.

Joins three judgements in order: what the check of the bytes found, whether the base is the round's, and the gates of
``common.merge``. Pure but for ``read``, which gives the bytes of a checked delta. Invariants: every receipted
submission becomes exactly one member; members are ordered by shard and hotkey; weight and scale are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.codec.container import decode_stream
from common.codec.params import CodecParams, delta_params
from common.errors import Rejected
from common.merge.gates import Accepted, Candidate, Decision, decide
from common.merge.group import GroupStats, GroupStatsBuilder
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, ShardId
from validator.round.facts import Verdict
from validator.round.tokens import Seen, Terms, validated_tokens
from validator.submissions import Submission

ReadDelta = Callable[[Submission], bytes]
MAX_REASON = 300


@dataclass(frozen=True)
class Entrant:
    """A submission and what was seen of its sender's work."""

    submission: Submission
    seen: Seen
    support: float | None
    """Times the usual rate that the drops of its earlier deltas have shown; None before."""

    @property
    def hotkey(self) -> Hotkey:
        return self.submission.manifest.signer


@dataclass(frozen=True)
class Judgement:
    """What the plan will say."""

    members: tuple[PlanMember, ...]
    verdict: Verdict
    watched: Mapping[Hotkey, tuple[int, float]]
    """Validated tokens and seconds of the accepted ones whose work was watched: what a rate is proven by."""


@dataclass(frozen=True)
class _Runner:
    """An entrant that reached the gates."""

    submission: Submission
    tokens: int
    told: str
    body: bytes


def judge(
    spec: RunSpec,
    base: Revision,
    entrants: Sequence[Entrant],
    counts: Mapping[ShardId, int],
    read: ReadDelta,
    terms: Terms,
) -> Judgement:
    """Judge all entrants of a round on ``base``; ``counts`` gives each shard's number of values.

    Raises ``Retryable`` when ``read`` does: then nothing was decided.
    """
    members: list[PlanMember] = []
    for shard in sorted({entrant.submission.manifest.shard for entrant in entrants}):
        own = [entrant for entrant in entrants if entrant.submission.manifest.shard == shard]
        members += _judge_shard(spec, base, own, counts[shard], read, terms)
    members.sort(key=lambda member: (member.shard, member.hotkey))
    return Judgement(tuple(members), summary(members), _watched(entrants, members))


def _watched(entrants: Sequence[Entrant], members: Sequence[PlanMember]) -> dict[Hotkey, tuple[int, float]]:
    tokens: dict[Hotkey, int] = {}
    for member in members:
        if member.decision == "accepted":
            tokens[member.hotkey] = tokens.get(member.hotkey, 0) + member.tokens
    seconds = {e.hotkey: e.seen.seconds for e in entrants if e.seen.watched and e.seen.seconds is not None}
    return {hotkey: (tokens[hotkey], seconds[hotkey]) for hotkey in tokens.keys() & seconds.keys()}


def summary(members: Sequence[PlanMember]) -> Verdict:
    """The figures that the round machine decides on."""
    accepted = [member for member in members if member.decision == "accepted"]
    tokens = sum(member.tokens for member in accepted)
    return Verdict(tokens, len(accepted), len(members) - len(accepted), len({member.shard for member in accepted}))


def _judge_shard(
    spec: RunSpec, base: Revision, entrants: Sequence[Entrant], count: int, read: ReadDelta, terms: Terms
) -> list[PlanMember]:
    members: list[PlanMember] = []
    runners: list[_Runner] = []
    for entrant in entrants:
        claimed = entrant.submission.manifest.tokens
        tokens, told = validated_tokens(claimed, entrant.seen, entrant.support, terms)
        early = _early(entrant.submission, read)
        if isinstance(early, bytes):
            runners.append(_Runner(entrant.submission, tokens, told, early))
        else:
            members.append(_rejected(entrant.submission, tokens, *early))
    decisions = _decide(spec, base, runners, count)
    return members + [_member(runner, decision) for runner, decision in zip(runners, decisions, strict=True)]


def _early(submission: Submission, read: ReadDelta) -> bytes | tuple[str, str]:
    """The delta's bytes, or code and reason of a rejection that needs no comparison."""
    finding = submission.finding
    if finding is None:
        return "not_uploaded", "receipted, but the upload was not complete at the freeze"
    if not finding.ok:
        return finding.code, finding.reason
    try:
        return read(submission)
    except Rejected as refusal:
        return refusal.code, refusal.message


def _decide(spec: RunSpec, base: Revision, runners: Sequence[_Runner], count: int) -> tuple[Decision, ...]:
    params = delta_params(spec.codec, base)
    order = sorted(range(len(runners)), key=lambda i: _arrival(runners[i].submission))
    rank = {i: place for place, i in enumerate(order)}
    candidates = [
        Candidate(
            hotkey=runner.submission.manifest.signer,
            coldkey=runner.submission.seat.coldkey,
            base=runner.submission.manifest.base_revision,
            tokens=runner.tokens,
            received=rank[i],
        )
        for i, runner in enumerate(runners)
    ]
    return decide(candidates, _stats([runner.body for runner in runners], params, count), spec.gates, {base: 1.0})


def _stats(bodies: Sequence[bytes], params: CodecParams, count: int) -> GroupStats:
    """Decodes all bodies side by side, so that memory is bounded by one block of each."""
    builder = GroupStatsBuilder(len(bodies))
    streams = [decode_stream(body, expect=params, count=count) for body in bodies]
    for pieces in zip(*streams, strict=True):
        builder.add(np.stack([values for _, values in pieces]))
    return builder.finish()


def _arrival(submission: Submission) -> tuple[int, str]:
    return submission.receipt.received_ms, submission.manifest.signer


def _member(runner: _Runner, decision: Decision) -> PlanMember:
    if not isinstance(decision, Accepted):
        return _rejected(runner.submission, runner.tokens, decision.code, decision.reason)
    reason = f"{decision.reason}; {runner.told}"
    return _plan_member(runner.submission, runner.tokens, "", reason, decision.weight, decision.scale)


def _rejected(submission: Submission, tokens: int, code: str, reason: str) -> PlanMember:
    return _plan_member(submission, tokens, code, reason, 0.0, 0.0)


def _plan_member(
    submission: Submission, tokens: int, code: str, reason: str, weight: float, scale: float
) -> PlanMember:
    manifest = submission.manifest
    return PlanMember(
        shard=manifest.shard,
        hotkey=manifest.signer,
        uid=submission.seat.uid,
        registered_block=submission.seat.registered_block,
        delta=manifest.delta,
        manifest_sha256=submission.stored.manifest_record.sha256,
        tokens_claimed=manifest.tokens,
        tokens=tokens,
        decision="rejected" if code else "accepted",
        code=code,
        reason=reason[:MAX_REASON],
        weight=weight,
        scale=scale,
    )
