"""kill -9 of every part of a running subnet, at a random moment: the run goes on by itself and loses nothing.

The moments are drawn from a fixed seed and counted in status events, so they fall anywhere in a round.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.localrun import LocalRun, brigade

VICTIMS = ("validator", "miner-1", "storage", "chain", "validator")
MINERS = 3


def log_entries(folder: Path) -> list[dict[str, Any]]:
    done = brigade("run", "log", "--json", "--dir", str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A run in which every part was killed, and the log as it stood after each kill's recovery."""
    folder = tmp_path_factory.mktemp("kills") / "run"
    moments = random.Random(20261201)
    histories: list[dict[str, Any]] = []
    with LocalRun(folder, miners=MINERS) as run:
        head = run.status(lambda status: status["head_revision"] >= 1)["head_revision"]
        for victim in VICTIMS:
            for _ in range(moments.randrange(1, 6)):
                head = run.status()["head_revision"]
            run.kill(victim)
            run.status(lambda status, head=head: status["head_revision"] >= head + 2)
            histories.append({"victim": victim, "entries": log_entries(folder)})
        every = {f"miner-{number}" for number in range(1, MINERS + 1)}
        run.status(lambda status: sum(miner["live"] for miner in status["miners"]) == len(every))
        assert run.stop() == 0
    yield folder, histories


def test_no_committed_revision_is_lost_or_changed(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, histories = killed
    final = log_entries(folder)
    for history in histories:
        assert final[: len(history["entries"])] == history["entries"], history["victim"]


def test_no_round_is_aborted_and_no_entry_is_void(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    kinds = [entry["kind"] for entry in log_entries(killed[0])]
    assert "round_aborted" not in kinds
    assert "void" not in kinds
    assert kinds.count("leader_changed") == 1 + VICTIMS.count("validator")


def test_the_killed_miner_comes_back_and_takes_part(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, histories = killed
    after = next(len(history["entries"]) for history in histories if history["victim"] == "miner-1")
    plans = [entry for entry in log_entries(folder)[after:] if entry["kind"] == "round_frozen"]
    assert max(len(plan["data"]["members"]) for plan in plans) == MINERS


def test_the_run_verifies_from_its_bucket(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    done = brigade("run", "verify", "--dir", str(killed[0]))
    assert done.returncode == 0, done.stdout + done.stderr
