"""Processes of `brigade` that begin where its imports end: forked from a server that has imported, and done no more.

The imports cost a core some four seconds, a story of real processes starts a dozen of them, and nothing of them is what
such a story is about. Otherwise each is a process like any other: its own id, memory, files and end by any signal.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["common.chain.sdk", "common.chain.wallets", "miner.agent", "miner.cli", "validator.start", "validator.cli"]
)
_PR_SET_PDEATHSIG = 1


class Forked:
    """The part of ``subprocess.Popen`` that tests use, for one command line of ``tests.support.misfit``."""

    def __init__(self, words: Sequence[str], folder: Path, errors: Path, environment: Mapping[str, str]) -> None:
        """``folder`` to run in; standard error is appended to the file ``errors``."""
        plain = (tuple(words), str(folder), str(errors), dict(environment))
        self._process: ForkServerProcess = _CONTEXT.Process(target=_be, args=plain, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Exit code, below 0 for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _be(words: tuple[str, ...], folder: str, errors: str, environment: dict[str, str]) -> None:
    """Be the program until it ends; dies with the server, which dies with the tests."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    for number, path in ((0, os.devnull), (1, os.devnull), (2, errors)):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    from tests.support import misfit

    misfit.main(words)
