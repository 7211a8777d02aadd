"""Rounds that are held open while storage or leader are away: all that was trained meanwhile is merged and credited."""

from __future__ import annotations

import pytest

from common.units import RoundId
from tests.simulator.support import ROUNDS, check, run_small, small_settings, small_spec
from tests.simulator.takeovers import VALIDATORS, credited, plans, run_many
from validator.simulator.run import outcome, run
from validator.simulator.scenario import PHASES, Fault, Moment, Target
from validator.simulator.world import World

TEN_MINUTES_S = 600.0
LONG_S = 500.0
"""What the longest round must hold at least: ten minutes, but for what miners rest when they have enough ahead."""


def fault(kind: str, target: str, phase: str = "open", long_s: float = TEN_MINUTES_S, number: float = 0) -> Fault:
    return Fault(kind, Target(target, number), Moment(RoundId(1), phase), long_s, 1.0)


def assert_all_credited(world: World, rate: float) -> None:
    """Nothing is lost, and one round has the work of the whole outage, at so many tokens a second."""
    made = plans(world)
    assert credited(made) >= 0.99
    assert max(sum(member.tokens for member in plan.members) for plan in made) >= LONG_S * rate
    came = outcome(world)
    assert came.survival >= 0.99
    assert came.rounds_aborted == 0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_ten_minutes_without_storage_cost_nothing_in_any_phase(phase: str, seed: int) -> None:
    world, came = run_small(fault("storage_down", "storage", phase), seed=seed)
    check(world)
    assert came.rounds_committed == ROUNDS
    assert_all_credited(world, sum(miner.machine.power.tokens_per_s for miner in world.miners))


@pytest.mark.parametrize("long_s", [50.0, TEN_MINUTES_S])
def test_nor_do_they_for_one_that_trains_alone(long_s: float) -> None:
    """It alone brings what a round wants, so nothing of its bound is left for a longer one."""
    settings = small_settings(fault("storage_down", "storage", long_s=long_s), miners=1)
    world = World(settings, small_spec(miners=1), bucket=True, audit=True)
    run(world)
    check(world)
    assert credited(plans(world)) == 1.0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["die", "stop"])
@pytest.mark.parametrize("phase", ["open", "closing", "gap"])
def test_nor_do_ten_minutes_without_the_only_leader(kind: str, phase: str, seed: int) -> None:
    world, came = run_small(fault(kind, "validator", phase), seed=seed)
    check(world)
    assert came.rounds_committed == ROUNDS
    assert_all_credited(world, sum(miner.machine.power.tokens_per_s for miner in world.miners))


@pytest.mark.parametrize("seed", [1, 2])
def test_nor_does_a_takeover_after_ten_minutes_without_storage(seed: int) -> None:
    world = run_many(fault("storage_down", "storage"), fault("die", "leader", long_s=1e9), seed=seed)
    assert world.records.state.term > 1
    assert_all_credited(world, sum(miner.machine.power.tokens_per_s for miner in world.miners))


@pytest.mark.parametrize("seed", [1, 2])
def test_nor_does_an_hour_without_the_chain_in_which_nobody_can_take_over(seed: int) -> None:
    deaths = [fault("die", "validator", long_s=5.0, number=float(number)) for number in range(VALIDATORS)]
    world = run_many(fault("chain_down", "chain", long_s=3600.0), *deaths, seed=seed)
    assert world.records.state.term > 1
    assert_all_credited(world, 6 * sum(miner.machine.power.tokens_per_s for miner in world.miners))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_round_grows_in_proportion_to_its_longest_planned_time(seed: int) -> None:
    """No rate is proven yet, so claims are believed no further: 1.5 shares of the target in the training deadline."""
    world, _ = run_small(Fault("storage_down", Target("storage"), 5.0, TEN_MINUTES_S, 1.0), seed=seed)
    check(world)
    made, spec = plans(world), world.spec
    share = 1.5 * spec.round.target_tokens / len(world.miners)
    most = share * (1 + TEN_MINUTES_S / spec.round.train_deadline_s)
    assert made[0].round == 0
    assert all(share < member.tokens <= most * 1.02 for member in made[0].members)
    assert credited(made[1:]) == 1.0, "what it could not count teaches no wrong rate"
