"""Verdicts: who is blamed for what, who is not, and how one gets out of it again."""

from __future__ import annotations

import pytest

from common.units import Hotkey, RoundId
from tests.health.fleet import EACH, PROVIDERS, World, hotkeys, nobody, place, places, slowed
from validator.health.evidence import Evidence, Kind, Sample
from validator.health.findings import Blame
from validator.health.labels import Label
from validator.health.ladder import Rung, actions
from validator.health.monitor import Judgement, Monitor

ONE = frozenset({Hotkey("p2m1")})


@pytest.mark.parametrize("kind", [Kind.UPLINK, Kind.DOWNLINK])
def test_a_slow_provider_is_one_finding_and_none_of_its_machines_is_blamed_alone(kind: Kind) -> None:
    world = World().calm()
    assert world.until_verdict(slowed(kind, hotkeys(3), 0.5)) <= 2
    (verdict,) = world.verdicts
    assert (verdict.kind, verdict.blame, verdict.members) == (kind, Blame.GROUP, hotkeys(3))
    assert "10.3.0.0/24" in verdict.name
    assert verdict.left == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_slow_machine_is_blamed_alone_and_in_what_it_is_slow(kind: Kind) -> None:
    world = World().calm()
    assert world.until_verdict(slowed(kind, ONE, 0.5)) <= 4
    (verdict,) = world.verdicts
    assert (verdict.kind, verdict.blame, verdict.members) == (kind, Blame.NODE, ONE)


def test_half_of_a_provider_is_not_the_provider() -> None:
    half = frozenset(sorted(hotkeys(3))[:2])
    world = World().calm()
    for _ in range(6):
        world.play(slowed(Kind.UPLINK, half, 0.3))
    assert {h for v in world.verdicts for h in v.members} == half
    assert {v.blame for v in world.verdicts} == {Blame.NODE}


def test_nobody_is_blamed_before_there_is_a_past() -> None:
    world = World()
    for _ in range(6):
        world.play(slowed(Kind.UPLINK, ONE, 0.1))
    assert not world.watches
    assert not world.verdicts


def test_a_single_slow_transfer_means_nothing() -> None:
    world = World().calm()
    world.play(slowed(Kind.UPLINK, ONE, 0.1))
    for _ in range(3):
        world.play()
    assert not world.watches


def test_a_clean_probe_ends_a_watch() -> None:
    world = World().calm()
    for _ in range(12):
        world.play(slowed(Kind.UPLINK, ONE, 0.5), probed=nobody)
    assert world.watches
    assert not world.verdicts


def test_a_machine_that_is_well_again_is_released_by_probes() -> None:
    world = World().calm()
    world.until_verdict(slowed(Kind.UPLINK, hotkeys(3), 0.5))
    for _ in range(6):
        world.play(slowed(Kind.UPLINK, hotkeys(3), 0.5))
    assert not world.released
    rounds = 0
    while world.monitor.cases:
        world.play()
        rounds += 1
        assert rounds <= 12
    assert {hotkey for finding in world.released for hotkey in finding.members} == hotkeys(3)


def test_slow_compute_is_released_by_the_rounds_themselves() -> None:
    world = World().calm()
    world.until_verdict(slowed(Kind.COMPUTE, ONE, 0.5))
    world.play()
    assert world.monitor.cases
    world.play()
    assert not world.monitor.cases


def test_a_rate_that_stays_low_is_in_the_end_the_machines_own() -> None:
    world = World().calm()
    for _ in range(80):
        world.play(slowed(Kind.UPLINK, ONE, 0.5))
    assert not world.monitor.cases
    assert len(world.verdicts) == 1


def test_when_most_are_slow_at_once_nobody_is_blamed() -> None:
    world = World().calm()
    everybody = frozenset(world.places)
    for _ in range(10):
        judgement = world.play(slowed(Kind.UPLINK, everybody, 0.4))
        assert [finding.blame for finding in judgement.suspended if finding.kind is Kind.UPLINK] == [Blame.STORAGE]
    assert not world.verdicts
    assert not world.watches


def test_a_storage_that_slows_the_fast_ones_only_is_not_their_fault() -> None:
    world = World().calm()
    fast = frozenset(hotkey for index, hotkey in enumerate(world.places) if index % 3 == 2)
    assert len(fast) > 0.3 * len(world.places)
    for _ in range(10):
        world.play(slowed(Kind.UPLINK, fast, 0.4))
    assert not world.verdicts


def test_a_validator_whose_own_link_fell_blames_nobody() -> None:
    world = World().calm()
    world.own = 0.3
    for _ in range(10):
        judgement = world.play(slowed(Kind.UPLINK, hotkeys(3), 0.5))
        assert {finding.blame for finding in judgement.suspended} == {Blame.SELF}
    assert not world.verdicts
    world.own = 1.0
    assert world.until_verdict(slowed(Kind.UPLINK, hotkeys(3), 0.5)) <= 2


def test_a_transfer_that_was_not_over_when_we_stopped_looking_is_slow_by_at_least_that() -> None:
    world = World().calm()
    monitor, found = world.monitor, []
    for number in range(world.round, world.round + 6):
        samples = {h: (Sample(world.rate(Kind.UPLINK, h, nobody)),) for h in world.places}
        samples[Hotkey("p2m1")] = (Sample(20.0, censored=True),)
        samples[Hotkey("p4m1")] = (Sample(9_000.0, censored=True),)  # says nothing
        judgement = monitor.look(Evidence(RoundId(number), {Kind.UPLINK: samples}), world.places)
        found += list(judgement.watches)
    assert {finding.members for finding in found} == {ONE}


def test_machines_that_are_not_there_are_not_slow() -> None:
    world = World().calm()
    gone = world.places.copy()
    for hotkey in hotkeys(3):
        del world.places[hotkey]
    for _ in range(8):
        world.play()
    world.places = gone
    for _ in range(8):
        world.play()
    assert not world.verdicts
    assert not world.watches


def test_a_label_that_a_slow_machine_invents_harms_none_of_those_it_joins() -> None:
    """It says that it belongs to a rival's provider; the rivals are judged by their own transfers."""
    where = places()
    rival = Label("provider", "rival", False)
    for hotkey in hotkeys(1):
        where[hotkey] = place(1, f"owner of {hotkey}", rival)
    liars = [Hotkey(f"liar{i}") for i in range(3)]
    for number, hotkey in enumerate(liars):
        where[hotkey] = place(50 + number, f"liar {number}", rival)
    world = World(where).calm()
    for _ in range(8):
        world.play(slowed(Kind.UPLINK, frozenset(liars), 0.3))
    assert {hotkey for finding in world.verdicts for hotkey in finding.members} == set(liars)
    assert not {hotkey for _, hotkey in world.monitor.cases} & hotkeys(1)


def test_a_label_that_one_owner_invents_for_its_machines_hides_nothing() -> None:
    where = places()
    mine = [Hotkey(f"mine{i}") for i in range(6)]
    for number, hotkey in enumerate(mine):
        where[hotkey] = place(50 + number, "one owner", Label("provider", "mine", False))
    world = World(where).calm()
    for _ in range(12):
        world.play(slowed(Kind.UPLINK, frozenset(mine), 0.3))
    assert {finding.blame for finding in world.verdicts} == {Blame.NODE}
    taken = actions(world.monitor.cases)
    assert {(taken[hotkey].rung, taken[hotkey].strike) for hotkey in mine} == {(Rung.QUARANTINE, True)}


def test_a_provider_at_fault_costs_no_strike_and_no_quarantine() -> None:
    world = World().calm()
    for _ in range(12):
        world.play(slowed(Kind.UPLINK, hotkeys(3), 0.2))
    taken = actions(world.monitor.cases)
    assert set(taken) == hotkeys(3)
    for action in taken.values():
        assert action.rung is Rung.SMALLER_SHARE
        assert not action.strike
        assert action.share == pytest.approx(0.2, abs=0.1)
        assert "10.3.0.0/24" in action.reason
        assert "release" in action.way_back


def test_the_fleet_of_these_tests_is_large_enough_for_what_is_shared_to_be_known() -> None:
    assert len(places()) == PROVIDERS * EACH


def test_a_monitor_without_evidence_says_nothing() -> None:
    judgement = Monitor().look(Evidence(RoundId(0), {}), {})
    assert judgement == Judgement()


def test_probes_that_answer_a_round_later_still_confirm_and_release() -> None:
    """On the wire they take their time: what one look asked for is there before the next one."""
    world, left = World().calm(), slowed(Kind.UPLINK, hotkeys(3), 0.5)
    asked = world.look(left)
    for _ in range(4):
        world.answer(asked, left)
        asked = world.look(left)
    assert {h for v in world.verdicts for h in v.members} == hotkeys(3)
    for _ in range(10):
        world.answer(asked, nobody)
        asked = world.look(nobody)
    assert not world.monitor.cases
    assert {hotkey for finding in world.released for hotkey in finding.members} == hotkeys(3)


def test_an_answer_that_misses_a_look_is_asked_for_again() -> None:
    world, left = World().calm(), slowed(Kind.UPLINK, hotkeys(3), 0.5)
    world.look(left)
    asked = world.look(left)
    world.answer({}, left)
    again = world.look(left)
    assert again == asked == {Kind.UPLINK: hotkeys(3)}
    world.answer(again, left)
    assert world.verdicts


def test_a_monitor_goes_on_from_what_another_one_left() -> None:
    world = World().calm()
    world.until_verdict(slowed(Kind.UPLINK, hotkeys(3), 0.5))
    before = world.monitor
    pasts = {(kind, h): p for kind in Kind for h in world.places if (p := before.past(kind, h)) is not None}
    world.monitor = Monitor()
    world.monitor.restore(before.cases, pasts)
    for _ in range(6):
        world.play(slowed(Kind.UPLINK, hotkeys(3), 0.5))
    assert not world.released
    assert len(world.verdicts) == 1, "nothing is found anew"
    for _ in range(12):
        world.play()
    assert not world.monitor.cases
    world.until_verdict(slowed(Kind.COMPUTE, ONE, 0.5))


def test_whoever_is_gone_for_good_is_forgotten() -> None:
    world = World().calm()
    world.until_verdict(slowed(Kind.UPLINK, ONE, 0.5))
    world.monitor.forget(lambda hotkey: hotkey not in ONE)
    assert not world.monitor.cases
    assert world.monitor.followed() == world.places.keys() - ONE
