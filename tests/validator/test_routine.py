"""Routine probes: what probes are worth beside the rounds, and the downlinks that no round shows."""

from __future__ import annotations

from common.units import Hotkey
from tests.health.fleet import World, hotkeys
from validator.health.evidence import Kind, Level
from validator.routine import COMPARED_A_ROUND, LEAST_COMPARED, MOST_ROUTINE, Routine

NOTHING: dict[Kind, frozenset[Hotkey]] = {}
OVERHEAD = -0.5


def compared(routine: Routine, world: World, rounds: int) -> None:
    """Probes of all that it wants show what the rounds let expect, and ``OVERHEAD``."""
    for _ in range(rounds):
        wanted = routine.want(world.places, NOTHING)
        shown = {kind: {h: level_of(world, kind, h) for h in hotkeys} for kind, hotkeys in wanted.items()}
        routine.compare(shown, world.monitor)


def level_of(world: World, kind: Kind, hotkey: Hotkey) -> Level:
    expected = -(world.monitor.against(kind, hotkey, Level(0.0, False)) or 0.0)
    return Level(expected + OVERHEAD, False)


def test_everybody_has_its_turn_but_who_is_probed_for_a_reason() -> None:
    routine, live = Routine(), sorted(hotkeys(0))
    asked = {Kind.UPLINK: frozenset(live[:1])}
    seen = [routine.want(live, asked) for _ in range(4)]
    assert frozenset[Hotkey]().union(*(one[Kind.UPLINK] for one in seen)) == set(live[1:])
    assert all(len(one[Kind.UPLINK]) == COMPARED_A_ROUND for one in seen)
    many = [Hotkey(f"m{number:03d}") for number in range(200)]
    assert len(Routine().want(many, NOTHING)[Kind.DOWNLINK]) == MOST_ROUTINE
    assert len(Routine(reads_seen=True).want(many, NOTHING)[Kind.DOWNLINK]) == COMPARED_A_ROUND
    assert not any(Routine().want([], NOTHING).values())


def test_what_probes_differ_by_is_taken_off_before_they_count() -> None:
    world, routine = World().calm(), Routine()
    hotkey = sorted(world.places)[0]
    shown = {Kind.UPLINK: {hotkey: level_of(world, Kind.UPLINK, hotkey)}}
    compared(routine, world, LEAST_COMPARED)
    [corrected] = routine.corrected(shown, ())[Kind.UPLINK].values()
    assert abs(world.monitor.against(Kind.UPLINK, hotkey, corrected) or 0.0) < 0.01


def test_before_that_they_begin_no_verdict_but_may_end_one() -> None:
    world, routine = World().calm(), Routine()
    hotkey = sorted(world.places)[0]
    shown = {Kind.UPLINK: {hotkey: Level(1.0, False)}}
    assert routine.corrected(shown, ()) == {}
    assert routine.corrected(shown, {(Kind.UPLINK, hotkey)}) == shown


def test_machines_under_a_verdict_teach_nothing() -> None:
    world, routine = World().calm(), Routine()
    world.until_verdict(lambda kind, hotkey: 0.5 if kind is Kind.UPLINK and hotkey in hotkeys(3) else 1.0)
    for _ in range(8):
        wanted = routine.want(hotkeys(3), NOTHING)[Kind.UPLINK]
        routine.compare({Kind.UPLINK: dict.fromkeys(wanted, Level(-9.0, False))}, world.monitor)
    assert routine.corrected({Kind.UPLINK: {Hotkey("m"): Level(1.0, False)}}, ()) == {}


def test_where_nobody_is_seen_to_read_probes_of_the_downlink_are_evidence() -> None:
    routine, live = Routine(), sorted(hotkeys(0))
    wanted = routine.want(live, NOTHING)[Kind.DOWNLINK]
    shown = {Kind.DOWNLINK: dict.fromkeys([*sorted(wanted), Hotkey("another")], Level(2.0, False))}
    assert routine.evidence(shown).keys() == wanted
    seen = Routine(reads_seen=True)
    seen.want(live, NOTHING)
    assert seen.evidence(shown) == {}
