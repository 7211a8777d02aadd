"""Claims against what is shown: who is told of, who is not, and when it is over."""

from __future__ import annotations

import random

import pytest

from common.units import Hotkey, RoundId
from validator.health.claims import CLEAN, ROUNDS, Claim, Claims, Said

A, B = Hotkey("a"), Hotkey("b")


def rounds(claims: Claims, said: Said, count: int, begin: int = 0) -> tuple[Claim, ...]:
    found: tuple[Claim, ...] = claims.off
    for number in range(begin, begin + count):
        found = claims.look(RoundId(number), {A: said, B: Said(100.0, 100.0, 100.0)})
    return found


@pytest.mark.parametrize(
    ("said", "times"),
    [(Said(1000.0, 100.0, 100.0), 10.0), (Said(100.0, 500.0, 100.0), 5.0), (Said(20.0, None, 100.0), 0.2)],
    ids=["its speed", "its counter", "too little"],
)
def test_a_claim_that_is_off_in_round_after_round_is_told(said: Said, times: float) -> None:
    claims = Claims()
    assert not rounds(claims, said, ROUNDS - 1, begin=3)
    (found,) = rounds(claims, said, 1, begin=3 + ROUNDS - 1)
    assert (found.member, found.since, found.rounds) == (A, 3, ROUNDS)
    assert found.times == pytest.approx(times)


def test_it_is_over_after_some_rounds_within_the_factor() -> None:
    claims, fair = Claims(), Said(120.0, 100.0, 100.0)
    rounds(claims, Said(1000.0, 100.0, 100.0), ROUNDS)
    assert rounds(claims, fair, CLEAN - 1)
    assert not rounds(claims, fair, 1)


def test_one_fair_round_before_it_is_told_begins_anew() -> None:
    claims = Claims()
    rounds(claims, Said(1000.0, 100.0, 100.0), ROUNDS - 1)
    rounds(claims, Said(100.0, 100.0, 100.0), 1)
    assert not rounds(claims, Said(1000.0, 100.0, 100.0), ROUNDS - 1)


def test_now_more_and_then_less_is_no_lie() -> None:
    claims = Claims()
    for number in range(4 * ROUNDS):
        assert not rounds(claims, Said(300.0 if number % 2 else 30.0, 100.0, 100.0), 1, number)


@pytest.mark.parametrize("said", [Said(None, None, 100.0), Said(0.0, 0.0, 100.0), Said(100.0, 100.0, 0.0)])
def test_what_was_not_said_or_not_seen_tells_nothing(said: Said) -> None:
    assert not rounds(Claims(), said, 3 * ROUNDS)


def test_honest_figures_that_scatter_are_never_told() -> None:
    dice, claims = random.Random(1), Claims()
    for number in range(2000):
        said = Said(130.0 * dice.lognormvariate(0, 0.35), 100.0 * dice.lognormvariate(0, 0.2), 100.0)
        assert not claims.look(RoundId(number), {A: said})


def test_who_goes_on_from_what_was_told_knows_it_and_forgets_whom_it_must() -> None:
    claims = Claims()
    claims.restore([Claim(A, RoundId(3), 9, 4.0)])
    (found,) = claims.off
    assert (found.member, found.since, found.rounds, found.times) == (A, 3, 9, pytest.approx(4.0))
    assert str(found) == "a claims 4 times as much as it shows, in tokens per second, since round 3"
    claims.forget(lambda hotkey: hotkey != A)
    assert not claims.off
