"""What a leader takes down of transfers and work: by its own clock, whole ones, of others no more than is known."""

from __future__ import annotations

import pytest

from common.units import Hotkey, RoundId, Sha256, ShardId
from validator.health.evidence import MAX_SAMPLES, Kind, Sample
from validator.submissions import Name
from validator.vitals import LEAST_S, Vitals

A, B = Hotkey("a"), Hotkey("b")
ROUND = RoundId(4)


def name(hotkey: Hotkey, digest: str = "1") -> Name:
    return ROUND, ShardId(0), hotkey, Sha256(digest * 64)


def uplink(vitals: Vitals) -> dict[Hotkey, tuple[Sample, ...]]:
    return dict(vitals.take(ROUND).samples[Kind.UPLINK])


def test_an_upload_is_timed_from_its_permission_to_its_arrival_though_it_was_asked_for_twice() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.allowed(name(A), 1000, 14.0)
    vitals.arrived(name(A), 20.0)
    vitals.arrived(name(A), 25.0)
    assert uplink(vitals) == {A: (Sample(100.0),)}
    assert uplink(vitals) == {}, "it belongs to one round"


def test_what_has_not_arrived_at_the_freeze_bounds_the_rate_of_those_who_live() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.allowed(name(B), 1000, 10.0)
    vitals.frozen(20.0, lambda hotkey: hotkey == A)
    vitals.arrived(name(A), 30.0)
    assert uplink(vitals) == {A: (Sample(100.0, censored=True),)}


def test_an_upload_that_another_one_replaced_is_not_timed() -> None:
    vitals = Vitals()
    vitals.allowed(name(A, "1"), 1000, 10.0)
    vitals.allowed(name(A, "2"), 1000, 19.0)
    vitals.arrived(name(A, "1"), 20.0)
    vitals.arrived(name(A, "2"), 21.0)
    assert uplink(vitals) == {A: (Sample(500.0),)}


def test_time_that_does_not_count_is_nobodys_slowness() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.read_here([(1000, 2.0)])
    vitals.disturbed()
    vitals.arrived(name(A), 20.0)
    vitals.frozen(20.0, lambda hotkey: True)
    evidence = vitals.take(ROUND)
    assert not evidence.samples[Kind.UPLINK]
    assert not evidence.own


def test_work_reads_and_own_reads_are_rates_of_their_kind() -> None:
    vitals = Vitals()
    vitals.worked({A: (600, 3.0), B: (0, 3.0)})
    vitals.read(A, 500, 2.0)
    vitals.read_here([(1000, 2.0), (1000, 0.0)])
    evidence = vitals.take(ROUND)
    assert evidence.samples[Kind.COMPUTE] == {A: (Sample(200.0),)}
    assert evidence.samples[Kind.DOWNLINK] == {A: (Sample(250.0),)}
    assert evidence.own == {Kind.DOWNLINK: (Sample(500.0),)}


def test_a_time_too_short_to_measure_makes_no_rate_without_bounds() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.arrived(name(A), 10.0)
    assert uplink(vitals)[A][0].rate == pytest.approx(1000 / LEAST_S)


def test_the_newest_samples_of_a_machine_are_kept() -> None:
    vitals = Vitals()
    for number in range(MAX_SAMPLES + 3):
        vitals.allowed(name(A, format(number % 16, "x")), 1000, 10.0)
        vitals.arrived(name(A, format(number % 16, "x")), 11.0 + number)
    assert len(uplink(vitals)[A]) == MAX_SAMPLES
