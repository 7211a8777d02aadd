"""``brigade status``: how a run is going, asked of its validator; when that does not answer, of the run's bucket."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from loguru import logger
from rich.console import Console

from common.chain.wallets import open_wallet
from common.clock import SystemClock
from common.errors import BrigadeError, OperatorError, SetupError
from common.units import Hotkey
from common.wire import Status
from validator.run_place import Asked, find
from validator.up.bucket import look
from validator.up.client import fetch_status, status_client
from validator.up.folder import Folder, load_begun
from validator.up.plan import SERVED_IP
from validator.up.table import by_uid, headline, miner_line, stall_lines, status_table, waiting_lines

app = typer.Typer(help="How a run is going.", rich_markup_mode=None)


@app.command()
def status(
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of a run that `brigade up` started.")
    ] = Path("brigade-run"),
    url: Annotated[
        str | None,
        typer.Option(envvar="BRIGADE_URL", help="Address of a validator, http://host:port, and no --dir."),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Print JSON.")] = False,
) -> None:
    """Print how a run is going. Exit code 3 when its validator does not answer: then the bucket tells what it can."""
    folder = Folder(directory.absolute())
    address = url or _address(folder)
    if not address.startswith(("http://", "https://")):
        raise OperatorError(f"--url {address}: an address looks like http://host:port")
    with status_client() as client:
        found = fetch_status(client, address.rstrip("/"))
    if found is None:
        if url is None:
            _show_bucket(folder, json_lines)
        raise SetupError(f"no validator answers at {address}; is the run going? (brigade up)")
    _show(found, {} if url else _names(folder), json_lines)


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


def _address(folder: Folder) -> str:
    try:
        port = json.loads(folder.ports.read_bytes())["validator"]
    except FileNotFoundError:
        raise OperatorError(f"{folder.root} holds no run: start one with `brigade up`, or give --url") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{folder.ports} is damaged; start the run again") from error
    return f"http://{SERVED_IP}:{port}"


def _names(folder: Folder) -> dict[Hotkey, str]:
    """The wallet names of the miners in a run's folder."""
    begun = load_begun(folder.run)
    found = sorted(folder.wallets.glob("miner-*")) if begun else []
    return {open_wallet(folder.wallets, path.name).hotkey_ss58: path.name for path in found}
