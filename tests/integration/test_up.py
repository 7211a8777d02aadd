"""`brigade up` for real: separate processes, storage, chain, rounds, weights on chain; then killed, continued, stopped.

The rounds are tiny, everything else is as in the demo. One story is lived through once, in the order of its chapters,
and every test looks at what was found in one of them. Nothing is asserted about speed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common import cli
from tests.support.localrun import HANG_S, TEXT, Event, LocalRun, brigade, bucket_of, delta_sizes, left_behind

DENSITY = "512"


@dataclass(frozen=True)
class Finished:
    """Two rounds, from nothing to weights on chain."""

    code: int
    errors: str
    events: list[Event]
    summary: dict[str, Any]
    left: list[str]
    verified: subprocess.CompletedProcess[str]
    deltas: list[int]


@dataclass(frozen=True)
class Story:
    """What was found after each chapter."""

    folder: Path
    finished: Finished
    left_by_kill: list[str]
    head_before_kill: int
    first_head_after_kill: int
    stopped_twice_code: int
    told_after_second_stop: list[str]
    left_by_second_stop: list[str]


def start(folder: Path, *flags: str) -> LocalRun:
    return LocalRun(folder, "--density", DENSITY, *flags)


def gone(folder: Path) -> list[str]:
    """What is left once the kernel has ended the children of a killed `up`; the limit only ends a failed test."""
    deadline_s = time.monotonic() + HANG_S / 10
    while (left := left_behind(folder)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def two_rounds(folder: Path) -> Finished:
    with start(folder, "--rounds", "2") as run:
        code = run.finish()
        summary = json.loads((folder / "summary.json").read_text()) if code == 0 else {}
        left = left_behind(folder)
        with bucket_of(folder) as store:
            verified, deltas = brigade("run", "verify", "--dir", str(folder)), delta_sizes(store)
        return Finished(code, run.errors(), run.events, summary, left, verified, deltas)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story") / "run"
    finished = two_rounds(folder)
    assert finished.code == 0, finished.errors
    with start(folder) as run:
        head = run.status(lambda status: status["head_revision"] > 2)["head_revision"]
        run.process.kill()
        run.process.wait()
        left_by_kill = gone(folder)
    with start(folder) as run:
        first = run.status()["head_revision"]
        os.kill(run.pid("storage"), signal.SIGSTOP)  # so that an orderly end takes longer than the second signal
        run.process.send_signal(signal.SIGINT)
        run.until(lambda event: event["event"] == "stopping")
        told = len(run.events)
        twice_code = run.stop(signal.SIGINT)
        told_after = [event["event"] for event in run.events[told:]]
        left_by_second_stop = gone(folder)
    return Story(
        folder,
        finished,
        left_by_kill,
        head,
        first,
        twice_code,
        told_after,
        left_by_second_stop,
    )


def test_two_rounds_are_trained_merged_and_paid(story: Story) -> None:
    summary = story.finished.summary
    assert (summary["rounds_committed"], summary["rounds_aborted"]) == (2, 0)
    assert summary["val_loss_last"] < summary["val_loss_first"]
    assert 0 < summary["tokens_merged"] <= summary["tokens_trained"]
    assert len(summary["miners"]) == 2
    assert all(summary["weights"][str(miner["uid"])] > 0 for miner in summary["miners"])
    told = story.finished.events
    assert told[-1]["event"] == "summary"
    assert {"ready", "started", "status"} <= {event["event"] for event in told}


def test_a_delta_of_512_in_4096_is_thirty_times_smaller_than_dense_float32(story: Story) -> None:
    """Measured from the objects in the bucket."""
    assert len(story.finished.deltas) == 2 * 2
    assert story.finished.summary["dense_bytes"] / max(story.finished.deltas) >= 30


def test_no_process_is_left_and_the_home_folder_is_not_used(story: Story) -> None:
    assert story.finished.left == []
    wallets = {path.name for path in (story.folder / "wallets").iterdir()}
    assert wallets == {"owner", "validator", "miner-1", "miner-2"}
    assert (story.folder / "storage" / "storage.json").stat().st_mode & 0o077 == 0


def test_the_run_verifies(story: Story) -> None:
    verified = story.finished.verified
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "head is revision 2" in verified.stdout


def test_other_settings_in_the_same_folder_are_refused(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["up", "--dir", str(story.folder), "--steps", "3", "--data", str(TEXT), "--density", DENSITY]
    assert cli.run([*words, "--seed", "7"]) == 2
    assert "--seed 0" in capsys.readouterr().err


def test_nothing_outlives_a_killed_up_and_the_same_command_continues_the_same_run(story: Story) -> None:
    assert story.left_by_kill == []
    assert story.first_head_after_kill >= story.head_before_kill > 2


def test_a_second_signal_ends_it_at_once(story: Story) -> None:
    assert story.stopped_twice_code == 1
    assert "summary" not in story.told_after_second_stop
    assert story.left_by_second_stop == []
