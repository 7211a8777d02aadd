"""A `brigade up` in the background: its events as they come, and the process ids of its parts.

Nothing here waits for time to pass: whoever waits, waits for an event of the run. A run that makes no progress for
``HANG_S`` is killed, which ends a test that hangs; nothing is asserted about speed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import keys
from common.store.s3 import S3Store
from tests.support.storage import running_server
from validator.up.folder import RUN_NAME
from validator.up.supervisor import inherited

BRIGADE = (sys.executable, "-P", "-m", "common.cli")
TEXT = Path(__file__).parents[2] / "common"
HANG_S = 300.0
SETTINGS = """
[miner.start]
max_tokens_per_s = 1500.0
"""
"""Miners train on through every merge: so fast that a round takes about two seconds, and a core is not all theirs."""

Event = dict[str, Any]


class LocalRun:
    """One `brigade up` with tiny rounds; a context manager that leaves no process behind."""

    def __init__(self, folder: Path, *flags: str, miners: int = 2, steps: int = 3) -> None:
        self.folder = folder
        settings = folder.parent / f"{folder.name}.toml"
        settings.write_text(SETTINGS)
        words: tuple[str, ...] = ("--config", str(settings), "up", "--dir", str(folder), "--data", str(TEXT))
        words += ("--miners", str(miners), "--steps", str(steps))
        self._errors = (folder.parent / f"{folder.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            [*BRIGADE, *words, "--json", *flags],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=inherited(os.environ),
        )
        self._watchdog = _Watchdog(self.process.kill)
        self._head = -1
        self._read = 0
        """So many events were looked at."""
        self._news = threading.Condition()
        self._ended = False
        self.events: list[Event] = []
        self._reader = threading.Thread(target=self._listen, name="events", daemon=True)
        self._reader.start()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.stop()
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._errors.close()

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Look at the events that nobody looked at yet until one is as wanted."""
        for event in self._events():
            if wanted(event):
                return event
        raise AssertionError(f"the run ended: {self.errors()[-2000:]}\n{self.events[-5:]}")

    def status(self, wanted: Callable[[Event], bool] = lambda _: True) -> Event:
        """The next status from now on that is as wanted; what came while nobody looked is old."""
        with self._news:
            self._read = len(self.events)
        return self.until(lambda event: event["event"] == "status" and wanted(event))

    def finish(self) -> int:
        """Read the remaining events; the exit code."""
        for _ in self._events():
            pass
        return self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask for an orderly end; the exit code."""
        self.process.send_signal(number)
        return self.finish()

    def errors(self) -> str:
        self._errors.flush()
        return Path(self._errors.name).read_text()

    def pid(self, part: str) -> int:
        """Process id of ``validator``, ``chain``, ``storage`` (the S3 server itself) or ``miner-<n>``."""
        if part == "storage":
            return next(pid for pid in _descendants(self._child("storage")) if "weed" in _words(pid)[0])
        return self._child(part)

    def kill(self, part: str) -> None:
        """SIGKILL."""
        os.kill(self.pid(part), signal.SIGKILL)

    def _events(self) -> Iterator[Event]:
        """Events as they come. Whoever begins to wait, and every new revision, feeds the watchdog."""
        self._watchdog.feed()
        while (event := self._next()) is not None:
            if event.get("head_revision", -1) > self._head:
                self._head = event["head_revision"]
                self._watchdog.feed()
            yield event

    def _next(self) -> Event | None:
        """The next event, once it is there; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self._read < len(self.events))
            if self._read == len(self.events):
                return None
            self._read += 1
            return self.events[self._read - 1]

    def _listen(self) -> None:
        """In a thread, so that `up` never waits for a test that is busy."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.events.append(json.loads(line))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _child(self, part: str) -> int:
        marks = {"validator": ["validator", "start"], "chain": ["chain", "local"], "storage": ["storage", "serve"]}
        wanted = marks.get(part, ["miner", "start", "--wallet", part])
        for pid in _children(self.process.pid):
            if all(word in _words(pid) for word in wanted):
                return pid
        raise AssertionError(f"{part} is not running")


class _Watchdog:
    """Calls ``bark`` when it was not fed for ``HANG_S``."""

    def __init__(self, bark: Callable[[], None]) -> None:
        self._bark = bark
        self._timer: threading.Timer | None = None
        self.feed()

    def feed(self) -> None:
        self.stop()
        self._timer = threading.Timer(HANG_S, self._bark)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def brigade(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [*BRIGADE, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False, env=inherited(os.environ)
    )


def left_behind(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = " ".join(_words(int(path.parent.name)))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(words)
    return found


@contextmanager
def bucket_of(folder: Path) -> Iterator[S3Store]:
    """The bucket of a run that is over."""
    with running_server(folder / "storage") as (_, config):
        yield S3Store(config)


def delta_sizes(store: S3Store) -> list[int]:
    """Sizes of all deltas in the bucket, by key."""
    listed = store.list(keys.run_prefix(RUN_NAME))
    return [info.size_bytes for info in listed if info.key.endswith(".delta")]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _descendants(pid: int) -> list[int]:
    below = _children(pid)
    return below + [deeper for child in below for deeper in _descendants(child)]


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
