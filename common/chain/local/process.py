"""Run the node as a process: listen, say so in one line, make blocks, end cleanly on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from common.chain.local.genesis import SEED_BYTES
from common.chain.local.metadata import fetch_metadata
from common.chain.local.node import Node
from common.chain.local.server import bound_port, listen
from common.clock import SystemClock
from common.errors import SetupError
from common.files import PUBLIC, write_atomically

FACTS_NAME = "chain.json"


async def run_node(
    folder: Path, host: str, port: int, block_time_s: float | None, cache_dir: Path, ready: Callable[[str], None]
) -> None:
    """Serve until a signal. Calls ``ready`` with the URL once clients can connect."""
    metadata = fetch_metadata(cache_dir)
    stop = _signalled()
    with contextlib.closing(Node(folder, metadata, SystemClock(), os.urandom(SEED_BYTES), block_time_s)) as node:
        try:
            server = await listen(node, host, port)
        except OSError as error:
            raise SetupError(f"cannot listen on {host}:{port} ({error.strerror}): use another --port") from None
        async with server:
            url = f"ws://{host}:{bound_port(server)}"
            _write_facts(folder, node, url)
            ready(url)
            await _make_blocks(node, stop)


def _signalled() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _make_blocks(node: Node, stop: asyncio.Event) -> None:
    making = asyncio.create_task(node.run())
    stopping = asyncio.create_task(stop.wait())
    done, pending = await asyncio.wait({making, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if making in done:
        making.result()


def _write_facts(folder: Path, node: Node, url: str) -> None:
    facts = {
        "schema": 1,
        "url": url,
        "genesis_hash": "0x" + node.chain.genesis_hash.hex(),
        "block_time_s": node.identity.block_time_s,
        "spec_version": node.runtime.metadata.spec_version,
    }
    write_atomically(folder / FACTS_NAME, json.dumps(facts, indent=2).encode(), PUBLIC)
