"""The way of requests and heartbeats: which validator a miner talks to, and what comes through.

A miner keeps to the validator that answers it as the leader; when that one is silent or follows, its next heartbeat
finds another. Invariant: a validator hears only from miners that it can be reached by and that take it for the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from miner.policy import Order
from validator.round.facts import Phase
from validator.simulator.machines import Mode
from validator.simulator.messages import Answer, Request
from validator.simulator.places import host_of

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.miner import Miner
    from validator.simulator.world import World

_ORDERS: dict[Phase, Order] = {Phase.OPEN: "train", Phase.CLOSING: "submit"}


class Post:
    """Between the miners and the validators of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._noticed: set[int] = set()

    def leader_of(self, miner: Miner) -> Leader | None:
        """Who answers this miner as the leader now."""
        validators = self._world.validators
        if validators[miner.place].answers:
            return validators[miner.place]
        for other in validators:
            if other.answers and self._found(miner, other):
                miner.place = other.number
                return other
        return None

    def _found(self, miner: Miner, leader: Leader) -> bool:
        """Whether the miner has sent a heartbeat since that one leads."""
        if len(self._world.validators) == 1:
            return True
        wait_s = _offset(miner) * self._world.spec.round.heartbeat_s
        return self._world.queue.now_s >= leader.leads_since_s + wait_s

    def order(self, miner: Miner) -> tuple[Order | None, float | None]:
        """The leader's word on the open round, and in how many seconds it will freeze."""
        leader = self.leader_of(miner)
        if leader is None or leader.current is None:
            return None, None
        freeze_in_s = max(0.0, leader.freeze_at_s - self._world.queue.now_s)
        return _ORDERS.get(leader.current.state.phase, "wait"), freeze_in_s

    def ask_leader(self, miner: Miner, serve: Callable[[], object], then: Answer, refused: Answer) -> None:
        """A request to the leader, until it is answered."""
        Request(self._world, miner, serve, then, refused, to_leader=True).send()

    def ask_storage(self, miner: Miner, then: Answer) -> None:
        """A request to the storage, until it is answered."""
        Request(self._world, miner, self._world.storage.check, then, then, to_leader=False).send()

    def news(self) -> None:
        """The log has news: each miner hears of it with its next heartbeat."""
        for miner in self._world.miners:
            if miner.machine.online and miner.index not in self._noticed:
                self._noticed.add(miner.index)
                self._notice(miner)

    def _notice(self, miner: Miner) -> None:
        every_s, offset, queue = self._world.spec.round.heartbeat_s, _offset(miner), self._world.queue
        beats = (queue.now_s / every_s - offset) // 1 + 1
        queue.at((beats + offset) * every_s + self._world.settings.latency_s, lambda: self._tell(miner))

    def _tell(self, miner: Miner) -> None:
        if miner.machine.online and not (miner.machine.reachable and self.leader_of(miner) is not None):
            self._notice(miner)
            return
        self._noticed.discard(miner.index)
        if miner.machine.online:
            miner.notice()

    def hear(self, miner: Miner) -> None:
        """One heartbeat, if it gets through."""
        leader = self.leader_of(miner)
        if miner.machine.reachable and leader is not None:
            self._heard(leader, miner)

    def hear_all(self, leader: Leader, all_news: bool) -> None:
        """The heartbeats since a leader's last look: of everybody, or of those who would seem silent otherwise."""
        members, now_s = leader.members, self._world.queue.now_s
        fresh_s = self._world.spec.round.member_timeout_s / 2
        for miner in self._world.miners:
            if miner.machine.reachable and self.leader_of(miner) is leader:
                member = members.get(miner.hotkey)
                if all_news or member is None or member.beat is None or now_s - member.heard_s > fresh_s:
                    self._heard(leader, miner)

    def _heard(self, leader: Leader, miner: Miner) -> None:
        leader.members.hear(miner.hotkey, miner.beat(), self._world.queue.now_s)
        leader.members.seen_at(miner.hotkey, host_of(self._world.settings, miner.index))

    def training_rate(self) -> float:
        """Tokens per second of all machines that train."""
        return sum(m.machine.power.tokens_per_s for m in self._world.miners if m.machine.mode is Mode.TRAIN)


def _offset(miner: Miner) -> float:
    """When in a heartbeat's interval it sends."""
    return (miner.index * 0.618_033_988_75) % 1.0
