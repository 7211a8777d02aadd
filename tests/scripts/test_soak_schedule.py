"""The soak's schedule is reproducible and ends in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scripts.soaking.schedule import CALM_S, KINDS, SERVERS, schedule

MINERS, VALIDATORS = ["miner-1", "miner-2"], ["validator", "validator-2"]


@given(seed=st.integers(0, 1 << 32), minutes=st.floats(1, 60))
def test_it_is_reproducible_ordered_and_over_in_time(seed: int, minutes: float) -> None:
    events = schedule(seed, minutes, MINERS, VALIDATORS)
    assert events == schedule(seed, minutes, MINERS, VALIDATORS)
    assert events == sorted(events, key=lambda event: event.at_s)
    assert all(event.at_s + event.lasts_s <= minutes * 60 - CALM_S for event in events)
    assert {event.victim for event in events} <= {*MINERS, *VALIDATORS, "leader", *SERVERS}


def test_another_seed_is_another_schedule() -> None:
    assert schedule(1, 10, MINERS, VALIDATORS) != schedule(2, 10, MINERS, VALIDATORS)


def test_an_hour_holds_every_fault_of_every_role() -> None:
    events = schedule(0, 60, MINERS, VALIDATORS)
    roles = {name: name.split("-")[0] for name in (*MINERS, *VALIDATORS, "leader", *SERVERS)}
    assert {(roles[event.victim], event.kind) for event in events} == {
        (role, kind) for role, kinds in KINDS.items() for kind in kinds
    }
