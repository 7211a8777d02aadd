"""The settings file: precedence, refusal of what does not exist, and the example that is committed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from common import cli, config
from common.errors import OperatorError
from tests.cli.test_command_line import commands_with

EXAMPLE = Path(__file__).parents[2] / "brigade.example.toml"


def train(
    miners: Annotated[int, typer.Option(envvar="BRIGADE_TEST_MINERS")] = 1,
    place: Annotated[Path | None, typer.Option(envvar="BRIGADE_TEST_PLACE")] = None,
) -> None:
    print(f"miners={miners} place={place}")


def find(directory: Annotated[Path, typer.Option("--the-dir", envvar="BRIGADE_TEST_DIR")] = Path("here")) -> None:
    print(directory)


def run_with(tmp_path: Path, text: str, *args: str) -> int:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return cli.run(["--config", str(path), "probe", *args])


def test_flags_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_with(monkeypatch, train)
    file = "[probe]\nminers = 2\n"

    def said() -> str:
        return capsys.readouterr().out.split()[0]

    assert cli.run(["probe"]) == 0
    assert said() == "miners=1"
    assert run_with(tmp_path, file) == 0
    assert said() == "miners=2"
    monkeypatch.setenv("BRIGADE_TEST_MINERS", "3")
    assert run_with(tmp_path, file) == 0
    assert said() == "miners=3"
    assert run_with(tmp_path, file, "--miners", "4") == 0
    assert said() == "miners=4"


def test_keys_are_the_names_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_with(monkeypatch, find)
    assert run_with(tmp_path, '[probe]\nthe_dir = "there"\n') == 0
    assert capsys.readouterr().out == "there\n"
    assert run_with(tmp_path, '[probe]\ndirectory = "there"\n') == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[probe]\nminer = 2\n", "'miners'"),
        ("[proble]\nminers = 2\n", "'probe'"),
        ("probe = 3\n", "table"),
        ("[probe.place]\nx = 1\n", "setting"),
        ("[probe\n", "TOML"),
        ('[probe]\nminers = "many"\n', "--miners"),
    ],
)
def test_what_does_not_exist_is_refused(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_with(monkeypatch, train)
    assert run_with(tmp_path, text) == 2
    line = capsys.readouterr().err
    assert len(line.splitlines()) == 1
    assert named in line


def test_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands_with(monkeypatch, train)
    assert cli.run(["--config", "/no/such/file.toml", "probe"]) == 2
    assert "/no/such/file.toml" in capsys.readouterr().err


def test_the_committed_example_is_current() -> None:
    assert EXAMPLE.read_text() == config.example(), "run: brigade config show > brigade.example.toml"


def test_the_example_loads_and_every_key_exists() -> None:
    tables = config.read_tables(EXAMPLE, set(cli.commands()))
    for name, table in tables.items():
        config.command_defaults(cli.load(cli.commands()[name]), table, f"[{name}]")
    assert tables == tomllib.loads(EXAMPLE.read_text())


def options(command: Any, path: str) -> list[tuple[str, Any]]:
    found = [(f"{path} {p.opts[0]}", p) for p in command.params if p.param_type_name == "option"]
    for name, inner in getattr(command, "commands", {}).items():
        found += options(inner, f"{path} {name}")
    return [(where, option) for where, option in found if option.name != "help"]


def test_every_option_has_a_help_text_and_a_variable() -> None:
    answers = {"--yes", "--wallets", "--follow"}  # for one call: these are no settings
    for name, point in cli.commands().items():
        for where, option in options(cli.load(point), name):
            assert option.help, where
            if option.opts[0] in answers:
                assert option.envvar is None, where
            else:
                assert str(option.envvar).startswith("BRIGADE_"), where


def test_a_key_of_another_command_does_not_slip_through() -> None:
    command = cli.load(cli.commands()["storage"])
    with pytest.raises(OperatorError, match="unknown setting 'block_time'"):
        config.command_defaults(command, {"serve": {"block_time": 1}}, "[storage]")
