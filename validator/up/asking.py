"""Whom the commands that look at a run ask: the validator of a folder, or one by its address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from common.chain.wallets import open_wallet
from common.errors import OperatorError, SetupError
from common.units import Hotkey
from validator.up.folder import Folder, load_begun
from validator.up.plan import SERVED_IP

Directory = Annotated[
    Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of a run that `brigade up` started.")
]
Url = Annotated[
    str | None, typer.Option(envvar="BRIGADE_URL", help="Address of a validator, http://host:port, and no --dir.")
]
JsonLines = Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Print JSON.")]


def address_of(folder: Folder, url: str | None) -> str:
    """Where the validator serves. OperatorError when there is no run, or ``url`` is none; SetupError for damage."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise OperatorError(f"--url {url}: an address looks like http://host:port")
        return url.rstrip("/")
    try:
        port = json.loads(folder.ports.read_bytes())["validator"]
    except FileNotFoundError:
        raise OperatorError(f"{folder.root} holds no run: start one with `brigade up`, or give --url") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{folder.ports} is damaged; start the run again") from error
    return f"http://{SERVED_IP}:{port}"


def names_of(folder: Folder) -> dict[Hotkey, str]:
    """The wallet names of the miners in a run's folder."""
    begun = load_begun(folder.run)
    found = sorted(folder.wallets.glob("miner-*")) if begun else []
    return {open_wallet(folder.wallets, path.name).hotkey_ss58: path.name for path in found}
