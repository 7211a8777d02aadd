"""Transfers that fail: who is found, how soon, who is not blamed, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from common.units import Hotkey, RoundId
from tests.health.fleet import place
from validator.health.breaks import ALARM, Attempts, Break, Breaks, Broken, gathered, restored
from validator.health.labels import groups

MACHINES = tuple(Hotkey(f"m{i:02d}") for i in range(64))
ONE = MACHINES[17]
CALM = {h: Attempts(4, 0) for h in MACHINES}


def play(breaks: Breaks, number: int, dice: random.Random, shares: Mapping[Hotkey, float], kind: Break) -> set[Hotkey]:
    """Four attempts for each machine."""
    seen = {h: Attempts(4, sum(dice.random() < shares.get(h, 0.02) for _ in range(4))) for h in MACHINES}
    return {found.member for found in breaks.look(RoundId(number), {kind: seen})}


@pytest.mark.parametrize("kind", list(Break))
def test_a_machine_for_which_half_fails_is_found_soon_and_alone(kind: Break) -> None:
    delays, false = [], 0
    for seed in range(20):
        breaks, dice = Breaks(), random.Random(seed)
        for number in range(40):
            found = play(breaks, number, dice, {ONE: 0.5} if number >= 20 else {}, kind)
            false += len(found - {ONE} if number >= 20 else found)
            if ONE in found and number >= 20:
                delays.append(number - 19)
                break
    assert len(delays) == 20
    assert sorted(delays)[10] <= 3
    assert max(delays) <= 8
    assert false == 0


def test_what_fails_for_many_at_once_is_nobodys_fault() -> None:
    breaks, dice = Breaks(), random.Random(1)
    for number in range(20):
        assert not play(breaks, number, dice, dict.fromkeys(MACHINES, 0.5), Break.TRUNCATE)


@pytest.mark.parametrize("others", [0, 1])
def test_without_others_to_compare_with_nobody_is_blamed(others: int) -> None:
    breaks = Breaks()
    seen = {ONE: Attempts(4, 4), **{h: Attempts(4, 0) for h in MACHINES[:others]}}
    for number in range(20):
        assert not breaks.look(RoundId(number), {Break.FLAP: seen})


def test_those_at_fault_do_not_hide_each_other() -> None:
    """A third of all, one after the other, as a provider's machines may be: the first ones are no company."""
    breaks, bad, found = Breaks(), MACHINES[:21], set[Hotkey]()
    for number in range(1, len(bad) + 1):
        seen = {**CALM, **{h: Attempts(4, 4) for h in bad[:number]}}
        found = {one.member for one in breaks.look(RoundId(number), {Break.FLAP: seen})}
    assert found == set(bad)


def test_a_machine_that_is_well_again_is_free_after_its_attempts_in_a_row() -> None:
    breaks = Breaks()
    for number in range(20):
        (found,) = breaks.look(RoundId(number), {Break.TRUNCATE: {**CALM, ONE: Attempts(4, 4)}})
    assert found.needed == 15
    single = {h: Attempts(1, 0) for h in MACHINES}
    for number in range(found.needed - 1):
        (held,) = breaks.look(RoundId(20 + number), {Break.TRUNCATE: single})
        assert held.needed == found.needed - 1 - number, "one success lets nobody go"
    assert not breaks.look(RoundId(40), {Break.TRUNCATE: single})


def test_a_finding_tells_what_failed_and_since_when() -> None:
    breaks = Breaks()
    breaks.look(RoundId(6), {Break.FLAP: CALM})
    (found,) = breaks.look(RoundId(7), {Break.FLAP: {**CALM, ONE: Attempts(4, 4)}})
    assert found == Broken(Break.FLAP, ONE, RoundId(7), 4, 4, ALARM)
    assert str(found) == "m17 went and returned in 4 of 4 stretches of its connection since round 7"


def test_three_failures_are_not_enough_however_rarely_it_is_tried() -> None:
    breaks = Breaks()
    for number in range(3):
        assert not breaks.look(RoundId(number), {Break.TRUNCATE: {**CALM, ONE: Attempts(1, 1)}})
    assert breaks.look(RoundId(3), {Break.TRUNCATE: {**CALM, ONE: Attempts(1, 1)}})


def test_a_machine_that_was_not_tried_is_unknown_and_one_that_is_gone_is_forgotten() -> None:
    breaks = Breaks()
    breaks.look(RoundId(1), {Break.FLAP: {**CALM, ONE: Attempts(4, 4)}})
    assert breaks.look(RoundId(2), {Break.FLAP: {**CALM, ONE: Attempts(0, 0)}})
    breaks.forget(lambda hotkey: hotkey != ONE)
    assert not breaks.look(RoundId(3), {Break.FLAP: CALM})


def test_who_goes_on_from_what_was_told_lets_nobody_go_sooner_or_later() -> None:
    breaks, again = Breaks(), Breaks()
    breaks.look(RoundId(1), {Break.FLAP: {**CALM, ONE: Attempts(5, 5)}})
    (found,) = breaks.look(RoundId(2), {Break.FLAP: {**CALM, ONE: Attempts(3, 0)}})
    again.restore([restored(found.kind, found.member, found.since, found.failed, found.made, found.needed)])
    (read,) = again.broken
    assert (read.kind, read.member, read.since, read.failed, read.made) == (Break.FLAP, ONE, 1, 5, 8)
    assert read.needed == found.needed
    assert restored(Break.FLAP, ONE, RoundId(1), 5, 5, 10**9).needed == 15


def test_a_network_whose_machines_break_together_is_one_thing() -> None:
    places = {h: place(number // 8, f"owner of {h}") for number, h in enumerate(MACHINES)}
    broken = [restored(Break.FLAP, h, RoundId(1), 4, 4, 15) for h in (*MACHINES[8:15], ONE)]
    assert gathered(broken, groups(places)) == [(Break.FLAP, frozenset(MACHINES[8:15]), "subnet 10.1.0.0/24")]
    assert gathered(broken[:5], groups(places)) == [], "five of eight are five machines"


def test_more_failures_than_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="write 0 <= failed <= made"):
        Attempts(1, 2)
