"""``brigade status``: how a run is going, asked of its validator; when that does not answer, of the run's bucket."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from loguru import logger
from rich.console import Console

from common.clock import SystemClock
from common.errors import BrigadeError, SetupError
from common.units import Hotkey
from common.wire import Status
from validator.run_place import DEFAULT_FOLDER, Asked, find
from validator.up.asking import Directory, JsonLines, Url, address_of, names_of
from validator.up.bucket import look
from validator.up.client import fetch_status, status_client
from validator.up.folder import Folder
from validator.up.table import by_uid, headline, miner_line, stall_lines, status_table, waiting_lines

app = typer.Typer(help="How a run is going.", rich_markup_mode=None)


@app.command()
def status(directory: Directory = DEFAULT_FOLDER, url: Url = None, json_lines: JsonLines = False) -> None:
    """Print how a run is going. Exit code 3 when its validator does not answer: then the bucket tells what it can."""
    folder = Folder(directory.absolute())
    address = address_of(folder, url)
    with status_client() as client:
        found = fetch_status(client, address)
    if found is None:
        if url is None:
            _show_bucket(folder, json_lines)
        raise SetupError(f"no validator answers at {address}; is the run going? (brigade up)")
    _show(found, {} if url else names_of(folder), json_lines)


def _show(found: Status, names: dict[Hotkey, str], json_lines: bool) -> None:
    if json_lines:
        print(json.dumps(found.model_dump(mode="json")))
        return
    console = Console()
    print(headline(found))
    for line in stall_lines(found, names):
        print(line)
    if console.is_terminal:
        console.print(status_table(found, names))
    else:
        print("\n".join(f"  {miner_line(miner, names)}" for miner in by_uid(found)))
    for line in waiting_lines(found):
        print(line)


def _show_bucket(folder: Folder, json_lines: bool) -> None:
    """What log and lease tell of a run whose validator does not answer; why not, when they can't be read."""
    try:
        seen = look(find(Asked(folder=folder.root)), SystemClock().wall_ns() / 1e9)
    except BrigadeError as fault:
        logger.warning("nor does the run's bucket: {}", fault)
        return
    print(json.dumps(asdict(seen)) if json_lines else "\n".join(seen.lines()))
