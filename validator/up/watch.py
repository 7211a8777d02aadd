"""Watching a run until its goal is reached, from its validator's status and the supervisor's children."""

from __future__ import annotations

import os
from collections.abc import Callable

from common import timeouts
from common.clock import Clock
from common.errors import BrigadeError, Retryable, SetupError
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Revision, RoundId
from common.wire import Status
from validator.up import progress
from validator.up.bootstrap import TEMPO_BLOCKS, WEIGHTS_RATE_LIMIT_BLOCKS
from validator.up.run import Ready
from validator.up.supervisor import Supervisor, look_after
from validator.up.table import Display


class GaveUp(BrigadeError):
    """The run did not reach its goal. Exit code 1."""


class Watcher:
    """Follows one run. ``sleep`` is called between looks; a signal may interrupt it by raising."""

    def __init__(
        self,
        ready: Ready,
        supervisor: Supervisor,
        display: Display,
        clock: Clock,
        sleep: Callable[[float], None],
        block_time_s: float,
    ) -> None:
        self._ready = ready
        self._pay_within_s = progress.pay_within_s(TEMPO_BLOCKS, WEIGHTS_RATE_LIMIT_BLOCKS, block_time_s)
        self._supervisor = supervisor
        self._display = display
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock.monotonic_s()
        self._mark: progress.Mark | None = None
        self._head: Revision | None = None
        self._reached_s: float | None = None
        self._last_round: RoundId | None = None
        self._loads: list[float] = [os.getloadavg()[0]]
        self._waiting_for = ""
        self._paused = False
        self._told: progress.Mark | None = None
        """The mark whose stall was said."""

    @property
    def load_average(self) -> float:
        """Mean of the machine's one-minute load at each look."""
        return sum(self._loads) / len(self._loads)

    @property
    def head(self) -> Revision | None:
        """The newest revision that was seen; None before the validator first answered."""
        return self._head

    def until_done(self, look: Callable[[], Status | None]) -> None:
        """Return when the goal is reached. Raises ``GaveUp`` or SetupError when it can't be."""
        while not self._step(look()):
            self._sleep(timeouts.STATUS_EVERY_S)

    def _step(self, status: Status | None) -> bool:
        """One look; whether the run is done."""
        look_after(self._supervisor)
        now_s = self._clock.monotonic_s()
        done = status is not None and self._take(status, now_s)
        if not done:
            self._check_patience(now_s)
        return done

    def _take(self, status: Status, now_s: float) -> bool:
        self._loads.append(os.getloadavg()[0])
        self._display.status(status)
        self._head = Revision(status.head_revision)
        self._waiting_for, self._paused = status.waiting_for, bool(status.paused)
        self._mark = progress.observe(self._mark, status, now_s)
        until = self._ready.until
        if until is not None and status.head_revision >= until:
            self._reached_s = self._reached_s or now_s
            self._last_round = self._round_of(until) if self._last_round is None else self._last_round
        return progress.stage(status, until, self._last_round) is progress.Stage.DONE

    def _check_patience(self, now_s: float) -> None:
        if self._mark is None:
            if now_s - self._began_s > timeouts.FIRST_STATUS_S:
                raise SetupError(f"the validator did not answer within {timeouts.FIRST_STATUS_S:g} s")
        elif self._reached_s is not None:
            if now_s - self._reached_s > self._pay_within_s:
                raise GaveUp(
                    f"all rounds are committed, but {self._pay_within_s:.0f} s later the last scores are not in the "
                    "weights on chain"
                )
        elif self._paused:
            return  # a person has to look, and needs the run's storage for it
        elif why := progress.stalled(self._mark, now_s, self._ready.spec.round):
            self._stalled(self._mark, why + (f"; {self._waiting_for}" if self._waiting_for else ""))

    def _stalled(self, mark: progress.Mark, why: str) -> None:
        """The end of a run that has a goal; of one that has none, something to be said once."""
        if self._ready.until is not None:
            raise GaveUp(why)
        if self._told != mark:
            self._told = mark
            self._display.note(f"no progress: {why}", event="stalled")

    def _round_of(self, revision: Revision) -> RoundId | None:
        """The round that made ``revision``, from the log; None while the storage does not answer."""
        try:
            state = LogReader(StoreReader(self._ready.store), self._ready.spec).catch_up(self._ready.state)
        except Retryable:
            return None
        node = state.revisions.get(revision)
        return node.round if node else None
