"""``brigade chain``: run a local chain that the unmodified Bittensor SDK and btcli work against."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from common.chain.local.process import run_node
from common.errors import OperatorError
from common.logs import setup_logging

app = typer.Typer(no_args_is_help=True, help="The chain: a local node for development and tests.")

MIN_BLOCK_TIME_S = 0.01
LOOPBACK = "127.0.0.1"


@app.callback()
def chain() -> None:
    """The chain: a local node for development and tests."""


@app.command()
def local(
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_CHAIN_DIR", help="Where the chain's state and log live.")
    ] = Path("brigade-chain"),
    port: Annotated[
        int, typer.Option(envvar="BRIGADE_CHAIN_PORT", min=0, max=65535, help="TCP port; 0 takes a free one.")
    ] = 9944,
    block_time: Annotated[
        float | None,
        typer.Option(
            envvar="BRIGADE_BLOCK_TIME",
            help="Seconds from block to block. A chain keeps the one that it began with: 0.25 if none is given.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="BRIGADE_CHAIN_HOST", help="Address to listen on. Its keys are known to everybody.")
    ] = LOOPBACK,
    cache: Annotated[
        Path | None,
        typer.Option(envvar="BRIGADE_CACHE", help="Where the runtime metadata is kept; DIR/cache if not given."),
    ] = None,
) -> None:
    """Run the local chain until SIGTERM or Ctrl-C. //Alice is sudo and has money, as have //Bob to //Ferdie."""
    if block_time is not None and not MIN_BLOCK_TIME_S <= block_time <= 60:
        raise OperatorError(f"--block-time must be between {MIN_BLOCK_TIME_S} and 60 seconds")
    folder = directory.absolute()
    setup_logging("chain", folder / "logs")
    asyncio.run(run_node(folder, host, port, block_time, cache or folder / "cache", _ready))


def _ready(url: str) -> None:
    print(f"chain ready: {url}", flush=True)
