"""A leader that probes its miner, over a real bucket: what validators have for it, with a clock that a test moves."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from common.clock import SystemClock
from common.wire import Heartbeat, HeartbeatReply, Message, ProbeAnswer, ProbeOrder, ProbeReply, parse
from tests.miner.leader import MINER, Bucket, Leader
from tests.support.httpserver import Request
from validator.health.evidence import Kind
from validator.probes import Outcome, Probe, Probes
from validator.probing import ProbeObjects


@dataclass
class Probed:
    """What became of probes so far."""

    orders: list[ProbeOrder] = field(default_factory=list)
    answers: list[ProbeAnswer] = field(default_factory=list)
    ends: list[Outcome] = field(default_factory=list)


class ProbingLeader(Leader):
    """``probes`` may be replaced by one that knows nothing yet."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        super().__init__(folder, bucket=bucket)
        self.probes = Probes()
        self.probed = Probed()
        self.ahead_s = 0.0
        """How far the clock by which probes are timed is ahead."""
        self.spoil: Callable[[ProbeOrder], ProbeOrder] = lambda order: order
        """What becomes of orders on their way."""
        self._objects = ProbeObjects(self.world.store, self.spec.run, secrets.token_bytes)

    # What a test does.

    def want(self, *kinds: Kind) -> None:
        """Probe the miner, now, and look at what comes of it from now on."""
        with self._changed:
            self.probed = Probed()
            self.probes.want(dict.fromkeys(kinds, frozenset({MINER.hotkey})), self._now_s(), confirm=True)

    def wait_for(self, condition: Callable[[Probed], object]) -> None:
        """Block until what became of probes fulfils ``condition``."""
        self.wait_until(lambda seen: bool(condition(self.probed)))

    # The server.

    def _heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        reply = super()._heartbeat(beat)
        return reply.model_copy(update={"probe": self._order() if beat.session == self._session else None})

    def _act(self, request: Request) -> Message:
        if request.path == "/v1/probes":
            return self._hear(parse(ProbeAnswer, request.body))
        return super()._act(request)

    def _now_s(self) -> float:
        return SystemClock().monotonic_s() + self.ahead_s

    def _order(self) -> ProbeOrder | None:
        for probe in self.probes.overdue(self._now_s()):
            self._end(probe, Outcome.SILENT)
        order = self.probes.order(MINER.hotkey, self._now_s())
        for probe in self.probes.drafts(self._now_s()):
            self.probes.prepared(probe, *self._objects.prepare(probe), self._now_s())
        if order is None:
            return None
        order = self.spoil(order)
        self.probed.orders.append(order)
        return order

    def _hear(self, answer: ProbeAnswer) -> ProbeReply:
        self.probed.answers.append(answer)
        probe = self.probes.answer(MINER.hotkey, answer.nonce, self._now_s())
        outcome = Outcome.BUSY
        if not answer.busy:
            outcome = self._objects.judge(probe, answer)
        self._end(probe, outcome)
        return ProbeReply(counted=outcome is Outcome.RIGHT, reason=outcome.value)

    def _end(self, probe: Probe, outcome: Outcome) -> None:
        self.probed.ends.append(outcome)
        self.probes.end(probe, outcome, self._now_s())
