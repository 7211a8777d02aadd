"""``brigade miner``: train for a run on this machine.

Settings come as flags, ``BRIGADE_*`` variables or a TOML file, in that order. What contradicts itself is refused in one
line before anything is touched. SIGTERM and the first Ctrl-C end the process within ``--notice-s``: after the current
step, with its work handed in if a round takes it, and on disk; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from loguru import logger

from common import options
from common.clock import SystemClock
from common.errors import OperatorError
from common.identity import KeypairSigner
from common.logs import setup_logging
from common.model.device import check_device, choose_device
from miner.deadlines import DEFAULT_NOTICE_S, LEAST_NOTICE_S, MOST_NOTICE_S

if TYPE_CHECKING:
    from miner.agent import Settings, Stop

app = typer.Typer(no_args_is_help=True, help="Train for a run on this machine.", rich_markup_mode=None)

DEFAULT_HOTKEY = "default"


@app.callback()
def miner() -> None:
    """Train for a run on this machine."""


@app.command()
def start(
    netuid: options.Netuid,
    wallet: options.WalletName = "miner-1",
    hotkey: options.HotkeyName = DEFAULT_HOTKEY,
    wallet_path: options.WalletPath = None,
    chain: options.Chain = options.DEFAULT_CHAIN,
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of everything: state, caches, logs, wallets.")
    ] = Path("brigade-run"),
    cache: Annotated[
        Path | None,
        typer.Option(envvar="BRIGADE_CACHE", help="Datasets, shared by this machine's miners; DIR/cache if not given."),
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="BRIGADE_DEVICE", help="auto (a GPU if there is one), cpu, cuda or cuda:<number>.")
    ] = "auto",
    threads: options.Threads = None,
    max_tokens_per_s: Annotated[
        float | None,
        typer.Option(envvar="BRIGADE_MAX_TOKENS_PER_S", help="Train no faster than this; no limit if not given."),
    ] = None,
    allow_private: Annotated[
        bool,
        typer.Option(
            "--allow-private",
            envvar="BRIGADE_ALLOW_PRIVATE",
            help="Call validators and storage at private addresses, too.",
        ),
    ] = False,
    notice_s: Annotated[
        float,
        typer.Option(
            "--notice-s",
            envvar="BRIGADE_NOTICE_S",
            help="Seconds from SIGTERM to the end, for handing in what was trained.",
        ),
    ] = DEFAULT_NOTICE_S,
    json_lines: options.JsonLines = False,
) -> None:
    """Train until SIGTERM or Ctrl-C."""
    _check(max_tokens_per_s, threads, device, notice_s)
    from common.chain.wallets import open_wallet
    from miner.agent import Settings  # imports PyTorch: seconds that --help and wrong flags need not wait for

    folder = directory.absolute()
    name = wallet if hotkey == DEFAULT_HOTKEY else f"{wallet}-{hotkey}"
    opened = open_wallet(wallet_path or folder / "wallets", wallet, hotkey)
    settings = Settings(
        netuid=netuid,
        folder=folder / name,
        cache=cache or folder / "cache",
        device=choose_device(device),
        threads=threads or os.cpu_count() or 1,
        max_tokens_per_s=max_tokens_per_s,
        allow_private=allow_private,
        notice_s=notice_s,
    )
    setup_logging(name, folder / "logs", json_lines)
    asyncio.run(_run(settings, KeypairSigner(opened.hotkey), chain))


async def _run(settings: Settings, signer: KeypairSigner, chain_url: str) -> None:
    from common.chain.sdk import SdkChain, isolate_sdk
    from miner.agent import Agent, Ports, Stop

    isolate_sdk(settings.folder / "sdk")
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stop)
    chain = SdkChain(chain_url)
    logger.info("miner {} on {}, {} thread(s)", signer.hotkey, settings.device, settings.threads)
    try:
        await Agent(settings, Ports(chain, signer, SystemClock()), stop).run()
    finally:
        await chain.close()
    logger.info("stopped")


def _stop(stop: Stop) -> None:
    logger.info("stopping at once" if stop.drain.is_set() else "stopping after the current step and what it hands in")
    stop.ask()


def _check(max_tokens_per_s: float | None, threads: int | None, device: str, notice_s: float) -> None:
    """Raise OperatorError for settings that are wrong by themselves or together."""
    if max_tokens_per_s is not None and not 0 < max_tokens_per_s < float("inf"):
        raise OperatorError(f"--max-tokens-per-s must be a positive number, not {max_tokens_per_s:g}")
    if threads is not None and threads > 4 * (os.cpu_count() or 1):
        raise OperatorError(f"--threads {threads} is far more than this machine's {os.cpu_count()} cores")
    if not LEAST_NOTICE_S <= notice_s <= MOST_NOTICE_S:
        raise OperatorError(f"--notice-s must be {LEAST_NOTICE_S:g} to {MOST_NOTICE_S:g} seconds, not {notice_s:g}")
    check_device(device)
