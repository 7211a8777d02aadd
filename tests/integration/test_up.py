"""`brigade up` for real: separate processes, storage, chain, two rounds, weights on chain; stopped and continued.

The rounds are tiny, everything else is as in the demo. Nothing is asserted about speed: limits only end a test that
hangs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common import cli

LIMIT_S = 240
TEXT = Path(__file__).parents[2] / "common"
BRIGADE = (sys.executable, "-P", "-m", "common.cli")


def up(folder: Path, *flags: str) -> tuple[str, ...]:
    return (
        *BRIGADE,
        "up",
        "--dir",
        str(folder),
        "--miners",
        "2",
        "--steps",
        "3",
        "--data",
        str(TEXT),
        "--json",
        *flags,
    )


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def left_behind(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one run of two rounds was made, with its events in ``events.jsonl``."""
    made = tmp_path_factory.mktemp("run")
    done = subprocess.run(up(made, "--rounds", "2"), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made / "events.jsonl").write_text(done.stdout)
    return made


def test_two_rounds_are_trained_merged_and_paid(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rounds_committed"], summary["rounds_aborted"]) == (2, 0)
    assert summary["val_loss_last"] < summary["val_loss_first"]
    assert 0 < summary["tokens_merged"] <= summary["tokens_trained"]
    assert len(summary["miners"]) == 2
    assert all(summary["weights"][str(miner["uid"])] > 0 for miner in summary["miners"])
    assert summary["dense_bytes"] / summary["delta_bytes"] > 10
    told = events((folder / "events.jsonl").read_text())
    assert told[-1]["event"] == "summary"
    assert {"ready", "started", "status"} <= {event["event"] for event in told}


def test_no_process_is_left_and_the_home_folder_is_not_used(folder: Path) -> None:
    assert left_behind(folder) == []
    assert {path.name for path in (folder / "wallets").iterdir()} == {"owner", "validator", "miner-1", "miner-2"}
    assert (folder / "storage" / "storage.json").stat().st_mode & 0o077 == 0


def test_the_run_verifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [*BRIGADE, "run", "verify", "--dir", str(folder)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "head is revision 2" in done.stdout


def test_other_settings_in_the_same_folder_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["up", "--dir", str(folder), "--seed", "7", "--steps", "3", "--data", str(TEXT)]) == 2
    assert "--seed 0" in capsys.readouterr().err


def test_the_same_command_continues_and_a_signal_ends_it(folder: Path) -> None:
    process = subprocess.Popen(up(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "status" and event["head_revision"] > 2:
                break
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, rest + errors
    assert events(rest)[-1]["rounds_committed"] > 2
    assert left_behind(folder) == []
