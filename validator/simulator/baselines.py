"""What simpler protocols reach on the same machines: for comparison, each in its most favourable form.

*Synchronous*, all or nothing: everybody who is there when a round begins trains its share; then all upload and take the
update; a machine that dies before the end takes the round's work with it, as in synchronous data parallel training with
a checkpoint after each round. Who comes meanwhile waits for the next round.

*Quorum of 80 %*: the same, but the round ends when 80 % of those who began it are still there and done; the others'
work is lost. With fewer left the round is lost, and begun again by whoever is there.

Both start like Brigade's machines: boot, then snapshot. Nobody trains while deltas travel and merge. Machines are
equally fast. Everything that takes the leader time is given to Brigade only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from common.identity import KeypairSigner
from common.units import Revision
from validator.simulator.settings import Settings, Sizes, make_run
from validator.simulator.traces import ALWAYS

QUORUM = 0.8
SETTLED = Revision(50)
"""Sizes are those of a run that is past its first, dense rounds."""


@dataclass(frozen=True)
class Baseline:
    """What a protocol came to."""

    goodput: float
    rounds: int
    failed: int


@dataclass(frozen=True)
class _Times:
    start_s: float
    """Boot and snapshot."""
    train_s: float
    exchange_s: float
    """Delta up, update down."""

    @property
    def round_s(self) -> float:
        return self.train_s + self.exchange_s


def synchronous(settings: Settings, span_s: float) -> Baseline:
    """All or nothing, for so much virtual time."""
    return _play(settings, span_s, 1.0)


def quorum_round(settings: Settings, span_s: float) -> Baseline:
    """80 % of those who began."""
    return _play(settings, span_s, QUORUM)


def _times(settings: Settings) -> _Times:
    key = KeypairSigner.from_uri("//Owner").hotkey
    spec = make_run(settings, key, [key])
    sizes = Sizes.of(spec, settings.preset, settings.dimension)
    step_s = spec.inner.batch_size * spec.data.seq_len / settings.pace.tokens_per_s
    up_s, down_s = (8e-6 / rate for rate in (settings.up_mbit, settings.down_mbit))
    return _Times(
        start_s=settings.boot_s + sizes.to_head(None, SETTLED) * down_s,
        train_s=spec.inner.steps_of(SETTLED) * step_s,
        exchange_s=sizes.delta(SETTLED)[0] * up_s + sizes.update(SETTLED) * down_s,
    )


def _play(settings: Settings, span_s: float, quorum: float) -> Baseline:
    times, sessions = _times(settings), _sessions(settings, span_s)
    now_s, useful_s, rounds, failed = 0.0, 0.0, 0, 0
    while now_s < span_s:
        ready = [(start, end) for start, end in sessions if start + times.start_s <= now_s < end]
        if not ready:
            now_s = min(
                (s + times.start_s for s, e in sessions if s + times.start_s > now_s and e > s + times.start_s),
                default=span_s,
            )
            continue
        end_s = now_s + times.round_s
        left = sum(end >= end_s for _, end in ready)
        if left >= quorum * len(ready):
            useful_s, rounds, now_s = useful_s + left * times.train_s, rounds + 1, end_s
            continue
        # The round is lost at the death that leaves too few; it begins again at once.
        ends = sorted(end for _, end in ready)
        allowed = len(ready) - _least(quorum, len(ready))
        now_s, failed = max(ends[allowed], now_s + 1e-3), failed + 1
    online_s = sum(min(end, span_s) - start for start, end in sessions if start < span_s)
    return Baseline(useful_s / max(online_s, 1e-9), rounds, failed)


def _least(quorum: float, count: int) -> int:
    """The fewest that are enough."""
    return next(left for left in range(count + 1) if left >= quorum * count)


def _sessions(settings: Settings, span_s: float) -> list[tuple[float, float]]:
    """(start, end) of every time that a machine is there."""
    found: list[tuple[float, float]] = []
    for index in range(settings.miners):
        uptime = ALWAYS if settings.trace is None else settings.trace.machine(index, settings.miners)
        since_s: float | None = None
        for at_s, up in takewhile(lambda change: change[0] < span_s, uptime.changes()):
            if up and since_s is None:
                since_s = at_s
            elif not up and since_s is not None:
                found.append((since_s, at_s))
                since_s = None
        if since_s is not None:
            found.append((since_s, float("inf")))
    return found
