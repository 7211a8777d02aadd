"""What a leader takes down of transfers and work: by its own clock, whole ones, of others no more than is known."""

from __future__ import annotations

import pytest

from common.units import Hotkey, RoundId, Sha256, ShardId
from validator.health.breaks import Attempts, Break
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


def transfers(vitals: Vitals, now_s: float = 100.0) -> dict[Hotkey, Attempts]:
    return dict(vitals.take_attempts(now_s).get(Break.TRUNCATE, {}))


def test_an_upload_is_one_attempt_that_failed_if_it_had_to_begin_again() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    for _ in range(5):
        vitals.allowed(name(A), 1000, 14.0)
    vitals.allowed(name(B), 1000, 10.0)
    vitals.arrived(name(A), 20.0)
    vitals.arrived(name(B), 20.0)
    assert transfers(vitals) == {A: Attempts(1, 1), B: Attempts(1, 0)}
    assert transfers(vitals) == {}, "it belongs to one round"


def test_asking_for_more_parts_or_with_another_manifest_is_no_failure() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0, whole=False)
    vitals.allowed(name(A), 1000, 11.0, whole=True)
    vitals.allowed(name(B), 1000, 10.0, word="of the drip")
    vitals.allowed(name(B), 1000, 11.0, word="of the final")
    vitals.arrived(name(A), 20.0)
    vitals.arrived(name(B), 20.0)
    assert transfers(vitals) == {A: Attempts(1, 0), B: Attempts(1, 0)}


def test_what_is_not_all_there_failed_and_what_did_not_arrive_says_nothing() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.cut_short(name(A))
    vitals.cut_short(name(A))
    vitals.allowed(name(B), 1000, 10.0)
    vitals.frozen(20.0, lambda hotkey: True)
    assert transfers(vitals) == {A: Attempts(1, 1)}


def test_what_fails_while_the_storage_is_away_is_nobodys_fault() -> None:
    vitals = Vitals()
    vitals.allowed(name(A), 1000, 10.0)
    vitals.allowed(name(A), 1000, 14.0)
    vitals.tried(Break.UNREACHABLE, B, failed=True)
    vitals.disturbed()
    assert vitals.take_attempts(100.0) == {}


def test_uploads_of_an_aborted_round_count_and_are_not_kept_by_name() -> None:
    vitals = Vitals()
    for number in range(50):
        other = RoundId(number), ShardId(0), A, Sha256("1" * 64)
        vitals.allowed(other, 1000, 10.0)
        vitals.arrived(other, 11.0)
    assert len(vitals._came) == 1
    assert transfers(vitals) == {A: Attempts(50, 0)}
