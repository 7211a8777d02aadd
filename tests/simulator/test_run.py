"""Whole simulations: the same seed gives the same result, however it is recorded; what the figures mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.errors import SetupError
from common.units import RoundId
from tests.simulator.support import MINERS, check, run_seed, run_small, small_settings, small_spec
from validator.simulator.baselines import quorum_round, synchronous
from validator.simulator.cli import app
from validator.simulator.run import outcome, run, simulate
from validator.simulator.scenario import Fault, Moment, Target
from validator.simulator.settings import Settings
from validator.simulator.traces import parse_trace
from validator.simulator.world import World


def fault(kind: str, target: str, start: float, duration_s: float = 1e9, size: float = 1.0, number: float = 0) -> Fault:
    return Fault(kind, Target(target, number), start, duration_s, size)


@pytest.mark.parametrize("first", range(0, 75, 25))
def test_random_schedules_violate_nothing(first: int) -> None:
    wrong = {seed: found for seed in range(first, first + 25) if (found := run_seed(seed)[2])}
    assert wrong == {}


def test_random_schedules_verify() -> None:
    assert [found for seed in range(10_000, 10_008) if (found := run_seed(seed, bucket=True)[2])] == []


def test_what_the_dead_have_handed_in_is_booked_though_no_plan_has_decided_on_it() -> None:
    """In this schedule a machine delivers and goes for good in the last round, which aborts."""
    assert run_seed(787)[2] == []


def test_one_that_outlives_all_others_goes_on_alone() -> None:
    """Their short drips of the first round neither outvote its long work nor divide what it may claim."""
    deaths = (fault("die", "miner", 8.0, number=number) for number in range(1, 8))
    settings = small_settings(*deaths, miners=8, rounds=6)
    world = World(settings, small_spec(miners=8, drip_s=1.0), audit=True)
    run(world)
    check(world)
    assert outcome(world).rounds_committed >= 5


def test_the_same_seed_gives_the_same_result_bit_for_bit() -> None:
    faults = (fault("die", "share", 30.0, 10.0, number=0.5), fault("storage_throttle", "storage", 10.0, 60.0, 0.5))
    one, two = (outcome(run_small(*faults, seed=4)[0]) for _ in range(2))
    assert one == two
    assert one != outcome(run_small(*faults, seed=5)[0])


def test_facts_alone_give_what_the_bucket_gives() -> None:
    """Lazily made submissions, and entries that nobody signed, lead to the same weights as the real objects."""
    spec, settings = small_spec(), small_settings(fault("die", "miner", 35.0, 10.0))
    worlds = [World(settings, spec, bucket=bucket, audit=True) for bucket in (True, False)]
    fast = worlds[1]
    fast.start_from(worlds[0])
    for world in worlds:
        run(world)
        check(world)
    assert worlds[0].losses == worlds[1].losses
    assert outcome(worlds[0]) == outcome(worlds[1])


def test_without_faults_only_boot_and_download_are_lost() -> None:
    _, came = run_small()
    assert came.survival == 1
    assert {cause for cause, share in came.lost_by_cause.items() if share > 0} <= {"boot", "sync"}
    assert came.goodput + sum(came.lost_by_cause.values()) == pytest.approx(1.0)
    assert came.loss_last < came.loss_first


def test_drips_save_what_a_dying_machine_has_done() -> None:
    death = fault("die", "miner", 80.0)
    lost = {drip_s: run_small(death, drip_s=drip_s)[1].lost_by_cause["death"] for drip_s in (0.0, 5.0)}
    assert lost[5.0] < lost[0.0] / 2


def test_a_submission_that_is_late_by_one_round_is_merged_by_its_weight() -> None:
    late = Fault("late", Target("miner", 1.0), Moment(RoundId(1), "open"), 1e9, 1.0)
    world, came = run_small(late, drip_s=0.0)
    check(world)
    assert 0 < came.lost_by_cause["late"] < 0.5 / MINERS
    assert came.lost_by_cause["death"] == came.lost_by_cause["rejected"] == 0


def test_one_that_is_late_by_two_rounds_is_not_merged_and_stays_in_the_account() -> None:
    late = Fault("late", Target("miner", 1.0), Moment(RoundId(1), "open"), 1e9, 2.0)
    world, came = run_small(late, drip_s=0.0)
    check(world)
    assert came.lost_by_cause["late"] > 0
    assert world.sessions[1].audit is not None


@pytest.mark.parametrize("kind", ["nan", "copy", "scale"])
def test_a_dishonest_delta_is_rejected_and_the_others_are_merged(kind: str) -> None:
    world, came = run_small(fault(kind, "miner", 0.0, size=100.0))
    check(world)
    assert came.rounds_aborted == 0
    assert came.lost_by_cause["rejected"] > 0.3 / MINERS


def test_a_leader_that_dies_loses_no_round() -> None:
    world, came = run_small(fault("die", "validator", 25.0, 5.0), fault("die", "validator", 60.0, 5.0))
    check(world)
    assert came.rounds_aborted == 0
    assert world.records.state.term == 3


def test_a_clock_that_is_off_works() -> None:
    honest = run_small()[1]
    came = run_small(fault("clock", "miners", 0.0, size=300.0))[1]
    assert came.rounds_committed == honest.rounds_committed
    assert came.goodput == pytest.approx(honest.goodput, rel=0.02)


def test_with_notice_a_preempted_machine_loses_nothing_that_it_had_trained() -> None:
    counts = [1] * 7 + [0] * 2
    trace = parse_trace(json.dumps({"metadata": {"gap_seconds": 10}, "data": counts}).encode())
    lost = {}
    for notice_s in (0.0, 9.0):
        settings = replace(small_settings(), trace=trace, notice_s=notice_s, rounds=8)
        world = World(settings, small_spec(drip_s=0.0), audit=True)
        run(world)
        check(world)
        lost[notice_s] = outcome(world).lost_by_cause["death"]
    assert lost[9.0] < lost[0.0] / 2


def test_simpler_protocols_lose_more_on_machines_that_come_and_go() -> None:
    counts = ([1] * 60 + [0] * 20) * 3
    trace = parse_trace(json.dumps({"metadata": {"gap_seconds": 60}, "data": counts}).encode())
    settings = Settings(miners=16, rounds=40, trace=trace, preset="1b", dimension=1024, density=64)
    ours = simulate(settings)
    all_or_nothing, quorum = synchronous(settings, ours.seconds), quorum_round(settings, ours.seconds)
    assert 0 < all_or_nothing.goodput < quorum.goodput < ours.goodput < 1


def test_a_group_shares_a_coldkey() -> None:
    world = World(replace(small_settings(), groups=2), small_spec())
    assert len(set(world.coldkeys.values())) == 2


ARGUMENTS = ["--miners", "4", "--rounds", "3", "--dimension", "256", "--json"]


def test_the_command_prints_the_figures_as_json() -> None:
    told = CliRunner().invoke(app, ARGUMENTS)
    assert told.exit_code == 0, told.output
    figures = json.loads(told.output)
    wanted = {"goodput", "utilisation", "survival", "rounds_committed", "rounds_aborted", "lost_by_cause"}
    assert wanted | {"phase_seconds", "bytes_up", "bytes_down"} <= figures.keys()
    assert figures["lost_by_cause"].keys() == {"boot", "sync", "death", "late", "idle", "rejected"}
    assert figures["rounds_committed"] == 3
    assert told.output == CliRunner().invoke(app, ARGUMENTS).output


def test_the_command_reads_scenario_and_trace(tmp_path: Path) -> None:
    scenario, trace = tmp_path / "faults.toml", tmp_path / "trace.json"
    scenario.write_text('[[fault]]\nkind = "link_cut"\ntarget = "miner:1"\nstart = 20\nduration = 10\n')
    trace.write_text('{"metadata": {"gap_seconds": 100}, "data": [1, 1, 1, 0]}')
    arguments = ["--scenario", str(scenario), "--trace", str(trace), "--notice-s", "20"]
    told = CliRunner().invoke(app, [*ARGUMENTS, *arguments])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["rounds_committed"] == 3


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    told = CliRunner().invoke(app, [*ARGUMENTS, "--plot", str(tmp_path / "figure.png")])
    assert isinstance(told.exception, SetupError)
    assert ".[plot]" in str(told.exception)
