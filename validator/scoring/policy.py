"""How work becomes reward: credited tokens × quality × timeliness, averaged over rounds. Pure.

Credited are the validated tokens as far as the evidence supports them. Evidence is the drop in loss of a miner's delta,
in times the middle one of the others: a claim of up to ``FREE`` times what the others brought needs none; four times
as many tokens must show about four times the work. Then ``max_share`` caps what one hotkey has of the round's tokens.
With nobody to compare with, nothing is cut. What this can't do: drops saturate and are noisy, hence ``SATURATION``,
``FREE`` and the averaging, and a delta stretched by its sender (within the clip factor of the gates) shows more than
its work: twice as long with twice the drop is paid up to 2.8 times. Executing work again is the real check.

Invariants, tested at the boundaries: each factor is cut to its range before anything is multiplied, so that two
negatives never make a reward; a rejected or absent miner earns nothing in the round and its average decays; averages
belong to (hotkey, registration block), so a recycled uid inherits nothing; an aborted round changes no average, since
nothing was merged; every figure is told in ``why``. Timeliness is what the run spec lets a token count for that was
trained one revision late: it lowers the pay of whoever sent such tokens, and is no factor for the others. What a plan
defers earns nothing in that round, and its late price in the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from common.merge.shares import cap_level
from common.units import Hotkey, Uid

UNSEEN_SHARE = 0.5
"""Of quality: what unseen data says; the rest is what the assigned data says."""
FORGET_BELOW = 1e-4
"""An average below this share of the largest is dropped, when its miner is absent."""

MOST_DROP_NATS = 100.0
"""A drop counts up to this size: one delta that makes an infinite loss must not spoil a report's figures."""

FREE = 1.2
"""Times the tokens of the others that are credited without evidence."""
SATURATION = 1.5
"""Work grows as this power of the drop: twice the tokens on one base bring less than twice the drop."""
EVIDENCE_RANGE = (0.5, 8.0)
"""Bounds of one round's evidence."""

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
    """accepted, rejected, deferred or absent."""
    code: str = ""
    reason: str = ""
    tokens: int = 0
    """Validated, of all its accepted deltas."""
    late_tokens: int = 0
    """Of those, trained on the revision before the plan's base."""
    discount: int = 0
    """Tokens that do not count, since they came late."""
    deltas: int = 1
    """Rounds that its accepted deltas were made for: a late one brings its own work beside that of the round."""
    lie: str = ""
    """The wrong mean of a partition that it handed in."""
    drops: Drops | None = None
    """None when nothing was tried: only accepted deltas are."""

    @property
    def seat(self) -> Seat:
        return self.hotkey, self.registered_block

    @property
    def merged(self) -> int:
        """Tokens that count."""
        return max(0, self.tokens - self.discount)

    @property
    def timeliness(self) -> float | None:
        """What its tokens count for, as some came late; None when none did."""
        return self.merged / self.tokens if self.late_tokens > 0 and self.tokens > 0 else None


@dataclass(frozen=True)
class Score:
    """The outcome for one miner, with its figures in one sentence."""

    work: Work
    assigned_drop: float
    unseen_drop: float
    evidence: float
    """Times the usual drop, smoothed over rounds; 0 before."""
    quality: float
    round_score: float
    score: float
    why: str


def score_round(
    works: Sequence[Work],
    averages: Mapping[Seat, float],
    committed: bool,
    average_rounds: int,
    evidence: Mapping[Seat, float] | None = None,
    max_share: float = 1.0,
) -> tuple[Score, ...]:
    """Score everybody who took part or has an average; absent ones must be in ``works`` with that decision.

    ``evidence`` is what earlier rounds have shown, ``max_share`` the cap of the run's gates.
    """
    reference = reference_drops(works)
    known = evidence or {}
    shown = {work.seat: _evidence_of(work, works) for work in works}
    smoothed = {work.seat: smooth(known.get(work.seat, 0.0), shown[work.seat]) for work in works}
    amounts = {work.seat: _supported(work, works, shown[work.seat], smoothed[work.seat]) for work in works}
    level = cap_level([amount for amount in amounts.values() if amount > 0], max_share)
    return tuple(
        _score(
            work,
            averages.get(work.seat, 0.0),
            reference,
            committed,
            average_rounds,
            min(amounts[work.seat], level),
            smoothed[work.seat],
        )
        for work in works
    )


def supported_times(evidence: float) -> float | None:
    """Times the usual work that this evidence supports; None when there is none."""
    return min(EVIDENCE_RANGE[1], evidence**SATURATION) if evidence > 0 else None


def smooth(before: float, now: float | None) -> float:
    """Evidence after a round: the first one whole, then half the new one and half of what was."""
    if now is None:
        return before
    return (before + now) / 2 if before > 0 else now


def _evidence_of(work: Work, works: Sequence[Work]) -> float | None:
    """Its drops in times the middle ones of the others; None with nothing to compare."""
    if work.decision != "accepted" or work.drops is None:
        return None
    usual = reference_drops([other for other in works if other.decision == "accepted" and other.seat != work.seat])
    own = _mean(work.drops.assigned), _mean(work.drops.unseen)
    times = [work.deltas * drop / other for drop, other in zip(own, usual, strict=True) if other > 0]
    if not times:
        return None
    return max(EVIDENCE_RANGE[0], min(EVIDENCE_RANGE[1], math.fsum(times) / len(times)))


def _supported(work: Work, works: Sequence[Work], now: float | None, smoothed: float) -> float:
    """Validated tokens that count for pay: the better of this round's evidence and the smoothed one supports them."""
    if work.decision != "accepted":
        return 0.0
    tokens = float(max(0, work.tokens))
    others = [o.tokens for o in works if o.decision == "accepted" and o.tokens > 0 and o.seat != work.seat]
    if now is None or not others:
        return tokens
    times = supported_times(max(now, smoothed)) or 0.0
    return min(tokens, median_low(others) * max(FREE, times))


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


def _score(
    work: Work,
    before: float,
    reference: tuple[float, float],
    committed: bool,
    average_rounds: int,
    credited: float,
    evidence: float,
) -> Score:
    good = quality(work.drops, reference) if work.decision == "accepted" else 0.0
    earned = credited * good * (1.0 if work.timeliness is None else work.timeliness) if committed else 0.0
    earned = 0.0 if work.lie else earned
    after = average(before, earned, average_rounds) if committed else max(0.0, before)
    assigned = _mean(work.drops.assigned) if work.drops else 0.0
    unseen = _mean(work.drops.unseen) if work.drops else 0.0
    why = _explain(work, credited, evidence, assigned, unseen, good, earned, committed)
    told = f"{why}; average {before:.0f} → {after:.0f}"
    return Score(work, assigned, unseen, evidence, good, earned, after, told)


def _explain(
    work: Work,
    credited: float,
    evidence: float,
    assigned: float,
    unseen: float,
    good: float,
    earned: float,
    committed: bool,
) -> str:
    if work.decision == "absent":
        return "no submission in this round"
    if work.decision == "rejected":
        return f"rejected as {work.code}: {work.reason}"
    if work.decision == "deferred":
        return "its upload was not complete at the freeze: the next plan takes it, and its round pays it"
    if work.lie:
        return f"earns nothing: {work.lie}"
    if not committed:
        return "the round was aborted: nothing was merged"
    cut = "" if credited >= work.tokens else f"{credited:.0f} credited (evidence {evidence:.2f} × the usual) of "
    late = f" × timeliness {work.timeliness:.3f} ({work.late_tokens} came a revision late)" if work.timeliness else ""
    return (
        f"{cut}{work.tokens} tokens × quality {good:.3f} (loss drops {assigned:+.4f} on its own data, {unseen:+.4f} on "
        f"unseen data){late} = {earned:.0f}"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(map(_bounded, values)) / len(values) if values else 0.0


def _bounded(drop: float) -> float:
    """A drop within its bounds; weights that make no finite loss are as bad as can be told."""
    return max(-MOST_DROP_NATS, min(MOST_DROP_NATS, drop)) if math.isfinite(drop) else -MOST_DROP_NATS


def _share(drop: float, usual: float) -> float:
    return min(1.0, drop / usual) if drop > 0 and usual > 0 else 0.0
