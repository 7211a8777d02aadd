"""How long a quorum waits: bounded whatever is predicted, and never longer for who brings less or comes later."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from common.units import Hotkey
from validator.round.facts import MemberFacts
from validator.round.grace import Grace, grace_left


def missing(tokens: int, eta_s: float | None = None, *, late: bool = False, dripped: int = 0) -> MemberFacts:
    return MemberFacts(
        Hotkey("m"), True, True, True, tokens, False, eta_s=eta_s, can_be_late=late, dripped_tokens=dripped
    )


def left(*members: MemberFacts, price: float = 10.0, waited_s: float = 0.0, late_weight: float = 0.5) -> Grace:
    return grace_left(members, price, waited_s, 100.0, late_weight)


def test_a_wait_is_worth_what_it_brings() -> None:
    assert left(missing(100, 9.0)).wait_s > 0
    assert left(missing(100, 11.0)).wait_s == 0
    assert left(missing(100, 9.0, late=True)).wait_s == 0, "half of it would come with the next plan"
    assert left(missing(100, 9.0, dripped=20)).wait_s == 0, "a part is there already"


def test_several_may_be_worth_waiting_for_together() -> None:
    assert left(missing(50, 8.0)).wait_s == 0
    assert left(missing(50, 8.0), missing(50, 8.0)).wait_s > 0


def test_whoever_comes_after_the_deadline_brings_nothing() -> None:
    assert left(missing(10**9, 101.0)).wait_s == 0
    assert grace_left([missing(10**9)], 1.0, 10.0, 9.0, 0.5).wait_s == 0, "unknown: as long again as it took"


def test_nothing_known_of_an_arrival_waits_until_the_wait_has_cost_as_much() -> None:
    assert left(missing(100)).wait_s == 10.0
    assert left(missing(100), waited_s=9.0).wait_s == 1.0
    assert left(missing(100), waited_s=10.0).wait_s == 0


def test_when_nobody_waits_waiting_is_free_until_the_deadline() -> None:
    assert left(missing(1), price=0.0).wait_s == 100.0
    assert left(missing(0), price=0.0).wait_s == 0.0, "but nothing is worth nothing"


def test_who_has_not_been_heard_yet_is_waited_for() -> None:
    assert left(replace(missing(0), heard=False), price=1e9).wait_s == 100.0


members = st.builds(
    missing, st.integers(0, 10**6), st.none() | st.floats(0, 200), late=st.booleans(), dripped=st.integers(0, 10**6)
)
groups = st.lists(members, max_size=6)
prices = st.floats(0, 1e6)
times = st.floats(0, 1e4)


@given(groups, prices, times, times, st.floats(0.01, 1))
def test_it_never_goes_beyond_the_deadline_nor_the_worth_of_all(
    group: list[MemberFacts], price: float, waited_s: float, left_s: float, weight: float
) -> None:
    found = grace_left(group, price, waited_s, left_s, weight)
    assert 0 <= found.wait_s <= left_s
    assert found.reason
    worth = sum(member.awaited_tokens for member in group)
    assert found.wait_s == 0 or (waited_s + found.wait_s) * price <= worth * (1 + 1e-9) + 1e-6
    assert found.wait_s == 0 or worth > 0


@given(groups, prices, prices, times, times, st.floats(0.01, 1))
def test_a_longer_wait_a_higher_price_or_a_higher_weight_of_late_tokens_never_prolongs_it(
    group: list[MemberFacts], price: float, more: float, waited_s: float, longer_s: float, weight: float
) -> None:
    now = grace_left(group, price, waited_s, 50.0, weight).wait_s
    for other in (
        grace_left(group, price + more, waited_s, 50.0, weight),
        grace_left(group, price, waited_s + longer_s, 50.0, weight),
        grace_left(group, price, waited_s, 50.0, (1 + weight) / 2),
    ):
        assert other.wait_s <= now * (1 + 1e-9) + 1e-9


@given(groups, st.integers(0, 5), st.integers(0, 10**6), st.floats(0, 100), prices, times)
def test_who_brings_less_or_comes_later_never_prolongs_it(
    group: list[MemberFacts], which: int, fewer: int, later_s: float, price: float, waited_s: float
) -> None:
    now = grace_left(group, price, waited_s, 50.0, 0.5).wait_s
    if which < len(group):
        one = group[which]
        for worse in (
            replace(one, tokens=max(0, one.tokens - fewer)),
            replace(one, eta_s=None if one.eta_s is None else one.eta_s + later_s),
        ):
            changed = [*group[:which], worse, *group[which + 1 :]]
            assert grace_left(changed, price, waited_s, 50.0, 0.5).wait_s <= now * (1 + 1e-9) + 1e-9
