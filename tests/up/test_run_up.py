"""Chain and bucket may die while they are made ready: the supervisor starts them again, and the work is done again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from common.clock import ManualClock
from common.errors import Rejected, Retryable, SetupError
from tests.up.support import settings
from validator.up.bootstrap import make_wallets
from validator.up.run import LocalRun
from validator.up.supervisor import Supervisor
from validator.up.table import Display


class Servers:
    """A supervisor whose server is dead until it is polled."""

    def __init__(self) -> None:
        self.alive = threading.Event()
        self.polls_in: set[threading.Thread] = set()
        self.lost = ""

    def poll(self) -> None:
        self.polls_in.add(threading.current_thread())
        self.alive.set()

    def given_up(self) -> str:
        return self.lost


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def local(servers: Servers, tmp_path: Path) -> LocalRun:
    clock = ManualClock()
    return LocalRun(
        settings(tmp_path),
        cast(Supervisor, servers),
        cast(Display, None),
        make_wallets(tmp_path / "wallets", 1),
        clock,
        clock.advance,
        random.Random(0),
    )


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "made"

    return work


def test_a_server_that_dies_under_the_work_is_started_again_meanwhile(local: LocalRun, servers: Servers) -> None:
    def work() -> str | None:
        servers.alive.clear()  # killed
        assert servers.alive.wait(60)
        return None

    assert local._make("the run", work, (Retryable,)) is None
    assert servers.polls_in == {threading.current_thread()}, "children die with the thread that started them"


def test_work_that_a_dead_server_cut_off_is_done_again(local: LocalRun) -> None:
    assert local._make("the run", failing(Retryable("no answer"), Retryable("no answer")), (Retryable,)) == "made"


def test_what_waiting_does_not_cure_is_raised_at_once(local: LocalRun) -> None:
    with pytest.raises(Rejected, match="no_funds"):
        local._make("the run", failing(Rejected("no_funds", "poor")), (Retryable,))


def test_a_server_that_stays_away_is_named_with_the_trouble(local: LocalRun) -> None:
    with pytest.raises(SetupError, match=r"the run was not ready within .*no answer"):
        local._make("the run", failing(*[Retryable("no answer")] * 1000), (Retryable,))


def test_a_server_that_was_given_up_ends_the_work(local: LocalRun, servers: Servers) -> None:
    servers.lost = "the chain ended ten times"
    with pytest.raises(SetupError, match="ten times"):
        local._make("the run", threading.Event().wait, (Retryable, SetupError))
