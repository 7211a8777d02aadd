"""A `brigade up` in the background: its events as they come, and the process ids of its parts.

Nothing here waits for time to pass: whoever waits, waits for an event of the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

BRIGADE = (sys.executable, "-P", "-m", "common.cli")
TEXT = Path(__file__).parents[2] / "common"
HANG_S = 300.0
"""Ends a test that hangs; nothing is asserted about speed."""

Event = dict[str, Any]


class LocalRun:
    """One `brigade up` with tiny rounds; a context manager that leaves no process behind."""

    def __init__(self, folder: Path, *flags: str, miners: int = 2, steps: int = 3) -> None:
        self.folder = folder
        words = ("up", "--dir", str(folder), "--miners", str(miners), "--steps", str(steps), "--data", str(TEXT))
        self._errors = (folder.parent / f"{folder.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            [*BRIGADE, *words, "--json", *flags], stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._watchdog = threading.Timer(HANG_S, self.process.kill)
        self._watchdog.start()
        self.events: list[Event] = []

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        self._errors.close()

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Read events until one is as wanted."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event
        raise AssertionError(f"the run ended: {self.errors()[-2000:]}\n{self.events[-5:]}")

    def status(self, wanted: Callable[[Event], bool] = lambda _: True) -> Event:
        """The next status that is as wanted."""
        return self.until(lambda event: event["event"] == "status" and wanted(event))

    def finish(self) -> int:
        """Read the remaining events; the exit code."""
        assert self.process.stdout is not None
        self.events.extend(json.loads(line) for line in self.process.stdout)
        return self.process.wait()

    def stop(self) -> int:
        """Ask for an orderly end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
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

    def _child(self, part: str) -> int:
        marks = {"validator": ["validator", "start"], "chain": ["chain", "local"], "storage": ["storage", "serve"]}
        wanted = marks.get(part, ["miner", "start", "--wallet", part])
        for pid in _children(self.process.pid):
            if all(word in _words(pid) for word in wanted):
                return pid
        raise AssertionError(f"{part} is not running")


def brigade(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run([*BRIGADE, *words], capture_output=True, text=True, timeout=HANG_S, check=False)


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
