"""A run in virtual time: production's trainer, codec, gates, accounts and merge, without network and processes.

One tick is the time in which a machine at full speed takes one inner step. A round closes when its tokens are there,
and some ticks later its revision is there; machines go on training meanwhile, as in a run with overlap. Under churn
machines die without notice, others come with nothing, some run at half speed, some are late; what a dead one had sent
before (its drips) counts. Seeded: the same arguments give the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from common.data.dataset import Dataset
from common.merge.account import Merged
from common.merge.damping import damping
from common.merge.gates import Accepted, Candidate, Decision, decide
from common.merge.group import GroupStatsBuilder
from common.merge.outer import OuterState
from common.model.init import init_vector
from common.model.layout import Vector
from common.model.shards import plan_shards
from common.records import ObjectRef
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import merge_round
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, ShardId, Uid
from miner.trainer import Trainer
from scripts.benches.learning_machine import Head, Machine, Submission

LONGEST = 4
"""A round closes after so many times its nominal length, whatever it has."""
SHARD = ShardId(0)


@dataclass(frozen=True)
class Churn:
    """What befalls machines. Times are means of exponential draws, in ticks."""

    life: float
    """Until a machine dies without notice."""
    away: float
    """Until another one comes in its place, on the head revision, with nothing."""
    slow_share: float
    """Of machines run at half speed."""
    late_share: float
    """Of final submissions miss the freeze."""
    drip: int
    """A machine sends what it has every so many ticks."""


@dataclass
class Tally:
    """What a run came to so far."""

    rounds: int = 0
    ticks: int = 0
    tokens_trained: int = 0
    tokens_merged: float = 0.0
    """Those of late submissions count by their weight."""
    deaths: int = 0
    late: int = 0
    rejected: int = 0


class Run:
    """``miners`` machines from revision 0 on."""

    def __init__(self, spec: RunSpec, dataset: Dataset, miners: int, lag_share: float, churn: Churn | None) -> None:
        """``lag_share``: time from a round's closing to its revision, as a share of the round's nominal length."""
        self._spec, self._dataset, self._lag_share, self._churn = spec, dataset, lag_share, churn
        self._layers = plan_shards(spec.model, 1)[SHARD]
        self._rng = np.random.default_rng((spec.seed, 77))
        self._head = Head(init_vector(spec.model, self._layers), Revision(0), RoundId(0))
        self._outer = OuterState.zero(len(self._head.weights), spec.outer.momentum)
        self.tally = Tally()
        self._live = {name: self._join(name) for name in (Hotkey(f"miner-{i}") for i in range(miners))}
        self._back_at: dict[Hotkey, int] = {}
        self._merged: set[Hotkey] = set()
        self._mail: dict[Hotkey, list[Submission]] = {}
        self._deferred: dict[Hotkey, Submission] = {}

    @property
    def weights(self) -> Vector:
        """The head revision's."""
        return self._head.weights

    def play(self, tokens: int) -> Iterator[Tally]:
        """Rounds until ``tokens`` are merged in all; the last round is cut short to meet them. Yields after each."""
        while self.tally.tokens_merged < tokens:
            self._play_round(tokens - self.tally.tokens_merged)
            yield self.tally

    def _play_round(self, at_most: float) -> None:
        """Train, close, freeze, merge, commit."""
        nominal, began = self._spec.inner.steps_of(self._head.revision), self.tally.ticks
        wanted = min(self._spec.target_tokens(self._head.revision), at_most)
        while self._round_tokens() < wanted and self.tally.ticks - began < LONGEST * nominal:
            self._pass_tick()
        lag = round(self._lag_share * nominal * wanted / self._spec.target_tokens(self._head.revision))
        for machine in self._live.values():
            self._send(machine, self.tally.ticks + self._delay(lag))
        for _ in range(lag):
            self._pass_tick(dripping=False)
        self._commit()

    def _round_tokens(self) -> int:
        """What the live ones have to settle, and what the dead ones had sent."""
        dead = [sent[-1].tokens for name, sent in self._mail.items() if name not in self._live]
        return sum(dead) + sum(machine.tokens for machine in self._live.values())

    def _delay(self, lag: int) -> int:
        """Ticks until a final submission is there."""
        if self._churn and self._rng.random() < self._churn.late_share:
            self.tally.late += 1
            return lag + 1
        return lag // 2

    def _send(self, machine: Machine, ready_at: int) -> None:
        sent = machine.submit(ready_at)
        if sent is not None:
            self._mail.setdefault(machine.hotkey, []).append(sent)

    def _pass_tick(self, dripping: bool = True) -> None:
        """Train, and let churn do its work. After their last submission of a round machines send no drips."""
        self.tally.ticks += 1
        for machine in self._live.values():
            self.tally.tokens_trained += machine.pass_tick()
        if self._churn is not None:
            self._suffer(self._churn, dripping)

    def _suffer(self, churn: Churn, dripping: bool) -> None:
        for name, machine in list(self._live.items()):
            if self._rng.random() < 1 / churn.life:
                self._die(name, 1 + int(self._rng.exponential(churn.away)))
            elif dripping and self.tally.ticks % churn.drip == 0:
                self._send(machine, self.tally.ticks + 1)
        for name in [name for name, tick in self._back_at.items() if tick <= self.tally.ticks]:
            del self._back_at[name]
            self._live[name] = self._join(name)

    def _die(self, name: Hotkey, away: int) -> None:
        self.tally.deaths += 1
        del self._live[name]
        self._back_at[name] = self.tally.ticks + away
        there = [sent for sent in self._mail.pop(name, []) if sent.ready_at <= self.tally.ticks]
        if there:
            self._mail[name] = there

    def _join(self, name: Hotkey) -> Machine:
        machine = Machine(name, self._spec, self._dataset, Trainer(self._spec, self._layers), self._head)
        if self._churn and self._rng.random() < self._churn.slow_share:
            machine.speed = 0.5
        return machine

    def _commit(self) -> None:
        named, deferred = self._submissions()
        late, before = self._deferred, self._head
        submissions = [*named.values(), *late.values()]
        decisions = dict(zip([s.sha256 for s in submissions], self._decide(submissions), strict=True))
        weights = self._merge(submissions, decisions)
        self._head = Head(weights, Revision(before.revision + 1), RoundId(before.round + 1))
        for name, machine in self._live.items():
            mine = named.get(name)
            machine.settle(mine, self._terms(mine, decisions), deferred.get(name), self._head)
            if name in late:
                machine.settle_late(self._terms(late[name], decisions))
        self._mail, self._deferred = {}, deferred
        self.tally.rounds += 1

    def _submissions(self) -> tuple[dict[Hotkey, Submission], dict[Hotkey, Submission]]:
        """The newest complete submission of each sender, and those of the live that have none complete."""
        named: dict[Hotkey, Submission] = {}
        deferred: dict[Hotkey, Submission] = {}
        for name in sorted(self._mail):
            there = [sent for sent in self._mail[name] if sent.ready_at <= self.tally.ticks]
            if there:
                named[name] = there[-1]
            elif name in self._live:
                deferred[name] = self._mail[name][-1]
        return named, deferred

    def _decide(self, submissions: Sequence[Submission]) -> Sequence[Decision]:
        if not submissions:
            return []
        stats = GroupStatsBuilder(len(submissions), len(self._head.weights), seed=self._spec.seed)
        stats.add(0, 0, np.stack([s.sent for s in submissions]))
        # Of its own coldkey each, as in a run of strangers; a late delta is no copy of its sender's next one.
        candidates = [
            Candidate(s.hotkey, Coldkey(s.hotkey), s.base, s.tokens, order) for order, s in enumerate(submissions)
        ]
        now, weight = self._head.revision, self._spec.round.late_weight
        return decide(candidates, stats.finish(), self._spec.gates, {now: 1.0, Revision(now - 1): weight})

    def _merge(self, submissions: Sequence[Submission], decisions: dict[Sha256, Decision]) -> Vector:
        """The next weights: the head's if nothing was accepted."""
        members = tuple(self._member(s, found) for s in submissions if (found := _accepted(decisions[s.sha256])))
        self.tally.rejected += len(submissions) - len(members)
        if not members:
            return self._head.weights
        plan = self._plan(members)
        data = {s.sha256: s.data for s in submissions}
        result = merge_round(self._spec, SHARD, plan, lambda m: data[m.delta.sha256], self._head.weights, self._outer)
        self._outer = result.new_outer_state
        self.tally.tokens_merged += sum(m.tokens * self._worth(m.base_revision) for m in members)
        return result.new_weights

    def _plan(self, members: tuple[PlanMember, ...]) -> RoundFrozen:
        """The members, with the damping that their tokens call for, and the knowledge of who was merged."""
        self._merged |= {member.hotkey for member in members}
        tokens = sum(m.tokens * self._worth(m.base_revision) for m in members)
        wanted, how = self._spec.target_tokens(self._head.revision), self._spec.gates.damping_at
        damped = damping(tokens, wanted, how)
        return RoundFrozen(self._head.round, self._head.revision, attempt=0, damping=damped, members=members)

    def _member(self, sent: Submission, found: Accepted) -> PlanMember:
        return PlanMember(
            shard=SHARD,
            hotkey=sent.hotkey,
            round=sent.round,
            base_revision=sent.base,
            uid=Uid(0),
            registered_block=0,
            delta=ObjectRef(sent.sha256, len(sent.data)),
            manifest_sha256=sent.sha256,
            tokens_claimed=sent.tokens,
            tokens=sent.tokens,
            decision="accepted",
            code="",
            reason=found.reason,
            weight=found.weight,
            scale=found.scale,
        )

    def _terms(self, sent: Submission | None, decisions: dict[Sha256, Decision]) -> Merged | None:
        found = _accepted(decisions[sent.sha256]) if sent is not None else None
        return Merged(sent.tokens, found.weight, found.scale) if sent is not None and found else None

    def _worth(self, base: Revision) -> float:
        return 1.0 if base == self._head.revision else self._spec.round.late_weight


def _accepted(decision: Decision) -> Accepted | None:
    return decision if isinstance(decision, Accepted) else None
