"""Storage or chain away for a while, on real processes: training goes on, nothing is lost, nobody is started again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from common.units import RoundId
from tests.integration.support import SPEED
from tests.integration.takeovers import Stage


@dataclass(frozen=True)
class Outage:
    """What an outage of one server came to."""

    server: str
    lasted_s: float
    commits: int
    """While it lasted."""
    most_silent_s: float
    """Longest time without a heartbeat of a miner, as the watched validator saw it."""
    trained_tokens: int
    merged_tokens: int
    """Of the round that was open and the one after it, in the same words as in ``Takeover``."""
    could_tokens: int
    """What the miners could train from the outage's beginning to its end, at the speed they keep."""
    target_tokens: int
    """Of one round."""
    ended: int
    """Processes that ended."""

    def told(self) -> str:
        """One line for people."""
        lost = 1 - self.merged_tokens / self.trained_tokens
        return (
            f"{self.server} away for {self.lasted_s:.0f} s: {self.commits} commits meanwhile; most silence "
            f"{self.most_silent_s:.1f} s; lost {lost:.2%} of {self.trained_tokens} tokens (they could train "
            f"{self.could_tokens}); {self.ended} processes ended"
        )

    def held(self) -> bool:
        """Nobody ended, no work was lost, and without a storage the miners trained beyond what two rounds ask for."""
        trained = self.server == "chain" or self.trained_tokens > 2 * self.target_tokens
        return self.ended == 0 and self.merged_tokens == self.trained_tokens and trained


def play_outage(stage: Stage, server: str, seconds: float) -> Outage:
    """Cut everybody off from this server for so long, in an open round; ends two commits after it."""
    rig, silences = stage.rig, [0.0]
    rig.watched = stage.leader()
    first = rig.until(lambda: rig.open_round, "an open round")
    head, began_s = rig.head, time.monotonic()
    _cut(stage, server, True)

    def over() -> bool:
        silences.extend(miner.silent_s for miner in (rig.status.miners if rig.status else ()))
        return time.monotonic() - began_s >= seconds

    rig.until(over, f"{seconds:g} s without {server}")
    commits, lasted_s = rig.head - head, time.monotonic() - began_s
    _cut(stage, server, False)
    last = RoundId(max(first, rig.open_round or 0) + 1)
    rig.until(lambda: stage.plan(last), f"the commit of round {last}")
    trained, merged, _ = stage.account(tuple(RoundId(one) for one in range(first, last + 1)))
    ended = sum(part.ended() is not None for part in rig.parts.values())
    could = int(lasted_s * SPEED * len(stage.miners))
    return Outage(server, lasted_s, commits, max(silences), trained, merged, could, rig.spec.round.target_tokens, ended)


def _cut(stage: Stage, server: str, on: bool) -> None:
    for line in stage.rig.lines.values():
        proxy = line.storage if server == "storage" else line.chain
        proxy.refuse(on)
        if on:
            proxy.cut_all()
