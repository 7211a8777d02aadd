"""What is done about slow machines, and that it never leaves a round with nobody to wait for."""

from __future__ import annotations

import dataclasses

import pytest

from common.units import Hotkey, RoundId
from tests.validator.test_members import beat
from validator.care import Care, cares_of, in_fallen_groups
from validator.health.evidence import Kind
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import QUARANTINE_DIRTY, Rung
from validator.health.monitor import Case, Monitor
from validator.health.past import Past
from validator.members import Members
from validator.submissions import Held

ALL = [Hotkey(f"m{number}") for number in range(6)]
A = ALL[0]
HELD = Held(delivered=False, tokens=0, announced=True, coming_bytes=1000, coming_since_s=0.0)


def finding(hotkey: Hotkey, kind: Kind = Kind.UPLINK, departure: float = -2.0) -> Finding:
    return Finding(kind, Blame.NODE, frozenset({hotkey}), hotkey, True, RoundId(3), departure, 9.0, Stage.VERDICT, True)


def monitor(*findings: Finding, dirty: int = QUARANTINE_DIRTY) -> Monitor:
    """One whose machines usually do 20 (e^3) units a second."""
    made = Monitor()
    cases = {(f.kind, h): Case(f, RoundId(4), RoundId(5), dirty=dirty) for f in findings for h in f.members}
    made.restore(cases, {(kind, hotkey): Past(3.0, seen=20) for kind in Kind for hotkey in ALL})
    return made


def test_a_machine_far_down_alone_is_put_aside_once_its_probes_have_said_so_often() -> None:
    slow = finding(A)
    assert cares_of(monitor(slow), ALL)[A].rung is Rung.QUARANTINE
    assert cares_of(monitor(slow, dirty=1), ALL)[A].rung is Rung.SMALLER_SHARE


@pytest.mark.parametrize(("live", "aside"), [(1, 0), (2, 0), (3, 1), (6, 2)])
def test_those_put_aside_are_the_minority_the_slowest_first(live: int, aside: int) -> None:
    found = [finding(hotkey, departure=-1.5 - 0.1 * place) for place, hotkey in enumerate(ALL)]
    cares = cares_of(monitor(*found), ALL[:live])
    assert [h for h in ALL if not cares[h].awaited] == ALL[live - aside : live]
    assert all(care.rung >= Rung.SMALLER_SHARE for care in cares.values())


def test_a_group_that_the_validator_sees_itself_spares_its_machines() -> None:
    group = dataclasses.replace(finding(A), blame=Blame.GROUP, members=frozenset(ALL[:3]))
    said = dataclasses.replace(finding(ALL[4]), blame=Blame.GROUP, members=frozenset(ALL[3:]), observed=False)
    assert in_fallen_groups(monitor(group, said, finding(ALL[3], Kind.COMPUTE)).cases) == frozenset(ALL[:3])


def test_rounds_count_on_what_is_left_of_a_slow_machine() -> None:
    left = 20.0855 * 0.5
    found = [finding(A, kind, departure=-0.6931) for kind in (Kind.COMPUTE, Kind.UPLINK)]
    care = cares_of(monitor(*found), ALL)[A]
    assert care.tokens_per_s == pytest.approx(left, rel=1e-3)
    assert care.bytes_per_s == pytest.approx(left, rel=1e-3)
    assert cares_of(monitor(finding(A, Kind.DOWNLINK)), ALL)[A].tokens_per_s is None


def test_members_go_by_what_is_done_about_them() -> None:
    members = Members(5.0)
    members.hear(A, beat(1, 100), 0.0)
    members.note_upload(A, 1000, 10.0)
    members.prove({A: 80.0})
    [usual] = members.facts(RoundId(4), {A: HELD}, 1.0)
    members.cares = {A: Care(Rung.SMALLER_SHARE, "slow", "probes", tokens_per_s=30.0, bytes_per_s=50.0)}
    [slow] = members.facts(RoundId(4), {A: HELD}, 1.0)
    assert (usual.rate, usual.eta_s, usual.awaited) == (80.0, 9.0, True)
    assert (slow.rate, slow.eta_s, slow.awaited) == (30.0, 19.0, True)
    members.cares = {A: Care(Rung.QUARANTINE, "slow", "probes")}
    [aside] = members.facts(RoundId(4), {A: HELD}, 1.0)
    assert (aside.awaited, aside.tokens) == (False, usual.tokens)
