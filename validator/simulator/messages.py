"""Requests of a miner to the leader or the storage, repeated until they are answered.

A request and its reply take one round trip together: it is served at its end. Invariant: a request of a process that
has died is never served, nor answered; one that is not answered is served again, so that whatever it does must be
idempotent, as the real ones are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import timeouts
from common.errors import Rejected, Retryable

if TYPE_CHECKING:
    from validator.simulator.miner import Miner
    from validator.simulator.world import World

Answer = Callable[[object], None]


@dataclass(slots=True, eq=False)
class Request:
    """One request until it is answered."""

    world: World
    miner: Miner
    serve: Callable[[], object]
    then: Answer
    refused: Answer
    """Gets the ``Rejected``."""
    to_leader: bool
    failures: int = 0

    def send(self) -> None:
        """Send it, or send it again."""
        latency_s = self.world.settings.latency_s if self.to_leader else self.world.storage.latency_s
        self.miner.later(2 * latency_s, self._arrive)

    def _arrive(self) -> None:
        if not self.miner.machine.reachable or (self.to_leader and not self._heard()):
            self._again(0.0)
            return
        try:
            reply, answer = self.serve(), self.then
        except Retryable as fault:
            self._again(fault.retry_after_s or 0.0)
            return
        except Rejected as refusal:
            reply, answer = refusal, self.refused
        if self.miner.misdeeds.armed and self.miner.misdeeds.take("lost_reply") is not None:
            self._again(0.0)
        else:
            answer(reply)

    def _heard(self) -> bool:
        """Whether the leader answers, and takes the request's stamp for a new one; if not, it tells the time."""
        world, time, leader = self.world, self.miner.time, self.world.post.leader_of(self.miner)
        if leader is None:
            return False
        if not time.offset_known:  # each process asks for the leader's time before anything else
            time.observe(leader.clock.wall_ns(), 2 * world.settings.latency_s)
        age_s = (leader.clock.wall_ns() - time.wall_ns()) / 1e9
        if -timeouts.NONCE_SKEW_S <= age_s <= timeouts.NONCE_MAX_AGE_S:
            return True
        time.observe(leader.clock.wall_ns(), 2 * world.settings.latency_s)
        return False

    def _again(self, asked_s: float) -> None:
        step_s = min(timeouts.RETRY_MOST_S, timeouts.RETRY_FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        self.miner.later(max(asked_s, step_s * (0.5 + 0.5 * self.world.dice.random())), self.send)
