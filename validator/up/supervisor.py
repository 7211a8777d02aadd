"""The supervisor: starts the processes of a run, starts dead ones again, and leaves none behind.

Invariants: a child dies with the supervisor, however that one ends (``common.deathsig``; so children must be started
from the main thread), and so does what a child started, since a killed child takes its process group along. A child's
restart is always said, with the reason and its last words on stderr. ``drain`` takes at most the time it is given.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from loguru import logger

from common import timeouts
from common.clock import Clock
from common.deathsig import bound_to_parent
from common.errors import SetupError
from common.timeouts import DRAIN_S
from validator.up.backoff import after_exit

_LAST_LINES = 20
_LINE_CHARS = 400
_LAST_WORDS = 200
MEANT_FOR_ALL = frozenset({"BRIGADE_BITTENSOR_SDIST"})


@dataclass(frozen=True)
class ChildSpec:
    """A process to keep running."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to our own, of which BRIGADE_* is left out: settings meant for us are none for our children."""
    order: int = 0
    """Children of a higher order are told to end first, so that they can still say good-bye to the others."""


@dataclass
class Child:
    """A child's present process and history. Changed by the supervisor only."""

    spec: ChildSpec
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    failures: int = 0
    restarts: int = 0
    restart_at_s: float | None = None
    """When it will be started again; None while it runs, or when it was given up."""
    given_up: str = ""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process and not _has_ended(self.process) else None

    def last_words(self) -> str:
        """The last thing that it wrote on stderr, cut."""
        return self.last_lines[-1][-_LAST_WORDS:] if self.last_lines else ""


Say = Callable[[str, str], None]
"""Called with a child's name and what happened to it."""


class Supervisor:
    """Keeps children running until ``drain``. Driven by its owner: call ``poll`` a few times a second."""

    def __init__(self, clock: Clock, say: Say) -> None:
        self._clock = clock
        self._say = say
        self.children: dict[str, Child] = {}

    def start(self, spec: ChildSpec) -> Child:
        """Start a child that is to be kept running. Raises ValueError for a name that is taken."""
        if spec.name in self.children:
            raise ValueError(f"there is a child called {spec.name} already")
        child = self.children[spec.name] = Child(spec)
        self._launch(child)
        return child

    def poll(self) -> None:
        """Look after every child once: notice deaths, start again what is due."""
        now_s = self._clock.monotonic_s()
        for child in self.children.values():
            if child.process is not None and _has_ended(child.process):
                self._bury(child, child.process, now_s)
            if child.restart_at_s is not None and now_s >= child.restart_at_s:
                child.restarts += 1
                self._launch(child)
                self._say(child.spec.name, f"{child.spec.name} started again")

    def given_up(self) -> str:
        """Why the run can't go on: the first child that is not started again, or nothing."""
        return next((child.given_up for child in self.children.values() if child.given_up), "")

    def drain(self, sleep: Callable[[float], None], timeout_s: float = DRAIN_S) -> list[str]:
        """Ask every child to end, highest order first, then kill what is left. Returns the names of the killed."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        orders = sorted({child.spec.order for child in self.children.values()}, reverse=True)
        for position, order in enumerate(orders):
            group = [child for child in self.children.values() if child.spec.order == order and child.pid]
            for child in group:
                _signal(child, signal.SIGTERM)
            self._wait(group, deadline_s - timeouts.ORDER_RESERVED_S * (len(orders) - position - 1), sleep)
        return self.kill()

    def kill(self) -> list[str]:
        """End everything at once, with all that the children started. Returns the names of those that still ran."""
        killed = [child.spec.name for child in self.children.values() if child.pid]
        for child in self.children.values():
            child.restart_at_s = None
            _kill_group(child)
        for child in self.children.values():
            if child.process is not None:
                child.process.wait()
        return killed

    def _launch(self, child: Child) -> None:
        child.restart_at_s = None
        child.started_s = self._clock.monotonic_s()
        child.process = subprocess.Popen(
            bound_to_parent(child.spec.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**inherited(os.environ), **child.spec.environment},
            start_new_session=True,  # the terminal's Ctrl-C is for us; and the session is what we kill
        )
        assert child.process.stderr is not None
        child.last_lines.clear()
        child.reader = threading.Thread(target=_read, args=(child.process.stderr, child.last_lines), daemon=True)
        child.reader.start()

    def _bury(self, child: Child, process: subprocess.Popen[bytes], now_s: float) -> None:
        _kill_group(child)  # what it started must not outlive it
        exit_code = process.wait()
        assert child.reader is not None
        child.reader.join(1.0)
        verdict = after_exit(child.spec.name, exit_code, now_s - child.started_s, child.failures, child.last_words())
        child.process = None
        child.failures = verdict.failures
        if verdict.restart_in_s is None:
            child.given_up = verdict.reason
        else:
            child.restart_at_s = now_s + verdict.restart_in_s
        self._say(child.spec.name, verdict.reason)

    def _wait(self, group: Sequence[Child], until_s: float, sleep: Callable[[float], None]) -> None:
        while any(child.pid for child in group):
            if self._clock.monotonic_s() >= until_s:
                return
            sleep(0.05)


def look_after(supervisor: Supervisor) -> None:
    """Poll; SetupError when a child was given up, since the run can't go on without it."""
    supervisor.poll()
    if why := supervisor.given_up():
        raise SetupError(why)


def _read(stream: IO[bytes], lines: deque[str]) -> None:
    """Keep the last lines that a child writes on stderr; what it logs is in its own file."""
    with stream:
        while raw := stream.readline(_LINE_CHARS * 4):
            if text := raw.decode("utf-8", "replace").strip()[:_LINE_CHARS]:
                lines.append(text)


def inherited(ours: Mapping[str, str]) -> dict[str, str]:
    """What children inherit of our environment. Their settings are their flags; files to use offline stay named."""
    return {name: value for name, value in ours.items() if not name.startswith("BRIGADE_") or name in MEANT_FOR_ALL}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, without reaping it: until then nobody else gets its id, and its group's."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(child: Child, number: int) -> None:
    """Not ``Popen.send_signal``, which reaps."""
    if child.pid is not None:
        os.kill(child.pid, number)


def _kill_group(child: Child) -> None:
    """SIGKILL for the child's whole session, if anything of it is left; before the child is reaped."""
    if child.process is None or child.process.returncode is not None:
        return
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:  # nothing in the group is ours any more
        logger.warning("what {} started may not be ended by this user", child.spec.name)
