"""Watching a run: a stall ends one that has a goal, and is said of one that has none."""

from __future__ import annotations

from typing import Any, cast

import pytest

from common.clock import ManualClock
from common.store.memory import MemoryStore
from common.units import Revision
from common.wire import Status
from tests.runlog.support import SPEC, started
from tests.up.support import status
from validator.up.progress import stall_limit_s
from validator.up.run import Ready
from validator.up.supervisor import Supervisor
from validator.up.table import Display
from validator.up.watch import GaveUp, Watcher

LIMIT_S = stall_limit_s(SPEC.round)


class Notes:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, **fields: Any) -> None:
        self.notes.append(text)

    def status(self, shown: Status) -> None:
        return


class Enough(Exception):
    """The test has seen what it wanted."""


def watched(until: int | None, looks: int, shown: Status) -> list[str]:
    """What was said in ``looks`` looks, with half a stall's time between them."""
    clock, notes = ManualClock(), Notes()

    def sleep(_: float) -> None:
        nonlocal looks
        looks -= 1
        if not looks:
            raise Enough
        clock.advance(LIMIT_S / 2 + 1)

    goal = None if until is None else Revision(until)
    ready = Ready(SPEC, cast(Any, None), cast(Any, None), cast(Any, MemoryStore()), started(), goal)
    supervisor = Supervisor(clock, lambda *_: None)
    watcher = Watcher(ready, supervisor, cast(Display, notes), clock, sleep, block_time_s=0.25)
    with pytest.raises(Enough):
        watcher.until_done(lambda: shown)
    return notes.notes


def test_a_run_with_a_goal_is_given_up_with_the_reason() -> None:
    with pytest.raises(GaveUp, match="the last was 1; no miner is here"):
        watched(until=5, looks=9, shown=status(1, waiting_for="no miner is here"))


def test_a_run_without_a_goal_goes_on_and_the_stall_is_said_once() -> None:
    notes = watched(until=None, looks=9, shown=status(1, waiting_for="no miner is here"))
    assert len(notes) == 1
    assert "no progress" in notes[0]
    assert "no miner is here" in notes[0]


def test_patience_is_not_lost_too_early() -> None:
    assert watched(until=None, looks=2, shown=status(1)) == []
