"""Every time of a round comes from one place, and contradictions are told when the process starts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from common.runlog.state import Pause, RunState
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256
from tests.support.specs import tiny_spec
from validator.round.core import opened
from validator.round.deadlines import (
    MOST_UNSEEN_S,
    Deadlines,
    freeze_in_s,
    patience_s,
    policy_of,
    reduce_until_s,
    seconds_left,
    unseen,
    url_life_s,
)
from validator.round.facts import Held, MemberFacts, Phase, RoundPolicy

STATE = opened(RoundId(3), Revision(2), 0.0)


def spec_with(**changes: object) -> RunSpec:
    spec = tiny_spec()
    return dataclasses.replace(spec, round=dataclasses.replace(spec.round, **changes))  # type: ignore[arg-type]


def policy(**changes: object) -> RoundPolicy:
    return dataclasses.replace(policy_of(tiny_spec(), Revision(0)), **changes)  # type: ignore[arg-type]


def at_work(name: str, tokens: int, rate: float) -> MemberFacts:
    return MemberFacts(Hotkey(name), True, True, True, tokens, False, rate=rate)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"submit_deadline_s": 0.2, "drip_s": 0.0}, ("heartbeat", "submit_deadline_s")),
        ({"submit_deadline_s": 0.9, "drip_s": 0.0}, ("URL", "submit_deadline_s")),
        ({"drip_s": 1000.0}, ("drip_s", "train_deadline_s")),
    ],
)
def test_contradictory_times_are_named_both(changes: dict[str, float], names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="contradictory times") as refusal:
        Deadlines.of(spec_with(**changes))
    assert all(name in str(refusal.value) for name in names)


def test_a_round_is_as_large_as_its_bases_schedule_says() -> None:
    spec = tiny_spec()
    young = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, steps_schedule=(1, 2, 4)))
    found = [policy_of(young, Revision(base)) for base in (0, 1, 2, 9)]
    assert [limits.target_tokens for limits in found] == [64, 128, 256, 256]
    assert [limits.quorum_tokens for limits in found] == [8, 16, 32, 32]


def test_waiting_wastes_all_without_overlap_and_little_with_it() -> None:
    assert policy_of(spec_with(overlap=False), Revision(0)).waste == 1.0
    assert policy_of(spec_with(overlap=True), Revision(0)).waste < 0.2


def test_a_line_may_bring_a_drip_at_every_interval_and_some_more() -> None:
    assert Deadlines.of(spec_with(drip_s=1.0)).most_manifests >= 40
    assert 2 <= Deadlines.of(spec_with(drip_s=0.0)).most_manifests <= 10
    assert Deadlines.of(spec_with(drip_s=0.001)).most_manifests <= 1024, "bounded however small the interval is"


def test_urls_live_until_nothing_can_count_any_more() -> None:
    limits = policy()
    assert url_life_s(STATE, 100.0, limits) == limits.train_deadline_s + limits.submit_deadline_s
    closing = dataclasses.replace(STATE, phase=Phase.CLOSING, deadline_s=110.0)
    assert url_life_s(closing, 104.0, limits) == 6.0
    assert url_life_s(closing, 200.0, limits) == 1.0
    assert seconds_left(dataclasses.replace(closing, phase=Phase.ABORTED), 0.0, limits) == 0.0


def test_the_freeze_is_foreseen_from_the_rate_of_tokens() -> None:
    limits = policy(target_tokens=1000, waste=1.0)
    state = dataclasses.replace(STATE, deadline_s=30.0)
    members = [at_work("a", 100, 30.0), at_work("b", 300, 20.0)]
    patience = patience_s(limits, 2, 50.0)
    assert patience == 5.0, "half a target at what the two train"
    assert freeze_in_s(state, members, 0.0, limits) == pytest.approx(600 / 50 + patience)
    assert freeze_in_s(state, members, 20.0, limits) == pytest.approx(10.0 + patience), "the training time ends first"
    assert freeze_in_s(state, [], 0.0, limits) == 30.0 + limits.submit_deadline_s, "nothing known: the hard deadlines"
    closing = dataclasses.replace(STATE, phase=Phase.CLOSING, deadline_s=40.0)
    assert freeze_in_s(closing, members, 33.0, limits) == 7.0
    assert freeze_in_s(dataclasses.replace(closing, phase=Phase.FROZEN), members, 33.0, limits) == 0.0


def test_patience_is_never_longer_than_the_time_to_submit() -> None:
    limits = policy(waste=0.0)
    assert patience_s(limits, 4, 100.0) == limits.submit_deadline_s
    assert math.isfinite(patience_s(policy(), 0, 0.0))


def test_a_new_leader_reads_in_the_log_for_how_long_nobody_led() -> None:
    run = RunState(tiny_spec(), 5, Sha256("0" * 64), {}, Revision(2), RoundId(7), turned_seq=4)
    assert unseen(run, 600.0) == Held(600.0, 600.0), "it heard nobody in all that time"
    assert unseen(run, -1.0) == Held()
    assert unseen(run, 1e15).seconds == MOST_UNSEEN_S
    assert unseen(dataclasses.replace(run, turned_seq=0), 1e15).seconds == 0.0, "no round was ever opened"
    paused = dataclasses.replace(run, paused=Pause(4, "ordered", (), 1_000_000))
    assert unseen(paused, 600.0).seconds == 0.0, "nobody trains in a pause"


@pytest.mark.parametrize(
    ("dealt_s", "until_s"),
    [
        pytest.param(None, 1060.0, id="not dealt: half"),
        pytest.param(1000.0, 1030.0, id="dealt at once: a quarter"),
        pytest.param(
            1048.0, 1078.0, id="dealt by a block of 12 s that is final after three more: a quarter from then on"
        ),
        pytest.param(1060.0, 1090.0, id="dealt in the last moment"),
        pytest.param(1075.0, 1090.0, id="dealt while the leader looked elsewhere: three quarters in all"),
    ],
)
def test_the_leader_waits_for_miners_only_as_long_as_it_can_still_merge_alone(
    dealt_s: float | None, until_s: float
) -> None:
    assert reduce_until_s(1000.0, 120.0, dealt_s) == until_s
