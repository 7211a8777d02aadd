"""A real miner in a thread against a scripted leader, and what its tests wait for."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.clock import SystemClock
from common.model.layout import run_layouts
from miner.agent import Agent, Ports, Settings, Stop
from miner.ledger import Ledger
from miner.state import StateFolder
from tests.miner.leader import MINER, NETUID, PATIENCE_S, Leader, Seen


class Miner:
    """One process's worth of agent, in a thread with a loop of its own."""

    def __init__(self, leader: Leader, folder: Path, allow_private: bool = True, notice_s: float = 30.0) -> None:
        self._leader = leader
        self.session = secrets.token_hex(16)
        self._settings = Settings(
            netuid=NETUID,
            folder=folder / "miner",
            cache=folder / "cache",
            device="cpu",
            threads=1,
            max_tokens_per_s=None,
            allow_private=allow_private,
            notice_s=notice_s,
        )
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._stop: Stop | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Miner:
        self._thread.start()
        self._running.wait()
        return self

    def ask_to_stop(self) -> None:
        """As SIGTERM does."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.ask)

    def stop(self) -> None:
        """As SIGTERM does; returns at the end."""
        self.ask_to_stop()
        self._thread.join()

    def kill(self) -> None:
        """As SIGKILL does: nothing is put away."""
        assert self._loop is not None
        assert self._main is not None
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Nothing of its event loop runs during the block; the training thread is the only one that does."""
        assert self._loop is not None
        sleeping, awake = threading.Event(), threading.Event()

        def sleep() -> None:
            sleeping.set()
            awake.wait(PATIENCE_S)

        self._loop.call_soon_threadsafe(sleep)
        sleeping.wait(PATIENCE_S)
        try:
            yield
        finally:
            awake.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._go())
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    async def _go(self) -> None:
        self._loop, self._main, self._stop = asyncio.get_running_loop(), asyncio.current_task(), Stop()
        self._running.set()
        ports = Ports(
            self._leader.chain.port(),
            MINER,
            SystemClock(),
            sleep=lambda s: asyncio.sleep(min(s, 0.02)),
            session=self.session,
        )
        await Agent(self._settings, ports, self._stop).run()


@contextmanager
def mining(leader: Leader, folder: Path, notice_s: float = 30.0) -> Iterator[Miner]:
    """A miner that runs during the block, and the only one whose heartbeats the leader keeps."""
    miner = Miner(leader, folder, notice_s=notice_s)
    leader.watch(miner.session)
    miner.start()
    try:
        yield miner
    finally:
        if miner._thread.is_alive():
            miner.stop()


def ledger_of(leader: Leader, folder: Path) -> Ledger:
    """What is on the miner's disk."""
    state, count = _state_of(leader, folder)
    return Ledger.open(leader.spec, state, count)


def _state_of(leader: Leader, folder: Path) -> tuple[StateFolder, int]:
    """The miner's disk, and the length of the vectors on it."""
    count = run_layouts(leader.spec.model, 1)[0].total
    return StateFolder(next((folder / "miner").glob("tiny-*")), leader.spec, MINER.hotkey, count), count


def settles(leader: Leader, folder: Path, revision: int) -> None:
    """Wait until the plans' word up to this revision is in the account on disk: heartbeats tell of the weights before
    that, and a miner that is told to stop in between settles at its next start."""
    leader.wait_until(holds(leader, revision))  # type: ignore[arg-type]
    state, _ = _state_of(leader, folder)
    leader.wait_until(lambda seen: (memory := state.load_memory()) is not None and memory.settled == revision)


def holds(leader: Leader, revision: int) -> object:
    """Its heartbeats say that it has proved the weights of this revision."""
    sha256 = leader.world.state.revisions[revision].sha256  # type: ignore[index]

    def check(seen: Seen) -> bool:
        return any((beat.revision, beat.weights_sha256) == (revision, sha256) for beat in seen.beats)

    return check


def trained(round_id: int = 0, tokens: int = 1) -> object:
    """For a round, as heartbeats tell it."""

    def check(seen: Seen) -> bool:
        return any(beat.round == round_id and beat.round_tokens >= tokens for beat in seen.beats)

    return check


def delivered(seen: Seen) -> bool:
    """Something was handed in, and the miner knows that it was."""
    return bool(seen.completed) and seen.quiet_beats >= 2


def beating(seen: Seen) -> bool:
    """Beats came that say what is now: one may have been on its way before."""
    return len(seen.beats) >= 2


def hand_in(leader: Leader) -> None:
    """Let the open round's work come."""
    current = leader.world.state.open_round
    assert current is not None
    leader.wait_until(trained(current.round))  # type: ignore[arg-type]
    leader.forget()
    leader.order = "submit"
    # What is completed may have been announced before all was forgotten.
    leader.wait_until(lambda seen: delivered(seen) and bool(seen.manifests) and seen.manifests[-1].final)
