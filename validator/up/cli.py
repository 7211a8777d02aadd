"""``brigade up``: run everything on this machine: storage, chain, validator and miners.

The command's own frame: flags, the folder's lock, signals, and the end. First SIGINT or SIGTERM: an orderly end within
ten seconds that leaves no process; a second one: at once. Without a goal being stopped is a good end.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from loguru import logger

from common import timeouts
from common.chain.sdk import SdkChain, isolate_sdk
from common.clock import Clock, SystemClock
from common.defaults import DEFAULT_PRESET, LEADER, POLICIES
from common.errors import BrigadeError
from common.files import write_atomically
from common.logs import quiet_stderr
from common.model.device import choose_device
from common.options import Reduce
from common.timeouts import DRAIN_S
from common.units import Revision
from validator.up.bootstrap import make_wallets
from validator.up.client import fetch_status, status_client
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
    reduce: Reduce = LEADER,
) -> int:
    """Run everything on this machine as separate processes: storage, chain, one validator and the miners.

    The same command in the same folder goes on with the same run. Exit code 0: good; 1: the run failed; 2: usage;
    3: environment.
    """
    folder = Folder(directory.absolute())
    root = ctx.find_root().params
    settings = Settings(
        folder,
        miners,
        rounds,
        preset,
        seed,
        device,
        threads,
        density,
        steps,
        block_time,
        data,
        json_lines,
        config=root.get("config"),
        reduce=reduce,
        log_dir=root["log_dir"].absolute() if root.get("log_dir") else None,
    )
    if device != "auto":
        choose_device(device)  # a GPU that is not there is said before anything is made
    with locked(settings.folder):
        quiet_stderr("up", settings.logs)
        isolate_sdk(settings.folder.cache)
        os.environ.update(MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
        return _run(settings)


def _run(settings: Settings) -> int:
    clock = SystemClock()
    wallets = make_wallets(settings.folder.wallets, settings.miners)
    display = choose_display(settings.json_lines, wallets.names(), clock)
    supervisor = Supervisor(clock, lambda name, text: display.note(text, event="child", child=name))
    signals = _Signals(supervisor, clock)
    run = LocalRun(settings, supervisor, display, wallets, clock, time.sleep, random.Random())
    try:
        signals.raise_from_now_on()
        return _train(settings, run, supervisor, display)
    except Stopped:
        return 0 if settings.rounds is None else BAD_END
    finally:
        signals.end_at_once_from_now_on()
        killed = supervisor.drain(time.sleep, signals.left_s())
        display.close()
        if killed:
            logger.warning("killed at the end: {}", ", ".join(killed))


def _train(settings: Settings, run: LocalRun, supervisor: Supervisor, display: Display) -> int:
    clock = SystemClock()
    ready = run.start()
    watcher = Watcher(ready, supervisor, display, clock, time.sleep, settings.block_time_s)
    within_s = timeouts.SUMMARY_WHEN_FAILED_S
    stopped: list[str] = []
    try:
        with status_client() as client:
            watcher.until_done(lambda: fetch_status(client, ready.place.validator_url))
        within_s = timeouts.SUMMARY_S
    except Stopped:
        display.note("stopping", event="stopping")
        within_s = timeouts.SUMMARY_WHEN_STOPPED_S
        stopped = stopped_at(watcher.head, settings.rounds, ready)
        raise
    finally:
        told = _summarise(settings, ready, watcher, display, within_s, stopped)
    return 0 if told else BAD_END


def next_steps(folder: Folder) -> list[str]:
    """Where the figures are, and what to do with the run, as the person who started us would call it."""
    started, here = Path(sys.argv[0]).absolute(), Path.cwd()
    program = started.name
    if program == "brigade":
        program = str(started.relative_to(here) if started.is_relative_to(here) else started)
    where = shlex.quote(str(folder.root))
    return [f"summary: {folder.summary}; next: {program} run log --dir {where} | {program} run verify --dir {where}"]


def stopped_at(head: Revision | None, rounds: int | None, ready: Ready) -> list[str]:
    """How far a stopped run is from its goal; nothing for one that has none."""
    if ready.until is None:
        return []
    at = ready.state.head if head is None else head
    return [f"stopped at revision {at} of {ready.until}; the same command goes on, {rounds} commits more"]


def _summarise(
    settings: Settings, ready: Ready, watcher: Watcher, display: Display, within_s: float, stopped: list[str]
) -> bool:
    """Write and show what the run came to so far; False when bucket or chain do not tell in time."""
    found: list[Summary] = []
    trouble = [f"bucket and chain did not tell within {within_s:g} s"]

    def read() -> None:
        try:
            found.append(_outcome(ready, watcher.load_average))
        except BrigadeError as error:
            trouble[0] = str(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(within_s)
    if not found:
        display.note(f"no summary: {trouble[0]}", event="no_summary")
        for line in stopped:
            display.note(line, event="stopping")
        return False
    write_atomically(settings.folder.summary, found[0].to_json().encode())
    display.summary(found[0], next_steps(settings.folder) + stopped)
    return True


def _outcome(ready: Ready, load_average: float) -> Summary:
    chain = SdkChain(ready.place.chain_url)
    miners = [wallet.hotkey_ss58 for wallet in ready.wallets.miners]
    return read_outcome(ready.store, chain, ready.spec, ready.wallets.validator.hotkey_ss58, miners, load_average)


class _Signals:
    """What SIGINT and SIGTERM do: first an orderly end, then a sudden one."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._stopped_s: float | None = None

    def left_s(self) -> float:
        """Of the time for an orderly end, counted from the first signal."""
        since_s = 0.0 if self._stopped_s is None else self._clock.monotonic_s() - self._stopped_s
        return max(0.0, DRAIN_S - since_s)

    def raise_from_now_on(self) -> None:
        self._set(self._stop)

    def end_at_once_from_now_on(self) -> None:
        self._set(self._end)

    def _set(self, handler: signal.Handlers | object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped_s = self._clock.monotonic_s()
        self.end_at_once_from_now_on()
        raise Stopped

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._supervisor.kill()
        os._exit(BAD_END)
