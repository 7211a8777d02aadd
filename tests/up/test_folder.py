"""The folder of a run: one user at a time, settings that hold, ports that stay, and a careful clean."""

from __future__ import annotations

import random
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import cli
from common.errors import OperatorError, SetupError
from validator.up.folder import SCHEMA, Begun, Folder, continue_with, load_begun, locked, save_begun
from validator.up.ports import FIRST, LAST, choose_ports

BEGUN = Begun(SCHEMA, "brigade-run", "nano", 0, 4, None, None, None, 0.25, 2, "0" * 64)


def test_settings_survive_and_a_second_start_may_change_what_is_not_fixed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert load_begun(path) is None
    save_begun(BEGUN, path)
    assert load_begun(path) == BEGUN
    assert continue_with(BEGUN, replace(BEGUN, target_miners=9, netuid=None, spec_sha256=None)) == BEGUN


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "--seed 0, not 1"),
        ({"preset": "1b"}, "--preset nano"),
        ({"density": 64}, "--density unset, not 64"),
        ({"data": "/text"}, "--data"),
        ({"steps": 3}, "--steps"),
        ({"block_time_s": 1.0}, "--block-time 0.25"),
    ],
)
def test_what_the_spec_fixes_is_refused_when_it_differs(change: dict[str, Any], named: str) -> None:
    with pytest.raises(OperatorError, match=named):
        continue_with(BEGUN, replace(BEGUN, **change))


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"schema": 1, "colour": 2}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(SetupError, match="damaged"):
            load_begun(tmp_path / "run.json")


def test_one_up_at_a_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with locked(folder), pytest.raises(OperatorError, match="another brigade up"), locked(folder):
        pass
    with locked(folder):
        pass


def test_ports_stay_unless_a_stranger_took_one(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    servers = {"chain": "127.0.0.1", "validator": "127.0.0.2"}
    ports = choose_ports(path, servers, random.Random(1))
    assert len(set(ports.values())) == 2
    assert all(FIRST <= port <= LAST for port in ports.values())
    assert choose_ports(path, servers, random.Random(2)) == ports
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", ports["chain"]))
        stranger.listen()
        moved = choose_ports(path, servers, random.Random(3))
    assert moved["chain"] != ports["chain"]
    assert moved["validator"] == ports["validator"]
    path.write_text('["chain"]')
    with pytest.raises(SetupError, match="damaged"):
        choose_ports(path, servers, random.Random(4))


def a_run(root: Path) -> Path:
    (root / "wallets" / "owner").mkdir(parents=True)
    (root / "storage").mkdir()
    (root / "storage" / "object").touch()
    save_begun(BEGUN, root / "run.json")
    return root


def test_clean_keeps_wallets_unless_told(tmp_path: Path) -> None:
    root = a_run(tmp_path / "run")
    assert cli.run(["clean", "--dir", str(root), "--yes"]) == 0
    assert (root / "wallets" / "owner").exists()
    assert not (root / "storage").exists()
    assert cli.run(["clean", "--dir", str(root), "--yes", "--wallets"]) == 0
    assert not (root / "wallets").exists()


def test_clean_asks_and_a_no_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = a_run(tmp_path / "run")
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(__import__("typer").Abort))
    assert cli.run(["clean", "--dir", str(root)]) == 130
    assert (root / "storage" / "object").exists()


def test_clean_touches_no_other_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").touch()
    assert cli.run(["clean", "--dir", str(tmp_path), "--yes", "--wallets"]) == 2
    assert (tmp_path / "precious").exists()


def test_status_says_when_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["status", "--dir", str(tmp_path / "nothing")]) == 2
    assert cli.run(["status", "--url", "127.0.0.1:1"]) == 2
    assert cli.run(["status", "--url", "http://127.0.0.1:1"]) == 3
    assert "no validator answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [("--preset", "huge"), ("--data", "/no/such/text"), ("--block-time", "0"), ("--block-time", "16")],
)
def test_a_typing_error_is_exit_2_and_leaves_the_folder_as_it_was(wrong: tuple[str, str], tmp_path: Path) -> None:
    assert cli.run(["up", "--dir", str(tmp_path / "run"), *wrong]) == 2
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("common.model.device._usable_gpus", lambda: 0)
    assert cli.run(["up", "--dir", str(tmp_path / "run"), "--device", "cuda"]) == 3
    assert "no usable GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_text_that_makes_no_dataset_does_not_poison_the_folder(tmp_path: Path) -> None:
    root, text = tmp_path / "run", tmp_path / "text"
    text.mkdir()
    (text / "picture").write_bytes(bytes(1000))
    assert cli.run(["up", "--dir", str(root), "--data", str(text), "--miners", "1"]) == 2
    assert load_begun(root / "run.json") is None
    assert not (root / "chain").exists()
