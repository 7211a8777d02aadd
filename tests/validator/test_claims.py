"""Rounds of made-up machines: who is counted and paid for how much, over rounds, in time and drop in loss.

A model, not a measurement: the drop in loss of a delta grows as (work) ** ``SATURATES``, with noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from common.units import Hotkey, Uid
from validator.round.tokens import Seen, Terms, proven_rates, round_usual, validated_tokens
from validator.scoring.policy import Drops, Score, Seat, Work, score_round, supported_times

TARGET = 240_000
SATURATES = 2 / 3
LATEST_S = 120.0
Speed = Callable[[int], float]
"""Tokens per second in a round; 0 while it isn't there."""


@dataclass(frozen=True)
class Row:
    """One round: its length, and of each machine the counted share of its claim and its average."""

    time_s: float
    counted: dict[str, float]
    credited: dict[str, float]
    """Round score over work."""
    pay: dict[str, float]


def simulate(speeds: dict[str, Speed], liars: str = "", rounds: int = 10, noise: float = 0.0) -> list[Row]:
    rng, rows = random.Random(7), []
    proven: dict[Hotkey, float] = {}
    evidence: dict[Seat, float] = {}
    averages: dict[Seat, float] = {}
    for round_id in range(rounds):
        present = {Hotkey(name): speed(round_id) for name, speed in speeds.items() if speed(round_id) > 0}
        supported = {hotkey: times for (hotkey, _), e in evidence.items() if (times := supported_times(e)) is not None}
        time_s, claims, counted = _round(present, liars, proven, supported)
        works = [
            Work(hotkey, Uid(1), 1, "accepted", tokens=counted[hotkey], drops=_drops(rate * time_s, noise, rng))
            for hotkey, rate in present.items()
        ]
        scores = score_round(works, averages, True, 4, evidence, 1.0)
        averages = {score.work.seat: score.score for score in scores}
        evidence = {score.work.seat: score.evidence for score in scores}
        proven |= proven_rates({hotkey: (tokens, time_s) for hotkey, tokens in counted.items()}, proven)
        rows.append(_row(time_s, claims, counted, scores, present))
    return rows


def _round(
    present: dict[Hotkey, float], liars: str, proven: dict[Hotkey, float], supported: dict[Hotkey, float]
) -> tuple[float, dict[Hotkey, int], dict[Hotkey, int]]:
    """Time, claims and counted tokens at the moment when the round closes."""
    time_s = 0.0
    while True:
        time_s += 0.2
        claims = {h: int(TARGET * 1.1) if h in liars else int(rate * time_s) for h, rate in present.items()}
        usual = round_usual(proven, {hotkey: claim / time_s for hotkey, claim in claims.items()})
        terms = Terms(TARGET, len(present), LATEST_S, 1.1, usual)
        seen = Seen(time_s, True)
        counted = {h: validated_tokens(claim, seen, supported.get(h), terms)[0] for h, claim in claims.items()}
        if sum(counted.values()) >= TARGET or time_s >= LATEST_S:
            return time_s, claims, counted


def _drops(work: float, noise: float, rng: random.Random) -> Drops:
    drop = (work / TARGET) ** SATURATES
    return Drops((drop * rng.gauss(1, noise),), (drop * rng.gauss(1, noise),))


def _row(
    time_s: float,
    claims: dict[Hotkey, int],
    counted: dict[Hotkey, int],
    scores: tuple[Score, ...],
    present: dict[Hotkey, float],
) -> Row:
    return Row(
        time_s,
        {str(h): counted[h] / max(1, claims[h]) for h in claims},
        {str(s.work.hotkey): s.round_score / (present[s.work.hotkey] * time_s) for s in scores},
        {str(s.work.hotkey): s.score for s in scores},
    )


def always(rate: float) -> Speed:
    return lambda _: rate


def joins(rate: float, at: int) -> Speed:
    return lambda round_id: rate if round_id >= at else 0.0


EQUAL = {name: always(3000.0) for name in "abcd"}
HONEST = {
    "four equal": (EQUAL, 0),
    "alone": ({"a": always(3000.0)}, 0),
    "1, 1, 1, 2": ({**EQUAL, "d": always(6000.0)}, 2),
    "1, 1, 1, 4": ({**EQUAL, "d": always(12000.0)}, 1),
    "seven and one of 4": ({**{name: always(1500.0) for name in "abcefgh"}, "d": always(6000.0)}, 1),
    "a joiner of 2": ({**EQUAL, "d": joins(6000.0, 2)}, 3),
    "a joiner of 4": ({**EQUAL, "d": joins(12000.0, 2)}, 3),
    "a slow one": ({**EQUAL, "d": always(800.0)}, 0),
    "all faster by 3 at once": ({name: (lambda r: 1000.0 if r < 3 else 3000.0) for name in "abcd"}, 0),
    "all slower by 3 at once": ({name: (lambda r: 3000.0 if r < 3 else 1000.0) for name in "abcd"}, 0),
    "one starved at first": ({**EQUAL, "a": lambda r: 1200.0 if r == 0 else 3000.0}, 0),
    "half starved for once": ({**EQUAL, **dict.fromkeys("ab", lambda r: 900.0 if r == 4 else 3000.0)}, 0),
}
"""Machines, and the round from which on every honest token counts."""


@pytest.mark.parametrize("case", HONEST)
def test_honest_machines_count_whole_after_a_round_or_two_of_evidence(case: str) -> None:
    speeds, whole_from = HONEST[case]
    rows = simulate(speeds)
    for round_id, row in enumerate(rows[whole_from:], whole_from):
        assert all(share > 0.999 for share in row.counted.values()), (case, round_id, row.counted)


@pytest.mark.parametrize("factor", [2.0, 4.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_faster_machine_is_paid_for_its_work(factor: float, noise: float) -> None:
    rows = simulate({**EQUAL, "d": always(factor * 3000.0)}, rounds=20, noise=noise)
    last = rows[-1].pay
    honest = sum(last[name] for name in "abc") / 3
    assert last["d"] / honest > 0.85 * factor


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_one_that_claims_everything_is_paid_little_more_and_does_not_end_rounds(noise: float) -> None:
    rows = simulate(EQUAL, liars="a", noise=noise)
    last = rows[-1].pay
    assert last["a"] <= 1.3 * sum(last[name] for name in "bcd") / 3
    assert min(row.time_s for row in rows) >= 0.75 * 20.0, "the honest alone take 20 s"


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_liar_of_two_is_no_better_off(noise: float) -> None:
    rows = simulate({name: always(3000.0) for name in "ab"}, liars="a", noise=noise)
    assert rows[-1].pay["a"] <= 1.3 * rows[-1].pay["b"]
