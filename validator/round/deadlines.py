"""Every time of a round, derived from the run's spec in one place and checked against each other. Pure.

``Deadlines.of`` raises ValueError, naming both, when two times contradict each other: the spec's own, and the waiting
times of the processes in ``common.timeouts``. How the times hang together:

    train     from the first miner at work to CLOSING at the latest
    submit    from CLOSING to the freeze at the latest: encode, upload, check. Upload URLs die with it
    finish    from the freeze to the commit at the latest, with all attempts
    patience  from CLOSING to the freeze as far as one usual member is worth waiting for: what miners plan with
    reduce    of what is left to finish at the plan: until the deal half at most, from it on a quarter for the owners
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common import timeouts
from common.runlog.rules import MAX_ATTEMPTS
from common.runlog.state import RunState
from common.spec import RunSpec
from common.units import Revision
from validator.round.facts import Held, MemberFacts, Phase, RoundPolicy, RoundState

LEAST_FINISH_S = 120.0  # judging and merging are the leader's own work: generous, since giving up loses the round
READ_SHARE = 1 / 3
"""Of the time to finish: so long the leader tries to read what was delivered; what it can't read is left out."""
DEAL_SHARE = 1 / 2
"""Of what is left to finish when a plan is there: so long at most the leader waits for the block by which the plan's
partitions are dealt to miners. Blocks of 12 s that are final after three more come within 48 s."""
REDUCE_SHARE = 1 / 4
"""Of the same: so long miners have to reduce, from the deal on."""
ALONE_SHARE = 1 / 4
"""Of the same: so much stays for the leader, who may have to merge alone then."""
OVERLAP_WASTE = 0.1
"""Share of their work that those who wait lose while they go on training: it rests on an older revision."""
SPARE_MANIFESTS = 8
"""Of a line in a round, beside its drips: the final, and what restarts send again."""
MOST_MANIFESTS = 1024
LEAST_URL_S = 1.0
MOST_UNSEEN_S = 6 * 3600.0
"""Of a time without a leader what counts at most: who was away for longer begins with the newest revision."""


@dataclass(frozen=True)
class Deadlines:
    """The times of a run's rounds, in seconds."""

    train_s: float
    submit_s: float
    finish_s: float
    heartbeat_s: float
    member_timeout_s: float
    drip_s: float
    """0: nobody drips."""

    def __post_init__(self) -> None:
        for name, short, other, long in self._rules():
            if not short <= long:
                raise ValueError(
                    f"contradictory times of a round: {name} ({short:g} s) is longer than {other} ({long:g} s)"
                )

    def _rules(self) -> tuple[tuple[str, float, str, float], ...]:
        """Of each pair the first must not be longer than the second."""
        stalled_s = MAX_ATTEMPTS * timeouts.BULK_STALL_S
        return (
            ("three heartbeats", 3 * self.heartbeat_s, "member_timeout_s", self.member_timeout_s),
            ("a heartbeat, which tells of the closing,", self.heartbeat_s, "submit_deadline_s", self.submit_s),
            ("a look of the leader", timeouts.LEADER_LOOK_S, "submit_deadline_s", self.submit_s),
            ("the life of the shortest URL", LEAST_URL_S, "submit_deadline_s", self.submit_s),
            ("submit_deadline_s", self.submit_s, "the finish deadline", self.finish_s),
            ("all attempts at a stalled store", stalled_s, "the finish deadline", self.finish_s),
            (
                "a lease, after which another leader finishes the round,",
                timeouts.LEASE_S,
                "the finish deadline",
                self.finish_s,
            ),
            ("drip_s", self.drip_s, "train_deadline_s + submit_deadline_s", self.train_s + self.submit_s),
        )

    @classmethod
    def of(cls, spec: RunSpec) -> Deadlines:
        """The times that a spec sets. ValueError when they contradict each other."""
        limits = spec.round
        return cls(
            train_s=limits.train_deadline_s,
            submit_s=limits.submit_deadline_s,
            finish_s=max(LEAST_FINISH_S, 2 * limits.submit_deadline_s),
            heartbeat_s=limits.heartbeat_s,
            member_timeout_s=limits.member_timeout_s,
            drip_s=limits.drip_s,
        )

    @property
    def longest_s(self) -> float:
        """From the first miner at work to the round's end, whatever happens."""
        return self.train_s + self.submit_s + self.finish_s

    @property
    def most_manifests(self) -> int:
        """That one line can bring to a round: a drip every ``drip_s`` until the freeze, and some to spare."""
        drips = 0 if self.drip_s == 0 else math.ceil((self.train_s + self.submit_s) / self.drip_s)
        return min(MOST_MANIFESTS, drips + SPARE_MANIFESTS)


def policy_of(spec: RunSpec, base_revision: Revision, aborted: int = 0) -> RoundPolicy:
    """The limits of a round on ``base_revision``, of which so many rounds ``aborted`` before it."""
    times = Deadlines.of(spec)
    pause_s = times.heartbeat_s * 2.0 ** (min(aborted, 20) - 1) if aborted else 0.0
    return RoundPolicy(
        target_tokens=spec.target_tokens(base_revision),
        quorum_tokens=spec.quorum_tokens(base_revision),
        train_deadline_s=times.train_s,
        submit_deadline_s=times.submit_s,
        finish_deadline_s=times.finish_s,
        num_shards=spec.num_shards,
        late_weight=spec.round.late_weight,
        waste=OVERLAP_WASTE if spec.round.overlap else 1.0,
        least_open_s=min(times.train_s, pause_s),
    )


def seconds_left(state: RoundState, now_s: float, policy: RoundPolicy) -> float:
    """Until the phase's deadline; the whole training time before anybody trains."""
    if state.phase in (Phase.COMMITTED, Phase.ABORTED):
        return 0.0
    return policy.train_deadline_s if state.deadline_s is None else max(0.0, state.deadline_s - now_s)


def reading_left_s(state: RoundState, now_s: float, policy: RoundPolicy) -> float:
    """Of a frozen round: until the time for reading what was delivered is over; below 0 when it is."""
    return seconds_left(state, now_s, policy) - (1 - READ_SHARE) * policy.finish_deadline_s


def reduce_until_s(planned_s: float, left_s: float, dealt_s: float | None) -> float:
    """Until when the leader waits for miners: of a plan that came at ``planned_s``, with ``left_s`` left to finish, and
    whose partitions were dealt at ``dealt_s``; None: not yet."""
    if dealt_s is None:
        return planned_s + DEAL_SHARE * left_s
    return min(dealt_s + REDUCE_SHARE * left_s, planned_s + (1 - ALONE_SHARE) * left_s)


def url_life_s(state: RoundState, now_s: float, policy: RoundPolicy) -> float:
    """Until the last moment at which an upload can count for this round's plan, a late one's too; at least a second."""
    left_s = seconds_left(state, now_s, policy)
    return max(LEAST_URL_S, left_s + policy.submit_deadline_s if state.phase is Phase.OPEN else left_s)


def freeze_in_s(state: RoundState, members: Sequence[MemberFacts], now_s: float, policy: RoundPolicy) -> float:
    """Until uploads must be there, as far as can be told: what a miner plans its own deadline with.

    While open: until the target is reached at the present rate, and then as long as one member of the usual size is
    worth waiting for. Never later than the hard deadlines.
    """
    left_s = seconds_left(state, now_s, policy)
    if state.phase is not Phase.OPEN:
        return left_s if state.phase is Phase.CLOSING else 0.0
    working = [member for member in members if member.live and member.awaited and not member.delivered]
    rate = sum(member.rate for member in working)
    missing = policy.target_tokens - sum(member.tokens for member in members)
    close_in_s = left_s if rate <= 0 else min(left_s, max(0.0, missing / rate))
    return close_in_s + patience_s(policy, len(working), rate)


def patience_s(policy: RoundPolicy, members: int, rate: float) -> float:
    """How long the others, at ``rate`` together, wait for one of ``members`` equal ones that can be late."""
    price = members * rate * policy.waste
    worth = policy.target_tokens * (1 - policy.late_weight)
    return policy.submit_deadline_s if price <= 0 else min(policy.submit_deadline_s, worth / price)


def unseen(run: RunState, passed_s: float) -> Held:
    """What a new leader counts as time beyond the planned length: ``passed_s`` since ``run.turned_seq`` was written.

    Deadlines begin again with it, so all that time is added to the round. Nobody trains while the run is paused.
    """
    if run.turned_seq == 0 or run.paused is not None:
        return Held()
    unheard_s = min(MOST_UNSEEN_S, max(0.0, passed_s))
    return Held(unheard_s, unheard_s)
