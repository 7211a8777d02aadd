"""What breaks, on the health desk: found, told, without duties, remembered, free again; and what is only told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from common.units import Hotkey, RoundId, Sha256, ShardId
from tests.health.fleet import place
from tests.validator.test_reports import report
from validator.bars import Bars
from validator.health.breaks import Attempts, Break
from validator.health.claims import ROUNDS, Said
from validator.health.evidence import Kind
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import Rung
from validator.healthdesk import HealthDesk, Looked
from validator.scoring.breakreports import troubles_in
from validator.troubles import BUSY_TOLD, believed

ALL = tuple(Hotkey(f"m{number}") for number in range(12))
BAD = ALL[0]


class Rounds:
    """A desk, and what happens in each of its rounds."""

    def __init__(self, desk: HealthDesk | None = None, number: int = 0) -> None:
        self.desk, self.number, self.bars = desk or HealthDesk(), number, Bars()
        self.now_s = 1000.0
        self.lines: list[str] = []

    def play(self, kind: Break, failing: Iterable[Hotkey] = (), said: dict[Hotkey, Said] | None = None) -> list[str]:
        """Two attempts for everybody, and both fail for the ``failing``."""
        self.number += 1
        bad = frozenset(failing)
        if kind is Break.FLAP:
            self._beat(bad)
        for hotkey in ALL:
            for attempt in range(2 if kind is not Break.FLAP else 0):
                self._try(kind, hotkey, hotkey in bad, attempt)
        places = {hotkey: place(number // 4, f"owner of {hotkey}") for number, hotkey in enumerate(ALL)}
        round_id = RoundId(self.number)
        seen = Looked(round_id, places, ALL, lambda hotkey: True, self.now_s, said or {})
        self.lines = self.desk.look(seen, self.bars)
        return self.lines

    def until_found(self, kind: Break, failing: Iterable[Hotkey]) -> int:
        bad = frozenset(failing)
        for count in range(1, 9):
            self.play(kind, bad)
            if {one.member for one in self.desk.troubles.breaks.broken} == bad:
                return count
        raise AssertionError(f"not found: {self.lines}")

    def told(self) -> str:
        health = self.desk.report()
        assert health is not None
        return "; ".join(f"{one.name} {one.text}: {one.done}" for one in troubles_in(health))

    def _beat(self, silent: frozenset[Hotkey]) -> None:
        """Two minutes of heartbeats; the silent ones miss ten seconds of each."""
        for second in range(121):
            self.now_s += 1.0
            for hotkey in ALL:
                if hotkey not in silent or second % 60 > 10:
                    self.desk.vitals.presence.heard(hotkey, "s", False, self.now_s)

    def _try(self, kind: Break, hotkey: Hotkey, fails: bool, attempt: int) -> None:
        vitals, name = self.desk.vitals, (RoundId(self.number), ShardId(attempt), hotkey, Sha256("1" * 64))
        if kind is Break.UNREACHABLE:
            vitals.tried(kind, hotkey, failed=fails)
            return
        for _ in range(2 if fails else 1):
            vitals.allowed(name, 1000, self.now_s)
        self.now_s += 1.0
        vitals.arrived(name, self.now_s)


@pytest.mark.parametrize("kind", [Break.FLAP, Break.TRUNCATE])
def test_a_machine_that_breaks_has_no_duties_until_its_attempts_succeed_again(kind: Break) -> None:
    rounds = Rounds()
    assert rounds.play(kind) == []
    assert rounds.until_found(kind, {BAD}) <= 4
    care = rounds.desk.cares[BAD]
    assert (rounds.desk.cares.keys(), care.rung, care.awaited) == ({BAD}, Rung.NO_DUTIES, True)
    assert (care.tokens_per_s, care.bytes_per_s) == (None, None), "rounds count on it as before"
    assert any(line.startswith(f"verdict: {BAD} ") for line in rounds.lines)
    assert f"{care.told}" in f"{rounds.lines}"
    assert "no reduce duties" in rounds.told()
    assert not rounds.bars.of(BAD).until, "that is no bar, and no strike"
    for _ in range(7):
        rounds.play(kind)
        assert BAD in rounds.desk.cares
    assert any(line.startswith(f"well again: {BAD} ") for line in rounds.play(kind))
    assert rounds.desk.cares == {}
    assert rounds.told() == ""


@pytest.mark.parametrize("kind", list(Break))
def test_when_a_quarter_of_the_others_fail_too_nobody_is_blamed(kind: Break) -> None:
    rounds = Rounds()
    for _ in range(8):
        rounds.play(kind, ALL[:4])
    assert rounds.desk.troubles.breaks.broken == ()


@pytest.mark.parametrize(
    ("blame", "left"),
    [
        (Blame.SELF, set()),
        (Blame.STORAGE, {Break.FLAP}),
        (Blame.NODE, set(Break)),
    ],
)
def test_what_the_storage_or_this_validators_own_link_explains_is_held_against_nobody(
    blame: Blame, left: set[Break]
) -> None:
    seen = {kind: {BAD: Attempts(4, 4)} for kind in Break}
    fault = Finding(Kind.UPLINK, blame, frozenset(), "x", True, RoundId(1), -1.0, 5.0, Stage.VERDICT)
    assert believed(seen, [fault]).keys() == left
    slow = dataclasses.replace(fault, kind=Kind.COMPUTE)
    assert believed(seen, [slow]).keys() == set(Break), "that is about another thing"


def test_time_that_does_not_count_is_no_evidence() -> None:
    rounds = Rounds()
    rounds.until_found(Break.FLAP, {BAD})
    well = Rounds()
    for _ in range(8):
        well._beat(frozenset({BAD}))
        well.desk.vitals.disturbed()
        well.play(Break.TRUNCATE)
    assert well.desk.troubles.breaks.broken == ()


def test_who_does_not_answer_probes_is_told_and_keeps_its_duties() -> None:
    rounds = Rounds()
    rounds.until_found(Break.UNREACHABLE, {BAD})
    assert rounds.desk.cares == {}
    assert "did not answer" in rounds.told()
    assert "nothing is done" in rounds.told()


def test_who_puts_off_every_probe_is_told_until_it_answers_one() -> None:
    rounds = Rounds()
    for _ in range(BUSY_TOLD):
        rounds.desk.vitals.put_off(BAD, busy=True)
    assert rounds.play(Break.TRUNCATE) == [f"told only: {BAD} puts off every probe"]
    assert f"{BUSY_TOLD} probes in a row" in rounds.told()
    rounds.desk.vitals.put_off(BAD, busy=False)
    rounds.play(Break.TRUNCATE)
    assert rounds.told() == ""


def test_a_claim_that_is_off_is_told_and_nothing_else_follows() -> None:
    rounds = Rounds()
    said = {hotkey: Said(100.0, 100.0, 100.0) for hotkey in ALL} | {BAD: Said(5000.0, 100.0, 100.0)}
    for _ in range(ROUNDS):
        rounds.play(Break.TRUNCATE, said=said)
    assert len(rounds.lines) == 1
    assert rounds.lines[0].startswith(f"told only: {BAD} claims 50 times as much as it shows")
    assert rounds.desk.cares == {}
    assert "nothing is done" in rounds.told()


def test_a_network_that_breaks_is_one_finding() -> None:
    rounds = Rounds()
    for number, hotkey in enumerate(ALL[:3], start=1):
        rounds.until_found(Break.FLAP, ALL[:number])
        assert hotkey in rounds.desk.cares
    assert rounds.told().startswith("subnet 10.0.0.0/24 went and returned in ")
    assert rounds.desk.cares.keys() == set(ALL[:3]), "four machines are there, three of them break"


def test_who_goes_on_from_the_report_knows_who_breaks_and_how_far_it_has_come() -> None:
    rounds = Rounds()
    rounds.until_found(Break.TRUNCATE, {BAD})
    for _ in range(3):
        rounds.play(Break.TRUNCATE)
    next_leader = HealthDesk()
    next_leader.go_on_from(dataclasses.replace(report(rounds.number), health=rounds.desk.report()))
    next_leader.begin_lead(ALL)
    assert next_leader.cares == rounds.desk.cares
    going_on = Rounds(next_leader, rounds.number)
    for _ in range(4):
        going_on.play(Break.TRUNCATE)
        assert BAD in next_leader.cares
    going_on.play(Break.TRUNCATE)
    assert next_leader.cares == {}


def test_of_who_is_gone_for_good_nothing_is_kept() -> None:
    rounds = Rounds()
    rounds.until_found(Break.FLAP, {BAD})
    seen = Looked(RoundId(99), {}, ALL[1:], lambda hotkey: hotkey != BAD, rounds.now_s)
    rounds.desk.look(seen, rounds.bars)
    assert rounds.desk.cares == {}
