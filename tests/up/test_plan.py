"""What is started, with which flags; every flag is one that its command has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import cli
from common.errors import OperatorError
from common.units import Revision
from tests.up.support import settings
from validator.up import plan
from validator.up.plan import Place
from validator.up.supervisor import ChildSpec

PORTS = {"chain": 25_000, "validator": 25_001}
PLACE = Place(2, PORTS)


def everything(root: Path) -> list[ChildSpec]:
    how = settings(root, density=64)
    workers = [plan.miner(how, PLACE, name, 1) for name in plan.miner_names(how.miners)]
    return [*plan.servers(how, PORTS), plan.validator(how, PLACE, Revision(6), 1), *workers]


def test_one_process_each_for_storage_chain_validator_and_miners(tmp_path: Path) -> None:
    assert [child.name for child in everything(tmp_path)] == ["storage", "chain", "validator", "miner-1", "miner-2"]


def test_every_flag_exists(tmp_path: Path) -> None:
    """Parsed by the commands themselves, so that a renamed option is noticed here."""
    for child in everything(tmp_path):
        words = list(child.command[len(plan.BRIGADE) + 2 :])  # without the interpreter and --log-dir
        group = cli.load(cli.commands()[words[0]])
        command: Any = group.commands[words[1]]
        context = command.make_context(words[1], words[2:])
        assert context.params, child.name


def test_processes_keep_within_the_folder(tmp_path: Path) -> None:
    for child in everything(tmp_path):
        words = child.command
        for flag in ("--dir", "--cache", "--log-dir", "--wallet-path", "--storage"):
            if flag in words:
                assert words[words.index(flag) + 1].startswith(str(tmp_path)), (child.name, flag)


def test_miners_end_before_the_validator_and_that_before_the_servers(tmp_path: Path) -> None:
    orders = {child.name: child.order for child in everything(tmp_path)}
    assert orders["miner-1"] > orders["validator"] > orders["chain"] == orders["storage"]


def test_threads(tmp_path: Path) -> None:
    assert settings(tmp_path, miners=4).threads_each(cores=2) == 1
    assert settings(tmp_path, miners=2).threads_each(cores=8) == 4
    assert settings(tmp_path, miners=4, threads=3).threads_each(cores=2) == 3
    child = plan.miner(settings(tmp_path), PLACE, "miner-1", 3)
    assert child.environment["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    "wrong",
    [
        {"miners": 0},
        {"miners": 1000},
        {"rounds": 0},
        {"device": "gpu"},
        {"block_time_s": 0.0},
        {"block_time_s": float("nan")},
        {"block_time_s": 16.0},
        {"data": Path("/no/such/text")},
    ],
)
def test_wrong_flags_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--"):
        settings(tmp_path, **wrong)
    with pytest.raises(OperatorError, match="preset"):
        settings(tmp_path, preset="huge")


def test_a_settings_file_reaches_the_children(tmp_path: Path) -> None:
    child = plan.miner(settings(tmp_path, config=tmp_path / "b.toml"), PLACE, "miner-1", 1)
    assert child.command[child.command.index("--config") + 1] == str(tmp_path / "b.toml")


def test_a_folder_for_logs_reaches_the_children(tmp_path: Path) -> None:
    child = plan.miner(settings(tmp_path, log_dir=tmp_path / "elsewhere"), PLACE, "miner-1", 1)
    assert child.command[child.command.index("--log-dir") + 1] == str(tmp_path / "elsewhere")
