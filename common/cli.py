"""The command ``brigade``: collects the rooms' commands, reads the config file, and is the edge where errors end.

Commands are found through the entry-point group ``brigade.commands`` and imported only when they are called, so that
one that is slow or broken costs the others nothing; help shows the first line of their modules' docstrings.

Invariant: our own errors print one line and give their exit code (1 run failed, 2 usage, 3 environment); an error that
nobody foresaw leaves its traceback in a log file that the line names.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from common.errors import BrigadeError, OperatorError, SetupError
from common.logs import BoundedFile, log_into, log_path, redact, setup_logging
from common.units import printable

GROUP = "brigade.commands"
INTERRUPTED = 130
COMPLETION = ("install_completion", "show_completion")  # Typer adds them to every app; they belong to none of ours


@lru_cache(maxsize=1)
def commands() -> dict[str, EntryPoint]:
    """The entry point of every command, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def load(point: EntryPoint) -> Any:
    """The command behind an entry point. Raises SetupError when its module can't be imported."""
    try:
        target = point.load()
    except ImportError as error:
        raise SetupError(f"the command {point.name} can't be loaded ({error}); install Brigade again") from error
    command = typer.main.get_command(target) if isinstance(target, typer.Typer) else target
    command.name = point.name
    command.params = [parameter for parameter in command.params if parameter.name not in COMPLETION]
    return command


def summary(point: EntryPoint) -> str:
    """The first line of the module's docstring, read without importing the module."""
    try:
        spec = importlib.util.find_spec(point.module)
        source = Path(spec.origin).read_bytes() if spec and spec.origin else b""
        text = ast.get_docstring(ast.parse(source)) or ""
    except (ImportError, OSError, SyntaxError, ValueError):  # ValueError: a module made without a file
        return "(can't be loaded)"
    line = text.split("\n\n")[0].replace("\n", " ").replace("``", "")
    return re.sub(r"^brigade [a-z ]+: ", "", line)


class LazyGroup(TyperGroup):
    """The root: knows its commands' names, and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with name and summary, which is all that help shows."""
        point = commands().get(cmd_name)
        return TyperCommand(cmd_name, short_help=summary(point)) if point else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        point = commands().get(args[0])
        if point is None:
            raise OperatorError(f"there is no command {args[0]!r}; brigade --help lists them")
        command = load(point)
        apply_config(ctx, command)
        setup_logging(log_name(command, args), None)
        return args[0], command, args[1:]


app = typer.Typer(
    name="brigade",
    cls=LazyGroup,
    help="Train one language model on machines that nobody controls.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _print_version(value: bool) -> None:
    if value:
        print(f"brigade {version('brigade')}")
        raise typer.Exit


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """While options are parsed, since the command's defaults are needed right after."""
    if path is not None:
        from common.config import read_tables

        ctx.default_map = read_tables(path, set(commands()))
    return path


def _set_log_dir(path: Path | None) -> Path | None:
    if path is not None:
        log_into(path.absolute())
    return path


@app.callback()
def root(
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="BRIGADE_CONFIG", callback=_read_config, help="TOML file with a table of settings for each command."
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="BRIGADE_LOG_DIR",
            callback=_set_log_dir,
            help="Folder of all log files, instead of the command's own.",
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before every command."""


def log_name(command: Any, args: Sequence[str]) -> str:
    """What a command's log file is called unless it chooses itself: ``run-verify``."""
    words = [word for word in args[1:2] if word in getattr(command, "commands", {})]
    return "-".join([args[0], *words])


def apply_config(ctx: Any, command: Any) -> None:
    """Check the config file's table for ``command``, and make its values the command's defaults."""
    if ctx.default_map:
        from common.config import command_defaults

        table = ctx.default_map.get(command.name, {})
        ctx.default_map = {command.name: command_defaults(command, table, f"[{command.name}]")}


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Does not return."""
    leave(run(list(sys.argv[1:] if args is None else args)))


def leave(code: int) -> NoReturn:
    """End the process without tearing the interpreter down, which takes seconds of CPU with PyTorch loaded.

    A supervisor would wait for them at every stop. What was promised for the end of the process is still done.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read us is gone
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def run(args: list[str]) -> int:
    """Run one command line and return its exit code, with every error turned into one line on stderr."""
    if sys.platform != "linux":
        return _fail(
            f"Brigade runs on Linux; {sys.platform} is not supported: use a Linux machine, container or WSL 2", 3
        )
    try:
        result = app(args, prog_name="brigade", standalone_mode=False)
    except typer.TyperException as error:
        return _usage(error)
    except typer.Abort:
        return _fail("stopped", INTERRUPTED)
    except BrigadeError as error:
        return _fail(_with_log(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the edge: whatever nobody foresaw is kept with its traceback
        return _fail(f"{type(error).__name__}: {error} (this is a bug; traceback in {_keep(error)})", 1)
    return result if isinstance(result, int) else 0


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context else ""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if "\n" in message.strip():  # a group called without its command: the message is its help
        print(message, file=sys.stderr)
        return 2
    return _fail(message.rstrip(".") + where, int(getattr(error, "exit_code", 2)))


def _fail(message: str, code: int) -> int:
    print("brigade: " + printable(redact(" ".join(message.split()))), file=sys.stderr, flush=True)
    return code


def _with_log(error: BrigadeError) -> str:
    """The error's text, ending with the path of the log that holds its traceback, where the process has a log."""
    return f"{error} (log: {_keep(error)})" if log_path() else str(error)


def _keep(error: Exception) -> Path:
    """Write the traceback to this process's log, or to a file of its own when it has none yet."""
    path = log_path() or Path(tempfile.gettempdir()) / f"brigade-{os.getuid()}" / "crash.log"
    text = "".join(traceback.format_exception(error))
    file = BoundedFile(path)
    file.write(redact(text))
    file.close()
    return path


if __name__ == "__main__":
    main()
