"""Who gets no duties: whoever lets rounds wait, for longer each time, and nobody else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Rejected, Retryable
from common.merge.butterfly import Duty
from common.units import Hotkey, RoundId, Sha256, ShardId
from validator.attending import Attending
from validator.bars import (
    FAIR_SHARE,
    LONGEST_ROUNDS,
    MOST_EXCUSES,
    MOST_LATENESS,
    NO_BAR,
    WEIGHT,
    Bar,
    Bars,
    Owner,
    settled,
    together,
)
from validator.reducing import Deal, Reducing

USUAL_S = 30.0
LAZY, SLOW = Hotkey("lazy"), Hotkey("slow")
DONE, NOT_DONE, GONE = Owner(3.0, True), Owner(None, True), Owner(None, False)

bars = st.builds(
    Bar,
    until=st.integers(0, 200),
    code=st.sampled_from(["wrong_mean", "late", "excused"]),
    lateness=st.integers(0, MOST_LATENESS),
    excuses=st.integers(0, MOST_EXCUSES),
)
some_owners = st.dictionaries(
    st.sampled_from([Hotkey(f"m{number}") for number in range(8)]),
    st.builds(Owner, took_s=st.none() | st.floats(0.0, USUAL_S), reached=st.booleans()),
)


def beside_honest(owner: Owner, name: Hotkey = LAZY) -> dict[Hotkey, Owner]:
    return {name: owner, **{Hotkey(f"honest {number}"): DONE for number in range(3)}}


def rounds_dealt(owner: Owner, rounds: int, start: Bar = NO_BAR) -> list[int]:
    """The rounds in which it was waited for, when it always does the same."""
    bar, dealt = start, []
    for round_id in range(rounds):
        if bar.until <= round_id:
            dealt.append(round_id)
            bar = settled(round_id, beside_honest(owner), USUAL_S, USUAL_S, {LAZY: bar})[0].get(LAZY, bar)
    return dealt


def test_who_never_hands_in_is_waited_for_ever_more_rarely() -> None:
    assert rounds_dealt(NOT_DONE, 300) == [0, 3, 8, 17, 34, 67, 132, 197, 262]


def test_who_comes_and_goes_in_every_reduction_is_no_better_off() -> None:
    """Once is no fault; whoever falls silent after each deal costs each round as much as who never hands in."""
    first, second, third, *later = rounds_dealt(GONE, 300)
    assert (first, second, third) == (0, 1, 2)
    assert len(later) < 10


def test_an_owner_that_left_or_was_turned_away_is_dealt_again_when_it_is_back() -> None:
    found, why = settled(5, beside_honest(GONE), USUAL_S, USUAL_S, {})
    assert (found[LAZY].until, why) == (0, "")
    for round_id in range(6, 6 + WEIGHT):
        found = settled(round_id, beside_honest(DONE), USUAL_S, USUAL_S, found)[0]
    assert found[LAZY] == NO_BAR


def test_clean_reductions_shrink_the_next_bar() -> None:
    bar = Bar(0, "late", lateness=4 * WEIGHT)
    for round_id in range(4 * WEIGHT):
        bar = settled(round_id, beside_honest(DONE), USUAL_S, USUAL_S, {LAZY: bar})[0][LAZY]
    found, why = settled(100, beside_honest(NOT_DONE), USUAL_S, USUAL_S, {LAZY: bar})
    assert found[LAZY].until == 103
    assert why == "lazy has no reduce duties until round 103: it let a round wait for its means"


@pytest.mark.parametrize("bad", [NOT_DONE, GONE], ids=["late", "gone"])
@pytest.mark.parametrize("pattern", ["-+", "--+", "-++", "-++++"])
def test_a_few_clean_reductions_do_not_make_up_for_a_bad_one(bad: Owner, pattern: str) -> None:
    """Else who is late every few times would be waited for as often for ever."""
    bar, dealt, waited = NO_BAR, 0, 0
    for round_id in range(600):
        if bar.until > round_id:
            continue
        mark = pattern[dealt % len(pattern)]
        dealt, waited = dealt + 1, waited + (mark == "-")
        owner = bad if mark == "-" else DONE
        bar = settled(round_id, beside_honest(owner), USUAL_S, USUAL_S, {LAZY: bar})[0].get(LAZY, bar)
    assert waited < 600 / 20


def test_who_comes_in_after_half_of_the_time_and_long_after_the_others_is_late() -> None:
    assert SLOW in settled(0, beside_honest(Owner(29.0, True), SLOW), USUAL_S, USUAL_S, {})[0]
    assert settled(0, beside_honest(Owner(14.0, True), SLOW), USUAL_S, USUAL_S, {}) == ({}, "")


def test_where_all_need_most_of_the_time_nobody_is_late() -> None:
    owners = {Hotkey(f"m{number}"): Owner(18.0 + 3 * number, True) for number in range(4)}
    assert settled(0, owners, USUAL_S, USUAL_S, {}) == ({}, "")


def test_when_most_are_late_nobody_is_blamed_and_when_that_goes_on_nobody_waits_for_them() -> None:
    owners = {Hotkey(f"m{number}"): NOT_DONE for number in range(4)}
    known: dict[Hotkey, Bar] = {}
    for round_id in range(2):
        known, why = settled(round_id, owners, USUAL_S, USUAL_S, known)
        assert all(bar.until == 0 for bar in known.values())
        assert "nobody is blamed" in why
    known, why = settled(2, owners, USUAL_S, USUAL_S, known)
    assert {bar.code for bar in known.values()} == {"excused"}
    assert "not held against it" in why


@given(some_owners, st.dictionaries(st.sampled_from([Hotkey(f"m{n}") for n in range(8)]), bars), st.integers(0, 100))
def test_whatever_owners_do_bars_are_bounded_and_only_for_those_who_were_late(
    owners: dict[Hotkey, Owner], before: dict[Hotkey, Bar], round_id: int
) -> None:
    found, why = settled(round_id, owners, USUAL_S, USUAL_S, before)
    assert found.keys() <= owners.keys()
    for hotkey, after in found.items():
        was = before.get(hotkey, NO_BAR)
        assert was.until <= after.until <= max(was.until, round_id + 1 + LONGEST_ROUNDS)
        assert 0 <= after.lateness <= MOST_LATENESS
        assert 0 <= after.excuses <= MOST_EXCUSES
        if after.until > was.until:
            took_s = owners[hotkey].took_s
            assert took_s is None or took_s > USUAL_S / 2
            assert owners[hotkey].reached or was.excuses > MOST_EXCUSES - WEIGHT
            assert hotkey in why


@given(some_owners, st.floats(0.0, USUAL_S * FAIR_SHARE, exclude_max=True))
def test_nobody_is_judged_when_the_owners_had_less_than_their_time(
    owners: dict[Hotkey, Owner], allowed_s: float
) -> None:
    assert settled(3, owners, allowed_s, USUAL_S, {})[0] == {}


@given(bars, bars)
def test_what_is_learnt_twice_or_in_another_order_is_the_same(one: Bar, other: Bar) -> None:
    both = together(one, other)
    assert together(both, one) == both
    assert dataclasses.replace(together(other, one), code="") == dataclasses.replace(both, code="")


def test_the_longer_bar_tells_for_what() -> None:
    known = Bars()
    known.add(LAZY, Bar(20, "wrong_mean"))
    known.settle(RoundId(4), beside_honest(NOT_DONE), USUAL_S, USUAL_S)
    told = "lazy has no reduce duties until round 20: it handed in a wrong mean"
    assert list(known.without_duties(RoundId(10), [LAZY])) == [told]
    assert list(known.without_duties(RoundId(20), [LAZY])) == []


def test_who_is_turned_away_by_the_storage_or_never_asked_was_not_reached() -> None:
    reducing = Reducing(RoundId(0), Sha256("0" * 64), planned_s=0.0, left_s=100.0)
    turned_away, lazy, unasked, quick = (Hotkey(name) for name in ("turned away", "lazy", "unasked", "quick"))
    duty = Duty(0, (turned_away, lazy, unasked, quick), related=False)
    reducing.begin(Deal(b"", {(ShardId(0), 0): duty}, {}, {}, {}), 10.0)
    seen = Attending(10.0)
    for owner in (turned_away, lazy, quick):
        seen.told(owner, 10.5)
    with pytest.raises(Retryable), seen.serving(turned_away):
        raise Retryable("the storage is away")
    with pytest.raises(Rejected), seen.serving(lazy):
        raise Rejected("wrong_size", "the mean has another size")
    seen.done(quick, 12.0)
    seen.done(quick, 30.0)
    assert seen.allowed_s(reducing) == 25.0
    assert seen.owners(reducing, lambda owner: True) == {
        turned_away: Owner(None, False),
        lazy: Owner(None, True),
        unasked: Owner(None, False),
        quick: Owner(2.0, True),
    }


def test_whose_group_is_at_fault_gets_no_strike() -> None:
    found, why = settled(4, beside_honest(NOT_DONE), USUAL_S, USUAL_S, {}, spared={LAZY})
    assert (found, why) == ({}, "")
    assert LAZY in settled(4, beside_honest(NOT_DONE), USUAL_S, USUAL_S, {})[0]


def test_what_was_noted_since_a_groups_fault_began_is_taken_back() -> None:
    known = Bars()
    known.settle(RoundId(2), beside_honest(NOT_DONE), USUAL_S, USUAL_S)
    before = known.of(LAZY)
    for round_id in (6, 7):
        known.settle(RoundId(round_id), beside_honest(NOT_DONE), USUAL_S, USUAL_S)
    assert known.of(LAZY).until > before.until
    (told,) = known.take_back({LAZY, SLOW}, RoundId(6))
    assert told.startswith(LAZY)
    assert known.of(LAZY) == before, "what was noted earlier stays"
    assert known.take_back({LAZY}, RoundId(0)) == []


def test_of_a_lie_nothing_is_taken_back() -> None:
    known = Bars()
    known.settle(RoundId(6), beside_honest(NOT_DONE), USUAL_S, USUAL_S)
    known.add(LAZY, Bar(22, "wrong_mean"))
    known.take_back({LAZY}, RoundId(6))
    assert known.of(LAZY) == Bar(22, "wrong_mean")


def test_who_is_slow_has_no_duties_while_it_is_and_no_bar() -> None:
    known = Bars()
    assert known.may_reduce(SLOW, 3)
    known.slow = {SLOW: "it uploads at 50%"}
    assert not known.may_reduce(SLOW, 3)
    assert known.told(SLOW, 3) == "no reduce duties while this holds: it uploads at 50%"
    assert list(known.without_duties(RoundId(3), {SLOW, LAZY})) == [f"{SLOW} has {known.told(SLOW, 3)}"]
    assert known.of(SLOW) == NO_BAR
    known.slow = {}
    assert known.may_reduce(SLOW, 3)
