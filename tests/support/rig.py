"""A whole run of separate processes, each on a line of its own, so that every one of them can be hurt alone.

SeaweedFS, the local chain, a validator and miners are the programs that operators start; what stands between them and
the others is a ``Line``: fault proxies to storage, validators and chain, that share one link. Nobody starts a
dead process again but the test. Whoever waits, waits for something that log or status show, and looks until it is
there; a run whose log stands still for ``HANG_S`` ends the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from common.deathsig import bound_to_parent
from common.errors import Retryable
from common.runlog.entries import Entry, PlanMember, RevisionCommitted, RoundFrozen
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.config import StorageConfig
from common.store.reader import StoreReader
from common.store.s3 import S3Store
from common.store.seaweed import SeaweedServer
from common.units import Hotkey, RoundId
from common.wire import MinerStatus, Status
from tests.support.faultproxy import FaultProxy
from tests.support.link import Link
from tests.support.localrun import brigade
from tests.support.warm import Forked
from validator.up.bootstrap import Wallets
from validator.up.client import fetch_status, status_client
from validator.up.supervisor import inherited

ROOT = Path(__file__).parents[2]
SERVED_IP = "127.0.0.2"
HANG_S = 120.0
MOST_COMMITS = 100
"""What has not happened after so many revisions will not happen."""
LOOK_S = 0.2
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
T = TypeVar("T")
Process = subprocess.Popen[bytes] | subprocess.Popen[str] | Forked


@dataclass
class Line:
    """How one machine reaches the others: up is away from it."""

    link: Link
    storage: FaultProxy
    validators: dict[str, FaultProxy]
    """By wallet name."""
    chain: FaultProxy

    @property
    def validator(self) -> FaultProxy:
        """To the first validator."""
        return self.validators["validator"]

    def cut(self, on: bool = True) -> None:
        """Take the machine off the network, or bring it back."""
        for proxy in self.proxies():
            proxy.refuse(on)
            if on:
                proxy.cut_all()

    def swallow(self, on: bool = True) -> None:
        """Let all that comes vanish without an answer, or no longer."""
        for proxy in self.proxies():
            proxy.black_hole = on

    def proxies(self) -> tuple[FaultProxy, ...]:
        """To everybody whom this machine talks to."""
        return self.storage, *self.validators.values(), self.chain


@dataclass
class Plan:
    """One plan in the log, by wallet names."""

    frozen: RoundFrozen
    reason: str
    members: dict[str, list[PlanMember]]
    committed: bool = False

    def of(self, name: str) -> list[PlanMember]:
        return self.members.get(name, [])


@dataclass
class Part:
    """A process of the run."""

    name: str
    process: Process

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        self.process.kill()
        self.process.wait()

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()


@dataclass
class Rig:
    """See the module. Made by ``running``."""

    folder: Path
    spec: RunSpec
    wallets: Wallets
    storage: StorageConfig
    ports: dict[str, int]
    stack: ExitStack
    server: SeaweedServer
    """The storage that the run begins in."""
    chain: Part
    cold: bool = False
    """Whether every process imports for itself, as an operator's does."""
    parts: dict[str, Part] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    voids: int = 0
    watched: str = "validator"
    """Whose status is looked at."""
    status: Status | None = None
    _state: RunState | None = None
    _moved_s: float = field(default_factory=time.monotonic)

    # Starting processes.

    def start_validator(
        self, *flags: str, name: str = "validator", keys: bool = True, wrong: Sequence[str] = ()
    ) -> Part:
        """A validator, on a line of its own to the storage; all but the first log into a folder of their own.

        Without ``keys`` it has no write access. ``wrong`` are words for ``misfit``."""
        apart = () if name == "validator" else ("--log-dir", str(self.logs / name))
        words: tuple[str, ...] = (
            *apart,
            "validator",
            "start",
            *self._identity(name),
            *(("--storage", str(self.folder / "storage.json")) if keys else ()),
        )
        words += ("--host", SERVED_IP, "--port", str(self.ports[name]), "--threads", "1")
        return self._start(name, (*words, *flags), wrong)

    def start_miner(self, name: str, *flags: str, wrong: Sequence[str] = ()) -> Part:
        """A miner; ``wrong`` are words for ``misfit``. Started again it goes on from its disk, on the same line."""
        words = ("miner", "start", *self._identity(name), "--threads", "1", "--device", "cpu", "--allow-private")
        return self._start(name, (*words, *flags), wrong)

    def _identity(self, wallet: str) -> tuple[str, ...]:
        chain = urlsplit(self._line_of(wallet).chain.endpoint).netloc
        flags: tuple[str, ...] = ("--chain", f"ws://{chain}", "--netuid", str(self.spec.netuid))
        flags += ("--wallet-path", str(self.folder / "wallets"), "--wallet", wallet)
        return (*flags, "--dir", str(self.folder), "--cache", str(self.folder / "cache"))

    def _start(self, name: str, words: Sequence[str], wrong: Sequence[str] = ()) -> Part:
        line = self._line_of(name)
        targets = (self.storage.endpoint, *(f"http://{SERVED_IP}:{self.ports[one]}" for one in line.validators))
        detours = [
            f"--via={urlsplit(known).netloc}={urlsplit(proxy.endpoint).netloc}"
            for known, proxy in zip(targets, (line.storage, *line.validators.values()), strict=True)
        ]
        detours = detours[:1] if name in line.validators else detours
        own = (*detours, *wrong, "--", *words)
        # Who is changed from within must be so before it imports anything.
        process = self._spawn(name, own) if wrong or self.cold else self._fork(name, own)
        part = self.parts[name] = Part(name, process)
        self._moved_s = time.monotonic()
        return part

    def _line_of(self, name: str) -> Line:
        return self.lines.get(name) or self._line(name)

    def _line(self, name: str) -> Line:
        link = Link()
        chain = self.stack.enter_context(FaultProxy(f"127.0.0.1:{self.ports['chain']}", link=link))
        storage = self.stack.enter_context(FaultProxy(self.storage.endpoint, link=link))
        validators = {
            wallet.name: self.stack.enter_context(FaultProxy(f"{SERVED_IP}:{self.ports[wallet.name]}", link=link))
            for wallet in self.wallets.validators
        }
        line = self.lines[name] = Line(link, storage, validators, chain)
        return line

    def _fork(self, name: str, words: Sequence[str]) -> Forked:
        self.logs.mkdir(exist_ok=True)
        process = Forked(words, ROOT, self.logs / f"{name}.err", {**inherited(os.environ), **THREADS})
        self.stack.callback(end, process)
        return process

    def _spawn(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        self.logs.mkdir(exist_ok=True)
        with (self.logs / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(
                bound_to_parent((sys.executable, "-m", "tests.support.misfit", *words)),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**inherited(os.environ), **THREADS},
            )
        self.stack.callback(end, process)
        return process

    # Looking.

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def store(self) -> S3Store:
        """Straight to the storage."""
        return S3Store(self.storage)

    def hotkey(self, name: str) -> Hotkey:
        return self._names()[name]

    def _names(self) -> dict[str, Hotkey]:
        return {wallet.name: wallet.hotkey_ss58 for wallet in self.wallets.miners}

    def look_in(self, storage: StorageConfig) -> None:
        """Read the log from another bucket, or with other keys, from now on."""
        self._log = LogReader(StoreReader(S3Store(storage)), self.spec)

    def look(self) -> None:
        """Read what is new in log and status; AssertionError when a process died unasked or nothing moves."""
        self.read_log()
        self.status = self.status_of(self.watched) or self.status
        for part in self.parts.values():
            code = part.ended()
            assert code in (None, 0, -signal.SIGKILL), f"{part.name} ended with {code}: {self.told()}"
        assert time.monotonic() - self._moved_s < HANG_S, f"nothing was written for {HANG_S:g} s: {self.told()}"

    def status_of(self, validator: str) -> Status | None:
        """What a validator says of itself and of the run; None while it does not answer."""
        return fetch_status(self._client, f"http://{SERVED_IP}:{self.ports[validator]}")

    def until(self, wanted: Callable[[], T | None], what: str) -> T:
        """Look until ``wanted`` gives something true; ``what`` tells a person what was waited for."""
        self._moved_s = began_s = time.monotonic()
        head = self.head
        while True:
            try:
                self.look()
                assert self.head <= head + MOST_COMMITS, f"not within {MOST_COMMITS} revisions: {self.told()}"
            except AssertionError as error:
                raise AssertionError(f"waiting for {what}: {error}") from None
            if found := wanted():
                self._note(f"{what}, after {time.monotonic() - began_s:.1f} s and {self.head - head} revisions")
                return found
            time.sleep(LOOK_S)

    def _note(self, text: str) -> None:
        """For people: what the test saw, beside the logs of the processes."""
        with (self.logs / "test.txt").open("a") as file:
            file.write(text + "\n")

    def told(self) -> str:
        """The last words of everybody, for a person who looks into a failed test."""
        lines = [f"{len(self.entries)} entries, {self.status.waiting_for if self.status else 'no status'}"]
        for path in sorted([*self.logs.glob("*.log"), *self.logs.glob("*.err")]):
            lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-8:]]
        lines += [f"{entry.kind}: {entry.reason}" for entry in self.entries[-8:]]
        return "\n".join(lines)

    @property
    def state(self) -> RunState | None:
        """The run by its log; None before the first look."""
        return self._state

    @property
    def head(self) -> int:
        """The head revision, by the log."""
        return 0 if self._state is None else self._state.head

    @property
    def open_round(self) -> RoundId | None:
        opened = self._state.open_round if self._state else None
        return opened.round if opened else None

    def miner(self, name: str) -> MinerStatus | None:
        """How the validator sees it."""
        hotkey = self.hotkey(name)
        return next((one for one in self.status.miners if one.hotkey == hotkey), None) if self.status else None

    def committed(self) -> list[Plan]:
        """Plans whose revision was committed."""
        return [plan for plan in self.plans if plan.committed]

    def verify(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """End every process but storage and chain, look a last time, and `brigade run verify` against the bucket."""
        for part in self.parts.values():
            part.kill()
        self.read_log()
        return brigade("run", "verify", "--dir", str(self.folder), "--run", self.spec.run, *flags)

    def read_log(self) -> None:
        """Read what is new in the log, if the storage answers."""
        try:
            for step in self._log.steps(self._state):
                self._state = step.state
                self._moved_s = time.monotonic()
                if step.void is not None:
                    self.voids += 1
                elif step.entry is not None:
                    self._take(step.entry)
        except Retryable:  # the storage is what is being hurt
            return

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry.data, RoundFrozen):
            names = {hotkey: name for name, hotkey in self._names().items()}
            members: dict[str, list[PlanMember]] = {}
            for member in entry.data.members:
                members.setdefault(names[member.hotkey], []).append(member)
            self.plans.append(Plan(entry.data, entry.reason, members))
        elif isinstance(entry.data, RevisionCommitted):
            self.plans[-1].committed = True

    def __post_init__(self) -> None:
        self._log = LogReader(StoreReader(self.store), self.spec)
        self._client = self.stack.enter_context(status_client())


def end(process: Process) -> None:
    """SIGKILL, and it is gone."""
    process.kill()
    process.wait()
