"""Two who lead by force, entries of a term that is over, and storage or chain away for long."""

from __future__ import annotations

import pytest

from common.units import RoundId
from tests.simulator.takeovers import credited, lost_tokens, plans, run_many, undisturbed, weights
from validator.simulator.run import outcome
from validator.simulator.scenario import Fault, Moment, Target


def test_an_entry_of_a_term_that_is_over_is_void_and_changes_nothing() -> None:
    force = Fault("stale_entry", Target("validator", 2.0), Moment(RoundId(1), "closing"), 0.0, 1.0)
    world, (usual, _) = run_many(force), undisturbed(1)
    assert [void.code for void in world.records.state.voids] == ["stale_term"]
    assert weights(world) == weights(usual)
    assert world.records.state.rounds_aborted == 0


@pytest.mark.parametrize(("kind", "target"), [("lease_split", "lease"), ("lease_deleted", "lease"), ("fast_clock", "")])
def test_two_leaders_by_force_write_one_history(kind: str, target: str) -> None:
    whom = Target(target) if target else Target("validator", 1.0)
    world, (usual, _) = run_many(Fault(kind, whom, Moment(RoundId(1), "open"), 20.0, 8.0)), undisturbed(1)
    state = world.records.state
    assert state.term > 1
    assert state.rounds_committed == usual.records.state.rounds_committed
    assert weights(world)[:2] == weights(usual)[:2]
    assert len(plans(world)) == state.rounds_committed
    assert all(miner.life == 1 for miner in world.miners)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("kind", "long_s"), [("storage", 600.0), ("chain", 3600.0)])
def test_storage_or_chain_away_for_long_loses_nothing(kind: str, long_s: float, seed: int) -> None:
    world = run_many(Fault(f"{kind}_down", Target(kind), Moment(RoundId(1), "open"), long_s, 1.0), seed=seed)
    came, without = outcome(world), undisturbed(seed)[1]
    assert came.rounds_committed == without.rounds_committed
    assert came.rounds_aborted == 0
    assert all(miner.life == 1 for miner in world.miners)
    assert [member.decision for plan in plans(world) for member in plan.members] == ["accepted"] * 4 * len(plans(world))
    assert credited(plans(world)) == 1.0
    assert lost_tokens(came) - lost_tokens(without) <= 1.0
