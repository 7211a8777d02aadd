"""``brigade config show``: the settings file, made from the commands themselves.

A settings file is TOML: one table for each command, named as on the command line (``[up]``, ``[miner.start]``), its
keys the long options with underscores. Flags stand above the environment, that above the file, that above defaults.
Options without an environment variable (``--yes``) are answers for one call and no settings.
Invariant: what a file sets is a setting that exists; an unknown table or key is refused, naming it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from common.errors import OperatorError

MAX_FILE_BYTES = 1 << 20
WIDTH = 116

app = typer.Typer(help="Settings of all commands.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def settings() -> None:
    """Settings of all commands."""


@app.command()
def show() -> None:
    """Print a settings file with every command's options, their help and their defaults."""
    print(example(), end="")


def read_tables(path: Path, known: set[str]) -> dict[str, Any]:
    """The tables of a settings file. OperatorError for a file that can't be read or names an unknown command."""
    try:
        with path.open("rb") as file:
            tables = tomllib.loads(file.read(MAX_FILE_BYTES).decode())
    except OSError as error:
        raise OperatorError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(f"--config {path} is not TOML: {error}") from error
    for name, table in tables.items():
        if name not in known:
            raise OperatorError(f"--config {path}: no command is called {name!r}{_hint(name, known)}")
        if not isinstance(table, dict):
            raise OperatorError(f"--config {path}: {name!r} must be a table, [{name}]")
    return tables


def command_defaults(command: Any, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The table as the defaults of ``command``'s parameters (for a group, of its commands).

    Raises OperatorError unless every key is an option (or a command) that exists.
    """
    subcommands = getattr(command, "commands", {})
    names = {key_of(parameter): parameter.name for parameter in _options(command)}
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        if key in subcommands:
            if not isinstance(value, dict):
                raise OperatorError(f"{where}: {key!r} must be a table")
            defaults[key] = command_defaults(subcommands[key], value, f"{where[:-1]}.{key}]")
        elif key not in names:
            raise OperatorError(f"{where} of the config file: unknown setting {key!r}{_hint(key, names)}")
        elif isinstance(value, dict):
            raise OperatorError(f"{where} of the config file: {key!r} is a setting, not a table")
        else:
            defaults[names[key]] = value
    return defaults


def key_of(parameter: Any) -> str:
    """The name of an option in the file: ``--block-time`` → ``block_time``."""
    return str(parameter.opts[0].lstrip("-").replace("-", "_"))


def example() -> str:
    """The whole settings file with every default, as text."""
    from common.cli import commands, load

    head = [
        "# Settings of Brigade: every option of every command with its default. Made by `brigade config show`.",
        "# Use it with `brigade --config FILE …`. Flags and BRIGADE_* variables stand above it; keys that do not exist",
        "# are refused. A setting without a default is commented out.",
    ]
    lines = [line for name, point in commands().items() for line in _tables(load(point), name)]
    return "\n".join(head + lines) + "\n"


def _tables(command: Any, path: str) -> Iterator[str]:
    options = list(_options(command))
    if options:
        yield ""
        yield from _comment(_first_line(command.help))
        yield f"[{path}]"
    for parameter in options:
        yield from _comment(_described(parameter))
        yield _assignment(parameter)
    for name, subcommand in sorted(getattr(command, "commands", {}).items()):
        yield from _tables(subcommand, f"{path}.{name}")


def _options(command: Any) -> Iterator[Any]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.envvar and not parameter.hidden:
            yield parameter


def _described(parameter: Any) -> str:
    return f"{parameter.help or ''} ({parameter.envvar})".strip()


def _assignment(parameter: Any) -> str:
    default = parameter.default() if callable(parameter.default) else parameter.default
    if default is None or default == () or default == []:
        return f"# {key_of(parameter)} ="
    return f"{key_of(parameter)} = {_value(default)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    text = str(value.value if isinstance(value, Enum) else value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    if line != "#":
        yield line


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0]


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
