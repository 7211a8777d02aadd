"""How work becomes reward: validated tokens × quality × timeliness, averaged over rounds. Pure.

Invariants, tested at the boundaries: each factor is cut to its range before anything is multiplied, so that two
negatives never make a reward; a rejected or absent miner earns nothing in the round and its average decays; averages
belong to (hotkey, registration block), so a recycled uid inherits nothing; an aborted round changes no average, since
nothing was merged; every figure is told in ``why``. Timeliness is a fact of the round: a plan takes only what was
delivered before the submit deadline on the leader's clock, which is 1, and the rest is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from common.units import Hotkey, Uid

UNSEEN_SHARE = 0.5
"""Of quality: what unseen data says; the rest is what the assigned data says."""
FORGET_BELOW = 1e-4
"""An average below this share of the largest is dropped, when its miner is absent."""

MOST_DROP_NATS = 100.0
"""A drop counts up to this size: one delta that makes an infinite loss must not spoil a report's figures."""

Seat = tuple[Hotkey, int]
"""A hotkey and the block of its registration: whom a score belongs to."""


@dataclass(frozen=True)
class Drops:
    """Paired drops in loss, base minus base + delta, nats per token, one for each sequence tried."""

    assigned: tuple[float, ...]
    unseen: tuple[float, ...]


@dataclass(frozen=True)
class Work:
    """What one miner brought into one round."""

    hotkey: Hotkey
    uid: Uid
    registered_block: int
    decision: str
    """accepted, rejected or absent."""
    code: str = ""
    reason: str = ""
    tokens: int = 0
    """Validated."""
    drops: Drops | None = None
    """None when nothing was tried: only accepted deltas are."""

    @property
    def seat(self) -> Seat:
        return self.hotkey, self.registered_block


@dataclass(frozen=True)
class Score:
    """The outcome for one miner, with its figures in one sentence."""

    work: Work
    assigned_drop: float
    unseen_drop: float
    quality: float
    timeliness: float
    round_score: float
    score: float
    why: str


def score_round(
    works: Sequence[Work], averages: Mapping[Seat, float], committed: bool, average_rounds: int
) -> tuple[Score, ...]:
    """Score everybody who took part or has an average; absent ones must be in ``works`` with that decision."""
    reference = reference_drops(works)
    return tuple(_score(work, averages.get(work.seat, 0.0), reference, committed, average_rounds) for work in works)


def reference_drops(works: Sequence[Work]) -> tuple[float, float]:
    """The usual drop on assigned and on unseen data: the median of the positive ones; 0 when there are none."""
    tried = [work.drops for work in works if work.drops is not None]
    assigned = [mean for drops in tried if (mean := _mean(drops.assigned)) > 0]
    unseen = [mean for drops in tried if (mean := _mean(drops.unseen)) > 0]
    return (median(assigned) if assigned else 0.0, median(unseen) if unseen else 0.0)


def quality(drops: Drops | None, reference: tuple[float, float]) -> float:
    """0..1: each mean drop as a share of the usual one, cut to 0..1, then averaged."""
    if drops is None:
        return 0.0
    assigned = _share(_mean(drops.assigned), reference[0])
    unseen = _share(_mean(drops.unseen), reference[1])
    return (1 - UNSEEN_SHARE) * assigned + UNSEEN_SHARE * unseen


def average(before: float, now: float, average_rounds: int) -> float:
    """The exponential average that falls to 1/e in ``average_rounds`` rounds without reward."""
    keep = math.exp(-1.0 / average_rounds)
    return keep * max(0.0, before) + (1.0 - keep) * max(0.0, now)


def forgettable(score: float, largest: float) -> bool:
    """Whether an absent miner's average is too small to be carried on."""
    return score <= FORGET_BELOW * largest


def _score(work: Work, before: float, reference: tuple[float, float], committed: bool, average_rounds: int) -> Score:
    good = quality(work.drops, reference) if work.decision == "accepted" else 0.0
    timely = 1.0 if work.decision == "accepted" else 0.0
    earned = max(0, work.tokens) * good * timely if committed else 0.0
    after = average(before, earned, average_rounds) if committed else max(0.0, before)
    assigned = _mean(work.drops.assigned) if work.drops else 0.0
    unseen = _mean(work.drops.unseen) if work.drops else 0.0
    why = _explain(work, assigned, unseen, good, timely, earned, committed)
    return Score(work, assigned, unseen, good, timely, earned, after, f"{why}; average {before:.0f} → {after:.0f}")


def _explain(
    work: Work, assigned: float, unseen: float, good: float, timely: float, earned: float, committed: bool
) -> str:
    if work.decision == "absent":
        return "no submission in this round"
    if work.decision == "rejected":
        return f"rejected as {work.code}: {work.reason}"
    if not committed:
        return "the round was aborted: nothing was merged"
    return (
        f"{work.tokens} tokens × quality {good:.3f} (loss drops {assigned:+.4f} on its own data, {unseen:+.4f} on "
        f"unseen data) × timeliness {timely:.2f} = {earned:.0f}"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(map(_bounded, values)) / len(values) if values else 0.0


def _bounded(drop: float) -> float:
    """A drop within its bounds; weights that make no finite loss are as bad as can be told."""
    return max(-MOST_DROP_NATS, min(MOST_DROP_NATS, drop)) if math.isfinite(drop) else -MOST_DROP_NATS


def _share(drop: float, usual: float) -> float:
    return min(1.0, drop / usual) if drop > 0 and usual > 0 else 0.0
