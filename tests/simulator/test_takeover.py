"""A leader that is killed, stopped or cut off in any phase: a standby commits the same round, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.simulator.takeovers import lost_tokens, moment, plans, run_many, undisturbed, weights
from validator.round.facts import Phase
from validator.simulator.run import outcome
from validator.simulator.scenario import Fault, Target
from validator.simulator.world import World

PHASES = [phase.value for phase in Phase if phase not in (Phase.COMMITTED, Phase.ABORTED)] + ["gap"]
AWAY_S = 25.0
"""Longer than the lease lives, so that who comes back finds another in its place."""
MOST_LOST = 0.01
"""Of the round's work."""


def strike(kind: str, phase: str, share: float, seed: int, away_s: float = AWAY_S) -> World:
    """A run in which the fault meets the leader in the second round."""
    at_s = moment(undisturbed(seed)[0], phase, share)
    return run_many(Fault(kind, Target("leader"), at_s, away_s, 1.0), seed=seed)


def test_work_counts_in_full_also_when_a_round_is_hardly_longer_than_the_lease() -> None:
    steps = 20
    usual, without = undisturbed(1, steps)
    world = run_many(Fault("die", Target("leader"), moment(usual, "open", 0.5), AWAY_S, 1.0), steps=steps)
    assert lost_tokens(outcome(world)) - lost_tokens(without) < MOST_LOST * world.spec.round.target_tokens


@pytest.mark.parametrize(("share", "seed"), [(0.2, 1), (0.7, 2)])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", ["die", "stop", "link_cut"])
def test_a_standby_commits_the_same_round(kind: str, phase: str, share: float, seed: int) -> None:
    usual, without = undisturbed(seed)
    world = strike(kind, phase, share, seed)
    state, came = world.records.state, outcome(world)
    assert [lead.hotkey for lead in state.leaders] != [lead.hotkey for lead in usual.records.state.leaders]
    assert [node.round for node in state.revisions.values()] == [None, *range(came.rounds_committed)]
    assert (came.rounds_committed, came.rounds_aborted, state.voids) == (without.rounds_committed, 0, ())
    assert all(miner.life == 1 for miner in world.miners)
    assert lost_tokens(came) - lost_tokens(without) < MOST_LOST * world.spec.round.target_tokens
    same = [plan.members == other.members for plan, other in zip(plans(world), plans(usual), strict=True)]
    if phase not in (Phase.OPEN, Phase.CLOSING) and share > 0.5:
        assert same[1], "the plan was in the log already"
    for number in range(1, 1 + (same.index(False) if False in same else len(same))):
        assert weights(world)[number] == weights(usual)[number]
