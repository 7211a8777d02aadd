"""The simulated leader's side of the butterfly: deals partitions, takes the means in, and stops waiting in time.

``validator.butterfly`` in virtual time, on the same pure cores: placement, books of the owners, judgement, deadline.
The block that the deal waits for comes at its time and is final some blocks later. Invariant: whatever owners or chain
do not give by the deadline, the leader computes; nothing here can lose a round.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.canonical import dumps
from common.errors import Rejected
from common.merge.butterfly import WRONG_MEAN, placement_seed
from common.reductions import Copy, Reduction
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.typed import to_json
from common.units import Hotkey, RoundId, Sha256, sha256_hex
from validator.bars import Bar
from validator.lies import BARRED_ROUNDS
from validator.means import Handed, why_computed
from validator.owners import candidates_of, deal_of, handed_in, unheard_senders
from validator.reducing import Asked, Reducing, may_reduce
from validator.round.deadlines import seconds_left
from validator.rounds import Round
from validator.simulator.records import SHARD

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.world import World

FINAL_BLOCKS = 3
"""A block is final when so many came after it."""


@dataclass(frozen=True)
class Wanted:
    """What the reply to a heartbeat asks an owner for."""

    plan: RoundFrozen
    plan_sha256: Sha256
    asked: Asked


class LeadersReduction:
    """The reduction of the newest plan, for one process of one validator."""

    def __init__(self, world: World, leader: Leader) -> None:
        self._world = world
        self._leader = leader
        self._reducing: Reducing | None = None
        self._plan: RoundFrozen | None = None
        self._after: int | None = None
        """The block after the plan."""

    def awaited(self, current: Round) -> bool:
        """Whether the merge of the newest plan waits for owners or chain."""
        world, plan, plan_sha256 = self._world, current.opened.plan, current.opened.plan_sha256
        if world.spec.reduce.kind != "butterfly" or not may_reduce(current.opened):
            return False
        assert plan is not None
        assert plan_sha256 is not None
        now_s = world.queue.now_s
        if self._reducing is None or self._reducing.plan_sha256 != plan_sha256:
            left_s = seconds_left(current.state, now_s, current.policy)
            self._reducing = Reducing(plan.round, plan_sha256, now_s, left_s)
            self._plan, self._after = plan, None
        reducing = self._reducing
        reducing.follow(current, current.state.held_s)
        if not reducing.waits(now_s):
            return False
        world.post.hear_all(self._leader, all_news=False)
        if reducing.deal is None and not self._dealt(reducing, plan):
            return True
        return reducing.missing(lambda owner: self._leader.members.lives(owner, world.queue.now_s)) > 0

    def close(self, current: Round) -> Handed | None:
        """What the owners have handed in; None when the leader merges alone. The books are closed by it."""
        reducing, plan = self._reducing, current.opened.plan
        assert plan is not None
        if reducing is not None and reducing.reduces(current.opened):
            reducing.closed = True
        handed = handed_in(self._world.spec, reducing, current.opened, self._chance)
        if handed is None:
            self._book_alone(plan)
        else:
            self._book(handed)
        return handed

    def bar(self, current: Round) -> None:
        """Who handed in a wrong mean reduces nothing for a while, whoever leads then."""
        until = RoundId(current.state.round + BARRED_ROUNDS)
        self._world.bars.update(dict.fromkeys(current.lies, until))

    # What miners see and send.

    def view(self, hotkey: Hotkey) -> Wanted | None:
        """A miner's duties."""
        reducing, plan = self._reducing, self._plan
        asked = reducing.asked(hotkey, self._world.queue.now_s) if reducing is not None else None
        if reducing is None or plan is None or asked is None:
            return None
        return Wanted(plan, reducing.plan_sha256, asked)

    def hand_in(self, word: Reduction) -> tuple[Copy, ...]:
        """What of a word is to be put; nothing when all is there and counts. Raises ``Rejected``, ``Retryable``."""
        self._leader.check_store()
        if self._reducing is None:
            raise Rejected("round_closed", "no plan is being reduced now")
        self._reducing.announce(word)
        missing = tuple(copy for copy in word.copies if not self._world.means.there(word, copy))
        if not missing and self._reducing.due(word.signer):
            self._reducing.take(word, self._world.means.keep(word))
        return missing

    # The deal.

    def _dealt(self, reducing: Reducing, plan: RoundFrozen) -> bool:
        """Deal, if the block after the plan is final by now."""
        world, block_s = self._world, self._world.settings.block_s
        if not self._leader.reaches_chain():
            return False
        if self._after is None:
            self._after = int(world.queue.now_s // block_s) + 1
        if world.queue.now_s < (self._after + FINAL_BLOCKS) * block_s:
            return False
        if unheard_senders(self._leader.members, plan, world.queue.now_s):
            return False
        block = hashlib.sha256(f"block {world.settings.seed} {self._after}".encode()).hexdigest()
        # In place of the slot's hash that of what it says: a signature differs from run to run, a simulation must not.
        seed = placement_seed(sha256_hex(dumps(to_json(plan))), block)
        proofs = {SHARD: world.means.proofs(plan)} if _accepted(plan) else {}
        members, now_s = self._leader.members, world.queue.now_s
        for hotkey, until in world.bars.items():
            members.bars.add(hotkey, Bar(until, WRONG_MEAN))
        candidates = candidates_of(plan, members, world.coldkeys.get, world.asn_of, now_s)
        deal = deal_of(world.spec, {SHARD: world.means.count}, seed, candidates, proofs)
        reducing.begin(deal, world.queue.now_s)
        traffic = world.traffic.of(plan.round)
        traffic.dealt_at_s, traffic.dealt_after_s = world.queue.now_s, world.queue.now_s - reducing.planned_s
        world.post.news()
        return True

    def _chance(self) -> bytes:
        return self._world.dice.getrandbits(256).to_bytes(32, "big")

    # The books.

    def _book_alone(self, plan: RoundFrozen) -> None:
        members = _accepted(plan)
        traffic, ranges = self._world.traffic.of(plan.round), self._world.ranges
        traffic.gates_bytes = ranges.delta_bytes(members)
        traffic.merge_bytes = 0 if ranges.kept(members) else ranges.delta_bytes(members)
        reducing = self._reducing
        if reducing is not None and reducing.round == plan.round:
            deal = reducing.deal
            traffic.dealt = 0 if deal is None else len(deal.duties)
            traffic.alone = {"a leader alone": traffic.dealt} if traffic.dealt else {}
            traffic.waited_s = self._world.queue.now_s - reducing.planned_s

    def _book(self, handed: Handed) -> None:
        """As ``validator.means`` decides it: which partitions the leader computes, and why."""
        members, reducing = accepted_members(handed.plan, SHARD), self._reducing
        assert reducing is not None, "only what is closed is booked"
        traffic, ranges = self._world.traffic.of(handed.plan.round), self._world.ranges
        in_memory, moved = ranges.kept(members), 0
        alone: dict[str, int] = {}
        for place, duty in handed.deal.duties.items():
            if why := why_computed(handed, place):
                alone[why] = alone.get(why, 0) + 1
                moved += 0 if in_memory else ranges.read_bytes(members, duty.partition)
            else:
                moved += ranges.mean_bytes(duty.partition)
        traffic.dealt, traffic.alone = len(handed.deal.duties), alone
        traffic.gates_bytes, traffic.merge_bytes = ranges.delta_bytes(members), moved
        traffic.waited_s = self._world.queue.now_s - reducing.planned_s


def _accepted(plan: RoundFrozen) -> tuple[PlanMember, ...]:
    return tuple(m for m in plan.members if m.shard == SHARD and m.decision == "accepted")
