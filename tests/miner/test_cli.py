"""The command: what it refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.chain.wallets import ensure_wallet
from common.cli import run

CLOSED = "ws://127.0.0.1:1"  # nobody listens on port 1
STOP_WITHIN_S = 60.0  # generous: what is tested is that it ends, and how


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--device", "tpu"], 2, "choose auto, cpu"),
        (["--max-tokens-per-s", "0"], 2, "positive"),
        (["--max-tokens-per-s", "nan"], 2, "positive"),
        (["--threads", "100000"], 2, "cores"),
        (["--notice-s", "1"], 2, "--notice-s must be 3 to 3600 seconds"),
        (["--notice-s", "nan"], 2, "--notice-s must be"),
        (["--wallet", "../evil"], 2, "wallet"),
        (["--wallet", "nobody"], 3, "cannot read the key"),
        (["--no-such-flag"], 2, "no-such-flag"),
    ],
)
def test_wrong_settings_end_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: list[str], code: int, text: str
) -> None:
    assert run(["miner", "start", "--netuid", "2", "--dir", str(tmp_path), *flags]) == code
    said = capfd.readouterr().err.strip()
    assert text in said
    assert len(said.splitlines()) == 1


def test_the_subnet_must_be_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["miner", "start", "--dir", str(tmp_path)]) == 2
    assert "--netuid" in capfd.readouterr().err


def test_help_names_every_setting(capfd: pytest.CaptureFixture[str]) -> None:
    run(["miner", "start", "--help"])
    said = capfd.readouterr().out
    for option in (
        "--netuid",
        "--wallet",
        "--hotkey",
        "--wallet-path",
        "--chain",
        "--dir",
        "--cache",
        "--device",
        "--notice-s",
    ):
        assert option in said
    assert "BRIGADE_THREADS" in said


def test_sigterm_ends_it_in_order_while_it_waits_for_the_chain(tmp_path: Path) -> None:
    ensure_wallet(tmp_path / "wallets", "miner-1")
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "common.cli", "miner", "start", "--netuid", "2", "--chain", CLOSED]
    process = subprocess.Popen(
        [*command, "--dir", str(tmp_path), "--device", "cpu", "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},
    )
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any("finding the run" in line and "trying again" in line for line in lines)
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait(STOP_WITHIN_S) == 0
    assert "stopped" in rest
    assert not list(home.iterdir()), "nothing is written into the home folder"
    assert (tmp_path / "logs" / "miner-1.log").exists()
