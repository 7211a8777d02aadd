"""The edge of the command line: lazy commands, one line and an exit code for every error."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from common import cli, logs
from common.errors import BrigadeError, OperatorError, SetupError
from common.store.config import StorageConfig, save_config


def commands_with(monkeypatch: pytest.MonkeyPatch, command: object) -> None:
    """Make ``brigade probe`` run ``command``; another command's module does not exist."""
    app = typer.Typer()
    app.command()(command)  # type: ignore[arg-type, type-var]  # any callable
    module = type(sys)("probe_module")
    module.app = app  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "probe_module", module)
    points = {
        "broken": EntryPoint("broken", "no_such_module_here:app", cli.GROUP),
        "probe": EntryPoint("probe", "probe_module:app", cli.GROUP),
    }
    monkeypatch.setattr(cli, "commands", lambda: points)


@pytest.mark.parametrize(
    ("error", "code"),
    [(BrigadeError("the run failed"), 1), (OperatorError("wrong flag"), 2), (SetupError("no disk"), 3)],
)
def test_our_errors_are_one_line_and_an_exit_code(
    error: BrigadeError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    commands_with(monkeypatch, fail)
    assert cli.run(["probe"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(error) in lines[0]


def test_an_unforeseen_error_leaves_its_traceback_in_a_file_that_the_line_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail() -> None:
        raise KeyError("surprise")

    commands_with(monkeypatch, fail)
    monkeypatch.setattr(cli, "log_path", lambda: tmp_path / "probe.log")
    assert cli.run(["probe"]) == 1
    line = capsys.readouterr().err
    assert "Traceback" not in line
    assert str(tmp_path / "probe.log") in line
    assert "KeyError: 'surprise'" in (tmp_path / "probe.log").read_text()


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (("status", "--url", "http://127.0.0.1:1"), "status", 3),
        (("run", "verify", "--dir", "/no/such/folder"), "run-verify", 2),
        (("data", "prepare", "/no/such/text", "--out", "/no/such/folder"), "data-prepare", 2),
        (("storage", "serve", "--dir", "{tmp}", "--bucket", "another"), "storage-serve", 2),
    ],
)
def test_every_command_logs_where_it_is_told_and_its_errors_end_with_the_path(
    words: tuple[str, ...], name: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_trace: None
) -> None:
    save_config(StorageConfig("http://127.0.0.1:1", "brigade", "key", "secret"), tmp_path / "storage.json")
    words = tuple(word.format(tmp=tmp_path) for word in words)
    assert cli.run(["--log-dir", str(tmp_path), *words]) == code
    path = tmp_path / f"{name}.log"
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"{path})")
    assert "Error" in path.read_text()


@pytest.fixture
def no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a command line does to this process's signals and logs."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    yield
    logs._forced_dir = None
    logs.setup_logging("tests")


def test_usage_errors_exit_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands_with(monkeypatch, lambda: None)
    for args in (["probe", "--no-such-option"], ["nonsense"], ["probe", "stray"]):
        assert cli.run(args) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_broken_command_does_not_touch_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_with(monkeypatch, lambda: print("fine"))
    assert cli.run(["--help"]) == 0
    assert cli.run(["probe"]) == 0
    assert "fine" in capsys.readouterr().out
    assert cli.run(["broken"]) == 3


def test_a_command_may_give_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad_end() -> int:
        return 1

    commands_with(monkeypatch, bad_end)
    assert cli.run(["probe"]) == 1


def test_help_imports_no_command() -> None:
    """What makes help quick: nothing heavy is imported for it."""
    script = (
        "import sys; from common import cli; cli.run(['--help']);"
        "heavy = {'torch', 'bittensor', 'boto3', 'fastapi', 'numpy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("up", "miner", "validator", "run", "storage", "chain", "data", "config", "status", "clean", "doctor"):
        assert re.search(rf"^  {name}\s", done.stdout, re.MULTILINE), name


def test_other_systems_get_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.run(["--help"]) == 3
    assert "Linux" in capsys.readouterr().err
