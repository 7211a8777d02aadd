"""The training thread: steps while a round is assigned, and runs commands between two steps.

The rest of the process talks to it only through ``call`` (a queue of functions that run in the thread) and
``progress`` (a frozen snapshot behind a lock), so heartbeats and uploads in the event loop never wait for a step and
never see half of one. What the thread dies of is raised by every ``call`` from then on.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from common.blocking import in_thread
from common.errors import Fatal
from miner.trainer import StepResult
from miner.work import Progress, RoundWork

T = TypeVar("T")

_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


@dataclass(frozen=True)
class _Command:
    run: Callable[[RoundWork], None]
    fail: Callable[[BaseException], None]


class Worker:
    """Owns one thread and, in it, one ``RoundWork``."""

    def __init__(self, make: Callable[[], RoundWork], max_tokens_per_s: float | None = None) -> None:
        """``make`` runs in the thread. ``max_tokens_per_s`` slows training down to that speed."""
        self._make = make
        self._max_tokens_per_s = max_tokens_per_s
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._progress = Progress()
        self._ended: BaseException | None = None
        self._training = False  # this and the next belong to the thread
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)

    def start(self) -> None:
        _share_one_heap()
        self._thread.start()

    def progress(self) -> Progress:
        """After the last step."""
        with self._lock:
            return self._progress

    async def call(self, action: Callable[[RoundWork], T]) -> T:
        """Run ``action`` in the thread, after the current step. Raises what it raises, or what the thread died of.

        If the caller is cancelled, ``action`` is run all the same, and its result is lost.
        """
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # so that a cancelled caller cancels no answer of the thread

        def run(work: RoundWork) -> None:
            try:
                answer.set_result(action(work))
            except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
                answer.set_exception(error)

        with self._lock:
            if self._ended is not None:
                raise Fatal(f"the training thread has ended: {self._ended}") from self._ended
            self._commands.put(_Command(run, answer.set_exception))
        return await asyncio.wrap_future(answer)

    async def train(self, on: bool) -> None:
        """Let steps be taken from now on; or return when the current one is over and no more will be."""

        def switch(work: RoundWork) -> None:
            self._training = on

        await self.call(switch)

    async def stop(self) -> None:
        """End the thread after the current step. Idempotent."""

        def switch(work: RoundWork) -> None:
            self._stopping = True

        with self._lock:
            running = self._ended is None and self._thread.is_alive()
        if running:
            await self.call(switch)
            await in_thread(self._thread.join)

    def _run(self) -> None:
        ended: BaseException = Fatal("it was stopped")
        try:
            work = self._make()
            self._publish(work)
            while not self._stopping:
                self._turn(work)
        except Exception as error:  # noqa: BLE001 - edge of the thread: whoever calls next logs it and decides
            ended = error
        self._end(ended)

    def _end(self, reason: BaseException) -> None:
        with self._lock:
            self._ended = reason
            while not self._commands.empty():
                self._commands.get().fail(Fatal(f"the training thread has ended: {reason}"))

    def _turn(self, work: RoundWork) -> None:
        """One command if there is one, else one step, else wait for a command."""
        training = self._training and work.assigned
        command = self._next(wait_s=0.0 if training else None)
        if command is not None:
            command.run(work)
        else:
            result = work.step()
            self._publish(work)
            self._throttle(work, result)
        self._publish(work)

    def _throttle(self, work: RoundWork, result: StepResult) -> None:
        """Wait as long as the speed limit asks; a command ends the wait."""
        if self._max_tokens_per_s is None:
            return
        rest_s = result.tokens / self._max_tokens_per_s - result.seconds
        command = self._next(wait_s=rest_s) if rest_s > 0 else None
        if command is not None:
            command.run(work)

    def _next(self, wait_s: float | None) -> _Command | None:
        try:
            return self._commands.get(block=wait_s != 0.0, timeout=wait_s)
        except queue.Empty:
            return None

    def _publish(self, work: RoundWork) -> None:
        with self._lock:
            self._progress = work.progress


def _share_one_heap() -> None:
    """Let threads that begin from now on use the process's main heap, where the C library has one for each thread.

    glibc gives the top of a thread's own heap back at nearly every release of a large tensor: a step of Muon on the CPU
    then has a thousand page faults, 2 % of its time. The main heap learns what is released again and again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
