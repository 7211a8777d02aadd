"""Whom the guard suspects: those who do harm alone; never everybody unless everybody does."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from common.merge.suspects import Trial, suspects

BASE, RISE = 4.0, 0.05
losses = st.one_of(
    st.floats(3.0, 5.0), st.sampled_from([math.nan, math.inf, -math.inf, 1e30, BASE, BASE + RISE, BASE - 0.01])
)
trials = st.lists(st.builds(Trial, losses, st.sampled_from("abcdef"), st.integers(1, 100).map(float)), max_size=12)


def group(*alone: float) -> list[Trial]:
    return [Trial(BASE + rise, f"cold{i}", 10.0) for i, rise in enumerate(alone)]


def named(members: list[Trial], quorum: float = 0.0) -> tuple[int, ...]:
    return suspects(BASE, members, RISE, quorum)[0]


def harms(trial: Trial) -> bool:
    return not math.isfinite(trial.loss) or trial.loss - BASE > RISE


@settings(max_examples=60, deadline=None)
@given(trials, st.floats(0, 500))
def test_never_everybody_unless_each_alone_does_harm(members: list[Trial], quorum: float) -> None:
    found = named(members, quorum)
    assert list(found) == sorted(set(found))
    assert all(0 <= i < len(members) for i in found)
    if len(found) == len(members):
        assert all(harms(trial) for trial in members)


@settings(max_examples=60, deadline=None)
@given(trials, st.floats(0, 500))
def test_a_loss_that_is_not_finite_is_always_suspect(members: list[Trial], quorum: float) -> None:
    assert {i for i, trial in enumerate(members) if not math.isfinite(trial.loss)} <= set(named(members, quorum))


@settings(max_examples=60, deadline=None)
@given(trials, st.floats(0, 500))
def test_where_somebody_does_harm_no_harmless_one_is_named(members: list[Trial], quorum: float) -> None:
    if any(harms(trial) for trial in members):
        found = named(members, quorum)
        assert found
        assert all(harms(members[i]) for i in found)


@settings(max_examples=60, deadline=None)
@given(trials.filter(lambda members: not any(map(harms, members))), st.floats(0, 500))
def test_where_nobody_does_the_rest_keeps_the_quorum_and_half_of_the_voices(
    members: list[Trial], quorum: float
) -> None:
    found = named(members, quorum)
    left = [trial for i, trial in enumerate(members) if i not in found]
    out = {members[i].coldkey for i in found}
    assert len(out) <= len({trial.coldkey for trial in members}) / 2
    assert out.isdisjoint(trial.coldkey for trial in left)
    assert not found or sum(trial.tokens for trial in left) >= quorum
    worst_left = max((trial.loss for trial in left), default=-math.inf)
    assert all(max(t.loss for t in members if t.coldkey == coldkey) >= worst_left for coldkey in out)


@settings(max_examples=60, deadline=None)
@given(trials, st.permutations(range(12)))
def test_the_order_does_not_matter(members: list[Trial], order: list[int]) -> None:
    shuffled = [i for i in order if i < len(members)]
    again = named([members[i] for i in shuffled])
    assert {shuffled[k] for k in again} == set(named(members))


def test_one_among_many_stands_out() -> None:
    indices, reason = suspects(BASE, group(-0.1, -0.2, 3.0, -0.1), RISE, 0.0)
    assert indices == (2,)
    assert "raises the held-out loss by more than 0.05 nats" in reason


def test_honest_steps_that_rise_a_little_are_not_named_beside_one_that_stands_out() -> None:
    assert named(group(0.2, 0.22, 5.0, 0.21, 0.19)) == (2,)


def test_a_crowd_of_one_coldkey_does_not_set_the_usual() -> None:
    crowd = [Trial(BASE + 2, "crowd", 10.0)] * 5
    assert named([*crowd, *group(-0.1, -0.2, -0.1)]) == (0, 1, 2, 3, 4)


def test_a_harmful_majority_is_named_where_others_help() -> None:
    assert named(group(-0.1, 3.0, 3.0)) == (1, 2)


def test_all_that_do_harm_are_all_named() -> None:
    indices, reason = suspects(BASE, group(3.0, 3.01, 3.02), RISE, 0.0)
    assert indices == (0, 1, 2)
    assert "every delta alone" in reason
    assert named([Trial(math.nan, "a", 1.0)]) == (0,)


def test_where_nobody_does_harm_the_worst_half_goes_as_far_as_the_quorum_allows() -> None:
    members = group(-0.3, -0.1, -0.2, 0.01)
    assert named(members) == (1, 3)
    assert named(members, 30.0) == (3,)
    indices, reason = suspects(BASE, members, RISE, 40.0)
    assert indices == ()
    assert "no quorum" in reason


def test_one_alone_without_harm_and_nobody_at_all() -> None:
    assert named(group(-0.1)) == ()
    assert named([]) == ()


def test_a_base_without_a_loss_blames_nobody() -> None:
    indices, reason = suspects(math.nan, group(1.0, math.nan), RISE, 0.0)
    assert indices == ()
    assert "base" in reason
