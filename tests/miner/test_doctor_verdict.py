"""The doctor's judgement: facts in, lines, answer and exit code out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from common.codec.container import encoded_size
from common.codec.params import delta_params
from common.model.layout import layout_of
from common.model.presets import PRESETS
from common.units import Hotkey, Revision, Uid
from miner.doctor.facts import ClockReading, Facts, Head, Link, Machine, Remote, Room, Speed, Trouble, ValidatorSeen
from miner.doctor.look import preset_spec
from miner.doctor.machinelines import fits, shard_of
from miner.doctor.needs import memory_need, round_need, state_bytes
from miner.doctor.pace import Rates, answer
from miner.doctor.report import Level, Line, Report
from miner.doctor.storage import usual_round_s
from miner.doctor.verdict import judge

GIB = 1 << 30
MINUTE_S = 60.0
SPEC = preset_spec("125m")
NEED = round_need(SPEC, shard_of(SPEC), Revision(0))
HEAD = Head(Revision(40), Hotkey("leader"), None, "", whole=True)
GPU = Machine("cuda:0", "A GPU", 8, 128 * GIB, 40 * GIB, 48 * GIB)
CPU = Machine("cpu", "A CPU", 8, 128 * GIB)
SPEED = Speed(50_000.0, 20, 16_384, True, 2.0, 14 * GIB)
ROOMS = (Room("state", "/d", 1, 500 * GIB, True), Room("cache", "/d/cache", 1, 500 * GIB, True))
REMOTE = Remote(
    wallet=Hotkey("me"),
    chain=1000,
    seat=Uid(3),
    run="http://storage/bucket",
    head=HEAD,
    validators=(ValidatorSeen(Hotkey("leader"), True, "http://v"),),
    clocks=(ClockReading("the storage", 0.2, 1.5),),
    downlink=Link(500e6, 64 << 20, 1.0),
)
GOOD = Facts(GPU, ROOMS, SPEC, REMOTE, dataset_bytes=GIB, speed=SPEED)


def judged(**changes: Any) -> Report:
    """``changes`` to the facts, or to what is remote."""
    outside = {name: changes.pop(name) for name in list(changes) if hasattr(REMOTE, name)}
    return judge(replace(GOOD, remote=replace(REMOTE, **outside), **changes))


def line(report: Report, check: str) -> Line:
    return next(line for line in report.lines if line.check == check)


def rates(**changes: Any) -> Rates:
    return replace(Rates(50_000.0, 2.0, None, None, None), **changes)


def test_a_good_machine_is_good() -> None:
    report = judged()
    assert report.exit_code == 0
    levels = {one.check: one.level for one in report.lines}
    assert levels.pop("uplink") is Level.WARN, "which nobody measured"
    assert set(levels.values()) == {Level.OK}


def test_broken_stands_above_slow_and_all_lines_stay() -> None:
    slow = replace(SPEED, tokens_per_s=1.0)
    assert judged(speed=slow).exit_code == 1
    both = judged(speed=slow, seat=Trouble("no seat", "register"))
    assert both.exit_code == 3
    assert line(both, "answer").level is Level.SLOW
    assert [one.check for one in both.lines] == [one.check for one in judged().lines]


@pytest.mark.parametrize(
    ("changes", "check", "code"),
    [
        ({"machine": Trouble("no such GPU")}, "device", 3),
        ({"machine": replace(GPU, device_free_bytes=8 * GIB)}, "memory", 1),
        ({"machine": replace(GPU, host_free_bytes=GIB)}, "memory", 1),
        ({"rooms": (replace(ROOMS[0], free_bytes=GIB),)}, "disk", 3),
        ({"rooms": (replace(ROOMS[0], writable=False),)}, "disk", 3),
        ({"clocks": (ClockReading("the storage", -300.0, 1.5),)}, "clock", 3),
        ({"wallet": Trouble("no key"), "seat": None}, "wallet", 3),
        ({"chain": Trouble("away"), "seat": None, "run": None, "head": None, "validators": ()}, "chain", 3),
        ({"seat": Trouble("no seat")}, "seat", 3),
        ({"run": Trouble("nothing committed"), "head": None, "validators": (), "downlink": None}, "run", 3),
        ({"head": Trouble("no genesis")}, "run", 3),
        ({"validators": (ValidatorSeen(Hotkey("v"), True, "", Trouble("away")),)}, "validator", 3),
        ({"downlink": Trouble("403")}, "downlink", 3),
        ({"downlink": Link(1e3, 1000, 5.0)}, "downlink", 1),
        ({"uplink": Link(1e3, 1000, 5.0)}, "uplink", 1),
        ({"speed": Trouble("too slow")}, "speed", 1),
        ({"speed": replace(SPEED, tokens_per_s=5.0)}, "answer", 1),
    ],
)
def test_each_trouble_has_its_line_and_its_code(changes: dict[str, Any], check: str, code: int) -> None:
    report = judged(**changes)
    assert report.exit_code == code
    assert line(report, check).level is (Level.FAIL if code == 3 else Level.SLOW)
    assert all(len(str(one).splitlines()) == 1 for one in report.lines)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"machine": CPU}, "device"),
        ({"speed": replace(SPEED, tokens_per_s=16_384 / 500)}, "answer"),
        ({"clocks": (ClockReading("the storage", 20.0, 1.5),)}, "clock"),
        ({"head": replace(HEAD, paused="orders")}, "run"),
        ({"head": replace(HEAD, whole=False)}, "run"),
        (
            {
                "validators": (
                    ValidatorSeen(Hotkey("leader"), True, "", Trouble("away")),
                    ValidatorSeen(Hotkey("other"), False, "http://o"),
                )
            },
            "validator",
        ),
    ],
)
def test_what_is_only_worth_knowing_costs_no_exit_code(changes: dict[str, Any], check: str) -> None:
    report = judged(**changes)
    assert report.exit_code == 0
    assert line(report, check).level is Level.WARN


def test_a_foreign_clock_that_is_wrong_is_not_taken_for_ours() -> None:
    clocks = (ClockReading("the storage", 0.1, 1.5), ClockReading("validator a", 300.0, 1.0))
    report = judged(clocks=clocks)
    assert report.exit_code == 0
    assert "one of these is wrong" in line(report, "clock").text


def test_a_blocks_age_is_no_difference_of_clocks() -> None:
    assert line(judged(clocks=(ClockReading("the chain", 50.0, 60.0),)), "clock").level is Level.OK
    assert line(judged(clocks=(ClockReading("the chain", 300.0, 60.0),)), "clock").level is Level.FAIL


def test_the_disk_of_two_folders_has_to_hold_what_both_need() -> None:
    needed_bytes = state_bytes(SPEC, shard_of(SPEC)) + 10 * GIB
    one_disk = [replace(room, free_bytes=needed_bytes - 1) for room in ROOMS]
    assert judged(rooms=tuple(one_disk), dataset_bytes=10 * GIB).exit_code == 3
    two_disks = (one_disk[0], replace(one_disk[1], disk=2))
    assert judged(rooms=two_disks, dataset_bytes=10 * GIB).exit_code == 0
    held = (one_disk[0], replace(one_disk[1], held_bytes=10 * GIB))
    assert judged(rooms=held, dataset_bytes=10 * GIB).exit_code == 0, "what is there need not be fetched"


def test_without_a_run_the_machine_is_looked_at_all_the_same() -> None:
    report = judged(spec=None, speed=None, run=Trouble("none"), head=None, validators=(), downlink=None)
    assert report.answer is None
    assert line(report, "disk").level is Level.OK
    assert line(report, "memory").level is Level.SKIPPED
    assert "--preset" in line(report, "memory").text


def test_a_run_in_shards_is_refused_by_this_version() -> None:
    report = judge(replace(GOOD, spec=preset_with_shards(2), speed=None))
    assert "2 shards" in line(report, "run").text
    assert report.exit_code == 3


def preset_with_shards(count: int) -> Any:
    return replace(SPEC, num_shards=count)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_memory_is_counted_by_shard(name: str, on_gpu: bool) -> None:
    spec = preset_spec(name)
    whole = memory_need(spec, shard_of(spec), on_gpu)
    count = layout_of(spec.model, shard_of(spec)).total
    assert whole.weights_bytes == count * (10 if on_gpu else 8)
    assert whole.optimizer_bytes >= count * 8
    half = replace(spec, num_shards=2)
    part = memory_need(half, shard_of(half), on_gpu)
    assert part.device_bytes < whole.device_bytes
    assert part.account_bytes < 0.7 * whole.account_bytes


def test_too_little_memory_is_an_answer_though_nothing_was_measured() -> None:
    report = judged(machine=replace(GPU, device_free_bytes=4 * GIB), speed=None)
    assert report.keeps_up is False
    assert "see memory" in line(report, "answer").text
    unknown = judged(machine=Trouble("no such GPU"), speed=None)
    assert unknown.keeps_up is None


def test_nothing_is_tried_on_a_machine_that_it_does_not_fit() -> None:
    assert fits(SPEC, GPU)
    assert not fits(SPEC, replace(GPU, device_free_bytes=4 * GIB))
    assert not fits(SPEC, replace(CPU, host_free_bytes=8 * GIB))


# The answer.


def test_the_tokens_of_a_round_are_those_of_its_present_length() -> None:
    found = answer(NEED, rates(round_s=100.0))
    assert found.keeps_up
    assert (found.steps, found.tokens) == (305, 305 * 16_384)
    alone = answer(NEED, rates())
    assert (alone.steps, alone.share) == (60, 1.0), "among its equals it trains what is planned"
    slow = answer(NEED, rates(tokens_per_s=16_384 / 60))
    assert (slow.steps, slow.round_s) == (30, SPEC.round.train_deadline_s), "the deadline ends the round"


def test_a_slow_machine_keeps_up_as_long_as_one_step_fits() -> None:
    assert answer(NEED, rates(tokens_per_s=16_384 / 1799)).keeps_up
    late = answer(NEED, rates(tokens_per_s=16_384 / 1801))
    assert not late.keeps_up
    assert "faster machine" in late.reasons[0]


def test_an_uplink_that_is_wanted_suffices_and_less_means_handing_in_early() -> None:
    wanted_bps = answer(NEED, rates()).wanted_up_bps
    on_time = answer(NEED, rates(up_bps=wanted_bps * 1.001, round_s=1800.0))
    early = answer(NEED, rates(up_bps=wanted_bps * 0.5, round_s=1800.0))
    assert on_time.keeps_up
    assert early.keeps_up
    assert early.tokens < on_time.tokens, "it trains for a shorter part of the round"
    least_bps = early.least_up_bps
    assert answer(NEED, rates(up_bps=least_bps * 1.001)).keeps_up
    never = answer(NEED, rates(up_bps=least_bps * 0.99))
    assert not never.keeps_up
    assert "uplink" in never.reasons[0]


def test_the_downlink_has_to_bring_an_update_in_a_round() -> None:
    least_bps = answer(NEED, rates()).least_down_bps
    assert answer(NEED, rates(down_bps=least_bps * 1.001)).keeps_up
    assert "needed" in answer(NEED, rates(down_bps=least_bps * 0.99)).reasons[0]


def test_the_delta_is_that_of_the_head() -> None:
    late = round_need(SPEC, shard_of(SPEC), Revision(40))
    count = layout_of(SPEC.model, shard_of(SPEC)).total
    assert late.delta_bytes == encoded_size(count, delta_params(SPEC.codec, 40))
    assert late.delta_bytes < NEED.delta_bytes / 10
    assert answer(late, rates()).wanted_up_bps < answer(NEED, rates()).wanted_up_bps / 10


@pytest.mark.parametrize(
    "figures", list(itertools.product((1e-3, 1.0, 1e9), (0.0, 1e6), (None, 1.0, 1e12), (None, 1.0), (None, 1e-3, 1e9)))
)
def test_any_figures_give_an_answer_that_agrees_with_itself(figures: tuple[Any, ...]) -> None:
    found = answer(NEED, Rates(*figures))
    assert found.keeps_up is not bool(found.reasons)
    assert found.steps >= 0
    assert 0 < found.least_up_bps <= found.wanted_up_bps


def test_rounds_are_as_long_as_the_last_ones_were() -> None:
    assert usual_round_s([]) is None
    assert usual_round_s([5_000]) is None
    assert usual_round_s([0, 1_000_000, *(1_000_000 + 20_000 * n for n in range(1, 9))]) == 20.0
