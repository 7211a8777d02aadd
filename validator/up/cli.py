"""``brigade up``: run everything on this machine: storage, chain, validator and miners.

The command's own frame: flags, the folder's lock, signals, and the end. First SIGINT or SIGTERM: an orderly end within
ten seconds that leaves no process; a second one: at once. Without a goal being stopped is a good end.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from loguru import logger

from common.chain.sdk import SdkChain, isolate_sdk
from common.clock import SystemClock
from common.errors import Retryable
from common.logs import quiet_stderr
from common.store.config import write_private
from validator.up.bootstrap import make_wallets
from validator.up.client import fetch_status, status_client
from validator.up.defaults import DEFAULT_PRESET, POLICIES
from validator.up.folder import Folder, locked
from validator.up.outcome import read_outcome
from validator.up.plan import Settings
from validator.up.run import LocalRun, Ready
from validator.up.summary import Summary
from validator.up.supervisor import Supervisor
from validator.up.table import Display, choose_display
from validator.up.watch import Watcher

app = typer.Typer(help="Run everything on this machine.", rich_markup_mode=None)
BAD_END = 1


class Stopped(BaseException):
    """A signal asked for an orderly end. No error: handlers of errors must not catch it."""


@app.command()
def up(
    ctx: typer.Context,
    miners: Annotated[int, typer.Option(envvar="BRIGADE_MINERS", help="Miners to start.")] = 4,
    rounds: Annotated[
        int | None, typer.Option(envvar="BRIGADE_ROUNDS", help="Commits to make; without it, until Ctrl-C.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder that holds all of the run.")
    ] = Path("brigade-run"),
    data: Annotated[
        Path | None,
        typer.Option(envvar="BRIGADE_DATA", help="Text file or folder; without it, Python's standard library."),
    ] = None,
    preset: Annotated[
        str, typer.Option(envvar="BRIGADE_PRESET", help=f"Model: {', '.join(POLICIES)}.")
    ] = DEFAULT_PRESET,
    seed: Annotated[int, typer.Option(envvar="BRIGADE_SEED", min=0, help="Seed of the first weights.")] = 0,
    device: Annotated[
        str, typer.Option(envvar="BRIGADE_DEVICE", help="Where miners train: auto, cpu or cuda[:number].")
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_THREADS", min=1, help="Threads a process; without it, max(1, cores // miners)."),
    ] = None,
    density: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_DENSITY", min=1, max=4096, help="Values sent of each 4,096, not the schedule."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_STEPS", min=1, help="Inner steps of a miner in a round, not the preset's."),
    ] = None,
    block_time: Annotated[
        float, typer.Option(envvar="BRIGADE_BLOCK_TIME", help="Seconds from block to block of the local chain.")
    ] = 0.25,
    json_lines: Annotated[
        bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Print events as JSON lines, not a table.")
    ] = False,
) -> int:
    """Run everything on this machine as separate processes: storage, chain, one validator and the miners.

    The same command in the same folder goes on with the same run. Exit code 0: good; 1: the run failed; 2: usage;
    3: environment.
    """
    folder = Folder(directory.absolute())
    config = ctx.find_root().params.get("config")
    settings = Settings(
        folder, miners, rounds, preset, seed, device, threads, density, steps, block_time, data, json_lines, config
    )
    with locked(settings.folder):
        quiet_stderr("up", settings.folder.logs)
        isolate_sdk(settings.folder.cache)
        os.environ.update(MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
        return _run(settings)


def _run(settings: Settings) -> int:
    clock = SystemClock()
    wallets = make_wallets(settings.folder.wallets, settings.miners)
    display = choose_display(settings.json_lines, wallets.names(), clock)
    supervisor = Supervisor(clock, lambda name, text: display.note(text, event="child", child=name))
    signals = _Signals(supervisor)
    run = LocalRun(settings, supervisor, display, wallets, clock, time.sleep, random.Random())
    try:
        signals.raise_from_now_on()
        return _train(settings, run, supervisor, display)
    except Stopped:
        return 0 if settings.rounds is None else BAD_END
    finally:
        signals.end_at_once_from_now_on()
        killed = supervisor.drain(time.sleep)
        display.close()
        if killed:
            logger.warning("killed at the end: {}", ", ".join(killed))


def _train(settings: Settings, run: LocalRun, supervisor: Supervisor, display: Display) -> int:
    clock = SystemClock()
    ready = run.start()
    watcher = Watcher(ready, supervisor, display, clock, time.sleep)
    try:
        with status_client() as client:
            watcher.until_done(lambda: fetch_status(client, ready.place.validator_url))
    except Stopped:
        display.note("stopping", event="stopping")
        _summarise(settings, ready, watcher, display)
        raise
    return 0 if _summarise(settings, ready, watcher, display) else BAD_END


def _summarise(settings: Settings, ready: Ready, watcher: Watcher, display: Display) -> Summary | None:
    """Write and show what the run came to so far; None when bucket or chain are not there to tell."""
    try:
        summary = read_outcome(
            ready.store,
            SdkChain(ready.place.chain_url, timeout_s=3.0),
            ready.spec,
            ready.wallets.validator.hotkey_ss58,
            [wallet.hotkey_ss58 for wallet in ready.wallets.miners],
            watcher.load_average,
        )
    except Retryable as error:
        display.note(f"no summary: {error}", event="no_summary")
        return None
    write_private(settings.folder.summary, summary.to_json().encode())
    display.summary(summary)
    return summary


class _Signals:
    """What SIGINT and SIGTERM do: first an orderly end, then a sudden one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def raise_from_now_on(self) -> None:
        self._set(self._stop)

    def end_at_once_from_now_on(self) -> None:
        self._set(self._end)

    def _set(self, handler: signal.Handlers | object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.end_at_once_from_now_on()
        raise Stopped

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._supervisor.kill()
        os._exit(BAD_END)
